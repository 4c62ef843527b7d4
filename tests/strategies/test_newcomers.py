"""Devices that join and leave while a run goes on, at every strategy."""

from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.records.reading import RunFolder
from fedsim.simulation import Simulation
from tests.strategies.clustered import PAIRED, Sections, of_kind, ran, world


def starts(run: RunFolder) -> list[list[dict[str, Any]]]:
    """For each device the begin of each of its tasks, and how the task ended."""
    ends = {event["task"]: event["outcome"] for event in of_kind(run, "task-end")}
    found: list[list[dict[str, Any]]] = [[] for _ in range(20)]
    for event in of_kind(run, "task-start"):
        found[event["device"]].append(event | {"outcome": ends[event["task"]]})
    return found


class TestIntroductions:
    """Strategies that get to know a device before they ask it."""

    def joined(self, folder: Path, strategy: Sections) -> RunFolder:
        times = ["1 s", "2 s"]
        population = {"arrivals": {"kind": "schedule", "times": times, "devices": [3, 11]}}
        return ran(world(PAIRED, 20, strategy, 60, population=population, learning="off"), folder)

    def test_cata_fed_connects_a_newcomer_when_it_arrives(self, tmp_path: Path) -> None:
        strategy = {"kind": "cata-fed", "clients_per_round": 4, "clusters": 2, "deadline": "500 ms", "most_epochs": 3}
        run = self.joined(tmp_path / "run", strategy | {"smallest_part": 10})
        reports = {row["device"]: row["start"] for row in run.transfers if row["purpose"] == "size-report"}
        assert {device: time for device, time in reports.items() if time > 0} == {3: 1.0, 11: 2.0}
        clustered = [(event["time"], sum(event["data"]["members"])) for event in of_kind(run, "cluster")]
        assert [members for _, members in clustered] == [18, 19, 20]
        for device in (3, 11):
            own = starts(run)[device]
            assert [event["round"] is None for event in own] == [True] + [False] * (len(own) - 1)
            assert len(own) > 1

    @pytest.mark.parametrize("tiers_from", ["size", "latency"])
    def test_tifl_introduces_a_newcomer_when_it_arrives_and_sorts_it_in(self, tmp_path: Path, tiers_from: str) -> None:
        strategy = {"kind": "tifl", "tiers": 2, "clients_per_round": 3, "tiers_from": tiers_from}
        strategy |= {"profiling_rounds": 2} if tiers_from == "latency" else {}
        run = self.joined(tmp_path / "run", strategy)
        started = starts(run)
        introduced = {device: [event["time"] for event in own if event["round"] is None] for device, own in enumerate(started)}
        times = 1 if tiers_from == "size" else 2
        assert all(len(own) == times for own in introduced.values())
        assert (introduced[3][0], introduced[11][0]) == (1.0, 2.0)
        assert all(own[0] == 0 for device, own in introduced.items() if device not in (3, 11))
        (event,) = of_kind(run, "tiers")
        assert sum(event["data"]["members"]) == 18
        assert run.devices[3]["group"] is not None
        assert any(event["round"] is not None for device in (3, 11) for event in started[device])


def test_a_server_does_not_know_who_is_to_come() -> None:
    sections = world(
        PAIRED, 20, {"kind": "fedavg"}, 1, population={"arrivals": {"kind": "schedule", "times": ["5 s"], "devices": [4]}}
    )
    run = Simulation(fedsim.Scenario(**sections)).installed
    assert [device for device in range(20) if not run.server.clients.arrived(device)] == [4]
    assert run.server.clients.expects_newcomers()
    assert 4 not in run.server.clients.online()
    alone = Simulation(fedsim.Scenario(**world(PAIRED, 20, {"kind": "fedavg"}, 1))).installed
    assert not alone.server.clients.expects_newcomers()


def test_once_the_last_newcomer_has_come_and_gone_nobody_is_waited_for(tmp_path: Path) -> None:
    population = {
        "arrivals": {"kind": "schedule", "times": ["20 s"], "devices": [1]},
        "departures": {"kind": "schedule", "times": ["10 s", "21 s"], "devices": [0, 1]},
    }
    strategy = {"kind": "cata-fed", "clients_per_round": 1, "clusters": 1, "deadline": "1 s", "smallest_part": 10}
    data = {"source": "digits", "partition": "iid"}
    run = ran(world(data, 2, strategy, 10_000, population=population, learning="off"), tmp_path / "run")
    assert run.summary["stopped"] == "no client is connected any more"
    assert 20 < run.events[-1]["time"] < 30
