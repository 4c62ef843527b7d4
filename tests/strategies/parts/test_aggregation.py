"""Aggregations and server optimisers against their definitions, attacks on them, and
combinations of parts.
"""

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedsim.federation.contents import Partial
from fedsim.learning.refs import Ref
from fedsim.plugin import Aggregation, Server, ServerOptimizer
from fedsim.strategies import STRATEGIES, params_class
from fedsim.strategies.parts.aggregation import AGGREGATIONS
from fedsim.strategies.parts.server_optimizer import SGD
from fedsim.strategies.refusals import Reasons
from fedsim.toolbox.optimizers import Adagrad, Adam, Yogi
from tests.benchmarks.parts_matrix import (
    CENTRAL,
    CLIP,
    KINDS,
    Played,
    combinations,
    judge,
    rounds_of,
)
from tests.strategies.runs import Weights, made, played, told, weights
from tests.strategies.test_hierfavg import TREE
from tests.strategies.worlds import Sections, world

Floats = NDArray[np.float64]


def a_server() -> Server:
    return made({"population": {"devices": 10}}).server


def krum_score(points: Floats, at: int, f: int) -> float:
    """The least that the distances to any n - f - 2 others sum to."""
    others = [other for other in range(len(points)) if other != at]
    near = max(1, len(points) - f - 2)
    squares = {other: sum((points[at] - points[other]) ** 2) for other in others}
    return min(
        sum(squares[other] for other in subset) for subset in itertools.combinations(others, near)
    )


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
        means.append(
            np.mean(min(subsets, key=lambda subset: sum(abs(value - middle) for value in subset)))
        )
    return np.array(means)


RULES: list[tuple[dict[str, Any], int, Callable[[Floats], Floats]]] = [
    ({"kind": "median"}, 6, lambda points: np.array([np.median(column) for column in points.T])),
    ({"kind": "trimmed-mean", "share": 0.2}, 10, lambda points: trimmed(points, 0.2)),
    ({"kind": "trimmed-mean", "share": 0.49}, 7, lambda points: trimmed(points, 0.49)),
    ({"kind": "krum", "malicious": 2}, 8, lambda points: krum(points, 2, 1)),
    ({"kind": "multi-krum", "malicious": 2}, 8, lambda points: krum(points, 2, 6)),
    ({"kind": "bulyan", "malicious": 1}, 8, lambda points: bulyan(points, 1)),
    ({"kind": "bulyan", "malicious": 2}, 11, lambda points: bulyan(points, 2)),
    # With fewer updates than f needs, the model stays as it was.
    ({"kind": "krum", "malicious": 3}, 8, lambda points: 0 * points[0]),
    ({"kind": "multi-krum", "malicious": 3}, 4, lambda points: 0 * points[0]),
    ({"kind": "bulyan", "malicious": 3}, 14, lambda points: 0 * points[0]),
]


def combined(spec: dict[str, Any], points: Floats) -> Floats:
    server = a_server()
    padded = np.zeros((len(points), server.setting.parameters))
    padded[:, : points.shape[1]] = points
    how: Aggregation = AGGREGATIONS.spec(spec["kind"])(**spec)  # type: ignore[assignment]
    entries = [
        {"update": server.models.given(point), "task": at, "samples": 7 * at}
        for at, point in enumerate(padded)
    ]

    async def found_by() -> NDArray[np.float32]:
        weights = await how.weigh(server, entries, how.weights(entries))
        assert math.fsum(weights) == pytest.approx(0 if how.record_fields(len(entries)) else 1)
        return await server.models.value(
            how.combine(server, how.State(), entries, weights, server.models.zero())
        )

    found = asyncio.run(found_by())
    return found[: points.shape[1]].astype(np.float64)


