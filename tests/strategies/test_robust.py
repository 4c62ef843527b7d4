"""Robust aggregations protect all that a strategy makes of clients' answers, or are refused by name."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedsim.federation.contents import Partial
from fedsim.learning.refs import Ref
from fedsim.strategies import STRATEGIES
from tests.strategies.clustered import Sections, played, weights, world
from tests.strategies.test_hierfavg import TREE

ROBUST: dict[str, Sections] = {
    "median": {"kind": "median"},
    "trimmed-mean": {"kind": "trimmed-mean", "share": 0.3},
    "krum": {"kind": "krum", "malicious": 2},
    "multi-krum": {"kind": "multi-krum", "malicious": 2},
    "bulyan": {"kind": "bulyan", "malicious": 2},
}
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
    "lcfl": {"groups": 1, "clusters_start": "members", "moment": {"rounds": 1}, "clients_per_round": None},
}
"""Strategies that make something of what clients send beside their updates, in one group: of few none bears two attackers."""

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
    """The largest number in all that the server serves, and sends to an honest device, after some rounds."""
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
    [kind for kind in STRATEGIES if STRATEGIES.spec(kind).model_fields.keys() & {"aggregation", "sizes"} == {"aggregation"}],
)
def test_attacks_leave_the_models_of_every_strategy_bounded(kind: str) -> None:
    for how in ROBUST:
        for attack in ATTACKS:
            found = farthest(kind, BESIDE.get(kind, OTHERS.get(kind, {})), ROBUST[how], attack)
            assert found < 20, (how, attack)
