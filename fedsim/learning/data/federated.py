"""Data of all devices: one pool of samples, and each device's shard of the pool.

A shard has indices into the pool and a transform. Transformed samples are computed on demand. A
shift of data adds the next version of a shard. Earlier versions are kept, because a training is
often computed long after its simulated time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import ScenarioError, nearest
from fedsim.learning.data.transforms import Augmentation, augment, rotate

Index = NDArray[np.int32]

Samples = NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int64]
Normalize = Literal["pixel", "standardize", "none"]
TokenAnswers = Literal["one", "each", "next"]
"""Outputs of a model for a sequence of tokens.

``one``: a single output for the sequence. ``each``: one output at each token. ``next``: at each
token, a prediction of the next token from this token and all earlier tokens.
"""

NO_GROUP = -1
"""True group (``FederatedData.truth``) of a device whose shifted data belong to no group."""

# Added to each standard deviation, as the code of FedProx and Ditto does. The standard deviation of
# a pixel at the border may be 0.
_STD_FLOOR = 0.001
_BLOCK = 4096  # count of samples in one block of a sum, which limits the working memory


class TokenShape(tuple[int, ...]):
    """Shape of a sample of tokens, which are integers: a tuple with two attributes.

    A sample whose shape is a plain tuple consists of numbers.

    Attributes:
        vocabulary: count of different tokens; these are 0 to ``vocabulary`` - 1.
        answers: the predictions of a model for a sequence: ``one`` for the whole sequence, one for
            ``each`` token, or the ``next`` token after each token.
    """

    vocabulary: int
    answers: TokenAnswers

    @classmethod
    def of(
        cls, shape: tuple[int, ...], vocabulary: int, answers: TokenAnswers = "one"
    ) -> "TokenShape":
        """Build the shape of a sample of tokens.

        Args:
            shape: shape of a sample, (length,).
            vocabulary: count of different tokens.
            answers: the predictions of a model for a sequence: ``one`` for the whole sequence, one
                for ``each`` token, or the ``next`` token after each token.
        """
        token_shape = cls(shape)
        token_shape.vocabulary = vocabulary
        token_shape.answers = answers
        return token_shape


@dataclass(frozen=True)
class Pool:
    """All samples of a data set, each stored once; devices hold indices into the pool.

    Attributes:
        x: samples, [n, *shape]; uint8 as published, float32, or int64 for tokens.
        y: labels 0..classes-1, int64 [n], by which partitions divide the samples among devices;
            all 0 if there are no labels.
        classes: count of different labels.
        scale, mean, std: a model receives (scale x - mean) / std; scalars, or arrays that broadcast
            to ``shape``.
        targets: the target of each sample, [n, ...]; None if the labels are the targets.
        outputs: count of values that a model outputs for each answer (prediction); 0 for one value
            per class.
        vocabulary: count of different tokens; 0 if samples are no tokens.
        answers: the predictions of a model for a sequence: ``one`` for the whole sequence, one for
            ``each`` token, or the ``next`` token after each token.
        labelled: whether the samples have labels.
    """

    x: Samples
    y: NDArray[np.int64]
    classes: int
    scale: float = 1.0
    mean: float | NDArray[np.float32] = 0.0
    std: float | NDArray[np.float32] = 1.0
    targets: AnyArray | None = None
    outputs: int = 0
    vocabulary: int = 0
    answers: TokenAnswers = "one"
    labelled: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample.

        (channels, height, width) for images, (features,) for vectors, (length,) for tokens.
        """
        shape = tuple(self.x.shape[1:])
        if self.vocabulary:
            return TokenShape.of(shape, self.vocabulary, self.answers)
        return shape

    def normalised(self, raw: AnyArray) -> AnyArray:
        """Scale and standardise samples; tokens are unchanged.

        Args:
            raw: samples as in ``x``, [k, *shape]; this array is overwritten.

        Returns:
            ``raw`` with the samples as a model receives them, [k, *shape].
        """
        if not self.vocabulary:
            raw *= np.float32(self.scale)
            raw -= self.mean
            raw /= self.std
        return raw


