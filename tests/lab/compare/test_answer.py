"""Figures of runs, and which cell is the best, by how much, and how sure that is; runs and
studies in a notebook.
"""

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from matplotlib.figure import Figure
from scipy.stats import ttest_1samp, ttest_rel

import fedsim
from fedsim.common.errors import ScenarioError
from fedsim.lab.compare.answer import WorldAnswer, answers, usual_target
from fedsim.lab.compare.cells import VARIANT
from fedsim.lab.compare.explore import ParetoFront, fronts, heat_map, in_words
from fedsim.lab.compare.lines import ComparedLine, Lines
from fedsim.lab.compare.measures import (
    Measure,
    cost_of,
    measure,
    measures,
    read_goal,
    read_work,
)
from fedsim.lab.compare.paired import mean_of, paired_difference, pairs_to_tell
from fedsim.lab.compare.ranking import RankedLine, Ranking
from fedsim.lab.reading.targets import Target, best_accuracy_within
from fedsim.records.reading import RunFolder
from fedsim.testing import quiet_world

T2 = 4.302652729911275  # Student's t, 0.975, two degrees of freedom
Figures = list[dict[str, float | None]]


def line_of(
    place: Path,
    name: str,
    figures: Figures,
    point: tuple[tuple[str, str], ...] = (),
    devices: int = 5,
) -> ComparedLine:
    """A line whose runs have these figures, with seeds from 1 on, in a world of so many devices."""
    runs = []
    for seed in range(1, len(figures) + 1):
        folder = place / str(seed)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps({"seed": seed}))
        scenario = {"seed": seed, "strategy": {"kind": name}, "population": {"devices": devices}}
        (folder / "scenario.toml").write_text(tomli_w.dumps(scenario))
        runs.append(RunFolder(folder))
    return ComparedLine(name, tuple(runs), len(runs), point, "s", reference=name == "alone")


def figures_of(
    time: float | None, best: float, more: float = 10.0, **others: float
) -> dict[str, float | None]:
    """A time to 0.5, ``more`` times as many bytes, and an accuracy; nobody counts energy."""
    moved = None if time is None else more * time
    costs = {
        "time to target 0.5": time,
        "traffic to target 0.5": moved,
        "energy to target 0.5": None,
    }
    return {**costs, "best accuracy": best, "final accuracy": best, **others}


def made(
    place: Path,
    times: Mapping[str, Sequence[float | None]],
    accuracies: Mapping[str, Sequence[float]] | None = None,
) -> tuple[Lines, list[Figures]]:
    """Lines with these times and accuracies, seed by seed; ``base`` is the baseline."""
    known = accuracies or {name: [0.9] * len(own) for name, own in times.items()}
    figures = [
        [figures_of(*pair) for pair in zip(own, known[name], strict=True)]
        for name, own in times.items()
    ]
    lines = tuple(
        line_of(place / name, name, own) for name, own in zip(times, figures, strict=True)
    )
    at = list(times).index("base") if "base" in times else None
    return Lines(lines, (0.5,), (at,) * len(lines), "base" if "base" in times else ""), figures


