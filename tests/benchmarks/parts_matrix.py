"""Which parts go together, and whether each keeps its promises in every combination. By hand:

    python -m tests.benchmarks.parts_matrix                     # every strategy with every single part
    python -m tests.benchmarks.parts_matrix --sample 2000       # as many random combinations of all parts
    python -m tests.benchmarks.parts_matrix fedavg scaffold     # these strategies alone

A cell is a strategy, a selection, an aggregation (robust and private ones among them), a server
optimiser, a codec, and secure aggregation. Each is run for a few rounds on twelve devices. It is
``refused`` by name before the run, ``kept``, or ``silent``: a promise is broken and nothing said.
Promises: with ``private`` no model moves farther than clip x rounds, and epsilon counts each round
that was not drawn uniformly in full; with a robust aggregation one attacker of factor 1,000 leaves
what is aggregated where it is; a codec leaves what devices and server add up alike; each part
changes something. Exit status 1 if any is silent.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from math import inf
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from torch import nn

import fedsim
from fedsim.learning.refs import Ref
from fedsim.running.assembly import Run
from fedsim.strategies import STRATEGIES, params_class
from fedsim.strategies.synchronous import Synchronous
from tests.benchmarks.script import parser
from tests.strategies.runs import played, weights

Sections = dict[str, Any]
Cell = dict[str, Any]
"""``strategy``, and the parts that are given: ``selection``, ``aggregation``, ``server``,
``codec``, ``secure_aggregation``.
"""

DEVICES, ROUNDS, COHORT, CLIP = 12, 4, 7, 1e-3


def normed() -> nn.Module:
    """A perceptron with a layer norm, for FedBN."""
    return nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 3))


# without a sweep
_GROUPED: Sections = {
    "groups": 2,
    "clients_per_round": COHORT,
    "local_epochs": 1,
    "follows": "paper",
}
_SHARES: Sections = {
    "groups": 2,
    "local_epochs": 1,
    "participation": 0.6,
    "moment": {"rounds": 1, "participation": 0.6},
}
OWN: dict[str, Sections] = {
    "cfl": {},
    "fedasync": {"concurrency": 5},
    "fedat": {"tiers": 2, "clients_per_round": 5},
    "fedbuff": {"concurrency": 6, "buffer": 3},
    "ca2fl": {"concurrency": 6, "buffer": 3},
    "fedcompass": {"concurrency": 6, "min_steps": 1, "max_steps": 6},
    "fl-hc": _SHARES,
    "lcfl": _SHARES,
    "hierfavg": {"clients_per_round": 8, "kappa2": 2},
    "flexcfl": _GROUPED | {"moment": {"devices": 3, "steps": 5}},
    "fedgroup": _GROUPED | {"moment": {"devices": 3, "steps": 5}},
    "tifl": {"clients_per_round": 2, "tiers": 2},
    "pfedme": {"clients_per_round": COHORT, "local_rounds": 3},
    "ifca/gradients": {
        "groups": 2,
        "clients_per_round": COHORT,
        "follows": "paper",
        "averaging": "gradients",
    },
    "lcfl/members": _SHARES | {"clusters_start": "members"},
    "scaffold/I": {"clients_per_round": COHORT, "option": "I"},
} | dict.fromkeys(("hypcluster", "ifca", "ifca-mig"), _GROUPED)
# sweep two rounds
OWN |= {
    kind: {"groups": 2, "clients_per_round": 6, "local_epochs": 1}
    for kind in ("fesem", "fesem-mig")
}
"""The parameters of each strategy, and of those with a mode of their own; all others have a
cohort alone.
"""

_PEERS = {"d-psgd", "diloco", "epidemic", "gossip", "local-sgd"}  # they aggregate at no server
KINDS = sorted({*STRATEGIES.kinds, *OWN} - {"flower"} - _PEERS)

CENTRAL: Sections = {"kind": "private", "clip": CLIP, "noise": 0.0, "account": False}
PARTS: dict[str, list[Any]] = {
    "selection": [
        *("least-asked", "least-available", {"kind": "power-of-choice", "candidates": 11}),
        {"kind": "power-of-choice", "candidates": 11, "losses": "reported"},
        {"kind": "oort", "pacer_step": "5 s", "window": 1},
        {"kind": "fedcs", "time": "25 s"},
        {"kind": "favor", "target": 0.9, "components": 3, "hidden": 8},
        {"kind": "flanp", "accuracy": 50.0},
    ],
    "aggregation": [
        *("mean", "first", "median", {"kind": "trimmed-mean", "share": 0.3}, "krum", "multi-krum"),
        *(
            {"kind": "bulyan", "malicious": 1},
            CENTRAL,
            CENTRAL | {"where": "local"},
            {"kind": "private", "noise": 1.0},
        ),
    ],
    "server": [
        {"kind": "sgd", "lr": 0.5},
        {"kind": "sgd", "momentum": 0.5},
        "adagrad",
        "adam",
        "yogi",
    ],
    "codec": [
        *("float16", "int8", {"kind": "qsgd", "levels": 3, "error_feedback": True}),
        *({"kind": "top-k", "share": 0.2}, {"kind": "random-k", "share": 0.3}, "sign"),
    ],
    "secure_aggregation": [{"neighbors": 4}],
}
ROBUST = ("median", "trimmed-mean", "krum", "multi-krum", "bulyan")


def kind_of(part: Any) -> str:
    return str(part if isinstance(part, str) else part.get("kind", "on"))


def rounds_of(cell: Cell) -> int:
    """More where each version is a round, or where who was away must come back."""
    asynchronous = cell["strategy"] in ("ca2fl", "fedasync", "fedat", "fedbuff", "fedcompass")
    return (
        ROUNDS
        * (4 if asynchronous else 1)
        * (4 if cell.get("selection") == "least-available" else 1)
    )


def sections(cell: Cell, attacked: bool = False) -> Sections:
    """The scenario of a cell."""
    name, robust = cell["strategy"], kind_of(cell.get("aggregation", "")) in ROBUST
    kind = name.partition("/")[0]
    own = OWN.get(name, {} if name.endswith("-fed") else {"clients_per_round": COHORT})
    # in a group of two one attacker is as many as others
    own = own | ({"groups": 1} if robust and "groups" in own else {})
    parts = {
        part: cell[part]
        for part in ("selection", "aggregation", "server", "secure_aggregation")
        if part in cell
    }
    normed = {"kind": "module", "factory": "tests.benchmarks.parts_matrix:normed"}
    models = {key: {"kind": "mlp", "hidden": [4]} for key in ("fedper", "fedrep", "moon")} | {
        "fedbn": normed
    }
    found: Sections = {
        "seed": 4,
        "data": {
            "source": {"kind": "synthetic", "features": 6, "classes": 3},
            "partition": {"kind": "synthetic", "log_mean": 2.5, "log_std": 0.7, "least": 8},
        },
        "model": models.get(kind, {"kind": "logistic"}),
        "training": {"lr": 0.1, "batch_size": 8},
        "population": {
            "devices": DEVICES,
            "speed": {"kind": "lognormal", "median": "10 samples/s", "spread": 1.5},
        },
        "strategy": {"kind": kind} | own | parts,
        "stop": {"rounds": rounds_of(cell), "simulated_time": "1 day"},
    }
    if not robust:  # where so few come that f attackers are too many, no aggregation helps
        found["population"]["availability"] = {
            "kind": "renewal",
            "mean_on": "20 s",
            "mean_off": "6 s",
        }
    if kind == "cata-fed":
        found["strategy"] |= {
            "clients_per_round": 4,
            "clusters": 2,
            "smallest_part": 4,
            "deadline": "8 s",
        }
    if kind == "hierfavg":
        found["network"] = {"kind": "tree", "cells": 2, "edge": {"latency": "30 ms"}}
    if "codec" in cell:
        found["messages"] = {"up": cell["codec"]}
    if attacked:
        found["malicious"] = {"attack": {"kind": "sign-flip", "factor": 1000.0}, "devices": [5]}
    return found


class Played:
    """A run of a cell that is over: what its server has aggregated, and how far it moved in each
    aggregation.
    """

    def __init__(self, cell: Cell, attacked: bool = False) -> None:
        with patch.object(
            Synchronous, "advance", autospec=True, side_effect=Synchronous.advance
        ) as advance:
            self.run, records = played(sections(cell, attacked))
        moves: list[Ref] = [ref for call in advance.call_args_list for ref in call.args[1:3]]
        self.epsilons = [
            record.fields.get("epsilon") for record in records if record.kind == "round"
        ]
        self.told = [(record.kind, record.time) for record in records]
        flat = weights(self.run, moves)
        self.steps = [
            distance(one, other) for one, other in zip(flat[::2], flat[1::2], strict=True)
        ]
        self.states = dict(_aggregated(self.run))

    def models(self) -> list[NDArray[np.float32]]:
        strategy = self.run.strategy
        served = (
            strategy._shared_models() if isinstance(strategy, Synchronous) else strategy.models()
        )
        return weights(self.run, [model for model, _ in served.values()])

    def moved(self) -> float:
        """How far the farthest model is from the draw that it began with, and SCAFFOLD's c and
        FedDyn's s from 0.
        """
        draws = weights(self.run, [self.run.server.models.initial(count) for count in range(4)])
        sums = [
            float(np.linalg.norm(state))
            for name, state in self.states.items()
            if name in ("control/0", "moved/0")
        ]
        return max(
            *sums, *(min(distance(model, draw) for draw in draws) for model in self.models()), 0.0
        )


def distance(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    found = float(np.linalg.norm(one.astype(np.float64) - other))
    return found if np.isfinite(found) else inf


def _aggregated(run: Run) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for name, value in sorted(run.strategy.state.items()):
        refs = value if isinstance(value, list) else [value]
        if (
            name not in ("own", "last", "began")
            and refs
            and all(isinstance(ref, Ref) for ref in refs)
        ):
            yield from ((f"{name}/{at}", found) for at, found in enumerate(weights(run, refs)))


# what `repr` made of a cell of ours
_played = lru_cache(maxsize=1024)(lambda frozen: Played(eval(frozen)))


def judge(cell: Cell) -> tuple[str, str]:
    """``refused``, ``kept`` or ``silent``, and why."""
    try:
        fedsim.Scenario(**sections(cell))
        found = _played(repr(cell))
    except fedsim.ScenarioError as error:
        return "refused", str(error)
    broken = [
        *_private(cell, found),
        *_robust(cell, found),
        *_in_step(cell, found),
        *_idle(cell, found),
    ]
    return ("silent", "; ".join(broken)) if broken else ("kept", "")


def _private(cell: Cell, found: Played) -> Iterator[str]:
    aggregation = cell.get("aggregation")
    if kind_of(aggregation or "") != "private":
        return
    if aggregation.get("noise"):
        uniform = "selection" not in cell
        # exactly, of four rounds at z = 1 and delta = 12^-1.1, with q = 4 / 12 and in full
        least = 1.02 if uniform else 4.29
        if not found.epsilons or found.epsilons[-1] is None or found.epsilons[-1] < least:
            yield f"epsilon is {found.epsilons[-1:]}, less than {least:.2f}"
        return
    turns = OWN.get(cell["strategy"], {}).get("kappa2", 1)
    bound = CLIP * rounds_of(cell) * turns * (1 + 1e-3) + 1e-6
    if found.steps and max(found.steps) > CLIP * turns * (1 + 1e-3) + 1e-6:
        yield f"private: an aggregation moved a model by {max(found.steps):.6g}"
    if (
        kind_of(cell.get("server", "sgd")) == "sgd"
        and "momentum" not in cell.get("server", {})
        and found.moved() > bound
    ):
        yield f"private: a model moved by {found.moved():.3g}, allowed are {bound:.3g}"


def _robust(cell: Cell, clean: Played) -> Iterator[str]:
    if kind_of(cell.get("aggregation", "")) not in ROBUST:
        return
    attacked = Played(cell, attacked=True)
    for name, state in clean.states.items():
        size = float(np.linalg.norm(state)) + 1.0
        if name in attacked.states and (far := distance(attacked.states[name], state)) > 30 * size:
            yield f"robust: one attacker moved {name} by {far:.3g}, its length is {size:.3g}"


def _in_step(cell: Cell, found: Played) -> Iterator[str]:
    """What SCAFFOLD's and FedDyn's devices have added up is N times what their server has."""
    name = {"scaffold": "control", "feddyn": "moved"}.get(cell["strategy"].partition("/")[0])
    if name is None or kind_of(cell.get("aggregation", "mean")) in (*ROBUST, "first"):
        return  # a robust server does not add up what it leaves out
    if found.run.strategy.state.secure.take_back:
        # the sum of the last round could not be read; its clients are told when they are next asked
        return
    states = found.run.dispatch.devices.states.values()
    own = sum(
        value.astype(np.float64)
        for value in weights(found.run, [state[name] for state in states if name in state])
    )
    server = found.states[f"{name}/0"]
    if (far := distance(own / DEVICES, server)) > 1e-3 * (1 + float(np.linalg.norm(server))):
        yield f"{name} of the server is {far:.3g} away from the mean of the devices'"


def _idle(cell: Cell, found: Played) -> Iterator[str]:
    """Parts without which the very same happens."""
    kind = cell["strategy"].partition("/")[0]
    for part in set(cell) - {"strategy"}:
        default = params_class(kind).model_fields.get(part)
        if default is not None and getattr(default.default, "kind", None) == kind_of(cell[part]):
            continue
        without = {name: value for name, value in cell.items() if name != part}
        with suppress(fedsim.ScenarioError):
            other = _played(repr(without))
            same = all(
                np.array_equal(one, its)
                for one, its in zip(found.models(), other.models(), strict=False)
            )
            if same and found.told == other.told:
                yield f"{part} = {kind_of(cell[part])} changes nothing"


def able_parts(kind: str) -> list[str]:
    """The parts that a strategy has keys for; a codec is a key of all messages, of which
    ``local`` has none.
    """
    keys = {
        *params_class(kind.partition("/")[0]).model_fields,
        *(["codec"] if kind != "local" else []),
    }
    return [part for part in PARTS if part in keys]


def single_parts(kinds: list[str]) -> Iterator[Cell]:
    """Every strategy, alone and with every part."""
    for kind in kinds:
        yield {"strategy": kind}
        for part in PARTS:
            if part != "codec" or part in able_parts(kind):
                yield from ({"strategy": kind, part: value} for value in PARTS[part])


def combinations(kinds: list[str], count: int, seed: int = 1) -> Iterator[Cell]:
    """So many combinations of two parts or more, at random, without what the strategy has no key
    for.
    """
    draw = random.Random(seed)
    for _ in range(count):
        kind = draw.choice(kinds)
        able = able_parts(kind)
        parts = sorted(draw.sample(able, draw.randint(min(2, len(able)), len(able))))
        yield {"strategy": kind} | {part: draw.choice(PARTS[part]) for part in parts}


def main() -> int:
    """Judge the cells, and say how many are refused, kept and silent."""
    arguments = parser(__doc__, sample=0, seed=1)
    arguments.add_argument("strategies", nargs="*", help="these alone")
    chosen = arguments.parse_args()
    kinds = chosen.strategies or KINDS
    cells = (
        combinations(kinds, chosen.sample, chosen.seed) if chosen.sample else single_parts(kinds)
    )
    counts: Counter[str] = Counter()
    for cell in cells:
        verdict, why = judge(cell)
        counts[verdict] += 1
        if verdict == "silent":
            print(
                "silent:",
                " ".join(f"{name}={value}" for name, value in cell.items()),
                "->",
                why,
                flush=True,
            )
    print(
        f"{counts.total()} cells, {counts['refused']} refused, {counts['kept']} kept, "
        f"{counts['silent']} silent"
    )
    return 1 if counts["silent"] else 0


if __name__ == "__main__":
    sys.exit(main())
