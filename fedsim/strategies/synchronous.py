"""The round loop as handlers: ask a cohort, wait until every task has ended, aggregate, and again.

A round closes in one place, the end of its last open task; the deadline only ends what is open.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Discriminator, Field, Tag, model_validator

from fedsim.errors import ScenarioError
from fedsim.evaluation.evaluator import Measured, ModelAssignment
from fedsim.federation.client import Client, Instruction, LocalResult, RunInfo
from fedsim.federation.contents import Contents
from fedsim.federation.devices import Device
from fedsim.federation.messages import TaskEnd
from fedsim.federation.server import Server
from fedsim.language.spec import Epochs, OnlyWith
from fedsim.language.units import PositiveSeconds, show_seconds
from fedsim.learning.refs import Ref
from fedsim.strategies.base import Strategy, StrategyParams
from fedsim.strategies.parts.aggregation import Aggregation, AggregationSpec
from fedsim.strategies.parts.aggregation.means import Weighted
from fedsim.strategies.parts.deadline import Deadline, DeadlineSpec
from fedsim.strategies.parts.secure import PHASES, SecureAggregation, SecurePhases
from fedsim.strategies.parts.selection import QUESTION, Selection, SelectionSpec
from fedsim.strategies.parts.selection.random import Random
from fedsim.strategies.parts.server import ServerOptimiser, ServerOptimiserSpec
from fedsim.training import NO_LIMIT, Limit
from fedsim.world.population import DeadlineBase

_TIE_S = 1e-3  # a round that closes so shortly after a time of the schedule has closed at it: the clock's roundings may add up

Verdict = Literal["valid", "slow", "disconnected"]
"""What a round counts a task as: its update came; it came too late, or nothing was trained; its device vanished."""


class RoundParams(StrategyParams):
    """What every strategy in rounds takes.

    Attributes:
        clients_per_round: K, the updates wanted in a round.
        local_epochs: E, passes over its own data that a client makes.
        deadline: clients have so long (s); who is not done by then is late. None: the round waits for all. A table with a
            ``kind`` is a rule that may give each round another one (``parts/deadline``).
        relative_deadline: the same in units of the mean time of ``reference_epochs`` epochs over all devices, undisturbed
            (CATA-Fed's T, section 5.2). At most one of the two is given.
        reference_epochs: the epochs in that unit.
        deadline_base: in a population with tentative stragglers, whether that mean is the one without them (``unslowed``) or
            over the devices as they are (``all``).
        retry: with nobody to ask, look again after this time (s).
        every: rounds begin on a schedule: each at the first multiple of this time (s) at which the one before has closed. None:
            a round begins as soon as the one before has closed.
    """

    clients_per_round: int = Field(default=10, ge=1)
    local_epochs: Epochs = 1
    deadline: Annotated[
        Annotated[PositiveSeconds | None, Tag("~time")] | Annotated[DeadlineSpec, Tag("~rule")],
        Discriminator(lambda value: "~rule" if isinstance(value, Deadline | dict) else "~time"),
    ] = None
    relative_deadline: float | None = Field(default=None, gt=0.0, le=1e9)
    reference_epochs: Annotated[Epochs, OnlyWith("relative_deadline")] = 5
    deadline_base: Annotated[DeadlineBase, OnlyWith("relative_deadline")] = "unslowed"
    retry: PositiveSeconds = 60.0
    every: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _one_deadline(self) -> Self:
        if self.deadline is not None and self.relative_deadline is not None:
            raise ValueError("'deadline' and 'relative_deadline' both say how long clients have; give one of them")
        if isinstance(self.deadline, Deadline) and self.bounds_training:
            raise ValueError("'deadline' is a rule, which counts from the begin of the round; 'deadline_from' must be 'round'")
        return self

    def refuse_budget(self, why: str) -> None:
        """Refuse a deadline that bounds one training, where a client trains twice."""
        if self.bounds_training and (self.deadline is not None or self.relative_deadline is not None):
            raise ValueError(f"'deadline_from' is 'download', which bounds one training, but {why}; allowed is 'round'")

    @property
    def mean_epoch_over(self) -> DeadlineBase:
        """``deadline_base``."""
        return self.deadline_base

    @property
    def bounds_training(self) -> bool:
        """Whether the deadline, if there is one, counts from the end of each client's download."""
        return self.relative_deadline is not None

    def deadline_s(self, mean_epoch_s: float) -> float | None:
        """How long clients have (s), at first, where a mean epoch takes so many seconds; None without a deadline.

        Raises:
            ScenarioError: it is relative to a mean of 0 s or without end.
        """
        if self.relative_deadline is None:
            return self.deadline.least_s() if isinstance(self.deadline, Deadline) else self.deadline
        if not 0 < mean_epoch_s < math.inf:
            raise ScenarioError(
                f"strategy.relative_deadline is {self.relative_deadline:g} in units of the mean training time, which is "
                f"{mean_epoch_s:g} s in this population; give 'population.speed' values above 0 and finite, or 'deadline'"
            )
        return self.relative_deadline * self.reference_epochs * mean_epoch_s

    @property
    def asked_per_round(self) -> int:
        """How many clients a round asks; 0 stands for all."""
        return self.clients_per_round or 0

    @property
    def turns(self) -> int:
        """How often a client trains in a round."""
        return 1

    @property
    def enough(self) -> float:
        """With so many updates a round closes, whoever is still at work."""
        return math.inf

    def cohort_size(self, devices: int) -> int:
        """How many clients a round asks where all of so many devices can be had."""
        return min(self.asked_per_round or devices, devices)

    def combined_at_once(self, devices: int) -> int:
        """The fewest updates that one aggregation combines when no client drops out."""
        return self.cohort_size(devices)

    def check(self, devices: int) -> None:
        """A round cannot ask more clients than there are devices."""
        if self.asked_per_round > devices:
            raise ScenarioError(
                f"strategy.clients_per_round is {self.clients_per_round}, more than the population's {devices} devices; "
                f"allowed are 1 to {devices}"
            )

    def check_deadline(self, fastest_download_s: float) -> None:
        """A deadline before which nobody can even have downloaded the model drops everybody, always."""
        least = None if self.bounds_training or self.deadline is None else self.deadline_s(math.nan)
        if least is not None and least <= fastest_download_s:
            raise ScenarioError(
                f"strategy.deadline is {show_seconds(least)}, but the fastest device needs "
                f"{show_seconds(fastest_download_s)} for its download alone; allowed is more than that"
            )


class SelectingParams(RoundParams):
    """What strategies in rounds take whose clients may be chosen in several ways.

    Attributes:
        deadline_from: ``round``: a deadline counts from the begin of the round, for a whole task, and then ends what is open.
            ``download``: it counts from the end of each client's own download and bounds its training alone; the round
            closes when the last upload has come (CATA-Fed's reading). By default ``download`` for a relative deadline, else
            ``round``.
        selection: whom a round asks (``parts/selection``).
    """

    deadline_from: Annotated[Literal["round", "download"] | None, OnlyWith("deadline", "relative_deadline")] = None
    selection: SelectionSpec = Random()

    @property
    def bounds_training(self) -> bool:
        """As ``deadline_from`` says."""
        return super().bounds_training if self.deadline_from is None else self.deadline_from == "download"


class SynchronousParams(SelectingParams):
    """What strategies in rounds take that ask for a number of updates.

    Attributes:
        over_selection: ask this times K clients and close the round when K updates are there (1: ask K).
    """

    over_selection: float = Field(default=1.0, ge=1.0, le=1_000_000)

    @property
    def asked_per_round(self) -> int:
        """K clients, or more with over-selection."""
        return math.ceil(super().asked_per_round * self.over_selection - 1e-9)

    @property
    def enough(self) -> float:
        """K updates, where more than K clients were asked."""
        return self.clients_per_round if self.over_selection > 1 else math.inf

    def combined_at_once(self, devices: int) -> int:
        """The smallest cohort that the selection chooses on purpose."""
        return self.selection.fewest(self.cohort_size(devices))

    def check(self, devices: int) -> None:
        """A round cannot ask more clients than there are devices, including over-selection."""
        if self.over_selection > 1 and self.asked_per_round > devices:
            raise ScenarioError(
                f"strategy.clients_per_round is {self.clients_per_round}, with over_selection {self.over_selection:g} asks "
                f"{self.asked_per_round}, more than the population's {devices} devices; "
                f"allowed are both where their product is at most {devices}"
            )
        super().check(devices)


class CombiningParams(RoundParams):
    """What strategies in rounds take in which updates become models in several ways.

    Attributes:
        aggregation: how a cohort's updates (or a group's) become one (``parts/aggregation``).
        server: what the server makes of that (``parts/server``); None: it is the new model.
    """

    aggregation: AggregationSpec = Weighted()
    server: ServerOptimiserSpec | None = None

    def check(self, devices: int) -> None:
        """Updates that are combined at a time must be enough for the aggregation."""
        super().check(devices)
        self.aggregation.check(self.combined_at_once(devices))


class AggregatingParams(SynchronousParams, CombiningParams):
    """What a strategy in rounds takes that leaves all its parts open.

    Attributes:
        secure_aggregation: what it costs that the server learns the sum of the updates alone (``parts/secure``); None: it sees
            each of them. Not where something is made of single updates.
    """

    looks_at_each: ClassVar[str | None] = None
    """What the strategy makes of single updates, where it does; then their sum is not enough."""

    secure_aggregation: SecureAggregation | None = None

    @model_validator(mode="after")
    def _a_sum_is_enough(self) -> Self:
        looks = self.looks_at_each or self.aggregation.looks_at_each or self.selection.looks_at_each
        if self.secure_aggregation is not None and looks:
            raise ValueError(f"'secure_aggregation' is given, by which the server learns the sum of updates alone, but {looks}")
        return self

    def check(self, devices: int) -> None:
        """A cohort must be large enough for its neighbourhoods."""
        super().check(devices)
        if self.secure_aggregation is not None:
            self.secure_aggregation.check(self.cohort_size(devices))


S = TypeVar("S", bound=RoundParams)


class SynchronousClient(Client[S]):
    """Trains for ``local_epochs``; with a deadline from the download on, all of them must fit before it.

    Derived from the parameters: ``training_limit``, how long a client may train after its download (s), or None.
    """

    def __init__(self, params: S, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self.training_limit = self.params.deadline_s(setting.mean_epoch_s) if self.params.bounds_training else None
        self._limit = Limit(budget=self.training_limit, at_least=self.params.local_epochs)

    def limit(self, device: Device, order: Instruction) -> Limit:
        """All epochs or none."""
        return self._limit

    def testing_limit(self, order: Instruction) -> Limit:
        """What is tested in a round must fit before the same deadline."""
        return NO_LIMIT if order.round is None else Limit(budget=self.training_limit)

    def computed(self, device: Device, order: Instruction, done: LocalResult) -> LocalResult:
        """What the aggregation has clients do to their updates."""
        aggregation: Aggregation | None = getattr(self.params, "aggregation", None)
        if aggregation is None or done.update is None or done.start is None:
            return done
        update = aggregation.on_device(device, done.update, done.start)
        return done if update is done.update else done._replace(update=update)


class Synchronous(Strategy[S]):
    """A strategy in rounds. Most algorithms fill in ``select``, ``contents`` and ``aggregate``.

    State:
        round: the number of the round that is open, from 0.
        cohort: whom it asks.
        open: tasks that have not ended, task -> device.
        received: the round's updates in order of arrival, dicts of task, device, group, update, samples, start (the model
            from which it was trained) and contents (all that was received).
        slow, disconnected: how many of the round's tasks ended so.
        selected: how many were asked.
        asked_at: when they were (s).
        limit: how long they have, where a rule says so (s).
        candidates: where the selection asks first: those of each call of it, and how many are wanted of them.
        questions: tasks of candidates that have not answered, task -> device; ``answers``: what the others said, by device.
        selection, deadline, aggregation, server: what these parts remember; the last two by group.
        phase, phase_open, phase_there, graph, masked, unread, take_back: with secure aggregation (``SecurePhases``).
        drawn: in a round whose clients were all drawn uniformly, how many, and from how many; ``draws``: how many rounds were
            drawn so, or (1, 1) otherwise. Both where the aggregation ``accounts``.
        slot: with a schedule, which of its multiples the round belongs to; absent in the first round, which is of the 0th.

    Derived from the parameters, at most one not None: ``round_limit``, how long after its begin a round ends (s), and
    ``training_limit``, how long a client may train after its download (s), which the client keeps by itself.
    """

    Client: ClassVar[type[Client[Any]]] = SynchronousClient
    late_goes_on: ClassVar[bool] = False
    """Whether the deadline closes the round only: it ends no task, and the record of the round names it as no task's."""

    def __init__(self, params: S, server: Server) -> None:
        super().__init__(params, server)
        limit = self.params.deadline_s(self.setting.mean_epoch_s)
        self._round_limit = None if self.params.bounds_training else limit
        self.training_limit = limit if self.params.bounds_training else None
        self._enough = self.params.enough

    @property
    def round_limit(self) -> float | None:
        """How long after its begin the open round ends (s); None: when all are done."""
        limit: float | None = self.state.get("limit", self._round_limit)
        return limit

    # What an algorithm fills in.

    def select(self) -> list[int]:
        """Whom to ask in this round; by default whom ``selection`` says."""
        return self.pick(self.params.asked_per_round)

    def pick(self, count: int, *ids: int, among: list[int] | None = None) -> list[int]:
        """So many clients by ``selection``; ``ids``: where one round selects several times."""
        selection, stream = self._selection, (self.state["round"], *ids)
        chosen = selection.select(self.server, self.remembered("selection"), count, stream, among)
        chosen = self.server.chosen(chosen, type(selection).select)
        if self._account is not None and selection.uniform and among is None and not self.late_goes_on:
            self.state["drawn"] = (len(chosen), len(self.server.online()))
        if selection.asks and (asked := selection.asked_first(self.remembered("selection"), chosen)):
            self.state["candidates"].append((asked, count - len(chosen) + len(asked)))
        return chosen

    def heard(self, message: TaskEnd) -> None:
        """A task of the round has ended: what selection and deadline learn from it."""
        deadline = self.params.deadline
        self._selection.heard(self.server, self.remembered("selection"), message)
        if isinstance(deadline, Deadline):
            deadline.heard(self.remembered("deadline"), self.server.now - self.state["asked_at"], message.outcome == "done")

    @property
    def _selection(self) -> Selection:
        """Whose choice it is; who has no such parameter fills in ``select``, ``heard`` and ``learn``."""
        selection: Selection = self.params.selection  # type: ignore[attr-defined]
        return selection

    def advance(self, model: Ref, aggregated: Ref, group: int = 0) -> Ref:
        """The model that follows on ``model``: what the updates have become, or what the server optimiser makes of that."""
        optimiser: ServerOptimiser | None = getattr(self.params, "server", None)
        if optimiser is None:
            return aggregated
        state = self.remembered("server").setdefault(group, {})
        return optimiser.step(self.server, state, model, aggregated)

    def weights(self, entries: Sequence[dict[str, Any]]) -> list[float]:
        """How much each update counts; by default as the aggregation says. They sum to 1."""
        how: Aggregation = self.params.aggregation  # type: ignore[attr-defined]  # who has none combines nothing
        return how.weights(entries)

    async def combine(self, model: Ref, entries: list[dict[str, Any]], slot: int = 0, **record: Any) -> Ref:
        """The model that follows on ``model``: what the aggregation, and the server optimiser, make of some updates.

        Args:
            model: from which they were trained.
            entries: of ``received``, at least one.
            slot: tells models apart whose aggregations and server optimisers remember.
            record: what the record ``aggregate`` says besides round, tasks and weights.
        """
        params = self.params
        most = params.cohort_size(self.server.devices)
        updates = most if self.late_goes_on else int(min(most, params.enough))
        how: Aggregation = params.aggregation.for_rounds_of(updates)  # type: ignore[attr-defined]  # who has none does not call it
        weights = await how.weigh(self.server, entries, self.weights(entries))
        self.record_aggregate(entries, weights, **record)
        state = self.remembered("aggregation").setdefault(slot, {})
        return self.advance(model, how.combine(self.server, state, entries, weights, model), slot)

    def record_aggregate(self, entries: list[dict[str, Any]], weights: Sequence[float], **record: Any) -> None:
        """Record which updates became a model, with which weights."""
        tasks = [entry["task"] for entry in entries]
        aggregation: Aggregation | None = getattr(self.params, "aggregation", None)
        record |= {} if aggregation is None else aggregation.told(len(entries))
        self.server.emit("aggregate", round=self.state["round"], tasks=tasks, weights=weights, **record)

    async def learn(self) -> None:
        """The round is closed, and another one follows: what the selection learns from what came in it."""
        selection, state = self._selection, self.remembered("selection")
        await selection.closed(self.server, state, self.state["received"], self.shared_models())
        await selection.learn(self.server, state)

    def shared_models(self) -> ModelAssignment:
        """The models that the server has to send, with the devices that each is for; by default all (``models``)."""
        return self.models()

    def passed_over(self, device: int) -> None:
        """A candidate of the round was not chosen after all."""

    async def before_asking(self) -> None:
        """The round's cohort is known, and whose data shift in this round knows it; nobody has been asked yet."""

    def contents(self, device: int) -> Contents:
        """What to send to a device of the cohort."""
        raise NotImplementedError

    async def aggregate(self) -> None:
        """Put the round's ``received`` updates into the models."""
        raise NotImplementedError

    def center(self, entry: dict[str, Any]) -> Ref | None:
        """The model that an aggregated update went into, if there is one; for the discrepancy."""
        raise NotImplementedError

    def samples(self, message: TaskEnd) -> int:
        """How many samples the client says that its update was trained on."""
        return int(message["samples"])

    def start(self, message: TaskEnd) -> Ref:
        """The model from which an update was trained."""
        return message.asked["model"]  # type: ignore[no-any-return]

    def verdict(self, message: TaskEnd) -> Verdict:
        """What has become of a task."""
        if message.outcome == "done":
            return "valid"
        return "slow" if message.outcome in ("late", "memory") else "disconnected"

    def wait(self) -> None:
        """Nobody can be asked: look again later, with ``_open_round``."""
        self.server.look_again("retry", self.params.retry)

    # The loop.

    async def on_start(self) -> None:
        """Open the first round."""
        self.state |= {"round": 0}
        self._open_round()

    def next_round(self) -> None:
        """Open the round after the one that has just been closed, now or when it is due."""
        self.state["round"] += 1
        every, server = self.params.every, self.server
        if every is None:
            self._open_round()
        else:
            self.state["slot"] = max(self.state.get("slot", 0) + 1, math.ceil((server.now - _TIE_S) / every))
            server.timer("round", self.state["slot"] * every)

    def _open_round(self) -> None:
        self.state |= {"cohort": [], "open": {}, "received": [], "slow": 0, "disconnected": 0, "selected": 0}
        self.state |= {"candidates": [], "questions": {}, "answers": {}}
        self.state.pop("unread", None)
        self.state.pop("drawn", None)
        self.state["cohort"] = self.server.chosen(self.select(), type(self).select, idle=False)
        if self.state.get("drawn", (0, 0))[0] != len(self.state["cohort"]):
            self.state.pop("drawn", None)  # not all were drawn
        if self.state["candidates"]:
            self._ask_candidates()
        else:
            self._begin_round()

    def _begin_round(self) -> None:
        if not self.state["cohort"]:
            self.wait()
        else:
            self.server.begin_round(self.state["round"])
            self.server.timer("ask", self.server.now)  # when those whose data shift in this round have been told

    def _ask_candidates(self) -> None:
        selection, models = self._selection, list(self.shared_models().values())
        served = [None if devices is None else set(devices) for _, devices in models]
        for device in [device for candidates, _ in self.state["candidates"] for device in candidates]:
            own = [model for (model, _), devices in zip(models, served, strict=True) if devices is None or device in devices]
            contents = selection.question(own or [model for model, _ in models])
            self.state["questions"][self.server.ask(device, contents, QUESTION, group=self.group_of(device))] = device
        if selection.question_limit is not None:
            self.server.timer("questions", self.server.now + selection.question_limit)

    async def _answered(self, message: TaskEnd) -> None:
        """A candidate has answered, or not; after the last one the cohort is chosen."""
        state, server = self.state, self.server
        device = state["questions"].pop(message.task)
        if message.outcome == "done":
            state["answers"][device] = dict(message.contents)
        if state["questions"]:
            return
        server.cancel_timer("questions")
        answers = state["answers"]
        for candidates, count in state["candidates"]:
            there = {device: answers[device] for device in candidates if device in answers and server.idle(device)}
            chosen = await self._selection.choose(server, self.remembered("selection"), count, there)
            state["cohort"] = [device for device in state["cohort"] if device in chosen or device not in candidates]
        state["cohort"] = [device for device in state["cohort"] if server.idle(device)]
        for device in (device for candidates, _ in state["candidates"] for device in candidates):
            if device not in state["cohort"]:
                self.passed_over(device)
        state |= {"candidates": [], "answers": {}}
        self._begin_round()

    @property
    def _secure(self) -> SecurePhases | None:
        costs: SecureAggregation | None = getattr(self.params, "secure_aggregation", None)
        return None if costs is None else SecurePhases(costs, self.server, self.state)

    def _begin_asking(self) -> None:
        if self._secure is None:
            self._ask_cohort()
        else:
            self._secure.begin("secure-keys", self.state["cohort"])

    def _ask_cohort(self) -> None:
        server, number, devices = self.server, self.state["round"], self.state["cohort"]
        self.state["asked_at"] = server.now
        if isinstance(self.params.deadline, Deadline):
            self.state["limit"] = self.params.deadline.limit_s(self.remembered("deadline"), number)
        deadline = None if self.round_limit is None else server.timer("deadline", server.now + self.round_limit)
        limit = {} if self.training_limit is None else {"training_limit": self.training_limit}
        told = None if self.late_goes_on else deadline
        server.emit("round-start", round=number, selected=len(devices), deadline=told, **limit)
        for device in devices:
            self._ask(device)
        self.state["selected"] = len(devices)

    def _ask(self, device: int) -> None:
        """Ask a client of the cohort for what belongs to the round."""
        shares = {} if self._secure is None else self._secure.shares(device)
        self._start(device, {**self.contents(device), **shares})

    def _start(self, device: int, contents: Contents, job: str = "train", *, continues: bool = False) -> int:
        """Begin a task that the round waits for; its number. ``continues``: see ``Server.ask``."""
        number, group = self.state["round"], self.group_of(device)
        task = self.server.ask(device, contents, job, round=number, group=group, continues=continues)
        self.state["open"][task] = device
        return task

    async def on_timer(self, name: str) -> None:
        """The deadline ends what is open; a round that is due is opened; the retry looks for clients again.

        ``computed`` and ``aggregated``: the server is done with what it computes before a round asks, or closes.
        """
        if name in ("retry", "round"):
            self._open_round()
        elif name == "ask":
            await self.before_asking()
            if self.server.computing:
                self.server.timer("computed", self.server.now)
            else:
                self._begin_asking()
        elif name == "computed":
            self._begin_asking()
        elif name == "aggregated":
            await self._finish_round()
        elif name == "phase":
            if self._secure is not None and self._secure.on_timer():
                if self.state["cohort"]:
                    self._ask_cohort()
                else:
                    self.wait()
        elif name == "close":
            await self._close_round()
        elif name == "deadline":
            self._end_open()
        elif name == "questions":
            for task in list(self.state["questions"]):
                self.server.end(task, "late")

    def _end_open(self) -> None:
        for task in list(self.state["open"]):
            self.server.end(task, "late")

    async def on_task_end(self, message: TaskEnd) -> None:
        """Note what came back; the last one closes the round."""
        state = self.state
        if message.job == QUESTION:
            await self._answered(message)
            return
        if message.job in PHASES:
            assert self._secure is not None
            self._secure.ended(message)
            return
        del state["open"][message.task]
        self.heard(message)
        verdict = self.verdict(message)
        if verdict == "valid":
            state["received"].append(self.entry(message))
            if len(state["received"]) == self._enough:
                self._end_open()
        elif verdict == "slow":
            state["slow"] += 1
        else:
            state["disconnected"] += 1
        if not state["open"]:
            if self._secure is None or not state["received"]:
                await self._close_round()
            else:
                self._secure.begin("secure-unmask", [entry["device"] for entry in state["received"]])

    def entry(self, message: TaskEnd) -> dict[str, Any]:
        """An update that came, as aggregations take it."""
        about = {"task": message.task, "device": message.device, "group": message.group, "contents": message.contents}
        return {**about, "update": message["update"], "samples": self.samples(message), "start": self.start(message)}

    def counts(self) -> dict[str, int]:
        """What the record of the round says of its clients."""
        counts = {"selected": self.state["selected"], "valid": len(self.state["received"])}
        return counts | {name: self.state[name] for name in ("slow", "disconnected")}

    async def _close_round(self) -> None:
        self.server.cancel_timer("deadline")
        received = self.state["received"]
        if self.state.get("unread"):
            self.record_aggregate(received, [0.0] * len(received))
        else:
            await self.aggregate()
        if self.server.computing:
            self.server.timer("aggregated", self.server.now)
        else:
            await self._finish_round()

    async def _finish_round(self) -> None:
        """The round's model is there."""
        state, server = self.state, self.server
        received = state["received"]
        updates = [
            Measured(entry["update"], float(entry["samples"]), entry["start"], self.center(entry), entry["device"])
            for entry in received
        ]
        goes_on = await server.finish_round(state["round"], self.models(), updates=updates, **self.counts(), **self.spent())
        if goes_on:
            await self.learn()
        state["received"] = []
        if goes_on:
            self.next_round()

    @property
    def _account(self) -> Aggregation | None:
        """The aggregation, if it has an account."""
        aggregation: Aggregation | None = getattr(self.params, "aggregation", None)
        return aggregation if aggregation is not None and aggregation.accounts else None

    def spent(self) -> dict[str, float]:
        """What else the record of the round says: what the aggregation has spent of something."""
        account = self._account
        if account is None:
            return {}
        draws, drawn = self.remembered("draws"), self.state.get("drawn", (1, 1))
        draws[drawn] = draws.get(drawn, 0) + 1
        return account.spent(draws, self.server.devices)
