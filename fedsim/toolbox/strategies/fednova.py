"""FedNova: updates are normalised by their counts of SGD steps (Wang et al., 2020)."""

from functools import lru_cache
from typing import Annotated, ClassVar, Literal

from fedsim.common.errors import ScenarioError
from fedsim.common.spec import OnlyWith
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult, Server
from fedsim.learning.functions import weighted_sum
from fedsim.learning.refs import Ref
from fedsim.strategies.fedprox import FedProx, FedProxClient, FedProxParams
from fedsim.strategies.parts.aggregation import Entry
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.round_params import RoundParams


class FedNovaParams(FedProxParams):
    """Keys of ``[strategy]`` for FedNova, in addition to the keys of FedProx.

    Attributes:
        mu: weight of the proximal term; by default 0, plain local SGD without it.
        partial_work: whether a client that cannot finish all epochs sends its model as it is; its
            update is normalised by the steps that it took.
        effective: definition of tau_eff, the common factor of all normalised changes. It is the
            weighted mean over the clients of a number: ``reach``, the distance that the client's
            steps move (the paper); ``steps``, the client's count of steps (the authors' code). The
            key is allowed only if mu is above 0; otherwise ``reach`` holds.
    """

    why_not: ClassVar[Reasons] = Reasons(
        other_steps="FedNova normalises by how far steps of SGD reach",
        by_device={"lr": "FedNova measures how far steps of one learning rate reach"},
    )
    kind: Literal["fednova"] = "fednova"  # type: ignore[assignment]
    mu: float = 0.0
    effective: Annotated[Literal["reach", "steps"], OnlyWith("mu")] = "reach"


@lru_cache(maxsize=4096)
def reach(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """Compute how far SGD moves in a number of steps if each gradient is 1, FedNova's ||a||_1.

    From x = v = 0 each step does v <- momentum v + 1 - pull x, and then x <- x + v. The part
    -pull x is the gradient of FedProx's proximal term, which draws the model back to its start.

    Args:
        steps: count of SGD steps.
        momentum: momentum of the optimiser (section 4.1 of FedNova's paper).
        pull: learning rate times mu of FedProx's proximal term; 0 without this term.

    Returns:
        The reach, which is the distance x, in units of the learning rate.
    """
    distance = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0 - pull * distance
        distance += velocity
    return distance


class FedNovaClient(FedProxClient):
    """Client that trains with a proximal term around the received model, as in FedProx.

    It sends its update, and in the header of its answer the count of its SGD steps.
    """

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        return {**(super().reply(device, instruction, result) or {}), "steps": Header(result.steps)}


class FedNova(FedProx):
    """Normalised averaging.

    Each client's change of the model is divided by its ``reach``, the distance that its SGD steps
    move, so that a client that makes more steps has no more weight.

    Source: Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated
    optimization" (NeurIPS 2020), Algorithm 1 and its update rule: w <- w + tau_eff sum_i p_i (w_i -
    w) / ||a_i||_1. Here w is the model, w_i client i's update, ||a_i||_1 the client's reach, p_i
    the client's weight by ``aggregation``, and tau_eff = sum_i p_i ||a_i||_1 (Eq. 5). If all
    clients take the same steps, it is FedAvg.

    Messages are as in FedAvg, the model down and the update up (d parameters each). The answer's
    header has the number of steps that the client took.
    """

    Params: ClassVar[type[RoundParams]] = FedNovaParams
    Client = FedNovaClient

    def __init__(self, params: FedNovaParams, server: Server) -> None:
        super().__init__(params, server)
        lr = self.setting.lr_in(0)
        if params.mu * lr >= 1:
            raise ScenarioError(
                f"strategy.mu is {params.mu:g}: with a learning rate of {lr:g} a local step "
                "would go beyond its anchor, and steps could not be counted; allowed is less than "
                f"{1 / lr:g}"
            )

    async def next_model(
        self, model: Ref, entries: list[Entry], slot: int = 0, **record: object
    ) -> Ref:
        """Return the next model, by the aggregation of the normalised updates.

        The normalised update of client i is w + tau_eff (w_i - w) / ||a_i||_1. Here w is the model
        that the client received, w_i its update, and ||a_i||_1 its ``reach``. tau_eff is the
        weighted mean over the clients of their reach, or of their counts of steps (key
        ``effective``).

        Args:
            model: the present model.
            entries: the updates, with the count of steps in their contents; at least one.
            slot: index of the model, always 0, as there is one model.
            record: additional fields of the record ``aggregate``.
        """
        assert isinstance(self.params, FedNovaParams)
        # the proximal term shortens each step, and thereby the reach
        pull = self.params.mu * self.setting.lr_in(self.state.round)
        steps = [entry["contents"]["steps"] for entry in entries]
        reaches = [reach(count, self.setting.momentum, pull) for count in steps]
        values = reaches if self.params.effective == "reach" else steps
        weights = self.weights(entries)
        tau_eff = sum(weight * value for weight, value in zip(weights, values, strict=True))
        normalised = []
        for entry, client_reach in zip(entries, reaches, strict=True):
            factor = tau_eff / client_reach if client_reach else 0.0  # 0: the client made no step
            normalised.append(entry | {"update": self._scale_change(entry, factor)})
        return await super().next_model(model, normalised, slot, **record)

    def _scale_change(self, entry: Entry, factor: float) -> Ref:
        """Return the received model plus ``factor`` times a client's change of this model.

        Args:
            entry: the client's update.
            factor: factor of the change.
        """
        models = [entry["start"], entry["update"]]
        coefficients = [1 - factor, factor]
        # ``mix`` would leave out a model that is not finite, and give a finite update, which the
        # aggregation would use.
        return self.server.models.apply(weighted_sum, models, coefficients=coefficients)
