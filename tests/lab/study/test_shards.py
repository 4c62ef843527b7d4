"""Shards: shares of a study, done by several processes in one folder or in many, and merged."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsim
from fedsim.clock.executors import Inline
from fedsim.common.errors import RunFolderError, ScenarioError
from fedsim.lab.forecast import Beginning
from fedsim.lab.study import shards
from fedsim.lab.study.merging import merge
from fedsim.lab.study.plan import read_study
from fedsim.lab.study.shards import StudyShard, deal, predicted_work
from tests import children
from tests.calls import call, done
from tests.children import wait_until
from tests.lab.conftest import finish, write
from tests.test_runs import STRATEGIES

TABLES = ("compare.csv", "compare.md", "paired.csv", "runs.csv")
UNTIMED = ("compare.csv", "compare.md", "paired.csv")  # runs.csv has real times


@pytest.fixture
def quick(tables: dict[str, Any], tmp_path: Path) -> Path:
    """A study of six runs without learning, of unequal work."""
    tables["base"]["learning"] = "off"
    tables["seeds"] = [1, 2, 3]
    tables["variants"]["fedprox"]["stop"] = {"rounds": 9}
    return write(tmp_path / "study.toml", tables)


def hashes(out: Path) -> dict[str, str]:
    paths = sorted(out.glob("runs/*/*/summary.json"))
    return {
        str(path.parent.relative_to(out)): json.loads(path.read_text())["events_sha256"]
        for path in paths
    }


@pytest.mark.parametrize(
    "text", ["3", "0/4", "5/4", "1/0", "a/b", "1/2/3", "-1/2", "1/" + "9" * 30]
)
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match="shard is"):
        StudyShard.read(text)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 20))
def test_each_run_is_in_one_share_and_shares_are_alike(works: list[int], count: int) -> None:
    """The fullest share has at most the mean and one run more (Graham's bound follows)."""
    shares = deal_works(works, count)
    assert sorted(place for share in shares for place in share) == list(range(len(works)))
    assert all(share == sorted(share) for share in shares)
    loads = [sum(works[place] for place in share) for share in shares]
    assert max(loads) <= sum(works) / count + max(works)


def deal_works(works: list[int], count: int) -> list[list[int]]:
    """Deal places instead of runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "predicted_work", lambda work: float(work[1]))
        runs = [type("Run", (), {"scenario": entry})() for entry in enumerate(works)]
        return [[run.scenario[0] for run in share] for share in deal(runs, count)]  # type: ignore[index]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy["kind"])
def test_runs_of_all_strategies_have_work(strategy: dict[str, Any]) -> None:
    scenario = fedsim.load("quickstart")
    tables = scenario.model_dump(exclude_unset=True) | {"strategy": strategy}
    assert predicted_work(fedsim.Scenario(**tables)) > 0


def test_rounds_of_asynchronous_strategies_have_the_updates_of_their_buffer() -> None:
    """The shipped study gives all strategies 600 updates of two epochs."""
    study = read_study("communication")
    works = {run.scenario.strategy.kind: predicted_work(run.scenario) for run in study.runs}
    expected = {"fedavg", "fedasync", "fedbuff", "ca2fl", "scaffold"}
    assert {kind for kind, work in works.items() if work == 1800} >= expected
    # 200 rounds of groups of 1 to 10, each with 5 to 40 steps, of which ten count as an epoch
    assert works["fedcompass"] == 200 * (1 + 9 / 2 * 7 / 8) * (1 + 2.25)


@pytest.mark.parametrize(
    "strategy",
    [
        {"kind": "fedcompass", "concurrency": 8, "min_steps": 5, "max_steps": 40},
        {"kind": "fedcompass", "concurrency": 3, "min_steps": 20, "max_steps": 20},
        {"kind": "diloco", "local_steps": 30},
    ],
    ids=str,
)
def test_work_of_strategies_that_count_steps_is_what_a_run_does(strategy: dict[str, Any]) -> None:
    """Within a half; by trainings whose results are used, with ten steps as an epoch."""
    scenario = fedsim.Scenario(
        data={"source": "digits"},
        population={
            "devices": 20,
            "speed": {"kind": "lognormal", "median": "30 samples/s", "spread": 1.5},
        },
        training={"batch_size": 8},
        strategy=strategy,
        stop={"rounds": 60},
    )
    trial = Beginning(scenario, Inline())
    trial.go(60.0)
    steps = sum(trial.steps_of(used) for used in trial.tally.trainings)
    fact = len(trial.tally.trainings) + steps / 10
    assert predicted_work(scenario) == pytest.approx(fact, rel=0.5)


def test_work_is_that_of_all_tasks(quick: Path) -> None:
    """Five of twelve clients without learning: 3 rounds and 9."""
    works = {run.label: predicted_work(run.scenario) for run in read_study(quick).runs}
    assert works["fedprox, seed 1"] == 3 * works["fedavg, seed 1"]


def test_shards_in_folders_of_their_own_merge_to_the_tables_of_one_process(
    quick: Path, tmp_path: Path
) -> None:
    whole = finish(quick, tmp_path / "whole")
    parts = [tmp_path / f"part{number}" for number in (1, 2, 3)]
    for number, part in enumerate(parts, 1):
        fedsim.run_study(quick, part, shard=f"{number}/3", workers=1)
    assert sorted(path for part in parts for path in hashes(part)) == sorted(hashes(whole))

    merged = tmp_path / "merged"
    missing = call("study", "merge", parts[0], parts[2], "--out", merged)
    assert missing.exit_code == 1
    assert f"{len(hashes(parts[1]))} runs are missing" in missing.stderr
    done("study", "merge", *parts, parts[0], "--out", merged)
    assert hashes(merged) == hashes(whole)
    for name in UNTIMED:
        assert (merged / name).read_bytes() == (whole / name).read_bytes(), name
    # the merged folder is the study's: nothing is left to do
    again = call("study", quick, "--out", merged)
    assert "no runs to do, 6 done" in again.stderr


def test_two_processes_fill_one_folder_and_no_run_is_lost_or_done_twice(
    quick: Path, tmp_path: Path
) -> None:
    whole, out = finish(quick, tmp_path / "whole"), tmp_path / "out"
    processes = [
        children.fedsim(
            "study", quick, "--out", out, "--workers", "1", *more,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for more in (("--shard", "1/2"), ("--shard", "2/2"), ())
    ]  # fmt: skip
    ends = [children.ended(process) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], ends
    assert hashes(out) == hashes(whole)
    for name in UNTIMED:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    assert not list(out.glob("runs/*/.*"))


def test_a_process_waits_for_a_run_of_another_and_takes_it_over_when_that_is_killed(
    slow_study: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = (slow_study, "--out", out, "--workers", "2")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first = children.fedsim("study", *words, **pipes)
    wait_until(lambda: len(list(out.glob("runs/*/*/checkpoint/*"))) >= 2, first)
    second = children.fedsim("study", *words, **pipes)
    assert second.stderr is not None
    assert first.poll() is None
    wait_until(lambda: len(list(out.glob("runs/*/*/checkpoint/*"))) >= 2, second)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    _, errors = children.ended(second)
    assert second.returncode == 0, errors
    assert hashes(out) == hashes(finish(slow_study, tmp_path / "whole"))


def test_what_cannot_be_merged_is_named(quick: Path, tmp_path: Path) -> None:
    one, two, other = tmp_path / "one", tmp_path / "two", tmp_path / "other"
    fedsim.run_study(quick, one, shard="1/2", workers=1)
    fedsim.run_study(quick, two, shard="2/2", workers=1)
    fedsim.run_study(quick, other, ["population.devices=11"], shard="1/2", workers=1)
    with pytest.raises(RunFolderError, match=r"different studies: their study.toml differ"):
        merge([one, other], tmp_path / "x")
    with pytest.raises(RunFolderError, match=r"index\.json"):
        merge([one, tmp_path], tmp_path / "x")  # the study's file alone
    with pytest.raises(RunFolderError, match="is no study's folder"):
        merge([one, tmp_path / "nothing"], tmp_path / "x")
    assert not (tmp_path / "x").exists()

    run = next(iter(hashes(one)))
    shutil.copytree(one / run, two / run)
    summary = json.loads((two / run / "summary.json").read_text())
    summary["events_sha256"] = "0" * 64
    (two / run / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(RunFolderError, match="their events_sha256 differ"):
        merge([one, two], tmp_path / "x")


def test_a_batch_system_announces_the_end_to_all_processes_at_once(
    slow_study: Path, tmp_path: Path
) -> None:
    """Slurm sends the signal of ``--signal`` to each process of a step."""
    out = tmp_path / "out"
    words = ("study", slow_study, "--out", out, "--workers", "2")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = children.fedsim(*words, **pipes)
    wait_until(lambda: len(list(out.glob("runs/*/*/checkpoint/*"))) >= 2, process)
    for number in [process.pid, *children_of(process.pid)]:
        os.kill(number, signal.SIGUSR1)
    _, errors = children.ended(process)
    assert process.returncode == 75, errors
    summaries = [json.loads(path.read_text()) for path in out.glob("runs/*/*/summary.json")]
    assert {summary["status"] for summary in summaries} == {"interrupted"}
    done(*words)
    assert hashes(out) == hashes(finish(slow_study, tmp_path / "whole"))


def children_of(parent: int) -> list[int]:
    """Numbers of the processes that the threads of a process have started."""
    paths = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(number) for path in paths for number in path.read_text().split()]
