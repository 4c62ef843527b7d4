"""The files of an exported app."""

import tomllib
from pathlib import Path

import pytest

from fedsim.deployed.export import export
from fedsim.running.scenario import Scenario, load
from tests.calls import call, done

AVAILABILITY = {"kind": "renewal", "mean_on": "1 h", "mean_off": "5 min"}
OWN = """
from halves import factor

from fedsim.strategies.fedavg import FedAvg, FedAvgParams


class OwnParams(FedAvgParams):
    kind: str = "mine:Own"
    more: float = factor()


class Own(FedAvg):
    Params = OwnParams
"""


def test_an_app_has_both_halves_and_the_scenario(tmp_path: Path) -> None:
    scenario = Scenario(
        name="Six phones!",
        data={"source": "digits"},
        population={"devices": 6, "availability": AVAILABILITY},
        server={"patience": "1 min"},
        strategy={"kind": "fedavg", "clients_per_round": 4},
    )
    files = export(scenario, tmp_path / "app")
    assert sorted(path.relative_to(tmp_path / "app").as_posix() for path in files) == [
        "README.md",
        "fedsim_app/__init__.py",
        "fedsim_app/client.py",
        "fedsim_app/scenario.toml",
        "fedsim_app/server.py",
        "pyproject.toml",
    ]
    project = tomllib.loads((tmp_path / "app/pyproject.toml").read_text())
    assert project["project"]["name"] == "six-phones"
    again = load(tmp_path / "app/fedsim_app/scenario.toml")
    assert again.population.availability.kind == "always"
    assert again.server.patience == 0.0
    assert again.strategy == scenario.strategy
    assert "`population.availability`, `server.patience` do not apply" in (
        tmp_path / "app/README.md"
    ).read_text().replace("\n", " ")


def test_own_modules_travel_with_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "halves.py").write_text("def factor() -> float:\n    return 2.0\n")
    (tmp_path / "s.toml").write_text(
        '[data]\nsource = "digits"\n[strategy]\nkind = "mine:Own"\nclients_per_round = 2\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    said = done("flower", "export", "s.toml", "app", "--allow-code")
    assert "written app/fedsim_app/own/mine.py" in said
    assert (tmp_path / "app/fedsim_app/own/mine.py").read_text() == OWN
    assert (tmp_path / "app/fedsim_app/own/halves.py").exists()


def test_a_folder_with_files_and_a_wrong_scenario_are_refused(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/notes.txt").write_text("mine")
    (tmp_path / "s.toml").write_text('[data]\nsource = "digits"\n')
    refused = call("flower", "export", tmp_path / "s.toml", tmp_path / "app")
    assert refused.exit_code == 2
    assert "give the app a folder of its own" in refused.output
    wrong = call("flower", "export", tmp_path / "s.toml", tmp_path / "new", "--set", "learning=off")
    assert wrong.exit_code == 2
    assert 'set learning = "on"' in wrong.output
    assert not (tmp_path / "new").exists()
