from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedsim.analysis.clusters import ReportedGrouping, draw_clusters, read_groupings
from fedsim.records.reading import RunFolder
from tests.analysis.conftest import Ran


def heights(panel: Axes) -> float:
    """The devices in a histogram: all its bars together."""
    bars = [item for item in panel.collections if item.get_gid() == "sizes"]
    return sum(np.ptp(np.asarray(path.vertices)[:, 1]) for item in bars for path in item.get_paths())


def test_sizes_on_borders_and_beyond_them() -> None:
    sizes = np.array([1, 10, 14, 15, 19, 20, 99])
    grouping = ReportedGrouping("cluster", 0, 10, 20, (3, 4), sizes, sizes < 0)
    assert grouping.groups.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert grouping.outliers.tolist() == [True, False, False, False, False, False, True]
    assert grouping.edges.tolist() == [10, 15, 20]
    assert ReportedGrouping("cluster", 0, 5, 5, (0, 0, 2), np.array([5, 5]), np.zeros(2, bool)).groups.tolist() == [2, 2]


def test_each_device_is_in_a_bar(split: RunFolder) -> None:
    groupings = read_groupings(split)
    assert [tuple(np.bincount(grouping.groups, minlength=2)) for grouping in groupings] == [one.members for one in groupings]
    assert any(grouping.outliers.any() for grouping in groupings)
    figure = draw_clusters(split)
    before, over, after = figure.axes
    for panel, grouping in ((before, groupings[0]), (after, groupings[-1])):
        assert heights(panel) == len(grouping.sizes)
        (marks,) = [line for line in panel.lines if line.get_gid() == "outliers"] or [None]
        far = np.unique(grouping.sizes[grouping.outliers])
        assert (marks is None) == (not len(far))
        if marks is not None:
            np.testing.assert_array_equal(marks.get_xdata(), far)
    ends = [line.get_ydata()[-1] for line in over.lines if str(line.get_gid()).startswith("members-")]
    assert ends == list(groupings[-1].members)


def test_tiers_of_sizes_are_drawn_and_those_of_latency_not(ran: Ran) -> None:
    tifl = {"kind": "tifl", "clients_per_round": 4, "tiers": 3}
    size, latency = (ran(source, strategy=tifl | {"tiers_from": source}, learning="off") for source in ("size", "latency"))
    (grouping,) = read_groupings(size)
    assert tuple(np.bincount(grouping.groups, minlength=3)) == grouping.members
    assert heights(draw_clusters(size).axes[0]) == sum(grouping.members)
    assert not read_groupings(latency)


def test_devices_of_one_size_are_one_bar(small: dict[str, Any], ran: Ran) -> None:
    """Nobody is left out, and borders that are all the same draw no warning (which would fail here)."""
    population = small["population"] | {"samples": {"kind": "list", "values": [30] * 20}}
    strategy = {
        "kind": "cata-fed",
        "clients_per_round": 6,
        "clusters": 3,
        "deadline": {"kind": "relative", "times": 2.0},
        "smallest_part": 5,
    }
    run = ran("same", population=population, strategy=strategy, stop={"rounds": 2}, learning="off")
    last = read_groupings(run)[-1]
    assert last.low == last.high == 30
    panels = [panel for panel in draw_clusters(run).axes if heights(panel)]
    assert heights(panels[-1]) == len(last.sizes) > 5
    assert all(float(tick).is_integer() for tick in panels[-1].get_xticks())