@dataclass(frozen=True)
class Shard:
    """A device's data: its samples, as indices into the pool of all samples, and their transform.

    A shift of data replaces the shard by a new version.

    Attributes:
        train, test: pool indices, int32. A training image may occur several times, with different
            augmentations.
        quarter_turns: quarter turns by which images are rotated, counter-clockwise.
        label_map: new label of each of the C classes, int64 [C]; None to keep the labels.
        augment_seed: seed of the augmentation; the random numbers that distort sample j of
            ``train`` depend on the seed and j. None: no augmentation.
        flips: whether the label l of a training sample, after ``label_map``, becomes C - 1 - l, on
            a malicious device; C is the count of classes.
    """

    train: Index
    test: Index
    quarter_turns: int = 0
    label_map: NDArray[np.int64] | None = None
    augment_seed: int | None = None
    flips: bool = False


@dataclass
class FederatedData:
    """The data of all devices of a run: the pool of samples, and each device's shard of it.

    A partition returns it, built by ``federated``. A shift of data adds a new version of a device's
    shard; earlier versions are kept.

    Attributes:
        pool: all samples.
        shards: each device's shard before any shift, by index of the device.
        augmentation: distortion of training images (``data.augmentation``); None for none.
        truth: true group of each device, int64 [devices]: the group of devices with similar data
            to which the partition or a shift has assigned it; ``NO_GROUP`` for a device whose
            shifted data belong to no group; None if the partition has no groups. Strategies cannot
            read it.
        flipping: malicious devices that flip their training labels, in every version of their data.
        initial_truth: ``truth`` as it was before any shift.
    """

    pool: Pool
    shards: list[Shard]
    augmentation: Augmentation | None = None
    truth: NDArray[np.int64] | None = None
    flipping: frozenset[int] = frozenset()
    initial_truth: NDArray[np.int64] | None = field(init=False, repr=False)
    # version of each device's current data, int64 [devices]
    _versions: NDArray[np.int64] = field(init=False, repr=False)
    # (device, version from 1 on) -> shard
    _later: dict[tuple[int, int], Shard] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.initial_truth = self.truth
        self.truth = None if self.truth is None else self.truth.copy()
        self._versions = np.zeros(len(self.shards), dtype=np.int64)

    def shard(self, device: int, version: int = 0) -> Shard:
        """Return a device's shard (sample indices and transform) in a version of its data.

        Args:
            device: index of the device.
            version: index of the version; 0 is the shard before any shift.
        """
        shard = self._later[device, version] if version else self.shards[device]
        flips = device in self.flipping
        if shard.flips != flips:  # the shard came from another device by an exchange
            shard = replace(shard, flips=flips)
        return shard

    def version(self, device: int) -> int:
        """Return the version of a device's current data: how often the data were replaced.

        Args:
            device: index of the device.
        """
        return int(self._versions[device])

    def current(self, device: int) -> Shard:
        """Return the current shard of a device: its sample indices and their transform.

        Args:
            device: index of the device.
        """
        return self.shard(device, self.version(device))

    def replace_shard(self, device: int, shard: Shard) -> int:
        """Replace a device's data by a new version; a shift of data calls this method.

        The attribute ``truth``, the true group of each device, is unchanged. If the new data
        belong to another group, the shift itself must set ``truth[device]``.

        Args:
            device: index of the device.
            shard: the new samples of the device, and their transformation.

        Returns:
            The index of the new version.
        """
        version = self.version(device) + 1
        self._versions[device] = version
        self._later[device, version] = shard
        return version

    def train_sizes(self) -> NDArray[np.int64]:
        """Return each device's count of training samples before any shift, int64 [devices]."""
        return np.array([len(shard.train) for shard in self.shards], dtype=np.int64)

    def train_samples(self, shard: Shard) -> tuple[AnyArray, AnyArray]:
        """Return the training samples of a shard, transformed and normalised.

        Args:
            shard: a device's data: samples of the pool, and their transformation.

        Returns:
            The samples, float32 (tokens: int64) [n, *shape], and their targets, [n, ...].
        """
        x = self.pool.normalised(self._as_float(self.raw_train(shard)))
        return x, self.train_targets(shard)

    def test_samples(self, shard: Shard) -> tuple[AnyArray, AnyArray]:
        """Return the test samples of a shard, transformed and normalised, and never augmented.

        Args:
            shard: a device's data: samples of the pool, and their transformation.

        Returns:
            The samples, float32 (tokens: int64) [m, *shape], and their targets, [m, ...].
        """
        x = self.pool.normalised(self._as_float(self.raw_test(shard)))
        return x, self.test_targets(shard)

    def raw_train(self, shard: Shard) -> AnyArray:
        """Return the training samples of a shard, transformed and not normalised.

        Args:
            shard: a device's data: samples of the pool, and their transformation.

        Returns:
            The samples in new memory, [n, *shape]; float32 if they are augmented, otherwise in the
            dtype of the pool.
        """
        raw = self._rotated(shard, shard.train)
        if shard.augment_seed is None or self.augmentation is None:
            return raw
        return augment(self._as_float(raw), self.augmentation, shard.augment_seed)

    def raw_test(self, shard: Shard) -> AnyArray:
        """Return the test samples of a shard, transformed and not normalised.

        Args:
            shard: a device's data: samples of the pool, and their transformation.

        Returns:
            The samples in new memory, [m, *shape], in the dtype of the pool.
        """
        return self._rotated(shard, shard.test)

    def train_targets(self, shard: Shard) -> AnyArray:
        """Return the target of each training sample of a shard, [n, ...].

        Args:
            shard: a device's data: samples of the pool, and their transformation.
        """
        if self.pool.targets is None:
            return self.train_labels(shard)
        return self.pool.targets[shard.train]

    def test_targets(self, shard: Shard) -> AnyArray:
        """Return the target of each test sample of a shard, [m, ...].

        Args:
            shard: a device's data: samples of the pool, and their transformation.
        """
        if self.pool.targets is None:
            return self.test_labels(shard)
        return self.pool.targets[shard.test]

    def train_labels(self, shard: Shard) -> NDArray[np.int64]:
        """Return the label of each training sample of a shard, int64 [n].

        Labels are mapped by the shard's ``label_map``, and flipped for devices that flip their
        labels.

        Args:
            shard: a device's data: samples of the pool, and their transformation.
        """
        labels = self._mapped_labels(shard, shard.train)
        return self.pool.classes - 1 - labels if shard.flips else labels

    def test_labels(self, shard: Shard) -> NDArray[np.int64]:
        """Return the label of each test sample of a shard, int64 [m].

        Labels are mapped by the shard's ``label_map``, and never flipped.

        Args:
            shard: a device's data: samples of the pool, and their transformation.
        """
        return self._mapped_labels(shard, shard.test)

    def label_counts(self, shard: Shard) -> NDArray[np.int64]:
        """Return the count of training samples with each label, int64 [C].

        Args:
            shard: a device's data: samples of the pool, and their transformation.
        """
        return np.bincount(self.train_labels(shard), minlength=self.pool.classes)

    def on_one_device(self) -> "FederatedData":
        """Return the same samples as data of a single device, for centralised training.

        The samples keep the rotation and the label map of their device's shard.
        """
        # shard and pool indices: the training samples of all devices, then all test samples
        parts = [(shard, shard.train) for shard in self.shards]
        parts += [(shard, shard.test) for shard in self.shards]
        index = np.concatenate([part_index for _, part_index in parts])
        pool = self.pool
        is_transformed = any(
            shard.quarter_turns or shard.label_map is not None for shard in self.shards
        )
        if is_transformed:
            # a new pool of transformed samples, as devices may have one sample in two orientations
            x = np.concatenate([self._rotated(shard, samples) for shard, samples in parts])
            y = np.concatenate([self._mapped_labels(shard, samples) for shard, samples in parts])
            targets = None if pool.targets is None else pool.targets[index]
            pool = replace(pool, x=x, y=y, targets=targets)
            index = np.arange(len(y), dtype=np.int32)
        train_size = int(self.train_sizes().sum())
        return FederatedData(pool, [Shard(index[:train_size], index[train_size:])])

    def _rotated(self, shard: Shard, index: Index) -> AnyArray:
        raw: AnyArray = self.pool.x[index]
        if self.pool.vocabulary or not shard.quarter_turns:
            return raw
        return rotate(raw, shard.quarter_turns)

    def _as_float(self, raw: AnyArray) -> AnyArray:
        return raw if self.pool.vocabulary else raw.astype(np.float32, copy=False)

    def _mapped_labels(self, shard: Shard, index: Index) -> NDArray[np.int64]:
        labels = self.pool.y[index]
        return labels if shard.label_map is None else shard.label_map[labels]


