"""IFCA and HypCluster: each client chooses the group whose model fits its data best (Ghosh et
al., 2020).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedsim.common.spec import Epochs, OnlyWith
from fedsim.common.training import Limit, Training
from fedsim.federation import (
    BEST,
    Contents,
    Device,
    Header,
    Instruction,
    Lazy,
    LocalResult,
    TaskEnd,
)
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean, Protection, Weighted
from fedsim.toolbox.clustering.moments import ShiftTest
from fedsim.toolbox.strategies.grouped import (
    GroupedState,
    Migrating,
    MigratingClient,
    MigratingParams,
    Preset,
)
from fedsim.world.task import Computation, Evaluate, Train


class IFCAParams(MigratingParams):
    """Parameters of IFCA, in addition to ``MigratingParams``."""

    sweeps: ClassVar[bool] = True
    kind: Literal["ifca", "ifca-mig"] = "ifca"
    clients_per_round: int = Field(default=20, ge=1)
    local_epochs: Annotated[Epochs, OnlyWith("averaging", values=("models",))] = 10
    aggregation: Annotated[AggregationSpec, OnlyWith("averaging", values=("models",))] = Mean()
    """``mean``, as in the paper; ``weighted``, by samples; ``first``, as in the published code
    of FlexCFL.
    """
    averaging: Literal["models", "gradients"] = "models"
    """of ``models`` (Algorithm 1, option II), or of ``gradients``: each client makes one step on
    all of its data, and a group's model moves by the sum of its clients' steps, divided by the
    number of all clients of the round (option I).
    """

    @property
    def usual_shift(self) -> ShiftTest:
        return "aligned_l1" if self.kind == "ifca-mig" else "never"

    @property
    def counts_steps(self) -> str | None:
        return (
            "a step of SGD gives IFCA's gradients"
            if self.averaging == "gradients"
            else super().counts_steps
        )

    def unprotected(self, protection: Protection) -> str | None:
        return (
            "with 'averaging' = 'gradients' clients' steps are summed beside it"
            if self.averaging == "gradients"
            else None
        )


class IFCAClient(MigratingClient[IFCAParams]):
    """Tests all models, trains the best, and says which that was."""

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        chooses = instruction.job == "choose"
        once = self.params.averaging == "gradients"
        test = Evaluate(
            tuple(instruction["migration" if chooses else "model"]), self.testing_limit(instruction)
        )
        if chooses:
            return (test,)
        training = (
            Training(BEST, full_batch=True) if once else Training(BEST, self.params.local_epochs)
        )
        return test, Train(
            training, Limit(budget=self.training_limit) if once else self.limit(device, instruction)
        )

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        assert result.tested is not None
        choice = {"id": Lazy("choice", result.tested)}
        trained = {"update": result.update, **choice, "samples": Header(result.samples)}
        return choice if instruction.job == "choose" else trained

    def settles(self, device: Device, instruction: Instruction) -> bool:
        return instruction.job == "choose" or "reference" not in device.state


@dataclass
class IFCAState(GroupedState):
    """Memory of IFCA."""

    chosen_in: list[int] = field(default_factory=list)
    """Task in which each device chose its group last, -1 for none."""


class IFCA(Migrating[IFCAParams]):
    """The iterative federated clustering algorithm.

    Source: Ghosh et al., "An efficient framework for clustered federated learning" (2020),
    Algorithm 1.

    In each round the K clients receive the models of all m groups (m d parameters). Each computes
    their loss on its training data, trains the best one (the first of equals), and sends its update
    and the group's number (d parameters, 4 bytes). A group's model becomes the mean of its updates,
    if there are any. In IFCA-MIG (from the paper of FlexCFL) a shifted device receives all models
    (m d) and chooses at once.
    """

    Params: ClassVar[type[IFCAParams]] = IFCAParams
    Client = IFCAClient
    State = IFCAState
    state: IFCAState

    async def on_start(self) -> None:
        self.state.models = [
            self.server.models.initial(group) for group in range(self.params.groups)
        ]
        self.state.chosen_in = [-1] * self.server.devices
        await super().on_start()

    def contents(self, device: int) -> Contents:
        return {"model": self.state.models}

    def entry(self, message: TaskEnd) -> dict[str, Any]:
        return super().entry(message) | {"start": message["id"].ref}

    def preparation(self, device: int) -> tuple[Contents, str] | None:
        return (
            ({"migration": self.state.models}, "choose")
            if device in self.state.unprepared
            else None
        )

    async def assign(self, prepared: Sequence[dict[str, Any]]) -> None:
        for entry, group in zip(prepared, await self.choices(prepared, "choice"), strict=True):
            self.state.chosen_in[entry["device"]] = entry["task"]
            self.settle(entry["device"], group)

    async def aggregate(self) -> None:
        received = self.state.received
        latest = self.state.chosen_in
        newcomers = list[int]()
        for entry, group in zip(received, await self.choices(received, "choice"), strict=True):
            device, entry["group"] = entry["device"], group
            if entry["task"] < latest[device]:
                continue  # its data have shifted since, and it has chosen again
            latest[device] = entry["task"]
            if self.group_of(device) is None:
                newcomers.append(device)
            self.move(device, group, "choice")
        await super().aggregate()
        await self.test_again(newcomers)

    async def next_model(
        self, model: Ref, entries: list[dict[str, Any]], slot: int = 0, **record: int
    ) -> Ref:
        if self.params.averaging == "models":
            return await super().next_model(model, entries, slot, **record)
        mix = self.server.models.mix
        share = 1 / len(self.state.received)
        self.record_aggregate(entries, [share] * len(entries), **record)
        # Differences are mixes of their own, so that one that is not finite is left out alone.
        steps = [(mix([(entry["update"], 1.0), (model, -1.0)]), share) for entry in entries]
        moved = mix(
            [(model, 1.0), (mix(steps, rescale=False), 1.0)], otherwise=model, rescale=False
        )
        return self.advance(model, moved, slot)


class HypClusterParams(IFCAParams):
    """Parameters of HypCluster; see ``IFCAParams``.

    Weighted by samples, with the paper's few steps; no turns at first.
    """

    kind: Literal["hypcluster"] = "hypcluster"  # type: ignore[assignment]
    aggregation: AggregationSpec = Weighted()
    local_epochs: Epochs = 1
    __annotations__["as"] = Annotated[Preset, Field(default="paper")]


class HypCluster(IFCA):
    """Every client chooses the hypothesis of least loss on its data, and each hypothesis is
    trained by its clients.

    Source: Mansour et al., "Three approaches for personalization with applications to federated
    learning" (2020), section 4, HYPCLUSTER. That is IFCA with model averaging weighted by samples,
    ``groups`` being its q. The hypotheses begin at draws of their own, where the paper begins near
    one model that was trained before.
    """

    Params: ClassVar[type[IFCAParams]] = HypClusterParams
