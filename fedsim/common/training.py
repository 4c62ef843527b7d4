"""Description of a local training and its time limit.

A strategy describes a training, the world computes its time, and a solver carries it out. The
fields ``start``, ``anchor`` and ``linear`` are refs, whose values only the learning side reads.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import SimulationError

N = TypeVar("N", int, NDArray[np.int64])

Places = tuple[tuple[int, int], ...]
"""Ranges of parameters in a flat model, as (begin, end) in ascending order."""

CutBy = Literal["width", "rank", "adapters"]
"""Way in which a model is cut to a smaller model, which gives the size its meaning.

``width``: the size is the share of channels and units. ``rank``: it is the rank of the adapters.
``adapters``: it is 1, and only adapters are trained.
"""


def places_of(ranges: Iterable[tuple[int, int]]) -> Places:
    """Normalise ranges of a flat model: join adjacent ranges, and leave out empty ones.

    Args:
        ranges: pairs (begin, end) of positions in the array of all parameters of a model,
            ascending.
    """
    places: list[tuple[int, int]] = []
    for begin, end in ranges:
        if begin >= end:
            continue
        if places and places[-1][1] == begin:
            first, _ = places.pop()
            places.append((first, end))
        else:
            places.append((begin, end))
    return tuple(places)


def union(first: Places, second: Places) -> Places:
    """Return the union of two lists of ranges of a flat model.

    Ranges are pairs (begin, end) of positions in the array of all parameters of a model.

    Args:
        first: a list of ranges (begin, end), ascending.
        second: a second list.
    """
    merged: list[tuple[int, int]] = []
    for begin, end in sorted([*first, *second]):
        if merged and begin <= merged[-1][1]:
            last_begin, last_end = merged.pop()
            merged.append((last_begin, max(last_end, end)))
        else:
            merged.append((begin, end))
    return tuple(merged)


def complement(places: Places, size: int) -> Places:
    """Return the ranges of a flat model that are not in a list of ranges.

    Ranges are pairs (begin, end) of positions in the array of all parameters.

    Args:
        places: the ranges to leave out.
        size: count of parameters in the model.
    """
    begins = [0, *(end for _, end in places)]
    ends = [*(begin for begin, _ in places), size]
    return places_of(zip(begins, ends, strict=True))


LastBatch = Literal["keep", "drop", "merge"]
"""Treatment of an epoch's last batch if it is incomplete; see ``Batching``."""


@dataclass(frozen=True, slots=True)
class Batching:
    """Division of an epoch's samples into batches: batch size, and treatment of the last batch.

    If an epoch has only one batch, the batch is kept even if it is incomplete.

    Attributes:
        size: count of samples in a batch.
        last: the treatment of an incomplete last batch. ``keep``: it is a smaller batch. ``drop``:
            it is left out. ``merge``: its samples join the batch before it.

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
    last: LastBatch = "keep"

    def count(self, samples: int) -> int:
        """Return the count of batches in an epoch.

        Args:
            samples: count of samples of the device.
        """
        if self.last == "keep":
            return -(-samples // self.size)
        return max(samples // self.size, min(samples, 1))

    def last_size(self, samples: int) -> int:
        """Return the count of samples in the last batch of an epoch.

        Args:
            samples: count of samples of the device.
        """
        return self.taken(samples) - self.size * max(0, self.count(samples) - 1)

    def taken(self, samples: N) -> N:
        """Return how many samples an epoch processes.

        The count is less than ``samples`` only if an incomplete last batch is dropped.

        Args:
            samples: count of samples of the device, or of each device; an int or int64 [devices].
        """
        if self.last != "drop":
            return samples
        return samples - samples % self.size * (samples >= self.size)

    def taken_in(self, steps: int, samples: int) -> int:
        """Return how many samples the first ``steps`` batches of an epoch have.

        Args:
            steps: count of batches.
            samples: count of samples of the device.
        """
        return self.taken(samples) if steps >= self.count(samples) else steps * self.size

    @property
    def whole(self) -> "Batching":
        """Batching in which all samples of an epoch are one batch.

        The attribute ``last`` is the same.
        """
        return Batching(WHOLE, self.last)


WHOLE = 1 << 62
"""Batch size above the sample count of any device, so that a batch is the whole local set."""

Penalised = Literal["kernels", "dense"]
"""Weights under the L2 penalty: all kernels, or only the kernels of dense layers."""


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a device's samples, stratified by class, for trainings on less data (CATA-Fed).

    Attributes:
        splits: count of halvings of the samples, which give 2^splits parts.
        number: index of the part, from 1.
        out_of: count of the device's samples.
    """

    splits: int
    number: int
    out_of: int

    @property
    def samples(self) -> int:
        """Count of samples in the part."""
        return len(range(self.number - 1, self.out_of, 2**self.splits))


