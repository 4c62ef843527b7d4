"""Aggregations, which combine the updates of a cohort or group: the base class, and means."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedsim.common.errors import show_value
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.returns import find_outside, returns
from fedsim.common.spec import Spec
from fedsim.federation import Device, Server
from fedsim.federation.codecs import Codec
from fedsim.learning.refs import Ref
from fedsim.strategies.state import PartState
from fedsim.strategies.updates import Update

_HERE = "fedsim.strategies.parts.aggregation"
_TOOLS = "fedsim.toolbox.aggregation"
AGGREGATIONS = Registry(
    "aggregation",
    f"{_HERE}:Aggregation",
    {
        "weighted": (f"{_HERE}:Weighted", "the mean, weighted by training samples"),
        "mean": (f"{_HERE}:Mean", "the plain mean"),
        "first": (f"{_HERE}:First", "the update of the client that was asked first, alone"),
        "median": (f"{_TOOLS}.robust:Median", "the median of each coordinate"),
        "trimmed-mean": (
            f"{_TOOLS}.robust:TrimmedMean",
            "the mean of each coordinate without its smallest and largest values",
        ),
        "krum": (f"{_TOOLS}.robust:Krum", "the one update that is nearest to its nearest others"),
        "multi-krum": (
            f"{_TOOLS}.robust:MultiKrum",
            "the mean of the updates with the best scores of Krum",
        ),
        "bulyan": (
            f"{_TOOLS}.robust:Bulyan",
            "updates picked by Krum, then the mean of each coordinate around its median",
        ),
        "private": (
            f"{_TOOLS}.private:Private",
            "the mean of clipped changes with noise (DP-FedAvg), and its epsilon",
        ),
    },
    usual="weighted",
    key="strategy.aggregation",
)

Entry = Update
"""Type of a received update; a plain dict with the update's fields as keys works too."""
Protection = Literal["private", "robust"]
# (count of drawn clients, count of devices that they were drawn from) -> count of rounds
Draws = Mapping[tuple[int, int], int]

PROTECTS: dict[Protection, str] = {
    "private": "bounds how far one update can move a model",
    "robust": "bounds what malicious updates can do",
}


def changes(server: Server, entries: Sequence[Entry]) -> list[Ref]:
    """Return how each update has changed the model from which it was trained: update - start.

    The differences are computed when they are needed. A difference is not finite if its update is
    not.

    Args:
        server: API of the strategy's server code.
        entries: the updates, with ``update`` and ``start``.
    """
    return [
        server.models.mix([(entry["update"], 1.0), (entry["start"], -1.0)]) for entry in entries
    ]


def _find_wrong_weight(
    weights: Sequence[float],
    aggregation: object,
    entries: Sequence[Entry],
) -> str:
    numbers = np.asarray(weights)
    if numbers.shape != (len(entries),) or numbers.dtype.kind not in "iuf":
        return f"{show_value(weights)} for {len(entries)} updates"
    return find_outside()(numbers)


def _find_wrong_weighing(
    weighed: Sequence[float],
    aggregation: object,
    server: Server,
    entries: Sequence[Entry],
    weights: Sequence[float],
) -> str:
    return _find_wrong_weight(weighed, aggregation, entries)


def _find_wrong_parts(parts: Sequence[object], *_: object, **__: object) -> str:
    for part in parts:
        if not _is_part(part):
            return f"{show_value(part)} as a part"
    return ""


def _is_part(part: object) -> bool:
    """Whether an object is a pair of a model and a finite factor (a term of a weighted sum)."""
    if not isinstance(part, tuple) or len(part) != 2:
        return False
    model, factor = part
    return isinstance(model, Ref) and not find_outside()(factor)


