"""Client selections, which choose the cohort of a round: the base class, and ``random``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from fedsim.common.errors import show_value
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.returns import find_outside, returns
from fedsim.common.spec import Spec
from fedsim.federation import Contents, Device, Instruction, LocalResult, Server, TaskEnd
from fedsim.federation.round_result import ModelAssignment
from fedsim.learning.refs import Ref
from fedsim.strategies.parts import PartClient
from fedsim.strategies.state import PartState, State
from fedsim.strategies.updates import Update
from fedsim.world.steps import TaskStep

_HERE = "fedsim.strategies.parts.selection"
_TOOLS = "fedsim.toolbox.selection"
SELECTIONS = Registry(
    "selection",
    f"{_HERE}:Selection",
    {
        "random": (f"{_HERE}:Random", "clients uniformly at random"),
        "least-asked": (f"{_TOOLS}.least:LeastAsked", "clients that were asked least often first"),
        "power-of-choice": (
            f"{_TOOLS}.power_of_choice:PowerOfChoice",
            "of some candidates those with the highest loss",
        ),
        "oort": (
            f"{_TOOLS}.oort:Oort",
            "clients whose losses are high and who are fast, and some that are new",
        ),
        "fedcs": (f"{_TOOLS}.by_speed:FedCS", "as many clients as can be through by a deadline"),
        "flanp": (
            f"{_TOOLS}.by_speed:FLANP",
            "the fastest clients, and twice as many once these have learnt what they can",
        ),
        "favor": (
            f"{_TOOLS}.favor:FAVOR",
            "clients from whom an agent has learnt to expect most (double deep Q-learning)",
        ),
        "least-available": (
            f"{_TOOLS}.least:LeastAvailable",
            "clients that were there least often first (REFL)",
        ),
    },
    usual="random",
    key="strategy.selection",
)

Ids = tuple[int, ...]
"""Numbers in the name of a random stream: the round (or draw) from 0.

Further numbers follow if a round selects several times.
"""
Among = list[int] | None
"""Devices to choose from; None for all."""
Answers = Mapping[int, Contents]
"""Answers by device, in the order in which the devices were asked."""
Updates = Sequence[Update]

_KEYED = "server.rng, or server.clients.sample"
QUESTION = "question"
"""Name of the job in which a candidate answers a selection's question before the choice."""


def _find_wrong_count(
    chosen: Sequence[int],
    selection: "Selection",
    server: Server,
    state: PartState,
    count: int,
    *_: object,
    **__: object,
) -> str:
    """Return the mistake in the result of ``Selection.select``, if it has too many devices, or "".

    A selection that asks candidates may propose more of them.

    Args:
        chosen: the result.
        selection: the selection; it and the further parameters are the arguments of ``select``.
        server: API of the strategy's server code.
        state: state of the selection.
        count: count of wanted devices.
    """
    if selection.asks or len(chosen) <= count:
        return ""
    return f"{len(chosen)} devices for a count of {count}"


def _find_wrong_choice(
    chosen: Sequence[int],
    selection: object,
    server: Server,
    state: PartState,
    count: int,
    answers: Answers,
) -> str:
    """Return the mistake in the result of ``Selection.choose``, or "".

    Args:
        chosen: the result, which must be distinct devices that have answered.
        selection: the selection; it and the further parameters are the arguments of ``choose``.
        server: API of the strategy's server code.
        state: state of the selection.
        count: greatest count of devices.
        answers: device -> its answer to the question of the selection.
    """
    silent = [device for device in chosen if device not in answers]
    if silent:
        return f"device {silent[0]!r}, which has not answered"
    is_distinct = len({*chosen}) == len(chosen)
    if is_distinct and len(chosen) <= count:
        return ""
    return f"{show_value(chosen)} for a count of {count}"


def _find_wrong_candidate(
    candidates: Sequence[int],
    selection: object,
    state: PartState,
    chosen: Sequence[int],
) -> str:
    strangers = [device for device in candidates if device not in chosen]
    if not strangers:
        return ""
    return f"device {strangers[0]!r}, which 'select' has not chosen"


