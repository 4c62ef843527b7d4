"""IFCA and HypCluster: clients choose the group with the least loss (Ghosh et al., 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedsim.common import former_keys
from fedsim.common.former_keys import Former
from fedsim.common.spec import Epochs, OnlyWith
from fedsim.common.training import ALL_SAMPLES, Limit, Training
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
from fedsim.strategies.parts.aggregation import AggregationSpec, Entry, Mean, Weighted
from fedsim.strategies.refusals import Reasons
from fedsim.toolbox.clustering.moments import ShiftTest
from fedsim.toolbox.strategies.grouped import GroupedState, Preparation, Preset
from fedsim.toolbox.strategies.migrating import Migrating, MigratingClient, MigratingParams
from fedsim.world.steps import Evaluate, TaskStep, Train


class IFCAParams(MigratingParams):
    """Keys of ``[strategy]`` for IFCA.

    The keys of strategies with groups and rounds are allowed too.

    Attributes:
        aggregation: ``mean``, as in the paper; ``weighted``, by samples; ``first``, the update of
            the client that was asked first, as in the published code of FlexCFL.
        averaging: how updates move a group's model (Ghosh et al. 2020, Algorithm 1). ``models``
            (option II): clients train for ``local_epochs``, and the model becomes the mean of its
            clients' updates, by ``aggregation``. ``gradients`` (option I): each client makes one
            step on all of its data, and the model moves by the sum of its clients' steps, divided
            by the number of all clients of the round, of all groups.
    """

    instead: ClassVar[Former] = {**MigratingParams.instead, **former_keys.IFCA}
    sweeps: ClassVar[bool] = True
    kind: Literal["ifca", "ifca-mig"] = "ifca"
    clients_per_round: int = Field(default=20, ge=1)
    local_epochs: Annotated[Epochs, OnlyWith("averaging", values=("models",))] = 10
    aggregation: Annotated[AggregationSpec, OnlyWith("averaging", values=("models",))] = Mean()
    averaging: Literal["models", "gradients"] = "models"

    @property
    def why_not(self) -> Reasons:
        if self.averaging == "models":
            return Reasons()
        summed = "with 'averaging' = 'gradients' clients' steps are summed beside it"
        one_step = "with 'averaging' gradients a client makes one step on all of its data"
        return Reasons(
            private_aggregation=summed,
            robust_aggregation=summed,
            other_steps="a step of SGD gives IFCA's gradients",
            by_device=dict.fromkeys(("epochs", "steps", "batch_size"), one_step),
        )

    @property
    def usual_shift(self) -> ShiftTest:
        return "aligned_l1" if self.kind == "ifca-mig" else "never"


class IFCAClient(MigratingClient[IFCAParams]):
    """Client that tests the models of all groups on its data, and trains the best one.

    It sends its update and the index of the best model's group.
    """

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        """Return the test of the models of all groups, and in a round the training of the best one.

        Args:
            device: the device.
            instruction: the message with the models; its job is ``choose`` if the device only
                chooses its group.
        """
        limit = self.testing_limit(instruction)
        if instruction.job == "choose":
            return (Evaluate(tuple(instruction["migration"]), limit),)
        test = Evaluate(tuple(instruction["model"]), limit)
        # BEST stands for the model with the least loss in the test
        if self.params.averaging == "gradients":
            step = Training(BEST, batch_size=ALL_SAMPLES)
            return test, Train(step, Limit(budget=self.training_limit))
        training = Training(BEST, self.params.local_epochs)
        return test, Train(training, self.limit(device, instruction))

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        assert result.tested is not None
        choice = Lazy("choice", result.tested)
        if instruction.job == "choose":
            return {"id": choice}
        return {"update": result.update, "id": choice, "samples": Header(result.samples)}

    def settles(self, device: Device, instruction: Instruction) -> bool:
        return instruction.job == "choose" or "reference" not in device.state


@dataclass
class IFCAState(GroupedState):
    """State of IFCA on the server: the groups' models, and each device's group.

    Attributes:
        chosen_in: ID of the task in which each device last chose its group, -1 before its first
            choice. Choices of earlier tasks that arrive later are ignored.
    """

    chosen_in: list[int] = field(default_factory=list)


class IFCA(Migrating[IFCAParams]):
    """The iterative federated clustering algorithm.

    There is a model for each group of clients. Each client tests all models on its data, and trains
    the best one.

    Source: Ghosh et al., "An efficient framework for clustered federated learning" (2020),
    Algorithm 1.

    In each round the K clients receive the models of all m groups (m d parameters). Each computes
    the loss of each model on its training data, trains the best one (the first of equals), and
    sends its update and the group's number (d parameters, 4 bytes). A group's model becomes the
    mean of its updates, if there are any. In IFCA-MIG (from the paper of FlexCFL) a device whose
    data have shifted receives all models (m d) and chooses at once.
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

    def entry(self, message: TaskEnd) -> Entry:
        return super().entry(message) | {"start": message["id"].ref}

    def preparation(self, device: int) -> tuple[Contents, str] | None:
        if device not in self.state.unprepared:
            return None
        return {"migration": self.state.models}, "choose"

    async def assign(self, prepared: Sequence[Preparation]) -> None:
        groups = await self.choices(prepared, "choice")
        for preparation, group in zip(prepared, groups, strict=True):
            self.state.chosen_in[preparation.device] = preparation.task
            self.settle(preparation.device, group)

    async def aggregate(self) -> None:
        """Move each client to the group that it has chosen, then aggregate each group's updates.

        Each update is aggregated into the model from which it was trained, the best one on the
        client's data. A client that has chosen a group again since then, as its data have shifted,
        stays in the group of its later choice.
        """
        received = self.state.received
        chosen_in = self.state.chosen_in
        newcomers = list[int]()
        groups = await self.choices(received, "choice")
        for entry, group in zip(received, groups, strict=True):
            device = entry["device"]
            entry["group"] = group
            if entry["task"] < chosen_in[device]:
                continue  # the device has chosen again later, as its data have shifted
            chosen_in[device] = entry["task"]
            if self.group_of(device) is None:
                newcomers.append(device)
            self.move(device, group, "choice")
        await super().aggregate()
        await self.test_for_shifts(newcomers)

    async def next_model(
        self, model: Ref, entries: list[Entry], slot: int = 0, **record: object
    ) -> Ref:
        """Return a group's next model: the mean of its updates, or a step by summed gradients.

        The key ``averaging`` chooses between the two.

        Args:
            model: the group's present model.
            entries: the updates of the group's clients.
            slot: index of the group.
            record: additional fields of the record ``aggregate``.
        """
        if self.params.averaging == "models":
            return await super().next_model(model, entries, slot, **record)
        # gradient averaging (Algorithm 1, option I): w + sum_i (w_i - w) / count of all clients
        mix = self.server.models.mix
        share = 1 / len(self.state.received)
        self.record_aggregate(entries, [share] * len(entries), **record)
        # Each difference is a separate mix, so that only the differences that are not finite are
        # left out.
        steps = [(mix([(entry["update"], 1.0), (model, -1.0)]), share) for entry in entries]
        step = mix(steps, rescale=False)
        result = mix([(model, 1.0), (step, 1.0)], otherwise=model, rescale=False)
        return self.advance(model, result, slot)


class HypClusterParams(IFCAParams):
    """Keys of ``[strategy]`` for HypCluster: the keys of IFCA with other defaults.

    Three defaults differ. The mean is weighted by samples. A training is one epoch. ``follows`` is
    ``"paper"``, with which ``selection`` chooses the clients from the first round on; IFCA's first
    rounds ask clients that were not asked before, as in the published code.
    """

    kind: Literal["hypcluster"] = "hypcluster"  # type: ignore[assignment]
    aggregation: AggregationSpec = Weighted()
    local_epochs: Epochs = 1
    follows: Preset = "paper"


class HypCluster(IFCA):
    """HypCluster: of several models, each client trains the model with the least loss on its data.

    Source: Mansour et al., "Three approaches for personalization with applications to federated
    learning" (2020), section 4, HYPCLUSTER. The models are the paper's hypotheses, one for each
    group of clients; ``groups`` is the paper's q. It is IFCA with model averaging weighted by
    samples. The hypotheses begin at independent draws; the paper begins near one model that was
    trained before.
    """

    Params: ClassVar[type[IFCAParams]] = HypClusterParams