def test_the_best_by_how_much_and_how_sure(tmp_path: Path) -> None:
    times = {
        "base": [40.0, 44.0, 36.0],
        "quick": [10.0, 20.0, 30.0],
        "near": [11.0, 19.0, 30.0],
        "part": [5.0, None, 5.0],
    }
    times |= {"twice": [20.0, 40.0, 60.0], "alone": [1.0, 1.0, 1.0]}
    final = {name: [0.6, 0.6, 0.6] for name in times} | {
        "part": [0.6, 0.4, 0.6],
        "near": [0.7, 0.8, 0.9],
    }
    (answer,) = answers(*made(tmp_path, times, final), [Target(0.5)])
    by_time, by_bytes, by_accuracy = answer.rankings  # nobody counted energy
    assert [one.name for one in by_time.entries] == [
        "alone",
        "quick",
        "near",
        "base",
        "twice",
        "part",
    ]
    whole = ["quick", "near", "base", "twice"]  # who failed once has no mean to be ranked by
    assert [one.name for one in by_time.ranked] == whole
    assert answer.missed == (("part", 2, 3),)
    assert answer.words[-1] == "The target was missed by part (reached in 2 of 3 runs)."

    quick, near, _base, twice = by_time.ranked
    logs = [math.log(11 / 10), math.log(19 / 20), 0.0]
    half = T2 * statistics.stdev(logs) / math.sqrt(3)
    found, exact = by_time.against(near, quick), by_time.against(twice, quick)
    assert found is not None
    assert exact is not None
    expected = [math.exp(statistics.mean(logs) + by) for by in (0, -half, half)]
    assert (found.mean, found.low, found.high) == pytest.approx(expected, rel=1e-9)
    assert (exact.mean, exact.low, exact.high) == pytest.approx((2, 2, 2))
    assert [one.name for one in by_time.ties] == ["near", "base"]
    assert not by_time.is_sure
    head, mean, second, third, fourth = by_time.sentences
    assert head.startswith("no line surely takes the least time: 3 of 4 tie at 20 s to ")
    assert head.endswith("; twice is worse.")
    assert mean == "quick has the least mean, 20 s."
    assert second.startswith("near, the next, takes 1.01 times as long (95 % interval 0.")
    assert "worse in 1 of 3 seeds)" in second
    assert third.startswith(
        f"base, the baseline, takes {statistics.geometric_mean([4, 2.2, 1.2]):.3g} times as long"
    )
    assert fourth.startswith(
        "These 3 seeds cannot distinguish it from near, base. About 2 to 99 more seeds would"
    )
    head = "no line surely moves the least bytes: 3 of 4 tie at 200 B to 400 B; twice is worse."
    assert by_bytes.sentences[0] == head
    head = "no line surely ends with the highest accuracy: all 5 tie at 0.533 to 0.800."
    assert by_accuracy.sentences[0] == head
    assert [answer.order[0], answer.order[-1]] == [5, 3]


def test_the_same_is_said_to_be_and_costs_of_nothing_have_no_ratio(tmp_path: Path) -> None:
    (answer,) = answers(
        *made(tmp_path / "same", {"one": [10.0, 20.0], "two": [10.0, 20.0]}), [Target(0.5)]
    )
    for ranking in answer.rankings:
        assert ": both tie at " in ranking.sentences[0]
        assert ranking.sentences[2] == "two, the next, does exactly as well."
    ranking = next(
        answers(*made(tmp_path / "free", {"free": [0.0, 0.0], "dear": [2.0, 3.0]}), [Target(0.5)])
    ).rankings[0]
    assert ranking.against(*reversed(ranking.ranked)) is None
    assert ranking.sentences == [
        "free takes the least time, 0 s.",
        "dear, the next, comes to 2.5 s.",
    ]


def test_one_seed_of_equal_lines_names_no_best(tmp_path: Path) -> None:
    times = {"one": [10.0], "two": [10.0], "three": [20.0]}
    (answer,) = answers(*made(tmp_path, times), [Target(0.5)])
    ranking = answer.rankings[0]
    assert ranking.sentences == [
        "no line takes the least time alone: 2 of 3 tie at 10 s; three is worse.",
        "two, the next, does exactly as well.",
    ]
    assert not ranking.is_sure


def test_a_count_of_further_seeds_names_the_lines_for_which_it_is(tmp_path: Path) -> None:
    """The mean of ``far`` is so near to that of ``one`` that no count is stated for it."""
    times = {
        "one": [10.0, 20.0, 30.0],
        "near": [11.0, 19.5, 33.5],
        "far": [16.0, 20.0, 19.0],
    }
    (answer,) = answers(*made(tmp_path, times), [Target(0.5)])
    doubt = answer.rankings[0].sentences[-1]
    assert doubt.startswith("These 3 seeds cannot distinguish it from ")
    assert re.search(
        r"\. For near, about \d+ more seeds? would, if they differ as these do\.$", doubt
    )


def test_lines_with_other_seeds_than_the_best_are_not_said_to_be_worse(tmp_path: Path) -> None:
    """As in a study of which runs have failed: means over different worlds are no comparison."""
    times = {"base": [40.0, 44.0, 36.0], "short": [10.0, 20.0]}
    (answer,) = answers(*made(tmp_path, times), [Target(0.5)])
    assert answer.rankings[0].sentences == [
        "no line surely takes the least time: base has runs of other seeds than short.",
        "short has the least mean, 15 s.",
        "base, the next, comes to 40 s.",
    ]
    assert not answer.rankings[0].is_sure
    text = "Least traffic to target 0.5: mean of short, 150 B; base has runs of other seeds than short."
    assert answer.rankings[1].in_short == text
    times |= {"near": [10.5, 19.0], "far": [100.0, 200.0]}
    (answer,) = answers(*made(tmp_path / "more", times), [Target(0.5)])
    head = answer.rankings[0].sentences[0]
    assert head == (
        "no line surely takes the least time: 2 of 4 tie at 14.8 s to 15 s; far is worse; base has "
        "runs of other seeds than near."
    )


