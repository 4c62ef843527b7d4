"""Pages, pictures and lines of runs that are not over: nothing is said that only the end can tell."""

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import fedsim
from fedsim.analysis.pictures import OF_ONE
from fedsim.analysis.report import tables
from fedsim.analysis.report.gather import gather
from fedsim.analysis.report.live import read_live
from fedsim.analysis.report.page import build
from fedsim.analysis.report.tables import read_devices
from fedsim.analysis.report.timeline import read_timeline
from fedsim.analysis.style import NothingToDrawError
from fedsim.analysis.traffic import read_parts
from fedsim.clock.executors import Inline
from fedsim.clock.simulation import Record
from fedsim.lab.compare.measures import read_work
from fedsim.lab.terminal import summary_lines
from fedsim.records import live
from fedsim.records.reading import RunFolder
from fedsim.running.runner import Job
from tests.analysis.test_page_numbers import FAMILIES, STAR, text_of
from tests.lab.conftest import finish, write

ENDS = re.compile(
    r"\b(ends? with|final (?!figures)\w+|at the end|by the end|in the end|in all rounds|in all "
    r"versions|cut off|It ended|ended by:|is over)\b"
)
"""What can be said only of a run that is over."""

MORE: dict[str, dict[str, Any]] = {
    "versions": {"strategy": {"kind": "fedbuff", "concurrency": 4, "buffer": 2}, "network": STAR},
    "groups": {
        "strategy": {
            "kind": "flexcfl",
            "groups": 2,
            "clients_per_round": 4,
            "moment": {"devices": 4},
        },
        "network": STAR,
    },
    "hosts": {
        "strategy": {"kind": "fedavg", "clients_per_round": 4},
        "network": STAR,
        "population": {
            "devices": 6,
            "speed": "20 samples/s",
            "host": {"number": 2, "cores": 2, "workers": 1, "start_up": "1 s"},
        },
    },
    "energy": {
        "strategy": {"kind": "fedavg", "clients_per_round": 3},
        "network": STAR,
        "energy": {"preset": "smartphone-wifi"},
    },
}
EVERY = FAMILIES | MORE


