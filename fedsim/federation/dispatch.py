"""Messages between the two halves of a strategy, through the world.

A request goes from the server half to a task of the world; ``client_side`` calls the client half
there; the end of the task, and of any other message, is posted to the server half.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.clock.simulation import Alarm, Simulation, on_grid_after
from fedsim.common.errors import SimulationError
from fedsim.common.streams import Streams
from fedsim.federation.client import Client
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
from fedsim.federation.envelopes import Envelopes
from fedsim.federation.evaluator import Evaluator, Measured
from fedsim.learning.refs import Ref
from fedsim.world.network.endpoints import SERVER, Direction
from fedsim.world.task import Cause, Outcome, Task

if TYPE_CHECKING:
    from fedsim.learning import Learner
    from fedsim.world.life import TaskRunner
    from fedsim.world.messages import Message, Messages
    from fedsim.world.population import Population


# the server does not learn why a device vanishes
_VISIBLE: dict[Outcome, Outcome] = {"left": "lost", "battery": "lost"}
_SAVED = (
    "busy_until",
    "unnoticed",
    "unrecorded",
    "finished",
    "untold",
    "sent",
    "residuals",
    "bases_at",
)
"""Attributes that a snapshot holds under their own names."""


class Dispatch:
    """Carries the messages between the two halves of a strategy.

    Args:
        simulation: the clock.
        population: the devices.
        learner: trains and tests models.
        streams: random streams of the seed.
        evaluator: measures rounds.
        server: ``[server]`` of the scenario.
        envelopes: builds the messages of tasks.
        client_side: calls the client half.

    Attributes:
        busy_until: end of the server's present computations (s).
        unnoticed: task -> end of each lost task of which the server does not know yet.
        unrecorded: task -> its round and the serials of its refs, for each update that no record
            ``aggregate`` has named.
        finished: device -> its last task and the round of that task, if it was done in a round.
        untold: kind and device of each notification about a device that is switched off.
        sent: message outside of tasks -> contents that arrive, and residuals of the sender.
        residuals: edge server -> name of a content -> residual of the codec.
        bases_at: edge servers that have the model's frozen tensors.
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
        self.untold: list[tuple[str, int]] = []
        self.sent: dict[int, tuple[Contents, dict[str, Any]]] = {}
        self.residuals: dict[int, dict[str, Any]] = {}
        self.bases_at: dict[int, bool] = {}
        self._timers: dict[str, Alarm] = {}
        self._timer_count = 0
        self._timer_names: dict[int, str] = {}  # of a snapshot, by number
        simulation.env.declare_alarm("timer", self._rearm_timer)
        simulation.env.declare_alarm("notice", self._set_notice)
        for kind in ("return", "newcomer", "shift"):
            simulation.env.declare_alarm(kind, partial(self.tell_at, kind))

    def connect(
        self,
        tasks: "TaskRunner",
        messages: "Messages",
        strategy: Handlers,
        client: Client[Any],
        begin_round: Callable[[int], None] | None,
    ) -> None:
        """Join the sides, which need this object themselves.

        Args:
            tasks: the tasks on the devices.
            messages: the messages outside of tasks.
            strategy: the server half.
            client: the client half.
            begin_round: called with the number of each round; None if nothing happens then.
        """
        self.tasks = tasks
        self.messages = messages
        self.strategy = strategy
        self.begin_round = begin_round
        self.client_side.client = client
        self.devices.model_s = self._model_s

    def _model_s(self, device: int, direction: Direction) -> float:
        """Time (s) of a message with a model on the device's own link, and of its coding."""
        wire = self._envelopes.wire(direction)
        size = wire.model_bytes + self.learner.state_bytes
        return self.tasks.network.nominal_s(device, direction, size) + wire.model_s

    # From the server half to the world.

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
        """Send an idle device a request, as ``Server.ask`` does; returns the task's number."""
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
        """Send the same contents from a device to others at once."""
        parts = payloads(contents, self.up)
        arriving, _ = self.up.through(contents, {}, {})
        for device in receivers:
            message = self.messages.send(sender, device, parts, round_number, self.on_message_end)
            self.sent[message.id] = arriving, {}

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
        self.sent[message.id] = wire.through(contents, bases, residuals)

    def compute(self, what: str, n: int, d: int, m: int) -> None:
        """Begin an operation of the server (see ``costs``), after its present computations."""
        if self._spec.speed is not None:
            seconds = cost_s(what, n, d, m) / self._spec.speed
            self.busy_until = on_grid_after(max(self.busy_until, self.simulation.now) + seconds)

    def set_timer(self, name: str, when: float) -> float:
        """Set the timer of a name again; returns ``when`` (s, on the grid)."""
        self.cancel_timer(name)
        self._timer_count += 1
        self._set_timer(name, self._timer_count, when)
        return when

    def _set_timer(self, name: str, number: int, when: float) -> None:
        self._timers[name] = self.simulation.wake(
            ("timer", number), when, partial(self._ring, name)
        )

    def cancel_timer(self, name: str) -> None:
        """Forget a timer; harmless when there is none."""
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

    # From the world to the server half.

    def on_task_end(self, task: Task) -> None:
        """Tell the strategy that a task has ended; of a lost device, after ``server.patience``."""
        instruction = task.context.instruction
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
        """Let the server notice a lost task when its patience ends, or the device is back."""
        self.unnoticed[end.task] = end
        now = self.simulation.now
        notice = on_grid_after(now + self._spec.patience)
        if end.device not in self.tasks.off:
            notice = min(notice, self.tasks.next_on(end.device, now))
        self._set_notice(end.task, notice)

    def _note_update(self, task: Task, round_number: int, contents: Contents) -> None:
        self.finished[task.device] = task.id, round_number
        serials = [value.serial for value in contents.values() if type(value) is Ref]
        if serials:
            self.unrecorded[task.id] = round_number, serials

    def continue_task(self, device: int, round_number: int | None) -> None:
        """Let a task continue the device's last one, whose answer is then no update.

        Raises:
            SimulationError: the device's last task was not of this round, or is not done.
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
        """A record names these tasks as aggregated, or as lost."""
        for task in tasks:
            self.unrecorded.pop(task, None)

    def tasks_of(self, updates: Sequence[Measured]) -> list[tuple[int, int, float]]:
        """The updates that no ``aggregate`` names so far: task, round and weight of each."""
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
        """Let the server notice that a task is lost."""
        end = self.unnoticed.pop(task, None)
        if end is not None:
            self.simulation.post(partial(self.strategy.on_task_end, end))

    def end(self, task: int, cause: Cause) -> None:
        """End a task, as ``Server.end`` does; one that is lost already stays recorded as lost."""
        if task in self.unnoticed:
            self._notice(task)
        else:
            self.tasks.end(task, cause)

    def is_idle(self, device: int) -> bool:
        """Whether a device can be reached and, as far as the server knows, has nothing to do."""
        if not self.tasks.is_idle(device):
            return False
        return device not in self._silent_devices()

    def idle(self, devices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Vectorised ``is_idle``, of different devices; bool [len(devices)]."""
        idle = self.tasks.idle(devices)
        if not self.unnoticed:
            return idle
        return idle & ~np.isin(devices, self._silent_devices())

    def _silent_devices(self) -> list[int]:
        """Devices whose tasks are lost without the server knowing."""
        return [end.device for end in self.unnoticed.values()]

    def on_message_end(self, message: "Message", outcome: Outcome) -> None:
        """Tell the strategy that a message of an edge server, or between devices, has ended."""
        contents, residuals = self.sent.pop(message.id)
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
        """Tell the strategy that an edge server is lost."""
        self.residuals.pop(edge, None)
        self.bases_at.pop(edge, None)
        self.simulation.post(partial(self.strategy.on_edge_lost, edge))

    def on_switched_on(self, device: int) -> None:
        """Notify the server of what it missed while a device was switched off."""
        lost_tasks = [task for task, end in self.unnoticed.items() if end.device == device]
        for task in lost_tasks:
            self._notice(task)
        kinds = [kind for kind, number in self.untold if number == device]
        self.untold = [(kind, number) for kind, number in self.untold if number != device]
        for kind in kinds:
            self.tell_at(kind, device, self.tasks.next_on(device, self.simulation.now))

    def tell(self, kind: str, device: int) -> None:
        """Tell the strategy of a ``return``, ``newcomer`` or ``shift``.

        If the device is switched off or flat, the strategy is told later.
        """
        now = self.simulation.now
        if device in self.tasks.off:
            self.untold.append((kind, device))
            return
        when = now
        if self.tasks.batteries is not None:
            when = self.tasks.next_on(device, now)
        if when <= now:
            handlers = {
                "return": self.strategy.on_return,
                "newcomer": self.strategy.on_arrival,
                "shift": self.tell_shift,
            }
            self.simulation.post(partial(handlers[kind], device))
        elif when < math.inf:
            self.tell_at(kind, device, when)

    def on_shift(self, device: int) -> None:
        """Tell a device that its data have changed, now or when it can be reached again."""
        when = self.tasks.next_on(device, self.simulation.now)
        if when <= self.simulation.now:
            self.tell("shift", device)
        elif when < math.inf:
            self.tell_at("shift", device, when)

    async def tell_shift(self, device: int) -> None:
        """Let a device whose data have changed send its message (``Client.on_shift``)."""
        contents = self.client_side.client.on_shift(self.devices.of(device))
        if contents is not None:
            await self.strategy.on_shift(device, received(contents))

    async def start(self) -> None:
        """The run begins."""
        side = self.client_side
        if side.attack is not None:
            self.simulation.emit(
                "malicious", attack=side.attack.kind, devices=sorted(side.malicious)
            )
        await self.strategy.on_start()

    # Snapshots, between two instants.

    def snapshot(self) -> dict[str, Any]:
        """The state beside the alarms, for ``restore``."""
        state: dict[str, Any] = {name: getattr(self, name) for name in _SAVED}
        state["timers"] = {alarm.name[1]: name for name, alarm in self._timers.items()}
        state["count"] = self._timer_count
        state["devices"] = self.devices.snapshot()
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state from ``snapshot``. Alarms follow."""
        self._timers = {}
        self._timer_names = dict[int, str](state["timers"])
        self._timer_count = state["count"]
        self.devices.restore(state["devices"])
        for name in _SAVED:
            setattr(self, name, state[name])
        for number in self.sent:
            self.messages.under_way[number].on_end = self.on_message_end

    def _rearm_timer(self, number: int, when: float) -> None:
        self._set_timer(self._timer_names[number], number, when)

    def _set_notice(self, task: int, when: float) -> None:
        self.simulation.wake(("notice", task), when, partial(self._notice, task))

    def tell_at(self, kind: str, device: int, when: float) -> None:
        """Tell the strategy of a ``return``, ``newcomer`` or ``shift`` at a time (s)."""
        self.simulation.wake((kind, device), when, partial(self.tell, kind, device))
