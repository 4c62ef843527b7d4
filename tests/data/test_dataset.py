"""Pooling and normalisation."""

import numpy as np
import pytest

from fedsim.data.dataset import Raw, pooled
from tests.data.conftest import grey_images


def raw_of(x_train: np.ndarray, x_test: np.ndarray, peak: float = 255.0) -> Raw:
    return Raw("t", x_train, np.zeros(len(x_train), int), x_test, np.zeros(len(x_test), int), classes=1, peak=peak)


def test_training_samples_come_first() -> None:
    raw = grey_images(6, 2)
    dataset = pooled(raw, "pixel")
    assert np.array_equal(dataset.pool.x[dataset.train], raw.x_train)
    assert np.array_equal(dataset.pool.x[dataset.test], raw.x_test)
    assert len(dataset.all) == 80
    assert dataset.train.dtype == np.int32


def test_pixels_reach_one() -> None:
    digits = raw_of(np.array([[0, 16]], dtype=np.uint8), np.array([[8, 4]], dtype=np.uint8), peak=16.0)
    pool = pooled(digits, "pixel").pool
    assert pool.normalised(pool.x.astype(np.float32)).tolist() == [[0.0, 1.0], [0.5, 0.25]]


def test_none_leaves_values_alone() -> None:
    pool = pooled(raw_of(np.array([[7]], dtype=np.uint8), np.array([[9]], dtype=np.uint8)), "none").pool
    assert pool.normalised(pool.x.astype(np.float32)).tolist() == [[7.0], [9.0]]


@pytest.mark.parametrize("over_test", [True, False])
def test_standardisation_is_that_of_fedprox(over_test: bool) -> None:
    raw = grey_images(700, 3)
    dataset = pooled(raw, "standardise", over_test=over_test)
    basis = (np.concatenate([raw.x_train, raw.x_test]) if over_test else raw.x_train).astype(np.float64)
    expected = (raw.x_test - basis.mean(axis=0)) / (basis.std(axis=0) + 0.001)
    assert dataset.pool.normalised(raw.x_test.astype(np.float32)) == pytest.approx(expected, abs=1e-4)


def test_a_pixel_that_never_changes_becomes_zero() -> None:
    pool = pooled(raw_of(np.full((3, 2), 5, dtype=np.uint8), np.full((1, 2), 5, dtype=np.uint8)), "standardise").pool
    assert not pool.normalised(pool.x.astype(np.float32)).any()
