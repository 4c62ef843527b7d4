"""FlexCFL and FedGroup against known answers: group and client cold start, rounds, groups' influence on each other."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedsim
from fedsim.running.assembly import Run
from fedsim.simulation import Simulation
from fedsim.toolbox.strategies.flexcfl import FlexCFLParams
from fedsim.training import Training
from tests.strategies.clustered import (
    PAIRED,
    ROTATED,
    STARTED,
    Sections,
    file_data,
    groups_of,
    moves,
    of_kind,
    opposite_groups,
    played,
    ran,
    weights,
    world,
)

FULL = {"batch_size": 10_000}  # every step on all samples: no order of batches


def flexcfl(groups: int, clients: int, **others: Any) -> Sections:
    return {"kind": "flexcfl", "groups": groups, "clients_per_round": clients, "local_epochs": 2} | others


def made(sections: Sections) -> Run:
    """A run that has not begun."""
    run: Run = Simulation(fedsim.Scenario(**sections)).installed
    return run


def pretrained(sections: Sections) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
    """The initial model, and what every device makes of it in 50 steps in its first task."""
    run = made(sections)
    start, devices = run.learner.initial(), sections["population"]["devices"]
    trained = [run.learner.train(Training(start, steps=50), device, key=0) for device in range(devices)]
    initial, *values = weights(run, [start, *trained])
    return initial, values


class TestClustering:
    """What makes the groups."""

    @pytest.mark.parametrize("measure", ["edc", "madc"])
    def test_the_groups_of_rotated_and_of_paired_digits_are_found(self, tmp_path: Path, measure: str) -> None:
        for number, (data, kinds) in enumerate([(ROTATED, 4), (PAIRED, 5)]):
            strategy = flexcfl(kinds, 5, measure=measure)
            run = ran(world(data, 6 * kinds, strategy, 2), tmp_path / str(number))
            assert run.rounds[-1]["ari"] == run.rounds[-1]["nmi"] == run.rounds[-1]["purity"] == 1.0

    def test_groups_begin_with_the_means_of_their_members_and_directions_never_change(self) -> None:
        sections = world(PAIRED, 10, flexcfl(5, 4), 3)
        run, records = played(sections)
        (record,) = (record for record in records if record.kind == "clustering")
        initial, trained = pretrained(sections)
        for group, direction in enumerate(weights(run, run.strategy.state["directions"])):
            members = [
                device for device, own in zip(record.fields["devices"], record.fields["groups"], strict=True) if own == group
            ]
            mean = np.mean([trained[device].astype(np.float64) for device in members], axis=0)
            assert direction == pytest.approx(mean - initial, abs=1e-6)


class TestTheGroupColdStart:
    """Devices that are lost on the way."""

    def schedule(self, *away: int, devices: int = 20, at: str = "300 ms") -> Sections:
        leaves = {"kind": "schedule", "times": [at] * len(away), "devices": list(away)}
        return {"speed": "1000 samples/s", "devices": devices, "departures": leaves}

    def test_groups_are_made_from_those_who_came_back(self, tmp_path: Path) -> None:
        """Pre-training takes half a second; three leave before."""
        run = ran(world(PAIRED, 20, flexcfl(5, 4), 3, population=self.schedule(0, 6, 13)), tmp_path / "run")
        (event,) = of_kind(run, "clustering")
        assert sorted(event["data"]["devices"]) == sorted(set(range(20)) - {0, 6, 13})
        assert run.rounds[-1]["ari"] == 1.0

    def test_with_fewer_than_groups_it_is_repeated(self, tmp_path: Path) -> None:
        """Five are asked for five groups and one leaves: four are too few, so five of the others are asked again."""
        population = self.schedule(*range(0, 20, 2))
        strategy = flexcfl(5, 4, moment={"devices": 1}, retry="2 s")
        run = ran(world(PAIRED, 20, strategy, 3, population=population), tmp_path / "run")
        asked = [event for event in of_kind(run, "task-start") if event["round"] is None]
        assert len({event["time"] for event in asked}) == 2
        (event,) = of_kind(run, "clustering")
        assert len(event["data"]["devices"]) == 5
        assert all(device % 2 for device in event["data"]["devices"])

    def test_when_too_few_will_ever_be_there_the_run_ends_and_says_so(self, tmp_path: Path) -> None:
        population = self.schedule(*range(16))
        run = ran(world(PAIRED, 20, flexcfl(5, 4), 3, population=population), tmp_path / "run")
        assert run.summary["rounds"] == 0
        assert run.summary["stopped"] == "fewer than 5 devices will ever be there again"

    def test_a_deadline_bounds_it_too(self, tmp_path: Path) -> None:
        population = {"speed": {"kind": "lognormal", "median": "800 samples/s", "spread": 2.0}}
        strategy = flexcfl(5, 4, deadline="1 s", local_epochs=1)
        run = ran(world(PAIRED, 20, strategy, 3, population=population), tmp_path / "run")
        (event,) = of_kind(run, "clustering")
        assert 5 <= len(event["data"]["devices"]) < 20
        assert event["time"] == 1.0

    def test_devices_that_all_do_the_same_make_no_groups(self, tmp_path: Path) -> None:
        one = (np.tile(np.random.default_rng(1).normal(size=4), (6, 1)), [1] * 6)  # in whatever order they come, sums are equal
        sections = world(file_data(tmp_path, [one] * 6), 6, flexcfl(2, 2), 2, training=FULL)
        with pytest.raises(
            fedsim.SimulationError, match="2 groups needs as many distinct feature rows, and the 6 devices have 1"
        ):
            fedsim.run(fedsim.Scenario(**sections))

    def test_updates_that_are_not_finite_are_left_out(self, tmp_path: Path) -> None:
        draw = np.random.default_rng(1)
        shards = [(draw.normal(size=(6, 4)) * (1e30 if device == 3 else 1.0), [0, 1, 0, 1, 0, 1]) for device in range(6)]
        run = ran(world(file_data(tmp_path / "data", shards), 6, flexcfl(2, 2), 3), tmp_path / "run")
        (event,) = of_kind(run, "clustering")
        assert sorted(event["data"]["devices"]) == [0, 1, 2, 4, 5]
        with pytest.raises(
            fedsim.SimulationError, match=r"6 devices gave 5 finite updates, fewer than the 6 groups .* training.lr"
        ):
            fedsim.run(fedsim.Scenario(**world(file_data(tmp_path / "data", shards), 6, flexcfl(6, 2), 3)))


class TestNewcomers:
    def test_who_moves_like_a_group_joins_it(self, tmp_path: Path) -> None:
        """Groups of one device each; the others hold the same data as one of them, so their updates are its direction."""
        draw = np.random.default_rng(5)
        kinds = [(draw.normal(size=(12, 4)), draw.integers(0, 3, 12)) for _ in range(3)]
        kinds = [(x, np.concatenate([[0, 1, 2], y[3:]])) for x, y in kinds]
        data = file_data(tmp_path / "data", [kinds[device % 3] for device in range(12)])
        times = [f"{1000 + 200 * number} ms" for number in range(9)]
        population = {"arrivals": {"kind": "schedule", "times": times, "devices": list(range(3, 12))}}
        strategy = flexcfl(3, 3, clusterer="random")
        run = ran(world(data, 12, strategy, 180, population=population, training=FULL), tmp_path / "run")
        found = groups_of(run)
        assert sorted(found[:3]) == [0, 1, 2]  # type: ignore[type-var]
        assert found == [found[device % 3] for device in range(12)]
        assert len(moves(run, "cold-start")) == 9

    def test_random_groups_for_newcomers_where_there_are_none_is_flexcfl(self, tmp_path: Path) -> None:
        """alpha m = n: RAC is undefined in the paper's Table III for this very reason."""
        runs = [
            ran(world(PAIRED, 10, flexcfl(5, 4, moment={"devices": 2, "newcomers": newcomers}), 4), tmp_path / newcomers)
            for newcomers in ("arrival", "random")
        ]
        assert runs[0].summary["models_sha256"] == runs[1].summary["models_sha256"]
        assert [row["time"] for row in runs[0].rounds] == [row["time"] for row in runs[1].rounds]
        assert runs[1].summary["bytes"]["by_purpose"].keys() == {"model", "update", "pre-training"}

    def test_who_does_not_look_on_arrival_does_when_selected(self, tmp_path: Path) -> None:
        population = {"arrivals": {"kind": "schedule", "times": ["2 s", "3 s"], "devices": [4, 7]}}
        for newcomers in ("arrival", "selection"):
            strategy = flexcfl(5, 2, moment={"newcomers": newcomers})
            run = ran(world(PAIRED, 20, strategy, 40, population=population), tmp_path / newcomers)
            tasks = {event["task"]: event["round"] for event in of_kind(run, "task-start") if event["device"] in (4, 7)}
            asides = [task for task, number in tasks.items() if number is None]
            assert len(asides) == (2 if newcomers == "arrival" else 0)
            assert groups_of(run)[4] is not None

    def test_epochs_after_a_cold_start(self, tmp_path: Path) -> None:
        for source, first in (("published-code", 3), ("paper", 2)):
            strategy = flexcfl(5, 4, local_epochs=3, moment={"devices": 1, "steps": 50}) | {"as": source}
            run = ran(world(PAIRED, 20, strategy, 60), tmp_path / source)
            continued = {event["task"] for event in of_kind(run, "task-start") if "continues" in event["data"]}
            assert len(continued) == 15
            for event in of_kind(run, "step-end"):
                if event["step"] == "train" and event["round"] is not None and event["data"]["asked"] > 1:
                    assert event["data"]["asked"] == (first if event["task"] in continued else 3)


