"""Mean and 95th percentile of real rounds beside those that each network model predicts.

``compare.py`` and ``tests.world.realrun`` write rows of their worlds, ``predict.py`` those of
worlds that have not run yet. ``scenarios/outside/evidence.py`` makes the tables and the picture of
``docs/validation.md`` of them.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator
from scipy.stats import kendalltau

from fedsim.analysis.palette import GREY, PALE, SERIES, Look
from fedsim.analysis.style import styled
from fedsim.common.arrays import Floats

HERE = Path(__file__).resolve().parent
TESTBED = HERE / "rounds.csv"
"""Rows of the worlds of ``worlds.toml``, by the present code."""
OTHERS = HERE / "rounds-of-others.csv"
"""Rows of the worlds of ``tests.world.realrun``, by the present code."""
PREDICTED = HERE / "predicted-rounds.csv"
"""Rows of worlds that had not run yet, by the code of that day; never made anew."""
KNOWN = HERE / "known.csv"
"""What was known of each world's real rounds when the window model got its present form."""
MODELS = ("fluid", "tcp", "window")
LATE = 95  # percentile of rounds
MISS = 0.05  # relative error of the mean beyond which a row is a miss
_LOOKS: dict[str, Look] = {
    "fluid": {"marker": "x", "color": SERIES[1]},
    "tcp": {"marker": "o", "color": SERIES[0]},
    "window": {"marker": "s", "color": SERIES[2]},
}
_APART = 0.2  # between the rows of two models of a world, of the distance between worlds


class Row(NamedTuple):
    """Rounds of a world by one model, beside the real ones; times in s.

    Attributes:
        world, model: names; a model is one of ``MODELS``.
        real, real_late: mean and 95th percentile of a run's real rounds, of a buffered server of
            the times between versions; means over all runs.
        simulated, simulated_late: the same of the simulated rounds, over all seeds.
        transfers: mean relative error of a client's mean download and upload, NaN if not kept.
    """

    world: str
    model: str
    real: float
    real_late: float
    simulated: float
    simulated_late: float
    transfers: float

    @property
    def error(self) -> float:
        """Relative error of the mean."""
        return self.simulated / self.real - 1

    @property
    def late_error(self) -> float:
        """Relative error of the 95th percentile."""
        return self.simulated_late / self.real_late - 1


class Known(NamedTuple):
    """What was known of a world when the window model was written.

    Attributes:
        world: its name.
        runs: how often it really ran.
        when: what was known, and since when.
    """

    world: str
    runs: int
    when: str


def row_of(
    world: str,
    model: str,
    real: Sequence[Floats],
    simulated: Sequence[Floats],
    transfers: float,
) -> Row:
    """Return the row of a world's rounds.

    Args:
        world: name of the world.
        model: name of the model.
        real: durations of the real rounds of each run (s).
        simulated: durations of the simulated rounds of each seed (s).
        transfers: mean relative error of a client's mean download and upload.
    """
    return Row(world, model, *mean_and_late(real), *mean_and_late(simulated), transfers)


def mean_and_late(runs: Sequence[Floats]) -> tuple[float, float]:
    """Return the mean and the 95th percentile of a run's rounds, each the mean over all runs (s).

    A percentile of few rounds depends on their count, so that rounds of runs are not pooled.
    """
    means = [np.mean(rounds) for rounds in runs]
    late = [np.percentile(rounds, LATE) for rounds in runs]
    return float(np.mean(means)), float(np.mean(late))


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write rows to a file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Row._fields)
        for row in rows:
            table.writerow([*row[:2], *(f"{value:.6g}" for value in row[2:])])


def read(path: Path) -> list[Row]:
    """Return the rows of a file."""
    rows = []
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            numbers = [float(line[name]) for name in Row._fields[2:]]
            rows.append(Row(line["world"], line["model"], *numbers))
    return rows


def read_known() -> dict[str, Known]:
    """Return what was known of each world, by its name."""
    with KNOWN.open(newline="", encoding="utf-8") as file:
        return {
            line["world"]: Known(line["world"], int(line["runs"]), line["when"])
            for line in csv.DictReader(file)
        }


def misses_first(rows: Sequence[Row]) -> list[str]:
    """Return the names of worlds, those with the largest errors of the window model first."""
    largest = {
        row.world: max(abs(row.error), abs(row.late_error))
        for row in rows
        if row.model == MODELS[-1]
    }
    return sorted(largest, key=lambda world: -largest[world])


