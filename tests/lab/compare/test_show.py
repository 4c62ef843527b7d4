"""Comparisons as people and programs read them."""

import csv
import dataclasses
import io
import json
import math
import re
import shutil
import statistics
from pathlib import Path

import pytest

from fedsim.lab.compare.columns import Absent, ComparedColumn
from fedsim.lab.compare.lines import Lines, read_lines
from fedsim.lab.compare.paired import Estimate
from fedsim.lab.compare.show import format_cell, print_short
from fedsim.lab.compare.table import (
    Comparison,
    _describe_undone,
    _mean_cell,
    _mean_difference,
)
from fedsim.lab.terminal import Console
from fedsim.records.reading import RunFolder
from tests.calls import call, done
from tests.lab.compare.test_answer import figures_of, line_of
from tests.lab.conftest import rows_of

T2 = 4.302652729911275  # Student's t, 0.975, two degrees of freedom


def compared(*words: object) -> str:
    return done("compare", *words)


def refused(*words: object) -> str:
    result = call("compare", *words)
    assert (result.exit_code, "Traceback" in result.output) == (2, False), result.output
    return result.output


def test_times_that_differ_by_ticks_are_equal() -> None:
    tick = 2.0**-30
    cell = _mean_cell([800.0, 800.0 - 30 * tick, 800.0], math.inf)
    assert isinstance(cell, Estimate)
    assert format_cell(cell, ComparedColumn("time (s)", (cell,))) == "800"
    assert ComparedColumn("time (s)", (800.0, cell, 900.0), best="least").best_cells == {0, 1}
    assert ComparedColumn("time (s)", (800.0, cell), best="least").best_cells == set()
    difference = _mean_difference({1: (800.0, 800.0), 2: (800.0, 800.0 - 40 * tick)})
    assert (difference.mean, difference.low, difference.high) == (0, 0, 0)


def test_runs_side_by_side(runs: dict[str, Path]) -> None:
    text = compared(*runs.values(), "--csv", "--target", "0.2", "--target", "0.4")
    assert text.startswith("run,strategy,seed,rounds")
    fedavg, flexcfl, pooled, off = rows_of(text)
    assert [row["run"] for row in (fedavg, flexcfl, pooled, off)] == list(runs)
    summary = RunFolder(runs["flexcfl"]).summary
    assert float(flexcfl["traffic (bytes)"]) == summary["bytes"]["down"] + summary["bytes"]["up"]
    assert float(fedavg["traffic to first (ratio)"]) == 1
    ratio = float(flexcfl["traffic (bytes)"]) / float(fedavg["traffic (bytes)"])
    assert float(flexcfl["traffic to first (ratio)"]) == pytest.approx(ratio)
    assert (fedavg["migrations"], pooled["simulated time (s)"], off["final accuracy (0-1)"]) == (
        "",
        "",
        "",
    )
    assert {"rounds to target 0.2", "time to target 0.4 (s)"} <= set(fedavg)
    shown = compared(*runs.values(), "--target", "0.2", "--all")
    assert "rounds to target 0.2" in shown
    assert "\x1b" not in shown


def test_unfinished_lines_of_a_grid_are_told_apart(tmp_path: Path) -> None:
    lines = []
    for lr in ("0.1", "0.2"):
        line = line_of(tmp_path / lr, "plain", [figures_of(1.0, 0.9)], (("training.lr", lr),))
        lines.append(dataclasses.replace(line, planned=2))
    first, second = _describe_undone(Lines(tuple(lines), (0.5,), (None, None), ""))
    assert first.startswith("Of plain (lr=0.1) 1 of 2 runs are done")
    assert second.startswith("Of plain (lr=0.2) 1 of 2 runs are done")


def test_a_run_without_learning_has_not_missed_an_accuracy(runs: dict[str, Path]) -> None:
    text = compared(runs["fedavg"], runs["off"], "--target", "0.99")
    assert "not measured" in text
    assert "missed by off" not in text
    comparison = Comparison(read_lines([runs["fedavg"], runs["off"]]), [0.2])
    (answer,) = comparison.answers()
    assert answer.missed == ()
    (column,) = [
        column
        for column in comparison.side_by_side().columns
        if column.head == "time to target 0.2 (s)"
    ]
    assert column.cells[1] == Absent("not measured")


