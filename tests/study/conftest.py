"""A study that takes seconds: two strategies, two seeds, few rounds."""

from pathlib import Path
from typing import Any

import pytest
import tomli_w


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


def write(path: Path, tables: dict[str, Any]) -> Path:
    """Write tables as TOML."""
    path.write_text(tomli_w.dumps(tables))
    return path
