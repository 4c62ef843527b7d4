"""All cells of a study in one ranking, and side by side: with figures made up so that the answers are known."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedsim.errors import ScenarioError
from fedsim.lab.compare.answer import Answer, answers
from fedsim.lab.compare.explore import fronts, heat_map, in_words
from fedsim.lab.compare.goals import read_goal
from fedsim.lab.compare.lines import ComparedLine, Lines
from fedsim.lab.compare.measures import measure
from fedsim.lab.compare.paired import pairs_to_tell
from fedsim.records.reading import RunFolder
from fedsim.records.targets import within

Cells = Mapping[tuple[str, str, str], float | None]
"""By variant, part and deadline: the time to the target; ten times as many bytes, but of ``fedbuff`` a tenth of those."""


def found(place: Path, cells: Cells, goal: str = "time", worlds: Mapping[str, int] | None = None) -> list[Answer]:
    lines, figures = [], []
    for (variant, part, deadline), time in cells.items():
        runs = []
        for seed in (1, 2):
            folder = place / ("fedbuff" if variant == "fedbuff" else f"{variant}-{part}-{deadline}") / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "summary.json").write_text(json.dumps({"seed": seed}))
            scenario = {"seed": seed, "strategy": {"kind": variant}, "population": {"devices": (worlds or {}).get(part, 5)}}
            (folder / "scenario.toml").write_text(tomli_w.dumps(scenario))
            runs.append(RunFolder(folder))
        point = (("part", part), ("strategy.deadline", deadline))
        lines.append(ComparedLine(variant, tuple(runs), 2, point, "s"))
        moved = None if time is None else (1 if variant == "fedbuff" else 10) * time
        own = {"time to target 0.5": time, "traffic to target 0.5": moved, "battery": 2.0}
        own |= {"best accuracy": 0.6, "final accuracy": 0.6}
        figures.append(
            [{name: None if value is None else value * (1 + seed / 100) for name, value in own.items()} for seed in (0, 1)]
        )
    return list(answers(Lines(tuple(lines), (0.5,), (None,) * len(lines), goal=goal), figures, [0.5]))


GRID: Cells = {
    ("fedavg", "rounds", "10 s"): 100.0,
    ("fedavg", "rounds", "20 s"): 200.0,
    ("fedprox", "rounds", "10 s"): 200.0,
    ("fedprox", "rounds", "20 s"): 800.0,
    ("fedbuff", "free", "10 s"): 250.0,
    ("fedbuff", "free", "20 s"): 250.0,
}


def test_all_cells_of_one_world_are_in_one_ranking(tmp_path: Path) -> None:
    """Parts and deadlines change no world, and cells of the same runs are one."""
    (answer,) = found(tmp_path, GRID)
    assert [one.name for one in answer.rankings[0].entries] == [
        *("fedavg (deadline=10 s)", "fedavg (deadline=20 s)", "fedprox (deadline=10 s)", "fedbuff", "fedprox (deadline=20 s)")
    ]
    assert answer.words[0].startswith("To an accuracy of 0.5 fedavg (deadline=10 s) takes the least time, 1 min 40 s. fedavg (")
    assert answer.words[1] == "There it moves 1 kB, drains 2.01 % of each battery."
    assert answer.words[2] == "Least traffic to target 0.5: fedbuff, 251 B."
    cells = heat_map(answer)
    assert cells is not None
    table = cells.table()
    assert [round(cells.share(value), 3) for value in cells.figures["10 s"][:2]] == [1, 0.667]  # a third of three doublings
    assert [column.head for column in table.columns] == ["variant", "deadline 10 s", "deadline 20 s", "deadline any"]
    assert [column.cells for column in table.columns[1:]] == [
        ("1 min 40 s *", "3 min 21 s", "-"),
        ("3 min 21 s", "13 min 24 s", "-"),
        ("-", "-", "4 min 11 s"),
    ]
    (pareto,) = fronts(answer)
    assert [(one.line.name, round(one.factor, 2)) for one in pareto.points] == [
        *(("fedavg (deadline=10 s)", 1), ("fedavg (deadline=20 s)", 2), ("fedprox (deadline=10 s)", 2), ("fedbuff", 1)),
        ("fedprox (deadline=20 s)", 8),
    ]
    front, shares = in_words(answer)
    assert front.endswith("than: fedavg (deadline=10 s) (1 min 40 s, 1 kB); fedbuff (4 min 11 s, 251 B).")
    # Logarithms to the base 2, but for a constant, are 0, 1, 1, 3: their variance is 1.1875, that of their means by deadline
    # 0.5625, by variant too.
    assert shares.endswith("variant 47%, deadline 47%; their interplay 5%.")


def test_worlds_apart_and_a_ranking_of_one(tmp_path: Path) -> None:
    rounds, free = found(tmp_path, GRID, worlds={"free": 6})
    assert [one.world for one in (rounds, free)] == ["part rounds", "part free"]
    assert len(rounds.rankings[0].entries) == 4
    assert free.rankings[0].sentences == []
    assert heat_map(free) is None
    (alone,) = found(tmp_path / "2", {key: time if key[1] == "free" else None for key, time in GRID.items()})
    assert alone.rankings[0].sentences == ["fedbuff alone got there: 4 min 11 s."]
    assert not alone.rankings[0].is_sure


def test_another_goal(tmp_path: Path) -> None:
    (answer,) = found(tmp_path, GRID, "bytes")
    assert answer.words[0].startswith("To an accuracy of 0.5 fedbuff moves the least bytes, 251 B.")
    assert answer.words[1].startswith("There it takes 4 min 11 s, drains")


def test_the_pairs_that_tell() -> None:
    """With mean 1 and deviation 2, t(17) 2 / sqrt(18) = 0.995 < 1 < 1.028 = t(16) 2 / sqrt(17)."""
    assert pairs_to_tell(1.0, 4.302652729911275 * 2 / math.sqrt(3), 3) == 18
    assert pairs_to_tell(0.0, 1.0, 3) is None
    assert pairs_to_tell(1.0, 1e6, 3) is None


def test_a_budget() -> None:
    base: dict[str, Any] = {"bytes_down": 10.0, "bytes_up": 5.0, "joules": 2.0, "cost": None}
    rows = [base | {"time": 10.0 * (at + 1), "accuracy": accuracy} for at, accuracy in enumerate([0.1, None, 0.5, 0.4, 0.9])]
    for budget, best in (({}, 0.9), ({"time": 30.0}, 0.5), ({"bytes": 59}, 0.5), ({"joules": 9.9}, 0.5), ({"time": 9.0}, None)):
        assert within(rows, budget) == best
    assert within(rows, {"cost": 1.0}) is None
    assert read_goal(None, ["time=20 min", "bytes=3 GB"]) == ("budget", {"time": 1200.0, "bytes": 3e9})
    for goal, limits, problem in (
        ("tim", [], "did you mean 'time'"),
        ("bytes", ["time=1 s"], "with --budget"),
        (None, ["x=1"], "'x'"),
    ):
        with pytest.raises(ScenarioError, match=problem):
            read_goal(goal, limits)


def test_batteries(tmp_path: Path) -> None:
    """Of a run: the share that each drew on the mean, and the devices that ran flat."""
    import fedsim

    energy = {"compute": "5 W", "battery": {"capacity": "100 J", "initial": 0.6}}
    tables = {"learning": "off", "population": {"devices": 2, "samples": [20, 200], "speed": "10 samples/s"}, "energy": energy}
    tables |= {"strategy": {"kind": "fedavg", "clients_per_round": 2}, "stop": {"rounds": 1}}
    fedsim.run(fedsim.Scenario(**tables), tmp_path / "run", executor="inline")
    values = measure(RunFolder(tmp_path / "run"))
    assert (values["battery"], values["flat devices"]) == (pytest.approx(35.0), 1)  # 10 J of 2 s, and all of 60 J
