"""FedAsync and FedBuff against known answers: hand-computed sequences, FedAvg where they must
agree, and any world.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.clock.simulation import Record
from fedsim.running.assembly import Run
from fedsim.testing import eventful_world
from fedsim.toolbox.strategies.refl import stale_weights
from tests.strategies.runs import initial_weights, model_after, model_of, played, ran, told
from tests.strategies.worlds import (
    PULLS,
    Curved,
    curved,
    file_data,
    full_batches,
    module,
    world,
    write_data,
)


class Broken(Curved):
    """What comes of a sample with a = 1 is not finite."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x / (x[:, :1] != 1))


@pytest.fixture
def three_wells(tmp_path: Path) -> dict[str, Any]:
    """Scalar weight, loss (w - a)^2 / 2, three devices with a = -2, 1, 5 whose epochs take 1 s,
    2.5 s and 4.2 s.
    """
    wells = ((10, -2.0), (25, 1.0), (42, 5.0))
    data = file_data(
        tmp_path, [(np.tile([well, 1.0], (size, 1)), np.arange(size) % 2) for size, well in wells]
    )
    scenario = full_batches(data | {"normalize": "none"}, 3, 6, {}, lr=0.1)
    return scenario | {
        "model": module(Curved),
        "population": {"devices": 3, "speed": "10 samples/s"},
    }


def local(base: float, well: float, epochs: int = 1, rho: float = 0.0) -> float:
    w = base
    for _ in range(epochs):
        w -= 0.1 * ((w - well) + rho * (w - base))
    return w


# Who ends when: device 0 at 1, 2, 3, 4 s; device 1 at 2.5 s; device 2 at 4.2 s. (well, version it
# started from) of each update:
SEQUENCE = [(-2.0, 0), (-2.0, 1), (1.0, 0), (-2.0, 2), (-2.0, 4), (5.0, 0)]
STALENESS = [0, 0, 2, 1, 0, 5]


@pytest.mark.parametrize(
    ("keys", "weights"),
    [
        ({"exponent": 0.5}, [0.6 / (1 + staleness) ** 0.5 for staleness in STALENESS]),
        ({"alpha": 0.3, "exponent": 0.0}, [0.3] * 6),
        # Staleness 0, 0, 2, 1, 0, 5 with a = 2, b = 1: 1, 1, 1/3, 1, 1, 1/9. Alpha is halved at
        # versions 2 and 4.
        (
            {
                "staleness": "hinge",
                "hinge_slope": 2.0,
                "hinge_from": 1,
                "alpha_decay": 0.5,
                "alpha_decay_at": [2, 4],
            },
            [0.6, 0.6, 0.3 / 3, 0.3, 0.15, 0.15 / 9],
        ),
    ],
    ids=["polynomial", "constant", "hinge"],
)
def test_fedasync_makes_the_hand_computed_sequence(
    keys: dict[str, Any], weights: list[float], three_wells: Any
) -> None:
    three_wells["strategy"] = {
        "kind": "fedasync",
        "concurrency": 3,
        "alpha": 0.6,
        "rho": 0.7,
        "local_epochs": 2,
    } | keys
    three_wells["population"]["speed"] = "20 samples/s"  # two epochs in the time of one
    versions = [float(initial_weights(three_wells)[0])]
    for (well, start), weight in zip(SEQUENCE, weights, strict=True):
        versions.append(
            (1 - weight) * versions[-1] + weight * local(versions[start], well, epochs=2, rho=0.7)
        )
    run, records = played(three_wells)
    assert model_of(run)[0] == pytest.approx(versions[-1], rel=1e-5)
    recorded = told(records, "aggregate")
    assert [entry["staleness"] for entry in recorded] == [[staleness] for staleness in STALENESS]
    assert [entry["weights"][0] for entry in recorded] == pytest.approx(weights)
    times = [record.time for record in records if record.kind == "round"]
    assert times == pytest.approx([1.0, 2.0, 2.5, 3.0, 4.0, 4.2], abs=1e-8)


