"""Partitions with a true grouping: rotations, label permutations, groups of labels, and where label skew has groups."""

from itertools import combinations

import numpy as np
import pytest

from fedsim.data.federated import Dataset, Raw, pooled
from fedsim.data.partitions import Iid, Partition
from fedsim.errors import ScenarioError
from fedsim.streams import Streams
from fedsim.toolbox.partitions.plain import Dirichlet, LabelGroups, Permutations, Rotations
from fedsim.toolbox.partitions.published import ClassBias, ClassImbalance, DittoPartition, Femnist, PowerLaw
from tests.data.small import all_test, all_train, assert_each_once, label_table


def test_every_rotation_has_the_whole_data_set(small: Dataset) -> None:
    data = Rotations().split(small, 12, Streams(1))
    assert data.truth is not None
    assert data.truth.tolist() == [0, 1, 2, 3] * 3
    for group in range(4):
        members = [data.shards[device] for device in np.flatnonzero(data.truth == group)]
        assert all(shard.quarter_turns == group for shard in members)
        assert_each_once(np.concatenate([shard.train for shard in members]), small.train)
        assert np.array_equal(np.concatenate([shard.test for shard in members]), small.test), "test samples in order"
    assert set(data.train_sizes()) == {200}


def test_devices_may_hold_less_than_their_share(small: Dataset) -> None:
    whole, cut = Rotations().split(small, 12, Streams(1)), Rotations(most_samples=30).split(small, 12, Streams(1))
    for shard, less in zip(whole.shards, cut.shards, strict=True):
        assert less.train.tolist() == shard.train[:30].tolist()
        assert less.test.tolist() == shard.test.tolist()


def test_two_rotations(small: Dataset) -> None:
    data = Rotations(degrees=[0, 180]).split(small, 6, Streams(1))
    assert [shard.quarter_turns for shard in data.shards] == [0, 2, 0, 2, 0, 2]
    upright, turned = data.shards[0], data.shards[1]
    raw = small.pool.x[turned.train].astype(np.float32)
    assert np.array_equal(data.train_samples(turned)[0], small.pool.normalised(raw[:, :, ::-1, ::-1]))
    assert upright.train.tolist() != turned.train.tolist()


@pytest.mark.parametrize(("shape", "degrees", "fits"), [((3, 4), [0, 180], True), ((3, 4), [0, 90], False), ((), [0], False)])
def test_only_images_that_keep_their_shape_are_turned(shape: tuple[int, ...], degrees: list[int], fits: bool) -> None:
    x, y = np.zeros((10, 1, *shape), dtype=np.uint8), np.zeros(10, dtype=np.int64)
    dataset = pooled(Raw("oblong", x, y, x, y, classes=1), "pixel")
    if fits:
        assert len(Rotations(degrees=degrees).split(dataset, 4, Streams(1)).shards) == 4
    else:
        with pytest.raises(ScenarioError, match=r"data.partition.kind is 'rotations'; .* only square images"):
            Rotations(degrees=degrees).split(dataset, 4, Streams(1))


@pytest.mark.parametrize(("groups", "agree"), [(4, 2), (10, 2), (3, 0)])
def test_permutations_agree_on_few_labels(small: Dataset, groups: int, agree: int) -> None:
    data = Permutations(groups=groups, agree=agree).split(small, 20, Streams(1))
    maps = [np.arange(10) if shard.label_map is None else shard.label_map for shard in data.shards[:groups]]
    assert all(sorted(mapped) == list(range(10)) for mapped in maps)
    assert all(np.count_nonzero(one == other) <= agree for one, other in combinations(maps, 2))
    assert data.truth is not None
    assert data.truth.tolist() == [device % groups for device in range(20)]
    assert all(data.shards[device].label_map is data.shards[device + groups].label_map for device in range(20 - groups))


