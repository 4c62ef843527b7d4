"""The published recipes, against their published numbers."""

import numpy as np
import pytest

from fedsim.data.dataset import Dataset
from fedsim.data.partitions import Ditto, Femnist, PowerLaw, SyntheticSizes
from fedsim.data.sources import Synthetic
from fedsim.streams import Streams
from tests.data.conftest import held_out
from tests.data.partitions.conftest import all_test, all_train, label_table

SEEDS = [1, 2, 3]


@pytest.mark.parametrize("seed", SEEDS)
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
    classes = [frozenset(np.unique(mnist.pool.y[np.concatenate([s.train, s.test])]).tolist()) for s in data.shards]
    assert all(mine == {u % 10, (u + 1) % 10} for u, mine in enumerate(classes))
    assert len(set(classes)) == 10
    assert (held < 60_000).any()
    assert (held >= 60_000).any()


@pytest.mark.parametrize("classes_per_device", [1, 3, 5, 10])
def test_power_law_with_other_numbers_of_classes(mnist: Dataset, classes_per_device: int) -> None:
    data = PowerLaw(classes_per_device=classes_per_device).split(mnist, 1000, Streams(1))
    sizes = data.train_sizes() + held_out(data)
    assert sizes.min() >= 5 * classes_per_device
    assert 67_000 < sizes.sum() < 70_000
    for user, shard in enumerate(data.shards):
        labels = np.unique(mnist.pool.y[np.concatenate([shard.train, shard.test])])
        assert set(labels) == {(user + slot) % 10 for slot in range(classes_per_device)}


def test_ditto_fashion_exactly(fashion: Dataset) -> None:
    data = Ditto().split(fashion, 500, Streams(1))
    train, test = data.train_sizes(), held_out(data)
    assert (train.sum(), test.sum()) == (61_251, 11_254)
    assert (train.min(), train.max(), np.median(train)) == (31, 1378, 88)
    table = label_table(data)
    for user in range(500):
        assert set(np.flatnonzero(table[user])) == {(user + slot) % 10 for slot in range(5)}
    assert all_train(data).max() < 60_000 <= all_test(data).min()
    other_run = Ditto().split(fashion, 500, Streams(2))
    assert all(np.array_equal(a.train, b.train) for a, b in zip(data.shards, other_run.shards, strict=True))


def test_femnist_as_published_overlaps(letters: Dataset) -> None:
    data = Femnist().split(letters, 200, Streams(1))
    sizes = data.train_sizes() + held_out(data)
    assert sizes.sum() == pytest.approx(18_820, abs=3 * 1_656)
    held = [np.concatenate([shard.train, shard.test]) for shard in data.shards]
    for user in (0, 7, 150):
        for slot in range(3):
            label = (user + slot) % 10
            mine, twin = (h[letters.pool.y[h] == label] for h in (held[user], held[(user + 10) % 200]))
            assert np.isin(mine, twin).sum() == min(len(mine), len(twin)), "every device takes the first images of a class"
    tested = all_test(data)
    assert np.isin(tested, all_train(data)).mean() > 0.9
    assert all(np.bincount(letters.pool.y[h], minlength=10).max() == len(h) // 3 for h in held)


def test_femnist_overlaps_on_small_data_too(small: Dataset) -> None:
    sizes = Femnist().split(small, 200, Streams(1)).train_sizes()
    assert sizes.min() >= 5
    assert sizes.max() <= 0.9 * 3 * 60


def test_few_devices_share_out_nearly_everything(small: Dataset) -> None:
    data = PowerLaw().split(small, 10, Streams(1))
    assert data.train_sizes().sum() + held_out(data).sum() >= 800 - 2 * 10
    alone = PowerLaw(classes_per_device=10).split(small, 1, Streams(1))
    assert alone.train_sizes().sum() + held_out(alone).sum() >= 800 - 10


def test_femnist_without_the_slip_is_clean(letters: Dataset) -> None:
    dirty, data = (Femnist(overlap=overlap).split(letters, 200, Streams(1)) for overlap in (True, False))
    held = np.concatenate([all_train(data), all_test(data)])
    assert len(np.unique(held)) == len(held)
    assert np.array_equal(data.train_sizes(), dirty.train_sizes())


def test_synthetic_sizes() -> None:
    sizes = SyntheticSizes().sizes(4000, Streams(1))
    assert sizes.min() >= 50
    assert np.median(sizes) == pytest.approx(50 + np.exp(4), rel=0.08)
    assert np.log(sizes - 49.5).std() == pytest.approx(2.0, rel=0.1)


def test_synthetic_devices() -> None:
    streams = Streams(3)
    dataset = Synthetic().draw(SyntheticSizes().sizes(30, streams), streams)
    data = SyntheticSizes().split(dataset, 30, streams)
    sizes = SyntheticSizes().sizes(30, streams)
    assert np.array_equal(data.train_sizes(), np.floor(0.9 * sizes))
    assert np.array_equal(data.train_sizes() + held_out(data), sizes)
    start = 0
    for shard, size in zip(data.shards, sizes, strict=True):
        assert np.array_equal(np.sort(np.concatenate([shard.train, shard.test])), np.arange(start, start + size))
        start += size
