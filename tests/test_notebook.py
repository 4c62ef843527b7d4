"""As in a notebook: an event loop runs, and what a cell ends with shows itself."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedsim
from fedsim.lab import loading


def test_run_works_where_an_event_loop_runs(small: dict[str, Any], tmp_path: Path) -> None:
    scenario = fedsim.Scenario(**small)

    async def cell(executor: str) -> fedsim.Result:
        return fedsim.run(scenario, tmp_path / "cell", executor=executor)

    with pytest.raises(fedsim.ScenarioError, match="did you mean 'inline'"):
        asyncio.run(cell("inlin"))
    inside, outside = asyncio.run(cell("inline")), fedsim.run(scenario, executor="inline")
    for key in ("events_sha256", "models_sha256"):
        assert inside.summary[key] == outside.summary[key]


def test_rounds_and_what_an_accuracy_took(small: dict[str, Any], tmp_path: Path) -> None:
    result = fedsim.run(fedsim.Scenario(**small), tmp_path / "run", executor="inline")
    rounds = result.rounds
    middle = sorted(rounds["accuracy"])[4]
    place = int((rounds["accuracy"] >= middle).idxmax())
    took = result.costs_to(middle)
    assert (took["rounds"], took["time"]) == (place + 1, rounds["time"][place])
    assert took["bytes"] == rounds[["bytes_down", "bytes_up"]][: place + 1].to_numpy().sum()
    assert rounds["accuracy"].max() < 1
    assert all(value != value for value in result.costs_to(1.0).values())
    loaded = fedsim.load_run(tmp_path / "run")
    assert loaded.costs_to(middle)["bytes"] == took["bytes"]
    pd.testing.assert_frame_equal(rounds, loaded.rounds)
    assert rounds["round"].tolist() == [row["round"] for row in result.rows]
    assert fedsim.run(fedsim.Scenario(**small | {"stop": {"simulated_time": "1 ms"}}), executor="inline").rounds.empty


def test_an_interrupted_cell_ends_the_run(small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when Jupyter's stop button raises in the thread of the cell, which waits for the run's."""

    class Impatient(loading.ThreadPoolExecutor):
        def submit(self, *work: Any) -> Any:
            future = super().submit(*work)

            def result() -> None:
                while not (tmp_path / "run" / "checkpoint").is_dir():
                    time.sleep(0.01)
                raise KeyboardInterrupt

            future.result = result
            return future

    async def cell() -> None:
        scenario = fedsim.Scenario(**small | {"stop": {"rounds": 100_000}, "checkpoint": {"rounds": 1}})
        monkeypatch.setattr(loading, "ThreadPoolExecutor", Impatient)
        fedsim.run(scenario, tmp_path / "run", executor="inline")

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())
    assert threading.active_count() == before


def test_all_show_themselves_in_short_and_without_escapes(small: dict[str, Any], tmp_path: Path) -> None:
    scenario = fedsim.Scenario(**small | {"name": "<b>odd</b>"})
    result = fedsim.run(scenario, tmp_path / "run", executor="inline")
    for thing in (scenario, result, fedsim.load_run(tmp_path / "run")):
        assert len(repr(thing)) < 400
        assert "fedavg" in repr(thing)
        shown = thing._repr_html_()
        assert ("<table>" in shown, "fedavg" in shown, "<b>" in shown) == (True, True, False)

    folder = tmp_path / "a\x1b[31mb"
    result = fedsim.run(fedsim.Scenario(**small | {"learning": "off", "stop": {"rounds": 1}}), folder)
    told = (folder / "summary.json").read_text()
    (folder / "summary.json").write_text(told.replace('"name": "small"', '"name": "x\\u001b]0;owned\\u0007\\u202e"'))
    shown = repr(fedsim.load_run(folder))
    assert r"scenario x\u001b]0;owned\u0007\u202e" in shown
    assert all(text.isprintable() for text in (shown, repr(result)))
