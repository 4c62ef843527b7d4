"""A shard is an index and a transform; its samples come into being when they are asked for."""

from dataclasses import replace

import numpy as np

from fedsim.data.dataset import Dataset
from fedsim.data.federated import FederatedData, Shard
from fedsim.data.transforms import Augmentation, augment, rotate
from tests.data.conftest import held_out


def index(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def test_a_plain_shard_gives_normalised_samples_in_its_order(small: Dataset) -> None:
    data = FederatedData(small.pool, [Shard(index(12, 3, 3), index(700))])
    x, y = data.train_samples(data.shards[0])
    assert np.array_equal(x, small.pool.x[[12, 3, 3]].astype(np.float32) * np.float32(1 / 255))
    assert (x.dtype, y.tolist()) == (np.float32, [2, 3, 3])
    assert (data.train_sizes().tolist(), held_out(data).tolist()) == ([3], [1])
    assert data.label_counts(data.shards[0]).tolist() == [0, 0, 1, 2, 0, 0, 0, 0, 0, 0]


def test_labels_and_images_turn_in_training_and_test_alike(small: Dataset) -> None:
    label_map = np.roll(np.arange(10), 1)
    shard = Shard(index(12, 3), index(700, 701), quarter_turns=1, label_map=label_map)
    data = FederatedData(small.pool, [shard])
    for mine, (x, y) in ((shard.train, data.train_samples(shard)), (shard.test, data.test_samples(shard))):
        assert np.array_equal(x, small.pool.normalised(rotate(small.pool.x[mine].astype(np.float32), 1)))
        assert np.array_equal(y, label_map[small.pool.y[mine]])
    assert data.label_counts(shard).nonzero()[0].tolist() == sorted(label_map[[2, 3]])
    assert np.array_equal(data.test_labels(shard), label_map[small.pool.y[[700, 701]]])


def test_only_training_images_are_augmented(small: Dataset) -> None:
    shard = Shard(index(5, 5, 5), index(5), augment_seed=8)
    data = FederatedData(small.pool, [shard], augmentation=Augmentation())
    raw = small.pool.x[[5, 5, 5]].astype(np.float32)
    x, _ = data.train_samples(shard)
    assert np.array_equal(x, small.pool.normalised(augment(raw, Augmentation(), 8)))
    assert len(np.unique(x.reshape(3, -1), axis=0)) == 3
    assert np.array_equal(data.test_samples(shard)[0], small.pool.normalised(raw[:1]))


def test_a_device_gets_its_next_version_and_keeps_the_old_ones(small: Dataset) -> None:
    shards = [Shard(index(1), index(700)), Shard(index(2, 3), index(701))]
    data = FederatedData(small.pool, shards, truth=np.array([5, 6]))
    assert (data.version(1), data.current(1)) == (0, shards[1])
    assert data.replace_shard(1, shards[0]) == 1
    assert data.replace_shard(1, Shard(index(9), index())) == 2
    assert (data.version(0), data.version(1)) == (0, 2)
    assert data.current(1).train.tolist() == [9]
    assert data.shard(1, 1) is shards[0]
    assert data.shard(1) is data.shard(1, 0) is shards[1]
    assert data.current(0) is shards[0]
    assert data.train_sizes().tolist() == [1, 2], "of version 0"


def test_truth_is_a_copy_and_the_first_stays_known(small: Dataset) -> None:
    given = np.array([5, 6])
    data = FederatedData(small.pool, [Shard(index(1), index()), Shard(index(2), index())], truth=given)
    assert data.truth is not None
    data.truth[0] = 9
    assert (data.truth.tolist(), given.tolist()) == ([9, 6], [5, 6])
    assert data.initial_truth is not None
    assert data.initial_truth.tolist() == [5, 6]


def test_a_population_made_out_of_another_has_no_versions_of_it(small: Dataset) -> None:
    data = FederatedData(small.pool, [Shard(index(1), index())])
    other = replace(data, augmentation=Augmentation())
    data.replace_shard(0, Shard(index(2), index()))
    assert (other.version(0), other.current(0)) == (0, data.shards[0])
    assert other.truth is other.initial_truth is None
