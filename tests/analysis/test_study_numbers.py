"""Every number that a reader sees on the page of a study, against the folders of its runs.

``study_figures`` computes the figures from parquet files. Tables are compared cell by cell,
drawings by their coordinates, and all other texts must become free of digits once the sentences
and figures that the folders give are taken out of them.
"""

import asyncio
import html
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from fedsim.analysis.energy import draw_energy
from fedsim.analysis.report import runs, sections
from fedsim.analysis.report.gather import Subject, gather
from fedsim.analysis.report.markup import join
from fedsim.analysis.report.page import _header
from fedsim.analysis.traffic import draw_purposes_compared
from fedsim.clock.executors import Inline
from fedsim.clock.simulation import Record
from fedsim.common.units import show_bytes, show_joules
from fedsim.lab.study.folder import write_study
from fedsim.lab.study.plan import read_study
from fedsim.running.runner import Job
from tests.analysis.study_figures import PHASES, Line, Spread, Study, compare, spread
from tests.analysis.study_words import front_names, goals, mean_of, order, sentences, tiles
from tests.analysis.test_every_number import Reader
from tests.analysis.test_timeline import unpack
from tests.lab.conftest import finish, write

BASE: dict[str, Any] = {
    "data": {"source": "digits"},
    "population": {
        "devices": 6,
        "speed": {"kind": "lognormal", "median": "12 samples/s", "spread": 2.0},
        "availability": {"kind": "renewal", "mean_on": "1 min", "mean_off": "20 s"},
    },
    "network": {
        "kind": "star",
        "device": {"down": "2 Mbit/s", "up": "1 Mbit/s", "latency": "20 ms"},
    },
    "strategy": {"kind": "fedavg", "clients_per_round": 3, "deadline": "30 s"},
    "stop": {"rounds": 3},
}
LINEAR: dict[str, Any] = {
    "data": {"source": "linear"},
    "objective": {"kind": "regression", "metrics": ["mse", "rmse"]},
    "training": {"lr": 0.001},
    "population": {"devices": 4, "speed": "50 samples/s"},
    "strategy": {"kind": "fedavg", "clients_per_round": 2},
    "stop": {"rounds": 3},
}
STUDIES: dict[str, dict[str, Any]] = {
    # variants at points of a grid, with a reference, energy and batteries
    "grid": {
        "seeds": [1, 2, 3],
        "baseline": "plain",
        "target": [0.2, 0.4],
        "references": ["centralised"],
        "base": BASE | {"energy": {"preset": "smartphone-wifi", "battery": {"capacity": "300 J"}}},
        "variants": {"plain": {}, "longer": {"strategy": {"local_epochs": 3}}},
        "grid": {"training.lr": [0.03, 0.3]},
    },
    # one run has failed, one was interrupted, and one line was not begun
    "broken": {
        "seeds": [1, 2, 3],
        "baseline": "plain",
        "target": [0.2],
        "base": BASE,
        "variants": {
            "plain": {},
            "shaky": {"strategy": {"local_epochs": 2}},
            "cut": {"training": {"lr": 0.2}},
            "never": {"training": {"lr": 0.3}},
        },
    },
    "ties": {
        "seeds": [1, 2, 3],
        "baseline": "a",
        "target": [0.2],
        "base": BASE,
        "variants": {
            "a": {},
            "b": {"training": {"lr": 0.1001}},
            "c": {"messages": {"up": "int8"}},
            "d": {"strategy": {"local_epochs": 2, "deadline": "1 min"}},
        },
    },
    "regression": {
        "seeds": [1, 2],
        "baseline": "slow",
        "target": ["mse=3.5", "mse=2.5"],
        "goal": "mse",
        "base": LINEAR,
        "variants": {"slow": {}, "fast": {"training": {"lr": 0.01}}},
    },
}


@dataclass(frozen=True)
class Shown:
    """A study and what its page has, without the parts on single runs."""

    study: Study
    subject: Subject
    page: str
    reader: Reader


def fail(job: Job) -> None:
    raise RuntimeError("a strategy of the user's that breaks")


