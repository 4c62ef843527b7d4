"""Client selection: whom a round asks."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from fedsim.evaluation.evaluator import ModelAssignment
from fedsim.federation.client import Client, Instruction, LocalResult
from fedsim.federation.contents import Contents
from fedsim.federation.devices import Device
from fedsim.federation.messages import TaskEnd
from fedsim.federation.server import Server
from fedsim.language.registry import Registry
from fedsim.language.spec import Spec
from fedsim.learning.refs import Ref
from fedsim.world.task import Computation

_HERE = "fedsim.strategies.parts.selection"
SELECTIONS = Registry(
    "selection",
    f"{_HERE}:Selection",
    {
        "random": (f"{_HERE}.random:Random", "clients uniformly at random"),
        "least-asked": (
            "fedsim.strategies.parts.selection.least_asked:LeastAsked",
            "clients that were asked least often first",
        ),
        "power-of-choice": (f"{_HERE}.power_of_choice:PowerOfChoice", "of some candidates those with the highest loss"),
        "oort": (f"{_HERE}.oort:Oort", "clients whose losses are high and who are fast, and some that are new"),
        "fedcs": (f"{_HERE}.fedcs:FedCS", "as many clients as can be through by a deadline"),
        "favor": (f"{_HERE}.favor:FAVOR", "clients from whom an agent has learnt to expect most (double deep Q-learning)"),
        "flanp": (f"{_HERE}.flanp:FLANP", "the fastest clients, and twice as many once these have learnt what they can"),
        "least-available": (f"{_HERE}.least_available:LeastAvailable", "clients that were there least often first (REFL)"),
    },
    usual="random",
)

QUESTION = "question"
"""The job of a candidate who is asked for what a selection wants to know before it chooses."""


class Selection(Spec):
    """The base of every client selection. What it must remember is in ``state``, one dict for the whole run.

    Most selections need ``select`` alone. One that goes by what it has seen takes that in by ``heard`` and ``learn``; what
    clients say for it in their answers is its ``report``. One that must know something before it chooses ``asks``: then those
    whom ``select`` gives are candidates, each gets a ``question``, and ``choose`` takes some of those who have answered.
    """

    kind: str

    looks_at_each: ClassVar[str | None] = None
    """What it makes of single updates, where it does; then their sum is not enough, nor what edge servers send."""

    uniform: ClassVar[bool] = False
    """Whether all devices that are there are as likely to be chosen, whatever happened before."""

    @property
    def looks_at_data(self) -> bool:
        """Whether it goes by what clients compute from their data: a question that takes a computation, reports, updates."""
        hooks = ("look", "report", "closed")
        return any(getattr(type(self), hook) is not getattr(Selection, hook) for hook in hooks)

    @property
    def asks(self) -> bool:
        """Whether it asks candidates before it chooses; refused where there are no rounds."""
        return False

    @property
    def question_limit(self) -> float | None:
        """How long candidates have to answer (s), its ``patience`` if it has one; None: as long as they need."""
        limit: float | None = getattr(self, "patience", None)
        return limit

    @property
    def needs_model(self) -> bool:
        """Whether the question is one about a model that the server has; refused where it has none."""
        return False

    @property
    def talks(self) -> bool:
        """Whether clients say anything for it: it asks, or they report."""
        return self.asks or type(self).report is not Selection.report

    # On the server.

    def fewest(self, count: int) -> int:
        """The smallest cohort that it selects on purpose where a round may ask ``count`` clients."""
        return count

    def select(
        self, server: Server, state: dict[str, Any], count: int, ids: tuple[int, ...], among: list[int] | None = None
    ) -> list[int]:
        """Whom to ask in a round: at most ``count`` devices that are there and idle (``Server.sample``, ``Server.online``).

        Called when a round opens; again, with the same number, if there was nobody. If it ``asks``, it gives the candidates,
        however many.

        Args:
            server: what the server half may call.
            state: what it remembers.
            count: how many are wanted.
            ids: the number of the round (without rounds of the draw), from 0, and more where one round selects several times:
                they name the stream.
            among: devices to choose from; None for all.
        """
        raise NotImplementedError

    def asked_first(self, state: dict[str, Any], chosen: list[int]) -> list[int]:
        """Where it ``asks``: who of ``select``'s is a candidate; the others are chosen already. By default it is all."""
        return chosen

    def heard(self, server: Server, state: dict[str, Any], message: TaskEnd) -> None:
        """A task of the round has ended, in whatever way; called before its update is used."""

    async def closed(
        self, server: Server, state: dict[str, Any], received: Sequence[dict[str, Any]], models: ModelAssignment
    ) -> None:
        """A round has been closed, before ``learn``; never called where there are no rounds.

        Args:
            server, state: as for ``select``.
            received: the round's updates (``Synchronous``).
            models: the server's models now, with the devices that each is for.
        """

    async def learn(self, server: Server, state: dict[str, Any]) -> None:
        """A round has been closed, or a version made: take in what was reported in it, all together (``Server.numbers``)."""

    def question(self, models: Sequence[Ref]) -> Contents:
        """What a candidate is sent.

        Args:
            models: the present model, as the device would get it; several where it has to find out which is its own.
        """
        raise NotImplementedError

    async def choose(
        self, server: Server, state: dict[str, Any], count: int, answers: Mapping[int, Mapping[str, Any]]
    ) -> list[int]:
        """At most ``count`` of the candidates who have answered, and are still there; in their order.

        Args:
            server, state: as for ``select``.
            count: how many are wanted besides those who are chosen already.
            answers: device -> what it has said, in the order of ``select``.
        """
        raise NotImplementedError

    # On the devices.

    def look(self, device: Device, order: Instruction) -> Sequence[Computation]:
        """What a candidate computes to answer the question; by default nothing."""
        return ()

    def answer(self, device: Device, order: Instruction, done: LocalResult, params: Spec) -> Contents:
        """What a candidate answers; ``params`` are the strategy's."""
        raise NotImplementedError

    def report(self, device: Device, order: Instruction, done: LocalResult) -> Contents:
        """What a client that sends an update says besides; by default nothing."""
        return {}


class SelectionClient(Client[Any]):
    """A strategy's client half that answers the selection's questions too.

    Args:
        own: the strategy's.
        selection: what is asked.
    """

    def __init__(self, own: Client[Any], selection: Selection) -> None:
        super().__init__(own.params, own.setting)
        self._own = own
        self._selection = selection

    def work(self, device: Device, order: Instruction) -> Sequence[Computation]:
        return (self._selection.look if order.job == QUESTION else self._own.work)(device, order)

    def computed(self, device: Device, order: Instruction, done: LocalResult) -> LocalResult:
        return done if order.job == QUESTION else self._own.computed(device, order, done)

    def reply(self, device: Device, order: Instruction, done: LocalResult) -> Contents | None:
        if order.job == QUESTION:
            return self._selection.answer(device, order, done, self.params)
        reply = self._own.reply(device, order, done)
        return reply if reply is None or "update" not in reply else {**reply, **self._selection.report(device, order, done)}

    def sent(self, device: Device, order: Instruction, reply: Contents) -> None:
        if order.job != QUESTION:
            self._own.sent(device, order, reply)

    def on_shift(self, device: Device) -> Contents | None:
        return self._own.on_shift(device)


SelectionSpec = Annotated[Selection, SELECTIONS]
