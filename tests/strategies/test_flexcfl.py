"""FlexCFL and FedGroup against known answers: group and client cold start, rounds, groups'
influence on each other.
"""

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedsim
from fedsim.common.training import LocalSteps, Training
from fedsim.records.reading import RunFolder
from fedsim.toolbox.strategies.flexcfl import FlexCFLParams, inter_group_coefficients
from fedsim.toolbox.strategies.migrating import distance
from tests.strategies.runs import (
    Weights,
    groups_of,
    initial_weights,
    made,
    model_of,
    moved,
    moves,
    of_kind,
    played,
    ran,
    told,
    weights,
)
from tests.strategies.worlds import (
    PAIRED,
    ROTATED,
    STARTED,
    Centre,
    Sections,
    file_data,
    module,
    opposite_groups,
    scheduled,
    swap,
    world,
)

FULL = {"batch_size": 10_000}  # every step on all samples: no order of batches


def flexcfl(groups: int, clients: int, **others: Any) -> Sections:
    return {
        "kind": "flexcfl",
        "groups": groups,
        "clients_per_round": clients,
        "local_epochs": 2,
    } | others


def pretrained(sections: Sections) -> list[Weights]:
    """What every device makes of the initial model in 50 steps in its first task."""
    run = made(sections)
    start, devices = run.learner.initial(), sections["population"]["devices"]
    return weights(
        run,
        [
            run.learner.train(Training(start, LocalSteps(50)), device, key=0)
            for device in range(devices)
        ],
    )


class TestClustering:
    """What makes the groups."""

    @pytest.mark.parametrize("measure", ["edc", "madc"])
    def test_the_groups_of_rotated_and_of_paired_digits_are_found(
        self, tmp_path: Path, measure: str
    ) -> None:
        for number, (data, kinds) in enumerate([(ROTATED, 4), (PAIRED, 5)]):
            strategy = flexcfl(kinds, 5, measure=measure)
            run = ran(world(data, 6 * kinds, strategy, 2), tmp_path / str(number))
            assert run.rounds[-1]["ari"] == run.rounds[-1]["nmi"] == run.rounds[-1]["purity"] == 1.0

    def test_groups_begin_with_the_means_of_their_members_and_directions_never_change(self) -> None:
        sections = world(PAIRED, 10, flexcfl(5, 4), 3)
        run, records = played(sections)
        (made,) = told(records, "clustering")
        trained = np.array(pretrained(sections), dtype=np.float64)
        for group, direction in enumerate(weights(run, run.strategy.state["directions"])):
            members = np.array(made["devices"])[np.array(made["groups"]) == group]
            assert direction == pytest.approx(
                trained[members].mean(axis=0) - initial_weights(sections), abs=1e-6
            )


class TestTheGroupColdStart:
    """Devices that are lost on the way."""

    def without(self, folder: Path, *away: int, **strategy: Any) -> RunFolder:
        """Pre-training takes half a second; some leave before."""
        leaves = {"kind": "schedule", "times": ["300 ms"] * len(away), "devices": list(away)}
        return ran(
            world(PAIRED, 20, flexcfl(5, 4, **strategy), 3, population={"departures": leaves}),
            folder,
        )

    def test_groups_are_made_from_those_who_came_back(self, tmp_path: Path) -> None:
        run = self.without(tmp_path / "run", 0, 6, 13)
        (event,) = of_kind(run, "clustering")
        assert sorted(event["data"]["devices"]) == sorted(set(range(20)) - {0, 6, 13})
        assert run.rounds[-1]["ari"] == 1.0

    def test_with_fewer_than_groups_it_is_repeated(self, tmp_path: Path) -> None:
        """Five are asked for five groups and one leaves: four are too few, so five of the others
        are asked again.
        """
        run = self.without(tmp_path / "run", *range(0, 20, 2), moment={"devices": 1}, retry="2 s")
        asked = [event for event in of_kind(run, "task-start") if event["round"] is None]
        assert len({event["time"] for event in asked}) == 2
        (event,) = of_kind(run, "clustering")
        assert len(event["data"]["devices"]) == 5
        assert all(device % 2 for device in event["data"]["devices"])

    def test_when_too_few_will_ever_be_there_the_run_ends_and_says_so(self, tmp_path: Path) -> None:
        summary = self.without(tmp_path / "run", *range(16)).summary
        assert (summary["rounds"], summary["stopped"]) == (
            0,
            "fewer than 5 devices will ever be there again",
        )

    def test_updates_that_are_not_finite_are_left_out(self, tmp_path: Path) -> None:
        draw = np.random.default_rng(1)
        shards = [
            (draw.normal(size=(6, 4)) * (1e30 if device == 3 else 1.0), [0, 1, 0, 1, 0, 1])
            for device in range(6)
        ]
        run = ran(
            world(file_data(tmp_path / "data", shards), 6, flexcfl(2, 2), 3), tmp_path / "run"
        )
        (event,) = of_kind(run, "clustering")
        assert sorted(event["data"]["devices"]) == [0, 1, 2, 4, 5]
        with pytest.raises(
            fedsim.SimulationError,
            match=r"6 devices gave 5 finite updates, fewer than the 6 groups .*\.lr",
        ):
            fedsim.run(
                fedsim.Scenario(**world(file_data(tmp_path / "data", shards), 6, flexcfl(6, 2), 3))
            )


