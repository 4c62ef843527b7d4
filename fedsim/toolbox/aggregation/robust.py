"""Aggregations that tolerate malicious updates.

Sample counts are ignored, since a malicious client could report any.
"""

import itertools
import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.arrays import Floats
from fedsim.common.errors import ScenarioError
from fedsim.federation import Server
from fedsim.federation.codecs import Codec
from fedsim.learning.functions import Function, pure
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import Aggregation, Entry, Protection
from fedsim.strategies.state import new_state

ModelList = list[NDArray[np.float32]]


class Robust(Aggregation):
    """Base of the robust aggregations: a ``function`` of the updates, or the mean of some.

    Without a ``function`` it is the mean of the updates to which ``weigh`` gives a weight.
    """

    function: ClassVar[Function | None] = None
    """The rule, of the finite updates in order of arrival and of all keys but ``kind``."""

    protection: ClassVar[Protection | None] = "robust"
    uses_weights: ClassVar[bool] = False
    by_coordinate: ClassVar[bool] = True
    """Whether each coordinate is decided by itself."""

    def why_not(self, codec: Codec) -> str | None:
        if self.by_coordinate and codec.sends < 0.5:
            return (
                "leaves out so much that most updates say nothing of a coordinate; allowed is "
                "share = 0.5 or more"
            )
        return None

    @property
    def looks_at_each(self) -> str | None:
        return (
            f"the aggregation {self.kind!r} compares single updates; allowed are 'weighted' and "
            "'mean'"
        )

    def told(self, updates: int) -> dict[str, int]:
        """``bears``, the number of malicious updates tolerated, if it is less than required."""
        return {"bears": 0} if updates <= 2 else {}

    async def total(
        self, server: Server, models: Sequence[Ref], share: float
    ) -> list[tuple[Ref, float]]:
        if not models:
            return []
        entries = [Entry.of({"update": model}) for model in models]
        weights = await self.weigh(server, entries, self.weights(entries))
        memory = new_state(self)
        combined = self.combine(server, memory, entries, weights, server.models.zero())
        return [(combined, share * len(entries))]

    def combine(
        self,
        server: Server,
        state: object,
        entries: Sequence[Entry],
        weights: Sequence[float],
        otherwise: Ref,
    ) -> Ref:
        function = type(self).function
        if function is None:
            return super().combine(server, state, entries, weights, otherwise)
        updates = [entry["update"] for entry in entries]
        keys = self.model_dump(exclude={"kind"})
        return server.models.apply(function, updates, otherwise=otherwise, leave_out=True, **keys)


@pure
def median(models: ModelList) -> NDArray[np.floating]:
    """The median of each coordinate, float32 [d]; of an even number the mean of the middle two."""
    return np.asarray(np.median(np.stack(models), axis=0))


class Median(Robust):
    """The median of each coordinate.

    Source: Yin et al., "Byzantine-robust distributed learning" (ICML 2018), Algorithm 1, option I.
    """

    kind: Literal["median"] = "median"
    function: ClassVar[Function | None] = median


def cut_off(share: float, updates: int) -> int:
    """Number of n updates cut off at either end: floor(share n), at least 1 if n is above 2."""
    return max(math.floor(share * updates + 1e-9), int(share > 0 and updates > 2))


@pure
def trimmed_mean(models: ModelList, share: float) -> NDArray[np.floating]:
    """The mean of each coordinate without ``cut_off`` values at either end, [d]."""
    cut = cut_off(share, len(models))
    middle = np.sort(np.stack(models), axis=0)[cut : len(models) - cut]
    return np.asarray(middle.mean(axis=0, dtype=np.float64))


class TrimmedMean(Robust):
    """The mean of each coordinate without its smallest and its largest values.

    Source: Yin et al. (see ``Median``), option II. A scenario is refused if ``share`` of a cohort
    is less than one update. If fewer updates arrive, one update is cut off at either end. One or
    two updates are not cut.
    """

    kind: Literal["trimmed-mean"] = "trimmed-mean"
    function: ClassVar[Function | None] = trimmed_mean
    share: float = Field(default=0.1, ge=0.0, lt=0.5)
    """beta, the part of the updates that is cut off at either end, rounded down to whole
    updates; 0: the plain mean.
    """

    def check(self, clients: int) -> None:
        if self.share and math.floor(self.share * clients + 1e-9) == 0:
            raise ScenarioError(
                f"strategy.aggregation.share is {self.share:g}, which is less than one of "
                f"{clients} clients a round, so that "
                "nothing would be cut off; allowed are shares from "
                f"{math.ceil(1000 / clients) / 1000:g} to below 0.5, and at "
                "least 3 clients"
            )


def squared_distances(models: ModelList) -> Floats:
    """||u_i - u_j||^2 of all pairs, float64 [n, n]."""
    distances = np.zeros((len(models), len(models)))
    for row, column in itertools.combinations(range(len(models)), 2):
        difference = np.subtract(models[column], models[row], dtype=np.float64)
        distance = difference @ difference
        distances[row, column] = distance
        distances[column, row] = distance
    return distances


