"""Run folders of other versions, damaged ones (each error names the file), and of runs that go
on.
"""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import fedsim
from fedsim.analysis.__main__ import main as draw
from fedsim.analysis.report import write_report
from fedsim.cli import main
from fedsim.clock.executors import Inline
from fedsim.clock.simulation import Record
from fedsim.common.errors import RunFolderError
from fedsim.lab.audit import audit
from fedsim.records.folder import SUMMARY, changes, fingerprints, summary_text
from fedsim.records.live import LIVE, RUNNING
from fedsim.records.reading import RunFolder, making_sense
from fedsim.running.runner import Job
from fedsim.testing import eventful_world, run

TABLES = ("events", "transfers", "rounds", "devices")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("swapped") / "run"
    run(eventful_world({"kind": "fedavg"}, rounds=2) | {"learning": "off"}, place)
    return place


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> RunFolder:
    """A copy, to be changed."""
    return RunFolder(shutil.copytree(folder, tmp_path / "run"))


@pytest.mark.parametrize(
    ("name", "other"), [(name, other) for name in TABLES for other in TABLES if name != other]
)
def test_a_table_in_the_place_of_another_is_named(
    name: str, other: str, folder: Path, copied: RunFolder, tmp_path: Path
) -> None:
    shutil.copy(folder / f"{other}.parquet", copied.path / f"{name}.parquet")
    with pytest.raises(
        RunFolderError, match=rf"{name}\.parquet of .* is missing or damaged: it has no column"
    ):
        copied.rows(f"{name}.parquet")
    for words in (["report", "--out", tmp_path / "report.html"], ["trace"], ["compare"], ["audit"]):
        told = CliRunner().invoke(main, [words[0], str(copied.path), *map(str, words[1:])])
        assert isinstance(told.exception, SystemExit | None)
        assert "--debug" not in told.output
        assert told.exit_code in (0, 1, 2)
        if told.exit_code:
            assert f"{name}.parquet" in told.output


def test_a_column_of_another_type_is_named(copied: RunFolder) -> None:
    table = pq.read_table(copied.path / "rounds.parquet")
    pq.write_table(
        table.set_column(1, "time", table["time"].cast(pa.string())), copied.path / "rounds.parquet"
    )
    with pytest.raises(RunFolderError, match="its column time is string, not double"):
        copied.rows("rounds.parquet")


def test_a_folder_of_a_version_without_later_columns_is_read(copied: RunFolder) -> None:
    for name, later in (
        ("rounds", ["epsilon", "bytes_peer", "mean_accuracy", "consensus"]),
        ("transfers", ["wire_bytes"]),
    ):
        path = copied.path / f"{name}.parquet"
        pq.write_table(pq.read_table(path).drop(later), path)
    assert copied.rounds[0]["epsilon"] is None is copied.rounds[0]["consensus"]
    table = copied.table("transfers.parquet", ["wire_bytes", "device"])
    assert table.column_names == ["wire_bytes", "device"]
    assert (
        table["wire_bytes"].to_pylist()
        == copied.table("transfers.parquet")["delivered"].to_pylist()
    )
    copied.summary.pop("summary_sha256")
    (copied.path / "availability.parquet").unlink()
    files_now = {name: own for name, own in fingerprints(copied.path).items() if name != SUMMARY}
    (copied.path / SUMMARY).write_text(
        summary_text(copied.summary | {"fedsim": "0.1.0", "files_sha256": files_now})
    )
    assert not [*changes(copied.path)]
    for words in (
        ["report", "--out", f"{copied.path}.html"],
        ["trace"],
        ["audit"],
        ["compare"],
        ["why"],
    ):
        told = CliRunner().invoke(main, [words[0], str(copied.path), *words[1:]])
        assert told.exit_code == 0, told.output


VERBS: list[list[str]] = [
    ["report", "--out", "r.html"],
    ["trace", "--out", "t.json"],
    ["compare"],
    ["analysis", "--only", "traffic"],
]


def dropped(path: Path) -> None:
    """A device less."""
    pq.write_table(pq.read_table(path / "devices.parquet").slice(1), path / "devices.parquet")


def emptied(path: Path) -> None:
    """A summary that says nothing."""
    (path / "summary.json").write_text("{}")


