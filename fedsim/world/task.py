"""A task is data: what the server asks of one device, as a tuple of steps.

Each step is an interval of simulated time that can end early, with a cause. A step names what moves or is computed; what a
model *is* the world does not know: ``Train.model`` is passed through untouched.
"""

from dataclasses import dataclass
from typing import Any, Literal

from fedsim.errors import SimulationError

Cause = Literal["late", "lost", "left", "stopped"]
"""Why a task ends before its last step: past its deadline (or no longer needed), its device vanished, its device left for
good, or the run was over."""

Outcome = Literal["done", "late", "lost", "left", "stopped"]


@dataclass(frozen=True, slots=True)
class Payload:
    """A part of a message, with a purpose of its own in the ledger.

    Attributes:
        purpose: what it is for, such as ``"model"``, ``"update"`` or ``"size-report"``.
        bytes: its size.
    """

    purpose: str
    bytes: float


@dataclass(frozen=True, slots=True)
class Download:
    """The server sends payloads to the device, as one message."""

    payloads: tuple[Payload, ...]
    name = "download"


@dataclass(frozen=True, slots=True)
class Part:
    """One of the 2^``splits`` stratified parts into which a device has split its training samples.

    Attributes:
        splits: u, how often it has halved them.
        number: x, which part, from 1.
        out_of: training samples that the device holds in all.
    """

    splits: int
    number: int
    out_of: int

    @property
    def samples(self) -> int:
        """How many samples the part holds, whatever their labels: they are dealt to the parts in turn."""
        return len(range(self.number - 1, self.out_of, 2**self.splits))


@dataclass(frozen=True, slots=True)
class Train:
    """The device trains on its own data.

    Attributes:
        model: what it starts from (a ``Ref``; opaque to the world).
        epochs: local epochs asked for, at least 1.
        proximal: FedProx's mu; 0 for plain SGD.
        stop_at: the absolute time (s) at which the device stops; finished epochs count. None for no limit.
        budget: how long it may train (s), counted from the begin of this step. None for no limit.
        reserve_upload: stop earlier, by the time that the device expects its next upload to take on its own link.
        adaptive: the device begins another epoch only if the mean of its finished ones says that it will fit.
        at_least: with fewer finished epochs none of them counts, and the task ends as late.
        go_on: unless this is set: then it goes on to the next step, with nothing trained.
        part: the part of its data that it trains on; None for all.
        iterations: SGD steps, instead of epochs: however many passes that takes, they count as one epoch (``epochs=1``).
            None for whole epochs.
        batch_size: samples of one SGD step; needed with ``iterations``, for their time. None with ``full_batch``.
        full_batch: one SGD step uses all samples, and an epoch is one step.

    Raises:
        SimulationError: ``iterations``, ``epochs``, ``batch_size`` and ``full_batch`` do not go together.
    """

    model: Any
    epochs: int
    proximal: float = 0.0
    stop_at: float | None = None
    budget: float | None = None
    reserve_upload: bool = False
    adaptive: bool = False
    at_least: int = 1
    go_on: bool = False
    part: Part | None = None
    iterations: int | None = None
    batch_size: int | None = None
    full_batch: bool = False
    name = "train"

    def __post_init__(self) -> None:
        if self.full_batch and self.batch_size is not None:
            raise SimulationError(f"a training has batch_size={self.batch_size} and full_batch; allowed is one of them")
        if self.iterations is None:
            return
        if self.iterations < 1 or self.epochs != 1:
            raise SimulationError(
                f"a training has iterations={self.iterations} and epochs={self.epochs}; "
                "allowed are at least 1 iteration, and then epochs=1"
            )
        if not self.full_batch and (self.batch_size is None or self.batch_size < 1):
            raise SimulationError(
                f"a training of {self.iterations} iterations has batch_size={self.batch_size}; "
                "allowed are a batch_size of at least 1, or full_batch"
            )

    def work(self, samples: int) -> int:
        """How many samples are processed in what counts as one epoch, by a device that trains on ``samples`` of them."""
        if self.iterations is None:
            return samples
        return samples_processed(samples, self.batch_size or samples, self.iterations)


def samples_processed(samples: int, batch_size: int, iterations: int) -> int:
    """How many samples so many SGD steps process: passes over all samples, the last batch of a pass partial.

    Args:
        samples: n; with 0 there is nothing to step on.
        batch_size: B, at least 1 if there are samples.
        iterations: SGD steps; the last pass may be cut short.
    """
    if not samples:
        return 0
    passes, rest = divmod(iterations, -(-samples // batch_size))
    return passes * samples + rest * batch_size


@dataclass(frozen=True, slots=True)
class Evaluate:
    """The device computes the loss of ``models`` on its own training data: a forward pass over each sample for each model."""

    models: tuple[Any, ...]
    name = "evaluate"


@dataclass(frozen=True, slots=True)
class Upload:
    """The device sends payloads to the server, as one message.

    Attributes:
        payloads: what it sends.
        untrained: what it sends instead when no epoch of its training counts; None for the same.
    """

    payloads: tuple[Payload, ...]
    untrained: tuple[Payload, ...] | None = None
    name = "upload"


Step = Download | Train | Evaluate | Upload


@dataclass(slots=True)
class Task:
    """A running or ended task: the whole truth about it, nothing lives only in a frame.

    Attributes:
        id: counts tasks from 0 in the order in which they were asked.
        device: who carries it out.
        steps: what was asked.
        round: the round that it belongs to, or None.
        group: the group that it belongs to, or None.
        count: how many tasks this device was given before.
        continues: whether it goes on with what the task before began.
        position: the step that runs now.
        step_start: when that step began (s).
        epochs: local epochs finished so far, of those that count.
        samples: training samples that it computes on: those that the device held (or the part of them) when the last training
            or evaluation began, or when the task did.
        version: the version of the device's data at that instant.
        epoch_ends: when the epochs of the running training end (absolute s).
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
    samples: int = 0
    version: int = 0
    epoch_ends: list[float] | None = None
    ending: Cause | None = None
    outcome: Outcome | None = None

    def fields(self) -> dict[str, int | None]:
        """What every record of this task carries."""
        return {"task": self.id, "device": self.device, "round": self.round, "group": self.group}
