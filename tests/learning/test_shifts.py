"""What every rule of data shift promises, and rules by which devices change alone."""

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedsim.common.errors import ScenarioError
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import NO_GROUP, Dataset, FederatedData, Pool, Shard
from fedsim.learning.data.partitions import Iid, Partition
from fedsim.learning.data.shifts import Change, Shift, SwapAll, draw_pairs
from fedsim.toolbox.partitions.plain import LabelGroups, Permutations, Rotations
from fedsim.toolbox.shifts import Incremental, LabelPermutation, Rotation, SwapPart
from tests.learning.conftest import (
    all_samples,
    assert_same_now,
    everyone,
    one_class_each,
    plain,
    populations,
    tiny_pool,
    truth,
)

RULES = [
    SwapAll(probability=0.5),
    SwapPart(probability=0.5),
    Incremental(),
    LabelPermutation(probability=0.5),
    Rotation(),
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
chancy = pytest.mark.parametrize(
    "rule", [SwapAll, SwapPart, LabelPermutation, Rotation], ids=lambda rule: rule.__name__
)


def frozen(data: FederatedData) -> list[tuple[object, ...]]:
    """Version 0, to the last bit."""
    return [
        (
            s.train.tobytes(),
            s.test.tobytes(),
            s.quarter_turns,
            None if s.label_map is None else s.label_map.tobytes(),
        )
        for s in data.shards
    ]


@each_rule
@given(st.data(), st.integers(0, 2**30), st.integers(0, 3))
def test_a_shift_is_a_function_of_seed_occasion_and_who_may(
    rule: Shift, draw: st.DataObject, seed: int, occasion: int
) -> None:
    data = draw.draw(populations(alike=rule.kind == "swap-part"))
    twin, before = deepcopy(data), frozen(data)
    may = np.array(
        draw.draw(st.lists(st.sampled_from(range(len(data.shards))), unique=True)), dtype=np.int64
    )
    changes = rule.apply(data, occasion, may, Streams(seed))
    assert rule.apply(twin, occasion, np.sort(may), Streams(seed)) == changes, (
        "the order of the candidates is of no account"
    )
    assert_same_now(data, twin)
    assert truth(data) == truth(twin)

    devices = [change.device for change in changes]
    assert len(set(devices)) == len(devices)
    assert set(devices) <= set(may.tolist())
    assert frozen(data) == before, "old versions stay"
    for device in range(len(data.shards)):
        assert data.version(device) == (device in devices)
        assert len(data.current(device).train) >= 1
    for change in changes:
        assert data.shard(change.device, change.version) is data.current(change.device)
    assert np.array_equal(np.delete(truth(data), devices), np.delete(data.initial_truth, devices))  # type: ignore[arg-type]


@each_rule
def test_occasions_differ_and_nobody_is_no_error(rule: Shift) -> None:
    data = [one_class_each(40) for _ in range(3)]
    first, again, second = (
        rule.apply(d, k, everyone(d), Streams(1)) for d, k in zip(data, (0, 0, 1), strict=True)
    )
    if rule.kind != "incremental":  # its devices have one sample each, and keep it
        assert first == again != second
    assert rule.apply(data[0], 2, np.empty(0, dtype=np.int64), Streams(1)) == []


@chancy
def test_probability(rule: type[SwapAll]) -> None:
    data = one_class_each(40)
    assert rule(probability=0.0).apply(data, 0, everyone(data), Streams(1)) == []
    changed = [
        change.device for change in rule(probability=1.0).apply(data, 0, everyone(data), Streams(1))
    ]
    if rule is SwapPart:  # a pair of the same class has nothing to exchange
        assert 20 <= len(changed) < 40
    else:
        assert sorted(changed) == list(range(40))


@pytest.mark.parametrize(
    "rule",
    [LabelPermutation(probability=0.5), Rotation(probability=0.5)],
    ids=lambda rule: rule.kind,
)
def test_what_one_device_meets_is_not_for_others_to_decide(rule: Shift) -> None:
    among_all, alone = one_class_each(30), one_class_each(30)
    rule.apply(among_all, 3, everyone(among_all), Streams(2))
    for device in range(30):
        rule.apply(alone, 3, np.array([device]), Streams(2))
    assert_same_now(among_all, alone)


@pytest.mark.parametrize(
    "rule",
    [SwapAll(probability=0.7), SwapPart(probability=0.7), SwapPart(probability=0.7, quirk=True)],
)
@given(st.data(), st.integers(0, 2**30))
def test_a_swap_loses_and_makes_no_sample(rule: Shift, draw: st.DataObject, seed: int) -> None:
    data = draw.draw(populations(alike=rule.kind == "swap-part"))
    before = all_samples(data)
    for occasion in range(3):
        rule.apply(data, occasion, everyone(data), Streams(seed))
    assert all_samples(data) == before, (
        "training samples stay training samples, test samples test samples"
    )


def test_quarter_by_quarter() -> None:
    data = plain((list(range(40)), [50, 51]), ([41, 42, 43, 44, 45, 46, 47, 48], []), truth=[3, 4])
    held: list[list[int]] = []
    for occasion in range(6):
        changes = Incremental().apply(data, occasion, everyone(data), Streams(1))
        assert [change.device for change in changes] == ([0, 1] if occasion < 4 else [])
        held.append(data.current(0).train.tolist())
    assert [len(samples) for samples in held] == [10, 20, 30, 40, 40, 40]
    assert all(more[: len(less)] == less for less, more in pairwise(held)), "what is there stays"
    assert held[3] != list(range(40)) == sorted(held[3])
    assert data.current(0).test is data.shards[0].test
    assert truth(data) == [3, 4]


@pytest.mark.parametrize(
    ("samples", "sizes"),
    # by hand: 21/4 -> 6, 6/2, 9/4 -> 3
    [(32, [8, 4, 3, 3]), (21, [6, 3, 3, 3]), (9, [3, 2, 2, 2]), (1, [1, 1, 1, 1])],
    ids=str,
)
def test_as_published_data_vanish(samples: int, sizes: list[int]) -> None:
    data = plain((list(range(samples)), []))
    found = []
    for occasion in range(4):
        Incremental(as_published=True).apply(data, occasion, everyone(data), Streams(1))
        found.append(len(data.current(0).train))
    assert found == sizes


@given(st.integers(1, 50_000), st.lists(st.integers(1, 100), min_size=1, max_size=5))
@example(100, [7])  # 0.07 * 100 > 7
def test_shares_are_rounded_up(samples: int, percent: list[int]) -> None:
    percent.sort()
    rule = Incremental(shares=[share / 100 for share in percent])
    assert [rule.released(samples, k) for k in range(len(percent))] == [
        -(-samples * share // 100) for share in percent
    ]


def test_who_comes_late_holds_what_the_occasion_says_and_nothing_new_is_no_change() -> None:
    data = plain((list(range(40)), []), (list(range(20)), []), (list(range(20)), []))
    for occasion, may in enumerate(([0], [0], [0, 1, 2])):
        Incremental().apply(data, occasion, np.array(may), Streams(1))
    assert [len(data.current(device).train) for device in range(2)] == [30, 15]
    assert [data.version(device) for device in range(2)] == [3, 1]
    assert data.current(1).train.tolist() != data.current(2).train.tolist(), (
        "each device has an order of its own"
    )
    data = plain(([7], []), (list(range(40)), []))
    rule = Incremental(shares=[0.5, 0.5, 1.0])
    changed = [
        [c.device for c in rule.apply(data, k, everyone(data), Streams(1))] for k in range(4)
    ]
    assert changed == [[1], [], [1], []]


PERMUTED, TURNED = LabelPermutation(probability=1.0), Rotation(probability=1.0)


def test_labels_are_permuted_further_each_time() -> None:
    data = plain((list(range(5)), list(range(5, 10))), truth=[2])
    PERMUTED.apply(data, 0, everyone(data), Streams(1))
    first = data.train_labels(data.current(0))
    assert sorted(first.tolist()) == list(range(5)) != first.tolist()
    assert np.array_equal(data.test_labels(data.current(0)), first)
    assert data.current(0).train is data.shards[0].train
    assert truth(data) == [NO_GROUP]

    fresh = plain((list(range(5)), []))
    PERMUTED.apply(fresh, 1, everyone(fresh), Streams(1))
    step = fresh.train_labels(fresh.current(0))
    PERMUTED.apply(data, 1, everyone(data), Streams(1))
    assert np.array_equal(data.train_labels(data.current(0)), step[first]), (
        "on top of the labels as they are"
    )
    assert np.array_equal(data.train_labels(data.shard(0, 1)), first)


@pytest.mark.parametrize(
    ("rule", "shape", "says"),
    [
        (PERMUTED, (3,), r"drift.kind is 'label-permutation'; the data have 1 class"),
        *(
            (TURNED, shape, r"drift.kind is 'rotation', which turns square images")
            for shape in ((3,), (1, 2, 3))
        ),
    ],
    ids=str,
)
def test_what_cannot_change_so_is_refused(rule: Shift, shape: tuple[int, ...], says: str) -> None:
    pool = Pool(np.zeros((4, *shape), np.uint8), np.zeros(4, np.int64), 1)
    data = FederatedData(pool, [Shard(np.array([0], np.int32), np.array([], np.int32))])
    with pytest.raises(ScenarioError, match=says):
        rule.check(data)
    with pytest.raises(ScenarioError, match=says):
        rule.apply(data, 0, everyone(data), Streams(1))


def test_images_turn_by_one_to_three_quarters_more(small: Dataset) -> None:
    data = Rotations().split(small, 24, Streams(1))
    before = [shard.quarter_turns for shard in data.shards]
    TURNED.apply(data, 0, everyone(data), Streams(1))
    after = [data.current(device).quarter_turns for device in range(24)]
    assert {(new - old) % 4 for old, new in zip(before, after, strict=True)} == {1, 2, 3}
    assert max(after) < 4
    turned = (after[0] - before[0]) % 4
    raw = data.train_samples(data.shards[0])[0]
    assert np.array_equal(
        data.train_samples(data.current(0))[0], np.rot90(raw, turned, axes=(2, 3))
    )
    assert data.current(0).test is data.shards[0].test
    no_groups = Iid().split(small, 4, Streams(1))
    TURNED.apply(no_groups, 0, everyone(no_groups), Streams(1))
    assert no_groups.truth is None


@pytest.mark.parametrize("degrees", [[0, 90, 180, 270], [180, 0]])
def test_rotations_are_of_the_group_that_has_theirs_or_of_none(
    small: Dataset, degrees: list[int]
) -> None:
    data = Rotations(degrees=degrees).split(small, 24, Streams(1))
    for occasion in range(4):
        Rotation(probability=0.5).apply(data, occasion, everyone(data), Streams(1))
        group = {turn // 90: number for number, turn in enumerate(degrees)}
        assert truth(data) == [
            group.get(data.current(d).quarter_turns, NO_GROUP) for d in range(24)
        ]


@pytest.mark.parametrize(
    "partition", [LabelGroups(), Permutations()], ids=lambda partition: partition.kind
)
def test_groups_that_differ_in_something_else_are_left(
    partition: Partition, small: Dataset
) -> None:
    data = partition.split(small, 20, Streams(1))
    for occasion in range(2):
        changed = [
            change.device
            for change in Rotation(probability=0.5).apply(
                data, occasion, everyone(data), Streams(1)
            )
        ]
        assert {truth(data)[device] for device in changed} == {NO_GROUP}
    untouched = [device for device in range(20) if data.version(device) == 0]
    assert untouched
    assert all(truth(data)[device] == device % partition.groups for device in untouched)  # type: ignore[attr-defined]


def test_two_devices_exchange_all_that_they_hold() -> None:
    plain = one_class_each(2)
    first = replace(
        plain.shards[0], quarter_turns=1, label_map=np.array([1, 0, 2, 3, 4]), augment_seed=8
    )
    data = FederatedData(tiny_pool(), [first, plain.shards[1]], truth=np.array([7, 3]))
    assert SwapAll(probability=1.0).apply(data, 0, everyone(data), Streams(1)) in (
        [Change(0, 1, 1), Change(1, 1, 0)],
        [Change(1, 1, 0), Change(0, 1, 1)],
    )
    assert data.current(1) is first, "a reference, not a copy"
    assert data.current(0) is data.shards[1]
    assert truth(data) == [3, 7]


def test_the_first_is_paired_with_the_last() -> None:
    candidates = np.array([10, 20, 30, 40, 50, 60, 70])
    order = np.random.default_rng(3).permutation(candidates)
    pairs = draw_pairs(candidates[::-1], np.random.default_rng(3))
    assert pairs.tolist() == [[order[0], order[6]], [order[1], order[5]], [order[2], order[4]]]


def test_as_many_devices_exchange_as_in_flexcfls_runs() -> None:
    """300 rounds of 1,000 devices, of which 20 more become warm in each: 13,725 are expected to
    change.
    """
    expected, pairs = 13_725, 137_250
    assert pairs == sum(min(20 * t, 1000) // 2 for t in range(300))
    assert 2 * 0.05 * pairs == expected
    data = one_class_each(1000)
    rule, streams = SwapAll(), Streams(6)
    changes = sum(
        len(rule.apply(data, t, np.arange(min(20 * t, 1000)), streams)) for t in range(300)
    )
    assert abs(changes - expected) < 4 * 2 * (pairs * 0.05 * 0.95) ** 0.5
    holders = sorted(int(data.current(device).train[0]) for device in range(1000))
    assert holders == sorted(int(shard.train[0]) for shard in data.shards)
    assert sum(data.version(device) for device in range(1000)) == changes
    pool = data.pool
    assert truth(data) == [int(pool.y[data.current(device).train[0]]) for device in range(1000)], (
        "truth goes along"
    )


ALWAYS = SwapPart(probability=1.0)


def test_all_samples_of_two_labels_change_places() -> None:
    data = plain(([0, 5, 1, 10], [15, 6]), ([2, 1, 7], [12, 11, 17]), truth=[4, 9])
    changes = ALWAYS.apply(data, 0, everyone(data), Streams(1))
    assert sorted((change.device, change.version, change.partner) for change in changes) == [
        (0, 1, 1),
        (1, 1, 0),
    ]
    one, other = data.current(0), data.current(1)
    assert (one.train.tolist(), one.test.tolist()) == ([1, 2, 7], [6, 12, 17])
    assert (other.train.tolist(), other.test.tolist()) == ([1, 0, 5, 10], [11, 15])
    assert (one.train.dtype, one.test.dtype) == (np.int32, np.int32)
    assert truth(data) == [NO_GROUP, NO_GROUP]


def test_a_pair_exchanges_only_what_each_alone_has() -> None:
    for one, other in (
        (([0, 1], [5, 6]), ([0], [5])),  # the other has nothing of its own
        (([0], []), ([1], [6])),  # no test samples at all
        (([0], [6]), ([2], [7])),  # none of the label that is trained on
    ):
        data = plain(one, other)
        assert ALWAYS.apply(data, 0, everyone(data), Streams(1)) == []
        assert (data.version(0), data.version(1)) == (0, 0)
    # Of label 0 the second has training samples only, so that it is the first's own.
    data = plain(([0, 1], [5, 6]), ([10, 1, 2], [7, 6]))
    ALWAYS.apply(data, 0, everyone(data), Streams(1))
    assert [data.current(device).train.tolist() for device in range(2)] == [[1, 2], [10, 1, 0]]
    assert [data.current(device).test.tolist() for device in range(2)] == [[6, 7], [6, 5]]
    assert data.truth is None


@pytest.mark.parametrize("quirk", [False, True])
def test_how_many_pairs_exchange_is_as_chances_say(quirk: bool) -> None:
    """As in FlexCFL's MNIST: device u of 1,000 holds two labels, u and u + 1; each of the 500
    pairs fires with p = 0.05.

    A pair fails with f = 99 / 999, when both hold the same. So 500 p (1 - f) = 22.52 exchange; if
    the first that fails ends the occasion, the sum over k of (1 - f)^k P(more than k - 1 fire),
    which is (1 - f) / f (1 - (1 - p f)^500) = 8.33.
    """
    p, f, occasions = 0.05, 99 / 999, 50
    expected = (1 - f) / f * (1 - (1 - p * f) ** 500) if quirk else 500 * p * (1 - f)
    assert expected == pytest.approx(8.33 if quirk else 22.52, abs=0.01)
    pool = Pool(np.zeros((40, 1, 2, 2), np.uint8), np.arange(40) % 10, 10)
    held = [([u, (u + 1) % 10], [10 + u, 10 + (u + 1) % 10]) for u in range(10)]
    shards = [
        Shard(*(np.array(part, dtype=np.int32) for part in held[u % 10])) for u in range(1000)
    ]
    rule, counts = SwapPart(quirk=quirk), []
    for occasion in range(occasions):
        data = FederatedData(pool, list(shards))
        counts.append(len(rule.apply(data, occasion, everyone(data), Streams(8))) // 2)
    assert abs(np.mean(counts) - expected) < 4 * np.std(counts, ddof=1) / occasions**0.5


def test_labels_are_as_the_devices_see_them() -> None:
    label_map = np.array([4, 3, 2, 1, 0])
    shards = [
        replace(shard, label_map=label_map.copy(), quarter_turns=3)
        for shard in plain(([0], [5]), ([1], [6])).shards
    ]
    data = FederatedData(tiny_pool(), shards)
    ALWAYS.check(data)
    ALWAYS.apply(data, 0, everyone(data), Streams(1))
    assert data.train_labels(data.current(0)).tolist() == [3]
    assert data.test_labels(data.current(0)).tolist() == [3]
    assert data.current(0).quarter_turns == 3


@pytest.mark.parametrize(
    "transform",
    [{"quarter_turns": 1}, {"label_map": np.array([1, 0, 2, 3, 4])}, {"augment_seed": 5}],
    ids=str,
)
def test_samples_that_would_change_their_meaning_are_refused(transform: dict[str, Any]) -> None:
    first, second = plain(([0], [5]), ([1], [6])).shards
    data = FederatedData(tiny_pool(), [first, replace(second, **transform)])
    for refuses in (
        lambda: ALWAYS.check(data),
        lambda: ALWAYS.apply(data, 0, everyone(data), Streams(1)),
    ):
        with pytest.raises(
            ScenarioError,
            match=r"drift.kind is 'swap-part'.* data.augmentation = \"none\", a data.partition",
        ):
            refuses()
    SwapAll().check(data)


@pytest.mark.parametrize("shares", [[], [0.0], [0.5, 1.5], [0.5, 0.25]], ids=str)
def test_impossible_shares_are_refused(shares: list[float]) -> None:
    with pytest.raises(ValidationError, match="shares"):
        Incremental(shares=shares)


def test_of_a_pair_any_label_that_one_alone_has_may_go() -> None:
    gone = set()
    for seed in range(60):
        data = plain(([0, 1, 2], [5, 6, 7]), ([3, 4], [8, 9]))
        ALWAYS.apply(data, 0, everyone(data), Streams(seed))
        gone.add((*data.current(0).train.tolist(), *data.current(1).train.tolist()))
    assert len(gone) == 3 * 2