@pytest.mark.parametrize(
    ("spec", "count", "expected"),
    RULES,
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_it_is_its_definition(
    spec: dict[str, Any], count: int, expected: Callable[[Floats], Floats]
) -> None:
    for seed in range(3):
        points = (
            np.random.default_rng(seed)
            .normal(size=(count, 5))
            .astype(np.float32)
            .astype(np.float64)
        )
        assert combined(spec, points) == pytest.approx(expected(points), abs=1e-6)


ROBUST: dict[str, Sections] = {
    "median": {"kind": "median"},
    "trimmed-mean": {"kind": "trimmed-mean", "share": 0.3},
    "krum": {"kind": "krum", "malicious": 2},
    "multi-krum": {"kind": "multi-krum", "malicious": 2},
    "bulyan": {"kind": "bulyan", "malicious": 2},
}


@pytest.mark.parametrize("kind", ROBUST)
def test_updates_far_away_or_not_finite_move_it_little(kind: str) -> None:
    points, spec = np.random.default_rng(5).normal(size=(12, 5)), ROBUST[kind]
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
        ({"aggregation": {"kind": "bulyan", "malicious": 2}}, 8),
        ({"kind": "fedat", "tiers": 1, "aggregation": {"kind": "multi-krum", "malicious": 2}}, 10),
    ],
    ids=lambda value: (
        "-".join(map(str, value.get("aggregation", value).values()))
        if isinstance(value, dict)
        else None
    ),
)
def test_the_record_says_who_was_taken(strategy: dict[str, Any], taken: int) -> None:
    """Attackers far away are never among them; those who are count alike."""
    _, records = played(ATTACKED | {"strategy": {"clients_per_round": 12} | strategy})
    aggregates = told(records, "aggregate")
    assert len(aggregates) == 3
    device_of = {fields["task"]: fields["device"] for fields in told(records, "task-end")}
    for fields in aggregates:
        weights = dict(
            zip((device_of[task] for task in fields["tasks"]), fields["weights"], strict=True)
        )
        assert sorted(weights.values()) == pytest.approx([0.0] * (12 - taken) + [1 / taken] * taken)
        assert weights[2] == weights[7] == 0.0


FEW: dict[str, Any] = {
    "population": {"devices": 12, "speed": "100 samples/s"},
    "stop": {"rounds": 4},
}
GROUPED: dict[str, Any] = {
    "kind": "ifca",
    "groups": 2,
    "clients_per_round": 12,
    "local_epochs": 1,
    "follows": "paper",
}


def test_a_group_with_too_few_updates_keeps_its_model_and_the_record_says_so() -> None:
    _, records = played(
        FEW | {"strategy": GROUPED | {"aggregation": {"kind": "krum", "malicious": 1}}}
    )
    aggregates = told(records, "aggregate")
    few = [fields for fields in aggregates if len(fields["tasks"]) < 5]
    assert few
    for fields in aggregates:
        assert ("bears" in fields) == (len(fields["tasks"]) < 5)
        assert sum(fields["weights"]) == pytest.approx(0.0 if "bears" in fields else 1.0)


# Server optimisers against torch's and steps by hand.


def walk(optimiser: ServerOptimizer, deltas: list[Weights]) -> tuple[list[Weights], Weights]:
    """The models that an optimiser makes of updates that differ from the model by ``deltas``,
    and the first model.
    """
    server = a_server()
    model, state, models = server.models.initial(), optimiser.State(), []
    first = asyncio.run(server.models.value(model))
    for delta in deltas:
        aggregated: Ref = server.models.given(
            asyncio.run(server.models.value(model)).astype(np.float64) + delta
        )
        model = optimiser.step(server, state, model, aggregated)
        models.append(asyncio.run(server.models.value(model)))
    return models, first


def drawn(count: int) -> list[Weights]:
    draw = np.random.default_rng(1)
    return [draw.normal(scale=0.1, size=650).astype(np.float32) for _ in range(count)]


TORCHS: list[tuple[ServerOptimizer, Any]] = [
    (
        Adam(lr=0.02, beta1=0.8, beta2=0.95, tau=1e-4, bias_correction=True),
        lambda own: torch.optim.Adam(own, lr=0.02, betas=(0.8, 0.95), eps=1e-4),
    ),
    (
        Adagrad(lr=0.05, tau=1e-2),
        lambda own: torch.optim.Adagrad(own, lr=0.05, initial_accumulator_value=1e-4, eps=1e-2),
    ),
    (SGD(lr=0.5, momentum=0.9), lambda own: torch.optim.SGD(own, lr=0.5, momentum=0.9)),
    (
        SGD(lr=0.5, momentum=0.9, nesterov=True),
        lambda own: torch.optim.SGD(own, lr=0.5, momentum=0.9, nesterov=True),
    ),
]


