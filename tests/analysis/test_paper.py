"""Figures for papers: each number by hand or from the records, each drawn mark from the numbers."""

import csv
import re
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.analysis.paper.communication import draw_communication, measure_communication
from fedsim.analysis.paper.figures import FIGURES, FigureRequest
from fedsim.analysis.paper.lines import read_series
from fedsim.analysis.paper.members import draw_members, measure_members
from fedsim.analysis.paper.migration import draw_migration, measure_migration
from fedsim.analysis.paper.rounds import draw_rounds
from fedsim.analysis.paper.sheet import LEAST_PT, PaperFigure, pools, read_width, smallest_text
from fedsim.analysis.paper.straggling import draw_straggling, measure_straggling
from fedsim.analysis.paper.waiting import draw_waiting, measure_waiting, read_waits
from fedsim.analysis.series import Series, group_by_scenario
from fedsim.analysis.style import NothingToDrawError, PictureError
from fedsim.lab.compare.critical_path import CriticalPaths
from fedsim.lab.reading.activities import Activities
from fedsim.lab.reading.attempts import Attempts
from fedsim.lab.reading.history import History
from fedsim.lab.reading.targets import Target
from fedsim.records.reading import RunFolder
from tests.analysis.conftest import Lived, Ran, drawn
from tests.analysis.test_membership import replay
from tests.calls import call

OF_OUTCOME = {"done": "valid", "late": "late", "lost": "lost", "left": "lost", "battery": "lost"}


def series_of(*runs: RunFolder) -> Series:
    (series,) = group_by_scenario(runs)
    return series


def counted(run: RunFolder) -> dict[int, Counter[str]]:
    """Clients of each round by how they ended, event by event."""
    trained: dict[int, int] = {}
    sent: set[int] = set()
    rounds: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for event in run.events:
        purposes = {purpose for purpose, _ in event["data"].get("payloads", [])}
        if "update" in purposes or "model" in purposes:
            sent.add(event["task"])
        if (event["kind"], event["step"]) == ("step-end", "train"):
            trained[event["task"]] = event["data"]["epochs"]
        if event["kind"] == "task-end" and event["round"] is not None:
            outcome = OF_OUTCOME.get(event["outcome"], "stopped")
            is_client = event["task"] in sent or outcome != "valid"
            if outcome == "valid" and trained.get(event["task"]) == 0:
                outcome = "slow"
            if is_client:
                rounds[event["round"]][outcome] += 1
    return rounds


@pytest.fixture
def two(ran: Ran) -> list[RunFolder]:
    return [ran(f"two-{seed}", seed=seed, learning="off") for seed in (1, 2)]


@pytest.fixture
def hand(ran: Ran) -> RunFolder:
    """Four devices of 100 samples a second with five epochs to do, and links that take no time."""
    return ran(
        "hand",
        population={"devices": 4, "speed": "100 samples/s"},
        network={"kind": "star"},
        strategy={"kind": "fedavg", "clients_per_round": 4, "local_epochs": 5, "deadline": "15 s"},
        stop={"rounds": 3},
        learning="off",
    )


def test_straggling_and_waiting_of_a_round_by_hand(hand: RunFolder) -> None:
    samples = {row["device"]: row["samples"] for row in hand.devices}
    needs = {device: 5 * count / 100 for device, count in samples.items()}
    late = {device for device, time in needs.items() if time > 15}
    assert 0 < len(late) < 4
    straggling = measure_straggling(series_of(hand))
    assert straggling.clients == 12
    assert (straggling.pooled, straggling.stopped) == (1, 0)
    for point in straggling.points:
        shares = {outcome: share.mean for outcome, share in point.shares.items()}
        expected = {"valid": 1 - len(late) / 4, "late": len(late) / 4, "slow": 0.0, "lost": 0.0}
        assert shares == expected
    ends = sorted(min(time, 15.0) for time in needs.values())
    others = max(end for end in ends if end < 15)
    for wait in read_waits(hand):
        assert wait.half_s == pytest.approx(ends[1], abs=1e-6)
        assert wait.others_s == pytest.approx(others, abs=1e-6)
        assert wait.end_s == pytest.approx(15, abs=1e-6)
        assert (wait.outcome, set(wait.devices)) == ("late", late)
    waiting = measure_waiting(series_of(hand))
    assert waiting.share.mean == pytest.approx((15 - others) / 15, abs=1e-6)
    shares = [(entry.device, entry.rounds, entry.share) for entry in waiting.awaited[0]]
    assert shares == [(device, 3, pytest.approx(1 / len(late))) for device in sorted(late)]


