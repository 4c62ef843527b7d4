"""Rehearsals without Flower: refusals, ends of processes, counters of the wire, differences."""

import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import fedsim
from fedsim.common.errors import RunFolderError, ScenarioError
from fedsim.deployed.wire import WireCounters
from fedsim.lab.rehearsal.conduct import RehearsalPlan, links_of, refuse
from fedsim.lab.rehearsal.differences import compare, lines
from fedsim.lab.rehearsal.needs import free_port, obstacles, port_is_free, simulated_only
from fedsim.running.assembly import Run
from fedsim.running.scenario import Scenario
from tests.children import popen, wait_until

LOOPBACK = RehearsalPlan(has_namespaces=False)
START = """
import sys
from pathlib import Path
from fedsim.lab.rehearsal.processes import RehearsalProcesses
processes = RehearsalProcesses(Path(sys.argv[1]))
child = "import os, subprocess, sys, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
started = processes.start("one", [sys.executable, "-c", child], {})
print(started.pid, flush=True)
sys.stdin.read()
"""


def scenario(devices: int = 4, **sections: object) -> Scenario:
    return Scenario(
        learning="off",
        population={"devices": devices, "speed": "10 samples/s"},
        strategy={"kind": "fedavg", "clients_per_round": 2},
        stop={"rounds": 2},
        **sections,
    )


def test_a_scenario_that_no_machine_can_rehearse_is_refused_with_each_reason(
    tmp_path: Path,
) -> None:
    tree = scenario(30, network={"kind": "tree", "cells": 2})
    reasons = "\n".join(obstacles(tree, has_namespaces=True))
    assert 'learning is "off"' in reasons
    assert "population.devices is 30" in reasons
    assert "allowed are 1 to 20" in reasons
    assert "network.kind is 'tree'" in reasons
    with pytest.raises(ScenarioError, match=r"population\.devices is 30"):
        refuse(tree, tmp_path / "out", LOOPBACK)
    assert not (tmp_path / "out").exists()


def test_parts_of_the_world_that_are_not_rehearsed_are_refused_or_named() -> None:
    population = {"devices": 4, "speed": "10 samples/s"}
    strategy = {"kind": "fedavg", "clients_per_round": 2}
    slow = {
        "stragglers": {"share": 0.5, "factor": 0.3},
        "slow_phases": {"mean_normal": "1 h", "mean_slow": "5 min", "factor": 0.3},
    }
    for name, value in slow.items():
        world = Scenario(population={**population, name: value}, strategy=strategy)
        reasons = "\n".join(obstacles(world, has_namespaces=False))
        assert f"population.{name} is not rehearsed" in reasons
    host = {"cores": 4, "start_up": "1 s"}
    network = {
        "kind": "star",
        "protocol": {"kind": "tcp", "model": "window"},
        "device": {"down": "8 Mbit/s", "up": "8 Mbit/s", "latency": "9 ms", "loss": 0.01},
    }
    world = Scenario(
        population={**population, "jitter": 0.1, "host": host},
        network=network,
        strategy=strategy,
        server={"patience": "1 min"},
    )
    plain = Scenario(population=population, strategy=strategy)
    named = ["population.jitter", "population.host", "network.device.loss", "server.patience"]
    assert list(simulated_only(world, has_namespaces=True, trains=False)) == named
    assert list(simulated_only(plain, has_namespaces=True, trains=False)) == []
    assert list(simulated_only(plain, has_namespaces=False, trains=True)) == [
        "population.speed",
        "network",
    ]