def end_early(study_file: Path, out: Path, folder: str, act: Callable[[Job], None]) -> None:
    """Begin a run of a study, and let ``act`` end it after its second round."""
    runs_by_folder = {str(run.folder): run for run in read_study(study_file).runs}
    job = Job(runs_by_folder[folder].scenario, out / folder, Inline(), live_every_s=0.0)

    def watch(record: Record) -> None:
        if record.fields["round"] == 1:
            act(job)

    job.simulation.listen(watch, kinds=("round",))
    asyncio.run(job.execute())


def break_study(study_file: Path, out: Path) -> None:
    """Run a study of which one run fails, one is interrupted, and one line is left out."""
    out.mkdir()
    study = read_study(study_file)
    write_study(out, study)
    with pytest.raises(RuntimeError, match="of the user's"):
        end_early(study_file, out, "runs/shaky/seed-2", fail)
    end_early(study_file, out, "runs/cut/seed-3", lambda job: job.interrupt())
    for run in study.runs:
        if not (out / run.folder).exists() and "never" not in str(run.folder):
            asyncio.run(Job(run.scenario, out / run.folder, Inline()).execute())


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    place = tmp_path_factory.mktemp("studies")
    shown = {}
    for name, tables in STUDIES.items():
        study_file = write(place / f"{name}.toml", {"name": name} | tables)
        if name == "broken":
            break_study(study_file, place / name)
        else:
            finish(study_file, place / name)
        subject = gather([place / name])
        parts = [
            _header(subject, is_comparison=True),
            sections.answer(subject),
            *sections.comparison(subject),
            *runs.timelines(subject.detailed, len(subject.runs)),
        ]
        page = join(*parts)
        reader = Reader()
        reader.feed(page)
        shown[name] = Shown(Study(place / name), subject, page, reader)
    return shown


@pytest.fixture(params=STUDIES)
def shown(request: pytest.FixtureRequest, studies: dict[str, Shown]) -> Shown:
    return studies[request.param]


# ------------------------------------------------------------------------------------------------
# tables

SCALES = {"": 1.0, "k": 1e3, "M": 1e6}
IDENTITY = ("variant", "baseline", "lr", "strategy", "runs")


def number_in(cell: str) -> float:
    digits = cell.rstrip("kM")
    return float(digits.replace(",", "")) * SCALES[cell[len(digits) :]]


def check_cell(cell: str, due: Spread, most: float = math.inf, least: float = 0.0) -> None:
    """Compare a cell such as "0.66 (0.18 to 1.00)" with a mean and its interval.

    A number without an interval has four digits, and one with an interval as many as give half the
    interval two digits.
    """
    half = (due.high - due.low) / 2
    interval = re.fullmatch(r"(\S+) \((\S+) to (\S+)\)", cell)
    if interval is None:
        assert number_in(cell) == pytest.approx(due.mean, rel=6e-4, abs=1e-9), cell
        assert half <= 1e-9 * abs(due.mean) + 1e-12, cell
        return
    step = 10.0 ** (math.floor(math.log10(half)) - 1)
    edges = (due.mean, max(least, due.low), min(most, due.high))
    for text, value in zip(interval.groups(), edges, strict=True):
        assert number_in(text) == pytest.approx(value, abs=0.501 * step), (cell, due)


def reason(line: Line, name: str) -> str:
    """The text of a cell without a figure."""
    is_test = name.startswith(("rounds", "final ", "best "))
    if line.is_reference and not is_test:
        return "pooled data"
    count = len(line.values(name))
    if count:
        return f"in {count} of {len(line.runs)} runs"
    return "not reached" if "to target" in name else "not measured"


