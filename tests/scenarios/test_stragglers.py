"""The straggler study: every setting is a valid scenario, equal labels are equal runs, and a stopped study goes on."""

from pathlib import Path

import pytest

import fedsim
from fedsim.records.audit import audit
from scenarios import grid
from scenarios.stragglers import report, tables

FOLDER = Path(__file__).resolve().parents[2] / "scenarios" / "stragglers"
TINY = (
    "data.source=digits",
    "data.partition={kind='dirichlet', alpha=1.0}",
    "population.devices=20",
    "training.device=cpu",
    "strategy.clients_per_round=4",
    "strategy.smallest_part=5",
    "stop.rounds=3",
)


@pytest.mark.parametrize("size", ["small", "full"])
def test_every_setting_is_a_valid_scenario_and_a_label_means_one_run(size: str) -> None:
    seen: dict[str, tuple[str, ...]] = {}
    for experiment in tables.experiments(tables.SIZES[size]).values():
        for data in experiment.datasets:
            for setting in experiment.settings.values():
                changes = (*tables.SIZES[size].datasets[data], *setting.changes)
                assert seen.setdefault(f"{data}/{setting.label}", changes) == changes
                fedsim.load(FOLDER / f"{size}.toml", changes)
    assert len(seen) == 63


def test_a_run_is_made_once_and_what_was_cut_off_is_made_again(tmp_path: Path) -> None:
    jobs = [grid.Job(FOLDER / "small.toml", TINY, seed, tmp_path / f"seed-{seed}") for seed in (1, 2)]
    grid.run_one(jobs[0])  # as a node of a cluster does it
    made = (tmp_path / "seed-1" / "summary.json").stat().st_mtime_ns
    (tmp_path / "seed-2.writing-1").mkdir()  # what a killed run leaves
    grid.run_all(jobs, 1)
    assert (tmp_path / "seed-1" / "summary.json").stat().st_mtime_ns == made
    for job in jobs:
        assert not any(audit(job.folder).values())


def test_the_report_reads_runs(tmp_path: Path) -> None:
    experiment = tables.experiments(tables.SMALL)["fairness"]
    folders = {}
    for number, name in enumerate(experiment.settings):
        folders[name] = []
        for seed in (1, 2):
            folder = tmp_path / name / str(seed)
            scenario = fedsim.load(FOLDER / "small.toml", (*TINY, f"stop.rounds={4 + number}"), seed)
            fedsim.run(scenario, folder, executor="inline")
            folders[name].append(folder)
    text = report.section("fairness", experiment, "mnist", folders)
    assert "| CATA-Fed(1, PF(1)) | " in text
    claims = report.claims_section()
    assert "proportional fairness, P = 1, is fairer than random selection" in claims
    assert claims.count("holds") + claims.count("does not hold") >= 3
