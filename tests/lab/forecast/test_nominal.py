"""What a run will cost in its own world, said without simulating it."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.executors.inline import Inline
from fedsim.lab.forecast.nominal import expected_maximum, nominal_lines
from fedsim.lab.forecast.trial import Beginning
from fedsim.language.units import show_bytes


@pytest.mark.parametrize("drawn", [1, 2, 4, 6])
def test_the_expected_maximum_against_all_draws(drawn: int) -> None:
    values = np.array([5.0, 1.0, 2.0, 2.0, 9.0, 4.0])
    draws = [max(draw) for draw in combinations(values.tolist(), drawn)]
    assert expected_maximum(values, drawn) == pytest.approx(np.mean(draws))


def test_it_is_of_many_devices_too() -> None:
    assert 0.998 < expected_maximum(np.arange(100_000) / 100_000, 1000) < 1.0


def test_traffic_and_time_agree_with_the_run(small: dict[str, Any]) -> None:
    small["population"] |= {"availability": {"kind": "always"}, "jitter": 0.0}
    small["network"]["server"] = {"down": "1 Gbit/s", "up": "1 Gbit/s"}
    small["strategy"] = {"kind": "fedavg", "clients_per_round": 6}
    small["stop"] = {"rounds": 40}
    lines = nominal_lines(Beginning.built(fedsim.Scenario(**small), Inline()).run)
    summary = fedsim.run(fedsim.Scenario(**small | {"learning": "off"})).summary
    assert f"40 rounds: at most {show_bytes(summary['bytes']['down'] + summary['bytes']['up'])}" in lines[-1]
    said = float(lines[-1].split("about ")[1].split(" min")[0]) * 60
    assert said == pytest.approx(summary["simulated_s"], rel=0.25)


@pytest.mark.parametrize("own", [False, True])
def test_a_forecast_that_rests_on_estimates_says_so(small: dict[str, Any], own: bool) -> None:
    del small["population"]["speed"]
    small["population"] |= {"device": ["phone-mid", "server-gpu"] * (small["population"]["devices"] // 2)}
    if not own:
        small["network"] = {"kind": "star"}
    lines = nominal_lines(Beginning.built(fedsim.Scenario(**small), Inline()).run)
    (said,) = [line for line in lines if "estimates" in line]
    links = "" if own else ", down, up, latency"
    assert said.endswith(
        f"phone-mid (flops_share, bandwidth_share, batch{links}); server-gpu (flops_share, bandwidth_share, batch{links})"
    )


@pytest.mark.parametrize(
    ("said", "rounds", "time"),
    [
        ({"deadline": {"kind": "relative", "times": 1.0}}, 2, "40 s"),  # it bounds the training alone
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
    lines = nominal_lines(Beginning.built(fedsim.Scenario(**scenario), Inline()).run)
    assert any(f"{rounds} rounds" in line and f"about {time} of simulated time" in line for line in lines)


@pytest.mark.parametrize(("fitted", "says"), [(3, False), (9, "own links that a shared one hid"), (2, "carries so much")])
def test_a_world_used_beyond_its_log_says_so(fitted: int, says: str | bool, small: dict[str, Any]) -> None:
    small["population"] |= {"fitted_at_once": fitted}
    small["strategy"] = {"kind": "fedavg", "clients_per_round": 3}
    lines = nominal_lines(Beginning.built(fedsim.Scenario(**small), Inline()).run)
    assert [line.endswith(str(says)) for line in lines if "were fitted to" in line] == ([True] if says else [])
