"""Every strategy that Flower has runs among stragglers and devices that come and go."""

import inspect
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.serverapp import strategy as strategies

from fedsim.testing import assert_sound
from tests.flower.runs import eventful, execute

NAMES = [name for name in strategies.__all__ if not inspect.isabstract(getattr(strategies, name)) and name != "Result"]


@pytest.mark.parametrize("name", NAMES)
def test_five_rounds_of(name: str, tmp_path: Path) -> None:
    assert len(NAMES) >= 18
    config = {"strategy": name, "fraction-train": 0.3, "num-server-rounds": 5, "timeout": 60.0}
    summary = execute(eventful("numpy_app", run_config=config), tmp_path / "run").summary
    assert summary["status"] == "done"
    assert summary["stopped"] == "the ServerApp has ended"
    assert summary["rounds"] == 5
    assert summary["accuracy"]["final"] > (0.2 if "Xgb" not in name else 0.8)
    folder = assert_sound(tmp_path / "run")
    assert [row["round"] for row in folder.rounds] == [0, 1, 2, 3, 4]
    (tensors,) = folder.models().values()
    assert tensors