def killed(family: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The folder that a run leaves that is killed in its fourth round."""
    monkeypatch.setattr(live, "_SHARE", 0)  # a copy at each end of a task
    sections: dict[str, Any] = {
        "data": {"source": "digits"},
        "population": {"devices": 6, "speed": "20 samples/s"},
        "stop": {"rounds": 5},
    }
    scenario = fedsim.Scenario(**sections | EVERY[family])
    out = folder / "run"
    job = Job(scenario, out, Inline(), live_every_s=0.0)

    def keep(record: Record) -> None:
        if record.fields["round"] == 3:
            shutil.copytree(out, folder / "killed")

    job.simulation.listen(keep, kinds=("round",))
    asyncio.run(job.execute())
    return RunFolder(folder / "killed")


def texts_of(figure: Figure) -> str:
    texts = [str(figure.get_suptitle())]
    for legend in figure.legends:
        texts += [text.get_text() for text in legend.get_texts()]
    return " ".join(texts)


@pytest.mark.parametrize("family", EVERY)
def test_nothing_is_said_of_the_end_of_a_run_that_was_killed(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = killed(family, tmp_path, monkeypatch)
    assert run.summary["status"] == "running"
    text = text_of(build(gather([run.path])))
    assert "It has reached accuracy " in text
    assert "accuracy so far" in text
    assert "running when last written" in text
    assert ENDS.findall(text) == []
    growing = read_live([run.path])
    assert growing.title.startswith("Live: ")
    assert ENDS.findall(text_of(growing.page)) == []
    assert ENDS.findall(" ".join(summary_lines(run.summary))) == []
    for picture in OF_ONE.values():
        try:
            words = texts_of(picture.draw(run))
        except NothingToDrawError:
            continue
        assert ENDS.findall(words) == []
    over = text_of(build(gather([tmp_path / "run"])))
    assert "It ends with accuracy " in over
    assert "so far" not in over.replace("moved so far by direction", "")


def test_open_tasks_of_a_run_that_may_go_on_are_not_wasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = killed("versions", tmp_path, monkeypatch)
    stopped = read_devices(run)["stopped"].sum()
    assert stopped > 0
    assert read_devices(run)["wasted_s"].sum() == 0
    assert not read_parts(run)["wasted"].any()
    assert run.summary["bytes"]["wasted"] == 0
    timeline = read_timeline(run, most_lanes=100, most_steps=10_000)
    assert not timeline.header["is_done"]
    assert not timeline.columns["wasted_value"].any()
    text = text_of(build(gather([run.path])))
    assert "not finished yet" in text
    assert "not finished" in text
    assert "whose work is wasted" not in text


def test_an_interrupted_run_has_figures_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = killed("server", tmp_path, monkeypatch)
    path = tmp_path / "run" / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"status": "interrupted", "stopped": "interrupted"}))
    run = RunFolder(tmp_path / "run")
    assert "so far" in summary_lines(run.summary)[1]
    assert "accuracy so far" in text_of(build(gather([run.path])))


def test_a_study_that_is_half_done_says_so(tmp_path: Path) -> None:
    base = {
        "data": {"source": "digits"},
        "population": {"devices": 6, "speed": "20 samples/s"},
        "stop": {"rounds": 2},
        **FAMILIES["server"],
    }
    variants = {"plain": {}, "longer": {"strategy": {"local_epochs": 3}}}
    tables = {"name": "a study", "seeds": [1, 2], "base": base, "variants": variants}
    out = finish(write(tmp_path / "study.toml", tables | {"target": 0.2}), tmp_path / "st")
    assert "far" not in text_of(build(gather([out]))).replace("moved so far by direction", "")
    shutil.rmtree(out / "runs" / "longer" / "seed-2")
    text = text_of(build(gather([out])))
    assert "3 of 4 runs are done so far" in text
    assert "So far, to an accuracy of 0.2 no line surely takes the least time: " in text
    assert "longer has runs of other seeds than plain. plain has the least mean, " in text
    assert "so far, best by time" in text or "so far, least mean time" in text
    assert "<strong>To an accuracy" not in build(gather([out]))
    assert "wasted so far." in text


def test_runs_side_by_side_name_those_that_are_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = killed("server", tmp_path, monkeypatch)
    text = text_of(build(gather([tmp_path / "run", run.path])))
    assert "Not done: killed (running). The figures of such a run are those so far." in text


@pytest.mark.parametrize("kind", ["fedbuff", "fedasync"])
def test_strategies_without_rounds_count_versions(kind: str, tmp_path: Path) -> None:
    scenario = fedsim.Scenario(
        data={"source": "digits"},
        population={"devices": 6, "speed": "20 samples/s"},
        network=STAR,
        strategy={"kind": kind, "concurrency": 4},
        stop={"rounds": 3},
    )
    result = fedsim.run(scenario, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert summary_lines(run.summary)[0].startswith(f"{kind}, seed {scenario.seed}: 3 versions in ")
    assert summary_lines(run.summary)[0].endswith("(3 versions)")
    assert run.summary["stopped"] == "3 rounds"  # files keep their words
    assert "versions 3" in repr(result)
    text = text_of(build(gather([run.path])))
    assert "versions 3 ended by: 3 versions" in text
    assert "Table of 3 versions" in text
    assert "version's end" in text
    assert "what each version waited for" in text
    without_scenario = text.partition("Scenario its kinds")[0]
    assert re.findall(r"\brounds?\b", without_scenario) == []
    for picture in OF_ONE.values():
        try:
            figure = picture.draw(run)
        except NothingToDrawError:
            continue
        assert re.findall(r"\brounds?\b", texts_of(figure)) == []


def test_tasks_cut_off_by_the_end_are_counted_apart_from_other_wasted_ones(tmp_path: Path) -> None:
    """Their time, bytes and energy are wasted too, as in the summary and in comparisons."""
    sections = {
        "learning": "off",
        "population": {
            "devices": 6,
            "speed": "100 samples/s",
            "samples": {"low": 100, "high": 900},
        },
        "strategy": {"kind": "gossip"},
        "stop": {"simulated_time": "50 s"},
    }
    fedsim.run(fedsim.Scenario(**sections), tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    events = run.events_of(("task-end",), ("device", "outcome"))
    cut_off = {device for device, outcome in events if outcome == "stopped"}
    assert cut_off
    devices = tables.devices(run, "timeline")
    assert devices is not None
    assert devices[0] == (
        f"Table of 6 devices, {len(cut_off)} of them with a task cut off by the end of the run"
    )
    rows = read_devices(run)
    assert rows["wasted_s"].sum() > 0
    assert read_work(run)["wasted compute"] > 0
