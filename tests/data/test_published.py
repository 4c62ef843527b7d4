"""The published recipes, against their published numbers."""

import sys

import numpy as np
import pytest

from fedsim.data.federated import Dataset, Raw, pooled
from fedsim.data.partitions import SyntheticSizes
from fedsim.data.sources import Synthetic
from fedsim.language.sizes import LongTailSizes, UniformSizes
from fedsim.streams import Streams
from fedsim.toolbox.partitions.published import ClassBias, ClassImbalance, DittoPartition, Femnist, PowerLaw
from tests.data.conftest import all_test, all_train, assert_each_once, grey_images, held_out, label_table

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
    assert (held < 60_000).any()
    assert (held >= 60_000).any()


@pytest.mark.parametrize("classes", [1, 2, 6])
def test_power_law_gives_each_device_as_many_classes_as_it_says(mnist: Dataset, classes: int) -> None:
    data = PowerLaw(classes_per_device=classes).split(mnist, 1000, Streams(1))
    sizes = data.train_sizes() + held_out(data)
    assert sizes.min() >= 5 * classes
    assert 67_000 < sizes.sum() < 70_000
    for user, shard in enumerate(data.shards):
        assert {*mnist.pool.y[np.append(shard.train, shard.test)]} == {(user + slot) % 10 for slot in range(classes)}


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
    assert all(np.array_equal(a.train, b.train) for a, b in zip(data.shards, other_run.shards, strict=True))


def test_femnist_as_published_overlaps_and_without_the_slip_is_clean(letters: Dataset) -> None:
    data, clean = (Femnist(overlap=overlap).split(letters, 200, Streams(1)) for overlap in (True, False))
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


def test_images_come_from_the_first_of_each_class_and_repeat_within_a_device_only_when_they_must(large: Dataset) -> None:
    allowed = np.concatenate([part[:200] for part in large.by_class(large.train)])
    data = ClassBias(per_class=200).split(large, 50, Streams(1))
    assert np.isin(all_train(data), allowed).all()
    for shard, counts in zip(data.shards, label_table(data), strict=True):
        distinct = np.bincount(large.pool.y[np.unique(shard.train)], minlength=10)
        assert np.array_equal(distinct[counts <= 200], counts[counts <= 200])


def test_4000_devices_of_augmented_images_fit_in_a_fraction_of_a_gigabyte() -> None:
    x, y = np.zeros((10_000, 1, 28, 28), dtype=np.uint8), np.arange(10_000) % 10
    dataset = pooled(Raw("empty", np.repeat(x, 5, axis=0), np.tile(y, 5), x, y, classes=10), "pixel")
    data = ClassBias().split(dataset, 4000, Streams(1))
    assert data.train_sizes().sum() == pytest.approx(4000 * 1550, rel=0.03)
    indices = sum(shard.train.nbytes + shard.test.nbytes for shard in data.shards)
    objects = sum(sys.getsizeof(shard) + 2 * sys.getsizeof(np.empty(0, np.int32)) for shard in data.shards)
    assert dataset.pool.x.nbytes + indices + objects < 80e6
    assert all(shard.train.base is None or shard.train.base.nbytes <= shard.train.nbytes for shard in data.shards)


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
    data = ClassImbalance(classes_per_device=1, largest=10).split(large, 3000, Streams(1))
    majority = np.argmax(label_table(data), axis=1) + 1
    draws = np.rint(np.random.Generator(np.random.Philox(1)).normal(5.0, np.sqrt(10.0), 400_000))
    expected = np.bincount(draws[(draws >= 1) & (draws <= 10)].astype(int), minlength=11)[1:]
    assert np.bincount(majority, minlength=11)[1:] / 3000 == pytest.approx(expected / expected.sum(), abs=0.025)
    # With the normal so narrow that class 3 is everybody's majority.
    table = label_table(ClassImbalance(classes_per_device=5, mean=3.0, variance=1e-4).split(large, 60, Streams(1)))
    assert np.array_equal(table[:, 2], table.max(axis=1))