def stratified_part(labels: NDArray[np.int64], splits: int, number: int) -> NDArray[np.int64]:
    """Divide a device's samples into 2^``splits`` similar parts, and return one of them.

    It is used for trainings on a part of a device's samples. Any two parts differ by at most 1 in
    their count of samples of a label, and in their count of all samples. With ``splits`` + 1 in
    place of ``splits``, part k is halved into the parts k and k + 2^``splits``.

    Args:
        labels: label of each sample, int64 [n].
        splits: how many times the samples are halved; 0 for a single part with all samples.
        number: number of the part that is returned, 1 to 2^``splits``.

    Returns:
        Indices of the samples in the part, sorted by label, int64.
    """
    by_label = np.argsort(labels, kind="stable")
    return by_label[number - 1 :: 2**splits]


@dataclass(frozen=True)
class Raw:
    """A data set as a source has loaded it, before normalisation and before its partition.

    Attributes:
        name: name of the data set, in messages.
        x_train, x_test: samples [n, *shape]; uint8 images with channels first [n, c, h, w],
            float32, or int64 for tokens.
        y_train, y_test: labels 0..C-1, int64 [n]; or targets of any other kind, such as float32
            [n, k].
        classes: count of classes C; for targets, the count of values that a model outputs.
        peak: the value of a white pixel, by which ``normalize = "pixel"`` divides; 1 if samples
            are no images.
        vocabulary: count of different tokens; 0 if samples are no tokens.
        columns: name -> an additional integer of each sample, such as its writer, by which
            partitions can divide the samples (``data.column``); int64 [n], training samples first.

    Example:
        >>> import numpy as np
        >>> from fedsim.plugin import Raw
        >>> x = np.arange(12, dtype=np.float32).reshape(6, 2)
        >>> y = np.array([0, 1, 0, 1, 0, 1])
        >>> raw = Raw("points", x[:4], y[:4], x[4:], y[4:], classes=2, peak=1.0)
        >>> raw.x_train.shape, raw.x_test.shape
        ((4, 2), (2, 2))
    """

    name: str
    x_train: Samples
    y_train: AnyArray
    x_test: Samples
    y_test: AnyArray
    classes: int
    peak: float = 255.0
    vocabulary: int = 0
    columns: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)