@pytest.mark.parametrize("name", ["run", "split", "grouped", "roundless"])
def test_straggling_is_what_the_events_say(name: str, request: pytest.FixtureRequest) -> None:
    run: RunFolder = request.getfixturevalue(name)
    rounds = counted(run)
    line = measure_straggling(series_of(run))
    assert len(line.points) > 3
    for point in line.points:
        total: Counter[str] = sum(
            (rounds[n] for n in range(point.first, point.last + 1)), Counter()
        )
        stopped = total.pop("stopped", 0)
        assert (point.clients, stopped >= 0) == (total.total(), True)
        for outcome, share in point.shares.items():
            assert share.mean == total[outcome] / total.total()
    everything: Counter[str] = sum(rounds.values(), Counter())
    assert line.stopped == everything.pop("stopped", 0)
    assert line.clients == everything.total()
    assert line.counts_versions == (name == "roundless")


def test_a_pre_training_is_no_client_but_a_failed_one(grouped: RunFolder) -> None:
    counts = {number: counter.total() for number, counter in counted(grouped).items()}
    assert counts == {row["round"]: row["selected"] for row in grouped.rounds}


def test_a_round_that_waited_for_a_pre_training_says_so(grouped: RunFolder) -> None:
    paths = CriticalPaths(grouped)
    preparing = {
        attempt.task
        for attempt in Attempts(Activities(History(grouped))).all
        if attempt.is_preparation
    }
    kinds = set()
    for path in paths.rounds:
        described = paths.described_round(path.number)
        assert described.totals == path.totals
        for step, named in zip(path.steps, described.steps, strict=True):
            is_renamed = step.step == "train" and step.task in preparing
            assert named.step == ("pre-training" if is_renamed else step.step)
            kinds.add(named.step)
    assert {"train", "pre-training"} <= kinds


@pytest.mark.parametrize("name", ["run", "split"])
def test_waits_are_those_of_the_critical_path(name: str, request: pytest.FixtureRequest) -> None:
    run: RunFolder = request.getfixturevalue(name)
    paths = {path.number: path for path in CriticalPaths(run).rounds}
    waits = read_waits(run)
    assert sum(wait.waited_s for wait in waits) > 0
    for wait in waits:
        path = paths[wait.round]
        assert wait.waited_s == pytest.approx(path.saved_s)
        assert set(path.late) <= set(wait.devices)


def test_outcomes_that_never_occur_are_not_drawn(roundless: RunFolder) -> None:
    figure = draw_straggling([series_of(roundless)], 3.5).figure
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["valid", "lost"]
    assert " late" not in figure.axes[0].get_title(loc="left")


def test_seeds_are_a_mean_and_a_band(two: list[RunFolder]) -> None:
    line = measure_straggling(series_of(*two))
    alone = [measure_straggling(series_of(run)) for run in two]
    assert line.pooled == alone[0].pooled == 1
    for number, point in enumerate(line.points):
        for outcome, share in point.shares.items():
            values = [one.points[number].shares[outcome].mean for one in alone]
            assert share == (sum(values) / 2, min(values), max(values), 2)
    panels = draw_straggling([series_of(*two)], 3.5).figure.axes
    for outcome in ("valid", "late", "lost"):
        expected = [100 * point.shares[outcome].mean for point in line.points]
        lines = [item for panel in panels for item in panel.lines if item.get_gid() == outcome]
        assert lines
        for item in lines:
            np.testing.assert_allclose(item.get_ydata(), expected)


def test_pools_of_rounds() -> None:
    assert pools(4, 1) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert pools(11, 5) == [(0, 5), (5, 10)]
    assert pools(13, 5) == [(0, 5), (5, 10), (10, 13)]
    assert pools(1, 5) == [(0, 1)]


def test_each_bar_of_waiting_is_a_number(two: list[RunFolder]) -> None:
    line = measure_waiting(series_of(*two))
    drawing = draw_waiting([series_of(*two)], 3.5)
    by_round, by_device = drawing.figure.axes[:2]
    (edge,) = [item for item in by_round.patches if item.get_gid() == "half"]
    unit = {"s": 1.0, "min": 60.0}[by_round.figure.get_supylabel().split("(")[1].rstrip(")")]
    values = edge.get_data().values * unit  # type: ignore[attr-defined]
    np.testing.assert_allclose(values, [point.half_s.mean for point in line.points])
    heights = [bar.get_height() for bar in by_device.patches]  # type: ignore[attr-defined]
    expected = [100 * share.mean for share in (*line.ranks, line.rest)]
    np.testing.assert_allclose(heights, expected)
    assert sum(expected) == pytest.approx(100)
    for point in line.points:
        waited = sum(spread.mean for spread in point.waited_s.values())
        assert waited == pytest.approx(point.end_s.mean - point.others_s.mean)


