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

from fedsim.common.arrays import Floats, Floats32
from fedsim.common.errors import ScenarioError
from fedsim.federation import Server
from fedsim.federation.codecs import Codec
from fedsim.learning.functions import Function, pure
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import Aggregation, Entry, Protection
from fedsim.strategies.state import new_state

_TOLERATED = "bears"  # field of the record ``aggregate``: count of tolerated malicious updates
_SPARE_UPDATES = 3  # b in the rule that f of n updates may be malicious if n >= a f + b


class Robust(Aggregation):
    """Base of aggregations that tolerate malicious updates. All updates have equal weight.

    A subclass either sets ``function``, which computes the result from all finite updates, or
    overrides ``weigh``, which selects updates; the result is then the mean of the selected updates.
    """

    function: ClassVar[Function | None] = None
    """Pure function that computes the model from the finite updates, in order of arrival.

    All keys of the aggregation except ``kind`` are keyword arguments of the function.
    """

    protection: ClassVar[Protection | None] = "robust"
    uses_weights: ClassVar[bool] = False
    by_coordinate: ClassVar[bool] = True
    """Whether each coordinate of the result depends only on this coordinate of the updates."""

    def why_not(self, codec: Codec) -> str | None:
        if self.by_coordinate and codec.sent_share < 0.5:
            return (
                "leaves out so much that most updates say nothing of a coordinate; allowed is "
                "share = 0.5 or more"
            )
        return None

    @property
    def why_single_updates(self) -> str | None:
        return (
            f"the aggregation {self.kind!r} compares single updates; allowed are 'weighted' and "
            "'mean'"
        )

    def record_fields(self, updates: int) -> dict[str, int]:
        """Return the fields that this rule adds to the record ``aggregate`` of the run's events.

        Args:
            updates: count of received updates.

        Returns:
            An empty dict if enough updates were received. Otherwise ``bears``, the count of
            malicious updates that can be tolerated among the few received ones. By default one or
            two updates are too few, with ``bears`` 0; subclasses may need more updates.
        """
        return {_TOLERATED: 0} if updates <= 2 else {}

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
        """Compute the result by ``function``, or without it as the mean weighted by ``weights``.

        Args:
            server: the run's server.
            state: state of the aggregation; not used.
            entries: the received updates.
            weights: the weights that ``weigh`` has returned; not used by ``function``.
            otherwise: the present model, which is the result if no update is finite.
        """
        function = type(self).function
        if function is None:
            return super().combine(server, state, entries, weights, otherwise)
        updates = [entry["update"] for entry in entries]
        keys = self.model_dump(exclude={"kind"})  # such as ``share`` or ``malicious``
        return server.models.apply(function, updates, otherwise=otherwise, leave_out=True, **keys)


@pure
def median(models: list[Floats32]) -> NDArray[np.floating]:
    """Compute the median of each coordinate of several models.

    Args:
        models: the models, [d] each. If their count is even, the median is the mean of the two
            middle values.

    Returns:
        The medians, float32 [d].
    """
    return np.asarray(np.median(np.stack(models), axis=0))


class Median(Robust):
    """The median of each coordinate of the updates.

    Source: Yin et al., "Byzantine-robust distributed learning" (ICML 2018), Algorithm 1, option I.
    """

    kind: Literal["median"] = "median"
    function: ClassVar[Function | None] = median


def cut_off(share: float, updates: int) -> int:
    """Return how many values a trimmed mean leaves out at each end of n sorted values.

    The count is floor(share n), but at least 1 if n is above 2 and ``share`` is above 0.

    Args:
        share: share of the values, 0 to below 0.5.
        updates: n.
    """
    least = 1 if share > 0 and updates > 2 else 0
    # 1e-9 undoes rounding: 0.29 * 100 is 28.999999999999996
    return max(math.floor(share * updates + 1e-9), least)


@pure
def trimmed_mean(models: list[Floats32], share: float) -> NDArray[np.floating]:
    """Compute the mean of each coordinate of models, without its smallest and largest values.

    Args:
        models: the n models, [d] each.
        share: share of the n values of a coordinate that is left out at either end, rounded down.
            If n is above 2 and ``share`` above 0, at least one value is left out at either end.

    Returns:
        The trimmed means, float64 [d].
    """
    cut = cut_off(share, len(models))
    middle = np.sort(np.stack(models), axis=0)[cut : len(models) - cut]
    return np.asarray(middle.mean(axis=0, dtype=np.float64))


