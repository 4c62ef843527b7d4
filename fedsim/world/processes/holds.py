"""Effects of processes on the world, each of which lasts until its process ends it.

Effects of several processes are combined. A link has the least of the rates that processes set, a
device the product of its speed factors. A device is off, or an edge server lost, while at least one
process has such an effect on it.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Literal, Protocol

from fedsim.common.errors import CheckpointError
from fedsim.world.messages import Messages
from fedsim.world.network.flows import Network
from fedsim.world.processes.activity import ComputeActivity
from fedsim.world.task_runner import TaskRunner

Effect = Literal["link", "pace", "off", "edge"]
"""Kind of effect: rate of a link, pace of a device, device switched off, or edge server lost."""

Thing = tuple[Effect, str | int]
"""Kind of effect, and the name of the link or the index of the device or edge server."""


class Hold(ExitStack):
    """Effect of a process on the world, such as a slower link, which lasts until it is ended.

    ``World.limit``, ``slow``, ``off`` and ``lose`` return a hold. ``end()`` or the end of a
    ``with`` block ends the effect.
    """

    def end(self) -> None:
        """End the effect; effects of other holds on the link, device or edge server remain."""
        self.close()


class Effects(Protocol):
    """Interface of ``Processes`` that ``Holds`` uses: the parts of the world, and its records.

    Attributes:
        network, tasks, messages: the parts of the world that effects change.
        silent: whether no record is emitted, as while a resumed run is restored.
    """

    network: Network
    tasks: TaskRunner
    messages: Messages
    silent: bool

    def emit(self, kind: str, **fields: object) -> None:
        """Record an event about an effect or an activity of a process, unless ``silent`` is true.

        Args:
            kind: kind of the record.
            fields: values of the record by name.
        """

    def computations_on(self, device: int) -> list[ComputeActivity]:
        """Return a device's running computations that processes of the world, not tasks, began."""

    def switch_on(self, device: int) -> None:
        """Report that a device is switched on, to the server and to processes that wait for it."""


class Holds:
    """Register of the effects of all processes, such as slower links and switched-off devices.

    Effects of several processes on one link or device are combined: a link has the lowest of its
    limits, and a device's speed is multiplied by all factors. The result is applied to the network,
    the tasks and the messages.

    Args:
        processes: the manager of the processes.
    """

    def __init__(self, processes: Effects) -> None:
        self._processes = processes
        self._network = processes.network
        self._tasks = processes.tasks
        self._messages = processes.messages
        self._values: dict[Thing, list[float]] = {}  # values of the holds on each thing

    def add(self, effect: Effect, keys: Sequence[str | int], value: float) -> Hold:
        """Begin an effect on links, devices or edge servers now.

        Args:
            effect: ``link`` (rate of links), ``pace`` (speed of devices), ``off`` (devices switched
                off) or ``edge`` (edge servers lost).
            keys: names of links, or indices of devices or edge servers.
            value: rate of the links (bytes/s), or factor of the devices' speed; 1 for ``off`` and
                ``edge``.

        Returns:
            The hold, which ends the effect.
        """
        for key in keys:
            self._values.setdefault((effect, key), []).append(value)
            self._apply(effect, key)
        hold = Hold()
        hold.callback(partial(self._end, effect, keys, value))
        return hold

    def _end(self, effect: Effect, keys: Sequence[str | int], value: float) -> None:
        for key in keys:
            values = self._values[effect, key]
            values.remove(value)
            if not values:
                del self._values[effect, key]
            self._apply(effect, key)

    def _apply(self, effect: Effect, key: str | int) -> None:
        """Apply the combined effects of all processes to a link, device or edge server.

        A change is recorded as an event. While a run is restored, nothing is done.

        Args:
            effect: kind of the effect.
            key: name of the link, or index of the device or edge server.
        """
        if self._processes.silent:
            return
        values = self._values.get((effect, key), [])
        if effect == "link":
            self._limit_link(str(key), values)
        elif effect == "pace":
            self._set_pace(int(key), values)
        elif effect == "edge":
            self._lose_edge(int(key), is_lost=bool(values))
        else:
            self._switch(int(key), is_off=bool(values))

    def _limit_link(self, link: str, values: list[float]) -> None:
        """Limit a link to the least rate in ``values`` (bytes/s); end its limit if there is none."""
        rate = min(values, default=None)
        if self._network.limits.get(link) == rate:
            return
        self._network.limit(link, rate)
        present_rate = rate
        if present_rate is None:
            present_rate = self._network.built_rate(link)
            traces = self._network.traces
            if traces is not None and traces.of(link) is not None:
                present_rate = math.inf  # only the link's trace limits the rate
        # records are JSON, which has no infinity
        finite_rate = None if present_rate == math.inf else present_rate
        self._processes.emit("link-rate", link=link, rate=finite_rate)

    def _set_pace(self, device: int, values: list[float]) -> None:
        pace = math.prod(values)
        computing = self._tasks.computing
        if computing.paces.get(device, 1.0) == pace:
            return
        computations = self._processes.computations_on(device)
        computing.set_pace(device, pace)
        self._processes.emit("pace", device=device, factor=pace)
        for computation in computations:
            computation.set_pace(pace)

    def _lose_edge(self, edge: int, *, is_lost: bool) -> None:
        if is_lost and edge not in self._messages.lost:
            self._processes.emit("edge-off", edge=edge)
            self._messages.lose_edge(edge)
            self._tasks.lose_edge(edge)
        elif not is_lost:
            self._processes.emit("edge-on", edge=edge)
            self._messages.lost.discard(edge)

    def _switch(self, device: int, *, is_off: bool) -> None:
        """Switch a device off unless it is off, or on again when its last hold has ended."""
        if is_off and device not in self._tasks.switched_off:
            computations = self._processes.computations_on(device)
            self._processes.emit("switch-off", device=device)
            self._tasks.switch_off(device)
            for computation in computations:
                computation.lose()
        elif not is_off:
            self._processes.emit("switch-on", device=device)
            self._tasks.switched_off.discard(device)
            self._processes.switch_on(device)

    def check_restored(self) -> None:
        """Check that restored processes have begun all effects again that the snapshot has.

        Raises:
            CheckpointError: the effects differ.
        """
        restored: dict[Thing, float] = {}
        for thing, values in self._values.items():
            value = min(values) if thing[0] == "link" else math.prod(values)
            if thing[0] != "pace" or value != 1.0:  # a pace of 1 has no effect
                restored[thing] = value
        saved = self._present_effects()
        if restored != saved:
            raise CheckpointError(
                "the processes of the world do not repeat their effects: at the checkpoint they "
                f"were {saved}, and after the resume they are {restored}; allowed are processes "
                "whose effects follow from the world and their saved state alone"
            )

    def _present_effects(self) -> dict[Thing, float]:
        """Return the effects that are in force in the network, the tasks and the messages.

        Returns:
            (kind of effect, link, device or edge server) -> rate of the link (bytes/s), factor of
            the device's speed, or 1.
        """
        present: dict[Thing, float] = {}
        for link, rate in self._network.limits.items():
            present["link", link] = rate
        for device, pace in self._tasks.computing.paces.items():
            present["pace", device] = pace
        for device in self._tasks.switched_off:
            present["off", device] = 1.0
        for edge in self._messages.lost:
            present["edge", edge] = 1.0
        return present
