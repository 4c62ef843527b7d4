"""Oort: clients of high loss that are fast, and some that are new (Lai et al., 2021)."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.arrays import Floats
from fedsim.common.spec import OnlyWith
from fedsim.common.units import PositiveSeconds
from fedsim.federation import (
    Contents,
    Device,
    Header,
    Instruction,
    Lazy,
    LocalResult,
    Server,
    TaskEnd,
)
from fedsim.strategies.parts.selection import Among, Ids, Selection
from fedsim.toolbox.selection import drawn

# percentiles of the published code
_FIRST = 30.0
_BY = 5.0
_MOST_TIMES = 10
_NEVER = (0.0, 0, 0.0)  # U, L and D of a client that was never heard


class Oort(Selection):
    """Clients of high utility, and some that have never reported.

    Source: Lai et al., "Oort: efficient federated learning via guided participant selection" (OSDI
    2021), Algorithm 1. The statistical utility U of a client is its samples times the root mean
    square of their losses, here the mean loss of its last epoch, which it sends with its update (4
    bytes). In round R the utility of a client that last reported in round L, and then took D, is

        Util = (min(U, the ``clip`` quantile of all) + sqrt(0.1 ln R / L)) (T / D)^penalty, the last factor where D > T.

    (1 - epsilon) of the cohort are drawn, with probabilities proportional to Util, from the clients
    whose Util is at least ``cutoff`` times that of the last of the best. The others have never
    reported: first clients never asked, at random, then late ones, by their time. epsilon is 0.9 in
    the first round, and falls by 2 % a round to ``least_exploration``. A client that was asked ten
    times is asked only if no other is there. The pacer: T begins at ``pacer_step`` and grows by it
    in each round in which the utility of the last ``window`` rounds is less than that of the
    ``window`` rounds before. With ``pacer = "published-code"`` T is a percentile of the times D of
    all clients that have reported: first the 30th, and after each ``window`` rounds 5 more where
    the utility of the window is within 10 % of that before, and 5 less where it differs by five
    times and more; from 100 on no client is too slow.

    The time of a late client is its D, but no report. Clients that the strategy has chosen by
    itself (in a sweep) count for nothing. Without learning all losses are 1. Without rounds R
    counts the draws of clients, and the pacer versions.

    State: ``known``, device -> U, L, D (s; U and L are 0 until its report); ``asked``, how often;
    ``begun``, when clients at work were asked (s); ``preferred``, T (s); ``harvest``, the utility
    of each round; ``reports``, those of the open round.

    Attributes:
        pacer_step: Delta (s); the published code has none.
        window: W, rounds.
        penalty: alpha.
        cutoff: c.
        clip: the quantile at which utilities are cut.
        scale: ``unit``: the clipped U are first scaled to 0 to 1, as in the published code, so
            that the bonus for long absence has weight beside them.
    """

    kind: Literal["oort"] = "oort"
    pacer: Literal["paper", "published-code"] = "paper"
    pacer_step: Annotated[PositiveSeconds | None, OnlyWith("pacer", values=("paper",))] = None
    window: int = Field(default=20, ge=1)
    penalty: float = Field(default=2.0, ge=0.0, le=100.0)
    least_exploration: float = Field(default=0.2, ge=0.0, le=1.0)
    cutoff: float = Field(default=0.95, ge=0.0, le=1.0)
    clip: float = Field(default=0.95, gt=0.0, le=1.0)
    scale: Literal["plain", "unit"] = "plain"

    @model_validator(mode="after")
    def _has_a_step(self) -> Self:
        if self.pacer == "paper" and self.pacer_step is None:
            raise ValueError(
                "'pacer_step' is missing; allowed is a time, such as '10 s', or pacer = "
                "'published-code'"
            )
        return self

    def select(
        self, server: Server, state: dict[str, Any], count: int, ids: Ids, among: Among = None
    ) -> list[int]:
        state["round"] = ids[0] + 1
        known = state.setdefault("known", {})
        asked = state.setdefault("asked", {})
        tired = list[int]()
        heard = list[int]()
        unheard = list[int]()
        for device in server.clients.sample(server.devices, "select", *ids, among=among):
            rests = asked.get(device, 0) >= _MOST_TIMES
            (tired if rests else heard if known.get(device, _NEVER)[1] else unheard).append(device)
        unheard.sort(key=lambda device: known.get(device, _NEVER)[2])
        wanted = round(count * (1 - self.epsilon(state["round"])))
        wanted = min(len(heard), max(wanted, count - len(unheard)))
        chosen = self._best(server, state, wanted, heard, ids)
        chosen += unheard[: count - len(chosen)]
        chosen += tired[: count - len(chosen)]
        asked |= {device: asked.get(device, 0) + 1 for device in chosen}
        state.setdefault("begun", {}).update(dict.fromkeys(chosen, server.now))
        return chosen

    def epsilon(self, number: int) -> float:
        """The share of a round, from 1, that explores."""
        return max(0.9 * 0.98 ** (number - 1), self.least_exploration)

    def utilities(
        self, entries: Sequence[Sequence[float]], number: int, preferred: float
    ) -> Floats:
        """Util [n] of clients with U, L, D (s) of ``entries`` in round ``number`` with T =
        ``preferred`` (s).
        """
        utility, last, took = np.array(entries, dtype=np.float64).T
        utility = np.minimum(utility, np.quantile(utility, self.clip, method="lower"))
        if self.scale == "unit":
            utility = (utility - utility.min()) / max(float(np.ptp(utility)), 1e-4)
        factor = np.where(took > preferred, preferred / np.maximum(took, 1e-9), 1.0) ** self.penalty
        return np.asarray((utility + np.sqrt(0.1 * math.log(number) / last)) * factor)

    def _best(
        self, server: Server, state: dict[str, Any], wanted: int, heard: list[int], ids: Ids
    ) -> list[int]:
        if not wanted:
            return []
        known = state["known"]
        preferred = self.preferred(state)
        utility = self.utilities([known[device] for device in heard], state["round"], preferred)
        order = np.argsort(-utility, kind="stable")
        able = order[utility[order] >= self.cutoff * utility[order[wanted - 1]]]
        variates = server.rng("exploit", *ids).standard_exponential(len(able))
        return [heard[place] for place in able[drawn(utility[able], wanted, variates)].tolist()]

    def heard(self, server: Server, state: dict[str, Any], message: TaskEnd) -> None:
        if message.device not in state.get("begun", {}):
            return
        took = server.now - state["begun"].pop(message.device)
        utility, last, before = state["known"].get(message.device, _NEVER)
        if message.outcome == "late":
            state["known"][message.device] = (utility, last, max(before, took))
        elif "training-loss" in message.contents:
            state["known"][message.device] = (utility, last, took)
            state.setdefault("reports", {})[message.device] = (
                message["trained-on"],
                message["training-loss"],
            )

    async def learn(self, server: Server, state: dict[str, Any]) -> None:
        reports = state.pop("reports", {})
        known = state.setdefault("known", {})
        harvest = 0.0
        losses = [1.0] * len(reports)
        if server.models.learns:
            losses = [
                float(found[0])
                for found in await server.models.numbers([loss for _, loss in reports.values()])
            ]
        for (device, (samples, _)), loss in zip(reports.items(), losses, strict=True):
            utility = samples * loss if math.isfinite(loss) else 0.0
            harvest += utility
            known[device] = (utility, state["round"], known[device][2])
        history = state.setdefault("harvest", [])
        if self.pacer_step is not None:
            state["preferred"] = self.paced(
                history, harvest, state.get("preferred", self.pacer_step)
            )
        else:
            state["percentile"] = self.percentile(history, harvest, state.get("percentile", _FIRST))

    def preferred(self, state: dict[str, Any]) -> float:
        if self.pacer_step is not None:
            return float(state.setdefault("preferred", self.pacer_step))
        times = sorted(took for _, last, took in state["known"].values() if last)
        share = state.get("percentile", _FIRST) / 100
        return (
            times[min(int(len(times) * share), len(times) - 1)] if times and share < 1 else math.inf
        )

    def percentile(self, history: list[float], harvest: float, before: float) -> float:
        """The percentile of T after a round of so much utility, which is added to the
        ``history``.
        """
        history.append(harvest)
        if len(history) < 2 * self.window:
            return before
        last = sum(history[: self.window])
        now = sum(history[self.window :])
        del history[: self.window]
        if abs(now - last) <= 0.1 * last:
            return min(100.0, before + _BY)
        return max(_BY, before - _BY) if abs(now - last) >= 5 * last else before

    def paced(self, history: list[float], harvest: float, preferred: float) -> float:
        """T of the paper after a round of so much utility, which is added to the ``history``."""
        history.append(harvest)
        del history[: -2 * self.window]
        poorer = len(history) == 2 * self.window and sum(history[: self.window]) > sum(
            history[self.window :]
        )
        return preferred + (self.pacer_step or 0.0) if poorer else preferred

    def report(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        if result.trained is None:
            return {}
        return {"trained-on": Header(result.samples), "training-loss": Lazy("loss", result.trained)}