def test_migration_is_what_the_events_say(grouped: RunFolder) -> None:
    line = measure_migration(series_of(grouped))
    for place, time in enumerate(line.times):
        kinds: Counter[str] = Counter()
        first: set[int] = set()
        for event in grouped.events:
            if event["time"] > time:
                continue
            data = event["data"]
            kinds["shift"] += event["kind"] == "shift"
            kinds["noticed"] += event["kind"] == "shift-test" and data["fired"]
            is_assigned = event["kind"] == "assign" and event["group"] is not None
            kinds["move"] += is_assigned and data["before"] is not None
            if is_assigned:
                first.add(event["device"])
        kinds["joined"] = len(first)
        counts = {kind: spreads[place].mean for kind, spreads in line.counts.items()}
        pre_trainings = counts.pop("pre-training")
        assert counts == kinds
        assert pre_trainings >= kinds["joined"]  # each group of a device comes of a pre-training
        here = replay(grouped, time)
        grouped_now = sum(group >= 0 for group in here.values())
        devices = {name: spreads[place].mean for name, spreads in line.devices.items()}
        assert devices == {"present": len(here), "grouped": grouped_now}
    assert line.totals["move"].mean > 0
    figure = draw_migration([series_of(grouped)], 3.5).figure
    curves = {item.get_gid(): item for panel in figure.axes for item in panel.lines}
    expected = [spread.mean for spread in line.counts["move"]]
    np.testing.assert_array_equal(curves["move"].get_ydata(), expected)


def test_members_that_are_there_and_marks_that_hide_no_other(grouped: RunFolder) -> None:
    members = measure_members(series_of(grouped))
    end = replay(grouped, members.times[-1])
    for group, sizes in members.sizes.items():
        assert sizes[-1] == list(end.values()).count(group)
    drawing = draw_members(series_of(grouped), 3.5)
    rows, sizes = drawing.figure.axes
    marks = {str(line.get_gid()): line for line in rows.lines}
    happened = Counter(mark.kind for mark in members.marks)
    for kind in ("shift", "noticed", "move", "arrival", "departure"):
        assert len(marks[kind].get_xdata()) == happened[kind]  # type: ignore[arg-type]
    assert marks["noticed"].get_markersize() < 0.7 * marks["shift"].get_markersize()
    assert marks["shift"].get_markerfacecolor() == "white"
    trained = sum(row["number"] == "pre-training" for row in drawing.numbers)
    assert drawn(rows)["pre-training"] == trained > 0
    assert sizes.lines[-1].get_ydata()[-1] == len(end)  # type: ignore[index]


def test_bytes_to_a_target_are_those_of_the_transfers(run: RunFolder) -> None:
    best = max(row["accuracy"] for row in run.rounds)
    target = Target(round(0.9 * best, 2))
    cost = measure_communication([series_of(run)], [target])
    (ours,) = cost.lines[0].runs
    assert ours.parts is not None
    reached = next(row for row in run.rounds if row["accuracy"] >= target.value)
    sums = {"down": 0.0, "up": 0.0, "peer": 0.0}
    for row in run.transfers:
        if row["end"] <= reached["time"]:
            sums[row["direction"]] += row["delivered"]
    assert ours.parts == pytest.approx(sums)
    assert ours.round == reached["round"]
    figure = draw_communication([series_of(run)], 3.5, [target]).figure
    bars = figure.axes[1].patches
    unit = {"MB": 1e6, "kB": 1e3}[figure.axes[1].get_xlabel().split("(")[1].rstrip(")")]
    widths = [bar.get_width() * unit for bar in bars]  # type: ignore[attr-defined]
    assert widths == pytest.approx([sums["down"], sums["up"]])


