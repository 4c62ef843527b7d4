"""Federated data sets in their published files: TFF's SQLite, LEAF's texts, FLAIR."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.common.errors import DataError, FedsimError
from fedsim.lab.audited import audit
from fedsim.toolbox.sources import leaf, tff
from fedsim.toolbox.sources.drawn import DrawnImages
from fedsim.toolbox.sources.examples import parse_example
from fedsim.toolbox.sources.flair import Flair
from fedsim.toolbox.sources.leaf import Leaf
from fedsim.toolbox.sources.tff import Tff
from tests.learning.federated_files import example, write_flair, write_tff


def run_by_user(folder: Path, source: dict[str, Any], devices: int, **sections: Any) -> Any:
    """Two rounds with a device for each user, checked by the audit."""
    scenario = fedsim.Scenario(
        data={"source": source, "column": "user", "partition": "by-user"},
        population={"devices": devices, "speed": "20 samples/s"} | sections.pop("population", {}),
        strategy={"clients_per_round": 2},
        stop={"rounds": 2},
        **sections,
    )
    result = fedsim.run(scenario, folder / "run", executor="inline")
    assert not any(audit(folder / "run").values())
    return result


# TensorFlow Federated


def test_examples_are_parsed_as_tensorflow_writes_them() -> None:
    features = parse_example(
        example({"text": [b"a", b"b c"], "x": [0.5, -1.25], "n": [3, -1, 1 << 40]})
    )
    assert features["text"] == [b"a", b"b c"]
    assert np.asarray(features["x"]).tolist() == [0.5, -1.25]
    assert np.asarray(features["n"]).tolist() == [3, -1, 1 << 40]
    assert np.asarray(parse_example(example({"n": [7, 300]}, packed=False))["n"]).tolist() == [
        7,
        300,
    ]


@pytest.mark.parametrize(
    "message",
    [b"\x0a\xff\xff\xff\xff\x7f", b"\x0a", b"\xff" * 11, b"\x0b\x00", b"\x0a\x02\x0a\x09"],
)
def test_damaged_examples_are_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"field|integer"):
        parse_example(message)


def digit(label: int, shade: float) -> bytes:
    return example({"pixels": [shade] * 784, "label": [label]})


@pytest.fixture
def femnist(tmp_path: Path) -> Path:
    path = tmp_path / "emnist_all.sqlite"
    train = {"w2": [digit(1, 0.0), digit(61, 1.0)], "w1": [digit(3, 100 / 255)] * 3}
    test = {"w2": [digit(2, 0.5)], "w1": [digit(0, 0.2)]}
    digits = {"w1": [digit(3, 0.0)], "w2": [digit(1, 0.0)]}
    parts = {"all_train": train, "all_test": test}
    write_tff(path, parts | {"digits_only_train": digits, "digits_only_test": digits})
    return path


def test_femnist_of_tff(femnist: Path) -> None:
    raw = Tff(path=str(femnist)).load(None)
    assert (raw.x_train.shape, raw.x_train.dtype, raw.classes) == ((5, 1, 28, 28), np.uint8, 62)
    assert raw.y_train.tolist() == [3, 3, 3, 1, 61]
    assert raw.x_train[:, 0, 0, 0].tolist() == [100, 100, 100, 0, 255]
    assert raw.columns["user"].tolist() == [0, 0, 0, 1, 1, 0, 1]
    digits = Tff(path=str(femnist), only_digits=True).load(None)
    assert (digits.y_train.tolist(), digits.classes) == ([3, 1], 10)
    few = Tff(path=str(femnist), users=1, samples=2).load(None)
    assert (few.y_train.tolist(), few.y_test.tolist()) == ([3, 3], [0])


def test_femnist_of_tff_runs_by_writer(femnist: Path, tmp_path: Path) -> None:
    source = {"kind": "tff", "path": str(femnist)}
    result = run_by_user(tmp_path, source, 2)
    assert result.devices["samples"].tolist() == [3, 2]


def test_shakespeare_of_tff(tmp_path: Path) -> None:
    path = tmp_path / "shakespeare.sqlite"
    said = {"A": [example({"snippets": [b"dhl"]}), example({"snippets": [b"p~"]})]}
    said |= {"B": [example({"snippets": [b"t"]})]}
    write_tff(path, {"train": said, "test": {"A": said["A"]}})
    raw = Tff(path=str(path), length=4).load(None)
    assert len(tff.CHARACTERS) == 86
    assert raw.vocabulary == 90
    # 88 and 89 are the marks of beginning and end, 87 an unknown character, 0 padding
    assert raw.x_train.tolist() == [[88, 1, 2, 3, 89], [89, 88, 4, 87, 89], [88, 5, 89, 0, 0]]
    assert raw.columns["user"].tolist() == [0, 0, 1, 0, 0]
    model = {"kind": "char-lstm", "hidden": 8}
    run_by_user(
        tmp_path,
        {"kind": "tff", "path": str(path), "length": 4},
        2,
        model=model,
        objective={"kind": "next-token"},
    )


def test_stack_overflow_of_tff(tmp_path: Path) -> None:
    path = tmp_path / "stackoverflow.sqlite"
    texts = {"tags": [b"c"], "title": [b"why"], "score": [3], "type": [b"question"]}
    one = example({"tokens": [b"how to sort how"], **texts})
    two = example({"tokens": [b"sort it"], **texts})
    parts: dict[str, dict[str, list[bytes]]] = {
        "train": {"00001": [one, two]},
        "heldout": {"00009": [two]},
        "test": {"00002": [two]},
    }
    write_tff(path, parts)
    raw = Tff(path=str(path), length=3, words=3).load(None)
    # how and sort are there twice; it comes before to
    assert raw.vocabulary == 7
    assert raw.x_train.tolist() == [[5, 1, 4, 2], [2, 1, 6, 5], [5, 2, 3, 6]]
    assert raw.columns["user"].tolist() == [0, 0, 0, 1]


def test_wrong_files_of_tff_are_refused(tmp_path: Path, femnist: Path) -> None:
    path = tmp_path / "wrong.sqlite"

    def refusal(**options: Any) -> str:
        with pytest.raises(DataError) as caught:
            Tff(path=str(path), **options).load(None)
        path.unlink(missing_ok=True)
        return str(caught.value)

    assert "which does not exist" in refusal()
    with pytest.raises(DataError, match=r"run `fedsim data fetch femnist --root DIR`"):
        Tff(path=str(tmp_path / "gone" / "emnist_all.sqlite")).load(None)
    path.write_bytes(b"no database")
    assert "cannot be read as an SQLite file" in refusal()
    path.write_bytes(femnist.read_bytes()[:5000])
    assert "cannot be read as an SQLite file" in refusal()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE examples (a)")
    assert "has no table client_metadata" in refusal()
    write_tff(path, {"validation": {"a": [digit(1, 0.0)]}})
    assert "has the parts validation; expected are 'train' and 'test'" in refusal()
    for message, says in (
        (b"\x0a\x7f", "an example of the user 'a' is damaged"),
        (example({"z": [1]}), "has examples of z; allowed are those with one of pixels"),
        (example({"pixels": [0.5], "label": [1]}), "1 pixels and 1 labels; 784 and 1"),
        (digit(62, 0.0), "has the label 62; allowed are 0 to 61"),
        (digit(1, 1.5), "has pixels outside of 0 to 1"),
        (digit(1, float("nan")), "has pixels outside of 0 to 1"),
        (example({"snippets": [1]}), "has numbers as 'snippets'"),
    ):
        write_tff(path, {"train": {"a": [message]}, "test": {"a": [message]}})
        assert says in refusal()


# LEAF


def test_leafs_shakespeare_in_both_layouts(tmp_path: Path) -> None:
    """A folder of train and test, and one file; ``hierarchies`` is in LEAF's Shakespeare alone."""
    assert len(leaf.CHARACTERS) == 80
    users = {"PLAY_ROMEO": "abc\n}", "PLAY_JULIET": "Z~ .a"}
    data = {
        name: {"x": [text, text[::-1]] * 5, "y": [text[0], "~"] * 5} for name, text in users.items()
    }
    table = {"users": [*users], "num_samples": [10, 10], "user_data": data}
    table["hierarchies"] = ["PLAY", "PLAY"]
    whole = tmp_path / "all_data.json"
    whole.write_text(json.dumps(table))
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / f"{part}.json").write_text(json.dumps(table))
    number = leaf.CHARACTERS.index
    for source, sizes in ((Leaf(path=str(whole)), (16, 4)), (Leaf(path=str(tmp_path)), (20, 20))):
        raw = source.load(None)
        assert (len(raw.y_train), len(raw.y_test)) == sizes
        assert (raw.vocabulary, raw.classes) == (80, 80)
        assert raw.x_train[0].tolist() == [number(character) for character in "abc\n}"]
        assert raw.y_train[:2].tolist() == [number("a"), 79]
        assert raw.x_train[-1, -2] in (number("~" if "~" in leaf.CHARACTERS else "}"), number("."))
    model = {"kind": "char-lstm", "hidden": 8}
    run_by_user(tmp_path, {"kind": "leaf", "path": str(whole)}, 2, model=model)


