"""The server: all that the server half of a strategy may call.

It sees messages, and nothing of the world behind them: no device's data, speed or labels. Its handlers begin and end in one
instant; they may await values (real work), never simulated time.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedsim.errors import SimulationError
from fedsim.evaluation.evaluator import NOT_MEASURED, Measured, ModelAssignment
from fedsim.federation.client import RunInfo
from fedsim.federation.clients import Clients
from fedsim.federation.contents import Contents, payloads
from fedsim.federation.models import ServerModels
from fedsim.federation.peer import Peer
from fedsim.learning.refs import Ref
from fedsim.simulation import on_grid
from fedsim.world.network.endpoints import Direction
from fedsim.world.task import Cause

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch

T = TypeVar("T")


class ServerEdges:
    """The edge servers of a network, by number from 0."""

    def __init__(self, dispatch: "Dispatch") -> None:
        self._dispatch = dispatch

    @property
    def count(self) -> int:
        """Their number; 0 where the network has none."""
        return self._dispatch.messages.edges

    def of(self, device: int) -> int:
        """The edge server of a device."""
        return self._dispatch.messages.edge_of(device)

    def has(self, edge: int) -> bool:
        """Whether an edge server is there; one that is lost (``on_edge_lost``) is not."""
        return edge not in self._dispatch.messages.lost

    def carry(
        self,
        edge: int,
        contents: Contents,
        direction: Direction,
        *,
        round: int | None = None,  # noqa: A002
        start: Ref | None = None,
    ) -> None:
        """Send contents from the server ``down`` to an edge server, or ``up`` from it; one message at a time each way.

        ``on_carried`` tells how that ended, once. ``start``: the model from which those in contents were trained, which both
        have: a codec that encodes changes needs it.
        """
        self._dispatch.carry(edge, contents, direction, round, start)


class Server:
    """All that the server half of a strategy can see and do.

    Attributes:
        setting: facts that both halves know.
        devices: number of devices.
        clients: the devices: which of them can be asked.
        models: arithmetic with models, and their values.
        edges: edge servers, where the network has them.
    """

    def __init__(self, dispatch: "Dispatch", setting: RunInfo) -> None:
        self._dispatch = dispatch
        self.setting = setting
        self.devices = setting.devices
        self.clients = Clients(dispatch, setting.devices)
        self.models = ServerModels(dispatch, setting.parameters)
        self.edges = ServerEdges(dispatch)

    # Time.

    @property
    def now(self) -> float:
        """The simulated time (s)."""
        return self._dispatch.simulation.now

    def timer(self, name: str, when: float) -> float:
        """Call the strategy's ``on_timer(name)`` at the absolute time ``when`` (s). One timer a name; a new one replaces it.

        At a time that is now, it goes off in this instant, after every message that is already there. Returns the time, on
        the clock's grid. What the server computes comes first (``compute``): until that is done, no timer goes off.
        """
        return self._dispatch.set_timer(name, max(self.now, on_grid(when)))

    @property
    def computing(self) -> bool:
        """Whether the server still computes."""
        return self._dispatch.busy_until > self.now

    def compute(self, what: str, n: int, d: int = 0, m: int = 1) -> None:
        """Say that the server computes something: ``what`` of ``costs``, with its sizes. Timers wait until it is done.

        ``models.mix`` and ``models.apply`` say so themselves.
        """
        self._dispatch.compute(what, n, d, m)

    def cancel_timer(self, name: str) -> None:
        """Forget a timer; harmless when there is none."""
        self._dispatch.cancel_timer(name)

    def look_again(self, name: str, delay: float, at_least: int = 1) -> None:
        """With too few to ask: set a timer ``delay`` (s) from now, or end the run if so many devices will never be there."""
        if not self.clients.anyone_ever():
            self.stop("no device will ever be there again")
        elif not self.clients.anyone_ever(at_least):
            self.stop(f"fewer than {at_least} devices will ever be there again")
        else:
            self.timer(name, self.now + delay)

    # Messages.

    def ask(
        self,
        device: int,
        contents: Contents,
        job: str = "train",
        *,
        round: int | None = None,  # noqa: A002
        group: int | None = None,
        continues: bool = False,
        at_edge: bool = False,
    ) -> int:
        """Send an idle device a message; its client half does the job and answers. Returns the task's number.

        ``on_task_end`` tells how it ended, once. ``continues``: the device goes on with what its task before began (it had to
        find its group, say); the two count as one selection. ``at_edge``: its edge server asks, and gets the answer.
        """
        if not self.clients.exists(device):
            raise SimulationError(f"device {device!r} was asked; allowed are 0 to {self.devices - 1}")
        return self._dispatch.ask(device, contents, job, round, group, continues=continues, at_edge=at_edge)

    def end(self, task: int, cause: Cause = "late") -> None:
        """End a task that still runs; harmless on one that has just ended."""
        self._dispatch.end(task, cause)

    # Devices without a server: each has a half of its own.

    def peer(self, device: int) -> Peer:
        """A device as its half sees it, in a strategy without a server."""
        return Peer(device, self._dispatch)

    async def result(self, work: Future[T]) -> T:
        """Await a future from the strategy's own thread; simulated time stands still until then."""
        value: T = await self._dispatch.simulation.join(work)
        return value

    # Randomness, records, the end.

    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """A generator of the strategy's own, named by a purpose and counts."""
        return self._dispatch.streams.generator(f"strategy/{purpose}", *ids)

    def emit(self, kind: str, **data: Any) -> None:
        """Record something that the strategy decided."""
        self._dispatch.simulation.emit(kind, **data)

    def exchange(self, contents: Contents, sender: str, receiver: str) -> None:
        """Record that contents went from one part of the server's side to another, on no device's link and at once."""
        for part in payloads(contents, self._dispatch.up):
            self.emit("server-transfer", purpose=part.purpose, bytes=float(part.bytes), sender=sender, receiver=receiver)

    def begin_round(self, number: int) -> None:
        """A round is about to begin: what is to happen to data in it happens now, once.

        Who then waits for a timer at ``now`` asks devices that know of their shift (``Strategy.on_shift``).
        """
        if self._dispatch.drift is not None:
            self._dispatch.drift.begin_round(number)

    def stop(self, reason: str) -> None:
        """End the run after this instant."""
        self._dispatch.simulation.stop(reason)

    async def finish_round(
        self, number: int, models: ModelAssignment, updates: Sequence[Measured] = (), **counts: float
    ) -> bool:
        """Record an aggregation: measure it when it is due, and end the run when a stop condition is met.

        Measuring takes no simulated time and moves no bytes.

        Args:
            number: the round that has just been aggregated, from 0.
            models: the strategy's models and the devices that each serves (None: all).
            updates: what was aggregated: for the training loss and the discrepancy.
            counts: ``selected``, ``valid``, ``slow``, ``disconnected``; ``epsilon`` where privacy is spent. The table of rounds
                has its own columns (``records.schema.ROUNDS``) alone; other names stand in the record ``round``.

        Returns:
            Whether the run goes on.
        """
        evaluator, strategy = self._dispatch.evaluator, self._dispatch.strategy
        row = await evaluator.measure(number, models, updates, strategy)
        if cosines := await evaluator.cosines(number, updates, strategy):
            self.emit("cosines", round=number, **cosines)
        return self.note_round(number, row, **counts)

    def note_round(self, number: int, figures: Mapping[str, float | None], **counts: float) -> bool:
        """Record an aggregation whose figures were measured elsewhere, and end the run when a stop condition is met.

        Args:
            number: the round that has just been aggregated, from 0.
            figures: ``accuracy``, ``loss``, ``train_loss`` and other columns of the rounds' table; None where not measured.
            counts: see ``finish_round``.

        Returns:
            Whether the run goes on.
        """
        self.emit("round", round=number, **{**NOT_MEASURED, **figures}, **counts)
        reason = self._dispatch.evaluator.reason_to_stop(number, figures)
        if reason is not None:
            self.stop(reason)
        return self._dispatch.simulation.stopped is None
