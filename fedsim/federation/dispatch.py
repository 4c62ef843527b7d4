"""Between the strategy's two halves and the world: messages become tasks, tasks become messages.

The server half asks; the world carries the message; the client half says what is computed and what is answered, each at the
instant at which the device comes to it; the world carries the answer; the server half is told. Neither half holds the other.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError
from fedsim.evaluation.evaluator import Evaluator
from fedsim.federation.client import BEST, Client, Instruction, LocalResult, PreviousResult
from fedsim.federation.contents import Contents, Partial, payloads, received
from fedsim.federation.costs import ServerSpec, cost_s
from fedsim.federation.devices import Devices
from fedsim.federation.malicious import Attack
from fedsim.federation.messages import (
    Arrival,
    Carried,
    EdgeLost,
    Message,
    PeerMessage,
    Return,
    Shift,
    Start,
    Strategy,
    TaskEnd,
    Timer,
)
from fedsim.federation.wire import MessagesSpec, Wire
from fedsim.learning.refs import Ref
from fedsim.simulation import Alarm, Simulation, on_grid_after
from fedsim.streams import Streams
from fedsim.world.network.flow import SERVER, Direction
from fedsim.world.task import Cause, Computation, Download, Evaluate, Outcome, Payload, Step, Task, Train, Upload

if TYPE_CHECKING:
    from fedsim.learning import Learner
    from fedsim.running.drift import Drift
    from fedsim.world.life import TaskRunner
    from fedsim.world.messages import Edges
    from fedsim.world.messages import Message as OnItsWay
    from fedsim.world.population import Population


_MESSAGES: dict[str, Callable[[int], Message]] = {"return": Return, "shift": Shift, "newcomer": Arrival}
"""What is said of a device as soon as it can be reached, by the kind of its alarm."""

_SEEN: dict[Outcome, Outcome] = {"left": "lost", "battery": "lost"}
"""What the server sees of how tasks end: who vanishes does not say for how long, or why."""


@dataclass(slots=True)
class TaskContext:
    """What a running task is about.

    Attributes:
        order: what was asked.
        begun: whether the client half has said what is computed.
        computed: whether that was anything.
        reply: what it has answered; None until then, or for nothing.
        replied: whether it has.
        keeping: what the device keeps of its answer if it arrives, by name.
        real: its real work, as soon as that is begun.
    """

    order: Instruction
    begun: bool = False
    computed: bool = False
    reply: Contents | None = None
    replied: bool = False
    keeping: dict[str, Any] | None = None
    real: "Future[Any] | None" = None


class Dispatch:
    """Carries what the two halves of a strategy say to each other.

    Args:
        simulation: the clock.
        population: the devices.
        learner: where models are made and measured, or the one for ``learning = "off"``.
        streams: the run's streams; strategies draw only through ``Server.rng`` and ``Server.sample``.
        evaluator: measures aggregations and says when the run is over.
        messages: how models are written.
        own: what the server's own computing takes, and how long it waits for a device that has vanished.
        batch_size: B, samples of an SGD step.
        devices: what each device knows of itself.
        attack: what malicious devices do to their updates; None where there are no such devices.
        malicious: which they are.

    Attributes:
        devices: as given.
        busy_until: when the server has computed what it has begun by now (s); in the past for nothing.
        unnoticed: tasks that are lost, which the server does not know yet, by their numbers.
    """

    def __init__(
        self,
        simulation: Simulation,
        population: "Population",
        learner: "Learner",
        streams: Streams,
        *,
        evaluator: Evaluator,
        messages: MessagesSpec,
        own: ServerSpec,
        batch_size: int,
        devices: Devices,
        attack: Attack | None = None,
        malicious: Collection[int] = (),
    ) -> None:
        self.simulation = simulation
        self.population = population
        self.learner = learner
        self.streams = streams
        self.evaluator = evaluator
        self.drift: Drift | None = None
        self.tasks: TaskRunner
        self.edges: Edges
        self.strategy: Strategy
        self.busy_until = 0.0
        self.unnoticed: dict[int, TaskEnd] = {}
        self._own = own
        self._down, self._up = Wire(messages.down, learner), Wire(messages.up, learner)
        self._client: Client[Any]
        self.devices = devices
        self._attack, self._malicious = attack, frozenset(malicious)
        self._batch_size = batch_size
        self._timers: dict[str, Alarm] = {}
        self._timer_count = 0
        self._untold: list[tuple[str, int]] = []  # of _MESSAGES: kind and device, which is switched off
        self._sent: dict[int, tuple[Contents, dict[str, Any]]] = {}  # of messages outside of tasks: what arrives, is kept
        self._kept_at: dict[int, dict[str, Any]] = {}  # by lossy codecs at edge servers, of what was not sent

    def connect(
        self, tasks: "TaskRunner", edges: "Edges", strategy: "Strategy", client: Client[Any], drift: "Drift | None"
    ) -> None:
        """Join the sides that need this to be made."""
        self.tasks, self.edges = tasks, edges
        self.strategy = strategy
        self._client = client
        self._is_real = type(client).real is not Client.real
        self.drift = drift
        wires = {"down": self._down, "up": self._up}
        self.devices.model_s = lambda device, way: (
            tasks.steps.nominal_s(device, way, wires[way].model_bytes) + wires[way].model_s
        )

    # From the server half to the world.

    def ask(
        self,
        device: int,
        contents: Contents,
        job: str,
        number: int | None,
        group: int | None,
        *,
        continues: bool,
        at_edge: bool = False,
    ) -> int:
        """See ``Server.ask``; ``number`` is the round's."""
        parts = payloads(contents, self._down)
        steps: tuple[Step, ...] = (Download(parts),) if parts else ()
        if parts and self._down.model_s:
            steps += self._down.work_on(contents, "decode")
        edge = self.edges.of(device) if at_edge else None
        if self._down.changes(contents):
            contents, _ = self._down.through(contents, {}, {})
        errand = TaskContext(Instruction(job, received(contents), number))
        task = self.tasks.start(device, steps, number, group, continues=continues, edge=edge, context=errand)
        if self._is_real and self.simulation.executor.workers > 1:
            self._begin_real(device, errand)
        return task.id

    def _begin_real(self, device: int, errand: TaskContext) -> None:
        if real := self._client.real(self.devices.of(device), errand.order):
            errand.real = self.simulation.submit(real.function, *real.arguments, alone=True)

    def carry(self, edge: int, contents: Contents, direction: Direction, number: int | None, start: "Ref | None") -> None:
        """See ``Server.carry``; ``number`` is the round's. To write and read models takes an edge server no time."""
        wire = self._down if direction == "down" else self._up
        keeping: dict[str, Any] = {}
        message = self.edges.send(edge, direction, payloads(contents, wire), number, self.on_message_end)
        if wire.changes(contents):
            bases = {} if start is None else {value: start for value in contents.values() if type(value) is type(start)}
            kept = self._kept_at.get(edge, {}) if direction == "up" else {}
            contents, keeping = wire.through(contents, bases, kept)
        self._sent[message.id] = contents, keeping

    def send(self, source: int, destinations: Sequence[int], contents: Contents, number: int | None) -> None:
        """Send contents from a device to others, written once; ``number`` is the round's."""
        parts = payloads(contents, self._up)
        if self._up.changes(contents):
            contents, keeping = self._up.through(contents, {}, self.devices.kept(source))
            self.devices.keep(source, keeping)
        for destination in destinations:
            message = self.edges.messages.send(source, destination, parts, number, self.on_message_end)
            self._sent[message.id] = contents, {}

    @property
    def download_bytes(self) -> float:
        """Bytes of a model on its way down."""
        return self._down.model_bytes

    @property
    def upload_bytes(self) -> float:
        """Bytes of a model on its way up."""
        return self._up.model_bytes

    def upload_payloads(self, contents: Contents) -> tuple[Payload, ...]:
        """Contents as they would be on their way up."""
        return payloads(contents, self._up)

    @property
    def coding_s(self) -> tuple[float, float]:
        """How long a device decodes a model that came down, and encodes one that goes up (s)."""
        return self._down.model_s, self._up.model_s

    def compute(self, what: str, n: int, d: int, m: int) -> None:
        """The server begins an operation (``costs``); it does one after the other."""
        if self._own.speed is not None:
            seconds = cost_s(what, n, d, m) / self._own.speed
            self.busy_until = on_grid_after(max(self.busy_until, self.simulation.now) + seconds)

    def await_return(self, device: int, when: float) -> None:
        """Tell the strategy at ``when`` (s) that a device is there."""
        self.rearm("return", device, when)

    def set_timer(self, name: str, when: float) -> float:
        """Set the timer of a name again; returns ``when`` (s, on the grid)."""
        self.cancel_timer(name)
        self._timer_count += 1
        self._timers[name] = self.simulation.wake(("timer", self._timer_count), when, lambda: self._ring(name))
        return when

    def cancel_timer(self, name: str) -> None:
        """Forget a timer; harmless when there is none."""
        wakeup = self._timers.pop(name, None)
        if wakeup is not None:
            wakeup.cancel()

    def _ring(self, name: str) -> None:
        del self._timers[name]
        self.simulation.post(Timer(name))

    # From the world to the client half: what does the device do next?

    def next_steps(self, task: Task) -> tuple[Step, ...]:
        """A device has carried out all steps that its task had: those that follow, none if that was all."""
        errand: TaskContext = task.context
        if errand.replied:
            return ()
        device = self.devices.of(task.device)
        if not errand.begun:
            errand.begun = True
            if self._is_real and errand.real is None:
                self._begin_real(task.device, errand)
            if errand.real is not None:  # the clock stands still until it is done
                errand.order.value, errand.real = errand.real.result(), None
            steps = tuple(self._client.work(device, errand.order))
            if steps:
                errand.computed = True
                return tuple(map(self._with_time_to_encode, steps)) if self._up.model_s else steps
        errand.replied = True
        done = self._client.computed(device, errand.order, self._done(task))
        errand.reply = self._client.reply(device, errand.order, done)
        if errand.reply is None:
            return ()
        if self._attack is not None and task.device in self._malicious:
            done, errand.reply = self._attacked(task, self._attack, done, errand.reply)
        meant = errand.reply
        parts, encoding = payloads(meant, self._up), self._up.work_on(meant, "encode") if self._up.model_s else ()
        if self._up.changes(errand.reply):
            bases = {} if done.update is None or done.start is None else {done.update: done.start}
            kept, added_up = self.devices.kept(task.device), getattr(self._client.params, "added_up", ())
            errand.reply, errand.keeping = self._up.through(errand.reply, bases, kept, added_up)
        self._report(done, meant, errand.reply)
        return (*encoding, Upload(parts)) if parts else ()

    @staticmethod
    def _report(done: LocalResult, meant: Contents, arriving: Contents) -> None:
        """What arrives of an update reports the loss of the training that it comes from, whatever was made of it."""
        if done.trained is None or done.update is None:
            return
        for name, value in meant.items():
            if (value.model if type(value) is Partial else value) is done.update and arriving[name].loss is None:
                arriving[name].loss = done.trained.loss

    def _with_time_to_encode(self, step: Computation) -> Computation:
        """A training that must leave time for its upload leaves time for encoding it, too."""
        if not isinstance(step, Train) or not step.limit.reserve_upload:
            return step
        models = step.limit.reserve_upload / self._up.model_bytes
        return replace(step, limit=replace(step.limit, reserve_s=models * self._up.model_s))

    def _done(self, task: Task) -> LocalResult:
        """What a device has computed."""
        update: Ref | None = None
        start: Ref | None = None
        tested: Ref | None = None
        steps, epochs = 0, iter(task.trained)
        earlier: tuple[Ref, ...] = ()
        for step in task.steps:
            if isinstance(step, Evaluate):
                tested = self.learner.best(step.models, task.device, version=task.version)
            elif isinstance(step, Train) and (finished := next(epochs)):
                start, training = tested if step.training.start == BEST else step.training.start, step.training
                before = earlier if update is None else (*earlier, update)
                if type(start) is PreviousResult or type(training.anchor) is PreviousResult:
                    start, anchor = self._found(start, before), self._found(training.anchor, before)
                else:
                    anchor = training.anchor
                if start is not training.start or anchor is not training.anchor or finished != training.epochs:
                    training = replace(training, start=start, anchor=anchor, epochs=finished)
                number, earlier = task.round or 0, before
                update = self.learner.train(training, task.device, key=task.count, round=number, version=task.version)
                steps = training.sgd_steps(task.samples, self._batch_size)
        return LocalResult(task.samples, task.epochs, steps, update, start, tested, earlier, trained=update)

    def _found(self, model: Any, earlier: "tuple[Ref, ...]") -> Any:
        """A model that a training starts from or is held to, where it follows from the trainings before."""
        if not isinstance(model, PreviousResult):
            return model
        parts = [(earlier[part] if isinstance(part, int) else part, factor) for part, factor in model.parts]
        return parts[0][0] if len(parts) == 1 and parts[0][1] == 1.0 else self.devices.of(0).mix(parts)

    def _attacked(self, task: Task, attack: Attack, done: LocalResult, reply: Contents) -> tuple[LocalResult, Contents]:
        """What a malicious device says that it has computed: every model in its reply is attacked, the update from its start.

        Any other model in a reply is a change of something (a control variate): it starts from 0.
        """
        meant = done.update
        if meant is None or done.start is None:
            return done, reply
        draw = (task.device, task.count)
        update = attack.update(self.learner, meant, done.start, ("world/attack", *draw))

        def attacked(name: str, value: Any) -> Any:
            if isinstance(value, Partial):
                return replace(value, model=attacked(name, value.model))
            if value is meant or not isinstance(value, Ref):
                return update if value is meant else value
            return attack.update(self.learner, value, self.devices.zero, (f"world/attack/{name}", *draw))

        return done._replace(update=update), {name: attacked(name, value) for name, value in reply.items()}

    # From the world to the server half.

    def on_task_end(self, task: Task) -> None:
        """The world says that a task has ended: put the message into the inbox."""
        errand: TaskContext = task.context
        outcome = task.outcome or "done"
        contents: Mapping[str, Any] = {}
        if outcome == "done":
            if errand.computed:
                self.devices.note_use(task.device, task.version)
            if errand.reply is not None:
                self.devices.keep(task.device, errand.keeping)
                self._client.sent(self.devices.of(task.device), errand.order, errand.reply)
                contents = received(errand.reply)
        order, seen = errand.order, _SEEN.get(outcome, outcome)
        end = TaskEnd(task.id, task.device, task.round, task.group, order.job, seen, order.contents, contents)
        if seen != "lost" or not self._own.patience:
            self.simulation.post(end)
            return
        self.unnoticed[task.id] = end
        now = self.simulation.now
        there = math.inf if task.device in self.tasks.off else self.tasks.next_on(task.device, now)
        self.rearm("notice", task.id, min(on_grid_after(now + self._own.patience), there))

    def _notice(self, task: int) -> None:
        """The server gives a lost task up: it has waited long enough, needs it no more, or the device is there again."""
        end = self.unnoticed.pop(task, None)
        if end is not None:
            self.simulation.post(end)

    def end(self, task: int, cause: Cause) -> None:
        """See ``Server.end``; a task that is lost unnoticed stays lost, for the books."""
        if task in self.unnoticed:
            self._notice(task)
        else:
            self.tasks.end(task, cause)

    def is_idle(self, device: int) -> bool:
        """Whether a device can be reached and, for all that the server knows, has nothing to do."""
        if not self.tasks.is_idle(device):
            return False
        return not self.unnoticed or all(end.device != device for end in self.unnoticed.values())

    def idle(self, devices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The same of several, all different; bool, as many."""
        idle = self.tasks.idle(devices)
        return idle & ~np.isin(devices, [end.device for end in self.unnoticed.values()]) if self.unnoticed else idle

    def on_message_end(self, message: "OnItsWay", outcome: Outcome) -> None:
        """The world says that a message outside of tasks has ended: of an edge server, or from device to device."""
        contents, keeping = self._sent.pop(message.id)
        arrived = received(contents) if outcome == "done" else {}
        if (up := message.destination == SERVER) or message.source == SERVER:
            edge = (message.source if up else message.destination) - len(self.population.speed)
        else:
            self.simulation.post(PeerMessage(message.source, message.destination, outcome, arrived))
            return
        if outcome == "done" and keeping and up:
            self._kept_at[edge] = dict(keeping)
        self.simulation.post(Carried(edge, "up" if up else "down", message.round, outcome, arrived))

    def on_edge_lost(self, edge: int) -> None:
        """The world says that an edge server is lost."""
        self._kept_at.pop(edge, None)
        self.simulation.post(EdgeLost(edge))

    def on_arrival(self, device: int) -> None:
        """The world says that a newcomer can be reached."""
        self._tell("newcomer", device)

    def on_switched_on(self, device: int) -> None:
        """The world says that a device is switched on again: what was to be said of it when it can be reached is said then."""
        for task in [task for task, end in self.unnoticed.items() if end.device == device]:
            self._notice(task)
        told, self._untold = self._untold, []
        for kind, number in told:
            if number == device:
                self.rearm(kind, device, self.tasks.next_on(device, self.simulation.now))
            else:
                self._untold.append((kind, number))

    def _tell(self, kind: str, device: int) -> None:
        """Give the strategy the message that a device can be reached; later, if it is switched off, or its battery flat."""
        if device in self.tasks.off:
            self._untold.append((kind, device))
        elif self.tasks.batteries is None or (when := self.tasks.next_on(device, self.simulation.now)) <= self.simulation.now:
            self.simulation.post(_MESSAGES[kind](device))
        elif when < float("inf"):
            self.rearm(kind, device, when)

    def on_shift(self, device: int) -> None:
        """The world says that a device's data have changed; it hears of it now, or when it can be reached again."""
        when = self.tasks.next_on(device, self.simulation.now)
        if when <= self.simulation.now:
            self._tell("shift", device)
        elif when < float("inf"):
            self.rearm("shift", device, when)

    async def look_for_shift(self, device: int) -> None:
        """See ``Server.look_for_shift``."""
        if self.devices.has_changed(device):
            await self._shift(device)

    async def _shift(self, device: int) -> None:
        told = self._client.on_shift(self.devices.of(device))
        if told is not None:
            await self.strategy.on_shift(device, received(told))

    async def handle(self, message: Message) -> None:
        """Give a message to the strategy."""
        match message:
            case TaskEnd():
                await self.strategy.on_task_end(message)
            case Timer(name) if self.busy_until > self.simulation.now:
                self.set_timer(name, self.busy_until)
            case Carried():
                await self.strategy.on_carried(message)
            case PeerMessage():
                await self.strategy.on_peer_message(message)
            case EdgeLost(edge):
                await self.strategy.on_edge_lost(edge)
            case Timer(name):
                await self.strategy.on_timer(name)
            case Return(device):
                await self.strategy.on_return(device)
            case Arrival(device):
                await self.strategy.on_arrival(device)
            case Shift(device):
                await self._shift(device)
            case Start():
                if self._attack is not None:
                    self.simulation.emit("malicious", attack=self._attack.kind, devices=sorted(self._malicious))
                await self.strategy.on_start()
            case _:
                raise SimulationError(f"the server cannot handle a {type(message).__name__}")

    # Snapshots, between two instants.

    def snapshot(self) -> dict[str, Any]:
        """What must be remembered: names of timers, what tasks are about, what devices know. Who waits stands in the alarms."""
        timers = {wakeup.name[1]: name for name, wakeup in self._timers.items()}
        return {
            "timers": timers,
            "count": self._timer_count,
            "devices": self.devices.snapshot(),
            "untold": self._untold,
            "busy_until": self.busy_until,
            "unnoticed": self.unnoticed,
            "sent": self._sent,
            "kept_at": self._kept_at,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what ``snapshot`` gave. Alarms follow by ``rearm``."""
        self._timer_names: dict[int, str] = dict(state["timers"])
        self._timer_count = state["count"]
        self.devices.restore(state["devices"])
        self._timers = {}
        self._untold = state["untold"]
        self.busy_until, self.unnoticed = state["busy_until"], state["unnoticed"]
        self._sent, self._kept_at = state["sent"], state["kept_at"]
        for number in self._sent:
            self.edges.messages.under_way[number].on_end = self.on_message_end

    def rearm(self, kind: str, number: int, when: float) -> None:
        """Set an alarm: a ``timer`` of the snapshot, the ``notice`` of a lost task, or one of ``_MESSAGES`` about a device."""
        if kind == "notice":
            self.simulation.wake((kind, number), when, lambda: self._notice(number))
        elif kind == "timer":
            name = self._timer_names[number]
            self._timers[name] = self.simulation.wake((kind, number), when, lambda: self._ring(name))
        else:
            self.simulation.wake((kind, number), when, lambda: self._tell(kind, number))
