"""Fairness, energy, clusters by data size, and what all pictures share: what is drawn is what
the run says.
"""

import copy
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from fedsim.analysis import style
from fedsim.analysis.clusters import ReportedGrouping, draw_clusters, read_groupings
from fedsim.analysis.energy import draw_batteries, draw_energy, read_levels
from fedsim.analysis.fairness import (
    draw_fairness,
    selections_of_devices,
    selections_of_groups,
    waiting_times,
)
from fedsim.analysis.style import NothingToDrawError, render_pixels
from fedsim.analysis.timeline import draw_timeline
from fedsim.common.errors import RunFolderError
from fedsim.lab.compare.measures import measure
from fedsim.lab.reading.fairness import jain_over_time
from fedsim.lab.reading.history import History
from fedsim.records.reading import RunFolder
from fedsim.testing import quiet_world, run
from tests.analysis.conftest import Lived, Ran


def test_names_are_made_fit_to_draw() -> None:
    names = {
        "plain name": "plain name",
        "two\nlines\tand  more": "two lines and more",
        "_hidden": " _hidden",
        "": "unnamed",
    }
    for name, shown in (names | {"a円\x00\u202e\ud800": "a□���"}).items():
        assert style.shorten(name) == shown
    assert style.shorten("begin" + "x" * 100 + "end", 20) == "beginxxxxx…xxxxxxend"


def test_a_picture_takes_the_place_of_a_link_and_a_place_that_cannot_be_written_is_named(
    tmp_path: Path,
) -> None:
    before = dict(matplotlib.rcParams)
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "picture.png").symlink_to(tmp_path / "precious")
    style.save(style.styled(Figure)(), tmp_path / "picture", ["png"])
    assert dict(matplotlib.rcParams) == before  # those of others stay as they were
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(RunFolderError, match="cannot be written"):
        style.save(style.styled(Figure)(), tmp_path / "precious" / "picture")


def test_pixels_are_those_of_the_file(run: RunFolder, tmp_path: Path) -> None:
    (path,) = style.save(draw_fairness([run]), tmp_path / "picture", ["png"])
    assert np.array_equal(render_pixels(draw_fairness([run])), np.asarray(Image.open(path)))


def test_selections_add_up(split: RunFolder) -> None:
    asked = sum(
        event["kind"] == "task-start" and event["round"] is not None for event in split.events
    )
    counts = selections_of_devices(split)
    assert counts.sum() == asked
    assert (np.diff(counts) <= 0).all()
    _, jain = jain_over_time(split)
    assert jain[-1] == pytest.approx(counts.sum() ** 2 / len(counts) / (counts**2).sum())
    groups = selections_of_groups(split)
    assert len(groups) > 1
    assert groups["valid"].sum() == sum(row["valid"] for row in split.rounds)
    panel = draw_fairness([split]).axes[-1]
    assert [bar.get_height() for bar in panel.patches] == [*groups["valid"], *groups["failed"]]


@pytest.mark.parametrize("kind", ["hierfavg", "flexcfl"])
def test_a_continued_task_is_one_selection(kind: str, lived: Lived) -> None:
    run = lived(kind)
    counts = selections_of_devices(run)
    assert sorted(counts) == sorted(row["selected"] for row in run.devices)
    starts = [event for event in run.events if event["kind"] == "task-start"]
    assert counts.sum() < sum(event["round"] is not None for event in starts)
    groups = selections_of_groups(run)
    assert groups["valid"].sum() == sum(row["valid"] for row in run.rounds)
    assert groups["failed"].sum() == counts.sum() - groups["valid"].sum()
    assert jain_over_time(run)[1][-1] == pytest.approx(measure(run)["Jain's index of selections"])


def test_one_run_is_drawn_over_rounds(run: RunFolder) -> None:
    figure = draw_fairness([run])
    jain, *waiting = figure.axes[:4]
    np.testing.assert_array_equal(jain.lines[0].get_ydata(), jain_over_time(run)[1])
    for panel, values in zip(waiting, ("mean", "p90", "longest"), strict=True):
        np.testing.assert_array_equal(
            panel.lines[0].get_ydata(), waiting_times(run, "round")[values]
        )
    assert {panel.get_xlabel() for panel in figure.axes[:4]} == {"rounds aggregated"}


