"""Quarter turns are exact; an augmented sample depends on (seed, position) alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.data.transforms import Augmentation, augment, rotate

STILL = {"max_degrees": 0.0, "flip": 0.0, "shift": 0.0}


def pictures(count: int, channels: int = 1, side: int = 9) -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 255, (count, channels, side, side)).astype(np.float32)


def test_a_quarter_turn_is_counter_clockwise() -> None:
    image = np.array([[[[1, 2], [3, 4]]]], dtype=np.float32)
    assert rotate(image, 1)[0, 0].tolist() == [[2, 4], [1, 3]]
    assert rotate(image, 2)[0, 0].tolist() == [[4, 3], [2, 1]]
    assert np.array_equal(rotate(rotate(image, 3), 1), image)


def test_no_distortion_changes_nothing() -> None:
    raw = pictures(5)
    assert np.array_equal(augment(raw, Augmentation(**STILL), seed=1), raw)


def test_a_certain_flip_is_the_mirror_image() -> None:
    raw = pictures(5, channels=3)
    assert np.array_equal(augment(raw, Augmentation(**{**STILL, "flip": 1.0}), seed=1), raw[..., ::-1])


def test_flips_come_with_their_probability() -> None:
    raw = pictures(4000, side=3)
    flipped = (augment(raw, Augmentation(**{**STILL, "flip": 0.3}), seed=1) != raw).any(axis=(1, 2, 3))
    assert flipped.mean() == pytest.approx(0.3, abs=0.03)


def test_a_shift_moves_the_centre_of_mass_by_at_most_its_share_of_the_side() -> None:
    raw = np.zeros((2000, 1, 20, 20), dtype=np.float32)
    raw[:, :, 9:11, 9:11] = 1.0
    moved = augment(raw, Augmentation(**{**STILL, "shift": 0.1}), seed=3)
    mass = moved.sum(axis=(1, 2, 3))
    offsets = (moved.sum(axis=(1, 3)) @ np.arange(20)) / mass - 9.5
    assert mass == pytest.approx(4.0, abs=1e-4)
    assert -2.0 <= offsets.min() < -1.9
    assert 1.9 < offsets.max() <= 2.0
    assert abs(offsets.mean()) < 0.1


def test_a_rotation_keeps_the_centre_and_turns_a_bar_by_at_most_its_limit() -> None:
    raw = np.zeros((500, 1, 41, 41), dtype=np.float32)
    raw[:, :, 20, 5:36] = 1.0
    turned = augment(raw, Augmentation(max_degrees=15.0, flip=0.0, shift=0.0), seed=3)
    place = np.arange(41) - 20.0
    row, column = place[:, None], place[None, :]
    inertia = [(turned[:, 0] * weight).sum(axis=(1, 2)) for weight in (row * column, column**2, row**2)]
    degrees = np.rad2deg(0.5 * np.arctan2(2 * inertia[0], inertia[1] - inertia[2]))
    assert turned[:, 0, 20, 20] == pytest.approx(1.0)
    assert -15.2 < degrees.min() < -14
    assert 14 < degrees.max() < 15.2


@given(
    count=st.integers(1, 40),
    channels=st.sampled_from([1, 3]),
    side=st.integers(1, 13),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 39),
)
def test_a_sample_does_not_depend_on_who_stands_behind_it(
    count: int, channels: int, side: int, seed: int, position: int
) -> None:
    raw = pictures(40, channels, side)
    together = augment(raw, Augmentation(), seed)
    assert np.array_equal(augment(raw[:count], Augmentation(), seed), together[:count])
    others = raw.copy()
    others[np.arange(40) != position] = 0.0
    assert np.array_equal(augment(others, Augmentation(), seed)[position], together[position])
    assert raw.min() <= together.min()
    assert together.max() <= raw.max()


def test_blocks_leave_no_seam() -> None:
    raw = pictures(1100, side=5)
    together = augment(raw, Augmentation(), seed=9)
    assert np.array_equal(augment(raw[:513], Augmentation(), seed=9), together[:513])


def test_seeds_and_positions_differ() -> None:
    raw = np.repeat(pictures(1), 50, axis=0)
    one, other = augment(raw, Augmentation(), 1), augment(raw, Augmentation(), 2)
    assert len(np.unique(one.reshape(50, -1), axis=0)) == 50
    assert not np.array_equal(one, other)
