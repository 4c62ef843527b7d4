"""Runs and a study to compare, made once."""

from pathlib import Path
from typing import Any

import pytest

import fedsim
from tests.lab.study.conftest import finish, write

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


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of runs: with groups and without, on pooled data, and without learning."""
    place = tmp_path_factory.mktemp("runs")
    pooled = {"data": BASE["data"] | {"pooled_from": 15}, "population": {"devices": 1}, "strategy": {"kind": "local"}}
    made = {
        "fedavg": BASE,
        "flexcfl": BASE | {"strategy": GROUPED},
        "pooled": {key: value for key, value in BASE.items() if key != "drift"} | pooled,
        "off": BASE | {"learning": "off"},
    }
    for name, sections in made.items():
        fedsim.run(fedsim.Scenario(**sections), place / name, executor="inline")
    return {name: place / name for name in made}


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study with a grid, groups, references and targets, one of which nobody reaches."""
    place = tmp_path_factory.mktemp("study")
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
    return finish(write(place / "study.toml", tables), place / "out")
