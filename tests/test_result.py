"""A run that has just ended has all that ``load_run`` gives of its folder."""

from pathlib import Path

import pandas as pd
import pytest

import fedsim

SCENARIO = {
    "learning": "off",
    "population": {"devices": 2, "samples": [20, 40], "speed": "10 samples/s"},
    "strategy": {"kind": "fedavg", "clients_per_round": 2},
    "stop": {"rounds": 1},
}


def test_a_result_is_a_loaded_run(tmp_path: Path) -> None:
    result = fedsim.run(fedsim.Scenario(**SCENARIO), tmp_path / "run", executor="inline")
    loaded = fedsim.load_run(tmp_path / "run")
    assert isinstance(result, fedsim.LoadedRun)
    assert result.folder == result.path == tmp_path / "run"
    pd.testing.assert_frame_equal(result.devices, loaded.devices)
    assert len(result.events) == len(loaded.events)
    assert result.scenario == loaded.scenario
    assert result.figure("timeline").axes


def test_without_a_folder_it_has_its_rounds_alone() -> None:
    result = fedsim.run(fedsim.Scenario(**SCENARIO), executor="inline")
    assert (result.folder, len(result.rounds), result.summary["rounds"]) == (None, 1, 1)
    with pytest.raises(fedsim.RunFolderError, match=r"kept in no folder: fedsim.run"):
        result.devices  # noqa: B018