class TrimmedMean(Robust):
    """The mean of each coordinate without its smallest and its largest values.

    Source: Yin et al., "Byzantine-robust distributed learning" (ICML 2018), Algorithm 1, option II.
    Of the n values of a coordinate, ``share`` n, rounded down, are left out at either end. A
    ``share`` above 0 is refused if this number is 0 for the planned count of clients of a round. If
    the number is 0 in a round, as few updates have arrived, one value is left out at either end. If
    only one or two updates have arrived, the result is their mean.

    Attributes:
        share: beta, the share of the values that is left out at either end, 0 to below 0.5; 0: the
            plain mean.
    """

    kind: Literal["trimmed-mean"] = "trimmed-mean"
    function: ClassVar[Function | None] = trimmed_mean
    share: float = Field(default=0.1, ge=0.0, lt=0.5)

    def check(self, clients: int) -> None:
        if self.share and math.floor(self.share * clients + 1e-9) == 0:
            least_share = math.ceil(1000 / clients) / 1000  # rounded up to three digits
            raise ScenarioError(
                f"strategy.aggregation.share is {self.share:g}, which is less than one of "
                f"{clients} clients a round, so that nothing would be cut off; allowed are shares "
                f"from {least_share:g} to below 0.5, and at least 3 clients"
            )


def squared_distances(models: list[Floats32]) -> Floats:
    """Compute the squared Euclidean distances ||u_i - u_j||^2 of all pairs of models.

    Args:
        models: the models u_i, [d] each.

    Returns:
        Symmetric matrix, float64 [n, n].
    """
    distances = np.zeros((len(models), len(models)))
    for row, column in itertools.combinations(range(len(models)), 2):
        difference = np.subtract(models[column], models[row], dtype=np.float64)
        distance = difference @ difference
        distances[row, column] = distance
        distances[column, row] = distance
    return distances


def scores(distances: Floats, malicious: int) -> Floats:
    """Compute Krum's score of each update, the sum of squared distances to its nearest updates.

    Args:
        distances: squared distances of all pairs of updates, [n, n].
        malicious: f, the count of malicious updates to tolerate. The distances to the n - f - 2
            nearest other updates are summed, at least one.

    Returns:
        Scores, float64 [n]; a low score is good.
    """
    neighbours = max(1, len(distances) - malicious - 2)
    to_itself = np.eye(len(distances), dtype=np.bool_)
    without_itself = np.where(to_itself, np.inf, distances)
    nearest = np.sort(without_itself, axis=1)[:, :neighbours]
    return np.asarray(nearest.sum(axis=1))


class _ByDistance(Robust):
    """Base of robust aggregations that select updates by their pairwise distances.

    The result is the selected update, or the mean of the selected ones. If too few updates arrive
    to tolerate ``malicious`` malicious ones, the model does not change.

    Attributes:
        malicious: f, malicious updates that are tolerated.
    """

    by_coordinate: ClassVar[bool] = False
    selects_one: ClassVar[bool] = True
    """Whether only the update with the best score is selected."""
    updates_per_malicious: ClassVar[int] = 2
    """a, the factor in the rule that f of n updates may be malicious if n >= a f + 3."""

    malicious: int = Field(default=1, ge=0, le=1_000_000)

    def tolerated(self, updates: int) -> int:
        """Return how many of n updates may be malicious without spoiling the result.

        Args:
            updates: n.

        Returns:
            The count, from 0 to ``self.malicious``.
        """
        most = (updates - _SPARE_UPDATES) // self.updates_per_malicious
        return max(0, min(self.malicious, most))

    def _are_too_few(self, updates: int) -> bool:
        """Return whether a round with this count of updates leaves the model unchanged."""
        return self.tolerated(updates) < self.malicious

    def select(self, models: list[Floats32]) -> list[int]:
        """Select updates by Krum's scores, sums of squared distances to the nearest updates.

        Only the update with the best score is selected, or the n - f best ones if
        ``self.selects_one`` is false, f being the count of malicious updates that are tolerated.

        Args:
            models: the n finite updates, [d] each.

        Returns:
            Positions in ``models``, at least one, the best score first.
        """
        f = self.tolerated(len(models))
        # A stable sort prefers the first of equal scores.
        order = np.argsort(scores(squared_distances(models), f), kind="stable")
        count = 1 if self.selects_one else len(models) - f
        positions: list[int] = order[:count].tolist()
        return positions

    async def weigh(
        self, server: Server, entries: Sequence[Entry], weights: Sequence[float]
    ) -> Sequence[float]:
        """Return equal weights for the selected updates, and 0 for all other updates.

        If there are too few updates to tolerate ``self.malicious`` malicious ones, all weights are
        0. In runs without learning ``weights`` is returned. The server is charged the time to
        compute distances.

        Args:
            server: the run's server.
            entries: the received updates.
            weights: the weight of each update without this selection.
        """
        updates = [entry["update"] for entry in entries]
        if not server.models.learns:
            # for the memory forecast of ``fedsim check``, whose trial has no weights
            await server.models.note_skipped(updates)
            return weights
        if self._are_too_few(len(entries)):
            return [0.0] * len(entries)
        models = await server.models.values(updates)
        finite_models = []
        entry_of = []  # for each finite model the position of its update in ``entries``
        for position, model in enumerate(models):
            if np.isfinite(model).all():
                finite_models.append(model)
                entry_of.append(position)
        count = len(finite_models)
        server.compute("distances", count, server.setting.parameters, count)
        equal_weights = [0.0] * len(entries)
        if finite_models:
            selected = self.select(finite_models)  # positions in ``finite_models``
            for position in selected:
                equal_weights[entry_of[position]] = 1 / len(selected)
        return equal_weights

    def combine(
        self,
        server: Server,
        state: object,
        entries: Sequence[Entry],
        weights: Sequence[float],
        otherwise: Ref,
    ) -> Ref:
        if self._are_too_few(len(entries)):
            return otherwise
        return super().combine(server, state, entries, weights, otherwise)

    def record_fields(self, updates: int) -> dict[str, int]:
        if self._are_too_few(updates):
            return {_TOLERATED: self.tolerated(updates)}
        return {}

    def check(self, clients: int) -> None:
        needed = self.updates_per_malicious * self.malicious + _SPARE_UPDATES
        if clients < needed:
            formula = f"{self.updates_per_malicious} f + {_SPARE_UPDATES}"
            raise ScenarioError(
                f"strategy.aggregation.malicious is {self.malicious}; {self.kind!r} then needs "
                f"at least {needed} updates at a time ({formula}), and there are {clients}; "
                f"allowed are at most {self.tolerated(clients)}, or more clients"
            )


