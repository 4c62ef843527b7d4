"""Which samples make up each SGD step of a local solve."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NARROW = 64  # batches up to this size are always padded to the full batch size

WHOLE = 1 << 62
"""A batch size that no device has samples for: every batch is the whole local set."""


@dataclass(frozen=True)
class Batches:
    """The batches of one local solve, one row a step.

    Attributes:
        rows: positions of the samples, int64 [steps, width]; ``samples`` stands for none (the last batch of an epoch).
        counts: samples in each batch, int64 [steps].
        last_epoch: the first step of the last epoch.
        samples: number of samples n.
    """

    rows: NDArray[np.int64]
    counts: NDArray[np.int64]
    last_epoch: int
    samples: int

    @property
    def steps(self) -> int:
        """SGD steps in all."""
        return len(self.counts)


def width(samples: int, batch_size: int) -> int:
    """How many rows a batch array has, for a device with so many samples, whoever trains beside it."""
    return min(batch_size, max(_NARROW, 1 << (samples - 1).bit_length())) if samples else min(batch_size, _NARROW)


def steps(samples: int, batch_size: int, epochs: int, iterations: int | None) -> int:
    """SGD steps of a local solve."""
    if not samples:
        return 0
    return epochs * -(-samples // batch_size) if iterations is None else iterations


def shuffled(
    generator: np.random.Generator,
    samples: int,
    batch_size: int,
    epochs: int,
    iterations: int | None = None,
    *,
    only: int | None = None,
) -> Batches:
    """Batches from a fresh permutation in each epoch; the last one of an epoch may be partial.

    With ``iterations`` there are so many steps instead of ``epochs``, and the last epoch may be cut short. With ``only`` all
    steps are on the batch of this number, and the last epoch is the last step.
    """
    columns = width(samples, batch_size)
    total = steps(samples, batch_size, epochs, iterations)
    if only is not None and total:
        found = shuffled(generator, samples, batch_size, 1, only + 1)
        return Batches(found.rows[-1:].repeat(total, axis=0), found.counts[-1:].repeat(total), total - 1, samples)
    per_epoch = -(-samples // batch_size) if samples else 1
    epochs = -(-total // per_epoch)
    rows = np.full((epochs, per_epoch * batch_size if samples > batch_size else columns), samples, dtype=np.int64)
    rows[:, :samples] = generator.permuted(np.tile(np.arange(samples), (epochs, 1)), axis=1)  # as ``permutation`` in each epoch
    counts = np.full((epochs, per_epoch), batch_size, dtype=np.int64)
    counts[:, -1] = samples - (per_epoch - 1) * batch_size
    return Batches(rows.reshape(-1, columns)[:total], counts.ravel()[:total], max(0, (epochs - 1) * per_epoch), samples)
