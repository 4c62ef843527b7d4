"""Data sets as one pool of samples, and each device's shard: indices into the pool plus a
transform.

Samples are made when they are asked for. A shift of data adds the next version of a shard;
earlier ones stay, because a training is often computed long after its simulated time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import ScenarioError, nearest
from fedsim.learning.data.transforms import Augmentation, augment, rotate

Index = NDArray[np.int32]

Samples = NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int64]
Normalise = Literal["pixel", "standardise", "none"]
TokenAnswers = Literal["one", "each", "next"]
"""Outputs of a model for a sequence of tokens: one for all, one at each token, or one at each
out of it and earlier ones.
"""

# in ``FederatedData.truth``: a device whose data are, after a shift, of none of the generator's
# groups
NO_GROUP = -1
# added to each standard deviation, as FedProx and Ditto do: border pixels never change
_STD_FLOOR = 0.001
_BLOCK = 4096


class TokenShape(tuple[int, ...]):
    """The shape of a sample of tokens, integers 0..vocabulary-1; samples of any other shape are
    numbers.
    """

    vocabulary: int
    answers: TokenAnswers

    @classmethod
    def of(
        cls, shape: tuple[int, ...], vocabulary: int, answers: TokenAnswers = "one"
    ) -> "TokenShape":
        made = cls(shape)
        made.vocabulary = vocabulary
        made.answers = answers
        return made


@dataclass(frozen=True)
class Pool:
    """All samples of a data set, once.

    Attributes:
        x: samples, shape [n, *shape]; uint8 as published, float32, or int64 for tokens.
        y: labels 0..classes-1, int64 [n], by which partitions deal; all 0 where there are none
            (``labelled``).
        classes: number of labels.
        scale, mean, std: ``x`` is multiplied, lessened and divided by these; scalars, or arrays
            that broadcast to ``shape``.
        targets: what a model is to give for each sample, [n, ...]; None for the labels.
        outputs: numbers that a model gives for each answer; 0 for one a class.
        vocabulary: number of tokens, of which samples are made; 0 where they are no tokens.
        answers: outputs for a sequence of tokens: one for all, one at ``each`` token, or at each
            but for the ``next`` one.
        labelled: whether there are labels.
    """

    x: Samples
    y: NDArray[np.int64]
    classes: int
    scale: float = 1.0
    mean: float | NDArray[np.float32] = 0.0
    std: float | NDArray[np.float32] = 1.0
    targets: NDArray[Any] | None = None
    outputs: int = 0
    vocabulary: int = 0
    answers: TokenAnswers = "one"
    labelled: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: (channels, height, width) for images, (features,) for vectors,
        (length,) for tokens.
        """
        shape = tuple(self.x.shape[1:])
        return TokenShape.of(shape, self.vocabulary, self.answers) if self.vocabulary else shape

    def normalised(self, raw: NDArray[Any]) -> NDArray[Any]:
        """Raw samples [k, *shape] as the model sees them, in the same memory."""
        if not self.vocabulary:
            raw *= np.float32(self.scale)
            raw -= self.mean
            raw /= self.std
        return raw


@dataclass(frozen=True)
class Shard:
    """One device's data in one version: indices into the pool, and the transform of the samples.

    Attributes:
        train, test: pool indices, int32; a training image may occur several times, augmented
            differently.
        quarter_turns: images are rotated by this many quarter turns, counter-clockwise.
        label_map: new label of each class, int64 [C].
        augment_seed: sample j of ``train`` is augmented by the draw (augment_seed, j).
        flips: the label l of a training sample, after ``label_map``, becomes C - 1 - l.
    """

    train: Index
    test: Index
    quarter_turns: int = 0
    label_map: NDArray[np.int64] | None = None
    augment_seed: int | None = None
    flips: bool = False


