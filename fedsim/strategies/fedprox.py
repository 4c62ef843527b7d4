"""FedProx: FedAvg with a proximal term and partial work (Li et al., 2020)."""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from fedsim.server import Limit, Train, Training
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.synchronous import SynchronousParams


class FedProxParams(SynchronousParams):
    """What FedProx takes.

    Attributes:
        mu: weight of the proximal term mu/2 ||w - w_global||^2.
        partial_work: a client that cannot finish all epochs before the deadline sends what it has.
    """

    kind: Literal["fedprox"] = "fedprox"
    mu: float = Field(default=1.0, ge=0.0, le=1e6)
    partial_work: bool = True


class FedProx(FedAvg):
    """FedAvg with a proximal term.

    Source: Li et al., "Federated optimization in heterogeneous networks", Algorithm 2.

    Sends what FedAvg sends. The local gradient step is w <- w - lr (g + mu (w - w_global)) with the received model as anchor
    for the whole local solve. With a deadline and ``partial_work`` a client sends what its finished epochs gave; it is dropped
    only when not one epoch fits. If the deadline counts from the begin of the round, it stops in time for its upload to arrive
    on its own link. mu = 0 with ``partial_work = false`` is FedAvg, bit for bit.

    Parameters: ``mu``, ``partial_work``, and FedAvg's.
    """

    Params: ClassVar[type[SynchronousParams]] = FedProxParams
    params: FedProxParams  # type: ignore[assignment]

    def training(self) -> Train:
        """Local SGD with the proximal term, up to the deadline."""
        params = self.params
        if not params.partial_work:
            whole = super().training()
            return replace(whole, training=replace(whole.training, mu=params.mu))
        stop_at = None if self.round_limit is None else self.server.now + self.round_limit
        limit = Limit(stop_at, self.training_limit, reserve_upload=stop_at is not None)
        return Train(Training(self.state["model"], params.local_epochs, mu=params.mu), limit)
