"""Scenarios: read, resolved, written back; and one clear message for whatever is wrong, or would never end."""

import copy
from typing import Any

import pytest

import fedsim
from fedsim import ScenarioError
from fedsim.language.spec import Spec, _modes_of
from fedsim.language.units import CLOCK_END_S
from fedsim.overrides import at
from fedsim.simulation import Simulation, on_grid, on_grid_after
from fedsim.strategies import STRATEGIES
from fedsim.testing import eventful_world, run
from fedsim.toolbox.aggregation.robust import Bulyan, Krum, cut_off
from tests.strategies.runs import of_kind, ran
from tests.strategies.test_hierfavg import with_cells

LOGNORMAL = {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0}


def changed(sections: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    sections = copy.deepcopy(sections)
    *keys, last = path.split(".")
    table = at(sections, keys)
    if value is None:
        del table[last]
    else:
        table[last] = value
    return sections


MODES: list[tuple[dict[str, Any], str]] = [
    ({"kind": "fednova", "partial_work": False}, "here 'deadline' is not given"),
    ({"kind": "ifca", "averaging": "gradients", "local_epochs": 3}, "'averaging' is 'models'"),
    ({"kind": "tifl", "test_clients": 3}, "'mode' is 'credits'"),
    *(
        ({"kind": "refl", "aggregation": how}, f"'aggregation' is '{how}', in which weights do not count")
        for how in ("first", "median", "trimmed-mean", "krum", "multi-krum", "bulyan", "private")
    ),
]
"""Keys that count in a mode alone: they are refused elsewhere, unless they have their default."""


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("sed", 3, r"has the unknown key 'sed'.*did you mean 'seed'"),
        ("population.spede", "3 samples/s", r"population has the unknown key 'spede'; allowed are .*did you mean 'speed'"),
        ("strategy.kind", "fedavgg", r"^strategy.kind is 'fedavgg'; allowed are .*fedavg.*did you mean 'fedavg'"),
        ("strategy.kind", "fedsim.errors:FedsimError", r"not a subclass of fedsim.plugin.Strategy"),
        ("strategy.mu", 1.0, r"strategy has the unknown key 'mu'"),
        ("strategy.clients_per_round", 21, r"clients_per_round is 21.*20 devices; allowed are 1 to 20"),
        ("strategy.over_selection", 5.0, r"over_selection 5 asks 30.*20 devices; .* product is at most 20"),
        ("strategy.deadline", "0 s", r"strategy.deadline is '0 s': a time here must be above 0 s"),
        ("strategy.deadline", 30, r"strategy.deadline is 30: a time needs its unit.*min"),
        ("strategy.deadline", "-3 s", r"strategy.deadline is '-3 s': a time cannot be negative"),
        ("population.availability.kind", "renewl", r"availability.kind is 'renewl'; allowed.*did you mean 'renewal'"),
        ("population.availability.mean_on", None, r"population.availability.mean_on is missing"),
        ("population.availability", {}, r"population.availability.kind is missing; allowed are always, renewal, "),
        ("network", {"device": {"up": "1 Mbit/s"}}, r"^network.kind is missing; allowed are star, tree, graph, regions$"),
        ("malicious", 0.2, r"^malicious is 0.2; it must be a table, and 'fedsim list malicious' names its keys$"),
        ("population.devices", "many", r"population.devices is 'many'; it must be a whole number, such as 10"),
        ("population.speed", "fast", r"population.speed.* is .*'fast'.*samples/s"),
        ("population.capacity", {"kind": "fedscale"}, r"population: 'speed' and 'capacity'"),
        ("network.server.up", "3 apples", r"network.server.up is '3 apples': a data rate is a number and a unit"),
        ("data.source", "mnits", r"data.source.*mnits.*allowed.*mnist"),
        ("model", {"kind": "mpl"}, r"model.kind is 'mpl'.*did you mean 'mlp'"),
        ("stop.rounds", None, r"stop: a run needs an end"),
        ("stop.accuracy", 1.5, r"^stop.accuracy is 1.5; it must be at most 1 \(did you mean 0.015\?\)$"),
        ("stop.accuracy", 90, r"^stop.accuracy is 90; it must be at most 1 \(did you mean 0.9\?\)$"),
        ("stop.rounds", 1.5, r"^stop.rounds is 1.5; it must be a whole number, such as 2$"),
        ("training.lr", "0.1", r"^training.lr is '0.1'; it must be a number, such as 0.1$"),
        ("model", {"kind": "mlp", "hidden": 30}, r"^model.hidden is 30; it must be a list, such as \[30\]$"),
        ("model", {"kind": "mlp", "hidden": [True]}, r"^model.hidden.0 is True; it must be a whole number, such as 1$"),
        ("name", 3, r"^name is 3; it must be a text in quotes, such as '3'$"),
        ("name", "n" * 201, r"; it must have at most 200 characters$"),
        ("learning", "maybe", r"learning is 'maybe'; allowed are on, off"),
        ("messages", {"up": {"dtype": "float8"}}, r"messages.up.dtype is 'float8'.*float64"),
        ("model", {"kind": "size", "bytes": "3 MB"}, r"model.kind is 'size'"),
        # What would fill the memory, never end, or cannot be computed with.
        ("population.devices", 2**31, "at most 100,000,000"),
        ("population.jitter", 1e300, "at most 100"),
        ("population.speed", "1e-320 samples/s", "1e-06 samples/s to 1e.15 samples/s, and inf samples/s"),
        ("population.speed", {"kind": "uniform", "low": "1 samples/s", "high": "inf samples/s"}, "'high' must be finite"),
        ("population.slow_phases", {"factor": 0.5, "mean_normal": "10 s", "mean_slow": "1e-320 s"}, "0.001 s to 1e.10 s"),
        ("population.samples", {"low": 1, "high": 10**30}, "at most 1,000,000,000"),
        ("network", {"kind": "tree", "cells": 10**9}, "at most 100,000"),
        ("network.device.latency", "1e12 s", "1e-09 s to 1e.10 s"),
        ("model", {"kind": "size", "bytes": "inf B"}, "0.001 B to 1e.15 B"),
        ("model", {"kind": "mlp", "hidden": [10**9]}, "at most 1,000,000"),
        ("strategy.local_epochs", 10**9, "at most 100,000"),
        ("strategy", {"kind": "ifca", "groups": 10**9}, "at most 10,000"),
        ("strategy", {"kind": "flexcfl", "moment": {"steps": 10**9}}, "at most 1,000,000"),
        ("strategy", {"kind": "flexcfl", "pretrain_iterations": 10}, "allowed is .moment.steps."),
        ("strategy.over_selection", float("inf"), "a finite number"),
        ("model", {"kind": "x" * 200_000}, "allowed are logistic"),
        ("training.lr", 1e300, "at most 1,000,000"),
        ("training.batch_size", 2**64, "at most 1,000,000,000"),
        ("data.partition", {"kind": "ditto", "seed": -1}, "0 or more"),
        ("data.partition", {"kind": "class-imbalance", "largest": 2**64}, "at most 1,000,000,000"),
        ("stop.simulated_time", "inf s", "1e-09 s to 1e.10 s"),
        *(("strategy", strategy, message) for strategy, message in MODES),
    ],
)
def test_one_message_names_the_key_the_value_and_what_is_allowed(
    small: dict[str, Any], path: str, value: Any, expected: str
) -> None:
    with pytest.raises(ScenarioError, match=expected) as caught:
        fedsim.Scenario(**changed(small, path, value))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 3000


