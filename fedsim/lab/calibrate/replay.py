"""Replay of a log's tasks in a fitted world, to predict the durations of the log's rounds.

Messages go through the simulator's network; there is no strategy.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
from simpy import Event
from simpy.events import ProcessGenerator

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.streams import Streams
from fedsim.lab.calibrate.log import Log
from fedsim.lab.calibrate.tasks import Steps, Tasks, has_ended
from fedsim.world.network import Direction, Star, ends
from fedsim.world.network.protocol import Fluid, Protocol, Transport

_UPDATES = 200  # count of updates over which the rate of an asynchronous server is measured


class FittedWorld(NamedTuple):
    """Speeds, links and latencies of clients, fitted to a log so that it can be replayed.

    Attributes:
        down: rates of the clients' links to the client (bytes/s); float64 [clients].
        up: rates of the clients' links from the client (bytes/s); float64 [clients].
        latency: latencies of the clients' messages (s); float64 [clients].
        server: rate of the server's link by direction (bytes/s), infinity allowed.
        protocol: protocol of the messages.
        speed: speeds of training (samples/s); float64 [clients].
        jitter: coefficient of variation of an epoch's time.
    """

    down: Floats
    up: Floats
    latency: Floats
    server: dict[Direction, float]
    protocol: Protocol = Fluid()
    speed: Floats = np.zeros(0)
    jitter: float = 0.0

    @property
    def quantities(self) -> dict[str, Floats]:
        """Arrays ``speed``, ``down``, ``up`` and ``latency`` by name; float64 [clients] each."""
        return {name: getattr(self, name) for name in ("speed", "down", "up", "latency")}


class _Replay:
    """Simulation of clients with fitted speeds and links, which carry out tasks of a log.

    A caller starts ``carry_out`` as SimPy processes of ``env``, or sends single messages.

    Args:
        world: the clients' speeds and links.
        seed: seed of the jitter of training times.
    """

    def __init__(self, world: FittedWorld, seed: int) -> None:
        simulation = Simulation()
        self._streams = Streams(seed)
        self._world = world
        self.env = simulation.env
        transport = Transport(world.protocol, self._streams)
        server = world.server
        self._network = Star(
            simulation, world.down, world.up, world.latency, server["down"], server["up"], transport
        )
        # standard deviation of the logarithm of a lognormal variable whose coefficient of variation
        # is the jitter
        self._sigma = math.sqrt(math.log1p(world.jitter**2))

    def send(self, client: int, direction: Direction, size: float) -> Event:
        """Start to send a message of a logged task between the server and a client.

        Args:
            client: index of the client.
            direction: ``down`` to the client, ``up`` to the server.
            size: size of the message (bytes).

        Returns:
            SimPy event that is triggered at the arrival.
        """
        arrival = self.env.event()

        def arrive() -> None:
            arrival.succeed()

        sender, receiver = ends(client, direction)
        self._network.send(sender, receiver, size, arrive)
        return arrival

    def carry_out(self, tasks: Tasks, task: int) -> ProcessGenerator:
        """Run a task's download, training and upload, as a SimPy process.

        Steps that the log lacks are skipped.

        Args:
            tasks: tasks of the log.
            task: index of the task.
        """
        client = int(tasks.client[task])
        epochs = int(tasks.epochs[task])
        download_bytes = float(tasks.down.amount[task])
        samples = float(tasks.train.amount[task])
        upload_bytes = float(tasks.up.amount[task])
        if not math.isnan(download_bytes):
            yield self.send(client, "down", download_bytes)
        if not math.isnan(samples):
            epoch_s = samples / epochs / float(self._world.speed[client])
            epochs_at_mean_speed = sum(self._jitter(task, epoch) for epoch in range(epochs))
            yield self.env.timeout(epoch_s * epochs_at_mean_speed)
        if not math.isnan(upload_bytes):
            yield self.send(client, "up", upload_bytes)

    def _jitter(self, task: int, epoch: int) -> float:
        """Return the random factor on the duration of an epoch, which has a mean of 1.

        Args:
            task: index of the task.
            epoch: index of the epoch in the task.
        """
        if not self._sigma:
            return 1.0
        normal = self._streams.normal("world/jitter", task, epoch)
        # - sigma^2 / 2, so that the mean of the factors is 1
        return math.exp(self._sigma * normal - self._sigma**2 / 2)


def replay_transfers(
    world: FittedWorld, direction: Direction, steps: Steps, client: Ints
) -> Floats:
    """Replay downloads or uploads of a log over fitted links, and return their durations.

    The fit compares these durations with the logged durations. Each transfer begins at its time in
    the log, or when the client's previous transfer has ended, whichever is later.

    Args:
        world: the fitted world.
        direction: direction of the transfers.
        steps: transfers of a log.
        client: index of each transfer's client; int64 [steps].

    Returns:
        Durations (s); float64 [steps].
    """
    replay = _Replay(world, 0)
    durations = np.zeros(len(client))
    env = replay.env

    def send_all(client_index: int) -> ProcessGenerator:
        for step in np.flatnonzero(client == client_index).tolist():
            yield env.timeout(max(0.0, float(steps.start[step]) - env.now))
            start = env.now
            yield replay.send(client_index, direction, float(steps.amount[step]))
            durations[step] = env.now - start

    for client_index in np.unique(client).tolist():
        env.process(send_all(client_index))
    env.run()
    return durations


def replay_rounds(
    world: FittedWorld, tasks: Tasks, cohorts: Sequence[Ints], seed: int = 0
) -> Floats:
    """Replay rounds of a log with fitted speeds and links, and return their durations.

    The rounds are replayed one after another. All tasks of a round begin at the same time.

    Args:
        world: the fitted world.
        tasks: tasks of the log.
        cohorts: for each round, the indices of its tasks in ``tasks``.
        seed: seed of the jitter.

    Returns:
        Durations of the rounds (s); float64 [cohorts].
    """
    replay = _Replay(world, seed)
    env = replay.env
    round_ends = [0.0]

    def replay_all() -> ProcessGenerator:
        for cohort in cohorts:
            yield env.all_of(
                [env.process(replay.carry_out(tasks, task)) for task in cohort.tolist()]
            )
            round_ends.append(env.now)

    env.process(replay_all())
    env.run()
    return np.diff(round_ends)


def measure_update_rate(world: FittedWorld, tasks: Tasks, at_work: int, seed: int = 0) -> float:
    """Simulate an asynchronous server, and return how many updates it receives per second.

    A client that ends its task is replaced by a random idle client. The first updates, three for
    each client at work, are not counted, because all clients at work begin at the same time.

    Args:
        world: the fitted world.
        tasks: one task of each client, in order of clients, which the client repeats.
        at_work: count of clients that work at the same time.
        seed: seed of the draws of clients and of the jitter of training times.
    """
    replay = _Replay(world, seed)
    ends = list[float]()  # end times of all tasks so far (s)
    draws = Streams(seed).generator("world/calibrate")
    idle = list(range(len(tasks)))
    warm_up = 3 * at_work  # count of updates before the measurement

    # ``at_work`` such processes run, each of which lets one client work at a time
    def work() -> ProcessGenerator:
        while len(ends) <= warm_up + _UPDATES:
            task = idle.pop(int(draws.integers(len(idle))))
            yield from replay.carry_out(tasks, task)
            ends.append(replay.env.now)
            idle.append(task)

    for _ in range(at_work):
        replay.env.process(work())
    replay.env.run()
    return _UPDATES / (ends[warm_up + _UPDATES] - ends[warm_up])


class Prediction(NamedTuple):
    """Comparison of a log's rounds with their replay in a fitted world (speeds and links).

    If the server is asynchronous, a round is the time between two model versions.

    Attributes:
        held_out: whether the round was left out of the fit, to test it; bool [rounds].
        measured: durations in the log (s); float64 [rounds].
        predicted: predicted durations (s), NaN if a round cannot be predicted; float64 [rounds].
        updates: updates per second, measured and predicted; None if the server is synchronous.
    """

    held_out: Flags
    measured: Floats
    predicted: Floats
    updates: tuple[float, float] | None

    def summary(self, source: str) -> Iterator[str]:
        """Yield lines of text for users on how far predictions are from measured durations.

        Args:
            source: words that tell how the predictions were made, such as ``with each client's own
                values``. They are a part of each line.
        """
        if self.updates is not None:
            measured, predicted = self.updates
            name = "held out" if self.held_out.any() else "fitted"
            rates = f"{measured:.4g} updates/s measured, {predicted:.4g} predicted"
            yield f"{name:<10} {rates} {source}: error {abs(predicted / measured - 1):.1%}"
            return
        is_predicted = ~np.isnan(self.predicted)
        if not is_predicted.any():
            yield (
                f"fit        not known {source}: no round can be predicted, since each has a task "
                "that did not come to its end"
            )
        masks = {
            "held out": is_predicted & self.held_out,
            "fitted": is_predicted & ~self.held_out,
        }
        for name, mask in masks.items():
            if not mask.any():
                continue
            errors = np.abs(self.predicted[mask] / self.measured[mask] - 1)
            means = (
                f"{self.measured[mask].mean():.4g} s on the mean, "
                f"{self.predicted[mask].mean():.4g} s predicted"
            )
            error = (
                f"{errors.mean():.1%} on the mean, {np.percentile(errors, 95):.1%} at the 95th "
                "percentile"
            )
            yield f"{name:<10} {len(errors)} rounds of {means} {source}: error {error}"


def choose_held_out(log: Log) -> Flags:
    """Choose the rounds that are left out of the fit, to test its predictions.

    Every third round is chosen. With an asynchronous server, tasks for several model versions
    overlap in time, so the last third of the versions is chosen.

    Returns:
        Whether each round is held out; bool [rounds].
    """
    count = len(log.rounds)
    numbers = np.arange(count)
    if log.synchronous:
        return np.asarray(numbers % 3 == 2)
    return np.asarray(numbers >= count - count // 3)


def predict(log: Log, is_held_out: Flags, worlds: Sequence[FittedWorld]) -> Prediction:
    """Predict the durations of a log's rounds by simulation, to compare them with the log.

    The tasks of each round are simulated in each of several worlds, which have the clients' fitted
    speeds and links; durations are means over the worlds. If the server is asynchronous, updates
    per second are predicted instead, and all durations between model versions follow from this
    rate.

    Args:
        log: the log.
        is_held_out: whether each round is held out of the fit; bool [rounds].
        worlds: the fitted worlds; the seed of the jitter in a world is its index.
    """
    if log.synchronous:
        return _predict_rounds(log, is_held_out, worlds)
    return _predict_updates(log, is_held_out, worlds)


def _predict_rounds(log: Log, is_held_out: Flags, worlds: Sequence[FittedWorld]) -> Prediction:
    """Predict the durations of a synchronous server's rounds by simulation.

    The duration of a round is the mean over the worlds, and NaN if one of its tasks did not end.

    Args:
        log: the log.
        is_held_out: whether each round is held out of the fit; bool [rounds].
        worlds: the fitted worlds (clients' speeds and links).
    """
    tasks = log.tasks
    has_task_ended = has_ended(tasks)
    cohorts = [np.flatnonzero(tasks.number == number) for number in log.rounds.number]
    has_cohort_ended = np.array(
        [len(cohort) > 0 and has_task_ended[cohort].all() for cohort in cohorts]
    )
    ended_cohorts = list(compress(cohorts, has_cohort_ended))
    durations = []
    for seed, world in enumerate(worlds):
        durations.append(replay_rounds(world, tasks, ended_cohorts, seed))
    predicted = np.full(len(cohorts), np.nan)
    predicted[has_cohort_ended] = np.mean(durations, axis=0)
    return Prediction(is_held_out, log.rounds.end - log.rounds.start, predicted, None)


def _predict_updates(log: Log, is_held_out: Flags, worlds: Sequence[FittedWorld]) -> Prediction:
    """Predict the updates per second of an asynchronous server by simulation.

    All durations between two model versions are predicted to be equal: the usual count of updates
    in a version, divided by this rate.

    Args:
        log: the log.
        is_held_out: whether each version is held out of the fit; bool [versions].
        worlds: the fitted worlds (clients' speeds and links).
    """
    # the measured rate is of the held-out versions, or of all if none is held out
    is_scored = is_held_out if is_held_out.any() else ~is_held_out
    scored = log.rounds[is_scored]
    start = scored.start.min()
    end = scored.end.max()
    ended_tasks = log.tasks[has_ended(log.tasks)]
    ends = ended_tasks.up.end
    measured = float(np.sum((ends > start) & (ends <= end)) / (end - start))
    # the first task of each client
    first_tasks = ended_tasks[np.unique(ended_tasks.client, return_index=True)[1]]
    rates = []
    for seed, world in enumerate(worlds):
        rates.append(measure_update_rate(world, first_tasks, log.at_once, seed))
    rate = float(np.mean(rates))
    predicted = np.full(len(is_held_out), log.per_version / rate)
    durations = log.rounds.end - log.rounds.start
    return Prediction(is_held_out, durations, predicted, (measured, rate))
