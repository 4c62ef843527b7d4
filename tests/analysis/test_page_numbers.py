"""The numbers of a page against the run folder, for runs whose messages go different ways."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.patches import StepPatch

import fedsim
from fedsim.analysis.fairness import draw_fairness, selections_of_devices
from fedsim.analysis.report.axis import Axis
from fedsim.analysis.report.front import draw_front
from fedsim.analysis.report.gather import gather
from fedsim.analysis.report.runs import headline_figures
from fedsim.analysis.report.sections import answer
from fedsim.analysis.report.tables import read_devices
from fedsim.analysis.report.tables import rounds as rounds_table
from fedsim.analysis.report.timeline import read_timeline
from fedsim.analysis.strips import RATES
from fedsim.analysis.style import NothingToDrawError
from fedsim.analysis.timeline import draw_timeline
from fedsim.analysis.view import View
from fedsim.cli import main
from fedsim.common.units import show_bytes, show_joules, show_seconds
from fedsim.lab.compare.explore import CostPoint, ParetoFront
from fedsim.lab.compare.measures import TIME, TRAFFIC, measure
from fedsim.lab.compare.ranking import RankedLine, Ranking
from fedsim.lab.reading.activities import Activities
from fedsim.lab.reading.fairness import jain_index, jain_over_time
from fedsim.lab.reading.history import History
from fedsim.plugin import World
from fedsim.records.ledger import total
from fedsim.records.reading import RunFolder
from tests.analysis.conftest import drawn
from tests.lab.conftest import finish, write

STAR = {"kind": "star", "device": {"down": "2 Mbit/s", "up": "1 Mbit/s", "latency": "20 ms"}}
TREE = STAR | {"kind": "tree", "cells": 2, "cell": {}, "edge": {"latency": "30 ms"}}
FAMILIES: dict[str, dict[str, Any]] = {
    "server": {"strategy": {"kind": "fedavg", "clients_per_round": 3}, "network": STAR},
    "peers": {"strategy": {"kind": "gossip"}, "network": STAR},
    "collectives": {"strategy": {"kind": "diloco", "local_steps": 2}, "network": STAR},
    "edges": {
        "strategy": {"kind": "hierfavg", "clients_per_round": 4, "kappa2": 2},
        "network": TREE,
    },
}


def played(family: str, folder: Path) -> RunFolder:
    scenario = fedsim.Scenario(
        learning="off",
        population={"devices": 6, "speed": "20 samples/s"},
        stop={"rounds": 3},
        **FAMILIES[family],
    )
    fedsim.run(scenario, folder)
    return RunFolder(folder)


def text_of(page: str) -> str:
    """The text that a reader sees, with single spaces."""
    shown = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", shown)).split())


@pytest.mark.parametrize("family", FAMILIES)
def test_tiles_and_headlines_count_the_bytes_of_all_endpoints(family: str, tmp_path: Path) -> None:
    run = played(family, tmp_path / "run")
    words = ["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]
    assert CliRunner().invoke(main, words).exit_code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    text = text_of(page)
    sizes = run.summary["bytes"]
    moved = total(sizes)
    assert moved == pytest.approx(sum(run.table("transfers.parquet")["delivered"].to_pylist()))
    assert f"moved {show_bytes(moved)} " in text
    assert f"of {show_bytes(moved)} that moved was wasted" in text
    assert "nothing moved" not in text
    assert ("between devices" in text) == bool(sizes.get("peer"))


@pytest.mark.parametrize("family", FAMILIES)
def test_rounds_have_bytes_of_the_ways_that_messages_go(family: str, tmp_path: Path) -> None:
    """Nothing goes down or up without a server."""
    run = played(family, tmp_path / "run")
    table = rounds_table(run, "timeline-0-data")
    assert table is not None
    has_server = family in ("server", "edges")
    for head in ("down", "up"):
        assert (f'<th scope="col">{head}</th>' in table[1]) == has_server
    assert ('<th scope="col">between devices</th>' in table[1]) != has_server


@pytest.mark.parametrize("family", FAMILIES)
def test_lanes_and_curves_of_peers_show_their_messages(family: str, tmp_path: Path) -> None:
    run = played(family, tmp_path / "run")
    data = read_timeline(run, most_lanes=100, most_steps=10_000)
    table = run.table("transfers.parquet").to_pandas()
    between = table[table["direction"] == "peer"]
    columns = data.columns
    assert len(columns["message_lane"]) == 2 * len(between)
    assert columns["message_sent"].sum() == len(between)
    assert data.header["without_server"] == (family in ("peers", "collectives"))
    times = columns["peer_time"].astype(float) * data.header["tick"]
    moved = float((np.diff(times) * columns["peer_value"][:-1]).sum())
    assert moved == pytest.approx(between["wire_bytes"].sum(), rel=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_picture_of_a_timeline_has_messages_at_both_ends_and_no_empty_strip(
    family: str, tmp_path: Path
) -> None:
    run = played(family, tmp_path / "run")
    table = run.table("transfers.parquet").to_pandas()
    between = table[table["direction"] == "peer"]
    figure = draw_timeline(run)
    bars = drawn(figure.axes[0])
    assert bars["message-sent"] == bars["message-received"] == len(between)
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert ({"message sent", "message received"} <= labels) == bool(len(between))
    strip = figure.axes[2]
    areas = {patch.get_gid(): patch for patch in strip.patches if isinstance(patch, StepPatch)}
    if family in ("server", "edges"):
        assert set(areas) == {"down", "up"}
        assert "server's link" in strip.get_ylabel()
        return
    assert set(areas) == {"peer"}
    assert "server" not in strip.get_ylabel()
    data = areas["peer"].get_data()
    size = next(size for _, size, name in RATES if f"({name})" in strip.get_ylabel())
    seconds = np.diff(data.edges) * View(History(run)).unit.size
    assert (data.values * seconds).sum() * size == pytest.approx(between["wire_bytes"].sum())


def test_a_window_with_messages_alone_has_a_timeline(tmp_path: Path) -> None:
    run = played("collectives", tmp_path / "run")
    activities = Activities(History(run))
    windows = []
    for message in activities.messages:
        works = any(
            step.end > message.start and step.start < message.end for step in activities.steps
        )
        if message.device_ends() and not works:
            windows.append((message.start, message.end))
    figure = draw_timeline(run, window=windows[0])
    bars = drawn(figure.axes[0])
    assert bars["message-sent"] == bars["message-received"] > 0
    assert not bars["train"]


@pytest.mark.parametrize("family", ["peers", "collectives"])
def test_messages_of_the_page_are_those_of_the_transfers(family: str, tmp_path: Path) -> None:
    run = played(family, tmp_path / "run")
    data = read_timeline(run, most_lanes=100, most_steps=10_000)
    columns = data.columns
    found = []
    for place in range(len(columns["message_lane"])):
        device = f"device {columns['device'][columns['message_lane'][place]]}"
        other = data.header["endpoints"][columns["message_other"][place]]
        route = (device, other) if columns["message_sent"][place] else (other, device)
        span = [
            float(columns[f"message_{end}"][place]) * data.header["tick"]
            for end in ("start", "end")
        ]
        found.append((*route, *span, float(columns["message_bytes"][place])))
    expected = []
    for row in run.table("transfers.parquet").to_pylist():
        fact = (row["sender"], row["receiver"], row["start"], row["end"], row["delivered"])
        expected += [fact, fact]
    assert len(found) == len(expected)
    for one, other in zip(sorted(found), sorted(expected), strict=True):
        assert one[:2] == other[:2]
        assert one[2:] == pytest.approx(other[2:], abs=2 * data.header["tick"], rel=1e-6)


def test_messages_to_devices_that_are_away_are_not_drawn(tmp_path: Path) -> None:
    away = {"kind": "renewal", "mean_on": "4 s", "mean_off": "4 s"}
    scenario = fedsim.Scenario(
        learning="off",
        population={"devices": 6, "speed": "20 samples/s", "availability": away},
        network=STAR,
        strategy={"kind": "gossip", "deadline": "10 s"},
        stop={"rounds": 5},
    )
    fedsim.run(scenario, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    moved = run.table("transfers.parquet").to_pandas()["delivered"] > 0
    assert not moved.all()
    columns = read_timeline(run, most_lanes=100, most_steps=10_000).columns
    assert len(columns["message_lane"]) == 2 * moved.sum()
    with pytest.raises(NothingToDrawError, match="without a server"):
        draw_fairness([run])


def backup(world: World) -> Iterator[object]:
    """A device saves its data on the server once."""
    yield world.send("device 1", "server", "2 kB")


def test_bytes_of_processes_are_not_said_to_be_between_devices(tmp_path: Path) -> None:
    scenario = fedsim.Scenario(
        learning="off",
        population={"devices": 6, "speed": "20 samples/s"},
        world={"processes": [{"kind": f"{__name__}:backup"}]},
        stop={"rounds": 3},
        **FAMILIES["server"],
    )
    fedsim.run(scenario, tmp_path / "run")
    text = text_of(headline_figures(RunFolder(tmp_path / "run")))
    assert f"{show_bytes(2000.0)} of processes" in text
    assert "between devices" not in text


def test_a_run_that_was_measured_is_not_said_to_be_simulated(tmp_path: Path) -> None:
    run = played("server", tmp_path / "run")
    assert "simulated time" in text_of(headline_figures(run))
    run.summary["measured"] = {"flwr": "1.41.0"}
    assert "measured time" in text_of(headline_figures(run))
    assert "simulated" not in text_of(headline_figures(run))
    assert read_timeline(run, 100, 1000).header["clock"] == "measured time"
    labels = {panel.get_xlabel() for panel in draw_timeline(run).axes}
    assert "measured time (s)" in labels


def test_the_table_of_devices_counts_messages_at_both_ends(tmp_path: Path) -> None:
    run = played("peers", tmp_path / "run")
    table = read_devices(run)
    assert table["bytes"].sum() == pytest.approx(2 * run.summary["bytes"]["peer"])


def test_tiles_of_batteries_are_those_of_the_events_and_of_the_energy_table(tmp_path: Path) -> None:
    battery = {"capacity": "50 J", "initial": {"kind": "uniform", "low": 0.2, "high": 1.0}}
    scenario = fedsim.Scenario(
        learning="off",
        population={"devices": 6, "speed": "20 samples/s"},
        network=STAR,
        strategy={"kind": "fedavg", "clients_per_round": 3},
        energy={"preset": "smartphone-wifi", "battery": battery, "server": {"idle": "100 W"}},
        stop={"rounds": 6},
    )
    fedsim.run(scenario, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    text = text_of(headline_figures(run))
    table = run.table("energy.parquet").to_pandas()
    columns = ["idle_j", "compute_j", "receive_j", "send_j", "tail_j"]
    drawn = float(table[columns].to_numpy().sum())
    assert f"devices drew {show_joules(drawn)} " in text
    assert f"energy in all {show_joules(run.summary['energy']['joules'])} " in text
    flat = {
        event["device"]
        for event in run.events
        if event["kind"] == "battery" and event["data"]["flat"]
    }
    ends = [event for event in run.events if event["kind"] == "task-end"]
    ended = [event for event in ends if event["outcome"] == "battery"]
    assert flat
    tasks = f"{len(ended)} task{'' if len(ended) == 1 else 's'}"
    assert f"flat devices {len(flat)} {tasks} ended by a flat battery" in text


def test_the_tile_of_unseen_devices_is_the_last_of_the_rounds(tmp_path: Path) -> None:
    scenario = fedsim.Scenario(
        data={"source": "digits"},
        population={"devices": 6, "speed": "20 samples/s", "tested_only": 2},
        strategy={"kind": "fedavg", "clients_per_round": 3},
        stop={"rounds": 2},
    )
    fedsim.run(scenario, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    unseen = run.rounds[-1]["accuracy_unseen"]
    assert f"final accuracy, unseen {unseen:.4f} " in text_of(headline_figures(run))
    assert len(selections_of_devices(run)) == 4
    index = measure(run)["Jain's index of selections"]
    assert index == jain_over_time(run)[1][-1] == jain_index(selections_of_devices(run))


def test_the_answer_of_a_study_has_the_means_of_its_runs(tmp_path: Path) -> None:
    base = {
        "data": {"source": "digits"},
        "population": {
            "devices": 6,
            "speed": {"kind": "uniform", "low": "5 samples/s", "high": "20 samples/s"},
        },
        "stop": {"rounds": 3},
        **FAMILIES["server"],
    }
    variants = {
        "plain": {},
        "longer": {"strategy": {"local_epochs": 3}},
        "int8": {"messages": {"up": "int8"}},
    }
    tables = {"name": "a study", "seeds": [1, 2], "base": base, "variants": variants}
    out = finish(write(tmp_path / "study.toml", tables | {"target": 0.2}), tmp_path / "st")
    text = text_of(answer(gather([out])))
    for name in variants:
        times = []
        sizes = []
        for seed in (1, 2):
            rounds = RunFolder(out / "runs" / name / f"seed-{seed}").rounds
            first = next(place for place, row in enumerate(rounds) if row["accuracy"] >= 0.2)
            times.append(rounds[first]["time"])
            sizes.append(sum(row["bytes_down"] + row["bytes_up"] for row in rounds[: first + 1]))
        assert f"{name} {show_seconds(float(np.mean(times)))} " in text
        assert f"{name} {show_bytes(float(np.mean(sizes)))} " in text


def test_dots_of_a_front_are_where_its_ticks_say() -> None:
    costs = {"a": (1260.0, 9e9), "b": (1800.0, 4e9), "c": (3300.0, 6.5e9)}
    lines = {}
    for column, cost in enumerate((TIME, TRAFFIC)):
        entries = []
        for place, (name, pair) in enumerate(costs.items()):
            entries.append(RankedLine(place, name, False, {1: pair[column]}, 1))
        lines[column] = Ranking(cost, tuple(entries), None)
    points = [
        CostPoint(line, *costs[line.name], factor=1 if line.name < "c" else 1.8)
        for line in lines[0].entries
    ]
    drawing = draw_front(
        ParetoFront(lines[0], lines[1], tuple(points)), dict.fromkeys(range(3), "#000000")
    )
    texts = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([\d.]+)<', drawing)
    across = [(float(text), float(x)) for x, _, anchor, text in texts if anchor == "middle"]
    up = [(float(text), float(y) - 4) for _, y, anchor, text in texts if anchor == "end"]
    assert len(across) >= 2 <= len(up)
    for ticks, column, unit, name in ((across, 0, 60.0, "cx"), (up, 1, 1e9, "cy")):
        slope, start = np.polyfit(*np.array(ticks).T, 1)
        places = [float(place) for place in re.findall(rf'{name}="([\d.]+)"', drawing)]
        wanted = [start + slope * pair[column] / unit for pair in costs.values()]
        assert places == pytest.approx(wanted, abs=0.2)
    assert "time (min)" in drawing
    assert "traffic (GB)" in drawing


@pytest.mark.parametrize(("low", "high"), [(1.0, 900.0), (3.0, 40.0), (2.0, 2.0)])
def test_ticks_of_a_logarithmic_axis_are_round_and_on_it(low: float, high: float) -> None:
    axis = Axis(low, high, is_log=True)
    ticks = axis.ticks(5)
    assert ticks == sorted(ticks)
    assert 1 <= len(ticks) <= 5
    assert all(low <= tick <= high for tick in ticks)
    shares = [axis.share(tick) for tick in ticks]
    assert all(0 <= share <= 1 for share in shares)