class Aggregation(Spec):
    """Base of the rules by which the server combines updates into one model; by default their mean.

    A scenario names the rule by ``strategy.aggregation``.
    """

    protection: ClassVar[Protection | None] = None
    """The protection that the aggregation offers; None if it offers none.

    An aggregation with a protection is refused with strategies that also use updates outside the
    aggregation (``Reasons.against``).
    """

    uses_weights: ClassVar[bool] = True
    """Whether a strategy may multiply ``weights`` by further factors, such as for stale updates."""

    kind: str

    State: ClassVar[type[PartState]] = dict
    """Class of the aggregation's state for one model: a plain dict, or a subclass of ``State``."""

    former_hooks: ClassVar[Mapping[str, str]] = {
        "told": "record_fields",
        "looks_at_each": "why_single_updates",
    }
    """Former names of hooks, which are refused: former name -> present name."""

    @property
    def why_single_updates(self) -> str | None:
        """Reason why the server needs single updates, as text for the user; None if it does not.

        If there is a reason, ``secure_aggregation`` is refused, as it shows the server only sums of
        updates.
        """
        return None

    @property
    def accounts(self) -> bool:
        """Whether the aggregation keeps a privacy account: the privacy budget spent by all rounds.

        ``spent`` returns the budget. Such an aggregation is refused if the strategy or its
        selection reveals facts about clients' data that the account does not count.
        """
        return False

    def for_rounds_of(self, updates: int) -> "Aggregation":
        """Return the aggregation, adapted to the count of updates that a round expects.

        A private aggregation divides by this count, as the count of received updates is private
        too. By default the result is this object itself.

        Args:
            updates: count of updates in a round if no client disconnects.
        """
        return self

    def check(self, clients: int) -> None:
        """Check that the parameters of this rule work with the count of updates in a round.

        Args:
            clients: count of updates that are combined into one model.

        Raises:
            ScenarioError: a value does not work with ``clients`` updates.
        """

    def why_not(self, codec: Codec) -> str | None:
        """Return the reason why updates encoded by a codec cannot be aggregated by this rule.

        Args:
            codec: the codec of ``messages.up``, with which clients encode their updates.

        Returns:
            The reason, as text for the user; None if the updates can be aggregated.
        """
        return None

    @returns("a list of a finite number for each update", _find_wrong_weight)
    def weights(self, entries: Sequence[Entry]) -> list[float]:
        """Return the weight of each update, such as its share of all samples.

        The weights do not depend on the updates' values; ``weigh`` may change them by the values.

        Args:
            entries: the updates, as ``Synchronous.entry`` returns them; at least one.

        Returns:
            Weights that sum to 1, in the order of ``entries``.
        """
        return [1 / len(entries)] * len(entries)

    @returns("a list of a finite number for each update", _find_wrong_weighing)
    async def weigh(
        self, server: Server, entries: Sequence[Entry], weights: Sequence[float]
    ) -> Sequence[float]:
        """Return weights that depend on the updates' values; by default ``weights`` unchanged.

        Args:
            server: API of the strategy's server code.
            entries: the updates, as ``Synchronous.entry`` returns them.
            weights: the weights that the method ``weights`` has returned.

        Returns:
            A weight for each update; 0 for an update that is left out.
        """
        return weights

    def on_device(self, device: Device, update: Ref, start: Ref) -> Ref:
        """Change an update before the device sends it; by default it is unchanged.

        Args:
            device: the device on which this code runs, with its data and its state.
            update: the trained update.
            start: the model from which it was trained.
        """
        return update

    def combine(
        self,
        server: Server,
        state: PartState,
        entries: Sequence[Entry],
        weights: Sequence[float],
        otherwise: Ref,
    ) -> Ref:
        """Combine the finite updates into one model.

        Args:
            server: API of the strategy's server code, with ``models`` for arithmetic.
            state: state of the aggregation for this model, a ``State``.
            entries: the updates; at least one.
            weights: the weight of each update, as ``weigh`` has returned them.
            otherwise: the result if no update is finite.

        Returns:
            The combined model [d].
        """
        updates = [entry["update"] for entry in entries]
        return server.models.mix(list(zip(updates, weights, strict=True)), otherwise=otherwise)

    @returns("a list of pairs of a Ref and a finite number", _find_wrong_parts)
    async def total(
        self, server: Server, models: Sequence[Ref], share: float
    ) -> list[tuple[Ref, float]]:
        """Return ``share`` times the sum of models, as the parts of a linear combination.

        The models are, for example, the control variates of clients in SCAFFOLD. A robust
        aggregation returns a robust estimate of this sum.

        Args:
            server: API of the strategy's server code.
            models: the models.
            share: factor by which the sum is multiplied.

        Returns:
            Pairs of a model and a factor. The sum of all factors times their models is the result.
        """
        return [(model, share) for model in models]

    def record_fields(self, updates: int) -> dict[str, int]:
        """Return additional fields of the record ``aggregate``; by default an empty dict.

        Args:
            updates: count of the aggregated updates.
        """
        return {}

    def spent(self, draws: Draws, devices: int) -> dict[str, float]:
        """Return the privacy budget that all rounds so far have used, for the record of the round.

        Args:
            draws: (count of drawn clients, count of devices from which they were drawn uniformly)
                -> count of rounds so far with this draw. Rounds whose clients were not all drawn
                uniformly have the key (1, 1). They count as if each device was drawn with
                probability 1, because only a uniform draw reduces the budget that a round uses.
            devices: count of all devices.

        Returns:
            Field of the record ``round`` -> value, such as ``epsilon``; by default empty.
        """
        return {}


AggregationSpec = Annotated[Aggregation, KindField(AGGREGATIONS)]


class Weighted(Aggregation):
    """The mean weighted by training samples (McMahan et al., 2017).

    It is the plain mean if no client has samples.
    """

    kind: Literal["weighted"] = "weighted"

    def weights(self, entries: Sequence[Entry]) -> list[float]:
        total = sum(entry["samples"] for entry in entries)
        if not total:
            return super().weights(entries)
        return [entry["samples"] / total for entry in entries]


class Mean(Aggregation):
    """The plain mean of the updates."""

    kind: Literal["mean"] = "mean"


class First(Aggregation):
    """The update of the client that the server asked first; other updates are not used.

    FlexCFL's code of IFCA and FeSEM aggregates in this way.
    """

    uses_weights: ClassVar[bool] = False
    kind: Literal["first"] = "first"

    @property
    def why_single_updates(self) -> str | None:
        return "the aggregation 'first' takes a single update; allowed are 'weighted' and 'mean'"

    def weights(self, entries: Sequence[Entry]) -> list[float]:
        tasks = [entry["task"] for entry in entries]
        return [float(task == min(tasks)) for task in tasks]