@dataclass
class FederatedData:
    """The data of a whole population; made for each run. ``federated`` makes it for a partition."""

    pool: Pool
    """all samples."""
    shards: list[Shard]
    """version 0 of each device's shard; the position is the device."""
    augmentation: Augmentation | None = None
    """distortion of training images (``data.augmentation``); None for none."""
    truth: NDArray[np.int64] | None = None
    """true group of each device's present data, int64 [devices], or ``NO_GROUP``; None: unknown.

    Hidden from strategies.
    """
    flipping: frozenset[int] = frozenset()
    """devices that flip their training labels, whatever data they come to hold."""
    initial_truth: NDArray[np.int64] | None = field(init=False, repr=False)
    """``truth`` as it was before any shift."""
    _versions: NDArray[np.int64] = field(init=False, repr=False)
    _later: dict[tuple[int, int], Shard] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.initial_truth = self.truth
        self.truth = None if self.truth is None else self.truth.copy()
        self._versions = np.zeros(len(self.shards), dtype=np.int64)

    def shard(self, device: int, version: int = 0) -> Shard:
        """The shard of ``device`` as it was in ``version`` (0 before any shift)."""
        held = self._later[device, version] if version else self.shards[device]
        flips = device in self.flipping  # another's shard may have come by an exchange
        return held if held.flips == flips else replace(held, flips=flips)

    def version(self, device: int) -> int:
        """The number of the data that ``device`` holds now; 0 before any shift."""
        return int(self._versions[device])

    def current(self, device: int) -> Shard:
        """The shard that ``device`` holds now."""
        return self.shard(device, self.version(device))

    def replace_shard(self, device: int, shard: Shard) -> int:
        """From now on ``device`` holds ``shard``, its next version, whose number is returned;
        ``truth`` is left alone.
        """
        version = self.version(device) + 1
        self._versions[device] = version
        self._later[device, version] = shard
        return version

    def train_sizes(self) -> NDArray[np.int64]:
        """Training samples of each device, version 0; int64 [devices]."""
        return np.array([len(shard.train) for shard in self.shards], dtype=np.int64)

    def train_samples(self, shard: Shard) -> tuple[NDArray[Any], NDArray[Any]]:
        """The training samples as the model sees them: x float32 (tokens: int64) [n, *shape],
        and their targets [n, ...].
        """
        raw = self._turned(shard, shard.train)
        targets = self.pool.targets
        if shard.augment_seed is not None and self.augmentation is not None:
            raw = augment(raw, self.augmentation, shard.augment_seed)
        return self.pool.normalised(raw), self.train_labels(shard) if targets is None else targets[
            shard.train
        ]

    def test_samples(self, shard: Shard) -> tuple[NDArray[Any], NDArray[Any]]:
        """The test samples as the model sees them, never augmented, and their targets; as
        ``train_samples`` has them.
        """
        x = self.pool.normalised(self._turned(shard, shard.test))
        targets = self.pool.targets
        return x, self.test_labels(shard) if targets is None else targets[shard.test]

    def train_labels(self, shard: Shard) -> NDArray[np.int64]:
        """The label of each training sample as the device sees it; int64 [n]."""
        labels = self._labels(shard, shard.train)
        return self.pool.classes - 1 - labels if shard.flips else labels

    def test_labels(self, shard: Shard) -> NDArray[np.int64]:
        """The label of each test sample as the device sees it; int64 [m]."""
        return self._labels(shard, shard.test)

    def label_counts(self, shard: Shard) -> NDArray[np.int64]:
        """Training samples of each class as the device sees its labels; int64 [C]."""
        return np.bincount(self.train_labels(shard), minlength=self.pool.classes)

    def on_one_device(self) -> "FederatedData":
        """One device with the samples of all, as each device sees them: the reference line of
        centralised training.
        """
        held = [(shard, shard.train) for shard in self.shards] + [
            (shard, shard.test) for shard in self.shards
        ]
        index = np.concatenate([own for _, own in held])
        size = int(self.train_sizes().sum())
        if all(shard.quarter_turns == 0 and shard.label_map is None for shard in self.shards):
            return FederatedData(self.pool, [Shard(index[:size], index[size:])])
        x, y = (
            np.concatenate([seen(*own) for own in held]) for seen in (self._turned, self._labels)
        )
        places = np.arange(len(y), dtype=np.int32)
        targets = None if self.pool.targets is None else self.pool.targets[index]
        return FederatedData(
            replace(self.pool, x=x, y=y, targets=targets), [Shard(places[:size], places[size:])]
        )

    def _turned(self, shard: Shard, index: Index) -> NDArray[Any]:
        raw: NDArray[Any] = self.pool.x[index]
        if self.pool.vocabulary:
            return raw
        raw = raw.astype(np.float32)
        return rotate(raw, shard.quarter_turns) if shard.quarter_turns else raw

    def _labels(self, shard: Shard, index: Index) -> NDArray[np.int64]:
        labels = self.pool.y[index]
        return labels if shard.label_map is None else shard.label_map[labels]


