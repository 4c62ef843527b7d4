"""Server state of a strategy in rounds: the open round, and the states of its parts."""

from dataclasses import dataclass, field

from fedsim.federation import Contents
from fedsim.strategies.parts.secure import SecureState
from fedsim.strategies.state import PartState, State
from fedsim.strategies.updates import Update


@dataclass
class SynchronousState(State):
    """Memory of the server in a strategy with rounds: the open round, and the parts' states."""

    round: int = 0
    """Index of the open round, from 0."""
    slot: int = 0
    """If ``every`` is given: start of the round, as a multiple of ``every``."""
    cohort: list[int] = field(default_factory=list)
    """Devices of the open round, in the order of their selection."""
    selected: int = 0
    """Count of devices that were asked in the round."""
    asked_at: float | None = None
    """Time at which the cohort was asked (s); None before the first round."""
    limit: float | None = None
    """Time from ``asked_at`` to the deadline of the round (s); None: unlimited."""
    open: dict[int, int] = field(default_factory=dict)
    """Open tasks of the round: task -> device."""
    received: list[Update] = field(default_factory=list)
    """Updates of the round in order of arrival, as ``Synchronous.entry`` returns them."""
    slow: int = 0
    """Count of the round's tasks that ended late, or did not fit into the device's memory."""
    disconnected: int = 0
    """Count of the round's tasks that were lost."""
    candidates: list[tuple[list[int], int]] = field(default_factory=list)
    """Candidates and wanted count of devices, for each call of a selection that asks first."""
    questions: dict[int, int] = field(default_factory=dict)
    """Open questions to candidates: task -> device."""
    answers: dict[int, Contents] = field(default_factory=dict)
    """Device -> contents of a candidate's answer."""
    drawn: tuple[int, int] | None = None
    """(count of clients, count of devices that they were drawn from) for the privacy account.

    Set only if the aggregation ``accounts`` and all clients were drawn uniformly; else None.
    """
    draws: dict[tuple[int, int], int] = field(default_factory=dict)
    """``drawn`` -> count of rounds with this value; (1, 1) stands for None."""
    secure: SecureState = field(default_factory=SecureState)
    """State of secure aggregation."""
    selection: PartState = None
    """State of the selection."""
    deadline: PartState = None
    """State of the deadline."""
    aggregation: dict[int, PartState] = field(default_factory=dict)
    """Index of a model -> state of the aggregation."""
    server: dict[int, PartState] = field(default_factory=dict)
    """Index of a model -> state of the server optimiser."""
