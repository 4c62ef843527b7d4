"""What the command lines of all studies share: where runs are done, and mistakes that end with one line."""

import argparse
import sys
from pathlib import Path

import pytest

import fedsim
from scenarios.grid import Job, add_worker_options, missing_data, run_as_asked
from scenarios.published.measures import best_accuracy
from scenarios.published.study import main
from scenarios.published.tables import Measure, Row, Study, Table, World

QUICK = Path(__file__).parents[2] / "scenarios" / "quickstart.toml"


@pytest.fixture
def study() -> Study:
    world = World("tiny", QUICK, ("population.devices=10", "strategy.clients_per_round=4", "stop.rounds=1"))
    rows = (Row("FedAvg", "fedavg"), Row("Again", "again", ("seed=2",)))
    table = Table("Table 1: tiny", world, (Measure("best accuracy %", best_accuracy),), rows)
    return Study("Tiny", "About.", {"small": {"one": table}}, Path("runs"), "python tiny.py", seeds=1)


@pytest.mark.parametrize("words", [("--seeds", "0"), ("--jobs", "-1"), ("--jobs", "two")])
def test_counts_begin_with_one(study: Study, capsys: pytest.CaptureFixture[str], words: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(study, words)
    assert left.value.code == 2
    assert f"argument {words[0]}: {words[1]!r} is not allowed; it must be a whole number" in capsys.readouterr().err


def test_a_cluster_is_asked_for_the_runs_and_without_ray_nothing_is_done(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["--ray", "10.0.0.1:6379", "--out", str(tmp_path / "out")]
    assert main(study, words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0] == "2 runs to do, 0 are there"
    (line,) = said.err.splitlines()[1:]
    assert "pip install 'fedsim-des[ray]'" in line
    assert not (tmp_path / "out").exists()
    assert main(study, [*words, "--only-report"]) == 0  # which needs no cluster


def test_a_run_that_fails_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_worker_options(parser)
    jobs = [Job(QUICK, ("population.devices=0",), 1, tmp_path / "run")]
    assert run_as_asked(jobs, parser.parse_args(["--jobs", "1"])) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("fedsim: population.devices is 0")
    assert not list(tmp_path.iterdir())


def test_missing_data_are_named_without_their_place(tmp_path: Path) -> None:
    root = f"data.root={tmp_path}"
    assert missing_data(fedsim.load(QUICK)) is None
    assert missing_data(fedsim.load(QUICK, ("data.source=synthetic", "data.partition=synthetic", root))) is None
    why = missing_data(fedsim.load(QUICK, ("data.source=mnist", root)))
    assert why is not None
    assert "$FEDSIM_DATA/mnist" in why
    assert str(tmp_path) not in why
