"""REFL: late updates are used too, the less the staler they are (Abdelmoniem et al., 2023)."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.arrays import Floats
from fedsim.common.spec import OnlyWith
from fedsim.federation import TaskEnd
from fedsim.learning.functions import weighted_sum
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean, changes
from fedsim.strategies.parts.selection import SelectionSpec
from fedsim.strategies.round_params import AggregatingParams
from fedsim.toolbox.selection.least import LeastAvailable


class REFLParams(AggregatingParams):
    """Parameters of REFL, in addition to ``AggregatingParams``."""

    late_goes_on: ClassVar[bool] = True
    looks_at_each: ClassVar[str | None] = "REFL compares late updates with others"

    kind: Literal["refl"] = "refl"
    beta: Annotated[float, OnlyWith("stale_weights", values=("boosted",))] = Field(
        default=0.35, ge=0.0, le=1.0
    )
    """weight of a stale update's deviation beside its staleness."""
    stale_weights: Literal["boosted", "equal"] = "boosted"
    """``boosted``: as in the paper; ``equal``: as much as a fresh one."""
    boost_scale: Annotated[float, OnlyWith("stale_weights", values=("boosted",))] = Field(
        default=1.0, ge=1.0, le=1e6
    )
    """divisor of exp(-Lambda / Lambda_max): 1 as in the paper; 10 in the published code."""
    aggregation: AggregationSpec = Mean()
    """the plain mean, as in the paper, unless another is given; its weights are multiplied by
    those.
    """
    selection: SelectionSpec = LeastAvailable()
    """the least available first, unless another is given."""

    @model_validator(mode="after")
    def _weights_count(self) -> Self:
        if self.stale_weights == "boosted" and not self.aggregation.uses_weights:
            raise ValueError(
                f"'aggregation' is {self.aggregation.kind!r}, in which weights do not count, "
                "and 'stale_weights' is "
                f"{self.stale_weights!r}; allowed are 'weighted' and 'mean', or stale_weights "
                "= 'equal'"
            )
        return self


def stale_weights(
    staleness: Sequence[int],
    beta: float,
    fresh: Floats | None,
    stale: Sequence[Floats],
    count: int,
    scale: float = 1.0,
) -> list[float]:
    """Weights of stale updates of ``staleness`` tau, relative to 1 for a fresh one.

    (1 - beta) / (tau + 1) + beta (1 - exp(-Lambda / Lambda_max) / scale), where Lambda, which is
    ||f - (s + n f) / (n + 1)||^2 / ||f||^2, is how far a ``stale`` update s would move the mean f (``fresh``) of n fresh ones
    (``count``), all as differences [d] from the model that they began with, and Lambda_max the
    round's largest; 1 / (tau + 1) without f.
    """
    damped = [1 / (tau + 1) for tau in staleness]
    norm = 0.0 if fresh is None else float(fresh @ fresh)
    if fresh is None or not norm:
        return damped
    moves = np.array([float(((fresh - own) ** 2).sum()) / (count + 1) ** 2 / norm for own in stale])
    with np.errstate(invalid="ignore"):
        boost = 1 - np.exp(-moves / (moves.max() or 1.0)) / scale
    # an update that is not finite is left out anyway
    boost = np.where(np.isfinite(boost), boost, 0.0)
    return [(1 - beta) * own + beta * float(more) for own, more in zip(damped, boost, strict=True)]


class REFL(FedAvg[REFLParams]):
    """Resource-efficient federated learning.

    Source: Abdelmoniem et al., "REFL: resource-efficient federated learning" (EuroSys 2023), its
    staleness-aware aggregation (section 4.2), and by default its participant selection
    (``least-available``); without the adaptive number of participants.

    Sends what FedAvg sends. A round closes when its deadline is there, or with ``over_selection``
    when K updates are; who is not through by then goes on (``late``), and its update goes into the
    round in which it arrives (``stale``). A stale update moves the present model by its difference
    from the model that it began with, and counts ``stale_weights`` where a fresh one counts 1; all
    weights are then scaled to sum to 1. Where nothing is learnt there is nothing to compare, and it
    counts 1 / (tau + 1). A round's ``valid`` are those that were in time, ``disconnected`` those
    that had vanished by then.
    """

    Params = REFLParams

    async def on_start(self) -> None:
        self.state |= {"late": {}, "stale": []}
        await super().on_start()

    def _end_open(self) -> None:
        self.server.timer("close", self.server.now)

    async def on_timer(self, name: str) -> None:
        state = self.state
        if name != "close":
            await super().on_timer(name)
        elif state["open"]:
            state["late"] |= dict.fromkeys(state["open"], state["round"])
            state["open"] = {}
            await self._close_round()

    async def on_task_end(self, message: TaskEnd) -> None:
        if self.state["late"].pop(message.task, None) is None:
            await super().on_task_end(message)
            return
        self._heard(message)
        if message.outcome == "done":
            self.state["stale"].append(self.entry(message) | {"round": message.round})

    async def aggregate(self) -> None:
        state = self.state
        fresh = self.state["received"]
        stale, state["stale"] = state["stale"], []
        if not any(entry["samples"] for entry in (*fresh, *stale)):
            return
        staleness = [0] * len(fresh) + [state["round"] - entry["round"] for entry in stale]
        counts = await self._stale_weights(fresh, stale, staleness[len(fresh) :]) if stale else []
        model = state["model"]
        moved = []
        for entry, own in zip(stale, counts, strict=True):
            # As if a late client had begun at the present model; not finite if the update is not.
            models = [model, entry["update"], entry["start"]]
            update = self.server.models.apply(weighted_sum, models, coefficients=[1.0, 1.0, -1.0])
            moved.append(entry | {"update": update, "start": model, "counts": own})
        state["model"] = await self.next_model(model, [*fresh, *moved], staleness=staleness)

    def weights(self, entries: Sequence[dict[str, Any]]) -> list[float]:
        usual = super().weights(entries)
        weights = [
            entry.get("counts", 1.0) * own for entry, own in zip(entries, usual, strict=True)
        ]
        return [weight / sum(weights) for weight in weights] if any(weights) else usual

    async def _stale_weights(
        self, fresh: list[dict[str, Any]], stale: list[dict[str, Any]], staleness: Sequence[int]
    ) -> list[float]:
        params = self.params
        if params.stale_weights == "equal":
            return [1.0] * len(stale)
        if not (fresh and self.server.models.learns):
            return stale_weights(staleness, 0.0, None, [], 0)
        moves = changes(self.server, [*fresh, *stale])
        mean = self.server.models.mix([(move, 1 / len(fresh)) for move in moves[: len(fresh)]])
        values = [
            value.astype(np.float64)
            for value in await self.server.models.values([mean, *moves[len(fresh) :]])
        ]
        known = values[0] if np.isfinite(values[0]).all() else None
        return stale_weights(
            staleness, params.beta, known, values[1:], len(fresh), params.boost_scale
        )

    def _counts(self) -> dict[str, int]:
        return {
            name: count
            for name, count in super()._counts().items()
            if name in ("valid", "disconnected")
        }

    async def _close_round(self) -> None:
        self.server.cancel_timer("close")
        await super()._close_round()
