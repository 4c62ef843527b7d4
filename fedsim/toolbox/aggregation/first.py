"""The aggregation that takes one update."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from fedsim.strategies.parts.aggregation import Aggregation, Entry


class First(Aggregation):
    """The update of the client that was asked first (what the published code of FlexCFL does for its IFCA and FeSEM)."""

    uses_weights: ClassVar[bool] = False
    kind: Literal["first"] = "first"

    @property
    def looks_at_each(self) -> str | None:
        return "the aggregation 'first' takes a single update; allowed are 'weighted' and 'mean'"

    def weights(self, entries: Sequence[Entry]) -> list[float]:
        tasks = [entry["task"] for entry in entries]
        return [float(task == min(tasks)) for task in tasks]
