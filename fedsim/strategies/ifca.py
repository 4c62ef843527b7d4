"""IFCA: every client chooses, out of all groups' models, the one that fits its own data best."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.server import CHOSEN, Download, Evaluate, Limit, Payload, Step, Train, Training, Upload
from fedsim.spec import Epochs
from fedsim.strategies.grouped import Mean
from fedsim.strategies.migrating import Migrating, MigratingParams

_ID = Payload("id", 4.0)


class IFCAParams(MigratingParams):
    """What IFCA takes, besides ``MigratingParams``.

    Attributes:
        aggregation: ``mean``, as in the paper; ``weighted``, by samples; ``first``, as in the published code of FlexCFL.
        starts: the m models begin at draws of their own (``different``) or all at one (``same``). Devices cannot tell equal
            models apart and all choose the first, for ever: refused for more than one group.
    """

    kind: Literal["ifca"] = "ifca"
    clients_per_round: int = Field(default=20, ge=1)
    local_epochs: Epochs = 10
    sweep: bool = True
    aggregation: Mean = "mean"
    dynamic: bool = False
    starts: Literal["different", "same"] = "different"

    def check(self, devices: int) -> None:
        """Groups must be told apart."""
        super().check(devices)
        if self.starts == "same" and self.groups > 1:
            raise ScenarioError(
                f"strategy.starts is 'same' with {self.groups} groups: devices could not tell their models apart and would all "
                "choose the first; allowed is 'different'"
            )


class IFCA(Migrating[IFCAParams]):
    """The iterative federated clustering algorithm.

    Source: Ghosh et al., "An efficient framework for clustered federated learning" (2020), Algorithm 1 with model averaging.

    In each round the K clients receive the models of all m groups (m d parameters). Each computes their loss on its training
    data, trains the best one (the first of equals), and sends its update and which group that was (d parameters, 4 bytes). A
    group's model becomes the mean of its updates; a group without any keeps the one that it has. A newcomer is a client like
    any other: it chooses when it is selected.

    With ``dynamic`` (IFCA-MIG, a variant in the paper of FlexCFL) a device whose data have shifted receives all models
    (m d parameters) and chooses at once.

    Parameters: ``IFCAParams``. State besides ``Migrating``'s: ``chosen_in``, the task of each device's latest choice of its own
    group, -1 for none.
    """

    Params: ClassVar[type[IFCAParams]] = IFCAParams
    params: IFCAParams

    async def on_start(self) -> None:
        """Begin with m models, each a draw of its own."""
        same = self.params.starts == "same"
        self.state["models"] = [self.server.initial(0 if same else group) for group in range(self.params.groups)]
        self.state["chosen_in"] = [-1] * self.server.devices
        await super().on_start()

    def _all_models(self, purpose: str) -> tuple[Download, Evaluate]:
        models = self.state["models"]
        return Download((Payload(purpose, len(models) * self.server.download_bytes),)), Evaluate(tuple(models))

    def steps(self, device: int) -> tuple[Step, ...]:
        """Receive all models, test them, train the best, send the update and the choice."""
        epochs = self.params.local_epochs
        training = Train(Training(CHOSEN, epochs), Limit(budget=self.training_limit, at_least=epochs))
        return (*self._all_models("model"), training, Upload((Payload("update", self.server.upload_bytes), _ID)))

    def preparation(self, device: int) -> tuple[Step, ...] | None:
        """After a shift: receive all models, test them, send the choice."""
        if device not in self.state["unprepared"]:
            return None
        return (*self._all_models("migration"), Upload((_ID,)))

    async def assign(self, prepared: Sequence[dict[str, Any]]) -> None:
        """The group that each device has chosen."""
        for entry, group in zip(prepared, await self._choices(prepared), strict=True):
            self.state["chosen_in"][entry["device"]] = entry["task"]
            self.settle(entry["device"], group)

    async def aggregate(self) -> None:
        """First see who has chosen which group."""
        received, latest = self.state["received"], self.state["chosen_in"]
        newcomers: list[int] = []
        for entry, group in zip(received, await self._choices(received), strict=True):
            device, entry["group"] = entry["device"], group
            if entry["task"] < latest[device]:
                continue  # its data have shifted since, and it has chosen anew
            latest[device] = entry["task"]
            if self.group_of(device) is None:
                newcomers.append(device)
                self.settle(device, group, "choice")
            else:
                self.move(device, group, "choice")
        await super().aggregate()
        await self.test_again(newcomers)

    async def _choices(self, entries: Sequence[dict[str, Any]]) -> list[int]:
        """The model that each device found best; where nothing is learnt, one at random."""
        if not self.server.learns:
            return self.random_groups(len(entries), "choice", *(entry["task"] for entry in entries[:1]))
        return await self.server.choices([entry["tested"] for entry in entries])


class IFCAMigParams(IFCAParams):
    """What IFCA-MIG takes: see ``IFCAParams``."""

    kind: Literal["ifca-mig"] = "ifca-mig"  # type: ignore[assignment]
    dynamic: bool = True


class IFCAMig(IFCA):
    """IFCA whose devices choose anew as soon as their data have shifted; see ``IFCA``."""

    Params: ClassVar[type[IFCAParams]] = IFCAMigParams
