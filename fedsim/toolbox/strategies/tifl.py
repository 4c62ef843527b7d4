"""TiFL: tiers by latency, each round with clients of one tier (Chai et al., 2020)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedsim.common import former_keys
from fedsim.common.arrays import Floats
from fedsim.common.errors import ScenarioError
from fedsim.common.former_keys import Former
from fedsim.common.spec import OnlyWith
from fedsim.common.training import Training
from fedsim.federation import Contents, Device, Instruction, Lazy, LocalResult, Server, TaskEnd
from fedsim.strategies.fedavg import FedAvg, FedAvgState
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.round_params import AggregatingParams, RoundParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.toolbox.strategies.tiers import Tiered, TieredState, equal_width_bins, tier_numbers
from fedsim.world.steps import Evaluate, TaskStep, Train

_TEST_CLIENTS = 5  # maximum count of clients of each tier that test the model


class TiFLParams(AggregatingParams):
    """Keys of ``[strategy]`` for TiFL: the tiers, and how the tier of a round is drawn.

    ``AggregatingParams`` describes the keys of all strategies with rounds and aggregation.

    Attributes:
        tiers: P, the number of tiers, which are bins of equal width of data size or of latency.
        tiers_from: measurement that determines a device's tier: ``size``, the sample count that it
            reports once (as for CATA-Fed), or ``latency``, the time of a whole training (as in the
            paper).
        mode: draw of a round's tier: ``uniform``; ``static``, with ``probabilities``; or
            ``credits``: the less accurate the model is on a tier's clients, the likelier the tier
            is, and no tier is drawn more often than it has credits.
        probabilities: weight of each tier in the draw, in ascending order of data size (or
            latency); their sum need not be 1. The paper's weights for five tiers: fast 1, 0, 0, 0,
            0; random .7, .1, .1, .05, .05; slow 0, 0, 0, 0, 1.
        credits: number of rounds for each tier; by default the planned rounds divided by the tiers.
        interval: I, the number of rounds between two tests; by default the number of tiers.
    """

    instead: ClassVar[Former] = {**AggregatingParams.instead, **former_keys.TIFL}
    kind: Literal["tifl"] = "tifl"
    tiers: int = Field(default=5, ge=1)
    tiers_from: Literal["size", "latency"] = "size"
    mode: Literal["uniform", "static", "credits"] = "uniform"
    probabilities: list[Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] | None = None
    credits: Annotated[int | None, OnlyWith("mode", values=("credits",))] = Field(
        default=None, ge=1
    )
    interval: Annotated[int | None, OnlyWith("mode", values=("credits",))] = Field(
        default=None, ge=1
    )

    @model_validator(mode="after")
    def _check_probabilities(self) -> Self:
        """Check that ``probabilities`` are given just for mode ``static``, one for each tier."""
        weights = self.probabilities
        if (weights is not None) != (self.mode == "static"):
            raise ValueError(
                f"'probabilities' belong to mode 'static'; the mode is {self.mode!r}, and they "
                f"are {weights}"
            )
        if weights is not None and (len(weights) != self.tiers or not sum(weights) > 0):
            raise ValueError(
                f"'probabilities' are {weights}; allowed are {self.tiers}, one a tier, not all 0"
            )
        return self

    def check(self, devices: int) -> None:
        super().check(devices)
        self.refuse_more("tiers", devices)

    @property
    def why_not(self) -> Reasons:
        reasons = Reasons(sum_alone="TiFL has phases of its own between rounds")
        if self.mode != "credits":
            return reasons
        return replace(
            reasons,
            privacy_account="tiers are chosen by the accuracy on their clients",
            no_accuracy=f"strategy.mode is {self.mode!r}",
        )


def credit_probabilities(
    accuracies: Sequence[float | None],
    credits: Sequence[int],  # noqa: A002
) -> list[float]:
    """Compute the probability with which TiFL draws each tier: larger for a lower accuracy.

    This is TiFL's ``ChangeProbs``. A tier has credits, the number of rounds in which it can still
    be drawn. The n tiers with credits are sorted by ascending accuracy. The tier of rank r = 0..n-1
    gets the probability (n - r) / (n (n + 1) / 2). Equal accuracies are sorted by tier index. A
    tier of unknown accuracy (None) comes first. A tier without credits gets 0.

    Args:
        accuracies: accuracy of the model on each tier's clients, 0 to 1; None if unknown.
        credits: count of rounds that remain for each tier.

    Returns:
        The probability of each tier, [P].
    """

    def rank_key(tier: int) -> tuple[float, int]:
        accuracy = accuracies[tier]
        return -1.0 if accuracy is None else accuracy, tier

    ranked = [tier for tier, remaining in enumerate(credits) if remaining > 0]
    ranked.sort(key=rank_key)
    n = len(ranked)
    probabilities = [0.0] * len(credits)
    for rank, tier in enumerate(ranked):
        probabilities[tier] = (n - rank) / (n * (n + 1) / 2)
    return probabilities


class TiFLClient(SynchronousClient[TiFLParams]):
    """Client that trains as FedAvg's client does, reports its size, and tests the model.

    Training, report and test are separate tasks. If tiers are by latency, its first task is a whole
    training, whose time the server measures, in place of the report of its size.
    """

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        match instruction.job:
            case "report":
                return ()
            case "profile":
                return (Train(Training(instruction["profiling"], self.params.local_epochs)),)
            case "test":
                return (Evaluate((instruction["model"],)),)
        return super().work(device, instruction)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        match instruction.job:
            case "report":
                return {"size-report": result.samples}
            case "profile":
                return {"profiling": result.update}
            case "test" if result.tested is not None:
                return {"test-accuracy": Lazy("accuracy", result.tested)}
        return super().reply(device, instruction, result)


@dataclass
class TiFLState(TieredState, FedAvgState):
    """State of TiFL on the server: the model, the tiers with their credits, and test results.

    A credit is a round in which a tier can still be drawn.

    Attributes:
        current: Index of the tier drawn last; None before the first draw.
        probabilities: Weight of each tier in the draw of a round's tier.
        credits: Count of rounds that remain for each tier.
        tested: Index of the round before which the last test was made; None before the first test.
        testing: Open tasks of the test, task ID -> tier index.
        testers: Tier index -> IDs of the tier's devices that have answered in the test.
        accuracies: Accuracy of the model on each tier in the last test, 0 to 1; None if unknown.
    """

    current: int | None = None
    probabilities: list[float] = field(default_factory=list)
    credits: list[int] = field(default_factory=list)
    tested: int | None = None
    testing: dict[int, int] = field(default_factory=dict)
    testers: dict[int, list[int]] = field(default_factory=dict)
    accuracies: list[float | None] = field(default_factory=list)


class TiFL(Tiered[TiFLParams], FedAvg[TiFLParams]):
    """Tier-based federated learning.

    Devices are divided into tiers by data size or latency, and each round asks clients of one tier.

    Source: Chai et al., "TiFL: A tier-based federated learning system" (HPDC 2020), Algorithms 1
    and 2; tiers by data size as in CATA-Fed's comparison (Jeong and Kim 2022, section 5.3).

    - At first every reachable device reports its size (a scalar), or does a training whose latency
      is measured (down and up d parameters).
    - The range of the sizes or latencies is cut into bins of equal width, the tiers. The tiers do
      not change; a device that is measured later is put into one of them.
    - A round draws a tier with an available member, and then K members of the tier, by default
      uniformly; all if there are fewer. It goes on as a round of FedAvg.

    With ``mode = "credits"`` each tier has credits, the number of rounds in which it can still be
    drawn. Every I rounds (``interval``) the model goes to five clients of each tier (d parameters),
    which report its accuracy (a scalar). If the accuracy on the tier drawn last has not risen, the
    tiers get new probabilities, larger for a lower accuracy. Before that, and without learning,
    tiers with credits are equally likely. When no tier has credits, all tiers are.
    """

    Params: ClassVar[type[RoundParams]] = TiFLParams
    Client = TiFLClient
    State = TiFLState
    state: TiFLState

    def __init__(self, params: TiFLParams, server: Server) -> None:
        super().__init__(params, server)
        planned = server.setting.planned_rounds
        if params.mode == "credits" and params.credits is None and planned is None:
            raise ScenarioError(
                "strategy.credits is missing: its default is the planned rounds divided by the "
                "tiers, but stop.rounds is not given either; give one of them"
            )
        self._credits = params.credits or math.ceil((planned or 0) / params.tiers)

    def why_not_more(self, planned: int) -> str | None:
        if self.params.mode != "credits" or self.params.credits is not None:
            return None
        return (
            "its tiers have credits of the planned rounds divided by the tiers, as strategy.credits "
            "is not given"
        )

    async def on_start(self) -> None:
        tiers = self.params.tiers
        self.state.model = self.server.models.initial()
        self.state.accuracies = [None] * tiers
        self.state.credits = [self._credits] * tiers
        self.state.probabilities = self.params.probabilities or [1.0] * tiers
        self._measure_all(tiers)

    def _measure(self, device: int, job: str = "profile") -> None:
        if self.params.tiers_from == "size":
            job = "report"
        super()._measure(device, job)

    def tiers_of(self, devices: Sequence[int]) -> list[int]:
        figures = np.array([self.state.figures[device] for device in devices])
        tiers: list[int] = tier_numbers(figures, self.params.tiers, self.state.cuts).tolist()
        return tiers

    def make_tiers(self, devices: list[int]) -> None:
        """Divide devices into tiers, bins of equal width of data size or latency; open round 0.

        Without devices the server waits for one; if none can come, the run is stopped.

        Args:
            devices: IDs of the devices whose size or latency is known.
        """
        state = self.state
        server = self.server
        if devices:
            figures = np.array([state.figures[device] for device in devices])
            state.cuts = equal_width_bins(figures, self.params.tiers)
            self._assign_tiers(devices)
            counts = [len(members) for members in state.members]
            server.emit("tiers", bins=list(state.cuts), members=counts)
            self._open_round()
        elif not (state.away or server.clients.expects_newcomers()):
            server.stop("no device can be put into a tier")

    def select(self) -> list[int]:
        """Draw a tier of devices, and select clients of this tier for the round.

        If the tier has no available member, another tier is drawn. The drawn tier loses a credit, a
        round in which it can still be drawn, and is recorded among the run's events as ``tier``.

        Returns:
            The device IDs; empty if no tier has an available member.
        """
        state = self.state
        round_number = state.round
        generator = self.server.rng("tier", round_number)
        weights = self._tier_weights()
        while weights.any():
            tier = int(generator.choice(len(weights), p=weights / weights.sum()))
            cohort = self.pick(self.params.asked_per_round, among=state.members[tier])
            if cohort:
                state.current = tier
                # A tier without credits is drawn too if no tier has any.
                state.credits[tier] = max(state.credits[tier] - 1, 0)
                self.server.emit(
                    "tier", round=round_number, group=tier, credits=state.credits[tier]
                )
                return cohort
            weights[tier] = 0.0  # no member is available: another tier is drawn
        return []

    def _tier_weights(self) -> Floats:
        """Return the weight of each tier in the draw of the round's tier, float64 [P tiers].

        A tier without members or, with ``mode = "credits"``, without credits has weight 0. If all
        weights would be 0, all tiers with members have equal weights.
        """
        # 1 for a tier with members, else 0
        inhabited = np.array([bool(members) for members in self.state.members], dtype=np.float64)
        weights = inhabited * self.state.probabilities
        if self.params.mode == "credits":
            weights *= np.array(self.state.credits) > 0
        return weights if weights.any() else inhabited

    # test of all tiers (Algorithm 2)

    def _open_round(self) -> None:
        if self._begins_with_test():
            self.state.tested = self.state.round
            self._begin_test()
        else:
            super()._open_round()

    def _begins_with_test(self) -> bool:
        """Return whether the model is tested before the next round, and this was not done yet."""
        if self.params.mode != "credits":
            return False
        round_number = self.state.round
        interval = self.params.interval or self.params.tiers
        return bool(round_number % interval == 0 and self.state.tested != round_number)

    def _begin_test(self) -> None:
        """Ask clients of each tier to test the model; end the test at once if none is available."""
        state = self.state
        server = self.server
        state.testers = {}
        for tier, members in enumerate(state.members):
            testers = server.clients.sample(_TEST_CLIENTS, "test", state.round, tier, among=members)
            for device in testers:
                task = server.ask(device, {"model": state.model}, "test", group=tier)
                state.testing[task] = tier
        if not state.testing:
            server.timer("tested", server.now)

    async def _end_test(self) -> None:
        """Store the accuracy of the model on each tier after a test, and open the next round.

        If the accuracy on the tier drawn last has not risen, the tiers get new probabilities,
        larger for a lower accuracy (``ChangeProbs``). The test is recorded among the run's events
        as ``tier-test``.
        """
        state = self.state
        previous = state.accuracies
        accuracies = list(previous)
        for tier, devices in sorted(state.testers.items()):
            accuracy = await self.server.models.test(state.model, sorted(devices))
            if accuracy is not None:
                accuracies[tier] = accuracy
        state.accuracies = accuracies
        if self._has_not_risen(previous, accuracies):
            remaining = [0] * self.params.tiers  # 0 for a tier without members
            for tier, members in enumerate(state.members):
                if members:
                    remaining[tier] = state.credits[tier]
            state.probabilities = credit_probabilities(accuracies, remaining)
        self.server.emit(
            "tier-test",
            round=state.round,
            accuracies=accuracies,
            probabilities=state.probabilities,
        )
        super()._open_round()

    def _has_not_risen(
        self, previous: Sequence[float | None], accuracies: Sequence[float | None]
    ) -> bool:
        """Return whether the accuracy on the tier drawn last has not risen since the previous test.

        It is False if no tier was drawn yet, or if one of the two accuracies is unknown.

        Args:
            previous: accuracy of each tier in the previous test, 0 to 1; None if unknown.
            accuracies: accuracy of each tier in the new test, 0 to 1; None if unknown.
        """
        current = self.state.current
        if current is None:
            return False
        old = previous[current]
        new = accuracies[current]
        return old is not None and new is not None and new <= old

    async def on_task_end(self, message: TaskEnd) -> None:
        """Handle the end of a test of the model, of a device's first task, or of a round's task.

        The test ends with the last of its tasks. A device's first task measures its data size or
        its latency, by which the device is assigned to a tier.

        Args:
            message: the ended task.
        """
        testing = self.state.testing
        if message.task in testing:
            tier = testing.pop(message.task)
            if message.outcome == "done":
                self.state.testers.setdefault(tier, []).append(message.device)
            if not testing:
                await self._end_test()
        elif self._is_first_task(message.task):
            self._end_first_task(message)
        else:
            await super().on_task_end(message)

    async def on_timer(self, name: str) -> None:
        if name == "tested":
            await self._end_test()
        else:
            await super().on_timer(name)
