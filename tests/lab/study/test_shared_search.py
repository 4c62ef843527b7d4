"""Searches in shards: dealt out if all trials are known before, else shared through a journal."""

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.common.errors import RunFolderError, ScenarioError
from fedsim.lab.study.conduct import Conductor
from fedsim.lab.study.journal import JOURNAL
from fedsim.lab.study.merging import merge
from fedsim.lab.study.plan import PlannedRun, read_study
from fedsim.lab.study.shards import StudyShard
from fedsim.lab.study.shared_search import SharedTrials, make_trials
from tests import children
from tests.calls import call, done
from tests.lab.conftest import rows_of, write

needs_optuna = pytest.mark.skipif(
    find_spec("optuna") is None, reason="needs Optuna: pip install 'optuna>=4'"
)
FIRST = StudyShard(1, 2)


@pytest.fixture
def study(tables: dict[str, Any], tmp_path: Path) -> Path:
    """A search of two variants, six trials each, of two runs without learning."""
    tables["base"]["learning"] = "off"
    tables["search"] = {
        "kind": "optuna",
        "trials": 6,
        "metric": "traffic",
        "space": {"strategy.clients_per_round": {"low": 1, "high": 12}},
    }
    return write(tmp_path / "search.toml", tables)


def change(study: Path, tables: dict[str, Any], **search: object) -> Path:
    return write(study, tables | {"search": tables["search"] | search})


def shared(study: Path, out: Path, workers: int) -> SharedTrials:
    trials = make_trials(read_study(study), out, FIRST, workers)
    assert isinstance(trials, SharedTrials)
    return trials


def build_nothing(run: PlannedRun) -> None:
    """Take a run as valid."""


def begun(trials: SharedTrials) -> list[str]:
    """Labels of the trials that this process carries out."""
    return [trial.variant.label for trial in trials._batch]


@needs_optuna
def test_two_processes_work_on_one_search(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    processes = [
        children.fedsim(
            "study", study, "--out", out, "--workers", "1", "--shard", f"{number}/2",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in (1, 2)
    ]  # fmt: skip
    outputs = [children.ended(process) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert all("processes share this search" in text for text, _ in outputs)
    counts = [errors.count(": fed") for _, errors in outputs]
    rows = rows_of(out / "trials.csv")
    assert sorted((row["variant"], int(row["trial"])) for row in rows) == [
        (variant, trial) for variant in ("fedavg", "fedprox") for trial in range(1, 7)
    ]
    assert {row["state"] for row in rows} == {"done"}
    index = json.loads((out / "index.json").read_text())
    planned = {run["folder"] for variant in index["variants"] for run in variant["runs"]}
    assert planned == {
        str(path.parent.relative_to(out)) for path in out.glob("runs/*/*/summary.json")
    }
    assert sum(counts) == len(planned), outputs  # trials with equal values share a run
    assert not list(out.glob(".*"))
    again = call("study", study, "--out", out)  # without --shard, since the journal is there
    assert (again.exit_code, "no runs to do" in again.stderr) == (0, True), again
    best = min(rows, key=lambda row: float(row["traffic"]))
    assert fedsim.load(out / f"best-{best['variant']}.toml").strategy.clients_per_round == int(
        best["strategy.clients_per_round"]
    )


@needs_optuna
def test_a_trial_belongs_to_one_process_until_that_is_gone(study: Path, tmp_path: Path) -> None:
    first, second = shared(study, tmp_path, 2), shared(study, tmp_path, 2)
    first.grow(tmp_path, build_nothing)
    second.grow(tmp_path, build_nothing)
    assert len({*begun(first), *begun(second)}) == 4
    assert len(second.runs_of_others()) == 4  # two trials of two seeds
    lost = begun(first)
    first.close()
    third = shared(study, tmp_path, 3)
    third.begin(tmp_path, build_nothing)
    assert begun(third) == []
    third.grow(tmp_path, build_nothing)
    assert begun(third)[:2] == lost
    assert begun(third)[2] not in begun(second)
    for trials in (second, third):
        trials.close()


@needs_optuna
def test_a_trial_that_cannot_be_built_is_refused_once(study: Path, tmp_path: Path) -> None:
    def build(run: PlannedRun) -> None:
        if "fedavg" in run.label:
            raise ScenarioError("not this one")

    first = shared(study, tmp_path, 3)
    first.grow(tmp_path, build)  # takes trials of fedavg, in vain, until there are no more
    refused, taken = first.lines
    assert [trial.state for trial in refused.trials] == ["refused"] * 6
    assert [trial.state for trial in taken.trials] == ["open"] * 3
    second = shared(study, tmp_path, 3)
    second.grow(tmp_path, build)
    assert [trial.error for trial in second.lines[0].trials] == ["not this one"] * 6
    assert not {*begun(first)} & {*begun(second)}
    for trials in (first, second):
        trials.close()


@needs_optuna
def test_what_is_no_shared_search_is_refused(
    study: Path, tables: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / JOURNAL).write_text("not a journal\nat all\n")
    with pytest.raises(RunFolderError, match="cannot be used as the journal"):
        shared(study, tmp_path, 1).begin(tmp_path, build_nothing)
    (tmp_path / JOURNAL).unlink()
    (tmp_path / "index.json").write_text("{}")
    with pytest.raises(ScenarioError, match="one process began the search"):
        shared(study, tmp_path, 1)
    pruned = read_study(change(study, tables, prune=True))
    with pytest.raises(ScenarioError, match=r"search\.prune is true"):
        make_trials(pruned, tmp_path / "new", FIRST, 1)


def test_random_trials_are_dealt_out_and_merged(
    study: Path, tables: dict[str, Any], tmp_path: Path
) -> None:
    change(study, tables, kind="random", trials=2)
    whole, merged = tmp_path / "whole", tmp_path / "merged"
    parts = [tmp_path / "1", tmp_path / "2"]
    fedsim.run_study(study, whole, workers=1)
    runs = []
    for number, part in enumerate(parts, 1):
        fedsim.run_study(study, part, shard=f"{number}/2", workers=1)
        runs += [path.parent.relative_to(part) for path in part.glob("runs/*/*/summary.json")]
    assert len(runs) == len({*runs}) == 8
    merge(parts, merged)
    said = done("study", study, "--out", merged)
    assert "no runs to do, 8 done" in said
    for table in ("trials.csv", "compare.csv", "best-fedavg.toml"):
        assert (merged / table).read_bytes() == (whole / table).read_bytes(), table


def test_a_shard_of_a_search_says_what_is_its_own(
    study: Path, tables: dict[str, Any], tmp_path: Path
) -> None:
    plan = read_study(change(study, tables, kind="random"))
    shares = []
    for number in (1, 2, 3):
        conductor = Conductor(plan, tmp_path / "out", shard=StudyShard(number, 3))
        shares += [run.folder for run, _ in conductor.selected_runs]
    assert sorted(shares) == sorted(run.folder for run in plan.runs)
    assert len(plan.runs) > 12
