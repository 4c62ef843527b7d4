"""Robust aggregations against their definitions, spelled out over all subsets."""

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedsim
from fedsim.plugin import Server
from fedsim.simulation import Simulation
from fedsim.strategies.parts.aggregation import AGGREGATIONS, Aggregation
from tests.strategies.clustered import played

Floats = NDArray[np.float64]


def krum_score(points: Floats, at: int, f: int) -> float:
    """The least that the distances to any n - f - 2 others sum to."""
    others = [other for other in range(len(points)) if other != at]
    near = max(1, len(points) - f - 2)
    squares = {other: sum((points[at] - points[other]) ** 2) for other in others}
    return min(sum(squares[other] for other in subset) for subset in itertools.combinations(others, near))


def krum(points: Floats, f: int, best: int) -> Floats:
    found = [krum_score(points, at, f) for at in range(len(points))]
    return points[sorted(range(len(points)), key=lambda at: found[at])[:best]].mean(axis=0)


def trimmed(points: Floats, share: float) -> Floats:
    cut = int(share * len(points))
    return np.array([np.mean(sorted(column)[cut : len(column) - cut]) for column in points.T])


def bulyan(points: Floats, f: int) -> Floats:
    left, picked = list(range(len(points))), []
    while len(picked) < len(points) - 2 * f:
        scores = [krum_score(points[left], at, f) for at in range(len(left))]
        picked.append(left.pop(scores.index(min(scores))))
    means = []
    for column in points[picked].T:
        middle = np.median(column)
        subsets = itertools.combinations(column, len(picked) - 2 * f)
        means.append(np.mean(min(subsets, key=lambda subset: sum(abs(value - middle) for value in subset))))
    return np.array(means)


RULES: list[tuple[dict[str, Any], int, Callable[[Floats], Floats]]] = [
    ({"kind": "median"}, 6, lambda points: np.array([np.median(column) for column in points.T])),
    ({"kind": "trimmed-mean", "share": 0.2}, 10, lambda points: trimmed(points, 0.2)),
    ({"kind": "trimmed-mean", "share": 0.49}, 7, lambda points: trimmed(points, 0.49)),
    ({"kind": "trimmed-mean", "share": 0.0}, 3, lambda points: points.mean(axis=0)),
    ({"kind": "krum", "malicious": 2}, 8, lambda points: krum(points, 2, 1)),
    ({"kind": "multi-krum", "malicious": 2}, 8, lambda points: krum(points, 2, 6)),
    ({"kind": "multi-krum", "malicious": 1, "best": 2}, 7, lambda points: krum(points, 1, 2)),
    ({"kind": "bulyan", "malicious": 1}, 8, lambda points: bulyan(points, 1)),
    ({"kind": "bulyan", "malicious": 2}, 11, lambda points: bulyan(points, 2)),
    # With fewer updates than f needs, the model stays as it was.
    ({"kind": "krum", "malicious": 3}, 8, lambda points: 0 * points[0]),
    ({"kind": "krum", "malicious": 3}, 1, lambda points: 0 * points[0]),
    ({"kind": "multi-krum", "malicious": 3}, 4, lambda points: 0 * points[0]),
    ({"kind": "bulyan", "malicious": 3}, 14, lambda points: 0 * points[0]),
]


def combined(spec: dict[str, Any], points: Floats) -> Floats:
    run = Simulation(fedsim.Scenario(population={"devices": 10})).installed
    server: Server = run.server
    padded = np.zeros((len(points), server.setting.parameters))
    padded[:, : points.shape[1]] = points
    how: Aggregation = AGGREGATIONS.spec(spec["kind"])(**spec)  # type: ignore[assignment]
    entries = [{"update": server.models.given(point), "task": at, "samples": 7 * at} for at, point in enumerate(padded)]

    async def found_by() -> NDArray[np.float32]:
        weights = await how.weigh(server, entries, how.weights(entries))
        assert math.fsum(weights) == pytest.approx(0 if how.told(len(entries)) else 1)
        return await server.models.value(how.combine(server, {}, entries, weights, server.models.zero()))

    found = asyncio.run(found_by())
    return found[: points.shape[1]].astype(np.float64)


