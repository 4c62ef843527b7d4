"""What a run will cost, told without it and from its beginning: counts and sizes, which do not
depend on this machine.
"""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.clock.executors import Inline
from fedsim.common.units import show_bytes
from fedsim.lab.forecast import Beginning, expected_maximum, forecast, nominal_lines
from fedsim.lab.whole_forecast import forecast_lines
from tests.test_runs import STRATEGIES


def nominal(sections: dict[str, Any]) -> list[str]:
    return nominal_lines(Beginning(fedsim.Scenario(**sections), Inline()).run)


@pytest.mark.parametrize("drawn", [1, 2, 4, 6])
def test_the_expected_maximum_against_all_draws(drawn: int) -> None:
    values = np.array([5.0, 1.0, 2.0, 2.0, 9.0, 4.0])
    draws = [max(draw) for draw in combinations(values.tolist(), drawn)]
    assert expected_maximum(values, drawn) == pytest.approx(np.mean(draws))
    assert 0.998 < expected_maximum(np.arange(100_000) / 100_000, 1000) < 1.0


@pytest.mark.parametrize("edges", [False, True])
def test_traffic_and_time_agree_with_the_run(edges: bool, small: dict[str, Any]) -> None:
    """Of edge servers each round's edge rounds, and one message more each way for each edge
    server.
    """
    small["population"] |= {"availability": {"kind": "always"}, "jitter": 0.0}
    small["network"]["server"] = {"down": "1 Gbit/s", "up": "1 Gbit/s"}
    small["strategy"] = {"kind": "fedavg", "clients_per_round": 6}
    small["stop"] = {"rounds": 40}
    if edges:
        small["network"] |= {
            "kind": "tree",
            "cells": 2,
            "edge": {"receive": "1 Gbit/s", "send": "1 Gbit/s", "latency": "0 s"},
        }
        small["strategy"] = {"kind": "hierfavg", "clients_per_round": 20, "kappa2": 2}
    lines = nominal(small)
    summary = fedsim.run(fedsim.Scenario(**small | {"learning": "off"})).summary
    assert (
        f"40 rounds: at most {show_bytes(summary['bytes']['down'] + summary['bytes']['up'])}"
        in lines[-1]
    )
    said = float(lines[-1].split("about ")[1].split(" min")[0]) * 60
    assert said == pytest.approx(summary["simulated_s"], rel=0.25)


