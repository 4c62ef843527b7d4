"""What a study and its shards cost, before they are run."""

from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.lab.study import costs
from fedsim.lab.study.conduct import Conductor, StudyWorkers
from fedsim.lab.study.costs import RunCost, ShareCost, StudyForecast, forecast_lines
from fedsim.lab.study.plan import read_study
from fedsim.lab.study.shards import StudyShard
from tests.calls import done
from tests.lab.conftest import write


@pytest.fixture
def quick(tables: dict[str, Any], tmp_path: Path) -> Path:
    """A study of four runs without learning."""
    tables["base"]["learning"] = "off"
    return write(tmp_path / "study.toml", tables)


def share_of(times_s: list[float | None], workers: int) -> ShareCost:
    """The cost of runs that take these times; None is an unknown time."""

    def cost_of(run: Any) -> RunCost | None:
        return None if run is None else RunCost(run, 100, 10.0)

    return costs._cost_of_share(times_s, cost_of, workers, 1.0)  # type: ignore[arg-type]


def test_workers_take_the_next_run_when_they_are_free() -> None:
    """By hand: workers start in 1 s, then take 4 and 3, then 2 at 4 s and 1 at 5 s."""
    assert share_of([4.0, 3.0, 2.0, 1.0], 2) == ShareCost(4, 0, 6.0, 12.0, 200, 40.0)
    assert share_of([4.0, None], 8) == ShareCost(2, 1, 5.0, 5.0, 100, 10.0)
    assert share_of([], 2) == ShareCost(0, 0, 0.0, 0.0, 0, 0.0)


def test_runs_that_were_not_tried_cost_in_proportion_to_their_work(
    quick: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(costs, "_MOST_TRIED", 1)
    monkeypatch.setattr(costs, "_measure_start", lambda: 0.0)
    study = read_study(quick, ["stop.rounds=4"])
    forecast = Conductor(
        study, tmp_path / "out", StudyWorkers(number=1), try_variants=False
    ).forecast()
    assert (forecast.tried, forecast.variants) == (1, 2)
    (share,) = forecast.shares
    assert share.untold == 0
    lines = forecast_lines(forecast, None)
    assert "the beginnings of 1 of 2 variants were tried" in lines[1]
    alone = Conductor(
        study, tmp_path / "out", StudyWorkers(number=1), only=["fedavg"], try_variants=False
    ).forecast()
    # both strategies have as many rounds, clients and epochs
    assert share.disk_bytes == pytest.approx(2 * alone.shares[0].disk_bytes, rel=0.05)


def test_what_is_left_to_do_is_counted_shard_by_shard(quick: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = done("study", quick, "--out", out, "--dry-run", "--shard", "2/2", "--workers", "1")
    assert "here shard 2/2 takes about" in before
    assert "the 2 shards take" in before
    fedsim.run_study(quick, out, shard="2/2", workers=1)
    size = sum(path.stat().st_size for path in out.glob("runs/*/*/*") if path.is_file())
    conductor = Conductor(
        read_study(quick), out, StudyWorkers(number=1), shard=StudyShard(2, 2), try_variants=False
    )
    forecast = conductor.forecast()
    assert [share.runs for share in forecast.shares] == [2, 0]
    assert "nothing is left to do of shard 2/2" in forecast_lines(forecast, StudyShard(2, 2))
    # the other shard has as much work; a run folder has small files beside its tables
    assert size / 4 < forecast.shares[0].disk_bytes < size
    assert forecast.shares[0].memory_bytes > 50_000_000


def test_trials_that_follow_from_results_are_foreseen(
    quick: Path, tables: dict[str, Any], tmp_path: Path
) -> None:
    space = {"strategy.clients_per_round": {"low": 1, "high": 12}}
    search = {"kind": "random", "trials": 3, "metric": "traffic", "space": space, "prune": True}
    study = read_study(write(quick, tables | {"search": search}))
    forecast = Conductor(
        study, tmp_path / "out", StudyWorkers(number=1), try_variants=False
    ).forecast()
    # three trials of two variants: at least the first seed of each is planned, all are foreseen
    assert forecast.shares[0].runs >= 6
    assert forecast.shares[0].real_s > 0


def test_unknown_costs_are_told(quick: Path) -> None:
    share = ShareCost(3, 2, 60.0, 60.0, 10**9, 10**6)
    lines = forecast_lines(StudyForecast([share], 2, 3, 3, 1.0), None)
    assert lines[0].startswith("here the study takes about 1 min 00 s with 2 runs at a time")
    assert lines[1] == "that leaves out 2 runs, whose cost cannot be told"
    share = ShareCost(2, 2, 0.0, 0.0, 10**9, 0)
    lines = forecast_lines(StudyForecast([share], 2, 1, 1, 1.0), None)
    assert lines == ["the cost of the study, 2 runs, cannot be told"]