@pytest.mark.parametrize(
    ("spec", "count", "expected"),
    RULES,
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_it_is_its_definition(spec: dict[str, Any], count: int, expected: Callable[[Floats], Floats]) -> None:
    for seed in range(3):
        points = np.random.default_rng(seed).normal(size=(count, 5)).astype(np.float32).astype(np.float64)
        assert combined(spec, points) == pytest.approx(expected(points), abs=1e-6)


TOLERANT: list[dict[str, Any]] = [
    {"kind": "median"},
    {"kind": "trimmed-mean", "share": 0.2},
    {"kind": "krum", "malicious": 2},
    {"kind": "multi-krum", "malicious": 2},
    {"kind": "bulyan", "malicious": 2},
]


@pytest.mark.parametrize("spec", TOLERANT, ids=lambda spec: spec["kind"])
def test_updates_far_away_or_not_finite_move_it_little(spec: dict[str, Any]) -> None:
    points = np.random.default_rng(5).normal(size=(12, 5))
    points[[3, 8]] = 1e6
    assert np.abs(combined(spec, points)).max() < 3
    points[[3, 8]] = np.nan
    assert np.abs(combined(spec, points)).max() < 3


ATTACKED: dict[str, Any] = {
    "data": {"source": "digits", "partition": "iid"},
    "population": {"devices": 12, "speed": "100 samples/s"},
    "malicious": {"devices": [2, 7], "attack": {"kind": "scaled", "factor": 1000.0}},
    "stop": {"rounds": 3},
}


@pytest.mark.parametrize(
    ("strategy", "taken"),
    [
        ({"aggregation": {"kind": "krum", "malicious": 2}}, 1),
        ({"aggregation": {"kind": "multi-krum", "malicious": 2}}, 10),
        ({"aggregation": {"kind": "multi-krum", "malicious": 2, "best": 4}}, 4),
        ({"aggregation": {"kind": "bulyan", "malicious": 2}}, 8),
        ({"kind": "fedat", "tiers": 1, "aggregation": {"kind": "multi-krum", "malicious": 2}}, 10),
    ],
    ids=lambda value: "-".join(map(str, value.get("aggregation", value).values())) if isinstance(value, dict) else None,
)
def test_the_record_says_who_was_taken(strategy: dict[str, Any], taken: int) -> None:
    """Attackers far away are never among them; those who are count alike."""
    _, records = played(ATTACKED | {"strategy": {"clients_per_round": 12} | strategy})
    aggregates = [record.fields for record in records if record.kind == "aggregate"]
    assert len(aggregates) == 3
    device_of = {record.fields["task"]: record.fields["device"] for record in records if record.kind == "task-end"}
    for fields in aggregates:
        weights = dict(zip((device_of[task] for task in fields["tasks"]), fields["weights"], strict=True))
        assert sorted(weights.values()) == pytest.approx([0.0] * (12 - taken) + [1 / taken] * taken)
        assert weights[2] == weights[7] == 0.0


GROUPED: dict[str, Any] = {"kind": "ifca", "groups": 2, "clients_per_round": 12, "local_epochs": 1, "as": "paper"}


def test_a_group_with_too_few_updates_keeps_its_model_and_the_record_says_so() -> None:
    sections: dict[str, Any] = {"population": {"devices": 12, "speed": "100 samples/s"}, "stop": {"rounds": 4}}
    _, records = played(sections | {"strategy": GROUPED | {"aggregation": {"kind": "krum", "malicious": 1}}})
    aggregates = [record.fields for record in records if record.kind == "aggregate"]
    few = [fields for fields in aggregates if len(fields["tasks"]) < 5]
    assert few
    for fields in aggregates:
        assert ("bears" in fields) == (len(fields["tasks"]) < 5)
        assert sum(fields["weights"]) == pytest.approx(0.0 if "bears" in fields else 1.0)
