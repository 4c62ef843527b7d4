"""The tasks of a log in a fitted world, through the simulator's network without a strategy;
errors of its predictions.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from simpy import Event
from simpy.events import ProcessGenerator

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.streams import Streams
from fedsim.lab.calibrate.log import Log, Tasks, whole
from fedsim.world.network import Direction, Star, ends
from fedsim.world.network.protocol import Fluid, Protocol, Transport

_UPDATES = 200  # over so many an asynchronous server's rate is counted


class FittedWorld(NamedTuple):
    """A world fitted to a log; arrays are [clients]."""

    down: Floats  # bytes/s
    up: Floats
    latency: Floats  # s
    server: dict[Direction, float]  # links of the server, bytes/s, infinity allowed
    protocol: Protocol = Fluid()
    speed: Floats = np.zeros(0)  # samples/s
    jitter: float = 0.0  # coefficient of variation of an epoch's time

    @property
    def quantities(self) -> dict[str, Floats]:
        """The values of the clients by name, [clients] each."""
        return {name: getattr(self, name) for name in ("speed", "down", "up", "latency")}


class _Play:
    """A fitted world in which processes of SimPy carry out tasks."""

    def __init__(self, world: FittedWorld, seed: int) -> None:
        simulation = Simulation()
        self._streams = Streams(seed)
        self._world = world
        self.env = simulation.env
        links = world.down, world.up, world.latency, world.server["down"], world.server["up"]
        self._network = Star(simulation, *links, Transport(world.protocol, self._streams))
        self._sigma = math.sqrt(math.log1p(world.jitter**2))

    def arrival(self, client: int, way: Direction, size: float) -> Event:
        arrived = self.env.event()
        self._network.send(*ends(client, way), size, arrived.succeed)  # type: ignore[arg-type]
        return arrived

    def carry_out(self, tasks: Tasks, task: int) -> ProcessGenerator:
        client = int(tasks.client[task])
        epochs = int(tasks.epochs[task])
        down, samples, up = (float(tasks[step].amount[task]) for step in ("down", "train", "up"))
        if not math.isnan(down):
            yield self.arrival(client, "down", down)
        if not math.isnan(samples):
            pace = samples / epochs / float(self._world.speed[client])
            yield self.env.timeout(pace * sum(self._jitter(task, epoch) for epoch in range(epochs)))
        if not math.isnan(up):
            yield self.arrival(client, "up", up)

    def _jitter(self, task: int, epoch: int) -> float:
        if not self._sigma:
            return 1.0
        return math.exp(
            self._sigma * self._streams.normal("world/jitter", task, epoch) - self._sigma**2 / 2
        )


def transfers(world: FittedWorld, way: Direction, steps: Any, client: Ints) -> Floats:
    """Durations of the downloads or uploads of a log if each began when it did, or after the
    client's last (s), [steps].
    """
    play = _Play(world, 0)
    took = np.zeros(len(client))
    env = play.env

    def send_all(one: int) -> ProcessGenerator:
        for step in np.flatnonzero(client == one).tolist():
            yield env.timeout(max(0.0, float(steps.start[step]) - env.now))
            start = env.now
            yield play.arrival(one, way, float(steps.amount[step]))
            took[step] = env.now - start

    for one in np.unique(client).tolist():
        env.process(send_all(one))
    env.run()
    return took


def rounds(world: FittedWorld, tasks: Tasks, cohorts: Sequence[Ints], seed: int = 0) -> Floats:
    """Durations of rounds in which the clients of all tasks of a cohort begin at once (s),
    [cohorts].
    """
    play = _Play(world, seed)
    env = play.env
    over = [0.0]

    def play_all() -> ProcessGenerator:
        for cohort in cohorts:
            yield env.all_of([env.process(play.carry_out(tasks, task)) for task in cohort.tolist()])
            over.append(env.now)

    env.process(play_all())
    env.run()
    return np.diff(over)


def updates_per_s(world: FittedWorld, tasks: Tasks, at_work: int, seed: int = 0) -> float:
    """Updates a second from so many clients at work, after a warm-up; the next client is drawn
    from those that are idle.

    ``tasks``: one of each client, in their order.
    """
    play = _Play(world, seed)
    over = list[float]()
    draws = Streams(seed).generator("world/calibrate")
    idle = list(range(len(tasks)))
    before = 3 * at_work

    def work() -> ProcessGenerator:
        while len(over) <= before + _UPDATES:
            task = idle.pop(int(draws.integers(len(idle))))
            yield from play.carry_out(tasks, task)
            over.append(play.env.now)
            idle.append(task)

    for _ in range(at_work):
        play.env.process(work())
    play.env.run()
    return _UPDATES / (over[before + _UPDATES] - over[before])


class Prediction(NamedTuple):
    """Rounds, or of an asynchronous server the times between two versions; arrays are [rounds]."""

    held_out: Flags  # nothing was fitted to it
    measured: Floats  # s
    predicted: Floats  # s; NaN where a round cannot be predicted
    # updates a second, measured and predicted; None of a synchronous server
    updates: tuple[float, float] | None

    def summary(self, whose: str) -> Iterator[str]:
        """Lines for people; ``whose`` values predicted it."""
        if self.updates is not None:
            measured, predicted = self.updates
            what = "held out" if self.held_out.any() else "fitted"
            rates = f"{measured:.4g} updates/s measured, {predicted:.4g} predicted"
            yield f"{what:<10} {rates} {whose}: error {abs(predicted / measured - 1):.1%}"
            return
        known = ~np.isnan(self.predicted)
        if not known.any():
            yield (
                f"fit        not known {whose}: no round can be predicted, since each has a task "
                "that did not come to its end"
            )
        for what, part in (("held out", known & self.held_out), ("fitted", known & ~self.held_out)):
            if not part.any():
                continue
            errors = np.abs(self.predicted[part] / self.measured[part] - 1)
            means = (
                f"{self.measured[part].mean():.4g} s on the mean, "
                f"{self.predicted[part].mean():.4g} s predicted"
            )
            error = (
                f"{errors.mean():.1%} on the mean, {np.percentile(errors, 95):.1%} at the 95th "
                "percentile"
            )
            yield f"{what:<10} {len(errors)} rounds of {means} {whose}: error {error}"


def held_out(log: Log) -> Flags:
    """Rounds that are held out of the fit: every third; of versions, which overlap, the last
    third; bool [rounds].
    """
    count = len(log.rounds)
    places = np.arange(count)
    return np.asarray(places % 3 == 2 if log.synchronous else places >= count - count // 3)


def predict(log: Log, held: Flags, worlds: Sequence[FittedWorld]) -> Prediction:
    """The mean prediction of several worlds: each round with its own cohort; of an asynchronous
    server, updates a second.
    """
    measured = log.rounds.end - log.rounds.start
    tasks = log.tasks
    done = whole(log.tasks)
    if log.synchronous:
        cohorts = [np.flatnonzero(tasks.number == number) for number in log.rounds.number]
        known = np.array([len(cohort) > 0 and done[cohort].all() for cohort in cohorts])
        predicted = np.full(len(cohorts), np.nan)
        chosen = list(compress(cohorts, known))
        predicted[known] = np.mean(
            [rounds(world, tasks, chosen, seed) for seed, world in enumerate(worlds)], axis=0
        )
        return Prediction(held, measured, predicted, None)
    scored = log.rounds[held if held.any() else ~held]
    first = scored.start.min()
    last = scored.end.max()
    over = tasks.up.end[done]
    rate = float(np.sum((over > first) & (over <= last)) / (last - first))
    one_each = tasks[done][np.unique(tasks.client[done], return_index=True)[1]]
    rates = [updates_per_s(world, one_each, log.at_once, seed) for seed, world in enumerate(worlds)]
    updates = rate, float(np.mean(rates))
    return Prediction(held, measured, np.full(len(held), log.per_version / updates[1]), updates)
