from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from fedsim.analysis import style, timeline
from fedsim.analysis.style import save
from fedsim.analysis.timeline import TimeSpan, View, draw_load, draw_timeline, draw_work
from fedsim.lab.compare.critical_path import CriticalPaths
from fedsim.records.history import MARKS, History
from fedsim.records.reading import RunFolder
from tests.analysis.conftest import drawn

PNG = b"\x89PNG\r\n\x1a\n"


def marks(figure: Figure) -> dict[str, int]:
    """How many marks of each kind the lanes have."""
    return {kind: count for kind, count in drawn(figure.axes[0]).items() if kind in (*MARKS, "late", "lost", "left", "battery")}


def bars(axes: Axes) -> Counter[str]:
    """How many bars of each kind of step the lanes have."""
    return Counter({kind: count for kind, count in drawn(axes).items() if kind.partition("-")[0] in (*style.STEPS, "wasted")})


def ends(run: RunFolder) -> Counter[str]:
    return Counter(event["outcome"] for event in run.events if event["kind"] == "task-end")


def test_every_step_task_and_round_is_drawn(run: RunFolder) -> None:
    """A bar a step, a mark a task that was lost or late, a line a round and one for each deadline that was reached."""
    outcomes = {event["task"]: event["outcome"] for event in run.events if event["kind"] == "task-end"}
    steps = [(event["step"], outcomes[event["task"]]) for event in run.events if event["kind"] == "step-start"]
    expected = Counter(step if outcome == "done" else f"{step}-{outcome}" for step, outcome in steps)
    figure = draw_timeline(run)
    assert bars(figure.axes[0]) == expected
    assert marks(figure) == {outcome: ends(run)[outcome] for outcome in ("lost", "late")}
    deadlines = [event["data"]["deadline"] for event in run.events if event["kind"] == "round-start"]
    reached = sum(deadline <= row["time"] for deadline, row in zip(deadlines, run.rounds, strict=True))
    lines = drawn(figure.axes[0])
    assert (lines["end"], lines["deadline"]) == (len(run.rounds), reached)
    assert 0 < reached < len(run.rounds)


def test_the_critical_path_goes_through_the_steps_that_rounds_waited_for(run: RunFolder) -> None:
    (line,) = [line for line in draw_timeline(run, order="number").axes[0].lines if line.get_gid() == "path"]
    lanes = sorted({event["device"] for event in run.events if event["kind"] == "step-start"})
    steps = [step for one in CriticalPaths(run).rounds for step in one.steps if step.device is not None]
    at, row = (np.asarray(side)[::3] for side in line.get_data())
    np.testing.assert_array_equal(row, [lanes.index(step.device) for step in steps])
    np.testing.assert_allclose(at / at[-1], [step.start / steps[-1].start for step in steps])


def test_thin_lanes_show_the_same_without_hatches(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_MANY_LANES", 3)
    figure = draw_timeline(run)
    counted = bars(figure.axes[0])
    assert counted.total() == sum(event["kind"] == "step-start" for event in run.events)
    assert {"wasted-late", "wasted-lost"} < set(counted)
    assert marks(figure) == {"lost": ends(run)["lost"]}


def test_lines_stand_where_processes_act(queued: RunFolder) -> None:
    acts = {event["time"] for event in queued.events if event["kind"] in ("queue", "link-rate") and event["step"] is None}
    assert drawn(draw_timeline(queued).axes[0])["process"] == len(acts) > 2


def test_some_rounds_and_few_devices(run: RunFolder) -> None:
    figure = draw_timeline(run, rounds=(2, 4))
    shown = [run.rounds[number] for number in (2, 3)]
    expected = {"late": sum(row["slow"] for row in shown), "lost": sum(row["disconnected"] for row in shown)}
    assert marks(figure) == {outcome: count for outcome, count in expected.items() if count}
    assert drawn(figure.axes[0])["end"] == 2
    few = draw_timeline(run, devices=3, order="number")
    assert len(few.axes[0].get_yticks()) == 3
    assert ": 3 of " in few.get_suptitle()


def test_files_are_valid_and_the_same_every_time(run: RunFolder, tmp_path: Path) -> None:
    first, second = (save(draw_timeline(run), tmp_path / name / "timeline") for name in ("a", "b"))
    assert [path.name for path in first] == ["timeline.png", "timeline.svg"]
    assert first[0].read_bytes().startswith(PNG)
    assert ElementTree.parse(first[1]).getroot().tag.endswith("svg")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_texts_do_not_overlap(run: RunFolder) -> None:
    """Lane names, round numbers and time ticks: no two of one axis touch."""
    figure = draw_timeline(run)
    figure.draw_without_rendering()
    main, strip = figure.axes[0], figure.axes[-2]
    for labels in (main.get_yticklabels(), main.child_axes[0].get_xticklabels(), strip.get_xticklabels()):
        boxes = [label.get_window_extent() for label in labels if label.get_text()]
        assert len(boxes) > 2
        assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])


