"""Sentences made of counts, ratios and shares, for values of all sizes.

Each sentence is made of many synthetic values, and searched for what nobody should read: "1 times",
"1 runs", "0%" of something, infinities, exponents and minus zero.
"""

import copy
import itertools
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import fedsim
from fedsim.analysis.report.findings import find_in_run, find_in_series
from fedsim.analysis.report.progress import StudiedRun, in_words
from fedsim.analysis.report.runs import headline_figures
from fedsim.analysis.series import Series
from fedsim.common.units import show_ratio, show_share
from fedsim.lab.compare.answer import WorldAnswer
from fedsim.lab.compare.critical_path import CriticalPaths, PathStep, RoundPath
from fedsim.lab.compare.critical_words import path_table, round_in_words, run_in_words
from fedsim.lab.compare.explore import fronts, variance_in_words
from fedsim.lab.compare.line_decision import LineDecision
from fedsim.lab.compare.lines import ComparedLine
from fedsim.lab.compare.measures import FINAL, Measure, cost_of, of_metric
from fedsim.lab.compare.ranking import RankedLine, Ranking
from fedsim.lab.compare.sure import Decision, DroppedLine
from fedsim.lab.reading.study_folder import IndexedSure
from fedsim.lab.reading.targets import Target
from fedsim.records.reading import RunFolder
from fedsim.testing import quiet_world
from fedsim.testing import run as finish

NOUNS = (
    "runs|seeds|devices|clients|tasks|lines|rounds|worlds|variants|others|keys|trials|figures|"
    "models|updates|versions|messages|groups|cells|shards|problems"
)
UNREADABLE = re.compile(
    rf"(?<![\d.,])1 (more |other |selected |worse )?({NOUNS})\b"
    r"|(?<![\d.,])1(\.0+)? times\b|\btimes as [a-z]+ \(95 % interval 1 to 1;"
    r"|\b(nan|inf|infinity|None|no runs|no seeds)\b|\d(\.\d+)?e\+0[0-8]"
    r"|(?<![\d.])-0(\.0*)?(?![\d.])|(?<![\d.])0% (of|\()"
)

COSTS = (0.0, 1e-9, 0.3, 1.0, 1.0001, 1.004, 1.2, 59.97, 1e4, 1e15)
SHARES = (0.0, 1e-5, 0.4, 0.5, 0.5001, 1.0)
METRICS = (-1e9, -3.2, -1e-12, 0.0, 1e-12, 0.04, 12.0, 12.0001, 5e11)
MEASURES = {
    "time": (cost_of("time", Target(0.5)), COSTS),
    "traffic": (cost_of("traffic", Target(0.5)), COSTS),
    "energy": (cost_of("energy", Target(0.5)), COSTS),
    "carbon": (cost_of("carbon", Target(0.5)), COSTS),
    "money": (cost_of("cost", Target(0.5)), COSTS),
    "rounds": (cost_of("rounds", Target(0.5)), (1.0, 2.0, 999.0, 1000.0, 12345.0)),
    "battery": (Measure("battery", "%", "cost", "least"), (0.0, 0.02, 40.0, 100.0)),
    "flat": (Measure("flat devices", "devices", "cost", "least"), (0.0, 1.0, 1.5, 2000.0)),
    "accuracy": (FINAL, SHARES),
    "mse": (of_metric("final", "mse", {"mse": False}), METRICS),
    "f1": (of_metric("final", "f1", {"f1": True}), SHARES),
}


def check(texts: list[str]) -> int:
    for text in texts:
        match = UNREADABLE.search(text)
        assert match is None, f"{match[0]!r} in {text!r}"
        assert text[:1] != " "
        assert "  " not in text
    return len(texts)


def rankings(name: str, number: int) -> Iterator[Ranking]:
    """Rankings of two to four lines over one to three seeds; some have other seeds."""
    measure, values = MEASURES[name]
    draw = random.Random(f"{name} {number}")
    for _ in range(60):
        seeds = draw.randint(1, 3)
        near = draw.choice(values)
        lines = []
        for place in range(draw.randint(2, 4)):
            own = seeds + (draw.random() < 0.1)
            figures = {}
            for seed in range(own):
                value = near if draw.random() < 0.3 else draw.choice(values)
                figures[seed] = value * draw.choice((1.0, 1.0, 1.0003, 1.01))
            mean = sum(figures.values()) / own
            lines.append(
                (mean, RankedLine(place, "abcd"[place], False, figures, frozenset(figures)))
            )
        sign = 1 if measure.best == "least" else -1
        lines.sort(key=lambda line: sign * line[0])
        yield Ranking(measure, tuple(line for _, line in lines), draw.choice((None, 0, 1)))


