"""Devices that exchange everything, or one label each. In the tiny pool the label of sample i is i mod 5."""

from dataclasses import replace

import numpy as np
import pytest

from fedsim.data.federated import NO_GROUP, FederatedData, Pool, Shard
from fedsim.data.shifts import Change, SwapAll, draw_pairs
from fedsim.errors import ScenarioError
from fedsim.streams import Streams
from fedsim.toolbox.shifts import SwapPart
from tests.data.small import everyone, one_class_each, plain, tiny_pool


def test_two_devices_exchange_all_that_they_hold() -> None:
    plain = one_class_each(2)
    first = replace(plain.shards[0], quarter_turns=1, label_map=np.array([1, 0, 2, 3, 4]), augment_seed=8)
    data = FederatedData(tiny_pool(), [first, plain.shards[1]], truth=np.array([7, 3]))
    assert SwapAll(probability=1.0).apply(data, 0, everyone(data), Streams(1)) in (
        [Change(0, 1, 1), Change(1, 1, 0)],
        [Change(1, 1, 0), Change(0, 1, 1)],
    )
    assert data.current(1) is first, "a reference, not a copy"
    assert data.current(0) is data.shards[1]
    assert data.truth is not None
    assert data.truth.tolist() == [3, 7]


def test_the_first_is_paired_with_the_last() -> None:
    candidates = np.array([10, 20, 30, 40, 50, 60, 70])
    order = np.random.default_rng(3).permutation(candidates)
    pairs = draw_pairs(candidates[::-1], np.random.default_rng(3))
    assert pairs.tolist() == [[order[0], order[6]], [order[1], order[5]], [order[2], order[4]]]


def test_as_many_devices_exchange_as_in_flexcfls_runs() -> None:
    """300 rounds of 1,000 devices, of which 20 more become warm in each: 13,725 are expected to change."""
    expected, pairs = 13_725, 137_250
    assert pairs == sum(min(20 * t, 1000) // 2 for t in range(300))
    assert 2 * 0.05 * pairs == expected
    data = one_class_each(1000)
    rule, streams = SwapAll(), Streams(6)
    changes = sum(len(rule.apply(data, t, np.arange(min(20 * t, 1000)), streams)) for t in range(300))
    assert abs(changes - expected) < 4 * 2 * (pairs * 0.05 * 0.95) ** 0.5
    holders = sorted(int(data.current(device).train[0]) for device in range(1000))
    assert holders == sorted(int(shard.train[0]) for shard in data.shards)
    assert sum(data.version(device) for device in range(1000)) == changes
    assert data.truth is not None
    pool = data.pool
    assert data.truth.tolist() == [int(pool.y[data.current(device).train[0]]) for device in range(1000)], "truth goes along"


ALWAYS = SwapPart(probability=1.0)


def test_all_samples_of_two_labels_change_places() -> None:
    data = plain(([0, 5, 1, 10], [15, 6]), ([2, 1, 7], [12, 11, 17]), truth=[4, 9])
    changes = ALWAYS.apply(data, 0, everyone(data), Streams(1))
    assert sorted((change.device, change.version, change.partner) for change in changes) == [(0, 1, 1), (1, 1, 0)]
    one, other = data.current(0), data.current(1)
    assert (one.train.tolist(), one.test.tolist()) == ([1, 2, 7], [6, 12, 17])
    assert (other.train.tolist(), other.test.tolist()) == ([1, 0, 5, 10], [11, 15])
    assert (one.train.dtype, one.test.dtype) == (np.int32, np.int32)
    assert data.truth is not None
    assert data.truth.tolist() == [NO_GROUP, NO_GROUP]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (([0, 1], [5, 6]), ([0], [5])),  # the other has nothing of its own
        (([0], []), ([1], [6])),  # no test samples at all
        (([0], [6]), ([2], [7])),  # none of the label that is trained on
    ],
    ids=str,
)
def test_a_pair_exchanges_only_what_each_alone_has(
    one: tuple[list[int], list[int]], other: tuple[list[int], list[int]]
) -> None:
    data = plain(one, other)
    assert ALWAYS.apply(data, 0, everyone(data), Streams(1)) == []
    assert (data.version(0), data.version(1)) == (0, 0)


def test_samples_of_a_label_that_the_other_has_in_part_join_them() -> None:
    """Of label 0 the second has training samples only, so that it is the first's own."""
    data = plain(([0, 1], [5, 6]), ([10, 1, 2], [7, 6]))
    ALWAYS.apply(data, 0, everyone(data), Streams(1))
    assert [data.current(device).train.tolist() for device in range(2)] == [[1, 2], [10, 1, 0]]
    assert [data.current(device).test.tolist() for device in range(2)] == [[6, 7], [6, 5]]
    assert data.truth is None


