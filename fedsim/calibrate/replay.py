"""What a fitted world would have made of the tasks of a log: the network of the simulator itself, without a strategy."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Floats
from fedsim.calibrate.log import Steps, Tasks
from fedsim.simulation import Simulation
from fedsim.streams import Streams
from fedsim.world.network import Direction, Star, ends
from fedsim.world.network.protocol import Fluid, Protocol, Transport


class Links(NamedTuple):
    """The links of a star.

    Attributes:
        down, up: of the clients, bytes/s, [clients].
        latency: s, [clients].
        server: of the server by direction, bytes/s, infinity allowed.
        protocol: by which messages go over them.
    """

    down: Floats
    up: Floats
    latency: Floats
    server: dict[Direction, float]
    protocol: Protocol = Fluid()

    def build(self, simulation: Simulation, streams: Streams) -> Star:
        """The network; the protocol's weights are drawn from ``streams``."""
        server, transport = self.server, Transport(self.protocol, streams)
        return Star(simulation, self.down, self.up, self.latency, server["down"], server["up"], transport)


class World(NamedTuple):
    """What is fitted to a log.

    Attributes:
        speed: samples/s, [clients].
        jitter: coefficient of variation of an epoch's time.
        links: the network.
    """

    speed: Floats
    jitter: float
    links: Links


def transfers(links: Links, way: Direction, steps: Steps, client: NDArray[np.int64]) -> Floats:
    """How long the downloads or uploads of a log would take if each began when it did (s), [steps].

    One that would begin before the one before it of the same client is over waits for that.
    """
    simulation = Simulation()
    network = links.build(simulation, Streams(0))
    took = np.zeros(len(client))
    waiting: dict[int, deque[int]] = {}

    def begin(step: int) -> None:
        own = waiting.setdefault(int(client[step]), deque())
        own.append(step)
        if len(own) == 1:
            send(step)

    def send(step: int) -> None:
        device, start = int(client[step]), simulation.now

        def done() -> None:
            took[step] = simulation.now - start
            waiting[device].popleft()
            if waiting[device]:
                send(waiting[device][0])

        network.send(*ends(device, way), float(steps.amount[step]), done)

    for step, start in enumerate(steps.start.tolist()):
        simulation.wake(("begin", step), start, lambda step=step: begin(step))  # type: ignore[misc]
    asyncio.run(simulation.run())
    return took


class _Play:
    """Tasks that are carried out in a fitted world."""

    def __init__(self, world: World, tasks: Tasks, seed: int) -> None:
        self.simulation = Simulation()
        self._world, self._tasks, self._streams = world, tasks, Streams(seed)
        self._network = world.links.build(self.simulation, self._streams)
        self._sigma = math.sqrt(math.log1p(world.jitter**2))

    def carry_out(self, task: int, done: Callable[[], None]) -> None:
        """Download, train and upload, now; ``done`` is called at the end."""
        client, tasks = int(self._tasks.client[task]), self._tasks

        def train() -> None:
            samples, epochs = float(tasks.train.amount[task]), int(tasks.epochs[task])
            if math.isnan(samples):
                return send("up", done)
            pace = samples / epochs / float(self._world.speed[client])
            seconds = pace * sum(self._jitter(task, epoch) for epoch in range(epochs))
            self.simulation.wake(("train", task), self.simulation.now + seconds, lambda: send("up", done))
            return None

        def send(way: Direction, then: Callable[[], None]) -> None:
            size = float((tasks.down if way == "down" else tasks.up).amount[task])
            if math.isnan(size):
                self.simulation.soon(then)
            else:
                self._network.send(*ends(client, way), size, then)

        send("down", train)

    def _jitter(self, task: int, epoch: int) -> float:
        if not self._sigma:
            return 1.0
        return math.exp(self._sigma * self._streams.normal("world/jitter", task, epoch) - self._sigma**2 / 2)


def rounds(world: World, tasks: Tasks, cohorts: Sequence[NDArray[np.int64]], seed: int = 0) -> Floats:
    """How long rounds take in which the clients of all these tasks begin at once (s), [cohorts].

    Args:
        world: where.
        tasks: what they do.
        cohorts: which tasks each round has.
        seed: of the jitter and of the shares of links.
    """
    play = _Play(world, tasks, seed)
    took: list[float] = []

    def begin() -> None:
        if len(took) == len(cohorts):
            return
        start, still = play.simulation.now, set(cohorts[len(took)].tolist())

        def end(task: int) -> None:
            still.remove(task)
            if not still:
                took.append(play.simulation.now - start)
                begin()

        for task in cohorts[len(took)].tolist():
            play.carry_out(task, lambda task=task: end(task))  # type: ignore[misc]

    play.simulation.soon(begin)
    asyncio.run(play.simulation.run())
    return np.array(took)


def updates_per_s(world: World, tasks: Tasks, at_work: int, updates: int, seed: int = 0) -> float:
    """How many updates a second come from so many clients at work, of which each that is through is replaced at once.

    Args:
        world: where.
        tasks: one of each client, in their order.
        at_work: how many clients work at any time; who begins is drawn among those that do not.
        updates: over so many it is counted, when three times as many as are at work have gone by.
        seed: of the jitter and the draws.
    """
    play, ends, choices = _Play(world, tasks, seed), list[float](), Streams(seed)
    idle = list(range(len(tasks.client)))
    before, drawn = 3 * at_work, 0

    def begin() -> None:
        nonlocal drawn
        task = idle.pop(int(choices.uniform("world/calibrate", 0, drawn) * len(idle)))
        drawn += 1
        play.carry_out(task, lambda: end(task))

    def end(task: int) -> None:
        ends.append(play.simulation.now)
        idle.append(task)
        if len(ends) <= before + updates:
            begin()

    for _ in range(at_work):
        play.simulation.soon(begin)
    asyncio.run(play.simulation.run())
    return updates / (ends[before + updates] - ends[before])
