"""Power-of-choice (Cho, Wang and Joshi, "Towards understanding biased client selection", AISTATS 2022)."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedsim.federation.client import Instruction, LocalResult
from fedsim.federation.contents import Contents, Header, Lazy
from fedsim.federation.devices import Device
from fedsim.federation.messages import TaskEnd
from fedsim.federation.server import Server
from fedsim.language.spec import OnlyWith, Spec
from fedsim.language.units import PositiveSeconds
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.selection import Selection
from fedsim.world.task import Computation, Evaluate


class PowerOfChoice(Selection):
    """Of d candidates, drawn without replacement with probabilities proportional to their samples, those with the highest loss.

    Section 3, pi_pow-d: each candidate receives the present model (d parameters; ``loss-query``), tests it on its own training
    data, which takes a forward pass over them, and answers with its loss (4 bytes; ``loss``). In a strategy with groups it is
    asked about its group's model, without a group about all of them, and the least loss counts. With ``samples`` it estimates
    the loss on so many samples, drawn anew each time (section 5, pi_cpow-d). With ``losses = "reported"``
    (section 5, pi_rpow-d) nobody is asked: what counts is the loss of the last local epoch that a client has sent with its
    update (4 bytes), for one that never did infinity.

    Samples are what the server was told with updates; who has sent none counts as the mean of the others. Without learning
    there are no losses: the candidates drawn first are taken. Looks at every device that is there: O(population).

    State: ``samples``; with reports ``losses``, both by device, and ``reports``, those of the open round.

    Attributes:
        candidates: d; at least as many as are wanted are drawn.
        losses: see above.
        samples: b, on which a candidate tests the model; None: on all that it has.
        patience: candidates who have not answered by then (s) are not chosen; None: all are waited for.
    """

    kind: Literal["power-of-choice"] = "power-of-choice"
    candidates: int = Field(default=20, ge=1)
    losses: Literal["asked", "reported"] = "asked"
    samples: Annotated[int | None, Field(ge=1), OnlyWith("losses", values=("asked",))] = None
    patience: Annotated[PositiveSeconds | None, OnlyWith("losses", values=("asked",))] = None

    @property
    def asks(self) -> bool:
        """With losses that are asked for."""
        return self.losses == "asked"

    @property
    def needs_model(self) -> bool:
        """As it asks about the present model."""
        return self.asks

    def select(
        self, server: Server, state: dict[str, Any], count: int, ids: tuple[int, ...], among: list[int] | None = None
    ) -> list[int]:
        """The candidates; those with the highest reported losses where nobody is asked."""
        there = server.online() if among is None else [device for device in among if server.idle(device)]
        told = state.setdefault("samples", {})
        usual = sum(told.values()) / len(told) if told else 1.0
        weights = np.array([told.get(device, usual) for device in there], dtype=np.float64)
        # The smallest of exponential variates with these rates: the same as drawing one after another without replacement.
        ages = server.rng("select", *ids).standard_exponential(server.devices)[there] / np.maximum(weights, 1e-9)
        drawn = [there[place] for place in np.argsort(ages, kind="stable")[: max(self.candidates, count)].tolist()]
        if self.asks:
            return drawn
        losses = state.setdefault("losses", {})
        return sorted(drawn, key=lambda device: -losses.get(device, math.inf))[:count]

    def heard(self, server: Server, state: dict[str, Any], message: TaskEnd) -> None:
        """How many samples it has, and its loss if that was reported."""
        if "trained-on" in message.contents:
            state.setdefault("samples", {})[message.device] = message["trained-on"]
            if not self.asks:
                state.setdefault("reports", {})[message.device] = message["training-loss"]

    async def learn(self, server: Server, state: dict[str, Any]) -> None:
        """The losses that were reported."""
        reports = state.pop("reports", {})
        if server.learns:
            found = await server.numbers(list(reports.values()))
            state.setdefault("losses", {}).update(zip(reports, (_known(numbers) for numbers in found), strict=True))

    def question(self, models: Sequence[Ref]) -> Contents:
        """The present model."""
        return {"loss-query": list(models)}

    async def choose(
        self, server: Server, state: dict[str, Any], count: int, answers: Mapping[int, Mapping[str, Any]]
    ) -> list[int]:
        """The highest losses; of equals who was drawn first."""
        candidates = list(answers)
        if not server.learns:
            return candidates[:count]
        found = await server.numbers([answers[device]["loss"] for device in candidates])
        losses = dict(zip(candidates, (_known(numbers) for numbers in found), strict=True))
        return sorted(candidates, key=lambda device: -losses[device])[:count]

    def look(self, device: Device, order: Instruction) -> Sequence[Computation]:
        """Test the model, on ``samples`` samples if so many are given."""
        return (Evaluate(tuple(order["loss-query"]), samples=self.samples),)

    def answer(self, device: Device, order: Instruction, done: LocalResult, params: Spec) -> Contents:
        """The loss."""
        assert done.tested is not None
        return {"loss": Lazy("losses", done.tested)}

    def report(self, device: Device, order: Instruction, done: LocalResult) -> Contents:
        """How many samples it has trained on, and the loss in the last epoch if nobody asks."""
        loss = {} if self.asks or done.trained is None else {"training-loss": Lazy("loss", done.trained)}
        return {"trained-on": Header(done.samples), **loss}


def _known(losses: "np.ndarray[Any, np.dtype[np.float64]]") -> float:
    """The least of the losses; one that is no number is as high as can be."""
    least = float(losses.min())
    return math.inf if math.isnan(least) else least
