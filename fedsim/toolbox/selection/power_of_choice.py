"""Power-of-choice: of some candidates those with the highest loss (Cho, Wang and Joshi, 2022)."""

import math
from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedsim.common.spec import OnlyWith, Spec
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
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.selection import Among, Answers, Ids, Selection
from fedsim.toolbox.selection import drawn
from fedsim.world.task import Computation, Evaluate


class PowerOfChoice(Selection):
    """Of d candidates, drawn without replacement with probabilities proportional to their
    samples, those with the highest loss.

    Source: Cho, Wang and Joshi, "Towards understanding biased client selection" (AISTATS 2022),
    section 3, pi_pow-d. Each candidate receives the present model (d parameters; ``loss-query``),
    tests it on its own training data, which takes a forward pass over them, and answers with its
    loss (4 bytes; ``loss``). In a strategy with groups it is asked about its group's model, without
    a group about all of them, and the least loss counts. With ``samples`` it estimates the loss on
    so many samples, drawn anew each time (section 5, pi_cpow-d). With ``losses = "reported"``
    (section 5, pi_rpow-d) nobody is asked: the loss of the last local epoch counts that a client
    has sent with its update (4 bytes), infinity for one that never did.

    Sample counts are those sent with updates; a client that has sent none counts as the mean of the
    others. Without learning the candidates drawn first are taken. Looks at every device that is
    there: O(population).

    State: ``samples``; with reports ``losses``, both by device, and ``reports``, those of the
    open round.
    """

    kind: Literal["power-of-choice"] = "power-of-choice"
    candidates: int = Field(default=20, ge=1)
    """d; at least as many as are wanted are drawn."""
    losses: Literal["asked", "reported"] = "asked"
    """see above."""
    samples: Annotated[int | None, Field(ge=1), OnlyWith("losses", values=("asked",))] = None
    """b, on which a candidate tests the model; None: on all that it has."""
    patience: Annotated[PositiveSeconds | None, OnlyWith("losses", values=("asked",))] = None
    """candidates who have not answered by then (s) are not chosen; None: all are waited for."""

    @property
    def asks(self) -> bool:
        return self.losses == "asked"

    @property
    def needs_model(self) -> bool:
        return self.asks

    def select(
        self, server: Server, state: dict[str, Any], count: int, ids: Ids, among: Among = None
    ) -> list[int]:
        there = (
            server.clients.online()
            if among is None
            else [device for device in among if server.clients.idle(device)]
        )
        told = state.setdefault("samples", {})
        usual = sum(told.values()) / len(told) if told else 1.0
        weights = np.array([told.get(device, usual) for device in there], dtype=np.float64)
        variates = server.rng("select", *ids).standard_exponential(server.devices)[there]
        candidates = [
            there[place] for place in drawn(weights, max(self.candidates, count), variates)
        ]
        if self.asks:
            return candidates
        losses = state.setdefault("losses", {})
        return nsmallest(count, candidates, lambda device: -losses.get(device, math.inf))

    def heard(self, server: Server, state: dict[str, Any], message: TaskEnd) -> None:
        if "trained-on" in message.contents:
            state.setdefault("samples", {})[message.device] = message["trained-on"]
            if not self.asks:
                state.setdefault("reports", {})[message.device] = message["training-loss"]

    async def learn(self, server: Server, state: dict[str, Any]) -> None:
        reports = state.pop("reports", {})
        if server.models.learns:
            state.setdefault("losses", {}).update(await _losses(server, reports))

    def question(self, models: Sequence[Ref]) -> Contents:
        return {"loss-query": list(models)}

    async def choose(
        self, server: Server, state: dict[str, Any], count: int, answers: Answers
    ) -> list[int]:
        if not server.models.learns:
            return list(answers)[:count]
        losses = await _losses(
            server, {device: answer["loss"] for device, answer in answers.items()}
        )
        return nsmallest(count, losses, lambda device: -losses[device])

    def look(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        return (Evaluate(tuple(instruction["loss-query"]), samples=self.samples),)

    def answer(
        self, device: Device, instruction: Instruction, result: LocalResult, params: Spec
    ) -> Contents:
        assert result.tested is not None
        return {"loss": Lazy("losses", result.tested)}

    def report(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        loss = (
            {}
            if self.asks or result.trained is None
            else {"training-loss": Lazy("loss", result.trained)}
        )
        return {"trained-on": Header(result.samples), **loss}


async def _losses(server: Server, told: Mapping[int, Any]) -> dict[int, float]:
    """By device the least of its losses; one that is no number is as high as can be."""
    least = [losses.min() for losses in await server.models.numbers(list(told.values()))]
    return {
        device: math.inf if math.isnan(loss) else float(loss)
        for device, loss in zip(told, least, strict=True)
    }