def test_targets(tmp_path: Path) -> None:
    """The highest that somebody reaches in all runs, then in any; without one, the highest that
    half of the lines reach.
    """
    accuracies = {"a": [0.71, 0.93], "b": [0.62, 0.66], "c": [0.3, 0.3]}
    lines, figures = made(tmp_path, {name: [None, None] for name in "abc"}, accuracies)
    for accuracies_to_reach, expected in (
        ([0.5, 0.7, 0.9], 0.7),
        ([0.9, 0.95], 0.9),
        ([0.99], None),
    ):
        targets = [Target(value) for value in accuracies_to_reach]
        for values in (values for own in figures for values in own):
            values |= {
                f"{what} to target {target:g}": None
                for what in ("time", "traffic", "energy")
                for target in targets
            }
        (answer,) = answers(lines, figures, targets)  # type: ignore[arg-type]
        assert answer.target == (None if expected is None else Target(expected))
    assert usual_target(lines, figures) == Target(0.6)  # type: ignore[arg-type]
    assert usual_target(lines, [[{"best accuracy": None}] * 2] * 3) is None


Cells = Mapping[tuple[str, str, str], float | None]
"""By variant, part and deadline: the time to the target; ten times as many bytes, but of
``fedbuff`` as many.
"""
GRID: Cells = {
    ("fedavg", "rounds", "10 s"): 100.0,
    ("fedavg", "rounds", "20 s"): 200.0,
    ("fedprox", "rounds", "10 s"): 200.0,
    ("fedprox", "rounds", "20 s"): 800.0,
    ("fedbuff", "free", "10 s"): 250.0,
    ("fedbuff", "free", "20 s"): 250.0,
}


def found(place: Path, cells: Cells, goal: str = "time", free: int = 5) -> list[WorldAnswer]:
    """The answers about cells of two seeds each; ``free`` are the devices in the world of that
    part.
    """
    lines, figures = [], []
    for (variant, part, deadline), time in cells.items():
        own = figures_of(time, 0.6, 1.0 if variant == "fedbuff" else 10.0, battery=2.0)
        figures.append(
            [
                {name: None if value is None else value * by for name, value in own.items()}
                for by in (1, 1.01)
            ]
        )
        folder = place / ("fedbuff" if variant == "fedbuff" else f"{variant}-{part}-{deadline}")
        point = (("part", part), ("strategy.deadline", deadline))
        lines.append(line_of(folder, variant, figures[-1], point, free if part == "free" else 5))
    return list(
        answers(
            Lines(tuple(lines), (0.5,), (None,) * len(lines), goal=goal), figures, [Target(0.5)]
        )
    )  # type: ignore[arg-type]


def test_all_cells_of_one_world_are_in_one_ranking(tmp_path: Path) -> None:
    """Parts and deadlines change no world, and cells of the same runs are one."""
    (answer,) = found(tmp_path, GRID)
    first, second, third, fourth = (
        f"{name} (deadline={time} s)" for name in ("fedavg", "fedprox") for time in (10, 20)
    )
    assert [one.name for one in answer.rankings[0].entries] == [
        first,
        second,
        third,
        "fedbuff",
        fourth,
    ]
    assert answer.words[0].startswith(
        "To an accuracy of 0.5 fedavg (deadline=10 s) takes the least time, 1 min 41 s. fedavg ("
    )
    assert answer.words[1] == "There it moves 1 kB, drains 2.01 % of each battery."
    assert answer.words[2] == "Least traffic to target 0.5: fedbuff, 251 B."
    cells = heat_map(answer)
    assert cells is not None
    # a third of three doublings
    assert [round(cells.share(value), 3) for value in cells.figures["10 s"][:2]] == [1, 0.667]
    heads, texts = zip(
        *((column.head, column.cells) for column in cells.table().columns), strict=True
    )
    assert heads == ("variant", "deadline 10 s", "deadline 20 s", "deadline any")
    assert texts[1:] == (
        ("1 min 41 s *", "3 min 21 s", "-"),
        ("3 min 21 s", "13 min 24 s", "-"),
        ("-", "-", "4 min 11 s"),
    )
    (pareto,) = fronts(answer)
    assert [one.line.name for one in pareto.front] == [first, "fedbuff"]
    front, shares = in_words(answer)
    assert front.endswith(
        "than: fedavg (deadline=10 s) (1 min 41 s, 1 kB); fedbuff (4 min 11 s, 251 B)."
    )
    # Logarithms to the base 2, but for a constant, are 0, 1, 1, 3: their variance is 1.1875, that
    # of their means by deadline 0.5625, by variant too.
    assert shares.endswith("variant 47%, deadline 47%; their interplay 5%.")


