"""FL+HC against known answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.toolbox.clustering.algorithms import Linkage, agglomerative, canonical
from fedsim.toolbox.strategies.lcfl import update_distances
from fedsim.training import Training
from tests.strategies.clustered import of_kind, opposite_groups, played, ran, weights, world

FLHC: dict[str, Any] = {"kind": "fl-hc", "groups": 2, "local_epochs": 2, "moment": {"rounds": 1}}


def merged(points: np.ndarray[Any, Any], method: Linkage, left: int, threshold: float) -> list[int]:
    """Brute force: merge the nearest two until so few are left, or none are near enough."""
    clusters = [[at] for at in range(len(points))]

    def apart(one: list[int], other: list[int]) -> float:
        if method == "ward":
            share = 2 * len(one) * len(other) / (len(one) + len(other))
            return float(np.sqrt(share) * np.linalg.norm(points[one].mean(axis=0) - points[other].mean(axis=0)))
        all_pairs = [float(np.linalg.norm(points[a] - points[b])) for a in one for b in other]
        return {"single": min, "complete": max, "average": lambda found: sum(found) / len(found)}[method](all_pairs)

    while len(clusters) > left:
        pairs = [(apart(one, other), i, j) for i, one in enumerate(clusters) for j, other in enumerate(clusters) if i < j]
        nearest, i, j = min(pairs)
        if nearest > threshold:
            break
        clusters[i] += clusters.pop(j)
    labels = np.empty(len(points), dtype=np.int64)
    for number, cluster in enumerate(clusters):
        labels[cluster] = number
    return canonical(labels).tolist()


@pytest.mark.parametrize("method", ["single", "complete", "average", "ward"])
def test_linkages_against_brute_force(method: Linkage) -> None:
    draw = np.random.default_rng(5)
    for _ in range(10):
        points = draw.normal(size=(12, 3))
        distance = update_distances(points, "l2")
        assert agglomerative(distance, 4, method).tolist() == merged(points, method, 4, np.inf)
        for threshold in (0.5, 1.5, 3.0, 100.0):
            assert agglomerative(distance, 1, method, threshold).tolist() == merged(points, method, 1, threshold)


def test_distances_by_hand() -> None:
    updates = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
    assert update_distances(updates, "l1")[0] == pytest.approx([0, 3, 2])
    assert update_distances(updates, "l2")[0] == pytest.approx([0, 5**0.5, 2])
    assert update_distances(updates, "cosine")[0] == pytest.approx([0, 1, 0])


@pytest.mark.parametrize("metric", ["l1", "l2", "cosine"])
def test_devices_with_opposite_labels_are_told_apart(metric: str, tmp_path: Path) -> None:
    sections = world(opposite_groups(tmp_path, [40] * 8), 8, FLHC | {"measure": metric}, 3)
    run = ran(sections, tmp_path / metric)
    assert [row["group"] for row in run.devices] == [0, 1] * 4
    d = 4 * 2 + 2
    assert run.summary["bytes"]["by_purpose"]["warm-up"] == 2 * 8 * d * 4


def test_a_threshold_leaves_as_many_clusters_as_there_are(tmp_path: Path) -> None:
    data = opposite_groups(tmp_path, [40] * 8)
    one = ran(world(data, 8, FLHC | {"groups": 1, "clusterer": {"threshold": 1e6}}, 2), tmp_path / "one")
    eight = ran(world(data, 8, FLHC | {"groups": 1, "clusterer": {"threshold": 1e-6}}, 2), tmp_path / "eight")
    assert of_kind(one, "clustering")[0]["data"]["groups"] == [0] * 8
    assert of_kind(eight, "clustering")[0]["data"]["groups"] == list(range(8))


def test_what_is_compared_are_updates_of_one_model(tmp_path: Path) -> None:
    """Distances as recorded, against those of devices that train from the model after the warm-up."""
    data, full = opposite_groups(tmp_path, [40] * 4), {"training": {"batch_size": 40}}
    run = ran(world(data, 4, FLHC | {"measure": "l2"}, 2, **full), tmp_path / "run")
    (made,) = of_kind(run, "clustering")
    warm, _ = played(world(data, 4, {"kind": "fedavg", "clients_per_round": 4, "local_epochs": 2}, 1, **full))
    model = weights(warm, [warm.strategy.state["model"]])[0]
    learner = warm.learner
    start = learner.given(model)
    ends = [learner.train(Training(start, 2), device, key=9) for device in range(4)]  # full batches: no shuffle matters
    updates = np.array(weights(warm, ends)) - model
    expected = np.linalg.norm(updates[:, None] - updates[None, :], axis=2)
    shown = made["data"]["distance"]
    assert np.asarray(shown, dtype=np.float64) == pytest.approx(expected, rel=1e-3, abs=1e-4)