def test_names_of_bars_do_not_overlap_and_a_line_without_bytes_leaves_no_gap(
    run: RunFolder, ran: Ran
) -> None:
    name = "a name that is too long for one line"
    lines = [Series(f"{name} {number}", (run, run), number) for number in range(2)]
    local = ran("local", strategy={"kind": "local", "deadline": "10 s"})
    lines.append(Series("local", (local, local), 2))
    figure = draw_communication(lines, 3.5).figure
    figure.draw_without_rendering()
    bars = figure.axes[1]
    boxes = [label.get_window_extent() for label in bars.get_yticklabels()]
    for above, below in pairwise(boxes):
        assert above.y0 >= below.y1
    legend = figure.legends[0].get_window_extent()
    assert bars.get_tightbbox().y0 - legend.y1 < 0.2 * figure.dpi  # type: ignore[union-attr]


def test_the_target_is_the_hardest_that_all_reach(run: RunFolder) -> None:
    best = max(row["accuracy"] for row in run.rounds)
    targets = [Target(1.0), Target(best), Target(0.0)]
    assert measure_communication([series_of(run)], targets).target == Target(best)
    with pytest.raises(NothingToDrawError, match="no run reached a target out of 1; target"):
        measure_communication([series_of(run)], [Target(1.0)])


def test_the_hardest_target_of_a_loss_is_the_least(run: RunFolder) -> None:
    losses = [row["loss"] for row in run.rounds]
    targets = [Target(value, "loss") for value in (max(losses), min(losses), 0.0)]
    assert measure_communication([series_of(run)], targets).target == Target(min(losses), "loss")


def test_rounds_are_the_attempts(split: RunFolder, grouped: RunFolder) -> None:
    drawing = draw_rounds(series_of(split), 3.5, [0, 1])
    tasks = {event["task"] for event in split.events if event["round"] in (0, 1)} - {None}
    assert {row["task"] for row in drawing.numbers} == tasks
    ends = {
        event["task"]: event["data"]["epoch_ends"]
        for event in split.events
        if (event["kind"], event["step"]) == ("step-end", "train")
    }
    start = {e["round"]: e["time"] for e in split.events if e["kind"] == "round-start"}
    for row in drawing.numbers:
        expected = [end - start[row["round"]] for end in ends.get(row["task"], [])]
        assert [float(word) for word in str(row["epoch_ends"]).split()] == expected
    cold = draw_rounds(series_of(grouped), 3.5, [0])
    prepared = [row for row in cold.numbers if row["prepares"]]
    assert drawn(*cold.figure.axes)["pre-training"] == len(prepared) > 0
    with pytest.raises(PictureError, match=r"--round is 99; allowed are .*, 0 to 11"):
        draw_rounds(series_of(split), 3.5, [99])


def test_many_epochs_are_counted_in_their_bar(ran: Ran) -> None:
    """Two devices with as many epochs as fit into 90 s: far more than can be told apart."""
    strategy = {"kind": "cata-fed", "clients_per_round": 2, "clusters": 1, "smallest_part": 5}
    strategy["deadline"] = {"kind": "fixed", "time": "90 s", "since": "download"}
    population = {"devices": 20, "speed": "100 samples/s"}
    sections = {"population": population, "strategy": strategy, "stop": {"rounds": 1}}
    figure = draw_rounds(series_of(ran("many", learning="off", **sections)), 3.5).figure
    counts = [text.get_text() for text in figure.axes[0].texts if text.get_gid() == "epoch-count"]
    labels = [text.get_text() for text in figure.axes[0].texts if text.get_gid() is None]
    assert sorted(counts) == sorted(f"{label} epochs" for label in labels if int(label) > 70)
    assert counts


def test_families_without_a_server_or_rounds_are_refused_by_name(
    lived: Lived, roundless: RunFolder
) -> None:
    peers = series_of(lived("gossip"))
    with pytest.raises(NothingToDrawError, match="gossip has no server that selects clients"):
        measure_straggling(peers)
    for draw in (draw_rounds, measure_waiting):
        with pytest.raises(NothingToDrawError, match="fedasync has no rounds that a server opens"):
            draw(*[series_of(roundless), 3.5][: 2 if draw is draw_rounds else 1])
    with pytest.raises(
        NothingToDrawError, match="fedasync records no assignment of a device to a group"
    ):
        draw_migration([series_of(roundless)], 3.5)


