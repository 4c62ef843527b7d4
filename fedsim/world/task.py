"""A task is data: what the server asks of one device, as a tuple of steps.

Each step is an interval of simulated time that can end early, with a cause. A step names what moves or is computed; what a
model *is* the world does not know: refs are passed through untouched.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from fedsim.training import NO_LIMIT, Limit, Training
from fedsim.world.network.flow import Direction

Cause = Literal["late", "lost", "left", "battery", "stopped", "memory"]
"""Why a task ends before its last step: past its deadline (or no longer needed), its device vanished, its device left for
good, its device's battery is flat, the run was over, or what it was to compute does not fit into its memory."""

Outcome = Literal["done", "late", "lost", "left", "battery", "stopped", "memory"]


class Payload(NamedTuple):
    """A part of a message, with a purpose of its own in the ledger.

    Attributes:
        purpose: what it is for, such as ``"model"``, ``"update"`` or ``"size-report"``.
        bytes: its size.
    """

    purpose: str
    bytes: float


@dataclass(slots=True)  # a frozen one takes four times as long to make
class Download:
    """The server sends payloads to the device, as one message."""

    payloads: tuple[Payload, ...]
    name = "download"
    direction: ClassVar[Direction] = "down"


@dataclass(frozen=True, slots=True)
class Train:
    """The device trains on its own data, as long as the limit lets it."""

    training: Training
    limit: Limit = NO_LIMIT
    name = "train"


@dataclass(frozen=True, slots=True)
class Evaluate:
    """The device computes the loss of ``models`` on its own training data: a forward pass over each sample for each model.

    With a budget it is late if it is not through by then.
    """

    models: tuple[Any, ...]
    limit: Limit = NO_LIMIT
    name = "evaluate"


@dataclass(slots=True)
class Upload:
    """The device sends payloads to the server, as one message."""

    payloads: tuple[Payload, ...]
    name = "upload"
    direction: ClassVar[Direction] = "up"


@dataclass(frozen=True, slots=True)
class Code:
    """The device writes models in the form in which they are sent, or reads them; for so long whatever its speed.

    Attributes:
        name: ``encode`` or ``decode``.
        seconds: how long it takes.
    """

    name: Literal["encode", "decode"]
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """The device computes something that has no ref; what is said of it adds up.

    Its jitter is named by the number of its device's task, not by the instant: whoever sends a few bytes more, and so begins
    a little later, meets the same delay.

    Attributes:
        samples: as long as a training takes on so many samples.
        flops: as long as so many FLOPs take.
        seconds: so long, whatever the device's speed.
        what: what it is for.
    """

    samples: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    what: str = ""
    name = "compute"

    @property
    def facts(self) -> dict[str, Any]:
        """What the record of its end says."""
        told = {"samples": self.samples, "flops": self.flops, "seconds": self.seconds, "what": self.what}
        return {name: value for name, value in told.items() if value}


@dataclass(frozen=True, slots=True)
class Queue:
    """The device waits until it is let in with the message of the step after this one."""

    name = "queue"


Computation = Train | Evaluate | Work
"""What a client half may ask of its device."""

Step = Download | Computation | Upload | Code | Queue


@dataclass(slots=True)
class Task:
    """A running or ended task: the whole truth about it, nothing lives only in a frame.

    Attributes:
        id: counts tasks from 0 in the order in which they were asked.
        device: who carries it out.
        steps: what it does, as far as that is known by now.
        round: the round that it belongs to, or None.
        group: the group that it belongs to, or None.
        count: how many tasks this device was given before.
        continues: whether it goes on with what the task before began.
        position: the step that runs now.
        step_start: when that step began (s).
        epochs: local epochs finished so far, of those that count, in the last training.
        trained: the same of each training that is over.
        samples: training samples that it computes on: those that the device held (or the part of them) when the last training
            or evaluation began, or when the task did.
        version: the version of the device's data at that instant.
        epoch_ends: when the epochs of the running training, or the running evaluation, end (absolute s).
        spent_s: how long the tasks that it goes on with have computed (s).
        budget_from: from when on a budget counts (s): the begin of its first computation, so much earlier.
        edge: the edge server to which its messages go, and from which they come; None for the server itself.
        ending: what it means when the alarm of the running computation rings: None that it is done, else the cause.
        outcome: how it ended, or None while it runs.
    """

    id: int
    device: int
    steps: tuple[Step, ...]
    round: int | None
    group: int | None
    count: int
    continues: bool = False
    position: int = 0
    step_start: float = 0.0
    epochs: int = 0
    trained: tuple[int, ...] = ()
    samples: int = 0
    version: int = 0
    epoch_ends: list[float] | None = None
    spent_s: float = 0.0
    budget_from: float | None = None
    edge: int | None = None
    ending: Cause | None = None
    outcome: Outcome | None = None

    def fields(self) -> dict[str, int | None]:
        """What every record of this task carries."""
        return {"task": self.id, "device": self.device, "round": self.round, "group": self.group}