@pytest.mark.parametrize(
    ("installed", "due"),
    [
        (None, "Flower is not installed here; a rehearsal needs Flower 1.41 or later"),
        ("1.40.0", "Flower 1.40.0 is installed here; a rehearsal needs Flower 1.41 or later"),
        ("1.9", "Flower 1.9 is installed here"),
        ("1.41.0", ""),
        ("2.0rc1", ""),
    ],
)
def test_a_version_of_flower_that_is_too_old_is_named(
    installed: str | None, due: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsim.lab.rehearsal.needs._flower_version", lambda: installed)
    about_flower = [it for it in obstacles(scenario(), has_namespaces=False) if "Flower" in it]
    assert bool(about_flower) == bool(due)
    assert due in "".join(about_flower)


def test_a_port_that_is_taken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.lab.rehearsal.conduct.obstacles", lambda *_, **__: [])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not port_is_free(port)
        with pytest.raises(ScenarioError, match=f"--port {port} is taken by another process"):
            refuse(scenario(), tmp_path, RehearsalPlan(has_namespaces=False, port=port))
    assert port_is_free(free_port())
    (tmp_path / "logs").mkdir()
    with pytest.raises(RunFolderError, match="has a rehearsal already"):
        refuse(scenario(), tmp_path, LOOPBACK)


def members(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            state, _, own_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(own_group) == group and state != "Z":
                found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="process groups are read in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_the_rehearsal_even_if_it_is_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", START, tmp_path]
    rehearsal = popen(command, stdin=-1, stdout=-1)
    assert rehearsal.stdout is not None
    group = int(rehearsal.stdout.readline())

    assert members(group)
    os.killpg(group, signal.SIGSTOP)  # a device that is off ends too
    rehearsal.send_signal(number)
    wait_until(lambda: not members(group))


def test_links_are_those_of_the_scenario() -> None:
    network = {
        "kind": "star",
        "server": {"up": "6 Mbit/s"},
        "device": {"down": "8 Mbit/s", "up": "1 MB/s", "latency": "10 ms"},
    }
    one = scenario(network=network)
    server, devices = links_of(one, Run(one, fedsim.Simulation()))
    assert (server.to_core, server.from_core) == (None, pytest.approx(6.0))
    assert devices == [pytest.approx((8.0, 8.0, 10.0))] * 4


def test_a_passage_is_found_among_other_traffic(tmp_path: Path) -> None:
    began = 1000.0
    down = [(0.0, 0), (1.0, 10), (2.0, 500), (3.0, 1010), (4.0, 1020), (9.0, 1025)]
    text = "".join(f"{began + time_s:.3f},2,{count},0\n" for time_s, count in down)
    (tmp_path / "wire.csv").write_text(f"{text}1009.5,2,1")
    wire = WireCounters(tmp_path / "wire.csv", began)
    found = wire.passage(2, "down", 1000.0, 0.5, 8.0)
    assert found is not None
    assert (found.first, found.last, found.bytes) == (pytest.approx(1.95), 3.0, 1020.0)
    assert wire.passage(2, "down", 2000.0, 0.5, 8.0) is None
    assert wire.moved(2, "down", 1.5, 2.5) == 490.0
    assert wire.moved(0, "down", 0.0, 9.0) == 0.0


def test_a_run_differs_from_a_faster_one_by_rounds_and_phases(tmp_path: Path) -> None:
    link = {"kind": "star", "device": {"down": "1 MB/s", "up": "1 MB/s"}}
    model = {"kind": "size", "bytes": "4 MB"}
    slow = scenario(network=link, model=model)
    link["device"] = {"down": "2 MB/s", "up": "1 MB/s"}
    fedsim.run(slow, tmp_path / "slow")
    fedsim.run(scenario(network=link, model=model), tmp_path / "fast")
    differences = compare(tmp_path / "fast", tmp_path / "slow")
    mean = differences.mean_round
    assert mean.measured - mean.simulated == pytest.approx(2.0)
    assert differences.phases["download"][0] == pytest.approx((2.0, 4.0))
    assert not differences.undone
    text = "\n".join(lines(differences, "it"))
    assert "download: 4 s, simulated 2 s (-2.00 s)" in text
    assert "bytes down: 16 MB, equal" in text


def test_who_is_late_in_one_run_only_is_named(tmp_path: Path) -> None:
    speeds = ["10 samples/s", "1 samples/s"]
    samples = {"low": 10, "high": 10}
    for name, deadline in (("strict", "5 s"), ("lenient", "50 s")):
        both = Scenario(
            learning="off",
            population={"devices": 2, "speed": speeds, "samples": samples},
            strategy={"kind": "fedavg", "clients_per_round": 2, "deadline": deadline},
            stop={"rounds": 1},
        )
        fedsim.run(both, tmp_path / name)
    (task,) = compare(tmp_path / "strict", tmp_path / "lenient").undone
    assert task == (0, 1, "late", "done")
    assert task.where == "simulated"