class Selection(Spec):
    """Base of the rules by which the server chooses the clients of a round.

    A scenario names the rule by ``strategy.selection``.

    Most selections implement only ``select``. ``on_task_end`` and ``learn`` receive ends of tasks
    and clients' reports (``report``). With a ``question``, ``select`` returns candidates, and
    ``choose`` selects some of the candidates that have answered.

    Example:
        A selection that prefers devices with low numbers, in ``mine.py``:

        >>> from fedsim.plugin import Selection
        >>> class Lowest(Selection):
        ...     def select(self, server, state, count, ids, among=None):
        ...         available = server.clients.sample(server.devices, "select", *ids, among=among)
        ...         return sorted(available)[:count]

        >>> import fedsim
        >>> result = fedsim.run(
        ...     fedsim.Scenario(
        ...         learning="off",
        ...         population={"devices": 5},
        ...         strategy={"kind": "fedavg", "clients_per_round": 2, "selection": "mine:Lowest"},
        ...         stop={"rounds": 3},
        ...     ),
        ...     "runs/lowest",
        ... )
        >>> result.devices["selected"].tolist()
        [3, 3, 0, 0, 0]
    """

    kind: str

    State: ClassVar[type[PartState]] = dict
    """Class of ``state``, the selection's memory: a plain dict, or a subclass of ``State``."""

    why_single_updates: ClassVar[str | None] = None
    """Reason for which the selection needs single updates; None if sums of updates are enough."""

    needs_accuracy: ClassVar[bool] = False
    """Whether the selection uses accuracies, which not every objective has."""

    counts_steps: ClassVar[str | None] = None
    """Reason for which local steps must be SGD steps; see ``Reasons.other_steps``."""

    not_by_device: ClassVar[Mapping[str, str]] = {}
    """Keys of ``[population.local]`` that the selection refuses: key -> reason."""

    uniform: ClassVar[bool] = False
    """Whether all available devices are equally likely to be chosen, independent of the past."""

    former_hooks: ClassVar[Mapping[str, str]] = {
        "heard": "on_task_end",
        "closed": "on_round_end",
        "looks_at_each": "why_single_updates",
    }
    """Former names of hooks, which are refused: former name -> present name."""

    @property
    def repeats(self) -> bool:
        """Whether one client may be drawn several times for a round.

        The client's update then counts several times in the mean (``draws_of``). Strategies that
        use updates for more than their mean refuse such a selection.
        """
        return False

    def draws_of(self, state: PartState, device: int) -> int:
        """Return how often a client was drawn for the present round; by default 1.

        Args:
            state: state of the selection.
            device: ID of the device.
        """
        return 1

    @property
    def looks_at_data(self) -> bool:
        """Whether the selection depends on clients' data.

        It may do so by clients' answers to its questions, their reports, or their updates.
        """
        hooks = ("look", "report", "on_round_end")
        return any(getattr(type(self), hook) is not getattr(Selection, hook) for hook in hooks)

    @property
    def asks(self) -> bool:
        """Whether the selection asks candidates a question before it chooses.

        By default whether the class defines ``question``. Such a selection is refused in strategies
        without rounds.
        """
        return type(self).question is not Selection.question

    @property
    @returns("a finite time, 0 or more (s), or None", find_outside(least=0.0))
    def patience_s(self) -> float | None:
        """Longest time for which the server waits for candidates' answers, before it selects (s).

        A selection may ask candidates for information first, by the message ``question``. None: the
        server waits until the task of every candidate has ended.
        """
        patience: float | None = getattr(self, "patience", None)
        return patience

    @property
    def needs_model(self) -> bool:
        """Whether the question to candidates contains a model.

        Such a selection is refused in strategies whose server has no model.
        """
        return False

    @property
    def talks(self) -> bool:
        """Whether the selection causes more messages: questions to clients, or their reports.

        Reports are contents that clients add to their updates.
        """
        return self.asks or type(self).report is not Selection.report

    @returns("a whole number, 1 or more", find_outside(least=1))
    def fewest(self, count: int) -> int:
        """Return the smallest count of clients for a round, if enough clients are available.

        By default it is ``count``. Some selections may choose fewer than ``count`` by their rule.

        Args:
            count: greatest count of clients that a round asks.
        """
        return count

    @returns("a list of 'count' devices at most", _find_wrong_count, allowed_draws=_KEYED)
    def select(
        self, server: Server, state: PartState, count: int, ids: Ids, among: Among = None
    ) -> list[int]:
        """Return the devices of a round; an empty list if the server is to try again later.

        Args:
            server: API of the strategy's server code, with devices and random generators.
            state: state of the selection.
            count: wanted count of devices.
            ids: numbers in the name of a random stream: the round (or the draw) from 0, and more
                numbers if a round selects several times.
            among: the devices to choose from; None for all.

        Returns:
            IDs of at most ``count`` idle devices. A selection that ``asks`` may return any count:
            its devices are candidates, which are asked a question before ``choose`` selects some.
        """
        raise NotImplementedError

    @returns("a list of devices that 'select' has chosen", _find_wrong_candidate)
    def asked_first(self, state: PartState, chosen: list[int]) -> list[int]:
        """Return the chosen devices that are asked a question before they may join the round.

        Called only if the selection ``asks``; by default all are asked. The other devices join the
        round without a question.

        Args:
            state: state of the selection.
            chosen: the devices that ``select`` has returned.
        """
        return chosen

    def on_task_end(self, server: Server, state: PartState, message: TaskEnd) -> None:
        """Hook after a task of the round has ended, before its update is used.

        Args:
            server: API of the strategy's server code.
            state: state of the selection.
            message: the ended task, with any outcome.
        """

    async def on_round_end(
        self, server: Server, state: PartState, received: Updates, models: ModelAssignment
    ) -> None:
        """Learn from the updates of a round that is over, before ``learn`` is called.

        By default nothing is done. Strategies without rounds do not call this method.

        Args:
            server: API of the strategy's server code.
            state: state of the selection.
            received: the round's updates, as ``Synchronous.entry`` returns them.
            models: the new models by name, each with the devices that it serves (None: all).
        """

    async def learn(self, server: Server, state: PartState) -> None:
        """Learn from all reports of a round that is over, or of a version that was published.

        Reports are contents that clients add to their updates (``report``). By default nothing is
        done. ``ServerModels.numbers`` reads the reports' values.

        Args:
            server: API of the strategy's server code.
            state: state of the selection.
        """

    def question(self, models: Sequence[Ref]) -> Contents:
        """Return the message that asks a candidate for information, before the selection chooses.

        Args:
            models: the present model that the candidate would receive, or several models if its
                group is unknown.

        Returns:
            Contents by name.
        """
        raise NotImplementedError

    @returns("a list of 'count' devices at most, each once, that have answered", _find_wrong_choice)
    async def choose(
        self, server: Server, state: PartState, count: int, answers: Answers
    ) -> list[int]:
        """Return the candidates that join the round, when they have answered the question.

        Args:
            server: API of the strategy's server code.
            state: state of the selection.
            count: the largest count of candidates to choose.
            answers: device -> answer, for each candidate that has answered and is still available.

        Returns:
            At most ``count`` of the devices in ``answers``.
        """
        raise NotImplementedError

    def look(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        """Return the steps by which a candidate prepares its answer; by default none.

        A selection may ask candidates for information, such as their loss, before it chooses among
        them (``question``). Each candidate then computes these steps, and ``answer`` gets their
        result.

        Args:
            device: the device on which this code runs, with its data and its state.
            instruction: the message that ``question`` has returned, as the device receives it.

        Returns:
            ``Train``, ``Evaluate``, ``Work`` and ``Pause`` steps, in order.
        """
        return ()

    def answer(
        self, device: Device, instruction: Instruction, result: LocalResult, params: Spec
    ) -> Contents:
        """Return a candidate's answer to ``question``, which the server passes to ``choose``.

        Args:
            device: the device on which this code runs, with its data and its state.
            instruction: the message that ``question`` has returned, as the device receives it.
            result: the result of the steps that ``look`` has returned.
            params: the keys of ``[strategy]``.

        Returns:
            Contents by name.
        """
        raise NotImplementedError

    def report(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        """Return contents that a client adds to its update for the selection; by default none.

        Args:
            device: the device on which this code runs, with its data and its state.
            instruction: the message to the device.
            result: the result of the steps.

        Returns:
            Contents by name.
        """
        return {}


class SelectionClient(PartClient):
    """Client's part of a selection: it answers questions of the server, and adds reports."""

    jobs = (QUESTION,)
    _part: Selection

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        if instruction.job == QUESTION:
            return self._part.look(device, instruction)
        return super().work(device, instruction)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        if instruction.job == QUESTION:
            return self._part.answer(device, instruction, result, self.params)
        reply = super().reply(device, instruction, result)
        if reply is None or "update" not in reply:
            return reply
        return {**reply, **self._part.report(device, instruction, result)}


SelectionSpec = Annotated[Selection, KindField(SELECTIONS)]


@dataclass
class RandomState(State):
    """State of the selection ``random``: how often each device was drawn for the present round.

    Attributes:
        draws: Device ID -> how often the device was drawn for the present round; empty without
            ``replacement``.
    """

    draws: dict[int, int] = field(default_factory=dict)


class Random(Selection):
    """Available clients uniformly at random, without replacement (McMahan et al., 2017).

    With ``replacement`` as many independent draws are made as clients are wanted (scheme I of Li et
    al., "On the convergence of FedAvg on non-IID data", ICLR 2020, with equal probabilities). A
    client that is drawn n times trains once, and its update counts n times in the mean.

    Attributes:
        replacement: whether a client may be drawn more than once for a cohort. Looks at every
            available device: O(population).
    """

    uniform: ClassVar[bool] = True
    State = RandomState

    kind: Literal["random"] = "random"
    replacement: bool = False

    @property
    def repeats(self) -> bool:
        return self.replacement

    def draws_of(self, state: RandomState, device: int) -> int:
        return state.draws.get(device, 1)

    def select(
        self, server: Server, state: RandomState, count: int, ids: Ids, among: Among = None
    ) -> list[int]:
        """Draw ``count`` idle devices; with ``replacement`` a device may be drawn several times."""
        if not self.replacement:
            return server.clients.sample(count, "select", *ids, among=among)
        available = server.clients.idle_devices()
        if among is not None:
            available = [device for device in among if server.clients.idle(device)]
        state.draws = {}
        if not available:
            return []
        positions = server.rng("select", *ids).integers(len(available), size=count)
        for position in positions.tolist():
            device = available[position]
            state.draws[device] = state.draws.get(device, 0) + 1
        return list(state.draws)
