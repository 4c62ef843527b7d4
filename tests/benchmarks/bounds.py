"""Every kind of every family with its defaults alone, and every key at its bounds, through
`check` and one round. By hand:

    python -m tests.benchmarks.bounds                          # all
    python -m tests.benchmarks.bounds strategy model           # the keys below these sections alone
    python -m tests.benchmarks.bounds --part 3 --parts 20      # the third of twenty parts

Kinds and keys are those of the registries and of the specs' fields, so new ones come in by
themselves. Each trial runs, or is refused by a ``FedsimError``; whatever else comes out is a fault.
A trial that takes a processor longer than ``PATIENCE_S`` or more memory than ``MEMORY`` counts by
itself. Exit status 1 if there are faults.
"""

import asyncio
import json
import resource
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import fedsim
from fedsim.clock.executors import Inline
from fedsim.common.errors import FedsimError
from fedsim.lab.whole_forecast import forecast_lines
from fedsim.learning.models import MODELS
from fedsim.running.runner import Job
from fedsim.running.scenario import Scenario
from fedsim.strategies import STRATEGIES
from tests.benchmarks.hashes import OF_WORLDS
from tests.benchmarks.script import parser
from tests.fuzzing.scenarios import Leaf, Shape, Spec, fields, leaves

PATIENCE_S = 10.0
MEMORY = 6 * 2**30
Sections = dict[str, Any]

SMALL: Sections = {
    "seed": 5,
    "data": {"source": "digits"},
    "population": {"devices": 6, "speed": "100 samples/s"},
    "network": {"kind": "star", "device": {"down": "1 MB/s", "up": "1 MB/s"}},
    "strategy": {"kind": "fedavg", "clients_per_round": 3},
    "stop": {"rounds": 1, "simulated_time": "1 day"},
}
_LEARNING = (
    "data",
    "model",
    "objective",
    "training",
    "strategy",
    "messages",
    "malicious",
    "drift",
    "evaluation",
)
_TEXT: Sections = {"source": {"kind": "text"}, "partition": "by-label"}
_OBJECTIVES: dict[str, Sections] = {
    "objective not given": {},
    "next-token": {"objective": {"kind": "next-token"}},
    "masked-token": {"objective": {"kind": "masked-token"}},
}
WORLDS: dict[str, Sections] = {
    "one device": {"population": {"devices": 1, "speed": "100 samples/s"}},
    "two devices": {"population": {"devices": 2, "speed": "100 samples/s"}},
    "one sample": {
        "learning": "off",
        "model": {"kind": "size", "bytes": "4 kB"},
        "population": {"devices": 6, "speed": "100 samples/s", "samples": [1] * 6},
    },
    "no samples": {
        "learning": "off",
        "model": {"kind": "size", "bytes": "4 kB"},
        "population": {"devices": 6, "speed": "100 samples/s", "samples": [0] * 6},
    },
    "one class a device": {
        "data": {"source": "digits", "partition": {"kind": "shards", "shards_per_device": 1}}
    },
    "one layer": {"model": {"kind": "mlp", "hidden": []}},
    "tokens": {"data": _TEXT, "model": {"kind": "char-lstm"}, "objective": {"kind": "next-token"}},
    "regression": {"data": {"source": "linear"}, "objective": {"kind": "regression"}},
    "no link": {"network": {"kind": "star"}},
    "everybody away": {
        "population": {
            "devices": 6,
            "speed": "100 samples/s",
            "availability": {"kind": "renewal", "mean_on": "1 s", "mean_off": "100 days"},
        }
    },
}
"""Worlds in which each strategy runs with its defaults alone."""


class Trial(NamedTuple):
    """A scenario, and what is special about it."""

    title: str
    sections: Sections


def least_table(spec: Spec) -> Sections:
    """A table with what a spec requires."""
    table: Sections = {}
    for name, shapes in fields(spec).items():
        field = spec.model_fields[name]
        if name == "kind" and field.default is not None and isinstance(field.default, str):
            table[name] = field.default
        elif field.is_required():
            table[name] = _usual(shapes[0])
    return table


