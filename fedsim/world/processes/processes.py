"""Starts the processes of a run, and brings them back to where they were."""

import math
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import simpy

from fedsim.errors import CheckpointError, FedsimError, ScenarioError, SimulationError
from fedsim.world.processes.world import ProcessContext, World

if TYPE_CHECKING:
    from fedsim.world.processes.base import Process

_OF_PROCESSES = {"process", "compute", "network", "latency", "cut"}  # alarms, where nobody else sends


class Processes:
    """Starts the processes of a run; ``ScenarioError`` if one does not fit this world.

    Attributes:
        world: the face of the world for processes that are started from Python.
    """

    def __init__(self, specs: "Sequence[Process]", context: ProcessContext) -> None:
        self._specs, self._context, self._simulation = specs, context, context.simulation
        *self._worlds, self.world = [World(context, number) for number in range(len(specs) + 1)]
        for number, (spec, world) in enumerate(zip(specs, self._worlds, strict=True)):
            try:
                spec.check(world)
            except SimulationError as error:
                raise ScenarioError(f"world.processes.{number} ({spec.kind!r}): {error}") from None
        if specs:
            self._simulation.idle = self._nothing_left
        self._simulation.at_end(self._end)
        self._start()

    def _start(self) -> list[simpy.Process]:
        return [self._simulation.process(self._play(*each)) for each in zip(self._specs, self._worlds, strict=True)]

    def _play(self, spec: "Process", world: World) -> Generator[Any, Any, Any]:
        """A process whose mistakes are told by file and line."""
        try:
            yield from spec.run(world)
        except CheckpointError as error:
            raise CheckpointError(f"the process {spec.kind!r} {error}") from None
        except FedsimError as error:
            raise SimulationError(f"the process {spec.kind!r} failed at {world.now!r} s: {error}") from error
        except Exception as error:
            at = extract_tb(error.__traceback__)[-1]
            where = f"{Path(at.filename).name}:{at.lineno}"
            told = f"the process {spec.kind!r} failed at {world.now!r} s in {where}: {type(error).__name__}: {error}"
            raise SimulationError(told) from error

    def _nothing_left(self) -> bool:
        """Whether nobody works, nobody is held off, and nothing is to come but what processes do: the run is over then."""
        context = self._context
        gone = context.tasks.off or context.messages.lost
        busy = context.tasks.running or len(context.messages.under_way) > len(context.sending)
        return not busy and not gone and set(self._simulation.expected()) <= _OF_PROCESSES

    def _end(self) -> None:
        self._context.silent = True

    # Snapshots, between two instants.

    def snapshot(self) -> dict[str, Any]:
        return {
            "states": [world.state for world in self._worlds],
            "sending": [(number, sending.call, sending.message.id) for sending, number in self._context.sending.items()],
            "computing": [(number, computing.saved()) for computing, number in self._context.computing.values()],
            "computed": self._context.computed,
        }

    def restore(self, state: Mapping[str, Any], alarms: Sequence[tuple[str, int, float]]) -> None:
        """Bring each process to where it was, when all else is: what it had begun it takes up. Alarms follow by ``rearm``.

        ``CheckpointError``: a process does not come to hold what was held, or to wait for what it waited for.
        """
        context = self._context
        for world, saved in zip(self._worlds, state["states"], strict=True):
            world.state = dict(saved)
        context.computed = state["computed"]
        for number, call, message in state["sending"]:
            context.begun.setdefault((number, call), []).append(context.messages.under_way[message])
        for number, saved in state["computing"]:
            context.begun.setdefault((number, saved[0]), []).append(context.computing_of(number, *saved))
        context.silent = context.restoring = True
        self._start()
        while self._simulation.env.peek() <= self._simulation.now:
            self._simulation.env.step()  # the beginning of each process, up to its first wait
        context.silent = context.restoring = False
        context.begun.clear()
        due = Counter((number, when) for kind, number, when in alarms if kind == "process")
        for (number, when), events in context.asleep.items():
            if len(events) > due[number, when]:
                kind = self._specs[number].kind
                raise CheckpointError(f"the process {kind!r} does not come to where it was: it had not waited until {when!r} s")
        held: dict[str, dict[Any, float]] = {"link": {}, "pace": {}, "off": {}, "edge": {}}
        for (what, key), values in context.held.items():
            value = min(values) if what == "link" else math.prod(values)
            if what != "pace" or value != 1.0:
                held[what][key] = value
        there = {"link": context.network.limits, "pace": context.tasks.paces}
        there |= {"off": dict.fromkeys(context.tasks.off, 1.0), "edge": dict.fromkeys(context.messages.lost, 1.0)}
        if held != there:
            raise CheckpointError(f"the processes of the world do not come to where they were: they held {there}, now {held}")

    def rearm(self, kind: str, number: int, when: float) -> None:
        """Set an alarm that was there when the snapshot was taken: a ``process`` wakes up, or the end of a ``compute``."""
        if kind == "compute":
            self._context.computing[number][0].arm()
        else:
            waiting = self._context.asleep.get((number, when))
            self._context.wake(number, when, waiting.pop(0) if waiting else self._simulation.env.event())
