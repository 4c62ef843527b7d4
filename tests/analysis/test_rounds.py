"""Accuracy, costs, traffic and stragglers: what is drawn of rounds is what the tables say."""

import json
import re
import shutil
import warnings
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.analysis.accuracy import _set_start, band, draw_accuracy, draw_costs
from fedsim.analysis.palette import line_of
from fedsim.analysis.report.legend import timeline_legend
from fedsim.analysis.report.timeline import read_timeline
from fedsim.analysis.round_lanes import read_attempts, trained_rounds
from fedsim.analysis.series import group_by_scenario
from fedsim.analysis.stragglers import MOST_LANES, MOST_PANELS, draw_stragglers
from fedsim.analysis.style import NothingToDrawError, render_pixels
from fedsim.analysis.timeline import draw_timeline
from fedsim.analysis.traffic import draw_purposes_compared, draw_traffic, read_parts
from fedsim.lab.reading.history import History
from fedsim.records.ledger import sum_view
from fedsim.records.reading import RunFolder
from fedsim.testing import run
from tests.analysis.conftest import Ran, drawn
from tests.strategies.test_hierfavg import by_hand, outage


def test_three_panels_show_the_rounds_table(run: RunFolder) -> None:
    rounds, time, moved = draw_accuracy([run]).axes
    assert rounds.get_ylim()[0] == 0
    assert rounds.get_ylabel() == "test accuracy (0 to 1)"
    accuracy = [row["accuracy"] for row in run.rounds]
    sums = np.cumsum([row["bytes_down"] + row["bytes_up"] for row in run.rounds])
    for panel in (rounds, time, moved):
        np.testing.assert_array_equal(panel.lines[0].get_ydata(), accuracy)
    np.testing.assert_array_equal(
        rounds.lines[0].get_xdata(), [row["round"] + 1 for row in run.rounds]
    )
    assert time.get_xlabel() == "simulated time (s)"
    np.testing.assert_allclose(time.lines[0].get_xdata(), [row["time"] for row in run.rounds])
    assert moved.get_xlabel() == "moved (kB)"
    np.testing.assert_allclose(moved.lines[0].get_xdata(), sums / 1e3)


@pytest.mark.parametrize(
    ("values", "start"),
    [((0.3, 0.95), 0.0), ((34.0, 0.25), 0.0), ((0.9497, 0.993), 0.94), ((-2.0, 1.0), -2.15)],
)
def test_an_axis_of_values_begins_at_zero_or_at_a_tick(
    values: tuple[float, float], start: float
) -> None:
    panel = Figure().subplots()
    panel.plot(values)
    assert _set_start(panel) == pytest.approx(start)
    assert panel.get_ylim()[0] == pytest.approx(start)


def test_runs_side_by_side_are_told_apart(
    run: RunFolder, renamed: RunFolder, unlearned: RunFolder
) -> None:
    figure = draw_accuracy([run, renamed, unlearned])
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[0] == "run: fedavg"
    assert names[1].startswith(" _$x_{$ \\frac{ & <b> …")
    assert names[2] == "unlearned: fedavg (not evaluated)"
    first, _, second = figure.axes[0].lines[:3]
    assert first.get_color() != second.get_color()


def test_rounds_are_on_a_log_scale_beside_a_run_of_many_more(run: RunFolder, ran: Ran) -> None:
    many = ran("many", strategy={"kind": "fedasync", "concurrency": 4}, stop={"rounds": 40})
    rounds, time, _ = draw_accuracy([run, many]).axes
    assert (rounds.get_xscale(), time.get_xscale()) == ("log", "linear")


@pytest.mark.parametrize("rounds", [8, 80])
def test_a_run_without_bytes_beside_others_does_not_spoil_the_layout(
    rounds: int, run: RunFolder, ran: Ran
) -> None:
    local = ran("local", strategy={"kind": "local", "deadline": "10 s"})
    other = ran("other", stop={"rounds": rounds})
    figure = draw_accuracy([local, run, other])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        render_pixels(figure)
    moved = figure.axes[2]
    is_log = moved.get_xscale() == "log"
    assert is_log == (rounds == 80)
    assert len(moved.lines) == (4 if is_log else 6)


