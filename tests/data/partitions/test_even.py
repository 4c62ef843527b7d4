"""Partitions that deal out everything: IID, Dirichlet, and the test samples that follow the labels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.data.dataset import Dataset, pooled
from fedsim.data.partitions import Dirichlet, Iid, Shards
from fedsim.data.partitions.base import deal_test_alike
from fedsim.streams import Streams
from tests.data.conftest import grey_images, held_out
from tests.data.partitions.conftest import all_test, all_train, assert_each_once, label_table

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