def check_row(shown: Shown, heads: Sequence[str], row: Sequence[str]) -> int:
    """Compare the cells of a row with the folders; return how many figures it has."""
    study = shown.study
    named = dict(zip(heads, row, strict=True))
    (line,) = (
        line
        for line in study.lines
        if line.variant == named["variant"] and line.grid in ([], [named.get("lr")])
    )
    strategies = {run.summary["strategy"] for run in line.runs.values()}
    facts = {"lr": named.get("lr"), "variant": line.variant, "runs": str(len(line.runs))}
    facts |= {"strategy": ", ".join(strategies), "baseline": study.index["baseline"]}
    checked = 0
    for head, cell in named.items():
        if head in IDENTITY:
            assert cell == facts[head]
            continue
        name = head.removesuffix(" to baseline (ratio)")
        name = re.sub(r" \((0-1|s|bytes|device-s|J|%|devices)\)$", "", name)
        base = study.baseline(line)
        if "baseline" in named or head.endswith("(ratio)"):
            check_against_base(cell, line, base, name, is_ratio=head.endswith("(ratio)"))
        else:
            values = line.whole(name)
            if values is None:
                assert cell == reason(line, name), (line.name, head)
            else:
                check_cell(cell, spread(values), most=1.0 if "(0-1)" in head else math.inf)
        checked += 1
    return checked


def check_against_base(cell: str, line: Line, base: Line, name: str, *, is_ratio: bool) -> None:
    """Compare a cell of a ratio or difference to the baseline with the folders."""
    if line.whole(name) is None:
        assert cell == reason(line, name)
    elif base.whole(name) is None:
        assert cell == f"baseline: {reason(base, name)}"
    elif line.runs.keys() != base.runs.keys():
        assert cell == "other seeds than the baseline"
    elif is_ratio and min(*line.values(name).values(), *base.values(name).values()) <= 0:
        assert cell == ""
    else:
        due = compare(line, base, name, is_cost=is_ratio)
        assert due is not None
        if is_ratio:
            due = Spread(due.mean, due.mean, due.mean)
        check_cell(cell, due, least=-math.inf)


def test_all_figures_are_those_of_the_folders(shown: Shown) -> None:
    checked = 0
    for heads, *rows in shown.reader.tables:
        if heads[0] == "variant" and len(heads) > 1 and heads[1] in IDENTITY:
            for row in rows:
                checked += check_row(shown, heads, row)
    assert checked >= 40, "the tables of all figures are gone"


def test_a_cell_without_a_figure_says_why(studies: dict[str, Shown]) -> None:
    for shown in studies.values():
        for heads, *rows in shown.reader.tables:
            for row in rows:
                if heads[0] == "variant":
                    assert all(row), (heads, row)


# ------------------------------------------------------------------------------------------------
# the answer in sentences and tiles


def test_the_answer_is_that_of_the_folders(shown: Shown) -> None:
    texts = [html.unescape(text) for text in shown.reader.texts]
    for sentence in sentences(shown.study):
        assert sentence in texts
    at = texts.index(tiles(shown.study)[0][0])
    due = [part for tile in tiles(shown.study) for part in tile if part]
    assert texts[at : at + len(due)] == due


def test_no_other_text_has_a_number_that_the_folders_do_not_give(shown: Shown) -> None:
    study = shown.study
    every = len(study.runs)
    listed = min(6, every)
    figures = [
        *sentences(study),
        *(part for tile in tiles(study) for part in tile if part),
        f"{every} runs of {len(study.lines)} lines",
        f"Pictures of single runs show 2 of {every} runs",
        f"{listed} runs can be chosen, the best first" + (f" of {every}" if every > 6 else ""),
        "95 % interval of the mean (Student's t)",
        "Means over seeds with 95 % intervals (Student's t)",
        "with more than 3 lines",
        "a mean over 2.5% of the axis",
        "+ - 0",
        *(line.name for line in study.lines),
        *(f", seed {seed}" for seed in study.index["seeds"]),
        *(f"{goal.name[:1].upper()}{goal.name[1:]}" for goal in goals(study)),
        *front_names(study),
    ]
    for run in study.runs:
        devices = len(run.devices)
        worked = run.events.loc[run.events["kind"] == "step-start", "device"].nunique()
        figures.append(f"All {devices} devices; {worked} of them worked.")
    keys = {key for heads, *rows in shown.reader.tables if heads[0] == "key" for key, *_ in rows}
    figures.append(f"Keys that differ between the scenarios: {len(keys)}")
    figures.append(f"{goals(study)[0].name.capitalize()} by variant and lr")
    figures.sort(key=len, reverse=True)
    ticks = set(re.findall(r"<text [^>]*>([^<]*)</text>", shown.page))
    unknown = []
    for text in map(html.unescape, shown.reader.texts):
        if text in ticks or text.startswith("seed: "):  # drawings, and the scenario itself
            continue
        left = text
        for figure in figures:
            left = left.replace(figure, " ")
        if re.search(r"\d", left):
            unknown.append(text)
    assert unknown == []