class TestOneGroup:
    """m = 1 without influence between groups."""

    def trajectories(self, folder: Path, alpha: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(FlexCFL's model, that of FedAvg started from the mean of the models that were pre-trained), after six rounds."""
        data = opposite_groups(folder, [5, 12, 30, 8, 21, 9])
        strategy = flexcfl(1, 3, moment={"devices": alpha})
        sections = world(data, 6, strategy, 6, training=FULL)
        run, records = played(sections)
        (chosen,) = (record.fields["devices"] for record in records if record.kind == "clustering")
        assert len(chosen) == alpha
        initial, trained = pretrained(sections)
        start = initial + np.mean([trained[device] - initial for device in chosen], axis=0, dtype=np.float64)
        fedavg = {"kind": STARTED, "clients_per_round": 3, "local_epochs": 2, "start": start.tolist()}
        other, _ = played(sections | {"strategy": fedavg})
        return weights(run)[0], weights(other, [other.strategy.state["model"]])[0]

    @pytest.mark.parametrize("alpha", [6, 2])
    def test_it_goes_on_as_fedavg_from_the_mean_of_what_was_pretrained(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alpha: int
    ) -> None:
        """With the same cohorts; devices without a group are pre-trained on the way, and no round is lost by it."""
        monkeypatch.setattr(FlexCFLParams, "sweeps", False)
        ours, theirs = self.trajectories(tmp_path, alpha)
        assert ours == pytest.approx(theirs, abs=2e-6)
        assert np.linalg.norm(ours) > 0.5


class TestBetweenGroups:
    def mixed(self, folder: Path, members: list[int], **strategy: Any) -> list[list[float]]:
        """Two groups at (3, 0) and (0, 4), a third at (100, 100), after one mixing."""
        data = opposite_groups(folder, [4] * 4)
        model = {"kind": "module", "factory": "tests.strategies.curved:Centre", "args": {"start": [0.0, 0.0]}}
        run = made(world(data, 4, flexcfl(3, 2, eta_g=1.0, **strategy), 2, model=model, training={"init": "torch"}))
        state = run.strategy.state
        state["models"] = [run.learner.initial() for _ in range(3)]
        for model_ref, value in zip(state["models"], ([3, 0], [0, 4], [100, 100]), strict=True):
            model_ref.settle(np.array(value, dtype=np.float32))
        state["group"] = members
        asyncio.run(run.strategy.after_aggregation())  # type: ignore[attr-defined]
        return [value.tolist() for value in weights(run)]

    def test_two_groups(self, tmp_path: Path) -> None:
        """And a group without devices neither gives nor takes."""
        members = [0, 1, 0, -1]
        assert self.mixed(tmp_path, members)[:2] == [pytest.approx([2.4, 0.8]), pytest.approx([0.75, 3.0])]
        literal = self.mixed(tmp_path, members, **{"as": "paper"})
        assert literal == [pytest.approx([3, 1]), pytest.approx([1, 4]), [100, 100]]

    @pytest.mark.parametrize("learning", ["on", "off"])
    def test_each_inhabited_group_sends_its_model_to_the_auxiliary_server(self, tmp_path: Path, learning: str) -> None:
        run = ran(world(PAIRED, 10, flexcfl(5, 4, eta_g=0.1), 6, learning=learning), tmp_path / "run")
        sent = [row for row in run.transfers if row["sender"] is not None]
        inhabited = len({group for group in groups_of(run) if group is not None})
        assert inhabited == 5
        assert [row["sender"] for row in sent] == [f"group-{group}" for group in range(5)] * 6
        assert {(row["receiver"], row["purpose"], row["direction"], row["device"]) for row in sent} == {
            ("auxiliary", "group-exchange", "up", None)
        }
        assert run.summary["bytes"]["by_purpose"]["group-exchange"] == 6 * 5 * 650 * 4
        assert all(row["start"] == row["end"] for row in sent)
