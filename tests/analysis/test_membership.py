"""Groups of devices: who is in which when, what they were clustered by, and how clusters split."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.spatial.distance import cdist

import fedsim
from fedsim.analysis.clusterings import (
    draw_embedding,
    draw_similarity,
    principal_components,
    read_clusterings,
)
from fedsim.analysis.membership import draw_membership, draw_split_tree, read_splits
from fedsim.analysis.paper import members as members_figure
from fedsim.analysis.paper.members import draw_members, measure_members
from fedsim.analysis.series import group_by_scenario
from fedsim.analysis.style import group_name
from fedsim.common.errors import RunFolderError
from fedsim.common.units import show_seconds
from fedsim.lab.reading.history import MARKS, NO_GROUP, History
from fedsim.records.reading import RunFolder
from tests.analysis.conftest import Lived, drawn
from tests.strategies.worlds import PAIRED, world


@pytest.fixture
def membership(grouped: RunFolder) -> History:
    return History(grouped)


def replay(run: RunFolder, time: float) -> dict[int, int]:
    """The group of every device that is there just after ``time``, event by event."""
    here = {
        device["device"]: NO_GROUP
        for device in run.devices
        if device["arrival"] <= time < device["departure"]
    }
    for event in run.events:
        if event["time"] <= time and event["kind"] == "assign" and event["device"] in here:
            here[event["device"]] = NO_GROUP if event["group"] is None else event["group"]
    return here


def test_who_is_where_at_any_time(grouped: RunFolder, lived: Lived) -> None:
    """Also without a group: CFL splits a cluster without those that never sent it an update."""
    left = lived("cfl")
    assert any(event["kind"] == "assign" and event["group"] is None for event in left.events)
    assert "no group" in [text.get_text() for text in draw_membership(left).legends[0].get_texts()]
    for run in (grouped, left):
        membership = History(run)
        assert NO_GROUP not in (*membership.groups, *membership.migrations["group"])
        times = np.unique([event["time"] for event in run.events])
        for time in np.concatenate([times[:-1:7], (times[1:] + times[:-1])[::5] / 2]):
            here = replay(run, time)
            stays = membership.stays.query("start <= @time < end")[["device", "group"]]
            assert sorted(stays.itertuples(index=False, name=None)) == sorted(here.items())
            for group in (NO_GROUP, *membership.groups):
                when, members = membership.sizes(group)
                assert members[np.searchsorted(when, time, side="right") - 1] == list(
                    here.values()
                ).count(group)
        ended, periods = 0, []  # a move belongs to the round in which it was recorded
        for event in run.events:
            ended += event["kind"] == "round"
            periods += [ended] if event["kind"] == "assign" else []
        assert membership.assignments["period"].tolist() == periods


def test_rows_are_in_order(grouped: RunFolder, membership: History) -> None:
    order = membership.order()
    assert sorted(order.tolist()) == sorted(membership.final.index)
    groups = membership.final[order].replace(NO_GROUP, 99).to_numpy()
    times = membership.assignments.groupby("device")["time"]
    first = times.min().reindex(order).fillna(np.inf).to_numpy()
    keys = list(zip(groups, first, order, strict=True))
    assert keys == sorted(keys)
    assert NO_GROUP in membership.final.to_numpy()
    labels = draw_membership(grouped).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == [str(device) for device in order]


def test_each_stay_is_a_bar_and_each_happening_a_mark(
    grouped: RunFolder, membership: History
) -> None:
    rows, sizes, agreement = draw_membership(grouped).axes[:3]
    stays = {
        item.get_gid(): [np.asarray(path.vertices) for path in item.get_paths()]
        for item in rows.collections
    }
    for group in (NO_GROUP, *membership.groups):
        own = membership.stays[membership.stays["group"] == group]
        widths = sorted(np.ptp(corners[:, 0]) for corners in stays.get(f"group-{group}", []))
        np.testing.assert_allclose(widths, sorted(own["end"] - own["start"]))
    drawn_marks = {line.get_gid(): line.get_xydata() for line in rows.lines}
    place = {device: row for row, device in enumerate(membership.order())}
    assert set(membership.marks["kind"]) == set(MARKS)
    for kind, own in membership.marks.groupby("kind"):
        np.testing.assert_allclose(
            drawn_marks[kind], np.column_stack([own["time"], own["device"].map(place)])
        )
    assert sizes.lines[-1].get_ydata()[-1] == len(replay(grouped, membership.end))
    known = [row for row in grouped.rounds if row["ari"] is not None]
    np.testing.assert_array_equal(agreement.lines[1].get_ydata(), [row["ari"] for row in known])


def test_only_members_that_are_there_count_at_the_end(grouped: RunFolder) -> None:
    here = replay(grouped, max(event["time"] for event in grouped.events))
    expected = {group: list(here.values()).count(group) for group in sorted({*here.values()})}
    assert History(grouped).members_at_end == expected
    left = [event["device"] for event in grouped.events if event["kind"] == "departure"]
    assert left
    assert not here.keys() & set(left)
    rows = draw_membership(grouped).axes[0]
    beside = dict(text.get_text().split(": ") for text in rows.texts)
    assert {name: int(count) for name, count in beside.items() if int(count)} == {
        group_name(group): count for group, count in expected.items()
    }


def test_pre_trainings_and_rings_of_shifts_are_seen(grouped: RunFolder) -> None:
    rows = draw_membership(grouped).axes[0]
    asked = sum(
        (event["kind"], event["step"]) == ("step-start", "train") for event in grouped.events
    )
    updates = {event["task"] for event in grouped.events if event["round"] is not None}
    assert 0 < drawn(rows)["pre-training"] < asked - len(updates) / 2
    marks = {str(line.get_gid()): line for line in rows.lines}
    assert marks["noticed"].get_markersize() < 0.6 * marks["shift"].get_markersize()


# round, parent, children, members
Split = tuple[int, int, tuple[int, int], tuple[list[int], list[int]]]

SPLITS: list[Split] = [
    (1, 0, (1, 2), (list(range(12)), list(range(12, 20)))),
    (4, 2, (3, 4), ([12, 13, 14], list(range(15, 20)))),
    (4, 1, (5, 6), ([0], list(range(1, 12)))),
]
FINAL = [5] + [6] * 11 + [3] * 3 + [4] * 5


def rewritten(
    run: RunFolder, folder: Path, name: str, change: Callable[[list[dict[str, Any]]], list[Any]]
) -> RunFolder:
    """A copy of a run, made in ``folder`` unless it is there, with the changed rows of one of
    its tables.
    """
    shutil.copytree(run.path, folder, dirs_exist_ok=True)
    table = pq.read_table(folder / name)
    pq.write_table(
        pa.Table.from_pylist(change(table.to_pylist()), schema=table.schema), folder / name
    )
    return RunFolder(folder)


def with_splits(run: RunFolder, folder: Path, splits: list[Split]) -> RunFolder:
    """A copy of a run in which clusters are split just before the ends of rounds, in the records
    of CFL.
    """
    empty: dict[str, Any] = dict.fromkeys(run.events[0])
    moved = {"kind": "assign", "data": json.dumps({"before": None, "why": "start"})}
    rows = [empty | moved | {"time": 0.0, "device": device, "group": 0} for device in range(20)]
    for row in pq.read_table(run.path / "events.parquet").to_pylist():
        for number, parent, children, members in splits if row["kind"] == "round" else []:
            if row["round"] == number:
                data = {
                    "children": children,
                    "members": members,
                    "mean_norm": 0.01 * (1 + parent),
                    "max_norm": 0.5,
                }
                what = {
                    "time": row["time"],
                    "group": parent,
                    "round": number,
                    "data": json.dumps(data),
                }
                rows.append(empty | what | {"kind": "cluster-split"})
                moved = what | {
                    "kind": "assign",
                    "data": json.dumps({"before": parent, "why": "split"}),
                }
                for child, part in zip(children, members, strict=True):
                    rows += [empty | moved | {"group": child, "device": device} for device in part]
        rows.append(row)
    finals = rewritten(
        run,
        folder,
        "devices.parquet",
        lambda old: [a | {"group": b} for a, b in zip(old, FINAL, strict=True)],
    )
    return rewritten(finals, folder / "split", "events.parquet", lambda _: rows)


@pytest.fixture
def divided(run: RunFolder, tmp_path: Path) -> RunFolder:
    return with_splits(run, tmp_path / "divided", SPLITS)


def test_the_tree_of_the_splits(divided: RunFolder) -> None:
    (root,) = read_splits(History(divided))
    ends = {row["round"]: row["time"] for row in divided.rounds}
    assert root.description.startswith(f"round 1 ({show_seconds(ends[1])}), mean norm 0.01")
    nodes = [
        (node.group, node.created_round, node.members, node.split_round) for node in root.below()
    ]
    assert nodes[:4] == [(0, 0, 20, 2), (1, 2, 12, 5), (5, 5, 1, None), (6, 5, 11, None)]
    assert nodes[4:] == [(2, 2, 8, 5), (3, 5, 3, None), (4, 5, 5, None)]
    beside = [
        text.get_text()
        for text in draw_split_tree(divided).axes[0].texts
        if text.get_gid() == "leaf"
    ]
    for group, text in zip((5, 6, 3, 4), beside, strict=True):
        accuracies = [
            row["accuracy"] for row, own in zip(divided.devices, FINAL, strict=True) if own == group
        ]
        known = [value for value in accuracies if value is not None and math.isfinite(value)]
        assert known
        assert text.startswith(f"group {group}: {len(accuracies)} device")
        assert text.endswith(f"accuracy {sum(known) / len(known):.3f}")


def test_the_paper_figure_has_no_moves_of_splits_and_names_the_largest_groups(
    divided: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (series,) = group_by_scenario([divided])
    assert not [mark for mark in measure_members(series).marks if mark.kind == "move"]
    monkeypatch.setattr(members_figure, "_MOST_NAMES", 2)
    labels = [text.get_text() for text in draw_members(series, 3.5).figure.legends[0].get_texts()]
    assert [label for label in labels if label.startswith("group")] == ["group 0", "group 1"]
    assert "5 smaller groups" in labels


def test_a_split_is_no_move(divided: RunFolder, grouped: RunFolder) -> None:
    figure = draw_membership(divided)
    assert drawn(figure.axes[0])["move"] == 0
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "a group splits" in labels
    assert "moves to another group" not in labels
    assert ", 3 splits, no moves between groups" in figure.get_suptitle()
    assert drawn(draw_membership(grouped).axes[0])["move"] > 0


def test_lines_last_as_long_as_their_clusters(divided: RunFolder) -> None:
    figure = draw_split_tree(divided)
    (panel,) = figure.axes
    lines = {
        str(line.get_gid()): line
        for line in panel.lines
        if str(line.get_gid()).startswith("cluster-")
    }
    spans = {
        name.partition("-")[2]: tuple(int(x) for x in line.get_xdata())
        for name, line in lines.items()
    }
    assert spans == {"0": (0, 2), **dict.fromkeys("12", (2, 5)), **dict.fromkeys("3456", (5, 8))}
    assert [lines[f"cluster-{group}"].get_ydata()[0] for group in (5, 6, 3, 4)] == [0, 1, 2, 3]
    widths = [lines[f"cluster-{group}"].get_linewidth() for group in (5, 3, 1, 0)]
    assert widths == sorted(set(widths))
    told = [text.get_text() for text in figure.legends[0].get_texts()][:3]
    assert [text.partition(" (")[0] for text in told] == ["1: round 1", "2: round 4", "3: round 4"]
    assert ", mean norm 0.03, largest " in told[2]
    assert [text.get_text() for text in panel.texts if text.get_text().isdigit()] == ["1", "2", "3"]
    assert drawn(panel)["split"] == 3
    (splits,) = [
        item for item in draw_membership(divided).axes[0].collections if item.get_gid() == "splits"
    ]
    ends = {row["round"]: row["time"] for row in divided.rounds}
    assert [path.vertices[0, 0] for path in splits.get_paths()] == pytest.approx([ends[1], ends[4]])


def with_clusterings(run: RunFolder, folder: Path, changes: list[dict[str, Any]]) -> RunFolder:
    """A copy of a run whose clustering record comes once for each of the changes, and is changed
    so.
    """

    def several(row: dict[str, Any]) -> list[dict[str, Any]]:
        if row["kind"] != "clustering":
            return [row]
        return [row | {"data": json.dumps(json.loads(row["data"]) | change)} for change in changes]

    return rewritten(
        run, folder, "events.parquet", lambda old: [new for row in old for new in several(row)]
    )


def test_the_matrix_is_ordered_by_group_without_its_diagonal(grouped: RunFolder) -> None:
    (event,) = [event for event in grouped.events if event["kind"] == "clustering"]
    figure = draw_similarity(grouped)
    drawn = np.ma.filled(figure.axes[0].images[0].get_array(), np.nan)
    (clustering,) = read_clusterings(History(grouped))
    order = np.argsort(clustering.groups, kind="stable")
    groups = np.array(event["data"]["groups"])[order]
    assert groups.tolist() == sorted(event["data"]["groups"])
    off = ~np.eye(len(order), dtype=bool)
    assert np.isnan(drawn[~off]).all()
    expected = np.array(event["data"]["similarity"])[order][:, order]
    np.testing.assert_array_equal(drawn[off], expected[off])
    same = groups[:, None] == groups[None]
    # what the picture is there to show
    assert expected[same & off].mean() > expected[~same].mean() + 0.2
    assert (
        f"within {expected[same & off].mean():.2g}, across {expected[~same].mean():.2g}"
        in figure.axes[0].get_title()
    )


def test_of_many_clusterings_six_are_drawn_on_one_scale(grouped: RunFolder, tmp_path: Path) -> None:
    many = with_clusterings(
        grouped, tmp_path / "many", [{"measure": f"no {place}"} for place in range(9)]
    )
    for figure in (draw_similarity(many), draw_embedding(many)):
        assert "6 of 9 clusterings" in figure.get_suptitle()
    images = [image for panel in draw_similarity(many).axes for image in panel.images]
    assert len(images) == 6
    assert len({image.norm.vmax for image in images}) == 1
    (event,) = [event for event in grouped.events if event["kind"] == "clustering"]
    distances = (1 - np.array(event["data"]["similarity"])).tolist()
    figure = draw_similarity(
        with_clusterings(grouped, tmp_path / "far", [{"similarity": None, "distance": distances}])
    )
    assert figure.axes[0].images[0].norm.vmin == 0
    assert "distance" in figure.axes[-1].get_ylabel()


def test_cosines_over_the_rounds_are_drawn_as_they_were_recorded(tmp_path: Path) -> None:
    """Below the matrices, if there are any; a kind of which a round has no pair is left out
    there.
    """
    data = {"source": "digits", "partition": {"kind": "permutations", "groups": 2}}
    strategies = {"cfl": {"split_rounds": [1]}, "fedavg": {"clients_per_round": 8}}
    for kind, keys in strategies.items():
        scenario = world(data, 8, {"kind": kind, "local_epochs": 1} | keys, 4) | {
            "evaluation": {"cosines": True}
        }
        fedsim.run(fedsim.Scenario(**scenario), tmp_path / kind, executor="inline")
        run = RunFolder(tmp_path / kind)
        told = [event["data"] for event in run.events if event["kind"] == "cosines"]
        figure = draw_similarity(run)
        assert sum(bool(panel.images) for panel in figure.axes) == (kind == "cfl")
        (panel,) = [panel for panel in figure.axes if panel.get_xlabel() == "round"]
        drawn = {line.get_gid(): line for line in panel.lines if line.get_gid()}
        assert drawn.keys() == {f"cosines-{name}" for data in told for name in data}
        for name, line in drawn.items():
            expected = [data.get(name.removeprefix("cosines-"), [np.nan] * 3)[1] for data in told]
            np.testing.assert_array_equal(line.get_ydata(), expected)
        assert len(drawn) == (4 if kind == "cfl" else 2)


def test_a_second_split_and_a_matrix_that_does_not_fit_are_damage(
    run: RunFolder, grouped: RunFolder, tmp_path: Path
) -> None:
    with pytest.raises(RunFolderError, match="group 1 is split twice"):
        draw_split_tree(with_splits(run, tmp_path / "twice", [*SPLITS, (6, 1, (7, 8), ([0], [1]))]))
    with pytest.raises(RunFolderError, match=r"does not fit its \d+ devices"):
        draw_similarity(with_clusterings(grouped, tmp_path / "unfit", [{"similarity": [[1.0]]}]))


def test_the_distances_of_pacfl_are_drawn(tmp_path: Path) -> None:
    strategy = {"kind": "pacfl", "groups": 2, "clients_per_round": 4, "local_epochs": 1}
    fedsim.run(
        fedsim.Scenario(**world(PAIRED, 6, strategy, 1)), tmp_path / "run", executor="inline"
    )
    run = RunFolder(tmp_path / "run")
    (clustering,) = read_clusterings(History(run))
    (event,) = [event for event in run.events if event["kind"] == "clustering"]
    assert clustering.matrix is not None
    assert clustering.matrix.tolist() == event["data"]["distances"]
    assert clustering.measure == "principal angles, degrees"
    assert any(panel.images for panel in draw_similarity(run).axes)


@pytest.mark.parametrize("kind", ["distance", "similarity", "features"])
def test_points_of_several_clusterings_lie_as_far_apart_as_was_seen(
    grouped: RunFolder, tmp_path: Path, kind: str
) -> None:
    """Points of a plane, seen twice by the server: the second time from another side, and
    without the first two.
    """
    (event,) = [event for event in grouped.events if event["kind"] == "clustering"]
    plane = np.random.default_rng(1).normal(size=(len(event["data"]["devices"]), 2)) * [3, 1]
    parts, sides = (slice(None), slice(2, None)), (np.eye(2), np.array([[0.6, 0.8], [0.8, -0.6]]))
    changes = []
    for part, side in zip(parts, sides, strict=True):
        points = plane[part] @ side
        seen = {
            "distance": cdist(points, points),
            "similarity": points @ points.T,
            "features": points,
        }
        if kind == "distance":
            seen[kind][1, 0] = np.nan  # compared one way alone
        changes.append(
            {name: matrix.tolist() if name == kind else None for name, matrix in seen.items()}
        )
        changes[-1] |= {name: event["data"][name][part] for name in ("devices", "groups")}
    panels = draw_embedding(with_clusterings(grouped, tmp_path / "run", changes)).axes
    lay: dict[int, np.ndarray] = {}
    for panel, part, said in zip(panels, parts, changes, strict=True):
        for group in (0, 1):
            own = np.array(said["groups"]) == group
            (drawn,) = [
                np.asarray(item.get_offsets())
                for item in panel.collections
                if item.get_gid() == f"group-{group}"
            ]
            np.testing.assert_allclose(
                cdist(drawn, drawn), cdist(plane[part][own], plane[part][own]), atol=1e-9
            )
            # the same view, but for the origin, which is the mean of the points in each panel
            if group in lay:
                shift = np.linalg.norm(plane.mean(axis=0) - plane[2:].mean(axis=0))
                moved = np.linalg.norm(drawn[-5:] - lay[group][-5:], axis=1)
                np.testing.assert_allclose(moved, shift, atol=0.3)
            lay[group] = drawn


def test_principal_components_of_points_on_a_line_and_of_an_ellipse() -> None:
    points, share = principal_components(np.outer([-2.0, 0.0, 1.0, 5.0], [1.0, -2.0, 2.0, 0.0]) + 7)
    assert share == pytest.approx(1)
    np.testing.assert_allclose(
        np.abs(points), np.abs(np.outer([-9.0, -3.0, 0.0, 12.0], [1, 0])), atol=1e-12
    )
    cross = np.diag([3.0, 2.0, 1.0, 0.0])
    points, share = principal_components(np.vstack([cross[:3], -cross[:3]]))
    assert share == pytest.approx(13 / 14)
    # an axis's largest entry is positive
    np.testing.assert_allclose(points[:3], np.diag([3.0, 2.0, 1.0])[:, :2], atol=1e-12)
    for features in (np.ones((4, 5)), np.ones((4, 1))):  # all in one place
        points, share = principal_components(features)
        assert points.tolist() == [[0.0, 0.0]] * 4
        assert not share