def test_who_comes_next_to_a_pareto_front_is_named(tmp_path: Path) -> None:
    (answer,) = answers(*made(tmp_path, {"a": [10.0], "b": [11.0], "c": [100.0]}), [Target(0.5)])
    (front,) = fronts(answer)
    assert [one.line.name for one in front.front] == ["a"]
    assert [(one.line.name, one.factor) for one in front.runners_up] == [("b", pytest.approx(1.1))]
    assert front.words.endswith(
        "than: a (10 s, 100 B). Next to these: b (11 s, 110 B; at most 10 % more than a in both)."
    )


def front_of(costs: dict[str, tuple[float, float]]) -> ParetoFront:
    rankings = []
    for index, cost in enumerate(("time", "traffic")):
        lines = []
        for line_index, (name, values) in enumerate(costs.items()):
            by_seed = {1: values[index]}
            lines.append(RankedLine(line_index, name, False, by_seed, frozenset(by_seed)))
        rankings.append(Ranking(cost_of(cost, Target(0.5)), tuple(lines), None))
    (front,) = fronts(WorldAnswer("", Target(0.5), tuple(rankings), ()))
    return front


def test_a_front_does_not_depend_on_the_order_of_a_ranking() -> None:
    """A ranking that follows a decision has dropped lines last, even those with a lower mean."""
    front = front_of({"leader": (12.0, 10.0), "other": (20.0, 30.0), "dropped": (11.0, 9.0)})
    assert [point.line.name for point in front.points] == ["dropped", "leader", "other"]
    assert [point.line.name for point in front.front] == ["dropped"]


def test_of_variants_with_the_same_first_cost_one_is_on_the_front() -> None:
    front = front_of({"more": (10.0, 9.0), "less": (10.0, 7.0), "dear": (20.0, 6.0)})
    assert [point.line.name for point in front.front] == ["less", "dear"]
    assert [point.line.name for point in front.runners_up] == ["more"]


def test_the_best_cell_of_a_metric_of_which_less_is_better_has_the_least() -> None:
    values = {("a", 1, 5): 9.0, ("a", 1, 6): 8.0, ("a", 2, 5): 12.0, ("b", 1, 5): 10.0}
    values |= {("a", 2, 6): 13.0, ("b", 1, 6): 11.0, ("b", 2, 5): 20.0, ("b", 2, 6): 21.0}
    lines = []
    cells = {}
    for index, ((variant, batch, epochs), value) in enumerate(values.items()):
        lines.append(RankedLine(index, f"{index}", False, {1: value}, frozenset({1})))
        cells[index] = {VARIANT: variant, "batch": batch, "epochs": epochs}
    perplexity = Measure("perplexity", "", "accuracy", best="least", test="final")
    ranking = Ranking(perplexity, tuple(lines), None)
    table = heat_map(WorldAnswer("", None, (ranking,), (), cells=cells))
    assert table is not None
    assert table.figures.to_numpy().tolist() == [[8.0, 12.0], [10.0, 20.0]]
    assert [table.share(value) for value in (8.0, 14.0, 20.0)] == [1.0, 0.5, 0.0]
    assert table.text(8.0).endswith(" *")


# by a table of t: 18 pairs of mean 1 and deviation 2, not 17
def test_the_seeds_that_would_tell_two_lines_apart() -> None:
    assert pairs_to_tell(1.0, T2 * 2 / math.sqrt(3), 3) == 18
    assert pairs_to_tell(0.0, 1.0, 3) is None
    assert pairs_to_tell(1.0, 1e6, 3) is None