def scores(distances: Floats, malicious: int) -> Floats:
    """Krum's score of each update: the sum of its distances to the nearest updates, float64 [n].

    Args:
        distances: squared distances of the updates, [n, n].
        malicious: f; the n - f - 2 nearest updates count, at least one.
    """
    near = max(1, len(distances) - malicious - 2)
    to_itself = np.eye(len(distances), dtype=np.bool_)
    without_itself = np.where(to_itself, np.inf, distances)
    return np.asarray(np.sort(without_itself, axis=1)[:, :near].sum(axis=1))


class _ByDistance(Robust):
    """Selection of updates by their distances.

    With fewer updates than ``least`` the model stays, as no update could be trusted.
    """

    by_coordinate: ClassVar[bool] = False
    one: ClassVar[bool] = True
    """Whether the best update alone is taken."""
    least: ClassVar[tuple[int, int]] = (2, 3)
    """(a, b): of n updates f may be malicious if n >= a f + b."""

    malicious: int = Field(default=1, ge=0, le=1_000_000)
    """f, malicious updates that are tolerated."""

    def tolerated(self, updates: int) -> int:
        """f, or the largest number for which n updates are enough, at least 0."""
        a, b = self.least
        return max(0, min(self.malicious, (updates - b) // a))

    def taken(self, models: ModelList) -> list[int]:
        """Positions of the selected finite updates, at least one."""
        f = self.tolerated(len(models))
        # a stable sort prefers the first of equal scores
        order = np.argsort(scores(squared_distances(models), f), kind="stable")
        count = 1 if self.one else len(models) - f
        positions: list[int] = order[:count].tolist()
        return positions

    async def weigh(
        self, server: Server, entries: Sequence[Entry], weights: Sequence[float]
    ) -> Sequence[float]:
        """Equal weights for the selected updates, 0 for the rest; all 0 with too few updates for f.

        Without learning all weights stay as they are.
        """
        if not server.models.learns:
            return weights
        if self.told(len(entries)):
            return [0.0] * len(entries)
        models = await server.models.values([entry["update"] for entry in entries])
        finite = [place for place, model in enumerate(models) if np.isfinite(model).all()]
        server.compute("distances", len(finite), server.setting.parameters, len(finite))
        selected: set[int] = set()
        if finite:
            places = self.taken([models[place] for place in finite])
            selected = {finite[place] for place in places}
        return [1 / len(selected) if place in selected else 0.0 for place in range(len(entries))]

    def combine(
        self,
        server: Server,
        state: object,
        entries: Sequence[Entry],
        weights: Sequence[float],
        otherwise: Ref,
    ) -> Ref:
        if self.told(len(entries)):
            return otherwise
        return super().combine(server, state, entries, weights, otherwise)

    def told(self, updates: int) -> dict[str, int]:
        f = self.tolerated(updates)
        return {"bears": f} if f < self.malicious else {}

    def check(self, clients: int) -> None:
        a, b = self.least
        if clients < a * self.malicious + b:
            raise ScenarioError(
                f"strategy.aggregation.malicious is {self.malicious}; {self.kind!r} then needs "
                "at least "
                f"{a * self.malicious + b} updates at a time ({a} f + {b}), and there are "
                f"{clients}; allowed are at most "
                f"{self.tolerated(clients)}, or more clients"
            )


class Krum(_ByDistance):
    """The update with the least sum of distances to its n - f - 2 nearest updates.

    Source: Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient
    descent" (NeurIPS 2017), section 4.

    It tolerates f malicious updates of n >= 2 f + 3. With fewer in a round, or for a group, the
    model does not change, and the record ``aggregate`` has the tolerated number (``bears``).
    """

    kind: Literal["krum"] = "krum"


class MultiKrum(_ByDistance):
    """The mean of the n - f updates with the best scores of ``Krum``."""

    one: ClassVar[bool] = False
    kind: Literal["multi-krum"] = "multi-krum"


@pure
def bulyan(models: ModelList, malicious: int) -> NDArray[np.floating]:
    """The mean of each coordinate of the selected updates over n - 4 f values, float64 [d].

    The values are the nearest to the coordinate's median.
    """
    rule = Bulyan(malicious=malicious)
    selected = [models[place] for place in rule.taken(models)]
    values = np.sort(np.stack(selected), axis=0).astype(np.float64)
    by_distance = np.argsort(np.abs(values - np.median(values, axis=0)), axis=0, kind="stable")
    count = len(selected) - 2 * rule.tolerated(len(models))
    around = np.take_along_axis(values, by_distance[:count], axis=0)
    return np.asarray(around.mean(axis=0))


class Bulyan(_ByDistance):
    """Krum selects n - 2 f updates, one by one; a coordinate is the mean around their median.

    Source: El Mhamdi, Guerraoui and Rouault, "The hidden vulnerability of distributed learning in
    Byzantium" (ICML 2018), section 4. It tolerates f malicious updates of n >= 4 f + 3. With fewer
    the model does not change.
    """

    by_coordinate: ClassVar[bool] = True
    least: ClassVar[tuple[int, int]] = (4, 3)
    kind: Literal["bulyan"] = "bulyan"
    function: ClassVar[Function | None] = bulyan

    def taken(self, models: ModelList) -> list[int]:
        f = self.tolerated(len(models))
        remaining = list(range(len(models)))
        distances = squared_distances(models)
        selected = list[int]()
        for _ in range(len(models) - 2 * f):
            best = scores(distances[np.ix_(remaining, remaining)], f).argmin()
            selected.append(remaining.pop(int(best)))
        return selected