@pytest.mark.parametrize("name", MEASURES)
def test_rankings_of_any_values_read_well(name: str) -> None:
    count = 0
    for number in range(8):
        for ranking in rankings(name, number):
            count += check([*ranking.sentences, ranking.in_short])
    assert count > 1000


def test_a_ratio_near_one_is_a_percentage() -> None:
    words = cost_of("time", Target(0.5)).words
    for ratio, text in (
        (1.0, "takes as long"),
        (1.0004, "takes as long"),
        (1.003, "takes 0.3 % more time"),
        (0.9996, "takes as long"),
        (0.996, "takes 0.996 times as long"),
        (1.0049, "takes 0.5 % more time"),
        (1.01, "takes 1.01 times as long"),
        (12345.6, "takes 12,346 times as long"),
        (1e-7, "takes less than 0.001 times as long"),
        (1e300, "takes over 1,000,000 times as long"),
    ):
        assert words.compare(ratio) == text
    assert cost_of("traffic", Target(0.5)).words.compare(1.002) == "moves 0.2 % more bytes"


def test_ratios_and_shares_say_what_they_are_up_to_rounding() -> None:
    draw = random.Random(1)
    for _ in range(20_000):
        ratio = 10 ** draw.uniform(-8, 8)
        text = show_ratio(ratio)
        assert "e" not in text.removeprefix("less than").removeprefix("over")
        if text[0].isdigit():
            assert float(text.replace(",", "")) == pytest.approx(ratio, rel=6e-3)
        share = draw.choice(
            (draw.random(), 10 ** draw.uniform(-9, 0), 1 - 10 ** draw.uniform(-9, 0))
        )
        for decimals in (0, 1):
            text = show_share(share, decimals)
            assert (text == f"{0:.{decimals}%}") == (share == 0)
            assert (text == f"{1:.{decimals}%}") == (share == 1)
    assert show_ratio(0.0) == "0"


@pytest.mark.parametrize("number", range(4))
def test_fronts_and_explained_shares_of_any_values_read_well(number: int) -> None:
    draw = random.Random(number)
    count = 0
    for _ in range(200):
        found = []
        for name in ("time", "traffic"):
            measure, values = MEASURES[name]
            lines = []
            for place in range(4):
                value = draw.choice(values) * draw.choice((1.0, 1.0003))
                lines.append(RankedLine(place, f"l{place}", False, {0: value}, frozenset({0})))
            lines.sort(key=lambda line: line.mean.mean)
            found.append(Ranking(measure, tuple(lines), None))
        cells = {}
        for place, (variant, lr) in enumerate(itertools.product("ab", ("0.1", "0.2"))):
            cells[place] = {"variant": variant, "lr": lr}
        answer = WorldAnswer("", Target(0.5), tuple(found), (), cells)
        texts = [front.words for front in fronts(answer)]
        count += check([*texts, *variance_in_words(answer)])
    assert count > 200


STATUSES: tuple[Literal["best", "tie", "open"], ...] = ("best", "tie", "open")


@pytest.mark.parametrize("status", STATUSES)
def test_decisions_of_any_counts_read_well(status: Literal["best", "tie", "open"]) -> None:
    count = 0
    for runs, seeds, losses, is_over in itertools.product((1, 2), (1, 3), (0, 1, 2), (True, False)):
        contenders = (0,) if status == "best" else (0, 1)
        leader = None if status == "open" else 0
        dropped = tuple(DroppedLine(2 + place, seeds, 0) for place in range(losses))
        decision = Decision(status, leader, contenders, dropped, (), seeds)
        rule = IndexedSure(within=None, error=0.05, first=(1,), is_over=is_over)
        names = dict(enumerate("abcd"))
        measure = cost_of("time", Target(0.5))
        line_decision = LineDecision(decision, rule, measure, 0.05, names, runs, 3.0, runs + 5)
        count += check(line_decision.sentences)
    assert count >= 24


def test_progress_of_any_counts_reads_well() -> None:
    states = ("done", "at work", "not begun", "ended early")
    for count in (1, 2, 3):
        for chosen in itertools.product(states, repeat=count):
            check([in_words([StudiedRun("a", 1, state, {}) for state in chosen])])


