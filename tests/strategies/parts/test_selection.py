"""Client selections against known answers; combinations with strategies are in
``test_aggregation``.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.federation.server import Server
from fedsim.testing import ScenarioTables
from fedsim.toolbox.selection.by_speed import FedCS
from fedsim.toolbox.selection.least import LeastAvailable
from fedsim.toolbox.selection.oort import Oort
from tests.strategies.runs import made, moved, of_kind, played, ran, told
from tests.strategies.worlds import PULLS, curved


def everybody(devices: int) -> Server:
    """The server at time 0 of a world in which all are there."""
    scenario = {
        "learning": "off",
        "population": {"devices": devices},
        "strategy": {"clients_per_round": 1},
    }
    return made(scenario).server


def cohorts(starts: list[dict[str, Any]]) -> list[list[int]]:
    """The devices that were asked to train in each round."""
    rounds = sorted({start["round"] for start in starts} - {None})
    return [
        sorted(start["device"] for start in starts if start["round"] == number) for number in rounds
    ]


def choosing(
    selection: ScenarioTables, clients: int, rounds: int, population: ScenarioTables, **others: Any
) -> ScenarioTables:
    """A run of FedAvg whose clients a selection chooses."""
    strategy = {"kind": "fedavg", "clients_per_round": clients, "selection": selection}
    return {
        "seed": 2,
        "strategy": strategy,
        "population": population,
        "stop": {"rounds": rounds},
    } | others


@pytest.mark.parametrize("losses", ["asked", "reported"])
def test_power_of_choice_takes_the_highest_losses(losses: str, tmp_path: Path) -> None:
    selection = {"kind": "power-of-choice", "candidates": 4, "losses": losses}
    strategy = {
        "kind": "fedavg",
        "aggregation": "mean",
        "clients_per_round": 2,
        "selection": selection,
    }
    _, records = played(curved(tmp_path, strategy, 6, epochs=2))
    center, strength = PULLS.T
    model, known = 5.0, np.full(4, np.inf)
    for number, found in enumerate(cohorts(told(records, "task-start"))):
        if losses == "asked":
            known = strength * (model - center) ** 2 / 2
        # who has reported nothing is taken in the order of the draw
        if losses == "asked" or number > 1:
            assert found == sorted(np.argsort(-known, kind="stable")[:2].tolist())
        ends = [
            model + (center[device] - model) * (1 - (1 - 0.1 * strength[device]) ** 2)
            for device in found
        ]
        for device in found:
            before_last = model + (center[device] - model) * 0.1 * strength[device]
            known[device] = strength[device] * (before_last - center[device]) ** 2 / 2
        model = float(np.mean(ends))


def test_candidates_are_drawn_by_their_samples(tmp_path: Path) -> None:
    population = {"devices": 5, "speed": "1000 samples/s", "samples": {"low": 10, "high": 100}}
    off: dict[str, Any] = {"seed": 4, "learning": "off", "data": {"source": "digits"}}
    found = ran(
        choosing({"kind": "power-of-choice", "candidates": 1}, 1, 800, population, **off),
        tmp_path / "run",
    )
    samples = np.array([row["samples"] for row in found.devices])
    share = samples / samples.sum()
    times = np.array([row["selected"] for row in found.devices])
    assert np.ptp(share) > 0.1
    # some rounds knew not all sizes
    assert (np.abs(times - 800 * share) < 4 * np.sqrt(800 * share * (1 - share)) + 20).all()


@pytest.mark.parametrize("most", [None, 7])
def test_loss_queries_have_bytes_and_take_time(most: int | None, tmp_path: Path) -> None:
    selection = {"kind": "power-of-choice", "candidates": 5} | (
        {} if most is None else {"samples": most}
    )
    found = ran(
        choosing(selection, 2, 3, {"devices": 8, "speed": "100 samples/s"}), tmp_path / "run"
    )
    assert moved(found) == {
        "loss-query": 15 * 650 * 4,
        "loss": 15 * 4,
        "model": 6 * 650 * 4,
        "update": 6 * 650 * 4,
    }
    began = {
        event["task"]: event["time"]
        for event in of_kind(found, "step-start")
        if event["step"] == "evaluate"
    }
    tests = [event for event in of_kind(found, "step-end") if event["step"] == "evaluate"]
    assert len(tests) == 15
    for event in tests:
        samples = min(found.devices[event["device"]]["samples"], most or math.inf)
        assert event["time"] - began[event["task"]] == pytest.approx(samples / 100 / 3)


def test_who_does_not_answer_in_time_is_not_chosen(tmp_path: Path) -> None:
    selection = {"kind": "power-of-choice", "candidates": 8, "patience": "200 ms"}
    population = {
        "devices": 8,
        "speed": {"kind": "lognormal", "median": "100 samples/s", "spread": 4.0},
    }
    ends = of_kind(ran(choosing(selection, 8, 1, population), tmp_path / "run"), "task-end")
    asked = {event["device"]: event["outcome"] for event in ends if event["round"] is None}
    assert set(asked.values()) == {"done", "late"}
    assert {event["device"] for event in ends if event["round"] == 0} == {
        one for one in asked if asked[one] == "done"
    }


TEN = dict(enumerate([
    (10.0, 1, 5.0), (40.0, 2, 5.0), (20.0, 8, 20.0), (30.0, 9, 10.0), (5.0, 4, 40.0),
    (1000.0, 7, 8.0), (25.0, 6, 10.5), (15.0, 5, 2.0), (35.0, 3, 100.0), (28.0, 9, 9.0),
]))  # fmt: skip
"""U, L and D."""


def test_oorts_utilities_by_hand_on_ten_devices() -> None:
    oort = Oort(pacer_step="10 s", clip=0.9)
    expected = []
    for utility, last, took in TEN.values():
        clipped = min(utility, 40.0)  # the nine tenths quantile of ten: the second highest
        value = clipped + math.sqrt(0.1 * math.log(10) / last)
        expected.append(value * (10.0 / took) ** 2 if took > 10.0 else value)
    assert oort.utilities(list(TEN.values()), 10, 10.0) == pytest.approx(expected)
    scaled = Oort(pacer_step="10 s", clip=0.9, penalty=0.0, scale="unit").utilities(
        list(TEN.values()), 10, 10.0
    )
    bonus = [math.sqrt(0.1 * math.log(10) / last) for _, last, _ in TEN.values()]
    assert scaled == pytest.approx(
        [(min(u, 40) - 5) / 35 + more for (u, _, _), more in zip(TEN.values(), bonus, strict=True)]
    )


def test_oort_draws_from_those_near_the_best_and_explores_with_the_rest() -> None:
    """Of the others those that were late come last, the slowest at the end: clients never asked
    may be fast.
    """
    server, late = everybody(14), {12: (0.0, 0, 30.0), 13: (0.0, 0, 12.0)}
    # which it has come to in round 60
    oort = Oort(pacer_step="10 s", clip=0.9, least_exploration=0.5)
    found = oort.utilities(list(TEN.values()), 60, 10.0)
    ranks, values = np.argsort(-found), np.sort(found)[::-1]
    able = set(ranks[values >= 0.95 * values[2]].tolist())
    chosen = [
        oort.select(server, Oort.State(known=TEN | late), 6, (59, number)) for number in range(40)
    ]
    assert {device for own in chosen for device in own[:3]} <= able
    assert {tuple(own[3:]) for own in chosen} == {(10, 11, 13), (11, 10, 13)}


def test_oorts_exploration_decays_and_who_was_asked_often_rests() -> None:
    oort = Oort(pacer_step="10 s")
    assert [oort.epsilon(number) for number in (1, 2, 100)] == pytest.approx([0.9, 0.9 * 0.98, 0.2])
    server = everybody(6)
    known = dict.fromkeys(range(6), (1.0, 1, 1.0))
    state = Oort.State(known=known, asked={2: 10, 4: 11})
    assert sorted(oort.select(server, state, 4, (5,))) == [0, 1, 3, 5]
    assert set(oort.select(server, state, 5, (6,))) > {0, 1, 3, 5}  # nobody else is there


def test_oorts_pacers() -> None:
    oort, history, found = Oort(pacer_step="7 s", window=2), list[float](), [7.0]
    for harvest in (5.0, 5.0, 4.0, 5.0, 9.0, 9.0, 1.0):
        found.append(oort.paced(history, harvest, found[-1]))
    assert found[1:] == [7.0, 7.0, 7.0, 14.0, 14.0, 14.0, 21.0]  # 10 > 9; 9 < 14, 9 < 18; 14 > 10
    oort, history, found = Oort(pacer="published-code", window=2), [], [30.0]
    for harvest in (5.0, 5.0, 5.0, 5.5, 60.0, 10.0, 9.0, 1.0, 2.0, 3.0):
        found.append(oort.percentile(history, harvest, found[-1]))
    # 10.5 near 10; 70 > 6 x 10.5; 10, 5: neither
    assert found[1:] == [30.0] * 3 + [35.0] * 2 + [30.0] * 5
    known = {device: (1.0, 1, float(device)) for device in range(10)} | {10: (0.0, 0, 99.0)}
    assert [
        oort.preferred(Oort.State(known=known, percentile=share)) for share in (30.0, 95.0, 100.0)
    ] == [3.0, 9.0, math.inf]


LOCAL_NOISE = {"kind": "private", "where": "local", "account": False, "noise": 0.1}


@pytest.mark.parametrize(
    ("strategy", "others"),
    [
        ({"kind": "fedavg", "clients_per_round": 4}, {}),
        ({"kind": "fedbuff", "concurrency": 4, "buffer": 4}, {}),  # learns when a version is made
        (
            {"kind": "fedavg", "clients_per_round": 4},
            {"malicious": {"attack": "sign-flip", "share": 1.0}},
        ),
        ({"kind": "fedavg", "clients_per_round": 4, "aggregation": LOCAL_NOISE}, {}),
    ],
    ids=["rounds", "versions", "attacked", "noised"],
)
def test_oort_hears_what_clients_report(
    strategy: dict[str, Any], others: dict[str, Any], tmp_path: Path
) -> None:
    """Whatever becomes of the update: the loss is that of the training."""
    sections = curved(tmp_path, {}, 2, epochs=1, **others)
    sections["strategy"] = strategy | {"selection": {"kind": "oort", "pacer_step": "1 s"}}
    installed, _ = played(sections)
    known = installed.strategy.state["selection"]["known"]
    for device, (center, strength) in enumerate(PULLS):
        utility, last, took = known[device]
        # of the first of two rounds
        assert utility == pytest.approx(10 * strength * (5.0 - center) ** 2 / 2, rel=1e-6)
        assert (last, took) == (1, pytest.approx(0.1))
    assert installed.dispatch.population.samples[0] == 10


def test_fedcs_greedy_by_hand() -> None:
    told = {
        0: (2.0, 1.0, 3.0),
        1: (1.0, 4.0, 1.0),
        2: (1.0, 5.5, 1.0),
        3: (9.0, 1.0, 1.0),
        4: (1.0, 1.0, 8.0),
    }
    # First 1 and 0 would end at 6, 2 at 7.5, 3 at 11, 4 at 10: 0, the first of the two (2 + 4).
    # Then 1: 2 + max(4, 4) + 1 = 7; then 2: 2 + max(5, 5.5) + 1 = 8.5; then 3: 9 + 6.5 + 1 = 16.5,
    # 4: 2 + 6.5 + 8 = 16.5.
    for time, count, chosen in [
        (16.4, 5, 3),
        (7.0, 5, 2),
        (8.4, 5, 2),
        (16.5, 5, 4),
        (100.0, 2, 2),
        (5.9, 5, 0),
    ]:
        assert FedCS(time=f"{time} s").greedy(count, told) in (
            [0, 1, 2, 3][:chosen],
            [1, 0, 2, 3][:chosen],
        )


def test_devices_tell_what_they_know_of_themselves_and_rounds_keep_to_the_time(
    tmp_path: Path,
) -> None:
    device = {
        "down": "1 Mbit/s",
        "up": {"kind": "uniform", "low": "100 kbit/s", "high": "1 Mbit/s"},
        "latency": "40 ms",
    }
    messages = {
        "up": {"kind": "plain", "encode_rate": "20 kB/s"},
        "down": {"kind": "plain", "encode_rate": "10 kB/s"},
    }
    population = {
        "devices": 12,
        "speed": {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0},
    }
    sections = choosing(
        {"kind": "fedcs", "time": "8 s", "candidates": 12}, 12, 2, population, messages=messages
    )
    sections["strategy"]["local_epochs"] = 2
    found = ran(sections | {"network": {"kind": "star", "device": device}}, tmp_path / "run")
    size = 650 * 4
    told = {
        row["device"]: (
            row["latency"] + size / row["link_down"] + size / 10e3,  # decoding
            2 * row["samples"] / row["speed"],
            row["latency"] + size / row["link_up"] + size / 20e3,  # encoding
        )
        for row in found.devices
    }
    chosen = FedCS(time="8.0 s").greedy(12, told)
    assert 0 < len(chosen) < 12
    assert cohorts(of_kind(found, "task-start")) == [sorted(chosen)] * 2
    for begin, row in zip(of_kind(found, "round-start"), found.rounds, strict=True):
        assert row["time"] - begin["time"] <= 8.0
    assert moved(found)["resources"] == 2 * 12 * 3 * 4


def test_a_device_without_room_for_the_training_says_so_and_is_not_chosen(tmp_path: Path) -> None:
    small = {"like": "raspberry-pi-zero-2w", "memory": "250 kB"}
    population = {
        "devices": 8,
        "device": ["small", "raspberry-pi-4"] * 4,
        "kinds": {"small": small},
    }
    others: dict[str, Any] = {
        "learning": "off",
        "data": {"source": "digits"},
        "model": {"kind": "mlp", "hidden": [200]},
    }
    sections = choosing(
        {"kind": "fedcs", "time": "1 h", "candidates": 8}, 8, 1, population, **others
    )
    assert cohorts(of_kind(ran(sections, tmp_path / "run"), "task-start")) == [[1, 3, 5, 7]]


def test_flanps_stages_by_hand(tmp_path: Path) -> None:
    """A device's rounds are one step each, so that what its update says is its gradient, and a
    round is its slowest client.
    """
    center, strength, speeds = *PULLS.T, np.array([5.0, 20.0, 10.0, 40.0])
    population = {
        "devices": 4,
        "speed": {"kind": "list", "values": [f"{speed} samples/s" for speed in speeds]},
    }
    flanp = {
        "kind": "fedavg",
        "clients_per_round": 4,
        "selection": {"kind": "flanp", "first": 1, "accuracy": 2.0},
    }
    sections = curved(tmp_path, flanp, 60, epochs=1, population=population)
    found = ran(sections, tmp_path / "run")
    fastest, model, stage, expected, stages, seconds = [3, 1, 2, 0], 5.0, 1, [], [], 0.0
    for number in range(60):
        asked = fastest[:stage]
        expected.append(sorted(asked))
        seconds += 10 / speeds[asked].min()
        gradient = float(np.mean(strength[asked] * (model - center[asked])))
        model -= 0.1 * gradient
        if gradient**2 <= 2.0 / (10 * stage) and stage < 4:
            stage *= 2
            stages.append((number, stage))
    assert stages[0][0] > 0
    assert [
        (event["round"], event["data"]["clients"]) for event in of_kind(found, "stage")
    ] == stages
    assert cohorts(of_kind(found, "task-start")) == expected
    assert found.rounds[-1]["time"] == pytest.approx(seconds)
    assert moved(found)["resources"] == 4 * 3 * 4  # once each
    (tensors,) = found.models().values()
    assert float(next(iter(tensors.values()))[0]) == pytest.approx(model, abs=1e-5)


def test_the_least_available_come_first() -> None:
    server = everybody(6)
    seen = {0: (0, 9), 1: (0, 2), 2: (0, 5), 3: (8, 1), 4: (6, 1), 5: (0, 8)}
    state = LeastAvailable.State(availability=seen, counted=8)
    # 3 of 10, 2 of 4, 6 of 10 times
    assert LeastAvailable().select(server, state, 3, (9,)) == [1, 4, 2]
    assert state.at_work == [1, 4, 2]
    # looked at once a round: all of the times
    assert LeastAvailable().select(server, state, 6, (9,))[-1] in (0, 3)