def stratified_part(labels: NDArray[np.int64], splits: int, number: int) -> NDArray[np.int64]:
    """Positions of the samples in part ``number``, from 1, out of 2^``splits``; ascending by
    label, int64.

    A label's counts in two parts differ by at most 1, and so do the parts' sizes
    (``Part.samples``); another split halves each part x into x and x + 2^u.
    """
    return np.argsort(labels, kind="stable")[number - 1 :: 2**splits]


@dataclass(frozen=True)
class Raw:
    """A data set as published.

    Attributes:
        name: name of the data set, in messages.
        x_train, x_test: samples [n, *shape]; uint8 images with channels first [n, c, h, w],
            float32, or int64 for tokens.
        y_train, y_test: labels 0..C-1, int64 [n]; or targets of any other kind, such as float32
            [n, k].
        classes: number of classes C; of targets the numbers that a model gives for each.
        peak: the value of a full pixel, by which ``pixel`` divides; 1 for data that are no pixels.
        vocabulary: samples are tokens 0..vocabulary-1; 0: they are not.
        columns: further integers of each sample by name, training samples first, by which
            partitions can deal; int64 [n].
    """

    name: str
    x_train: Samples
    y_train: NDArray[Any]
    x_test: Samples
    y_test: NDArray[Any]
    classes: int
    peak: float = 255.0
    vocabulary: int = 0
    columns: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)


@dataclass(frozen=True)
class Dataset:
    """One pool, with the published training samples first and the test samples after them.

    Attributes:
        name: name of the data set, in messages.
        pool: all samples; ``pool.y`` are the labels by which partitions deal.
        train_size: number of training samples.
    """

    name: str
    pool: Pool
    train_size: int

    @property
    def all(self) -> Index:
        """Pool indices of all samples, int32 [n]."""
        return np.arange(len(self.pool.y), dtype=np.int32)

    @property
    def train(self) -> Index:
        """Pool indices of the training samples, int32."""
        return self.all[: self.train_size]

    @property
    def test(self) -> Index:
        """Pool indices of the test samples, int32."""
        return self.all[self.train_size :]

    def by_class(self, index: Index) -> list[Index]:
        """``index`` cut up by label, each part in the order of ``index``; one part a class."""
        labels = self.pool.y[index]
        return [index[labels == label] for label in range(self.pool.classes)]


def pooled(
    raw: Raw, normalise: Normalise, *, over_test: bool = False, column: str | None = None
) -> Dataset:
    """All samples of ``raw`` in one pool, labelled by ``column`` if given; ``over_test``
    standardises over test samples too.
    """
    x = np.concatenate([raw.x_train, raw.x_test])
    y = np.concatenate([raw.y_train, raw.y_test])
    pool = Pool(x, y, raw.classes, vocabulary=raw.vocabulary)
    if y.ndim > 1 or y.dtype != np.int64:
        targets = y if y.size else None
        pool = replace(
            pool,
            y=np.zeros(len(y), np.int64),
            classes=1,
            targets=targets,
            outputs=raw.classes,
            labelled=False,
        )
    if column is not None:
        if column not in raw.columns:
            known = f"{', '.join(raw.columns) or 'none'}{nearest(column, raw.columns)}"
            raise ScenarioError(
                f"data.column is {column!r}; the columns of '{raw.name}' are {known}"
            )
        names, labels = np.unique(raw.columns[column], return_inverse=True)
        pool = replace(
            pool,
            y=labels.astype(np.int64),
            classes=len(names),
            targets=y,
            outputs=raw.classes,
            labelled=True,
        )
    if normalise == "standardise" and not raw.vocabulary:
        basis = x if over_test else raw.x_train
        # summed in float64
        blocks = [basis[start : start + _BLOCK] for start in range(0, len(basis), _BLOCK)]
        mean = sum(block.sum(axis=0, dtype=np.float64) for block in blocks) / len(basis)
        std = np.sqrt(
            sum(((block - mean) ** 2).sum(axis=0) for block in blocks) / len(basis),
            dtype=np.float64,
        )
        pool = replace(
            pool,
            mean=np.asarray(mean, np.float32),
            std=std.astype(np.float32) + np.float32(_STD_FLOOR),
        )
    elif normalise == "pixel":
        pool = replace(pool, scale=1.0 / raw.peak)
    return Dataset(raw.name, pool, len(raw.y_train))
