"""What happened in a run as tables, the timeline as it is drawn, and what the page's scripts get
of it.
"""

import base64
import json
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from numpy.typing import NDArray

from fedsim.analysis import palette, timeline
from fedsim.analysis.report.legend import step_colours, timeline_legend
from fedsim.analysis.report.markup import pack
from fedsim.analysis.report.timeline import MARKED, OUTCOMES, TimelineData, read_timeline
from fedsim.analysis.strips import draw_load, draw_work
from fedsim.analysis.style import PictureError, save
from fedsim.analysis.timeline import draw_timeline
from fedsim.analysis.view import TimeSpan, View, span_of_rounds
from fedsim.lab.compare.critical_path import CriticalPaths
from fedsim.lab.reading.history import MARKS, History
from fedsim.lab.trackers.trace import trace_events
from fedsim.records.reading import RunFolder
from tests.analysis.conftest import Ran, drawn


@pytest.fixture
def history(run: RunFolder) -> History:
    return History(run)


def ends(run: RunFolder) -> dict[int, str]:
    return {event["task"]: event["outcome"] for event in run.events if event["kind"] == "task-end"}


def marks(figure: Figure) -> dict[str, int]:
    return {
        kind: count
        for kind, count in drawn(figure.axes[0]).items()
        if kind in (*MARKS, "late", "lost", "left", "battery")
    }


def bars(figure: Figure) -> Counter[str]:
    kinds = (*palette.STEPS, "wasted")
    return Counter(
        {
            kind: count
            for kind, count in drawn(figure.axes[0]).items()
            if kind.partition("-")[0] in kinds
        }
    )


def legend(figure: Figure) -> set[str]:
    return {text.get_text() for text in figure.legends[0].get_texts()}


def test_tasks_steps_and_rounds_are_those_of_the_records(run: RunFolder, history: History) -> None:
    assert len(history.steps) == sum(event["kind"] == "step-end" for event in run.events)
    assert history.steps["outcome"].tolist() == [ends(run)[task] for task in history.steps["task"]]
    counts = Counter(zip(history.tasks["period"], history.tasks["outcome"], strict=True))
    for period, row in enumerate(run.rounds):
        found = tuple(counts[period, outcome] for outcome in ("done", "late", "lost"))
        assert found == (row["valid"], row["slow"], row["disconnected"])
    starts = [event["data"]["deadline"] for event in run.events if event["kind"] == "round-start"]
    expected = [
        (row["round"], row["time"], deadline)
        for row, deadline in zip(run.rounds, starts, strict=True)
    ]
    assert list(history.rounds.itertuples(index=False, name=None)) == expected
    assert history.end == run.summary["simulated_s"]


def test_orders_of_lanes_and_some_of_them(history: History) -> None:
    everyone, some = View(history), View(history, most=4)
    assert history.population["speed"][everyone.devices].is_monotonic_decreasing
    assert (
        list(View(history, order="number").devices)
        == sorted(everyone.devices)
        == sorted(set(history.steps["device"]))
    )
    assert (
        history.steps.groupby("device")["start"]
        .min()[View(history, order="first").devices]
        .is_monotonic_increasing
    )
    assert (some.devices[0], some.devices[-1]) == (everyone.devices[0], everyone.devices[-1])
    assert (some.at_work, len(some.devices)) == (len(everyone.devices), 4)
    assert {step.device for step in some.steps} == set(some.devices)
    assert {mark.device for mark in some.task_ends} <= set(some.devices)
    assert list(some.lanes.items()) == [*zip(some.devices, range(4), strict=True)]
    views = [
        View(history, span_of_rounds(history, number, number + 1))
        for number in range(len(history.rounds))
    ]
    assert [[entry.number for entry in view.rounds] for view in views] == [
        [number] for number in range(len(views))
    ]
    assert [len(view.task_ends) for view in views] == [
        row["selected"] for row in history.run.rounds
    ]
    figure = draw_timeline(history.run, rounds=(2, 4), devices=3)
    assert (drawn(figure.axes[0])["end"], len(figure.axes[0].get_yticks())) == (2, 3)
    assert ": 3 of " in figure.get_suptitle()