def test_two_classes_have_two_permutations() -> None:
    dataset = pooled(
        Raw("two", np.zeros((8, 2), np.uint8), np.arange(8) % 2, np.zeros((2, 2), np.uint8), np.arange(2), 2), "none"
    )
    data = Permutations(groups=2).split(dataset, 4, Streams(1))
    assert data.shards[1].label_map is not None
    assert data.shards[1].label_map.tolist() == [1, 0]
    with pytest.raises(ScenarioError, match="only 2 permutations of 2 labels"):
        Permutations(groups=3).split(dataset, 4, Streams(1))


def test_permuted_labels_reach_training_and_the_whole_test_set(small: Dataset) -> None:
    data = Permutations().split(small, 8, Streams(1))
    shard = data.shards[1]
    assert shard.label_map is not None
    assert np.array_equal(data.train_samples(shard)[1], shard.label_map[small.pool.y[shard.train]])
    assert np.array_equal(data.test_samples(shard)[1], shard.label_map[small.pool.y[small.test]])
    assert_each_once(np.concatenate([shard.train for shard in data.shards]), small.train)
    assert all(mine.test is data.shards[0].test for mine in data.shards), "one array serves all"
    shared = Permutations(test="share").split(small, 8, Streams(1))
    assert_each_once(np.concatenate([shard.test for shard in shared.shards]), small.test)


@pytest.mark.parametrize(("groups", "devices", "used"), [(5, 20, 30), (5, 5, 120), (2, 40, 15), (1, 7, 85), (5, 13, 40)])
def test_groups_of_labels_have_no_class_in_common(small: Dataset, groups: int, devices: int, used: int) -> None:
    """Of 600 samples each device has as many as the largest group allows: 13 devices in 5 groups of 120 have 40."""
    data = LabelGroups(groups=groups).split(small, devices, Streams(1))
    assert data.truth is not None
    assert data.truth.tolist() == [device % groups for device in range(devices)]
    width = 10 // groups
    for shard, group in zip(data.shards, data.truth.tolist(), strict=True):
        labels = range(group * width, (group + 1) * width)
        assert set(small.pool.y[shard.train]) <= set(labels)
        assert set(small.pool.y[shard.test]) <= set(labels)
    assert set(data.train_sizes()) == {used}
    assert_each_once(all_test(data), small.test)
    if 600 % devices == 0:
        assert_each_once(all_train(data), small.train)
    else:
        assert len(np.unique(all_train(data))) == len(all_train(data)) == used * devices


@pytest.mark.parametrize("recipe", [PowerLaw(), Femnist(), DittoPartition(), PowerLaw(classes_per_device=9)], ids=str)
def test_neighbouring_classes_make_ten_groups(recipe: Partition, small: Dataset) -> None:
    data = recipe.split(small, 12, Streams(1))
    assert data.truth is not None
    assert data.truth.tolist() == [device % 10 for device in range(12)]
    held = label_table(data) > 0
    assert np.array_equal(held[:2], held[10:]), "the same group, the same classes"
    assert len(np.unique(held, axis=0)) == 10
    assert held[np.arange(12), data.truth].all()


@pytest.mark.parametrize("recipe", [ClassBias(), ClassImbalance(classes_per_device=1, largest=10)], ids=str)
def test_one_main_class_is_a_group(recipe: Partition, small: Dataset) -> None:
    data = recipe.split(small, 30, Streams(1))
    assert data.truth is not None
    assert len(set(data.truth.tolist())) > 3
    assert np.array_equal(label_table(data).argmax(axis=1), data.truth)


@pytest.mark.parametrize(
    "recipe",
    [
        Iid(),
        Dirichlet(),
        PowerLaw(classes_per_device=10, minimum_per_class=2),
        ClassBias(classes_per_device=2),
        ClassImbalance(largest=10),
    ],
    ids=str,
)
def test_where_nothing_groups_devices_no_truth_is_claimed(recipe: Partition, small: Dataset) -> None:
    assert recipe.split(small, 10, Streams(1)).truth is None
