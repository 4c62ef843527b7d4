"""Datasets and arrays of one's own: run rightly, or refused with plain words; never read past,
never drawn.
"""

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsim
from fedsim.common.errors import DataError, ScenarioError
from fedsim.common.streams import Streams
from fedsim.learning.data.spec import DataSpec
from tests.learning import sets


def built(source: dict[str, Any], **data: Any) -> Any:
    return DataSpec(source=source, **data).build(2, Streams(1))


def dataset(name: str, **more: Any) -> dict[str, Any]:
    return {"kind": "dataset", "factory": f"tests.learning.sets:{name}", **more}


def shared_generators() -> tuple[Any, ...]:
    numpys = np.random.get_state()[1:3]  # noqa: NPY002
    return random.getstate(), numpys[0].tolist(), numpys[1], torch.get_rng_state().tolist()


@pytest.mark.parametrize("name", sets.ALIKE)
def test_items_that_follow_from_their_index_are_read_and_no_shared_generator_moves(
    name: str,
) -> None:
    before = shared_generators()
    data = built(dataset(name))
    assert shared_generators() == before
    size = {"joined": 2 * sets.SIZE, "split_by_seed": 20}.get(name, sets.SIZE)
    assert len(data.pool.y) == size
    assert data.pool.x.dtype == np.float32
    if name in ("Plain", "Tensors", "Mappings", "Double", "Gradients", "tensors"):
        order = np.concatenate(
            [[place for place in range(size) if place // 3 % 5 != 4], range(12, 15)]
        )
        assert np.array_equal(data.pool.x, sets.images()[order])


@pytest.mark.parametrize("name", sets.DRAWN)
def test_items_that_draw_or_depend_on_the_order_of_reading_are_refused(name: str) -> None:
    for seed in range(2):
        random.seed(seed)
        before = shared_generators()
        with pytest.raises(
            DataError, match=r"sets:.*fedsim reads a Dataset once.*\[data.augmentation\]"
        ):
            built(dataset(name))
        assert shared_generators() == before


@pytest.mark.parametrize("name", sets.REFUSED)
def test_other_items_are_refused_with_plain_words(name: str) -> None:
    with pytest.raises(DataError) as caught:
        built(dataset(name))
    assert sets.REFUSED[name] in str(caught.value)


def test_a_column_of_items_is_used_or_declared_and_channels_may_be_last() -> None:
    assert built(dataset("FurtherColumn"), column="writer").pool.classes == 2
    assert built(dataset("FurtherColumn", columns=["writer"])).pool.classes == 1
    assert built(dataset("ChannelsLast", layout="channels-last")).pool.shape == (3, 16, 16)
    assert built(dataset("ChannelsLast", layout="channels-first")).pool.shape == (16, 16, 3)


# Arrays.

X = np.random.default_rng(0).normal(size=(40, 7)).astype(np.float32)
Y = np.arange(40) % 4
IMAGES = np.zeros((40, 12, 10, 3), np.uint8) + np.arange(40, dtype=np.uint8)[:, None, None, None]
SPLIT = {"x_train": X, "y_train": Y, "x_test": X[:8], "y_test": Y[:8]}

TAKEN: dict[str, dict[str, Any]] = {
    "plain": {"x": X, "y": Y},
    "split": SPLIT,
    "float16": {"x": X.astype(np.float16), "y": Y},
    "float64": {"x": X.astype(np.float64), "y": Y},
    "big endian": {"x": X.astype(">f4"), "y": Y.astype(">i8")},
    "uint8 labels": {"x": X, "y": Y.astype(np.uint8)},
    "two classes as bool": {"x": X, "y": Y > 1},
    "channels first": {"x": IMAGES.transpose(0, 3, 1, 2), "y": Y},
    "feature maps": {"x": np.zeros((40, 16, 3, 3), np.float32), "y": Y},
    "one pixel": {"x": np.zeros((40, 8, 1, 1), np.float32), "y": Y},
    "grey": {"x": IMAGES[..., 0], "y": Y},
    "fortran order": {"x": np.asfortranarray(X), "y": Y},
}


@pytest.mark.parametrize("name", TAKEN)
def test_arrays_that_are_taken(name: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **TAKEN[name])
    data = built({"kind": "npz", "path": "a.npz"}, root=str(tmp_path))
    assert data.pool.classes == (2 if "bool" in name else 4)
    assert data.pool.x.dtype == (np.uint8 if name in ("channels first", "grey") else np.float32)
    if name == "channels first":
        assert data.pool.shape == (3, 12, 10)


def test_channels_last_as_stated(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=IMAGES, y=Y)
    source = {"kind": "npz", "path": "a.npz", "layout": "channels-last"}
    assert built(source, root=str(tmp_path)).pool.shape == (3, 12, 10)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "channels last": ({"x": IMAGES, "y": Y}, "12 channels of 10 x 3"),
    "channels last, grey": ({"x": IMAGES[..., :1], "y": Y}, "12 channels of 10 x 1"),
    "channels last, float": ({"x": IMAGES / 255, "y": Y}, "channels-last"),
    "channels last, square": ({"x": np.zeros((40, 32, 32, 3), np.uint8), "y": Y}, "channels-last"),
    "channels last, rgba": ({"x": np.zeros((40, 8, 8, 4), np.uint8), "y": Y}, "channels-last"),
    "inf": ({"x": np.where(X > 1, np.inf, X), "y": Y}, "not finite"),
    "too large": ({"x": X.astype(np.float64) * 1e300, "y": Y}, "not finite"),
    "fields by name": ({"x": np.zeros(40, "f4,f4"), "y": Y}, "does not know as numbers"),
    "bytes of bfloat16": ({"x": np.zeros((40, 7), "V2"), "y": Y}, "does not know as numbers"),
    "words": ({"x": X, "y": np.array(["cat", "dog"] * 20)}, "'y' is text or objects ('cat', 'dog'"),
    "words as bytes": ({"x": X, "y": np.array([b"cat", b"dog"] * 20)}, "'y' is text"),
    "dates": ({"x": X, "y": np.arange(40).astype("M8[s]")}, "type datetime64"),
    "complex": ({"x": X * 1j, "y": Y}, "type complex"),
    "bool": ({"x": X > 0, "y": Y}, "type bool"),
    "uint16 images": ({"x": IMAGES[..., 0].astype(np.uint16), "y": Y}, "tokens are integers"),
    "negative labels": ({"x": X, "y": Y - 1}, "has the label -1"),
    "label 255 for unknown, as int8": (
        {"x": X, "y": Y.astype(np.uint8).astype(np.int8) - 1},
        "the label -1",
    ),
    "huge labels": ({"x": X, "y": Y + 10**9}, "has the label 1000000000"),
    "huge unsigned labels": (
        {"x": X, "y": Y.astype(np.uint64) + 2**63},
        "has the label 92233720368547758",
    ),
    "no y": ({"x": X}, "has no array 'y'"),
    "no x": ({"y": Y}, "has no array 'x'"),
    "other names": ({"X": X, "Y": Y}, "it has X, Y, and needs"),
    "no test": ({"x_train": X, "y_train": Y}, "has no array 'x_test'"),
    "both forms": (SPLIT | {"x": X, "y": Y}, "not both"),
    "x, and a test part": ({"x": X, "y": Y, "x_test": X, "y_test": Y}, "not both"),
    "other lengths": ({"x": X, "y": Y[:-1]}, "'x' has 40 samples and 'y' 39 labels"),
    "empty": ({"x": X[:0], "y": Y[:0]}, "not be empty"),
    "no features": ({"x": X[:, :0], "y": Y}, "one number at least"),
    "no targets": ({"x": X, "y": np.zeros((40, 0))}, "one target at least"),
    "five dimensions": ({"x": np.zeros((40, 2, 3, 4, 5)), "y": Y}, "allowed are (n, features)"),
    "other test shape": (SPLIT | {"x_test": X[:8, :5]}, "but x_test of (5,)"),
    "weights": ({"x": X, "y": Y, "weights": np.ones(40)}, "nothing uses the array 'weights'"),
    "a mask": ({"x": X, "y": Y, "train_mask": Y > 1}, "nothing uses the array 'train_mask'"),
    "indices of another length": (
        {"x": X, "y": Y, "test_idx": np.arange(5)},
        "nothing uses the array 'test_idx'",
    ),
    "a name nearly right": (SPLIT | {"y_tets": Y[:8]}, "(did you mean 'y_test'?)"),
    "a number": ({"x": X, "y": Y, "version": np.array(3)}, "nothing uses the array 'version'"),
    "a column of one part": (SPLIT | {"place_train": Y}, "there is no 'place_test'"),
    "a column without part": (SPLIT | {"place": np.arange(48)}, "nothing uses the array 'place'"),
    "a column that nothing uses": (
        {"x": X, "y": Y, "writer": Y},
        "nothing uses the columns writer",
    ),
    "a split column": ({"x": X, "y": Y, "is_test": Y // 3}, "nothing uses the columns is_test"),
    "a label a row": ({"x": X, "y": Y[:, None]}, "use y[:, 0]"),
    "one-hot": ({"x": X, "y": np.eye(4, dtype=int)[Y]}, "use y.argmax(axis=1)"),
    "one-hot floats": ({"x": X, "y": np.eye(4)[Y]}, "use y.argmax(axis=1)"),
    "labels as floats": ({"x": X, "y": Y.astype(float)}, "use y.astype(int)"),
    "fractions": ({"x": X, "y": Y + 0.5}, "which needs labels"),
    "whole numbers as samples": ({"x": np.round(X * 9).astype(np.int64) + 100, "y": Y}, "tokens"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arrays_that_are_refused(name: str, tmp_path: Path) -> None:
    arrays, message = WRONG[name]
    np.savez(tmp_path / "a.npz", **arrays)
    data = {"source": {"kind": "npz", "path": str(tmp_path / "a.npz")}}
    sections = {
        "population": {"devices": 2},
        "strategy": {"clients_per_round": 2},
        "stop": {"rounds": 1},
    }
    scenario = fedsim.Scenario(data=data, **sections)
    with pytest.raises((DataError, ScenarioError)) as caught:
        fedsim.run(scenario, tmp_path / "run")
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_arrays_of_one_name_and_other_files_in_the_archive_are_refused(tmp_path: Path) -> None:
    from zipfile import ZipFile

    path = tmp_path / "a.npz"
    for extra, message in (
        ("x.npy", "'x' twice"),
        ("readme.txt", "'readme.txt' which is no array"),
    ):
        np.savez(path, x=X, y=Y)
        with ZipFile(path, "a") as archive, warnings.catch_warnings(action="ignore"):
            content = archive.read("x.npy") if extra == "x.npy" else b"text"
            archive.writestr(extra, content)
        with pytest.raises(DataError, match=message):
            built({"kind": "npz", "path": str(path)})
