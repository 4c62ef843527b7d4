"""No instant takes long for what never happens; and where one does take long, a signal is heard all the same."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedsim.testing import assert_same_run, eventful_world, go_on, quiet_world, run, run_until
from fedsim.world import compute

FEDAVG = {"kind": "fedavg", "clients_per_round": 10, "local_epochs": 3, "deadline": "20 s"}


def slow_world(**changes: Any) -> dict[str, Any]:
    sections = eventful_world(FEDAVG, rounds=4) | {"learning": "off"}
    sections["population"] |= {"slow_phases": {"factor": 0.1, "mean_normal": "5 s", "mean_slow": "5 s"}} | changes
    return sections


def test_a_deadline_bounds_the_work_however_slow_a_device_is() -> None:
    speed = {"kind": "lognormal", "median": "60 samples/s", "spread": 1e6}
    begun = time.process_time()
    run(slow_world(speed=speed, availability={"kind": "always"}, departures=None))
    assert time.process_time() - begun < 10


@pytest.mark.parametrize("strategy", [FEDAVG, {"kind": "ifca", "groups": 2, "clients_per_round": 6}])
def test_how_far_is_looked_ahead_changes_nothing(
    strategy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = slow_world(availability={"kind": "renewal", "mean_on": "60 s", "mean_off": "10 s"}) | {"strategy": strategy}
    events = run(sections, tmp_path / "far")["events"]
    monkeypatch.setattr(compute, "_PHASES_AHEAD", 0.5)
    run(sections, tmp_path / "near")
    assert_same_run(tmp_path / "far", tmp_path / "near")
    assert run_until(sections, tmp_path / "cut", events // 2) == "interrupted"
    go_on(sections, tmp_path / "cut")
    assert_same_run(tmp_path / "far", tmp_path / "cut")


LONG_INSTANT = """
import time
import fedsim.federation.dispatch

async def long(self, *_):
    print("begun", flush=True)
    while True:
        time.sleep(0.01)

fedsim.federation.dispatch.Dispatch.start = long
"""
LONG_TRAINING = """
import time
import fedsim.running.runner
from fedsim.simulation import Simulation

submit, begun = Simulation.submit, []
fedsim.running.runner._TRAINING_S = 0.5

def slow(self, function, *args):
    def long(*args):
        if not begun:
            begun.append(True)
            print("begun", flush=True)
            time.sleep(1.5)
        return function(*args)

    return submit(self, long, *args)

Simulation.submit = slow
"""
LONG_BUILDING = """
import time
import fedsim.running.runner

def long(*_, **__):
    print("begun", flush=True)
    while True:
        time.sleep(0.01)

fedsim.running.runner.Simulation = long
"""


@pytest.mark.parametrize(
    ("program", "said", "number"),
    [
        (LONG_INSTANT, "this instant takes too long", signal.SIGINT),
        (LONG_INSTANT, "this instant takes too long", signal.SIGTERM),
        (LONG_BUILDING, "", signal.SIGTERM),
    ],
)
def test_a_signal_takes_effect_within_seconds(program: str, said: str, number: signal.Signals, tmp_path: Path) -> None:
    errors = interrupted(program, number, slow_world(departures={"kind": "exponential", "mean_stay": "1 h"}), tmp_path)
    assert said in errors
    assert not list(tmp_path.rglob("*.writing"))
    assert (tmp_path / "out").exists() == bool(said)


def interrupted(program: str, number: signal.Signals, sections: dict[str, Any], place: Path, *options: str) -> str:
    """What a run says on stderr that gets a signal when it has begun something long."""
    (place / "s.toml").write_text(tomli_w.dumps(sections))
    program += "from fedsim.cli import main\nmain()\n"
    command = [sys.executable, "-c", program, "run", str(place / "s.toml"), "--out", str(place / "out"), "--quiet", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        begun = time.monotonic()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert time.monotonic() - begun < 10  # a second and a half or three, on a machine that does nothing else
    assert "Traceback" not in errors
    return errors


def test_training_may_come_to_its_end(tmp_path: Path) -> None:
    errors = interrupted(LONG_TRAINING, signal.SIGINT, quiet_world(FEDAVG), tmp_path, "--executor", "threads")
    assert "takes too long" not in errors
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "interrupted"
    go_on(quiet_world(FEDAVG), tmp_path / "out")


@pytest.mark.parametrize(("evaluation", "executor"), [({}, "inline"), ({"from_round": 1000}, "threads")])
def test_training_has_no_more_than_its_time_after_sigterm(evaluation: dict[str, int], executor: str, tmp_path: Path) -> None:
    sections = quiet_world(FEDAVG) | {"evaluation": evaluation}
    errors = interrupted(LONG_TRAINING, signal.SIGTERM, sections, tmp_path, "--executor", executor)
    assert "this instant takes too long" in errors
    assert not (tmp_path / "out" / "summary.json").exists()
