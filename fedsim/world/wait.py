"""Where a running task stands, and the gate at which it waits: a step ends exactly once, by what opens its gate first.

That may be its own completion, the device vanishing, or the server. Where completion and disconnection fall on the same instant
the step counts as complete (and the next one is lost at once). The task of a device that vanishes for good is not lost but
left, that of one whose battery is flat ends ``battery``; all else is the same.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import simpy
from numpy.typing import NDArray

from fedsim.simulation import Simulation, Alarm
from fedsim.world.network.flow import Flow
from fedsim.world.task import Cause, Task

Ending = Cause | None
"""How a step ended: None when it was carried out."""


@dataclass(slots=True)
class Wait:
    """What a running task waits for.

    Attributes:
        task: which.
        fields: what every record of it carries.
        off: when its device vanishes next (s), as of its begin.
        dry: when its battery is flat (s), as far as that is known of the running step.
        closed: whether the step's gate is closed: the task waits at it. Not before its first step has begun.
        alarm: opens the gate: the end of a computation, or the instant at which the device vanishes.
        flow: the transfer whose end opens the gate.
        slot: the place that the task's message has, or waits for, where messages queue.
    """

    task: Task
    fields: dict[str, Any]
    off: float
    dry: float = math.inf
    closed: bool = False
    alarm: Alarm | None = None
    flow: Flow | None = None
    slot: simpy.resources.resource.Request | None = None


class Gate:
    """Opens the gates of tasks.

    Args:
        simulation: the clock.
        departure: when each device leaves for good (s), float64 [devices].
        go_on: what happens then, in the same instant, after what is due in it already.
    """

    def __init__(self, simulation: Simulation, departure: NDArray[Any], go_on: Callable[[Wait, Ending], None]) -> None:
        self._simulation, self._departure, self._go_on = simulation, departure, go_on

    def open(self, wait: Wait, ending: Ending) -> None:
        """Let a task go on, if nothing has done so yet."""
        if wait.closed:
            wait.closed = False
            self._simulation.soon(partial(self._go_on, wait, ending))

    def loss(self, wait: Wait, off: float) -> Cause:
        """What it means that the device cannot be reached from ``off`` (s) on."""
        if off >= self._departure[wait.task.device]:
            return "left"
        return "battery" if off >= wait.dry else "lost"
