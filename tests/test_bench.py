"""``fedsim bench``: worlds are as the board says, places are those of the times, and a strategy
of one's own gets one.
"""

from dataclasses import replace
from pathlib import Path

import pytest

import fedsim
from fedsim.common.errors import DataError, ScenarioError
from fedsim.common.files import read_toml
from fedsim.lab import bench
from fedsim.running.shipped import shipped
from tests.calls import call

LINE = bench.BoardLine(
    "a", "phones", 3, 3, 60.0, 50.0, 70.0, 1e6, 1e3, 0.9, bench.digest_of("phones"), "0.2.0"
)
SLOWER = replace(LINE, strategy="b", time_s=90.0)
MISSED = replace(
    LINE,
    strategy="c",
    reached=2,
    time_s=None,
    time_low=None,
    time_high=None,
    bytes=None,
    joules=None,
)


def test_the_kept_board_has_every_strategy_in_every_world_as_it_is_shipped() -> None:
    study = read_toml(shipped()["bench"])
    lines = bench.read_board()
    assert {(line.strategy, line.world) for line in lines} == {
        (a, b) for a in study["variants"] for b in study["parts"]
    }
    assert all(set(part["variants"]) == set(study["variants"]) for part in study["parts"].values())


def test_places_are_those_of_times_and_a_line_that_misses_has_none() -> None:
    assert bench.places([SLOWER, MISSED, LINE]) == {("a", "phones"): 1, ("b", "phones"): 2}
    assert bench.table_of([SLOWER], [LINE]).notes == ()
    assert "with --seeds 5" in bench.table_of([SLOWER], [replace(LINE, seeds=5)]).notes[0]
    cells = {
        column.head: column.cells
        for column in bench.table_of([MISSED, SLOWER], [LINE, MISSED]).columns
    }
    assert cells["place"] == ("missed in 1 of 3", "2 of 3")


def test_a_board_is_read_as_it_was_kept_and_other_worlds_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "board.csv"
    bench.keep([MISSED, SLOWER], path, {("phones", 1, "data"): "ab"})
    bench.keep([LINE, replace(SLOWER, time_s=80.0)], path, {("phones", 2, "data"): "cd"})
    assert bench.read_board(path) == [LINE, replace(SLOWER, time_s=80.0), MISSED]
    path.write_text(path.read_text().replace(LINE.file, "0" * 12))
    assert bench.read_board(path) == []
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="is no board"):
        bench.read_board(path)


def test_a_world_that_differs_is_named_and_its_lines_are_not_kept(tmp_path: Path) -> None:
    """Two minutes of a shipped world, twice: the same tables; after a change of one, another
    digest of this one alone.
    """
    part = {
        "base": "worlds/cars",
        "variants": ["fedavg"],
        "changes": {"learning": "off", "stop": {"simulated_time": "2 min"}},
    }
    tables = {"base": "worlds/cars", "variants": {"fedavg": {}}, "parts": {"cars": part}}
    fedsim.run_study(tables, tmp_path / "a", seeds=1, workers=1)
    found = bench.digests_of_tables(tmp_path / "a")
    assert [name for _, _, name in found] == ["devices", "events of fedavg", "availability", "data"]
    assert (
        bench.changed_tables({key: own for key, own in found.items() if "events" not in key[2]})
        == []
    )
    bench.keep([LINE], tmp_path / "board.csv", found)
    part["changes"] |= {"population.speed": "3 samples/s"}
    fedsim.run_study(tables, tmp_path / "b", seeds=1, workers=1)
    with pytest.raises(
        DataError, match=r"others: cars seed 1: devices; cars seed 1: events of fedavg$"
    ):
        bench.keep([SLOWER], tmp_path / "board.csv", bench.digests_of_tables(tmp_path / "b"))
    assert bench.read_board(tmp_path / "board.csv") == [LINE]


def test_a_strategy_of_ones_own_is_run_in_all_worlds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = call("bench", "fedavgg", "--out", str(tmp_path / "out"))
    assert (result.exit_code, "did you mean" in result.output) == (2, True), result.output
    monkeypatch.setattr(
        bench, "run_study", lambda tables, out, **options: seen.append((tables, options))
    )
    monkeypatch.setattr(bench, "lines_of", lambda out, target: [])
    seen: list = []  # type: ignore[type-arg]
    bench.bench(
        ["tests.own_parts:Proud", "fedavg"],
        tmp_path,
        ["strategy.boldness=0.2"],
        seeds=1,
        allow_code=True,
    )
    tables, options = seen[0]
    assert tables["variants"]["Proud"] == {
        "strategy.kind": "tests.own_parts:Proud",
        "strategy.boldness": 0.2,
    }
    assert all([*part["variants"]] == ["Proud", "fedavg"] for part in tables["parts"].values())
    assert (options["seeds"], options["allow_code"]) == (1, True)
    with pytest.raises(ScenarioError, match="has no effect"):
        bench.bench(["fedavg"], tmp_path, ["strategy.mu=1"])
