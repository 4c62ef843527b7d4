"""Figures of a study, computed with pandas and scipy from the folders of its runs alone."""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

PHASES = ("idle_j", "compute_j", "receive_j", "send_j", "tail_j")
COMPUTING = ("train", "evaluate", "compute")

Values = dict[str, float | None]


class Spread(NamedTuple):
    """Mean with Student's interval; ``low`` and ``high`` are the mean if there is one value."""

    mean: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Mean of values with Student's 95 % interval."""
    mean = float(np.mean(values))
    if len(values) < 2 or np.ptp(values) < 1e-12 * max(map(abs, values), default=0.0):
        return Spread(mean, mean, mean)
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return Spread(mean, mean - half, mean + half)


class Run:
    """All figures of a run by the names that tables have, from its parquet files."""

    def __init__(self, folder: Path, targets: Sequence[float | str]) -> None:
        self.summary = json.loads((folder / "summary.json").read_text())
        self.scenario = tomllib.loads((folder / "scenario.toml").read_text())
        self.rounds = pd.read_parquet(folder / "rounds.parquet")
        self.transfers = pd.read_parquet(folder / "transfers.parquet")
        self.events = pd.read_parquet(folder / "events.parquet")
        self.devices = pd.read_parquet(folder / "devices.parquet")
        self.energy = None
        if (folder / "energy.parquet").exists():
            self.energy = pd.read_parquet(folder / "energy.parquet")
        self.is_pooled = "pooled_from" in self.scenario.get("data", {})
        ends = self.events[self.events["kind"] == "task-end"]
        self.outcomes = dict(zip(ends["task"], ends["outcome"], strict=True))
        self.moved = self.rounds[["bytes_down", "bytes_up"]].sum(axis=1).cumsum()
        self.values = self._all_values(targets)

    @property
    def wasted_share(self) -> float | None:
        """Share of the bytes that moved in vain; None if nothing moved."""
        moved = float(self.transfers["delivered"].sum())
        return self._wasted_bytes() / moved if moved else None

    def _wasted_bytes(self) -> float:
        useless = self.transfers["task"].map(self.outcomes) != "done"
        return float(self.transfers.loc[useless, "delivered"].sum())

    def _all_values(self, targets: Sequence[float | str]) -> Values:
        values: Values = {"rounds": len(self.rounds)}
        names = ["accuracy", *self.summary.get("metrics", {})]
        for name in names:
            column = self.rounds[name].dropna() if name in self.rounds else pd.Series(dtype=float)
            is_error = self.summary.get("metrics", {}).get(name, {}).get("best_is") == "least"
            best = column.min() if is_error else column.max()
            values[f"final {name}"] = float(column.iloc[-1]) if len(column) else None
            values[f"best {name}"] = float(best) if len(column) else None
        for target in targets:
            values |= self._until(target)
        if self.is_pooled:
            for name in values:
                if not name.startswith(("rounds", "final ", "best ")):
                    values[name] = None
            return values
        return values | self._costs()

    def _costs(self) -> Values:
        accuracies = np.sort(self.devices["accuracy"].dropna().to_numpy(float))
        worst = accuracies[: math.ceil(len(accuracies) / 10)]
        computed, wasted = self._compute()
        selected = self.devices["selected"].to_numpy(float)
        asked = float(self.rounds["selected"].sum())
        values: Values = {
            "worst-decile accuracy": float(worst.mean()) if len(worst) else None,
            "simulated time": float(self.events["time"].max()),
            "traffic": float(self.transfers["delivered"].sum()),
            "compute": computed,
            "wasted traffic": self._wasted_bytes(),
            "wasted compute": wasted,
            "dropped updates": 1 - float(self.rounds["valid"].sum()) / asked,
            "Jain's index of selections": float(
                selected.sum() ** 2 / (len(selected) * (selected**2).sum())
            ),
        }
        if self.energy is not None:
            drawn = self.energy[[*PHASES]].sum(axis=1)
            batteries = self.events[self.events["kind"] == "battery"]
            flat = [json.loads(data)["flat"] for data in batteries["data"]]
            values |= {
                "energy": float(drawn.sum()),
                "battery": 100 * float((drawn / self.energy["capacity_j"]).mean()),
                "flat devices": batteries.loc[flat, "device"].nunique(),
                "wasted energy": self.summary["energy"]["wasted"],
            }
        return values

    def _compute(self) -> tuple[float, float]:
        """Seconds of compute of all devices, and of it without use (no task here is cut short)."""
        steps = self.events[self.events["step"].isin(COMPUTING)]
        starts = steps[steps["kind"] == "step-start"].set_index("task")["time"]
        ends = steps[steps["kind"] == "step-end"].set_index("task")
        seconds = ends["time"] - starts
        for task, data in ends["data"].items():
            facts = json.loads(data)
            assert facts["epochs"] == facts["asked"] or self.outcomes[task] != "done"
        is_useful = seconds.index.map(self.outcomes) == "done"
        return float(seconds.sum()), float(seconds[~is_useful].sum())

    def _until(self, target: float | str) -> Values:
        metric, _, number = str(target).rpartition("=")
        column = self.rounds[metric or "accuracy"]
        limit = float(number)
        reached = np.flatnonzero(column <= limit if metric else column >= limit)
        label = f"{metric} {limit:g}" if metric else f"{limit:g}"
        names = [f"{cost} to target {label}" for cost in ("rounds", "time", "traffic", "energy")]
        if not len(reached):
            return dict.fromkeys(names)
        row = reached[0]
        joules = None
        if self.energy is not None:
            joules = float(self.rounds["joules"].iloc[: row + 1].sum())
        costs = (row + 1, float(self.rounds["time"].iloc[row]), float(self.moved.iloc[row]), joules)
        return dict(zip(names, costs, strict=True))


