"""PACFL against principal angles of known subspaces, and clusters of rotated data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.linalg import subspace_angles

import fedsim
from fedsim.common.errors import ScenarioError
from fedsim.testing import assert_same_run, eventful_world, go_on, quiet_world, run, run_until
from fedsim.toolbox.clustering.angles import (
    left_singular_vectors,
    principal_angles,
    proximity,
    proximity_matrix,
    svd_flops,
)
from fedsim.toolbox.strategies.pacfl import signature
from tests.strategies.runs import of_kind, ran

PACFL: dict[str, Any] = {"kind": "pacfl", "groups": 4, "clients_per_round": 6, "local_epochs": 1}


def test_planes_that_are_turned_by_a_known_angle() -> None:
    """Two planes with a common line, the other directions at 30 degrees."""
    turn = np.radians(30.0)
    one = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    other = np.array([[1.0, 0.0], [0.0, np.cos(turn)], [0.0, np.sin(turn)]])
    np.testing.assert_allclose(principal_angles(one, other), [0.0, 30.0], atol=1e-6)
    assert proximity(one, other, "smallest", of_vectors=False) == pytest.approx(0.0, abs=1e-6)
    assert proximity(one, other, "sum", of_vectors=False) == pytest.approx(30.0)
    # a basis of the same plane has the same principal angles, whatever its sign or length
    mixed = other @ np.array([[1.0, -2.0], [3.0, 1.0]])
    np.testing.assert_allclose(principal_angles(one, mixed), [0.0, 30.0], atol=1e-5)
    assert proximity(one, -other, "sum", of_vectors=False) == pytest.approx(30.0)


def test_angles_are_scipys() -> None:
    draw = np.random.default_rng(1)
    for p, q in ((1, 1), (3, 5), (5, 2)):
        one = draw.normal(size=(12, p))
        other = draw.normal(size=(12, q))
        expected = np.sort(np.degrees(subspace_angles(one, other)))
        np.testing.assert_allclose(principal_angles(one, other), expected, atol=1e-6)


def test_the_smallest_angle_of_two_vectors_and_the_matrix() -> None:
    clients = [np.eye(4)[:, :2], np.eye(4)[:, 1:3], np.eye(4)[:, 2:]]
    distance = proximity_matrix(clients, "smallest", of_vectors=True)
    np.testing.assert_allclose(distance, [[0, 0, 90], [0, 0, 0], [90, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(
        proximity_matrix(clients, "sum", of_vectors=True),
        [[0, 180, 180], [180, 0, 180], [180, 180, 0]],
    )


def test_vectors_span_the_leading_directions_of_the_samples() -> None:
    """Samples on a line and, ten times weaker, on a second one."""
    draw = np.random.default_rng(2)
    strong = draw.normal(size=(50, 1)) * np.array([[3.0, 4.0, 0.0]]) / 5
    weak = draw.normal(size=(50, 1)) * np.array([[0.0, 0.0, 0.1]])
    vectors = left_singular_vectors(strong + weak, 2)
    np.testing.assert_allclose(np.abs(vectors[:, 0]), [0.6, 0.8, 0.0], atol=0.02)
    assert vectors.shape == (3, 2)
    assert left_singular_vectors(np.ones((1, 3)), 5).shape == (3, 1)
    assert svd_flops(64, 10) == 6 * 64 * 100 + 20 * 1000 == svd_flops(10, 64)


def test_a_signature_has_vectors_of_each_class() -> None:
    x = np.array([[[1.0, 0.0]], [[2.0, 0.0]], [[0.0, 3.0]]])
    y = np.array([0, 0, 7])
    np.testing.assert_allclose(signature(x, y, 1, by_class=True), [1, 0, 0, 1], atol=1e-6)
    np.testing.assert_allclose(signature(x, y, 1, by_class=False), [0, 1], atol=1e-6)


@pytest.mark.parametrize("keys", [{}, {"beta": 10.0}, {"follows": "paper", "angle": "sum"}])
def test_rotations_are_found_before_the_first_round(keys: dict[str, Any], tmp_path: Path) -> None:
    """Digits that are rotated by 0, 90, 180 and 270 degrees: device d by d mod 4."""
    folder = ran(quiet_world(PACFL | keys, rounds=2), tmp_path / "run")
    groups = [event["group"] for event in of_kind(folder, "assign")]
    assert len(groups) == 24
    by_device = {event["device"]: event["group"] for event in of_kind(folder, "assign")}
    if "follows" not in keys:
        assert [by_device[device] for device in range(24)] == [*range(4)] * 6
        assert folder.rows("rounds.parquet")[0]["ari"] == 1.0
    first = of_kind(folder, "round-start")[0]["time"]
    assert max(event["time"] for event in of_kind(folder, "assign")) <= first


def test_vectors_and_their_time_are_counted(tmp_path: Path) -> None:
    """Each device holds 60 samples of one class: 3 vectors of 64 numbers, 4 bytes each."""
    partition = tmp_path / "partition.json"
    dealt = {str(device): [*range(60 * device, 60 * device + 60)] for device in range(4)}
    partition.write_text(str(dealt).replace("'", '"'))
    sections: dict[str, Any] = {
        "data": {"source": "digits", "partition": {"kind": "file", "path": str(partition)}},
        "population": {"devices": 4, "speed": "10 samples/s"},
        "strategy": PACFL | {"clients_per_round": 2, "groups": 2, "follows": "paper"},
        "stop": {"rounds": 1},
    }
    folder = ran(sections, tmp_path / "run")
    sizes = [row["bytes"] for row in folder.rows("transfers.parquet") if row["round"] is None]
    assert sum(sizes) == 4 * 3 * 64 * 4
    (took,) = {
        event["time"]
        for event in folder.rows("events.parquet")
        if event["kind"] == "step-end" and event["step"] == "compute"
    }
    # 6 m n^2 + 20 n^3 FLOPs at 6 FLOPs for each of 650 parameters a sample, 10 samples a second
    assert took == pytest.approx((6 * 64 * 60**2 + 20 * 60**3) / (6 * 650) / 10, rel=1e-6)


def test_newcomers_join_the_nearest_cluster_or_begin_one(tmp_path: Path) -> None:
    arrivals = {"kind": "schedule", "times": ["1 s", "2 s"], "devices": [22, 23]}
    for beta, clusters in ((None, 4), (1e-9, 24)):
        keys = PACFL | {"clients_per_round": 24}
        if beta is not None:
            keys |= {"beta": beta}
        sections = quiet_world(keys, rounds=3)
        sections["population"] |= {"arrivals": arrivals}
        sections["strategy"] |= {"every": "1 min"}
        folder = ran(sections, tmp_path / str(clusters))
        assigned = {event["device"]: event for event in of_kind(folder, "assign")}
        assert assigned[22]["data"]["why"] == assigned[23]["data"]["why"] == "newcomer"
        assert len({event["group"] for event in assigned.values()}) == clusters
        if beta is None:
            assert (assigned[22]["group"], assigned[23]["group"]) == (2, 3)


@pytest.mark.parametrize("learning", ["on", "off"])
def test_a_killed_run_goes_on(learning: str, tmp_path: Path) -> None:
    sections = eventful_world(PACFL | {"deadline": "60 s"}, rounds=4) | {"learning": learning}
    whole = run(sections, tmp_path / "whole")
    for share in (0.05, 0.5):
        place = tmp_path / f"cut-{share}"
        assert run_until(sections, place, int(share * whole["events"]) + 1) == "interrupted"
        go_on(sections, place)
        assert_same_run(tmp_path / "whole", place)


def test_private_aggregations_are_refused() -> None:
    private = {"kind": "private", "clip": 1.0, "noise": 1.0}
    with pytest.raises(ScenarioError, match="singular vectors of their data"):
        fedsim.Scenario(strategy=PACFL | {"aggregation": private})
