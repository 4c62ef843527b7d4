"""Pools and shards: an index and a transform, whose samples come into being when they are asked
for.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.common.training import Part
from fedsim.learning.data.federated import (
    Dataset,
    FederatedData,
    Normalize,
    Raw,
    Shard,
    pooled,
    stratified_part,
)
from fedsim.learning.data.transforms import Augmentation, augment, rotate
from tests.learning.conftest import grey_images, held_out


def test_training_samples_come_first() -> None:
    raw = grey_images(6, 2)
    dataset = pooled(raw, "pixel")
    assert np.array_equal(dataset.pool.x[dataset.train], raw.x_train)
    assert np.array_equal(dataset.pool.x[dataset.test], raw.x_test)
    assert len(dataset.all) == 80
    assert dataset.train.dtype == np.int32


@pytest.mark.parametrize(
    ("how", "peak", "train", "test", "seen"),
    [
        ("pixel", 16.0, [[0, 16]], [[8, 4]], [[0.0, 1.0], [0.5, 0.25]]),
        ("none", 255.0, [[7]], [[9]], [[7.0], [9.0]]),
        # pixels that never change
        ("standardize", 255.0, [[5, 5]] * 3, [[5, 5]], [[0.0, 0.0]] * 4),
    ],
)
def test_normalisation_by_hand(
    how: Normalize, peak: float, train: Any, test: Any, seen: Any
) -> None:
    x_train, x_test = (np.array(part, dtype=np.uint8) for part in (train, test))
    y_train, y_test = (np.zeros(len(part), int) for part in (train, test))
    pool = pooled(Raw("t", x_train, y_train, x_test, y_test, classes=1, peak=peak), how).pool
    assert pool.normalised(pool.x.astype(np.float32)).tolist() == seen


@pytest.mark.parametrize("over_test", [True, False])
def test_standardisation_is_that_of_fedprox(over_test: bool) -> None:
    raw = grey_images(700, 3)
    dataset = pooled(raw, "standardize", over_test=over_test)
    basis = (np.concatenate([raw.x_train, raw.x_test]) if over_test else raw.x_train).astype(
        np.float64
    )
    expected = (raw.x_test - basis.mean(axis=0)) / (basis.std(axis=0) + 0.001)
    assert dataset.pool.normalised(raw.x_test.astype(np.float32)) == pytest.approx(
        expected, abs=1e-4
    )


def index(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def test_a_plain_shard_gives_normalised_samples_in_its_order(small: Dataset) -> None:
    data = FederatedData(small.pool, [Shard(index(12, 3, 3), index(700))])
    x, y = data.train_samples(data.shards[0])
    assert np.array_equal(x, small.pool.x[[12, 3, 3]].astype(np.float32) * np.float32(1 / 255))
    assert (x.dtype, y.tolist()) == (np.float32, [2, 3, 3])
    assert (data.train_sizes().tolist(), held_out(data).tolist()) == ([3], [1])
    assert data.label_counts(data.shards[0]).tolist() == [0, 0, 1, 2, 0, 0, 0, 0, 0, 0]


def test_labels_and_images_turn_in_training_and_test_alike(small: Dataset) -> None:
    label_map = np.roll(np.arange(10), 1)
    shard = Shard(index(12, 3), index(700, 701), quarter_turns=1, label_map=label_map)
    data = FederatedData(small.pool, [shard])
    for mine, (x, y) in (
        (shard.train, data.train_samples(shard)),
        (shard.test, data.test_samples(shard)),
    ):
        assert np.array_equal(
            x, small.pool.normalised(rotate(small.pool.x[mine].astype(np.float32), 1))
        )
        assert np.array_equal(y, label_map[small.pool.y[mine]])
    assert data.label_counts(shard).nonzero()[0].tolist() == sorted(label_map[[2, 3]])
    assert np.array_equal(data.test_labels(shard), label_map[small.pool.y[[700, 701]]])


def test_only_training_images_are_augmented(small: Dataset) -> None:
    shard = Shard(index(5, 5, 5), index(5), augment_seed=8)
    data = FederatedData(small.pool, [shard], augmentation=Augmentation())
    raw = small.pool.x[[5, 5, 5]].astype(np.float32)
    x, _ = data.train_samples(shard)
    assert np.array_equal(x, small.pool.normalised(augment(raw, Augmentation(), 8)))
    assert len(np.unique(x.reshape(3, -1), axis=0)) == 3
    assert np.array_equal(data.test_samples(shard)[0], small.pool.normalised(raw[:1]))


def test_a_device_gets_its_next_version_and_keeps_the_old_ones(small: Dataset) -> None:
    shards = [Shard(index(1), index(700)), Shard(index(2, 3), index(701))]
    data = FederatedData(small.pool, shards, truth=np.array([5, 6]))
    assert (data.version(1), data.current(1)) == (0, shards[1])
    assert data.replace_shard(1, shards[0]) == 1
    assert data.replace_shard(1, Shard(index(9), index())) == 2
    assert (data.version(0), data.version(1)) == (0, 2)
    assert data.current(1).train.tolist() == [9]
    assert data.shard(1, 1) is shards[0]
    assert data.shard(1) is data.shard(1, 0) is shards[1]
    assert data.current(0) is shards[0]
    assert data.train_sizes().tolist() == [1, 2], "of version 0"


def test_truth_is_a_copy_the_first_stays_known_and_a_copy_of_a_population_has_no_versions(
    small: Dataset,
) -> None:
    given = np.array([5, 6])
    data = FederatedData(
        small.pool, [Shard(index(1), index()), Shard(index(2), index())], truth=given
    )
    assert data.truth is not None
    data.truth[0] = 9
    assert (data.truth.tolist(), given.tolist()) == ([9, 6], [5, 6])
    assert data.initial_truth is not None
    assert data.initial_truth.tolist() == [5, 6]
    other = replace(data, augmentation=Augmentation())
    data.replace_shard(0, Shard(index(2), index()))
    assert (other.version(0), other.current(0)) == (0, data.shards[0])


labels = st.lists(st.integers(0, 4), min_size=1, max_size=200).map(
    lambda values: np.array(values, dtype=np.int64)
)


def test_a_known_split() -> None:
    y = np.array([1, 0, 1, 0, 0, 1, 1], dtype=np.int64)
    known = {(0, 1): [1, 3, 4, 0, 2, 5, 6], (1, 1): [1, 4, 2, 6], (1, 2): [3, 0, 5], (2, 3): [4, 6]}
    assert {part: stratified_part(y, *part).tolist() for part in known} == known


@given(y=labels, splits=st.integers(0, 6))
def test_parts_are_disjoint_complete_and_alike_and_another_split_halves_each(
    y: np.ndarray, splits: int
) -> None:
    parts = [stratified_part(y, splits, number) for number in range(1, 2**splits + 1)]
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(y)))
    counts = np.array([np.bincount(y[part], minlength=5) for part in parts])
    assert (np.ptp(counts, axis=0) <= 1).all()
    sizes = [Part(splits, number, len(y)).samples for number in range(1, 2**splits + 1)]
    assert sizes == counts.sum(axis=1).tolist()
    assert sizes[0] == max(sizes) <= min(sizes) + 1
    for number, part in enumerate(parts, 1):
        halves = [stratified_part(y, splits + 1, half) for half in (number, number + 2**splits)]
        assert sorted(np.concatenate(halves)) == sorted(part)


STILL = {"max_degrees": 0.0, "flip": 0.0, "shift": 0.0}


def pictures(count: int, channels: int = 1, side: int = 9) -> np.ndarray:
    return (
        np.random.default_rng(0).uniform(0, 255, (count, channels, side, side)).astype(np.float32)
    )


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_without_distortions_nothing_changes_but_a_certain_mirror_image_and_turns_are_exact(
    flip: float,
) -> None:
    raw = pictures(5, channels=3)
    assert np.array_equal(
        augment(raw, Augmentation(**{**STILL, "flip": flip}), seed=1),
        raw[..., ::-1] if flip else raw,
    )
    image = np.array([[[[1, 2], [3, 4]]]], dtype=np.float32)
    assert [rotate(image, turns)[0, 0].tolist() for turns in (1, 2)] == [
        [[2, 4], [1, 3]],
        [[4, 3], [2, 1]],
    ]


def test_flips_come_with_their_probability_and_a_shift_moves_the_centre_of_mass_by_at_most_its_share_of_the_side() -> (
    None
):
    raw = np.zeros((2000, 1, 20, 20), dtype=np.float32)
    raw[:, :, 9:11, 9:11] = 1.0
    moved = augment(raw, Augmentation(**{**STILL, "shift": 0.1}), seed=3)
    mass = moved.sum(axis=(1, 2, 3))
    offsets = (moved.sum(axis=(1, 3)) @ np.arange(20)) / mass - 9.5
    assert mass == pytest.approx(4.0, abs=1e-4)
    assert -2.0 <= offsets.min() < -1.9
    assert 1.9 < offsets.max() <= 2.0
    assert abs(offsets.mean()) < 0.1
    raw = pictures(4000, side=3)
    flipped = (augment(raw, Augmentation(**{**STILL, "flip": 0.3}), seed=1) != raw).any(
        axis=(1, 2, 3)
    )
    assert flipped.mean() == pytest.approx(0.3, abs=0.03)


def test_a_rotation_keeps_the_centre_and_turns_a_bar_by_at_most_its_limit() -> None:
    raw = np.zeros((500, 1, 41, 41), dtype=np.float32)
    raw[:, :, 20, 5:36] = 1.0
    turned = augment(raw, Augmentation(max_degrees=15.0, flip=0.0, shift=0.0), seed=3)
    place = np.arange(41) - 20.0
    row, column = place[:, None], place[None, :]
    inertia = [
        (turned[:, 0] * weight).sum(axis=(1, 2)) for weight in (row * column, column**2, row**2)
    ]
    degrees = np.rad2deg(0.5 * np.arctan2(2 * inertia[0], inertia[1] - inertia[2]))
    assert turned[:, 0, 20, 20] == pytest.approx(1.0)
    assert -15.2 < degrees.min() < -14
    assert 14 < degrees.max() < 15.2


@given(st.sampled_from([1, 3]), st.integers(1, 13), st.integers(0, 2**64 - 1), st.integers(0, 39))
def test_a_sample_does_not_depend_on_others(
    channels: int, side: int, seed: int, position: int
) -> None:
    raw = pictures(40, channels, side)
    together = augment(raw, Augmentation(), seed)
    assert np.array_equal(
        augment(raw[: position + 1], Augmentation(), seed), together[: position + 1]
    )
    others = raw.copy()
    others[np.arange(40) != position] = 0.0
    assert np.array_equal(augment(others, Augmentation(), seed)[position], together[position])
    assert raw.min() <= together.min()
    assert together.max() <= raw.max()


def test_blocks_leave_no_seam_and_seeds_and_positions_differ() -> None:
    raw = np.repeat(pictures(1, side=5), 1100, axis=0)
    together, other = (augment(raw, Augmentation(), seed) for seed in (9, 1))
    assert np.array_equal(augment(raw[:513], Augmentation(), seed=9), together[:513])
    assert len(np.unique(together.reshape(1100, -1), axis=0)) == 1100
    assert not np.array_equal(together, other)