def test_any_of_a_devices_own_labels_may_go() -> None:
    gone = set()
    for seed in range(60):
        data = plain(([0, 1, 2], [5, 6, 7]), ([3, 4], [8, 9]))
        ALWAYS.apply(data, 0, everyone(data), Streams(seed))
        gone.add((*data.current(0).train.tolist(), *data.current(1).train.tolist()))
    assert len(gone) == 3 * 2


def test_a_pair_that_cannot_exchange_is_passed_over_or_ends_the_occasion_as_published() -> None:
    counts: dict[bool, list[int]] = {True: [], False: []}
    for seed in range(40):
        for quirk in (True, False):
            # Devices 0..5 own a label each, 6 and 7 none: two pairs at least can exchange.
            data = plain(*[([d % 5], [d % 5 + 5]) for d in range(6)], ([0], []), ([1], []))
            rule = SwapPart(probability=1.0, quirk=quirk)
            counts[quirk].append(len(rule.apply(data, 0, everyone(data), Streams(seed))))
    assert min(counts[False]) >= 2
    assert max(counts[True]) <= 6, "one pair out of four, at least, cannot"
    assert min(counts[True]) == 0
    assert all(published <= ours for published, ours in zip(counts[True], counts[False], strict=True))
    assert sum(counts[True]) < 0.7 * sum(counts[False])


@pytest.mark.parametrize("quirk", [False, True])
def test_how_many_pairs_exchange_is_as_chances_say(quirk: bool) -> None:
    """As in FlexCFL's MNIST: device u of 1,000 holds two labels, u and u + 1; each of the 500 pairs fires with p = 0.05.

    A pair fails with f = 99 / 999, when both hold the same. So 500 p (1 - f) = 22.52 exchange; if the first that fails ends
    the occasion, the sum over k of (1 - f)^k P(more than k - 1 fire), which is (1 - f) / f (1 - (1 - p f)^500) = 8.33.
    """
    p, f, occasions = 0.05, 99 / 999, 50
    expected = (1 - f) / f * (1 - (1 - p * f) ** 500) if quirk else 500 * p * (1 - f)
    assert expected == pytest.approx(8.33 if quirk else 22.52, abs=0.01)
    pool = Pool(np.zeros((40, 1, 2, 2), np.uint8), np.arange(40) % 10, 10)
    held = [([u, (u + 1) % 10], [10 + u, 10 + (u + 1) % 10]) for u in range(10)]
    shards = [Shard(*(np.array(part, dtype=np.int32) for part in held[u % 10])) for u in range(1000)]
    rule, counts = SwapPart(quirk=quirk), []
    for occasion in range(occasions):
        data = FederatedData(pool, list(shards))
        counts.append(len(rule.apply(data, occasion, everyone(data), Streams(8))) // 2)
    assert abs(np.mean(counts) - expected) < 4 * np.std(counts, ddof=1) / occasions**0.5


def test_labels_are_as_the_devices_see_them() -> None:
    label_map = np.array([4, 3, 2, 1, 0])
    shards = [replace(shard, label_map=label_map.copy(), quarter_turns=3) for shard in plain(([0], [5]), ([1], [6])).shards]
    data = FederatedData(tiny_pool(), shards)
    ALWAYS.check(data)
    ALWAYS.apply(data, 0, everyone(data), Streams(1))
    assert data.train_labels(data.current(0)).tolist() == [3]
    assert data.test_labels(data.current(0)).tolist() == [3]
    assert data.current(0).quarter_turns == 3


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        ({"quarter_turns": 1}, r"drift.kind is 'swap-part'.* with this data.partition devices turn"),
        ({"label_map": np.array([1, 0, 2, 3, 4])}, r"drift.kind is 'swap-part'.* with this data.partition"),
        ({"augment_seed": 5}, r"drift.kind is 'swap-part'.* data.augmentation = \"none\""),
    ],
    ids=str,
)
def test_samples_that_would_change_their_meaning_are_refused(transform: dict[str, object], says: str) -> None:
    first, second = plain(([0], [5]), ([1], [6])).shards
    data = FederatedData(tiny_pool(), [first, replace(second, **transform)])  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match=says):
        ALWAYS.check(data)
    with pytest.raises(ScenarioError, match=says):
        ALWAYS.apply(data, 0, everyone(data), Streams(1))
    SwapAll().check(data)