@pytest.mark.parametrize("own", [False, True])
def test_a_forecast_that_rests_on_estimates_says_so(small: dict[str, Any], own: bool) -> None:
    del small["population"]["speed"]
    small["population"] |= {
        "device": ["phone-mid", "server-gpu"] * (small["population"]["devices"] // 2)
    }
    if not own:
        small["network"] = {"kind": "star"}
    lines = nominal(small)
    (said,) = [line for line in lines if "estimates" in line]
    links = "" if own else ", down, up, latency"
    assert said.endswith(
        f"phone-mid (flops_share, bandwidth_share, batch{links}); server-gpu (flops_share, "
        f"bandwidth_share, batch{links})"
    )


@pytest.mark.parametrize(
    ("said", "rounds", "time"),
    [
        # it bounds the training alone
        ({"deadline": {"kind": "relative", "times": 1.0}}, 2, "40 s"),
        ({"every": "30 s"}, 4, "4 min 00 s"),  # a round takes 36 s, and so 60 s each
    ],
)
def test_deadlines_and_schedules(said: dict[str, Any], rounds: int, time: str) -> None:
    scenario = {
        "learning": "off",
        "population": {"devices": 3, "samples": {"low": 40, "high": 40}, "speed": "10 samples/s"},
        "strategy": {"kind": "fedavg", "clients_per_round": 3, "local_epochs": 9} | said,
        "stop": {"rounds": rounds},
    }
    lines = nominal(scenario)
    assert any(
        f"{rounds} rounds" in line and f"about {time} of simulated time" in line for line in lines
    )


@pytest.mark.parametrize(
    ("fitted", "says"), [(3, False), (9, "own links that a shared one hid"), (2, "carries so much")]
)
def test_a_world_used_beyond_its_log_says_so(
    fitted: int, says: str | bool, small: dict[str, Any]
) -> None:
    small["population"] |= {"fitted_at_once": fitted}
    small["strategy"] = {"kind": "fedavg", "clients_per_round": 3}
    lines = nominal(small)
    assert [line.endswith(str(says)) for line in lines if "were fitted to" in line] == (
        [True] if says else []
    )


def told(
    scenario: fedsim.Scenario, rounds: int | None = None
) -> tuple[dict[str, float], Beginning]:
    """The forecast from a trial of so many rounds, or of the whole run, however slow this
    machine is.
    """
    trial = Beginning(scenario, Inline())
    if rounds is not None:
        simulation = trial.run.simulation
        simulation.listen(lambda record: simulation.interrupt() if trial.rounds >= rounds else None)
    return forecast(trial, 1e9), trial


def test_a_whole_trial_counts_what_the_run_does(small: dict[str, Any], tmp_path: Path) -> None:
    scenario = fedsim.Scenario(**small)
    found, trial = told(scenario)
    result = fedsim.run(scenario, tmp_path / "run")
    assert trial.share == 1
    assert found["events"] == result.summary["events"]
    assert found["tests"] == len(result.rows)
    assert trial.simulated_s == result.summary["simulated_s"]
    written = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*.parquet"))
    assert 0.5 < found["records_bytes"] / written < 2


def test_the_steps_are_those_of_the_updates_that_came(small: dict[str, Any]) -> None:
    small["population"] |= {"availability": {"kind": "always"}}
    small["strategy"] = {"kind": "fedavg", "clients_per_round": 4, "local_epochs": 3}
    small["stop"] = {"rounds": 5}
    scenario = fedsim.Scenario(**small)
    found, trial = told(scenario)
    size = scenario.training.batch_size
    asked = [device for device, _ in trial.tally.trainings]
    assert len(asked) == 20
    assert found["trained_steps"] == sum(
        3 * -(-int(trial.run.samples[device]) // size) for device in asked
    )


def test_a_part_tells_the_whole(small: dict[str, Any], tmp_path: Path) -> None:
    scenario = fedsim.Scenario(
        **small | {"stop": {"rounds": 200}, "learning": "off", "evaluation": {"every": 100}}
    )
    part, trial = told(scenario, rounds=50)
    whole, _ = told(scenario)
    assert 0.2 < trial.share < 0.3
    assert (trial.tally.tests, part["tests"]) == (0, 2)  # those that come after the trial
    assert part["events"] == pytest.approx(whole["events"], rel=0.2)
    assert part["records_bytes"] == pytest.approx(whole["records_bytes"], rel=0.5)


KINDS = ("fedavg", "fedasync", "cata-fed", "lcfl", "fedat", "gossip")  # a family of strategies each


@pytest.mark.parametrize(
    "strategy",
    [one for one in STRATEGIES if one["kind"] in KINDS],
    ids=lambda one: str(one["kind"]),
)
def test_a_strategy_of_each_family_can_be_told(
    small: dict[str, Any], strategy: dict[str, Any]
) -> None:
    lines = forecast_lines(fedsim.Scenario(**small | {"strategy": strategy}), Inline(), 0.05)
    assert any(
        line.startswith(("here a run takes", "what a run takes here cannot be told"))
        for line in lines
    )


def test_a_run_without_a_single_round_is_told(small: dict[str, Any]) -> None:
    hopeless = {"kind": "flexcfl", "groups": 2, "clients_per_round": 4, "deadline": "0.2 s"}
    scenario = fedsim.Scenario(**small | {"strategy": hopeless})
    _, trial = told(scenario)
    assert trial.reason_without_round == trial.stopped == fedsim.run(scenario).summary["stopped"]
    last = forecast_lines(scenario, Inline(), 60.0)[-1]
    assert last.startswith(f"it makes not one round ({trial.reason_without_round})")
    assert told(fedsim.Scenario(**small))[1].reason_without_round is None


@pytest.mark.parametrize(
    ("latency", "server_up", "protocol", "warns"),
    [
        ("40 ms", "5 Mbit/s", "tcp", True),
        ("2 ms", "5 Mbit/s", "tcp", False),
        ("40 ms", "50 Mbit/s", "tcp", False),
        ("40 ms", "5 Mbit/s", {"kind": "tcp", "model": "window"}, False),
    ],
)
def test_a_full_link_over_long_round_trips_names_the_window_model(
    latency: str, server_up: str, protocol: Any, warns: bool
) -> None:
    scenario = fedsim.Scenario(
        learning="off",
        model={"kind": "size", "bytes": "100 kB"},
        population={"devices": 10},
        network={
            "kind": "star",
            "protocol": protocol,
            "server": {"down": "50 Mbit/s", "up": server_up},
            "device": {"down": "10 Mbit/s", "up": "2 Mbit/s", "latency": latency},
        },
        strategy={"kind": "fedavg", "clients_per_round": 10},
        stop={"rounds": 1},
    )
    lines = forecast_lines(scenario, Inline(), patience_s=0.0)
    assert any("model 'window'" in line for line in lines) == warns
