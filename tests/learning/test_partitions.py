"""What every partition promises; partitions that deal out everything; partition files; recipes
against published numbers.
"""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedsim.common.errors import DataError, ScenarioError
from fedsim.common.sizes import LongTailSizes, UniformSizes
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import Dataset, Raw, pooled
from fedsim.learning.data.partitions import Iid, Partition, SyntheticSizes, deal_test_alike
from fedsim.learning.data.sources import Synthetic
from fedsim.toolbox.partitions.plain import (
    Dirichlet,
    LabelGroups,
    PartitionFile,
    Permutations,
    Rotations,
    Shards,
)
from fedsim.toolbox.partitions.published import (
    ClassBias,
    ClassImbalance,
    DittoPartition,
    Femnist,
    PowerLaw,
)
from tests.learning.conftest import (
    all_test,
    all_train,
    assert_each_once,
    assert_same,
    assert_well_formed,
    grey_images,
    held_out,
    label_table,
    truth,
)

MEDIUM = pooled(grey_images(400, 20, side=2), "pixel")
RECIPES = [
    Iid(),
    Shards(similarity=0.3),
    Dirichlet(),
    PowerLaw(),
    Femnist(),
    Femnist(overlap=False),
]
RECIPES += [DittoPartition(), ClassBias(), ClassImbalance(largest=20), LabelGroups(groups=2)]
RECIPES += [Rotations(), Permutations()]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("devices", [4, 13])
def test_one_seed_gives_one_split_and_another_seed_another(recipe: Partition, devices: int) -> None:
    data = recipe.split(MEDIUM, devices, Streams(3))
    assert_well_formed(data, MEDIUM, devices)
    assert_same(data, recipe.split(MEDIUM, devices, Streams(3)))
    other = recipe.split(MEDIUM, devices, Streams(4))
    assert (all_train(data).tolist() != all_train(other).tolist()) == (
        not isinstance(recipe, DittoPartition)
    )