class Krum(_ByDistance):
    """The update with the least sum of squared distances to its n - f - 2 nearest updates.

    Source: Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient
    descent" (NeurIPS 2017), section 4.

    n is the count of received updates, and f = ``malicious`` the count of malicious updates that
    are tolerated, for which n must be at least 2 f + 3. If fewer updates arrive in a round, the
    model does not change. With a model for each group of devices, n is counted for each group. The
    field ``bears`` of the record ``aggregate`` then has the count of malicious updates that n
    updates could tolerate.
    """

    kind: Literal["krum"] = "krum"


class MultiKrum(_ByDistance):
    """The mean of the n - f updates with the best scores of ``Krum``, of n received updates.

    An update's score is the sum of squared distances to its n - f - 2 nearest updates; a low score
    is good. f is ``malicious``, the number of malicious updates to tolerate. If n is below 2 f + 3,
    the model does not change.
    """

    selects_one: ClassVar[bool] = False
    kind: Literal["multi-krum"] = "multi-krum"


@pure
def bulyan(models: list[Floats32], malicious: int) -> NDArray[np.floating]:
    """Compute the aggregate of n updates by the rule Bulyan, which tolerates malicious updates.

    Krum's score selects n - 2 f updates. Each coordinate of the result is the mean of the n - 4 f
    selected values that are nearest to the median of the coordinate.

    Args:
        models: the n updates, of finite values, [d] each.
        malicious: f, the count of malicious updates to tolerate. If n < 4 f + 3, the greatest count
            that n allows takes its place.

    Returns:
        The aggregate, float64 [d].
    """
    rule = Bulyan(malicious=malicious)
    selected = [models[index] for index in rule.select(models)]
    # sorted, so that the result does not depend on the order of the updates
    values = np.sort(np.stack(selected), axis=0).astype(np.float64)
    from_median = np.abs(values - np.median(values, axis=0))
    order = np.argsort(from_median, axis=0, kind="stable")  # nearest first, by coordinate
    kept = len(selected) - 2 * rule.tolerated(len(models))  # n - 4 f
    nearest = np.take_along_axis(values, order[:kept], axis=0)
    return np.asarray(nearest.mean(axis=0))


class Bulyan(_ByDistance):
    """A mean, around the median of each coordinate, of the n - 2 f updates that Krum selects.

    Krum selects the updates one by one: each time the remaining update with the least sum of
    squared distances to its nearest remaining updates. Each coordinate of the result is the mean of
    the n - 4 f selected values that are nearest to their median.

    Source: El Mhamdi, Guerraoui and Rouault, "The hidden vulnerability of distributed learning in
    Byzantium" (ICML 2018), section 4. Of n received updates f = ``malicious`` may be malicious if n
    >= 4 f + 3. If fewer updates arrive, the model does not change.
    """

    by_coordinate: ClassVar[bool] = True
    updates_per_malicious: ClassVar[int] = 4
    kind: Literal["bulyan"] = "bulyan"
    function: ClassVar[Function | None] = bulyan

    def select(self, models: list[Floats32]) -> list[int]:
        """Select n - 2 f of n updates one by one, each time by the best of Krum's scores.

        The scores are computed anew from the updates that remain.

        Args:
            models: the n finite updates, [d] each.

        Returns:
            Positions in ``models``, in the order of selection.
        """
        f = self.tolerated(len(models))
        remaining = list(range(len(models)))
        distances = squared_distances(models)
        selected = list[int]()
        for _ in range(len(models) - 2 * f):
            best = int(scores(distances[np.ix_(remaining, remaining)], f).argmin())
            selected.append(remaining.pop(best))
        return selected
