"""How often ``fedsim study --until-sure`` names a wrong best line, and how many seeds it takes.

Two hundred synthetic studies with known truth: numbers of lines, gaps (none, half of the zone, all
of it, wide), spreads that differ from line to line, worlds that lines share, and noise that is
normal, heavy-tailed, skewed or in steps. Each is decided by the code that studies use, and by the
procedure KN of Kim and Nelson (2001) and fixed plans of as many seeds for all lines.

Run with ``python -m tests.benchmarks.sure``; ``--times 10`` draws ten times as many studies.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsim.lab.compare.sure import LEAST_SEEDS, Decision, decide, next_counts

Floats = npt.NDArray[np.float64]
_STUDIES = 200
_WITHIN = math.log(1.05)
_ERROR = 0.05
_MOST_SEEDS = 400
_BUDGET = 10  # seeds of each line on average: the default of --until-sure


@dataclass(frozen=True)
class SyntheticStudy:
    """Study with known truth.

    Attributes:
        gaps: name of the gaps between lines.
        noise: name of the noise.
        means: true means of the logarithms of costs, float64 [k].
        costs: logarithms of costs, float64 [k, seeds].
    """

    gaps: str
    noise: str
    means: Floats
    costs: Floats


def _gaps(name: str, lines: int, draws: np.random.Generator) -> Floats:
    """Return true means of the logarithms of costs; the least is 0."""
    if name == "all equal":
        return np.zeros(lines)
    if name == "two equal, others 5 % worse":
        means = np.full(lines, _WITHIN)
        means[:2] = 0.0
        return means
    if name == "others 0.1 % worse":
        means = np.full(lines, math.log(1.001))
    elif name == "others half of 5 % worse":
        means = np.full(lines, _WITHIN / 2)
    elif name == "others 5 % worse":
        means = np.full(lines, _WITHIN)
    elif name == "others 5, 10, 15 % ... worse":
        means = _WITHIN * np.arange(lines)
    else:
        means = draws.uniform(0.2, 1.5, lines)
    means[0] = 0.0
    return means


_GAPS = (
    "all equal",
    "two equal, others 5 % worse",
    "others 0.1 % worse",
    "others half of 5 % worse",
    "others 5 % worse",
    "others 5, 10, 15 % ... worse",
    "others 20 to 350 % worse",
)


def _heavy(draws: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return draws.standard_t(3, shape) / math.sqrt(3)


def _skewed(draws: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return draws.exponential(1.0, shape) - 1.0


def _steps(draws: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Return noise of three values, as costs in whole rounds have it."""
    return draws.choice([-1.0, 0.0, 1.0], shape, p=[0.3, 0.4, 0.3]) / math.sqrt(0.6)


