"""What a study says of its runs, for those who never see its file."""

import datetime
import json
import math
from pathlib import Path
from typing import Any

from fedsim.lab.study.folder import index_of, write_study
from fedsim.lab.study.plan import Study, Variant, read_study
from fedsim.lab.study.spec import StudySpec
from fedsim.records.study_folder import read_index
from tests.lab.study.conftest import write


def test_it_says_what_the_file_says(tables: dict[str, Any], tmp_path: Path) -> None:
    tables |= {"grid": {"population.jitter": [0.0, 0.2]}, "references": ["local"], "target": 0.3}
    study = read_study(write(tmp_path / "s.toml", tables))
    index = index_of(study)
    assert (index.name, index.baseline, index.targets, index.seeds) == ("small", "fedavg", (0.3,), (1, 2))
    assert [(one.label, one.reference) for one in index.variants] == [
        (f"{name}, jitter={jitter}", name == "local") for jitter in (0.0, 0.2) for name in ("fedavg", "fedprox", "local")
    ]
    fedprox = index.variants[4]
    assert (fedprox.name, fedprox.point) == ("fedprox", {"population.jitter": 0.2})
    assert fedprox.changes == {"strategy.kind": "fedprox", "strategy.mu": 0.1}
    assert [(run.seed, run.folder) for run in fedprox.runs] == [
        (seed, f"runs/fedprox,jitter=0.2/seed-{seed}") for seed in (1, 2)
    ]
    assert {run.folder for one in index.variants for run in one.runs} == {run.folder.as_posix() for run in study.runs}


def test_it_is_read_as_it_was_written(tables: dict[str, Any], tmp_path: Path) -> None:
    study = read_study(write(tmp_path / "s.toml", tables | {"grid": {"training": [{"lr": 0.1}, {"lr": 0.2}]}}))
    write_study(tmp_path, study)
    assert read_index(tmp_path) == index_of(study)
    assert {path.name for path in tmp_path.iterdir()} == {"s.toml", "study.toml", "index.json"}


def test_values_that_only_toml_has_are_texts(tables: dict[str, Any]) -> None:
    """Without them the file would be no JSON to other readers."""
    changes = {"a": [math.inf, {"b": datetime.date(2026, 1, 2)}], "c": {"d": math.nan}, "e": [1, 0.5, True, "x"]}
    spec = StudySpec(**tables | {"variants": {"odd": changes}, "baseline": None})
    variant = Variant("odd", (("f", -math.inf),), changes)
    study = Study(spec)
    study.variants, study.runs_of = [variant], {variant.folder: []}
    (odd,) = index_of(study).variants
    assert odd.changes == {"a": ["inf", {"b": "2026-01-02"}], "c.d": "nan", "e": [1, 0.5, True, "x"]}
    assert odd.point == {"f": "-inf"}
    json.dumps(odd.model_dump(), allow_nan=False)
