"""Data for the tests: small pools made here, and the published sets where they are."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedsim.data.federated import Dataset, FederatedData, Raw, pooled
from fedsim.toolbox.sources.images import Fashion, Mnist

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


def grey_images(train_per_class: int, test_per_class: int, classes: int = 10, side: int = 8) -> Raw:
    """Labels as given, classes interleaved; pixels random."""
    rng = np.random.default_rng(5)
    sizes = (train_per_class * classes, test_per_class * classes)
    x_train, x_test = (rng.integers(0, 256, (size, 1, side, side), dtype=np.uint8) for size in sizes)
    y_train, y_test = (np.arange(size) % classes for size in sizes)
    return Raw("pictures", x_train, y_train, x_test, y_test, classes)


@pytest.fixture(scope="session")
def small() -> Dataset:
    """600 + 200 images of 10 classes."""
    return pooled(grey_images(60, 20), "pixel")


@pytest.fixture(scope="session")
def letters() -> Dataset:
    """As large as FEMNIST's ten letters, but one pixel an image."""
    return pooled(grey_images(4000, 1, side=1), "pixel")


@pytest.fixture(scope="session")
def data_root() -> Path:
    root = Path(os.environ.get("FEDSIM_DATA") or _BESIDE)
    if not (root / "mnist").is_dir() or not (root / "fashion-mnist").is_dir():
        pytest.skip(f"MNIST and Fashion-MNIST are not in {root}: set FEDSIM_DATA")
    return root


@pytest.fixture(scope="session")
def mnist_raw(data_root: Path) -> Raw:
    return Mnist().load(data_root)


@pytest.fixture(scope="session")
def mnist(mnist_raw: Raw) -> Dataset:
    return pooled(mnist_raw, "standardise", over_test=True)


@pytest.fixture(scope="session")
def fashion(data_root: Path) -> Dataset:
    return pooled(Fashion().load(data_root), "standardise")


def held_out(data: FederatedData) -> np.ndarray:
    """Test samples of each device."""
    return np.array([len(shard.test) for shard in data.shards])
