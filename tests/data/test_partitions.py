"""What every partition promises; partitions that deal out everything; partition files."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedsim.data.federated import Dataset, FederatedData, pooled
from fedsim.data.partitions import Iid, Partition, deal_test_alike
from fedsim.errors import DataError, ScenarioError
from fedsim.streams import Streams
from fedsim.toolbox.partitions.plain import Dirichlet, LabelGroups, PartitionFile, Permutations, Rotations, Shards
from fedsim.toolbox.partitions.published import ClassBias, ClassImbalance, DittoPartition, Femnist, PowerLaw
from tests.data.conftest import grey_images, held_out
from tests.data.small import all_test, all_train, assert_each_once, assert_same, assert_well_formed, label_table

MEDIUM = pooled(grey_images(400, 20, side=2), "pixel")
RECIPES = [
    Iid(),
    Shards(similarity=0.3),
    Dirichlet(),
    PowerLaw(minimum_per_class=2),
    Femnist(),
    Femnist(overlap=False),
    DittoPartition(seed="run"),
    ClassBias(),
    ClassImbalance(largest=20),
    LabelGroups(groups=2),
    Rotations(),
    Permutations(),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("devices", [4, 13])
def test_one_seed_gives_one_split_and_another_seed_another(recipe: Partition, devices: int) -> None:
    data = recipe.split(MEDIUM, devices, Streams(3))
    assert_well_formed(data, MEDIUM, devices)
    assert_same(data, recipe.split(MEDIUM, devices, Streams(3)))
    other = recipe.split(MEDIUM, devices, Streams(4))
    assert all_train(data).tolist() != all_train(other).tolist()


@pytest.mark.parametrize(
    ("recipe", "devices", "says"),
    [
        (Iid(), 601, r"population.devices is 601; 'pictures' has 600 training samples, so at most 600 are allowed"),
        (
            Shards(),
            301,
            r"population.devices is 301; 'pictures' has 600 training samples and each device gets 2 shards, so at most 300",
        ),
        (Dirichlet(), 301, r"population.devices is 301; .* each device needs 2, so at most 300 are allowed"),
        (PowerLaw(), 1000, r"population.devices is 1000; 5 samples of each of its 2 classes .* so at most 80 are allowed"),
        (PowerLaw(classes_per_device=11), 10, r"data.partition.classes_per_device is 11; .* 1 to 10 are allowed"),
        (Femnist(classes_per_device=12), 10, r"data.partition.classes_per_device is 12; .* 1 to 10 are allowed"),
        (
            Femnist(overlap=False),
            100,
            r"population.devices is 100; .* Allowed are fewer devices, a larger",
        ),
        (DittoPartition(classes_per_device=11), 10, r"data.partition.classes_per_device is 11"),
        (ClassBias(classes_per_device=11), 10, r"data.partition.classes_per_device is 11"),
        (
            ClassImbalance(),
            100,
            r"data.partition.largest is 100; .* has 60 training samples of class \d, so 1 to 60 are allowed",
        ),
        (ClassImbalance(mean=30.0), 10, r"data.partition.mean is 30.0; allowed is a class number from 1 to 10"),
        (LabelGroups(groups=3), 12, r"data.partition.groups is 3; 'pictures' has 10 classes, so 1, 2, 5, 10 are allowed"),
        (LabelGroups(), 4, r"data.partition.groups is 5; with population.devices = 4, 1 to 4 are allowed"),
        (LabelGroups(), 601, r"population.devices is 601; .* has 120 training samples for a group, so at most 600 are allowed"),
        (Rotations(), 3, r"population.devices is 3; 4 rotations need at least 4"),
        (Rotations(), 2401, r"population.devices is 2401; .* at most 2400 are allowed"),
        (Permutations(groups=5), 4, r"data.partition.groups is 5; with population.devices = 4, 1 to 4 are allowed"),
        (Permutations(agree=0, groups=11), 20, r"data.partition.groups is 11; only \d+ permutations of 10 labels"),
        (Permutations(), 601, r"population.devices is 601; .* at most 600 are allowed"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(recipe: Partition, devices: int, says: str, small: Dataset) -> None:
    with pytest.raises(ScenarioError, match=says):
        recipe.split(small, devices, Streams(1))


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        (Dirichlet, {"alpha": 0.0}),
        (PowerLaw, {"classes_per_device": 0}),
        (ClassBias, {"share": 1.5}),
        (ClassBias, {"sizes": {"kind": "uniform", "low": 5, "high": 4}}),
        (Rotations, {"degrees": [0, 45]}),
        (Rotations, {"degrees": [90, 90]}),
        (Rotations, {"degrees": []}),
        (DittoPartition, {"seed": "mine"}),
    ],
)
def test_impossible_options_are_refused(recipe: type[Partition], options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        recipe(**options)


POOL = pooled(grey_images(60, 20, side=1), "pixel")


@given(devices=st.integers(1, 600), seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_iid_deals_everything_evenly(devices: int, seed: int) -> None:
    data = Iid().split(POOL, devices, Streams(seed))
    assert_each_once(all_train(data), POOL.train)
    assert_each_once(all_test(data), POOL.test)
    assert np.ptp(data.train_sizes()) <= 1
    assert np.ptp(held_out(data)) <= 1


def test_shards_by_hand() -> None:
    """60 samples a class in 20 shards are half classes: two a device, whose order is drawn."""
    table = label_table(Shards().split(POOL, 10, Streams(1)))
    assert (table.sum(axis=0) == 60).all()
    assert all(sorted(row[row > 0].tolist()) in ([30, 30], [60]) for row in table)
    assert (label_table(Shards(per_device=1).split(POOL, 10, Streams(1))).max(axis=1) == 60).all()


@given(similarity=st.floats(0, 1), devices=st.integers(1, 60), per_device=st.integers(1, 10), seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_shards_deal_everything_evenly(similarity: float, devices: int, per_device: int, seed: int) -> None:
    data = Shards(per_device=per_device, similarity=similarity).split(POOL, devices, Streams(seed))
    assert_each_once(all_train(data), POOL.train)
    assert_each_once(all_test(data), POOL.test)
    assert np.ptp(data.train_sizes()) <= per_device + 1


def test_similarity_is_the_share_that_is_dealt_at_random() -> None:
    """Each device has (1 - s) n of its own class, and of every class a tenth of s n by chance."""
    pool = pooled(grey_images(6000, 1, side=1), "pixel")
    for similarity in (0.0, 0.1, 0.5, 1.0):
        table = label_table(Shards(per_device=1, similarity=similarity).split(pool, 10, Streams(1))) / 6000
        assert table.max(axis=1).mean() == pytest.approx(1 - similarity + similarity / 10, abs=0.02)


@given(
    devices=st.integers(1, 120),
    alpha=st.one_of(st.floats(0.001, 0.1), st.floats(0.1, 1000.0)),
    minimum=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_dirichlet_deals_everything_and_leaves_nobody_short(devices: int, alpha: float, minimum: int, seed: int) -> None:
    data = Dirichlet(alpha=alpha, minimum=minimum).split(POOL, devices, Streams(seed))
    assert_each_once(all_train(data), POOL.train)
    assert_each_once(all_test(data), POOL.test)
    assert data.train_sizes().min() >= minimum


def test_a_small_alpha_is_skewed_and_a_large_one_is_not() -> None:
    def share_on_one_device(alpha: float) -> float:
        table = label_table(Dirichlet(alpha=alpha).split(POOL, 20, Streams(1)))
        return float((table.max(axis=0) / table.sum(axis=0)).mean())

    assert share_on_one_device(0.001) > 0.9  # E[sum of squared shares] = 1.001 / 1.02, less what fills up poor devices
    assert share_on_one_device(1e5) < 0.08


def test_dirichlet_shares_have_the_distributions_moments() -> None:
    """Var of a share is (1/n)(1 - 1/n) / (n alpha + 1): 600 samples a class make rounding small."""
    pool = pooled(grey_images(6000, 1, side=1), "pixel")
    shares = label_table(Dirichlet(alpha=1.0, minimum=1).split(pool, 10, Streams(2))) / 6000
    assert shares.sum(axis=0) == pytest.approx(1.0)
    assert shares.var() == pytest.approx(0.1 * 0.9 / 11, rel=0.35)


def test_test_samples_follow_the_labels(small: Dataset) -> None:
    by_class = small.by_class(small.train)
    train = [np.concatenate([by_class[0][:30], by_class[1][:15]]), by_class[0][30:], by_class[1][15:]]
    test = deal_test_alike(small, train, Streams(1))
    counts = [np.bincount(small.pool.y[index], minlength=10)[:2].tolist() for index in test]
    assert counts == [[10, 5], [10, 0], [0, 15]]
    assert sum(len(index) for index in test) == 40


def test_scarce_test_samples_are_spread_in_proportion(small: Dataset) -> None:
    """60 equal devices and 20 test samples of each class: 3.3 each in all, though only 0.33 of each class."""
    data = Iid().split(small, 60, Streams(1))
    sizes = [len(index) for index in deal_test_alike(small, [shard.train for shard in data.shards], Streams(1))]
    assert sum(sizes) == 200
    assert min(sizes) >= 2
    assert max(sizes) <= 5


def split(path: Path, dataset: Dataset, devices: int) -> FederatedData:
    return PartitionFile(path=path.name).under(path.parent).split(dataset, devices, Streams(1))


def as_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_json_of_objects(tmp_path: Path, small: Dataset) -> None:
    path = as_json(tmp_path / "p.json", {"anna": {"train": [3, 1], "test": [0, 199]}, "bert": {"train": [1, 599]}})
    data = split(path, small, 2)
    assert [shard.train.tolist() for shard in data.shards] == [[3, 1], [1, 599]]
    assert [shard.test.tolist() for shard in data.shards] == [[600, 799], []]


def test_json_of_lists_has_test_samples_after_its_labels(tmp_path: Path, small: Dataset) -> None:
    data = split(as_json(tmp_path / "p.json", {"0": [0, 10, 20], "1": [1, 11]}), small, 2)
    assert [set(small.pool.y[shard.test]) for shard in data.shards] == [{0}, {1}]
    assert held_out(data).tolist() == [20, 20]


def test_npz(tmp_path: Path, small: Dataset) -> None:
    np.savez(tmp_path / "p.npz", train_0=[5, 6], train_1=np.array([7], dtype=np.uint16), test_0=[3])
    data = split(tmp_path / "p.npz", small, 2)
    assert [shard.train.tolist() for shard in data.shards] == [[5, 6], [7]]
    assert [shard.test.tolist() for shard in data.shards] == [[603], []]
    assert data.shards[1].train.dtype == np.int32


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([[1, 2]], "is not an object of devices"),
        ({"0": 5}, "device 0 is neither a list nor an object"),
        ({"0": {"tests": [5]}}, "device 0 is neither a list nor an object"),
        ({"0": [600]}, "device 0, train has the index 600; allowed are 0 to 599"),
        ({"0": [-1]}, "device 0, train has the index -1"),
        ({"0": {"train": [1], "test": [200]}}, "device 0, test has the index 200; allowed are 0 to 199"),
        ({"0": [1.5]}, "not a list of whole numbers"),
        ({"0": ["1"]}, "not a list of whole numbers"),
        ({"0": [True]}, "not a list of whole numbers"),
        ({"0": [1, [2]]}, "not a list of whole numbers"),
        ({"0": [10**30]}, "not a list of whole numbers"),
    ],
)
def test_malformed_json(tmp_path: Path, small: Dataset, content: object, says: str) -> None:
    with pytest.raises(DataError) as caught:
        split(as_json(tmp_path / "p.json", content), small, 1)
    assert says in str(caught.value)
    assert str(tmp_path / "p.json") in str(caught.value)


def test_no_json(tmp_path: Path, small: Dataset) -> None:
    (tmp_path / "p.json").write_text('{"0": [1')
    with pytest.raises(DataError, match="cannot be read as JSON"):
        split(tmp_path / "p.json", small, 1)
    (tmp_path / "p.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        split(tmp_path / "p.json", small, 1)
    with pytest.raises(DataError, match=r"data.partition.path names '.*absent.json', which does not exist"):
        split(tmp_path / "absent.json", small, 1)


def test_malformed_npz(tmp_path: Path, small: Dataset) -> None:
    np.savez(tmp_path / "p.npz", train_0=[1], train_2=[2])
    with pytest.raises(DataError, match=r"holds train_2; allowed are train_0, train_1"):
        split(tmp_path / "p.npz", small, 2)
    (tmp_path / "p.npz").write_text("no archive")
    with pytest.raises(DataError, match=r"cannot be read as an .npz archive"):
        split(tmp_path / "p.npz", small, 2)
    with pytest.raises(DataError, match="does not exist"):
        split(tmp_path / "absent.npz", small, 2)


def test_devices_must_match_and_hold_something(tmp_path: Path, small: Dataset) -> None:
    path = as_json(tmp_path / "p.json", {"0": [1], "1": []})
    with pytest.raises(ScenarioError, match=r"population.devices is 5; the partition file '.*' has 2 devices"):
        split(path, small, 5)
    with pytest.raises(ScenarioError, match="device 1 gets no training samples"):
        split(path, small, 2)
