"""Data that change while a run goes on: when a shift happens, and who hears of it.

What a shift does to the data is a rule of ``fedsim.data.shifts``; here it meets the clock, the devices and the learner. The
world decides alone: the draws come from its own streams, so every strategy meets the same shifts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.data.shifts import ShiftSpec
from fedsim.simulation import Simulation, on_grid
from fedsim.streams import Streams

if TYPE_CHECKING:
    from fedsim.data.federated import FederatedData
    from fedsim.learning import Learner
    from fedsim.world.life import TaskRunner
    from fedsim.world.population import Population


@dataclass(eq=False)
class Drift:
    """Carries out a shift rule at its rounds or its times.

    Attributes:
        spec: the rule and its schedule.
        data: what it changes.
        simulation: the clock.
        streams: the run's streams; the rule draws from ``world/drift``.
        population: told of new sizes.
        learner: told what to test from now on.
        tasks: knows who has been selected before.
        present: who has arrived and not left, bool [devices]; None when that is everybody.
        on_shift: told of every device whose data have changed.
    """

    spec: ShiftSpec
    data: "FederatedData"
    simulation: Simulation
    streams: Streams
    population: "Population"
    learner: "Learner"
    tasks: "TaskRunner"
    present: Callable[[], NDArray[np.bool_] | None]
    on_shift: Callable[[int], None]

    def __post_init__(self) -> None:
        self._candidates_before: list[NDArray[np.int64]] = []
        self._begun = -1
        self._arm(0)

    def begin_round(self, number: int) -> None:
        """Round ``number`` begins; a second call for the same round does nothing."""
        if number > self._begun:
            self._begun = number
            if self.spec.at.has_round(number):
                self._shift()

    def _arm(self, index: int) -> None:
        """Wake at the schedule's next time."""
        when = self.spec.at.time(index)
        if when is not None:
            self.simulation.wake(("drift", index), on_grid(when), lambda: self._ring(index))

    def _ring(self, index: int) -> None:
        self._shift()
        self._arm(index + 1)

    def _shift(self) -> None:
        occasion, candidates = len(self._candidates_before), self._candidates()
        self._candidates_before.append(candidates)
        changes = self.spec.apply(self.data, occasion, candidates, self.streams)
        for change in changes:
            shard = self.data.shard(change.device, change.version)
            self.population.shift(change.device, change.version, len(shard.train))
            self.learner.shift(change.device, change.version)
            partner = {} if change.partner is None else {"partner": change.partner}
            self.simulation.emit("shift", device=change.device, what=self.spec.kind, occasion=occasion, **partner)
        for change in changes:
            self.on_shift(change.device)

    def snapshot(self) -> dict[str, Any]:
        """Devices that might shift on each occasion so far: all else follows from these and the seed."""
        return {"begun": self._begun, "candidates": self._candidates_before}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Let the same happen to the data again, unheard. Alarms follow by ``rearm``."""
        self._begun, self._candidates_before = state["begun"], state["candidates"]
        for occasion, candidates in enumerate(self._candidates_before):
            for change in self.spec.apply(self.data, occasion, candidates, self.streams):
                self.learner.shift(change.device, change.version)

    def rearm(self, kind: str, number: int, when: float) -> None:
        """Set the alarm that was there when the snapshot was taken."""
        self.simulation.wake((kind, number), when, lambda: self._ring(number))

    def _candidates(self) -> NDArray[np.int64]:
        """Devices that may shift: all that are there, or those of them that have been selected before."""
        may = np.ones(len(self.population.speed), dtype=np.bool_)
        present = self.present()
        if present is not None:
            may &= present
        if self.spec.among == "selected":
            selected = np.zeros_like(may)
            selected[list(self.tasks.times_selected)] = True
            may &= selected
        return np.flatnonzero(may)
