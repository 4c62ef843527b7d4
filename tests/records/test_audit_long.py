"""The audit of runs so long that the clock's float64 is coarser than a tick: no false alarm, and no true one missed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.audit.capacity import slack_s
from fedsim.audit.evidence import grain_s
from fedsim.records import folder as files
from fedsim.records.schema import TRANSFERS
from fedsim.simulation import TICK_S
from tests.calls import done
from tests.records.test_audit import Rows, edit, events, found, read

DAYS = (90, 200, 2_000)
RATE = {"down": "1 Gbit/s", "up": "1 Gbit/s"}
NETWORKS: dict[str, dict[str, Any]] = {"star": {"kind": "star"}, "tree": {"kind": "tree", "cells": 3, "cell": RATE}}
STRATEGIES: list[dict[str, Any]] = [
    {
        "kind": "cata-fed",
        "clients_per_round": 6,
        "deadline": {"kind": "relative", "times": 0.3},
        "smallest_part": 5,
        "clusters": 2,
        "rejoin": True,
    },
    {"kind": "flexcfl", "clients_per_round": 6, "groups": 2, "moment": {"devices": 3}, "deadline": "7 s"},
    {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 2, "deadline": "7777 ms"},
]


@pytest.fixture
def long_run(small: dict[str, Any], tmp_path: Path, made: Callable[[dict[str, Any], Path], Path]) -> Callable[..., Path]:
    """``long_run(days, network, strategy)``: so long nobody is there, and then there are twenty rounds."""

    def run(days: int, network: str = "star", strategy: dict[str, Any] = STRATEGIES[0]) -> Path:
        wait = {"retry": f"{days} day"}
        arrivals = {"kind": "schedule", "times": [f"{days - 1} day"] * 20, "devices": list(range(20))}
        population = {name: small["population"][name] for name in ("devices", "speed", "jitter")} | {"arrivals": arrivals}
        changes: dict[str, Any] = {"learning": "off", "population": population, "strategy": strategy | wait}
        changes["network"] = NETWORKS[network] | {"server": RATE, "device": small["network"]["device"]}
        return made(small | changes | {"stop": {"rounds": 20}}, tmp_path / f"{days}-{network}-{strategy['kind']}")

    return run


def test_times_are_as_fine_as_the_clock_or_its_numbers() -> None:
    fine, coarse, coarser = (grain_s(np.array([days * 86_400.0])).item() for days in DAYS)
    assert fine == TICK_S < coarse < coarser < 1e-6


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("network", NETWORKS)
def test_an_honest_run_passes(long_run: Callable[..., Path], place: int, network: str) -> None:
    """Each strategy and each length in each network."""
    days = DAYS[place if network == "star" else place - 1]
    assert found(long_run(days, network, STRATEGIES[place])) == set()


def test_a_training_ten_times_the_tolerance_too_long_is_found(long_run: Callable[..., Path]) -> None:
    def end_late(rows: Rows) -> None:
        said = {row["round"]: json.loads(row["data"]) for row in rows if row["kind"] == "round-start"}
        begun = {row["task"]: row["time"] for row in rows if row["kind"] == "step-start" and row["step"] == "train"}
        for row in (row for row in rows if row["kind"] == "step-end" and row["step"] == "train"):
            grain = grain_s(np.array([row["time"]])).item()
            if row["time"] - begun[row["task"]] >= said[row["round"]].get("training_limit", np.inf) - grain:
                row["time"] += 10 * grain
                return
        raise AssertionError("nobody trained to the limit")

    folder = long_run(2_000)
    events(end_late)(folder)
    assert "deadlines held" in found(folder)


def test_a_message_too_fast_by_ten_times_the_tolerance_is_found(long_run: Callable[..., Path]) -> None:
    """Each has its device's link for itself."""

    def end_early(rows: Rows) -> None:
        row = next(row for row in rows if row["outcome"] == "done")
        row["end"] -= 10 * slack_s(np.array([row["end"]])).item()

    folder = long_run(2_000)
    edit(files.TRANSFERS, TRANSFERS, end_early)(folder)
    assert "no link carried more than it can" in found(folder)


def test_verbs_on_a_long_run(long_run: Callable[..., Path], tmp_path: Path) -> None:
    folder = long_run(2_000, strategy=STRATEGIES[1])
    done("compare", folder, "--csv")
    done("trace", folder, "--out", tmp_path / "trace.json")
    begun = [row["time"] for row in read(folder, files.EVENTS) if row["kind"] == "step-start"]
    shown = [entry for entry in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if entry["ph"] == "X"]
    assert min(entry["dur"] for entry in shown) >= 0
    assert min(entry["ts"] for entry in shown) == pytest.approx(min(begun) * 1e6, abs=0.1)