class Line:
    """Variant at a point of the grid, with its finished runs by seed."""

    def __init__(self, path: Path, entry: Mapping[str, Any], study: Mapping[str, Any]) -> None:
        self.variant = entry["name"]
        self.point = entry["point"]
        self.is_reference = entry["reference"]
        short = {key.rpartition(".")[2]: value for key, value in self.point.items()}
        grid = ", ".join(f"{key}={value}" for key, value in short.items())
        self.name = f"{self.variant} ({grid})" if grid else self.variant
        self.grid = [str(value) for value in short.values()]
        self.planned = len(entry["runs"])
        self.runs: dict[int, Run] = {}
        for run in entry["runs"]:
            summary = path / run["folder"] / "summary.json"
            if summary.exists() and json.loads(summary.read_text())["status"] == "done":
                self.runs[run["seed"]] = Run(summary.parent, study["targets"])

    def values(self, name: str) -> dict[int, float]:
        """The figure by seed, of the runs that have it."""
        figures = {seed: run.values.get(name) for seed, run in self.runs.items()}
        return {seed: value for seed, value in figures.items() if value is not None}

    def whole(self, name: str) -> list[float] | None:
        """The figure of all finished runs; None if one of them has none."""
        values = list(self.values(name).values())
        return values if values and len(values) == len(self.runs) else None


class Study:
    """The lines of a study that have begun, in the order of its index."""

    def __init__(self, path: Path) -> None:
        self.index = json.loads((path / "index.json").read_text())
        # an error is the harder to reach the smaller it is
        targets = sorted(map(str, self.index["targets"]), key=lambda text: text.rpartition("=")[2])
        if any("=" in target for target in targets):
            targets.reverse()
        self.targets = [target.replace("=", " ") for target in targets]
        self.lines = []
        for entry in self.index["variants"]:
            if any((path / run["folder"]).exists() for run in entry["runs"]):
                self.lines.append(Line(path, entry, self.index))
        self.runs = [run for line in self.lines for run in line.runs.values()]
        self.planned = sum(line.planned for line in self.lines)

    @property
    def ranked(self) -> list[Line]:
        return [line for line in self.lines if not line.is_reference]

    def baseline(self, line: Line) -> Line:
        for other in self.lines:
            if (other.variant, other.point) == (self.index["baseline"], line.point):
                return other
        raise AssertionError(f"{line.name} has no baseline")

    @property
    def target(self) -> str:
        """The hardest target (the last here) that a line reaches with all its seeds."""
        for target in reversed(self.targets):
            if any(line.whole(f"rounds to target {target}") for line in self.ranked):
                return target
        raise AssertionError("no line reaches a target with all seeds")

    def ranking(self, name: str, *, is_cost: bool, less_is_better: bool) -> list[Line]:
        """The lines with the figure in all runs, the best mean first."""
        sign = 1 if less_is_better or is_cost else -1
        lines = [line for line in self.ranked if line.whole(name)]
        return sorted(lines, key=lambda line: sign * float(np.mean(line.whole(name) or [])))


def compare(line: Line, first: Line, name: str, *, is_cost: bool) -> Spread | None:
    """Ratio (of costs) or difference of two lines seed by seed; None if seeds or figures differ."""
    above, below = line.values(name), first.values(name)
    if line.runs.keys() != first.runs.keys() or above.keys() != below.keys() != set():
        return None
    pairs = [(above[seed], below[seed]) for seed in above]
    if not pairs:
        return None
    if is_cost:
        logs = spread([math.log(one) - math.log(other) for one, other in pairs])
        return Spread(*map(math.exp, logs))
    return spread([one - other for one, other in pairs])
