"""What a strategy is told, and the handlers that it is told by."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fedsim.world.task import Outcome

if TYPE_CHECKING:
    from fedsim.learning import Ref


class TaskEnd(NamedTuple):
    """A task has ended. What came back, if anything did, is here; nothing else about the device is known.

    Attributes:
        task, device, round, group: as asked.
        outcome: ``done`` when every step was carried out; else why not (``late``, ``lost``, ``left``).
        samples: training samples that the device says it trained on (all that it holds, unless a part was asked for).
        epochs: local epochs that its update is made of.
        update: the trained model; None unless the task is done and had a ``Train`` step.
        start: the model from which the device trained; None without an update.
        tested: what the device found in an ``Evaluate`` step, for ``Server.losses`` and ``Server.choices``; None without one.
    """

    task: int
    device: int
    round: int | None
    group: int | None
    outcome: Outcome
    samples: int
    epochs: int
    update: "Ref | None"
    start: "Ref | None" = None
    tested: "Ref | None" = None


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer of the strategy's has gone off."""

    name: str


@dataclass(frozen=True, slots=True)
class Return:
    """A device that was waited for can be reached again."""

    device: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A newcomer can be reached for the first time."""

    device: int


@dataclass(frozen=True, slots=True)
class Shift:
    """The data of a device have changed, and it can be reached."""

    device: int


class Start:
    """The run begins."""


Message = TaskEnd | Timer | Return | Arrival | Shift | Start


class Strategy(Protocol):
    """What the server calls; ``strategies.base.Strategy`` says when."""

    @property
    def score(self) -> str:
        """How its accuracy is counted unless the scenario says otherwise."""

    async def on_start(self) -> None:
        """The run begins."""

    async def on_task_end(self, message: TaskEnd) -> None:
        """A task has ended."""

    async def on_timer(self, name: str) -> None:
        """A timer has gone off."""

    async def on_return(self, device: int) -> None:
        """A device that was waited for can be reached again."""

    async def on_arrival(self, device: int) -> None:
        """A newcomer can be reached for the first time."""

    async def on_shift(self, device: int) -> None:
        """The data of a device have changed, and it can be reached."""

    def group_of(self, device: int) -> int | None:
        """The group that a device belongs to now, where there are groups."""
