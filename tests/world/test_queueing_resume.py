"""Runs on links with queues that are killed in the middle of flows, and go on as if they were not."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.running.checkpoint import store
from fedsim.testing import assert_same_run, assert_sound, eventful_world, go_on, run
from tests import children
from tests.children import GENEROUS_S

Table = dict[str, Any]


KILLED = """
import os, signal
from fedsim.cli import main
from fedsim.running.checkpoint import store

write = store.write

def write_and_die(folder, checkpoint, *more):
    place = write(folder, checkpoint, *more)
    if checkpoint.events > 40 and checkpoint.tree["root"]["parts"]["network"]["running"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return place

store.write = write_and_die
main()
"""
"""The command line of a run that kills itself after a checkpoint in the middle of flows."""


def world(control: str) -> Table:
    """Return the sections of a run that drops packets, and saves itself every four seconds."""
    sections: Table = dict(eventful_world({"kind": "fedavg", "clients_per_round": 6}, rounds=2))
    sections["learning"] = "off"
    sections["model"] = {"kind": "size", "bytes": "60 kB"}
    sections["checkpoint"] = {"time": "4 s"}
    protocol = {"kind": "tcp", "model": "window", "control": control, "queue": {"size": "6 kB"}}
    sections["network"] = {
        "kind": "star",
        "protocol": protocol,
        "device": {"down": "400 kbit/s", "up": "100 kbit/s", "latency": "30 ms"},
        "server": {"down": "400 kbit/s", "up": "100 kbit/s"},
    }
    return sections


def count_running(folder: Path) -> int:
    """Return the count of flows on queues in the last checkpoint of a run folder."""
    network = store.read(store.latest(folder)).tree["root"]["parts"]["network"]
    return len(network["running"])


@pytest.mark.parametrize("control", ["cubic", "reno", "bbr"])
def test_a_run_killed_in_the_middle_of_flows_resumes_to_the_same_hashes(
    control: str, tmp_path: Path
) -> None:
    scenario = world(control)
    run(scenario, tmp_path / "whole")
    path = tmp_path / "scenario.toml"
    path.write_text(fedsim.Scenario(**scenario).to_toml(), encoding="utf-8")
    out = tmp_path / "killed"
    words = ["run", path, "--out", out, "--quiet"]
    process = children.popen([sys.executable, "-c", KILLED, *words])
    assert process.wait(GENEROUS_S) == -signal.SIGKILL
    assert not (out / "summary.json").exists()
    assert count_running(out) > 0
    go_on(scenario, out)
    assert_same_run(tmp_path / "whole", out)
    assert_sound(out)
