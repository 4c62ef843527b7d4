"""What runs moved in total, by purpose, side by side: as it really moved, and as the papers count it."""

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.analysis.series import Series, group_by_scenario
from fedsim.language.units import show_bytes
from fedsim.records.folder import TRANSFERS
from fedsim.records.ledger import NOT_IN_PAPER
from fedsim.records.reading import RunFolder

_FIXED = {"model": style.SKY, "update": style.BLUE}  # what nearly every strategy sends looks the same in every picture
_HUES = (style.GREEN, style.ORANGE, style.PURPLE, style.VERMILLION, style.YELLOW, "#332288", "#882255", "#999933")
_SEEN = 0.003  # of the longest bar: less is thinner than a line
_VIEWS = {"strict": "everything that moved (strict)", "paper": "models and updates only, as the papers count (paper)"}


@style.styled
def draw_purposes_compared(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """A bar a scenario, stacked by purpose, both ways together, in the ledger's two views: ``strict`` and ``paper``.

    Of several seeds the bar is the mean, and a line at its end goes from the least to the most. Where all runs send updates of
    one size, an axis above counts in models of that size. Runs of one scenario are a series, unless ``series`` says which are.

    Raises:
        NothingToDrawError: none of the runs moved any bytes.
        RunFolderError: a folder is damaged.
    """
    series = group_by_scenario(runs) if series is None else series
    table = [pd.DataFrame([run.summary["bytes"]["by_purpose"] for run in one.runs], dtype=float).fillna(0.0) for one in series]
    if not any(seeds.to_numpy().sum() for seeds in table):
        raise style.NothingToDrawError("none of these runs moved any bytes, so there is no traffic to draw")
    means = pd.DataFrame([seeds.mean() for seeds in table]).fillna(0.0)
    colours = _colours(means)
    most = max(float(seeds.sum(axis=1).max()) for seeds in table)
    unit, model = style.bytes_unit(most), _model_bytes(runs)
    figure = Figure(figsize=(style.WIDTH_IN, 2.6 + 0.5 * len(series)))
    panels = figure.subplots(1, 2, sharey=True, sharex=True)
    for panel, view in zip(panels, _VIEWS, strict=True):
        kept = [purpose for purpose in colours if view == "strict" or purpose not in NOT_IN_PAPER]
        for place, seeds in enumerate(table):
            _draw_bar(panel, place, seeds.reindex(columns=kept, fill_value=0.0), colours, unit)
        panel.set_title(_VIEWS[view], fontsize=11)
        panel.set_xlabel(f"moved in total, down and up ({unit.name})")
        panel.xaxis.set_major_locator(MaxNLocator(nbins=7))
        if model:
            above = panel.secondary_xaxis("top", functions=(lambda x: x * unit.size / model, lambda x: x * model / unit.size))
            above.set_xlabel(f"in models of {show_bytes(model)}", fontsize=9)
            above.xaxis.set_major_locator(MaxNLocator(nbins=6))
            above.xaxis.set_major_formatter("{x:,g}")
            above.tick_params(labelsize=9)
    panels[0].set_yticks(range(len(series)), [one.label for one in series])
    panels[0].set_ylim(len(series) - 0.5, -0.5)
    panels[0].set_xlim(0, most / unit.size * 1.22)  # room for what is written beside the bars
    figure.suptitle(style.headline_of(runs))
    shown = dict.fromkeys(colours.values())
    named = {colour: [purpose for purpose, own in colours.items() if own == colour] for colour in shown}
    labels = [
        style.short(own[0], 24) if colour != style.GREY else f"others: {style.short(', '.join(own), 60)}"
        for colour, own in named.items()
    ]
    style.legend_below(figure, [Patch(facecolor=colour) for colour in named], labels)
    return figure


def _draw_bar(panel: Axes, place: int, seeds: pd.DataFrame, colours: dict[str, str], unit: style.Unit) -> None:
    """One bar of means, with the range of the seeds' totals; ``seeds`` has a row a run and a column a purpose, in bytes."""
    base = 0.0
    for purpose in seeds.columns:
        part = float(seeds[purpose].mean()) / unit.size
        if part:
            panel.barh(place, part, left=base, height=0.6, color=colours[str(purpose)], gid=str(purpose))
            base += part
    totals = seeds.sum(axis=1) / unit.size
    end = float(totals.max())
    if totals.min() < totals.max():
        panel.plot([totals.min(), totals.max()], [place, place], color=style.BLACK, linewidth=1.4, marker="|", markersize=7)
    panel.annotate(show_bytes(base * unit.size), (end, place), (6, 0), textcoords="offset points", va="center", fontsize=10)


def _colours(means: pd.DataFrame) -> dict[str, str]:
    """A colour a purpose: models and updates first, then the largest; those that nobody could see share grey."""
    sums = means.sum().sort_values(ascending=False, kind="stable")
    seen = means.max() >= _SEEN * means.sum(axis=1).max()
    others = sorted((str(purpose) for purpose in sums.index if purpose not in _FIXED), key=lambda name: not seen[name])
    count = sum(bool(seen[name]) for name in others)
    hues = dict(zip(others, [*_HUES[:count], *[style.GREY] * len(others)], strict=False))
    return {purpose: colour for purpose, colour in (_FIXED | hues).items() if sums.get(purpose, 0.0) > 0}


def _model_bytes(runs: Sequence[RunFolder]) -> float | None:
    """The size of an update (bytes), if all that any of the runs sent are of one size."""
    sizes: set[float] = set()
    for run in runs:
        texts = np.unique(run.table(TRANSFERS).column("payloads").to_numpy().astype(str))
        sizes |= {float(size) for text in texts for purpose, size in json.loads(text) if purpose == "update"}
    return sizes.pop() if len(sizes) == 1 else None
