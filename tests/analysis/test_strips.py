"""The strips under a timeline: areas are what the tables sum up to."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from fedsim.analysis.history import History
from fedsim.analysis.timeline import draw_load, draw_work
from fedsim.analysis.view import Span, View, look_at
from fedsim.records.link_load import Curve, means
from fedsim.records.reading import RunFolder


def areas(axes: Axes) -> dict[str, float]:
    """The area of each strip's part, in its units times seconds."""
    found = {}
    for patch in axes.patches:
        assert isinstance(patch, StepPatch)
        values, edges, baseline = patch.get_data()
        found[str(patch.get_gid())] = float((abs(values - np.asarray(baseline)) * np.diff(edges)).sum())
    return found


def seen(run: RunFolder, span: Span | None = None) -> View:
    return look_at(History(run), span)


def test_means_against_sums_by_hand() -> None:
    curve = Curve(np.array([1.0, 2.0, 5.0]), np.array([4.0, 1.0, 0.0]))
    assert means(curve, np.array([0.0, 2.0, 3.0, 4.5, 7.0])) == pytest.approx([2.0, 1.0, 1.0, 0.2])
    assert means(Curve(np.zeros(0), np.zeros(0)), np.arange(3.0)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("share", [None, (0.2, 0.7)])
def test_devices_at_work_and_away(run: RunFolder, share: Span | None) -> None:
    history = History(run)
    view = look_at(history, share and (share[0] * history.end, share[1] * history.end))
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
    handles = draw_load(axes := Figure().subplots(), seen(run))
    size = {"Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3, "bit/s": 1.0}[axes.get_ylabel().split("(")[1].rstrip(")")]
    moved = {
        way: 8 * sum(row["wire_bytes"] for row in run.transfers if row["direction"] == way) / size for way in ("down", "up")
    }
    assert areas(axes) == pytest.approx(moved)
    assert not handles


def test_a_full_link_has_a_line_that_nothing_crosses(run: RunFolder) -> None:
    draw_load(free := Figure().subplots(), seen(run))
    peak = max(patch.get_data().values.max() for patch in free.patches if patch.get_gid() == "down")  # type: ignore[attr-defined]
    unit = free.get_ylabel().split("(")[1].rstrip(")")
    run.scenario["network"]["server"] = {"down": f"{peak / 2:.6g} {unit}"}
    (handle,) = draw_load(axes := Figure().subplots(), seen(run))
    assert handle.get_label() == "what the server's link can carry"
    assert {line.get_gid() for line in axes.lines} == {"capacity-down", None}
    values = {str(patch.get_gid()): patch.get_data().values for patch in axes.patches}  # type: ignore[attr-defined]
    assert values["down"].max() == pytest.approx(peak / 2)
