"""The server's API for the server half of a strategy.

The server half sees messages, and nothing of the world behind them (data, speeds, labels). Its
handlers begin and end in one instant; they may await values (real work), never simulated time.
"""
# ruff: noqa: A002 - a round is called ``round``

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedsim.clock.simulation import on_grid
from fedsim.common.errors import SimulationError, shown
from fedsim.federation.client import RunInfo
from fedsim.federation.clients import Clients
from fedsim.federation.contents import Contents, Header, Partial, payloads
from fedsim.federation.devices import Device
from fedsim.federation.evaluator import NOT_MEASURED, Measured, ModelAssignment
from fedsim.federation.server_models import ServerEdges, ServerModels
from fedsim.learning.refs import Ref
from fedsim.world.steps import Cause

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch

T = TypeVar("T")


class Peer(Device):
    """A device in a strategy without a server, which trains and sends to other devices."""

    __slots__ = ("_dispatch", "_server")

    def __init__(self, number: int, server: "Server", dispatch: "Dispatch") -> None:
        super().__init__(number, dispatch.devices)
        self._server = server
        self._dispatch = dispatch

    @property
    def now(self) -> float:
        """The simulated time (s)."""
        return self._server.now

    @property
    def online(self) -> bool:
        """Whether the device can be reached; its half acts only while it can."""
        return self._dispatch.tasks.reachable_until(self.number) > self.now

    def train(self, model: Ref, number: int) -> None:
        """Train from a model, as a task that moves no bytes; ``on_trained`` follows.

        Args:
            model: the model from which the training starts.
            number: the round.
        """
        self._server.ask(self.number, {"model": Header(model)}, round=number)

    def send(self, devices: Sequence[int], contents: Contents, number: int) -> None:
        """Send contents, encoded by ``messages.up``, to several devices at once.

        ``on_message`` follows at each receiver, or ``on_lost`` at the sender and the receiver.

        Args:
            devices: numbers of the receivers.
            contents: what is sent, by name.
            number: the round.
        """
        self._dispatch.send_to_peers(self.number, devices, contents, number)

    def written(self, value: Ref | Partial) -> tuple[Ref, float]:
        """Return a model as receivers decode it by ``messages.up``, and its size.

        Args:
            value: a model, or a part of one.

        Returns:
            The decoded model, and the bytes of the payload.
        """
        up = self._dispatch.up
        contents = {"part": value}
        arriving, _ = up.through(contents, {}, {})
        return arriving["part"], sum(part.bytes for part in payloads(contents, up))

    def timer(self, seconds: float) -> None:
        """Call ``on_timer`` of the device's half after a time; replaces the device's earlier timer.

        Args:
            seconds: the time from now (s).
        """
        self._server.timer(f"device/{self.number}", self.now + seconds)

    def cancel_timer(self) -> None:
        """Forget the timer."""
        self._server.cancel_timer(f"device/{self.number}")

    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """Return a random generator of a common seed, the same for all devices.

        Args:
            purpose: name of the stream.
            ids: further numbers that name it.
        """
        return self._server.rng(purpose, *ids)


