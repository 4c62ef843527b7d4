"""The FlexCFL study: every row is a valid scenario, equal labels are equal runs, and the report says what the runs say."""

import re
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import fedsim
from scenarios.flexcfl import tables
from scenarios.flexcfl.study import STUDY
from scenarios.published import report
from scenarios.published.measures import best_accuracy, rounds_to
from scenarios.published.study import jobs, main
from scenarios.published.tables import Claim, Measure, Row, Study, Table, World

TINY = World(
    "tiny",
    tables.HERE / "mnist_mclr.toml",
    ("data.source=digits", "data.partition={kind='dirichlet', alpha=1.0}", "population.devices=40", "stop.rounds=6"),
)


def _tiny(strategy: str, label: str, **more: object) -> Row:
    changes = (f"strategy={{{strategy}, clients_per_round=8, local_epochs=1}}", "evaluation.from_round=0")
    return Row(label.title(), label, changes, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tiny() -> Table:
    best = Measure("best accuracy %", best_accuracy, tolerance=100.0)
    half = Measure("rounds to 101 %", rounds_to(101.0), relative_to="fedavg")
    rows = (
        _tiny("kind='fedavg'", "fedavg", published={best.name: 50.0}),
        _tiny("kind='ifca', groups=2", "ifca", published={best.name: 500.0}),
        _tiny("kind='flexcfl', groups=2, alpha=4", "flexcfl", published={best.name: 50.0}, tolerance=0.0),
    )
    claims = (
        Claim("FedAvg is better than itself less 1", "fedavg", "fedavg", by=-1.0),
        Claim("FedAvg is better than itself", "fedavg", "fedavg"),
    )
    return Table("Table 9: tiny", TINY, (best, half), rows, claims, "A note.")


@pytest.fixture(scope="module")
def ran(tiny: Table, tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path, str]:
    """A study of the tiny table and of one whose data are not there, for two seeds; where it was run, and what it printed."""
    place = tmp_path_factory.mktemp("study")
    absent = World("absent", tables.HERE / "femnist_mclr.toml", (f"data.root={place}",))
    out_of_reach = Table("Table 8: no data", absent, tiny.measures[:1], tiny.rows[:1])
    study = Study("Tiny", "About.", {"small": {"tiny": tiny, "absent": out_of_reach}}, Path("runs"), "python tiny.py")
    with redirect_stdout(StringIO()) as printed:
        assert main(study, asked(place / "out")) == 0
    return study, place / "out", printed.getvalue()


def asked(out: Path) -> list[str]:
    return ["--seeds", "2", "--jobs", "1", "--out", str(out)]


@pytest.mark.parametrize("size", list(STUDY.sizes))
def test_every_row_is_a_valid_scenario_and_a_label_means_one_run(size: str) -> None:
    seen: dict[Path, tuple[object, ...]] = {}
    for table in STUDY.sizes[size].values():
        for job in jobs(table, Path(), 1):
            assert seen.setdefault(job.folder, (job.scenario, job.changes)) == (job.scenario, job.changes)
            scenario = fedsim.load(job.scenario, job.changes, job.seed)
            assert scenario.strategy.model_dump()["clients_per_round"] == 20


@pytest.mark.parametrize("size", list(STUDY.sizes))
def test_published_figures_and_claims_name_rows_and_measures_that_there_are(size: str) -> None:
    for table in STUDY.sizes[size].values():
        labels, measures = [row.label for row in table.rows], {measure.name for measure in table.measures}
        assert len(labels) == len(set(labels))
        assert measures.issuperset(name for row in table.rows for name in row.published)
        for claim in table.claims:
            assert {claim.above, claim.below} <= set(labels)
            assert table.measure(claim.measure).name in measures
        assert all(measure.relative_to in (None, *labels) for measure in table.measures)


def test_only_strategies_with_groups_shift_the_data_of_those_asked_before_alone() -> None:
    changes = {row.label: row.changes for row in STUDY.sizes["small"]["swap-all"].rows}
    assert changes["swap-all/fedavg"][1] == "drift={kind='swap-all', among='all'}"
    assert changes["swap-all/flexcfl"][1] == "drift={kind='swap-all', among='selected'}"


def test_a_study_runs_what_is_missing_and_says_how_far_it_is_from_published(
    tiny: Table, ran: tuple[Study, Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    study, out, text = ran
    folders = report_folders(tiny, out)
    values = [best_accuracy(folder) for folder in folders["fedavg"]]
    mean = sum(values) / 2
    assert f"| Fedavg | best accuracy % | 50.00 | {mean:.2f} +- " in text
    assert f"| {mean - 50:+.2f} | 100 | yes |" in text
    assert re.search(r"\| Ifca \| best accuracy % \| 500\.00 \| .* \| 100 \| \*\*no\*\* \|", text)
    assert re.search(r"\| Flexcfl \| best accuracy % \| 50\.00 \| .* \| 0 \| \*\*no\*\* \|", text)
    assert "1 of 3 figures are within the tolerance." in text
    assert "| Ifca | rounds to 101 % |  | 1.00 +- 0.00 | | |  |" in text  # never reached: all rounds, as with FedAvg
    assert "| Table 9 | FedAvg is better than itself less 1 | 1 | 1 to 1 | holds |" in text
    assert "| Table 9 | FedAvg is better than itself | 0 | 0 to 0 | does not hold |" in text
    assert "Seeds 1 to 2. A note." in text
    assert "- Left out: absent (data.source is 'emnist', whose files are missing" in text
    made = {folder: folder.stat().st_mtime_ns for runs in folders.values() for folder in runs}
    assert main(study, asked(out)) == 0
    assert {folder: folder.stat().st_mtime_ns for folder in made} == made
    assert capsys.readouterr().out == text


def test_a_report_of_what_is_there_takes_the_seeds_that_are_whole(
    tiny: Table, ran: tuple[Study, Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study("Tiny", "About.", {"small": {"tiny": tiny}}, tmp_path, "python tiny.py")
    assert main(study, ["--only-report"]) == 0
    assert "- Left out: tiny (its runs have not been made)" in capsys.readouterr().out
    shutil.copytree(ran[1], tmp_path, dirs_exist_ok=True)
    shutil.rmtree(report_folders(tiny, tmp_path)["flexcfl"][1])
    assert main(study, ["--only-report"]) == 0
    assert "Seed 1. A note." in capsys.readouterr().out


def report_folders(table: Table, out: Path) -> report.Folders:
    return {row.label: [out / table.world.name / row.label / f"seed-{seed}" for seed in (1, 2)] for row in table.rows}
