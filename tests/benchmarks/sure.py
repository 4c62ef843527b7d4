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
    if name == "others half of 5 % worse":
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
            line for line in left if all(means[line] <= means[other] + slack[line, other] for other in left)
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
    return gap > _WITHIN * (1 + 1e-9)


def _tell(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    print(f"\n| {title} |")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def main() -> None:
    """Print tables of the errors and of the runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=1, help="multiple of 200 studies")
    count = _STUDIES * parser.parse_args().times
    results: list[dict[str, object]] = []
    for study in make_studies(count):
        lines = len(study.means)
        row: dict[str, object] = {"gaps": study.gaps, "noise": study.noise, "lines": lines}
        for name, most in (("budget", _BUDGET * lines), ("long", 10**9)):
            decision, runs, seeds = until_sure(study.costs, most)
            row[name] = decision.status
            row[f"{name} wrong"] = _is_wrong(study, decision)
            row[f"{name} runs"] = runs
            row[f"{name} plan"] = seeds * lines
            even = runs // lines
            named = int(study.costs[:, :even].mean(axis=1).argmin())
            row[f"{name} fixed wrong"] = study.means[named] > study.means.min()
            row[f"{name} fixed bad"] = study.means[named] > study.means.min() + _WITHIN * (1 - 1e-9)
        selected, runs = kn(study.costs)
        row["kn runs"] = runs
        row["kn open"] = selected is None
        row["kn wrong"] = (
            selected is not None
            and study.means[selected] >= study.means.min() + _WITHIN * (1 - 1e-9)
        )
        results.append(row)
    for key in ("gaps", "noise", "lines", None):
        groups: dict[object, list[dict[str, object]]] = {}
        for row in results:
            groups.setdefault("all" if key is None else row[key], []).append(row)
        rows = []
        for group, members in groups.items():
            rows.append((str(group), *_figures(members)))
        _tell(" | ".join((key or "", *_HEADS)), rows)


_HEADS = (
    "studies", "best/tie/open", "wrong", "runs", "plan", "fixed wrong(bad)",
    "long best/tie/open", "wrong", "runs", "plan", "KN wrong", "KN open", "KN runs",
)


def _figures(rows: Sequence[dict[str, object]]) -> Iterator[str]:
    count = len(rows)
    yield str(count)
    for name in ("budget", "long"):
        statuses = [row[name] for row in rows]
        yield "/".join(str(statuses.count(status)) for status in ("best", "tie", "open"))
        yield f"{sum(bool(row[f'{name} wrong']) for row in rows)}"
        yield f"{sum(row[f'{name} runs'] for row in rows)}"
        yield f"{sum(row[f'{name} plan'] for row in rows)}"
        if name == "budget":
            yield f"{sum(bool(row[f'{name} fixed wrong']) for row in rows)} ({sum(bool(row[f'{name} fixed bad']) for row in rows)})"
    yield f"{sum(bool(row['kn wrong']) for row in rows)}"
    yield f"{sum(bool(row['kn open']) for row in rows)}"
    yield f"{sum(row['kn runs'] for row in rows)}"


if __name__ == "__main__":
    main()
