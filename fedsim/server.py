"""The server: all that a strategy may call, and what it is told.

A strategy sees messages, and nothing of the world behind them: no device's data, speed or labels. Its handlers begin and end
in one instant; they may await values (real work), never simulated time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError
from fedsim.instrument import Instrument, Measured, Served
from fedsim.message_sizes import MessagesSpec
from fedsim.messages import Arrival, Message, Return, Shift, Start, Strategy, TaskEnd, Timer
from fedsim.simulation import Simulation, Wakeup, on_grid
from fedsim.streams import Shuffle, Streams
from fedsim.training import Limit, Part, Training
from fedsim.world.population import DeadlineBase
from fedsim.world.task import Cause, Download, Evaluate, Payload, Step, Task, Train, Upload

if TYPE_CHECKING:
    from fedsim.drift import Drift
    from fedsim.learning import Learner, Ref
    from fedsim.learning.functions import Function
    from fedsim.world.population import Population
    from fedsim.world.workforce import Workforce


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a device knows of itself, for the part of an algorithm that runs on it.

    Attributes:
        samples: training samples that it holds.
        count_labels: how many samples of each class a version of its data has (None: what it holds now).
        version: the number of what it holds now, from 0.
        used_version: the same of the data on which it last trained or tested models for a task that it finished.
    """

    samples: int
    count_labels: Callable[[int | None], NDArray[np.int64]] = field(repr=False, default=lambda version: np.empty(0, np.int64))
    version: int = 0
    used_version: int = 0

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Training samples of each class now; int64 [C]."""
        return self.count_labels(None)

    @property
    def first_label_counts(self) -> NDArray[np.int64]:
        """Training samples of each class before any shift; int64 [C]."""
        return self.count_labels(0)

    @property
    def used_label_counts(self) -> NDArray[np.int64]:
        """Training samples of each class in what it last trained on or tested models with; int64 [C]."""
        return self.count_labels(self.used_version)


CHOSEN = "chosen"
"""``Training.start``: the best of the models that the device has just tested, in the ``Evaluate`` step before."""


_LEAST_ASKED = 16  # to ask of one device or of so many whether they can be had takes about the same time


class Server:
    """What a strategy holds in its hands.

    Args:
        simulation: the clock.
        population, workforce: the devices.
        learner: where models are made and measured, or the one for ``learning = "off"``.
        streams: the run's streams; strategies draw only through ``rng`` and ``sample``.
        instrument: measures aggregations and says when the run is over.
        messages: sizes.
        label_counts: training samples of each class that a device holds, in a version of its data (None: the present one).
        mean_epoch_s: mean over all devices of an undisturbed epoch's time (s): a figure of the operator's, the unit of
            relative deadlines.
    """

    def __init__(
        self,
        simulation: Simulation,
        population: "Population",
        learner: "Learner",
        streams: Streams,
        *,
        instrument: Instrument,
        messages: MessagesSpec,
        label_counts: Callable[[int, int | None], NDArray[np.int64]],
        mean_epoch_s: float,
    ) -> None:
        self._simulation = simulation
        self._population = population
        self._learner = learner
        self._streams = streams
        self._instrument = instrument
        self._timers: dict[str, Wakeup] = {}
        self._timer_count = 0
        self._used_versions: dict[int, int] = {}
        self._downloads: dict[str, Download] = {}  # steps that are the same for all devices
        self._uploads: dict[str, Upload] = {}
        self._label_counts = label_counts
        self._drift: Drift | None = None
        self._workforce: Workforce
        self._strategy: Strategy
        self.devices = len(population.speed)
        self.download_bytes = messages.down.bytes(learner.parameters)
        self.upload_bytes = messages.up.bytes(learner.parameters)
        self.mean_epoch_s = mean_epoch_s
        self.planned_rounds = instrument.stop.rounds

    def connect(self, workforce: "Workforce", strategy: "Strategy", drift: "Drift | None") -> None:
        """Join the sides that need the server to be made."""
        self._workforce = workforce
        self._strategy = strategy
        self._drift = drift

    # Time.

    @property
    def now(self) -> float:
        """The simulated time (s)."""
        return self._simulation.now

    def timer(self, name: str, when: float) -> float:
        """Call the strategy's ``on_timer(name)`` at the absolute time ``when`` (s). One timer a name; a new one replaces it.

        At a time that is now, it goes off in this instant, after every message that is already there. Returns the time, on
        the clock's grid.
        """
        self.cancel_timer(name)
        self._timer_count += 1
        when = max(self.now, on_grid(when))
        self._timers[name] = self._simulation.wake(("timer", self._timer_count), when, lambda: self._ring(name))
        return when

    def cancel_timer(self, name: str) -> None:
        """Forget a timer; harmless when there is none."""
        wakeup = self._timers.pop(name, None)
        if wakeup is not None:
            wakeup.cancel()

    def look_again(self, name: str, delay: float, at_least: int = 1) -> None:
        """With too few to ask: set a timer ``delay`` (s) from now, or end the run if so many devices will never be there."""
        if not self._workforce.anyone_ever():
            self.stop("no device will ever be there again")
        elif at_least > 1 and self._ever(at_least) < at_least:
            self.stop(f"fewer than {at_least} devices will ever be there again")
        else:
            self.timer(name, self.now + delay)

    def _ever(self, most: int) -> int:
        """How many devices can be reached now or some time, counted up to ``most``."""
        ever = (device for device in range(self.devices) if self._workforce.next_on(device, self.now) < float("inf"))
        return len(list(islice(ever, most)))

    def _ring(self, name: str) -> None:
        del self._timers[name]
        self._simulation.post(Timer(name))

    # Devices.

    def online(self) -> list[int]:
        """The devices that are checked in and idle, in order of their numbers. Looks at every device: O(population)."""
        online: list[int] = np.flatnonzero(self._workforce.idle(np.arange(self.devices))).tolist()
        return online

    def sample(self, count: int, purpose: str, *ids: int, among: Sequence[int] | None = None) -> list[int]:
        """``count`` devices, uniformly without replacement out of those checked in and idle; fewer if there are not so many.

        Walks a random permutation of all devices, or of those ``among`` which to choose (the stream ``strategy/purpose``,
        ids), and takes the first that can be had, so the cost does not grow with the population, and a device that is away
        changes no other's place.
        """
        shuffle = Shuffle(self.rng(purpose, *ids), self.devices if among is None else len(among))
        chosen: list[int] = []
        while shuffle.remaining and len(chosen) < count:
            places = shuffle.draw(max(count - len(chosen), _LEAST_ASKED))
            devices = np.array(places if among is None else [among[place] for place in places], dtype=np.int64)
            chosen += devices[self._workforce.idle(devices)].tolist()
        return chosen[:count]

    def arrived(self, device: int) -> bool:
        """Whether a device has joined the population, be it here or away by now; who has not is announced by ``on_arrival``."""
        return bool(self._population.arrival[device] <= self.now)

    def expects_newcomers(self) -> bool:
        """Whether some device will still join that can ever be reached: then it makes sense to wait."""
        coming = np.flatnonzero(self._population.arrival > self.now).tolist()
        return any(self._workforce.next_on(device, self.now) < float("inf") for device in coming)

    def idle(self, device: int) -> bool:
        """Whether a device is checked in and has nothing to do."""
        return self._workforce.is_idle(device)

    def ask(
        self,
        device: int,
        steps: Sequence[Step],
        *,
        round: int | None = None,  # noqa: A002
        group: int | None = None,
        continues: bool = False,
    ) -> int:
        """Ask an idle device to carry out ``steps``; returns the task's number. ``on_task_end`` tells how it ended, once.

        ``continues``: the device goes on with what its task before began (it had to find its group, say); the two count as
        one selection.
        """
        return self._workforce.start(device, tuple(steps), round, group, continues=continues).id

    def end(self, task: int, cause: Cause = "late") -> None:
        """End a task that still runs; harmless on one that has just ended."""
        self._workforce.end(task, cause)

    def await_return(self, device: int, delay: float = 0.0) -> bool:
        """Call the strategy's ``on_return(device)`` when the device can be reached, ``delay`` (s) from now at the earliest.

        Returns:
            Whether that will ever be; if not, nothing is called.
        """
        when = self._workforce.next_on(device, on_grid(self.now + delay))
        if when == float("inf"):
            return False
        self._simulation.wake(("return", device), when, lambda: self._simulation.post(Return(device)))
        return True

    def facts(self, device: int) -> DeviceFacts:
        """What a device knows of itself. For what runs on that device only: the server's side learns it from messages."""
        population, used = self._population, self._used_versions.get(device, 0)
        labels = partial(self._label_counts, device)
        return DeviceFacts(int(population.samples[device]), labels, int(population.version[device]), used)

    def download(self, purpose: str = "model") -> Download:
        """The step in which a device receives a model."""
        if purpose not in self._downloads:
            self._downloads[purpose] = Download((Payload(purpose, self.download_bytes),))
        return self._downloads[purpose]

    def upload(self, purpose: str = "update") -> Upload:
        """The step in which a device sends its update."""
        if purpose not in self._uploads:
            self._uploads[purpose] = Upload((Payload(purpose, self.upload_bytes),))
        return self._uploads[purpose]

    # Models.

    def initial(self, count: int = 0) -> "Ref":
        """A freshly initialised model; another ``count`` is another draw. The same for every strategy with the same seed."""
        return self._learner.initial(count)

    def mix(self, parts: Sequence[tuple["Ref", float]], otherwise: "Ref | None" = None, *, rescale: bool = True) -> "Ref":
        """The linear combination sum of coefficient x model, in the order given; not computed until it is needed.

        Updates that are not finite are left out, the other coefficients rescaled to the same sum (``rescale = False``: left
        as they are, right for a sum of differences). ``otherwise`` stands in when nothing is left, or when what is left sums
        to 0; without it the mix is then itself not finite.
        """
        return self._learner.mix(parts, otherwise, rescale=rescale)

    def model(self, weights: NDArray[np.floating]) -> "Ref":
        """The model that has these weights, an array [d]."""
        return self._learner.given(weights)

    def apply(
        self,
        function: "Function",
        models: "Sequence[Ref]",
        *,
        stream: tuple[Any, ...] | None = None,
        otherwise: "Ref | None" = None,
        leave_out: bool = False,
        **constants: Any,
    ) -> "Ref":
        """What a pure function makes of models; not computed until it is needed.

        Args:
            function: ``function(models, **constants)`` of a list of arrays, float32 [d] each, gives an array [d]. It stands at
                the top of a module, is marked by ``@pure``, changes nothing that it is given, and may run in any process.
            models: what it is given.
            stream: a purpose, and numbers: the function is given ``rng`` too, the generator of the strategy's so named.
            otherwise: stands in where one of ``models`` is not finite; without it the result is then itself not finite.
            leave_out: a model that is not finite is left out instead, as in ``mix``; ``otherwise`` stands in for none at all.
            constants: what else the function is given; JSON-able.
        """
        named = None if stream is None else (f"strategy/{stream[0]}", *stream[1:])
        return self._learner.apply(function, models, stream=named, otherwise=otherwise, leave_out=leave_out, **constants)

    @property
    def learns(self) -> bool:
        """Whether models have weights; not with ``learning = "off"``, where who decides by values must decide otherwise."""
        return self._learner.learns

    async def value(self, model: "Ref") -> NDArray[np.float32]:
        """The weights, flat, float32 [d]. Forces them to be computed."""
        return await self._learner.value(model)

    async def values(self, models: Sequence["Ref"]) -> list[NDArray[np.float32]]:
        """The weights of several models, computed together."""
        return await self._learner.values(models)

    async def losses(self, tested: Sequence["Ref"]) -> list[NDArray[np.float64]]:
        """What devices found when they tested models (``TaskEnd.tested``): for each the training objective of each model."""
        losses = await self._learner.losses(tested)
        if losses is None:
            raise SimulationError('the strategy looks at losses, but learning = "off" has none; set learning = "on"')
        return losses

    async def choices(self, tested: Sequence["Ref"]) -> list[int]:
        """Which of the models that they tested devices found best: the position of the smallest objective."""
        choices = await self._learner.choices(tested)
        if choices is None:
            raise SimulationError('the strategy looks at choices, but learning = "off" has none; set learning = "on"')
        return choices

    async def train_loss(self, updates: Sequence[tuple["Ref", float]]) -> float | None:
        """The weighted mean of what devices report as their training loss; None where there is none."""
        return await self._learner.train_loss(updates)

    async def test(self, model: "Ref", devices: Sequence[int] | None = None) -> float | None:
        """Accuracy of a model on the pooled test samples of devices (None: all); None where nothing is measured.

        Moves no bytes and takes no time: a strategy whose devices report their accuracies asks them for that message too.
        """
        return await self._instrument.test(model, devices)

    # Randomness, records, the end.

    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """A generator of the strategy's own, named by a purpose and counts."""
        return self._streams.generator(f"strategy/{purpose}", *ids)

    def emit(self, kind: str, **data: Any) -> None:
        """Record something that the strategy decided."""
        self._simulation.emit(kind, **data)

    def exchange(self, purpose: str, size: float, sender: str, receiver: str) -> None:
        """Record that ``size`` bytes went from one part of the server's side to another, on no device's link and at once."""
        self.emit("server-transfer", purpose=purpose, bytes=float(size), sender=sender, receiver=receiver)

    def begin_round(self, number: int) -> None:
        """A round is about to begin: what is to happen to data in it happens now, once.

        Who then waits for a timer at ``now`` asks devices that know of their shift (``Strategy.on_shift``).
        """
        if self._drift is not None:
            self._drift.begin_round(number)

    def stop(self, reason: str) -> None:
        """End the run after this instant."""
        self._simulation.stop(reason)

    async def finish_round(
        self,
        number: int,
        models: Served,
        updates: Sequence[Measured] = (),
        **counts: int,
    ) -> bool:
        """Record an aggregation: measure it when it is due, and end the run when a stop condition is met.

        Measuring takes no simulated time and moves no bytes.

        Args:
            number: the round that has just been aggregated, from 0.
            models: the strategy's models and the devices that each serves (None: all).
            updates: what was aggregated: for the training loss and the discrepancy.
            counts: ``selected``, ``valid``, ``slow``, ``disconnected``.

        Returns:
            Whether the run goes on.
        """
        row = await self._instrument.measure(number, models, updates, self._strategy)
        self.emit("round", round=number, **row, **counts)
        reason = self._instrument.reason_to_stop(number, row["accuracy"])
        if reason is not None:
            self.stop(reason)
        return self._simulation.stopped is None

    # Snapshots, between two instants.

    def snapshot(self) -> dict[str, Any]:
        """What the server itself must remember: names of timers, and on which data devices have worked.

        Who waits for a device stands in the alarms' names.
        """
        timers = {wakeup.name[1]: name for name, wakeup in self._timers.items()}
        return {"timers": timers, "count": self._timer_count, "used_versions": dict(self._used_versions)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what ``snapshot`` gave. Alarms follow by ``rearm``."""
        self._timer_names: dict[int, str] = dict(state["timers"])
        self._timer_count = state["count"]
        self._used_versions = dict(state["used_versions"])
        self._timers = {}

    def rearm(self, kind: str, number: int, when: float) -> None:
        """Set an alarm that was there when the snapshot was taken: a ``timer``, or a device's ``return`` or ``shift``."""
        if kind == "timer":
            name = self._timer_names[number]
            self._timers[name] = self._simulation.wake((kind, number), when, lambda: self._ring(name))
        else:
            message = Return(number) if kind == "return" else Shift(number)
            self._simulation.wake((kind, number), when, lambda: self._simulation.post(message))

    # From the world to the strategy.

    def on_task_end(self, task: Task) -> None:
        """The world says that a task has ended: put the message into the inbox."""
        update: Ref | None = None
        start: Ref | None = None
        tested: Ref | None = None
        if task.outcome == "done":
            for step in task.steps:
                if task.version and isinstance(step, Train | Evaluate):
                    self._used_versions[task.device] = task.version
                if isinstance(step, Evaluate):
                    tested = self._learner.best(step.models, task.device, version=task.version)
                elif isinstance(step, Train) and task.epochs:
                    start = tested if step.training.start == CHOSEN else step.training.start
                    assert start is not None  # who trains the best of the models has tested them before
                    update = self._trained(task, step, start)
        outcome = task.outcome or "done"
        end = TaskEnd(task.id, task.device, task.round, task.group, outcome, task.samples, task.epochs, update, start, tested)
        self._simulation.post(end)

    def _trained(self, task: Task, step: Train, start: "Ref") -> "Ref":
        training = replace(step.training, start=start, epochs=task.epochs)
        return self._learner.train(training, task.device, key=task.count, round=task.round or 0, version=task.version)

    def on_arrival(self, device: int) -> None:
        """The world says that a newcomer can be reached."""
        self._simulation.post(Arrival(device))

    def on_shift(self, device: int) -> None:
        """The world says that a device's data have changed; it hears of it now, or when it can be reached again."""
        when = self._workforce.next_on(device, self.now)
        if when <= self.now:
            self._simulation.post(Shift(device))
        elif when < float("inf"):
            self._simulation.wake(("shift", device), when, lambda: self._simulation.post(Shift(device)))

    async def handle(self, message: Message) -> None:
        """Give a message to the strategy."""
        match message:
            case TaskEnd():
                await self._strategy.on_task_end(message)
            case Timer(name):
                await self._strategy.on_timer(name)
            case Return(device):
                await self._strategy.on_return(device)
            case Arrival(device):
                await self._strategy.on_arrival(device)
            case Shift(device):
                await self._strategy.on_shift(device)
            case Start():
                await self._strategy.on_start()
            case _:
                raise SimulationError(f"the server cannot handle a {type(message).__name__}")


__all__ = [
    "CHOSEN",
    "DeadlineBase",
    "DeviceFacts",
    "Download",
    "Evaluate",
    "Limit",
    "Measured",
    "Part",
    "Payload",
    "Server",
    "Step",
    "TaskEnd",
    "Train",
    "Training",
    "Upload",
]