@pytest.mark.parametrize("width", [30, 200])
def test_a_terminal_too_narrow_for_a_table_gets_a_list_for_each_row(
    runs: dict[str, Path], width: int
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=width, force_terminal=True, color_system=None)
    print_short(console, Comparison(read_lines([*runs.values()])))
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert ("run: fedavg" in lines) == (width == 30)
    for word in (*runs, "strategy", "accuracy"):
        assert any(word in line for line in lines), word


def test_another_baseline_and_ledger(runs: dict[str, Path]) -> None:
    paths = (runs["fedavg"], runs["flexcfl"])
    fedavg, flexcfl = rows_of(compared(*paths, "--csv", "--baseline", "flexcfl"))
    assert float(flexcfl["compute to baseline (ratio)"]) == 1
    assert 0 < float(fedavg["compute to baseline (ratio)"]) < 1
    paper = rows_of(compared(*paths, "--csv", "--ledger", "paper"))
    assert (
        float(paper[1]["traffic (bytes)"]) == RunFolder(runs["flexcfl"]).summary["bytes"]["paper"]
    )
    message = (
        "fedsim: --baseline is 'flexclf'; allowed are fedavg, flexcfl (did you mean 'flexcfl'?)\n"
    )
    assert refused(*paths, "--baseline", "flexclf") == message
    for target in ("nan", "inf", "-0.1", "80"):
        assert "allowed is an accuracy from 0 to 1" in refused(*paths, "--target", target)
    assert "which no run has; they have accuracy, loss" in refused(*paths, "--target", "mse=1")


def test_a_study(study: Path) -> None:
    rows = rows_of(compared(study, "--csv"))
    assert rows == rows_of(study / "compare.csv")
    assert [(row["variant"], row["share"], row["runs"]) for row in rows] == [
        (name, share, "3")
        for share in ("0.0", "0.5")
        for name in ("fedavg", "flexcfl", "centralised")
    ]
    each = rows_of(study / "runs.csv")
    for row in rows:
        said = [float(row[f"final accuracy (0-1){end}"]) for end in (" low", "", " high")]
        own = [
            float(one["final accuracy (0-1)"])
            for one in each
            if all(one[key] == row[key] for key in ("variant", "share"))
        ]
        mean, half = statistics.mean(own), T2 * statistics.stdev(own) / math.sqrt(3)
        assert said == pytest.approx([max(0.0, mean - half), mean, min(1.0, mean + half)], rel=1e-6)
    assert (
        rows[0]["time to target 1 (s)"] == rows[0]["migrations"] == rows[2]["traffic (bytes)"] == ""
    )
    assert rows[0]["traffic to baseline (ratio)"] == rows[3]["traffic to baseline (ratio)"] == "1"
    shown = compared(study, "--all")
    for words in (
        "cost, difference to the baseline",
        "The baseline is fedavg.",
        "95 % intervals (Student's t)",
    ):
        assert words in shown


def test_without_more_it_is_one_screen(study: Path, runs: dict[str, Path]) -> None:
    shown = compared(study, "--target", "0.2")
    assert "share 0.5: To an accuracy of 0.2 " in shown
    assert len(shown.splitlines()) < 48
    assert "All figures: --all" in shown
    single = compared(*runs.values(), "--target", "0.2")
    assert all(name in single for name in runs)
    assert "rounds to target" not in single


def test_intervals_end_where_figures_do_and_digits_where_intervals_do(study: Path) -> None:
    for row in rows_of(study / "compare.csv"):
        for head, text in row.items():
            if head.endswith(" low") and text:
                assert float(text) >= 0
            elif head.endswith("(0-1) high") and text:
                assert float(text) <= 1
    column = ComparedColumn("x", (), unit="bytes")
    assert (
        format_cell(Estimate(1_834_567.0, 1_512_345.0, 2_156_789.0), column)
        == "1.83M (1.51M to 2.16M)"
    )
    assert (
        format_cell(Estimate(1234.0, 912.0, 1556.0), ComparedColumn("x", ()))
        == "1,230 (910 to 1,560)"
    )
    assert (
        format_cell(Estimate(0.90123, 0.90118, 0.90128), ComparedColumn("x", ()))
        == "0.901230 (0.901180 to 0.901280)"
    )
    assert (
        format_cell(Estimate(-0.001, -0.051, 0.049), ComparedColumn("x", (), signed=True))
        == "-0.001 (-0.051 to +0.049)"
    )
    noise = {1: (0.1 + 0.2, 0.3), 2: (0.3, 0.1 + 0.2), 3: (0.7, 0.7)}
    assert _mean_difference(noise) == Estimate(0.0, 0.0, 0.0)


