"""REFL: late updates are used too, with weights by staleness (Abdelmoniem et al., 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.arrays import Floats
from fedsim.common.spec import OnlyWith
from fedsim.federation import TaskEnd
from fedsim.learning.functions import weighted_sum
from fedsim.strategies.fedavg import FedAvg, FedAvgState
from fedsim.strategies.parts.aggregation import AggregationSpec, Entry, Mean, changes
from fedsim.strategies.parts.selection import SelectionSpec
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.round_params import AggregatingParams
from fedsim.strategies.traits import Traits
from fedsim.toolbox.selection.least import LeastAvailable

_CLOSE_LATE = "close-late"
"""Name of the timer that closes a round whose open tasks are late."""


class REFLParams(AggregatingParams):
    """Keys of ``[strategy]`` for REFL: the weights of updates that arrive after their round.

    ``AggregatingParams`` describes the keys of all strategies with rounds and aggregation. A stale
    update arrives after its round; its deviation Lambda is how far it would move the mean of the
    updates that are in time.

    Attributes:
        beta: share, 0 to 1, of the term by deviation in a stale update's weight; the term by
            staleness (in rounds) has the rest.
        stale_weights: weights of stale updates: ``boosted``, by deviation and staleness, as in the
            paper; ``equal``, as fresh updates.
        boost_scale: divisor of the exponential in the term by deviation, 1 - exp(-Lambda /
            Lambda_max) / ``boost_scale``, with Lambda_max the largest deviation in the round: 1 in
            the paper, 10 in the published code.
        aggregation: by default the plain mean, as in the paper; its weights are multiplied by the
            weights of stale updates.
        selection: by default the least available clients first.
    """

    traits: ClassVar[Traits] = Traits(late_goes_on=True)
    why_not: ClassVar[Reasons] = Reasons(sum_alone="REFL compares late updates with others")

    kind: Literal["refl"] = "refl"
    beta: Annotated[float, OnlyWith("stale_weights", values=("boosted",))] = Field(
        default=0.35, ge=0.0, le=1.0
    )
    stale_weights: Literal["boosted", "equal"] = "boosted"
    boost_scale: Annotated[float, OnlyWith("stale_weights", values=("boosted",))] = Field(
        default=1.0, ge=1.0, le=1e6
    )
    aggregation: AggregationSpec = Mean()
    selection: SelectionSpec = LeastAvailable()

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if self.stale_weights == "boosted" and not self.aggregation.uses_weights:
            raise ValueError(
                f"'aggregation' is {self.aggregation.kind!r}, in which weights do not count, "
                f"and 'stale_weights' is {self.stale_weights!r}; allowed are 'weighted' and "
                "'mean', or stale_weights = 'equal'"
            )
        return self


def weights_by_staleness(staleness: Sequence[int]) -> list[float]:
    """Compute the weight 1 / (tau + 1) of each stale update, relative to 1 for a fresh update.

    Args:
        staleness: tau of each stale update, the count of rounds since its training began.
    """
    return [1 / (tau + 1) for tau in staleness]


def stale_weights(
    staleness: Sequence[int],
    beta: float,
    fresh: Floats | None,
    stale: Sequence[Floats],
    count: int,
    scale: float = 1.0,
) -> list[float]:
    """Compute the weight of each stale update in REFL, relative to 1 for a fresh update.

    A stale update is from a client that began in an earlier round (section 4.2). Its weight is (1 -
    beta) / (tau + 1) + beta (1 - exp(-Lambda / Lambda_max) / scale). Lambda = ||f - (s + n f) / (n
    + 1)||^2 / ||f||^2 is the relative distance by which a stale update s moves the mean f of n
    fresh updates. Lambda_max is the largest Lambda of the round. If there is no f, or if f is 0,
    the weight is 1 / (tau + 1).

    Args:
        staleness: tau of each stale update, the count of rounds since its training began.
        beta: weight of the term by deviation; the term by staleness has the weight 1 - beta.
        fresh: f, the mean difference of the fresh updates from the model of the round, float64 [d];
            None if there are no fresh updates.
        stale: s, the difference of each stale update from the model from which it was trained, [d].
        count: n, the count of fresh updates.
        scale: divisor of the exponential; 1 in the paper.

    Returns:
        The weight of each stale update.
    """
    damped = weights_by_staleness(staleness)  # 1 / (tau + 1)
    if fresh is None:
        return damped
    squared_norm = float(fresh @ fresh)
    if not squared_norm:
        return damped
    # Lambda = ||(f - s) / (n + 1)||^2 / ||f||^2, as f - (s + n f) / (n + 1) = (f - s) / (n + 1)
    deviations = np.empty(len(stale))  # Lambda of each stale update
    for position, update in enumerate(stale):
        square = float(((fresh - update) ** 2).sum())
        deviations[position] = square / (count + 1) ** 2 / squared_norm
    largest = deviations.max() or 1.0  # Lambda_max; all Lambda are 0 if it is 0
    with np.errstate(invalid="ignore"):
        boosts = 1 - np.exp(-deviations / largest) / scale
    # An update that is not finite is left out later, whatever its weight.
    boosts = np.where(np.isfinite(boosts), boosts, 0.0)
    weights = list[float]()
    for damping, boost in zip(damped, boosts, strict=True):
        weights.append((1 - beta) * damping + beta * float(boost))
    return weights


@dataclass
class REFLState(FedAvgState):
    """State of REFL on the server: the model, running late tasks, and arrived late updates.

    A late task is one that continues after its round has closed.

    Attributes:
        late: Tasks that continue after their round has closed, task ID -> round index.
        stale: Updates of late tasks that have arrived in the open round. The entry ``round`` of an
            update is the index of the round in which its task began.
    """

    late: dict[int, int] = field(default_factory=dict)
    stale: list[Entry] = field(default_factory=list)


class REFL(FedAvg[REFLParams]):
    """Resource-efficient federated learning.

    An update that arrives after its round still counts, in the round in which it arrives, with a
    weight by its staleness and its distance from the updates of this round.

    Source: Abdelmoniem et al., "REFL: resource-efficient federated learning" (EuroSys 2023), its
    staleness-aware aggregation (section 4.2), and by default its participant selection
    (``least-available``); without the adaptive number of participants.

    - A round closes at its deadline, or with ``over_selection`` after as many updates as the round
      needs. Clients that have not finished by then go on.
    - An update that arrives after its round, a stale update, counts in the round in which it
      arrives. It moves the present model by its difference from the model from which it was
      trained.
    - A fresh update has the factor 1. By default (key ``stale_weights``) the factor of a stale
      update falls with tau, the number of rounds since its training began, and grows with its
      distance from the fresh updates. Without learning, updates cannot be compared, and the factor
      is 1 / (tau + 1). The weights by ``aggregation`` are multiplied by the factors, and scaled to
      sum to 1.

    Messages are as in FedAvg, the model down and the update up (d parameters each). In the record
    of a round ``valid`` counts the updates in time, and ``disconnected`` the clients that were lost
    before the round closed.
    """

    Params = REFLParams
    State = REFLState
    state: REFLState

    def _stop_waiting(self) -> None:
        # the open tasks go on, and the round closes after all messages of this instant
        self.server.timer(_CLOSE_LATE, self.server.now)

    async def on_timer(self, name: str) -> None:
        state = self.state
        if name != _CLOSE_LATE:
            await super().on_timer(name)
        elif state.open:
            state.late |= dict.fromkeys(state.open, state.round)
            state.open = {}
            await self._close_round()

    async def on_task_end(self, message: TaskEnd) -> None:
        if message.task not in self.state.late:
            await super().on_task_end(message)
            return
        del self.state.late[message.task]
        self._notify_parts(message)
        if message.outcome == "done":
            self.state.stale.append(self.entry(message) | {"round": message.round})

    async def aggregate(self) -> None:
        """Set the next model by the fresh updates of the round and the stale updates.

        A stale update was trained in an earlier round and has arrived in this one. It is aggregated
        as the present model plus the update's change of the model from which it was trained.
        """
        state = self.state
        model = state.model
        fresh = state.received
        stale = state.stale
        state.stale = []
        if not any(entry["samples"] for entry in (*fresh, *stale)):  # all weights would be 0
            return
        staleness = [state.round - entry["round"] for entry in stale]
        factors = list[float]()  # one for each stale update; ``weights`` reads it as ``counts``
        if stale:
            factors = await self._stale_weights(fresh, stale, staleness)
        rebased = list[Entry]()  # the stale updates, as changes of the present model
        for entry, factor in zip(stale, factors, strict=True):
            # The update as if the late client had begun at the present model. ``apply``, unlike
            # ``mix``, keeps an update that is not finite as one, so that it is left out later.
            models = [model, entry["update"], entry["start"]]
            update = self.server.models.apply(weighted_sum, models, coefficients=[1.0, 1.0, -1.0])
            rebased.append(entry | {"update": update, "start": model, "counts": factor})
        all_staleness = [0] * len(fresh) + staleness
        state.model = await self.next_model(model, [*fresh, *rebased], staleness=all_staleness)

    def weights(self, entries: Sequence[Entry]) -> list[float]:
        """Return the weight of each update in the next model; weights sum to 1.

        Each update has its weight by ``aggregation``. The weight of a stale update, which arrived
        after its round, is multiplied by a factor that ``aggregate`` has computed, by default from
        the update's staleness and its distance from the fresh updates. Then all weights are scaled
        to sum to 1. If all of them would be 0, the factors are left out.

        Args:
            entries: the updates of the round; a stale update has its factor as ``counts``.
        """
        plain_weights = super().weights(entries)
        weights = list[float]()
        for entry, weight in zip(entries, plain_weights, strict=True):
            weights.append(entry.get("counts", 1.0) * weight)
        if not any(weights):
            return plain_weights
        return [weight / sum(weights) for weight in weights]

    async def _stale_weights(
        self, fresh: list[Entry], stale: list[Entry], staleness: Sequence[int]
    ) -> list[float]:
        """Return the weight of each stale update, relative to 1 for a fresh update.

        With ``stale_weights = "equal"`` it is 1. Otherwise it depends on the update's staleness
        and, in runs with learning and with fresh updates, on its distance from the fresh updates.

        Args:
            fresh: the updates that have arrived in the round in which they began.
            stale: the updates that began in an earlier round.
            staleness: count of rounds since each stale update began.
        """
        params = self.params
        models = self.server.models
        if params.stale_weights == "equal":
            return [1.0] * len(stale)
        count = len(fresh)
        if not count:
            return weights_by_staleness(staleness)
        all_changes = changes(self.server, [*fresh, *stale])
        fresh_changes = all_changes[:count]
        stale_changes = all_changes[count:]
        mean = models.mix([(change, 1 / count) for change in fresh_changes])
        compared = [mean, *stale_changes]
        if not models.learns:
            # for the memory forecast of ``fedsim check``, whose trial has no weights
            await models.note_skipped(compared)
            return weights_by_staleness(staleness)
        values = await models.values(compared)
        fresh_mean, *stale_values = [value.astype(np.float64) for value in values]
        finite_mean = fresh_mean if np.isfinite(fresh_mean).all() else None
        return stale_weights(
            staleness, params.beta, finite_mean, stale_values, count, params.boost_scale
        )

    def _counts(self) -> dict[str, int]:
        counts = super()._counts()
        return {"valid": counts["valid"], "disconnected": counts["disconnected"]}

    async def _close_round(self) -> None:
        self.server.cancel_timer(_CLOSE_LATE)
        await super()._close_round()