def test_a_figure_grows_with_its_legend(run: RunFolder) -> None:
    few = draw_accuracy([run] * 2)
    many = draw_accuracy([run] * 24)
    assert many.get_figheight() > few.get_figheight()
    many.draw_without_rendering()
    assert many.legends[0].get_window_extent().y1 < min(axes.bbox.y0 for axes in many.axes)


def test_runs_in_a_folder_of_their_own_are_named_after_it(run: RunFolder, tmp_path: Path) -> None:
    runs = []
    for variant, epochs in (("short", 1), ("long", 2)):
        for seed in (1, 2):
            folder = tmp_path / variant / f"seed-{seed}"
            shutil.copytree(run.path, folder)
            text = (folder / "scenario.toml").read_text().replace("seed = 1", f"seed = {seed}")
            text = re.sub(r"local_epochs = \d+", f"local_epochs = {epochs}", text)
            (folder / "scenario.toml").write_text(text)
            summary = json.loads((folder / "summary.json").read_text()) | {"seed": seed}
            (folder / "summary.json").write_text(json.dumps(summary))
            runs.append(RunFolder(folder))
    names = [series.label for series in group_by_scenario(runs)]
    assert names == ["short: fedavg (2 seeds)", "long: fedavg (2 seeds)"]


def test_what_happened_meanwhile_is_marked(grouped: RunFolder, run: RunFolder) -> None:
    time = draw_accuracy([grouped]).axes[1]
    drawn = {str(line.get_gid()): line.get_xdata() for line in time.lines}
    for kind in ("shift", "arrival", "departure"):
        times = sorted({event["time"] for event in grouped.events if event["kind"] == kind})
        np.testing.assert_allclose(
            drawn[kind], np.array(times) / (60 if "min" in time.get_xlabel() else 1), rtol=1e-6
        )
    starts = {
        event["round"]: event["data"]["deadline"]
        for event in run.events
        if event["kind"] == "round-start"
    }
    reached = [row["time"] for row in run.rounds if row["time"] >= starts[row["round"]]]
    marked = {str(line.get_gid()): line.get_xdata() for line in draw_accuracy([run]).axes[1].lines}
    np.testing.assert_allclose(marked["deadline"], reached)


@pytest.fixture
def seeds(ran: Ran) -> list[RunFolder]:
    return [ran(f"seed-{seed}", seed=seed) for seed in (1, 2, 3)]


def test_a_band_where_all_are_known() -> None:
    first = pd.DataFrame({"time": [0.0, 2.0, 4.0], "value": [0.0, 0.4, 0.8]})
    other = pd.DataFrame({"time": [1.0, 3.0, 9.0], "value": [0.4, 0.8, 0.2]})
    drawn = band([first, other], "time")
    expected = {
        "at": [1, 2, 3, 4],
        "mean": [0.3, 0.5, 0.7, 0.75],
        "low": [0.2, 0.4, 0.6, 0.7],
        "high": [0.4, 0.6, 0.8, 0.8],
    }
    pd.testing.assert_frame_equal(drawn, pd.DataFrame(expected, dtype=float))
    apart = pd.DataFrame({"time": [5.0, 6.0], "value": [0.1, 0.2]})
    assert band([first, apart], "time").empty


