from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from fedsim.analysis.membership import draw_membership
from fedsim.analysis.style import PictureError, save
from fedsim.records.history import MARKS, NO_GROUP, History
from fedsim.records.reading import RunFolder
from tests.analysis.conftest import Lived


@pytest.fixture
def membership(grouped: RunFolder) -> History:
    return History(grouped)


def replay(run: RunFolder, time: float) -> dict[int, int]:
    """The group of every device that is there just after ``time``, event by event."""
    here = {device["device"]: NO_GROUP for device in run.devices if device["arrival"] <= time < device["departure"]}
    for event in run.events:
        if event["time"] <= time and event["kind"] == "assign" and event["device"] in here:
            here[event["device"]] = NO_GROUP if event["group"] is None else event["group"]
    return here


def at(membership: History, time: float) -> dict[int, int]:
    stays = membership.stays[(membership.stays["start"] <= time) & (time < membership.stays["end"])]
    assert stays["device"].is_unique
    return dict(zip(stays["device"].tolist(), stays["group"].tolist(), strict=True))


def bars(panel: Axes, prefix: str) -> dict[str, list[np.ndarray[Any, Any]]]:
    """The corners of the rectangles of each kind."""
    found = [item for item in panel.collections if str(item.get_gid()).startswith(prefix)]
    return {str(item.get_gid()): [np.asarray(path.vertices) for path in item.get_paths()] for item in found}


def test_who_is_where_at_any_time(grouped: RunFolder, membership: History) -> None:
    times = np.unique([event["time"] for event in grouped.events])
    for time in np.concatenate([times[:-1:7], (times[1:] + times[:-1])[::5] / 2]):
        here = replay(grouped, time)
        assert at(membership, time) == here
        for group in (NO_GROUP, 0, 1):
            when, members = membership.sizes(group)
            assert members[np.searchsorted(when, time, side="right") - 1] == list(here.values()).count(group)


def test_a_device_may_be_left_without_a_group(lived: Lived) -> None:
    """CFL splits a cluster without those that never sent it an update."""
    run = lived("cfl")
    left = [event["time"] for event in run.events if event["kind"] == "assign" and event["group"] is None]
    assert left
    membership = History(run)
    for time in np.unique(left):
        assert at(membership, time) == replay(run, time)
    assert NO_GROUP not in membership.groups
    assert NO_GROUP not in membership.migrations["group"].tolist()
    figure = draw_membership(run)
    assert f"{(membership.final == NO_GROUP).sum()} without a group at the end" in " ".join(figure.get_suptitle().split())
    assert "no group" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_rows_are_in_order(membership: History) -> None:
    order = membership.order()
    assert sorted(order.tolist()) == sorted(membership.final.index)
    groups = membership.final[order].replace(NO_GROUP, 99).to_numpy()
    first = membership.moves.groupby("device")["time"].min().reindex(order).fillna(np.inf).to_numpy()
    keys = list(zip(groups, first, order, strict=True))
    assert keys == sorted(keys)


def test_each_stay_is_a_bar_and_each_happening_a_mark(grouped: RunFolder, membership: History, tmp_path: Path) -> None:
    figure = draw_membership(grouped)
    rows, strip, sizes, agreement = figure.axes[:4]
    drawn = bars(rows, "group-")
    for group in (NO_GROUP, *membership.groups):
        own = membership.stays[membership.stays["group"] == group]
        widths = sorted(np.ptp(corners[:, 0]) for corners in drawn.get(f"group-{group}", []))
        np.testing.assert_allclose(widths, sorted(own["end"] - own["start"]))
    drawn_marks = {line.get_gid(): line.get_xydata() for line in rows.lines}
    place = {device: row for row, device in enumerate(membership.order())}
    counts = membership.marks["kind"].value_counts()
    assert set(counts.index) == set(MARKS)
    for kind, own in membership.marks.groupby("kind"):
        np.testing.assert_allclose(drawn_marks[kind], np.column_stack([own["time"], own["device"].map(place)]))
    heights = {name: sum(np.ptp(corners[:, 1]) for corners in parts) for name, parts in bars(strip, "").items()}
    assert heights == {"moved": counts["move"], "shifted": counts["shift"]}
    assert sizes.lines[-1].get_ydata()[-1] == len(replay(grouped, membership.end))
    known = [row for row in grouped.rounds if row["ari"] is not None]
    np.testing.assert_array_equal(agreement.lines[1].get_ydata(), [row["ari"] for row in known])
    for path in save(figure, tmp_path / "membership"):
        assert path.stat().st_size > 20_000
    ElementTree.parse(tmp_path / "membership.svg")


def test_a_move_belongs_to_the_round_in_which_it_was_recorded(grouped: RunFolder, membership: History) -> None:
    ended, expected = 0, []
    for event in grouped.events:
        ended += event["kind"] == "round"
        if event["kind"] == "assign":
            expected.append(ended)
    assert membership.moves["period"].tolist() == expected


def test_few_of_the_rows(grouped: RunFolder) -> None:
    figure = draw_membership(grouped, devices=5)
    assert len(figure.axes[0].get_yticks()) == 5
    assert "5 of " in figure.get_suptitle()
    with pytest.raises(PictureError, match="allowed is 1 or more"):
        draw_membership(grouped, devices=0)


def test_a_device_that_leaves_before_it_has_a_group_comes_last() -> None:
    made = History.__new__(History)
    made.stays = pd.DataFrame({"device": [0, 1, 2], "group": [1, NO_GROUP, 0], "start": 0.0, "end": [9.0, 3.0, 9.0]})
    made.moves = pd.DataFrame({"time": [0.0, 0.0], "device": [0, 2]})
    assert made.order().tolist() == [2, 0, 1]