def test_worlds_apart_a_ranking_of_one_and_another_goal(tmp_path: Path) -> None:
    rounds, free = found(tmp_path / "1", GRID, free=6)
    assert [one.world for one in (rounds, free)] == ["part rounds", "part free"]
    assert len(rounds.rankings[0].entries) == 4
    assert free.rankings[0].sentences == []
    assert heat_map(free) is None
    (alone,) = found(
        tmp_path / "2", {key: time if key[1] == "free" else None for key, time in GRID.items()}
    )
    assert alone.rankings[0].sentences == [
        "fedbuff takes the least time, 4 min 11 s.",
        "No other line has this figure for all its seeds.",
    ]
    assert not alone.rankings[0].is_sure
    (answer,) = found(tmp_path / "3", GRID, "bytes")
    assert answer.words[0].startswith("To an accuracy of 0.5 fedbuff moves the least bytes, 251 B.")
    assert answer.words[1].startswith("There it takes 4 min 11 s, drains")


def test_a_budget() -> None:
    base: dict[str, Any] = {"bytes_down": 10.0, "bytes_up": 5.0, "joules": 2.0, "cost": None}
    rows = [
        base | {"time": 10.0 * (at + 1), "accuracy": accuracy}
        for at, accuracy in enumerate([0.1, None, 0.5, 0.4, 0.9])
    ]
    for budget, best in (
        ({}, 0.9),
        ({"time": 30.0}, 0.5),
        ({"bytes": 59}, 0.5),
        ({"joules": 9.9}, 0.5),
        ({"time": 9.0}, None),
    ):
        assert best_accuracy_within(rows, budget) == best
    assert best_accuracy_within(rows, {"cost": 1.0}) is None
    assert read_goal(None, ["time=20 min", "bytes=3 GB"]) == (
        "budget",
        {"time": 1200.0, "bytes": 3e9},
    )
    wrong = (
        ("tim", [], "did you mean 'time'"),
        ("bytes", ["time=1 s"], "with --budget"),
        (None, ["x=1"], "'x'"),
    )
    for goal, limits, problem in wrong:
        with pytest.raises(ScenarioError, match=problem):
            read_goal(goal, limits)


@pytest.mark.parametrize("pairs", [2, 3, 5, 30])
def test_the_intervals_are_scipys(pairs: int) -> None:
    generator = np.random.default_rng(pairs)
    above, below = generator.lognormal(3, 1, pairs).tolist(), generator.normal(5, 2, pairs).tolist()
    found, theirs = paired_difference(above, below), ttest_rel(above, below).confidence_interval()
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)
    assert found.mean == pytest.approx(np.subtract(above, below).mean())
    # whatever the order of the worlds
    assert paired_difference(above[::-1], below[::-1]).mean == found.mean
    alone, theirs = mean_of(above), ttest_1samp(above, 0).confidence_interval()
    assert (alone.low, alone.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)


def test_equal_differences_have_no_interval_one_pair_has_no_end_and_verdicts() -> None:
    tenths = mean_of([0.1] * 3)
    assert (tenths.mean, tenths.low, tenths.high, tenths.pairs) == (0.1, 0.1, 0.1, 3)
    assert (mean_of([2.0]).low, mean_of([2.0]).high) == (-math.inf, math.inf)
    verdicts = [
        paired_difference(above, [0.0] * len(above)).verdict
        for above in ([1.0, 5.0, -2.0], [-1.0, -1.5], [1.0], [1.0] * 3)
    ]
    assert verdicts == ["holds in part", "does not hold", "holds in part", "holds"]