def test_pairs_are_of_the_same_world(study: Path) -> None:
    runs = {(row["variant"], row["share"], row["seed"]): row for row in rows_of(study / "runs.csv")}
    paired = rows_of(study / "paired.csv")
    assert {(row["variant"], row["share"]) for row in paired} == {
        (name, share) for name in ("flexcfl", "centralised") for share in ("0.0", "0.5")
    }
    for row in paired:
        head = f"{row['measure']} ({row['unit']})" if row["unit"] else row["measure"]
        pairs = [
            [runs[name, row["share"], str(seed)][head] for name in (row["variant"], "fedavg")]
            for seed in (1, 2, 3)
        ]
        known = [float(own) - float(base) for own, base in pairs if own and base]
        assert [
            float(row[f"seed {seed}"]) for seed in (1, 2, 3) if row[f"seed {seed}"]
        ] == pytest.approx(known)
        assert int(row["pairs"]) == len(known)
        if len(known) == 3:
            mean, spread = sum(known) / 3, T2 * statistics.stdev(known) / math.sqrt(3)
            assert float(row["mean difference"]) == pytest.approx(mean)
            assert [float(row["low"]), float(row["high"])] == pytest.approx(
                [mean - spread, mean + spread], rel=1e-6
            )
        else:
            assert row["mean difference"] == row["low"] == row["high"] == ""


def test_studies_and_runs_together(study: Path, runs: dict[str, Path]) -> None:
    rows = rows_of(compared(study, runs["fedavg"], "--csv", "--baseline", "flexcfl"))
    assert [row["variant"] for row in rows][-1] == "fedavg"
    assert rows[1]["traffic to baseline (ratio)"] == rows[4]["traffic to baseline (ratio)"] == "1"
    assert rows[-1]["traffic to baseline (ratio)"] == ""  # the study's variant is of other worlds


def test_runs_of_one_name_are_told_apart(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    shutil.copytree(runs["fedavg"], tmp_path / "other" / "fedavg")
    paths = [runs["fedavg"], tmp_path / "other" / "fedavg", runs["off"]]
    names = [line.name for line in read_lines(paths).lines]
    assert names == [
        f"{runs['off'].parent.name}/fedavg",
        "other/fedavg",
        f"{runs['off'].parent.name}/off",
    ]
    assert [line.name for line in read_lines([runs["off"], runs["off"]]).lines] == [
        "1-off",
        "2-off",
    ]


def test_damaged_folders_end_with_2(runs: dict[str, Path], study: Path, tmp_path: Path) -> None:
    for name, content in (
        ("summary.json", b"{}"),
        ("summary.json", b"[1]"),
        ("rounds.parquet", b"x"),
        ("scenario.toml", b"="),
    ):
        broken = tmp_path / "broken"
        shutil.copytree(runs["fedavg"], broken)
        (broken / name).write_bytes(content)
        assert name in refused(broken, runs["off"])
        shutil.rmtree(broken)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.toml").write_text("seeds = 3")
    for words in ((tmp_path / "study",), (tmp_path,), ()):
        refused(*words)


HOSTILE = [
    "<script>alert(1)</script>",
    "\"quoted\", 'twice'",
    "two\nlines\r\n| and | pipes |",
    "\x1b[31mred\x1b[0m \x07\x9b31m \u202egnirts",
    '=HYPERLINK("http://x")',
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "x" * 10_000,
    "[red]markup[/red] [/]",
    "*bold* _it_ `code` [link](x) # head ~~no~~ $x$ \\",
    "\ud800",
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_harms_nothing(runs: dict[str, Path], tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["off"], run)
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(
        json.dumps(summary | {"strategy": name, "name": name, "status": name})
    )
    for words in ((), ("--csv",), ("--markdown",)):
        text = compared(run, *words)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
        assert max(map(len, text.splitlines())) < 2000
    rows = list(csv.reader(io.StringIO(compared(run, "--csv"))))
    assert len(rows) == 2
    assert len(rows[0]) == len(rows[1])
    assert rows[1][1][:1] not in ("=", "+", "-", "@", "\t")
    text = compared(run, "--markdown")
    assert "<script>" not in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table[:3]}) == 1
