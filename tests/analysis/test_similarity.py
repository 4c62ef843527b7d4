import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedsim
from fedsim.analysis.embedding import draw_embedding, principal_components
from fedsim.analysis.similarity import Clustering, draw_similarity, read_clusterings
from fedsim.errors import RunFolderError
from fedsim.records.history import History
from fedsim.records.reading import RunFolder
from tests.strategies.clustered import world


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
    assert Clustering(0.0, 0, "", devices, groups, near, None, None).order().tolist() == [2, 0, 3, 1]
    assert Clustering(0.0, 0, "", devices, groups, None, 1 - near, None).order().tolist() == [2, 0, 3, 1]


def test_parts_of_a_group_are_blocks() -> None:
    """Two kinds of devices that are still in one group, alternating by number, and one that is like nobody known."""
    kinds = np.arange(8) % 2
    near = np.where(kinds[:, None] == kinds[None], 0.9, 0.1)
    near[7] = near[:, 7] = np.nan
    order = Clustering(0.0, 0, "", np.arange(8), np.zeros(8, np.int64), near, None, None).order()
    assert sorted(order.tolist()) == list(range(8))
    assert np.abs(np.diff(kinds[order[order != 7]])).sum() == 1


def test_lcfl_has_distances(grouped_scenario: dict[str, Any], tmp_path: Path) -> None:
    strategy = {"kind": "lcfl", "groups": 2, "local_epochs": 1}
    plain = {key: value for key, value in grouped_scenario.items() if key != "drift"}
    scenario = plain | {"strategy": strategy, "population": {"devices": 8}, "stop": {"rounds": 7}}
    fedsim.run(fedsim.Scenario(**scenario), tmp_path / "lcfl", executor="inline")
    figure = draw_similarity(RunFolder(tmp_path / "lcfl"))
    assert figure.axes[0].images[0].norm.vmin == 0
    assert "distance" in figure.axes[-1].get_ylabel()


def test_of_many_clusterings_six_are_drawn_on_one_scale(grouped: RunFolder, tmp_path: Path) -> None:
    many = with_clusterings(grouped, tmp_path / "many", [{"measure": f"no {place}"} for place in range(9)])
    figure = draw_similarity(many)
    panels = [panel for panel in figure.axes if panel.images]
    assert len(panels) == 6
    assert len({panel.images[0].norm.vmax for panel in panels}) == 1
    assert "6 of 9 clusterings" in figure.get_suptitle()


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


def test_every_device_is_a_point_of_its_group(grouped: RunFolder) -> None:
    (event,) = [event for event in grouped.events if event["kind"] == "clustering"]
    features, groups = np.array(event["data"]["features"]), np.array(event["data"]["groups"])
    assert features.shape[1] == 2
    figure = draw_embedding(grouped)
    (panel,) = figure.axes
    drawn = {item.get_gid(): np.asarray(item.get_offsets()) for item in panel.collections}
    assert set(drawn) == {"group-0", "group-1"}
    for group in (0, 1):
        np.testing.assert_array_equal(drawn[f"group-{group}"], features[groups == group])
        (mean,) = [line for line in panel.lines if line.get_gid() == f"mean-{group}"]
        np.testing.assert_allclose([mean.get_xdata()[0], mean.get_ydata()[0]], features[groups == group].mean(axis=0))


@pytest.mark.parametrize(
    ("dimensions", "titles"),
    [
        (1, [""]),
        (3, ["dimensions 1 and 2", "dimensions 1 and 3", "dimensions 2 and 3"]),
        (5, ["dimensions 1 and 2 of 5", "principal components 1 and 2 of all 5", "principal components 1 and 3 of all 5"]),
    ],
)
def test_what_is_drawn_is_said(grouped: RunFolder, tmp_path: Path, dimensions: int, titles: list[str]) -> None:
    (event,) = [event for event in grouped.events if event["kind"] == "clustering"]
    features = np.random.default_rng(0).normal(size=(len(event["data"]["devices"]), dimensions)).tolist()
    figure = draw_embedding(with_clusterings(grouped, tmp_path / "run", [{"features": features}]))
    assert [panel.get_title() for panel in figure.axes] == titles


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
    along = np.array([1.0, -2.0, 2.0, 0.0])
    points, shares = principal_components(np.outer([-2.0, 0.0, 1.0, 5.0], along) + 7)
    np.testing.assert_allclose(shares, [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(np.abs(points[:, 0]), 3 * np.abs([-3.0, -1.0, 0.0, 4.0]))
    cross = np.diag([3.0, 2.0, 1.0, 0.0])
    points, shares = principal_components(np.vstack([cross[:3], -cross[:3]]))
    np.testing.assert_allclose(shares, np.array([9, 4, 1]) / 14)
    np.testing.assert_allclose(points[:3], np.diag([3.0, 2.0, 1.0]), atol=1e-12)  # the largest entry of an axis is positive
    points, shares = principal_components(np.ones((4, 5)))
    assert not points.any()
    assert not shares.any()