def test_a_deadline_shorter_than_any_download_is_refused_when_it_is_built(small: dict[str, Any]) -> None:
    scenario = fedsim.Scenario(**changed(small, "strategy.deadline", "100 ms"))
    with pytest.raises(ScenarioError, match=r"strategy.deadline is 0.1 s, but the fastest device needs .* for its download"):
        fedsim.run(scenario)


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
    with pytest.raises(ScenarioError, match=named):
        Simulation(fedsim.Scenario(**sections))
    fedsim.Scenario(population={"devices": 100_000_000}, learning="off")  # none of them is allowed alone
    source = {"kind": "synthetic", "alpha": -0.0, "beta": -0.0}  # there is no negative zero
    Simulation(fedsim.Scenario(**sections | {"model": "logistic", "data": {"source": source, "partition": "synthetic"}}))


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


def test_defaults_that_are_written_out_are_taken() -> None:
    specs: list[type[Spec]] = [STRATEGIES.spec(kind) for kind in STRATEGIES]
    assert sum(len(_modes_of(spec)) for spec in specs) > 25
    for kind, spec in zip(STRATEGIES, specs, strict=True):
        written = {name: spec.model_fields[name].get_default() for name, _ in _modes_of(spec)}
        if kind not in ("flower", "cata-fed", "hierfavg"):  # these need an app, a deadline or edge servers
            fedsim.Scenario(strategy={"kind": kind} | {name: value for name, value in written.items() if value is not None})


def test_what_few_updates_bear_is_said(tmp_path: Any) -> None:
    assert [cut_off(0.1, count) for count in (1, 2, 3, 9, 10, 19, 20)] == [0, 0, 1, 1, 1, 1, 2]
    assert [cut_off(0.0, count) for count in (3, 30)] == [0, 0]
    assert [Krum(malicious=2).told(count) for count in (7, 6, 3)] == [{}, {"bears": 1}, {"bears": 0}]
    assert Bulyan(malicious=2).told(10) == {"bears": 1}
    how = {"kind": "krum", "malicious": 1}
    found = ran(
        with_cells(3, {"kind": "hierfavg", "clients_per_round": 15, "kappa2": 1, "aggregation": how}, 1), tmp_path / "run"
    )
    records = [event["data"] for event in of_kind(found, "aggregate")]
    assert all(record.get("bears", 1) == min(1, max(0, (len(record["tasks"]) - 3) // 2)) for record in records)
    assert any("bears" in record for record in records)
