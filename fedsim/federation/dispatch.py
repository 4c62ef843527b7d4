"""Messages between the two halves of a strategy, through the world.

A request of the server half starts a task in the world. ``client_side`` calls the client half while
the task runs. The end of the task, like the end of any other message, is posted to the server half.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedsim.clock.simulation import Alarm, Simulation, on_grid_after
from fedsim.common.errors import SimulationError
from fedsim.common.streams import Streams
from fedsim.federation.client_side import ClientSide
from fedsim.federation.contents import (
    Carried,
    Contents,
    Handlers,
    PeerMessage,
    TaskEnd,
    has_model,
    payloads,
    received,
)
from fedsim.federation.costs import ServerSpec, cost_s
from fedsim.federation.devices import DevicesState
from fedsim.federation.envelopes import Envelopes, TaskContext
from fedsim.federation.evaluator import Evaluator, Measured
from fedsim.federation.local import ClientHalves
from fedsim.learning.refs import Ref
from fedsim.world.network.endpoints import SERVER, Direction
from fedsim.world.task import Cause, Outcome, Task

if TYPE_CHECKING:
    from fedsim.learning import Learner
    from fedsim.world.life import TaskRunner
    from fedsim.world.messages import Message, Messages
    from fedsim.world.population import Population


# outcome -> outcome that the server sees, as it does not learn why a device has disconnected
_VISIBLE: dict[Outcome, Outcome] = {"left": "lost", "battery": "lost"}


class DispatchState(TypedDict):
    """State of ``Dispatch`` in a snapshot; its attributes of the same names describe the entries."""

    busy_until: float
    unnoticed: dict[int, TaskEnd]
    unrecorded: dict[int, tuple[int, list[int]]]
    finished: dict[int, tuple[int, int]]
    postponed: list[tuple[str, int]]
    residuals: dict[int, dict[str, Ref]]
    bases_at: dict[int, bool]
    in_transit: dict[int, tuple[Contents, dict[str, Ref]]]
    timer_names: dict[int, str]
    timer_count: int
    devices: DevicesState


class Dispatch:
    """Carries messages between a strategy's code on the server and its code on the devices.

    It begins and ends tasks, tells the server half of their ends when the server can know of them,
    and remembers which answers have not been aggregated yet.

    Args:
        simulation: the clock.
        population: the devices.
        learner: names and computes models.
        streams: random streams of the run's seed.
        evaluator: measures models after rounds.
        server: ``[server]`` of the scenario.
        envelopes: builds the messages of tasks.
        client_side: calls the strategy's code on devices.

    Attributes:
        busy_until: time at which the server's present computations end (s).
        unnoticed: task -> ``TaskEnd`` of each lost task whose loss the server has not noticed yet.
        unrecorded: task -> round of the task and serials of the models in its answer, for each
            answer that no record ``aggregate`` has named.
        finished: device -> ID and round of the device's last task, if that task is done and was
            asked for a round.
        postponed: kind and device of each notification that waits until the device is switched on.
        in_transit: message outside of tasks that has not ended -> decoded contents, and new residuals
            of the sender.
        residuals: edge server -> name of a content -> residual of the codec.
        bases_at: edge server -> True if it has the model's frozen tensors.
    """

    tasks: "TaskRunner"
    messages: "Messages"
    strategy: Handlers
    begin_round: Callable[[int], None] | None = None

    def __init__(
        self,
        simulation: Simulation,
        population: "Population",
        learner: "Learner",
        streams: Streams,
        evaluator: Evaluator,
        server: ServerSpec,
        envelopes: Envelopes,
        client_side: ClientSide,
    ) -> None:
        self.simulation = simulation
        self.population = population
        self.learner = learner
        self.streams = streams
        self.evaluator = evaluator
        self._spec = server
        self._envelopes = envelopes
        self.down = envelopes.wire("down")
        self.up = envelopes.wire("up")
        self.client_side = client_side
        self.devices = client_side.devices
        self.busy_until = 0.0
        self.unnoticed: dict[int, TaskEnd] = {}
        self.unrecorded: dict[int, tuple[int, list[int]]] = {}
        self.finished: dict[int, tuple[int, int]] = {}
        self.postponed: list[tuple[str, int]] = []
        self.in_transit: dict[int, tuple[Contents, dict[str, Ref]]] = {}
        self.residuals: dict[int, dict[str, Ref]] = {}
        self.bases_at: dict[int, bool] = {}
        self._timers: dict[str, Alarm] = {}
        self._timer_count = 0
        self._timer_names: dict[int, str] = {}  # alarm index -> name, from a restored snapshot
        simulation.env.declare_alarm("timer", self._rearm_timer)
        simulation.env.declare_alarm("notice", self._set_notice)
        for kind in ("return", "newcomer", "shift"):
            simulation.env.declare_alarm(kind, partial(self.notify_at, kind))

    def connect(
        self,
        tasks: "TaskRunner",
        messages: "Messages",
        strategy: Handlers,
        halves: ClientHalves,
        begin_round: Callable[[int], None] | None,
    ) -> None:
        """Store the objects that need this object for their own construction, and so are made after it.

        Args:
            tasks: the tasks on the devices.
            messages: the messages outside of tasks.
            strategy: the strategy's code on the server.
            halves: the strategy's code on each device.
            begin_round: called with the index of each round; None if data do not change by round.
        """
        self.tasks = tasks
        self.messages = messages
        self.strategy = strategy
        self.begin_round = begin_round
        self.client_side.halves = halves
        self.devices.model_s = self._model_s

    def _model_s(self, device: int, direction: Direction) -> float:
        """Return the time (s) to transfer and to encode or decode a model, on a device's idle link."""
        wire = self._envelopes.wire(direction)
        size = wire.model_bytes + self.learner.state_bytes
        return self.tasks.network.nominal_s(device, direction, size) + wire.model_s

    # from the server half to the world

    def ask(
        self,
        device: int,
        contents: Contents,
        job: str,
        round_number: int | None,
        group: int | None,
        continues: bool,
        at_edge: bool,
    ) -> int:
        """Send an idle device a request, as ``Server.ask`` does, and return the task's ID."""
        request = self._envelopes.request(device, contents, job, round_number)
        if continues:
            self.continue_task(device, round_number)
        self.finished.pop(device, None)
        edge = self.messages.edge_of(device) if at_edge else None
        task = self.tasks.start(
            device,
            request.steps,
            round_number,
            group,
            continues=continues,
            edge=edge,
            context=request.context,
        )
        if self.simulation.executor.workers > 1:
            self.client_side.begin_real(device, request.context)
        return task.id

    def send_to_peers(
        self, sender: int, receivers: Sequence[int], contents: Contents, round_number: int
    ) -> None:
        """Send the same contents from one device to several other devices at once."""
        parts = payloads(contents, self.up)
        arriving, _ = self.up.encode_and_decode(contents, {}, {})
        for device in receivers:
            message = self.messages.send(sender, device, parts, round_number, self.on_message_end)
            self.in_transit[message.id] = arriving, {}

    def carry(
        self,
        edge: int,
        contents: Contents,
        direction: Direction,
        round_number: int | None,
        start: Ref | None,
    ) -> None:
        """Send a message between the server and an edge server, as ``ServerEdges.carry`` does."""
        has_base = direction == "up" or edge in self.bases_at
        parts = self._envelopes.parts(contents, direction, has_base=has_base)
        message = self.messages.carry(edge, direction, parts, round_number, self.on_message_end)
        bases: dict[Ref, Ref] = {}
        if start is not None:
            models = [value for value in contents.values() if isinstance(value, Ref)]
            bases = dict.fromkeys(models, start)
        residuals = self.residuals.get(edge, {}) if direction == "up" else {}
        wire = self._envelopes.wire(direction)
        self.in_transit[message.id] = wire.encode_and_decode(contents, bases, residuals)

    def compute(self, what: str, n: int, d: int, m: int) -> None:
        """Add an operation to the server's queue of computations, whose time then ends later.

        Args:
            what: name of the operation, such as ``mix`` (``cost_s``).
            n: count of models, or other rows.
            d: count of numbers in each.
            m: count of groups that the operation forms.
        """
        if self._spec.speed is not None:
            seconds = cost_s(what, n, d, m) / self._spec.speed
            self.busy_until = on_grid_after(max(self.busy_until, self.simulation.now) + seconds)

    def set_timer(self, name: str, when: float) -> float:
        """Set a timer of the strategy, in place of an earlier one of the same name; return its time (s).

        Args:
            name: name of the timer.
            when: the absolute time (s), on the clock's grid.
        """
        self.cancel_timer(name)
        self._timer_count += 1
        self._set_timer(name, self._timer_count, when)
        return when

    def _set_timer(self, name: str, number: int, when: float) -> None:
        self._timers[name] = self.simulation.wake(
            ("timer", number), when, partial(self._ring, name)
        )

    def cancel_timer(self, name: str) -> None:
        """Cancel the timer of a name; no effect if the name has no timer."""
        alarm = self._timers.pop(name, None)
        if alarm is not None:
            alarm.cancel()

    def _ring(self, name: str) -> None:
        del self._timers[name]
        self.simulation.post(partial(self._on_timer, name))

    async def _on_timer(self, name: str) -> None:
        if self.busy_until > self.simulation.now:
            self.set_timer(name, self.busy_until)
        else:
            await self.strategy.on_timer(name)

    # from the world to the server half

    def on_task_end(self, task: Task) -> None:
        """Notify the strategy of the end of a task.

        If the device was lost, the notification follows after ``server.patience``.
        """
        instruction = TaskContext.of(task).instruction
        outcome = task.outcome or "done"
        visible_outcome = _VISIBLE.get(outcome, outcome)
        contents: Contents = {}
        if outcome == "done":
            contents = self.client_side.arrived(task)
            if task.round is not None:
                self._note_update(task, task.round, contents)
        end = TaskEnd(
            task.id,
            task.device,
            task.round,
            task.group,
            instruction.job,
            visible_outcome,
            instruction.contents,
            contents,
        )
        if visible_outcome == "lost" and self._spec.patience:
            self._notice_later(end)
        else:
            self.simulation.post(partial(self.strategy.on_task_end, end))

    def _notice_later(self, end: TaskEnd) -> None:
        """Set the time at which the server notices a lost task.

        The server notices it when its patience ends, or earlier if the device is back earlier.
        """
        self.unnoticed[end.task] = end
        now = self.simulation.now
        notice = on_grid_after(now + self._spec.patience)
        if end.device not in self.tasks.switched_off:
            notice = min(notice, self.tasks.next_on(end.device, now))
        self._set_notice(end.task, notice)

    def _note_update(self, task: Task, round_number: int, contents: Contents) -> None:
        self.finished[task.device] = task.id, round_number
        serials = [value.serial for value in contents.values() if type(value) is Ref]
        if serials:
            self.unrecorded[task.id] = round_number, serials

    def continue_task(self, device: int, round_number: int | None) -> None:
        """Take back the answer of a device's last task, because its next task goes on where that ended.

        The answer then need not be aggregated; both tasks count as one.

        Args:
            device: the device.
            round_number: round of the next task.

        Raises:
            SimulationError: the device's last task was not asked for this round, or is not done.
        """
        task, last_round = self.finished.get(device, (None, None))
        if task is not None and last_round == round_number:
            self.unrecorded.pop(task, None)
            return
        before = "has done nothing" if task is None else f"was last asked in round {last_round}"
        raise SimulationError(
            f"device {device} is asked in round {round_number} with continues=True, but {before}; "
            "a task continues the device's last one, which was asked in the same round and is "
            "done; "
            "leave 'continues' out after any other task"
        )

    def record_tasks(self, tasks: Iterable[int]) -> None:
        """Note that the answers of tasks were aggregated, or lost at an edge server.

        They are removed from ``unrecorded``, the answers that no record has named yet.
        """
        for task in tasks:
            self.unrecorded.pop(task, None)

    def tasks_of(self, updates: Sequence[Measured]) -> list[tuple[int, int, float]]:
        """Return task, round and weight of each update that no record ``aggregate`` has named.

        Args:
            updates: aggregated updates; a task is found by the serial of its update.
        """
        tasks: dict[int, list[int]] = {}
        for task, (_, serials) in self.unrecorded.items():
            for serial in serials:
                tasks.setdefault(serial, []).append(task)
        weights: dict[int, float] = {}
        for update in updates:
            candidates = tasks.get(update.update.serial, ())
            unnamed = [task for task in candidates if task not in weights]
            if unnamed:
                weights[unnamed[0]] = update.weight
        return [(task, self.unrecorded[task][0], weight) for task, weight in weights.items()]

    def _notice(self, task: int) -> None:
        """Notify the strategy of a lost task that the server has not noticed yet."""
        end = self.unnoticed.pop(task, None)
        if end is not None:
            self.simulation.post(partial(self.strategy.on_task_end, end))

    def end(self, task: int, cause: Cause) -> None:
        """End a task, as ``Server.end`` does.

        A task that is lost already remains recorded as lost; the strategy is notified at once.
        """
        if task in self.unnoticed:
            self._notice(task)
        else:
            self.tasks.end(task, cause)

    def is_idle(self, device: int) -> bool:
        """Whether a device can be reached and has, as far as the server knows, no open task."""
        if not self.tasks.is_idle(device):
            return False
        return device not in self._silent_devices()

    def idle(self, devices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each device whether it can be reached and has no open task; bool [len(devices)].

        A task is open as long as the server does not know of its end.

        Args:
            devices: IDs of devices, each once.
        """
        idle = self.tasks.idle(devices)
        if not self.unnoticed:
            return idle
        return idle & ~np.isin(devices, self._silent_devices())

    def _silent_devices(self) -> list[int]:
        """Return the devices with a lost task that the server has not noticed yet."""
        return [end.device for end in self.unnoticed.values()]

    def on_message_end(self, message: "Message", outcome: Outcome) -> None:
        """Notify the strategy of the end of a message outside of tasks.

        Such a message is sent to or from an edge server, or from device to device. If a message
        from an edge server has arrived, its sender's new residuals are stored. If it was lost, the
        residuals remain as they were.
        """
        contents, residuals = self.in_transit.pop(message.id)
        is_done = outcome == "done"
        arrived = received(contents) if is_done else {}
        source = message.source
        destination = message.destination
        if SERVER not in (source, destination):
            ended = PeerMessage(source, destination, outcome, arrived)
            self.simulation.post(partial(self.strategy.on_peer_message, ended))
            return
        direction: Direction = "up" if destination == SERVER else "down"
        endpoint = source if direction == "up" else destination
        edge = endpoint - len(self.population.speed)
        if is_done and direction == "up" and residuals:
            self.residuals[edge] = dict(residuals)
        if is_done and direction == "down" and has_model(contents):
            self.bases_at[edge] = True
        carried = Carried(edge, direction, message.round, outcome, arrived)
        self.simulation.post(partial(self.strategy.on_carried, carried))

    def on_edge_lost(self, edge: int) -> None:
        """Discard the residuals of a lost edge server, and notify the strategy of the loss."""
        self.residuals.pop(edge, None)
        self.bases_at.pop(edge, None)
        self.simulation.post(partial(self.strategy.on_edge_lost, edge))

    def on_switched_on(self, device: int) -> None:
        """Deliver the notifications that waited until a device was switched on."""
        lost_tasks = [task for task, end in self.unnoticed.items() if end.device == device]
        for task in lost_tasks:
            self._notice(task)
        kinds = [kind for kind, number in self.postponed if number == device]
        self.postponed = [(kind, number) for kind, number in self.postponed if number != device]
        for kind in kinds:
            self.notify_at(kind, device, self.tasks.next_on(device, self.simulation.now))

    def notify(self, kind: str, device: int) -> None:
        """Notify the strategy of a ``return``, ``newcomer`` or ``shift`` of a device.

        If the device is switched off or its battery is flat, the notification waits until the
        device can be reached.
        """
        now = self.simulation.now
        if device in self.tasks.switched_off:
            self.postponed.append((kind, device))
            return
        when = now
        if self.tasks.batteries is not None:
            when = self.tasks.next_on(device, now)
        if when <= now:
            handlers = {
                "return": self.strategy.on_return,
                "newcomer": self.strategy.on_arrival,
                "shift": self.notify_shift,
            }
            self.simulation.post(partial(handlers[kind], device))
        elif when < math.inf:
            self.notify_at(kind, device, when)

    def on_shift(self, device: int) -> None:
        """Notify a device of changed data, now or as soon as the device can be reached."""
        when = self.tasks.next_on(device, self.simulation.now)
        if when <= self.simulation.now:
            self.notify("shift", device)
        elif when < math.inf:
            self.notify_at("shift", device, when)

    async def notify_shift(self, device: int) -> None:
        """Have the strategy's server code receive what a device tells of its changed data.

        What it tells is the result of ``Client.on_shift``; None tells nothing.
        """
        client = self.client_side.halves.of(device)
        contents = client.on_shift(self.devices.of(device))
        if contents is not None:
            await self.strategy.on_shift(device, received(contents))

    async def start(self) -> None:
        """Record the malicious devices, if there is an attack, and start the strategy."""
        side = self.client_side
        if side.attack is not None:
            self.simulation.emit(
                "malicious", attack=side.attack.kind, devices=sorted(side.malicious)
            )
        await self.strategy.on_start()

    # snapshots between two instants

    def snapshot(self) -> DispatchState:
        """Return the state for ``restore``, without the alarms, which the clock saves."""
        return {
            "busy_until": self.busy_until,
            "unnoticed": self.unnoticed,
            "unrecorded": self.unrecorded,
            "finished": self.finished,
            "postponed": self.postponed,
            "residuals": self.residuals,
            "bases_at": self.bases_at,
            "in_transit": self.in_transit,
            "timer_names": {alarm.name[1]: name for name, alarm in self._timers.items()},
            "timer_count": self._timer_count,
            "devices": self.devices.snapshot(),
        }

    def restore(self, state: DispatchState) -> None:
        """Restore the state from ``snapshot``; the clock then sets the alarms again."""
        self._timers = {}
        self._timer_names = state["timer_names"]
        self._timer_count = state["timer_count"]
        self.devices.restore(state["devices"])
        self.busy_until = state["busy_until"]
        self.unnoticed = state["unnoticed"]
        self.unrecorded = state["unrecorded"]
        self.finished = state["finished"]
        self.postponed = state["postponed"]
        self.residuals = state["residuals"]
        self.bases_at = state["bases_at"]
        self.in_transit = state["in_transit"]
        for number in self.in_transit:
            self.messages.under_way[number].on_end = self.on_message_end

    def _rearm_timer(self, number: int, when: float) -> None:
        self._set_timer(self._timer_names[number], number, when)

    def _set_notice(self, task: int, when: float) -> None:
        self.simulation.wake(("notice", task), when, partial(self._notice, task))

    def notify_at(self, kind: str, device: int, when: float) -> None:
        """Notify the strategy of a ``return``, ``newcomer`` or ``shift`` at the time ``when`` (s)."""
        self.simulation.wake((kind, device), when, partial(self.notify, kind, device))