def test_lines_whose_runs_are_not_done_are_told_by_seed_and_status() -> None:
    undone = ((1, "failed"), (2, "not begun"), (3, "not begun"))
    assert (
        ComparedLine("a", (), undone=undone).undone_in_words
        == "seed 1 failed; seeds 2, 3 not begun"
    )
    many = tuple((seed, "interrupted") for seed in range(9))
    assert ComparedLine("a", (), undone=many).undone_in_words == "9 interrupted"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of two rounds, whose figures tests replace."""
    folder = tmp_path_factory.mktemp("words") / "run"
    strategy = {"kind": "fedavg", "clients_per_round": 2}
    finish(quiet_world(strategy, rounds=2) | {"learning": "off"}, folder)
    return RunFolder(folder)


def test_findings_and_tiles_of_any_figures_read_well(run: RunFolder) -> None:
    kept = copy.deepcopy(run.summary)
    count = 0
    joules: dict[str, Any] = {"idle": 0.0, "compute": 1.0, "receive": 0.0, "send": 0.0, "tail": 0.0}
    for moved, wasted in itertools.product((0.0, 1.0, 1e12), (0.0, 1e-4, 0.3, 0.9999, 1.0)):
        run.summary["bytes"] |= {"down": moved, "up": 0.0, "wasted": wasted * moved}
        run.summary["energy"] = {
            "by_phase": joules | {"idle": moved / 1e9},
            "joules": 1.0 + moved / 1e9,
            "wasted": wasted,
        }
        texts = [text for text, _ in find_in_run(run)]
        series = find_in_series([Series("a", (run,)), Series("b", (run,))], is_over=True)
        texts += [] if series is None else [series]
        tiles = re.sub("<[^>]*>", " ", headline_figures(run))
        texts.append(" ".join(tiles.split()))
        count += check(texts)
    run.summary.clear()
    run.summary.update(kept)
    assert count > 40


def test_what_rounds_waited_for_of_any_times_reads_well(run: RunFolder) -> None:
    paths = CriticalPaths(run)
    count = 0
    for number in range(400):
        draw = random.Random(number)
        rounds = []
        start = 0.0
        for place in range(draw.randint(1, 3)):
            end = start + draw.choice((1e-6, 0.5, 1.0, 1.001, 59.97, 3600.0, 1e6))
            half = start + (end - start) * draw.choice((1e-4, 0.5, 0.9999, 1.0))
            selected = draw.choice((1, 2, 5))
            late = tuple(range(draw.randint(0, selected)))
            step = PathStep("train", start, end, device=1, task=1)
            cut = draw.random() < 0.5
            steps = (
                (step,)
                if cut
                else (PathStep("wait", start, half), PathStep("train", half, end, 1, 1))
            )
            rounds.append(
                RoundPath(
                    place,
                    start,
                    end,
                    steps,
                    selected,
                    late,
                    bool(late) and draw.random() < 0.5,
                    draw.choice((0.0, (end - start) / 3)),
                    draw.choice((1, 2)),
                    half,
                )
            )
            start = end
        vars(paths)["rounds"] = rounds
        texts = run_in_words(paths)
        for path in rounds:
            texts += round_in_words(paths, path.number)
        count += check(texts)
    assert count > 2000


def test_many_messages_in_a_row_share_a_row(run: RunFolder) -> None:
    steps = [PathStep("train", 0.0, 2.0, 1, 1)]
    for place in range(6):
        label = f"device {place} to device {place + 1}"
        steps.append(PathStep("message", 2.0 + place, 3.0 + place, label=label))
    path = RoundPath(0, 0.0, 8.0, tuple(steps))
    rows = list(zip(*(column.cells for column in path_table(path).columns), strict=True))
    assert rows == [
        ("train", "device 1", "0 s", "2 s", "25.0%"),
        (
            "6 messages",
            "device 0 to device 1, and so on until device 5 to device 6",
            "2 s",
            "6 s",
            "75.0%",
        ),
    ]
    few = RoundPath(0, 0.0, 5.0, tuple(steps[:4]))
    assert len(path_table(few).columns[0].cells) == 4


def test_a_diverged_metric_has_no_figure(tmp_path: Path) -> None:
    """An infinite loss has no mean that lines could be ranked by."""
    from fedsim.lab.compare.measures import measure

    finish(quiet_world({"kind": "fedavg", "clients_per_round": 2}, rounds=1), tmp_path / "run")
    run = fedsim.records.reading.RunFolder(tmp_path / "run")
    run.summary["metrics"] = {"mse": {"final": math.inf, "best": 2.0, "best_is": "least"}}
    values = measure(run)
    assert values["final mse"] is None
    assert values["best mse"] == 2.0
