"""Runs that were stopped and continued are the runs that were never stopped, to the bit."""

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedsim
from fedsim.checkpoint import store
from fedsim.errors import CheckpointError, RunFolderError
from fedsim.executors.inline import Inline
from fedsim.records.audit import audit
from fedsim.runner import Job
from tests.test_runs import STRATEGIES

TABLES = ("events.parquet", "transfers.parquet", "rounds.parquet", "devices.parquet", "scenario.toml")
COUNTED = ("events_sha256", "models_sha256", "events", "simulated_s", "bytes", "accuracy", "rounds", "stopped", "status")


def eventful(strategy: dict[str, Any], seed: int, network: str = "star") -> dict[str, Any]:
    """A world in which everything happens: lost devices, newcomers, leavers, shifts, jitter, messages that share links."""
    networks: dict[str, dict[str, Any]] = {
        "star": {
            "kind": "star",
            "server": {"down": "2 Mbit/s", "up": "1 Mbit/s"},
            "device": {"down": "1 Mbit/s", "up": "500 kbit/s", "latency": "40 ms"},
        },
        "tree": {
            "kind": "tree",
            "server": {"down": "2 Mbit/s", "up": "1 Mbit/s"},
            "cells": 3,
            "cell": {"down": "1 Mbit/s", "up": "600 kbit/s"},
            "device": {"down": "1 Mbit/s", "up": "500 kbit/s", "latency": "40 ms"},
        },
    }
    return {
        "seed": seed,
        "data": {"source": "digits", "partition": "rotations"},
        "training": {"lr": 0.05, "batch_size": 8},
        "population": {
            "devices": 24,
            "speed": {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0},
            "jitter": 0.2,
            "availability": {"kind": "renewal", "mean_on": "60 s", "mean_off": "10 s"},
            "arrivals": {"kind": "poisson", "rate": "300 /h", "newcomers": 6},
            "departures": {"kind": "exponential", "mean_stay": "10 min", "share": 0.3},
        },
        "network": networks[network],
        "drift": {"kind": "swap-all", "probability": 0.3},
        "strategy": strategy,
        "stop": {"rounds": 8},
        "checkpoint": {"time": "7 s"},
    }


def whole(scenario: dict[str, Any], folder: Path) -> dict[str, Any]:
    return fedsim.run(fedsim.Scenario(**scenario), folder, executor="inline").summary


def interrupted(scenario: dict[str, Any], folder: Path, after: int, *, resume: bool = False) -> str:
    """Run until so many further records were taken; says how it ended."""
    job = Job(fedsim.Scenario(**scenario), folder, Inline(), resume=resume)
    seen = 0

    def watch(record: object) -> None:
        nonlocal seen
        seen += 1
        if seen == after:
            job.interrupt()

    job.simulation.listen(watch)
    status: str = asyncio.run(job.execute()).summary["status"]
    return status


def resumed(scenario: dict[str, Any], folder: Path) -> dict[str, Any]:
    return fedsim.run(fedsim.Scenario(**scenario), folder, executor="inline", resume=True).summary