@pytest.mark.parametrize(
    ("optimiser", "make"), TORCHS, ids=lambda value: getattr(value, "kind", "")
)
def test_it_is_torchs_on_the_pseudo_gradient(optimiser: ServerOptimizer, make: Any) -> None:
    deltas = drawn(6)
    found, first = walk(optimiser, deltas)
    parameter = torch.nn.Parameter(torch.from_numpy(first.copy()))
    theirs = make([parameter])
    for delta, own in zip(deltas, found, strict=True):
        parameter.grad = torch.from_numpy(-delta)
        theirs.step()
        assert own == pytest.approx(parameter.detach().numpy(), abs=1e-6)


@pytest.mark.parametrize("kind", [Adam, Yogi])
@pytest.mark.parametrize("corrected", [False, True])
def test_moments_by_hand(kind: type[Adam] | type[Yogi], corrected: bool) -> None:
    deltas = drawn(5)
    deltas[3] *= 0.1  # so that v falls too
    found, first = walk(
        kind(lr=0.1, beta1=0.8, beta2=0.9, tau=0.1, bias_correction=corrected), deltas
    )
    weights, mean, square = (
        first.astype(np.float64),
        0.0,
        np.full(len(first), 0.0 if corrected else 0.01),
    )
    for at, (delta, own) in enumerate(zip(deltas, found, strict=True), 1):
        mean = 0.8 * mean + 0.2 * delta
        squared = delta.astype(np.float64) ** 2
        if kind is Yogi:
            square = np.where(square > squared, square - 0.1 * squared, square + 0.1 * squared)
        else:
            square = 0.9 * square + 0.1 * squared
        scales = (1 - 0.8**at, 1 - 0.9**at) if corrected else (1.0, 1.0)
        weights = weights + 0.1 * (mean / scales[0]) / (np.sqrt(square / scales[1]) + 0.1)
        assert own == pytest.approx(weights, abs=1e-6)


@pytest.mark.parametrize("optimiser", [SGD(momentum=0.5), Adam(), Yogi(), Adagrad()])
def test_a_round_without_finite_updates_moves_on(optimiser: ServerOptimizer) -> None:
    """The aggregate is then the model itself: the step is finite, now and later."""
    found, _ = walk(optimiser, [drawn(1)[0], np.zeros(650, np.float32), drawn(1)[0]])
    assert all(np.isfinite(model).all() for model in found)


def test_each_group_has_a_state_of_its_own() -> None:
    strategy = GROUPED | {
        "clients_per_round": 6,
        "follows": "published-code",
        "server": {"kind": "yogi", "beta1": 0.5},
    }
    run, records = played(FEW | {"strategy": strategy})
    steps = Counter(fields["group"] for fields in told(records, "aggregate"))
    assert len(steps) == 2
    states = run.strategy.state["optimiser"]
    assert {group: state["steps"] for group, state in states.items()} == steps
    assert states[0]["mean"] is not states[1]["mean"]


# Robust aggregations protect all that a strategy makes of clients' answers.

ATTACKS: list[Sections] = [
    {"kind": "sign-flip", "factor": 1e6},
    {"kind": "gaussian", "deviation": 1e6},
    {"kind": "scaled", "factor": 1e6},
]
BESIDE: dict[str, Sections] = {
    "scaffold": {"option": "I"},
    "scaffold/II": {"option": "II"},
    "feddyn": {"alpha": 0.1},
    "flexcfl": {"groups": 1, "moment": {"devices": 12, "steps": 5}},
    "lcfl": {
        "groups": 1,
        "clusters_start": "members",
        "moment": {"rounds": 1},
        "clients_per_round": None,
    },
}
"""Strategies that make something of what clients send beside their updates, in one group: of few
none bears two attackers.
"""

OTHERS: dict[str, Sections] = {
    "fedat": {"tiers": 1},
    "fedrep": {"head": ["*.bias"]},
    "fedper": {"head": ["*.bias"]},
    "fl-hc": {"groups": 1, "moment": {"rounds": 1}, "clients_per_round": None},
    "fedgroup": BESIDE["flexcfl"],
    "tifl": {"tiers": 1},
    "refl": {"stale_weights": "equal"},
    "hierfavg": {"kappa2": 1},
}

