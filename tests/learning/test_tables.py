"""CSV, Parquet and LEAF as sources: what is read, dealt by user, and refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsim
from fedsim.common.errors import FedsimError
from fedsim.lab.audit import audit
from fedsim.toolbox.sources.leaf import Leaf
from fedsim.toolbox.sources.tables import Csv, Parquet, TableSource

ROWS = pd.DataFrame(
    {
        "height": np.arange(20) / 4,
        "width": np.arange(20) * 2,
        "who": ["zoe", "ann", "bob", "ann"] * 5,
        "fruit": ["pear", "apple", "fig", "apple"] * 5,
    }
)


def csv(folder: Path, table: pd.DataFrame = ROWS, **keys: Any) -> TableSource:
    table.to_csv(folder / "t.csv", index=False)
    return Csv(path=str(folder / "t.csv"), label="fruit", user="who", **keys)


def parquet(folder: Path, table: pd.DataFrame = ROWS, **keys: Any) -> TableSource:
    table.to_parquet(folder / "t.parquet")
    return Parquet(path=str(folder / "t.parquet"), label="fruit", user="who", **keys)


@pytest.mark.parametrize("source", [csv, parquet])
def test_words_are_numbered_and_every_fifth_of_a_user_is_a_test(
    source: Callable[..., TableSource], tmp_path: Path
) -> None:
    raw = source(tmp_path).load(None)
    assert raw.classes == 3
    assert raw.x_train.dtype == np.float32
    # ann has ten rows, of which her fifth and tenth are tests; bob and zoe have five
    rows = (raw.x_test[:, 0] * 4).astype(int).tolist()
    assert sorted(rows) == [9, 16, 18, 19]
    fruits = ["apple", "fig", "pear"]
    for row, label in zip(rows, raw.y_test.tolist(), strict=True):
        assert ROWS["fruit"][row] == fruits[label]
    people = ["ann", "bob", "zoe"]
    rows = (np.concatenate([raw.x_train, raw.x_test])[:, 0] * 4).astype(int).tolist()
    assert [people[user] for user in raw.columns["user"]] == [ROWS["who"][row] for row in rows]


def test_floats_are_targets_and_a_file_of_tests_is_read(tmp_path: Path) -> None:
    ROWS[15:].to_csv(tmp_path / "test.csv", index=False)
    table = Csv(
        path=str(tmp_path / "t.csv"), test=str(tmp_path / "test.csv"), label="height",
        features=["width"],
    )  # fmt: skip
    csv(tmp_path, ROWS[:15])
    raw = table.load(None)
    assert raw.y_train.dtype == np.float32
    assert raw.y_train[:, 0].tolist() == ROWS["height"][:15].tolist()
    assert raw.x_test[:, 0].tolist() == ROWS["width"][15:].tolist()
    shaped = csv(tmp_path, ROWS, shape=[2, 1]).load(None)
    assert shaped.x_train.shape == (16, 2, 1)


def changed(**columns: list[object]) -> pd.DataFrame:
    return ROWS.assign(**{name: pd.Series(values) for name, values in columns.items()})


HALF: list[object] = [1.5] * 10
WRONG_TABLES = [
    (changed(height=[None, *range(19)]), {}, "'height' has no value .* first in row 0"),
    (changed(height=[1.0, "tall", *range(18)]), {}, "'height' has numbers and other values"),
    (changed(height=[1.0, np.inf, *range(18)]), {}, "'height' has in row 1"),
    (changed(who=[None, *["ann"] * 19]), {}, "'who' has no value"),
    (ROWS, {"features": ["heigth"]}, "no column 'heigth'.*did you mean 'height'"),
    (ROWS, {"features": ["who", "height"]}, "'who' has two roles"),
    (ROWS, {"shape": [3, 3]}, "samples of 2 numbers"),
    (ROWS[["fruit", "who"]], {}, "no column beside label and user"),
    (ROWS[:0], {}, "has no rows"),
]


@pytest.mark.parametrize(("table", "keys", "reason"), WRONG_TABLES)
def test_wrong_tables_are_refused_by_name(
    table: pd.DataFrame, keys: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises((FedsimError, ValueError), match=reason):
        csv(tmp_path, table, **keys).load(None)


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,a,fruit\n1,2,fig\n")
    with pytest.raises(FedsimError, match="it has the column 'a' twice"):
        Csv(path=str(tmp_path / "t.csv"), label="fruit").load(None)
    (tmp_path / "t.csv").write_text('a,fruit\n1,"fig\n2,2,2,2\n')
    with pytest.raises(FedsimError, match="cannot be read as a CSV file"):
        Csv(path=str(tmp_path / "t.csv"), label="fruit").load(None)
    parquet(tmp_path)
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[:-20])
    with pytest.raises(FedsimError, match="cannot be read as a Parquet file"):
        Parquet(path=str(tmp_path / "t.parquet"), label="fruit").load(None)
    with pytest.raises(FedsimError, match="which does not exist"):
        Csv(path=str(tmp_path / "no.csv"), label="fruit").load(None)


# LEAF.


def leaf_file(path: Path, users: dict[str, int], start: int = 0) -> None:
    """Write a file of LEAF in which user number u has samples [u, sample]."""
    path.parent.mkdir(exist_ok=True)
    data = {}
    for number, (name, size) in enumerate(users.items(), start):
        x = [[float(number), float(sample)] for sample in range(size)]
        data[name] = {"x": x, "y": [sample % 3 for sample in range(size)]}
    table = {"users": [*users], "num_samples": [*users.values()], "user_data": data}
    path.write_text(json.dumps(table))


def test_leaf_by_sample_and_by_user(tmp_path: Path) -> None:
    leaf_file(tmp_path / "train" / "a.json", {"u0": 4, "u1": 6})
    leaf_file(tmp_path / "train" / "b.json", {"u2": 5}, 2)
    leaf_file(tmp_path / "test" / "a.json", {"u3": 4, "u1": 2}, 3)
    raw = Leaf(path=str(tmp_path)).load(None)
    assert len(raw.y_train) == 15
    assert len(raw.y_test) == 6
    assert raw.classes == 3
    assert raw.columns["user"].tolist() == [0] * 4 + [1] * 6 + [2] * 5 + [3] * 4 + [1] * 2
    single = Leaf(path=str(tmp_path / "train" / "a.json")).load(None)
    assert single.x_test.tolist() == [[1.0, 4.0]]


def by_user(source: dict[str, Any], devices: int, **population: Any) -> dict[str, Any]:
    return {
        "data": {"source": source, "column": "user", "partition": "by-user"},
        "population": {"devices": devices, "speed": "10 samples/s"} | population,
        "strategy": {"clients_per_round": 2},
        "stop": {"rounds": 2},
    }


def test_users_who_never_train_are_the_last_devices(tmp_path: Path) -> None:
    leaf_file(tmp_path / "train" / "a.json", {"u0": 4, "u1": 6})
    leaf_file(tmp_path / "test" / "a.json", {"u2": 4, "u1": 2, "u3": 5}, 2)
    source = {"kind": "leaf", "path": str(tmp_path)}
    sections = by_user(source, 4, tested_only=2)
    result = fedsim.run(fedsim.Scenario(**sections), tmp_path / "run", executor="inline")
    assert result.devices["samples"].tolist() == [4, 6, 0, 0]
    assert result.devices["test_samples"].tolist() == [0, 2, 4, 5]
    assert result.rounds["accuracy_unseen"].notna().all()
    assert not any(audit(tmp_path / "run").values())
    for wrong, reason in (
        (by_user(source, 5), "has 4 users in data.column"),
        (by_user(source, 4), "population.tested_only = 2"),
        (by_user(source, 4, tested_only=1), "population.tested_only = 2"),
    ):
        with pytest.raises(FedsimError, match=reason):
            fedsim.Simulation(fedsim.Scenario(**wrong))


def test_a_csv_runs_by_user(tmp_path: Path) -> None:
    csv(tmp_path)
    source = {"kind": "csv", "path": str(tmp_path / "t.csv"), "label": "fruit", "user": "who"}
    result = fedsim.run(fedsim.Scenario(**by_user(source, 3)), tmp_path / "run", executor="inline")
    assert result.devices["samples"].tolist() == [8, 4, 4]
    assert result.devices["test_samples"].tolist() == [2, 1, 1]


def damage(**entries: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda table: table | entries


WRONG_LEAF = [
    (lambda table: [1], "holds no object with users"),
    (lambda table: {"user": []}, "no entry 'users'.*did you mean"),
    (damage(users=["u0", "u9"]), "has no user 'u9'"),
    (damage(num_samples=[3, 6]), "the three must agree"),
    (damage(user_data={"u0": {"x": [["a"]] * 4, "y": [0] * 4}, "u1": {}}), "no lists of numbers"),
    (
        damage(user_data={"u0": {"x": ["abc", "ab"] * 2, "y": [0] * 4}, "u1": {}}),
        "has the sample 'ab'; texts are all of one length",
    ),
    (
        damage(
            users=["u0"], num_samples=[4], user_data={"u0": {"x": ["abc"] * 4, "y": ["de"] * 4}}
        ),
        "has the label 'de' of a text; a single character is expected",
    ),
    (
        damage(
            user_data={
                "u0": {"x": ["abc"] * 4, "y": ["d"] * 4},
                "u1": {"x": [[1.0, 2.0, 3.0]] * 6, "y": [1] * 6},
            }
        ),
        "user 'u1' has texts, others numbers, or the reverse",
    ),
    (damage(user_data={"u0": {"x": [[1.0]] * 4, "y": [0] * 4}, "u1": {}}), "lists 'x' and 'y'"),
]


@pytest.mark.parametrize(("change", "reason"), WRONG_LEAF)
def test_wrong_files_of_leaf_are_refused_by_name(
    change: Callable[[dict[str, Any]], Any], reason: str, tmp_path: Path
) -> None:
    leaf_file(tmp_path / "a.json", {"u0": 4, "u1": 6})
    table = change(json.loads((tmp_path / "a.json").read_text()))
    (tmp_path / "a.json").write_text(json.dumps(table))
    with pytest.raises(FedsimError, match=reason):
        Leaf(path=str(tmp_path / "a.json")).load(None)
