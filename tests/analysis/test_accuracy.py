from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import fedsim
from fedsim.analysis.accuracy import draw_accuracy
from fedsim.analysis.report import tables
from fedsim.analysis.report.sections import key_figure
from fedsim.analysis.style import NothingToDrawError, save
from fedsim.records.reading import RunFolder


def test_three_panels_show_the_rounds_table(run: RunFolder) -> None:
    rounds, time, moved = draw_accuracy([run]).axes
    accuracy = [row["accuracy"] for row in run.rounds]
    sums = np.cumsum([row["bytes_down"] + row["bytes_up"] for row in run.rounds])
    for panel in (rounds, time, moved):
        np.testing.assert_array_equal(panel.lines[0].get_ydata(), accuracy)
    np.testing.assert_array_equal(rounds.lines[0].get_xdata(), [row["round"] + 1 for row in run.rounds])
    assert time.get_xlabel() == "simulated time (s)"
    np.testing.assert_allclose(time.lines[0].get_xdata(), [row["time"] for row in run.rounds])
    assert moved.get_xlabel() == "moved, down and up (kB)"
    np.testing.assert_allclose(moved.lines[0].get_xdata(), sums / 1e3)


def test_rounds_without_evaluation_are_skipped(small: dict[str, Any], tmp_path: Path) -> None:
    small["evaluation"] = {"every": 3}
    fedsim.run(fedsim.Scenario(**small), tmp_path / "sparse", executor="inline")
    figure = draw_accuracy([RunFolder(tmp_path / "sparse")])
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), [3, 6, 8])


def test_runs_side_by_side_are_told_apart(run: RunFolder, renamed: RunFolder, unlearned: RunFolder, tmp_path: Path) -> None:
    figure = draw_accuracy([run, renamed, unlearned])
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[0] == "run: fedavg"
    assert names[1].startswith(" _$x_{$ \\frac{ & <b> □□ □")
    assert names[2] == "unlearned: fedavg (not evaluated)"
    first, _, second = figure.axes[0].lines[:3]
    assert first.get_color() != second.get_color()
    for path in save(figure, tmp_path / "accuracy"):
        assert path.stat().st_size > 5_000
    ElementTree.parse(tmp_path / "accuracy.svg")


def test_the_privacy_that_was_spent_is_a_line_of_its_own(small: dict[str, Any], run: RunFolder, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    small["strategy"] |= {"aggregation": {"kind": "private", "noise": 2.0}}
    fedsim.run(fedsim.Scenario(**small), tmp_path / "private", executor="inline")
    private = RunFolder(tmp_path / "private")
    told = [row["epsilon"] for row in private.rounds]
    figure = draw_accuracy([private])
    lines = [line for panel in figure.axes for line in panel.lines if line.get_gid() == "epsilon"]
    assert lines
    assert all(line.get_ydata().tolist() == told for line in lines)
    assert "epsilon, the privacy spent (right axis)" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert not [line for panel in draw_accuracy([run]).axes for line in panel.lines if line.get_gid() == "epsilon"]
    table = str(tables.rounds(private, "timeline"))
    assert f">{told[0]:.4f}<" in table
    assert ">epsilon<" in table


def test_no_learning_is_said(unlearned: RunFolder) -> None:
    with pytest.raises(NothingToDrawError, match="learning is off"):
        draw_accuracy([unlearned])


def test_rounds_are_on_a_log_scale_beside_a_run_of_many_more(small: dict[str, Any], run: RunFolder, tmp_path: Path) -> None:
    assert draw_accuracy([run]).axes[0].get_xscale() == "linear"
    small["strategy"] = {"kind": "fedasync", "concurrency": 4}
    fedsim.run(fedsim.Scenario(**small | {"stop": {"rounds": 40}}), tmp_path / "many", executor="inline")
    rounds, time, _ = draw_accuracy([run, RunFolder(tmp_path / "many")]).axes
    assert (rounds.get_xscale(), time.get_xscale()) == ("log", "linear")
    assert rounds.get_xlim()[0] == 1


def test_what_happened_meanwhile_is_marked(grouped: RunFolder, run: RunFolder) -> None:
    """Shifts, arrivals and departures at their times, and rounds that ended at their deadline."""
    time = draw_accuracy([grouped]).axes[1]
    drawn = {str(line.get_gid()): line.get_xdata() for line in time.lines}
    for kind in ("shift", "arrival", "departure"):
        times = sorted({event["time"] for event in grouped.events if event["kind"] == kind})
        np.testing.assert_allclose(drawn[kind], np.array(times) / (60 if "min" in time.get_xlabel() else 1), rtol=1e-6)
    starts = {event["round"]: event["data"]["deadline"] for event in run.events if event["kind"] == "round-start"}
    reached = [row["time"] for row in run.rounds if row["time"] >= starts[row["round"]]]
    (time,) = [panel for panel in draw_accuracy([run]).axes if panel.get_xlabel().startswith("simulated time")]
    marked = {str(line.get_gid()): line.get_xdata() for line in time.lines}
    np.testing.assert_allclose(marked["deadline"], reached)


def test_panels_that_would_be_the_same_are_one(small: dict[str, Any], tmp_path: Path) -> None:
    """Devices of one speed that are never away: every round takes as long, and moves as much."""
    small["population"] |= {"devices": 6, "speed": "50 samples/s", "jitter": 0.0}
    del small["population"]["availability"]
    small["data"] = {"source": "digits", "partition": "iid"}
    small["strategy"] = {"kind": "fedavg", "clients_per_round": 6}
    fedsim.run(fedsim.Scenario(**small), tmp_path / "even", executor="inline")
    (panel,) = draw_accuracy([RunFolder(tmp_path / "even")]).axes
    assert "rounds and bytes grow in step with it, to 8 rounds and " in panel.get_xlabel()
    _, caption = str(*key_figure(RunFolder(tmp_path / "even"))).split("<figcaption>")
    assert caption.startswith("Test accuracy against simulated time, with which")  # and not what stands under three panels


def test_an_axis_that_does_not_begin_at_0_says_so(run: RunFolder) -> None:
    first = draw_accuracy([run]).axes[0]
    low = first.get_ylim()[0]
    assert (f"the axis begins at {low:.2g}" in first.get_ylabel()) == (low > 0.02)