def _usual(shape: Shape) -> Any:
    """A value in the middle of what is allowed."""
    if shape.is_spec:
        return least_table(shape.type)
    if shape.quantity is not None:
        return f"{min(max(2.0, shape.quantity.least), shape.quantity.most):g} {_unit(shape)}"
    origin = get_origin(shape.type) or shape.type
    if origin is Literal:
        return get_args(shape.type)[0]
    if origin in (list, tuple):
        return [_usual(Shape(part)) for part in get_args(shape.type)[:1] if part is not Ellipsis]
    if origin in (int, float):
        bounds = _bounds(shape)
        return bounds.get("ge", bounds.get("gt", 0)) + (1 if origin is int else 0.5)
    return {bool: True, str: "x", dict: {}}.get(origin)


def _unit(shape: Shape) -> str:
    assert shape.quantity is not None
    return next(unit for unit, factor in shape.quantity.units.items() if factor == 1.0)


def _bounds(shape: Shape) -> dict[str, float]:
    notes = [part for note in shape.notes for part in getattr(note, "metadata", [note])]
    found = {
        name: getattr(note, name, None)
        for note in notes
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length")
    }
    for note in notes:
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length"):
            if getattr(note, name, None) is not None:
                found[name] = getattr(note, name)
    return {name: bound for name, bound in found.items() if bound is not None}


def extremes(shape: Shape) -> Iterator[Any]:
    """The values of a key that are at the edge of what its type allows."""
    if shape.is_spec:
        yield least_table(shape.type)
        return
    if shape.quantity is not None:
        unit, quantity = _unit(shape), shape.quantity
        for number in (0.0, quantity.least, 1.0, quantity.most):
            yield f"{number!r} {unit}"
        if quantity.infinite:
            yield f"inf {unit}"
        return
    origin = get_origin(shape.type) or shape.type
    bounds = _bounds(shape)
    if origin is Literal:
        yield from get_args(shape.type)
    elif origin is bool:
        yield from (False, True)
    elif origin is int:
        low, high = bounds.get("ge", bounds.get("gt", 0)), bounds.get("le", bounds.get("lt"))
        yield from {int(low), int(low) + 1, 1, 2, 1000}
        yield from [] if high is None else [int(high)]
    elif origin is float:
        low, high = (
            bounds.get("ge", bounds.get("gt", 0.0)),
            bounds.get("le", bounds.get("lt", 1e30)),
        )
        yield from {float(low), 5e-324, 1e-9, 0.5, 1.0, float(high)}
    elif origin is str:
        yield from ("", "*", "x", "loss")
    elif origin in (list, tuple):
        inner = [_usual(Shape(part)) for part in get_args(shape.type) if part is not Ellipsis]
        yield from ([], inner[:1], inner[:1] * 2, inner[:1] * 6)
        for part in [part for part in get_args(shape.type)[:1] if part is not Ellipsis]:
            yield from ([value] for value in extremes(Shape(part)))
    elif origin is dict:
        yield from ({}, {"backend": 1}, {"x": "y"}, {"*": 0.5})
    elif origin is NoneType:
        return


def trials() -> Iterator[Trial]:
    """Every kind with its defaults in each place, then every key of each of them at its bounds,
    then strategies in worlds.
    """
    done: set[Any] = set()
    for leaf in leaves(Scenario):
        owner = leaf.way[-1][1] if leaf.way else Scenario
        parent = leaf.way[-1][0] if leaf.way else ""
        if (
            leaf.key == "kind"
            or (owner, parent, leaf.key) in done
            or (leaf.way and leaf.way[0][0] == "name")
        ):
            continue
        done.add((owner, parent, leaf.key))
        for shape in leaf.shapes:
            for value in extremes(shape):
                kinds = ".".join(
                    str(spec.model_fields["kind"].default)
                    for _, spec in leaf.way
                    if "kind" in spec.model_fields
                )
                yield Trial(
                    f"{leaf.path} ({kinds}) = {json.dumps(value)[:80]}", placed(leaf, value)
                )
    for kind in [kind for kind in STRATEGIES if kind != "flower"]:
        for title, world in WORLDS.items():
            strategy = least_table(STRATEGIES.spec(kind)) | {"kind": kind}
            yield Trial(
                f"strategy {kind} in {title}",
                _fitting(SMALL | world | {"strategy": strategy}, "strategy"),
            )
    for kind in MODELS:
        for title, objective in _OBJECTIVES.items():
            sections = SMALL | {"data": _TEXT, "model": least_table(MODELS.spec(kind))} | objective
            yield Trial(f"model {kind} of text, {title}", sections)


