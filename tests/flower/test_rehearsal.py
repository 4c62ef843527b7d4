"""A rehearsal on loopback: SuperLink, SuperNodes and the app as processes of this machine."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedsim.common.errors import SimulationError
from fedsim.lab.audited import audit_run
from fedsim.lab.rehearsal import conduct
from fedsim.lab.rehearsal.conduct import MEASURED, RehearsalPlan, rehearse
from fedsim.lab.rehearsal.loop import PAGE, SIMULATED, rehearse_beside
from fedsim.records.reading import RunFolder
from fedsim.running.scenario import Scenario

LOOPBACK = RehearsalPlan(has_namespaces=False)


def scenario(devices: int, rounds: int) -> Scenario:
    return Scenario(
        data={"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0}},
        population={"devices": devices, "speed": "2000 samples/s"},
        strategy={"kind": "fedavg", "clients_per_round": devices},
        stop={"rounds": rounds},
    )


def processes_of(folder: Path) -> list[str]:
    """The command lines that name a folder, but for this process's."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line and int(file.parent.name) != os.getpid():
                lines.append(line)
    return lines


def test_four_devices_learn_as_in_the_simulation_and_leave_a_run_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = rehearse_beside(scenario(4, 3), out, LOOPBACK, lambda _: None)
    measured = RunFolder(out / MEASURED)
    simulated = RunFolder(out / SIMULATED)
    for name in ("accuracy", "rounds", "strategy"):
        assert measured.summary[name] == simulated.summary[name]
    assert measured.summary["bytes"] == simulated.summary["bytes"]
    assert measured.summary["measured"]["nodes"] == 4
    findings = audit_run(out / MEASURED).findings
    assert {name: problems for name, problems in findings.items() if problems} == {}
    steps = [row["step"] for row in measured.events if row["kind"] == "step-end"]
    assert steps.count("download") == steps.count("train") == steps.count("upload") == 12
    assert (out / PAGE).read_text().startswith("<!DOCTYPE html>")
    assert any("bytes down" in line and "equal" in line for line in text)
    verb = [sys.executable, "-m", "fedsim", "why", str(out / MEASURED), "--json"]
    why = subprocess.run(verb, capture_output=True, text=True, check=True)
    assert json.loads(why.stdout)["verb"] == "why"
    assert processes_of(tmp_path) == []


def test_a_supernode_that_is_killed_ends_the_rehearsal_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = conduct.RehearsalProcesses.start

    def start_and_kill(self: conduct.RehearsalProcesses, name: str, *rest: object) -> object:
        process = started(self, name, *rest)
        if name == "executor-0":
            os.killpg(self._started["node-0"].pid, signal.SIGKILL)
        return process

    monkeypatch.setattr(conduct.RehearsalProcesses, "start", start_and_kill)
    with pytest.raises(SimulationError, match=r"the process 'node-0' .* has ended with status -9"):
        rehearse(scenario(1, 1), tmp_path / "out", LOOPBACK)
    assert processes_of(tmp_path) == []
