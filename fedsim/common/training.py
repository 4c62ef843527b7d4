"""Description of a local training and its time limit.

A strategy describes a training, the world computes its time, and a solver carries it out. A
training refers to its models by ``Ref`` objects, references whose weights only the learning side
reads.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arguments import plain
from fedsim.common.errors import SimulationError, show_value
from fedsim.common.former_names import (
    FIELDS_OF_TRAINING,
    FormerKeywords,
    warn_keywords,
    warn_renamed,
)
from fedsim.common.saved import saved

N = TypeVar("N", int, NDArray[np.int64])

Places = tuple[tuple[int, int], ...]
"""Ranges (begin, end) of positions in the array of all parameters of a model, ascending."""

CutBy = Literal["width", "rank", "adapters"]
"""Way in which a model is cut to a smaller model, which gives the size its meaning.

``width``: the size is the share of channels and units. ``rank``: it is the rank of the adapters.
``adapters``: it is the rank of the adapters too, and only the adapters are trained.
"""


def places_of(ranges: Iterable[tuple[int, int]]) -> Places:
    """Normalise ranges of a model's parameters: join adjacent ranges, and leave out empty ranges.

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
    """Return the positions that are in at least one of two lists of ranges, as ascending ranges.

    A range is a pair (begin, end) of positions in the array of all parameters of a model.

    Args:
        first: ranges, ascending.
        second: ranges, ascending.
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
    """Return the ranges of a model's parameters that are not in a list of ranges.

    Ranges are pairs (begin, end) of positions in the array of all parameters.

    Args:
        places: the ranges to leave out, ascending.
        size: count of parameters in the model.
    """
    # the gaps before, between and after the ranges; ``places_of`` leaves out empty gaps
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
        full_batches, rest = divmod(samples, self.size)
        if self.last == "keep":
            return full_batches + 1 if rest else full_batches
        has_only_incomplete = full_batches == 0 and rest > 0
        return 1 if has_only_incomplete else full_batches

    def last_size(self, samples: int) -> int:
        """Return the count of samples in the last batch of an epoch.

        Args:
            samples: count of samples of the device.
        """
        earlier_batches = max(0, self.count(samples) - 1)
        return self.taken(samples) - self.size * earlier_batches

    def taken(self, samples: N) -> N:
        """Return how many samples an epoch processes.

        The count is less than ``samples`` only if an incomplete last batch is dropped.

        Args:
            samples: count of samples of the device, or of each device; an int or int64 [devices].
        """
        if self.last != "drop":
            return samples
        in_last_batch = samples % self.size
        # a single incomplete batch is kept; a factor, not a branch, as ``samples`` may be an array
        has_full_batch = samples >= self.size
        return samples - in_last_batch * has_full_batch

    def samples_in(self, steps: int, samples: int) -> int:
        """Return how many samples ``steps`` SGD steps process, if they go through all batches.

        After the last batch of an epoch, the steps go on with the first batch of the next epoch.

        Args:
            steps: count of SGD steps.
            samples: count of samples of the device; at least 1.
        """
        epochs, batches = divmod(steps, self.count(samples))
        return epochs * self.taken(samples) + batches * self.size


ALL_SAMPLES = 1 << 62
"""Batch size above the sample count of any device: all samples are one batch."""

Penalised = Literal["kernels", "dense"]
"""Weights under the L2 penalty: all kernels, or only the kernels of dense layers."""


@saved()
@dataclass(frozen=True, slots=True)
class Part:
    """One of 2^splits parts of a device's samples, which have about equal shares of each class.

    Source: CATA-Fed.

    Attributes:
        splits: count of times that the samples are halved.
        number: index of the part, from 1.
        out_of: count of all samples of the device.
    """

    splits: int
    number: int
    out_of: int

    @property
    def samples(self) -> int:
        """Count of samples in the part."""
        first = self.number - 1
        parts = 2**self.splits
        return len(range(first, self.out_of, parts))  # the part has every 2^splits-th sample


@saved()
@dataclass(frozen=True, slots=True)
class Contrast:
    """Contrastive term in the loss of each sample (MOON, Li et al. 2021, Eq. 3).

    The term is weight x -log(p / (p + q)), with p = exp(cos(z, z_start) / temperature) and
    q = exp(cos(z, z_previous) / temperature). Here z, z_start and z_previous are representations of
    the sample (the inputs of the last dense layer) by three models: the model in training, the
    model from which the training starts, and ``previous``. In simulated time each step costs two
    more forward passes, by the start model and by ``previous``.

    Attributes:
        previous: reference (``Ref``) to the model from which the term pulls the trained model away;
            in MOON the result of the device's previous training.
        weight: weight of the term.
        temperature: divisor of the cosines; above 0.
    """

    previous: Any
    weight: float
    temperature: float


# The classes below are not frozen, because their construction would take several times as long.
# Their objects are not changed after the construction.


@saved()
@dataclass(slots=True, unsafe_hash=True)
class LocalEpochs:
    """Amount of a training: passes over the samples.

    Attributes:
        count: count of passes.
    """

    count: int


@saved()
@dataclass(slots=True, unsafe_hash=True)
class LocalSteps:
    """Amount of a training: SGD steps. A time limit treats them as one epoch.

    Attributes:
        count: count of steps; at least 1.
        only_batch: index (from 0) of the one batch on which all steps are taken; None for all
            batches in turn.

    Raises:
        SimulationError: an attribute is out of bounds.
    """

    count: int
    only_batch: int | None = None

    def __post_init__(self) -> None:
        self.count = _check_whole("steps", self.count, 1)
        if self.only_batch is not None:
            self.only_batch = _check_whole("only_batch", self.only_batch, 0)


def _check_whole(name: str, value: object, least: int) -> int:
    """Check a count or an index in the description of a training, and return it as an int.

    Args:
        name: name of the number, for the error message.
        value: the number, of Python or numpy.
        least: the least number.

    Raises:
        SimulationError: the value is no whole number, or is less than ``least``.
    """
    number = plain(value)
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise SimulationError(
            f"a training has {name}={show_value(value)}; allowed is a whole number of {least} or "
            "more"
        )
    return number


@saved()
class ModelCut(NamedTuple):
    """Smaller model that is cut from the whole model, for devices that train a part of the model.

    Attributes:
        by: the kind of cut. ``width``: some of the channels and units. ``rank``: the whole model
            with low-rank adapters (LoRA) of a smaller rank; the key ``model.train`` says what the
            device trains of it. ``adapters``: as ``rank``, but the device trains only the adapters,
            whatever ``model.train`` says.
        size: with ``width``, the share (0..1) of channels and units that the smaller model has;
            otherwise the rank of the adapters.
    """

    by: CutBy
    size: float


@saved()
@dataclass(slots=True, unsafe_hash=True)
class Proximal:
    """Proximal term mu/2 ||w - anchor||^2 in the loss, which pulls the model w to the anchor.

    Attributes:
        mu: weight of the term; 0 for no term.
        anchor: reference to a model (``Ref``), or a weighted sum of results of earlier trainings
            (``PreviousResult``); None for the model from which the training starts.
    """

    mu: float
    anchor: Any = None


NO_PROXIMAL = Proximal(0.0)
"""No proximal term."""


@saved()
@dataclass(slots=True, unsafe_hash=True, init=False)
class Training:
    """Local SGD on a device's own data, as a strategy describes it.

    The model w begins as ``start``. Each step takes a batch, and changes w by
    w <- w - lr (gradient + mu (w - anchor) + linear). ``gradient`` is the gradient of the batch's
    mean loss, including the contrastive term; weight decay and the L2 penalty of the scenario's
    section ``[training]`` are added. With momentum, the velocity accumulates the whole sum in the
    parentheses.

    Attributes:
        start: the model at the beginning. A ``Ref`` refers to a model that the device has
            received or stored. ``BEST`` is the model of least loss in the task's last ``Evaluate``
            step. A ``PreviousResult`` is a weighted sum of results of the task's earlier trainings.
        amount: ``LocalEpochs`` or ``LocalSteps``; a number is a count of epochs.
        batch_size: count of samples in a batch; ``ALL_SAMPLES`` for one batch of all samples, None
            for the size in ``[training]``.
        part: the part of the device's data on which it trains; None for all data.
        proximal: the proximal term, with its mu and anchor.
        linear: reference (``Ref``) to an array [d], for d parameters, that is added to every
            gradient; None to add nothing.
        contrast: a contrastive term in the loss; None for a loss without this term.
        lr: the learning rate lr; None for the rate in ``[training]`` after its decay up to the
            present round.
        held: ranges of parameters that keep their values of ``start``: pairs (begin, end) of
            positions in the array of all parameters, which cover whole tensors. A step takes as
            long as without them.
        share: factor of the simulated time of each epoch, below 1 if a trainer stops early and
            skips a part of the batches.
        cut: the smaller model that is trained, which determines the cost of a step; None: the whole
            model. All values outside of the smaller model are 0 or held.
        result: ``model``: the result is the trained model; ``last-gradient``: it is the gradient of
            the last step.
        layers: count of last layers that are trained, as the device has no memory for more; None:
            all. The tensors of earlier layers are in ``held``. Only fedsim sets this attribute
            (``population.short_of_memory``).

    Raises:
        SimulationError: the former keywords ``epochs``, ``steps`` and ``only_batch`` contradict
            each other.

    Example:
        >>> from fedsim.plugin import Batching, LocalSteps, Training
        >>> training = Training(start=None, amount=3)
        >>> training.sgd_steps(25, Batching(size=10))
        9
        >>> Training(start=None, amount=LocalSteps(50)).sgd_steps(25, Batching(size=10))
        50
    """

    start: Any
    amount: LocalEpochs | LocalSteps
    batch_size: int | None
    part: Part | None
    proximal: Proximal
    linear: Any
    contrast: Contrast | None
    lr: float | None
    held: Places
    share: float
    cut: ModelCut | None
    result: Literal["model", "last-gradient"]
    layers: int | None

    def __init__(
        self,
        start: Any,
        amount: LocalEpochs | LocalSteps | int = 1,
        *,
        batch_size: int | None = None,
        part: Part | None = None,
        proximal: Proximal = NO_PROXIMAL,
        linear: Any = None,
        contrast: Contrast | None = None,
        lr: float | None = None,
        held: Places = (),
        share: float = 1.0,
        cut: ModelCut | None = None,
        result: Literal["model", "last-gradient"] = "model",
        layers: int | None = None,
        **former: Unpack[FormerKeywords],
    ) -> None:
        self.start = start
        self.amount = LocalEpochs(amount) if isinstance(amount, int) else amount
        self.batch_size = batch_size
        self.part = part
        self.proximal = proximal
        self.linear = linear
        self.contrast = contrast
        self.lr = lr
        self.held = held
        self.share = share
        self.cut = cut
        self.result = result
        self.layers = layers
        if former:
            self._take_former(former)

    def _take_former(self, former: FormerKeywords) -> None:
        """Set the fields that replace former keywords of the constructor.

        ``epochs``, ``steps`` and ``only_batch`` are ``amount`` now, ``full_batch`` is a
        ``batch_size``, ``mu`` and ``anchor`` are ``proximal``, and ``last_gradient`` is a
        ``result``.

        Args:
            former: the former keywords and their values.

        Raises:
            TypeError: a keyword is neither a present nor a former one.
            SimulationError: the values contradict each other.
        """
        unknown = former.keys() - FIELDS_OF_TRAINING
        if unknown:
            raise TypeError(f"Training has no field {', '.join(sorted(unknown))}")
        warn_keywords(former)
        if "epochs" in former:
            self.amount = LocalEpochs(former["epochs"])
        steps = former.get("steps")
        only_batch = former.get("only_batch")  # index of the batch on which all steps are taken
        has_epochs_and_steps = steps is not None and self.epochs != 1
        has_batch_without_steps = steps is None and only_batch is not None
        if has_epochs_and_steps or has_batch_without_steps:
            raise SimulationError(
                f"a training has epochs={self.epochs}, steps={steps} and only_batch={only_batch}; "
                "allowed are steps with epochs=1, and only_batch with steps"
            )
        if steps is not None:
            self.amount = LocalSteps(steps, only_batch)
        if former.get("full_batch"):
            self.batch_size = ALL_SAMPLES
        mu = former.get("mu", self.proximal.mu)
        self.proximal = Proximal(mu, former.get("anchor", self.proximal.anchor))
        if former.get("last_gradient"):
            self.result = "last-gradient"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Return the value of a former field, which still works."""
            if name not in FIELDS_OF_TRAINING:
                raise AttributeError(f"Training has no field {name}")
            warn_renamed(f"Training.{name}", FIELDS_OF_TRAINING[name])
            steps = None
            only_batch = None
            if isinstance(self.amount, LocalSteps):
                steps = self.amount.count
                only_batch = self.amount.only_batch
            return {
                "steps": steps,
                "only_batch": only_batch,
                "full_batch": self.batch_size == ALL_SAMPLES,
                "mu": self.proximal.mu,
                "anchor": self.proximal.anchor,
                "last_gradient": self.result == "last-gradient",
            }[name]

    @property
    def epochs(self) -> int:
        """Count of epochs; ``LocalSteps`` count as one epoch."""
        return self.amount.count if isinstance(self.amount, LocalEpochs) else 1

    @property
    def terms(self) -> list[str]:
        """Names of the terms that are added to the loss: ``proximal``, ``linear``, ``contrastive``.

        Only the terms that this training has are listed.
        """
        terms = []
        if self.proximal.mu:
            terms.append("proximal")
        if self.linear is not None:
            terms.append("linear")
        if self.contrast is not None:
            terms.append("contrastive")
        return terms

    @property
    def asked_besides(self) -> int:
        """Count of models that each step applies to its batch in addition to the trained model.

        The count is 2 with a contrastive term, whose loss needs the outputs of two other models,
        else 0.
        """
        return 0 if self.contrast is None else 2

    def batching(self, usual: Batching) -> Batching:
        """Return the division into batches that this training uses.

        The result is ``usual``; if the training has a ``batch_size``, this replaces the size.

        Args:
            usual: the division into batches by the scenario's section ``[training]``.
        """
        if self.batch_size is not None:
            return Batching(self.batch_size, usual.last)
        return usual

    def samples_an_epoch(self, samples: int, usual: Batching) -> int:
        """Return how many samples an epoch processes; ``LocalSteps`` count as one epoch.

        Args:
            samples: count of samples on which the device trains.
            usual: the batches of ``[training]``.
        """
        batching = self.batching(usual)
        amount = self.amount
        if isinstance(amount, LocalEpochs) or not samples:
            return batching.taken(samples)
        if amount.only_batch is not None:  # all steps are taken on one batch
            return amount.count * min(batching.size, samples)
        return batching.samples_in(amount.count, samples)

    def sgd_steps(self, samples: int, usual: Batching) -> int:
        """Return the count of SGD steps of the training.

        Args:
            samples: count of samples on which the device trains.
            usual: the batches of ``[training]``.
        """
        if not samples:
            return 0
        if isinstance(self.amount, LocalSteps):
            return self.amount.count
        return self.amount.count * self.batching(usual).count(samples)


@saved()
@dataclass(slots=True, unsafe_hash=True)
class Limit:
    """Time limit of a device's training, and the device's behaviour at the limit.

    Attributes:
        stop_at: the simulated time (s) at which the device stops training. The epochs that it has
            finished by then are the result. None: no such time.
        budget: longest time (s) from the device's first computation for the round to the end of the
            training. It includes tests and earlier trainings of the round. None: no such limit.
        reserve_upload: bytes of the upload that follows. The training ends early enough to leave
            the expected time of this upload on the device's own uplink.
        adaptive: whether another epoch begins only if the time left is at least the mean time of
            the finished epochs.
        at_least: least count of finished epochs. A training with fewer epochs has failed.
        go_on: what happens after a failed training. True: the task goes on with the model from
            which the training started. False: the task ends with the outcome ``late``.
        reserve_s: time (s) that is kept in reserve for the steps after the training, in addition to
            ``reserve_upload``.
        cut_undoes: whether a training has also failed if the limit cuts off an epoch that has
            begun. If False, only the cut epoch is lost.
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
        """Whether the training must end before the limit, to leave time for the steps that follow."""
        return self.reserve_upload > 0.0 or self.reserve_s > 0.0


NO_LIMIT = Limit()