def placed(leaf: Leaf, value: Any) -> Sections:
    """The small world with a key at a value, in tables that have nothing else than they must."""
    sections = deepcopy(SMALL)
    tables = sections
    owner: Spec = Scenario
    for key, spec in leaf.way:
        kinds = (
            get_args(spec.model_fields["kind"].annotation) if "kind" in spec.model_fields else ()
        )
        present = tables.get(key)
        if _is_list(owner, key):
            tables[key] = [least_table(spec)]
            tables = tables[key][0]
        else:
            if not isinstance(present, dict) or (kinds and present.get("kind") not in kinds):
                tables[key] = least_table(spec)
            tables = tables[key]
        owner = spec
    tables[leaf.key] = value
    return _fitting(sections, leaf.way[0][0] if leaf.way else leaf.key)


def _is_list(owner: Spec, key: str) -> bool:
    annotation = owner.model_fields[key].annotation
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return any(get_origin(part) is list for part in parts)


def _fitting(sections: Sections, first: str) -> Sections:
    """The same, with what the strategy or the model needs so that something happens at all."""
    strategy, model = sections["strategy"], sections.get("model")
    kind = strategy.get("kind") if isinstance(strategy, dict) else strategy
    more: Sections = OF_WORLDS.get(kind, {}) if isinstance(kind, str) else {}
    sections = {
        key: part for key, part in more.items() if key not in ("energy", "population")
    } | sections
    if kind == "hierfavg":
        sections["network"] = {"kind": "tree", "cells": 2, "edge": {}}
    if first not in _LEARNING or (
        isinstance(model, dict) and model.get("kind") in ("size", "card")
    ):
        sections.setdefault("learning", "off")
    return sections


def outcome(sections: Sections) -> str:
    """``run``, ``refused``, ``long``, ``memory``, or the exception that nobody has put into
    words.
    """
    before = signal.signal(signal.SIGPROF, _ring)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE_S)
    try:
        scenario = fedsim.Scenario(**deepcopy(sections))
        forecast_lines(scenario, Inline(), 0.0)
        asyncio.run(Job(scenario, None, Inline()).execute())
    except FedsimError:
        return "refused"
    except MemoryError:
        return "memory"
    except TimeoutError:
        return "long"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
    return "run"


def _ring(*_: Any) -> None:
    raise TimeoutError


def main() -> int:
    """Try all; say how many ran, were refused or failed."""
    arguments = parser(__doc__, part=0, parts=1)
    arguments.add_argument("sections", nargs="*", help="the keys below these sections alone")
    options = arguments.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    chosen = partial(_is_chosen, options.sections)
    for number, trial in enumerate(filter(chosen, trials())):
        if number % options.parts != options.part:
            continue
        result = outcome(trial.sections)
        fault = result not in ("run", "refused", "long", "memory")
        counts["faults" if fault else result] += 1
        if counts.total() % 500 == 0:
            print(f"{counts.total()} trials:", dict(counts), flush=True)
        if fault or result in ("long", "memory"):
            print(f"{trial.title}: {result}", flush=True)
    print(f"{counts.total()} trials:", dict(counts))
    return 1 if counts["faults"] else 0


def _is_chosen(names: list[str], trial: Trial) -> bool:
    first = trial.title.replace("(", " ").replace(".", " ").split()[0]
    return not names or first in names


if __name__ == "__main__":
    sys.exit(main())