@pytest.mark.parametrize(("selection", "even"), [("least-asked", True), ("random", False)])
def test_the_selection_says_who_is_asked_next(
    selection: str, even: bool, three_wells: dict[str, Any]
) -> None:
    three_wells["strategy"] = {
        "kind": "fedbuff",
        "concurrency": 1,
        "selection": selection,
        "buffer": 1,
    }
    three_wells["stop"] = {"rounds": 12}
    times = played(three_wells)[0].tasks.times_selected
    asked = [times[device] for device in range(3)]
    assert sum(asked) in (12, 13)
    assert (max(asked) - min(asked) <= 1) == even


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fedbuff_makes_the_hand_computed_sequence(
    momentum: float, three_wells: dict[str, Any]
) -> None:
    """Two updates a version, with the bases of their own; v <- momentum v + step, w <- w + 0.8
    v.
    """
    server = {"kind": "sgd", "lr": 0.8, "momentum": momentum}
    three_wells["strategy"] = {"kind": "fedbuff", "concurrency": 3, "buffer": 2, "server": server}
    three_wells["stop"] = {"rounds": 3}
    versions, velocity = [float(initial_weights(three_wells)[0])], 0.0
    for number, buffer in enumerate(
        [[(-2.0, 0), (-2.0, 0)], [(1.0, 0), (-2.0, 1)], [(-2.0, 2), (5.0, 0)]]
    ):
        moves = [
            (local(versions[start], well) - versions[start]) / (1 + number - start) ** 0.5
            for well, start in buffer
        ]
        velocity = momentum * velocity + sum(moves) / 2
        versions.append(versions[-1] + 0.8 * velocity)
    assert model_after(three_wells)[0] == pytest.approx(versions[-1], rel=1e-5)
    recorded = told(played(three_wells)[1], "aggregate")
    assert [entry["staleness"] for entry in recorded] == [[0, 0], [1, 0], [0, 2]]
    assert recorded[2]["weights"] == pytest.approx([0.5, 0.5 / 3**0.5])


def test_fedbuff_does_not_use_an_update_that_is_too_stale() -> None:
    population = {"speed": {"kind": "lognormal", "median": "200 samples/s", "spread": 3.0}}
    found = []
    for limit in ({}, {"most_staleness": 1}):
        strategy = {"kind": "fedbuff", "concurrency": 8, "buffer": 2} | limit
        sections = world(
            {"source": "digits", "partition": "iid"}, 12, strategy, 12, population=population
        )
        records = told(played(sections)[1], "aggregate")
        found.append(
            [
                max(tau for tau, own in zip(each["staleness"], each["weights"], strict=True) if own)
                for each in records
            ]
        )
        assert {sum(own > 0 for own in each["weights"]) for each in records} == {2}
    assert max(found[0]) > max(found[1]) == 1


def test_in_step_fedbuff_is_fedavg(tmp_path: Path) -> None:
    """Concurrency = buffer = K, equal sizes and speeds, step 1, no discount: replaced together,
    they draw FedAvg's clients.
    """
    data = write_data(tmp_path, [20] * 9)
    fedavg = {"kind": "fedavg", "clients_per_round": 4}
    fedbuff = {"kind": "fedbuff", "concurrency": 4, "buffer": 4, "staleness_discount": False}
    asked, models = [], []
    for strategy in (fedavg, fedbuff):
        scenario = full_batches(data, 9, 7, {}, batch_size=6) | {
            "strategy": strategy | {"local_epochs": 3}
        }
        scenario["population"]["speed"] = "10 samples/s"
        run, records = played(scenario)
        asked.append(
            [
                (record.time, record.fields["device"])
                for record in records
                if record.kind == "task-start"
            ]
        )
        models.append(model_of(run))
    one, other = models
    assert np.abs(one - other).max() <= 1e-6 * np.abs(one).max()
    assert asked[1][: len(asked[0])] == asked[0]


def test_an_update_that_is_not_finite_takes_its_base_out_with_it(
    three_wells: dict[str, Any],
) -> None:
    """The second device sends infinity, which is left out: the buffer's other update weighs for
    both.
    """
    three_wells["model"] = module(Broken)
    three_wells["strategy"] = {
        "kind": "fedbuff",
        "concurrency": 3,
        "buffer": 2,
        "staleness_discount": False,
    }
    three_wells["stop"] = {"rounds": 2}
    start = float(initial_weights(three_wells)[0])
    first = start + 2 * (local(start, -2.0) - start) / 2
    # the buffer holds device 1's, and the move of device 0 counts for both
    second = first + (local(first, -2.0) - first)
    assert model_after(three_wells)[0] == pytest.approx(second, rel=1e-5)


def test_the_last_version_is_the_last_even_when_more_end_in_its_instant(tmp_path: Path) -> None:
    scenario = full_batches(write_data(tmp_path, [20] * 6), 6, 4, {}) | {
        "strategy": {"kind": "fedasync", "concurrency": 3}
    }
    scenario["population"]["speed"] = "10 samples/s"
    run, _ = played(scenario)
    assert run.strategy.state["version"] == 4


# REFL against known answers.

SPEEDS = {"kind": "lognormal", "median": "30 samples/s", "spread": 3.0}
REFL: dict[str, Any] = {"kind": "refl", "deadline": "1 s"}


