"""What the aggregations share that bear with malicious updates: each is a pure function of the updates that are finite."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fedsim.federation.server import Server
from fedsim.learning.functions import Function
from fedsim.strategies.parts.aggregation import Aggregation, Entry, Protection

if TYPE_CHECKING:
    from fedsim.learning import Ref


class Comparing(Aggregation):
    """Samples make no difference: a malicious client could say any number."""

    protection: ClassVar[Protection | None] = "robust"
    uses_weights: ClassVar[bool] = False

    @property
    def looks_at_each(self) -> str | None:
        return f"the aggregation {self.kind!r} compares single updates; allowed are 'weighted' and 'mean'"

    def weights(self, entries: Sequence[Entry]) -> list[float]:
        return [1 / len(entries)] * len(entries)

    def told(self, updates: int) -> dict[str, int]:
        """``bears``: how many malicious updates it bears, where that is less than was asked for: with one or two none."""
        return {"bears": 0} if updates <= 2 else {}

    async def total(self, server: Server, models: Sequence["Ref"], share: float) -> "list[tuple[Ref, float]]":
        entries: list[Entry] = [{"update": model} for model in models]
        if not entries:
            return []
        weights = await self.weigh(server, entries, self.weights(entries))
        return [(self.combine(server, {}, entries, weights, server.zero()), share * len(entries))]


class Robust(Comparing):
    """One whose algorithm says its ``rule``."""

    def rule(self) -> tuple[Function, dict[str, Any]]:
        """The pure function of the finite updates, in order of arrival, and its constants."""
        raise NotImplementedError

    def combine(
        self, server: Server, state: dict[str, Any], entries: Sequence[Entry], weights: Sequence[float], otherwise: "Ref"
    ) -> "Ref":
        function, constants = self.rule()
        return server.apply(function, [entry["update"] for entry in entries], otherwise=otherwise, leave_out=True, **constants)