# ------------------------------------------------------------------------------------------------
# drawings

ROW = re.compile(r"<tr[^>]*><th[^>]*>([^<]*)</th><td>(.*?)</td><td[^>]*class=\"dots\">(.*?)</td>")


def strokes(drawing: str, look: str) -> list[tuple[float, float]]:
    """Ends of the lines of a class in a drawn column, in units of 0 to 1000."""
    found = []
    for tag in re.findall(r"<line [^>]*>", drawing):
        if f'class="{look}"' in tag:
            found.append(tuple(float(re.search(rf'{x}="([^"]*)"', tag)[1]) for x in ("x1", "x2")))
    return found


def test_rankings_are_drawn_at_their_figures(shown: Shown) -> None:
    """Seeds, means and intervals lie on the axis whose ends are printed below."""
    study = shown.study
    for goal in goals(study):
        title = f"{goal.name[:1].upper()}{goal.name[1:]}"
        table = re.search(
            rf'<table class="plot"><caption><strong>{re.escape(title)}.*?</table>', shown.page
        )
        assert table is not None, title
        assert "log scale" not in table[0]
        foot = re.findall(r"<span>([^<]*)</span>", table[0].partition("<tfoot>")[2])
        rows = {html.unescape(name): rest for name, *rest in ROW.findall(table[0])}
        assert rows.keys() == {line.name for line in study.lines if line.values(goal.name)}
        places: list[float] = []
        values: list[float] = []
        for line in study.lines:
            if line.name not in rows:
                continue
            figure, drawing = rows[line.name]
            drawn = [first for first, _ in strokes(drawing, "seed")]
            whole = line.whole(goal.name)
            text = f"{len(line.values(goal.name))} of {len(line.runs)}"
            if whole is not None:
                text = goal.show(float(np.mean(whole)))
                drawn.append(strokes(drawing, "dot")[0][0])
            assert re.sub(r"</?strong>", "", figure) == text
            seeds = list(line.values(goal.name).values())
            due = [*seeds, *([float(np.mean(whole))] if whole else [])]
            assert len(drawn) == len(due)
            places += drawn
            values += due
        if np.ptp(values) == 0:  # nothing to fit the axis to, which begins at 0
            values.append(0.0)
            places.append(0.0)
        slope, start = np.polyfit(values, places, 1)
        assert np.abs(slope * np.array(values) + start - places).max() < 0.2
        ends = [(edge - start) / slope for edge in (0, 1000)]
        for printed, end in zip(foot, ends, strict=True):
            step = 1e-3 * abs(ends[1] - ends[0])
            if "min" in printed:
                step = 1.0  # whole seconds are cut, as by a clock
            assert read(printed) == pytest.approx(end, rel=6e-3, abs=step)
        for line in study.lines:
            whole = line.whole(goal.name)
            if whole is None or len(whole) < 2 or line.name not in rows:
                continue
            due = spread(whole)
            most = 1.0 if goal.name == "final accuracy" else math.inf
            (interval,) = strokes(rows[line.name][1], "interval")
            for place, end in zip(interval, (max(0.0, due.low), min(most, due.high)), strict=True):
                assert place == pytest.approx(min(max(slope * end + start, 0), 1000), abs=0.3)


def read(text: str) -> float:
    """The number of a formatted size, time or energy."""
    match = re.fullmatch(r"(\d+) min (\d+) s", text)
    if match:
        return 60 * float(match[1]) + float(match[2])
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * {"kB": 1e3, "kJ": 1e3}.get(unit, 1.0)


