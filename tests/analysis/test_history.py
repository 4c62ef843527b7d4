"""What happened in a run as tables, and the part of it that a timeline shows."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.analysis.report.timeline import read_timeline
from fedsim.analysis.style import PictureError
from fedsim.analysis.timeline import View, draw_timeline, span_of_rounds
from fedsim.lab.trackers.trace import trace_events
from fedsim.records.history import History
from fedsim.records.reading import RunFolder
from tests.analysis.conftest import Ran, drawn


@pytest.fixture
def history(run: RunFolder) -> History:
    return History(run)


def test_steps_have_the_outcomes_of_their_tasks(run: RunFolder, history: History) -> None:
    """When they were, and how each of them ended, the trace's tests say."""
    outcomes = {event["task"]: event["outcome"] for event in run.events if event["kind"] == "task-end"}
    assert len(history.steps) == sum(event["kind"] == "step-end" for event in run.events)
    assert history.steps["outcome"].tolist() == [outcomes[task] for task in history.steps["task"]]


def test_tasks_and_rounds_are_those_of_the_rounds_table(run: RunFolder, history: History) -> None:
    counts = Counter(zip(history.tasks["period"], history.tasks["outcome"], strict=True))
    for period, row in enumerate(run.rounds):
        found = tuple(counts[period, outcome] for outcome in ("done", "late", "lost"))
        assert found == (row["valid"], row["slow"], row["disconnected"])
    starts = [event["data"]["deadline"] for event in run.events if event["kind"] == "round-start"]
    expected = [(row["round"], row["time"], deadline) for row, deadline in zip(run.rounds, starts, strict=True)]
    assert list(history.rounds.itertuples(index=False, name=None)) == expected
    assert history.end == run.summary["simulated_s"]


def test_steps_that_a_cut_off_run_left_open_last_to_its_end(cut_off: RunFolder) -> None:
    history = History(cut_off)
    started, ended = (sum(event["kind"] == kind for event in cut_off.events) for kind in ("step-start", "step-end"))
    assert len(history.steps) == started > ended
    unended = history.steps[~history.steps["task"].isin(history.tasks["task"])]
    assert (unended["outcome"] == "stopped").all()
    assert (unended["end"] == history.end).sum() == started - ended


def test_orders_of_lanes(history: History) -> None:
    devices = View(history).devices
    assert history.population["speed"][devices].is_monotonic_decreasing
    assert list(View(history, order="number").devices) == sorted(devices) == sorted(set(history.steps["device"]))
    first = history.steps.groupby("device")["start"].min()
    assert first[View(history, order="first").devices].is_monotonic_increasing


def test_some_devices_are_spread_from_the_first_to_the_last(history: History) -> None:
    everyone, some = View(history), View(history, most=4)
    assert (some.devices[0], some.devices[-1]) == (everyone.devices[0], everyone.devices[-1])
    assert some.at_work == len(everyone.devices)
    assert set(some.steps["device"]) == set(some.devices)
    assert len(some.devices) == 4
    assert (some.devices[some.tasks["lane"]] == some.tasks["device"]).all()


def test_rounds_side_by_side_share_out_all_tasks(history: History, run: RunFolder) -> None:
    views = [View(history, span_of_rounds(history, number, number + 1)) for number in range(len(run.rounds))]
    assert [list(view.rounds["round"]) for view in views] == [[number] for number in range(len(views))]
    assert [len(view.tasks) for view in views] == [row["selected"] for row in run.rounds]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "sped"}, "did you mean 'speed'"),
        ({"most": 0}, "1 or more"),
        ({"span": (9.0, 3.0)}, "must begin at 0"),
        ({"span": (1e9, np.inf)}, "no device worked"),
    ],
)
def test_what_cannot_be_shown_is_said(history: History, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PictureError, match=message):
        View(history, **options)
    with pytest.raises(PictureError, match="rounds 0 to 7"):
        span_of_rounds(history, 8, 9)


