"""Means with intervals, and claims with verdicts, as the studies' reports print them."""

from collections.abc import Sequence

from fedsim.compare.paired import paired_difference

CLAIMS = (
    "Each claim says that a difference, seed by seed in the same worlds, is above 0. It *holds* if the whole 95 % interval",
    "is above 0, *holds in part* if only the mean is, and *does not hold* otherwise.",
)


def shown(values: Sequence[float], digits: int = 2) -> str:
    """Mean +- half the 95 % interval; the mean alone of one value."""
    difference = paired_difference(values, [0.0] * len(values))
    mean = f"{difference.mean:.{digits}f}"
    return mean if len(values) < 2 else f"{mean} +- {difference.high - difference.mean:.{digits}f}"


def claim_cells(text: str, above: Sequence[float], below: Sequence[float], unit: str) -> str:
    """A claim as cells of a Markdown row: its text, the difference, the interval and the verdict."""
    difference = paired_difference(above, below)
    interval = "none: one seed" if difference.pairs < 2 else f"{difference.low:.3g} to {difference.high:.3g}"
    verdict = "not judged: one seed" if difference.pairs < 2 else difference.verdict
    return f"{text} | {f'{difference.mean:.3g} {unit}'.strip()} | {interval} | {verdict} |"
