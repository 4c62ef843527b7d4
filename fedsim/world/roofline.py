"""Time that a device of a kind takes to train a model: a roofline, operation by operation.

An operation takes as long as its arithmetic, or as long as its data take through memory, whichever is longer (Williams,
Waterman and Patterson, "Roofline", CACM 2009). A CPU makes further passes over some data, before or after; a GPU does not. A
batch and an epoch cost something fixed besides.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Floats, Ints
from fedsim.errors import ScenarioError
from fedsim.language.units import show_bytes
from fedsim.model_cost import ModelCost, Operations, Processor
from fedsim.training import CutBy, Training
from fedsim.world.device_kinds import DeviceKind


def operations_s(operations: Operations, samples: int, flops: float, bandwidth: float, processor: Processor = "cpu") -> float:
    """Time of operations on a batch of ``samples`` (s), at so many FLOP/s and bytes/s; a GPU makes no further passes."""
    work, moved, again, arm_work, arm_again = (operations[:, 0::2] + samples * operations[:, 1::2]).T
    if processor == "arm":
        work, again = arm_work, arm_again
    return float((np.maximum(work / flops, moved / bandwidth) + (0 if processor == "gpu" else again / bandwidth)).sum())


class Rooflines:
    """Training times of each device of a population; ``which`` of the ``kinds`` each is, int [devices].

    ``cost_of`` gives the cost of a smaller model (``Training.cut``).
    """

    def __init__(
        self,
        kinds: Sequence[DeviceKind],
        which: NDArray[np.integer],
        cost: ModelCost,
        batch_size: int,
        cost_of: Callable[[CutBy, float], ModelCost] | None = None,
    ) -> None:
        self.kinds = kinds
        self.which = which
        self._cost = cost
        self._batch_size = batch_size
        self._batch_s = cache(self._batch_s_of)
        self._cost_of = cost_of
        self._cuts: dict[tuple[CutBy, float], Rooflines] = {}

    def training_s(self, device: int, training: Training, samples: int) -> float:
        """Seconds of what counts as one epoch of a training on so many samples."""
        if training.cut is not None:
            return self._cut(training.cut).training_s(device, replace(training, cut=None), samples)
        kind = int(self.which[device])
        size = samples if training.full_batch else min(self._batch_size, samples)
        if not samples:
            return self.kinds[kind].epoch
        passes, rest = (1, 0) if training.steps is None else divmod(training.steps, -(-samples // size))
        if training.only_batch is not None:
            passes, rest = 0, training.steps or 0

        def steps_s(learns: bool) -> float:
            return passes * self._pass_s(kind, samples, size, learns) + rest * self._batch_s(kind, size, learns)

        besides_s = training.asked_besides * steps_s(False) if training.asked_besides else 0.0
        return self.kinds[kind].epoch + steps_s(True) + besides_s

    def testing_s(self, device: int, samples: int) -> float:
        """Seconds of a forward pass over so many samples."""
        return self._pass_s(int(self.which[device]), samples, min(self._batch_size, samples), False)

    def epochs_s(self, samples: Ints) -> Floats:
        """Seconds of an epoch of every device on so many samples each, float64 [devices]."""
        seconds = np.empty(len(samples))
        for kind, figures in enumerate(self.kinds):
            own = self.which == kind
            counts, places = np.unique(samples[own], return_inverse=True)
            size = self._batch_size
            each = [figures.epoch + self._pass_s(kind, count, min(size, count), True) for count in counts.tolist()]
            seconds[own] = np.array(each)[places]
        return seconds

    def speeds(self) -> Floats:
        """Samples/s of every device in full batches, float64 [devices]."""
        size = self._batch_size
        by_kind: Floats = np.array([size / self._batch_s(kind, size, True) for kind in range(len(self.kinds))])
        return by_kind[self.which]  # type: ignore[no-any-return]

    def needed(self, training: Training | None, samples: int) -> float:
        """Bytes that training on so many samples, or with None testing on them, takes up."""
        if training is None:
            return self._cost.weights
        batch = samples if training.full_batch else min(self._batch_size, samples)
        return self._cost.memory + batch * self._cost.memory_a_sample + training.asked_besides * self._cost.weights

    def failing_s(self, device: int, training: Training | None, samples: int) -> float | None:
        """Seconds until the device finds that it has no room for that: in the first forward pass; None if it has."""
        if training is not None and training.cut is not None:
            return self._cut(training.cut).failing_s(device, replace(training, cut=None), samples)
        kind = int(self.which[device])
        if self.needed(training, samples) <= self.kinds[kind].room:
            return None
        return self.kinds[kind].epoch + self._batch_s(kind, max(1, min(self._batch_size, samples)), False)

    def check(self, samples: int) -> None:
        """Raise ``ScenarioError`` for a model that no device has room to train, be it on as few as so many samples."""
        needed, room = self.needed(Training(None), samples), max(kind.room for kind in self.kinds)
        if needed > room:
            raise ScenarioError(
                f"population.device: training the model takes {show_bytes(needed)}, and no device has room for it: the largest "
                f"leaves {show_bytes(room)}"
            )

    def _cut(self, cut: tuple[CutBy, float]) -> "Rooflines":
        """The times of a smaller model."""
        if cut not in self._cuts:
            assert self._cost_of is not None
            self._cuts[cut] = Rooflines(self.kinds, self.which, self._cost_of(*cut), self._batch_size)
        return self._cuts[cut]

    def _pass_s(self, kind: int, samples: int, size: int, learns: bool) -> float:
        if not samples:
            return 0.0
        full, rest = divmod(samples, size)
        return full * self._batch_s(kind, size, learns) + (self._batch_s(kind, rest, learns) if rest else 0.0)

    def _batch_s_of(self, kind: int, samples: int, learns: bool) -> float:
        figures, cost = self.kinds[kind], self._cost
        parts = (cost.forward, cost.backward, cost.update) if learns else (cost.forward,)
        rates = figures.flops * figures.flops_share, figures.bandwidth * figures.bandwidth_share
        return figures.batch + sum(operations_s(part, samples, *rates, figures.processor) for part in parts)
