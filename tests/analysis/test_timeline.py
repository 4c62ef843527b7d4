from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from fedsim.analysis import lanes
from fedsim.analysis.history import MARKS, History
from fedsim.analysis.style import save
from fedsim.analysis.timeline import draw_timeline
from fedsim.records.reading import RunFolder

PNG = b"\x89PNG\r\n\x1a\n"


def marks(figure: Figure) -> dict[str, int]:
    """How many marks of each kind the lanes have."""
    found = {str(line.get_gid()): len(line.get_xdata()) for line in figure.axes[0].lines}
    return {kind: count for kind, count in found.items() if kind in (*MARKS, "late", "lost", "left", "battery")}


def bars(axes: Axes) -> Counter[str]:
    """How many bars of each kind of step the lanes have."""
    found = [item for item in axes.collections if isinstance(item, PolyCollection) and item.get_gid() not in (None, "away")]
    return Counter({str(item.get_gid()): len(item.get_paths()) for item in found})


def lines(figure: Figure, gid: str) -> int:
    return sum(len(item.get_paths()) for item in figure.axes[0].collections if item.get_gid() == gid)


def ends(run: RunFolder) -> Counter[str]:
    return Counter(event["outcome"] for event in run.events if event["kind"] == "task-end")


def test_every_lost_and_late_task_has_its_mark(run: RunFolder) -> None:
    expected = ends(run)
    assert marks(draw_timeline(run)) == {"lost": expected["lost"], "late": expected["late"]}


def test_every_step_has_its_bar(run: RunFolder) -> None:
    outcomes = {event["task"]: event["outcome"] for event in run.events if event["kind"] == "task-end"}
    expected: Counter[str] = Counter()
    for event in run.events:
        if event["kind"] == "step-start":
            outcome = outcomes[event["task"]]
            expected[event["step"] if outcome == "done" else f"{event['step']}-{outcome}"] += 1
    assert bars(draw_timeline(run).axes[0]) == expected


def test_thin_lanes_show_the_same_without_hatches(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_MANY_LANES", 3)
    figure = draw_timeline(run)
    outcomes = ends(run)
    steps = sum(event["kind"] == "step-start" for event in run.events)
    counted = bars(figure.axes[0])
    assert sum(counted.values()) == steps
    assert {"wasted-late", "wasted-lost"} < set(counted)
    assert marks(figure) == {"lost": outcomes["lost"]}


def test_lines_stand_at_round_ends_and_at_the_deadlines_that_were_reached(run: RunFolder) -> None:
    figure = draw_timeline(run)
    deadlines = [event["data"]["deadline"] for event in run.events if event["kind"] == "round-start"]
    reached = [deadline for deadline, row in zip(deadlines, run.rounds, strict=True) if deadline <= row["time"]]
    assert 0 < len(reached) < len(run.rounds)
    assert lines(figure, "end") == len(run.rounds)
    assert lines(figure, "deadline") == len(reached)


def test_lines_stand_where_processes_act(queued: RunFolder) -> None:
    acts = {event["time"] for event in queued.events if event["kind"] in ("queue", "link-rate") and event["step"] is None}
    assert lines(draw_timeline(queued), "process") == len(acts) > 2


def test_a_window_of_rounds(run: RunFolder) -> None:
    figure = draw_timeline(run, rounds=(2, 4))
    shown = [run.rounds[number] for number in (2, 3)]
    expected = {"late": sum(row["slow"] for row in shown), "lost": sum(row["disconnected"] for row in shown)}
    assert marks(figure) == {outcome: count for outcome, count in expected.items() if count}
    assert lines(figure, "end") == 2


def test_few_devices(run: RunFolder) -> None:
    figure = draw_timeline(run, devices=3, order="number")
    assert len(figure.axes[0].get_yticks()) == 3
    assert ": 3 of " in figure.get_suptitle()


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
    tints = [item for item in lanes.collections if item.get_gid() == "group"]
    assert sum(len(item.get_paths()) for item in tints) == len(stays[stays["end"] > stays["start"].clip(lower=0)]) > 20
    moves = History(grouped).migrations
    (marks,) = [line for line in lanes.lines if line.get_gid() == "move"]
    assert len(marks.get_xdata()) == moves["device"].isin(list(shown)).sum() > 0
    assert not [item for item in draw_timeline(run).axes[0].collections if item.get_gid() == "group"]
