"""Whom the server draws: uniformly, without replacement, out of those that can be had, looking at few devices of many."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedsim
from fedsim.running.assembly import Run


def world(devices: int, now: float, availability: dict[str, Any] | None = None, **population: Any) -> Run:
    if availability is None:
        availability = {"kind": "renewal", "mean_on": "20 min", "mean_off": "40 min"}
    samples = {"low": 10, "high": 20}
    people = {"devices": devices, "samples": samples, "availability": availability} | population
    scenario = fedsim.Scenario(learning="off", population=people, strategy={"kind": "fedavg", "clients_per_round": 1})
    run: Run = fedsim.Simulation(scenario).installed
    run.simulation.env.restart(now)
    return run


def drawn_one_by_one(run: Run, count: int, purpose: str, number: int, among: Sequence[int] | None) -> list[int]:
    """Walk a random permutation, device by device, and take the first that can be had."""
    order = list(range(run.server.devices) if among is None else among)
    draws = iter(run.server.rng(purpose, number).random(len(order)).tolist())
    chosen: list[int] = []
    while order and len(chosen) < count:
        position = int(next(draws) * len(order))
        order[position], order[-1] = order[-1], order[position]
        device = order.pop()
        if run.tasks.is_idle(device):
            chosen.append(device)
    return chosen


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(0, 70),
    number=st.integers(0, 1000),
    now=st.floats(0, 1e6),
    among=st.none() | st.lists(st.integers(0, 59), unique=True),
    busy=st.sets(st.integers(0, 59)),
)
def test_it_is_a_walk_along_a_random_permutation(
    count: int, number: int, now: float, among: list[int] | None, busy: set[int]
) -> None:
    run = world(60, now)
    for device in busy:
        run.server.ask(device, {"model": run.server.models.initial()})
    expected = drawn_one_by_one(run, count, "x", number, among)
    assert run.server.clients.sample(count, "x", number, among=among) == expected
    assert run.server.clients.online() == [device for device in range(60) if run.tasks.is_idle(device)]


def test_lifetimes_count() -> None:
    arrivals = {"kind": "schedule", "times": ["10 s"] * 5, "devices": [0, 1, 2, 3, 4]}
    departures = {"kind": "schedule", "times": ["20 s"] * 3, "devices": [4, 5, 6]}
    here = {5.0: [5, 6, 7], 10.0: [*range(8)], 20.0: [0, 1, 2, 3, 7]}
    for now, expected in here.items():
        run = world(8, now, {"kind": "always"}, arrivals=arrivals, departures=departures)
        assert run.server.clients.online() == expected
        assert sorted(run.server.clients.sample(8, "x")) == expected


@pytest.mark.parametrize("devices", [1_000, 1_000_000])
def test_the_devices_looked_at_do_not_grow_with_the_population(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = world(devices, 3 * 86400.0)
    looked = 0
    idle = run.tasks.idle

    def count(asked: NDArray[np.int64]) -> NDArray[np.bool_]:
        nonlocal looked
        looked += len(asked)
        return idle(asked)

    monkeypatch.setattr(run.tasks, "idle", count)
    assert len(run.server.clients.sample(100, "x")) == 100
    assert looked < 450  # a third of them is on