def assert_same(one: Path, other: Path) -> None:
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, other)]
    for key in COUNTED:
        assert summaries[0][key] == summaries[1][key], key
    for name in TABLES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert not any(audit(other).values())


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy["kind"].split(":")[-1])
def test_every_strategy_goes_on_as_if_it_had_not_been_stopped(strategy: dict[str, Any], tmp_path: Path) -> None:
    scenario = eventful(strategy, seed=5)
    events = whole(scenario, tmp_path / "whole")["events"]
    draw = random.Random(str(strategy))
    for number in range(2):
        folder = tmp_path / f"cut-{number}"
        if interrupted(scenario, folder, draw.randrange(1, events)) == "interrupted":
            interrupted(scenario, folder, draw.randrange(1, events), resume=True)  # a resumed run can be stopped again
        if json.loads((folder / "summary.json").read_text())["status"] == "interrupted":
            resumed(scenario, folder)
        assert_same(tmp_path / "whole", folder)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    strategy=st.sampled_from(STRATEGIES),
    seed=st.integers(0, 1000),
    share=st.floats(0.0, 1.0),
    network=st.sampled_from(["star", "tree"]),
)
def test_any_world_any_instant(
    strategy: dict[str, Any], seed: int, share: float, network: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("resume")
    scenario = eventful(strategy, seed, network)
    events = whole(scenario, place / "whole")["events"]
    if interrupted(scenario, place / "cut", 1 + int(share * (events - 1))) == "interrupted":
        resumed(scenario, place / "cut")
    assert_same(place / "whole", place / "cut")
    shutil.rmtree(place)


class TestCommandLine:
    def command(self, scenario: dict[str, Any], place: Path, *options: str) -> list[str]:
        path = place / "scenario.toml"
        path.write_text(fedsim.Scenario(**scenario).to_toml())
        main = "from fedsim.cli import main; main()"
        return [sys.executable, "-c", main, "run", str(path), "--out", str(place / "out"), "--quiet", *options]

    def long(self) -> dict[str, Any]:
        scenario = eventful({"kind": "fedavg", "clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"}, seed=2)
        return scenario | {"stop": {"rounds": 150}, "checkpoint": {"rounds": 5}}

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_saves_the_run(self, number: signal.Signals, tmp_path: Path) -> None:
        scenario = self.long() | {"checkpoint": {}}
        whole(scenario, tmp_path / "whole")
        process = subprocess.Popen(self.command(scenario, tmp_path))
        self.wait_for(tmp_path / "out", "scenario.toml")
        time.sleep(0.3)
        process.send_signal(number)
        assert process.wait(60) == 130
        assert subprocess.run([*self.command(scenario, tmp_path), "--resume"], check=False).returncode == 0
        assert_same(tmp_path / "whole", tmp_path / "out")

    def test_a_killed_run_goes_on_from_its_last_checkpoint(self, tmp_path: Path) -> None:
        scenario = self.long()
        whole(scenario, tmp_path / "whole")
        process = subprocess.Popen(self.command(scenario, tmp_path))
        self.wait_for(tmp_path / "out" / store.FOLDER, "[0-9]*[0-9]")
        time.sleep(0.2)
        process.kill()
        process.wait()
        assert not (tmp_path / "out" / "summary.json").exists()
        assert subprocess.run([*self.command(scenario, tmp_path), "--resume"], check=False).returncode == 0
        assert_same(tmp_path / "whole", tmp_path / "out")

    @staticmethod
    def wait_for(folder: Path, pattern: str) -> None:
        for _ in range(3000):
            if any(folder.glob(pattern)):
                return
            time.sleep(0.01)
        raise AssertionError(f"{folder / pattern} never came")


@pytest.fixture
def cut(tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """An interrupted run with two checkpoints."""
    scenario = eventful({"kind": "fedbuff", "concurrency": 7, "buffer": 3}, seed=1)
    assert interrupted(scenario, tmp_path / "cut", 200) == "interrupted"
    assert len(list((tmp_path / "cut" / store.FOLDER).iterdir())) == 2
    return scenario, tmp_path / "cut"


class TestRefusals:
    def refused(self, cut: tuple[dict[str, Any], Path], says: str) -> None:
        before = {path: path.read_bytes() for path in sorted(cut[1].rglob("*")) if path.is_file()}
        with pytest.raises((CheckpointError, RunFolderError), match=says):
            resumed(*cut)
        after = {path: path.read_bytes() for path in sorted(cut[1].rglob("*")) if path.is_file()}
        assert after == before  # nothing is changed by a refusal

    def test_another_scenario(self, cut: tuple[dict[str, Any], Path]) -> None:
        self.refused((cut[0] | {"seed": 9}, cut[1]), "another scenario")

    def test_a_run_that_is_done(self, cut: tuple[dict[str, Any], Path]) -> None:
        resumed(*cut)
        self.refused(cut, "is done")

    def test_no_checkpoint(self, cut: tuple[dict[str, Any], Path]) -> None:
        shutil.rmtree(cut[1] / store.FOLDER)
        self.refused(cut, "no checkpoint")

    @pytest.mark.parametrize("name", ["state.json", "arrays.safetensors", "manifest.json"])
    def test_truncated(self, cut: tuple[dict[str, Any], Path], name: str) -> None:
        path = store.latest(cut[1]) / name
        path.write_bytes(path.read_bytes()[:-7])
        self.refused(cut, "damaged")

    @pytest.mark.parametrize("name", ["state.json", "arrays.safetensors", "manifest.json"])
    def test_missing(self, cut: tuple[dict[str, Any], Path], name: str) -> None:
        (store.latest(cut[1]) / name).unlink()
        self.refused(cut, "damaged")

    def test_swapped(self, cut: tuple[dict[str, Any], Path]) -> None:
        older, newer = sorted((cut[1] / store.FOLDER).iterdir())
        for name in ("state.json", "arrays.safetensors", "manifest.json"):
            one, other = (older / name).read_bytes(), (newer / name).read_bytes()
            (older / name).write_bytes(other)
            (newer / name).write_bytes(one)
        self.refused(cut, "which is not its name")

    def test_events_of_another_run(self, cut: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
        interrupted(cut[0] | {"seed": 8}, tmp_path / "other", 200)
        for part in (tmp_path / "other").glob("events.part-*"):
            shutil.copy(part, cut[1])
        self.refused(cut, "events on disk")

    def test_forged(self, cut: tuple[dict[str, Any], Path]) -> None:
        """Wrong content under right fingerprints: unknown classes, fields that do not exist, states of another form."""
        place = store.latest(cut[1])
        events, tree, arrays = store.read(place)
        text = json.dumps(tree)
        for forged, says in (
            (text.replace('["Task"', '["os.system"', 1), "malformed"),
            (text.replace('["Task", {', '["Task", {"__class__": 1, ', 1), "fields"),
            (json.dumps({"root": {}, "objects": []}), "not of this run"),
            (json.dumps([1, 2, 3]), "malformed"),
            (text.replace('"~object": 0}', '"~object": 999999}', 1), "names object"),
        ):
            assert forged != text
            store.write(cut[1], events, json.loads(forged), arrays)
            self.refused(cut, says)
        store.write(cut[1], events, tree, arrays)
        assert resumed(*cut)["status"] == "done"

    def test_the_one_before_still_serves(self, cut: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
        whole(cut[0], tmp_path / "whole")
        shutil.rmtree(store.latest(cut[1]))
        resumed(*cut)
        assert_same(tmp_path / "whole", cut[1])


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write of the third checkpoint fails in turn; the run says so, and goes on later from the second."""
    scenario = eventful({"kind": "fedavg", "clients_per_round": 6}, seed=3)
    whole(scenario, tmp_path / "whole")
    written = Path.write_bytes
    calls = 0

    def full(path: Path, content: Any) -> int:
        nonlocal calls
        if ".writing" in str(path):
            calls += 1
            if calls > 5:
                raise OSError(28, "No space left on device")
        return written(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        fedsim.run(fedsim.Scenario(**scenario), tmp_path / "cut", executor="inline")
    monkeypatch.undo()
    assert not list((tmp_path / "cut" / store.FOLDER).glob("*.writing"))
    resumed(scenario, tmp_path / "cut")
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_checkpoints_change_nothing(tmp_path: Path) -> None:
    scenario = eventful({"kind": "flexcfl", "groups": 2, "clients_per_round": 5, "local_epochs": 1}, seed=4)
    often = whole(scenario | {"checkpoint": {"rounds": 1}}, tmp_path / "often")
    never = whole(scenario | {"checkpoint": {}}, tmp_path / "never")
    assert [often[key] for key in COUNTED] == [never[key] for key in COUNTED]
    assert (tmp_path / "often" / "events.parquet").read_bytes() == (tmp_path / "never" / "events.parquet").read_bytes()
    assert len(list((tmp_path / "often" / store.FOLDER).iterdir())) == 2
    assert not (tmp_path / "never" / store.FOLDER).exists()
    assert not list((tmp_path / "never").glob("*.part-*"))
