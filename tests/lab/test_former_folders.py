"""A study's folder of version 0.2.0 is read by every verb that reads folders."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import fedsim
from fedsim.cli import main
from fedsim.common.errors import CheckpointError, RunFolderError, ScenarioError
from fedsim.lab.audited import audit_run
from fedsim.lab.study.folder import state_of
from fedsim.records.reading import RunFolder
from fedsim.running.scenario import load_of_run

STUDY = Path(__file__).with_name("former-0.2.0")
FLEXCFL = STUDY / "runs/flexcfl/seed-1"  # learns, three rounds, four devices
FEDBUFF = STUDY / "runs/fedbuff/seed-1"  # without learning, with training.init = 'torch'


def call(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_audit_finds_nothing() -> None:
    findings, unchecked = audit_run(FLEXCFL)
    assert [problem for problems in findings.values() for problem in problems] == []
    assert unchecked == []


def test_the_audit_names_values_without_an_equal() -> None:
    findings, unchecked = audit_run(FEDBUFF)
    assert [problem for problems in findings.values() for problem in problems] == []
    assert unchecked == [
        "the scenario has training.init = 'torch', which this version does not have; what depends "
        "on it is not checked"
    ]


def test_the_audit_still_finds_what_is_wrong(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(FEDBUFF, run)
    text = (run / "scenario.toml").read_text().replace("server_lr = 0.5", "server_lr = 0.25")
    (run / "scenario.toml").write_text(text)
    findings, _ = audit_run(run)
    assert "the weights are" in findings["updates weigh what the strategy's rule gives them"][0]


def test_the_run_is_loaded() -> None:
    run = fedsim.load_run(FLEXCFL)
    assert run.sections["strategy"]["moment"]["steps"] == 3
    assert run.scenario.strategy.kind == "flexcfl"
    assert (len(run.rounds), len(run.devices)) == (3, 4)
    assert run.events["time"].is_monotonic_increasing
    between_groups = run.transfers["sender"].notna()
    assert run.transfers["wire_bytes"][between_groups].unique().tolist() == [0.0]
    assert [*run.models()] == ["group"]
    with pytest.raises(RunFolderError, match=r"no availability\.parquet: an earlier version wrote"):
        _ = run.availability


def test_the_run_is_repeated(tmp_path: Path) -> None:
    former = fedsim.load_run(FLEXCFL)
    scenario = load_of_run(RunFolder(FLEXCFL), ["learning=off"])
    again = fedsim.run(scenario, tmp_path / "again", executor="inline")
    columns = ["time", "selected", "valid", "slow", "bytes_down", "bytes_up"]
    assert again.rounds[columns].equals(former.rounds[columns])


def test_a_value_without_an_equal_cannot_be_repeated() -> None:
    with pytest.raises(ScenarioError, match=r"the scenario has training\.init = 'torch', which"):
        load_of_run(RunFolder(FEDBUFF), ["stop.rounds=1"])
    with pytest.raises(RunFolderError, match=r"training.init = 'torch'.*\.sections has"):
        _ = fedsim.load_run(FEDBUFF).scenario


def test_a_former_run_does_not_go_on(tmp_path: Path) -> None:
    for option in (["--resume"], ["--more", "2"]):
        result = CliRunner().invoke(main, ["run", str(FLEXCFL), *option])
        assert result.exit_code != 0
        assert "holds a run of an earlier version" in result.output
    run = tmp_path / "run"
    shutil.copytree(FLEXCFL, run)
    (run / "summary.json").unlink()
    scenario = load_of_run(RunFolder(FLEXCFL))
    with pytest.raises(CheckpointError, match="holds a run of an earlier version"):
        fedsim.run(scenario, run, resume=True)
    (run / "checkpoint/000000000079").mkdir(parents=True)
    (run / "checkpoint/000000000079/manifest.json").write_text('{"format": 4}')
    with pytest.raises(CheckpointError, match="is of format 4, and this fedsim reads"):
        fedsim.run(scenario, run, resume=True)


def test_a_study_knows_its_former_runs() -> None:
    scenario = load_of_run(RunFolder(FLEXCFL))
    assert state_of(FLEXCFL, scenario.to_toml()) == "done"
    other = load_of_run(RunFolder(FLEXCFL), ["seed=2"])
    with pytest.raises(RunFolderError, match="holds a run of another scenario"):
        state_of(FLEXCFL, other.to_toml())
    with pytest.raises(RunFolderError, match="holds a run of another scenario"):
        state_of(FEDBUFF, scenario.to_toml())


def test_verbs_read_the_study_and_its_runs(tmp_path: Path) -> None:
    assert "flexcfl" in call("compare", STUDY)
    assert "fedbuff" in call("compare", FLEXCFL, FEDBUFF, "--all")
    assert "round" in call("why", FLEXCFL)
    call("trace", FLEXCFL, "--out", tmp_path / "trace.json")
    call("figures", STUDY, "--out", tmp_path, "--format", "svg", "--figure", "communication")
    assert len(fedsim.load_study(STUDY).runs) == 2


def test_the_report_tells_the_run(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    call("report", FEDBUFF, "--out", page)
    assert "fedbuff" in page.read_text(encoding="utf-8")
