"""Synchronous and clustered strategies, CATA-Fed and TiFL in any world: nothing hangs, and the books are sound."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedsim
from fedsim.simulation import Simulation
from tests.strategies.clustered import PAIRED, of_kind, ran

Options = dict[str, st.SearchStrategy[Any]]

COHORT: Options = {"clients_per_round": st.just(5), "deadline": st.sampled_from(["10 s", "60 s", "10 min"])}
GROUPED: Options = COHORT | {"groups": st.just(3), "local_epochs": st.just(2), "over_selection": st.sampled_from([1.0, 1.5])}
SHIFT = st.sampled_from(["oracle", "never"])
PRE_TRAINED: Options = GROUPED | {
    "moment": st.fixed_dictionaries({"shift": SHIFT, "devices": st.sampled_from([1, 20])}),
    "eta_g": st.sampled_from([0.0, 0.5]),
}
ONCE: Options = {
    "groups": st.just(3),
    "local_epochs": st.just(2),
    "participation": st.sampled_from([0.3, 1.0]),
    "moment": st.sampled_from([{"rounds": 2}, {"rounds": 2, "participation": 0.3, "attempts": 1}, {"deadline": "20 s"}]),
}
OPTIONS: dict[str, Options] = {
    **dict.fromkeys(
        ("fedavg", "fedprox"), COHORT | {"local_epochs": st.just(3), "over_selection": st.sampled_from([1.0, 1.5])}
    ),
    "local": COHORT,
    "fedgroup": PRE_TRAINED,
    "flexcfl": PRE_TRAINED,
    "fesem": GROUPED,
    "fl-hc": ONCE,
    "ifca": GROUPED,
    "ifca-mig": GROUPED | {"moment": st.fixed_dictionaries({"shift": SHIFT})},
    "lcfl": ONCE | {"measure": st.sampled_from(["lcfl", "diff-norm"])},
    "cfl": COHORT | {"split_rounds": st.just([0, 1, 3]), "as": st.sampled_from(["paper", "published-code"])},
    "cata-fed": {name: st.booleans() for name in ("adaptive", "mitigation", "rejoin", "reserve_upload")}
    | {"clients_per_round": st.just(4), "clusters": st.just(2), "smallest_part": st.just(10), "most_epochs": st.just(20)}
    | {"deadline": st.sampled_from(["200 ms", "4 s", "40 s", "10 min"])}
    | {"selection": st.sampled_from(["proportional-fair", "round-robin", "random"])},
    "tifl": {"clients_per_round": st.just(4), "tiers": st.just(3), "credits": st.just(3), "mode": st.just("credits")}
    | {"interval": st.just(2), "tiers_from": st.just("latency"), "profiling_limit": st.sampled_from(["20 s", "5 min"])},
}
STRATEGIES = st.sampled_from(sorted(OPTIONS)).flatmap(
    lambda kind: st.fixed_dictionaries({"kind": st.just(kind)} | OPTIONS[kind])
)


durations = st.sampled_from(["500 ms", "3 s", "20 s", "2 min", "1 h"])
rates = st.sampled_from(["5 kbit/s", "64 kbit/s", "1 Mbit/s", "1 Gbit/s"])
networks = st.one_of(
    st.fixed_dictionaries(
        {
            "kind": st.just("star"),
            "server": st.fixed_dictionaries({"down": rates, "up": rates}),
            "device": st.fixed_dictionaries({"down": rates, "up": rates, "latency": st.sampled_from(["0 s", "40 ms", "3 s"])}),
        }
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("tree"),
            "cells": st.integers(1, 4),
            "cell": st.fixed_dictionaries({"down": rates, "up": rates}),
            "server": st.fixed_dictionaries({"down": rates, "up": rates}),
            "device": st.fixed_dictionaries({"down": rates, "up": rates}),
        }
    ),
)
availabilities = st.one_of(
    st.just({"kind": "always"}),
    st.fixed_dictionaries({"kind": st.just("renewal"), "mean_on": durations, "mean_off": durations}),
)


def refused_for_its_deadline(scenario: dict[str, Any]) -> bool:
    """Whether the deadline is shorter than any download: that is refused before anything happens."""
    try:
        Simulation(fedsim.Scenario(**scenario))
    except fedsim.ScenarioError as error:
        return "for its download alone" in str(error)
    return False


@pytest.mark.long
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    strategy=STRATEGIES,
    seed=st.integers(0, 1000),
    network=networks,
    availability=availabilities,
    jitter=st.sampled_from([0.0, 0.5]),
    lifetimes=st.booleans(),
    slow=st.booleans(),
    every=st.sampled_from(["7 s", "100 s"]),
)
def test_books_are_sound(
    strategy: dict[str, Any], seed: int, network: Any, availability: Any, jitter: float, lifetimes: bool, slow: bool, every: str
) -> None:
    population = {"devices": 16, "speed": {"kind": "lognormal", "median": "100 samples/s", "spread": 3.0}}
    population |= {"jitter": jitter, "availability": availability}
    if lifetimes:
        population |= {"arrivals": {"kind": "poisson", "rate": "1 /min", "newcomers": 6}}
        population |= {"departures": {"kind": "exponential", "mean_stay": "10 min", "share": 0.5}}
    population |= {"slow_phases": {"factor": 0.1, "mean_normal": "30 s", "mean_slow": "5 s"}} if slow else {}
    scenario = {"seed": seed, "learning": "off", "data": PAIRED, "population": population, "network": network}
    scenario |= {"strategy": strategy, "stop": {"rounds": 8, "simulated_time": "20 min"}}
    scenario |= {"drift": {"kind": "swap-all", "probability": 0.7, "at": {"every": every}}}
    if strategy["kind"] != "cata-fed" and refused_for_its_deadline(scenario):
        return
    with tempfile.TemporaryDirectory() as folder:
        run = ran(scenario, Path(folder) / "run")
        stopped = run.summary["stopped"]
        assert stopped in ("8 rounds", "simulated time") or any(word in stopped for word in ("cold starts", "no ", "too few"))
        ends = {event["task"]: event for event in of_kind(run, "task-end")}
        counted = [task for event in of_kind(run, "aggregate") for task in event["data"]["tasks"]]
        assert len(counted) == len(set(counted))
        assert all(ends[task]["outcome"] == "done" for task in counted)