def test_what_cannot_be_shown_is_said(history: History) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"order": "sped"}, "did you mean 'speed'"),
        ({"most": 0}, "1 or more"),
    ]
    wrong += [
        ({"span": (9.0, 3.0)}, "must begin at 0"),
        ({"span": (1e9, np.inf)}, "no device worked"),
    ]
    for options, message in wrong:
        with pytest.raises(PictureError, match=message):
            View(history, **options)


def test_every_step_task_and_round_is_drawn(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar a step, a mark a task that was lost or late, a line a round and one for each
    deadline that was reached.
    """
    outcomes = ends(run)
    steps = [
        (event["step"], outcomes[event["task"]])
        for event in run.events
        if event["kind"] == "step-start"
    ]
    figure, lost = draw_timeline(run), Counter(outcomes.values())["lost"]
    assert bars(figure) == Counter(
        step if outcome == "done" else f"{step}-{outcome}" for step, outcome in steps
    )
    assert marks(figure) == {"lost": lost, "late": Counter(outcomes.values())["late"]}
    deadlines = [
        event["data"]["deadline"] for event in run.events if event["kind"] == "round-start"
    ]
    reached = sum(
        deadline <= row["time"] for deadline, row in zip(deadlines, run.rounds, strict=True)
    )
    lines = drawn(figure.axes[0])
    assert (lines["end"], lines["deadline"]) == (len(run.rounds), reached)
    assert 0 < reached < len(run.rounds)
    monkeypatch.setattr(timeline, "_MANY_LANES", 3)  # thin lanes show the same without hatches
    thin = draw_timeline(run)
    assert bars(thin).total() == len(steps)
    assert {"wasted-late", "wasted-lost"} < set(bars(thin))
    assert marks(thin) == {"lost": lost}


def test_the_critical_path_goes_through_the_steps_that_rounds_waited_for(run: RunFolder) -> None:
    (line,) = [
        line
        for line in draw_timeline(run, order="number").axes[0].lines
        if line.get_gid() == "path"
    ]
    lanes = sorted({event["device"] for event in run.events if event["kind"] == "step-start"})
    steps = [
        step for one in CriticalPaths(run).rounds for step in one.steps if step.device is not None
    ]
    at, row = (np.asarray(side)[::3] for side in line.get_data())
    np.testing.assert_array_equal(row, [lanes.index(step.device) for step in steps])
    np.testing.assert_allclose(at / at[-1], [step.start / steps[-1].start for step in steps])


def test_limits_and_splits_of_trainings_are_drawn(split: RunFolder) -> None:
    """T counts from the begin of a training, which follows the download."""
    limits = {}
    for event in split.events:
        if event["kind"] == "round-start":
            limits[event["round"]] = event["data"]["training_limit"]
    expected = []
    for event in split.events:
        if (event["kind"], event["step"]) == ("step-start", "train"):
            expected.append(event["time"] + limits[event["round"]])
    end = max(event["time"] for event in split.events)
    panel = draw_timeline(split).axes[0]
    (lines,) = [item for item in panel.collections if item.get_gid() == "limit"]
    unit = {"s": 1.0, "min": 60.0}[View(History(split)).unit.name]
    times = [np.asarray(path.vertices)[0, 0] * unit for path in lines.get_paths()]
    np.testing.assert_allclose(sorted(times), sorted(time for time in expected if time <= end))
    splits = sum(event["kind"] == "split" for event in split.events)
    assert drawn(panel)["split"] == splits > 0
    data = read_timeline(split, 1000, 100_000)
    columns = data.columns
    tick = data.header["tick"]
    shown = sorted(time for time in expected if time <= end)
    assert sorted(columns["limit_time"] * tick) == pytest.approx(shown, abs=tick)
    assert [MARKED[kind] for kind in columns["mark_kind"]].count("split") == splits
    assert {"splits its data", "T, the deadline of a training"} <= set(
        re.findall(r"</svg>([^<]*)</li>", timeline_legend([data]))
    )
    names = [entry["name"] for entry in trace_events(split) if entry["ph"] == "i"]
    assert names.count("splits its data") == splits
    assert names.count("T, the deadline of a training") == len(shown) == len(lines.get_segments())


def test_pre_training_is_told_apart_from_training(grouped: RunFolder) -> None:
    """A task trains a round's model only if it was sent one, or sends an update."""
    train = set()
    rounds = set()
    for event in grouped.events:
        purposes = {purpose for purpose, _ in event["data"].get("payloads", [])}
        if event["kind"] == "step-end" and event["step"] == "train":
            train.add(event["task"])
        if purposes & {"model", "update"}:
            rounds.add(event["task"])
    data = read_timeline(grouped, 1000, 100_000)
    shown = {task for _, task, *_, step, _, _, _ in steps_of(data) if step == "pre-training"}
    assert shown == train - rounds != set()
    assert {"pre-training", "train"} <= legend(draw_timeline(grouped))
    slices = [
        entry["args"]["task"] for entry in trace_events(grouped) if "pre-training" in entry["name"]
    ]
    assert set(slices) == shown


def test_files_are_valid_and_the_same_every_time_whatever_the_names(
    renamed: RunFolder, tmp_path: Path
) -> None:
    renamed.summary["name"] = "$\\frac{1}{$ \x00 <script> 円 & more"
    assert "$\\frac{1}{$ � <script> □ & more" in draw_timeline(renamed).get_suptitle()
    first, second = (
        save(draw_timeline(renamed), tmp_path / name / "timeline") for name in ("a", "b")
    )
    assert [path.name for path in first] == ["timeline.png", "timeline.svg"]
    assert first[0].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert ElementTree.parse(first[1]).getroot().tag.endswith("svg")
    assert [one.read_bytes() for one in first] == [one.read_bytes() for one in second]


def test_texts_do_not_overlap(run: RunFolder) -> None:
    figure = draw_timeline(run)
    figure.draw_without_rendering()
    main, strip = figure.axes[0], figure.axes[-1]
    for labels in (
        main.get_yticklabels(),
        main.child_axes[0].get_xticklabels(),
        strip.get_xticklabels(),
    ):
        boxes = [label.get_window_extent() for label in labels if label.get_text()]
        assert len(boxes) > 2
        assert not any(
            one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place]
        )


