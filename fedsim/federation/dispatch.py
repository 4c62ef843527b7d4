"""The way of a message: from the server half by the world to the client half (``client_side``),
and of the answer back.
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
_SEEN: dict[Outcome, Outcome] = {"left": "lost", "battery": "lost"}
_SAVED = (
    "busy_until",
    "unnoticed",
    "unrecorded",
    "finished",
    "untold",
    "sent",
    "kept_at",
    "bases_at",
)
"""Attributes that a snapshot holds under their own names."""


class Dispatch:
    """Carries the messages between the two halves of a strategy."""

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
        own: ServerSpec,
        envelopes: Envelopes,
        client_side: ClientSide,
    ) -> None:
        self.simulation = simulation
        self.population = population
        self.learner = learner
        self.streams = streams
        self.evaluator = evaluator
        self._own = own
        self._envelopes = envelopes
        self.down = envelopes.wire("down")
        self.up = envelopes.wire("up")
        self.client_side = client_side
        self.devices = client_side.devices
        self.busy_until = 0.0  # end of the server's current computations (s)
        # lost tasks of which the server does not know yet, by their numbers
        self.unnoticed: dict[int, TaskEnd] = {}
        self.unrecorded: dict[int, tuple[int, list[int]]] = {}
        """Updates that no ``aggregate`` names so far: task -> its round, and the serials of its
        refs.
        """
        self.finished: dict[int, tuple[int, int]] = {}
        """Devices whose last task was done in a round: device -> that task and its round."""
        self._timers: dict[str, Alarm] = {}
        self._timer_count = 0
        # alarms about devices that are switched off: kind and device
        self.untold: list[tuple[str, int]] = []
        # of messages outside of tasks: what arrives, is kept
        self.sent: dict[int, tuple[Contents, dict[str, Any]]] = {}
        self.kept_at: dict[int, dict[str, Any]] = {}  # errors of lossy codecs at edge servers
        self.bases_at: dict[int, bool] = {}  # edge servers that have the model's frozen tensors
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
        """Join the sides that need this object.

        ``begin_round`` is called with each round's number.
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

    def compute(self, what: str, n: int, d: int, m: int) -> None:
        """The server begins an operation (``costs``); it does one after the other."""
        if self._own.speed is not None:
            seconds = cost_s(what, n, d, m) / self._own.speed
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
        if (alarm := self._timers.pop(name, None)) is not None:
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
        """Tell the strategy that a task has ended, of a lost device after the server's
        ``patience`` (s).
        """
        instruction = task.context.instruction
        outcome = task.outcome or "done"
        contents = self.client_side.arrived(task) if outcome == "done" else {}
        seen = _SEEN.get(outcome, outcome)
        if outcome == "done" and task.round is not None:
            self._note_update(task, task.round, contents)
        end = TaskEnd(
            task.id,
            task.device,
            task.round,
            task.group,
            instruction.job,
            seen,
            instruction.contents,
            contents,
        )
        if seen != "lost" or not self._own.patience:
            self.simulation.post(partial(self.strategy.on_task_end, end))
            return
        self.unnoticed[task.id] = end
        now = self.simulation.now
        there = math.inf if task.device in self.tasks.off else self.tasks.next_on(task.device, now)
        self._set_notice(task.id, min(on_grid_after(now + self._own.patience), there))

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
        found: dict[int, tuple[int, int, float]] = {}
        for update in updates:
            left = [each for each in tasks.get(update.update.serial, ()) if each not in found]
            if left:
                found[left[0]] = left[0], self.unrecorded[left[0]][0], update.weight
        return list(found.values())

    def _notice(self, task: int) -> None:
        """The server gives up a lost task, as its patience ends, it needs the task no more, or
        the device is back.
        """
        if (end := self.unnoticed.pop(task, None)) is not None:
            self.simulation.post(partial(self.strategy.on_task_end, end))

    def end(self, task: int, cause: Cause) -> None:
        """See ``Server.end``; a task that was lost without the server noticing stays recorded as
        lost.
        """
        if task in self.unnoticed:
            self._notice(task)
        else:
            self.tasks.end(task, cause)

    def is_idle(self, device: int) -> bool:
        """Whether a device can be reached and, as far as the server knows, has nothing to do."""
        return self.tasks.is_idle(device) and all(
            end.device != device for end in self.unnoticed.values()
        )

    def idle(self, devices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Vectorised ``is_idle``, of different devices; bool [len(devices)]."""
        idle = self.tasks.idle(devices)
        return (
            idle & ~np.isin(devices, [end.device for end in self.unnoticed.values()])
            if self.unnoticed
            else idle
        )

    def on_message_end(self, message: "Message", outcome: Outcome) -> None:
        """Tell the strategy that a message of an edge server, or from device to device, has
        ended.
        """
        contents, keeping = self.sent.pop(message.id)
        arrived = received(contents) if outcome == "done" else {}
        up = message.destination == SERVER
        if not up and message.source != SERVER:
            ended = PeerMessage(message.source, message.destination, outcome, arrived)
            self.simulation.post(partial(self.strategy.on_peer_message, ended))
            return
        edge = (message.source if up else message.destination) - len(self.population.speed)
        if outcome == "done" and keeping and up:
            self.kept_at[edge] = dict(keeping)
        if outcome == "done" and not up and has_model(contents):
            self.bases_at[edge] = True
        carried = Carried(edge, "up" if up else "down", message.round, outcome, arrived)
        self.simulation.post(partial(self.strategy.on_carried, carried))

    def on_edge_lost(self, edge: int) -> None:
        """Tell the strategy that an edge server is lost."""
        self.kept_at.pop(edge, None)
        self.bases_at.pop(edge, None)
        self.simulation.post(partial(self.strategy.on_edge_lost, edge))

    def on_switched_on(self, device: int) -> None:
        """Send the messages about a device that waited until it was switched on."""
        for task in [task for task, end in self.unnoticed.items() if end.device == device]:
            self._notice(task)
        kinds = [kind for kind, number in self.untold if number == device]
        self.untold = [told for told in self.untold if told[1] != device]
        for kind in kinds:
            self.tell_at(kind, device, self.tasks.next_on(device, self.simulation.now))

    def tell(self, kind: str, device: int) -> None:
        """Tell the strategy of a ``return``, ``newcomer`` or ``shift``; later, if the device is
        switched off, or flat.
        """
        if device in self.tasks.off:
            self.untold.append((kind, device))
        elif (
            self.tasks.batteries is None
            or (when := self.tasks.next_on(device, self.simulation.now)) <= self.simulation.now
        ):
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
        if (told := self.client_side.client.on_shift(self.devices.of(device))) is not None:
            await self.strategy.on_shift(device, received(told))

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
