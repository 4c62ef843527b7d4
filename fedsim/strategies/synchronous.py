"""The round loop: ask a cohort, wait until every task has ended, aggregate, and repeat."""

import math
from typing import Any, ClassVar

from fedsim.common.training import NO_LIMIT, Limit
from fedsim.federation import (
    Client,
    Contents,
    Device,
    Instruction,
    LocalResult,
    RunInfo,
    Server,
    TaskEnd,
)
from fedsim.federation.events import COUNTED_AS, RoundCount
from fedsim.federation.round_result import Measured, ModelAssignment
from fedsim.learning.refs import Ref
from fedsim.strategies.candidates import Candidates
from fedsim.strategies.combining import Combining, S
from fedsim.strategies.parts.secure import PHASES, SecurePhases
from fedsim.strategies.parts.selection import QUESTION
from fedsim.strategies.round_state import SynchronousState as SynchronousState
from fedsim.strategies.round_timers import RoundTimer
from fedsim.strategies.state import new_state
from fedsim.strategies.updates import Update, samples_of

# Tolerance (s), because roundings of the clock accumulate: a round that closes at most this much
# after a time of the schedule counts as closed at that time.
_TIE_S = 1e-3


class SynchronousClient(Client[S]):
    """Client that trains the received model for ``local_epochs`` epochs, and sends its update.

    Attributes:
        training_limit: time within which a training must end, from the end of the download (s);
            None unless the deadline bounds only the training (``deadline.since = "download"``).

    Example:
        Client code that reports its number of samples as a payload of 4 bytes, in ``mine.py``:

        >>> from fedsim.plugin import FedAvg, SynchronousClient
        >>> class Counting(SynchronousClient):
        ...     def reply(self, device, instruction, result):
        ...         contents = super().reply(device, instruction, result)
        ...         return contents | {"count": device.samples}
        >>> class Counted(FedAvg):
        ...     Client = Counting

        >>> import fedsim
        >>> result = fedsim.run(
        ...     fedsim.Scenario(
        ...         learning="off",
        ...         population={"devices": 2},
        ...         strategy={"kind": "mine:Counted", "clients_per_round": 2},
        ...         stop={"rounds": 1},
        ...     )
        ... )
        >>> result.summary["bytes"]["by_purpose"]
        {'count': 8.0, 'model': 5200.0, 'update': 5200.0}
    """

    def __init__(self, params: S, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self.training_limit = params.training_limit_s(setting.mean_epoch_s)
        self._limit = Limit(budget=self.training_limit, at_least=params.local_epochs)
        self._aggregation = params.aggregated_by

    def limit(self, device: Device, instruction: Instruction) -> Limit:
        return self._limit

    def testing_limit(self, instruction: Instruction) -> Limit:
        """Return the time limit of a step that tests models (``Evaluate``).

        In a task of a round it is ``training_limit``, the limit of trainings. A task outside of
        rounds has no limit.

        Args:
            instruction: the message to the device.
        """
        if instruction.round is None:
            return NO_LIMIT
        return Limit(budget=self.training_limit)

    def computed(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> LocalResult:
        aggregation = self._aggregation
        if aggregation is None or result.update is None or result.start is None:
            return result
        update = aggregation.on_device(device, result.update, result.start)
        if update is result.update:
            return result
        return result._replace(update=update)


class Synchronous(Combining[S]):
    """Base of strategies in rounds: ask a cohort of clients, wait for their updates, aggregate.

    Most subclasses implement ``on_start``, ``contents``, ``aggregate``, ``models`` and ``center``.
    ``on_start`` makes the first model, and then awaits ``super().on_start()``, which opens round 0.

    A round has the phases of this table, in this order. A phase in brackets takes place only if the
    scenario asks for it. Most phases end with a timer, which the server sets and which calls
    ``on_timer`` with its name:

    ====================== ==================== ================================================
    phase                  begins in            ends
    ====================== ==================== ================================================
    select a cohort        ``_open_round``      at once; at timer ``retry`` if clients are lacking
    (question candidates)  ``_open_round``      when all have answered; at the latest at timer
                                                ``questions``
    shift devices' data    ``_begin_round``     at timer ``ask``, in the same instant
    prepare messages       ``before_asking``    at timer ``computed``, if the server takes time for it
    (exchange keys)        ``_begin_asking``    at the second timer ``secure-phase``
    train                  ``_ask_cohort``      when all tasks have ended; timer ``deadline`` ends the
                                                tasks that still run
    (unmask the sum)       ``on_task_end``      at timer ``unmasked``, after ``secure-phase``
    aggregate              ``_close_round``     at timer ``aggregated``, if the server takes time for it
    record                 ``_finish_round``    at once; with the key ``every``, the next round begins
                                                at timer ``round``
    ====================== ==================== ================================================

    A subclass with its own memory derives its ``State`` from ``SynchronousState``, or adds entries
    by key. The names of these entries must differ from the fields of ``SynchronousState``.
    """

    Client: ClassVar[type[Client[Any]]] = SynchronousClient
    State = SynchronousState
    state: SynchronousState

    def __init__(self, params: S, server: Server) -> None:
        super().__init__(params, server)
        self._deadline = params.deadline_rule(self.setting.mean_epoch_s)
        self._secured_by = params.secured_by
        self._accounts = self._aggregation is not None and self._aggregation.accounts
        self.state.deadline = new_state(self._deadline)
        if self._deadline is not None and not self.params.bounds_training:
            self.state.limit_s = self._deadline.least_s()

    def select(self) -> list[int]:
        """Return the IDs of the round's clients.

        By default the key ``selection`` chooses them, as many as ``RoundParams.asked_per_round``.
        """
        return self.pick(self.params.asked_per_round)

    def pick(self, count: int, *ids: int, among: list[int] | None = None) -> list[int]:
        """Return clients chosen by the key ``selection``.

        Candidates, which the selection first asks a question, are stored in the round's state. If
        the aggregation keeps a privacy account, the count of drawn clients is stored there too.

        Args:
            count: wanted count of clients.
            ids: numbers that complete the name of the random stream, if a round selects several
                times.
            among: the devices to select from; None for all.

        Returns:
            IDs of the devices of the cohort, candidates included.
        """
        state = self.state
        selection = self._selection
        assert selection is not None
        stream = (state.round, *ids)
        devices = selection.select(self.server, state.selection, count, stream, among)
        devices = self.server.clients.chosen(devices, type(selection).select)
        is_uniform = selection.uniform and among is None and not self.params.traits.late_goes_on
        if self._accounts and is_uniform:  # counts of drawn and of available clients
            state.drawn = (len(devices), len(self.server.clients.idle_devices()))
        if selection.asks:
            self._candidates.propose(devices, count - len(devices))
        return devices

    async def before_asking(self) -> None:
        """Hook after the round's devices are selected and their data shifted, before they train.

        By default nothing is done.
        """

    def contents(self, device: int) -> Contents:
        """Return the message that asks a client of the round to train.

        The default ``Client`` trains from the content ``model`` of the message.

        Args:
            device: ID of the device.

        Returns:
            Contents by name.
        """
        raise NotImplementedError

    def entry(self, message: TaskEnd) -> Update:
        """Return the update of an ended task, for the aggregation.

        Args:
            message: the ended task, with ``update`` and ``samples``.

        Returns:
            The update with ``task``, ``device``, ``group``, ``update``, ``samples``, ``contents``,
            and ``start``, the model from which the update was trained.
        """
        return Update(
            task=message.task,
            device=message.device,
            group=message.group,
            contents=message.contents,
            update=message["update"],
            samples=self._samples(message),
            start=message.asked.get("model"),
        )

    async def aggregate(self) -> None:
        """Compute the next models from the round's updates, ``state.received``.

        The method is called once a round when all tasks have ended, also if no update has arrived.
        An implementation calls ``next_model``, or combines models itself and calls
        ``record_aggregate``.
        """
        raise NotImplementedError

    def center(self, entry: Update) -> Ref | None:
        """Return the model into which an update was aggregated, to measure their distance.

        Args:
            entry: the update, as the method ``entry`` has returned it.

        Returns:
            The aggregated model; None if the update contributed to no model.
        """
        raise NotImplementedError

    @property
    def _secure(self) -> SecurePhases | None:
        """Secure aggregation of the round; None if the scenario has none.

        The object is built from ``state`` at each use, as a resumed run has another ``state``.
        """
        if self._secured_by is None:
            return None
        return SecurePhases(self._secured_by, self.server, self.state)

    @property
    def _candidates(self) -> Candidates:
        """Dialogue with the round's candidates, built anew from ``state`` as ``_secure`` is."""
        assert self._selection is not None
        return Candidates(self._selection, self.server, self.state)

    @property
    def _round_limit_s(self) -> float | None:
        """Time limit of the open round (s); None if the round ends when all tasks have ended."""
        if self._deadline is None or self.params.bounds_training:
            return None
        return self.state.limit_s

    def _shared_models(self) -> ModelAssignment:
        """Return the models that the selection receives, by name, with the devices of each.

        By default they are all models of the strategy (``models``). A strategy in which devices
        have models of their own overrides this method, to leave these models out.
        """
        return self.models()

    def _passed_over(self, device: int) -> None:
        """Hook for a device that the selection asked a question and that does not join the round.

        By default nothing is done.
        """

    def _samples(self, message: TaskEnd) -> int:
        """Return the count of samples that the client reports for its update."""
        return int(samples_of(message))

    def _counted_as(self, message: TaskEnd) -> RoundCount:
        """Return the name of the round's count that an ended task increases, such as ``slow``."""
        return COUNTED_AS[message.outcome]

    def _counts(self) -> dict[str, int]:
        state = self.state
        return {
            "selected": state.selected,
            "valid": len(state.received),
            "slow": state.slow,
            "disconnected": state.disconnected,
        }

    def _wait(self) -> None:
        """Set a timer to open the round again after ``retry``, as too few clients are available."""
        least = self.params.min_available or 1
        self.server.look_again(RoundTimer.RETRY, self.params.retry, at_least=least)

    async def on_start(self) -> None:
        self._open_round()

    def _next_round(self) -> None:
        """Open the next round, now or at the next time of the schedule ``every``."""
        state = self.state
        state.round += 1
        every = self.params.every
        if every is None:
            self._open_round()
        else:
            next_step = math.ceil((self.server.now - _TIE_S) / every)
            state.schedule_step = max(state.schedule_step + 1, next_step)
            self.server.timer(RoundTimer.ROUND, state.schedule_step * every)

    def _open_round(self) -> None:
        """Select the cohort of the next round, and begin the phase that follows.

        Without enough clients the server waits. If the selection asks candidates, their answers are
        awaited first.
        """
        state = self.state
        state.forget_round()
        if self.server.lacks_clients(self.params.min_available):
            self._wait()
            return
        state.cohort = self.server.clients.chosen(self.select(), type(self).select, idle=False)
        if state.drawn is not None and state.drawn[0] != len(state.cohort):
            state.drawn = None  # some clients of the cohort were not drawn uniformly
        if state.candidates:
            self._candidates.ask(self._shared_models(), self.group_of)
        else:
            self._begin_round()

    def _begin_round(self) -> None:
        if not self.state.cohort:
            self._wait()
            return
        self.server.begin_round(self.state.round)
        # a timer, so that devices process the shifts of this round before they are asked
        self.server.timer(RoundTimer.ASK, self.server.now)

    async def _choose(self) -> None:
        """Choose the cohort from the candidates that have answered, and begin the round."""
        for device in await self._candidates.reject():
            self._passed_over(device)
        self._begin_round()

    def _begin_asking(self) -> None:
        if self._secure is None:
            self._ask_cohort()
        else:
            self._secure.begin("secure-keys", self.state.cohort)

    def _ask_cohort(self) -> None:
        state = self.state
        state.asked_at = self.server.now
        limits = self._set_deadline()
        devices = state.cohort
        self.server.emit("round-start", round=state.round, selected=len(devices), **limits)
        for device in devices:
            self._ask(device)
        state.selected = len(devices)

    def _set_deadline(self) -> dict[str, float | None]:
        """Set the timer of the round's deadline, if there is one.

        Returns:
            Fields of the record ``round-start``: ``deadline``, the time at which open tasks will be
            ended (s), None for never, and ``training_limit`` (s) if the deadline bounds only each
            client's training.
        """
        state = self.state
        server = self.server
        limits: dict[str, float | None] = {"deadline": None}
        training_limit_s = self.params.training_limit_s(self.setting.mean_epoch_s)
        if training_limit_s is not None:
            limits["training_limit"] = training_limit_s
        elif self._deadline is not None:
            state.limit_s = self._deadline.limit_s(state.deadline, state.round)
        if self._round_limit_s is not None:
            deadline = server.timer(RoundTimer.DEADLINE, server.now + self._round_limit_s)
            if not self.params.traits.late_goes_on:  # otherwise no task is ended
                limits["deadline"] = deadline
        return limits

    def _ask(self, device: int) -> None:
        contents = {**self.contents(device)}
        secure = self._secure
        if secure is not None:
            contents |= secure.shares(device)
        self._start(device, contents)

    def _start(
        self, device: int, contents: Contents, job: str = "train", *, continues: bool = False
    ) -> int:
        """Ask a device to do a job in the open round, which ends only when the task has ended.

        Args:
            device: ID of the device.
            contents: the message to the device, by name.
            job: name of the job.
            continues: whether the task continues an earlier task of the device in this round.

        Returns:
            The ID of the new task.
        """
        round_number = self.state.round
        group = self.group_of(device)
        task = self.server.ask(
            device, contents, job, round=round_number, group=group, continues=continues
        )
        self.state.open[task] = device
        return task

    async def on_timer(self, name: str) -> None:
        """Begin the phase that follows when a timer ends the present one.

        The docstring of ``Synchronous`` has a table of the phases and their timers.

        Args:
            name: name of the timer, one in this table or one of a subclass.
        """
        match name:
            case RoundTimer.RETRY | RoundTimer.ROUND:
                self._open_round()
            case RoundTimer.ASK:
                await self.before_asking()
                if self.server.computing:
                    self.server.timer(RoundTimer.COMPUTED, self.server.now)
                else:
                    self._begin_asking()
            case RoundTimer.COMPUTED:
                self._begin_asking()
            case RoundTimer.AGGREGATED:
                await self._finish_round()
            case RoundTimer.SECURE_PHASE:
                self._end_secure_phase()
            case RoundTimer.UNMASKED:
                await self._close_round()
            case RoundTimer.DEADLINE:
                self._stop_waiting()
            case RoundTimer.QUESTIONS:
                self._candidates.end()

    def _end_secure_phase(self) -> None:
        """Continue secure aggregation when its timer rings.

        If the message phases before the training are over, the cohort is asked to train; the round
        is opened again later if no device of the cohort remains.
        """
        assert self._secure is not None
        may_train = self._secure.on_timer()
        if may_train and self.state.cohort:
            self._ask_cohort()
        elif may_train:
            self._wait()

    def _stop_waiting(self) -> None:
        """Stop waiting for the round's open tasks: its time is over, or it has enough updates.

        The tasks end with the outcome ``late``. A strategy in which late clients go on
        (``Traits.late_goes_on``) overrides this method, to close the round without ending tasks.
        """
        for task in list(self.state.open):
            self.server.end(task, "late")

    async def on_task_end(self, message: TaskEnd) -> None:
        """Process the end of a question, of a phase of secure aggregation, or of a training.

        When the last training has ended, the round is closed, or the masks are removed first.

        Args:
            message: the ended task, with its outcome and the contents of the answer.
        """
        state = self.state
        secure = self._secure
        if message.job == QUESTION:
            if self._candidates.receive(message):
                await self._choose()
            return
        if secure is not None and message.job in PHASES:
            secure.ended(message)
            return
        del state.open[message.task]
        self._notify_parts(message)
        self._add_to_counts(message)
        if state.open:
            return
        if secure is None or not state.received:
            await self._close_round()
        else:
            secure.begin("secure-unmask", [update.device for update in state.received])

    def _add_to_counts(self, message: TaskEnd) -> None:
        """Store the update of an ended task, or count the task as slow or disconnected.

        When the round has enough updates, it waits for no other task.
        """
        state = self.state
        match self._counted_as(message):
            case "valid":
                state.received.append(Update.of(self.entry(message)))
                if len(state.received) == self.params.enough:
                    self._stop_waiting()
            case "slow":
                state.slow += 1
            case "disconnected":
                state.disconnected += 1

    def _notify_parts(self, message: TaskEnd) -> None:
        state = self.state
        if self._selection is not None:
            self._selection.on_task_end(self.server, state.selection, message)
        if self._deadline is not None and state.asked_at is not None:
            took_s = self.server.now - state.asked_at
            self._deadline.on_task_end(state.deadline, took_s, message.outcome == "done")

    async def _close_round(self) -> None:
        state = self.state
        self.server.cancel_timer(RoundTimer.DEADLINE)
        if state.secure.unread:
            self.record_aggregate(state.received, [0.0] * len(state.received))
        else:
            await self.aggregate()
        if self.server.computing:
            self.server.timer(RoundTimer.AGGREGATED, self.server.now)
        else:
            await self._finish_round()

    async def _finish_round(self) -> None:
        """Record the round with its measures; the next round begins unless the run ends.

        The selection receives the updates before the next round, which selects by them.
        """
        state = self.state
        server = self.server
        selection = self._selection
        received = state.received
        updates = []
        for update in received:
            center = self.center(update)
            samples = float(update.samples)
            updates.append(Measured(update.update, samples, update.start, center, update.device))
        counts = self._counts()
        spent = self._privacy_spent()
        goes_on = await server.finish_round(
            state.round, self.models(), updates=updates, **counts, **spent
        )
        if goes_on and selection is not None:
            models = self._shared_models()
            await selection.on_round_end(server, state.selection, received, models)
            await selection.learn(server, state.selection)
        state.received = []
        if goes_on:
            self._next_round()
