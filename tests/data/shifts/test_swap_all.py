"""Devices that exchange everything."""

from dataclasses import replace

import numpy as np

from fedsim.data.federated import FederatedData
from fedsim.data.shifts import Change, SwapAll, draw_pairs
from fedsim.streams import Streams
from tests.data.shifts.conftest import everyone, one_class_each, tiny_pool


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


def test_without_a_truth_there_is_none_to_exchange() -> None:
    data = one_class_each(2, truth=False)
    SwapAll(probability=1.0).apply(data, 0, everyone(data), Streams(1))
    assert data.truth is None


def test_the_first_is_paired_with_the_last() -> None:
    candidates = np.array([10, 20, 30, 40, 50, 60, 70])
    order = np.random.default_rng(3).permutation(candidates)
    pairs = draw_pairs(candidates[::-1], np.random.default_rng(3))
    assert pairs.tolist() == [[order[0], order[6]], [order[1], order[5]], [order[2], order[4]]]


def test_one_of_an_odd_number_stays() -> None:
    data = one_class_each(5)
    changes = SwapAll(probability=1.0).apply(data, 0, everyone(data), Streams(1))
    assert len(changes) == 4
    partner = {change.device: change.partner for change in changes}
    assert all(partner[other] == one for one, other in partner.items() if other is not None)


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
