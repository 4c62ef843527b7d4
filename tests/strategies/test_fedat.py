"""FedAT against known answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.toolbox.strategies.fedat import tier_shares
from tests.records.test_audit import aggregated_never, events, found
from tests.strategies.clustered import of_kind, played, ran, weights
from tests.strategies.curved import PULLS, curved

SPEEDS = {"kind": "lognormal", "median": "40 samples/s", "spread": 3.0}
FEDAT: dict[str, Any] = {"kind": "fedat", "tiers": 2, "clients_per_round": 2, "mu": 0.4}


def tiered(strategy: dict[str, Any], rounds: int) -> dict[str, Any]:
    population = {"devices": 12, "speed": SPEEDS}
    return {"seed": 2, "population": population, "strategy": FEDAT | strategy, "stop": {"rounds": rounds}}


def test_a_tier_counts_the_more_the_seldomer_it_was_updated() -> None:
    assert tier_shares([1, 0, 0]) == [0, 0, 1]
    assert tier_shares([5, 3, 1]) == [1 / 9, 3 / 9, 5 / 9]


def test_a_whole_run_replayed_by_hand(tmp_path: Path) -> None:
    """From the order of events alone: who was asked at which version, and whose updates made which."""
    sections = curved(tmp_path, FEDAT, 9, population={"devices": 4, "speed": SPEEDS, "jitter": 0.3})
    sections["strategy"] = FEDAT | {"local_epochs": 3}
    run, records = played(sections)
    begun, versions = {}, [5.0]
    tiers, counts = [5.0, 5.0], [0, 0]
    for record in records:
        if record.kind == "task-start" and record.fields["round"] is not None:
            assert record.fields["round"] == len(versions) - 1
            begun[record.fields["task"]] = (record.fields["device"], len(versions) - 1)
        elif record.kind == "aggregate":
            tier, ends = record.fields["group"], []
            for task, staleness in zip(record.fields["tasks"], record.fields["staleness"], strict=True):
                device, version = begun.pop(task)
                assert staleness == len(versions) - 1 - version
                center, strength = PULLS[device]
                here = start = versions[version]
                for _ in range(3):
                    here -= 0.1 * (strength * (here - center) + 0.4 * (here - start))
                ends.append(here)
            tiers[tier], counts[tier] = float(np.mean(ends)), counts[tier] + 1
            versions.append((counts[1] * tiers[0] + counts[0] * tiers[1]) / sum(counts))
    assert min(counts) > 0
    assert counts[0] > counts[1], "the faster tier was not updated more often"
    assert weights(run, [run.strategy.state["model"]])[0][0] == pytest.approx(versions[-1], abs=1e-5)


def test_tiers_are_as_many_devices_each_by_measured_latency(tmp_path: Path) -> None:
    run = ran(tiered({"tiers": 3}, 6), tmp_path / "run")
    (made,) = of_kind(run, "latency-tiers")
    assert made["data"]["members"] == [4, 4, 4]
    expected = np.argsort(np.argsort([row["samples"] / row["speed"] for row in run.devices])) // 4
    assert [row["group"] for row in run.devices] == expected.tolist()
    assert run.summary["bytes"]["by_purpose"]["profiling"] == 2 * 12 * 650 * 4


def test_profiling_that_takes_too_long_is_ended_and_counts_as_so_long(tmp_path: Path) -> None:
    run = ran(tiered({"profiling_limit": "5 s"}, 2), tmp_path / "run")
    slow = [row["device"] for row in run.devices if row["samples"] / row["speed"] > 5]
    late = [event["device"] for event in of_kind(run, "task-end") if event["round"] is None and event["outcome"] == "late"]
    assert sorted(late) == slow
    assert slow
    assert all(run.devices[device]["group"] == 1 for device in slow)


def test_the_audit_misses_an_update_of_the_tier_that_was_aggregated(tmp_path: Path) -> None:
    ran(tiered({"tiers": 3}, 6), tmp_path / "run")
    events(aggregated_never)(tmp_path / "run")
    assert "every valid update was aggregated once" in found(tmp_path / "run")


def private(folder: Path, aggregation: Any) -> float:
    sections = curved(folder, FEDAT, 6, population={"devices": 4, "speed": SPEEDS})
    sections["strategy"] = FEDAT | {"local_epochs": 3, "aggregation": aggregation}
    run, _ = played(sections)
    return float(weights(run, [run.strategy.state["model"]])[0][0])


def test_private_aggregation_is_one_of_what_has_changed_in_the_model_that_was_sent(tmp_path: Path) -> None:
    how = {"kind": "private", "clip": 1e6, "noise": 0.0, "account": False}
    assert private(tmp_path, how) == pytest.approx(private(tmp_path, "mean"), abs=1e-5)
    local = how | {"where": "local", "clip": 1e-9}
    assert private(tmp_path, local) == pytest.approx(5.0, abs=1e-5), "clients did not clip what they have changed"


def test_devices_without_room_for_the_training_are_in_no_tier(tmp_path: Path) -> None:
    small = {"like": "raspberry-pi-zero-2w", "memory": "250 kB"}
    others = {"learning": "off", "data": {"source": "digits"}, "model": {"kind": "mlp", "hidden": [200]}}
    others["population"] = {"devices": 8, "device": ["small", "raspberry-pi-4"] * 4, "kinds": {"small": small}}
    run = ran(tiered({"tiers": 4, "clients_per_round": 1}, 4) | others, tmp_path / "run")
    assert sorted(event["device"] for event in of_kind(run, "tier-drop")) == [0, 2, 4, 6]
    assert [row["group"] is None for row in run.devices] == [True, False] * 4
    few = ran(tiered({"tiers": 5, "clients_per_round": 1}, 4) | others, tmp_path / "few")
    assert few.summary["stopped"] == "fewer than 5 devices have room for the training"