class TestNewcomers:
    def test_who_moves_like_a_group_joins_it(self, tmp_path: Path) -> None:
        """Groups of one device each; the others hold the same data as one of them, so their
        updates are its direction.
        """
        draw = np.random.default_rng(5)
        kinds = [(draw.normal(size=(12, 4)), draw.integers(0, 3, 12)) for _ in range(3)]
        kinds = [(x, np.concatenate([[0, 1, 2], y[3:]])) for x, y in kinds]
        data = file_data(tmp_path / "data", [kinds[device % 3] for device in range(12)])
        times = [f"{1000 + 200 * number} ms" for number in range(9)]
        population = {
            "arrivals": {"kind": "schedule", "times": times, "devices": list(range(3, 12))}
        }
        strategy = flexcfl(3, 3, clusterer="random")
        run = ran(
            world(data, 12, strategy, 180, population=population, training=FULL), tmp_path / "run"
        )
        found = groups_of(run)
        assert sorted(found[:3]) == [0, 1, 2]  # type: ignore[type-var]
        assert found == [found[device % 3] for device in range(12)]
        assert len(moves(run, "cold-start")) == 9

    def test_random_groups_for_newcomers_where_there_are_none_is_flexcfl(
        self, tmp_path: Path
    ) -> None:
        """alpha m = n: RAC is undefined in the paper's Table III for this very reason."""
        runs = []
        for newcomers in ("arrival", "random"):
            strategy = flexcfl(5, 4, moment={"devices": 2, "newcomers": newcomers})
            runs.append(ran(world(PAIRED, 10, strategy, 4), tmp_path / newcomers))
        assert runs[0].summary["models_sha256"] == runs[1].summary["models_sha256"]
        assert moved(runs[1]).keys() == {"model", "update", "pre-training"}

    def test_random_groups_for_newcomers_spread_them(self, tmp_path: Path) -> None:
        run = ran(
            world(PAIRED, 60, flexcfl(5, 12, moment={"devices": 2, "newcomers": "random"}), 5),
            tmp_path / "run",
        )
        assert {event["group"] for event in moves(run, "cold-start")} == set(range(5))
        assert run.rounds[-1]["ari"] < 0.3

    def test_who_does_not_look_on_arrival_does_when_selected(self, tmp_path: Path) -> None:
        population = {"arrivals": scheduled(d4="2 s", d7="3 s")}
        for newcomers in ("arrival", "selection"):
            strategy = flexcfl(5, 2, moment={"newcomers": newcomers})
            run = ran(world(PAIRED, 20, strategy, 40, population=population), tmp_path / newcomers)
            tasks = {
                event["task"]: event["round"]
                for event in of_kind(run, "task-start")
                if event["device"] in (4, 7)
            }
            asides = [task for task, number in tasks.items() if number is None]
            assert len(asides) == (2 if newcomers == "arrival" else 0)
            assert groups_of(run)[4] is not None

    def test_epochs_after_a_cold_start(self, tmp_path: Path) -> None:
        for source, first in (("published-code", 3), ("paper", 2)):
            strategy = flexcfl(5, 4, local_epochs=3, moment={"devices": 1, "steps": 50}) | {
                "follows": source
            }
            run = ran(world(PAIRED, 20, strategy, 60), tmp_path / source)
            continued = {
                event["task"]
                for event in of_kind(run, "task-start")
                if "continues" in event["data"]
            }
            assert len(continued) == 15
            for event in of_kind(run, "step-end"):
                if (
                    event["step"] == "train"
                    and event["round"] is not None
                    and event["data"]["asked"] > 1
                ):
                    assert event["data"]["asked"] == (first if event["task"] in continued else 3)


