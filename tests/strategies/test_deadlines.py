"""Deadlines relative to a population's mean training time, as in the CATA-Fed paper's section 5; tentative stragglers."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.lab.reading.fairness import jain_index, worst_decile
from fedsim.records.reading import RunFolder
from fedsim.testing import eventful_world, quiet_world
from tests.strategies.runs import ends_of, made, of_kind, ran, trainings
from tests.strategies.worlds import write_data

SIZES = {"low": 100, "high": 3000}


def population(devices: int, **more: Any) -> dict[str, Any]:
    return {"devices": devices, "samples": SIZES, "speed": "64 samples/s"} | more


def everybody_once(people: dict[str, Any], folder: Path, **strategy: Any) -> RunFolder:
    """One round in which all are asked, 5 epochs each, without network time or learning."""
    strategy = {"kind": "fedavg", "clients_per_round": people["devices"], "local_epochs": 5} | strategy
    scenario = {"learning": "off", "population": people, "strategy": strategy, "stop": {"rounds": 1}}
    return ran(scenario, folder)


@pytest.mark.parametrize(("t", "dropped"), [(1.0, 0.50), (0.5, 0.77), (None, 0.0)])
def test_the_share_that_fedavg_drops(t: float | None, dropped: float, tmp_path: Path) -> None:
    run = everybody_once(population(4000), tmp_path / "run", deadline=t and {"kind": "relative", "times": t})
    (row,) = run.rounds
    assert row["selected"] == 4000
    assert row["slow"] / 4000 == pytest.approx(dropped, abs=0.02)
    sizes = np.array([device["samples"] for device in run.devices])
    survivors = {event["device"] for event in of_kind(run, "task-end") if event["outcome"] == "done"}
    assert survivors == set(np.flatnonzero(sizes <= (t or np.inf) * sizes.mean()).tolist())


@pytest.mark.parametrize("t", [1.0, 0.5, 0.1])
def test_fedprox_does_as_many_epochs_as_fit_and_drops_only_whom_none_fits(t: float, tmp_path: Path) -> None:
    run = everybody_once(population(1000), tmp_path / "run", kind="fedprox", deadline={"kind": "relative", "times": t})
    sizes = np.array([device["samples"] for device in run.devices])
    fitting = np.minimum(5, np.floor(5 * t * sizes.mean() / sizes)).astype(int)
    epochs = {event["device"]: event["data"]["epochs"] for event in trainings(run)}
    assert [epochs[device] for device in range(1000)] == fitting.tolist()
    (row,) = run.rounds
    assert row["slow"] == (fitting == 0).sum()


def budget_run(sizes: list[int], folder: Path, population: dict[str, Any] | None = None, **strategy: Any) -> RunFolder:
    """One round of devices with given sizes, 10 samples/s, real learning on random data."""
    scenario = {
        "data": write_data(folder, sizes),
        "population": {"devices": len(sizes), "speed": "10 samples/s"} | (population or {}),
        "strategy": {"kind": "fedavg", "clients_per_round": len(sizes), "local_epochs": 5} | strategy,
        "stop": {"rounds": 1},
    }
    return ran(scenario, folder / "run")


def test_exactly_at_the_budget_survives_and_a_nanosecond_late_does_not(tmp_path: Path) -> None:
    """Mean size 40: T = 1 is 200 sample-passes, 20 s; the device of 40 samples needs exactly that."""
    just: list[tuple[list[int], Any, str]] = [
        ([30, 40, 50], {"kind": "relative", "times": 1.0}, "done"),
        ([30, 40, 50], {"kind": "relative", "times": 1.0 - 5e-11}, "late"),
        ([31, 42, 47], {"kind": "relative", "times": 1.05}, "done"),
        ([30, 40, 50], {"kind": "fixed", "time": "20 s", "since": "download"}, "done"),
        ([30, 40, 50], "20 s", "done"),
        ([30, 40, 50], "19.999999999 s", "late"),
    ]
    for number, (sizes, deadline, outcome) in enumerate(just):
        assert ends_of(budget_run(sizes, tmp_path / str(number), deadline=deadline)) == ["done", outcome, "late"]
    # All of one size: everybody is exactly at T = 1, at whatever speed.
    for speed in ("7 samples/s", "0.3 samples/s", "333 samples/s"):
        run = budget_run([13, 13, 13], tmp_path / speed[:3], {"speed": speed}, deadline={"kind": "relative", "times": 1.0})
        assert ends_of(run) == ["done"] * 3


def test_over_selection_closes_when_enough_have_come(tmp_path: Path) -> None:
    strategy = {"clients_per_round": 4, "over_selection": 1.3, "local_epochs": 1}
    run = budget_run([10, 20, 30, 40, 50, 60], tmp_path, **strategy)
    (row,) = run.rounds
    assert (row["selected"], row["valid"], row["slow"], row["time"]) == (6, 4, 2, 4.0)
    assert ends_of(run) == ["done"] * 4 + ["late"] * 2


def test_tentative_stragglers_are_a_share_at_a_factor_of_their_speed() -> None:
    plain = made({"learning": "off", "population": population(1000)}).population
    slowed = {}
    for share in (0.1, 0.2):
        run = made({"learning": "off", "population": population(1000, stragglers={"share": share, "factor": 0.5})})
        slow = np.flatnonzero(run.population.speed == plain.speed / 2)
        assert len(slow) == share * 1000
        assert (np.delete(run.population.speed, slow) == np.delete(plain.speed, slow)).all()
        assert list(run.device_columns()["speed"]) == run.population.speed.tolist()
        slowed[share] = set(slow.tolist())
    assert slowed[0.1] < slowed[0.2]  # a larger share slows the same ones and more


def test_stragglers_do_not_move_the_unit_of_time_unless_asked(tmp_path: Path) -> None:
    """7.6: at lambda = .2, FedAvg(1) drops 55.3 % of the devices, but 45.7 % if the mean were taken over all of them."""
    people, means = population(4000, stragglers={"share": 0.2}), []
    for base, dropped in (("unslowed", 0.553), ("all", 0.457)):
        deadline = {"kind": "relative", "devices": base}
        run = everybody_once(people, tmp_path / base, deadline=deadline)
        assert run.rounds[0]["slow"] / 4000 == pytest.approx(dropped, abs=0.02)
        sections = {"learning": "off", "population": people, "strategy": {"deadline": deadline}}
        means.append(made(sections).server.setting.mean_epoch_s)
    assert means[1] / means[0] == pytest.approx(1.2, abs=0.01)


# Rounds on a schedule (``every``): each begins at the first multiple at which the one before has closed.


def begins_and_ends(sections: dict[str, Any], path: Path) -> tuple[list[float], list[float]]:
    """When rounds began, and when they closed (s)."""
    folder = ran(sections, path)
    return tuple([event["time"] for event in of_kind(folder, kind)] for kind in ("round-start", "round"))  # type: ignore[return-value]


def rounds(folder: Path, count: int = 12, **strategy: Any) -> tuple[list[float], list[float]]:
    """Rounds without learning of three devices that take 10 s, 20 s and 40 s; a round asks one of them."""
    people = {
        "devices": 3,
        "samples": {"low": 100, "high": 100},
        "speed": {"kind": "choice", "values": ["10 samples/s", "5 samples/s", "2.5 samples/s"]},
    }
    strategy = {"kind": "fedavg", "clients_per_round": 1} | strategy
    sections = {"learning": "off", "population": people, "strategy": strategy, "stop": {"rounds": count}, "seed": 2}
    return begins_and_ends(sections, folder)


def test_a_round_begins_at_the_next_multiple(tmp_path: Path) -> None:
    begins, ends = rounds(tmp_path / "run", every="15 s")
    assert begins[0] == 0.0
    lengths = {end - begin for begin, end in zip(begins, ends, strict=True)}
    assert len(lengths) > 1
    assert lengths <= {10.0, 20.0, 40.0}
    for closed, begin in zip(ends, begins[1:], strict=False):
        assert begin % 15 == 0
        assert closed <= begin < closed + 15


def test_one_that_closes_at_a_multiple_is_followed_there(tmp_path: Path) -> None:
    """Also where multiples are not on the clock's grid."""
    begins, ends = rounds(tmp_path / "run", every="10 s")
    assert ends[:-1] == begins[1:]
    begins, ends = rounds(tmp_path / "deadline", every="20 s", deadline="20 s")
    assert begins == [20.0 * number for number in range(12)]
    begins, ends = rounds(tmp_path / "off", 500, every="0.7 s", deadline="0.7 s")
    assert begins == pytest.approx([0.7 * number for number in range(500)], abs=1e-5)
    assert ends[:-1] == begins[1:]