@dataclass(frozen=True, slots=True)
class Contrast:
    """Contrastive term in the loss of each sample (MOON, Li et al. 2021, Eq. 3).

    The term is weight x -log(p / (p + q)). Here log p is the cosine of the sample's representations
    by the trained model and by the start model, divided by ``temperature``; log q is the same with
    the model ``previous`` in place of the start model. Each step costs two more forward passes.

    Attributes:
        previous: a model (a ``Ref``).
        weight: weight of the term.
        temperature: above 0.
    """

    previous: Any
    weight: float
    temperature: float


# not frozen, because the construction would take several times as long
@dataclass(slots=True, unsafe_hash=True)
class Training:
    """Local SGD on a device's own data; a training is not changed after its construction.

    A step changes the model w by w <- w - lr (gradient + mu (w - anchor) + linear); w begins as
    ``start``. The gradient is of a batch, with weight decay and L2 by ``[training]``. With
    momentum, the velocity accumulates the whole sum in the parentheses.

    Attributes:
        start: the model at the beginning: a ``Ref``, ``BEST`` or a ``PreviousResult``.
        epochs: passes over the data; at least 1.
        steps: SGD steps instead of epochs; they count as one epoch (``epochs=1``).
        full_batch: one SGD step uses all samples, so that an epoch is one step.
        part: the part of its data that the device trains on; None for all.
        mu: weight of the proximal term mu/2 ||w - anchor||^2.
        anchor: center of the proximal term (a ``Ref``); None for ``start``.
        linear: added to every gradient (a ``Ref``); None for nothing.
        lr: the learning rate; None for the rate in ``[training]``, decayed by the round.
        held: ranges of the flat model that keep their values of ``start``, as whole tensors. They
            do not shorten a step.
        only_batch: index (from 0) of the one batch on which all ``steps`` are taken; None for all
            batches in turn.
        contrast: a contrastive term in the loss; None for none.
        share: share of the batches that are processed, if a trainer stops early; shortens all
            epochs.
        cut: the smaller model that is trained, which determines the cost of a step; None: the
            whole model. All values outside of the smaller model are 0 or held.
        last_gradient: whether the result is the gradient of the last step in place of the trained
            model.
        batch_size: count of samples in a batch; None for the size in ``[training]``.
        layers: count of last layers that are trained, as the device has no memory for more; None:
            all. The tensors of earlier layers are in ``held``.

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
    batch_size: int | None = None
    layers: int | None = None

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
        """Names of the terms that are added to the loss: ``proximal``, ``linear``, ``contrastive``.

        Only the terms that this training has are listed.
        """
        terms = []
        if self.mu:
            terms.append("proximal")
        if self.linear is not None:
            terms.append("linear")
        if self.contrast is not None:
            terms.append("contrastive")
        return terms

    @property
    def asked_besides(self) -> int:
        """Count of additional models that each step applies to compute its loss.

        The count is 2 with a contrastive term, else 0.
        """
        return 0 if self.contrast is None else 2

    def batching(self, usual: Batching) -> Batching:
        """Return the division into batches that this training uses.

        Args:
            usual: the division into batches of ``[training]``.
        """
        if self.full_batch:
            return usual.whole
        if self.batch_size is not None:
            return Batching(self.batch_size, usual.last)
        return usual

    def samples_an_epoch(self, samples: int, usual: Batching) -> int:
        """Return how many samples an epoch processes; ``steps`` count as one epoch.

        Args:
            samples: count of samples on which the device trains.
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
        """Return the count of SGD steps of the training.

        Args:
            samples: count of samples on which the device trains.
            usual: the batches of ``[training]``.
        """
        if not samples:
            return 0
        if self.steps is not None:
            return self.steps
        return self.epochs * self.batching(usual).count(samples)


# not frozen, because the construction would take several times as long
@dataclass(slots=True, unsafe_hash=True)
class Limit:
    """Time limit of a device's training, and the device's behaviour at the limit.

    A limit is not changed after its construction.

    Attributes:
        stop_at: the absolute time (s) at which the device stops; finished epochs count.
        budget: computing time (s) since the device's first computation for the round, which
            includes tests and earlier trainings.
        reserve_upload: bytes whose expected time on the device's own uplink is kept in reserve.
        adaptive: whether another epoch begins only if an epoch of the mean length of the finished
            ones fits.
        at_least: least count of finished epochs. If fewer are finished, none counts, and the task
            ends as late unless it may ``go_on``.
        go_on: whether a task with too few finished epochs goes on, with the untrained model.
        reserve_s: time (s) that is kept in reserve for the steps after the training, in addition
            to ``reserve_upload``.
        cut_undoes: whether an unfinished epoch undoes the finished ones.
    """

    stop_at: float | None = None
    budget: float | None = None
    reserve_upload: float = 0.0
    adaptive: bool = False
    at_least: int = 1
    go_on: bool = False
    reserve_s: float = 0.0
    cut_undoes: bool = False

    @property
    def reserves(self) -> bool:
        """Whether the training must end earlier than the limit, to leave time for the steps after it."""
        return self.reserve_upload > 0.0 or self.reserve_s > 0.0


NO_LIMIT = Limit()