def test_runs_without_learning_and_cut_off_ones(unlearned: RunFolder, cut_off: RunFolder, tmp_path: Path) -> None:
    assert marks(draw_timeline(unlearned))["lost"] == ends(unlearned)["lost"]
    figure = draw_timeline(cut_off)
    assert any(gid.endswith("-stopped") for gid in bars(figure.axes[0]))
    save(figure, tmp_path / "cut-off")


def test_hostile_names_are_drawn_as_they_are(renamed: RunFolder, tmp_path: Path) -> None:
    renamed.summary["name"] = "$\\frac{1}{$ \x00 <script> 円 & more"
    figure = draw_timeline(renamed)
    assert "$\\frac{1}{$ □ <script> □ & more" in figure.get_suptitle()
    for path in save(figure, tmp_path / "hostile"):
        assert path.stat().st_size > 10_000
    ElementTree.parse(tmp_path / "hostile.svg")


def test_groups_are_tints_under_the_lanes(grouped: RunFolder, run: RunFolder) -> None:
    """As on the page: a stretch for each stay of a device in a group, and a mark for each move."""
    lanes = draw_timeline(grouped).axes[0]
    shown = {int(label.get_text().split()[0]) for label in lanes.get_yticklabels()}
    stays = History(grouped).stays
    stays = stays[(stays["group"] >= 0) & stays["device"].isin(list(shown))]
    counts, moves = drawn(lanes), History(grouped).migrations
    assert counts["group"] == len(stays) > 20
    assert counts["move"] == moves["device"].isin(list(shown)).sum() > 0
    assert not drawn(draw_timeline(run).axes[0])["group"]


def areas(axes: Axes) -> dict[str, float]:
    """The area of each strip's part, in its units times seconds."""
    found = {}
    for patch in axes.patches:
        assert isinstance(patch, StepPatch)
        values, edges, baseline = patch.get_data()
        found[str(patch.get_gid())] = float((abs(values - np.asarray(baseline)) * np.diff(edges)).sum())
    return found


@pytest.mark.parametrize("share", [None, (0.2, 0.7)])
def test_devices_at_work_and_away(run: RunFolder, share: TimeSpan | None) -> None:
    history = History(run)
    view = View(history, share and (share[0] * history.end, share[1] * history.end))
    assert view.unit.size == 1.0
    draw_work(axes := Figure().subplots(), view)
    expected = {}
    for name, table in [*history.steps.groupby("outcome"), ("away", history.away)]:
        inside = np.minimum(table["end"], view.end) - np.maximum(table["start"], view.start)
        expected[name] = float(inside.clip(lower=0).sum())
    assert areas(axes) == pytest.approx(expected)
    assert expected["lost"] > 0
    assert expected["away"] > 0
    history.population = pd.concat([history.population, history.population.iloc[:1]])  # as if of one nobody knew
    draw_work(axes := Figure().subplots(), view)
    assert "away" not in areas(axes)


def test_the_link_carries_what_the_transfers_say(run: RunFolder) -> None:
    """In bits: what was on the wire, each way. A link that carries more than anybody asks for has no line."""
    run.scenario["network"]["server"] = {"down": "1 Gbit/s", "up": "1 Gbit/s"}
    handles = draw_load(axes := Figure().subplots(), View(History(run)))
    size = {"Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3, "bit/s": 1.0}[axes.get_ylabel().split("(")[1].rstrip(")")]
    moved = Counter({"down": 0.0, "up": 0.0})
    for row in run.transfers:
        moved[row["direction"]] += 8 * row["wire_bytes"] / size
    assert areas(axes) == pytest.approx(moved)
    assert not handles


def test_a_full_link_has_a_line_that_nothing_crosses(run: RunFolder) -> None:
    draw_load(free := Figure().subplots(), View(History(run)))
    peak = max(patch.get_data().values.max() for patch in free.patches if patch.get_gid() == "down")  # type: ignore[attr-defined]
    unit = free.get_ylabel().split("(")[1].rstrip(")")
    run.scenario["network"]["server"] = {"down": f"{peak / 2:.6g} {unit}"}
    (handle,) = draw_load(axes := Figure().subplots(), View(History(run)))
    assert handle.get_label() == "what the server's link can carry"
    assert {line.get_gid() for line in axes.lines} == {"capacity-down", None}
    values = {str(patch.get_gid()): patch.get_data().values for patch in axes.patches}  # type: ignore[attr-defined]
    assert values["down"].max() == pytest.approx(peak / 2)
