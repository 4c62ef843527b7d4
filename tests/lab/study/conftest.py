"""A study that takes seconds: two strategies, two seeds, few rounds."""

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedsim.lab.compare.show import write_tables
from fedsim.lab.study.folder import states, write_study
from fedsim.lab.study.plan import read_study
from fedsim.lab.study.worker import Worker


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
    """A study file."""
    return write(tmp_path / "study.toml", tables)


@pytest.fixture
def finished(study_file: Path, tables: dict[str, Any], tmp_path: Path) -> Path:
    """The folder of the study in ``study_file``, all of it done, without learning."""
    tables["base"]["learning"] = "off"
    return finish(write(study_file, tables), tmp_path / "finished")


def finish(study_file: Path, out: Path) -> Path:
    """Do what ``fedsim study`` does, but in this process: starting others takes longer than the runs."""
    study = read_study(study_file)
    out.mkdir(exist_ok=True)
    write_study(out, study)
    news: list[dict[str, Any]] = []
    worker = Worker(lambda **said: news.append(said))
    for run, state in zip(study.runs, states(out, study), strict=True):
        if state != "done":
            worker.carry_out({"scenario": run.scenario.to_toml(), "folder": str(out / run.folder), "how": state})
            assert news[-1]["run"]["status"] == "done", news[-1]
    write_tables(out)
    return out


def write(path: Path, tables: dict[str, Any]) -> Path:
    """Write tables as TOML."""
    path.write_text(tomli_w.dumps(tables))
    return path
