"""Clusters of devices by the sizes of their data."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsim.analysis import style
from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.files import parse_json
from fedsim.records.folder import DEVICES
from fedsim.records.reading import RunFolder, as_list

_BARS = 80  # of the histogram
_PALETTE = style.SERIES[:6]  # without black, which is for the borders
_BORDER: dict[str, Any] = {"color": style.BLACK, "linewidth": 1.1}
_OUTLIER: dict[str, Any] = {"marker": "v", "color": style.BLACK, "linestyle": "", "markersize": 5}


@dataclass(frozen=True)
class ReportedGrouping:
    """A ``cluster`` or ``tiers`` record for a ``round``, with the sizes reported by then.

    Attributes:
        low, high: the range of sizes (samples) without outliers, cut into groups of equal width.
        members: number of devices in each group, as recorded.
        sizes: reported by each connected device (samples), int64 [n].
    """

    word: str
    round: int
    low: float
    high: float
    members: tuple[int, ...]
    sizes: Ints

    @property
    def edges(self) -> Floats:
        """The groups' borders from ``low`` to ``high`` (samples), one more than there are
        groups.
        """
        count = len(self.members)
        # whole borders are exact
        return self.low + np.arange(count + 1) * (self.high - self.low) / count

    @property
    def groups(self) -> Ints:
        """The group of each size, int64 [n]: outliers are in the first or the last; a size on a
        border is in the upper one.
        """
        if self.low == self.high:
            return np.full(len(self.sizes), len(self.members) - 1)
        return np.digitize(self.sizes, self.edges[1:-1])

    @property
    def outliers(self) -> Flags:
        """Whether each size is outside of ``low`` to ``high``, bool [n]."""
        return (self.sizes < self.low) | (self.sizes > self.high)


def read_groupings(run: RunFolder) -> list[ReportedGrouping]:
    """Every grouping of the run by data size, in order; tiers by latency are left out.

    A device reports all its samples by a task outside of any round, its largest part by a split,
    and nothing once it is lost.
    """
    by_latency = run.scenario.get("strategy", {}).get("tiers_from") == "latency"
    samples = dict(
        zip(*map(as_list, run.table(DEVICES).select(["device", "samples"]).columns), strict=True)
    )
    known: dict[int, int] = {}
    groupings = []
    kinds = ("task-end", "split", "cluster", "tiers")
    columns = ("kind", "device", "round", "outcome", "data")
    for kind, device, number, outcome, text in run.events_of(kinds, columns):
        if kind == "task-end" and outcome == "done" and number is None:
            known[device] = samples[device]
        elif kind == "task-end" and outcome in ("lost", "left", "battery"):
            known[device] = 0
        elif kind == "split":
            known[device] = max(parse_json(text)["sizes"])
        elif kind == "cluster" or (kind == "tiers" and not by_latency):
            data = parse_json(text)
            members = tuple(int(count) for count in data["members"])
            word = "cluster" if "bounds" in data else "tier"
            bins = data.get("bins", (0.0, 0.0))
            low, high = data.get("bounds", (bins[0], bins[0] + bins[1] * len(members)))
            reported = np.array([size for size in known.values() if size], dtype=np.int64)
            groupings.append(
                ReportedGrouping(word, number or 0, float(low), float(high), members, reported)
            )
    return groupings


@style.styled
def draw_clusters(run: RunFolder) -> Figure:
    """Groups that the server made of the devices by the sizes of their data, at first and when
    it grouped them again.

    Histograms of the sizes that devices reported, with the groups' borders, members and
    outliers. TiFL's tiers are drawn alike.
    """
    groupings = [grouping for grouping in read_groupings(run) if len(grouping.sizes)]
    if not groupings:
        raise style.NothingToDrawError(
            f"{str(run.path)!r} has no clusters or tiers by data size, so there are none to draw"
        )
    first = groupings[0]
    last = groupings[-1]
    shown = {"at first": first} | ({"last": last} if last is not first else {})
    figure = Figure(figsize=(style.WIDTH_IN, 2.6 + 2.4 * len(shown)))
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    sizes = np.concatenate([grouping.sizes for grouping in shown.values()])
    width = max(1, int(np.ceil(np.ptp(sizes) / _BARS)))
    bars = np.arange(sizes.min(), sizes.max() + width + 1, width) - 0.5
    top = 1.12 * max(np.histogram(grouping.sizes, bars)[0].max() for grouping in shown.values())
    for panel, (when, grouping) in zip(panels, shown.items(), strict=True):
        _draw_sizes(panel, grouping, bars, top)
        outliers = int(grouping.outliers.sum())
        groups = style.counted(len(grouping.members), grouping.word)
        title = (
            f"{style.counted(len(grouping.sizes), 'device')} in {groups}, "
            f"{style.counted(outliers, 'outlier')}"
        )
        panel.set_title(f"{when}, for round {grouping.round}: {title}", fontsize=11, loc="left")
    panel.set_xlabel("samples that a device has reported: all it has, or its largest part")
    handles: list[Artist] = [Line2D([], [], label=f"{first.word}s' borders", **_BORDER)]
    if first.outliers.any() or last.outliers.any():
        handles.append(
            Line2D([], [], label=f"outliers: in the first or last {first.word}", **_OUTLIER)
        )
    return style.finished(figure, [run], handles)


def _draw_sizes(panel: Axes, grouping: ReportedGrouping, bars: Floats, top: float) -> None:
    """Draw bars stacked by cluster; ``top`` is the axis's end."""
    members = [grouping.sizes[grouping.groups == group] for group in range(len(grouping.members))]
    colours = [_PALETTE[group % len(_PALETTE)] for group in range(len(members))]
    tops, *_ = panel.hist(members, bars.tolist(), stacked=True, color=colours)
    heights = np.atleast_2d(tops)[-1]
    panel.set(
        xlim=(2 * bars[0] - bars[1], 2 * bars[-1] - bars[-2]), ylim=(0, top), ylabel="devices"
    )
    style.whole_ticks(panel.yaxis, 5)
    style.whole_ticks(panel.xaxis, 9)
    style.across([panel], grouping.edges, gid="borders", **_BORDER)
    far = np.unique(grouping.sizes[grouping.outliers])
    style.marks_at(
        panel, far, heights[np.searchsorted(bars, far) - 1] + top * 0.03, gid="outliers", **_OUTLIER
    )
    # over each cluster its number and its members
    middles = (grouping.edges[:-1] + grouping.edges[1:]) / 2
    shown = range(len(middles)) if grouping.high > grouping.low else [len(middles) - 1]
    above_panel = panel.secondary_xaxis("top")
    above_panel.set_xticks(
        [middles[group] for group in shown],
        [f"{group}\n{grouping.members[group]:,}" for group in shown],
    )
    above_panel.tick_params(length=0, pad=1, labelsize=9)
    above_panel.spines["top"].set_visible(False)
    where: dict[str, Any] = {
        "xycoords": "axes fraction",
        "textcoords": "offset points",
        "ha": "right",
    }
    panel.annotate(f"{grouping.word}\ndevices", (0, 1), (-6, 2.5), fontsize=9, **where)
