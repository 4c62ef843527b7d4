"""TiFL: who is in which tier, a cohort out of one of them, and tests of all (Chai et al., 2020)."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.errors import ScenarioError
from fedsim.federation import Contents, Device, Instruction, Lazy, LocalResult, Server, TaskEnd
from fedsim.language.spec import OnlyWith
from fedsim.language.units import PositiveSeconds
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.round_params import AggregatingParams, RoundParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.training import Training
from fedsim.world.task import Computation, Evaluate, Train

Bins = tuple[float, float]
"""Equal-width bins: where the first begins, and how wide each is."""


def equal_width_bins(values: NDArray[np.float64], tiers: int) -> Bins:
    """Bins over [min, max] of ``values`` [n], outliers included."""
    low, high = float(values.min()), float(values.max())
    return low, (high - low) / tiers


def tier_numbers(values: NDArray[np.float64], tiers: int, bins: Bins) -> NDArray[np.int64]:
    """The tier of each value, int64 [n], from 0; a value between two tiers belongs to the upper, one outside to the nearest."""
    low, width = bins
    if width == 0:
        return np.where(values > low, tiers - 1, 0).astype(np.int64)
    return np.clip(np.floor((values - low) / width), 0, tiers - 1).astype(np.int64)


def credit_probabilities(accuracies: Sequence[float | None], credits: Sequence[int]) -> list[float]:  # noqa: A002
    """The probability of each tier from now on: the lower its accuracy, the likelier (TiFL's ``ChangeProbs``).

    Of the n tiers with credits, in ascending order of accuracy, the one of rank r = 0..n-1 gets (n - r) / (n (n + 1) / 2);
    equals go by their number. A tier without credits gets 0; one of unknown accuracy (None) stands first.
    """
    able = [tier for tier, left in enumerate(credits) if left > 0]
    able.sort(key=lambda tier: (-1.0 if accuracies[tier] is None else accuracies[tier], tier))
    n = len(able)
    probabilities = [0.0] * len(credits)
    for rank, tier in enumerate(able):
        probabilities[tier] = (n - rank) / (n * (n + 1) / 2)
    return probabilities


class TiFLParams(AggregatingParams):
    """Parameters of TiFL.

    Attributes:
        tiers: P, equal-width bins of data size or of latency.
        tiers_from: ``size``, which each device reports once (as CATA-Fed's comparison has it), or ``latency``, which the server
            measures by giving each device the whole task of a round (the original).
        profiling_rounds: how often it does so for each device.
        profiling_limit: Tmax (s). A task that takes longer is ended and counts as Tmax; a device that never came in below it is
            dropped. None: whoever comes, however late, gets a tier.
        mode: ``uniform``: every tier is equally likely. ``static``: as likely as ``probabilities`` says. ``credits``: the less
            accurate the model is on a tier's clients, the likelier it is, and none is chosen more often than it has credits.
        probabilities: of each tier in a static policy, from that with the least data (or the lowest latency) on, up to a common
            factor. The paper's, of five tiers: fast 1, 0, 0, 0, 0; random .7, .1, .1, .05, .05; slow 0, 0, 0, 0, 1.
        credits: of each tier; by default the planned rounds, divided by the tiers.
        interval: I, a test after every so many rounds, by default as many as there are tiers.
        require_no_improvement: probabilities change only if the accuracy on the last chosen tier has not risen since the test
            before (the paper's condition; common re-implementations lack it).
        accuracy_from: ``clients``: a test is a message to test clients of each tier, who report a number. ``measurement``:
            the server knows the accuracy on all of a tier's clients, at no cost: an evaluation from outside, no protocol.
        test_clients: how many clients of each tier are tested.
    """

    looks_at_each: ClassVar[str | None] = "TiFL has phases of its own between rounds"

    kind: Literal["tifl"] = "tifl"
    tiers: int = Field(default=5, ge=1)
    tiers_from: Literal["size", "latency"] = "size"
    profiling_rounds: Annotated[int, OnlyWith("tiers_from", values=("latency",))] = Field(default=1, ge=1)
    profiling_limit: Annotated[PositiveSeconds | None, OnlyWith("tiers_from", values=("latency",))] = None
    mode: Literal["uniform", "static", "credits"] = "uniform"
    probabilities: list[Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] | None = None
    credits: Annotated[int | None, OnlyWith("mode", values=("credits",))] = Field(default=None, ge=1)
    interval: Annotated[int | None, OnlyWith("mode", values=("credits",))] = Field(default=None, ge=1)
    require_no_improvement: Annotated[bool, OnlyWith("mode", values=("credits",))] = True
    accuracy_from: Annotated[Literal["clients", "measurement"], OnlyWith("mode", values=("credits",))] = "clients"
    test_clients: Annotated[int, OnlyWith("mode", values=("credits",))] = Field(default=5, ge=1)

    @model_validator(mode="after")
    def _one_probability_a_tier(self) -> Self:
        given = self.probabilities
        if (given is not None) != (self.mode == "static"):
            raise ValueError(f"'probabilities' belong to mode 'static'; the mode is {self.mode!r}, and they are {given}")
        if given is not None and (len(given) != self.tiers or not sum(given) > 0):
            raise ValueError(f"'probabilities' are {given}; allowed are {self.tiers}, one a tier, not all 0")
        return self

    def check(self, devices: int) -> None:
        super().check(devices)
        self.refuse_more("tiers", devices)

    @property
    def unaccounted(self) -> str | None:
        return "tiers are chosen by the accuracy on their clients" if self.mode == "credits" else super().unaccounted

    @property
    def needs_accuracy(self) -> str | None:
        return f"strategy.mode is {self.mode!r}" if self.mode == "credits" else super().needs_accuracy

    def credits_of_each(self, planned_rounds: int | None) -> int:
        """The credits with which each tier begins; refused where neither they nor a number of rounds are given."""
        if self.credits is None and planned_rounds is None:
            raise ScenarioError(
                "strategy.credits is missing: its default is the planned rounds divided by the tiers, but stop.rounds is not "
                "given either; give one of them"
            )
        return self.credits if self.credits is not None else math.ceil((planned_rounds or 0) / self.tiers)


class TiFLClient(SynchronousClient[TiFLParams]):
    """Trains as FedAvg's; reports its size, is profiled, or tests the model, when it is asked to."""

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        match instruction.job:
            case "report":
                return ()
            case "profile":
                return (Train(Training(instruction["profiling"], self.params.local_epochs)),)
            case "test":
                return (Evaluate((instruction["model"],)),)
        return super().work(device, instruction)

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents | None:
        match instruction.job:
            case "report":
                return {"size-report": result.samples}
            case "profile":
                return {"profiling": result.update}
            case "test":
                assert result.tested is not None
                return {"test-accuracy": Lazy("accuracy", result.tested)}
        return super().reply(device, instruction, result)


class TiFL(FedAvg[TiFLParams]):
    """Tier-based federated learning.

    Source: Chai et al., "TiFL: A tier-based federated learning system" (HPDC 2020), Algorithms 1 and 2; tiers by data size as
    in CATA-Fed's comparison (Jeong and Kim 2022, section 5.3).

    First every device that can be reached is introduced, the others when they can be: it reports its size (a scalar), or it is
    profiled (down and up d parameters, each time). Tiers are equal-width bins over what is then known, and stay; who comes
    later, a newcomer when it arrives, is introduced then and sorted in. A round draws a tier, then K of its members uniformly
    (all if fewer), and goes on as FedAvg's. A tier with no member that can be had is passed over.

    With credits, every I rounds the model goes to test clients of each tier (d parameters), who test it and report their
    accuracy (a scalar). Their time is that of a forward pass over as many samples as they train on. Without learning there is
    no accuracy, and the probabilities stay uniform. When all credits are used up, tiers are chosen uniformly.

    State besides FedAvg's:
        introducing: tasks of devices that are being introduced, task -> device and when it was asked.
        expected: how many of the devices that have arrived may still be introduced.
        figures: size (samples) or mean latency (s) of each introduced device, None for the others.
        profiles: tasks of profiling that each device has behind it, and the time they took (s).
        bins: None until all who could be reached are introduced; then ``members``: the devices of each tier, ``tier``: of each
            device, and ``current``: the one drawn last.
        credits, probabilities, accuracies: of each tier.
        tested: the round before which the last test was made.
        testing: tasks of test clients, task -> tier; ``heard``: those who have reported, by tier.
    """

    Params: ClassVar[type[RoundParams]] = TiFLParams
    Client = TiFLClient

    def __init__(self, params: TiFLParams, server: Server) -> None:
        super().__init__(params, server)
        self.credits_of_each = params.credits_of_each(server.setting.planned_rounds) if params.mode == "credits" else 0

    async def on_start(self) -> None:
        devices, tiers, server = self.server.devices, self.params.tiers, self.server
        self.state |= {"model": server.models.initial(), "round": 0, "open": {}, "introducing": {}, "expected": 0, "bins": None}
        self.state |= {"figures": [None] * devices, "profiles": [(0, 0.0)] * devices, "tier": [None] * devices}
        self.state |= {"members": [[] for _ in range(tiers)], "current": None, "tested": None, "testing": {}, "heard": {}}
        self.state |= {"probabilities": self.params.probabilities or [1.0] * tiers, "accuracies": [None] * tiers}
        self.state["credits"] = [self.credits_of_each] * tiers
        here = set(server.clients.online())
        for device in filter(server.clients.arrived, range(devices)):
            self.state["expected"] += 1
            if device in here:
                self._introduce(device)
            else:
                self._await(device)
        self._begin()

    async def on_return(self, device: int) -> None:
        self._introduce(device)

    async def on_arrival(self, device: int) -> None:
        self.state["expected"] += 1
        self._introduce(device)

    def _await(self, device: int) -> None:
        self.state["expected"] -= not self.server.clients.await_return(device)

    def _introduce(self, device: int) -> None:
        server, params = self.server, self.params
        if params.tiers_from == "size":
            task = server.ask(device, {}, "report")
        else:
            task = server.ask(device, {"profiling": self.state["model"]}, "profile")
            if params.profiling_limit is not None:
                server.timer(f"profiling/{task}", server.now + params.profiling_limit)
        self.state["introducing"][task] = (device, server.now)

    def _introduced(self, message: TaskEnd) -> None:
        device, asked = self.state["introducing"].pop(message.task)
        self.server.cancel_timer(f"profiling/{message.task}")
        if self.params.tiers_from == "latency":
            self._profiled(device, message, self.server.now - asked)
        elif message.outcome == "done":
            self._place(device, float(message["size-report"]))
        else:
            self._await(device)
        self._begin()

    def _profiled(self, device: int, message: TaskEnd, latency: float) -> None:
        """A task of profiling has ended: the next one, or a tier, or none."""
        state, limit, wanted = self.state, self.params.profiling_limit, self.params.profiling_rounds
        if message.outcome == "memory":  # it never can train
            state["expected"] -= 1
            self.server.emit("tier-drop", device=device, latency=None)
            return
        count, total = state["profiles"][device]
        away = message.outcome not in ("done", "late")
        if not away or limit is not None:
            count, total = count + 1, total + (latency if message.outcome == "done" else limit or 0.0)
            state["profiles"][device] = (count, total)
        if count < wanted:
            if away:
                self._await(device)
            else:
                self._introduce(device)
        elif limit is not None and total >= wanted * limit:
            state["expected"] -= 1
            self.server.emit("tier-drop", device=device, latency=total / wanted)
        else:
            self._place(device, total / wanted)

    def _place(self, device: int, figure: float) -> None:
        """Now the device's figure is known; once there are tiers, it gets its own."""
        self.state["expected"] -= 1
        self.state["figures"][device] = figure
        if self.state["bins"] is not None:
            self._sort_in([device])

    def _sort_in(self, devices: Sequence[int]) -> None:
        """Give devices whose figures are known their tiers, now that there are tiers."""
        state = self.state
        figures = np.array([state["figures"][device] for device in devices])
        for device, tier in zip(devices, tier_numbers(figures, self.params.tiers, state["bins"]).tolist(), strict=True):
            state["members"][tier].append(device)
            state["tier"][device] = tier

    def _begin(self) -> None:
        """Make the tiers when nobody is left to introduce at this time, and open the first round."""
        state, server = self.state, self.server
        if state["bins"] is not None or state["introducing"]:
            return
        known = [device for device, figure in enumerate(state["figures"]) if figure is not None]
        if known:
            bins = equal_width_bins(np.array([state["figures"][device] for device in known]), self.params.tiers)
            state["bins"] = bins
            self._sort_in(known)
            server.emit("tiers", bins=list(bins), members=[len(part) for part in state["members"]])
            self._open_round()
        elif not (state["expected"] or server.clients.expects_newcomers()):
            server.stop("no device can be put into a tier")

    def select(self) -> list[int]:
        state, number = self.state, self.state["round"]
        weights, generator = self._weights(), self.server.rng("tier", number)
        while weights.any():
            tier = int(generator.choice(len(weights), p=weights / weights.sum()))
            chosen = self.pick(self.params.asked_per_round, among=state["members"][tier])
            if chosen:
                state["current"] = tier
                state["credits"][tier] = max(state["credits"][tier] - 1, 0)
                self.server.emit("tier", round=number, group=tier, credits=state["credits"][tier])
                return chosen
            weights[tier] = 0.0
        return []

    def _weights(self) -> NDArray[np.float64]:
        """The relative weight of each tier in the draw; 0 for empty tiers and, while credits remain, for tiers without any."""
        state = self.state
        inhabited = np.array([bool(part) for part in state["members"]], dtype=np.float64)
        weights: NDArray[np.float64] = inhabited * state["probabilities"]
        if self.params.mode == "credits":
            weights *= np.array(state["credits"]) > 0
        return weights if weights.any() else inhabited

    def group_of(self, device: int) -> int | None:
        tier: int | None = self.state["tier"][device]
        return tier

    def _open_round(self) -> None:
        state, params, number = self.state, self.params, self.state["round"]
        interval = params.tiers if params.interval is None else params.interval
        due = params.mode == "credits" and number % interval == 0 and state["tested"] != number
        if due and (number > 0 or params.require_no_improvement):
            state["tested"] = number
            self._test()
        else:
            super()._open_round()

    def _test(self) -> None:
        """Ask test clients of every tier; ``_tested`` takes in what they say."""
        state, params, server = self.state, self.params, self.server
        state["heard"] = {}
        if params.accuracy_from == "measurement":
            state["heard"] = {tier: part for tier, part in enumerate(state["members"]) if part}
        else:
            for tier, part in enumerate(state["members"]):
                for device in server.clients.sample(params.test_clients, "test", state["round"], tier, among=part):
                    task = server.ask(device, {"model": state["model"]}, "test", group=tier)
                    state["testing"][task] = tier
        if not state["testing"]:
            server.timer("tested", server.now)

    async def _tested(self) -> None:
        """Every test client has reported or is lost: see whether the probabilities change, and go on with the round."""
        state, params, before = self.state, self.params, self.state["accuracies"]
        now = list(before)
        for tier, devices in sorted(state["heard"].items()):
            accuracy = await self.server.models.test(state["model"], sorted(devices))
            now[tier] = before[tier] if accuracy is None else accuracy
        state["accuracies"] = now
        current = state["current"]
        if current is not None and now[current] is not None:
            improved = before[current] is None or now[current] > before[current]
            if not (params.require_no_improvement and improved):
                inhabited = [left if part else 0 for left, part in zip(state["credits"], state["members"], strict=True)]
                state["probabilities"] = credit_probabilities(now, inhabited)
        self.server.emit("tier-test", round=state["round"], accuracies=now, probabilities=state["probabilities"])
        super()._open_round()

    async def on_task_end(self, message: TaskEnd) -> None:
        state = self.state
        if message.task in state["introducing"]:
            self._introduced(message)
        elif message.task in state["testing"]:
            tier = state["testing"].pop(message.task)
            if message.outcome == "done":
                state["heard"].setdefault(tier, []).append(message.device)
            if not state["testing"]:
                await self._tested()
        else:
            await super().on_task_end(message)

    async def on_timer(self, name: str) -> None:
        if name.startswith("profiling/"):
            self.server.end(int(name.partition("/")[2]), "late")
        elif name == "tested":
            await self._tested()
        else:
            await super().on_timer(name)
