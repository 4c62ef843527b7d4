"""A resumed run has every attribute of clock, world and server that the saved run had.

An attribute that changes during a run, and that no state saves, makes a resumed run another one,
even if no record shows it: it may be what a refusal depends on.
"""

import asyncio
import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.clock.executors import Inline
from fedsim.running.runner import Job
from fedsim.testing import eventful_world

PACKAGES = ("fedsim.federation", "fedsim.world", "fedsim.clock")
NOT_FOLLOWED = (
    r"env\._(queue|schedule|calls|trim_length)",  # has cancelled alarms too; the others are compared
    r"simulation\.(savable|_interrupted|_sinks|_sinks_of|_receivers)$",  # of the ``Job``
    r"env\._is_saved$",
    r"\._within\._(count|start|end|on)$",  # a cache of each device's phase
    r"timers\._restored_names$",  # of alarms that were set again
    r"network\._uploads$",  # counted only if flows have weights
    r"network\._(sending|receiving|crowded)$",  # not used in a general network, nor for the server
    r"processes\._waits$",
)
"""Attributes that may differ, as no result depends on the difference."""


def attributes(value: object, path: str, seen: set[int]) -> Iterator[tuple[str, object]]:
    """Paths of all plain values, arrays and containers of plain values in an object's attributes."""
    if any(re.search(pattern, path) for pattern in NOT_FOLLOWED):
        return
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        yield path, value
        return
    if isinstance(value, np.ndarray):
        yield path, hashlib.sha256(value.tobytes()).hexdigest()
        return
    if isinstance(value, set | frozenset):
        yield path, sorted(map(repr, value))
        return
    items: Mapping[Any, object] = {}
    if isinstance(value, dict):
        items = value
        yield path, sorted(map(repr, (key for key in value if isinstance(key, int | str | tuple))))
    elif isinstance(value, list | tuple):
        items = dict(enumerate(value))
        yield path, len(value)
    elif type(value).__module__.startswith(PACKAGES) and id(value) not in seen:
        seen.add(id(value))
        slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
        names = [*getattr(value, "__dict__", {}), *slots]
        items = {name: getattr(value, name) for name in names if hasattr(value, name)}
    for key, item in items.items():
        yield from attributes(item, f"{path}.{key}", seen)


def state_of(job: Job) -> dict[str, object]:
    run = job.run
    seen: set[int] = set()
    found: dict[str, object] = {"alarms": job.simulation.alarms()}
    for name, part in vars(run).items():
        found |= dict(attributes(part, name, seen))
    return found


@pytest.mark.parametrize(
    "strategy",
    [
        {"kind": "fedavg", "clients_per_round": 6, "deadline": "30 s"},
        {"kind": "fedbuff"},
        {"kind": "d-psgd", "deadline": "60 s"},
    ],
    ids=lambda strategy: str(strategy["kind"]),
)
def test_a_resumed_run_has_what_the_saved_one_had(strategy: dict[str, Any], tmp_path: Path) -> None:
    sections = eventful_world(strategy, rounds=6) | {"checkpoint": {"rounds": 3}}
    job = Job(fedsim.Scenario(**sections), tmp_path / "whole", Inline())
    saved: list[dict[str, object]] = []

    def copy(rounds: int, time: float) -> None:
        if not saved:
            saved.append(state_of(job))
            shutil.copytree(tmp_path / "whole", tmp_path / "copy")

    assert job.checkpointer is not None
    job.checkpointer.on_saved = copy
    asyncio.run(job.execute())
    resumed = Job(fedsim.Scenario(**sections), tmp_path / "copy", Inline(), resume=True)
    present = state_of(resumed)
    asyncio.run(resumed.execute())
    assert len(saved[0]) > 500
    names = saved[0].keys() | present.keys()
    changed = {name for name in names if saved[0].get(name, ...) != present.get(name, ...)}
    assert not [(name, saved[0].get(name, ...), present.get(name, ...)) for name in changed]