@dataclass(frozen=True)
class Dataset:
    """Loaded data set, which a partition divides among the devices.

    Attributes:
        name: name of the data set, in messages.
        pool: all samples; partitions use their labels, ``pool.y``.
        train_size: count of training samples.

    Example:
        >>> import numpy as np
        >>> from fedsim.plugin import Dataset, Pool
        >>> x = np.zeros((6, 2), dtype=np.float32)
        >>> pool = Pool(x, np.array([0, 1, 0, 1, 0, 1]), classes=2)
        >>> dataset = Dataset("points", pool, train_size=4)
        >>> dataset.train.tolist(), dataset.test.tolist()
        ([0, 1, 2, 3], [4, 5])
        >>> [part.tolist() for part in dataset.by_class(dataset.train)]
        [[0, 2], [1, 3]]
    """

    name: str
    pool: Pool
    train_size: int

    @property
    def all(self) -> Index:
        """Indices of all samples in ``pool``, int32 [n]."""
        return np.arange(len(self.pool.y), dtype=np.int32)

    @property
    def train(self) -> Index:
        """Indices of the training samples in ``pool``, int32 [n]."""
        return self.all[: self.train_size]

    @property
    def test(self) -> Index:
        """Indices of the test samples in ``pool``, int32 [n]."""
        return self.all[self.train_size :]

    def by_class(self, index: Index) -> list[Index]:
        """Split indices of samples by the samples' labels.

        Args:
            index: indices of samples in ``pool``, int32 [n].

        Returns:
            For each class, from 0 on, the indices of its samples, in the order of ``index``.
        """
        labels = self.pool.y[index]
        return [index[labels == label] for label in range(self.pool.classes)]


