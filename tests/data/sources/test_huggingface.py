"""Folders as ``datasets`` 4.8 writes them, made here with pyarrow."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedsim.data.sources.own import HuggingFace
from fedsim.errors import DataError

X = np.arange(240, dtype=np.float32).reshape(20, 4, 3)
Y = np.arange(20) % 2


def save(folder: Path, columns: dict[str, Any], files: int = 2) -> None:
    """What ``save_to_disk`` writes of one data set."""
    folder.mkdir(parents=True)
    table = pa.table(columns)
    names = [f"data-{number:05d}-of-{files:05d}.arrow" for number in range(files)]
    for number, name in enumerate(names):
        size = len(table) // files
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table.slice(number * size, size))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


@pytest.mark.parametrize("kind", [pa.list_(pa.list_(pa.float32())), pa.list_(pa.list_(pa.float32(), 3), 4)], ids=str)
def test_lists_of_numbers_of_which_every_fifth_is_for_tests(kind: pa.DataType, tmp_path: Path) -> None:
    save(tmp_path / "set", {"x": pa.array(X.tolist(), kind), "label": Y})
    raw = HuggingFace(path="set", x="x").load(tmp_path)
    assert (raw.x_train.shape, raw.x_test.shape, raw.classes, raw.peak) == ((16, 1, 4, 3), (4, 1, 4, 3), 2, 1.0)
    both = np.concatenate([raw.x_train, raw.x_test])[:, 0]
    assert np.array_equal(both[np.argsort(both[:, 0, 0])], X)


def test_images_in_two_splits(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)

    def written(values: Any) -> dict[str, Any]:
        file = io.BytesIO()
        image.fromarray(values).save(file, "PNG")
        return {"bytes": file.getvalue(), "path": None}

    for part, last in (("train", 20), ("test", 4)):
        save(tmp_path / "set" / part, {"image": [written(each) for each in pixels[:last]], "label": Y[:last]})
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    raw = HuggingFace(path="set").load(tmp_path)
    assert np.array_equal(raw.x_train, pixels.transpose(0, 3, 1, 2))
    assert np.array_equal(raw.x_test, raw.x_train[:4])
    assert (raw.y_train.tolist(), raw.peak) == (Y.tolist(), 255.0)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (None, "there is no '.*state.json'; give a folder that datasets' save_to_disk has written"),
        ({"img": X.tolist(), "label": Y}, "has no column 'image'; it has img, label"),
        ({"image": [[1.0], [1.0, 2.0]], "label": [0, 1]}, "lists of column 'image' are not all of one length"),
        ({"image": ["a", "b"], "label": [0, 1]}, "column 'image' is of type string; allowed are images, numbers"),
        ({"image": [[1.0], None], "label": [0, 1]}, "column 'image' has no value at 1 places"),
        ({"image": [{"bytes": b"a"}, {"bytes": b"b"}], "label": [0, 1]}, "has an image that cannot be read"),
    ],
)
def test_mistakes_are_named(columns: dict[str, Any] | None, message: str, tmp_path: Path) -> None:
    if columns is not None:
        save(tmp_path / "set", columns)
    with pytest.raises(DataError, match=message):
        HuggingFace(path="set").load(tmp_path)
