"""API of the server for a strategy's server code.

The server code sees messages, and neither data, labels nor speeds of devices. A handler begins and
ends at one simulated time: it may await values, which takes only real time.
"""
# ruff: noqa: A002 - a round is called ``round``

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

import numpy as np

from fedsim.common.arguments import (
    COUNT,
    FLAG,
    INDEX,
    LIST,
    MAPPING,
    NAME,
    STREAM_ID,
    TEXT,
    instance,
    number,
    one_of,
    optional,
    takes,
    whole,
)
from fedsim.common.errors import SimulationError
from fedsim.federation.argument_rules import CONTENTS, device_of
from fedsim.federation.client import RunInfo
from fedsim.federation.clients import Clients
from fedsim.federation.contents import Contents, payloads
from fedsim.federation.costs import OPERATIONS
from fedsim.federation.evaluator import NOT_MEASURED, Evaluator
from fedsim.federation.peer import Peer
from fedsim.federation.round_checks import (
    MODELS_IN_WORDS,
    check_figures,
    check_updates,
    find_wrong_model,
)
from fedsim.federation.round_result import Measured, ModelAssignment
from fedsim.federation.server_edges import ServerEdges
from fedsim.federation.server_models import ServerModels
from fedsim.federation.stop_rules import StopRules
from fedsim.federation.strategy_records import check_record
from fedsim.world.steps import Cause

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch

T = TypeVar("T")
_DEVICE = device_of(attrgetter("devices"))


