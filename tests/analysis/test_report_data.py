"""What the page's scripts get: unpacked again, it is what the events say."""

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedsim.analysis.report.markup import pack
from fedsim.analysis.report.timeline import OUTCOMES, STEPS, key, read_timeline
from fedsim.analysis.timeline import draw_timeline
from fedsim.lab.reading.history import MARKS
from fedsim.records.reading import RunFolder
from tests.analysis.conftest import drawn

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


@given(st.lists(st.sampled_from(KINDS).flatmap(lambda kind: hnp.arrays(kind, st.integers(0, 40))), max_size=4))
def test_columns_come_back(arrays: list[NDArray[Any]]) -> None:
    columns = {str(place): array for place, array in enumerate(arrays)}
    back = unpack(json.loads(json.dumps(pack(columns))))
    assert list(back) == list(columns)
    for name, array in columns.items():
        np.testing.assert_array_equal(back[name], array)


def steps_of(columns: dict[str, NDArray[Any]], tick: float) -> list[tuple[Any, ...]]:
    """The steps by lane, as ``lanes.js`` expands them: device, task, round, group, step, outcome, start and end (ticks)."""
    found = []
    for lane, device in enumerate(columns["device"]):
        time = task = number = group = 0
        for i in range(columns["first"][lane], columns["first"][lane + 1]):
            start = time + int(columns["gap"][i])
            time = start + int(columns["length"][i])
            task, number, group = (
                before + int(columns[name][i]) for before, name in ((task, "task"), (number, "round"), (group, "group"))
            )
            kind = int(columns["kind"][i])
            found.append((int(device), task, number, group, STEPS[kind & 7], OUTCOMES[kind >> 3], start, time))
    return found


@pytest.mark.parametrize("name", ["run", "grouped", "split", "roundless", "cut_off"])
def test_every_step_is_there(name: str, request: pytest.FixtureRequest) -> None:
    run: RunFolder = request.getfixturevalue(name)
    data = read_timeline(run, 1000, 100_000)
    tick = data.header["tick"]
    outcomes = {event["task"]: event["outcome"] for event in run.events if event["kind"] == "task-end"}
    wanted, open_steps, last = [], {}, run.events[-1]["time"]

    def add(start: dict[str, Any], end: float) -> None:
        numbers = (-1 if start[name] is None else start[name] for name in ("round", "group"))
        said = start["step"], outcomes.get(start["task"], "stopped"), round(start["time"] / tick), round(end / tick)
        wanted.append((start["device"], start["task"], *numbers, *said))

    for event in run.events:
        if event["kind"] == "step-start":
            open_steps[event["task"]] = event
        elif event["kind"] == "step-end":
            add(open_steps.pop(event["task"]), event["time"])
    for start in open_steps.values():
        add(start, last)
    wanted.sort()
    assert sorted(steps_of(unpack(pack(data.columns)), tick)) == wanted
    assert tick <= 1e-4


def test_amounts_are_those_of_the_records(run: RunFolder) -> None:
    columns = read_timeline(run, 1000, 100_000).columns
    sums = dict.fromkeys(STEPS, 0.0)
    for kind, done in zip(columns["kind"], columns["done"], strict=True):
        sums[STEPS[kind & 7]] += float(done)
    moved = run.summary["bytes"]
    assert sums["download"] == pytest.approx(moved["down"], rel=1e-6)
    assert sums["upload"] == pytest.approx(moved["up"], rel=1e-6)
    ends = [event for event in run.events if event["kind"] == "step-end" and event["step"] == "train"]
    assert sums["train"] == sum(event["data"]["epochs"] for event in ends)


def test_groups_marks_and_rounds(grouped: RunFolder) -> None:
    data = read_timeline(grouped, 1000, 100_000)
    columns = data.columns
    kinds = [MARKS[kind] for kind in columns["mark_kind"]]
    events = [event["kind"] for event in grouped.events]
    for mark, kind in (("arrival", "arrival"), ("departure", "departure"), ("shift", "shift")):
        assert kinds.count(mark) == events.count(kind) > 0
    moves = [event for event in grouped.events if event["kind"] == "assign" and event["data"]["before"] is not None]
    assert kinds.count("move") == len(moves)
    assert list(columns["round_number"]) == [row["round"] for row in grouped.rounds]
    assert set(columns["stay_group"]) == {int(group) for group in data.header["groups"]} == {0, 1}
    np.testing.assert_allclose(columns["round_accuracy"], [row["accuracy"] for row in grouped.rounds], rtol=1e-6)


def test_acts_of_processes(queued: RunFolder, run: RunFolder) -> None:
    data = read_timeline(queued, 1000, 100_000)
    acts = [event for event in queued.events if event["kind"] in ("queue", "link-rate") and event["step"] is None]
    times = sorted({event["time"] for event in acts})
    np.testing.assert_allclose(data.columns["act"] * data.header["tick"], times, atol=data.header["tick"])
    assert "a process of the world acts" in key([data])
    assert drawn(draw_timeline(queued).axes[0])["process"] == len(times) > 2  # as a picture, a line each
    none = read_timeline(run, 1000, 100_000)
    assert not len(none.columns["act"])
    assert "a process of the world acts" not in key([none])


def test_of_too_many_devices_some_of_those_that_worked_are_shown(run: RunFolder) -> None:
    worked = {event["device"] for event in run.events if event["kind"] == "task-start"}
    few = read_timeline(run, 5, 100_000)
    assert len(few.columns["device"]) == 5
    assert set(few.columns["device"]) <= worked
    half = read_timeline(run, 1000, few.steps // 2)
    assert 1 <= len(half.columns["device"]) < len(worked)
    assert len(half.columns["kind"]) < 0.8 * half.steps