class Server:
    """All that the server half of a strategy can see and do.

    Attributes:
        devices: number of devices.
        setting: facts of the run that both halves know, a ``RunInfo``.
        clients: which devices can be asked, ``Clients``.
        models: arithmetic with models, and their values, ``ServerModels``.
        edges: the edge servers of the network, ``ServerEdges``.
    """

    def __init__(self, dispatch: "Dispatch", setting: RunInfo) -> None:
        self._dispatch = dispatch
        self._simulation = dispatch.simulation
        self._streams = dispatch.streams
        self._evaluator = dispatch.evaluator
        self.setting = setting
        self.devices = setting.devices
        self.clients = Clients(dispatch, setting.devices)
        self.models = ServerModels(dispatch, setting.parameters)
        self.edges = ServerEdges(dispatch)

    # Time.

    @property
    def now(self) -> float:
        """The simulated time (s)."""
        return self._simulation.now

    def timer(self, name: str, when: float) -> float:
        """Call ``Strategy.on_timer`` with a name, in place of the name's earlier timer.

        The call waits until the server has computed (``compute``).

        Args:
            name: any name; a strategy tells its timers apart by it.
            when: the absolute time (s). At ``now``, or before, the call follows the messages that
                have arrived already.

        Returns:
            The time of the call (s), on the clock's grid.
        """
        return self._dispatch.set_timer(name, max(self.now, on_grid(when)))

    @property
    def computing(self) -> bool:
        """Whether the server still computes; always False without ``[server] speed``."""
        return self._dispatch.busy_until > self.now

    def compute(self, what: str, n: int, d: int = 0, m: int = 1) -> None:
        """Let an operation of the server take time, if ``[server] speed`` is given.

        Timers wait for the operation. ``ServerModels.mix`` and ``apply`` call this method
        themselves.

        Args:
            what: ``mix``, ``products``, ``distances``, ``k-means``, ``linkage``, ``medoids`` or
                ``absolute differences``.
            n: number of rows, such as models.
            d: length of a row.
            m: number of groups.

        Raises:
            KeyError: no such operation.
        """
        self._dispatch.compute(what, n, d, m)

    def cancel_timer(self, name: str) -> None:
        """Cancel a timer; no effect if there is none.

        Args:
            name: name of the timer.
        """
        self._dispatch.cancel_timer(name)

    def look_again(self, name: str, delay: float, at_least: int = 1) -> None:
        """Wait for more devices: set a timer, or end the run if too few will ever be there.

        Args:
            name: name of the timer, as in ``timer``.
            delay: time from now (s), above 0.
            at_least: the number of devices without which the run ends.
        """
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
        round: int | None = None,
        group: int | None = None,
        continues: bool = False,
        at_edge: bool = False,
    ) -> int:
        """Send an idle device a message; its client half does the job and answers.

        ``Strategy.on_task_end`` follows once.

        A task with a ``round`` counts among the round's selected and valid tasks, and its update
        has to be aggregated (``finish_round``). Ask without a round for anything else, such as a
        probe or a test.

        Args:
            device: number of one device, available and idle.
            contents: what is sent, by name (``Contents``). The default client half trains from
                ``model``.
            job: name of the job, which the client half reads as ``Instruction.job``.
            round: the round for which the device works; None: for none.
            group: the group for which it works, in the records; None without groups.
            continues: whether this task goes on with the device's last task, which was asked in the
                same round and is done. Both count as one task, and the last task's answer is no
                update.
            at_edge: whether its edge server asks, and gets the answer.

        Returns:
            The task's number, ``TaskEnd.task``.

        Raises:
            SimulationError: no such device, a device that still works, ``continues`` without such
                a last task, or contents that cannot be sent.

        Example:
            A strategy that asks the next device when one has answered, in ``mine.py``:

            >>> from fedsim.plugin import Strategy
            >>> class Chain(Strategy):
            ...     async def on_start(self):
            ...         self.state["model"] = self.server.models.initial()
            ...         self.server.ask(0, {"model": self.state["model"]}, "train")
            ...     async def on_task_end(self, message):
            ...         self.state["model"] = message["update"]
            ...         following = message.device + 1
            ...         if following == self.server.devices:
            ...             self.server.stop("the chain is complete")
            ...         else:
            ...             self.server.ask(following, {"model": self.state["model"]}, "train")
            ...     def models(self):
            ...         return {"global": (self.state["model"], None)}

            >>> import fedsim
            >>> samples = {"low": 50, "high": 50}
            >>> scenario = fedsim.Scenario(
            ...     learning="off",
            ...     population={"devices": 3, "speed": "10 samples/s", "samples": samples},
            ...     strategy={"kind": "mine:Chain"},
            ... )
            >>> ended = fedsim.run(scenario, "runs/chain").events.query("kind == 'task-end'")
            >>> ended[["time", "device", "outcome"]].values.tolist()
            [[5.0, 0, 'done'], [10.0, 1, 'done'], [15.0, 2, 'done']]
        """
        if not self.clients.exists(device):
            raise SimulationError(
                f"device {device!r} was asked; allowed are 0 to {self.devices - 1}"
            )
        return self._dispatch.ask(device, contents, job, round, group, continues, at_edge)

    def end(self, task: int, cause: Cause = "late") -> None:
        """End a task that still runs; no effect on a task that has ended.

        Args:
            task: the number that ``ask`` returned. ``Strategy.on_task_end`` follows in this
                instant.
            cause: the outcome of the task, unless the task is done by now.
        """
        self._dispatch.end(task, cause)

    def peer(self, device: int) -> Peer:
        """Return a device as its half sees it, in a strategy without a server (``Peers``).

        Args:
            device: number of one device.
        """
        return Peer(device, self, self._dispatch)

    async def result(self, work: Future[T]) -> T:
        """Await a future from the strategy's own thread; simulated time does not advance meanwhile.

        Args:
            work: a future that some thread or process completes.

        Returns:
            Its result.
        """
        return await self._simulation.join(work)  # type: ignore[no-any-return]

    # Randomness, records, the end.

    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """Return a random generator of the strategy, which its name and the run's seed determine.

        Args:
            purpose: name of the stream (``strategy/purpose``).
            ids: further numbers that name the stream, such as the round and the device.
        """
        return self._streams.generator(f"strategy/{purpose}", *ids)

    def emit(self, kind: str, **data: Any) -> None:
        """Record something that the strategy decided, as a row of ``events.parquet``.

        The kind ``aggregate`` names the tasks whose updates became a model (``round``, ``tasks``,
        ``weights``; ``staleness`` where updates may wait for the next aggregation).
        ``finish_round`` records it for the updates that it gets, unless the strategy has done so.

        Args:
            kind: name of the kind of record.
            data: its fields, JSON values; ``device``, ``round``, ``group`` and ``task`` have
                columns of their own.
        """
        if kind in ("aggregate", "updates-lost"):
            self._dispatch.record_tasks(data.get("tasks", ()))
        self._simulation.emit(kind, **data)

    def exchange(self, contents: Contents, sender: str, receiver: str) -> None:
        """Record that contents went from one part of the server's side to another, at once.

        Args:
            contents: what was sent, by name; its bytes are in the ledger.
            sender: name of the sending part.
            receiver: name of the receiving part.
        """
        for part in payloads(contents, self._dispatch.up):
            self.emit(
                "server-transfer",
                purpose=part.purpose,
                bytes=float(part.bytes),
                sender=sender,
                receiver=receiver,
            )

    def begin_round(self, number: int) -> None:
        """Begin a round: shift the data, if the scenario has a shift then.

        Call this once for each round, from 0.

        Args:
            number: the round. Devices send their messages about it (``Strategy.on_shift``) in this
                instant, before a timer that is set at ``now``.
        """
        if self._dispatch.begin_round is not None:
            self._dispatch.begin_round(number)

    def stop(self, reason: str) -> None:
        """End the run after this instant.

        Args:
            reason: a few words, ``stopped`` in the summary.
        """
        self._simulation.stop(reason)

    async def finish_round(
        self,
        number: int,
        models: ModelAssignment,
        updates: Sequence[Measured] = (),
        **counts: float,
    ) -> bool:
        """Record the end of a round, with its measures, and end the run at a stop condition.

        Measuring takes no simulated time, and is done when a test is due.

        Updates of tasks with a round that no record ``aggregate`` of the strategy's own has named
        are recorded so first, with their shares of the weights: the audit checks that every update
        that came was aggregated once.

        Args:
            number: the round that has just been aggregated, from 0; each number once, ascending.
            models: the strategy's models and the devices that each serves (None: all), as
                ``Strategy.models`` returns them.
            updates: the aggregated updates (``Measured``), for that record, the training loss and
                the discrepancy.
            counts: ``selected``, ``valid``, ``slow``, ``disconnected``, the numbers of the round's
                tasks in all, done, late, and lost: all of them or none; ``epsilon`` where privacy
                is spent. Names of other columns of ``rounds.parquet`` are in that table, any other
                name in the record ``round`` alone.

        Returns:
            Whether the run goes on; if it does not, no further round may begin.
        """
        evaluator = self._evaluator
        strategy = self._dispatch.strategy
        _check_models(models, strategy)
        self._record_aggregate(number, updates)
        row = await evaluator.measure(number, models, updates, strategy)
        cosines = await evaluator.cosines(number, updates, strategy)
        if cosines:
            self.emit("cosines", round=number, **cosines)
        return self.note_round(number, row, **counts)

    def _record_aggregate(self, number: int, updates: Sequence[Measured]) -> None:
        """Record the updates that the strategy has not recorded itself."""
        unrecorded = self._dispatch.tasks_of(updates)
        if not unrecorded:
            return
        total = sum(weight for _, _, weight in unrecorded)
        fields: dict[str, Any] = {"tasks": [task for task, _, _ in unrecorded]}
        if total:
            fields["weights"] = [weight / total for _, _, weight in unrecorded]
        else:
            fields["weights"] = [1 / len(unrecorded)] * len(unrecorded)
        staleness = [number - task_round for _, task_round, _ in unrecorded]
        if any(staleness):
            fields["staleness"] = staleness
        self.emit("aggregate", round=number, **fields)

    def note_round(self, number: int, figures: Mapping[str, float | None], **counts: float) -> bool:
        """Record the end of a round as ``finish_round`` does, with figures measured elsewhere.

        Args:
            number: the round, from 0.
            figures: values of columns of ``rounds.parquet``; None for one that was not measured.
            counts: as in ``finish_round``.

        Returns:
            Whether the run goes on.
        """
        self.emit("round", round=number, **{**NOT_MEASURED, **figures}, **counts)
        reason = self._evaluator.reason_to_stop(number, figures)
        if reason is not None:
            self.stop(reason)
        return self._simulation.stopped is None


def _check_models(models: ModelAssignment, strategy: object) -> None:
    """Raise ``SimulationError`` for a value of ``Strategy.models`` that is no model."""
    for name, assigned in models.items():
        is_pair = isinstance(assigned, tuple) and len(assigned) == 2
        model = assigned[0] if is_pair else assigned
        if is_pair and isinstance(model, Ref):
            continue
        owner = f"{type(strategy).__name__}.models()"
        needed = "a pair of a model (Ref) and the devices that it serves (None: all) is needed"
        hint = (
            "if it comes from 'state', the loop may keep an entry of that name there: use another "
            "name"
        )
        raise SimulationError(f"{owner} gives {shown(model)} for {name!r}; {needed}; {hint}")
