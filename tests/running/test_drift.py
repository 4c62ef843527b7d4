"""Data that change while a run goes on: when, whose, and who is told of it when."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.clock.simulation import Simulation
from fedsim.plugin import Contents, Device, SynchronousClient
from fedsim.records.reading import RunFolder
from fedsim.running.assembly import Run
from fedsim.strategies.fedavg import FedAvg, FedAvgParams
from fedsim.testing import eventful_world
from tests.strategies.runs import of_kind, played, ran, weights
from tests.strategies.worlds import PAIRED, ROTATED, Sections, world
from tests.test_runs import STRATEGIES

FEDAVG: Sections = {"kind": "fedavg", "clients_per_round": 4, "local_epochs": 1}
HEARD = {"kind": "tests.running.test_drift:Heard"}


def swapping(at: Sections, probability: float = 1.0, **others: Any) -> Sections:
    return {"kind": "swap-all", "probability": probability, "at": at} | others


def drifting(
    drift: Sections, rounds: int = 6, strategy: Sections = FEDAVG, devices: int = 10, **others: Any
) -> Sections:
    return world(PAIRED, devices, strategy, rounds, drift=drift, **others)


def shifts(run: RunFolder) -> list[tuple[float, int, int]]:
    """(time, device, occasion) of every shift."""
    return [
        (event["time"], event["device"], event["data"]["occasion"])
        for event in of_kind(run, "shift")
    ]


class HeardClient(SynchronousClient[FedAvgParams]):
    def on_shift(self, device: Device) -> Contents:
        return {"counts": device.label_counts.tolist(), "first": device.first_label_counts.tolist()}


class Heard(FedAvg):
    """FedAvg that writes down whose shifts it hears of, and what such a device then knows of its
    labels.
    """

    Client = HeardClient

    async def on_shift(self, device: int, contents: Mapping[str, Any]) -> None:
        self.server.emit("heard", device=device, **contents)


class Looks(Heard):
    """``Heard`` that makes all devices send their messages again, twice, at 6 s."""

    async def on_start(self) -> None:
        self.server.timer("look", 6.0)
        await super().on_start()

    async def on_timer(self, name: str) -> None:
        if name != "look":
            await super().on_timer(name)
            return
        for device in (*range(self.server.clients.count), *range(self.server.clients.count)):
            await self.server.clients.look_for_shift(device)


class TestSchedules:
    @pytest.mark.parametrize(
        ("at", "expected"),
        [
            ({"rounds": [0, 3, 5]}, [0, 3, 5]),
            ({"every_rounds": 2}, [0, 2, 4]),
            ({"every_rounds": 1}, list(range(6))),
        ],
    )
    def test_at_rounds_before_anybody_is_asked_in_them(
        self, tmp_path: Path, at: Sections, expected: list[int]
    ) -> None:
        run = ran(drifting(swapping(at)), tmp_path / "run")
        started, found, asked = -1, {}, set()
        for event in run.events:
            if event["kind"] == "round-start":
                started = event["round"]
            elif event["kind"] == "task-start":
                asked.add(event["round"])
            elif event["kind"] == "shift":
                found.setdefault(event["data"]["occasion"], started + 1)
                assert started + 1 not in asked
        assert found == dict(enumerate(expected))
        assert len(shifts(run)) == 10 * len(expected)
        exchanged = {
            (event["data"]["occasion"], event["device"], event["data"]["partner"])
            for event in of_kind(run, "shift")
        }
        assert exchanged == {(occasion, partner, device) for occasion, device, partner in exchanged}

    @pytest.mark.parametrize(
        ("at", "expected"),
        [
            ({"times": ["0 s", "250 ms", "1 s"]}, [0.0, 0.25, 1.0]),
            ({"every": "500 ms"}, [0.5, 1.0, 1.5]),
        ],
    )
    def test_at_times_wherever_a_round_may_be(
        self, tmp_path: Path, at: Sections, expected: list[float]
    ) -> None:
        sections = drifting(swapping(at), learning="off", rounds=1000) | {
            "stop": {"simulated_time": "1800 ms"}
        }
        run = ran(sections, tmp_path / "run")
        assert sorted({(occasion, time) for time, _, occasion in shifts(run)}) == list(
            enumerate(expected)
        )
        assert len(shifts(run)) == 30

    def test_a_round_that_waits_for_clients_shifts_once(self, tmp_path: Path) -> None:
        """The round begins when somebody can be asked, however often it was looked for clients
        before.
        """
        population = {"availability": {"kind": "renewal", "mean_on": "3 s", "mean_off": "60 s"}}
        strategy = FEDAVG | {"retry": "1 s"}
        sections = drifting(
            swapping({"every_rounds": 1}), 12, strategy, population=population, learning="off"
        )
        run = ran(sections, tmp_path / "run")
        assert [occasion for _, _, occasion in shifts(run)] == [
            occasion for occasion in range(12) for _ in range(10)
        ]

    def test_without_rounds_a_version_is_one(self, tmp_path: Path) -> None:
        strategy = {"kind": "fedbuff", "concurrency": 6, "buffer": 3}
        run = ran(drifting(swapping({"rounds": [0, 2]}), 5, strategy), tmp_path / "run")
        assert sorted({time for time, _, _ in shifts(run)}) == [0.0, run.rounds[1]["time"]]


class TestWho:
    def test_of_those_who_have_been_selected(self, tmp_path: Path) -> None:
        run = ran(drifting(swapping({"every_rounds": 1}, among="selected"), 8), tmp_path / "run")
        selected, occasions = set[int](), list[int]()
        for event in run.events:
            if event["kind"] == "task-start":
                selected.add(event["device"])
            elif event["kind"] == "shift":
                assert event["device"] in selected
                occasions.append(event["data"]["occasion"])
        assert (occasions.count(0), occasions.count(1), occasions[-1]) == (0, 4, 7)

    def test_of_those_who_are_there(self, tmp_path: Path) -> None:
        population = {
            "arrivals": {"kind": "schedule", "times": ["1 s", "1 s"], "devices": [2, 6]},
            "departures": {
                "kind": "schedule",
                "times": ["1 s", "1 s", "1 s"],
                "devices": [1, 5, 9],
            },
        }
        drift = swapping({"times": ["500 ms", "1500 ms"]})
        run = ran(drifting(drift, 20, population=population), tmp_path / "run")
        assert {device for time, device, _ in shifts(run) if time < 1} == set(range(10)) - {2, 6}
        later = {device for time, device, _ in shifts(run) if time > 1}
        assert later < set(range(10)) - {1, 5, 9}
        assert len(later) == 6  # one of seven has no partner


class TestWhatItDoes:
    def test_a_release_has_no_partner_and_changes_sizes(self, tmp_path: Path) -> None:
        drift = {"kind": "incremental", "shares": [0.25, 0.5], "at": {"rounds": [0, 2]}}
        run = ran(drifting(drift, 4), tmp_path / "run")
        full = ran(drifting(drift, 4) | {"drift": None}, tmp_path / "full")
        assert all("partner" not in event["data"] for event in of_kind(run, "shift"))
        assert [row["samples"] for row in run.devices] == [
            row["samples"] // 2 for row in full.devices
        ]
        assert [row["test_samples"] for row in run.devices] == [
            row["test_samples"] for row in full.devices
        ]
        length = {event["round"]: event["time"] for event in of_kind(run, "round-start")}
        whole = {event["round"]: event["time"] for event in of_kind(full, "round-start")}
        assert length[1] - length[0] == pytest.approx((whole[1] - whole[0]) / 4, rel=0.05)
        assert length[3] - length[2] == pytest.approx((whole[3] - whole[2]) / 2, rel=0.05)

    def test_devices_are_tested_on_what_they_hold_now(self, tmp_path: Path) -> None:
        """All labels change in round 3.

        A model that learns nothing is as good as before in all other rounds.
        """
        drift = {"kind": "label-permutation", "probability": 1.0, "at": {"rounds": [3]}}
        still = ran(
            world(PAIRED, 10, FEDAVG, 5, drift=drift, training={"lr": 1e-12}), tmp_path / "still"
        )
        accuracies = [row["accuracy"] for row in still.rounds]
        assert accuracies[0] == accuracies[1] == accuracies[2] != accuracies[3] == accuracies[4]
        own = ran(
            world(PAIRED, 10, {"kind": "local", "local_epochs": 20}, 5, drift=drift),
            tmp_path / "own",
        )
        # they have learnt the new labels
        assert min(own.rounds[2]["accuracy"], own.rounds[4]["accuracy"]) > 0.9

    def test_who_trains_when_the_shift_comes_goes_on_and_who_downloads_trains_on_what_it_then_holds(
        self,
    ) -> None:
        """The shift comes after 0.05 s.

        An epoch takes everybody about 0.14 s; over the slow link a download takes 0.1 s.
        """
        slow: Sections = {
            "network": {"kind": "star", "device": {"down": "26 kB/s", "up": "1 MB/s"}}
        }
        models = []
        for network in ({}, slow):
            none, first, later = (
                drifting(swapping({"times": [time]}), 1, **network)
                | ({"drift": None} if time == "9 h" else {})
                for time in ("9 h", "0 s", "50 ms")
            )
            runs = [played(sections)[0] for sections in (none, first, later)]
            models.append(
                [weights(run, [run.strategy.state["model"]])[0].tobytes() for run in runs]
            )
        (none, first, later), (slow_none, slow_first, slow_later) = models
        assert none == later != first
        assert slow_later == slow_first != slow_none

    def test_a_rule_that_does_not_go_with_the_data_is_refused_before_anything_happens(self) -> None:
        sections = world(
            ROTATED, 8, FEDAVG, 2, drift={"kind": "swap-part", "at": {"every_rounds": 1}}
        )
        with pytest.raises(fedsim.ScenarioError, match=r"drift\.kind is 'swap-part'"):
            Simulation(fedsim.Scenario(**sections))

    def test_truth_moves_with_the_data(self, tmp_path: Path) -> None:
        sections = drifting(swapping({"rounds": [2]}), 4, devices=20)
        run, _ = played(sections)
        truth = run.truth()
        assert truth is not None
        assert sorted(truth.tolist()) == sorted([*range(5)] * 4)
        assert run.data is not None
        for device in range(20):
            labels = run.data.train_labels(run.data.current(device))
            assert set((labels // 2).tolist()) == {truth[device]}
            assert run.population.samples[device] == len(labels)
            assert run.population.version[device] == run.data.version(device) == 1


class TestWhoHears:
    def test_those_who_are_there_hear_of_it_at_once_before_the_round_asks_them(
        self, tmp_path: Path
    ) -> None:
        run = ran(drifting(swapping({"rounds": [1]}), 3, FEDAVG | HEARD), tmp_path / "run")
        kinds = [(event["kind"], event["round"]) for event in run.events]
        first, last = (
            kinds.index(("shift", None)),
            len(kinds) - 1 - kinds[::-1].index(("heard", None)),
        )
        assert kinds[first:last] == [("shift", None)] * 10 + [("heard", None)] * 9
        assert kinds[last + 1][0] == "round-start"
        assert [event["device"] for event in of_kind(run, "heard")] == [
            device for _, device, _ in shifts(run)
        ]
        for event in of_kind(run, "heard"):
            place = event["device"] % 5
            assert sum(event["data"]["first"][2 * place : 2 * place + 2]) == sum(
                event["data"]["first"]
            )

    def test_who_is_away_hears_of_it_when_it_is_back_and_who_never_comes_back_never(
        self, tmp_path: Path
    ) -> None:
        population = {
            "availability": {"kind": "renewal", "mean_on": "2 s", "mean_off": "2 s"},
            "departures": {"kind": "schedule", "times": ["4100 ms"] * 3, "devices": [0, 1, 2]},
        }
        strategy = FEDAVG | HEARD | {"retry": "1 s"}
        sections = drifting(
            swapping({"times": ["4 s"]}),
            1000,
            strategy,
            population=population,
            devices=40,
            learning="off",
        )
        run = ran(sections | {"stop": {"simulated_time": "20 s"}}, tmp_path / "run")
        built: Run = Simulation(fedsim.Scenario(**sections)).installed
        expected = {device: built.tasks.next_on(device, 4.0) for device in range(40)}
        heard = {event["device"]: event["time"] for event in of_kind(run, "heard")}
        assert heard == {device: time for device, time in expected.items() if time < 20}
        assert sum(time == 4.0 for time in heard.values()) > 10
        assert sum(time > 4.0 for time in heard.values()) > 10
        assert len(heard) < 40

    def test_who_is_away_sends_its_message_again_once_it_is_back(self, tmp_path: Path) -> None:
        population = {"availability": {"kind": "renewal", "mean_on": "2 s", "mean_off": "2 s"}}
        # one round with one client, so that hardly any device has used its changed data
        looks = {
            "kind": "tests.running.test_drift:Looks",
            "every": "100 s",
            "clients_per_round": 1,
        }
        sections = drifting(
            swapping({"times": ["4 s"]}),
            1000,
            FEDAVG | looks,
            population=population,
            devices=40,
            learning="off",
        )
        run = ran(sections | {"stop": {"simulated_time": "20 s"}}, tmp_path / "run")
        built: Run = Simulation(fedsim.Scenario(**sections)).installed
        asked = {event["device"] for event in of_kind(run, "task-start")}
        counts = {"there": 0, "back": 0, "away": 0}
        for device in set(range(40)) - asked:
            first = built.tasks.next_on(device, 4.0)
            again = built.tasks.next_on(device, 6.0)
            heard = [event["time"] for event in of_kind(run, "heard") if event["device"] == device]
            if again == 6.0:  # it is there, and answers at once each time
                assert heard == [first, 6.0, 6.0]
                counts["there"] += 1
            elif first < 6.0:  # it has sent its message, and is away again
                assert heard == [first, again]
                counts["back"] += 1
            else:  # its first message waits for its return, and is not sent twice
                assert heard == [first]
                counts["away"] += 1
        assert min(counts.values()) > 2


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ({"rounds": [3, 1]}, r"'rounds' is \[3, 1\]; allowed are ascending numbers"),
        ({"rounds": []}, r"'rounds' is \[\]"),
        ({"times": ["2 s"], "every": "1 s"}, "times and every are given"),
        ({}, "none of them is given"),
    ],
)
def test_impossible_schedules_are_refused(at: Sections, says: str) -> None:
    with pytest.raises(fedsim.ScenarioError, match=f"drift.at.*{says}"):
        fedsim.Scenario(**drifting({"kind": "swap-all", "at": at}))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy["kind"])
def test_no_data_change_for_a_round_that_does_not_take_place(
    strategy: Sections, tmp_path: Path
) -> None:
    sections = eventful_world(strategy, rounds=2)
    sections |= {"learning": "off", "drift": swapping({"rounds": [1, 2]})}
    run = ran(sections, tmp_path)
    end = max(event["time"] for event in of_kind(run, "round"))
    assert {occasion for time, _, occasion in shifts(run) if time == end} <= {0}


def test_sizes_without_data_cannot_shift() -> None:
    sections = drifting(
        swapping({"rounds": [1]}), learning="off", population={"samples": {"low": 1, "high": 9}}
    )
    with pytest.raises(fedsim.ScenarioError, match=r"nothing for \[drift\] to change"):
        fedsim.Scenario(**sections)


def test_a_drift_without_end_does_not_keep_a_run_alive() -> None:
    """``every`` has always another occasion to come; the run ends by its own conditions."""
    sections = drifting(swapping({"every": "1 s"}), 3, learning="off")
    assert asyncio.run(Simulation(fedsim.Scenario(**sections)).run()) == "3 rounds"


def test_a_release_in_steps_gives_the_rounds_of_version_0_2_0(tmp_path: Path) -> None:
    """The numbers are those that version 0.2.0 gave for this scenario."""
    sections = {
        "seed": 1,
        "data": {"source": "digits"},
        "population": {"devices": 8},
        "strategy": {"kind": "fedavg", "clients_per_round": 3, "local_epochs": 1},
        "stop": {"rounds": 6},
        "drift": {
            "kind": "incremental",
            "at": {"rounds": [0, 2, 4]},
            "shares": [0.25, 0.5, 1.0],
        },
    }
    losses = [row["train_loss"] for row in ran(sections, tmp_path / "run").rounds]
    former = [2.464440, 2.431249, 2.367000, 2.279971, 2.191596, 2.093308]
    assert losses == pytest.approx(former, abs=1e-5)