@pytest.mark.parametrize("alpha", [6, 2])
def test_one_group_is_fedavg_from_the_mean_of_what_was_pretrained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alpha: int
) -> None:
    """With the same cohorts; devices without a group are pre-trained on the way, and no round is
    lost by it.
    """
    monkeypatch.setattr(FlexCFLParams, "sweeps", False)
    data = opposite_groups(tmp_path, [5, 12, 30, 8, 21, 9])
    sections = world(data, 6, flexcfl(1, 3, moment={"devices": alpha}), 6, training=FULL)
    run, records = played(sections)
    (chosen,) = (fields["devices"] for fields in told(records, "clustering"))
    assert len(chosen) == alpha
    start = np.array(pretrained(sections), dtype=np.float64)[chosen].mean(axis=0)
    fedavg = {"kind": STARTED, "clients_per_round": 3, "local_epochs": 2, "start": start.tolist()}
    other, _ = played(sections | {"strategy": fedavg})
    assert weights(run)[0] == pytest.approx(model_of(other), abs=2e-6)
    assert np.linalg.norm(weights(run)[0]) > 0.5


class TestBetweenGroups:
    def mixed(self, folder: Path, members: list[int], **strategy: Any) -> list[list[float]]:
        """Two groups at (3, 0) and (0, 4), a third at (100, 100), after one mixing."""
        data = opposite_groups(folder, [4] * 4)
        model = module(Centre, start=[0.0, 0.0])
        run = made(world(data, 4, flexcfl(3, 2, eta_g=1.0, **strategy), 2, model=model))
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
        assert self.mixed(tmp_path, members)[:2] == [
            pytest.approx([2.4, 0.8]),
            pytest.approx([0.75, 3.0]),
        ]
        literal = self.mixed(tmp_path, members, follows="paper")
        assert literal == [pytest.approx([3, 1]), pytest.approx([1, 4]), [100, 100]]
        # one alone is left as it is
        assert self.mixed(tmp_path, [1, 1, -1, 1]) == [[3, 0], [0, 4], [100, 100]]

    @pytest.mark.parametrize("learning", ["on", "off"])
    def test_each_inhabited_group_sends_its_model_to_the_auxiliary_server(
        self, tmp_path: Path, learning: str
    ) -> None:
        run = ran(
            world(PAIRED, 10, flexcfl(5, 4, eta_g=0.1), 6, learning=learning), tmp_path / "run"
        )
        sent = [row for row in run.transfers if row["sender"] is not None]
        assert len({*groups_of(run)} - {None}) == 5
        assert [row["sender"] for row in sent] == [f"group-{group}" for group in range(5)] * 6
        assert {(row["receiver"], row["purpose"], row["bytes"]) for row in sent} == {
            ("auxiliary", "group-exchange", 2600.0)
        }
        assert {(row["direction"], row["device"]) for row in sent} == {("up", None)}
        assert all(row["start"] == row["end"] for row in sent)


# FlexCFL and FedGroup when data shift: who notices, and who migrates.


@pytest.mark.parametrize(("other", "seen"), [(40, False), (39, True), (60, False), (61, True)])
def test_a_shift_is_seen_beyond_eq_9_and_is_the_next_reference(
    tmp_path: Path, other: int, seen: bool
) -> None:
    """Two devices with 50 samples of each of two classes, and (other, 100 - other), exchange
    their data: tau = 10.

    There and back: both shifts are seen. Without a migration the reference stays, and coming
    back is no shift.
    """
    draw = np.random.default_rng(1)
    labels = [[0] * zeros + [1] * (100 - zeros) for zeros in (50, other)]
    data = file_data(tmp_path / "data", [(draw.normal(size=(100, 4)), own) for own in labels])
    run = ran(world(data, 2, flexcfl(1, 2), 5, **swap(rounds=[1, 3])), tmp_path / "run")
    found = [(11, True), (11, True)] if seen else [(10, False), (0, False)]
    for device in (0, 1):
        own = [event["data"] for event in of_kind(run, "shift-test") if event["device"] == device]
        assert own == [{"distance": far, "threshold": 10.0, "fired": fires} for far, fires in found]


def test_the_sorted_distance_is_scipys_of_the_counts_as_samples_and_does_not_see_labels_that_change_places() -> (
    None
):
    from scipy.stats import wasserstein_distance

    draw = np.random.default_rng(1)
    for _ in range(20):
        one, other = draw.integers(0, 40, (2, 10))
        assert distance(one, other, "sorted_counts") == pytest.approx(
            wasserstein_distance(one, other)
        )
    before = np.array([50, 50, *[0] * 8])
    assert [
        distance(before[::-1], before, metric) for metric in ("aligned_l1", "sorted_counts")
    ] == [20, 0]
    assert distance(before, before, "oracle") == math.inf