# FLAIR


@pytest.fixture
def flair(tmp_path: Path) -> Path:
    users = {
        "b@N1": ("train", [["plant"], ["plant", "animal"]]),
        "a@N2": ("train", [["food"], []]),
        "c": ("val", [["art"]]),
        "d": ("test", [["animal"]]),
    }
    named = {name.replace("@", "_"): entry for name, entry in users.items()}
    write_flair(tmp_path / "flair", named)
    return tmp_path / "flair"


def test_flair_as_published(flair: Path) -> None:
    raw = Flair(path=str(flair), side=8).load(None)
    assert (raw.x_train.shape, raw.x_train.dtype) == ((4, 3, 8, 8), np.uint8)
    # animal, art, food, plant
    assert raw.y_train.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 1]]
    assert raw.y_test.tolist() == [[1, 0, 0, 0]]
    assert raw.columns["user"].tolist() == [0, 0, 1, 1, 2]
    assert raw.x_train[:, 0, 0, 0].tolist() == [0, 40, 0, 40]
    fine = Flair(path=str(flair), side=None, labels="fine", users=1).load(None)
    assert (fine.x_train.shape, fine.classes) == ((2, 3, 256, 256), 4)


def test_flair_runs_by_user(flair: Path, tmp_path: Path) -> None:
    result = run_by_user(
        tmp_path,
        {"kind": "flair", "path": str(flair), "side": 8},
        3,
        objective={"kind": "multi-label"},
        model={"kind": "mlp", "hidden": [4]},
        population={"tested_only": 1},
    )
    assert result.devices["samples"].tolist() == [2, 2, 0]