NEEDS: dict[str, Sections] = {
    "moon": {"model": {"kind": "mlp", "hidden": [8]}},
    "fedbn": {"model": {"kind": "module", "factory": "tests.benchmarks.hashes:normed"}},
    "hierfavg": {"network": TREE | {"cells": 1}},
}


def refs(value: Any) -> Iterator[Ref]:
    """The models in what a server sends."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, Partial):
        yield value.model
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from refs(item)


def farthest(kind: str, keys: Sections, how: Sections | str, attack: Sections) -> float:
    """The largest number in all that the server serves, and sends to an honest device, after
    some rounds.
    """
    strategy: Sections = {"kind": kind, "clients_per_round": 12, "aggregation": how} | keys
    if "groups" in STRATEGIES.spec(kind).model_fields:
        strategy = {"groups": 1} | strategy
    strategy = {key: value for key, value in strategy.items() if value is not None}
    malicious = {"attack": attack, "devices": [1, 6]}
    data = {"source": "digits", "partition": "iid"}
    others = {"malicious": malicious, "evaluation": {"every": 10}} | NEEDS.get(kind, {})
    run, _ = played(world(data, 12, strategy, 4, **others))
    sent = [*refs(run.strategy.contents(0))] if hasattr(run.strategy, "contents") else []
    served = [model for name, (model, _) in run.strategy.models().items() if "/" not in name]
    return max(float(np.abs(value).max()) for value in weights(run, [*sent, *served]))


@pytest.mark.parametrize("how", ["median", "krum"])
@pytest.mark.parametrize("name", BESIDE)
def test_attacks_leave_all_that_is_aggregated_bounded(name: str, how: str) -> None:
    kind, keys = name.partition("/")[0], BESIDE[name]
    attack = {"kind": "sign-flip", "factor": 1e6}
    assert farthest(kind, keys, ROBUST[how], attack) < 20
    assert farthest(kind, keys, "mean", attack) > 1000


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    # those with models of several sizes refuse a robust aggregation (test_sizes)
    [
        kind
        for kind in STRATEGIES
        if STRATEGIES.spec(kind).model_fields.keys() & {"aggregation", "sizes"} == {"aggregation"}
    ],
)
def test_attacks_leave_the_models_of_every_strategy_bounded(kind: str) -> None:
    for how in ROBUST:
        for attack in ATTACKS:
            found = farthest(kind, BESIDE.get(kind, OTHERS.get(kind, {})), ROBUST[how], attack)
            assert found < 20, (how, attack)


# Parts in combination: each is refused by name, or keeps its promises (a part of
# ``tests.benchmarks.parts_matrix``).

PRIVATE = [CENTRAL, CENTRAL | {"where": "local"}]


@pytest.mark.parametrize("kind", KINDS)
def test_with_private_no_model_moves_beyond_clip_times_rounds(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused would, without the refusal, move farther: no strategy is refused for
    nothing.
    """
    cells = [{"strategy": kind, "aggregation": how} for how in PRIVATE]
    verdicts = [judge(cell) for cell in cells]
    assert not [why for verdict, why in verdicts if verdict == "silent"]
    if "aggregation" not in params_class(kind.partition("/")[0]).model_fields:
        assert all("has the unknown key 'aggregation'" in why for _, why in verdicts)
    elif verdicts[0][0] == "refused":
        others = (
            *("averaging", "weights do not count", "updates of different sizes"),
            "singular vectors of their data",  # which no clipping of updates protects
        )
        assert all(
            any(part in why for part in ("bounds how far one update can move a model", *others))
            for _, why in verdicts
        )
        if not any(part in verdicts[0][1] for part in others):
            monkeypatch.setattr(Reasons, "against", lambda self, protection: None)
            assert Played(cells[0]).moved() > 1.5 * CLIP * rounds_of(cells[0])


@pytest.mark.parametrize("seed", [5, 6])
def test_combinations_of_parts_keep_their_promises(seed: int) -> None:
    cells = list(combinations(KINDS, 13, seed=seed))
    verdicts = [(judge(cell), cell) for cell in cells]
    assert not [(why, cell) for (verdict, why), cell in verdicts if verdict == "silent"]
    assert {verdict for (verdict, _), _ in verdicts} == {"kept", "refused"}
