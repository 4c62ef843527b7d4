"""TiFL: tiers by latency, a cohort out of one tier, and tests of all (Chai et al., 2020)."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.errors import ScenarioError
from fedsim.common.spec import OnlyWith
from fedsim.common.training import Training
from fedsim.federation import Contents, Device, Instruction, Lazy, LocalResult, Server, TaskEnd
from fedsim.strategies.base import P, Strategy
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.round_params import AggregatingParams, RoundParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.world.task import Computation, Evaluate, Train

_TEST_CLIENTS = 5  # of each tier


class TiFLParams(AggregatingParams):
    """Parameters of TiFL."""

    looks_at_each: ClassVar[str | None] = "TiFL has phases of its own between rounds"

    kind: Literal["tifl"] = "tifl"
    tiers: int = Field(default=5, ge=1)
    """P, equal-width bins of data size or of latency."""
    tiers_from: Literal["size", "latency"] = "size"
    """``size``, which each device reports once (as for CATA-Fed), or ``latency`` of a whole task
    (the original).
    """
    mode: Literal["uniform", "static", "credits"] = "uniform"
    """tiers are ``uniform``, ``static``, as likely as ``probabilities`` says, or by ``credits``:
    the less accurate the model is on a tier's clients, the likelier it is, and none is chosen more
    often than it has credits.
    """
    probabilities: list[Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] | None = None
    """of each tier, from that with the least data (or latency) on, up to a common factor. The
    paper's, of five tiers: fast 1, 0, 0, 0, 0; random .7, .1, .1, .05, .05; slow 0, 0, 0, 0, 1.
    """
    credits: Annotated[int | None, OnlyWith("mode", values=("credits",))] = Field(
        default=None, ge=1
    )
    """of each tier; by default the planned rounds, divided by the tiers."""
    interval: Annotated[int | None, OnlyWith("mode", values=("credits",))] = Field(
        default=None, ge=1
    )
    """I, a test after every so many rounds, by default as many as there are tiers."""

    @model_validator(mode="after")
    def _one_probability_a_tier(self) -> Self:
        given = self.probabilities
        if (given is not None) != (self.mode == "static"):
            raise ValueError(
                f"'probabilities' belong to mode 'static'; the mode is {self.mode!r}, and they "
                f"are {given}"
            )
        if given is not None and (len(given) != self.tiers or not sum(given) > 0):
            raise ValueError(
                f"'probabilities' are {given}; allowed are {self.tiers}, one a tier, not all 0"
            )
        return self

    def check(self, devices: int) -> None:
        super().check(devices)
        self.refuse_more("tiers", devices)

    @property
    def unaccounted(self) -> str | None:
        return (
            "tiers are chosen by the accuracy on their clients"
            if self.mode == "credits"
            else super().unaccounted
        )

    @property
    def needs_accuracy(self) -> str | None:
        return (
            f"strategy.mode is {self.mode!r}" if self.mode == "credits" else super().needs_accuracy
        )


class Tiered(Strategy[P]):
    """A server half that puts each device into a tier after a first report or whole task, its
    meeting.

    ``begin`` is called when no meeting is open. It sets ``cuts``, sorts the ``known`` devices
    in, and trains.

    State: ``meeting``, task -> device and when it was asked; ``figures``, size (samples) or latency
    (s) of each device; ``cuts``, the borders of tiers, None until all reachable devices are met;
    ``tier``, of each device; ``members``; ``dropped``, devices without room for the training;
    ``away``, how many will return.
    """

    begin: Callable[[list[int]], None]
    tiers_of: Callable[[Sequence[int]], list[int]]

    def _meet_all(self, tiers: int) -> None:
        devices = self.server.devices
        self.state |= {
            "meeting": {},
            "figures": [None] * devices,
            "cuts": None,
            "tier": [None] * devices,
        }
        self.state |= {"members": [[] for _ in range(tiers)], "dropped": [], "away": 0}
        here = set(self.server.clients.online())
        for device in filter(self.server.clients.arrived, range(devices)):
            (self._meet if device in here else self._await)(device)
        self._make_tiers()

    def _await(self, device: int) -> None:
        self.state["away"] += self.server.clients.await_return(device)

    def _meet(self, device: int, job: str = "profile") -> None:
        task = self.server.ask(
            device, {"profiling": self.state["model"]} if job == "profile" else {}, job
        )
        self.state["meeting"][task] = (device, self.server.now)

    async def on_return(self, device: int) -> None:
        self.state["away"] -= 1
        self._meet(device)

    async def on_arrival(self, device: int) -> None:
        self._meet(device)

    def _ends_meeting(self, message: TaskEnd) -> bool:
        """Whether the task was one by which a device is met; then it is taken in."""
        if message.task not in self.state["meeting"]:
            return False
        device, asked = self.state["meeting"].pop(message.task)
        if message.outcome == "done":
            self.state["figures"][device] = float(
                message.contents.get("size-report", self.server.now - asked)
            )
            if self.state["cuts"] is not None:
                self._sort_in([device])
        elif message.outcome == "memory":
            self.state["dropped"].append(device)
            self.server.emit("tier-drop", device=device)
        else:
            self._await(device)
        self._make_tiers()
        return True

    def _make_tiers(self) -> None:
        if self.state["cuts"] is None and not self.state["meeting"]:
            self.begin(
                [
                    device
                    for device, figure in enumerate(self.state["figures"])
                    if figure is not None
                ]
            )

    def _sort_in(self, devices: Sequence[int]) -> None:
        for device, tier in zip(devices, self.tiers_of(devices), strict=True):
            self.state["tier"][device] = tier
            self.state["members"][tier].append(device)

    def group_of(self, device: int) -> int | None:
        return self.state["tier"][device]  # type: ignore[no-any-return]


def equal_width_bins(values: NDArray[np.float64], tiers: int) -> tuple[float, float]:
    """Bins over [min, max] of ``values`` [n], outliers included: where the first begins, and how
    wide each is.
    """
    low = float(values.min())
    high = float(values.max())
    return low, (high - low) / tiers


def tier_numbers(
    values: NDArray[np.float64], tiers: int, bins: tuple[float, float]
) -> NDArray[np.int64]:
    """The tier of each value, int64 [n], from 0; a value between two tiers belongs to the upper,
    one outside to the nearest.
    """
    low, width = bins
    if width == 0:
        return np.where(values > low, tiers - 1, 0).astype(np.int64)
    return np.clip(np.floor((values - low) / width), 0, tiers - 1).astype(np.int64)


def credit_probabilities(accuracies: Sequence[float | None], credits: Sequence[int]) -> list[float]:  # noqa: A002
    """The probability of each tier from now on: the lower its accuracy, the likelier (TiFL's
    ``ChangeProbs``).

    Of the n tiers with credits, in ascending order of accuracy, the one of rank r = 0..n-1 gets (n
    - r) / (n (n + 1) / 2); equals go by their number. A tier without credits gets 0; one of unknown
    accuracy (None) stands first.
    """
    able = [tier for tier, left in enumerate(credits) if left > 0]
    able.sort(key=lambda tier: (-1.0 if accuracies[tier] is None else accuracies[tier], tier))
    n = len(able)
    probabilities = [0.0] * len(credits)
    for rank, tier in enumerate(able):
        probabilities[tier] = (n - rank) / (n * (n + 1) / 2)
    return probabilities


class TiFLClient(SynchronousClient[TiFLParams]):
    """Trains as FedAvg's; reports its size, is profiled, or tests the model, when it is asked
    to.
    """

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
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


class TiFL(Tiered[TiFLParams], FedAvg[TiFLParams]):
    """Tier-based federated learning.

    Source: Chai et al., "TiFL: A tier-based federated learning system" (HPDC 2020), Algorithms 1
    and 2; tiers by data size as in CATA-Fed's comparison (Jeong and Kim 2022, section 5.3).

    First every reachable device reports its size (a scalar), or is profiled (down and up d
    parameters). Tiers are equal-width bins over these figures, and stay; later devices are sorted
    in. A round draws a tier with an available member, then K of its members uniformly (all if
    fewer), and goes on as FedAvg's.

    With credits, every I rounds the model goes to five clients of each tier (d parameters), which
    report its accuracy (a scalar). Probabilities change if the accuracy on the last tier has not
    risen. Without learning, and without credits left, tiers are chosen uniformly.

    State besides FedAvg's and ``Tiered``'s: ``current``, the tier drawn last; ``tested``, the
    round of the last test.
    """

    Params: ClassVar[type[RoundParams]] = TiFLParams
    Client = TiFLClient

    def __init__(self, params: TiFLParams, server: Server) -> None:
        super().__init__(params, server)
        planned = server.setting.planned_rounds
        if params.mode == "credits" and params.credits is None and planned is None:
            raise ScenarioError(
                "strategy.credits is missing: its default is the planned rounds divided by the "
                "tiers, but stop.rounds is not "
                "given either; give one of them"
            )
        self.credits_of_each = params.credits or math.ceil((planned or 0) / params.tiers)

    async def on_start(self) -> None:
        server = self.server
        tiers = self.params.tiers
        self.state |= {"model": server.models.initial(), "round": 0, "open": {}}
        self.state |= {
            "current": None,
            "tested": None,
            "testing": {},
            "heard": {},
            "accuracies": [None] * tiers,
        }
        self.state |= {
            "probabilities": self.params.probabilities or [1.0] * tiers,
            "credits": [self.credits_of_each] * tiers,
        }
        self._meet_all(tiers)

    def _meet(self, device: int, job: str = "profile") -> None:
        super()._meet(device, "report" if self.params.tiers_from == "size" else job)

    def tiers_of(self, devices: Sequence[int]) -> list[int]:
        figures = np.array([self.state["figures"][device] for device in devices])
        return [int(tier) for tier in tier_numbers(figures, self.params.tiers, self.state["cuts"])]

    def begin(self, known: list[int]) -> None:
        state = self.state
        server = self.server
        if known:
            state["cuts"] = equal_width_bins(
                np.array([state["figures"][device] for device in known]), self.params.tiers
            )
            self._sort_in(known)
            server.emit(
                "tiers", bins=list(state["cuts"]), members=[len(part) for part in state["members"]]
            )
            self._open_round()
        elif not (state["away"] or server.clients.expects_newcomers()):
            server.stop("no device can be put into a tier")

    def select(self) -> list[int]:
        state = self.state
        number = self.state["round"]
        inhabited = np.array([bool(part) for part in state["members"]], dtype=np.float64)
        weights = inhabited * state["probabilities"]
        generator = self.server.rng("tier", number)
        if self.params.mode == "credits":
            weights *= np.array(state["credits"]) > 0
        weights = weights if weights.any() else inhabited  # else no tier has credits left
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

    def _open_round(self) -> None:
        state = self.state
        params = self.params
        number = self.state["round"]
        due = (
            params.mode == "credits"
            and number % (params.interval or params.tiers) == 0
            and state["tested"] != number
        )
        if due:
            state["tested"] = number
            self._test()
        else:
            super()._open_round()

    def _test(self) -> None:
        state = self.state
        server = self.server
        state["heard"] = {}
        for tier, part in enumerate(state["members"]):
            for device in server.clients.sample(
                _TEST_CLIENTS, "test", state["round"], tier, among=part
            ):
                state["testing"][
                    server.ask(device, {"model": state["model"]}, "test", group=tier)
                ] = tier
        if not state["testing"]:
            server.timer("tested", server.now)

    async def _tested(self) -> None:
        state = self.state
        before = self.state["accuracies"]
        now = list(before)
        for tier, devices in sorted(state["heard"].items()):
            if (
                accuracy := await self.server.models.test(state["model"], sorted(devices))
            ) is not None:
                now[tier] = accuracy
        state["accuracies"] = now
        current = state["current"]
        if (
            current is not None
            and None not in (before[current], now[current])
            and now[current] <= before[current]
        ):
            inhabited = [
                left if part else 0
                for left, part in zip(state["credits"], state["members"], strict=True)
            ]
            state["probabilities"] = credit_probabilities(now, inhabited)
        self.server.emit(
            "tier-test", round=state["round"], accuracies=now, probabilities=state["probabilities"]
        )
        super()._open_round()

    async def on_task_end(self, message: TaskEnd) -> None:
        testing = self.state["testing"]
        if message.task in testing:
            tier = testing.pop(message.task)
            if message.outcome == "done":
                self.state["heard"].setdefault(tier, []).append(message.device)
            if not testing:
                await self._tested()
        elif not self._ends_meeting(message):
            await super().on_task_end(message)

    async def on_timer(self, name: str) -> None:
        await (self._tested() if name == "tested" else super().on_timer(name))
