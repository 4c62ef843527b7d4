"""Means of updates."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from fedsim.strategies.parts.aggregation import Aggregation, Entry


class Weighted(Aggregation):
    """The mean weighted by training samples (McMahan et al., 2017); the plain mean where nobody has any."""

    kind: Literal["weighted"] = "weighted"

    def weights(self, entries: Sequence[Entry]) -> list[float]:
        total = sum(entry["samples"] for entry in entries)
        return [entry["samples"] / total if total else 1 / len(entries) for entry in entries]


class Mean(Aggregation):
    """The plain mean."""

    kind: Literal["mean"] = "mean"

    def weights(self, entries: Sequence[Entry]) -> list[float]:
        return [1 / len(entries)] * len(entries)


class First(Aggregation):
    """The update of the client that was asked first (what the published code of FlexCFL does for its IFCA and FeSEM)."""

    uses_weights: ClassVar[bool] = False

    kind: Literal["first"] = "first"

    @property
    def looks_at_each(self) -> str | None:
        return "the aggregation 'first' takes a single update; allowed are 'weighted' and 'mean'"

    def weights(self, entries: Sequence[Entry]) -> list[float]:
        first = min(entry["task"] for entry in entries)
        return [float(entry["task"] == first) for entry in entries]
