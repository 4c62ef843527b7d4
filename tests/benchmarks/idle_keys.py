"""Keys that change nothing: every key of every strategy, of its parts and of some sections, away
from its default. By hand:

    python -m tests.benchmarks.idle_keys                       # every strategy
    python -m tests.benchmarks.idle_keys hetlora local         # these alone

A key is set in a small world in which much happens, to each of some values that its type allows. It
*acts* if events or models then differ from those without it, or it is *refused*. A key that is
accepted and never changes anything is *idle*: it must be refused by name, or have its reason in
``REASONS``. Exit status 1 if a key without a reason is idle.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any, Literal, get_args, get_origin

from fedsim.common.errors import FedsimError
from fedsim.strategies import STRATEGIES, params_class
from fedsim.testing import run
from tests.benchmarks.bounds import least_table
from tests.benchmarks.hashes import OF_WORLDS
from tests.benchmarks.hashes import STRATEGIES as CHOICES
from tests.benchmarks.script import parser
from tests.fuzzing.scenarios import Shape, fields

Sections = dict[str, Any]
_COMPARED = ("events_sha256", "models_sha256")

WORLD: Sections = {
    "seed": 7,
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0}},
    "model": {"kind": "mlp", "hidden": [5]},
    "training": {"lr": 0.05, "batch_size": 16},
    "population": {
        "devices": 16,
        "speed": {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0},
        "availability": {"kind": "renewal", "mean_on": "60 s", "mean_off": "10 s"},
    },
    "network": {
        "kind": "star",
        "server": {"down": "2 Mbit/s", "up": "1 Mbit/s"},
        "device": {"down": "1 Mbit/s", "up": "500 kbit/s", "latency": "40 ms"},
    },
    "drift": {"kind": "swap-all", "probability": 0.3},
    "stop": {"rounds": 8, "simulated_time": "1 day"},
}
VARIANTS = ("usual", "harsh", "defaults")
"""The choices of the hash table; the same with devices that are slow and seldom there; and a
strategy's defaults alone.
"""

_HARSH: Sections = {
    "speed": {"kind": "lognormal", "median": "12 samples/s", "spread": 2.0},
    "availability": {"kind": "renewal", "mean_on": "15 s", "mean_off": "15 s"},
}
_OTHERS: dict[str, list[Any]] = {
    "messages.up": ["float16", {"kind": "top-k", "share": 0.2}],
    "messages.down": ["float16"],
    "server.aggregation": ["1 s"],
    "training.momentum": [0.5],
    "training.l2": [0.1],
}
"""Keys of sections that act on most strategies."""

REASONS: dict[str, str] = {
    "follows": "a preset: it stands for other keys",
    "aggregation.kind": "the kind of a table, which other keys go with",
    "count_start": "how bytes are told apart in the ledger, not which are sent",
}
"""Key, or ``strategy.key`` -> why it may change neither events nor models in these worlds."""


def sections_of(kind: str, variant: str) -> Sections:
    """A variant of the world of a strategy, without the key."""
    own = {key: value for key, value in OF_WORLDS.get(kind, {}).items() if key != "energy"}
    strategy = least_table(params_class(kind)) | CHOICES.get(kind, {}) | {"kind": kind}
    if variant == "defaults":
        strategy = least_table(params_class(kind)) | {"kind": kind}
    world = WORLD | own | {"strategy": strategy}
    if variant == "harsh" and "population" not in own:
        world["population"] = WORLD["population"] | _HARSH
    return deepcopy(world)


def other_values(shape: Shape, usual: Any) -> Iterator[Any]:
    """Some values of a key that its type allows, and that are not the usual one."""
    if shape.is_spec:
        kind = shape.type.model_fields.get("kind")
        if kind is not None and kind.default != getattr(usual, "kind", None):
            yield least_table(shape.type)
        return
    if shape.quantity is not None:
        unit = next(unit for unit, factor in shape.quantity.units.items() if factor == 1.0)
        yield from (f"{number:g} {unit}" for number in (0.5, 5.0, 40.0) if number != usual)
        return
    origin = get_origin(shape.type) or shape.type
    if origin is Literal:
        yield from (value for value in get_args(shape.type) if value != usual)
    elif origin is bool:
        yield not usual
    elif origin is int:
        yield from (number for number in (1, 2, 3, 7) if number != usual)
    elif origin is float:
        yield from (number for number in (0.1, 0.5, 0.9, 2.0) if number != usual)


def trials(kind: str) -> Iterator[tuple[str, list[Any]]]:
    """Each key of a strategy, and of some sections, with values for it."""
    params = params_class(kind)
    for key, shapes in fields(params).items():
        if key == "kind" or key not in params.takes():
            continue
        usual = params.model_fields[key].get_default(call_default_factory=True)
        values = [value for shape in shapes for value in other_values(shape, usual)]
        if values:
            yield f"strategy.{key}", values
    yield from _OTHERS.items()


def _with(sections: Sections, path: str, value: Any) -> Sections:
    *way, key = path.split(".")
    table = sections
    for name in way:
        table = table.setdefault(name, {})
    table[key] = value
    return sections


@cache
def _usual(kind: str, variant: str) -> tuple[Any, ...]:
    summary = run(sections_of(kind, variant))
    return tuple(summary[name] for name in _COMPARED)


def judge(kind: str, path: str, values: list[Any]) -> str:
    """``acts``, ``refused``, or ``idle``."""
    accepted = False
    for variant in VARIANTS:
        for value in values:
            try:
                usual = _usual(kind, variant)
                summary = run(_with(sections_of(kind, variant), path, value))
            except FedsimError:
                continue
            accepted = True
            if tuple(summary[name] for name in _COMPARED) != usual:
                return "acts"
    return "idle" if accepted else "refused"


def main() -> int:
    """Judge every key; say how many act, are refused or idle."""
    arguments = parser(__doc__)
    arguments.add_argument("kinds", nargs="*", help="these strategies alone")
    chosen = arguments.parse_args().kinds or [kind for kind in STRATEGIES if kind != "flower"]
    counts: Counter[str] = Counter()
    without_reason = 0
    for kind in chosen:
        for path, values in trials(kind):
            verdict = judge(kind, path, values)
            key = path.removeprefix("strategy.")
            counts[verdict] += 1
            if verdict == "idle":
                reason = REASONS.get(f"{kind}.{key}", REASONS.get(key))
                without_reason += reason is None
                print(f"{kind}.{key} is idle: {reason or 'without a reason'}", flush=True)
    print(f"{sum(counts.values())} keys:", dict(counts))
    return 1 if without_reason else 0


if __name__ == "__main__":
    sys.exit(main())
