"""Server state of a strategy in rounds: the open round, and the states of its parts."""

from dataclasses import dataclass, field

from fedsim.common.former_names import warn_renamed
from fedsim.federation import Contents
from fedsim.strategies.parts.secure import SecureState
from fedsim.strategies.state import PartState, State
from fedsim.strategies.updates import Update


@dataclass
class SynchronousState(State):
    """State of a strategy in rounds on the server: the open round, and the states of its parts.

    Attributes:
        round: Index of the open round, from 0.
        schedule_step: Start of the round as a multiple of the time ``strategy.every``, at whose
            multiples rounds start; 0 without this key.
        cohort: Devices of the open round, in the order of their selection.
        selected: Count of devices that were asked in the round.
        asked_at: Time at which the cohort was asked (s); None before the first round.
        limit_s: Time from ``asked_at`` to the deadline of the round (s), by ``Deadline.limit_s``;
            None: unlimited.
        open: Open tasks of the round: task -> device.
        received: Updates of the round in order of arrival, as ``Synchronous.entry`` returns them.
        slow: Count of the round's tasks that ended late, or did not fit into the device's memory.
        disconnected: Count of the round's tasks that were lost.
        candidates: For each call of a selection that asks candidates first: the candidates, and the
            greatest count of devices to choose from them.
        questions: Open questions to candidates: task -> device.
        answers: Device -> contents of a candidate's answer.
        drawn: Draw of the open round for the privacy account: (count of drawn clients, count of
            devices from which they were drawn). None if the aggregation keeps no account, or if
            some client was not drawn uniformly.
        draws: ``drawn`` -> count of rounds so far with this draw. The key (1, 1) is for rounds in
            which ``drawn`` is None: they count as if each device was drawn with probability 1.
        secure: State of secure aggregation.
        selection: State of the selection.
        deadline: State of the deadline.
        aggregation: Index of a model -> state of the aggregation.
        optimiser: Index of a model -> state of the server optimiser.
    """

    round: int = 0
    schedule_step: int = 0
    cohort: list[int] = field(default_factory=list)
    selected: int = 0
    asked_at: float | None = None
    limit_s: float | None = None
    open: dict[int, int] = field(default_factory=dict)
    received: list[Update] = field(default_factory=list)
    slow: int = 0
    disconnected: int = 0
    candidates: list[tuple[list[int], int]] = field(default_factory=list)
    questions: dict[int, int] = field(default_factory=dict)
    answers: dict[int, Contents] = field(default_factory=dict)
    drawn: tuple[int, int] | None = None
    draws: dict[tuple[int, int], int] = field(default_factory=dict)
    secure: SecureState = field(default_factory=SecureState)
    selection: PartState = None
    deadline: PartState = None
    aggregation: dict[int, PartState] = field(default_factory=dict)
    optimiser: dict[int, PartState] = field(default_factory=dict)

    def forget_round(self) -> None:
        """Clear the fields of the open round, such as its cohort, when a round is opened."""
        self.cohort = []
        self.selected = 0
        self.open = {}
        self.received = []
        self.slow = 0
        self.disconnected = 0
        self.candidates = []
        self.questions = {}
        self.answers = {}
        self.drawn = None
        self.secure.unread = False

    @property
    def slot(self) -> int:
        """Deprecated alias of ``schedule_step``: begin of the round in multiples of ``every``."""
        warn_renamed("SynchronousState.slot", "schedule_step")
        return self.schedule_step

    @property
    def limit(self) -> float | None:
        """Deprecated alias of ``limit_s``, time from ``asked_at`` to the deadline (s)."""
        warn_renamed("SynchronousState.limit", "limit_s")
        return self.limit_s

    @property
    def server(self) -> dict[int, PartState]:
        """Deprecated alias of ``optimiser``, model index -> state of the server optimiser."""
        warn_renamed("SynchronousState.server", "optimiser")
        return self.optimiser
