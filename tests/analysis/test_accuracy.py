from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsim.analysis.accuracy import band, draw_accuracy, draw_costs
from fedsim.analysis.report import tables
from fedsim.analysis.style import Series, group_by_scenario, line_of
from fedsim.records.reading import RunFolder
from tests.analysis.conftest import Ran


def test_three_panels_show_the_rounds_table(run: RunFolder) -> None:
    rounds, time, moved = draw_accuracy([run]).axes
    assert f"the axis begins at {rounds.get_ylim()[0]:.2g}" in rounds.get_ylabel()
    accuracy = [row["accuracy"] for row in run.rounds]
    sums = np.cumsum([row["bytes_down"] + row["bytes_up"] for row in run.rounds])
    for panel in (rounds, time, moved):
        np.testing.assert_array_equal(panel.lines[0].get_ydata(), accuracy)
    np.testing.assert_array_equal(rounds.lines[0].get_xdata(), [row["round"] + 1 for row in run.rounds])
    assert time.get_xlabel() == "simulated time (s)"
    np.testing.assert_allclose(time.lines[0].get_xdata(), [row["time"] for row in run.rounds])
    assert moved.get_xlabel() == "moved (kB)"
    np.testing.assert_allclose(moved.lines[0].get_xdata(), sums / 1e3)


def test_runs_side_by_side_are_told_apart(run: RunFolder, renamed: RunFolder, unlearned: RunFolder) -> None:
    figure = draw_accuracy([run, renamed, unlearned])
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[0] == "run: fedavg"
    assert names[1].startswith(" _$x_{$ \\frac{ & <b> □□ □")
    assert names[2] == "unlearned: fedavg (not evaluated)"
    first, _, second = figure.axes[0].lines[:3]
    assert first.get_color() != second.get_color()


def test_the_privacy_that_was_spent_is_a_line_of_its_own(small: dict[str, Any], run: RunFolder, ran: Ran) -> None:
    pytest.importorskip("dp_accounting")
    aggregation = {"kind": "private", "noise": 2.0}
    private = ran("private", strategy=small["strategy"] | {"aggregation": aggregation}, evaluation={"every": 3})
    told = [private.rounds[number]["epsilon"] for number in (2, 5, 7)]
    np.testing.assert_array_equal(draw_accuracy([private]).axes[0].lines[0].get_xdata(), [3, 6, 8])  # and no other rounds
    figure = draw_accuracy([private])
    lines = [line for panel in figure.axes for line in panel.lines if line.get_gid() == "epsilon"]
    assert [line.get_ydata().tolist() for line in lines] == [told] * 3
    assert "epsilon, the privacy spent (right axis)" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert not [line for panel in draw_accuracy([run]).axes for line in panel.lines if line.get_gid() == "epsilon"]
    table = str(tables.rounds(private, "timeline"))
    assert f">{told[0]:.4f}<" in table
    assert ">epsilon<" in table


def test_rounds_are_on_a_log_scale_beside_a_run_of_many_more(run: RunFolder, ran: Ran) -> None:
    assert draw_accuracy([run]).axes[0].get_xscale() == "linear"
    many = ran("many", strategy={"kind": "fedasync", "concurrency": 4}, stop={"rounds": 40})
    rounds, time, _ = draw_accuracy([run, many]).axes
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
    marked = {str(line.get_gid()): line.get_xdata() for line in draw_accuracy([run]).axes[1].lines}
    np.testing.assert_allclose(marked["deadline"], reached)


@pytest.fixture
def seeds(ran: Ran) -> list[RunFolder]:
    return [ran(f"seed-{seed}", seed=seed) for seed in (1, 2, 3)]


def test_a_band_where_all_are_known() -> None:
    first = pd.DataFrame({"time": [0.0, 2.0, 4.0], "value": [0.0, 0.4, 0.8]})
    other = pd.DataFrame({"time": [1.0, 3.0, 9.0], "value": [0.4, 0.8, 0.2]})
    drawn = band([first, other], "time")
    expected = {"at": [1, 2, 3, 4], "mean": [0.3, 0.5, 0.7, 0.75], "low": [0.2, 0.4, 0.6, 0.7], "high": [0.4, 0.6, 0.8, 0.8]}
    pd.testing.assert_frame_equal(drawn, pd.DataFrame(expected, dtype=float))
    apart = pd.DataFrame({"time": [5.0, 6.0], "value": [0.1, 0.2]})
    assert band([first, apart], "time").empty


def test_seeds_of_a_scenario_are_one_line_with_a_band(small: dict[str, Any], seeds: list[RunFolder], ran: Ran) -> None:
    local = ran("prox", strategy=small["strategy"] | {"kind": "fedprox", "mu": 0.1})
    figure = draw_costs([seeds[0], local, *seeds[1:]])
    by_bytes, by_time, by_round = figure.axes[:3]
    curves = [[row["accuracy"] for row in run.rounds] for run in seeds]
    mean, low, high = np.mean(curves, axis=0), np.min(curves, axis=0), np.max(curves, axis=0)
    (line,) = [line for line in by_round.lines if line.get_gid() == "mean-0"]
    np.testing.assert_allclose(line.get_ydata(), mean)
    (area,) = [item for item in by_round.collections if item.get_gid() == "band-0"]
    corners = np.asarray(area.get_paths()[0].vertices)
    for place in range(len(mean)):
        ys = corners[corners[:, 0] == place + 1, 1]
        np.testing.assert_allclose([ys.min(), ys.max()], [low[place], high[place]])
    ends = [sum(row["bytes_down"] + row["bytes_up"] for row in run.rounds) for run in seeds]
    (line,) = [line for line in by_bytes.lines if line.get_gid() == "mean-0"]
    assert line.get_xdata()[-1] == pytest.approx(min(ends) / 1e3)
    assert "kB" in by_bytes.get_xlabel()
    assert not [item for item in by_time.collections if item.get_gid() == "band-1"]  # one seed has no band
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[:2] == ["fedavg (3 seeds)", "fedprox"]


def test_of_many_series_eight_have_colours_and_the_others_are_grey_behind_them(seeds: list[RunFolder]) -> None:
    series = [Series(f"line {number}", tuple(seeds), number) for number in range(10)]
    figure = draw_costs(seeds, series)
    for panel in figure.axes:
        assert [line.get_gid() for line in panel.lines if line.get_gid() == "other"] == ["other"] * 2
        assert {item.get_gid() for item in panel.collections} == {f"band-{place}" for place in range(8)}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert (len(legend), legend[-1]) == (10, "the other 2")


def test_no_two_lines_look_alike_and_neighbours_differ_in_dash_too() -> None:
    looks = [(look["color"], look["linestyle"]) for look in (line_of(number, 1.0) for number in range(28))]
    assert len(set(looks)) == 28
    assert all(one[1] != other[1] for one, other in pairwise(looks[:7]))


def test_series_are_called_after_what_makes_them_different(small: dict[str, Any], seeds: list[RunFolder], ran: Ran) -> None:
    shorter, again = ran("short", strategy=small["strategy"] | {"local_epochs": 1}), ran("again", seed=1)
    names = [(series.name, len(series.runs)) for series in group_by_scenario([*seeds, shorter])]
    assert names == [("fedavg, local_epochs 2", 3), ("fedavg, local_epochs 1", 1)]
    twice = group_by_scenario([*seeds, again])
    assert [len(series.runs) for series in twice] == [3, 1]
    assert len({series.name for series in twice}) == 2
    assert "again" in twice[1].name