def _outliers(draws: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Return noise of which one value in ten has five times the spread."""
    wide = np.where(draws.random(shape) < 0.1, 5.0, 1.0)
    return draws.standard_normal(shape) * wide / math.sqrt(0.9 + 0.1 * 25)


_NOISES: dict[str, Callable[[np.random.Generator, tuple[int, int]], Floats]] = {
    "normal": lambda draws, shape: draws.standard_normal(shape),
    "heavy tails (t, 3 degrees)": _heavy,
    "skewed (exponential)": _skewed,
    "outliers (one in ten)": _outliers,
    "steps (three values)": _steps,
}


def make_studies(count: int) -> Iterator[SyntheticStudy]:
    """Yield synthetic studies, each from its own seed."""
    for number in range(count):
        draws = np.random.default_rng([47, number])
        gaps = _GAPS[number % len(_GAPS)]
        noise = [*_NOISES][number // len(_GAPS) % len(_NOISES)]
        lines = int(draws.choice([2, 4, 8, 12, 20]))
        means = _gaps(gaps, lines, draws)
        spreads = draws.uniform(0.02, 0.25) * draws.uniform(0.5, 2.0, lines)
        worlds = draws.normal(scale=draws.choice([0.0, 0.2, 1.0]), size=_MOST_SEEDS)
        own = _NOISES[noise](draws, (lines, _MOST_SEEDS))
        costs = means[:, None] + worlds + spreads[:, None] * own
        order = draws.permutation(lines)
        yield SyntheticStudy(gaps, noise, means[order], costs[order])


def until_sure(costs: Floats, most_runs: int) -> tuple[Decision, int, int]:
    """Decide a study with added seeds.

    Returns:
        The decision, the count of runs, and the seeds of the line with the most seeds.
    """
    lines = len(costs)
    counts = dict.fromkeys(range(lines), LEAST_SEEDS)
    while True:
        values = {place: costs[place, :count].tolist() for place, count in counts.items()}
        decision = decide(values, within=_WITHIN, error=_ERROR)
        runs = sum(counts.values())
        if decision.is_over:
            break
        more = next_counts(decision, counts)
        room = (most_runs - runs) // len(more)
        wanted = max(more.values())
        have = max(counts[place] for place in more)
        to = min(wanted, have + room, _MOST_SEEDS)
        if to <= have:
            break
        counts.update(dict.fromkeys(more, to))
    return decision, sum(counts.values()), max(counts.values())


def kn(costs: Floats, first: int = 10) -> tuple[int | None, int]:
    """Carry out the procedure KN of Kim and Nelson (2001), c = 1, with common random numbers.

    Returns:
        The selected line, None if the seeds do not suffice; and the count of runs.
    """
    lines = len(costs)
    eta = 0.5 * ((2 * _ERROR / (lines - 1)) ** (-2 / (first - 1)) - 1)
    h2 = 2 * eta * (first - 1)
    differences = costs[:, None, :first] - costs[None, :, :first]
    variances = differences.var(axis=2, ddof=1)
    bounds = h2 * variances / _WITHIN**2
    left = [*range(lines)]
    runs = lines * first
    for count in range(first, _MOST_SEEDS + 1):
        means = costs[:, :count].mean(axis=1)
        slack = np.maximum(0.0, _WITHIN / (2 * count) * (bounds - count))
        left = [
            line
            for line in left
            if all(means[line] <= means[other] + slack[line, other] for other in left)
        ]
        if len(left) == 1:
            return left[0], runs
        if count > np.floor(bounds).max():
            return min(left, key=means.__getitem__), runs
        runs += len(left)
    return None, runs


def _is_wrong(study: SyntheticStudy, decision: Decision) -> bool:
    """Whether the decision states something wrong."""
    best = float(study.means.min())
    if decision.status == "open":
        return min(study.means[place] for place in decision.contenders) > best
    assert decision.leader is not None
    gap = float(study.means[decision.leader]) - best
    if decision.status == "best":
        return gap > 0
    return gap > _WITHIN


@dataclass(frozen=True)
class Trial:
    """One study, decided in four ways.

    Attributes:
        study: the study.
        statuses: how it ended with the default budget, and without one.
        wrong: whether each of the two stated something wrong.
        runs: runs of each of the two.
        even: runs of each if all lines had the seeds of the line with the most.
        plan_wrong: whether a plan of as many runs, the same seeds for all lines, has its least mean
            at a line that is worse by the zone or more, with the default budget.
        kn_wrong: whether KN selects such a line; None if the seeds do not suffice.
        kn_runs: runs of KN.
    """

    study: SyntheticStudy
    statuses: tuple[str, str]
    wrong: tuple[bool, bool]
    runs: tuple[int, int]
    even: tuple[int, int]
    plan_wrong: bool
    kn_wrong: bool | None
    kn_runs: int


def _try(study: SyntheticStudy) -> Trial:
    lines = len(study.means)
    short, short_runs, short_seeds = until_sure(study.costs, _BUDGET * lines)
    long, long_runs, long_seeds = until_sure(study.costs, 10**9)
    named = int(study.costs[:, : short_runs // lines].mean(axis=1).argmin())
    selected, kn_runs = kn(study.costs)
    return Trial(
        study,
        (short.status, long.status),
        (_is_wrong(study, short), _is_wrong(study, long)),
        (short_runs, long_runs),
        (short_seeds * lines, long_seeds * lines),
        _is_far(study, named),
        None if selected is None else _is_far(study, selected),
        kn_runs,
    )


def _is_far(study: SyntheticStudy, line: int) -> bool:
    """Whether a line is worse than the best by the zone or more."""
    return bool(study.means[line] >= study.means.min() + _WITHIN * (1 - 1e-9))


_HEADS = (
    "studies",
    "named, ten seeds a line",
    "wrong",
    "runs",
    "an even plan of these runs is wrong",
    f"named, up to {_MOST_SEEDS} seeds",
    "wrong",
    "runs",
    "even plan",
    "KN selects",
    "wrong",
    "runs",
)


def _row(name: str, trials: Sequence[Trial]) -> tuple[object, ...]:
    named = [sum(trial.statuses[way] != "open" for trial in trials) for way in (0, 1)]
    wrong = [sum(trial.wrong[way] for trial in trials) for way in (0, 1)]
    runs = [sum(trial.runs[way] for trial in trials) for way in (0, 1)]
    return (
        name,
        len(trials),
        named[0],
        wrong[0],
        runs[0],
        sum(trial.plan_wrong for trial in trials),
        named[1],
        wrong[1],
        runs[1],
        sum(trial.even[1] for trial in trials),
        sum(trial.kn_wrong is not None for trial in trials),
        sum(bool(trial.kn_wrong) for trial in trials),
        sum(trial.kn_runs for trial in trials),
    )


def main() -> None:
    """Print tables by the gaps, the noise and the number of lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=1, help="multiple of 200 studies")
    trials = [_try(study) for study in make_studies(_STUDIES * parser.parse_args().times)]
    keys: dict[str, Callable[[Trial], str]] = {
        "gaps": lambda trial: trial.study.gaps,
        "noise": lambda trial: trial.study.noise,
        "lines": lambda trial: str(len(trial.study.means)),
        "": lambda trial: "all",
    }
    for head, key in keys.items():
        groups: dict[str, list[Trial]] = {}
        for trial in trials:
            groups.setdefault(key(trial), []).append(trial)
        rows = [_row(name, members) for name, members in groups.items()]
        print("", f"| {' | '.join((head, *_HEADS))} |", "|---" * (len(_HEADS) + 1) + "|", sep="\n")
        for row in rows:
            print(
                f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else str(cell) for cell in row)} |"
            )


if __name__ == "__main__":
    main()
