"""The server: all that a strategy may call, and what it is told.

A strategy sees messages, and nothing of the world behind them: no device's data, speed or labels. Its handlers begin and end
in one instant; they may await values (real work), never simulated time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError
from fedsim.instrument import Instrument, Served
from fedsim.message_sizes import MessagesSpec
from fedsim.messages import Return, Start, Strategy, TaskEnd, Timer
from fedsim.simulation import Simulation, Wakeup, on_grid
from fedsim.streams import Streams
from fedsim.world.population import DeadlineBase
from fedsim.world.task import Cause, Download, Evaluate, Part, Payload, Step, Task, Train, Upload

if TYPE_CHECKING:
    from fedsim.learning import Learner, Ref
    from fedsim.world.population import Population
    from fedsim.world.workforce import Workforce


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a device knows of itself, for the part of an algorithm that runs on it.

    Attributes:
        samples: training samples that it holds.
    """

    samples: int


class Server:
    """What a strategy holds in its hands.

    Args:
        simulation: the clock.
        population, workforce: the devices.
        learner: where models are made and measured, or the one for ``learning = "off"``.
        streams: the run's streams; strategies draw only through ``rng`` and ``sample``.
        instrument: measures aggregations and says when the run is over.
        messages: sizes.
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
        mean_epoch_s: float,
    ) -> None:
        self._simulation = simulation
        self._population = population
        self._learner = learner
        self._streams = streams
        self._instrument = instrument
        self._timers: dict[str, Wakeup] = {}
        self._timer_count = 0
        self._workforce: Workforce
        self._strategy: Strategy
        self.devices = len(population.speed)
        self.download_bytes = messages.down.bytes(learner.parameters)
        self.upload_bytes = messages.up.bytes(learner.parameters)
        self.mean_epoch_s = mean_epoch_s
        self.planned_rounds = instrument.stop.rounds

    def connect(self, workforce: "Workforce", strategy: "Strategy") -> None:
        """Join the two sides, which both need the server to be made."""
        self._workforce = workforce
        self._strategy = strategy

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

    def look_again(self, name: str, delay: float) -> None:
        """With nobody to ask: set a timer ``delay`` (s) from now, or end the run if no device will ever be there again."""
        if self._workforce.anyone_ever():
            self.timer(name, self.now + delay)
        else:
            self.stop("no device will ever be there again")

    def _ring(self, name: str) -> None:
        del self._timers[name]
        self._simulation.post(Timer(name))

    # Devices.

    def online(self) -> list[int]:
        """The devices that are checked in and idle, in order of their numbers. Looks at every device: O(population)."""
        return [device for device in range(self.devices) if self._workforce.is_idle(device)]

    def sample(self, count: int, purpose: str, *ids: int, among: Sequence[int] | None = None) -> list[int]:
        """``count`` devices, uniformly without replacement out of those checked in and idle; fewer if there are not so many.

        Walks a random permutation of all devices, or of those ``among`` which to choose (the stream ``strategy/purpose``,
        ids), and takes the first that can be had, so the cost does not grow with the population, and a device that is away
        changes no other's place.
        """
        generator = self.rng(purpose, *ids)
        moved: dict[int, int] = {}  # a Fisher-Yates shuffle that stores only what it has touched
        chosen: list[int] = []
        remaining = self.devices if among is None else len(among)
        while remaining and len(chosen) < count:
            for draw in generator.random(min(remaining, 2 * count)).tolist():
                position = int(draw * remaining)
                place = moved.get(position, position)
                remaining -= 1
                moved[position] = moved.pop(remaining, remaining)
                device = place if among is None else among[place]
                if self._workforce.is_idle(device):
                    chosen.append(device)
                    if len(chosen) == count:
                        break
        return chosen

    def ask(self, device: int, steps: Sequence[Step], *, round: int | None = None, group: int | None = None) -> int:  # noqa: A002
        """Ask an idle device to carry out ``steps``; returns the task's number. ``on_task_end`` tells how it ended, once."""
        return self._workforce.start(device, tuple(steps), round, group).id

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
        return DeviceFacts(int(self._population.samples[device]))

    def download(self, purpose: str = "model") -> Download:
        """The step in which a device receives a model."""
        return Download((Payload(purpose, self.download_bytes),))

    def upload(self, purpose: str = "update") -> Upload:
        """The step in which a device sends its update."""
        return Upload((Payload(purpose, self.upload_bytes),))

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

    async def value(self, model: "Ref") -> NDArray[np.float32]:
        """The weights, flat, float32 [d]. Forces them to be computed."""
        return await self._learner.value(model)

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

    def stop(self, reason: str) -> None:
        """End the run after this instant."""
        self._simulation.stop(reason)

    async def finish_round(
        self,
        number: int,
        models: Served,
        updates: Sequence[tuple["Ref", float]] = (),
        center: "Ref | None" = None,
        **counts: int,
    ) -> bool:
        """Record an aggregation: measure it when it is due, and end the run when a stop condition is met.

        Measuring takes no simulated time and moves no bytes.

        Args:
            number: the round that has just been aggregated, from 0.
            models: the strategy's models and the devices that each serves (None: all).
            updates: what was aggregated, with weights: for the training loss, the weighted mean of the devices' own.
            center: the model whose distance from the updates is the discrepancy (FlexCFL Eq. 3), or None.
            counts: ``selected``, ``valid``, ``slow``, ``disconnected``.

        Returns:
            Whether the run goes on.
        """
        row = await self._instrument.measure(number, models, updates, center, self._strategy.score)
        self.emit("round", round=number, **row, **counts)
        reason = self._instrument.reason_to_stop(number, row["accuracy"])
        if reason is not None:
            self.stop(reason)
        return self._simulation.stopped is None

    # From the world to the strategy.

    def on_task_end(self, task: Task) -> None:
        """The world says that a task has ended: put the message into the inbox."""
        update = None
        if task.outcome == "done":
            update = next((self._trained(task, step) for step in task.steps if isinstance(step, Train) and task.epochs), None)
        outcome = task.outcome or "done"
        part = next((step.part for step in task.steps if isinstance(step, Train)), None)
        samples = int(self._population.samples[task.device]) if part is None else part.samples
        self._simulation.post(TaskEnd(task.id, task.device, task.round, task.group, outcome, samples, task.epochs, update))

    def _trained(self, task: Task, step: Train) -> "Ref":
        part = step.part
        return self._learner.train(
            step.model,
            task.device,
            epochs=task.epochs,
            key=task.count,
            round=task.round or 0,
            proximal=step.proximal,
            samples=None if part is None else self._learner.part(task.device, part.splits, part.number),
        )

    async def handle(self, message: Start | Timer | TaskEnd | Return) -> None:
        """Give a message to the strategy."""
        match message:
            case TaskEnd():
                await self._strategy.on_task_end(message)
            case Timer(name):
                await self._strategy.on_timer(name)
            case Return(device):
                await self._strategy.on_return(device)
            case Start():
                await self._strategy.on_start()
            case _:
                raise SimulationError(f"the server cannot handle a {type(message).__name__}")


__all__ = [
    "DeadlineBase",
    "DeviceFacts",
    "Download",
    "Evaluate",
    "Part",
    "Payload",
    "Server",
    "Step",
    "TaskEnd",
    "Train",
    "Upload",
]
