"""FedAvg, FedProx, Local, SCAFFOLD, FedDyn, FedDR, FedNova and deadlines against known answers,
through whole runs.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.lab.reading.fairness import jain_index, worst_decile
from fedsim.plugin import Synchronous
from fedsim.records.reading import RunFolder
from fedsim.testing import quiet_world
from fedsim.toolbox.strategies.fednova import reach
from tests.strategies.runs import (
    ends_of,
    initial_weights,
    made,
    model_after,
    model_of,
    of_kind,
    played,
    ran,
    told,
    trainings,
    weights,
)
from tests.strategies.worlds import CENTER, OPTIMUM, STRENGTH, curved, full_batches, write_data

EQUAL, UNEQUAL = (1, 1, 1, 1), (1, 2, 3, 4)
FEDAVG: dict[str, Any] = {"kind": "fedavg", "aggregation": "mean"}
FEDDYN: dict[str, Any] = {"kind": "feddyn", "alpha": 0.5}
FEDNOVA: dict[str, Any] = {"kind": "fednova", "aggregation": "mean"}


def test_the_round_loop_has_few_members_that_an_author_may_override() -> None:
    assert len([name for name in vars(Synchronous) if not name.startswith("_")]) <= 16


@pytest.mark.parametrize("mu", [0.5, 3.0])
def test_the_proximal_optimum(mu: float, tmp_path: Path) -> None:
    """Many local steps on h (w - a)^2 / 2 with anchor w0 end in (h a + mu w0) / (h + mu)."""
    found = model_after(curved(tmp_path, {"kind": "fedprox", "mu": mu}, 1, 300))[0]
    assert found == pytest.approx(
        ((STRENGTH * CENTER + mu * 5.0) / (STRENGTH + mu)).mean(), abs=1e-5
    )


def test_fedprox_without_its_term_is_fedavg_and_local_what_one_client_of_it_does(
    tmp_path: Path,
) -> None:
    """Bit for bit."""
    data, shape = write_data(tmp_path, [5, 17, 40, 8]), {"clients_per_round": 3, "local_epochs": 4}
    fedavg, fedprox = ({"kind": "fedavg"}, {"kind": "fedprox", "mu": 0.0})
    one, other = (
        model_after(full_batches(data, 4, 6, kind | shape, batch_size=4))
        for kind in (fedavg, fedprox)
    )
    assert (one == other).all()
    data = write_data(tmp_path / "alone", [25])
    local, _ = played(full_batches(data, 1, 4, {"kind": "local", "local_epochs": 2}, batch_size=4))
    alone = model_after(
        full_batches(data, 1, 4, {"kind": "fedavg", "local_epochs": 2}, batch_size=4)
    )
    assert (weights(local, local.strategy.state["own"])[0] == alone).all()


def test_when_all_are_dropped_the_model_stays(small: dict[str, Any], tmp_path: Path) -> None:
    small["population"]["speed"] = "1 samples/h"
    small["strategy"] |= {"deadline": "2 s", "local_epochs": 1}
    assert (model_after(small) == initial_weights(small)).all()
    result = ran(small, tmp_path / "run")
    assert all(row["valid"] == 0 and row["selected"] > 0 for row in result.rounds)
    assert result.summary["bytes"]["wasted"] == pytest.approx(result.summary["bytes"]["down"])


def test_local_sends_nothing_and_scores_each_device_by_its_own_model(
    small: dict[str, Any], tmp_path: Path
) -> None:
    small["population"] |= {"availability": {"kind": "always"}}
    run = ran(small | {"strategy": {"kind": "local", "local_epochs": 2}}, tmp_path / "run")
    assert run.summary["bytes"] == {
        "down": 0.0,
        "up": 0.0,
        "wasted": 0.0,
        "by_purpose": {},
        "paper": 0,
    }
    accuracies = [row["accuracy"] for row in run.devices if row["accuracy"] is not None]
    assert run.summary["accuracy"]["final"] == pytest.approx(np.mean(accuracies))
    models = run.models()["device"]
    assert (
        len({values.tobytes() for name, values in models.items() if name.endswith("weight")}) == 20
    )


# On a convex problem whose optimum is known.


@pytest.mark.parametrize(
    ("strategy", "rounds", "epochs", "steps", "near"),
    [
        ({"kind": "scaffold"}, 80, 5, EQUAL, 1e-6),
        ({"kind": "scaffold"}, 100, 2, UNEQUAL, 1e-6),
        ({"kind": "scaffold", "option": "I"}, 100, 2, UNEQUAL, 1e-6),
        ({"kind": "scaffold", "clients_per_round": 2}, 350, 5, EQUAL, 1e-6),
        (FEDDYN, 100, 2, UNEQUAL, 1e-6),
        (FEDDYN | {"clients_per_round": 2}, 300, 2, UNEQUAL, 1e-6),
        # with exact proximal points
        ({"kind": "feddr", "clients_per_round": 2, "eta": 1.0}, 50, 25, (1, 2, 1, 2), 0.03),
    ],
    ids=str,
)
def test_it_reaches_the_optimum_of_all(
    strategy: dict[str, Any],
    rounds: int,
    epochs: int,
    steps: tuple[int, ...],
    near: float,
    tmp_path: Path,
) -> None:
    assert model_after(curved(tmp_path, strategy, rounds, epochs, steps))[0] == pytest.approx(
        OPTIMUM, abs=near
    )


def test_scaffolds_control_variates_of_option_one_are_the_gradients_and_take_one_more_pass(
    tmp_path: Path,
) -> None:
    run, _ = played(curved(tmp_path, {"kind": "scaffold", "option": "I"}, 60, 2, UNEQUAL))
    own = weights(run, [run.dispatch.devices.states[device]["control"] for device in range(4)])
    assert [value[0] for value in own] == pytest.approx(STRENGTH * (OPTIMUM - CENTER), abs=1e-5)
    for option, passes in (("I", 3), ("II", 2)):  # it goes through the data once more
        timed = ran(
            digits({"kind": "scaffold", "option": option}) | {"stop": {"rounds": 1}},
            tmp_path / option,
        )
        took = [
            event["time"] * 100 / timed.devices[event["device"]]["samples"]
            for event in of_kind(timed, "task-end")
        ]
        assert took == pytest.approx([passes] * 3)


def test_two_rounds_of_scaffold_by_hand(tmp_path: Path) -> None:
    run, _ = played(curved(tmp_path, {"kind": "scaffold"}, 2, epochs=3))
    model, control, own = 5.0, 0.0, np.zeros(4)
    for _ in range(2):
        ends = np.full(4, model)
        for _ in range(3):
            ends = ends - 0.1 * (STRENGTH * (ends - CENTER) + control - own)
        changes = (model - ends) / 0.3 - control
        own += changes
        model, control = float(ends.mean()), control + changes.sum() / 4
    found = weights(run, [run.strategy.state["model"], run.strategy.state["control"]])
    assert [value[0] for value in found] == pytest.approx([model, control], abs=1e-6)


def test_two_rounds_of_feddyn_by_hand(tmp_path: Path) -> None:
    """As in the paper: with the gradients of all devices, and h."""
    run, _ = played(curved(tmp_path, FEDDYN, 2, epochs=3))
    model, alpha, h, gradients = 5.0, 0.5, 0.0, np.zeros(4)
    for _ in range(2):
        ends = np.full(4, model)
        for _ in range(3):
            ends -= 0.1 * (STRENGTH * (ends - CENTER) - gradients + alpha * (ends - model))
        gradients -= alpha * (ends - model)
        h -= alpha * (ends - model).sum() / 4
        model = float(ends.mean() - h / alpha)
    found = weights(run, [run.strategy.state["model"], run.strategy.state["moved"]])
    assert [value[0] for value in found] == pytest.approx([model, -h / alpha], abs=1e-6)


@pytest.mark.parametrize("start", ["center", "own"])
def test_three_rounds_of_feddr_by_hand(start: str, tmp_path: Path) -> None:
    run, _ = played(
        curved(tmp_path, {"kind": "feddr", "eta": 2.0, "alpha": 1.5, "start": start}, 3, 4)
    )
    w, x, y, reflected = 5.0, np.full(4, 5.0), np.full(4, 5.0), np.full(4, 5.0)
    for _ in range(3):
        y = y + 1.5 * (w - x)
        x = y.copy() if start == "center" else x
        for _ in range(4):
            x = x - 0.1 * (STRENGTH * (x - CENTER) + (x - y) / 2.0)
        w += float((2 * x - y - reflected).mean())
        reflected = 2 * x - y
    assert model_of(run)[0] == pytest.approx(w, abs=1e-5)
    own = weights(run, [run.dispatch.devices.states[device]["x"] for device in range(4)])
    assert np.array(own)[:, 0] == pytest.approx(x, abs=1e-5)


def digits(strategy: dict[str, Any]) -> dict[str, Any]:
    return {
        "seed": 2,
        "population": {"devices": 8, "speed": "100 samples/s"},
        "strategy": {"clients_per_round": 3, "local_epochs": 2} | strategy,
        "stop": {"rounds": 3},
    }


@pytest.mark.parametrize("learning", ["on", "off"])
@pytest.mark.parametrize(
    ("strategy", "sent"),
    [
        *(
            ({"kind": kind}, {})
            for kind in ("fedavg", "fedprox", "feddyn", "feddr", "ditto", "fednova")
        ),
        ({"kind": "scaffold"}, {"control-variate": 18 * 650}),
        ({"kind": "fesem", "groups": 3}, {}),
        ({"kind": "ifca", "groups": 3}, {"model": 3 * 9 * 650, "id": 9}),
        ({"kind": "cfl", "split_rounds": [1, 2], "clients_per_round": 8}, {}),
    ],
    ids=str,
)
def test_what_it_sends(
    strategy: dict[str, Any], sent: dict[str, int], learning: str, tmp_path: Path
) -> None:
    """Of 650 numbers a model, each way: what FedAvg sends, and what more; the paper's count
    leaves out what are no models.
    """
    found = ran(digits(strategy) | {"learning": learning}, tmp_path / "run").summary["bytes"]
    asked = 3 * strategy.get("clients_per_round", 3)
    expected = {"model": asked * 650, "update": asked * 650} | sent
    assert found["by_purpose"] == {name: 4 * count for name, count in expected.items()}
    assert found["paper"] == 4 * (sum(expected.values()) - expected.get("id", 0))
    assert found["wasted"] == 0


@pytest.mark.parametrize(
    ("kind", "state"), [("scaffold", "control"), ("feddyn", "moved"), ("feddr", None)]
)
def test_a_cut_off_answer_changes_neither_side(kind: str, state: str | None) -> None:
    sections = digits({"kind": kind, "deadline": "3 s"}) | {
        "network": {"kind": "star", "device": {"up": "10 kbit/s"}}
    }
    run, records = played(sections)
    assert {fields["outcome"] for fields in told(records, "task-end")} == {"late"}
    assert not any(run.dispatch.devices.states.values())
    assert (initial_weights(sections) == model_of(run)).all()
    assert state is None or not weights(run, [run.strategy.state[state]])[0].any()


def test_reach_is_the_papers_norm() -> None:
    assert reach(7) == 7
    rho, pull, tau = 0.9, 0.05, 6
    # its section 4.1
    assert reach(tau, rho) == pytest.approx((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho))
    assert reach(tau, 0.0, pull) == pytest.approx((1 - (1 - pull) ** tau) / pull)


def test_fednovas_distance_from_the_optimum_falls_with_the_learning_rate_where_fedavg_keeps_its_bias(
    tmp_path: Path,
) -> None:
    def steady(lr: float, strategy: dict[str, Any]) -> float:
        sections = curved(
            tmp_path, strategy, round(6 / lr), 1, UNEQUAL, training={"lr": lr, "batch_size": 10}
        )
        return float(model_after(sections)[0])

    rates, share = (0.08, 0.04), np.array(UNEQUAL) * STRENGTH
    nova = [abs(steady(lr, FEDNOVA) - OPTIMUM) for lr in rates]
    # the optimum of the losses weighted by steps: Theorem 1 of the paper
    biased = (share * CENTER).sum() / share.sum()
    avg = [abs(steady(lr, FEDAVG) - biased) for lr in rates]
    assert [nova[0] / nova[1], avg[0] / avg[1]] == pytest.approx([2, 2], rel=0.15)
    assert abs(biased - OPTIMUM) > 5 * nova[0]


@pytest.mark.parametrize("effective", ["reach", "steps"])
def test_a_round_of_fednova_by_hand_with_momentum_and_a_proximal_term(
    effective: str, tmp_path: Path
) -> None:
    training = {"lr": 0.1, "batch_size": 10, "momentum": 0.5}
    fednova = {"kind": "fednova", "mu": 0.3, "effective": effective}
    found = model_after(curved(tmp_path, fednova, 1, 2, UNEQUAL, training=training))
    ends, norms = [], []
    for center, strength, an_epoch in zip(CENTER, STRENGTH, UNEQUAL, strict=True):
        here, velocity, gone, speed = 5.0, 0.0, 0.0, 0.0
        for _ in range(2 * an_epoch):
            velocity = 0.5 * velocity + strength * (here - center) + 0.3 * (here - 5.0)
            here -= 0.1 * velocity
            speed = 0.5 * speed + 1 - 0.1 * 0.3 * gone
            gone += speed
        ends.append(here)
        norms.append(gone)
    share = np.array(UNEQUAL) / sum(UNEQUAL)  # of the samples
    tau = share @ norms if effective == "reach" else share @ np.array(UNEQUAL) * 2
    step = tau * (share * (np.array(ends) - 5.0) / norms).sum()
    assert found[0] == pytest.approx(5.0 + step, abs=1e-5)


def test_partial_work_counts_by_its_own_steps(tmp_path: Path) -> None:
    unequal = {
        "devices": 4,
        "speed": {"kind": "lognormal", "median": "30 samples/s", "spread": 2.0},
    }
    sections = curved(tmp_path, FEDNOVA | {"deadline": "1 s"}, 1, 4, population=unequal)
    ended = {
        event["device"]: event["data"]["epochs"]
        for event in trainings(ran(sections, tmp_path / "run"))
    }
    taken = np.array([ended[device] for device in sorted(ended)])
    assert min(taken) > 0
    assert len(set(taken)) > 2
    moved = (CENTER - 5) * (1 - (1 - 0.1 * STRENGTH) ** taken)
    assert model_after(sections)[0] == pytest.approx(
        5 + taken.mean() * (moved / taken).mean(), abs=1e-5
    )


def test_fedavg_weighs_by_samples(tmp_path: Path) -> None:
    share, progress = (
        np.array(UNEQUAL) / sum(UNEQUAL),
        1 - (1 - 0.1 * STRENGTH) ** (2 * np.array(UNEQUAL)),
    )
    found = model_after(curved(tmp_path, {"kind": "fedavg"}, 1, 2, UNEQUAL))[0]
    assert found == pytest.approx(5.0 + (share * progress * (CENTER - 5.0)).sum(), abs=1e-5)


SIZES = {"low": 100, "high": 3000}


def population(devices: int, **more: Any) -> dict[str, Any]:
    return {"devices": devices, "samples": SIZES, "speed": "64 samples/s"} | more


def everybody_once(people: dict[str, Any], folder: Path, **strategy: Any) -> RunFolder:
    """One round in which all are asked, 5 epochs each, without network time or learning."""
    strategy = {
        "kind": "fedavg",
        "clients_per_round": people["devices"],
        "local_epochs": 5,
    } | strategy
    scenario = {
        "learning": "off",
        "population": people,
        "strategy": strategy,
        "stop": {"rounds": 1},
    }
    return ran(scenario, folder)


@pytest.mark.parametrize(("t", "dropped"), [(1.0, 0.50), (0.5, 0.77), (None, 0.0)])
def test_the_share_that_fedavg_drops(t: float | None, dropped: float, tmp_path: Path) -> None:
    run = everybody_once(
        population(4000), tmp_path / "run", deadline=t and {"kind": "relative", "times": t}
    )
    (row,) = run.rounds
    assert row["selected"] == 4000
    assert row["slow"] / 4000 == pytest.approx(dropped, abs=0.02)
    sizes = np.array([device["samples"] for device in run.devices])
    survivors = {
        event["device"] for event in of_kind(run, "task-end") if event["outcome"] == "done"
    }
    assert survivors == set(np.flatnonzero(sizes <= (t or np.inf) * sizes.mean()).tolist())


@pytest.mark.parametrize("t", [1.0, 0.5, 0.1])
def test_fedprox_does_as_many_epochs_as_fit_and_drops_only_whom_none_fits(
    t: float, tmp_path: Path
) -> None:
    run = everybody_once(
        population(1000),
        tmp_path / "run",
        kind="fedprox",
        deadline={"kind": "relative", "times": t},
    )
    sizes = np.array([device["samples"] for device in run.devices])
    fitting = np.minimum(5, np.floor(5 * t * sizes.mean() / sizes)).astype(int)
    epochs = {event["device"]: event["data"]["epochs"] for event in trainings(run)}
    assert [epochs[device] for device in range(1000)] == fitting.tolist()
    (row,) = run.rounds
    assert row["slow"] == (fitting == 0).sum()


def budget_run(
    sizes: list[int], folder: Path, population: dict[str, Any] | None = None, **strategy: Any
) -> RunFolder:
    """One round of devices with given sizes, 10 samples/s, real learning on random data."""
    scenario = {
        "data": write_data(folder, sizes),
        "population": {"devices": len(sizes), "speed": "10 samples/s"} | (population or {}),
        "strategy": {"kind": "fedavg", "clients_per_round": len(sizes), "local_epochs": 5}
        | strategy,
        "stop": {"rounds": 1},
    }
    return ran(scenario, folder / "run")


def test_exactly_at_the_budget_survives_and_a_nanosecond_late_does_not(tmp_path: Path) -> None:
    """Mean size 40: T = 1 is 200 sample-passes, 20 s; the device of 40 samples needs exactly
    that.
    """
    just: list[tuple[list[int], Any, str]] = [
        ([30, 40, 50], {"kind": "relative", "times": 1.0}, "done"),
        ([30, 40, 50], {"kind": "relative", "times": 1.0 - 5e-11}, "late"),
        ([31, 42, 47], {"kind": "relative", "times": 1.05}, "done"),
        ([30, 40, 50], {"kind": "fixed", "time": "20 s", "since": "download"}, "done"),
        ([30, 40, 50], "20 s", "done"),
        ([30, 40, 50], "19.999999999 s", "late"),
    ]
    for number, (sizes, deadline, outcome) in enumerate(just):
        assert ends_of(budget_run(sizes, tmp_path / str(number), deadline=deadline)) == [
            "done",
            outcome,
            "late",
        ]
    # All of one size: everybody is exactly at T = 1, at whatever speed.
    for speed in ("7 samples/s", "0.3 samples/s", "333 samples/s"):
        run = budget_run(
            [13, 13, 13],
            tmp_path / speed[:3],
            {"speed": speed},
            deadline={"kind": "relative", "times": 1.0},
        )
        assert ends_of(run) == ["done"] * 3


def test_over_selection_closes_when_enough_have_come(tmp_path: Path) -> None:
    strategy = {"clients_per_round": 4, "over_selection": 1.3, "local_epochs": 1}
    run = budget_run([10, 20, 30, 40, 50, 60], tmp_path, **strategy)
    (row,) = run.rounds
    assert (row["selected"], row["valid"], row["slow"], row["time"]) == (6, 4, 2, 4.0)
    assert ends_of(run) == ["done"] * 4 + ["late"] * 2


def test_a_larger_share_of_stragglers_slows_the_same_ones_and_more() -> None:
    plain, slow = made({"learning": "off", "population": population(1000)}).population, []
    for share in (0.1, 0.2):
        run = made(
            {
                "learning": "off",
                "population": population(1000, stragglers={"share": share, "factor": 0.5}),
            }
        )
        slow.append(set(np.flatnonzero(run.population.speed == plain.speed / 2)))
    assert [len(own) for own in slow] == [100, 200]
    assert slow[0] < slow[1]


def test_stragglers_do_not_move_the_unit_of_time_unless_asked(tmp_path: Path) -> None:
    """7.6: at lambda = .2, FedAvg(1) drops 55.3 % of the devices, but 45.7 % if the mean were
    taken over all of them.
    """
    people = population(4000, stragglers={"share": 0.2})
    for base, dropped in (("unslowed", 0.553), ("all", 0.457)):
        run = everybody_once(
            people, tmp_path / base, deadline={"kind": "relative", "devices": base}
        )
        assert run.rounds[0]["slow"] / 4000 == pytest.approx(dropped, abs=0.02)


# Rounds on a schedule (``every``): each begins at the first multiple at which the one before has
# closed.


def begins_and_ends(sections: dict[str, Any], path: Path) -> tuple[list[float], list[float]]:
    """When rounds began, and when they closed (s)."""
    folder = ran(sections, path)
    return tuple(
        [event["time"] for event in of_kind(folder, kind)] for kind in ("round-start", "round")
    )  # type: ignore[return-value]


def rounds(folder: Path, count: int = 12, **strategy: Any) -> tuple[list[float], list[float]]:
    """Rounds without learning of three devices that take 10 s, 20 s and 40 s; a round asks one
    of them.
    """
    people = {
        "devices": 3,
        "samples": {"low": 100, "high": 100},
        "speed": {"kind": "choice", "values": ["10 samples/s", "5 samples/s", "2.5 samples/s"]},
    }
    strategy = {"kind": "fedavg", "clients_per_round": 1} | strategy
    sections = {
        "learning": "off",
        "population": people,
        "strategy": strategy,
        "stop": {"rounds": count},
        "seed": 2,
    }
    return begins_and_ends(sections, folder)


@pytest.mark.parametrize(
    ("every", "deadline", "count"),
    [(15, None, 12), (10, None, 12), (20, "20 s", 9), (0.7, "0.7 s", 500)],
)
def test_a_round_begins_at_the_first_multiple(
    every: float, deadline: str | None, count: int, tmp_path: Path
) -> None:
    """Also where multiples are not on the clock's grid."""
    begins, ends = rounds(tmp_path / "run", count, every=f"{every} s", deadline=deadline)
    assert begins == pytest.approx(
        [0.0, *(every * math.ceil(closed / every - 1e-4) for closed in ends[:-1])], abs=1e-5
    )