def test_groups_are_tints_under_the_lanes(grouped: RunFolder, run: RunFolder) -> None:
    lanes, history = draw_timeline(grouped).axes[0], History(grouped)
    shown = [int(label.get_text().split()[0]) for label in lanes.get_yticklabels()]
    stays = history.stays[(history.stays["group"] >= 0) & history.stays["device"].isin(shown)]
    assert drawn(lanes)["group"] == len(stays) > 20
    assert drawn(lanes)["move"] == history.migrations["device"].isin(shown).sum() > 0
    assert not drawn(draw_timeline(run).axes[0])["group"]


def areas(axes: Axes) -> dict[str, float]:
    """The area of each strip's part, in its units times seconds."""
    found = {}
    for patch in axes.patches:
        assert isinstance(patch, StepPatch)
        values, edges, baseline = patch.get_data()
        found[str(patch.get_gid())] = float(
            (abs(values - np.asarray(baseline)) * np.diff(edges)).sum()
        )
    return found


@pytest.mark.parametrize("share", [None, (0.2, 0.7)])
def test_devices_at_work_and_away(history: History, share: TimeSpan | None) -> None:
    view = View(history, share and (share[0] * history.end, share[1] * history.end))
    assert view.unit.size == 1.0
    draw_work(axes := Figure().subplots(), view)
    expected = {}
    for name, table in [*history.steps.groupby("outcome"), ("away", history.away)]:
        inside = np.minimum(table["end"], view.end) - np.maximum(table["start"], view.start)
        expected[name] = float(inside.clip(lower=0).sum())
    assert areas(axes) == pytest.approx(expected)
    assert min(expected["lost"], expected["away"]) > 0
    # as if of one nobody knew
    history.population = pd.concat([history.population, history.population.iloc[:1]])
    draw_work(axes := Figure().subplots(), view)
    assert "away" not in areas(axes)


