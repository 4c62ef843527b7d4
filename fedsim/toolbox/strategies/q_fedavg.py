"""q-FedAvg: clients with larger losses weigh more, for a fairer accuracy (Li et al., 2020)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.federation import Contents, Device, Instruction, Lazy, LocalResult
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.parts.aggregation import changes
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.round_params import SynchronousParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.strategies.updates import Update
from fedsim.world.steps import Evaluate, TaskStep


class QFedAvgParams(SynchronousParams):
    """Keys of ``[strategy]`` for q-FedAvg.

    ``SynchronousParams`` describes the keys of all strategies in rounds.

    Attributes:
        q: exponent of fairness: the objective is the sum over devices of F_k^(q+1) / (q+1), with
            the device's loss F_k. With 0 it is the sum of the losses.
        lipschitz: L, an estimate of the Lipschitz constant of the gradient; None: 1 / learning
            rate, as in the paper.
    """

    kind: Literal["q-fedavg"] = "q-fedavg"
    why_not: ClassVar[Reasons] = Reasons(
        training_limit="with q-fedavg a client computes the loss of the received model too"
    )
    q: float = Field(default=0.1, ge=0.0, le=100.0)
    lipschitz: float | None = Field(default=None, gt=0.0)


class QFedAvgClient(SynchronousClient[QFedAvgParams]):
    """Client that computes the received model's loss on its data, then trains the model.

    It sends its update and the loss.
    """

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        test = Evaluate((instruction["model"],), self.testing_limit(instruction))
        return (test, *super().work(device, instruction))

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        assert result.tested is not None
        contents = super().reply(device, instruction, result) or {}
        return {**contents, "loss": Lazy("losses", result.tested)}


def fair_weights(
    losses: NDArray[np.float64], norms: NDArray[np.float64], q: float, lipschitz: float
) -> NDArray[np.float64]:
    """Compute the factor of each client's change in the server's step of q-FedAvg (Algorithm 2).

    The received model is w, client k's update w_k, and its loss F_k. With delta_w_k = L (w - w_k),
    Delta_k = F_k^q delta_w_k and h_k = q F_k^(q-1) ||delta_w_k||^2 + L F_k^q, the step is w <- w -
    sum_k Delta_k / sum_k h_k. So the factor of w_k - w is L F_k^q / sum_j h_j. All F_k^q and h_k are
    divided by the largest F_k^q, which changes no factor but keeps powers in range.

    Args:
        losses: F_k of the received model on each client's data, float64 [K], not negative.
        norms: ||w_k - w|| of each client, float64 [K].
        q: the exponent.
        lipschitz: L, an estimate of the Lipschitz constant of the gradient.

    Returns:
        The factor of each client, float64 [K]. The factors sum to at most 1; all are 0 if all
        losses are 0 and q > 0.

    Example:
        >>> import numpy as np
        >>> fair_weights(np.array([1.0, 2.0]), np.array([3.0, 4.0]), 0.0, 10.0).tolist()
        [0.5, 0.5]
    """
    largest = losses.max()
    if q == 0.0:
        return np.full(len(losses), 1.0 / len(losses))
    if largest == 0.0:
        return np.zeros(len(losses))
    powers = (losses / largest) ** q  # F_k^q / largest^q
    # The slope of F_k^q, divided by largest^q, is q F_k^(q-1) / largest^q = q (F_k^q / largest^q) /
    # F_k. At a loss of 0 it is 1 / largest if q = 1, and 0 if q > 1. For q < 1 it would be infinite,
    # and 0 is used.
    slope_at_0 = 1.0 / largest if q == 1.0 else 0.0
    slopes = np.full(len(losses), slope_at_0)
    is_positive = losses > 0
    slopes[is_positive] = q * powers[is_positive] / losses[is_positive]
    # h_k / largest^q, with ||delta_w_k|| = L ||w_k - w||
    h = slopes * (lipschitz * norms) ** 2 + lipschitz * powers
    # the power largest^q is in numerator and denominator, and cancels
    return np.asarray(lipschitz * powers / h.sum())


class QFedAvg(FedAvg[QFedAvgParams]):
    """Fair federated averaging: clients with a larger loss have more weight.

    Source: Li, Sanjabi, Beirami and Smith, "Fair resource allocation in federated learning" (ICLR
    2020, arXiv 1905.10497), Algorithm 2. A client computes its loss F_k of the received model w,
    trains by SGD, and sends its model w_k and F_k (d parameters and 4 bytes). The server moves w by
    the sum of the changes w_k - w, each multiplied by a factor that grows with F_k^q
    (``fair_weights``). With q = 0 it is FedAvg with equal weights.

    In the paper clients are drawn with a probability in proportion to their samples; here by
    ``selection``. Without learning all weights are equal. An update that is not finite, or that has
    no finite loss, is left out.
    """

    Params = QFedAvgParams
    Client = QFedAvgClient

    async def aggregate(self) -> None:
        received = self.state.received
        if not received:
            return
        model = self.state.model
        weights = await self._fair_weights(received)
        self.record_aggregate(received, weights)
        parts = [(model, 1.0), *zip(changes(self.server, received), weights, strict=True)]
        self.state.model = self.server.models.mix(parts, otherwise=model, rescale=False)

    async def _fair_weights(self, received: Sequence[Update]) -> list[float]:
        """Return the factor by which each update's change of the model is multiplied.

        The factor grows with the loss that the client reported. It is 0 if the update or the loss
        is not finite, and equal for all updates in runs without learning.

        Args:
            received: the updates of the round.
        """
        models = self.server.models
        reports = [update.contents["loss"] for update in received]
        updates = [update.update for update in received]
        if not models.learns:
            # for the memory forecast of ``fedsim check``, whose trial has no weights
            await models.note_skipped([report.ref for report in reports])
            await models.note_skipped(updates)
            return [1.0 / len(received)] * len(received)
        # a report is an array of one loss
        losses = np.array([loss[0] for loss in await models.numbers(reports)])
        norms = await self._norms_of_changes(updates)
        is_finite = np.isfinite(losses) & np.isfinite(norms)
        weights = np.zeros(len(received))
        if is_finite.any():
            lipschitz = self.params.lipschitz or 1.0 / self.setting.lr_in(self.state.round)
            weights[is_finite] = fair_weights(
                losses[is_finite], norms[is_finite], self.params.q, lipschitz
            )
        factors: list[float] = weights.tolist()
        return factors

    async def _norms_of_changes(self, updates: Sequence[Ref]) -> NDArray[np.float64]:
        """Return ||w_k - w|| of each update w_k, float64 [K]; w is the present model."""
        trained = await self.server.models.values(updates)
        start = (await self.server.models.value(self.state.model)).astype(np.float64)
        return np.array([np.linalg.norm(weights - start) for weights in trained])