def test_a_round_that_takes_no_time_is_not_followed_at_once(tmp_path: Path) -> None:
    sections = {
        "learning": "off",
        "strategy": {"kind": "fedavg", "every": "1 h"},
        "stop": {"rounds": 5},
    }
    begins, ends = begins_and_ends(sections, tmp_path / "run")
    assert begins == ends == [3600.0 * number for number in range(5)]


def test_with_nobody_to_ask_it_looks_again_and_then_keeps_to_the_schedule(tmp_path: Path) -> None:
    sections = quiet_world(
        {"kind": "fedavg", "clients_per_round": 5, "every": "100 s", "retry": "30 s"}, rounds=3
    )
    late = {"kind": "schedule", "times": ["130 s"] * 24, "devices": list(range(24))}
    sections["population"]["arrivals"] = late
    begins, _ = begins_and_ends(sections, tmp_path / "run")
    assert begins == [150.0, 200.0, 300.0]


# How evenly devices are selected: Jain's index against known answers and against the published
# figures.


def test_the_index_and_the_worst_decile_of_known_allocations() -> None:
    assert (jain_index([3, 3, 3]), jain_index([1, 0, 0, 0])) == (1.0, 0.25)
    assert jain_index([1, 2, 3]) == pytest.approx(36 / (3 * 14))
    assert all(map(math.isnan, (jain_index([0, 0]), jain_index([]), worst_decile([]))))
    assert worst_decile(range(100)) == pytest.approx(4.5)
    assert (worst_decile([5.0, 7.0]), worst_decile(range(11))) == (5.0, 0.5)
