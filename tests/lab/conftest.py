"""A study that takes seconds, and runs and a study to compare, made once."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import fedsim
from fedsim.lab.compare.show import write_tables
from fedsim.lab.study.folder import states, write_study
from fedsim.lab.study.plan import read_study
from fedsim.lab.study.worker import Worker
from tests.shared import copy_of

BASE: dict[str, Any] = {
    "name": "migrating",
    "data": {"source": "digits", "partition": {"kind": "label-groups", "groups": 5}},
    "training": {"lr": 0.1, "batch_size": 10},
    "population": {
        "devices": 15,
        "speed": {"kind": "lognormal", "median": "12 samples/s", "spread": 2.0},
        "availability": {"kind": "renewal", "mean_on": "5 min", "mean_off": "20 s"},
    },
    "drift": {"kind": "swap-all", "probability": 0.5, "at": {"every_rounds": 2}},
    "strategy": {"kind": "fedavg", "clients_per_round": 5, "local_epochs": 2, "deadline": "30 s"},
    "stop": {"rounds": 6},
}
GROUPED = {
    "kind": "flexcfl",
    "groups": 5,
    "clients_per_round": 5,
    "local_epochs": 2,
    "deadline": "30 s",
    "moment": {"devices": 2, "steps": 5},
}


@pytest.fixture
def tables(small: dict[str, Any]) -> dict[str, Any]:
    """What a study file says; its base is beside it."""
    del small["seed"]
    (small["stop"]["rounds"], small["population"]["devices"]) = (3, 12)
    return {
        "name": "small",
        "base": small,
        "seeds": [1, 2],
        "baseline": "fedavg",
        "target": [0.3],
        "variants": {"fedavg": {}, "fedprox": {"strategy": {"kind": "fedprox", "mu": 0.1}}},
    }


@pytest.fixture
def study_file(tables: dict[str, Any], tmp_path: Path) -> Path:
    return write(tmp_path / "study.toml", tables)


@pytest.fixture
def slow_study(tables: dict[str, Any], tmp_path: Path) -> Path:
    tables["base"] |= {
        "stop": {"rounds": 100},
        "checkpoint": {"rounds": 10},
        "evaluation": {"every": 50},
    }
    return write(tmp_path / "slow.toml", tables | {"seeds": [1]})


@pytest.fixture
def finished(study_file: Path, tables: dict[str, Any], tmp_path: Path) -> Path:
    tables["base"]["learning"] = "off"
    return finish(write(study_file, tables), tmp_path / "finished")


def finish(study_file: Path, out: Path, only: Sequence[str] = ()) -> Path:
    """Do what ``fedsim study`` does, but in this process: starting others takes longer than the
    runs.
    """
    study = read_study(study_file)
    out.mkdir(exist_ok=True)
    write_study(out, study)
    news: list[dict[str, Any]] = []
    worker = Worker(lambda **said: news.append(said))
    for run, state in zip(study.runs, states(out, study), strict=True):
        if state != "done" and run.folder in study.only(only):
            worker.carry_out(
                {
                    "scenario": run.scenario.to_toml(),
                    "folder": str(out / run.folder),
                    "waits": False,
                }
            )
            assert news[-1]["run"]["status"] == "done", news[-1]
    write_tables(out)
    return out


def rows_of(table: Path | str) -> list[dict[str, str]]:
    """The rows of a CSV file, or of its text."""
    return list(csv.DictReader(io.StringIO(table if isinstance(table, str) else table.read_text())))


def write(path: Path, tables: dict[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(tables))
    return path


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of runs: with groups and without, on pooled data, and without learning."""
    pooled = {
        "data": BASE["data"] | {"pooled_from": 15},
        "population": {"devices": 1},
        "strategy": {"kind": "local"},
    }
    made = {
        "fedavg": BASE,
        "flexcfl": BASE | {"strategy": GROUPED},
        "pooled": {key: value for key, value in BASE.items() if key != "drift"} | pooled,
        "off": BASE | {"learning": "off"},
    }

    def make(place: Path) -> None:
        for name, sections in made.items():
            fedsim.run(fedsim.Scenario(**sections), place / name, executor="inline")

    place = copy_of(tmp_path_factory, "runs", make)
    return {name: place / name for name in made}


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study with a grid, groups, references and targets, one of which
    nobody reaches.
    """
    tables = {
        "name": "grouped | <b>not</b>",
        "base": BASE | {"stop": {"rounds": 3}},
        "seeds": [1, 2, 3],
        "baseline": "fedavg",
        "target": [0.2, 1.0],
        "references": ["centralised"],
        "variants": {"fedavg": {}, "flexcfl": {"strategy": GROUPED}},
        "grid": {"population.stragglers.share": [0.0, 0.5]},
    }

    def make(place: Path) -> None:
        finish(write(place / "study.toml", tables), place / "out")

    return copy_of(tmp_path_factory, "study", make) / "out"
