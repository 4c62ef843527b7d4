"""Power-of-choice: the candidates with the highest loss (Cho, Wang and Joshi, 2022)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from fedsim.strategies.state import State
from fedsim.toolbox.selection import available_devices, draw_weighted
from fedsim.world.steps import Evaluate, TaskStep


@dataclass
class PowerOfChoiceState(State):
    """State of the selection ``power-of-choice``: sample counts and losses of devices.

    A device without an entry has not reported yet.

    Attributes:
        samples: Device ID -> sample count of each device that has sent an update.
        losses: Device ID -> last reported loss; filled only with ``losses = "reported"``.
        reports: Device ID -> loss reported in the open round; filled only with ``losses =
            "reported"``.
    """

    samples: dict[int, int] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    reports: dict[int, Any] = field(default_factory=dict)


class PowerOfChoice(Selection):
    """The clients with the highest loss, out of d candidates drawn in proportion to their samples.

    Source: Cho, Wang and Joshi, "Towards understanding biased client selection" (AISTATS 2022),
    section 3, pi_pow-d. Candidates are drawn without replacement, with probabilities proportional
    to their samples. Each candidate receives the present model (d parameters; content
    ``loss-query``), tests the model on its training data, which takes a forward pass, and answers
    with its loss (4 bytes; content ``loss``). In a strategy that has a model for each group of
    clients, a candidate tests the model of its group. A candidate without a group tests all models,
    and the least loss counts.

    With ``samples`` a candidate estimates the loss on newly drawn ``samples`` of its samples
    (section 5, pi_cpow-d). With ``losses = "reported"`` (section 5, pi_rpow-d) candidates are not
    asked. Instead each client sends the loss of its last local epoch with its update (4 bytes), and
    the last such loss is used. The loss of a client without an update is infinite.

    Clients send their sample counts with their updates; for a client without an update the mean of
    the known counts is used. In runs without learning, the candidates that were drawn first are
    selected. Each selection examines every available device, which takes O(population) time.

    Attributes:
        candidates: d, the number of candidates; if a round needs more clients, as many as it needs
            are drawn.
        losses: ``asked``: candidates test the present model; ``reported``: clients report the loss
            of their training with their updates.
        samples: b, the number of samples on which a candidate tests the model; None: all its
            samples.
        patience: time (s) after which candidates without an answer are left out; None: the server
            waits for all candidates.
    """

    kind: Literal["power-of-choice"] = "power-of-choice"
    candidates: int = Field(default=20, ge=1)
    losses: Literal["asked", "reported"] = "asked"
    samples: Annotated[int | None, Field(ge=1), OnlyWith("losses", values=("asked",))] = None
    patience: Annotated[PositiveSeconds | None, OnlyWith("losses", values=("asked",))] = None

    @property
    def asks(self) -> bool:
        return self.losses == "asked"

    @property
    def needs_model(self) -> bool:
        return self.asks

    State = PowerOfChoiceState

    def select(
        self,
        server: Server,
        state: PowerOfChoiceState,
        count: int,
        ids: Ids,
        among: Among = None,
    ) -> list[int]:
        """Draw candidates in proportion to their samples, and select among them if losses are known.

        If candidates are asked for their loss, all of them are returned, and ``choose`` selects
        among them. Otherwise the candidates with the highest losses that they have reported are
        returned.

        Args:
            server: the run's server.
            state: the selection's memory, with sample counts and losses.
            count: largest count of clients.
            ids: the index of the round, and further numbers; they name the random stream.
            among: IDs of the devices to select from; None: all devices.

        Returns:
            Device IDs.
        """
        available = available_devices(server, among)
        samples = state.samples  # device ID -> sample count, for devices that have reported
        mean_samples = sum(samples.values()) / len(samples) if samples else 1.0
        # a device of unknown sample count has the mean
        weights = np.array(
            [samples.get(device, mean_samples) for device in available], dtype=np.float64
        )
        # a variate for every device, so that it does not depend on which devices are available
        variates = server.rng("select", *ids).standard_exponential(server.devices)
        positions = draw_weighted(weights, max(self.candidates, count), variates[available])
        candidates = [available[position] for position in positions]
        if self.asks:
            return candidates
        # the highest losses; of equal ones the candidate that was drawn first
        return nsmallest(count, candidates, lambda device: -state.losses.get(device, math.inf))

    def on_task_end(self, server: Server, state: PowerOfChoiceState, message: TaskEnd) -> None:
        if "trained-on" in message.contents:
            state.samples[message.device] = message["trained-on"]
            if not self.asks:
                state.reports[message.device] = message["training-loss"]

    async def learn(self, server: Server, state: PowerOfChoiceState) -> None:
        reports = state.reports
        state.reports = {}
        if server.models.learns:
            state.losses.update(await _least_losses(server, reports))

    def question(self, models: Sequence[Ref]) -> Contents:
        return {"loss-query": list(models)}

    async def choose(
        self, server: Server, state: PowerOfChoiceState, count: int, answers: Answers
    ) -> list[int]:
        if not server.models.learns:
            return list(answers)[:count]
        tests = {device: answer["loss"] for device, answer in answers.items()}
        losses = await _least_losses(server, tests)
        return nsmallest(count, losses, lambda device: -losses[device])

    def look(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        return (Evaluate(tuple(instruction["loss-query"]), samples=self.samples),)

    def answer(
        self, device: Device, instruction: Instruction, result: LocalResult, params: Spec
    ) -> Contents:
        assert result.tested is not None
        return {"loss": Lazy("losses", result.tested)}

    def report(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        contents: dict[str, object] = {"trained-on": Header(result.samples)}
        if not self.asks and result.trained is not None:
            contents["training-loss"] = Lazy("loss", result.trained)
        return contents


async def _least_losses(server: Server, tests: Mapping[int, Any]) -> dict[int, float]:
    """Compute each device's smallest loss over the models that the device has tested.

    Args:
        server: the run's server.
        tests: device ID -> reference to the losses of one or more models on the device's data.

    Returns:
        Device ID -> its smallest loss; infinity in place of nan.
    """
    losses: dict[int, float] = {}
    values = await server.models.numbers(list(tests.values()))
    for device, value in zip(tests, values, strict=True):
        least = float(value.min())
        losses[device] = math.inf if math.isnan(least) else least
    return losses
