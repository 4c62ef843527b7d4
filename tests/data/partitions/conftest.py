"""What several partitions' tests ask."""

import numpy as np

from fedsim.data.dataset import Dataset
from fedsim.data.federated import FederatedData


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
    assert len(one.shards) == len(other.shards)
    for mine, yours in zip(one.shards, other.shards, strict=True):
        assert np.array_equal(mine.train, yours.train)
        assert np.array_equal(mine.test, yours.test)
        assert (mine.quarter_turns, mine.augment_seed) == (yours.quarter_turns, yours.augment_seed)


def assert_well_formed(data: FederatedData, dataset: Dataset, devices: int) -> None:
    """What holds for every partition: a shard a device, none without training data, no test sample trained on by its device."""
    assert len(data.shards) == devices
    assert data.train_sizes().min() >= 1
    for shard in data.shards:
        assert (shard.train.dtype, shard.test.dtype) == (np.int32, np.int32)
        assert not np.intersect1d(shard.train, shard.test).size
        assert max(shard.train.max(), shard.test.max(initial=0)) < len(dataset.pool.y)
    assert data.truth is None or data.truth.shape == (devices,)
