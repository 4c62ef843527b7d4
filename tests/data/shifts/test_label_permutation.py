"""Devices that come to name things differently."""

import numpy as np
import pytest

from fedsim.data.federated import NO_GROUP, FederatedData, Pool, Shard
from fedsim.data.shifts import LabelPermutation
from fedsim.errors import ScenarioError
from fedsim.streams import Streams
from tests.data.shifts.conftest import everyone, plain

ALWAYS = LabelPermutation(probability=1.0)


def test_labels_are_permuted_further_each_time() -> None:
    data = plain((list(range(5)), list(range(5, 10))), truth=[2])
    ALWAYS.apply(data, 0, everyone(data), Streams(1))
    first = data.train_labels(data.current(0))
    assert sorted(first.tolist()) == list(range(5)) != first.tolist()
    assert np.array_equal(data.test_labels(data.current(0)), first)
    assert data.current(0).train is data.shards[0].train
    assert data.truth is not None
    assert data.truth.tolist() == [NO_GROUP]

    fresh = plain((list(range(5)), []))
    ALWAYS.apply(fresh, 1, everyone(fresh), Streams(1))
    step = fresh.train_labels(fresh.current(0))
    ALWAYS.apply(data, 1, everyone(data), Streams(1))
    assert np.array_equal(data.train_labels(data.current(0)), step[first]), "on top of the labels as they are"
    assert np.array_equal(data.train_labels(data.shard(0, 1)), first)


def test_two_classes_always_change_places() -> None:
    pool = Pool(np.zeros((4, 3), np.uint8), np.array([0, 1, 0, 1]), 2)
    data = FederatedData(pool, [Shard(np.array([0, 1], np.int32), np.array([], np.int32))])
    for occasion in range(8):
        ALWAYS.apply(data, occasion, everyone(data), Streams(1))
        assert data.train_labels(data.current(0)).tolist() == ([1, 0] if occasion % 2 == 0 else [0, 1])


def test_one_class_has_no_permutation() -> None:
    pool = Pool(np.zeros((4, 3), np.uint8), np.zeros(4, np.int64), 1)
    data = FederatedData(pool, [Shard(np.array([0], np.int32), np.array([], np.int32))])
    with pytest.raises(ScenarioError, match=r"drift.kind is 'label-permutation'; the data have 1 class"):
        ALWAYS.check(data)
    with pytest.raises(ScenarioError, match=r"drift.kind is 'label-permutation'"):
        ALWAYS.apply(data, 0, everyone(data), Streams(1))


def test_as_many_as_the_probability_says() -> None:
    data = plain(*[([d], []) for d in range(50)])
    fired = sum(len(LabelPermutation(probability=0.2).apply(data, k, everyone(data), Streams(3))) for k in range(40))
    assert abs(fired - 400) < 4 * (2000 * 0.2 * 0.8) ** 0.5
