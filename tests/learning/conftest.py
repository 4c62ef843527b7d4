"""Data for the tests: small pools made here, and the published sets where they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from fedsim.learning.data.federated import Dataset, FederatedData, Pool, Raw, Shard, pooled
from fedsim.toolbox.sources.images import Fashion, Mnist


def grey_images(train_per_class: int, test_per_class: int, classes: int = 10, side: int = 8) -> Raw:
    """Labels as given, classes interleaved; pixels random."""
    rng = np.random.default_rng(5)
    sizes = (train_per_class * classes, test_per_class * classes)
    x_train, x_test = (
        rng.integers(0, 256, (size, 1, side, side), dtype=np.uint8) for size in sizes
    )
    y_train, y_test = (np.arange(size) % classes for size in sizes)
    return Raw("pictures", x_train, y_train, x_test, y_test, classes)


@pytest.fixture(scope="session")
def small() -> Dataset:
    """600 + 200 images of 10 classes."""
    return pooled(grey_images(60, 20), "pixel")


@pytest.fixture(scope="session")
def letters() -> Dataset:
    """As large as FEMNIST's ten letters, but one pixel an image."""
    return pooled(grey_images(4000, 1, side=1), "pixel")


@pytest.fixture(scope="session")
def data_root(data_folder: Path) -> Path:
    if not (data_folder / "mnist").is_dir() or not (data_folder / "fashion-mnist").is_dir():
        pytest.skip(f"MNIST and Fashion-MNIST are not in {data_folder}: set FEDSIM_DATA")
    return data_folder


@pytest.fixture(scope="session")
def mnist_raw(data_root: Path) -> Raw:
    return Mnist().load(data_root)


@pytest.fixture(scope="session")
def mnist(mnist_raw: Raw) -> Dataset:
    return pooled(mnist_raw, "standardize", over_test=True)


@pytest.fixture(scope="session")
def fashion(data_root: Path) -> Dataset:
    return pooled(Fashion().load(data_root), "standardize")


def held_out(data: FederatedData) -> np.ndarray:
    """Test samples of each device."""
    return np.array([len(shard.test) for shard in data.shards])


def label_table(data: FederatedData) -> np.ndarray:
    """Training samples of each class on each device [devices, C]."""
    return np.array([data.label_counts(shard) for shard in data.shards])


def all_train(data: FederatedData) -> np.ndarray:
    return np.concatenate([shard.train for shard in data.shards])


def all_test(data: FederatedData) -> np.ndarray:
    return np.concatenate([shard.test for shard in data.shards])


def assert_each_once(index: np.ndarray, expected: np.ndarray) -> None:
    """``index`` holds exactly ``expected``, none twice."""
    assert np.array_equal(np.sort(index), expected)


def assert_same(one: FederatedData, other: FederatedData) -> None:
    """Each device held the same at first."""
    assert list(map(_facts, one.shards)) == list(map(_facts, other.shards))


def assert_same_now(one: FederatedData, other: FederatedData) -> None:
    """Each device holds the same now."""
    now = [
        [_facts(data.current(device)) for device in range(len(data.shards))]
        for data in (one, other)
    ]
    assert now[0] == now[1]


def _facts(shard: Shard) -> tuple[Any, ...]:
    label_map = None if shard.label_map is None else shard.label_map.tolist()
    return (
        shard.train.tolist(),
        shard.test.tolist(),
        shard.quarter_turns,
        label_map,
        shard.augment_seed,
    )


def assert_well_formed(data: FederatedData, dataset: Dataset, devices: int) -> None:
    """What holds for every partition: a shard a device, none without training data, no test
    sample trained on by its device.
    """
    assert len(data.shards) == devices
    assert data.train_sizes().min() >= 1
    for shard in data.shards:
        assert (shard.train.dtype, shard.test.dtype) == (np.int32, np.int32)
        assert not np.intersect1d(shard.train, shard.test).size
        assert max(shard.train.max(), shard.test.max(initial=0)) < len(dataset.pool.y)
    assert data.truth is None or data.truth.shape == (devices,)


CLASSES = 5
SAMPLES = 60


def tiny_pool() -> Pool:
    """60 square images of 2 x 2 pixels; the label of sample i is i mod 5."""
    x = np.random.default_rng(4).integers(0, 256, (SAMPLES, 1, 2, 2), dtype=np.uint8)
    return Pool(x, np.arange(SAMPLES) % CLASSES, CLASSES)


def plain(*parts: tuple[list[int], list[int]], truth: list[int] | None = None) -> FederatedData:
    """Devices with the given training and test samples."""
    shards = [
        Shard(np.array(train, dtype=np.int32), np.array(test, dtype=np.int32))
        for train, test in parts
    ]
    return FederatedData(tiny_pool(), shards, truth=None if truth is None else np.array(truth))


def one_class_each(devices: int, *, truth: bool = True) -> FederatedData:
    """Device d trains on sample d and is tested on sample d + 5: both of class d mod 5, which is
    its true group.
    """
    parts = [([d % (SAMPLES - 5)], [d % (SAMPLES - 5) + 5]) for d in range(devices)]
    return plain(*parts, truth=[d % CLASSES for d in range(devices)] if truth else None)


@st.composite
def populations(draw: st.DrawFn, *, alike: bool = False) -> FederatedData:
    """Up to 12 devices of up to 8 + 4 samples (some without test samples); unless alike, turned
    and relabelled at random.
    """
    devices = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shards = []
    for _ in range(devices):
        train, test = (
            rng.integers(0, SAMPLES, rng.integers(low, high)).astype(np.int32)
            for low, high in ((1, 9), (0, 5))
        )
        turns = 0 if alike else int(rng.integers(0, 4))
        label_map = None if alike or rng.random() < 0.5 else rng.permutation(CLASSES)
        seed = None if alike else int(rng.integers(0, 2**40))
        shards.append(Shard(train, test, turns, label_map, seed))
    return FederatedData(tiny_pool(), shards, truth=rng.integers(0, 3, devices))


def samples(
    data: FederatedData, shard: Shard
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """(pool index, label, quarter turns) of a device's training and its test samples, sorted."""

    def of(index: np.ndarray, labels: np.ndarray) -> list[tuple[int, ...]]:
        return sorted(
            zip(
                index.tolist(), labels.tolist(), [shard.quarter_turns % 4] * len(index), strict=True
            )
        )

    return of(shard.train, data.train_labels(shard)), of(shard.test, data.test_labels(shard))


def all_samples(data: FederatedData) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The same of all devices together, as they are now."""
    held = [samples(data, data.current(device)) for device in range(len(data.shards))]
    return sorted(one for train, _ in held for one in train), sorted(
        one for _, test in held for one in test
    )


def truth(data: FederatedData) -> list[int]:
    """The true groups, where they are known."""
    assert data.truth is not None
    return data.truth.tolist()  # type: ignore[no-any-return]


def everyone(data: FederatedData) -> np.ndarray:
    return np.arange(len(data.shards))
