"""Selections that wait until enough clients are there, and draws with replacement."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.common.errors import ScenarioError
from fedsim.lab.audit import audit
from fedsim.testing import assert_same_run, eventful_world, go_on, run, run_until
from tests.strategies.runs import model_after, of_kind, ran
from tests.strategies.worlds import curved
from tests.test_runs import STRATEGIES

Sections = dict[str, Any]


def coming(strategy: Sections, **population: Any) -> Sections:
    """Four devices from the start, and newcomers at 70, 130 and 190 s."""
    times = ["70 s", "130 s", "190 s"]
    arrivals = {"kind": "schedule", "times": times, "devices": [4, 5, 6]}
    return {
        "learning": "off",
        "population": {"devices": 7, "speed": "10 samples/s", "arrivals": arrivals}
        | {"samples": {"low": 30, "high": 30}}
        | population,
        "strategy": {"clients_per_round": 2} | strategy,
        "stop": {"rounds": 2},
    }


WAITS = [
    ({"kind": "fedavg"}, 4, 0.0),
    ({"kind": "fedavg"}, 5, 120.0),  # the first look after 70 s
    ({"kind": "fedavg", "retry": "7 s"}, 6, 133.0),
    ({"kind": "ifca", "groups": 2, "retry": "50 s"}, 7, 200.0),
    ({"kind": "lcfl", "groups": 2, "retry": "50 s"}, 6, 150.0),
    ({"kind": "flexcfl", "groups": 2, "retry": "50 s", "moment": {"devices": 2}}, 6, 150.0),
    ({"kind": "fedbuff", "concurrency": 2, "buffer": 1}, 5, 70.0),  # newcomers are announced
    ({"kind": "fedcompass", "concurrency": 2}, 5, 70.0),
]


@pytest.mark.parametrize(("strategy", "least", "first"), WAITS)
def test_the_first_task_waits_for_the_newcomers(
    strategy: Sections, least: int, first: float, tmp_path: Path
) -> None:
    sections = coming(strategy | {"min_available": least})
    for key in ("lcfl", "fedbuff", "fedcompass"):
        if strategy["kind"] == key:
            sections["strategy"].pop("clients_per_round")
    folder = ran(sections, tmp_path / "run")
    assert of_kind(folder, "task-start")[0]["time"] == first
    assert folder.summary["rounds"] == 2


def test_a_round_waits_until_devices_are_back(tmp_path: Path) -> None:
    """By a trace: three of four devices are there until 5 s, and all again from 100 s."""
    (tmp_path / "nights.csv").write_text(
        "device,start,end\n0,0,1000\n1,0,1000\n2,0,5\n2,100,1000\n3,0,1000\n"
    )
    sections = coming({"kind": "fedavg", "min_available": 4, "retry": "10 s"})
    population = sections["population"] | {"devices": 4}
    population.pop("arrivals")
    population["availability"] = {
        "kind": "intervals",
        "file": str(tmp_path / "nights.csv"),
        "unit": "s",
    }
    folder = ran(sections | {"population": population, "stop": {"rounds": 3}}, tmp_path / "run")
    begins = [event["time"] for event in of_kind(folder, "round-start")]
    assert begins[:2] == [0.0, 3.0]  # a training takes 3 s
    assert 100.0 <= begins[2] < 110.0


def test_a_run_that_can_never_get_them_says_so(tmp_path: Path) -> None:
    sections = coming({"kind": "fedavg", "min_available": 6})
    departures = {"kind": "schedule", "times": ["20 s", "40 s"], "devices": [0, 1]}
    sections["population"] |= {"departures": departures}
    folder = ran(sections, tmp_path / "run")
    assert folder.summary["stopped"] == "fewer than 6 devices will ever be there again"
    with pytest.raises(ScenarioError, match="min_available is 8, more than the population's 7"):
        fedsim.Scenario(**coming({"kind": "fedavg", "min_available": 8}))


FAMILIES = ("cata-fed", "refl", "tifl", "gossip")


def check_waiting(strategies: list[Sections], place: Path) -> None:
    """Each strategy begins tasks of rounds only with enough clients, or refuses the key by name."""
    for number, strategy in enumerate(strategies):
        sections = eventful_world(strategy | {"min_available": 15}, rounds=3) | {"learning": "off"}
        try:
            scenario = fedsim.Scenario(**sections)
        except ScenarioError as error:
            assert "min_available" in str(error)  # noqa: PT017
            continue
        fedsim.run(scenario, place / str(number), executor="inline")
        found = audit(place / str(number))
        assert not any(found.values()), (strategy, found)


def test_families_of_strategies_wait_or_refuse(tmp_path: Path) -> None:
    check_waiting([some for some in STRATEGIES if some["kind"] in FAMILIES], tmp_path)


@pytest.mark.long
def test_every_strategy_waits_or_refuses(tmp_path: Path) -> None:
    check_waiting(STRATEGIES, tmp_path)


# With replacement.


def test_an_update_counts_as_often_as_its_client_was_drawn(tmp_path: Path) -> None:
    """The step of a round is the mean over the draws of the steps of each client alone."""
    drawing = {"kind": "fedavg", "aggregation": "mean", "clients_per_round": 4}
    drawing["selection"] = {"kind": "random", "replacement": True}
    sections = curved(tmp_path, drawing, 1, 5)
    folder = ran(sections, tmp_path / "run")
    (record,) = of_kind(folder, "aggregate")
    draws = record["data"]["draws"]
    assert sum(draws) == 4
    assert max(draws) > 1
    by_task = {event["task"]: event["device"] for event in of_kind(folder, "task-start")}
    devices = [by_task[task] for task in record["data"]["tasks"]]
    assert len(set(devices)) == len(devices)
    assert record["data"]["weights"] == pytest.approx([count / 4 for count in draws])
    changes = {}
    whole = curved(tmp_path, drawing | {"selection": "random"}, 1, 5)
    usual = model_after(whole)
    for device in range(4):  # the device alone does not learn: what is missing is its share
        rates = [0.1] * device + [1e-12] + [0.1] * (3 - device)
        local = {"population": whole["population"] | {"local": {"lr": rates}}}
        changes[device] = usual - model_after(whole | local)
    by_draws = sum(count * changes[device] for device, count in zip(devices, draws, strict=True))
    still = whole["population"] | {"local": {"lr": [1e-12] * 4}}
    np.testing.assert_allclose(
        model_after(sections), model_after(whole | {"population": still}) + by_draws, atol=1e-4
    )


def test_draws_are_uniform_and_go_on_after_a_kill(tmp_path: Path) -> None:
    drawing = {"kind": "fedprox", "clients_per_round": 8}
    drawing["selection"] = {"kind": "random", "replacement": True}
    sections = eventful_world(drawing, rounds=6) | {"learning": "off"}
    whole = run(sections, tmp_path / "whole")
    assert run_until(sections, tmp_path / "cut", whole["events"] // 2) == "interrupted"
    go_on(sections, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    assert not any(audit(tmp_path / "cut").values())
    many = {
        "learning": "off",
        "population": {"devices": 5},
        "strategy": drawing | {"clients_per_round": 5},
        "stop": {"rounds": 400},
    }
    folder = fedsim.run(fedsim.Scenario(**many), tmp_path / "many", executor="inline")
    counts = folder.devices["selected"].to_numpy(float)
    # a device is among 5 draws of 5 with probability 1 - (4/5)^5; four standard deviations
    share = 1 - 0.8**5
    assert abs(counts / 400 - share).max() < 4 * (share * (1 - share) / 400) ** 0.5


REFUSED = [
    ({"kind": "scaffold"}, "strategy.kind is 'scaffold'"),
    ({"kind": "fedbuff"}, "strategy.kind is 'fedbuff'"),
    ({"kind": "fedavg", "aggregation": "median"}, "strategy.aggregation is 'median'"),
    ({"kind": "fedavg", "secure_aggregation": {}}, "strategy.secure_aggregation is given"),
    ({"kind": "fedavg", "over_selection": 1.5}, "strategy.over_selection is 1.5"),
]


@pytest.mark.parametrize(("strategy", "reason"), REFUSED)
def test_what_needs_each_client_once_refuses_replacement(strategy: Sections, reason: str) -> None:
    drawing = {"selection": {"kind": "random", "replacement": True}}
    with pytest.raises(ScenarioError, match=reason):
        fedsim.Scenario(strategy=strategy | drawing)
