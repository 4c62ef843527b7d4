"""The tasks of a log in a fitted world: the network of the simulator itself, without a strategy, and how good it predicts."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from simpy import Event
from simpy.events import ProcessGenerator

from fedsim.arrays import Flags, Floats, Ints
from fedsim.calibrate.log import Log, Steps, Tasks
from fedsim.errors import DataError
from fedsim.simulation import Simulation
from fedsim.streams import Streams
from fedsim.world.network import Direction, Star, ends
from fedsim.world.network.protocol import Fluid, Protocol, Transport

HoldOut = Literal["third", "last", "none"]

_LEAST_ROUNDS = 3
_UPDATES = 200  # over so many an asynchronous server's rate is counted


class Links(NamedTuple):
    """The links of a star.

    Attributes:
        down, up: of the clients, bytes/s, [clients].
        latency: s, [clients].
        server: of the server by direction, bytes/s, infinity allowed.
        protocol: of the messages.
    """

    down: Floats
    up: Floats
    latency: Floats
    server: dict[Direction, float]
    protocol: Protocol = Fluid()


class FittedWorld(NamedTuple):
    """A world fitted to a log.

    Attributes:
        speed: samples/s, [clients].
        jitter: coefficient of variation of an epoch's time.
        links: the network.
    """

    speed: Floats
    jitter: float
    links: Links

    @property
    def quantities(self) -> dict[str, Floats]:
        """The values of the clients by name, [clients] each."""
        return {"speed": self.speed, "down": self.links.down, "up": self.links.up, "latency": self.links.latency}


class _Replay:
    """A network over which processes of SimPy send; the weights of its protocol are drawn by the seed."""

    def __init__(self, links: Links, seed: int) -> None:
        simulation, self.streams, server = Simulation(), Streams(seed), links.server
        transport = Transport(links.protocol, self.streams)
        self.env = simulation.env
        self._network = Star(simulation, links.down, links.up, links.latency, server["down"], server["up"], transport)

    def arrival(self, client: int, way: Direction, size: float) -> Event:
        arrived = self.env.event()
        self._network.send(*ends(client, way), size, arrived.succeed)  # type: ignore[arg-type]
        return arrived


def transfers(links: Links, way: Direction, steps: Steps, client: Ints) -> Floats:
    """Durations of the downloads or uploads of a log if each began when it did (s), [steps].

    One that would begin before the one before it of the same client is over waits for that.
    """
    replay, took = _Replay(links, 0), np.zeros(len(client))
    env = replay.env

    def send_all(one: int) -> ProcessGenerator:
        for step in np.flatnonzero(client == one).tolist():
            yield env.timeout(max(0.0, float(steps.start[step]) - env.now))
            start = env.now
            yield replay.arrival(one, way, float(steps.amount[step]))
            took[step] = env.now - start

    for one in np.unique(client).tolist():
        env.process(send_all(one))
    env.run()
    return took


class _Play(_Replay):
    """Tasks that are carried out in a fitted world."""

    def __init__(self, world: FittedWorld, tasks: Tasks, seed: int) -> None:
        super().__init__(world.links, seed)
        self._speed, self._tasks = world.speed, tasks
        self._sigma = math.sqrt(math.log1p(world.jitter**2))

    def carry_out(self, task: int) -> ProcessGenerator:
        tasks = self._tasks
        client = int(tasks.client[task])
        for way, steps in (("down", tasks.down), ("train", tasks.train), ("up", tasks.up)):
            amount = float(steps.amount[task])
            if math.isnan(amount):
                continue
            if way != "train":
                yield self.arrival(client, way, amount)  # type: ignore[arg-type]
                continue
            epochs = int(tasks.epochs[task])
            pace = amount / epochs / float(self._speed[client])
            yield self.env.timeout(pace * sum(self._jitter(task, epoch) for epoch in range(epochs)))

    def _jitter(self, task: int, epoch: int) -> float:
        if not self._sigma:
            return 1.0
        return math.exp(self._sigma * self.streams.normal("world/jitter", task, epoch) - self._sigma**2 / 2)


def rounds(world: FittedWorld, tasks: Tasks, cohorts: Sequence[Ints], seed: int = 0) -> Floats:
    """Durations of rounds in which the clients of all tasks of a cohort begin at once (s), [cohorts]."""
    play = _Play(world, tasks, seed)
    env, over = play.env, [0.0]

    def play_all() -> ProcessGenerator:
        for cohort in cohorts:
            yield env.all_of([env.process(play.carry_out(task)) for task in cohort.tolist()])
            over.append(env.now)

    env.process(play_all())
    env.run()
    return np.diff(over)


def updates_per_s(world: FittedWorld, tasks: Tasks, at_work: int, seed: int = 0) -> float:
    """Updates a second from so many clients at work; the next client is drawn from those that are idle.

    Updates are counted when three times as many as are at work have gone by. ``tasks``: one of each client, in their order.
    """
    play, over, draws, drawn = _Play(world, tasks, seed), list[float](), Streams(seed), itertools.count()
    idle, before = list(range(len(tasks.client))), 3 * at_work

    def work() -> ProcessGenerator:
        while len(over) <= before + _UPDATES:
            task = idle.pop(int(draws.uniform("world/calibrate", 0, next(drawn)) * len(idle)))
            yield from play.carry_out(task)
            over.append(play.env.now)
            idle.append(task)

    for _ in range(at_work):
        play.env.process(work())
    play.env.run()
    return _UPDATES / (over[before + _UPDATES] - over[before])


class Prediction(NamedTuple):
    """Rounds, or of an asynchronous server the times between two versions; [rounds] each.

    Attributes:
        held_out: whether nothing was fitted to it.
        measured, predicted: s; NaN where a round cannot be predicted.
        updates: a second, measured and predicted; None of a synchronous server.
    """

    held_out: Flags
    measured: Floats
    predicted: Floats
    updates: tuple[float, float] | None

    def told(self, whose: str) -> Iterator[str]:
        """Lines for people; ``whose`` values predicted it."""
        if self.updates is not None:
            measured, predicted = self.updates
            what = "held out" if self.held_out.any() else "fitted"
            error = abs(predicted / measured - 1)
            yield f"{what:<10} {measured:.4g} updates/s measured, {predicted:.4g} predicted {whose}: error {error:.1%}"
            return
        known = ~np.isnan(self.predicted)
        if not known.any():
            yield f"fit        not known {whose}: no round can be predicted, since each has a task that did not come to its end"
        for what, part in (("held out", known & self.held_out), ("fitted", known & ~self.held_out)):
            if part.any():
                measured_s, predicted_s = self.measured[part], self.predicted[part]
                errors = np.abs(predicted_s / measured_s - 1)
                yield (
                    f"{what:<10} {len(errors)} rounds of {measured_s.mean():.4g} s on the mean, "
                    f"{predicted_s.mean():.4g} s predicted {whose}: "
                    f"error {errors.mean():.1%} on the mean, {np.percentile(errors, 95):.1%} at the 95th percentile"
                )


def held_out(log: Log, how: HoldOut) -> Flags:
    """Rounds that are held out of the fit, bool [rounds]."""
    count = len(log.rounds.number)
    held = np.zeros(count, dtype=bool)
    if how == "none":
        return held
    if count < _LEAST_ROUNDS:
        raise DataError(f"the log has {count} rounds; {_LEAST_ROUNDS} at least are needed to hold one out (--hold-out none)")
    if not log.synchronous or how == "last":  # versions run into each other, so none can be taken from among them
        held[-(count // 3) :] = True
    else:
        held[2::3] = True
    return held


def predict(log: Log, held: Flags, worlds: Sequence[FittedWorld]) -> Prediction:
    """The mean prediction of several worlds: each round with its own cohort; of an asynchronous server, updates a second."""
    spans = log.rounds.end - log.rounds.start
    if log.synchronous:
        return Prediction(held, spans, _round_s(log, worlds), None)
    updates = _rates(log, held, worlds)
    return Prediction(held, spans, np.full(len(held), log.per_version / updates[1]), updates)


def _round_s(log: Log, worlds: Sequence[FittedWorld]) -> Floats:
    order = np.argsort(log.tasks.round, kind="stable")
    edges = (np.searchsorted(log.tasks.round[order], log.rounds.number, side=side) for side in ("left", "right"))
    cohorts = [order[first:last] for first, last in zip(*edges, strict=True)]
    whole = [place for place, cohort in enumerate(cohorts) if len(cohort) and log.tasks.whole[cohort].all()]
    predicted = np.full(len(cohorts), np.nan)
    if whole:
        chosen = [cohorts[place] for place in whole]
        predicted[whole] = np.mean([rounds(world, log.tasks, chosen, seed) for seed, world in enumerate(worlds)], axis=0)
    return predicted


def _rates(log: Log, held: Flags, worlds: Sequence[FittedWorld]) -> tuple[float, float]:
    tasks, scored = log.tasks, log.rounds.at(held if held.any() else ~held)
    first, last = scored.start.min(), scored.end.max()
    over = tasks.up.end[tasks.whole]
    measured = float(np.sum((over > first) & (over <= last)) / (last - first))
    whole = np.flatnonzero(tasks.whole)
    one_each = tasks.at(whole[np.unique(tasks.client[whole], return_index=True)[1]])
    rates = [updates_per_s(world, one_each, log.at_work, seed) for seed, world in enumerate(worlds)]
    return measured, float(np.mean(rates))