@pytest.mark.parametrize("width", [2.5, 7.0])
@pytest.mark.parametrize("name", [*FIGURES])
def test_texts_are_legible_and_within_the_sheet(
    name: str, width: float, grouped: RunFolder, run: RunFolder
) -> None:
    series = [Series("flexcfl, a name of thirty letters", (grouped,)), Series("fedavg", (run,), 1)]
    drawing: PaperFigure = FIGURES[name].draw(FigureRequest(series, width, [Target(0.2)]))
    figure = drawing.figure
    assert figure.get_figwidth() == width
    assert smallest_text(figure) >= LEAST_PT
    figure.draw_without_rendering()
    box = figure.get_tightbbox()  # inches
    assert min(box.x0, box.y0) > -0.02
    assert box.x1 < width + 0.02
    assert box.y1 < figure.get_figheight() + 0.02


@pytest.mark.parametrize(
    ("text", "inches"), [("3.5in", 3.5), (" 8.9 cm ", 8.9 / 2.54), ("252pt", 252 / 72.27)]
)
def test_widths(text: str, inches: float) -> None:
    assert read_width(text) == pytest.approx(inches)


def test_the_verb_writes_equal_files_with_their_numbers(run: RunFolder, tmp_path: Path) -> None:
    words = ["figures", run.path, "--format", "pdf,svg", "--figure", "straggling"]
    for name in ("first", "second"):
        result = call(*words, "--out", tmp_path / name, "--width", "88mm")
        assert result.exit_code == 0, result.output
    files = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    assert set(files) == {"straggling.pdf", "straggling.svg", "straggling.csv"}
    for path in (tmp_path / "second").iterdir():
        assert path.read_bytes() == files[path.name], path.name
    (width,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", files["straggling.pdf"])
    assert float(width) == pytest.approx(88 / 25.4 * 72, abs=0.01)
    assert b"/CIDFontType2" in files["straggling.pdf"]  # TrueType, and no font of type 3
    assert b"/Type3" not in files["straggling.pdf"]
    rows = [*csv.DictReader(files["straggling.csv"].decode().splitlines())]
    expected = measure_straggling(series_of(run)).numbers()
    assert [float(row["share"]) for row in rows] == [row["share"] for row in expected]


def test_by_default_what_applies_is_drawn_and_the_rest_named(
    roundless: RunFolder, tmp_path: Path
) -> None:
    result = call("figures", roundless.path, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "straggling.pdf",
        "straggling.csv",
    }
    assert "no waiting: fedasync has no rounds that a server opens" in result.stderr
    assert "no communication: no round was evaluated" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--width", "3 bananas"],
            "--width is '3 bananas'; allowed are 2 in to 20 in, as a number",
        ),
        (["--width", "9 inch"], "such as 3.5in (did you mean 'in'?)"),
        (["--width", "1in"], "--width is '1in'; allowed are 2 in to 20 in"),
        (["--format", "pfd"], "--format is 'pfd'; allowed are pdf, svg, png (did you mean 'pdf'?)"),
        (["--figure", "wating"], "--figure is 'wating'; allowed are"),
        (["--figure", "members"], "fedavg records no assignment of a device to a group"),
        (["--only", "fedvag"], "--only is 'fedvag'; allowed are fedavg (did you mean 'fedavg'?)"),
        (["--only", "shar=1"], "--only names 'shar'; allowed are variant"),
        (["--target", "2"], "--target is 2; allowed is an accuracy"),
        (["--out", "RUN/summary.json"], "lies in the run folder"),
    ],
)
def test_mistakes_get_one_message_and_write_nothing(
    run: RunFolder, tmp_path: Path, words: list[str], message: str
) -> None:
    words = [word.replace("RUN", str(run.path)) for word in words]
    out = [] if "--out" in words else ["--out", tmp_path / "out"]
    result = call("figures", run.path, *words, *out)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    result = call("figures", tmp_path)
    assert result.exit_code == 2
    assert "is not a run folder: it holds no summary.json" in result.stderr


def test_lines_of_runs_and_only_some_of_them(two: list[RunFolder], roundless: RunFolder) -> None:
    paths = [run.path for run in (*two, roundless)]
    names = [(line.name, len(line.runs), line.number) for line in read_series(paths)]
    assert names == [("fedavg", 2, 0), ("fedasync", 1, 1)]
    (only,) = read_series(paths, ["fedasync"])
    assert (only.name, only.number) == ("fedasync", 0)


def test_more_lines_than_there_is_room_for(run: RunFolder) -> None:
    series: list[Any] = [Series(f"line {number}", (run,), number) for number in range(9)]
    with pytest.raises(PictureError, match="9 lines are given, but the figure 'straggling' has"):
        draw_straggling(series, 3.5)
