"""IFCA, IFCA-MIG, HypCluster and FeSEM against known answers, through whole simulated runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.testing import StrategyContract
from fedsim.toolbox.strategies.fesem import FeSEMParams
from tests.strategies.runs import model_of, moved, of_kind, played, ran, told, weights
from tests.strategies.worlds import (
    PAIRED,
    ROTATED,
    STARTED,
    Centre,
    Sections,
    file_data,
    module,
    opposite_groups,
    swap,
    world,
)

FEDAVG = {"kind": "fedavg", "clients_per_round": 3, "local_epochs": 2}
D = 650 * 4  # bytes of a logistic model of 8x8 digits


def ifca(groups: int, clients: int, **others: Any) -> Sections:
    return {
        "kind": "ifca",
        "groups": groups,
        "clients_per_round": clients,
        "local_epochs": 2,
    } | others


@pytest.mark.parametrize(
    ("aggregation", "sizes"), [("weighted", [5, 12, 30, 8, 21]), ("mean", [14] * 5)]
)
def test_one_group_is_fedavg_bit_for_bit(
    tmp_path: Path, aggregation: str, sizes: list[int]
) -> None:
    data = opposite_groups(tmp_path, sizes)
    ours, _ = played(
        world(
            data,
            5,
            ifca(1, 3, aggregation=aggregation, follows="paper"),
            6,
            training={"batch_size": 4},
        )
    )
    theirs, _ = played(world(data, 5, FEDAVG, 6, training={"batch_size": 4}))
    assert weights(ours)[0].tobytes() == model_of(theirs).tobytes()


def quadratics(folder: Path, seed: int, **strategy: Any) -> Sections:
    """Devices that want the weight to be -5 (even ones) or +5; a single step of full length
    takes it there.
    """
    data = file_data(
        folder, [(np.full((4, 1), (-5.0, 5.0)[device % 2]), [0, 1, 0, 1]) for device in range(6)]
    )
    training = {"lr": 1.0, "batch_size": 100}
    return world(
        data, 6, ifca(2, 6, **strategy), 1, model=module(Centre), training=training, seed=seed
    )


@pytest.mark.parametrize("averaging", ["models", "gradients"])
@pytest.mark.parametrize("seed", range(2))
def test_two_groups_of_quadratics_are_found_in_one_round(
    tmp_path: Path, seed: int, averaging: str
) -> None:
    """All choose rightly, and the mean of full steps is the centre itself.

    Option I: w_j <- w_j - lr / 6 sum (w_j - c) over the 3 clients of group j: half the way to
    its centre.
    """
    run, _ = played(
        quadratics(
            tmp_path, seed, averaging=averaging, local_epochs=1 if averaging == "models" else 10
        )
    )
    starts = [
        float(value[0]) for value in weights(run, [run.learner.initial(group) for group in (0, 1)])
    ]
    assert max(map(abs, starts)) < 5.0
    low = int(starts[1] < starts[0])  # the start that is nearer to -5, the other being nearer to 5
    assert run.strategy.state["group"] == [low, 1 - low] * 3
    share, centres = (
        (1.0 if averaging == "models" else 0.5),
        [-5.0, 5.0] if low == 0 else [5.0, -5.0],
    )
    expected = [
        start + share * (centre - start) for start, centre in zip(starts, centres, strict=True)
    ]
    assert [float(value[0]) for value in weights(run)] == pytest.approx(expected, abs=1e-5)


def test_a_test_takes_a_third_of_a_trainings_time_for_each_model(tmp_path: Path) -> None:
    data = opposite_groups(tmp_path / "data", [30] * 4)
    run = ran(world(data, 4, ifca(3, 4), 1, population={"speed": "10 samples/s"}), tmp_path / "run")
    assert run.rounds[0]["time"] == pytest.approx(3 * (3 / 3 + 2))


def test_rotations_are_told_apart(tmp_path: Path) -> None:
    """Every device's choice is the model that fits its own rotation, once the models have parted.

    From most draws of the models two rotations share one for good; from this one none do.
    """
    run = ran(world(ROTATED, 24, ifca(4, 24, local_epochs=5), 12, seed=7), tmp_path / "run")
    assert run.rounds[-1]["purity"] == run.rounds[-1]["ari"] == 1.0
    assert run.rounds[-1]["accuracy"] > 0.93


class TestMigration:
    def test_who_has_shifted_receives_all_models_once_more_and_chooses(
        self, tmp_path: Path
    ) -> None:
        strategy = ifca(5, 5, moment={"shift": "oracle"}) | {"kind": "ifca-mig"}
        run = ran(world(PAIRED, 20, strategy, 12, **swap(rounds=[5])), tmp_path / "run")
        assert len(of_kind(run, "shift-test")) == len(of_kind(run, "shift")) == 20
        assert moved(run)["migration"] == 20 * 5 * D
        assert moved(run)["id"] == 4 * (20 + 12 * 5)
        assert run.summary["bytes"]["paper"] == (12 * 5 * (5 + 1) + 20 * 5) * D
        assert sum(row["selected"] for row in run.devices) == 12 * 5

    def test_a_choice_made_on_old_data_does_not_undo_a_migration(self, tmp_path: Path) -> None:
        """The data shift while devices train.

        They send the choice made before, but have chosen again when the round closes.
        """
        population = {"speed": {"kind": "lognormal", "median": "1000 samples/s", "spread": 2.0}}
        strategy = ifca(5, 15, moment={"shift": "oracle"}, local_epochs=3) | {"kind": "ifca-mig"}
        times = swap(times=["3 s", "4500 ms", "6 s"])
        run = ran(world(PAIRED, 20, strategy, 8, population=population, **times), tmp_path / "run")
        overtaken, device_of = 0, {}
        last, latest, in_round = {}, dict[int, int](), {}
        for event in run.events:
            device = event["device"]
            if event["kind"] == "task-start":
                device_of[event["task"]], last[device] = device, event["task"]
                in_round |= {} if event["round"] is None else {device: event["task"]}
            elif event["kind"] == "assign" and event["data"]["why"] == "migration":
                latest[device] = last[device]
            elif event["kind"] == "aggregate":
                overtaken += sum(
                    task < latest.get(device_of[task], -1) for task in event["data"]["tasks"]
                )
            elif event["kind"] == "assign" and event["data"]["why"] == "choice":
                assert in_round[device] > latest.get(device, -1)
        assert overtaken > 0
        assert latest

    def test_who_chose_for_the_first_time_on_data_that_it_has_lost_meanwhile_chooses_again(
        self, tmp_path: Path
    ) -> None:
        strategy = ifca(5, 20, moment={"shift": "oracle"}) | {"kind": "ifca-mig"}
        run = ran(world(PAIRED, 20, strategy, 2, **swap(times=["200 ms"])), tmp_path / "run")
        assert run.rounds[0]["time"] > 0.2
        assert [event["time"] for event in of_kind(run, "shift-test")] == [
            run.rounds[0]["time"]
        ] * 20


def test_hypcluster_is_ifca_weighted_by_samples(tmp_path: Path) -> None:
    data = opposite_groups(tmp_path, [20, 30, 40, 50, 60, 70])
    common = {"groups": 2, "clients_per_round": 4, "local_epochs": 1}
    strategies: list[Sections] = [{"kind": "hypcluster"}]
    strategies += [
        {"kind": "ifca", "aggregation": how, "follows": "paper"} for how in ("weighted", "mean")
    ]
    hypcluster, ifca, plain = (
        played(world(data, 6, common | strategy, 6))[0] for strategy in strategies
    )
    assert (np.array(weights(hypcluster)) == np.array(weights(ifca))).all()
    assert (np.array(weights(hypcluster)) != np.array(weights(plain))).any()
    assert [hypcluster.strategy.group_of(device) for device in range(6)] in ([0, 1] * 3, [1, 0] * 3)


# FeSEM against known answers, through whole simulated runs.


def fesem(groups: int, clients: int, **others: Any) -> Sections:
    return {
        "kind": "fesem",
        "groups": groups,
        "clients_per_round": clients,
        "local_epochs": 2,
    } | others


def asked(run: Any) -> list[tuple[int, int, int]]:
    """(round, device, group) of every task."""
    return [
        (event["round"], event["device"], event["group"]) for event in of_kind(run, "task-start")
    ]


def test_a_client_joins_the_model_nearest_to_what_it_sent_last() -> None:
    """In a round after all have sent something, and in the first: by the definition, from what
    the server holds.
    """
    sections = world(PAIRED, 10, fesem(3, 10), 4)
    before, first = played(sections)
    initial, *starts = weights(before, [before.learner.initial(count) for count in range(4)])
    nearest = int(np.argmin([np.linalg.norm(initial - start) for start in starts]))
    assert {task["group"] for task in told(first, "task-start") if task["round"] == 0} == {nearest}
    _, records = played(sections | {"stop": {"rounds": 5}})
    centers, last = weights(before), weights(before, before.strategy.state["last"])
    expected = [
        int(np.argmin([np.linalg.norm(own.astype(np.float64) - center) for center in centers]))
        for own in last
    ]
    found = {task["device"]: task["group"] for task in told(records, "task-start")}
    assert [found[device] for device in range(10)] == expected


@pytest.mark.parametrize("kind", ["fesem", "fesem-mig"])
def test_groups_are_found_without_a_look_at_the_data(tmp_path: Path, kind: str) -> None:
    """Whatever happens to the data at the begin of a round, its groups are those of what was
    sent before.
    """
    sections = world(PAIRED, 20, fesem(3, 8) | {"kind": kind}, 7)
    still = ran(sections, tmp_path / "still")
    shifted = ran(sections | swap(rounds=[5]), tmp_path / "shifted")
    assert len(of_kind(shifted, "shift")) == 20
    early, others = ([entry for entry in asked(run) if entry[0] <= 5] for run in (still, shifted))
    assert early == others
    assert still.summary["models_sha256"] != shifted.summary["models_sha256"]
    assert not of_kind(shifted, "shift-test")


def test_one_center_is_an_unweighted_fedavg(tmp_path: Path, monkeypatch: Any) -> None:
    """Devices of equal size, so FedAvg's weights are equal too; its one model is a draw of its
    own.
    """
    monkeypatch.setattr(FeSEMParams, "sweeps", False)
    sections = world(
        opposite_groups(tmp_path, [14] * 5), 5, fesem(1, 3), 6, training={"batch_size": 4}
    )
    ours, _ = played(sections)
    start = weights(ours, [ours.learner.initial(1)])[0].tolist()
    theirs, _ = played(sections | {"strategy": FEDAVG | {"kind": STARTED, "start": start}})
    assert weights(ours)[0].tobytes() == model_of(theirs).tobytes()


@pytest.mark.parametrize(("clients", "rounds"), [(4, 5), (8, 3)])
def test_in_the_k_means_form_groups_are_the_means_of_last_models(
    tmp_path: Path, clients: int, rounds: int
) -> None:
    data = opposite_groups(tmp_path / "data", [14] * 8)
    run, _ = played(
        world(data, 8, fesem(2, clients, follows="paper"), rounds, training={"batch_size": 4})
    )
    last, groups = weights(run, run.strategy.state["last"]), run.strategy.state["group"]
    assert sorted({*groups}) == [0, 1]
    assert clients < 8 or groups in ([0, 1] * 4, [1, 0] * 4), "clients of opposite labels part"
    for group, model in enumerate(weights(run)):
        members = [
            own.astype(np.float64)
            for own, found in zip(last, groups, strict=True)
            if found == group
        ]
        assert model == pytest.approx(np.mean(members, axis=0), abs=1e-6)


def test_the_k_means_form_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    contract = StrategyContract()
    contract.strategy = fesem(2, 6, follows="paper")
    contract.test_it_goes_on_as_if_it_had_not_been_stopped(tmp_path)
