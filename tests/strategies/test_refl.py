"""REFL against known answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.simulation import Record
from fedsim.testing import eventful_world
from fedsim.toolbox.strategies.refl import stale_weights
from tests.strategies.clustered import played, ran, weights
from tests.strategies.curved import PULLS, curved

SPEEDS = {"kind": "lognormal", "median": "30 samples/s", "spread": 3.0}
REFL: dict[str, Any] = {"kind": "refl", "deadline": "1 s"}


def test_weights_by_hand() -> None:
    fresh = np.array([3.0, 4.0])  # of two, with a squared norm of 25
    stale = [np.array([3.0, 1.0]), np.array([0.0, 4.0]), np.array([-3.0, 4.0])]
    moves = np.array([9.0, 9.0, 36.0]) / 9 / 25
    expected = 0.65 / np.array([2, 3, 2]) + 0.35 * (1 - np.exp(-moves / moves[2]))
    assert stale_weights([1, 2, 1], 0.35, fresh, stale, 2) == pytest.approx(expected)
    as_published_code = 0.65 / np.array([2, 3, 2]) + 0.35 * (1 - np.exp(-moves / moves[2]) / 10)
    assert stale_weights([1, 2, 1], 0.35, fresh, stale, 2, scale=10.0) == pytest.approx(as_published_code)
    assert stale_weights([1, 3], 0.35, None, stale[:2], 0) == [1 / 2, 1 / 4]
    assert stale_weights([1], 0.35, fresh, [fresh], 2) == pytest.approx([0.65 / 2])  # nothing deviates


def slow(folder: Path, rounds: int = 8, **strategy: Any) -> tuple[Any, list[Record]]:
    """Devices of which some need several rounds."""
    population = {"devices": 4, "speed": SPEEDS, "jitter": 0.3}
    return played(curved(folder, REFL | {"clients_per_round": 4} | strategy, rounds, 3, population=population))


def of(records: list[Record], kind: str) -> list[Record]:
    return [record for record in records if record.kind == kind]


def test_a_whole_run_replayed_by_hand(tmp_path: Path) -> None:
    run, records = slow(tmp_path)
    device = {record.fields["task"]: record.fields["device"] for record in of(records, "task-start")}
    began = {record.fields["task"]: record.fields["round"] for record in of(records, "task-start")}
    models, all_stale = [5.0], 0
    made = {record.fields["round"]: record.fields for record in of(records, "aggregate")}
    for number in range(8):
        if number not in made:
            models.append(models[-1])
            continue
        fields = made[number]
        late = np.array(fields["staleness"])
        moves = []
        for task, staleness in zip(fields["tasks"], late, strict=True):
            assert staleness == number - began[task]
            center, strength = PULLS[device[task]]
            moves.append((center - models[began[task]]) * (1 - (1 - 0.1 * strength) ** 3))
        move = np.array(moves)
        factors = 1 / (late + 1.0)
        if (late == 0).any() and (late > 0).any():
            fresh = move[late == 0].mean()
            deviation = ((move - fresh) / ((late == 0).sum() + 1) / fresh) ** 2
            boost = 1 - np.exp(-deviation / deviation[late > 0].max())
            factors = np.where(late > 0, 0.65 * factors + 0.35 * boost, 1.0)
        shares = factors / factors.sum()
        assert fields["weights"] == pytest.approx(shares, abs=1e-5)
        models.append(models[-1] + float(shares @ move))
        all_stale += int((late > 0).sum())
    assert all_stale > 3
    assert weights(run, [run.strategy.state["model"]])[0][0] == pytest.approx(models[-1], abs=1e-4)


def test_an_update_that_would_be_too_stale_is_given_up(tmp_path: Path) -> None:
    _, records = slow(tmp_path, most_staleness=1)
    stale = [tau for record in of(records, "aggregate") for tau in record.fields["staleness"]]
    assert max(stale) == 1
    assert any(record.fields["outcome"] == "late" for record in of(records, "task-end"))


def test_private_aggregation_is_one_of_changes_from_the_present_model(tmp_path: Path) -> None:
    """With a clip that cuts nothing and no noise it is the plain mean of what came, late updates included."""
    how = {"kind": "private", "clip": 1e6, "noise": 0.0, "account": False, "where": "local"}
    models = []
    for aggregation in ("mean", how):
        run, records = slow(tmp_path, stale_weights="equal", aggregation=aggregation)
        models.append(weights(run, [run.strategy.state["model"]])[0][0])
    assert any(max(record.fields["staleness"]) for record in of(records, "aggregate"))
    assert models[0] == pytest.approx(models[1], abs=1e-5)


def test_without_anybody_late_it_is_fedavg(tmp_path: Path) -> None:
    found = [
        ran(curved(tmp_path, {"kind": kind, "aggregation": "mean", "selection": "random"}, 3), tmp_path / kind).models()
        for kind in ("refl", "fedavg")
    ]
    assert found[0]["global"]["w"] == found[1]["global"]["w"]


def test_a_round_that_closes_before_it_hears_of_a_loss_passes_its_audit(tmp_path: Path) -> None:
    sections = eventful_world(
        {"kind": "refl", "clients_per_round": 5, "over_selection": 1.6, "deadline": "12 s", "local_epochs": 2}, seed=82
    )
    sections |= {"learning": "off", "server": {"patience": "2.5 day"}, "stop": {"rounds": 2, "simulated_time": "2 h"}}
    sections["network"] = {"kind": "tree", "cells": 1}
    folder = ran(sections, tmp_path / "run")
    lost = sum(event["kind"] == "task-end" and event["outcome"] == "lost" and event["round"] == 0 for event in folder.events)
    assert folder.rounds[0]["disconnected"] < lost