def test_runs_with_and_without_rounds_are_drawn_over_time(
    run: RunFolder, split: RunFolder, roundless: RunFolder
) -> None:
    waiting = waiting_times(roundless, "time")
    np.testing.assert_array_equal(waiting["at"], [row["time"] for row in roundless.rounds])
    assert (waiting["mean"] <= waiting["longest"]).all()
    assert (waiting["longest"] <= waiting["at"]).all()
    figure = draw_fairness([run, split, roundless])
    assert all(panel.get_xlabel().startswith("simulated time") for panel in figure.axes[:4])
    assert len(figure.axes[0].lines) == 3
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[:3] == ["run: fedavg", "split: cata-fed", "roundless: fedasync"]


@pytest.mark.parametrize("name", ["run", "grouped"])
def test_waiting_counts_rounds_since_the_last_selection(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Newcomers count from their arrival on, leavers until they leave."""
    run: RunFolder = request.getfixturevalue(name)
    waiting = waiting_times(run, "round")
    ends = [row["time"] for row in run.rounds]
    np.testing.assert_array_equal(waiting["at"], np.arange(len(ends)) + 1)
    chosen = {
        (event["round"], event["device"]) for event in run.events if event["kind"] == "task-start"
    }
    for number, end in enumerate(ends):
        waits = []
        for row in run.devices:
            if (
                not row["arrival"]
                <= end
                < (row["departure"] if row["departure"] is not None else np.inf)
            ):
                continue
            first = sum(before <= row["arrival"] for before in ends) if row["arrival"] else 0
            past = [
                number - earlier
                for earlier in range(number + 1)
                if (earlier, row["device"]) in chosen
            ]
            waits.append(min(past) if past else number + 1 - first)
        found = (*waiting.loc[number, ["mean", "p90", "longest"]],)
        assert found == pytest.approx((np.mean(waits), np.percentile(waits, 90), max(waits)))


def test_axes_of_waiting_have_room_for_a_round_if_no_device_waits(ran: Ran) -> None:
    strategy = {"kind": "fedavg", "clients_per_round": 6}
    population = {"devices": 6, "speed": "20 samples/s"}
    every = ran("every", learning="off", population=population, strategy=strategy)
    assert not waiting_times(every, "round")["longest"].any()
    assert [panel.get_ylim() for panel in draw_fairness([every]).axes[1:4]] == [(0, 1)] * 3


def test_the_mark_of_a_flat_battery_is_named(folders: list[RunFolder]) -> None:
    labels = [text.get_text() for text in draw_timeline(folders[0]).legends[0].get_texts()]
    assert "battery flat at this instant" in labels


def heights(panel: Axes) -> float:
    return sum(bar.get_height() for bar in panel.patches)  # type: ignore[attr-defined]


def test_sizes_on_borders_and_beyond_them() -> None:
    sizes = np.array([1, 10, 14, 15, 19, 20, 99])
    grouping = ReportedGrouping("cluster", 0, 10, 20, (3, 4), sizes)
    assert grouping.groups.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert grouping.outliers.tolist() == [True, False, False, False, False, False, True]
    assert grouping.edges.tolist() == [10, 15, 20]
    assert ReportedGrouping("cluster", 0, 5, 5, (0, 0, 2), np.array([5, 5])).groups.tolist() == [
        2,
        2,
    ]


def test_each_device_is_in_a_bar(split: RunFolder) -> None:
    groupings = read_groupings(split)
    assert [tuple(np.bincount(grouping.groups, minlength=2)) for grouping in groupings] == [
        one.members for one in groupings
    ]
    figure = draw_clusters(split)
    before, after = figure.axes[:2]
    for panel, grouping in ((before, groupings[0]), (after, groupings[-1])):
        assert heights(panel) == len(grouping.sizes)
        (marks,) = [line for line in panel.lines if line.get_gid() == "outliers"] or [None]
        far = np.unique(grouping.sizes[grouping.outliers])
        assert (marks is None) == (not len(far))
        if marks is not None:
            np.testing.assert_array_equal(marks.get_xdata(), far)


def test_tiers_of_sizes_are_drawn_and_those_of_latency_not(ran: Ran) -> None:
    tifl = {"kind": "tifl", "clients_per_round": 4, "tiers": 3}
    size, latency = (
        ran(source, strategy=tifl | {"tiers_from": source}, learning="off")
        for source in ("size", "latency")
    )
    (grouping,) = read_groupings(size)
    assert tuple(np.bincount(grouping.groups, minlength=3)) == grouping.members
    assert heights(draw_clusters(size).axes[0]) == sum(grouping.members)
    assert not read_groupings(latency)


def test_devices_of_one_size_are_one_bar(small: dict[str, Any], ran: Ran) -> None:
    """Nobody is left out, and borders that are all the same draw no warning (which would fail
    here).
    """
    population = small["population"] | {"samples": {"kind": "list", "values": [30] * 20}}
    strategy = {"kind": "cata-fed", "clients_per_round": 6, "clusters": 3, "smallest_part": 5}
    strategy |= {"deadline": {"kind": "relative", "times": 2.0}}
    run = ran("same", population=population, strategy=strategy, stop={"rounds": 2}, learning="off")
    last = read_groupings(run)[-1]
    assert last.low == last.high == 30
    panels = [panel for panel in draw_clusters(run).axes if heights(panel)]
    assert heights(panels[-1]) == len(last.sizes) > 5
    assert all(float(tick).is_integer() for tick in panels[-1].get_xticks())


FEDAVG = {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"}
ENERGY = {
    "preset": "smartphone-4g",
    "carbon": {"intensity": "475 g/kWh"},
    "server": {"idle": "20 W"},
}
BATTERY = {
    "capacity": "60 J",
    "charge": "2 W",
    "charging": {"kind": "daily", "begins": "0 s", "lasts": "24 h"},
    "restart": 0.2,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """With batteries, without, a run in which energy is not counted, and one in which nobody is
    ever flat.
    """
    folder = tmp_path_factory.mktemp("energy")
    sections = quiet_world(FEDAVG) | {"learning": "off"}
    worlds = {"batteries": ENERGY | {"battery": BATTERY}, "counted": ENERGY, "not": None}
    worlds["full"] = ENERGY | {"battery": BATTERY | {"capacity": "12 Wh"}}
    for name, energy in worlds.items():
        own = copy.deepcopy(sections) | ({} if energy is None else {"energy": energy})
        run(own, folder / name)
    return [RunFolder(folder / name) for name in worlds]


def test_bars_are_as_long_as_the_phases(folders: list[RunFolder]) -> None:
    figure = draw_energy(folders[:3])
    assert "(kJ)" in figure.axes[0].get_xlabel()
    for panel, phases in zip(figure.axes, (5, 7), strict=True):
        drawn = {
            (bar.get_gid(), round(bar.get_y() + 0.3)): bar.get_width() for bar in panel.patches
        }
        assert len(drawn) == 2 * phases  # the third run has no energy, and no bar
        for place, folder in enumerate(folders[:2]):
            for phase, joules in list(folder.summary["energy"]["by_phase"].items())[:phases]:
                assert drawn[phase, place] == pytest.approx(joules / 1000)


def test_levels_go_from_the_first_to_the_last_record(folders: list[RunFolder]) -> None:
    levels = read_levels(History(folders[0]))
    assert set(levels) == {
        event["device"] for event in folders[0].events if event["kind"] == "task-start"
    }
    panels = draw_batteries(folders[0]).axes
    assert len(panels) == 6
    for panel in panels:
        times, joules = np.array(levels[int(panel.get_ylabel().split()[1])]).T
        assert (np.diff(times) >= 0).all()
        assert times[-1] == folders[0].summary["simulated_s"]
        assert 0 <= joules.min() <= joules.max() <= 60
        assert panel.lines[0].get_ydata() == pytest.approx(100 * joules / 60)
        became_flat = (joules == 0) & (np.append(1.0, joules[:-1]) > 0)
        assert sum(len(line.get_xdata()) for line in panel.lines[1:]) == became_flat.sum()
    with pytest.raises(NothingToDrawError):
        draw_batteries(folders[1])
    figure = draw_batteries(folders[3])  # where nobody is flat panels have room
    render_pixels(figure, 40)  # lays it out; what has no room is a warning, and so an error
    assert all(panel.get_position().width > 0.7 for panel in figure.axes)
