"""The memory of a strategy in rounds: the open round, and the memories of its parts."""

from dataclasses import dataclass, field

from fedsim.federation import Contents
from fedsim.strategies.parts.secure import SecureState
from fedsim.strategies.state import PartState, State
from fedsim.strategies.updates import Update


@dataclass
class SynchronousState(State):
    """Memory of ``Synchronous``: the open round, and the memories of the parts."""

    round: int = 0
    """Number of the open round, from 0."""
    slot: int = 0
    """With a schedule, the multiple of ``every`` at which the round began."""
    cohort: list[int] = field(default_factory=list)
    """Devices of the round."""
    selected: int = 0
    """Number of devices that were asked in the round."""
    asked_at: float | None = None
    """Time at which the cohort was asked (s); None before the first round."""
    limit: float | None = None
    """Time from ``asked_at`` to the deadline of the round (s); None: unlimited."""
    open: dict[int, int] = field(default_factory=dict)
    """Open tasks of the round, task -> device."""
    received: list[Update] = field(default_factory=list)
    """The round's updates in order of arrival, as ``Synchronous.entry`` makes them."""
    slow: int = 0
    """Number of the round's tasks that ended late, or without memory."""
    disconnected: int = 0
    """Number of the round's tasks that were lost."""
    candidates: list[tuple[list[int], int]] = field(default_factory=list)
    """Devices and wanted number of each call of a selection that asks first."""
    questions: dict[int, int] = field(default_factory=dict)
    """Open questions to candidates, task -> device."""
    answers: dict[int, Contents] = field(default_factory=dict)
    """Answers of candidates, by device."""
    drawn: tuple[int, int] | None = None
    """(clients, devices) if an aggregation ``accounts`` and all clients were drawn uniformly."""
    draws: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of rounds with each ``drawn``; (1, 1) stands for None."""
    secure: SecureState = field(default_factory=SecureState)
    """Memory of secure aggregation."""
    selection: PartState = None
    """Memory of the selection."""
    deadline: PartState = None
    """Memory of the deadline."""
    aggregation: dict[int, PartState] = field(default_factory=dict)
    """Memory of the aggregation, by model."""
    server: dict[int, PartState] = field(default_factory=dict)
    """Memory of the server optimiser, by model."""