class TestAfterASwap:
    """Two devices of different groups exchange all their data."""

    def swapped(self, folder: Path, kind: str) -> tuple[RunFolder, list[tuple[int, int]]]:
        """The run, and the pairs that crossed over between true groups."""
        run = ran(world(PAIRED, 20, flexcfl(5, 5) | {"kind": kind}, 8, **swap(rounds=[4])), folder)
        partners = {event["device"]: event["data"]["partner"] for event in of_kind(run, "shift")}
        assert len(partners) == 20
        return run, [
            (one, other) for one, other in partners.items() if one < other and (one - other) % 5
        ]

    def test_flexcfl_ends_with_them_exchanged(self, tmp_path: Path) -> None:
        run, crossed = self.swapped(tmp_path / "run", "flexcfl")
        before = self.before(run)
        found = groups_of(run)
        assert len(crossed) >= 5
        assert len({before[device] for device in range(5)}) == 5
        for one, other in crossed:
            assert (found[one], found[other]) == (before[other], before[one])
        assert run.rounds[-1]["ari"] == 1.0
        # A migration is recorded, and costs each device four bytes.
        assert len(moves(run, "migration")) == 2 * len(crossed)
        tests = of_kind(run, "shift-test")
        assert len(tests) == 20
        for event in tests:
            assert event["data"]["fired"] == (
                event["data"]["distance"] > event["data"]["threshold"]
            )
        fired = {event["device"] for event in tests if event["data"]["fired"]}
        assert fired >= {device for pair in crossed for device in pair}
        (at,) = {event["time"] for event in tests}
        ids = [row for row in run.transfers if row["purpose"] == "id" and row["start"] >= at]
        assert (len(ids), {row["bytes"] for row in ids}) == (len(fired), {4.0})
        assert not [
            row for row in run.transfers if "directions" in row["purpose"] and row["start"] >= at
        ]

    def test_all_members_of_a_group_may_migrate_away(self, tmp_path: Path) -> None:
        """The labels of all change places: who was of one group is of the other."""
        drift = {
            "kind": "label-permutation",
            "probability": 1.0,
            "at": {"rounds": [4]},
            "among": "selected",
        }
        sections = world(
            opposite_groups(tmp_path / "data", [40] * 8),
            8,
            flexcfl(2, 4, moment={"shift": "oracle"}),
            8,
        )
        run = ran(sections | {"drift": drift}, tmp_path / "run")
        migrated = {event["device"]: event["group"] for event in moves(run, "migration")}
        assert migrated == {device: 1 - group for device, group in self.before(run).items()}

    def before(self, run: RunFolder) -> dict[int, int]:
        """The group of each device before the shift."""
        (first,) = {event["time"] for event in of_kind(run, "shift")}
        return {
            event["device"]: event["group"]
            for event in of_kind(run, "assign")
            if event["time"] < first
        }

    def test_fedgroup_does_not(self, tmp_path: Path) -> None:
        run, crossed = self.swapped(tmp_path / "run", "fedgroup")
        assert len(crossed) >= 5
        assert groups_of(run) == [group for _, group in sorted(self.before(run).items())]
        assert not of_kind(run, "shift-test")


@given(
    arrays(
        np.float64,
        st.tuples(st.integers(1, 5), st.just(3)),
        elements=st.floats(-100, 100).map(lambda x: round(x, 3)),
    ),
    st.floats(0, 10),
)
def test_normalised_models_never_grow_and_literal_ones_add_directions(
    models: np.ndarray, eta: float
) -> None:
    norms = np.linalg.norm(models, axis=1)
    new, literally = (
        inter_group_coefficients(norms, eta, literal=form) @ models for form in (False, True)
    )
    assert (np.linalg.norm(new, axis=1) <= norms.max() * (1 + 1e-12)).all()
    for j in range(len(models)):
        others = [l for l in range(len(models)) if l != j and norms[l] > 0]  # noqa: E741
        literal = models[j] + eta * sum((models[l] / norms[l] for l in others), np.zeros(3))  # noqa: E741
        assert literally[j] == pytest.approx(literal, abs=1e-9)
        assert new[j] * (1 + sum(eta / norms[k] for k in others)) == pytest.approx(
            literal, rel=1e-9, abs=1e-9
        )
