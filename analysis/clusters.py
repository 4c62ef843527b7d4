"""Clusters of devices by the sizes of their data."""

from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsim.analysis import palette, style
from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.files import parse_json
from fedsim.common.round_words import counted
from fedsim.lab.reading.record_data import RecordData
from fedsim.records.folder import DEVICES
from fedsim.records.reading import RunFolder, as_list

_BARS = 80  # count of bars in the histogram
_PALETTE = palette.SERIES[:6]  # colours of groups; without black, the colour of borders
_BORDER: palette.Look = {"color": palette.BLACK, "linewidth": 1.1}
_OUTLIER: palette.Look = {"marker": "v", "color": palette.BLACK, "linestyle": "", "markersize": 5}


@dataclass(frozen=True)
class ReportedGrouping:
    """Division of devices into clusters or tiers by the sizes of their data, as a run recorded it.

    Attributes:
        word: ``cluster`` or ``tier``.
        round: index of the round for which the grouping was made.
        low: least size that is no outlier (samples).
        high: largest size that is no outlier (samples). The range from ``low`` to ``high`` is
            divided into groups of equal width.
        members: count of devices in each group, as recorded.
        sizes: data size of each device that has reported a size, and has had no lost task since
            (samples), int64 [n].
    """

    word: str
    round: int
    low: float
    high: float
    members: tuple[int, ...]
    sizes: Ints

    @property
    def edges(self) -> Floats:
        """Borders of the groups, from ``low`` to ``high`` (samples), float64 [groups + 1]."""
        count = len(self.members)
        # the multiplication comes first, so that whole numbers of samples are exact
        return self.low + np.arange(count + 1) * (self.high - self.low) / count

    @property
    def groups(self) -> Ints:
        """Group index of each device in ``sizes``, int64 [n].

        Outliers are in the first or the last group. A size on the border of two groups is in the
        upper group.
        """
        if self.low == self.high:
            return np.full(len(self.sizes), len(self.members) - 1)
        return np.digitize(self.sizes, self.edges[1:-1])

    @property
    def outliers(self) -> Flags:
        """Whether each of ``sizes`` is below ``low`` or above ``high``, bool [n]."""
        return (self.sizes < self.low) | (self.sizes > self.high)


def read_groupings(run: RunFolder) -> list[ReportedGrouping]:
    """Read every grouping of devices by data size in a run, in order of time.

    A device reports its count of samples in a task outside of rounds. When it has split its data
    into parts (CATA-Fed), it reports the size of the largest part. Each grouping has the sizes
    reported so far. If a task of a device is lost, the device is left out until it reports again.
    Tiers by latency (``tiers_from``) are skipped, as they do not depend on sizes.
    """
    tiers_by_latency = run.scenario.get("strategy", {}).get("tiers_from") == "latency"
    table = run.table(DEVICES).select(["device", "samples"])
    sample_counts = dict(zip(*map(as_list, table.columns), strict=True))
    reported_sizes: dict[int, int] = {}  # device -> size; 0 after a lost task, until a new report
    groupings = []
    kinds = ("task-end", "split", "cluster", "tiers")
    columns = ("kind", "device", "round", "outcome", "data")
    for kind, device, number, outcome, text in run.events_of(kinds, columns):
        is_report = kind == "task-end" and number is None and outcome == "done"
        is_lost = kind == "task-end" and outcome in ("lost", "left", "battery")
        if is_report:
            reported_sizes[device] = sample_counts[device]
        elif is_lost:
            reported_sizes[device] = 0
        elif kind == "split":
            reported_sizes[device] = max(parse_json(text)["sizes"])
        elif kind == "cluster" or (kind == "tiers" and not tiers_by_latency):
            sizes = np.array([size for size in reported_sizes.values() if size], dtype=np.int64)
            groupings.append(_read_grouping(parse_json(text), number or 0, sizes))
    return groupings


def _read_grouping(data: RecordData, number: int, sizes: Ints) -> ReportedGrouping:
    """Return the grouping that a record describes.

    Args:
        data: data of the record: ``members``, and ``bounds`` for clusters or ``bins`` for tiers.
        number: index of the round.
        sizes: data sizes that devices have reported (samples), int64 [n].
    """
    members = tuple(int(count) for count in data["members"])
    if "bounds" in data:
        word = "cluster"
        low, high = data["bounds"]
    else:
        word = "tier"
        low, width = data.get("bins", (0.0, 0.0))
        high = low + width * len(members)
    return ReportedGrouping(word, number, float(low), float(high), members, sizes)


