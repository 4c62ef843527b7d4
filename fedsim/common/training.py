"""Local training and its time limit: written by a strategy, timed by the world, carried out by a
solver.

``start``, ``anchor`` and ``linear`` are refs, into which the learning side alone looks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import SimulationError

N = TypeVar("N", int, NDArray[np.int64])

Places = tuple[tuple[int, int], ...]
"""Ranges of tensors in a flat model: begin and end, in order."""

CutBy = Literal["width", "rank", "adapters"]
"""Size of a smaller model: a share of channels and units, a rank of adapters, or one where
adapters alone are trained.
"""


def places_of(ranges: Iterable[tuple[int, int]]) -> Places:
    """Places of ranges in order; adjacent ones become one."""
    found: list[tuple[int, int]] = []
    for begin, end in ranges:
        if begin < end:
            found.append((found.pop()[0] if found and found[-1][1] == begin else begin, end))
    return tuple(found)


def complement(places: Places, size: int) -> Places:
    """Places of all other numbers in a flat model of so many."""
    begins = [0, *(end for _, end in places)]
    ends = [*(begin for begin, _ in places), size]
    return places_of(zip(begins, ends, strict=True))


LastBatch = Literal["keep", "drop", "merge"]
"""Fate of an epoch's last batch if it is incomplete; see ``Batching``."""