@pytest.mark.parametrize(
    ("change", "name"), [(dropped, "devices.parquet"), (emptied, "summary.json")]
)
def test_a_changed_file_that_no_reader_makes_sense_of_is_named(
    change: Callable[[Path], None],
    name: str,
    copied: RunFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    change(copied.path)
    refused = 0
    for verb, *words in VERBS:
        called, words = (
            (draw, ["run", *words]) if verb == "analysis" else (main, [verb, "run", *words])
        )
        told = CliRunner().invoke(called, words)
        assert told.exit_code in (0, 2), told.output
        assert told.exit_code == 0 or name in told.output
        refused += "was changed after the run" in told.output
    assert refused
    if change is emptied:  # likewise in a notebook
        with pytest.raises(RunFolderError, match=r"summary\.json was changed after the run"):
            repr(fedsim.load_run(copied.path))


def test_a_model_that_is_a_pipe_is_not_waited_for(copied: RunFolder) -> None:
    (copied.path / "models").mkdir(exist_ok=True)
    os.mkfifo(copied.path / "models" / "x.safetensors")
    with pytest.raises(RunFolderError, match="it is a pipe or a device"):
        copied.models()


@pytest.mark.parametrize("learning", ["on", "off"])
def test_tables_are_those_of_the_run_up_to_then(
    small: dict[str, Any], tmp_path: Path, learning: str
) -> None:
    """Read after every round, and a report and a loaded run of it; in the end all is as if
    nobody had looked.
    """
    small |= {"learning": learning, "energy": {"preset": "smartphone-wifi"}}
    seen: list[tuple[dict[str, Any], list[dict[str, Any]], int]] = []

    def look(record: Record) -> None:
        if record.kind == "round" and (tmp_path / "run" / LIVE).exists():
            run = RunFolder(tmp_path / "run")
            seen.append((run.summary, run.rounds, len(run.events)))
            if len(seen) == 3 and learning == "off":
                assert write_report([run.path], tmp_path / "r.html").stat().st_size > 30_000
                assert len(fedsim.load_run(run.path).rounds) == len(run.rounds)

    job = Job(fedsim.Scenario(**small), tmp_path / "run", Inline(), live_every_s=0.0)
    job.simulation.listen(look)
    result = asyncio.run(job.execute())
    assert len(seen) >= len(result.rows) - 1 > 4
    for summary, rounds, events in seen:
        assert (summary["status"], summary["rounds"]) == (RUNNING, len(rounds))
        assert summary["events"] == events
        assert rounds == RunFolder(tmp_path / "run").rounds[: len(rounds)]
    assert [len(rounds) for _, rounds, _ in seen] == sorted(len(rounds) for _, rounds, _ in seen)

    assert not (tmp_path / "run" / LIVE).exists()
    assert not any(audit(tmp_path / "run").values())
    other = fedsim.run(fedsim.Scenario(**small), tmp_path / "other", executor="inline")
    for key in ("events_sha256", "models_sha256", "energy", "bytes"):
        assert other.summary[key] == result.summary[key]


def test_before_the_first_copy_it_is_said(small: dict[str, Any], tmp_path: Path) -> None:
    job = Job(fedsim.Scenario(**small | {"learning": "off"}), tmp_path / "run", Inline())
    with pytest.raises(RunFolderError, match="a run that goes on can be read after some seconds"):
        RunFolder(tmp_path / "run")
    asyncio.run(job.execute())
    assert RunFolder(tmp_path / "run").summary["status"] == "done"


ODD_NUMBERS = [float("nan"), 1e300, -1e300, float("inf")]


@pytest.mark.parametrize("odd", ODD_NUMBERS)
@pytest.mark.parametrize(
    ("table", "column"),
    [("events", "time"), ("transfers", "start"), ("transfers", "bytes"), ("rounds", "time")],
)
def test_times_and_sizes_that_no_run_writes_are_refused(
    tiny_run: Path, table: str, column: str, odd: float
) -> None:
    path = tiny_run / f"{table}.parquet"
    content = pq.read_table(path)
    cells = content.column(column).to_pylist()
    place = content.column_names.index(column)
    field = content.field(place)
    pq.write_table(content.set_column(place, field, pa.array([*cells[:-1], odd], field.type)), path)
    with pytest.raises(
        RunFolderError, match=f"{table}.parquet .* damaged: its column {column} holds"
    ):
        RunFolder(tiny_run).table(path.name)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_a_summary_with_numbers_that_are_none_is_refused(tiny_run: Path, number: str) -> None:
    summary = (tiny_run / "summary.json").read_text()
    (tiny_run / "summary.json").write_text(
        summary.replace('"simulated_s": ', f'"simulated_s": {number}, "was": ', 1)
    )
    with pytest.raises(RunFolderError, match=r"summary\.json of .* is missing or damaged"):
        _ = RunFolder(tiny_run).summary


def test_a_reader_that_has_ended_is_no_damage_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError), making_sense([tmp_path]):
        raise BrokenPipeError


def test_a_study_is_not_blamed_for_having_no_summary(tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "runs" / "fedavg" / "seed-1")
    with pytest.raises(OSError, match="full"), making_sense([tmp_path]):
        raise OSError("full")
