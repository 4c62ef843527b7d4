"""Turns run folders into the paper's tables, as Markdown, and collects the verdict on each claim."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from fedsim.records.fairness import jain_over_time
from fedsim.records.reading import RunFolder
from scenarios.claims import CLAIMS, claim_cells, shown
from scenarios.stragglers.tables import (
    PUBLISHED_JAIN,
    PUBLISHED_LEVELS,
    PUBLISHED_PEAK_FALLS,
    PUBLISHED_ROUND_SPEEDUPS,
    Experiment,
)

Folders = dict[str, list[Path]]

_BELOW_PEAK = 0.05  # the target lies 5 points below the best peak of a plot
_claims: list[str] = []


def heading(size: str, seeds: int, command: str, missing: dict[str, str]) -> str:
    """What the report is of."""
    lines = [
        f"# Stragglers: the CATA-Fed paper's experiments at the size `{size}`, {seeds} seeds",
        "",
        f"Made by `{command}`. Accuracies in %; mean over seeds, with half the 95 % interval of the mean after +-.",
        "*Peak* is the best round. The *target* of a data set is the best mean peak of its table minus 5 points; a run that",
        "never reaches it counts with all its rounds and time, and the column *missed* says how many did so.",
    ]
    lines += [f"- left out, data not there: {data} ({why})" for data, why in missing.items()]
    return "\n".join(lines) + "\n"


def section(name: str, experiment: Experiment, data: str, folders: Folders) -> str:
    """One table of one data set."""
    make: dict[str, Callable[[Experiment, str, Folders], list[str]]] = {
        "deadline": _deadline,
        "slow": _slow,
        "clusters": _levels("clusters"),
        "bias": _levels("bias"),
        "fairness": _fairness,
        "long-tail": _long_tail,
    }
    return "\n".join([f"## {experiment.title}: {data}", "", *make[name](experiment, data, folders), ""])


def claims_section() -> str:
    """Every claim with its paired difference, interval and verdict."""
    head = [
        "## Claims",
        "",
        *CLAIMS,
        "",
        "| data | claim | difference | 95 % interval | verdict |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *_claims])


# Readings of a run.


@cache
def accuracies(folder: Path) -> np.ndarray:  # type: ignore[type-arg]
    """Accuracy of each round, float64 [rounds]."""
    return np.array([row["accuracy"] for row in RunFolder(folder).rounds])


@cache
def times(folder: Path) -> np.ndarray:  # type: ignore[type-arg]
    """Simulated time at the end of each round (s), float64 [rounds]."""
    return np.array([row["time"] for row in RunFolder(folder).rounds])


def peak(folder: Path) -> float:
    """Best accuracy (%)."""
    return 100 * float(accuracies(folder).max())


def level(folder: Path) -> tuple[float, float]:
    """Mean accuracy (%) and its variance over the last half of the rounds, at most 50."""
    last = 100 * accuracies(folder)[-min(50, len(accuracies(folder)) // 2) :]
    return float(last.mean()), float(last.var(ddof=1))


def reach(folder: Path, target: float) -> tuple[float, float, bool]:
    """Rounds and simulated time (s) until an accuracy (%), and whether it was never reached."""
    there = np.flatnonzero(100 * accuracies(folder) >= target)
    if not len(there):
        return float(len(accuracies(folder))), float(times(folder)[-1]), True
    return float(there[0] + 1), float(times(folder)[there[0]]), False


def dropped(folder: Path) -> float:
    """Share of the selected clients whose update did not count (%)."""
    rounds = RunFolder(folder).rounds
    return 100 * (1 - sum(row["valid"] for row in rounds) / sum(row["selected"] for row in rounds))


def _claim(data: str, text: str, above: Sequence[float], below: Sequence[float], unit: str) -> None:
    _claims.append(f"| {data} | {claim_cells(text, above, below, unit)}")


# The tables.


def _deadline(experiment: Experiment, data: str, folders: Folders) -> list[str]:
    peaks = {name: [peak(folder) for folder in runs] for name, runs in folders.items()}
    target = max(float(np.mean(values)) for values in peaks.values()) - 100 * _BELOW_PEAK
    reached = {name: [reach(folder, target) for folder in runs] for name, runs in folders.items()}
    rows = [
        f"Target {target:.2f} %.",
        "",
        "| scheme | peak | rounds to target | simulated s to target | missed | dropped % | rounds / CATA-Fed(1) | published |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rounds = {name: [entry[0] for entry in entries] for name, entries in reached.items()}
    seconds = {name: [entry[1] for entry in entries] for name, entries in reached.items()}
    for name, setting in experiment.settings.items():
        missed = sum(entry[2] for entry in reached[name])
        ratio = np.mean(rounds[name]) / np.mean(rounds["cata 1"])
        published = PUBLISHED_ROUND_SPEEDUPS.get(name, {}).get(data, "")
        lost = np.mean([dropped(folder) for folder in folders[name]])
        cells = (shown(peaks[name]), shown(rounds[name], 1), shown(seconds[name], 0), missed, f"{lost:.1f}", f"{ratio:.2f}")
        rows.append(f"| {setting.title} | {' | '.join(map(str, cells))} | {published} |")
    for other in ("inf", "fedavg 1", "fedprox 1"):
        title = experiment.settings[other].title
        _claim(data, f"CATA-Fed(1) needs fewer rounds to the target than {title}", rounds[other], rounds["cata 1"], "rounds")
        _claim(data, f"CATA-Fed(1) needs less simulated time than {title}", seconds[other], seconds["cata 1"], "s")
    _claim(data, "CATA-Fed(.5) needs fewer rounds than FedAVG(inf)", rounds["inf"], rounds["cata 0.5"], "rounds")
    _claim(data, "CATA-Fed(.5) needs less simulated time than FedAVG(inf)", seconds["inf"], seconds["cata 0.5"], "s")
    return rows


def _slow(experiment: Experiment, data: str, folders: Folders) -> list[str]:
    peaks = {name: [peak(folder) for folder in runs] for name, runs in folders.items()}
    kinds = {"cata": "CATA-Fed(1)", "fedavg": "FedAVG(1)", "fedprox": "FedProx(1)"}
    falls = {kind: list(np.subtract(peaks[f"{kind} 0"], peaks[f"{kind} 0.2"])) for kind in kinds}
    rows = [
        "| scheme | peak at 0 % | at 10 % | at 20 % | dropped at 20 % | fall from 0 to 20 % | published fall |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, title in kinds.items():
        cells = [shown(peaks[f"{kind} {share}"]) for share in ("0", "0.1", "0.2")]
        lost = np.mean([dropped(folder) for folder in folders[f"{kind} 0.2"]])
        published = PUBLISHED_PEAK_FALLS[kind][data]
        rows.append(f"| {title} | {' | '.join(cells)} | {lost:.1f} % | {shown(falls[kind])} | {published} |")
    for kind in ("fedavg", "fedprox"):
        _claim(data, f"peak falls less for CATA-Fed(1) than for {kinds[kind]}", falls[kind], falls["cata"], "points")
    return rows


def _levels(name: str) -> Callable[[Experiment, str, Folders], list[str]]:
    def make(experiment: Experiment, data: str, folders: Folders) -> list[str]:
        levels = {key: [level(folder) for folder in runs] for key, runs in folders.items()}
        rows = [
            "| scheme | mean | variance | peak | published mean | published variance |",
            "|---|---|---|---|---|---|",
        ]
        for key, setting in experiment.settings.items():
            means, variances = zip(*levels[key], strict=True)
            published = PUBLISHED_LEVELS[name].get(key, {}).get(data, ("", ""))
            peaks = [peak(folder) for folder in folders[key]]
            title = f"{setting.title}, H = {key.split()[1]}" if name == "bias" else setting.title
            cells = (shown(means), shown(variances, 3), shown(peaks), *map(str, published))
            rows.append(f"| {title} | {' | '.join(cells)} |")
        if name == "clusters":
            variance = {key: [entry[1] for entry in entries] for key, entries in levels.items()}
            for few, many in ((1, 2), (2, 4), (4, 8), (1, 8)):
                text = f"with H = 1 the variance of accuracy falls from P = {few} to P = {many}"
                _claim(data, text, variance[f"cata {few}"], variance[f"cata {many}"], "points^2")
        return rows

    return make


def _fairness(experiment: Experiment, data: str, folders: Folders) -> list[str]:
    jain = {name: [jain_over_time(RunFolder(folder))[-1].jain for folder in runs] for name, runs in folders.items()}
    means = {name: [level(folder)[0] for folder in runs] for name, runs in folders.items()}
    rows = ["| selection | Jain's index at the end | mean accuracy | published Jain |", "|---|---|---|---|"]
    for name, setting in experiment.settings.items():
        cells = (shown(jain[name], 3), shown(means[name]), str(PUBLISHED_JAIN.get(name, "")))
        rows.append(f"| {setting.title} | {' | '.join(cells)} |")
    _claim(data, "proportional fairness, P = 1, is fairer than random selection", jain["pf 1"], jain["random 1"], "")
    _claim(data, "proportional fairness, P = 4, is fairer than round robin", jain["pf 4"], jain["rr 4"], "")
    _claim(data, "proportional fairness, P = 4, is more accurate than round robin", means["pf 4"], means["rr 4"], "points")
    return rows


def _long_tail(experiment: Experiment, data: str, folders: Folders) -> list[str]:
    levels = {name: [level(folder)[0] for folder in runs] for name, runs in folders.items()}
    kinds = {"cata": "CATA-Fed(1, PF(8))", "fedavg": "FedAVG(1)", "tifl": "TiFL(4)"}
    costs = {kind: list(np.subtract(levels[f"{kind} uniform"], levels[f"{kind} tail"])) for kind in kinds}
    rows = ["| scheme | mean, uniform sizes | mean, long tail | cost of the long tail |", "|---|---|---|---|"]
    for kind, title in kinds.items():
        cells = (shown(levels[f"{kind} uniform"]), shown(levels[f"{kind} tail"]), shown(costs[kind]))
        rows.append(f"| {title} | {' | '.join(cells)} |")
    for kind in ("fedavg", "tifl"):
        _claim(data, f"the long tail costs CATA-Fed less than {kinds[kind]}", costs[kind], costs["cata"], "points")
    return rows