@pytest.fixture
def outage(small: dict[str, Any], tmp_path: Path, ran: Ran) -> RunFolder:
    """Four devices with known phases: the second arrives at 5 s, the third leaves at 20 s, the last is switched off."""
    (tmp_path / "on.csv").write_text("device,start,end\n0,0,8\n0,12,1000\n1,0,1000\n2,1,1000\n3,0,1000\n")
    population = small["population"] | {
        "devices": 4,
        "availability": {"kind": "intervals", "file": str(tmp_path / "on.csv"), "unit": "s"},
        "arrivals": {"kind": "schedule", "times": ["5 s"], "devices": [1]},
        "departures": {"kind": "schedule", "times": ["20 s"], "devices": [2]},
    }
    strategy = {"kind": "fedavg", "clients_per_round": 3, "deadline": "4 s", "retry": "1 s"}
    world = {"processes": [{"kind": "tests.analysis.test_history:nightfall"}]}
    sections = {"population": population, "strategy": strategy, "world": world, "stop": {"simulated_time": "30 s"}}
    return ran("r", learning="off", **sections)


def nightfall(world: Any) -> Any:
    yield world.timeout(10.0)
    with world.off(3):
        yield world.timeout(6.0)


def test_stretches(outage: RunFolder) -> None:
    history = History(outage)
    there = [(0, 0.0, 30.0), (1, 5.0, 30.0), (2, 0.0, 20.0), (3, 0.0, 30.0)]
    assert list(history.there.itertuples(index=False, name=None)) == there
    off = [(0, 8.0, 12.0), (2, 0.0, 1.0), (3, 10.0, 16.0)]
    assert list(history.away.itertuples(index=False, name=None)) == off
    assert list(history.known) == [0, 1, 2, 3]
    slices = [entry for entry in trace_events(outage) if entry["name"] == "cannot be reached"]
    assert [(entry["tid"], entry["ts"], entry["dur"]) for entry in slices] == [(0, 8e6, 4e6), (2, 0.0, 1e6), (3, 10e6, 6e6)]


def test_the_timeline_shows_them(outage: RunFolder) -> None:
    figure = draw_timeline(outage, order="number")
    shown = drawn(figure.axes[0])
    assert shown["away"] == 3
    assert shown.keys() >= {"arrival", "departure"}
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"idle", "cannot be reached", "arrives", "leaves for good"} <= set(words)
    assert "idle or disconnected" not in words


def test_the_report_has_them(outage: RunFolder) -> None:
    data = read_timeline(outage, 1000, 100_000)
    seconds = {name: np.round(data.columns[name] * data.header["tick"], 3).tolist() for name in ("off_start", "off_end")}
    assert (seconds["off_start"], seconds["off_end"]) == ([8.0, 0.0, 10.0], [12.0, 1.0, 16.0])
    assert data.columns["off_first"].tolist() == [0, 1, 1, 2, 3]


def test_a_folder_of_an_older_version(outage: RunFolder) -> None:
    (outage.path / "availability.parquet").unlink()
    assert History(outage).away.empty
    words = [text.get_text() for text in draw_timeline(outage).legends[0].get_texts()]
    assert "idle or disconnected" in words
    assert not any(entry["name"] == "cannot be reached" for entry in trace_events(outage))


def test_lanes_are_of_devices_whose_phases_are_known(unlearned: RunFolder) -> None:
    import pyarrow.parquet as pq

    path = unlearned.path / "availability.parquet"
    table = pq.read_table(path)
    pq.write_table(table.filter([device % 2 == 0 for device in table["device"].to_pylist()]), path)
    figure = draw_timeline(RunFolder(unlearned.path), order="number")
    names = [int(label.get_text().split()[0]) for label in figure.axes[0].get_yticklabels()]
    assert names
    assert all(name % 2 == 0 for name in names)
