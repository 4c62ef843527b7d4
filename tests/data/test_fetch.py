"""What can be tested of downloads without a network: names, advice, and the way from OpenML's tables to files."""

from pathlib import Path

import numpy as np
import pytest

from fedsim.data.fetch import as_images, fetch
from fedsim.errors import DataError, ScenarioError


def test_unknown_names_get_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        ScenarioError, match=r"'mnits' is unknown; allowed are mnist, fashion, cifar10, emnist .did you mean 'mnist'"
    ):
        fetch("mnits", tmp_path)


def test_emnist_is_to_be_downloaded_by_hand(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"by hand: put emnist-byclass-train-images-idx3-ubyte, .* into '.*/emnist'; .*nist.gov"
    ):
        fetch("emnist", tmp_path)


def test_tables_become_images() -> None:
    table = np.arange(2 * 12).reshape(2, 12).astype(np.float64)
    x, y = as_images("t", table, np.array(["3", "9"], dtype=object), (3, 2, 2))
    assert (x.shape, x.dtype, y.tolist()) == ((2, 3, 2, 2), np.uint8, [3, 9])
    assert x[1, 2].tolist() == [[20, 21], [22, 23]]


@pytest.mark.parametrize("table", [np.zeros((2, 11)), np.zeros((3, 12)), np.full((2, 12), 256.0), np.full((2, 12), -1.0)])
def test_strange_tables_are_refused(table: np.ndarray) -> None:
    with pytest.raises(DataError, match="OpenML sent a table"):
        as_images("t", table, np.array(["3", "9"]), (3, 2, 2))