def test_fronts_name_the_lines_that_none_beats(studies: dict[str, Shown]) -> None:
    checked = 0
    for shown in studies.values():
        due = list(front_names(shown.study))
        lists = re.findall(r'<ol class="names">(.*?)</ol>', shown.page)
        names = [re.sub("<[^>]*>", "", item) for part in lists for item in part.split("</li>")]
        names = [html.unescape(name) for name in names if name]
        assert set(names) <= set(due)
        assert len(names) >= len([name for name in due if "%" not in name])
        checked += len(names)
    assert checked > 3


def test_the_heat_map_has_the_means_of_its_cells(studies: dict[str, Shown]) -> None:
    shown = studies["grid"]
    goal = goals(shown.study)[0]
    best = order(shown.study, goal)[0]
    (table,) = [table for table in shown.reader.tables if table[0] == ["variant", "0.03", "0.3"]]
    for name, *cells in table[1:]:
        for level, cell in zip(table[0][1:], cells, strict=True):
            (line,) = [
                line for line in shown.study.ranked if (line.variant, line.grid) == (name, [level])
            ]
            text = "not reached"
            if line.whole(goal.name):
                text = goal.show(mean_of(line, goal)) + (" *" if line is best else "")
            assert cell == text


def curve(line: Line, name: str, column: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Positions and values of the tests of each run of a line."""
    curves = []
    for run in line.runs.values():
        at = {"time": run.rounds["time"], "bytes": run.moved, "rounds": run.rounds["round"] + 1}
        curves.append((at[column].to_numpy(float), run.rounds[name].to_numpy(float)))
    return curves


def test_the_chart_has_mean_lowest_and_highest_of_the_seeds(shown: Shown) -> None:
    study = shown.study
    name = "mse" if study.index["goal"] == "mse" else "accuracy"
    block = re.search(r'<script[^>]*id="chart-data">(.*?)</script>', shown.page)
    assert block is not None
    data = json.loads(block[1])
    columns = unpack(data["packed"])
    header = data["header"]
    names = [entry["name"] for entry in header["lines"]]
    by_name = {line.name: line for line in study.lines}
    assert set(names) == set(by_name)
    units = {"min": 60.0, "kB": 1e3}
    for place, column in enumerate(("time", "bytes", "rounds")):
        unit_name = re.search(r"\((\w+)\)", header["axes"][place])
        unit = units.get(unit_name[1], 1.0) if unit_name else 1.0
        x = columns[f"x{place}"].astype(float) * unit
        for number, line_name in enumerate(names):
            curves = curve(by_name[line_name], name, column)
            begin = max(at[0] for at, _ in curves)
            end = min(at[-1] for at, _ in curves)
            inside = (x > begin * 1.000001) & (x < end * 0.999999)
            # between two tests of any seed, lines of the chart are straight
            tests = np.unique(np.concatenate([at for at, _ in curves]))
            tests = tests[(tests >= begin) & (tests <= end)]
            values = np.array([np.interp(tests, at, value) for at, value in curves])
            part = slice(number * len(x), (number + 1) * len(x))
            for label, at_tests in (
                ("mean", values.mean(axis=0)),
                ("low", values.min(axis=0)),
                ("high", values.max(axis=0)),
            ):
                due = np.interp(x, tests, at_tests)
                drawn = columns[f"{label}{place}"][part].astype(float)
                if inside.any():
                    np.testing.assert_allclose(drawn[inside], due[inside], rtol=2e-3, atol=1e-4)
                outside = (x < begin * 0.999999) | (x > end * 1.000001)
                assert np.isnan(drawn[outside]).all()


def test_the_chart_s_table_has_the_means_of_the_seeds(shown: Shown) -> None:
    study = shown.study
    name = "mse" if study.index["goal"] == "mse" else "accuracy"
    caption = next(text for text in shown.reader.texts if "at some times" in text)
    unit = 60.0 if "(min)" in caption else 1.0
    (table,) = [table for table in shown.reader.tables if table[0][0] == "line"]
    by_name = {line.name: line for line in study.lines}
    checked = 0
    # a line ends where its first seed does
    end = max(min(at[-1] for at, _ in curve(line, name, "time")) for line in study.lines)
    for line_name, *cells in table[1:]:
        curves = curve(by_name[line_name], name, "time")
        for head, cell in zip(table[0][1:], cells, strict=True):
            time = float(head) * unit
            assert 0 < time <= end
            begin, last = max(at[0] for at, _ in curves), min(at[-1] for at, _ in curves)
            if not begin <= time <= last:
                assert cell == "\N{EN DASH}"
                continue
            due = np.mean([np.interp(time, at, value) for at, value in curves])
            assert float(cell) == pytest.approx(due, abs=6e-4)
            checked += 1
    assert checked > 3


# ------------------------------------------------------------------------------------------------
# pictures: bars of means with whiskers over the seeds


def bars_of(panel: Axes) -> tuple[list[str], list[float], list[tuple[float, float]], list[str]]:
    """Names, lengths, whiskers and texts of the rows of stacked bars, from the top down.

    The whisker of a row without one is its length twice.
    """
    names = [label.get_text() for label in panel.get_yticklabels()]
    lengths = [0.0] * len(panel.get_yticks())
    for patch in panel.patches:
        row = round(patch.get_y() + patch.get_height() / 2)
        lengths[row] = max(lengths[row], patch.get_x() + patch.get_width())
    whiskers = [(length, length) for length in lengths]
    for line in panel.lines:
        x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
        whiskers[round(y[0])] = (x[0], x[1])
    texts = [text.get_text() for text in panel.texts]
    return names, lengths, whiskers, texts


def test_bars_of_traffic_are_means_with_whiskers_over_the_seeds(shown: Shown) -> None:
    figure = draw_purposes_compared(shown.subject.runs, shown.subject.series)
    panel = figure.axes[0]
    names, lengths, whiskers, texts = bars_of(panel)
    unit = {"kB": 1e3, "MB": 1e6}[re.search(r"\((\w+)\)$", panel.get_xlabel())[1]]
    by_name = {f"{line.name} ({len(line.runs)} seeds)": line for line in shown.study.lines}
    assert set(names) == set(by_name)
    for name, length, whisker, text in zip(names, lengths, whiskers, texts, strict=True):
        sizes = [float(run.transfers["delivered"].sum()) for run in by_name[name].runs.values()]
        assert unit * length == pytest.approx(np.mean(sizes))
        assert unit * whisker[0] == pytest.approx(min(sizes))
        assert unit * whisker[1] == pytest.approx(max(sizes))
        assert text == show_bytes(float(np.mean(sizes)))


def test_bars_of_energy_are_means_with_whiskers_over_the_seeds(studies: dict[str, Shown]) -> None:
    shown = studies["grid"]
    figure = draw_energy(shown.subject.runs, shown.subject.series)
    panel = figure.axes[0]
    names, lengths, whiskers, texts = bars_of(panel)
    unit = {"J": 1.0, "kJ": 1e3}[re.search(r"\((\w+)\)$", panel.get_xlabel())[1]]
    by_name = {f"{line.name} ({len(line.runs)} seeds)": line for line in shown.study.lines}
    checked = 0
    for name, length, whisker, text in zip(names, lengths, whiskers, texts, strict=True):
        joules = []
        shares = []
        for run in by_name[name].runs.values():
            assert run.energy is not None
            joules.append(float(run.energy[[*PHASES]].to_numpy().sum()))
            if joules[-1]:
                shares.append(run.summary["energy"]["wasted"] / joules[-1])
        assert unit * length == pytest.approx(np.mean(joules))
        assert unit * whisker[0] == pytest.approx(min(joules))
        assert unit * whisker[1] == pytest.approx(max(joules))
        due = show_joules(float(np.mean(joules)))
        if any(shares):
            due += f", {np.mean(shares):.0%} wasted"
        assert text.startswith(due)
        checked += 1
    assert checked >= 4
