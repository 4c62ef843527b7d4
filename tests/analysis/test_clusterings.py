import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedsim
from fedsim.analysis.clusterings import Clustering, draw_embedding, draw_similarity, principal_components, read_clusterings
from fedsim.errors import RunFolderError
from fedsim.lab.reading.history import History
from fedsim.records.reading import RunFolder
from tests.strategies.worlds import world


def with_clusterings(run: RunFolder, folder: Path, changes: list[dict[str, Any]]) -> RunFolder:
    """A copy of a run whose clustering record comes once for each of the changes, and is changed so."""
    shutil.copytree(run.path, folder)
    table = pq.read_table(folder / "events.parquet")
    rows = []
    for row in table.to_pylist():
        if row["kind"] == "clustering":
            rows += [row | {"data": json.dumps(json.loads(row["data"]) | change)} for change in changes]
        else:
            rows.append(row)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / "events.parquet")
    return RunFolder(folder)


def test_the_matrix_is_ordered_by_group_without_its_diagonal(grouped: RunFolder) -> None:
    (event,) = [event for event in grouped.events if event["kind"] == "clustering"]
    figure = draw_similarity(grouped)
    drawn = np.ma.filled(figure.axes[0].images[0].get_array(), np.nan)
    (clustering,) = read_clusterings(History(grouped))
    order = clustering.order()
    groups = np.array(event["data"]["groups"])[order]
    assert groups.tolist() == sorted(event["data"]["groups"])
    off = ~np.eye(len(order), dtype=bool)
    assert np.isnan(drawn[~off]).all()
    expected = np.array(event["data"]["similarity"])[order][:, order]
    np.testing.assert_array_equal(drawn[off], expected[off])
    same = groups[:, None] == groups[None]
    assert expected[same & off].mean() > expected[~same].mean() + 0.2  # what the picture is there to show
    assert f"within {expected[same & off].mean():.2g}, across {expected[~same].mean():.2g}" in figure.axes[0].get_title()


def test_like_ones_stand_together_within_a_group_and_distances_count_the_other_way() -> None:
    near = np.array([[1.0, 0.5, 0.0, 0.9], [0.5, 1.0, 0.0, 0.8], [0.0, 0.0, 1.0, 0.0], [0.9, 0.8, 0.0, 1.0]])
    devices, groups = np.arange(4), np.array([1, 1, 0, 1])
    for alike, matrix in ((True, near), (False, 1 - near)):
        assert Clustering("", "", devices, groups, matrix, alike, None).order().tolist() == [2, 0, 3, 1]
    kinds = np.arange(8) % 2  # two kinds of devices that are still in one group, and one that is like nobody known
    near = np.where(kinds[:, None] == kinds[None], 0.9, 0.1)
    near[7] = near[:, 7] = np.nan
    order = Clustering("", "", np.arange(8), np.zeros(8, np.int64), near, True, None).order()
    assert sorted(order.tolist()) == list(range(8))
    assert np.abs(np.diff(kinds[order[order != 7]])).sum() == 1


def test_of_many_clusterings_six_are_drawn_on_one_scale(grouped: RunFolder, tmp_path: Path) -> None:
    many = with_clusterings(grouped, tmp_path / "many", [{"measure": f"no {place}"} for place in range(9)])
    for figure in (draw_similarity(many), draw_embedding(many)):
        assert "6 of 9 clusterings" in figure.get_suptitle()
    images = [image for panel in draw_similarity(many).axes for image in panel.images]
    assert len(images) == 6
    assert len({image.norm.vmax for image in images}) == 1
    (event,) = [event for event in grouped.events if event["kind"] == "clustering"]
    distances = (1 - np.array(event["data"]["similarity"])).tolist()
    figure = draw_similarity(with_clusterings(grouped, tmp_path / "far", [{"similarity": None, "distance": distances}]))
    assert figure.axes[0].images[0].norm.vmin == 0
    assert "distance" in figure.axes[-1].get_ylabel()


