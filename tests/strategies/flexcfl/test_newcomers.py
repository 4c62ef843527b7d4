"""FlexCFL's client cold start: devices without a group find one."""

from pathlib import Path

import numpy as np

from tests.strategies.clustered import PAIRED, file_data, groups_of, moves, of_kind, ran, world
from tests.strategies.flexcfl.common import FULL, flexcfl


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

    def test_random_groups_for_newcomers_spread_them(self, tmp_path: Path) -> None:
        run = ran(world(PAIRED, 60, flexcfl(5, 12, moment={"devices": 2, "newcomers": "random"}), 5), tmp_path / "run")
        assert {event["group"] for event in moves(run, "cold-start")} == set(range(5))
        assert run.rounds[-1]["ari"] < 0.3

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