def test_the_link_carries_what_the_transfers_say(run: RunFolder) -> None:
    """In bits: what was on the wire, each way.

    A link that carries more than anybody asks for has no line, a full one has.
    """
    run.scenario["network"]["server"] = {"down": "1 Gbit/s", "up": "1 Gbit/s"}
    handles = draw_load(axes := Figure().subplots(), View(History(run)))
    unit = axes.get_ylabel().split("(")[1].rstrip(")")
    moved = Counter({"down": 0.0, "up": 0.0})
    for row in run.transfers:
        moved[row["direction"]] += 8 * row["wire_bytes"] / {"Mbit/s": 1e6, "kbit/s": 1e3}[unit]
    assert areas(axes) == pytest.approx(moved)
    assert not handles
    peak = max(patch.get_data().values.max() for patch in axes.patches if patch.get_gid() == "down")  # type: ignore[attr-defined]
    run.scenario["network"]["server"] = {"down": f"{peak / 2:.9g} {unit}"}
    (handle,) = draw_load(axes := Figure().subplots(), View(History(run)))
    assert handle.get_label() == "what the server's link can carry"
    assert {line.get_gid() for line in axes.lines} == {"capacity-down", None}
    (full,) = [patch.get_data().values for patch in axes.patches if patch.get_gid() == "down"]  # type: ignore[attr-defined]
    assert full.max() == pytest.approx(peak / 2)


@pytest.fixture
def outage(small: dict[str, Any], tmp_path: Path, ran: Ran) -> RunFolder:
    """Four devices with known phases: the second arrives at 5 s, the third leaves at 20 s, the
    last is switched off.
    """
    (tmp_path / "on.csv").write_text(
        "device,start,end\n0,0,8\n0,12,1000\n1,0,1000\n2,1,1000\n3,0,1000\n"
    )
    population = small["population"] | {
        "devices": 4,
        "availability": {"kind": "intervals", "file": str(tmp_path / "on.csv"), "unit": "s"},
        "arrivals": {"kind": "schedule", "times": ["5 s"], "devices": [1]},
        "departures": {"kind": "schedule", "times": ["20 s"], "devices": [2]},
    }
    strategy = {"kind": "fedavg", "clients_per_round": 3, "deadline": "4 s", "retry": "1 s"}
    world = {"processes": [{"kind": "tests.analysis.test_timeline:nightfall"}]}
    sections = {
        "population": population,
        "strategy": strategy,
        "world": world,
        "stop": {"simulated_time": "30 s"},
    }
    return ran("r", learning="off", **sections)


def nightfall(world: Any) -> Any:
    yield world.timeout(10.0)
    with world.off(3):
        yield world.timeout(6.0)


def test_stretches_are_read_traced_and_shown(outage: RunFolder) -> None:
    history = History(outage)
    there = [(0, 0.0, 30.0), (1, 5.0, 30.0), (2, 0.0, 20.0), (3, 0.0, 30.0)]
    assert list(history.presence.itertuples(index=False, name=None)) == there
    off = [(0, 8.0, 12.0), (2, 0.0, 1.0), (3, 10.0, 16.0)]
    assert list(history.away.itertuples(index=False, name=None)) == off
    assert list(history.devices_with_phases) == [0, 1, 2, 3]
    slices = [entry for entry in trace_events(outage) if entry["name"] == "cannot be reached"]
    assert [(entry["tid"], entry["ts"], entry["dur"]) for entry in slices] == [
        (0, 8e6, 4e6),
        (2, 0.0, 1e6),
        (3, 10e6, 6e6),
    ]
    figure = draw_timeline(outage, order="number")
    assert drawn(figure.axes[0])["away"] == 3
    assert drawn(figure.axes[0]).keys() >= {"arrival", "departure"}
    assert {"idle", "cannot be reached", "arrives", "leaves for good"} <= legend(figure)
    data = read_timeline(outage, 1000, 100_000)
    seconds = {
        name: np.round(data.columns[name] * data.header["tick"], 3).tolist()
        for name in ("off_start", "off_end")
    }
    assert (seconds["off_start"], seconds["off_end"]) == ([8.0, 0.0, 10.0], [12.0, 1.0, 16.0])
    assert data.columns["off_first"].tolist() == [0, 1, 1, 2, 3]


