"""The words that the page of a study should have, made of figures from its runs' folders."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fedsim.common.units import show_bytes, show_joules, show_seconds
from tests.analysis.study_figures import Line, Study, compare


@dataclass(frozen=True)
class Goal:
    """A figure by which lines are ranked, with the words that sentences have for it."""

    name: str
    is_cost: bool = True
    less_is_better: bool = True
    lead: str = ""
    as_much: str = ""
    show: Callable[[float], str] = "{:.3f}".format


def goals(study: Study) -> list[Goal]:
    """The rankings of a study's page, the goal's first."""
    target = study.target
    costs = [
        Goal(f"time to target {target}", lead="takes the least time", as_much="takes {} as long"),
        Goal(f"traffic to target {target}", lead="moves the least bytes", show=show_bytes),
        Goal(f"energy to target {target}", lead="draws the least energy", show=show_joules),
    ]
    costs[0] = Goal(**vars(costs[0]) | {"show": show_seconds})
    ranked = [goal for goal in costs if any(line.values(goal.name) for line in study.ranked)]
    if study.index["goal"] == "mse":
        lead = "ends with the lowest mse"
        return [Goal("final mse", is_cost=False, lead=lead, show="{:.4g}".format), *ranked]
    lead = "ends with the highest accuracy"
    return [*ranked, Goal("final accuracy", is_cost=False, less_is_better=False, lead=lead)]


def order(study: Study, goal: Goal) -> list[Line]:
    return study.ranking(goal.name, is_cost=goal.is_cost, less_is_better=goal.less_is_better)


def mean_of(line: Line, goal: Goal) -> float:
    return float(np.mean(line.whole(goal.name) or []))


def names_of(lines: Sequence[Line]) -> str:
    return ", ".join(line.name for line in lines)


def tie(study: Study, goal: Goal) -> tuple[list[Line], list[Line], list[Line]]:
    """The lines that tie with the best, the best first; lines that are worse; lines of other seeds."""
    first, *rest = order(study, goal)
    tied, worse, apart = [first], [], []
    for line in rest:
        due = compare(line, first, goal.name, is_cost=goal.is_cost)
        equal = float(goal.is_cost)
        if line.runs.keys() != first.runs.keys():
            apart.append(line)
        elif due is not None and due.low <= equal <= due.high:
            tied.append(line)
        else:
            worse.append(line)
    return tied, worse, apart


def tie_in_words(study: Study, goal: Goal) -> str:
    tied, worse, _ = tie(study, goal)
    means = sorted(mean_of(line, goal) for line in tied)
    every = len(tied) + len(worse)
    count = f"{len(tied)} of {every}"
    if not worse:
        count = "both" if every == 2 else f"all {every}"
    text = f"{count} tie at {goal.show(means[0])} to {goal.show(means[-1])}"
    if worse:
        text += f"; {names_of(worse)} {'is' if len(worse) == 1 else 'are'} worse"
    return text


def apart_in_words(study: Study, goal: Goal) -> str:
    tied, _, apart = tie(study, goal)
    verb = "has" if len(apart) == 1 else "have"
    return f"{names_of(apart)} {verb} runs of other seeds than {tied[0].name}"


def headline(study: Study) -> list[str]:
    """The first sentences of the page: the best line, or why none is named."""
    goal = goals(study)[0]
    tied, _, apart = tie(study, goal)
    figure = goal.show(mean_of(tied[0], goal))
    extreme = "least" if goal.is_cost else "lowest"
    mean = f"{tied[0].name} has the {extreme} mean, {figure}."
    if len(tied) > 1:
        return [f"no line surely {goal.lead}: {tie_in_words(study, goal)}.", mean]
    if apart:
        return [f"no line surely {goal.lead}: {apart_in_words(study, goal)}.", mean]
    return [f"{tied[0].name} {goal.lead}, {figure}."]


def comparisons(study: Study) -> Iterator[str]:
    """Sentences on the next line and the baseline, against the best line."""
    goal = goals(study)[0]
    first, *rest = order(study, goal)
    if not rest:
        yield "No other line has this figure for all its seeds."
    base = study.baseline(first)
    for line in rest[:1] + [line for line in rest[1:] if line is base]:
        role = "the next" if line is rest[0] else "the baseline"
        due = compare(line, first, goal.name, is_cost=goal.is_cost)
        if due is None:
            yield f"{line.name}, {role}, comes to {goal.show(mean_of(line, goal))}."
            continue
        pairs = [
            (line.values(goal.name)[seed], first.values(goal.name)[seed]) for seed in line.runs
        ]
        worse = sum(one > other for one, other in pairs)
        if goal.is_cost:
            text = f"takes {due.mean:.3g} times as long"
            ends = f"{due.low:.3g} to {due.high:.3g}"
        else:
            text = f"ends {goal.show(due.mean)} higher"
            ends = f"{goal.show(due.low)} to {goal.show(due.high)}"
        count = f"worse in {worse} of {len(pairs)} seeds"
        yield f"{line.name}, {role}, {text} (95 % interval {ends}; {count})."


def doubt(study: Study) -> str:
    """The sentence on the seeds that would distinguish the first lines; empty if none tie."""
    goal = goals(study)[0]
    (first, *tied), _, _ = tie(study, goal)
    if not tied:
        return ""
    counts = []
    near = []
    for line in tied:
        due = compare(line, first, goal.name, is_cost=goal.is_cost)
        assert due is not None
        mean, high = (math.log(due.mean), math.log(due.high)) if goal.is_cost else due[::2]
        count = seeds_needed(mean, high - mean, len(first.runs))
        if count is not None:
            near.append(line)
            counts.append(count - len(first.runs))
    text = f"These {len(first.runs)} seeds cannot distinguish it from {names_of(tied)}."
    assert counts
    if len(near) < len(tied):
        text += f" For {names_of(near)}, about"
    else:
        text += " About"
    text += f" {min(counts)}"
    if max(counts) > min(counts):
        text += f" to {max(counts)}"
    noun = "seed" if max(counts) == 1 else "seeds"
    return f"{text} more {noun} would, if they differ as these do."


def seeds_needed(mean: float, half: float, pairs: int) -> int | None:
    """The least count of pairs whose interval would exclude 0, if they spread as these do."""
    deviation = half * math.sqrt(pairs) / stats.t.ppf(0.975, pairs - 1)
    for count in range(pairs + 1, 1001):
        if stats.t.ppf(0.975, count - 1) * deviation / math.sqrt(count) < abs(mean):
            return count
    return None


def prefix(study: Study) -> str:
    if not goals(study)[0].is_cost:
        return ""
    return f"To an accuracy of {study.target} "


def is_over(study: Study) -> bool:
    return len(study.runs) == study.planned


def opened(study: Study, text: str) -> str:
    """A first sentence with its target, and "So far" if runs are missing."""
    text = prefix(study) + text
    if not is_over(study):
        return f"So far, {text[:1].lower()}{text[1:]}"
    return re.sub("^no line", "No line", text)


def other_goals(study: Study) -> Iterator[str]:
    for goal in goals(study)[1:]:
        if len(order(study, goal)) < 2:
            continue
        tied, _, apart = tie(study, goal)
        figure = goal.show(mean_of(tied[0], goal))
        text = f"{tied[0].name}, {figure}"
        if len(tied) > 1:
            text = tie_in_words(study, goal)
        elif apart:
            text = f"mean of {tied[0].name}, {figure}; {apart_in_words(study, goal)}"
        most = "Least" if goal.less_is_better else "Most"
        yield f"{most} {goal.name}: {text}."


def missed(study: Study) -> str:
    names = []
    name = f"time to target {study.target}"
    entries = [(len(line.values(name)), line) for line in study.ranked]
    for reached, line in sorted(entries, key=lambda entry: -entry[0]):
        if reached < len(line.runs):
            names.append(f"{line.name} (reached in {reached} of {len(line.runs)} runs)")
    return f"The target was missed by {', '.join(names)}." if names else ""


def wasted(study: Study) -> str:
    shares = []
    for line in study.lines:
        for run in line.runs.values():
            if run.wasted_share is not None and not line.is_reference:
                shares.append((run.wasted_share, line.name))
    (least, best), (most, worst) = min(shares), max(shares)
    if not most:
        return "Nothing that moved was wasted."
    moment = "" if is_over(study) else " so far"
    return (
        f"{least:.0%} ({best}) to {most:.0%} ({worst}) of the bytes of a run were wasted{moment}."
    )


def undone(study: Study) -> list[str]:
    if is_over(study):
        return []
    return [
        f"{len(study.runs)} of {study.planned} runs are done so far, 1 failed, 1 interrupted. "
        "The figures below are of the done runs alone.",
        "Of shaky 2 of 3 runs are done (seed 2 failed).",
        "Of cut 2 of 3 runs are done (seed 3 interrupted).",
    ]


def sentences(study: Study) -> list[str]:
    """All sentences of the answer."""
    head = headline(study)
    every = " ".join(filter(None, [*head, *comparisons(study), doubt(study)]))
    texts = [opened(study, head[0]), opened(study, every), *other_goals(study), missed(study)]
    return [text for text in [*texts, wasted(study), *undone(study)] if text]


def tiles(study: Study) -> list[tuple[str, str, str]]:
    """Name, figure and remark of each tile: the best line, and what it costs."""
    goal, *others = goals(study)
    tied, _, apart = tie(study, goal)
    best = tied[0]
    title = f"best by {goal.name}"
    remark = f"figures are means of {len(best.runs)} seeds"
    if len(tied) > 1 or apart:
        title = f"{'least mean' if goal.is_cost else 'first by'} {goal.name}"
    if len(tied) > 1:
        ties = len(tied) - 1
        remark = f"ties with {ties} other{'s' if ties > 1 else ''}; {remark}"
    if not is_over(study):
        title = f"so far, {title}"
    entries = [(title, best.name, remark), (goal.name, goal.show(mean_of(best, goal)), "")]
    for cost in others:
        if not cost.is_cost or best.whole(cost.name) is None:
            continue
        cheapest = order(study, cost)[0]
        text = f"least: {cheapest.name}, {cost.show(mean_of(cheapest, cost))}"
        remark = "the least" if cheapest is best else text
        entries.append((cost.name, cost.show(mean_of(best, cost)), remark))
    battery, flat = (best.whole(name) for name in ("battery", "flat devices"))
    if battery and flat:
        entries.append(("battery", f"{np.mean(battery):.3g} %", ""))
        entries.append(("flat devices", f"{np.mean(flat):.3g}", ""))
    return entries


def front_points(study: Study) -> list[list[tuple[Line, float, float]]]:
    """The lines of each Pareto front with their two costs, in the order of the first cost."""
    costs = [goal for goal in goals(study) if goal.is_cost and len(order(study, goal)) > 2]
    fronts = []
    for place, first in enumerate(costs):
        for second in costs[place + 1 :]:
            points = []
            for line in order(study, first):
                if line.whole(second.name) is not None:
                    points.append((line, mean_of(line, first), mean_of(line, second)))
            fronts.append(points)
    return fronts


def front_names(study: Study) -> Iterator[str]:
    """The names below the drawings of fronts: lines that none beats in both, then close ones."""
    shows = [goal.show for goal in goals(study) if goal.is_cost]
    for points in front_points(study):
        best = [
            (line, one, two)
            for line, one, two in points
            if not any(a <= one and b <= two and (a, b) != (one, two) for _, a, b in points)
        ]
        for line, one, two in best:
            yield f"{line.name} ({shows[0](one)}, {shows[1](two)})"
        for line, one, two in points:
            if (line, one, two) in best:
                continue
            factor, near = min((max(one / a, two / b), other.name) for other, a, b in best)
            percent = f"{100 * (factor - 1):.2g}"
            text = f"{line.name} ({shows[0](one)}, {shows[1](two)}"
            yield f"{text}; at most {percent} % more than {near} in both)"
