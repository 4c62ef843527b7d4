"""Rounds on a schedule (``every``): each begins at the first multiple at which the one before has closed."""

from pathlib import Path
from typing import Any

import pytest

from fedsim.records.reading import RunFolder
from fedsim.testing import eventful_world, quiet_world
from tests.strategies.clustered import of_kind, ran


def begins_and_ends(folder: RunFolder) -> tuple[list[float], list[float]]:
    """When rounds began, and when they closed (s)."""
    begins = [event["time"] for event in of_kind(folder, "round-start")]
    return begins, [event["time"] for event in of_kind(folder, "round")]


def rounds(folder: Path, count: int = 12, **strategy: Any) -> tuple[list[float], list[float]]:
    """Rounds without learning of three devices that take 10 s, 20 s and 40 s; a round asks one of them."""
    people = {
        "devices": 3,
        "samples": {"low": 100, "high": 100},
        "speed": {"kind": "choice", "values": ["10 samples/s", "5 samples/s", "2.5 samples/s"]},
    }
    strategy = {"kind": "fedavg", "clients_per_round": 1} | strategy
    sections = {"learning": "off", "population": people, "strategy": strategy, "stop": {"rounds": count}, "seed": 2}
    return begins_and_ends(ran(sections, folder))


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
    begins, ends = rounds(tmp_path / "run", every="10 s")
    assert ends[:-1] == begins[1:]
    begins, ends = rounds(tmp_path / "deadline", every="20 s", deadline="20 s")
    assert begins == [20.0 * number for number in range(12)]


def test_multiples_that_are_not_on_the_clocks_grid(tmp_path: Path) -> None:
    begins, ends = rounds(tmp_path / "run", 500, every="0.7 s", deadline="0.7 s")
    assert begins == pytest.approx([0.7 * number for number in range(500)], abs=1e-5)
    assert ends[:-1] == begins[1:]


def test_with_nobody_to_ask_it_looks_again_and_then_keeps_to_the_schedule(tmp_path: Path) -> None:
    sections = quiet_world({"kind": "fedavg", "clients_per_round": 5, "every": "100 s", "retry": "30 s"}, rounds=3)
    late = {"kind": "schedule", "times": ["130 s"] * 24, "devices": list(range(24))}
    sections["population"]["arrivals"] = late
    begins, _ = begins_and_ends(ran(sections, tmp_path / "run"))
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
    begins, ends = begins_and_ends(ran(sections, tmp_path / "whole"))
    on_time = sum(begin % 25 == 0 for begin in begins)
    assert on_time >= len(begins) - 2  # the first comes when all are introduced; one may find nobody to ask
    assert all(closed <= begin for closed, begin in zip(ends, begins[1:], strict=False))