def test_lanes_are_of_devices_whose_phases_are_known(outage: RunFolder) -> None:
    path = outage.path / "availability.parquet"
    table = pq.read_table(path)
    pq.write_table(table.filter([device % 2 == 0 for device in table["device"].to_pylist()]), path)
    figure = draw_timeline(RunFolder(outage.path), order="number")
    assert {int(label.get_text().split()[0]) for label in figure.axes[0].get_yticklabels()} == {
        0,
        2,
    }
    path.unlink()  # as of a run that goes on
    assert History(outage).away.empty
    assert "idle or disconnected" in legend(draw_timeline(outage))
    assert not any(entry["name"] == "cannot be reached" for entry in trace_events(outage))


KINDS = [np.uint8, np.uint16, np.uint32, np.int16, np.int32, np.float32]


def unpack(packed: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The inverse of ``pack``, as ``columns.js`` has it."""
    planes = zlib.decompress(base64.b64decode(packed["data"]))
    columns, at = {}, 0
    for name, kind, length in packed["layout"]:
        width = int(kind[1:])
        own = np.frombuffer(planes[at : at + width * length], dtype=np.uint8).reshape(width, length)
        columns[name] = np.ascontiguousarray(own.T).view(f"<{kind}").ravel()
        at += width * length
    assert at == len(planes)
    return columns


@given(
    st.lists(
        st.sampled_from(KINDS).flatmap(lambda kind: hnp.arrays(kind, st.integers(0, 40))),
        max_size=4,
    )
)
def test_columns_come_back(arrays: list[NDArray[Any]]) -> None:
    columns = {str(place): array for place, array in enumerate(arrays)}
    back = unpack(json.loads(json.dumps(pack(columns))))
    assert list(back) == list(columns)
    for name, array in columns.items():
        np.testing.assert_array_equal(back[name], array)


def steps_of(data: TimelineData) -> list[tuple[Any, ...]]:
    """The steps by lane, as ``lanes.js`` expands them: device, task, round, group, step,
    outcome, start and end (ticks).
    """
    columns = unpack(pack(data.columns))
    found = []
    for lane, device in enumerate(columns["device"]):
        time = task = number = group = 0
        for i in range(columns["first"][lane], columns["first"][lane + 1]):
            start = time + int(columns["gap"][i])
            time = start + int(columns["length"][i])
            task, number, group = (
                before + int(columns[name][i])
                for before, name in ((task, "task"), (number, "round"), (group, "group"))
            )
            found.append(
                (
                    int(device),
                    task,
                    number,
                    group,
                    data.kinds[columns["step"][i]],
                    OUTCOMES[columns["outcome"][i]],
                    start,
                    time,
                )
            )
    return found


@pytest.mark.parametrize("name", ["run", "grouped", "split", "roundless", "cut_off", "every_kind"])
def test_every_step_is_there(name: str, request: pytest.FixtureRequest) -> None:
    run: RunFolder = request.getfixturevalue(name)
    data = read_timeline(run, 1000, 100_000)
    draw_timeline(run)
    tick = data.header["tick"]
    outcomes = {
        event["task"]: event["outcome"] for event in run.events if event["kind"] == "task-end"
    }
    wanted, open_steps, last = [], {}, run.events[-1]["time"]

    def add(start: dict[str, Any], end: float) -> None:
        numbers = (-1 if start[name] is None else start[name] for name in ("round", "group"))
        said = (
            start["step"],
            outcomes.get(start["task"], "stopped"),
            round(start["time"] / tick),
            round(end / tick),
        )
        wanted.append((start["device"], start["task"], *numbers, *said))

    for event in run.events:
        if event["kind"] == "step-start":
            open_steps[event["task"]] = event
        elif event["kind"] == "step-end":
            add(open_steps.pop(event["task"]), event["time"])
    for start in open_steps.values():
        add(start, last)
    wanted.sort()
    shown = []
    for *who, kind, outcome, start, end in steps_of(data):
        shown.append((*who, kind.replace("pre-training", "train"), outcome, start, end))
    assert sorted(shown) == wanted
    assert tick <= 1e-4


def test_kinds_of_steps_have_colours_of_their_own(every_kind: RunFolder) -> None:
    """In the picture, on the page and in the trace, added kinds like fedsim's."""
    events = every_kind.events
    kinds = {event["step"] for event in events if event["kind"] == "step-start"}
    assert {"read", "start-up", "sleep", "queue", "train"} <= kinds
    data = read_timeline(every_kind, 1000, 100_000)
    figure = draw_timeline(every_kind)
    assert kinds <= legend(figure)
    faces = {}
    for item in figure.axes[0].collections:
        if item.get_gid() in kinds:
            faces[item.get_gid()] = tuple(np.ravel(item.get_facecolor()))
    done = {step for *_, step, outcome, _, _ in steps_of(data) if outcome == "done"}
    assert faces.keys() == done
    assert len(set(faces.values())) == len(done)
    colours = palette.step_colours(kinds)
    assert colours == step_colours([data])
    assert len(set(colours.values())) == len(kinds) == len(data.kinds)
    for kind, colour in colours.items():
        entry = rf'fill="{colour}"[^/]*></rect></svg>{kind}</li>'
        assert re.search(entry, timeline_legend([data])), kind
    slices = {entry["name"] for entry in trace_events(every_kind) if entry["ph"] == "X"}
    assert kinds <= slices


def test_more_added_kinds_than_colours_stay_apart() -> None:
    kinds = [*palette.STEPS, *(f"added-{number}" for number in range(20))]
    colours = palette.step_colours(kinds)
    assert len(set(colours.values())) == len(kinds)
    assert {kind: colours[kind] for kind in palette.STEPS} == palette.STEPS


def test_amounts_are_those_of_the_records(run: RunFolder) -> None:
    data = read_timeline(run, 1000, 100_000)
    sums = dict.fromkeys(data.kinds, 0.0)
    for step, done in zip(data.columns["step"], data.columns["done"], strict=True):
        sums[data.kinds[step]] += float(done)
    moved = run.summary["bytes"]
    assert sums["download"] == pytest.approx(moved["down"], rel=1e-6)
    assert sums["upload"] == pytest.approx(moved["up"], rel=1e-6)
    ends = [
        event for event in run.events if event["kind"] == "step-end" and event["step"] == "train"
    ]
    assert sums["train"] == sum(event["data"]["epochs"] for event in ends)


def test_groups_marks_and_rounds(grouped: RunFolder) -> None:
    data = read_timeline(grouped, 1000, 100_000)
    columns = data.columns
    kinds = [MARKS[kind] for kind in columns["mark_kind"]]
    events = [event["kind"] for event in grouped.events]
    for mark, kind in (("arrival", "arrival"), ("departure", "departure"), ("shift", "shift")):
        assert kinds.count(mark) == events.count(kind) > 0
    moves = [
        event
        for event in grouped.events
        if event["kind"] == "assign" and event["data"]["before"] is not None
    ]
    assert kinds.count("move") == len(moves)
    assert list(columns["round_number"]) == [row["round"] for row in grouped.rounds]
    assert set(columns["stay_group"]) == {int(group) for group in data.header["groups"]} == {0, 1}
    np.testing.assert_allclose(
        columns["round_accuracy"], [row["accuracy"] for row in grouped.rounds], rtol=1e-6
    )


def test_acts_of_processes(queued: RunFolder, run: RunFolder) -> None:
    data = read_timeline(queued, 1000, 100_000)
    acts = [
        event
        for event in queued.events
        if event["kind"] in ("queue", "link-rate") and event["step"] is None
    ]
    times = sorted({event["time"] for event in acts})
    np.testing.assert_allclose(
        data.columns["act"] * data.header["tick"], times, atol=data.header["tick"]
    )
    assert "a process of the world acts" in timeline_legend([data])
    # as a picture, a line each
    assert drawn(draw_timeline(queued).axes[0])["process"] == len(times) > 2
    none = read_timeline(run, 1000, 100_000)
    assert not len(none.columns["act"])
    assert "a process of the world acts" not in timeline_legend([none])


def test_of_too_many_devices_some_of_those_that_worked_are_shown(run: RunFolder) -> None:
    worked = {event["device"] for event in run.events if event["kind"] == "task-start"}
    few, steps = read_timeline(run, 5, 100_000), len(History(run).steps)
    assert len(few.columns["device"]) == 5
    assert set(few.columns["device"]) <= worked
    half = read_timeline(run, 1000, steps // 2)
    assert 1 <= len(half.columns["device"]) < len(worked)
    assert len(half.columns["step"]) < 0.8 * steps
