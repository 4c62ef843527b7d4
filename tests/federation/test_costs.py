"""What a server does not have for nothing: its computing, the knowledge who has vanished, and
more time than it grants.
"""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.clock.simulation import TICK_S
from fedsim.federation.costs import cost_s
from fedsim.testing import eventful_world
from tests.strategies.runs import made, ran
from tests.strategies.worlds import file_data


def world(strategy: dict[str, Any], **more: Any) -> dict[str, Any]:
    people = {"devices": 4, "samples": {"low": 40, "high": 40}, "speed": "10 samples/s"}
    return {
        "learning": "off",
        "population": people,
        "strategy": strategy,
        "stop": {"rounds": 3},
    } | more


def test_costs_grow_as_the_sizes_say() -> None:
    assert cost_s("mix", 20, 1_000_000) == pytest.approx(0.35e-9 * 2e7)
    assert cost_s("products", 40, 1000) == pytest.approx(4 * cost_s("products", 20, 1000))
    assert cost_s("k-means", 50, 5, 5) == pytest.approx(9e-3 + 17e-9 * 1250)


@pytest.mark.parametrize(
    ("strategy", "mixes"),
    [
        ({"kind": "fedavg", "clients_per_round": 4}, [4]),
        ({"kind": "fedbuff", "concurrency": 4, "buffer": 4}, [2, 2, 2, 2, 4, 2]),
    ],
)
def test_every_round_takes_longer_by_one_aggregation(
    strategy: dict[str, Any], mixes: list[int], tmp_path: Path
) -> None:
    """FedBuff mixes a difference for each update, these, and the step; it asks again when that
    is done.
    """
    scenario = world(strategy)
    plain = [row["time"] for row in ran(scenario, tmp_path / "plain").rounds]
    slow = [
        row["time"] for row in ran(scenario | {"server": {"speed": 1e-3}}, tmp_path / "slow").rounds
    ]
    parameters = made(scenario).server.setting.parameters
    took = sum(cost_s("mix", count, parameters) for count in mixes) / 1e-3
    assert np.diff(slow) == pytest.approx(np.diff(plain) + took, abs=20 * TICK_S)
    assert slow[0] - plain[0] == pytest.approx(
        took if strategy["kind"] == "fedavg" else 0.0, abs=20 * TICK_S
    )


def test_flexcfl_asks_when_its_groups_are_made(tmp_path: Path) -> None:
    """Between the last pre-training and the first round there is the clustering, and a mean and
    a direction a group.
    """
    draw = np.random.default_rng(1)
    data = file_data(tmp_path, [(draw.normal(size=(20, 3)), np.arange(20) % 2) for _ in range(8)])
    strategy = {
        "kind": "flexcfl",
        "groups": 2,
        "moment": {"devices": 4},
        "clients_per_round": 4,
        "local_epochs": 1,
    }
    scenario = {
        "data": data,
        "population": {"devices": 8, "speed": "10 samples/s"},
        "strategy": strategy,
    }
    found = ran(scenario | {"server": {"speed": 1e-2}, "stop": {"rounds": 1}}, tmp_path / "run")
    ends = [
        event["time"]
        for event in found.events
        if event["kind"] == "task-end" and event["round"] is None
    ]
    (start,) = [event["time"] for event in found.events if event["kind"] == "round-start"]
    d = 8  # two classes of three features and a bias
    mixes = cost_s("mix", 8, d) + cost_s("mix", 8 + 2, d)
    took = cost_s("products", 8, d) + cost_s("k-means", 8, 2, 2) + mixes
    assert start - max(ends) == pytest.approx(took / 1e-2, abs=20 * TICK_S)


@pytest.mark.parametrize(
    ("patience", "deadline", "closed"),
    [
        ("0 s", None, 5.0),
        ("2 s", None, 7.0),
        ("1 h", None, 9.0),
        ("1 h", "8 s", 8.0),
        ("2 s", "8 s", 7.0),
    ],
)
def test_a_lost_device_is_given_up_after_a_while(
    patience: str, deadline: str | None, closed: float, tmp_path: Path
) -> None:
    """It vanishes at 5 s and is there again at 9 s; others are through after 4 s.

    Its task ends at 5 s in any case.
    """
    spans = [f"{device},{span}" for device in range(2) for span in ("0 s,5 s", "9 s,100 s")]
    (tmp_path / "on.csv").write_text("\n".join(["device,start,end", *spans]))
    scenario = world(
        {"kind": "fedavg", "clients_per_round": 2} | ({"deadline": deadline} if deadline else {})
    )
    scenario["population"] |= {"devices": 2, "samples": [40, 60]}
    scenario["population"]["availability"] = {"kind": "intervals", "file": str(tmp_path / "on.csv")}
    scenario |= {"server": {"patience": patience}, "stop": {"rounds": 1}}
    found = ran(scenario, tmp_path / "run")
    (row,) = found.rounds
    assert (row["valid"], row["disconnected"], row["slow"]) == (1, 1, 0)
    assert row["time"] == pytest.approx(closed, abs=1e-6)
    (lost,) = [
        event["time"]
        for event in found.events
        if event["kind"] == "task-end" and event["outcome"] == "lost"
    ]
    assert lost == pytest.approx(5.0, abs=1e-6)


def test_who_has_left_looks_like_one_who_is_lost() -> None:
    seen = set()
    sections = eventful_world({"kind": "fedavg", "clients_per_round": 6}, rounds=30)
    sections["population"]["departures"] = {
        "kind": "exponential",
        "mean_stay": "30 s",
        "share": 0.8,
    }
    simulation = fedsim.Simulation(fedsim.Scenario(**sections | {"learning": "off"}))
    strategy, hear = simulation.installed.strategy, simulation.installed.strategy.on_task_end

    async def listen(message: Any) -> None:
        seen.add(message.outcome)
        await hear(message)

    strategy.on_task_end = listen
    ended = set()
    simulation.listen(
        lambda record: ended.add(
            record.fields.get("outcome") if record.kind == "task-end" else None
        )
    )
    asyncio.run(simulation.run())
    assert "left" in ended
    assert seen == {"done", "lost"}


@pytest.mark.parametrize(
    ("seconds", "ends"),
    [
        (18.0, [("evaluate", "done"), ("train", "done"), ("upload", "done")]),
        (17.9, [("evaluate", "done"), ("train", "late")]),
        (5.9, [("evaluate", "late")]),
    ],
)
def test_the_time_for_training_is_also_for_testing_models(
    seconds: float, ends: list[Any], tmp_path: Path
) -> None:
    """IFCA's client of 60 samples tests 3 models, a third of an epoch each (6 s), and trains for
    12 s.
    """
    draw = np.random.default_rng(1)
    data = file_data(tmp_path, [(draw.normal(size=(60, 3)), np.arange(60) % 2)])
    deadline = {"kind": "fixed", "time": f"{seconds} s", "since": "download"}
    strategy = {
        "kind": "ifca",
        "groups": 3,
        "clients_per_round": 1,
        "local_epochs": 2,
        "deadline": deadline,
    }
    scenario = {
        "data": data,
        "population": {"devices": 1, "speed": "10 samples/s"},
        "strategy": strategy,
    }
    steps = ran(scenario | {"stop": {"rounds": 1}}, tmp_path / "run").events
    found = [(event["step"], event["outcome"]) for event in steps if event["kind"] == "step-end"]
    assert found == [("download", "done"), *ends]