def pooled(
    raw: Raw, normalize: Normalize, *, over_test: bool = False, column: str | None = None
) -> Dataset:
    """Build a data set that a partition can divide among devices, from a loaded data set.

    All samples are in one pool, training samples first, and the pool has the numbers by which
    samples are normalised at each use.

    Args:
        raw: the loaded data set.
        normalize: the normalisation: ``pixel`` (division by the white pixel's value),
            ``standardize`` (mean 0 and standard deviation 1 of each pixel), or ``none``.
        over_test: whether mean and standard deviation include the test samples.
        column: the column whose values are the labels; None for the data set's own labels.

    Raises:
        ScenarioError: the data set has no such column.
    """
    x = np.concatenate([raw.x_train, raw.x_test])
    y = np.concatenate([raw.y_train, raw.y_test])
    pool = Pool(x, y, raw.classes, vocabulary=raw.vocabulary)
    if column is not None:  # the column's values divide the samples; a model still predicts y
        values, labels = np.unique(_column_of(raw, column), return_inverse=True)
        labels = labels.astype(np.int64)
        pool = replace(pool, y=labels, classes=len(values), targets=y, outputs=raw.classes)
    elif y.ndim > 1 or y.dtype != np.int64:  # targets instead of labels
        pool = replace(
            pool,
            y=np.zeros(len(y), np.int64),
            classes=1,
            targets=y if y.size else None,
            outputs=raw.classes,
            labelled=False,
        )
    if normalize == "standardize" and not raw.vocabulary:
        mean, std = _mean_and_std(x if over_test else raw.x_train)
        pool = replace(pool, mean=mean, std=std + np.float32(_STD_FLOOR))
    elif normalize == "pixel":
        pool = replace(pool, scale=1.0 / raw.peak)
    return Dataset(raw.name, pool, len(raw.y_train))


def _column_of(raw: Raw, column: str) -> NDArray[np.int64]:
    if column in raw.columns:
        return raw.columns[column]
    names = ", ".join(raw.columns) or "none"
    raise ScenarioError(
        f"data.column is {column!r}; the columns of '{raw.name}' are "
        f"{names}{nearest(column, raw.columns)}"
    )


def _mean_and_std(x: Samples) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Compute mean and standard deviation over samples in float64; return float32 [*shape] each."""
    blocks = [x[start : start + _BLOCK] for start in range(0, len(x), _BLOCK)]
    mean = sum(block.sum(axis=0, dtype=np.float64) for block in blocks) / len(x)
    variance = sum(((block - mean) ** 2).sum(axis=0) for block in blocks) / len(x)
    std = np.sqrt(variance, dtype=np.float64)
    return np.asarray(mean, np.float32), std.astype(np.float32)
