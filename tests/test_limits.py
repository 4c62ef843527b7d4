"""What would fill the memory, never end, or cannot be computed with is refused: the key, the value, what is allowed."""

import copy
from typing import Any

import pytest

import fedsim
from fedsim.language.units import CLOCK_END_S
from fedsim.simulation import Simulation, on_grid, on_grid_after
from fedsim.testing import eventful_world, run

TREE = {"kind": "tree", "cells": 2}
LOGNORMAL = {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0}
PHASES = {"factor": 0.5, "mean_normal": "10 s", "mean_slow": "10 s"}


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("population.devices", 2**31, "at most 100,000,000"),
        ("population.jitter", 1e300, "at most 100"),
        ("population.speed", "1e-320 samples/s", "1e-06 samples/s to 1e+15 samples/s, and inf samples/s"),
        ("population.speed", {"kind": "uniform", "low": "1 samples/s", "high": "inf samples/s"}, "'high' must be finite"),
        ("population.slow_phases", PHASES | {"mean_slow": "1e-320 s"}, "0.001 s to 1e+10 s"),
        ("population.samples", {"low": 1, "high": 10**30}, "at most 1,000,000,000"),
        ("network", TREE | {"cells": 10**9}, "at most 100,000"),
        ("network.device.latency", "1e12 s", "1e-09 s to 1e+10 s"),
        ("model", {"kind": "size", "bytes": "inf B"}, "0.001 B to 1e+15 B"),
        ("model", {"kind": "mlp", "hidden": [10**9]}, "at most 1,000,000"),
        ("strategy.local_epochs", 10**9, "at most 100,000"),
        ("strategy", {"kind": "ifca", "groups": 10**9}, "at most 10,000"),
        ("strategy", {"kind": "lcfl", "groups": 10**9}, "at most 10,000"),
        ("strategy", {"kind": "flexcfl", "moment": {"steps": 10**9}}, "at most 1,000,000"),
        ("strategy", {"kind": "flexcfl", "pretrain_iterations": 10}, "allowed is 'moment.steps'"),
        ("strategy.over_selection", float("inf"), "a finite number"),
        ("model", {"kind": "x" * 200_000}, "allowed are logistic"),
        ("strategy.clients_per_round", 10**30, "allowed are 1 to 24"),
        ("training.lr", 1e300, "at most 1,000,000"),
        ("training.batch_size", 2**64, "at most 1,000,000,000"),
        ("data.partition", {"kind": "ditto", "seed": -1}, "0 or more"),
        ("data.partition", {"kind": "class-imbalance", "largest": 2**64}, "at most 1,000,000,000"),
        ("stop.simulated_time", "inf s", "1e-09 s to 1e+10 s"),
    ],
)
def test_refused(key: str, value: Any, allowed: str) -> None:
    sections = copy.deepcopy(eventful_world({"kind": "fedavg"}))
    *way, last = key.split(".")
    table = sections
    for part in way:
        table = table.setdefault(part, {})
    table[last] = value
    with pytest.raises(fedsim.ScenarioError) as error:
        fedsim.Scenario(**sections)
    assert allowed in str(error.value)
    assert key in str(error.value)
    assert len(str(error.value)) < 3000


def test_there_is_no_negative_zero() -> None:
    source = {"kind": "synthetic", "alpha": -0.0, "beta": -0.0}
    sections = eventful_world({"kind": "fedavg"}) | {"data": {"source": source, "partition": "synthetic"}}
    sections.pop("drift")
    Simulation(fedsim.Scenario(**sections))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": {"kind": "mlp", "hidden": [10**6, 10**6]}}, "model.kind is 'mlp', which has 1000076000010 parameters"),
        ({"data": {"source": {"kind": "synthetic", "features": 10**6}}}, "data.source.features is 1000000"),
        ({"data": {"partition": {"kind": "class-bias", "sizes": {"low": 10**9, "high": 10**9}}}}, "24000000000 training"),
    ],
)
def test_what_fills_the_memory_only_together(changes: dict[str, Any], named: str) -> None:
    sections = eventful_world({"kind": "fedavg"}) | changes
    sections.pop("drift")
    with pytest.raises(fedsim.ScenarioError) as error:
        Simulation(fedsim.Scenario(**sections))
    assert named in str(error.value)


def test_large_populations_are_allowed() -> None:
    fedsim.Scenario(population={"devices": 100_000_000}, learning="off")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "population",
    [
        {"jitter": 100.0},
        {"speed": LOGNORMAL | {"median": "1e15 samples/s", "spread": 1e6}},
        {"speed": LOGNORMAL | {"median": "1e-6 samples/s", "spread": 1e6}},
        {"speed": "inf samples/s", "samples": {"low": 1, "high": 10**9}},
    ],
)
def test_what_is_allowed_at_the_edge_runs_without_a_warning(population: dict[str, Any]) -> None:
    sections = eventful_world({"kind": "fedavg"}, rounds=2) | {"learning": "off"}
    sections["population"] |= population
    sections["stop"]["simulated_time"] = "10 min"
    if "samples" in population:
        sections.pop("drift")
    run(sections)


def test_a_run_comes_to_the_end_of_the_clock() -> None:
    sections = eventful_world({"kind": "fedavg"}, rounds=2) | {"learning": "off", "stop": {"rounds": 2}}
    sections["population"] |= {"speed": "1e-6 samples/s", "availability": {"kind": "always"}, "departures": None}
    sections["model"] = {"kind": "size", "bytes": "1e15 B"}
    sections["network"] = {"kind": "star", "server": {"down": "1 B/s"}}
    summary = run(sections)
    assert summary["stopped"] == "the end of the clock (1e+10 s)"
    assert summary["simulated_s"] <= CLOCK_END_S


@pytest.mark.parametrize("seconds", [2.0**23 - 2.0**-30, 2.0**23, 1e10 + 2**-10, 1e300, 1.7e308, float("inf")])
def test_every_time_that_is_late_enough_is_on_the_grid(seconds: float) -> None:
    assert on_grid(seconds) == on_grid_after(seconds) == seconds