def table(rows: Sequence[Row]) -> list[str]:
    """Return a line for each world as Markdown, misses first."""
    known = read_known()
    found = {(row.world, row.model): row for row in rows}
    heads = " | ".join(f"`{model}`" for model in MODELS)
    lines = [
        f"| world | runs | real, mean and p95 (s) | {heads} | what was known of its rounds |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for world in misses_first(rows):
        of_models = [found[world, model] for model in MODELS]
        real = f"{of_models[0].real:.3f}, {of_models[0].real_late:.3f}"
        errors = " | ".join(_format_errors(row) for row in of_models)
        lines.append(f"| {world} | {known[world].runs} | {real} | {errors} | {known[world].when} |")
    return lines


def table_of_predicted(rows: Sequence[Row]) -> list[str]:
    """Return a line for each world that was predicted before it ran, as Markdown.

    Args:
        rows: rows of the present code, which have the real rounds.
    """
    real = {row.world: row for row in rows}
    predicted: dict[tuple[str, str], tuple[float, float]] = {}
    with PREDICTED.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            mean_and_late_s = float(line["round, s"]), float(line["95th percentile, s"])
            predicted[line["world"], line["protocol"]] = mean_and_late_s
    heads = " | ".join(f"`{model}`" for model in MODELS)
    lines = [f"| world | real, mean and p95 (s) | {heads} |", "|---|---:|---:|---:|---:|"]
    for world in dict.fromkeys(world for world, _ in predicted):
        of_world = real[world]
        cells = []
        for model in MODELS:
            mean, late = predicted[world, model]
            cells.append(_format_errors(of_world._replace(simulated=mean, simulated_late=late)))
        times = f"{of_world.real:.3f}, {of_world.real_late:.3f}"
        lines.append(f"| {world} | {times} | {' | '.join(cells)} |")
    return lines


def table_of_models(rows: Sequence[Row]) -> list[str]:
    """Return a line for each model as Markdown: its errors and rank agreement over all worlds."""
    lines = [
        "| model | worlds | mean within 5 % | median error of the mean | largest | p95 within 10 % "
        "| median error of p95 | largest | tau of means | tau of p95 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for model in MODELS:
        of_model = [row for row in rows if row.model == model]
        errors = np.array([row.error for row in of_model])
        late = np.array([row.late_error for row in of_model])
        real = [row.real for row in of_model]
        simulated = [row.simulated for row in of_model]
        real_late = [row.real_late for row in of_model]
        simulated_late = [row.simulated_late for row in of_model]
        cells = [
            f"`{model}`",
            str(len(of_model)),
            str(np.sum(np.abs(errors) <= MISS)),
            f"{np.median(np.abs(errors)):.1%}",
            f"{errors[np.argmax(np.abs(errors))]:+.1%}",
            str(np.sum(np.abs(late) <= 2 * MISS)),
            f"{np.median(np.abs(late)):.1%}",
            f"{late[np.argmax(np.abs(late))]:+.1%}",
            f"{kendalltau(real, simulated).statistic:.3f}",
            f"{kendalltau(real_late, simulated_late).statistic:.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def table_of_transfers(rows: Sequence[Row]) -> list[str]:
    """Return a line for each world as Markdown: errors of single clients' transfers."""
    found = {(row.world, row.model): row for row in rows}
    heads = " | ".join(f"`{model}`" for model in MODELS)
    lines = [f"| world | {heads} |", "|---|---:|---:|---:|"]
    for world in misses_first(rows):
        errors = [found[world, model].transfers for model in MODELS]
        cells = ["" if math.isnan(error) else f"{error:.1%}" for error in errors]
        lines.append(f"| {world} | {' | '.join(cells)} |")
    return lines


def _format_errors(row: Row) -> str:
    """Return the errors of mean and 95th percentile, the mean in bold if it is a miss."""
    mean = f"{row.error:+.1%}"
    if abs(row.error) > MISS:
        mean = f"**{mean}**"
    return f"{mean}, {row.late_error:+.1%}"


@styled
def draw(rows: Sequence[Row]) -> Figure:
    """Draw simulated against real, one line for each world: means at the left, p95 at the right."""
    names = misses_first(rows)
    real = {row.world: row.real for row in rows}
    figure = Figure(figsize=(12, 1.8 + 0.36 * len(names)))
    panels = figure.subplots(1, 2, sharey=True)
    titles = ("mean of rounds", f"{LATE}th percentile of rounds")
    for panel, title in zip(panels, titles, strict=True):
        for row in rows:
            error = row.error if panel is panels[0] else row.late_error
            place = names.index(row.world) + _APART * (MODELS.index(row.model) - 1)
            look = _LOOKS[row.model]
            panel.plot([100 * error], [place], linestyle="", markersize=6, **look)
        panel.axvspan(-100 * MISS, 100 * MISS, color=PALE, zorder=0)
        panel.axvline(0, color=GREY, linewidth=1)
        panel.set_xscale("symlog", linthresh=5, linscale=0.8)
        panel.margins(x=0.04)
        panel.xaxis.set_major_locator(FixedLocator([-40, -20, -10, -5, 0, 5, 10, 20, 40]))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        panel.set(title=title, xlabel="simulated / real - 1 (%), beyond 5 % by its logarithm")
    panels[0].set_yticks(range(len(names)), [f"{name}, {real[name]:.3g} s" for name in names])
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    panels[0].set_ylabel("world, and its mean real round")
    handles = [Line2D([], [], linestyle="", label=model, **look) for model, look in _LOOKS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure
