import json
import math
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.axes import Axes

from fedsim.analysis.membership import draw_membership, draw_split_tree, read_splits
from fedsim.analysis.style import PictureError, save
from fedsim.errors import RunFolderError
from fedsim.lab.reading.history import MARKS, NO_GROUP, History
from fedsim.language.units import show_seconds
from fedsim.records.reading import RunFolder
from tests.analysis.conftest import Lived, drawn


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
    ended, periods = 0, []  # a move belongs to the round in which it was recorded
    for event in grouped.events:
        ended += event["kind"] == "round"
        periods += [ended] if event["kind"] == "assign" else []
    assert membership.moves["period"].tolist() == periods


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


def test_rows_are_in_order(grouped: RunFolder, membership: History) -> None:
    order = membership.order()
    assert sorted(order.tolist()) == sorted(membership.final.index)
    groups = membership.final[order].replace(NO_GROUP, 99).to_numpy()
    first = membership.moves.groupby("device")["time"].min().reindex(order).fillna(np.inf).to_numpy()
    keys = list(zip(groups, first, order, strict=True))
    assert keys == sorted(keys)
    figure = draw_membership(grouped, devices=5)
    assert len(figure.axes[0].get_yticks()) == 5
    assert "5 of " in figure.get_suptitle()
    with pytest.raises(PictureError, match="allowed is 1 or more"):
        draw_membership(grouped, devices=0)


def test_each_stay_is_a_bar_and_each_happening_a_mark(grouped: RunFolder, membership: History, tmp_path: Path) -> None:
    figure = draw_membership(grouped)
    rows, sizes, agreement = figure.axes[:3]
    stays = bars(rows, "group-")
    for group in (NO_GROUP, *membership.groups):
        own = membership.stays[membership.stays["group"] == group]
        widths = sorted(np.ptp(corners[:, 0]) for corners in stays.get(f"group-{group}", []))
        np.testing.assert_allclose(widths, sorted(own["end"] - own["start"]))
    drawn_marks = {line.get_gid(): line.get_xydata() for line in rows.lines}
    place = {device: row for row, device in enumerate(membership.order())}
    counts = membership.marks["kind"].value_counts()
    assert set(counts.index) == set(MARKS)
    for kind, own in membership.marks.groupby("kind"):
        np.testing.assert_allclose(drawn_marks[kind], np.column_stack([own["time"], own["device"].map(place)]))
    assert set(bars(figure.axes[3], "")) == {"moves", "shifts"}
    for kind, shapes in bars(figure.axes[3], "").items():
        assert sum(np.ptp(corners[:, 1]) for corners in shapes) == counts[kind.removesuffix("s")]
    assert sizes.lines[-1].get_ydata()[-1] == len(replay(grouped, membership.end))
    known = [row for row in grouped.rounds if row["ari"] is not None]
    np.testing.assert_array_equal(agreement.lines[1].get_ydata(), [row["ari"] for row in known])
    for path in save(figure, tmp_path / "membership"):
        assert path.stat().st_size > 20_000
    ElementTree.parse(tmp_path / "membership.svg")


def test_a_device_that_leaves_before_it_has_a_group_comes_last() -> None:
    made = History.__new__(History)
    made.stays = pd.DataFrame({"device": [0, 1, 2], "group": [1, NO_GROUP, 0], "start": 0.0, "end": [9.0, 3.0, 9.0]})
    made.moves = pd.DataFrame({"time": [0.0, 0.0], "device": [0, 2]})
    assert made.order().tolist() == [2, 0, 1]


# Splits of clusters.

Split = tuple[int, int, tuple[int, int], tuple[list[int], list[int]]]  # round, parent, children, members

SPLITS: list[Split] = [
    (1, 0, (1, 2), (list(range(12)), list(range(12, 20)))),
    (4, 2, (3, 4), ([12, 13, 14], list(range(15, 20)))),
    (4, 1, (5, 6), ([0], list(range(1, 12)))),
]
FINAL = [5] + [6] * 11 + [3] * 3 + [4] * 5


def with_splits(run: RunFolder, folder: Path, splits: list[Split]) -> RunFolder:
    """A copy of a run in which clusters are split just before the ends of rounds, in the records of CFL."""
    shutil.copytree(run.path, folder)
    table = pq.read_table(folder / "events.parquet")
    empty: dict[str, Any] = dict.fromkeys(table.column_names)
    moved = {"kind": "assign", "data": json.dumps({"before": None, "why": "start"})}
    rows = [empty | moved | {"time": 0.0, "device": device, "group": 0} for device in range(20)]
    for row in table.to_pylist():
        for number, parent, children, members in splits if row["kind"] == "round" else []:
            if row["round"] == number:
                data = {"children": children, "members": members, "mean_norm": 0.01 * (1 + parent), "max_norm": 0.5}
                what = {"time": row["time"], "group": parent, "round": number, "data": json.dumps(data)}
                rows.append(empty | what | {"kind": "cluster-split"})
                for child, part in zip(children, members, strict=True):
                    why = json.dumps({"before": parent, "why": "split"})
                    rows += [
                        empty | what | {"kind": "assign", "group": child, "device": device, "data": why} for device in part
                    ]
        rows.append(row)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / "events.parquet")
    devices = pq.read_table(folder / "devices.parquet")
    final = [row | {"group": group} for row, group in zip(devices.to_pylist(), FINAL, strict=True)]
    pq.write_table(pa.Table.from_pylist(final, schema=devices.schema), folder / "devices.parquet")
    return RunFolder(folder)


@pytest.fixture
def divided(run: RunFolder, tmp_path: Path) -> RunFolder:
    return with_splits(run, tmp_path / "divided", SPLITS)


def test_the_tree_of_the_splits(divided: RunFolder) -> None:
    (root,) = read_splits(History(divided))
    ends = {row["round"]: row["time"] for row in divided.rounds}
    assert (root.group, root.born, root.members, root.split_round) == (0, 0, 20, 2)
    assert root.told.startswith(f"round 1 ({show_seconds(ends[1])}), mean norm 0.01")
    assert [(node.group, node.born, node.members, node.split_round) for node in root.below()] == [
        (0, 0, 20, 2),
        (1, 2, 12, 5),
        (5, 5, 1, None),
        (6, 5, 11, None),
        (2, 2, 8, 5),
        (3, 5, 3, None),
        (4, 5, 5, None),
    ]
    beside = [text.get_text() for text in draw_split_tree(divided).axes[0].texts if text.get_gid() == "leaf"]
    for group, text in zip((5, 6, 3, 4), beside, strict=True):
        accuracies = [row["accuracy"] for row, own in zip(divided.devices, FINAL, strict=True) if own == group]
        known = [value for value in accuracies if value is not None and math.isfinite(value)]
        assert known
        assert text.startswith(f"group {group}: {len(accuracies)} device")
        assert text.endswith(f"accuracy {sum(known) / len(known):.3f}")


def test_lines_last_as_long_as_their_clusters(divided: RunFolder) -> None:
    figure = draw_split_tree(divided)
    panel, below = figure.axes
    lines = {str(line.get_gid()): line for line in panel.lines if str(line.get_gid()).startswith("cluster-")}
    spans = {name.partition("-")[2]: tuple(int(x) for x in line.get_xdata()) for name, line in lines.items()}
    assert spans == {"0": (0, 2), **dict.fromkeys("12", (2, 5)), **dict.fromkeys("3456", (5, 8))}
    assert [lines[f"cluster-{group}"].get_ydata()[0] for group in (5, 6, 3, 4)] == [0, 1, 2, 3]
    widths = [lines[f"cluster-{group}"].get_linewidth() for group in (5, 3, 1, 0)]
    assert widths == sorted(set(widths))
    told = [text.get_text() for text in figure.legends[0].get_texts()][:3]
    assert [text.partition(" (")[0] for text in told] == ["1: round 1", "2: round 4", "3: round 4"]
    assert ", mean norm 0.03, largest " in told[2]
    assert [text.get_text() for text in panel.texts if text.get_text().isdigit()] == ["1", "2", "3"]
    assert drawn(panel)["split"] == 3
    assert len(below.lines[0].get_xdata()) == sum(row["accuracy"] is not None for row in divided.rounds)
    (splits,) = [item for item in draw_membership(divided).axes[0].collections if item.get_gid() == "splits"]
    ends = {row["round"]: row["time"] for row in divided.rounds}
    assert [path.vertices[0, 0] for path in splits.get_paths()] == pytest.approx([ends[1], ends[4]])


def test_a_cluster_that_is_split_twice_is_damage(run: RunFolder, tmp_path: Path) -> None:
    damaged = with_splits(run, tmp_path / "damaged", [*SPLITS, (6, 1, (7, 8), ([0], [1]))])
    with pytest.raises(RunFolderError, match="group 1 is split twice"):
        draw_split_tree(damaged)