@pytest.mark.parametrize(
    ("above", "below"), [([1], [1, 2]), ([], []), ([math.nan], [1]), ([math.inf], [1])]
)
def test_what_cannot_be_paired_is_refused(above: list[float], below: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot pair"):
        paired_difference(above, below)


@pytest.mark.parametrize("name", ["fedavg", "flexcfl"])
def test_compute_waste_and_moves_by_another_way(runs: dict[str, Path], name: str) -> None:
    """Pandas adds up each task's training: all of it is waste where the task was not done, else
    what no epoch came of.
    """
    events = fedsim.load_run(runs[name]).events
    why = [facts["why"] for facts in events[events["kind"] == "assign"]["data"]]
    moves = why.count("migration") if name == "flexcfl" else None
    assert moves is None or 0 < moves < len(why)
    events = events[events["step"] == "train"].merge(
        events[events["kind"] == "task-end"][["task", "outcome"]],
        on="task",
        suffixes=("", "_of_task"),
    )
    steps = events[events["kind"] == "step-start"].merge(
        events[events["kind"] == "step-end"], on="task", suffixes=("", "_end")
    )
    assert len(steps) == steps["task"].nunique()
    spent = steps["time_end"] - steps["time"]
    counted = [
        (facts["epoch_ends"][-1] - begin if facts["epochs"] else 0.0) if outcome == "done" else 0.0
        for facts, begin, outcome in zip(
            steps["data_end"], steps["time"], steps["outcome_of_task"], strict=True
        )
    ]
    work = read_work(RunFolder(runs[name]))
    assert work["migrations"] == moves
    assert work["compute"] == pytest.approx(spent.sum())
    assert work["wasted compute"] == pytest.approx(spent.sum() - sum(counted))
    assert 0 < sum(counted) < spent.sum()


def test_what_a_run_has(runs: dict[str, Path]) -> None:
    run = fedsim.load_run(runs["flexcfl"])
    values = measure(RunFolder(run.path), [Target(0.2), Target(1.0)])
    assert set(values) == {one.name for one in measures([Target(0.2), Target(1.0)])}
    rounds, devices = run.rounds, run.devices
    assert values["final accuracy"] == rounds["accuracy"].iloc[-1]
    assert values["best accuracy"] == rounds["accuracy"].max()
    lowest = np.sort(devices["accuracy"].dropna())[: int(np.ceil(devices["accuracy"].count() / 10))]
    assert values["worst-decile accuracy"] == pytest.approx(lowest.mean())
    selected = devices["selected"].to_numpy(float)
    assert values["Jain's index of selections"] == pytest.approx(
        selected.sum() ** 2 / (len(selected) * (selected**2).sum())
    )
    assert values["traffic"] == pytest.approx(run.transfers["delivered"].sum())
    assert values["mean purity of groups"] == pytest.approx(rounds["purity"].mean())
    assert values["last purity of groups"] == rounds["purity"].iloc[-1]
    first = int(np.argmax(rounds["accuracy"] >= 0.2))
    assert values["rounds to target 0.2"] == first + 1
    assert values["time to target 0.2"] == rounds["time"][first]
    assert values["traffic to target 0.2"] == pytest.approx(
        float((rounds["bytes_down"] + rounds["bytes_up"])[: first + 1].sum())
    )
    assert (
        values["time to target 1"]
        is values["rounds to target 1"]
        is values["traffic to target 1"]
        is None
    )
    assert (
        measure(RunFolder(run.path), ledger="paper")["traffic"]
        == run.summary["bytes"]["paper"]
        < values["traffic"]
    )  # type: ignore[operator]


def test_what_a_run_does_not_have_is_nothing(runs: dict[str, Path]) -> None:
    off = measure(RunFolder(runs["off"]), [Target(0.5)])
    nothing = {name for name, value in off.items() if value is None}
    assert {
        "final accuracy",
        "best accuracy",
        "worst-decile accuracy",
        "migrations",
        "rounds to target 0.5",
    } <= nothing
    assert {"rounds", "simulated time", "traffic", "compute", "wasted compute"}.isdisjoint(nothing)
    pooled = measure(RunFolder(runs["pooled"]), [Target(0.2)])
    assert {name for name, value in pooled.items() if value is not None} == {
        "rounds", "final accuracy", "best accuracy", "rounds to target 0.2"
    }  # fmt: skip


def test_energy_and_carbon_to_a_target(tmp_path: Path) -> None:
    """With a constant intensity the grams are the joules', to the target and in all."""
    strategy = {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 2}
    sections = quiet_world(strategy, rounds=4) | {
        "energy": {"preset": "laptop", "carbon": {"intensity": "360 g/kWh"}}
    }
    fedsim.run(fedsim.Scenario(**sections), tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    reached = max(row["accuracy"] for row in run.rounds[:2])
    values = measure(run, [Target(reached), Target(1.0)])
    last = values[f"rounds to target {reached:g}"]
    assert isinstance(last, int)
    joules = sum(row["joules"] for row in run.rounds[:last])
    assert values[f"energy to target {reached:g}"] == pytest.approx(joules)
    assert values[f"carbon to target {reached:g}"] == pytest.approx(joules * 1e-4)
    assert values["carbon"] == pytest.approx(values["energy"] * 1e-4)
    assert values["energy to target 1"] is None


def test_batteries(tmp_path: Path) -> None:
    energy = {"compute": "5 W", "battery": {"capacity": "100 J", "initial": 0.6}}
    tables = {
        "learning": "off",
        "population": {"devices": 2, "samples": [20, 200], "speed": "10 samples/s"},
        "energy": energy,
    }
    tables |= {"strategy": {"kind": "fedavg", "clients_per_round": 2}, "stop": {"rounds": 1}}
    fedsim.run(fedsim.Scenario(**tables), tmp_path / "run", executor="inline")
    values = measure(RunFolder(tmp_path / "run"))
    # 10 J of 2 s, and all of 60 J
    assert (values["battery"], values["flat devices"]) == (pytest.approx(35.0), 1)


def test_a_run_is_frames(runs: dict[str, Path]) -> None:
    run = fedsim.load_run(runs["flexcfl"])
    folder = RunFolder(runs["flexcfl"])
    for name in ("rounds", "devices", "events", "transfers"):
        frame, rows = getattr(run, name), getattr(folder, name)
        assert isinstance(frame, pd.DataFrame)
        assert len(frame) == len(rows)
        assert list(frame.columns) == list(rows[0])
        assert getattr(run, name) is frame  # read once
    assert run.availability.to_dict("records") == folder.rows("availability.parquet")
    assert run.events["data"].tolist() == [row["data"] for row in folder.events]
    assert run.events["device"].dtype == "Int32"  # whole, though some records have none
    assert run.events["device"].isna().any()
    assert run.transfers["payloads"][0] == folder.transfers[0]["payloads"]
    assert run.summary == folder.summary
    assert run.scenario.strategy.kind == "flexcfl"
    assert isinstance(next(iter(run.models()["group"].values())), np.ndarray)
    assert (
        fedsim.run(run.scenario, executor="inline").summary["events_sha256"]
        == run.summary["events_sha256"]
    )


def test_figures(runs: dict[str, Path], study: Path) -> None:
    with pytest.raises(fedsim.FedsimError, match=r"no figure 'timelin'.*did you mean 'timeline'"):
        fedsim.load_run(runs["flexcfl"]).figure("timelin")
    assert isinstance(fedsim.load_study(study).figure("costs"), Figure)
    with pytest.raises(fedsim.FedsimError, match="allowed are costs, accuracy, fairness"):
        fedsim.load_study(study).figure("timeline")


def test_a_study_is_frames(study: Path) -> None:
    loaded = fedsim.load_study(study)
    assert loaded.variants[1] == "flexcfl, share=0.0"
    assert len(loaded.runs) == 18
    assert loaded.table["runs"].tolist() == [3] * 6
    assert loaded.table["final accuracy (0-1)"].dtype == float
    assert loaded.table["time to target 1 (s)"].isna().all()
    assert loaded.paired["low"].dtype == float
    run = loaded.run("flexcfl, share=0.5", 2)
    assert run.summary["seed"] == run.scenario.seed == 2
    assert run.scenario.population.stragglers is not None
    assert "18 of 18" in loaded._repr_html_()
    assert "&lt;b&gt;" in loaded._repr_html_()
    assert "18 runs" in repr(loaded)


def test_what_is_not_there(runs: dict[str, Path], study: Path, tmp_path: Path) -> None:
    with pytest.raises(fedsim.RunFolderError, match="is not a run folder"):
        fedsim.load_run(tmp_path)
    with pytest.raises(fedsim.RunFolderError, match="is not the folder of a study"):
        fedsim.load_study(runs["off"])
    with pytest.raises(
        fedsim.RunFolderError, match=r"no variant 'flexcf, share=0.0'.*did you mean"
    ):
        fedsim.load_study(study).run("flexcf, share=0.0")
    with pytest.raises(fedsim.RunFolderError, match=r"no seed 9; allowed are \[1, 2, 3\]"):
        fedsim.load_study(study).run("flexcfl, share=0.0", 9)