def test_cosines_over_the_rounds_are_drawn_as_they_were_recorded(tmp_path: Path) -> None:
    """Below the matrices, if there are any; a kind of which a round has no pair is left out there."""
    data = {"source": "digits", "partition": {"kind": "permutations", "groups": 2}}
    strategies = {"cfl": {"split_rounds": [1]}, "fedavg": {"clients_per_round": 8}}
    for kind, keys in strategies.items():
        scenario = world(data, 8, {"kind": kind, "local_epochs": 1} | keys, 4) | {"evaluation": {"cosines": True}}
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


def test_a_matrix_that_does_not_fit_is_damage(grouped: RunFolder, tmp_path: Path) -> None:
    damaged = with_clusterings(grouped, tmp_path / "damaged", [{"similarity": [[1.0]]}])
    with pytest.raises(RunFolderError, match=r"does not fit its \d+ devices"):
        draw_similarity(damaged)


def apart(points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - points[None], axis=2)


@pytest.mark.parametrize("kind", ["distance", "similarity", "features"])
def test_points_of_several_clusterings_lie_as_far_apart_as_was_seen(grouped: RunFolder, tmp_path: Path, kind: str) -> None:
    """Points of a plane, seen twice by the server: the second time from another side, and without the first two."""
    (event,) = [event for event in grouped.events if event["kind"] == "clustering"]
    plane = np.random.default_rng(1).normal(size=(len(event["data"]["devices"]), 2)) * [3, 1]
    parts, sides = (slice(None), slice(2, None)), (np.eye(2), np.array([[0.6, 0.8], [0.8, -0.6]]))
    changes = []
    for part, side in zip(parts, sides, strict=True):
        points = plane[part] @ side
        seen = {"distance": apart(points), "similarity": points @ points.T, "features": points}
        if kind == "distance":
            seen[kind][1, 0] = np.nan  # compared one way alone
        changes.append({name: matrix.tolist() if name == kind else None for name, matrix in seen.items()})
        changes[-1] |= {name: event["data"][name][part] for name in ("devices", "groups")}
    panels = draw_embedding(with_clusterings(grouped, tmp_path / "run", changes)).axes
    lay: dict[int, np.ndarray] = {}
    for panel, part, said in zip(panels, parts, changes, strict=True):
        for group in (0, 1):
            own = np.array(said["groups"]) == group
            (drawn,) = [np.asarray(item.get_offsets()) for item in panel.collections if item.get_gid() == f"group-{group}"]
            np.testing.assert_allclose(apart(drawn), apart(plane[part][own]), atol=1e-9)
            if group in lay:  # the same view, but for the origin, which is the mean of the points in each panel
                shift = np.linalg.norm(plane.mean(axis=0) - plane[2:].mean(axis=0))
                moved = np.linalg.norm(drawn[-5:] - lay[group][-5:], axis=1)
                np.testing.assert_allclose(moved, shift, atol=0.3)
            lay[group] = drawn


def test_principal_components_of_points_on_a_line_and_of_an_ellipse() -> None:
    points, share = principal_components(np.outer([-2.0, 0.0, 1.0, 5.0], [1.0, -2.0, 2.0, 0.0]) + 7)
    assert share == pytest.approx(1)
    np.testing.assert_allclose(np.abs(points), np.abs(np.outer([-9.0, -3.0, 0.0, 12.0], [1, 0])), atol=1e-12)
    cross = np.diag([3.0, 2.0, 1.0, 0.0])
    points, share = principal_components(np.vstack([cross[:3], -cross[:3]]))
    assert share == pytest.approx(13 / 14)
    np.testing.assert_allclose(points[:3], np.diag([3.0, 2.0, 1.0])[:, :2], atol=1e-12)  # an axis's largest entry is positive
    for features in (np.ones((4, 5)), np.ones((4, 1))):  # all in one place
        points, share = principal_components(features)
        assert points.tolist() == [[0.0, 0.0]] * 4
        assert not share