class Server:
    """API of a strategy's code on the server (``self.server``): devices, models, timers, records.

    A call with a wrong argument raises ``SimulationError``, which names the argument and its value.

    Attributes:
        devices: count of devices.
        setting: properties of the run, such as the count of devices, a ``RunInfo``.
        clients: which devices can be asked, ``Clients``.
        models: arithmetic with models, and their values, ``ServerModels``.
        edges: the edge servers of the network, ``ServerEdges``.
    """

    def __init__(
        self, dispatch: "Dispatch", evaluator: Evaluator, ending: StopRules, setting: RunInfo
    ) -> None:
        self._dispatch = dispatch
        self._simulation = dispatch.simulation
        self._timers = dispatch.timers
        self._computations = dispatch.computations
        self._updates = dispatch.updates  # received updates that no record ``aggregate`` lists
        self._evaluator = evaluator
        self._ending = ending
        self.setting = setting
        self.devices = setting.devices
        self.clients = Clients(dispatch, setting.devices)
        self.models = ServerModels(
            dispatch.learner,
            dispatch.computations,
            evaluator,
            setting.parameters,
            setting.devices,
        )
        self.edges = ServerEdges(dispatch)

    @property
    def now(self) -> float:
        """Simulated time (s)."""
        return self._simulation.now

    @takes(name=TEXT, when=number(infinite=True))
    def timer(self, name: str, when: float) -> float:
        """Set a timer, at which ``Strategy.on_timer`` is called; replaces a timer of the same name.

        If the server still computes at that time (``compute``), the call follows when it has
        finished.

        Args:
            name: name of the timer, which ``on_timer`` receives.
            when: the absolute time (s). If it is not after ``now``, the call follows in this
                instant, after the messages that have arrived already.

        Returns:
            The time of the call (s), rounded to the clock's ticks.
        """
        return self._timers.set(name, when)

    @property
    def computing(self) -> bool:
        """Whether the server is still busy with ``compute``; False without ``[server] speed``."""
        return self._computations.busy_until > self.now

    @takes(what=one_of(*OPERATIONS), n=COUNT, d=COUNT, m=COUNT)
    def compute(self, what: str, n: int, d: int = 0, m: int = 1) -> None:
        """Charge the simulated time of an operation on the server, if ``[server] speed`` is set.

        Timers wait for the end of the operation. ``ServerModels.mix`` and ``apply`` call this
        method for their own operations.

        Args:
            what: ``mix`` (a linear combination), ``products`` (inner products of all pairs),
                ``distances`` (of each array from m others), ``k-means``, ``linkage``
                (agglomerative clustering), ``medoids`` (k-medoids) or ``absolute differences``
                (MADC, the mean absolute differences of cosines, of each pair).
            n: count of models, or of other arrays.
            d: count of numbers in each model or array; not used by ``linkage``, ``medoids`` and
                ``absolute differences``.
            m: with ``distances``, the count of arrays from which distances are computed; with
                ``k-means`` and ``medoids``, the count of groups; not used by other operations.

        Raises:
            SimulationError: ``what`` is not one of these names, or a count is wrong.
        """
        self._computations.add(what, n, d, m)

    @takes(name=TEXT)
    def cancel_timer(self, name: str) -> None:
        """Cancel a timer; no effect if no timer of this name is set.

        Args:
            name: name of the timer.
        """
        self._timers.cancel(name)

    @takes(name=TEXT, delay=number(above=0.0), at_least=COUNT)
    def look_again(self, name: str, delay: float, at_least: int = 1) -> None:
        """Wait for more devices: set a timer, or end the run if too few can ever be reached.

        Args:
            name: name of the timer, as in ``timer``.
            delay: time from now (s), above 0.
            at_least: count of devices that must be reachable at some time; otherwise the run ends.
        """
        if not self.clients.anyone_ever():
            self.stop("no device will ever be there again")
        elif not self.clients.anyone_ever(at_least):
            self.stop(f"fewer than {at_least} devices will ever be there again")
        else:
            self.timer(name, self.now + delay)

    @takes(least=optional(COUNT))
    def lacks_clients(self, least: int | None) -> bool:
        """Return whether fewer than ``least`` clients can be reached now, idle or busy.

        Args:
            least: count of clients that are needed; None if no client is needed.
        """
        return least is not None and len(self.clients.reachable()) < least

    @takes(
        device=_DEVICE,
        contents=CONTENTS,
        job=TEXT,
        round=optional(INDEX),
        group=optional(INDEX),
        continues=FLAG,
        at_edge=FLAG,
    )
    def ask(
        self,
        device: int,
        contents: Contents,
        job: str = "train",
        *,
        round: int | None = None,
        group: int | None = None,
        continues: bool = False,
        at_edge: bool = False,
    ) -> int:
        """Send a device a request; its ``Client`` object does the job and answers.

        The request begins a task of the device. ``Strategy.on_task_end`` is called once when the
        task has ended. The device must be idle; ``server.clients`` finds idle devices. The task of
        a device that cannot be reached ends as ``lost`` in this instant. ``on_task_end`` is then
        called after ``server.patience``, or earlier if the device is back.

        A task with a ``round`` counts among the tasks of the round, and its update has to be
        aggregated (``finish_round``), unless its answer has no model. Leave ``round`` out for any
        other task, such as a probe or a test.

        Args:
            device: ID of a device without a running task.
            contents: what is sent, by name (``Contents``). The default ``Client`` trains from
                ``model``.
            job: name of what the device is asked to do: ``train``, or another name on which the
                strategy's code on server and devices agrees. The ``Client`` reads it as
                ``Instruction.job``.
            round: the round for which the device works; None if it works for no round.
            group: the group for which the device works, in the records; None if there are no
                groups.
            continues: whether this task continues the device's previous task, which was asked in
                the same round and is done. Both count as one task, and the answer of the previous
                task does not count as an update.
            at_edge: whether the device's edge server asks, and receives the answer.

        Returns:
            The ID of the task, ``TaskEnd.task``.

        Raises:
            SimulationError: the device does not exist or is busy; ``continues`` is set, and the
                device's previous task was asked in another round or is not done; or a content has a
                type or a size that cannot be sent.

        Example:
            A strategy that asks the next device when one has answered, in ``mine.py``:

            >>> from fedsim.plugin import Strategy
            >>> class Chain(Strategy):
            ...     async def on_start(self):
            ...         self.state["model"] = self.server.models.initial()
            ...         self.server.ask(0, {"model": self.state["model"]}, "train")
            ...     async def on_task_end(self, message):
            ...         self.state["model"] = message["update"]
            ...         following = message.device + 1
            ...         if following == self.server.devices:
            ...             self.server.stop("the chain is complete")
            ...         else:
            ...             self.server.ask(following, {"model": self.state["model"]}, "train")
            ...     def models(self):
            ...         return {"global": (self.state["model"], None)}

            >>> import fedsim
            >>> samples = {"low": 50, "high": 50}
            >>> scenario = fedsim.Scenario(
            ...     learning="off",
            ...     population={"devices": 3, "speed": "10 samples/s", "samples": samples},
            ...     strategy={"kind": "mine:Chain"},
            ... )
            >>> ended = fedsim.run(scenario, "runs/chain").events.query("kind == 'task-end'")
            >>> ended[["time", "device", "outcome"]].values.tolist()
            [[5.0, 0, 'done'], [10.0, 1, 'done'], [15.0, 2, 'done']]
        """
        return self._dispatch.ask(
            device, contents, job, round, group, continues=continues, at_edge=at_edge
        )

    @takes(task=whole(0), cause=one_of(*get_args(Cause)))
    def end(self, task: int, cause: Cause = "late") -> None:
        """End a running task before it is done; ``Strategy.on_task_end`` is called in this instant.

        If the task was lost and the server has not noticed the loss yet, ``on_task_end`` is also
        called in this instant, with the outcome ``lost``. There is no effect on any other task that
        has ended.

        Args:
            task: the ID that ``ask`` returned.
            cause: the outcome that a running task gets. With ``late`` a step that is complete at
                this very time still counts.
        """
        self._dispatch.end(task, cause)

    @takes(device=_DEVICE)
    def peer(self, device: int) -> Peer:
        """Return the API of a device's own code, in a strategy without a server (``Peers``).

        Args:
            device: ID of a device.
        """
        return Peer(device, self._dispatch)

    @takes(work=instance(Future, "a future of concurrent.futures"))
    async def result(self, work: Future[T]) -> T:
        """Await a future of the strategy's own thread or process; simulated time stands still.

        Args:
            work: a future that some thread or process completes.

        Returns:
            The result of the future.
        """
        return await self._simulation.join(work)  # type: ignore[no-any-return]

    @takes(purpose=TEXT, ids=STREAM_ID)
    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """Return a random generator that depends only on the run's seed and these arguments.

        Args:
            purpose: a word that names the generator, by the use of its random numbers.
            ids: numbers that complete the name of the generator, such as the round and the device.
        """
        return self._dispatch.streams.generator(f"strategy/{purpose}", *ids)

    def emit(self, kind: str, **data: Any) -> None:
        """Record an event of the strategy's own, as a row of ``events.parquet``.

        Kinds that fedsim itself writes, such as ``task-end`` or ``round``, are refused. A kind of
        fedsim's strategies that reports read, such as ``assign``, needs the fields that these
        strategies record.

        A record of the kind ``aggregate`` lists the updates that became a model. The fields of the
        record are ``round``, ``tasks`` (the tasks that sent the updates), ``weights`` (one for each
        task) and, if an update may be combined in a later round than its own, ``staleness`` (the
        difference of the rounds, for each task). A strategy need not add such records:
        ``finish_round`` adds one for the updates that no record has listed.

        Args:
            kind: name of the kind of record.
            data: fields of the record, JSON values with finite numbers; numbers of numpy become
                plain numbers. ``device``, ``round``, ``group`` and ``task``, whole numbers, and
                ``step`` and ``outcome``, texts, have their own columns.

        Raises:
            SimulationError: the kind is fedsim's own, or a field is missing or has a wrong value.
        """
        fields = check_record("Server.emit", kind, data, self.devices)
        if kind in ("aggregate", "updates-lost"):  # ``finish_round`` adds no record for these tasks
            self._updates.remove(cast(Sequence[int], fields["tasks"]))
        self._simulation.record(kind, fields)

    @takes(contents=CONTENTS, sender=NAME, receiver=NAME)
    def exchange(self, contents: Contents, sender: str, receiver: str) -> None:
        """Record a message inside the server, which takes no time and is on no link.

        A strategy with several servers, such as one for each group, calls this method when one of
        them sends to another.

        Args:
            contents: the sent contents by name; their bytes are recorded.
            sender: name of the sending server, such as ``group-0``.
            receiver: name of the receiving server.
        """
        for part in payloads(contents, self._dispatch.envelopes.up):
            fields = {
                "purpose": part.purpose,
                "bytes": float(part.bytes),
                "sender": sender,
                "receiver": receiver,
            }
            self._simulation.record("server-transfer", fields)

    @takes(number=INDEX)
    def begin_round(self, number: int) -> None:
        """Begin a round: shift the devices' data, if the scenario has a shift at this round.

        Call this method once for each round. Devices that can be reached send their messages about
        the shift (``Strategy.on_shift``) in this instant, before a timer that is set at ``now``.
        The call has no effect if the run ends in this instant (``stop``).

        Args:
            number: index of the round, from 0.
        """
        if self._simulation.stopped is not None:  # the run ends in this instant
            return
        if self._dispatch.begin_round is not None:  # None if no data shift by round
            self._dispatch.begin_round(number)

    @takes(reason=TEXT)
    def stop(self, reason: str) -> None:
        """End the run after all events of the present time.

        Args:
            reason: a few words, which become ``stopped`` in the summary.
        """
        self._simulation.stop(reason)

    @takes(number=INDEX, models=MAPPING, updates=LIST)
    async def finish_round(
        self,
        number: int,
        models: ModelAssignment,
        updates: Sequence[Measured] = (),
        **counts: float,
    ) -> bool:
        """Record the end of a round with its measures, and end the run at a stop condition.

        1. If the strategy has not listed all of ``updates`` in records ``aggregate`` (``emit``),
           this method adds such a record, which lists the remaining updates. ``fedsim audit``
           checks that each received update is listed once.
        2. If ``[evaluation]`` has a test after this round, the models are tested, and training
           loss and distances of the updates are measured. This takes no simulated time.
        3. The record ``round`` is added, with these measures and ``counts``.
        4. If a stop condition of ``[stop]`` is met, the run ends.

        Args:
            number: the round that has just been aggregated, from 0; each round once, ascending.
            models: the strategy's models and the devices that each serves (None: all), as
                ``Strategy.models`` returns them.
            updates: all updates that were aggregated in this round (``Measured``). Their weighted
                mean training loss is ``train_loss`` of the round. ``discrepancy`` is their mean
                Euclidean distance from ``Measured.center``, the model into which each was
                aggregated, and ``discrepancy_start`` from ``Measured.start``, the model from which
                it was trained.
            counts: counts of the round's tasks: ``selected`` (all), ``valid`` (done), ``slow``
                (late, or without enough memory) and ``disconnected`` (lost), either all four or
                none; and ``epsilon``, the privacy budget spent so far, if there is one. A name of a
                column of ``rounds.parquet`` goes to that table. Any other name is only in the
                record ``round``.

        Returns:
            Whether the run goes on. If it does not, no other round begins.

        Raises:
            SimulationError: an argument is wrong, such as a device that does not exist, or the round
                is not after the round that was finished last.
        """
        evaluator = self._evaluator
        strategy = self._dispatch.strategy
        checked_counts = check_figures("Server.finish_round", {}, counts)
        wrong_model = find_wrong_model(models, self.devices, self.setting.parameters)
        if wrong_model:
            raise SimulationError(
                f"Server.finish_round: models has {wrong_model}; allowed is {MODELS_IN_WORDS}"
            )
        check_updates(updates, self.devices)
        self._record_aggregate(number, updates)
        figures = await evaluator.measure(number, models, updates, strategy)
        cosines = await evaluator.cosines(number, updates, strategy)
        if cosines:
            self._simulation.record("cosines", {"round": number, **cosines})
        return self._end_round(number, figures, models, checked_counts)

    def _record_aggregate(self, round_number: int, updates: Sequence[Measured]) -> None:
        """Record the aggregation of updates for which the strategy has recorded no ``aggregate``.

        Args:
            round_number: the round, from 0.
            updates: all aggregated updates of the round.
        """
        # task, round and weight of each update that no record ``aggregate`` lists
        unrecorded = self._updates.find(updates)
        if not unrecorded:
            return
        total_weight = sum(entry.weight for entry in unrecorded)
        fields: dict[str, object] = {"tasks": [entry.task for entry in unrecorded]}
        if total_weight:
            fields["weights"] = [entry.weight / total_weight for entry in unrecorded]
        else:
            fields["weights"] = [1 / len(unrecorded)] * len(unrecorded)
        staleness = [round_number - entry.round for entry in unrecorded]
        if any(staleness):  # the field is left out if all updates are of this round
            fields["staleness"] = staleness
        self.emit("aggregate", round=round_number, **fields)

    @takes(number=INDEX, figures=MAPPING)
    def note_round(self, number: int, figures: Mapping[str, float | None], **counts: float) -> bool:
        """Record the end of a round with measures that the strategy has computed itself.

        ``finish_round`` tests the models instead, and also records which updates were aggregated.

        Args:
            number: the round, from 0.
            figures: values of columns of ``rounds.parquet``; None for a column that was not
                measured.
            counts: counts of the round's tasks, by the keywords ``selected``, ``valid``, ``slow``
                and ``disconnected``, and further values, as in ``finish_round``.

        Returns:
            Whether the run goes on.

        Raises:
            SimulationError: a name belongs to a column that fedsim fills, a value is not finite, or
                the round is not after the round that was finished last.
        """
        fields = check_figures("Server.note_round", figures, counts)
        return self._end_round(number, cast(Mapping[str, float | None], fields), {}, {})

    def _end_round(
        self,
        round_number: int,
        figures: Mapping[str, float | None],
        models: ModelAssignment,
        counts: Mapping[str, object],
    ) -> bool:
        """Record a round, compare its test with the best one, and stop the run if a rule says so.

        Args:
            round_number: the round, from 0.
            figures: column of ``rounds.parquet`` -> measure of the round; None if not measured.
            models: the strategy's models.
            counts: counts of the round's tasks, and other fields of the record.

        Returns:
            Whether the run goes on.
        """
        last_round = self._ending.last_round
        if last_round is not None and round_number <= last_round:
            raise SimulationError(
                f"round {round_number} is finished after round {last_round}; allowed is each round "
                "once, ascending"
            )
        without_model = self._updates.without_model
        if without_model:
            self._updates.without_model = []
            self._simulation.record("no-update", {"round": round_number, "tasks": without_model})
        # ``NOT_MEASURED`` has None for each measure
        fields = {"round": round_number, **NOT_MEASURED, **figures, **counts}
        self._simulation.record("round", fields)
        self._ending.note(round_number, figures, models)
        reason = self._ending.reason(round_number, figures)
        if reason is not None:
            self.stop(reason)
        return self._simulation.stopped is None