@dataclass(frozen=True, slots=True)
class Batching:
    """The batches of an epoch: their size, and the treatment of an incomplete last batch.

    The only batch of an epoch is kept in any case.

    Args:
        size: samples in a batch.
        last: ``keep`` leaves an incomplete last batch smaller, ``drop`` leaves it out, ``merge``
            adds its samples to the batch before it.

    Example:
        >>> from fedsim.plugin import Batching
        >>> kept = Batching(size=10)
        >>> kept.count(25), kept.last_size(25)
        (3, 5)
        >>> merged = Batching(size=10, last="merge")
        >>> merged.count(25), merged.last_size(25)
        (2, 15)
    """

    size: int
    """samples of a batch."""
    last: LastBatch = "keep"
    """the fate of an incomplete last batch."""

    def count(self, samples: int) -> int:
        """Return the number of batches in an epoch.

        Args:
            samples: number of samples of the device.
        """
        if self.last == "keep":
            return -(-samples // self.size)
        return max(samples // self.size, min(samples, 1))

    def last_size(self, samples: int) -> int:
        """Return the number of samples in the last batch of an epoch; all others have ``size``.

        Args:
            samples: number of samples of the device.
        """
        return self.taken(samples) - self.size * max(0, self.count(samples) - 1)

    def taken(self, samples: N) -> N:
        """Return the number of samples that an epoch processes, which ``drop`` makes fewer.

        Args:
            samples: number of samples of the device; an int, or int64 [devices].

        Returns:
            An int, or int64 [devices].
        """
        if self.last != "drop":
            return samples
        return samples - samples % self.size * (samples >= self.size)

    def taken_in(self, steps: int, samples: int) -> int:
        """Return the number of samples in the first batches of one epoch.

        Args:
            steps: the number of batches.
            samples: number of samples of the device.
        """
        return self.taken(samples) if steps >= self.count(samples) else steps * self.size

    @property
    def whole(self) -> "Batching":
        """One batch of all samples."""
        return Batching(WHOLE, self.last)


WHOLE = 1 << 62
"""A batch size that no device has samples for: every batch is the whole local set."""

Penalised = Literal["kernels", "dense"]
"""Weights under the L2 penalty: all kernels, or the kernels of dense layers alone."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the stratified parts of a device's samples.

    Attributes:
        splits: how often the samples were halved; there are 2^splits parts.
        number: number of the part, from 1.
        out_of: samples of the device.
    """

    splits: int
    number: int
    out_of: int

    @property
    def samples(self) -> int:
        """Number of samples in the part; samples are dealt to the parts in turn."""
        return len(range(self.number - 1, self.out_of, 2**self.splits))


@dataclass(frozen=True, slots=True)
class Contrast:
    """A contrastive term in the loss of each sample: weight x -log(p / (p + q)).

    log p and log q are the cosines of the sample's representation with its representations under
    the start and under ``previous``, over ``temperature``. Each step costs two more forward passes.

    Source: MOON, Li et al. 2021, Eq. 3.

    Attributes:
        previous: a model (a ``Ref``).
        weight: weight of the term.
        temperature: above 0.
    """

    previous: Any
    weight: float
    temperature: float


@dataclass(frozen=True, slots=True)
class Training:
    """Local SGD on a device's own data: w <- w - lr (gradient + mu (w - anchor) + linear).

    The gradient is a batch's, with the weight decay and L2 of ``[training]``; with
    momentum all of it goes through the velocity.

    Attributes:
        start: the model at its beginning: a ``Ref``, ``BEST`` or a ``PreviousResult``.
        epochs: passes over the data; at least 1.
        steps: SGD steps instead of epochs; they count as one epoch (``epochs=1``).
        full_batch: one SGD step uses all samples, so that an epoch is one step.
        part: the part of its data that the device trains on; None for all.
        mu: weight of the proximal term mu/2 ||w - anchor||^2.
        anchor: its center (a ``Ref``); None for ``start``.
        linear: added to every gradient (a ``Ref``); None for nothing.
        lr: the learning rate; None for the rate of ``[training]``, decayed by the round.
        held: whole tensors of the flat model that keep their start. A step takes as long as one
            without.
        only_batch: number (from 0) of the one batch on which all ``steps`` are.
        contrast: a contrastive term in the loss; None for none.
        share: share of its batches that it takes, where a trainer stops early; shortens all epochs.
        cut: the smaller model whose cost a step has; None: the whole one. All numbers outside of
            it are 0 or held.
        last_gradient: it gives the gradient of its last step in place of the trained model.

    Raises:
        SimulationError: ``epochs`` and ``steps`` do not go together.

    Example:
        >>> from fedsim.plugin import Batching, Training
        >>> training = Training(start=None, epochs=3)
        >>> training.sgd_steps(25, Batching(size=10))
        9
    """

    start: Any
    epochs: int = 1
    steps: int | None = None
    full_batch: bool = False
    part: Part | None = None
    mu: float = 0.0
    anchor: Any = None
    linear: Any = None
    lr: float | None = None
    held: Places = ()
    only_batch: int | None = None
    contrast: Contrast | None = None
    share: float = 1.0
    cut: tuple[CutBy, float] | None = None
    last_gradient: bool = False

    def __post_init__(self) -> None:
        if self.steps is not None and (self.steps < 1 or self.epochs != 1):
            raise SimulationError(
                f"a training has steps={self.steps} and epochs={self.epochs}; allowed are at "
                "least 1 step, and then epochs=1"
            )
        if self.only_batch is not None and (self.steps is None or self.only_batch < 0):
            raise SimulationError(
                f"a training has only_batch={self.only_batch} and steps={self.steps}; allowed "
                "are batches from 0, and steps"
            )

    @property
    def terms(self) -> list[str]:
        """Names of the terms that the training adds to the loss."""
        asked = {
            "proximal": self.mu,
            "linear": self.linear is not None,
            "contrastive": self.contrast is not None,
        }
        return [name for name, is_there in asked.items() if is_there]

    @property
    def asked_besides(self) -> int:
        """Models that each step evaluates in addition to the trained one."""
        return 0 if self.contrast is None else 2

    def batching(self, usual: Batching) -> Batching:
        """Return the batches of this training.

        Args:
            usual: the batches of ``[training]``, for a training without other batches.
        """
        return usual.whole if self.full_batch else usual

    def samples_an_epoch(self, samples: int, usual: Batching) -> int:
        """Return the number of samples processed in one counted epoch.

        Args:
            samples: number of samples of the device.
            usual: the batches of ``[training]``.
        """
        batches = self.batching(usual)
        if self.steps is None or not samples:
            return batches.taken(samples)
        if self.only_batch is not None:
            return self.steps * min(batches.size, samples)
        passes, rest = divmod(self.steps, batches.count(samples))
        return passes * batches.taken(samples) + batches.taken_in(rest, samples)

    def sgd_steps(self, samples: int, usual: Batching) -> int:
        """Return the number of SGD steps.

        Args:
            samples: number of samples of the device.
            usual: the batches of ``[training]``.
        """
        if not samples or self.steps is not None:
            return (self.steps or 0) if samples else 0
        return self.epochs * self.batching(usual).count(samples)


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of a device's training time, and its behaviour at the limit."""

    stop_at: float | None = None
    """the absolute time (s) at which the training stops; finished epochs count."""
    budget: float | None = None
    """computing time (s), from the device's first computation for the round on; tests and earlier
    trainings count.
    """
    reserve_upload: float = 0.0
    """bytes of an upload, whose expected time on the device's uplink is kept in reserve."""
    adaptive: bool = False
    """whether another epoch begins only if one of the finished epochs' mean length fits."""
    at_least: int = 1
    """least number of finished epochs. With fewer none counts, and the task ends as ``late``, or
    with ``go_on`` continues untrained.
    """
    go_on: bool = False
    """whether the task continues untrained with fewer than ``at_least`` finished epochs."""
    reserve_s: float = 0.0
    """further time in reserve (s), for the steps after the training."""
    cut_undoes: bool = False
    """whether an unfinished epoch undoes the finished ones."""

    @property
    def reserves(self) -> bool:
        """Whether the training keeps time in reserve."""
        return self.reserve_upload > 0.0 or self.reserve_s > 0.0


NO_LIMIT = Limit()
