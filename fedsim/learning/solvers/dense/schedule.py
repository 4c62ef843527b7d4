"""The batches of all devices of a stack, laid out step by step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.learning.solvers.base import LocalSolve
from fedsim.learning.solvers.batches import Batches

_NARROWEST = 2  # rows of a batch array: a product of single rows depends on how many of them are stacked


@dataclass(frozen=True)
class Segment:
    """Steps during which the same devices are at work.

    Attributes:
        active: how many devices.
        steps: four sequences with one entry a step: where the batches lie in the samples, int64 [active * width]; labels,
            int64 [active, width, 1]; shares, 1 / batch size or 0 where a row is no sample, [active, width, 1]; and what
            receives the log-probability of each label, [active, width, 1].
        judged: for each step whether it belongs to some device's last epoch, so that these are wanted.
    """

    active: int
    steps: tuple[Sequence[Tensor], ...]
    judged: Sequence[bool]


class Schedule:
    """The rows of step t are those of the devices that are still at work in it.

    Args:
        solves: the work, sorted by falling number of steps.
        first: where each device's samples begin in the stack's samples; the row after its last is no sample, all zeros.
        device, dtype: of the tensors.
    """

    def __init__(self, solves: Sequence[LocalSolve], first: Sequence[int], device: torch.device, dtype: torch.dtype) -> None:
        self.batches = [solve.batches for solve in solves]
        self.active = _still_active(self.batches)
        self.starts = np.concatenate([[0], np.cumsum(self.active)])
        self.width = max(_NARROWEST, self.batches[0].rows.shape[1])
        self._judged = _in_a_last_epoch(self.batches, len(self.active))
        lines = int(self.starts[-1])
        rows = np.empty((lines, self.width), dtype=np.int64)
        shares = np.zeros((lines, self.width, 1))
        labels = np.zeros((lines, self.width, 1), dtype=np.int64)
        for rank, (solve, batch) in enumerate(zip(solves, self.batches, strict=True)):
            at, columns = self.starts[: batch.steps] + rank, batch.rows.shape[1]
            rows[at] = first[rank] + batch.samples
            rows[at, :columns] = batch.rows + first[rank]
            shares[at, :columns, 0] = (batch.rows < batch.samples) / batch.counts[:, None]
            labels[at, :columns, 0] = np.append(solve.y.numpy(), 0)[batch.rows]
        self.rows = torch.from_numpy(rows).to(device)
        self.labels = torch.from_numpy(labels).to(device)
        self.shares = torch.from_numpy(shares).to(device, dtype)
        self.picked = torch.empty_like(self.shares)

    def segments(self) -> Iterator[Segment]:
        """The whole work, in order."""
        changes = [0, *(np.flatnonzero(np.diff(self.active)) + 1).tolist(), len(self.active)]
        for begin, end in pairwise(changes):
            if begin == end:
                continue
            active = int(self.active[begin])
            lines = slice(int(self.starts[begin]), int(self.starts[end]))
            rows = self.rows[lines].view(end - begin, -1).unbind()
            others = (torch.split(each[lines], active) for each in (self.labels, self.shares, self.picked))
            yield Segment(active, (rows, *others), self._judged[begin:end])

    def train_losses(self) -> list[float]:
        """Mean loss of each device over the samples of its last epoch; NaN without a step."""
        picked = self.picked.cpu().numpy()
        return [self._train_loss(rank, picked) for rank in range(len(self.batches))]

    def _train_loss(self, rank: int, picked: NDArray[np.floating]) -> float:
        batch = self.batches[rank]
        if not batch.steps:
            return float("nan")
        real = batch.rows[batch.last_epoch :] < batch.samples
        log_probability = picked[self.starts[batch.last_epoch : batch.steps] + rank, : batch.rows.shape[1], 0]
        return float(-log_probability[real].sum(dtype=np.float64) / real.sum())


def _still_active(batches: Sequence[Batches]) -> NDArray[np.int64]:
    """How many devices are at work in each step, int64 [most steps]."""
    steps = np.array([batch.steps for batch in batches])
    active: NDArray[np.int64] = np.count_nonzero(steps[None, :] > np.arange(steps.max())[:, None], axis=1)
    return active


def _in_a_last_epoch(batches: Sequence[Batches], steps: int) -> list[bool]:
    """For each step whether it lies in the last epoch of some device."""
    judged = np.zeros(steps, dtype=bool)
    for batch in batches:
        judged[batch.last_epoch : batch.steps] = True
    return judged.tolist()
