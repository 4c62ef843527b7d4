"""What strategies with groups have in common: the sweep, preparation beside and within rounds,
and devices that vanish.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.records.reading import RunFolder
from tests.strategies.runs import groups_of, made, moves, of_kind, ran
from tests.strategies.worlds import PAIRED, Sections, opposite_groups, scheduled, swap, world

KINDS = ("fedgroup", "fesem", "fesem-mig", "flexcfl", "ifca", "ifca-mig")


def grouped(kind: str, **others: Any) -> Sections:
    return {"kind": kind, "groups": 5, "clients_per_round": 4, "local_epochs": 2} | others


def twenty(folder: Path, strategy: Sections, rounds: int, **others: Any) -> RunFolder:
    """Twenty devices, of which device d is of true group d mod 5."""
    return ran(world(PAIRED, 20, strategy, rounds, **others), folder / "run")


def tasks(run: RunFolder, device: int | None = None) -> list[dict[str, Any]]:
    """Begins of tasks, each with how it ended."""
    ends = {event["task"]: event for event in of_kind(run, "task-end")}
    return [
        event | {"end": ends[event["task"]]["time"], "outcome": ends[event["task"]]["outcome"]}
        for event in of_kind(run, "task-start")
        if device is None or event["device"] == device
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_devices_are_asked_in_turn_until_each_was(tmp_path: Path, kind: str) -> None:
    run = twenty(tmp_path, grouped(kind, clients_per_round=6), 6, learning="off")
    asked: dict[int, list[int]] = {}
    for event in tasks(run):
        if event["round"] is not None and "continues" not in event["data"]:
            asked.setdefault(event["round"], []).append(event["device"])
    in_turn = [sorted(asked[number]) for number in range(4)]
    assert [device for cohort in in_turn[:3] for device in cohort] == list(range(18))
    assert in_turn[3][-2:] == [18, 19]
    assert [len(set(cohort)) for cohort in asked.values()] == [6] * 6
    assert sorted(asked[4]) != sorted(asked[5])


def test_of_the_cohort_happens_within_the_round_and_of_the_others_beside_it(tmp_path: Path) -> None:
    run = twenty(tmp_path, grouped("ifca-mig", moment={"shift": "oracle"}), 8, **swap(rounds=[6]))
    (at,) = {event["time"] for event in of_kind(run, "shift")}
    prepared = [
        event for event in tasks(run) if event["time"] == at and event["round"] in (None, 6)
    ]
    within = {event["device"] for event in prepared if event["round"] == 6}
    beside = {event["device"] for event in prepared if event["round"] is None}
    assert (len(within), len(beside)) == (4, 16)
    continued = {event["device"]: event for event in tasks(run) if "continues" in event["data"]}
    assert set(continued) == within
    for event in prepared:
        if event["round"] == 6:
            assert continued[event["device"]]["time"] == event["end"]  # no round is lost by it
    row = run.rounds[6]
    assert (row["selected"], row["valid"]) == (4, 4)


def test_who_works_when_its_data_shift_is_prepared_when_it_is_through(tmp_path: Path) -> None:
    run = twenty(tmp_path, grouped("flexcfl", clients_per_round=20), 9, **swap(times=["1 s"]))
    fired = [event["device"] for event in of_kind(run, "shift-test") if event["data"]["fired"]]
    busy = [
        event
        for device in fired
        for event in tasks(run, device)
        if event["time"] < 1 < event["end"]
    ]
    assert len(busy) > 10
    for event in busy:
        (after,) = (later for later in tasks(run, event["device"]) if later["time"] == event["end"])
        assert after["round"] is None
    assert {event["device"] for event in moves(run, "migration")} <= set(fired)


@pytest.mark.parametrize("within", [False, True], ids=["beside the rounds", "in a round"])
def test_who_is_lost_after_its_data_have_shifted_is_prepared_when_it_is_back(
    tmp_path: Path, within: bool
) -> None:
    """Beside the rounds a pre-training of half a second is lost, and in a round the training in
    which the data shifted.
    """
    population = {"availability": {"kind": "renewal", "mean_on": "3 s", "mean_off": "1 s"}}
    strategy = grouped("flexcfl", clients_per_round=2, moment={"shift": "oracle"}, retry="500 ms")
    strategy |= {"clients_per_round": 10, "local_epochs": 20} if within else {}
    at, rounds = (8, 12) if within else (6, 40)
    sections = world(
        PAIRED, 20, strategy, rounds, population=population, seed=5, **swap(times=[f"{at} s"])
    )
    run = ran(sections, tmp_path / "run")
    built = made(sections)
    tested = {test["device"] for test in of_kind(run, "shift-test") if test["time"] == at}
    lost = [event for event in tasks(run) if event["outcome"] == "lost" and event["end"] > at]
    in_round = [event for event in lost if event["time"] < at and event["device"] in tested]
    lost = (
        in_round
        if within
        else [event for event in lost if event["round"] is None and event["time"] > at]
    )
    back = [(event["device"], built.tasks.next_on(event["device"], event["end"])) for event in lost]
    back = [(device, time) for device, time in back if time < run.rounds[-1]["time"]]
    assert back
    for device, time in back:
        assert any(later["time"] == time for later in tasks(run, device))


def test_a_newcomer_that_shifts_while_it_looks_for_its_group_looks_again(tmp_path: Path) -> None:
    population = {"arrivals": scheduled(d19="3 s")}
    run = twenty(tmp_path, grouped("flexcfl"), 40, population=population, **swap(times=["3200 ms"]))
    (event,) = (event for event in of_kind(run, "shift") if event["device"] == 19)
    assert (event["data"]["partner"] - 19) % 5
    assert run.rounds[-1]["ari"] == 1.0
    assert [move["data"]["why"] for move in of_kind(run, "assign") if move["device"] == 19] == [
        "cold-start",
        "migration",
    ]


def test_who_shifts_while_it_is_prepared_is_tested_again(tmp_path: Path) -> None:
    """Pre-training for the groups takes half a second: in the midst of it nobody has a group
    that it could leave.
    """
    run = twenty(tmp_path, grouped("flexcfl"), 4, **swap(times=["100 ms"]))
    assert {event["time"] for event in of_kind(run, "shift-test")} == {
        of_kind(run, "clustering")[0]["time"]
    }
    crossed = [
        event for event in of_kind(run, "shift") if (event["device"] - event["data"]["partner"]) % 5
    ]
    assert {event["device"] for event in moves(run, "migration")} == {
        event["device"] for event in crossed
    }
    assert run.rounds[-1]["ari"] == 1.0


def test_who_shifts_again_while_it_looks_for_its_group_is_tested_once_it_has_found_it(
    tmp_path: Path,
) -> None:
    strategy = grouped("flexcfl", clients_per_round=1, moment={"shift": "oracle"})
    run = twenty(tmp_path, strategy, 40, **swap(times=["3 s", "3100 ms"]))
    first = {
        event["device"]: event["end"]
        for event in tasks(run)
        if event["time"] == 3 and event["round"] is None
    }
    assert len(first) >= 18
    for device, end in first.items():
        assert 3.1 < end < 3.6
        assert [
            event["time"] for event in of_kind(run, "shift-test") if event["device"] == device
        ] == [3.0, end]
    assert run.rounds[-1]["ari"] == 1.0


def test_lost_in_its_cold_start_a_device_repeats_it_when_it_is_selected_again(
    tmp_path: Path,
) -> None:
    population = {"availability": {"kind": "renewal", "mean_on": "3 s", "mean_off": "1 s"}}
    strategy = grouped("flexcfl", moment={"devices": 1}, retry="500 ms", clients_per_round=8)
    run = twenty(tmp_path, strategy, 30, population=population)
    repeated = 0
    for device in range(20):
        own = tasks(run, device)
        cold = [event for event in own if event["group"] is None and event["round"] is not None]
        repeated += len(cold) > 1
        assert all(event["outcome"] != "done" for event in cold[:-1])
        for event, following in pairwise(cold):
            assert following["round"] > event["round"]
    assert repeated > 0


def test_even_if_it_was_prepared_in_the_instant_in_which_enough_had_come(tmp_path: Path) -> None:
    """A pre-training takes as long as a round's training, so all with a group come at once, and
    nobody else is needed.
    """
    strategy = grouped(
        "flexcfl", groups=2, moment={"devices": 5}, over_selection=1.5, follows="paper"
    )
    run = twenty(tmp_path, strategy, 20, learning="off")
    seen: set[int] = set()
    for row in run.rounds:
        own = [event for event in tasks(run) if event["round"] == row["round"]]
        ready = sum(
            event["group"] is not None and "continues" not in event["data"] for event in own
        )
        seen.add(ready)
        assert (row["selected"], row["valid"]) == (6, ready if ready >= 4 else 6)
    assert seen.intersection((4, 5))
    assert seen.intersection((1, 2, 3))


def test_who_is_prepared_in_the_instant_in_which_a_round_asks_it_has_a_group_by_then(
    tmp_path: Path,
) -> None:
    """Pre-training takes half a second, a round a whole one: newcomers find theirs when a round
    has just ended.
    """
    population = {"speed": "128 samples/s", "arrivals": scheduled(d7="3 s", d8="4500 ms")}
    strategy = grouped("flexcfl", groups=2, clients_per_round=10, moment={"epochs": 1})
    run = ran(
        world(
            opposite_groups(tmp_path / "data", [64] * 10), 10, strategy, 8, population=population
        ),
        tmp_path / "run",
    )
    assert (
        fedsim.load(run.path / "scenario.toml").strategy
        == fedsim.Scenario(strategy=strategy).strategy
    )
    for device, arrival, first in ((7, 3.0, 3.5), (8, 4.5, 5.5)):
        begins = [
            (event["time"], event["round"] is None, event["group"] is None)
            for event in tasks(run, device)
        ]
        assert begins[0] == (arrival, True, True)
        assert begins[1:] == [(first + number, False, False) for number in range(len(begins) - 1)]
        assert len(begins) > 2


def test_at_its_deadline_a_round_ends_whoever_still_prepares(tmp_path: Path) -> None:
    """A cold start takes 0.7 s, the training after it 0.2 s."""
    population = {"speed": "700 samples/s"}
    found = {}
    for deadline in ("800 ms", "2 s"):
        strategy = grouped("flexcfl", moment={"devices": 1}, deadline=deadline)
        run = ran(
            world(PAIRED, 20, strategy, 3, population=population, learning="off"),
            tmp_path / deadline,
        )
        old = {event["device"] for event in moves(run, "pre-training")}
        fresh = [event for event in tasks(run) if "continues" in event["data"]]
        assert len(fresh) + len(old.intersection(range(12))) == 12
        found[deadline] = {event["outcome"] for event in fresh}
        assert sum(row["slow"] for row in run.rounds) == sum(
            event["outcome"] == "late" for event in fresh
        )
    assert found == {"800 ms": {"late"}, "2 s": {"done"}}


def test_a_deadline_shorter_than_any_pretraining_ends_the_run(tmp_path: Path) -> None:
    strategy = grouped("flexcfl", deadline="600 ms")
    population = {"speed": "700 samples/s"}
    run = twenty(tmp_path, strategy, 3, population=population, learning="off")
    assert run.summary["stopped"] == "100 group cold starts brought back fewer than 5 devices each"


@pytest.mark.parametrize("kind", ["fesem", "flexcfl", "ifca"])
def test_a_group_without_devices_keeps_its_model_and_is_tested_on_nobody(
    tmp_path: Path, kind: str
) -> None:
    """All devices of the fifth true group leave for good after some rounds."""
    gone = [4, 9, 14, 19]
    population = {"departures": scheduled(**{f"d{device}": "1500 ms" for device in gone})}
    run = twenty(tmp_path, grouped(kind), 20, population=population)
    assert run.rounds[-1]["time"] > 2
    assert run.rounds[-1]["accuracy"] is not None
    assert len([name for name in run.models()["group"] if name.endswith("weight")]) == 5
    if kind == "flexcfl":
        group = groups_of(run)[4]
        assert [groups_of(run)[device] for device in gone] == [group] * 4
        late = [
            event
            for event in of_kind(run, "aggregate")
            if event["group"] == group and event["time"] > 1.8
        ]
        assert not late


@pytest.mark.parametrize("kind", ["flexcfl", "ifca-mig"])
def test_a_device_may_lose_its_only_class(tmp_path: Path, kind: str) -> None:
    """It gives away all that it has, and holds what it got for it."""
    data = {"source": "digits", "partition": {"kind": "label-groups", "groups": 10}}
    drift = {"kind": "swap-part", "probability": 1.0, "at": {"rounds": [6]}}
    run = ran(world(data, 20, grouped(kind, groups=3), 10, drift=drift), tmp_path / "run")
    tests = {event["device"]: event["data"] for event in of_kind(run, "shift-test")}
    assert len(tests) >= 16
    assert set(tests) == {event["device"] for event in of_kind(run, "shift")}
    assert all(test["fired"] for test in tests.values())
    assert min(row["samples"] for row in run.devices) > 0


# Devices that join and leave while a run goes on.

INTRODUCED: list[Sections] = [
    {"kind": "cata-fed", "clusters": 2, "deadline": "500 ms", "smallest_part": 10}
]
INTRODUCED += [
    {"kind": "tifl", "tiers": 2, "tiers_from": tiers_from} for tiers_from in ("size", "latency")
]


@pytest.mark.parametrize(
    "strategy", INTRODUCED, ids=lambda strategy: strategy.get("tiers_from", strategy["kind"])
)
def test_a_newcomer_is_introduced_when_it_arrives_and_trains_from_then_on(
    tmp_path: Path, strategy: Sections
) -> None:
    population = {"arrivals": scheduled(d3="1 s", d11="2 s")}
    run = twenty(
        tmp_path, strategy | {"clients_per_round": 4}, 60, population=population, learning="off"
    )
    sorted_in = [
        sum(event["data"]["members"])
        for event in [*of_kind(run, "cluster"), *of_kind(run, "tiers")]
    ]
    assert sorted_in == ([18, 19, 20] if strategy["kind"] == "cata-fed" else [18])
    for device in range(20):
        own = tasks(run, device)
        assert own[0]["time"] == {3: 1.0, 11: 2.0}.get(device, 0.0)
        assert [event["round"] is None for event in own] == [True] + [False] * (len(own) - 1)
        assert run.devices[device]["group"] is not None
    assert len(tasks(run, 3)) > 1


def test_once_the_last_newcomer_has_come_and_gone_nobody_is_waited_for(tmp_path: Path) -> None:
    population = {"arrivals": scheduled(d1="20 s"), "departures": scheduled(d0="10 s", d1="21 s")}
    strategy = {
        "kind": "cata-fed",
        "clients_per_round": 1,
        "clusters": 1,
        "deadline": "1 s",
        "smallest_part": 10,
    }
    data = {"source": "digits", "partition": "iid"}
    run = ran(
        world(data, 2, strategy, 10_000, population=population, learning="off"), tmp_path / "run"
    )
    assert run.summary["stopped"] == "no client is connected any more"
    assert 20 < run.events[-1]["time"] < 30
