"""FedProx: FedAvg with a proximal term and partial work (Li et al., 2020)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedsim.common.spec import OnlyWith
from fedsim.common.training import Limit, Proximal, Training
from fedsim.federation import Contents, Device, Header, Instruction
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.round_params import AggregatingParams, RoundParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.strategies.traits import Traits


class FedProxParams(AggregatingParams):
    """Keys of ``[strategy]`` for FedProx.

    Attributes:
        mu: weight of the proximal term mu/2 ||w - w_global||^2, with the model w in training and
            the received model w_global.
        partial_work: whether a client that cannot finish all epochs before the deadline sends its
            result after the finished epochs. Otherwise it is late, and sends nothing.
    """

    traits: ClassVar[Traits] = Traits(kept_by="scenario", averages_updates=True)
    kind: Literal["fedprox"] = "fedprox"
    mu: float = Field(default=1.0, ge=0.0, le=1e6)
    partial_work: Annotated[bool, OnlyWith("deadline")] = True


class FedProxClient(SynchronousClient[FedProxParams]):
    """Client that minimises its loss plus a proximal term, which keeps it near the global model.

    The term is mu/2 ||w - w_global||^2, with the key ``mu``, the model w in training and the
    received model w_global. With ``partial_work`` the client sends the result of the epochs that it
    has finished by the deadline.
    """

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(
            instruction["model"], self.params.local_epochs, proximal=Proximal(self.params.mu)
        )

    def limit(self, device: Device, instruction: Instruction) -> Limit:
        if not self.params.partial_work:
            return super().limit(device, instruction)
        stop_at = instruction["stop_at"]
        upload_bytes = 0.0
        if stop_at is not None:
            upload_bytes = device.upload_bytes({"update": instruction["model"]})
        return Limit(stop_at, self.training_limit, reserve_upload=upload_bytes)


class FedProx(FedAvg[FedProxParams]):
    """FedAvg with a proximal term.

    Source: Li et al., "Federated optimization in heterogeneous networks" (MLSys 2020), Algorithm 2.

    Messages are as in FedAvg. The local step is w <- w - lr (g + mu (w - w_global)), with the
    gradient g of a mini-batch and the received model w_global. mu = 0 without partial work is
    FedAvg, bit for bit.

    With a deadline and ``partial_work`` a client sends the result of its finished epochs, at least
    one. If the deadline counts from the begin of the round, the client stops in time for its
    upload.
    """

    Params: ClassVar[type[RoundParams]] = FedProxParams
    Client = FedProxClient

    def contents(self, device: int) -> Contents:
        stop_at: float | None = None
        if self._round_limit_s is not None:
            stop_at = self.server.now + self._round_limit_s
        return {"model": self.shared(self.state.model), "stop_at": Header(stop_at)}