@pytest.mark.parametrize(
    ("recipe", "devices", "says"),
    [
        (
            Iid(),
            601,
            r"population.devices is 601; 'pictures' has 600 training samples, so at most 600 "
            r"are allowed",
        ),
        (Shards(), 301, r"population.devices is 301; .* 2 shards a device, so at most 300"),
        (
            Dirichlet(),
            301,
            r"population.devices is 301; .* at least 2 a device, so at most 300 are allowed",
        ),
        (
            PowerLaw(),
            1000,
            r"population.devices is 1000; each needs 5 samples of each of its 2 classes.* so "
            r"at most 80",
        ),
        (
            Femnist(overlap=False),
            100,
            r"population.devices is 100; .* allowed are fewer devices, or",
        ),
        (
            ClassBias(classes_per_device=11),
            10,
            r"data.partition gives a device 11 classes .* 1 to 10 are allowed",
        ),
        (
            ClassImbalance(),
            100,
            r"data.partition.largest is 100; .* has 60 .* of class \d, so 1 to 60 are allowed",
        ),
        (
            LabelGroups(groups=3),
            12,
            r"data.partition.groups is 3; 'pictures' has 10 classes, so 1, 2, 5, 10 are allowed",
        ),
        (
            LabelGroups(),
            4,
            r"data.partition.groups is 5; with population.devices = 4, 1 to 4 are allowed",
        ),
        (
            LabelGroups(),
            601,
            r"population.devices is 601; .* has 120 training samples for a group, so at most "
            r"600 are allowed",
        ),
        (Rotations(), 3, r"population.devices is 3; 4 rotations need at least 4"),
        (Rotations(), 2401, r"population.devices is 2401; .* at most 2400 are allowed"),
        (
            Permutations(groups=5),
            4,
            r"data.partition.groups is 5; with population.devices = 4, 1 to 4 are allowed",
        ),
        (
            Permutations(agree=0, groups=11),
            20,
            r"data.partition.groups is 11; only \d+ permutations of 10 labels",
        ),
        (Permutations(), 601, r"population.devices is 601; .* at most 600 are allowed"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(
    recipe: Partition, devices: int, says: str, small: Dataset
) -> None:
    with pytest.raises(ScenarioError, match=says):
        recipe.split(small, devices, Streams(1))


@pytest.mark.parametrize(
    "options", [{"degrees": [0, 45]}, {"degrees": [90, 90]}, {"sizes": {"low": 5, "high": 4}}]
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"not different rotations|'low' is above 'high'"):
        Rotations(**options) if "degrees" in options else ClassBias(**options)


POOL = pooled(grey_images(60, 20, side=1), "pixel")


def test_shards_by_hand() -> None:
    """60 samples a class in 20 shards are half classes: two a device, whose order is drawn."""
    table = label_table(Shards().split(POOL, 10, Streams(1)))
    assert (table.sum(axis=0) == 60).all()
    assert all(sorted(row[row > 0].tolist()) in ([30, 30], [60]) for row in table)
    assert (label_table(Shards(per_device=1).split(POOL, 10, Streams(1))).max(axis=1) == 60).all()


def test_similarity_is_the_share_that_is_dealt_at_random() -> None:
    """Each device has (1 - s) n of its own class, and of every class a tenth of s n by chance."""
    pool = pooled(grey_images(6000, 1, side=1), "pixel")
    for similarity in (0.0, 0.1, 0.5, 1.0):
        table = (
            label_table(Shards(per_device=1, similarity=similarity).split(pool, 10, Streams(1)))
            / 6000
        )
        assert table.max(axis=1).mean() == pytest.approx(1 - similarity + similarity / 10, abs=0.02)


ALPHAS = st.one_of(st.floats(0.001, 0.1), st.floats(0.1, 1000.0))


@given(
    recipe=st.one_of(
        st.builds(Iid),
        st.builds(Shards, per_device=st.integers(1, 10), similarity=st.floats(0, 1)),
        st.builds(Dirichlet, alpha=ALPHAS, minimum=st.integers(1, 5)),
    ),
    devices=st.integers(1, 60),
    seed=st.integers(0, 2**32),
)
def test_everything_is_dealt_and_nobody_gets_less_than_promised(
    recipe: Partition, devices: int, seed: int
) -> None:
    data = recipe.split(POOL, devices, Streams(seed))
    assert_each_once(all_train(data), POOL.train)
    assert_each_once(all_test(data), POOL.test)
    if isinstance(recipe, Dirichlet):
        assert data.train_sizes().min() >= recipe.minimum
    else:
        assert np.ptp(data.train_sizes()) <= (
            recipe.per_device + 1 if isinstance(recipe, Shards) else 1
        )
    assert not isinstance(recipe, Iid) or np.ptp(held_out(data)) <= 1


def test_dirichlet_shares_have_the_distributions_moments() -> None:
    """Var of a share is (1/n)(1 - 1/n) / (n alpha + 1): 600 samples a class make rounding small."""
    pool = pooled(grey_images(6000, 1, side=1), "pixel")
    shares = label_table(Dirichlet(alpha=1.0, minimum=1).split(pool, 10, Streams(2))) / 6000
    assert shares.sum(axis=0) == pytest.approx(1.0)
    assert shares.var() == pytest.approx(0.1 * 0.9 / 11, rel=0.35)


def test_test_samples_follow_the_labels_and_scarce_ones_are_spread_in_proportion(
    small: Dataset,
) -> None:
    by_class = small.by_class(small.train)
    train = [
        np.concatenate([by_class[0][:30], by_class[1][:15]]),
        by_class[0][30:],
        by_class[1][15:],
    ]
    test = deal_test_alike(small, train, Streams(1))
    counts = [np.bincount(small.pool.y[index], minlength=10)[:2].tolist() for index in test]
    assert counts == [[10, 5], [10, 0], [0, 15]]
    assert sum(len(index) for index in test) == 40
    # 60 equal devices and 20 test samples of each class: 3.3 each in all, though only 0.33 of each
    # class.
    data = Iid().split(small, 60, Streams(1))
    sizes = [
        len(index)
        for index in deal_test_alike(small, [shard.train for shard in data.shards], Streams(1))
    ]
    assert sum(sizes) == 200
    assert 2 <= min(sizes) <= max(sizes) <= 5


def test_a_file_says_who_holds_what(tmp_path: Path, small: Dataset) -> None:
    def split(name: str) -> list[tuple[list[int], list[int]]]:
        data = PartitionFile(path=name).under(tmp_path).split(small, 2, Streams(1))
        assert {shard.train.dtype for shard in data.shards} == {np.dtype(np.int32)}
        return [(shard.train.tolist(), shard.test.tolist()) for shard in data.shards]

    content = {"1": {"train": [1, 599]}, "0": {"train": [3, 1], "test": [0, 199]}}
    (tmp_path / "p.json").write_text(json.dumps(content))
    assert split("p.json") == [([3, 1], [600, 799]), ([1, 599], [])]
    # test samples follow the labels
    (tmp_path / "p.json").write_text('{"0": [0, 10, 20], "1": [1, 11]}')
    assert [(len(tested), {*small.pool.y[tested]}) for _, tested in split("p.json")] == [
        (20, {0}),
        (20, {1}),
    ]


def test_entries_go_by_the_numbers_of_their_devices_in_any_order(
    tmp_path: Path, small: Dataset
) -> None:
    devices = 12
    numbers = [*range(devices)]
    for order in (
        numbers,
        numbers[::-1],
        sorted(numbers, key=str),
        [5, *numbers[:5], *numbers[6:]],
    ):
        content = {str(device): [*range(20 * device, 20 * device + device + 1)] for device in order}
        (tmp_path / "p.json").write_text(json.dumps(content))
        data = PartitionFile(path="p.json").under(tmp_path).split(small, devices, Streams(1))
        assert data.train_sizes().tolist() == [device + 1 for device in numbers]
        assert [shard.train[0] for shard in data.shards] == [20 * device for device in numbers]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        *[
            ({key: [1], "0": [2]}, f"has the key '{key}'; allowed are 0 to 1, or names of")
            for key in ("anna", "01", "-1", "1.0", " 0", "", "²")
        ],
        ({"": [1]}, "has the key ''; allowed are 0 to 0, or names of exactly 1 devices"),
        ({"0": [1], "2": [2]}, "has the key '2'; allowed are 0 to 1, or names of exactly 2"),
        (b'{"0": [1], "0": [2]}', "an object has the key '0' twice"),
        (
            {"0": {"train": [1], "tset": [1]}},
            "has 'tset', which nothing uses; known are 'train' and 'test' (did you",
        ),
        ({"0": {"train": [1], "val": [1]}}, "device 0 has 'val', which nothing uses"),
        ({"train": {"0": [1]}}, "device train is neither a list nor an object"),
        *[([[1, 2]], "is not an object of devices")],
        *[
            ({"0": wrong}, "device 0 is neither a list nor an object")
            for wrong in (5, {"tests": [5]})
        ],
        ({"0": [600]}, "device 0, train has the index 600; allowed are 0 to 599"),
        (
            {"0": {"train": [1], "test": [-1]}},
            "device 0, test has the index -1; allowed are 0 to 199",
        ),
        *[
            ({"0": [wrong]}, "not a list of whole numbers")
            for wrong in (1.5, "1", True, [2, [3]], 10**30)
        ],
        ({"0": []}, "device 0 gets no training samples"),
        (
            {"0": [1], "1": [2]},
            "population.devices is 1; the partition file 'p.json' has 2 devices",
        ),
        (b'{"0": [1', "'p.json' cannot be read as JSON"),
        (b"\xff\xfe\x00", "'p.json' cannot be read as JSON"),
        (None, "data.partition.path names 'p.json', which does not exist"),
    ],
    ids=str,
)
def test_malformed_json(
    tmp_path: Path, small: Dataset, monkeypatch: pytest.MonkeyPatch, content: object, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("p.json").write_bytes(
            content if isinstance(content, bytes) else json.dumps(content).encode()
        )
    with pytest.raises((DataError, ScenarioError), match=re.escape(says)):
        PartitionFile(path="p.json").split(small, 1, Streams(1))


def test_every_rotation_has_the_whole_data_set_and_devices_may_hold_less_than_their_share(
    small: Dataset,
) -> None:
    data = Rotations().split(small, 12, Streams(1))
    for shard, less in zip(
        data.shards, Rotations(most_samples=30).split(small, 12, Streams(1)).shards, strict=True
    ):
        assert (less.train.tolist(), less.test.tolist()) == (
            shard.train[:30].tolist(),
            shard.test.tolist(),
        )
    assert truth(data) == [0, 1, 2, 3] * 3
    for group in range(4):
        members = [
            shard for shard, own in zip(data.shards, truth(data), strict=True) if own == group
        ]
        assert all(shard.quarter_turns == group for shard in members)
        assert_each_once(np.concatenate([shard.train for shard in members]), small.train)
        assert np.array_equal(np.concatenate([shard.test for shard in members]), small.test), (
            "test samples in order"
        )
    assert set(data.train_sizes()) == {200}


@pytest.mark.parametrize(
    ("shape", "degrees", "fits"),
    [((3, 4), [0, 180], True), ((3, 4), [0, 90], False), ((), [0], False)],
)
def test_only_images_that_keep_their_shape_are_turned(
    shape: tuple[int, ...], degrees: list[int], fits: bool
) -> None:
    x, y = np.zeros((10, 1, *shape), dtype=np.uint8), np.zeros(10, dtype=np.int64)
    dataset = pooled(Raw("oblong", x, y, x, y, classes=1), "pixel")
    if fits:
        assert len(Rotations(degrees=degrees).split(dataset, 4, Streams(1)).shards) == 4
    else:
        with pytest.raises(
            ScenarioError, match=r"data.partition.kind is 'rotations'; .* only square images"
        ):
            Rotations(degrees=degrees).split(dataset, 4, Streams(1))


@pytest.mark.parametrize(("groups", "agree"), [(4, 2), (10, 2), (3, 0)])
def test_permutations_agree_on_few_labels(small: Dataset, groups: int, agree: int) -> None:
    data = Permutations(groups=groups, agree=agree).split(small, 20, Streams(1))
    maps = [
        np.arange(10) if shard.label_map is None else shard.label_map
        for shard in data.shards[:groups]
    ]
    assert all(sorted(mapped) == list(range(10)) for mapped in maps)
    assert all(np.count_nonzero(one == other) <= agree for one, other in combinations(maps, 2))
    assert truth(data) == [device % groups for device in range(20)]
    assert all(
        data.shards[device].label_map is data.shards[device + groups].label_map
        for device in range(20 - groups)
    )


def test_permuted_labels_reach_training_and_the_whole_test_set(small: Dataset) -> None:
    data = Permutations().split(small, 8, Streams(1))
    shard = data.shards[1]
    assert shard.label_map is not None
    assert np.array_equal(data.train_samples(shard)[1], shard.label_map[small.pool.y[shard.train]])
    assert np.array_equal(data.test_samples(shard)[1], shard.label_map[small.pool.y[small.test]])
    assert_each_once(np.concatenate([shard.train for shard in data.shards]), small.train)
    assert all(mine.test is data.shards[0].test for mine in data.shards), "one array serves all"


@pytest.mark.parametrize(
    ("groups", "devices", "used"), [(5, 20, 30), (5, 5, 120), (2, 40, 15), (1, 7, 85), (5, 13, 40)]
)
def test_groups_of_labels_have_no_class_in_common(
    small: Dataset, groups: int, devices: int, used: int
) -> None:
    """Of 600 samples each device has as many as the largest group allows: 13 devices in 5 groups
    of 120 have 40.
    """
    data = LabelGroups(groups=groups).split(small, devices, Streams(1))
    assert truth(data) == [device % groups for device in range(devices)]
    width = 10 // groups
    for shard, group in zip(data.shards, truth(data), strict=True):
        labels = range(group * width, (group + 1) * width)
        assert set(small.pool.y[shard.train]) <= set(labels)
        assert set(small.pool.y[shard.test]) <= set(labels)
    assert set(data.train_sizes()) == {used}
    assert_each_once(all_test(data), small.test)
    if 600 % devices == 0:
        assert_each_once(all_train(data), small.train)
    else:
        assert len(np.unique(all_train(data))) == len(all_train(data)) == used * devices


@pytest.mark.parametrize(
    "recipe", [PowerLaw(), Femnist(), DittoPartition(), PowerLaw(classes_per_device=9)], ids=str
)
def test_neighbouring_classes_make_ten_groups(recipe: Partition, small: Dataset) -> None:
    data = recipe.split(small, 12, Streams(1))
    assert truth(data) == [device % 10 for device in range(12)]
    held = label_table(data) > 0
    assert np.array_equal(held[:2], held[10:]), "the same group, the same classes"
    assert len(np.unique(held, axis=0)) == 10
    assert held[np.arange(12), truth(data)].all()


@pytest.mark.parametrize(
    "recipe", [ClassBias(), ClassImbalance(classes_per_device=1, largest=10)], ids=str
)
def test_one_main_class_is_a_group(recipe: Partition, small: Dataset) -> None:
    data = recipe.split(small, 30, Streams(1))
    assert len(set(truth(data))) > 3
    assert label_table(data).argmax(axis=1).tolist() == truth(data)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fedprox_mnist(mnist: Dataset, seed: int) -> None:
    data = PowerLaw().split(mnist, 1000, Streams(seed))
    sizes = data.train_sizes() + held_out(data)
    assert abs(sizes.sum() - 69_035) <= 200
    assert sizes.min() == 10
    assert sizes.mean() == pytest.approx(69, abs=0.5)
    assert 20 <= np.median(sizes) <= 28
    assert np.array_equal(data.train_sizes(), np.floor(0.9 * sizes))
    held = np.concatenate([all_train(data), all_test(data)])
    assert len(np.unique(held)) == len(held)
    assert (held < 60_000).any()
    assert (held >= 60_000).any()


@pytest.mark.parametrize("classes", [1, 2, 6])
def test_power_law_gives_each_device_as_many_classes_as_it_says(
    mnist: Dataset, classes: int
) -> None:
    data = PowerLaw(classes_per_device=classes).split(mnist, 1000, Streams(1))
    sizes = data.train_sizes() + held_out(data)
    assert sizes.min() >= 5 * classes
    assert 67_000 < sizes.sum() < 70_000
    for user, shard in enumerate(data.shards):
        assert {*mnist.pool.y[np.append(shard.train, shard.test)]} == {
            (user + slot) % 10 for slot in range(classes)
        }


def test_ditto_fashion_exactly(fashion: Dataset) -> None:
    data = DittoPartition().split(fashion, 500, Streams(1))
    train, test = data.train_sizes(), held_out(data)
    assert (train.sum(), test.sum()) == (61_251, 11_254)
    assert (train.min(), train.max(), np.median(train)) == (31, 1378, 88)
    table = label_table(data)
    for user in range(500):
        assert set(np.flatnonzero(table[user])) == {(user + slot) % 10 for slot in range(5)}
    assert all_train(data).max() < 60_000 <= all_test(data).min()
    other_run = DittoPartition().split(fashion, 500, Streams(2))
    assert all(
        np.array_equal(a.train, b.train) for a, b in zip(data.shards, other_run.shards, strict=True)
    )


def test_femnist_as_published_overlaps_and_without_the_slip_is_clean(letters: Dataset) -> None:
    data, clean = (
        Femnist(overlap=overlap).split(letters, 200, Streams(1)) for overlap in (True, False)
    )
    sizes = data.train_sizes() + held_out(data)
    assert sizes.sum() == pytest.approx(18_820, abs=3 * 1_656)
    held = [np.concatenate([shard.train, shard.test]) for shard in data.shards]
    for user in (0, 7, 150):
        for slot in range(3):
            label = (user + slot) % 10
            mine, twin = (
                h[letters.pool.y[h] == label] for h in (held[user], held[(user + 10) % 200])
            )
            assert np.isin(mine, twin).sum() == min(len(mine), len(twin)), (
                "every device takes the first images of a class"
            )
    tested = all_test(data)
    assert np.isin(tested, all_train(data)).mean() > 0.9
    assert all(np.bincount(letters.pool.y[h], minlength=10).max() == len(h) // 3 for h in held)
    once = np.concatenate([all_train(clean), all_test(clean)])
    assert len(np.unique(once)) == len(once)
    assert np.array_equal(clean.train_sizes(), data.train_sizes())


def test_synthetic_devices_and_their_sizes() -> None:
    sizes = SyntheticSizes().sizes(4000, Streams(1))
    assert sizes.min() >= 50
    assert np.median(sizes) == pytest.approx(50 + np.exp(4), rel=0.08)
    assert np.log(sizes - 49.5).std() == pytest.approx(2.0, rel=0.1)
    streams = Streams(3)
    dataset = Synthetic().draw(SyntheticSizes().sizes(30, streams), streams)
    data = SyntheticSizes().split(dataset, 30, streams)
    sizes = SyntheticSizes().sizes(30, streams)
    assert np.array_equal(data.train_sizes(), np.floor(0.9 * sizes))
    assert np.array_equal(data.train_sizes() + held_out(data), sizes)
    for shard, end, size in zip(data.shards, sizes.cumsum(), sizes, strict=True):
        assert sorted([*shard.train, *shard.test]) == [*range(end - size, end)]


DEVICES = 400


@pytest.fixture(scope="module")
def large() -> Dataset:
    return pooled(grey_images(5421, 1000, side=1), "pixel")


@pytest.mark.parametrize("classes", [1, 2, 5, 10])
def test_a_few_classes_make_nine_tenths(large: Dataset, classes: int) -> None:
    data = ClassBias(classes_per_device=classes).split(large, DEVICES, Streams(1))
    table = np.sort(label_table(data), axis=1)[:, ::-1]
    sizes = table.sum(axis=1)
    assert np.ptp(table[:, :classes], axis=1).max() <= 1
    if classes == 10:  # IID
        return
    assert np.array_equal(table[:, :classes].sum(axis=1), np.round(0.9 * sizes))
    rest = table[sizes > 2000][:, classes:]
    assert (rest > 0).mean() > 0.99
    biased = label_table(data) > 0.1 * data.train_sizes()[:, None]
    assert biased.sum(axis=0) == pytest.approx(DEVICES * classes / 10, rel=0.5)


def test_sizes_are_uniform_or_long_tailed() -> None:
    generator = np.random.Generator(np.random.Philox(1))
    uniform = UniformSizes().draw(4000, generator)
    assert (uniform.min(), uniform.max()) == (pytest.approx(100, abs=5), pytest.approx(3000, abs=5))
    assert uniform.mean() == pytest.approx(1550, rel=0.03)
    long = LongTailSizes().draw(4000, generator)
    assert long.mean() == pytest.approx(0.4 * 200 + 0.3 * 400 + 0.2 * 750 + 0.1 * 2000, rel=0.03)
    assert (long <= 300).mean() == pytest.approx(0.4, abs=0.01)
    assert (long > 1000).mean() == pytest.approx(0.1, abs=0.01)
    assert not np.array_equal(long, np.sort(long))


def test_images_come_from_the_first_of_each_class_and_repeat_within_a_device_only_when_they_must(
    large: Dataset,
) -> None:
    allowed = np.concatenate([part[:200] for part in large.by_class(large.train)])
    data = ClassBias(per_class=200).split(large, 50, Streams(1))
    assert np.isin(all_train(data), allowed).all()
    for shard, counts in zip(data.shards, label_table(data), strict=True):
        distinct = np.bincount(large.pool.y[np.unique(shard.train)], minlength=10)
        assert np.array_equal(distinct[counts <= 200], counts[counts <= 200])


@pytest.mark.parametrize("classes", [1, 2, 5, 10])
def test_class_imbalance(large: Dataset, classes: int) -> None:
    data = ClassImbalance(classes_per_device=classes).split(large, 100, Streams(1))
    table = label_table(data)
    assert (table > 0).sum(axis=1).min() >= 1
    assert (table > 0).sum(axis=1).max() <= classes
    assert table.max() <= 100
    assert len(np.unique(all_train(data))) == np.minimum(table.sum(axis=0), 5421).sum()
    assert all(len(np.unique(shard.train)) == len(shard.train) for shard in data.shards)
    assert_each_once(all_test(data), large.test)
    assert np.ptp(held_out(data)) <= 1


def test_majorities_follow_the_rounded_normal_and_hold_the_largest_amount(large: Dataset) -> None:
    data = ClassImbalance(classes_per_device=2, largest=1000).split(large, 3000, Streams(1))
    majority = np.argmax(label_table(data), axis=1) + 1
    draws = np.rint(np.random.Generator(np.random.Philox(1)).normal(5.0, np.sqrt(10.0), 400_000))
    expected = np.bincount(draws[(draws >= 1) & (draws <= 10)].astype(int), minlength=11)[1:]
    assert np.bincount(majority, minlength=11)[1:] / 3000 == pytest.approx(
        expected / expected.sum(), abs=0.025
    )