def test_wrong_files_of_flair_are_refused(flair: Path) -> None:
    file = flair / "labels_and_metadata.json"
    entries = json.loads(file.read_text())

    def refusal(change: object, **options: Any) -> str:
        file.write_text(json.dumps(change))
        with pytest.raises(FedsimError) as caught:
            Flair(path=str(flair), side=8, **options).load(None)
        return str(caught.value)

    first = entries[0]
    assert "is no list of images" in refusal({})
    assert "entry 0 (from 0) needs image_id" in refusal([{"image_id": "a"}])
    outside = {**first, "image_id": "../../../etc/passwd"}
    assert "which is no name of a file" in refusal([outside])
    assert "a list of words is expected" in refusal([{**first, "labels": [1]}])
    assert "is missing, and labels_and_metadata.json lists it" in refusal(
        [{**first, "image_id": "none"}]
    )
    assert "has no image in the part 'train'" in refusal([{**first, "partition": "val"}])
    (flair / "small_images" / f"{first['image_id']}.jpg").write_bytes(b"no image")
    assert "cannot be read as an image" in refusal(entries)
    file.unlink()
    with pytest.raises(DataError, match=r"there is no '.*labels_and_metadata.json'"):
        Flair(path=str(flair)).load(None)


# Drawn images


def test_drawn_images_are_of_users_of_unequal_size_and_always_the_same() -> None:
    source = DrawnImages(shape=[1, 9, 6], samples=400, classes=3, users=8)
    raw = source.load(None)
    assert raw.x_train.shape[1:] == (1, 9, 6)
    assert source.shape_and_classes(None) == ((1, 9, 6), 3)
    sizes = np.bincount(raw.columns["user"])
    assert (len(sizes), sizes.sum(), sizes.min() >= 5, sizes.max() > sizes.min()) == (
        8,
        400,
        True,
        True,
    )
    again = DrawnImages(shape=[1, 9, 6], samples=400, classes=3, users=8).load(None)
    assert np.array_equal(raw.x_train, again.x_train)
    with pytest.raises(FedsimError, match=r"at least 500 are needed"):
        DrawnImages(samples=400, users=100).load(None)
    with pytest.raises(ValueError, match=r"allowed are at most 1000000000"):
        DrawnImages(samples=1_000_000)


def test_drawn_classes_have_colours_and_a_single_user_has_equally_many_of_each() -> None:
    raw = DrawnImages(samples=400, colour=30.0).load(None)
    labels = np.concatenate([raw.y_train, raw.y_test])
    assert np.bincount(labels).tolist() == [40] * 10
    means = [raw.x_train[raw.y_train == label].mean(axis=(0, 2, 3)) for label in range(10)]
    # squares alone, of which an image has 64, give 40 / 8 = 5; colours give 30
    assert np.all(np.std(means, axis=0) > 12)