def test_stale_weights_by_hand() -> None:
    fresh = np.array([3.0, 4.0])  # of two, with a squared norm of 25
    stale = [np.array([3.0, 1.0]), np.array([0.0, 4.0]), np.array([-3.0, 4.0])]
    moves = np.array([9.0, 9.0, 36.0]) / 9 / 25
    expected = 0.65 / np.array([2, 3, 2]) + 0.35 * (1 - np.exp(-moves / moves[2]))
    assert stale_weights([1, 2, 1], 0.35, fresh, stale, 2) == pytest.approx(expected)
    as_published_code = 0.65 / np.array([2, 3, 2]) + 0.35 * (1 - np.exp(-moves / moves[2]) / 10)
    assert stale_weights([1, 2, 1], 0.35, fresh, stale, 2, scale=10.0) == pytest.approx(
        as_published_code
    )
    assert stale_weights([1, 3], 0.35, None, stale[:2], 0) == [1 / 2, 1 / 4]
    # nothing deviates
    assert stale_weights([1], 0.35, fresh, [fresh], 2) == pytest.approx([0.65 / 2])


def slow(folder: Path, **strategy: Any) -> tuple[Run, list[Record]]:
    """Devices of which some need several rounds."""
    population = {"devices": 4, "speed": SPEEDS, "jitter": 0.3}
    return played(curved(folder, REFL | strategy, 8, 3, population=population))


def test_a_whole_run_replayed_by_hand(tmp_path: Path) -> None:
    run, records = slow(tmp_path)
    device = {fields["task"]: fields["device"] for fields in told(records, "task-start")}
    began = {fields["task"]: fields["round"] for fields in told(records, "task-start")}
    models, all_stale = [5.0], 0
    made = {fields["round"]: fields for fields in told(records, "aggregate")}
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
    assert model_of(run)[0] == pytest.approx(models[-1], abs=1e-4)


def test_rounds_close_at_the_deadline(tmp_path: Path) -> None:
    _, records = slow(tmp_path)
    assert {fields["outcome"] for fields in told(records, "task-end")} <= {"done", "stopped"}
    assert (
        max(np.diff([0.0, *(record.time for record in records if record.kind == "round")])) <= 1.0
    )


def test_private_aggregation_is_one_of_changes_from_the_present_model(tmp_path: Path) -> None:
    """With a clip that cuts nothing and no noise it is the plain mean of what came, late updates
    included.
    """
    how = {"kind": "private", "clip": 1e6, "noise": 0.0, "account": False, "where": "local"}
    models = []
    for aggregation in ("mean", how):
        run, records = slow(tmp_path, stale_weights="equal", aggregation=aggregation)
        models.append(model_of(run))
    assert any(max(fields["staleness"]) for fields in told(records, "aggregate"))
    assert models[0] == pytest.approx(models[1], abs=1e-5)


def test_without_anybody_late_it_is_fedavg(tmp_path: Path) -> None:
    how = {"aggregation": "mean", "selection": "random"}
    refl, fedavg = (
        model_after(curved(tmp_path, {"kind": kind} | how, 3)) for kind in ("refl", "fedavg")
    )
    assert refl == fedavg


def test_a_round_that_closes_before_it_hears_of_a_loss_passes_its_audit(tmp_path: Path) -> None:
    shape = {"clients_per_round": 5, "over_selection": 1.6, "deadline": "12 s", "local_epochs": 2}
    sections = eventful_world({"kind": "refl"} | shape, seed=82)
    sections |= {
        "learning": "off",
        "server": {"patience": "2.5 day"},
        "stop": {"rounds": 2, "simulated_time": "2 h"},
    }
    sections["network"] = {"kind": "tree", "cells": 1}
    folder = ran(sections, tmp_path / "run")
    lost = sum(
        event["kind"] == "task-end" and event["outcome"] == "lost" and event["round"] == 0
        for event in folder.events
    )
    assert folder.rounds[0]["disconnected"] < lost


def test_concurrency_is_held_while_devices_can_be_had(
    small: dict[str, Any], tmp_path: Path
) -> None:
    small["population"] |= {"availability": {"kind": "always"}}
    running, at, most = 0, 0.0, set()
    for event in ran(
        small | {"strategy": {"kind": "fedbuff", "concurrency": 7, "buffer": 4}}, tmp_path / "run"
    ).events:
        if event["time"] > at:
            most.add(running)
        at = event["time"]
        running += {"task-start": 1, "task-end": -1}.get(event["kind"], 0)
    assert most == {7}
