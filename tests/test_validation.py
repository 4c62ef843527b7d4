"""The study of real rounds: its two halves over real sockets, its logs, and what it says where it cannot run."""

import csv
import json
import os
import socket
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedsim.calibrate import calibrate
from fedsim.calibrate.log import LogDefaults, read_log, took
from tests.conftest import module_at

STUDY = Path(__file__).resolve().parents[1] / "scenarios" / "validation"
WORLDS: dict[str, dict[str, Any]] = tomllib.loads((STUDY / "worlds.toml").read_text())


@pytest.fixture(scope="module")
def testbed() -> ModuleType:
    return module_at(STUDY / "testbed.py")


def played(testbed: ModuleType, world: dict[str, Any], path: Path) -> None:
    """A world over plain sockets, without namespaces."""
    pairs = [socket.socketpair() for _ in world["clients"]]
    clients = [threading.Thread(target=testbed.client, args=(world, number, pair[1])) for number, pair in enumerate(pairs)]
    for client in clients:
        client.start()
    served = {testbed._ORDER.unpack(testbed._receive(pair[0], testbed._ORDER.size))[0]: pair[0] for pair in pairs}
    testbed.write(path, testbed.Server(world, served).serve())
    for client in clients:
        client.join()
    for pair in pairs:
        for end in pair:
            end.close()


def test_rounds_and_versions_are_written_down(testbed: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "_PAUSE_S", 0.0)
    world = {"bytes": 200_000, "rounds": 4, "clients": [{"train": 0.02}, {"train": 0.05}]}
    played(testbed, world, tmp_path / "rounds.csv")
    log = read_log(tmp_path / "rounds.csv", LogDefaults())
    assert log.synchronous
    assert log.tasks.number.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (log.rounds.end - log.rounds.start >= 0.05).all()
    assert (took(log.tasks.train)[log.tasks.client == 0] >= 0.02).all()
    assert set(log.tasks.up.amount) == {200_000}

    played(testbed, world | {"buffer": 3}, tmp_path / "versions.csv")
    log = read_log(tmp_path / "versions.csv", LogDefaults())
    assert log.rounds.number.tolist() == [0, 1, 2, 3]
    assert 12 <= len(log.tasks.client) <= 13  # four versions of three, and who is at work at the end


@pytest.mark.parametrize("name", WORLDS)
def test_kept_logs_are_of_their_worlds(name: str) -> None:
    world, log = WORLDS[name], read_log(STUDY / "logs" / f"{name}.csv", LogDefaults())
    assert (STUDY / "logs" / f"{name}.csv").stat().st_size < 20_000
    assert log.clients == tuple(str(number) for number in range(len(world["clients"])))
    assert len(log.rounds.number) == world["rounds"]
    assert log.synchronous == ("buffer" not in world)
    assert set(log.tasks.down.amount) == {world["bytes"]}
    assert len(json.loads((STUDY / "logs" / "index.json").read_text())[name]["load"]) == 2
    for number, client in enumerate(world["clients"]):
        own = log.tasks[log.tasks.client == number]
        if "train" in client:
            assert np.median(took(own.train)) == pytest.approx(client["train"], abs=0.01)
        for way, steps in (("down", own.down), ("up", own.up)):  # no link carries more than it can, but for a burst
            least = client["latency"] / 1e3 + (world["bytes"] * 1514 / 1448 - 20_000) / (client[way] * 125e3)
            assert took(steps).min() > least


@pytest.mark.parametrize("name", [name for name, world in WORLDS.items() if "buffer" not in world and name != "torch"])
def test_held_out_rounds_of_the_kept_logs_are_predicted(name: str, tmp_path: Path) -> None:
    calibrate(STUDY / "logs" / f"{name}.csv", tmp_path / "out", LogDefaults())
    with (tmp_path / "out" / "rounds.csv").open() as lines:
        held = [row for row in csv.DictReader(lines) if row["held_out"] == "1"]
    errors = [abs(float(row["predicted"]) / float(row["measured"]) - 1) for row in held]
    apart = {"fair": 0.06, "twelve": 0.08, "twelve-torch": 0.09}  # as far as rounds of these are from each other
    assert np.mean(errors) < apart.get(name, 0.02)


@pytest.mark.parametrize("name", ["mixed", "small", "buffered", "torch"])
def test_worlds_that_are_told_to_fedsim_take_as_long(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By preset ``tcp``, with nothing fitted but how long trainings take."""
    compare = module_at(STUDY / "compare.py")
    monkeypatch.setattr(compare, "SEEDS", range(1, 2))
    monkeypatch.setattr(compare, "PROTOCOLS", ("tcp",))
    found = list(compare.compared(name, WORLDS[name], tmp_path))
    assert abs(found[0].errors).mean() < 0.02
    assert f"| {name} | tcp |" in compare.table(found)
    assert len(compare.draw(found).axes) == 2


def test_where_it_cannot_run_it_says_so() -> None:
    words = [sys.executable, str(STUDY / "testbed.py")]
    done = subprocess.run([*words, "mixed"], capture_output=True, text=True, env={"PATH": os.devnull}, check=False)
    assert done.returncode == 1
    assert "root" in done.stderr or "no ip" in done.stderr
    assert "compare.py" in done.stderr
    done = subprocess.run([*words, "mixt"], capture_output=True, text=True, check=False)
    assert "there is no world 'mixt'; allowed are mixed, server" in done.stderr


def test_the_page_of_evidence_has_every_study_of_others_measurements() -> None:
    evidence = module_at(STUDY.parent / "outside" / "evidence.py")
    page = (STUDY.parents[1] / "docs" / "validation.md").read_text()
    for path in sorted((STUDY.parent / "outside").glob("*/predicted.csv")):
        rows = [evidence.Row(path.parent.name, of) for of in evidence.read(path)]
        assert rows
        assert all(row.of.predicted >= 0 for row in rows)
        assert "rule" in (path.parent / "README.md").read_text()
        assert path.parent.name in page
        assert len(evidence.table(rows)) > 2