def test_seeds_of_a_scenario_are_one_line_with_a_band(
    small: dict[str, Any], seeds: list[RunFolder], ran: Ran
) -> None:
    local = ran("prox", strategy=small["strategy"] | {"kind": "fedprox", "mu": 0.1})
    figure = draw_costs([seeds[0], local, *seeds[1:]])
    by_bytes, by_time, by_round = figure.axes[:3]
    curves = [[row["accuracy"] for row in run.rounds] for run in seeds]
    mean, low, high = np.mean(curves, axis=0), np.min(curves, axis=0), np.max(curves, axis=0)
    (line,) = [line for line in by_round.lines if line.get_gid() == "mean-0"]
    np.testing.assert_allclose(line.get_ydata(), mean)
    (area,) = [item for item in by_round.collections if item.get_gid() == "band-0"]
    corners = np.asarray(area.get_paths()[0].vertices)
    for place in range(len(mean)):
        ys = corners[corners[:, 0] == place + 1, 1]
        np.testing.assert_allclose([ys.min(), ys.max()], [low[place], high[place]])
    ends = [sum(row["bytes_down"] + row["bytes_up"] for row in run.rounds) for run in seeds]
    (line,) = [line for line in by_bytes.lines if line.get_gid() == "mean-0"]
    assert line.get_xdata()[-1] == pytest.approx(min(ends) / 1e3)
    assert "kB" in by_bytes.get_xlabel()
    # one seed has no band
    assert not [item for item in by_time.collections if item.get_gid() == "band-1"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[:2] == ["fedavg (3 seeds)", "fedprox"]


def test_no_two_lines_look_alike_and_neighbours_differ_in_dash_too() -> None:
    looks = [
        (look["color"], look["linestyle"])
        for look in (line_of(number, 1.0) for number in range(28))
    ]
    assert len(set(looks)) == 28
    assert all(one[1] != other[1] for one, other in pairwise(looks[:7]))


def test_series_of_one_strategy_are_named_after_their_folders(
    small: dict[str, Any], seeds: list[RunFolder], ran: Ran
) -> None:
    shorter, again = (
        ran("short", strategy=small["strategy"] | {"local_epochs": 1}),
        ran("again", seed=1),
    )
    names = [(series.name, len(series.runs)) for series in group_by_scenario([*seeds, shorter])]
    assert names == [("seed-1: fedavg", 3), ("short: fedavg", 1)]
    twice = [(series.name, len(series.runs)) for series in group_by_scenario([*seeds, again])]
    assert twice == [("seed-1: fedavg", 3), ("again: fedavg", 1)]


def widths(panel: Axes) -> float:
    return sum(patch.get_width() for patch in panel.patches) * 1e3  # type: ignore[attr-defined]


def total(run: RunFolder) -> float:
    return float(run.summary["bytes"]["down"] + run.summary["bytes"]["up"])


@pytest.mark.parametrize("name", ["run", "grouped"])
def test_parts_sum_up_to_the_ledger_and_the_curve_ends_at_all(
    name: str, request: pytest.FixtureRequest
) -> None:
    """What parts of the server exchange is apart and never wasted; the ledger counts it as up."""
    run: RunFolder = request.getfixturevalue(name)
    parts, moved = read_parts(run), run.summary["bytes"]
    sums = parts.groupby("direction")["bytes"].sum()
    between = sum(row["delivered"] for row in run.transfers if row["sender"] is not None)
    assert dict(sums) == pytest.approx(
        {"down": moved["down"], "up": moved["up"] - between}
        | ({"server": between} if name == "grouped" else {})
    )
    assert dict(parts.groupby("purpose")["bytes"].sum()) == pytest.approx(moved["by_purpose"])
    assert parts.loc[parts["wasted"], "bytes"].sum() == pytest.approx(moved["wasted"])
    assert set(parts.loc[parts["wasted"], "direction"]) <= {"down", "up"}
    over_time, totals = draw_traffic(run).axes
    assert over_time.get_ylabel() == "moved so far (kB)"
    assert over_time.lines[0].get_ydata()[-1] * 1e3 == pytest.approx(total(run)) == widths(totals)  # type: ignore[index]


def test_seeds_are_one_bar_with_their_mean(ran: Ran) -> None:
    runs = [ran(str(seed), seed=seed, learning="off") for seed in (1, 2)]
    totals = [total(run) for run in runs]
    assert totals[0] != totals[1]
    strict = draw_purposes_compared(runs).axes[0]
    assert len(strict.get_yticks()) == 1
    assert widths(strict) == pytest.approx(sum(totals) / 2)
    assert sorted(strict.lines[0].get_xdata() * 1e3) == pytest.approx(sorted(totals))  # type: ignore[operator]


def test_both_views_of_the_ledger(grouped: RunFolder, run: RunFolder) -> None:
    figure = draw_purposes_compared([grouped, run])
    strict, paper = figure.axes[:2]
    unit = {"MB": 1e6, "kB": 1e3}[strict.get_xlabel().split("(")[1].rstrip(")")]
    for place, folder in enumerate((grouped, run)):
        by_purpose = folder.summary["bytes"]["by_purpose"]
        totals = []
        for panel in (strict, paper):
            bars = [
                bar for bar in panel.patches if round(bar.get_y() + bar.get_height() / 2) == place
            ]  # type: ignore[attr-defined]
            totals.append(sum(bar.get_width() for bar in bars) * unit)  # type: ignore[attr-defined]
        assert totals == pytest.approx(
            [sum_view(by_purpose, "strict"), sum_view(by_purpose, "paper")]
        )
    assert not [bar for bar in paper.patches if bar.get_gid() in ("initial-model", "id")]
    assert [bar for bar in strict.patches if bar.get_gid() == "initial-model"]


def test_updates_that_are_lost_with_their_edge_server_are_wasted(tmp_path: Path) -> None:
    summary = run(by_hand(**outage(9, 4)), tmp_path / "other")
    parts = read_parts(RunFolder(tmp_path / "other"))
    assert (
        parts.loc[parts["wasted"], "bytes"].sum()
        == summary["bytes"]["wasted"]
        == pytest.approx(3000)
    )
    assert set(parts["direction"]) == {"down", "up"}


def test_legends_say_that_tasks_are_lost_with_their_edge_server(tmp_path: Path) -> None:
    run(by_hand(**outage(6, 4)), tmp_path / "edges")
    folder = RunFolder(tmp_path / "edges")
    assert any(event["outcome"] == "lost" for event in folder.events if event["kind"] == "task-end")
    meaning = "wasted, lost: device disconnected, or its edge server failed"
    labels = [text.get_text() for text in draw_timeline(folder).legends[0].get_texts()]
    assert meaning in labels
    legend = timeline_legend([read_timeline(folder, 100, 1000)])
    assert meaning in legend
    assert "its device disconnected, or its edge server failed" in legend


def attempts_of(run: RunFolder) -> pd.DataFrame:
    history = History(run)
    return read_attempts(history, trained_rounds(history))


def test_attempts_are_what_the_rounds_table_counts(run: RunFolder, split: RunFolder) -> None:
    for folder in (run, split):
        attempts = attempts_of(folder)
        for number, rows in attempts.groupby("round"):
            counts, row = Counter(rows["outcome"]), folder.rounds[int(str(number))]
            assert len(rows) == row["selected"]
            assert counts["valid"] == row["valid"]
            assert counts["slow"] + counts["late"] == row["slow"]
            assert counts["lost"] == row["disconnected"]
    assert attempts["splits"].sum() == sum(event["kind"] == "split" for event in split.events) > 0
    assert (attempts["part"] > 0).any()


def test_who_waits_in_a_queue_is_not_said_to_send(queued: RunFolder) -> None:
    """From the end of training to that of the upload: the queue, if there is one, and the
    upload, as long as recorded.
    """
    attempts = attempts_of(queued)
    times: dict[tuple[int, str], float] = {}
    for event in queued.events:
        if event["step"] in ("queue", "upload"):
            times[event["task"], event["step"]] = event["time"] - times.get(
                (event["task"], event["step"]), 0.0
            )
    sent = attempts.dropna(subset="answered")
    for row in sent.itertuples():
        assert row.answered - row.sends == pytest.approx(times[row.task, "upload"])
        assert row.sends - row.train_end == pytest.approx(times.get((row.task, "queue"), 0.0))
    waited = int((sent["sends"] > sent["train_end"]).sum())
    figure = draw_stragglers(queued, rounds=(0, MOST_PANELS))
    assert 0 < waited == drawn(*figure.axes)["queue"] < drawn(*figure.axes)["upload"] == len(sent)


def test_time_counts_from_the_start_of_the_round(run: RunFolder) -> None:
    attempts = attempts_of(run).set_index("task")
    ends = {
        event["task"]: event["time"]
        for event in run.events
        if (event["kind"], event["step"]) == ("step-end", "download")
    }
    opened = [event for event in run.events if event["kind"] == "round-start"]
    starts = {event["round"]: (event["time"], event["data"]["deadline"]) for event in opened}
    trained = [
        event for event in run.events if (event["kind"], event["step"]) == ("step-end", "train")
    ]
    assert trained
    for event in trained:
        row = attempts.loc[event["task"]]
        start, deadline = starts[event["round"]]
        assert row["begun"] == ends[event["task"]] - start
        assert row["epoch_ends"] == [end - start for end in event["data"]["epoch_ends"]]
        assert row["train_end"] == event["time"] - start
        assert row["deadline"] == deadline - start
        assert np.isnan(row["limit"])


def test_epochs_against_a_known_deadline(ran: Ran) -> None:
    """A hundred samples a second and 12 s: as many whole epochs as fit, of the five asked for."""
    deadline = {"kind": "fixed", "time": "12 s", "since": "download"}
    strategy = {"kind": "fedprox", "clients_per_round": 4, "local_epochs": 5, "deadline": deadline}
    known = ran(
        "known",
        population={"devices": 4, "speed": "100 samples/s"},
        strategy=strategy,
        learning="off",
    )
    attempts = read_attempts(History(known), [0])
    fit = [min(5, 1200 // samples) for samples in attempts["samples"]]
    assert [len(ends) for ends in attempts["epoch_ends"]] == fit
    assert len(set(fit)) > 1
    assert (attempts["limit"] - attempts["begun"]).tolist() == pytest.approx([12.0] * 4)
    assert attempts["outcome"].tolist() == ["valid"] * 4


def test_every_epoch_split_and_part_is_drawn(split: RunFolder) -> None:
    figure = draw_stragglers(split, rounds=(0, MOST_PANELS))
    shown = [number for number in trained_rounds(History(split)) if number < MOST_PANELS]
    attempts = read_attempts(History(split), shown)
    panel = figure.axes[0]
    width = panel.get_position().width * figure.get_figwidth() * 72
    least = 3 * panel.get_xlim()[1] / width  # of three points
    courses = zip(attempts["begun"], attempts["epoch_ends"], strict=True)
    short = [bool(ends) and (ends[-1] - begun) / len(ends) < least for begun, ends in courses]
    expected = sum(
        1 if one else len(ends) for one, ends in zip(short, attempts["epoch_ends"], strict=True)
    )
    counts = drawn(*figure.axes)
    assert counts["epochs"] == expected > 20
    assert counts["splits"] == attempts["splits"].sum() > 0
    assert counts["part"] == (attempts["part"] > 0).sum() > 0
    assert (counts["limit"], counts["no-training"]) == (
        attempts["begun"].notna().sum(),
        attempts["begun"].isna().sum(),
    )


def test_counts_beside_lanes_are_those_of_the_drawn_epochs(ran: Ran) -> None:
    """Clients of Ditto train the global model and their own."""
    strategy = {"kind": "ditto", "clients_per_round": 4, "deadline": "60 s"}
    panel = draw_stragglers(ran("ditto", strategy=strategy, learning="off")).axes[0]
    counts = [int(text.get_text()) for text in panel.texts]
    assert sum(counts) == drawn(panel)["epochs"]
    assert max(counts) > 1


def test_lanes_are_sorted_and_texts_do_not_overlap(split: RunFolder) -> None:
    figure = draw_stragglers(split, rounds=(0, MOST_PANELS))
    for panel in figure.axes:
        values = [float(label.get_text().split(" · ")[1]) for label in panel.get_yticklabels()]
        assert values == sorted(values, reverse=True)
    figure.draw_without_rendering()
    texts = [
        text
        for panel in figure.axes
        for text in (*panel.get_yticklabels(), *panel.texts, panel.title)
    ]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    assert len(boxes) > 50
    assert not any(
        one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place]
    )


def test_what_does_not_apply_is_said(run: RunFolder, roundless: RunFolder, ran: Ran) -> None:
    with pytest.raises(NothingToDrawError, match="no rounds"):
        draw_stragglers(roundless)
    with pytest.raises(NothingToDrawError, match="nobody trained in rounds 70:80"):
        draw_stragglers(run, rounds=(70, 80))
    with pytest.raises(NothingToDrawError, match="no deadline"):
        draw_stragglers(
            ran("endless", strategy={"kind": "fedavg", "clients_per_round": 6}, learning="off")
        )


def test_an_upload_that_the_deadline_cuts_is_drawn(small: dict[str, Any], ran: Ran) -> None:
    network = small["network"] | {"device": {"up": "2 kbit/s", "down": "1 Mbit/s"}}
    strategy = {"kind": "fedavg", "clients_per_round": 6, "deadline": "8 s"}
    run = ran("cut", network=network, strategy=strategy, learning="off", stop={"rounds": 3})
    cut = [
        e
        for e in run.events
        if (e["kind"], e["step"]) == ("step-end", "upload") and e["outcome"] != "done"
    ]
    assert cut
    attempts = attempts_of(run).set_index("task")
    starts = {
        event["round"]: event["time"] for event in run.events if event["kind"] == "round-start"
    }
    for event in cut:
        row = attempts.loc[event["task"]]
        assert row["cut"] == pytest.approx(event["time"] - starts[event["round"]])
    figure = draw_stragglers(run)
    assert drawn(*figure.axes)["cut-upload"] == len(cut)


def test_by_default_the_worst_rounds_and_the_median_one_are_drawn(run: RunFolder) -> None:
    history = History(run)
    wasted = dict.fromkeys(trained_rounds(history), 0)
    for event in run.events:
        if event["kind"] == "task-end" and event["outcome"] != "done" and event["round"] in wasted:
            wasted[event["round"]] += 1
    titles = [panel.get_title() for panel in draw_stragglers(run).axes if panel.get_title()]
    drawn_rounds = [int(title.split()[1].strip(",")) for title in titles]
    worst = [
        number
        for number, title in zip(drawn_rounds, titles, strict=True)
        if "many failures" in title
    ]
    assert len(drawn_rounds) == 4
    assert sorted(wasted[number] for number in worst) == sorted(wasted.values())[-3:]


def test_the_title_says_that_only_the_first_chosen_rounds_are_drawn(ran: Ran) -> None:
    run = ran("long", learning="off", stop={"rounds": 12})
    trained = trained_rounds(History(run))
    chosen = trained[: MOST_PANELS + 1]
    title = draw_stragglers(run, rounds=(chosen[0], chosen[-1] + 1)).get_suptitle()
    text = f"the first {MOST_PANELS} rounds of the {len(chosen)} with training in"
    assert f"{text} {chosen[0]}:{chosen[-1] + 1}" in title
    title = draw_stragglers(run, rounds=(chosen[0], chosen[-1])).get_suptitle()
    assert f"{MOST_PANELS} of {len(trained)} rounds with training" in title


def test_of_many_clients_some_are_drawn(small: dict[str, Any], ran: Ran) -> None:
    population = small["population"] | {
        "devices": 200,
        "samples": {"kind": "uniform", "low": 10, "high": 300},
    }
    strategy = small["strategy"] | {"clients_per_round": 200}
    sections = {
        "population": population,
        "network": {"kind": "star"},
        "strategy": strategy,
        "stop": {"rounds": 2},
    }
    many = ran("many", learning="off", **sections)
    figure = draw_stragglers(many)
    assert len(figure.axes[0].get_yticks()) == MOST_LANES < many.rounds[0]["selected"]
    counts = [
        int(word)
        for word in figure.axes[0].get_title().partition("\n")[2].replace(",", "").split()
        if word.isdecimal()
    ]
    assert sum(counts) == many.rounds[0]["selected"]
    assert "some selected devices" in figure.get_suptitle()
