"""FedNova: updates count by direction, independent of their numbers of steps (Wang et al.,
2020).
"""

from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from fedsim.common.errors import ScenarioError
from fedsim.common.spec import OnlyWith
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult, Server
from fedsim.learning.functions import weighted_sum
from fedsim.learning.refs import Ref
from fedsim.strategies.fedprox import FedProx, FedProxClient, FedProxParams
from fedsim.strategies.round_params import RoundParams


class FedNovaParams(FedProxParams):
    """Parameters of FedNova; see ``FedProxParams``.

    Attributes:
        mu: weight of the proximal term; 0, local SGD, unless it is given.
        partial_work: a client that cannot finish all epochs sends what it has, which counts by
            the steps that it took.
        effective: tau_eff with mu: the mean ``reach`` of the clients (the paper), or of their
            ``steps`` (the authors' code).
    """

    counts_steps: ClassVar[str] = "FedNova normalises by how far steps of SGD reach"
    kind: Literal["fednova"] = "fednova"  # type: ignore[assignment]
    mu: float = 0.0
    effective: Annotated[Literal["reach", "steps"], OnlyWith("mu")] = "reach"


@lru_cache(maxsize=4096)
def reach(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """The way of so many steps along a gradient that is 1 everywhere (the paper's ||a||_1), in
    units of the learning rate.

    With ``momentum`` (its section 4.1), and with FedProx's ``pull`` = lr mu: v <- momentum v + 1
    - pull x; x <- x + v.
    """
    moved = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0 - pull * moved
        moved += velocity
    return moved


class FedNovaClient(FedProxClient):
    """Trains as FedProx's, and says how many steps it took."""

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        return {**(super().reply(device, instruction, result) or {}), "steps": Header(result.steps)}


class FedNova(FedProx):
    """Normalised averaging.

    Source: Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated
    optimization" (NeurIPS 2020), Algorithm 1 and its update rule: w <- w + tau_eff sum_i p_i (w_i -
    w) / ||a_i||_1, where ||a_i||_1 is how far client i's steps reach (``reach``), p_i its weight by
    ``aggregation``, and tau_eff = sum_i p_i ||a_i||_1 (its Eq. 5). It is FedAvg where all take the
    same steps.

    Sends what FedAvg sends, and in the answer's header the number of steps that were really taken.
    """

    Params: ClassVar[type[RoundParams]] = FedNovaParams
    Client = FedNovaClient

    def __init__(self, params: FedNovaParams, server: Server) -> None:
        super().__init__(params, server)
        lr = self.setting.lr_in(0)
        if params.mu * lr >= 1:
            raise ScenarioError(
                f"strategy.mu is {params.mu:g}: with a learning rate of {lr:g} a local step "
                "would go beyond "
                f"its anchor, and steps could not be counted; allowed is less than {1 / lr:g}"
            )

    async def next_model(
        self, model: Ref, entries: list[dict[str, Any]], slot: int = 0, **record: Any
    ) -> Ref:
        assert isinstance(self.params, FedNovaParams)
        pull = self.params.mu * self.setting.lr_in(self.state["round"])
        reaches = [
            reach(entry["contents"]["steps"], self.setting.momentum, pull) for entry in entries
        ]
        taken = (
            reaches
            if self.params.effective == "reach"
            else [entry["contents"]["steps"] for entry in entries]
        )
        effective = sum(
            weight * own for weight, own in zip(self.weights(entries), taken, strict=True)
        )
        normalised = []
        for entry, own in zip(entries, reaches, strict=True):
            factor = effective / own if own else 0.0
            # not finite if either is not
            both = [entry["start"], entry["update"]]
            share = [1 - factor, factor]
            normalised.append(
                entry | {"update": self.server.models.apply(weighted_sum, both, coefficients=share)}
            )
        return await super().next_model(model, normalised, slot, **record)