def test_a_round_that_takes_no_time_is_not_followed_at_once(tmp_path: Path) -> None:
    sections = {"learning": "off", "strategy": {"kind": "fedavg", "every": "1 h"}, "stop": {"rounds": 5}}
    begins, ends = begins_and_ends(sections, tmp_path / "run")
    assert begins == ends == [3600.0 * number for number in range(5)]


def test_with_nobody_to_ask_it_looks_again_and_then_keeps_to_the_schedule(tmp_path: Path) -> None:
    sections = quiet_world({"kind": "fedavg", "clients_per_round": 5, "every": "100 s", "retry": "30 s"}, rounds=3)
    late = {"kind": "schedule", "times": ["130 s"] * 24, "devices": list(range(24))}
    sections["population"]["arrivals"] = late
    begins, _ = begins_and_ends(sections, tmp_path / "run")
    assert begins == [150.0, 200.0, 300.0]


@pytest.mark.parametrize(
    "strategy",
    [
        {"kind": "fedavg", "clients_per_round": 5, "deadline": "10 s"},
        {"kind": "cata-fed", "clients_per_round": 5, "deadline": "10 s"},
        {"kind": "flexcfl", "clients_per_round": 5, "groups": 2, "moment": {"devices": 2}},
        {"kind": "lcfl", "groups": 2, "moment": {"rounds": 1, "participation": 0.4}},
    ],
    ids=lambda strategy: strategy["kind"],
)
def test_every_synchronous_strategy_keeps_to_it(strategy: dict[str, Any], tmp_path: Path) -> None:
    sections = eventful_world(strategy | {"every": "25 s"}, rounds=6) | {"learning": "off"}
    begins, ends = begins_and_ends(sections, tmp_path / "run")
    on_time = sum(begin % 25 == 0 for begin in begins)
    assert on_time >= len(begins) - 2  # the first comes when all are introduced; one may find nobody to ask
    assert all(closed <= begin for closed, begin in zip(ends, begins[1:], strict=False))


# How evenly devices are selected: Jain's index against known answers and against the published figures.


def test_the_index_and_the_worst_decile_of_known_allocations() -> None:
    assert (jain_index([3, 3, 3]), jain_index([1, 0, 0, 0])) == (1.0, 0.25)
    assert jain_index([1, 2, 3]) == pytest.approx(36 / (3 * 14))
    assert all(map(math.isnan, (jain_index([0, 0]), jain_index([]), worst_decile([]))))
    assert worst_decile(range(100)) == pytest.approx(4.5)
    assert (worst_decile([5.0, 7.0]), worst_decile(range(11))) == (5.0, 0.5)
