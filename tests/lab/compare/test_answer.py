"""Which line is the best, by how much, and how sure that is: with figures made up so that the answers are known."""

import json
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fedsim.lab.compare.answer import answers, usual_target
from fedsim.lab.compare.lines import ComparedLine, Lines
from fedsim.records.reading import RunFolder

Made = Callable[..., tuple[Lines, list[list[dict[str, float | None]]]]]

T2 = 4.302652729911275  # Student's t, 0.975, two degrees of freedom


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Lines, and figures of their runs with seeds from 1 on: times to 0.5, ten times as many bytes, and accuracies."""

    def make(times: Mapping[str, list[float | None]], accuracies: Mapping[str, list[float]], **lines: object) -> object:
        found, figures = [], []
        for name, own in times.items():
            runs = []
            for seed in range(1, len(own) + 1):
                folder = tmp_path / name / str(seed)
                folder.mkdir(parents=True)
                (folder / "summary.json").write_text(json.dumps({"seed": seed}))
                runs.append(RunFolder(folder))
            found.append(ComparedLine(name, tuple(runs), len(runs), study="s", reference=name == "alone"))
            figures.append([_figures(time, best) for time, best in zip(own, accuracies[name], strict=True)])
        place = list(times).index("base") if "base" in times else None
        return Lines(tuple(found), (0.5,), (place,) * len(found), "base" if "base" in times else ""), figures

    return make  # type: ignore[return-value]


def _figures(time: float | None, best: float) -> dict[str, float | None]:
    return {
        "time to target 0.5": time,
        "traffic to target 0.5": None if time is None else 10 * time,
        "energy to target 0.5": None,
        "best accuracy": best,
        "final accuracy": best,
    }


def test_the_best_by_how_much_and_how_sure(made: Made) -> None:
    times = {"base": [40.0, 44.0, 36.0], "quick": [10.0, 20.0, 30.0], "near": [11.0, 19.0, 30.0], "part": [5.0, None, 5.0]}
    times |= {"twice": [20.0, 40.0, 60.0], "alone": [1.0, 1.0, 1.0]}
    final = {name: [0.6, 0.6, 0.6] for name in times} | {"part": [0.6, 0.4, 0.6], "near": [0.7, 0.8, 0.9]}
    lines, figures = made(times, final)
    (answer,) = answers(lines, figures, [0.5])
    by_time, by_bytes, by_accuracy = answer.rankings  # nobody counted energy
    assert [one.name for one in by_time.entries] == ["alone", "quick", "near", "base", "twice", "part"]
    assert [one.name for one in by_time.whole] == [
        "quick",
        "near",
        "base",
        "twice",
    ]  # who failed once has no mean to be ranked by
    assert answer.missed == (("part", 2, 3),)
    assert answer.words[-1] == "Not there in every world: part (2 of 3)."

    quick, near, _base, twice = by_time.whole
    logs = [math.log(11 / 10), math.log(19 / 20), 0.0]
    half = T2 * statistics.stdev(logs) / math.sqrt(3)
    found = by_time.against(near, quick)
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx(
        [math.exp(statistics.mean(logs) + by) for by in (0, -half, half)], rel=1e-9
    )
    assert not by_time.is_apart(near, quick)
    exact = by_time.against(twice, quick)
    assert exact is not None
    assert (exact.mean, exact.low, exact.high) == pytest.approx((2, 2, 2))
    assert by_time.is_apart(twice, quick)
    first, second, third, fourth = by_time.sentences
    assert first == "quick takes the least time, 20 s."
    assert second.startswith("near, the next, takes 1.01 times as long (95 % interval 0.")
    assert "worse in 1 of 3 worlds)" in second
    assert third.startswith(f"base, the baseline, takes {statistics.geometric_mean([4, 2.2, 1.2]):.3g} times as long")
    assert fourth.startswith("These 3 seeds do not tell it apart from near, base. Some 2 to 99 seeds more would")
    assert by_bytes.sentences[0] == "quick moves the least bytes, 200 B."
    assert by_accuracy.whole[0].name == "near"
    assert by_accuracy.sentences[0] == "near ends with the highest accuracy, 0.800."
    assert [answer.order[0], answer.order[-1]] == [5, 3]


def test_what_is_the_same_is_said_to_be(made: Made) -> None:
    lines, figures = made({"one": [10.0, 20.0], "two": [10.0, 20.0]}, {"one": [0.9, 0.8], "two": [0.9, 0.8]})
    (answer,) = answers(lines, figures, [0.5])
    assert answer.rankings[0].sentences[1] == "two, the next, does exactly as well."
    assert answer.rankings[-1].sentences[1] == "two, the next, does exactly as well."


def test_what_differs_in_the_fourth_figure_is_not_once_as_long(made: Made) -> None:
    lines, figures = made({"one": [1000.0], "two": [1001.0]}, {"one": [0.9], "two": [0.9]})
    (answer,) = answers(lines, figures, [0.5])
    assert answer.rankings[0].sentences[1].startswith("two, the next, takes as long, to three figures")


def test_targets(made: Made) -> None:
    """The highest that somebody reaches in all runs, then in any; without one, the highest that half of the lines reach."""
    nothing = [None, None]
    lines, figures = made(dict.fromkeys("abc", nothing), {"a": [0.71, 0.93], "b": [0.62, 0.66], "c": [0.3, 0.3]})
    for targets, expected in (([0.5, 0.7, 0.9], 0.7), ([0.9, 0.95], 0.9), ([0.99], None)):
        for own in figures:
            for values in own:
                values |= {f"{what} to target {target:g}": None for what in ("time", "traffic", "energy") for target in targets}
        (answer,) = answers(lines, figures, targets)
        assert answer.target == expected
    assert usual_target(lines, figures) == 0.6
    assert usual_target(lines, [[{"best accuracy": None}] * 2] * 3) is None


def test_costs_of_nothing_have_no_ratio(made: Made) -> None:
    lines, figures = made({"free": [0.0, 0.0], "dear": [2.0, 3.0]}, {"free": [0.9, 0.9], "dear": [0.9, 0.9]})
    ranking = next(answers(lines, figures, [0.5])).rankings[0]
    assert ranking.against(*reversed(ranking.whole)) is None
    assert ranking.sentences == ["free takes the least time, 0 s.", "dear, the next, needs 2.5 s."]