@style.styled
def draw_clusters(run: RunFolder) -> Figure:
    """Draw the first and the last grouping of devices by the sizes of their data.

    A grouping is drawn as a histogram of the sizes that devices reported, with the borders of the
    groups, their counts of members, and outliers. TiFL's tiers by size are such groups, too.

    Raises:
        NothingToDrawError: the run has no groups by data size.
    """
    groupings = [grouping for grouping in read_groupings(run) if len(grouping.sizes)]
    if not groupings:
        raise style.NothingToDrawError(
            f"{str(run.path)!r} has no clusters or tiers by data size, so there are none to draw"
        )
    first = groupings[0]
    last = groupings[-1]
    drawn = {"at first": first}
    if last is not first:
        drawn["last"] = last
    figure = Figure(figsize=(style.WIDTH_IN, 2.6 + 2.4 * len(drawn)))
    panels = figure.subplots(len(drawn), 1, squeeze=False)[:, 0]
    sizes = np.concatenate([grouping.sizes for grouping in drawn.values()])
    width = max(1, int(np.ceil(np.ptp(sizes) / _BARS)))
    bars = np.arange(sizes.min(), sizes.max() + width + 1, width) - 0.5
    top = 1.12 * max(np.histogram(grouping.sizes, bars)[0].max() for grouping in drawn.values())
    for panel, (moment, grouping) in zip(panels, drawn.items(), strict=True):
        _draw_sizes(panel, grouping, bars, top)
        title = f"{moment}, for round {grouping.round}: {_describe(grouping)}"
        panel.set_title(title, fontsize=11, loc="left")
    panel.set_xlabel("samples that a device has reported: all it has, or its largest part")
    handles: list[Artist] = [Line2D([], [], label=f"{first.word}s' borders", **_BORDER)]
    if first.outliers.any() or last.outliers.any():
        label = f"outliers: in the first or last {first.word}"
        handles.append(Line2D([], [], label=label, **_OUTLIER))
    return style.finish(figure, [run], handles)


def _describe(grouping: ReportedGrouping) -> str:
    """Return a text with the counts of devices, groups and outliers."""
    devices = counted(len(grouping.sizes), "device")
    groups = counted(len(grouping.members), grouping.word)
    outliers = counted(int(grouping.outliers.sum()), "outlier")
    return f"{devices} in {groups}, {outliers}"


def _draw_sizes(panel: Axes, grouping: ReportedGrouping, bars: Floats, top: float) -> None:
    """Draw a histogram of sizes, stacked by group, with borders and outliers.

    Args:
        panel: the panel.
        grouping: the grouping.
        bars: edges of the histogram's bars (samples).
        top: upper end of the vertical axis (devices).
    """
    members = [grouping.sizes[grouping.groups == group] for group in range(len(grouping.members))]
    colours = [_PALETTE[group % len(_PALETTE)] for group in range(len(members))]
    tops, *_ = panel.hist(members, bars.tolist(), stacked=True, color=colours)
    heights = np.atleast_2d(tops)[-1]  # the last group is on top of each stacked bar
    bar_width = bars[1] - bars[0]
    limits = (bars[0] - bar_width, bars[-1] + bar_width)
    panel.set(xlim=limits, ylim=(0, top), ylabel="devices")
    style.set_whole_ticks(panel.yaxis, 5)
    style.set_whole_ticks(panel.xaxis, 9)
    style.draw_verticals([panel], grouping.edges, gid="borders", **_BORDER)
    outliers = np.unique(grouping.sizes[grouping.outliers])
    bars_of_outliers = np.searchsorted(bars, outliers) - 1
    y = heights[bars_of_outliers] + top * 0.03
    style.draw_markers(panel, outliers, y, gid="outliers", **_OUTLIER)
    _name_groups(panel, grouping)


def _name_groups(panel: Axes, grouping: ReportedGrouping) -> None:
    """Write index and count of members above each group.

    If all sizes are equal, only the last group has the text.
    """
    middles = (grouping.edges[:-1] + grouping.edges[1:]) / 2
    groups = range(len(middles))
    if grouping.high <= grouping.low:
        groups = groups[-1:]
    above = panel.secondary_xaxis("top")
    above.set_xticks(
        [middles[group] for group in groups],
        [f"{group}\n{grouping.members[group]:,}" for group in groups],
    )
    above.tick_params(length=0, pad=1, labelsize=9)
    above.spines["top"].set_visible(False)
    panel.annotate(
        f"{grouping.word}\ndevices",
        (0, 1),
        (-6, 2.5),
        fontsize=9,
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right",
    )
