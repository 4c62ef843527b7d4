"""Base of strategies with tiers of devices, by data size or by latency."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.federation import TaskEnd
from fedsim.learning.refs import Ref
from fedsim.strategies.base import P, Strategy
from fedsim.strategies.state import State


@dataclass
class TieredState(State):
    """State of a strategy with tiers on the server: the model, measurements and tiers of devices.

    A tier is a class of devices of similar data size or latency.

    Attributes:
        model: The global model.
        first_tasks: Open first tasks of devices, task ID -> time (s) at which the device was asked.
        figures: Data size (samples) or latency (s) of each device; None before the end of its
            first task.
        cuts: Borders of the tiers, in the form that the subclass's ``tiers_of`` reads; None until
            all reachable devices are measured.
        tier: Tier index of each device; None before the end of its first task.
        members: Device IDs of each tier.
        dropped: IDs of the devices with too little memory for the training.
        away: Count of unavailable devices that are measured when they return.
    """

    model: Ref = field(init=False)
    first_tasks: dict[int, float] = field(default_factory=dict)
    figures: list[float | None] = field(default_factory=list)
    cuts: Any = None
    tier: list[int | None] = field(default_factory=list)
    members: list[list[int]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    away: int = 0


class Tiered(Strategy[P]):
    """Base of strategies that assign each device to a tier, by its data size or its latency.

    The first task of a device measures it: the device reports its count of samples, or does a whole
    training, whose duration is the latency. Devices that are measured later than the first ones are
    assigned to the existing tiers.

    A subclass implements two methods. ``make_tiers`` is called with the IDs of the measured devices
    when all reachable devices are measured. It sets ``state.cuts``, the borders of the tiers,
    assigns these devices to their tiers (``_assign_tiers``), and starts the training. ``tiers_of``
    returns the tier index of each of several measured devices.
    """

    state: TieredState

    make_tiers: Callable[[list[int]], None]
    tiers_of: Callable[[Sequence[int]], list[int]]

    def _measure_all(self, tiers: int) -> None:
        """Measure each idle device by its first task, and all other devices when they return.

        Args:
            tiers: count of tiers.
        """
        clients = self.server.clients
        devices = self.server.devices
        self.state.figures = [None] * devices  # data size or latency by device; None: unknown
        self.state.tier = [None] * devices  # index of each device's tier
        self.state.members = [[] for _ in range(tiers)]  # device IDs of each tier
        idle = set(clients.idle_devices())
        for device in range(devices):
            if device in idle:
                self._measure(device)
            elif clients.joined(device):
                self._measure_on_return(device)
        self._make_tiers_if_measured()

    def _measure_on_return(self, device: int) -> None:
        if self.server.clients.await_return(device):
            self.state.away += 1

    def _measure(self, device: int, job: str = "profile") -> None:
        contents = {"profiling": self.state.model} if job == "profile" else {}
        task = self.server.ask(device, contents, job)
        self.state.first_tasks[task] = self.server.now

    async def on_return(self, device: int) -> None:
        self.state.away -= 1
        self._measure(device)

    async def on_arrival(self, device: int) -> None:
        self._measure(device)

    def _is_first_task(self, task: int) -> bool:
        return task in self.state.first_tasks

    def _end_first_task(self, message: TaskEnd) -> None:
        """Store the data size or latency that a device's first task has measured.

        The device is assigned to a tier if the tiers have been made. A device with too little
        memory for the task is dropped. A lost task is repeated when the device returns. If no first
        task is open any more, the tiers are made.

        Args:
            message: the ended task.
        """
        state = self.state
        device = message.device
        asked_at = state.first_tasks.pop(message.task)
        if message.outcome == "done":
            # If tiers are by size, the answer has the size; otherwise the latency is measured.
            latency_s = self.server.now - asked_at
            state.figures[device] = float(message.contents.get("size-report", latency_s))
            if state.cuts is not None:  # the tiers have been made
                self._assign_tiers([device])
        elif message.outcome == "memory":
            state.dropped.append(device)
            self.server.emit("tier-drop", device=device)
        else:
            self._measure_on_return(device)
        self._make_tiers_if_measured()

    def _make_tiers_if_measured(self) -> None:
        """Make the tiers and start the training, if no first task is open and no tiers exist."""
        if self.state.cuts is not None or self.state.first_tasks:
            return
        figures = self.state.figures
        self.make_tiers([device for device, figure in enumerate(figures) if figure is not None])

    def _assign_tiers(self, devices: Sequence[int]) -> None:
        for device, tier in zip(devices, self.tiers_of(devices), strict=True):
            self.state.tier[device] = tier
            self.state.members[tier].append(device)

    def group_of(self, device: int) -> int | None:
        return self.state.tier[device]


def equal_width_bins(values: NDArray[np.float64], tiers: int) -> tuple[float, float]:
    """Cut the range from the smallest to the largest value into bins of equal width.

    Args:
        values: sizes (samples) or latencies (s) of devices, float64 [n].
        tiers: count of bins.

    Returns:
        The lower border of the first bin, and the width of each bin.
    """
    low = float(values.min())
    high = float(values.max())
    return low, (high - low) / tiers


def tier_numbers(
    values: NDArray[np.float64], tiers: int, bins: tuple[float, float]
) -> NDArray[np.int64]:
    """Return the tier of each value, if tiers are bins of equal width.

    A value on the border of two tiers belongs to the upper tier. A value outside all bins belongs
    to the nearest tier.

    Args:
        values: sizes (samples) or latencies (s) of devices, float64 [n].
        tiers: P, the count of tiers.
        bins: the lower border of the first bin, and the width of each bin.

    Returns:
        Tier indices from 0 to P - 1, int64 [n].
    """
    low, width = bins
    if width == 0:  # all values were equal when the bins were made
        return np.where(values > low, tiers - 1, 0).astype(np.int64)
    return np.clip(np.floor((values - low) / width), 0, tiers - 1).astype(np.int64)
