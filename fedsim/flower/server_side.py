"""Flower's Grid (the ServerApp's interface to the nodes) in simulated time.

The ServerApp's messages go to simulated devices, and its waits take simulated time.
"""

import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from typing_extensions import override

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import SimulationError
from fedsim.federation.contents import Header, Opaque
from fedsim.federation.events import COUNTED_AS, TaskEnd
from fedsim.federation.server import Server
from fedsim.flower.app import read_app
from fedsim.flower.app_errors import error_of_app, format_thread_line
from fedsim.flower.app_half import AppHalf
from fedsim.flower.client_side import AppReply, bytes_of, bytes_of_content, config_of
from fedsim.flower.params import FlowerParams, SamplesTaken, SamplesTime
from fedsim.flower.patches import EPOCH_S, SessionBase, replace_all, running
from fedsim.flower.rounds import AppRound, AppRounds
from fedsim.flower.turns import RunOver, Turns

# simulated time (s) that a pull waits if it and the previous pull at the same time find no reply
_POLL_S = 0.01
_MOST_IDLE = 200_000  # limit of a ServerApp's successive waits while no message is unanswered

_UNAVAILABLE = {
    ErrorCode.NODE_UNAVAILABLE: "the device cannot be reached, or disconnected before its answer",
    ErrorCode.MESSAGE_UNAVAILABLE: (
        "the time to live of the message was over before an answer was there"
    ),
}


@dataclass(slots=True)
class Sent:
    """Message that the ServerApp has sent to a device, with its task and the reply, if any.

    Attributes:
        message: a copy of the message as it was pushed.
        number: index of the message in the run, from 0.
        device: index of the device that gets the message.
        bytes: size of the message (bytes).
        round: round of the message; None if the message belongs to no round.
        task: ID of the device's task for the message; None before the task begins.
        reply: the device's reply, or Flower's own error message; None until there is one.
        examples: count of examples in the reply; None if the reply has none.
        received: whether the ServerApp has received the reply.
    """

    message: Message
    number: int
    device: int
    bytes: int
    round: AppRound | None
    task: int | None = None
    reply: Message | None = None
    examples: float | None = None
    received: bool = False


@dataclass(slots=True)
class Wait:
    """Wait of the ServerApp for replies, or until a simulated time, whichever comes first.

    Attributes:
        until: simulated time at which the wait ends at the latest (s); None for no limit.
        missing: IDs of the messages without a reply so far; None if only the time ends the wait.
    """

    until: float | None
    missing: set[str] | None

    def is_over(self, now: float) -> bool:
        """Return whether all replies have been received, or the time ``until`` is reached.

        Args:
            now: the simulated time (s).
        """
        has_replies = self.missing is not None and not self.missing
        has_reached_end = self.until is not None and now >= self.until
        return has_replies or has_reached_end


class Session(SessionBase):
    """Implementation of Flower's Grid on simulated devices; it also runs the ServerApp.

    The Grid is the interface by which a ServerApp sends messages. The ServerApp's thread and the
    simulation's thread run by turns, so that nothing needs a lock.

    Args:
        params: the scenario's table ``[strategy]``.
        server: fedsim's simulated server.

    Attributes:
        folder: folder of the app.
        run_id: Flower's ID of the run.
        turns: the ServerApp's thread.
        rounds: the rounds so far.
        model: the arrays that the ServerApp sent last, or that its strategy returned at the end;
            None until then.
        strategy: instance of Flower's ``Strategy`` class that the app uses; None if it uses none.
    """

    def __init__(self, params: FlowerParams, server: Server) -> None:
        self._params = params
        self._server = server
        self._app = read_app(params.app, params.run_config)
        self.folder = self._app.folder
        # Flower's IDs, which are random 63-bit integers: an ID for each device's node, and the last
        # ID for the run
        ids = server.rng("nodes").integers(1, 1 << 63, size=server.devices + 1)
        *self._nodes, self.run_id = ids.tolist()
        self._device_of = {node: device for device, node in enumerate(self._nodes)}
        self.turns = Turns(
            self._run_app, self._app_context, server.result, self.folder, params.real_patience
        )
        names = {"accuracy": params.accuracy, "loss": params.loss, "train_loss": params.train_loss}
        self.rounds = AppRounds(names, self._close_round)
        self.model: ArrayRecord | None = None
        self.strategy: object = None
        self._samples: SamplesTaken | None = None  # notes on sample counts, if time is by samples
        if isinstance(params.time, SamplesTime):
            self._samples = SamplesTaken(params.time)
        self._sent: dict[str, Sent] = {}  # ID -> message, for all messages so far
        self._in_progress: dict[int, Sent] = {}  # device -> the message that it handles
        self._queues: dict[int, deque[Sent]] = defaultdict(deque)  # device -> its next messages
        self._awaited = set[int]()  # unavailable devices for which ``on_return`` will be called
        self._unanswered = 0  # count of messages that have no reply yet
        self._task_counts = Counter[int]()  # device -> count of its tasks so far
        # rounds of done tasks that do not count, because a later task of the same device counts
        self._continued: list[AppRound] = []
        self._finished: dict[int, AppRound] = {}  # device -> round of its last task, if done
        self._waiting: Wait | None = None  # None while the ServerApp runs
        self._polled_at = -1.0  # time of the last pull without a reply (s)
        self._idle_waits = 0  # count of successive waits while no message is unanswered
        self._half: AppHalf | None = None  # None until ``begin`` has loaded it
        self._client_seed = int(server.rng("client-app-loading").integers(1 << 32))

    async def begin(self) -> None:
        """Load the ServerApp at the start of the run, and run its code until it first waits.

        The ServerApp waits for replies of devices or for a time, and the simulation then goes on.

        Raises:
            SimulationError: the ServerApp cannot be loaded, raises an error, or computes for longer
                than ``strategy.real_patience``.
        """
        replace_all()
        seed = int(self._server.rng("server-app").integers(1 << 32))
        self._half = AppHalf(self._app, "server", seed)
        await self.go_on()

    def close(self) -> None:
        """End the ServerApp at the end of the run.

        The thread of a ServerApp that computes without end cannot be ended. In any case the app's
        modules and random states are removed, so that other runs in the process do not see them.
        """
        self.turns.close()
        if self._half is not None:
            self._half.close()

    async def go_on(self) -> None:
        """Run the ServerApp until it waits for replies or for a time, or ends.

        If the ServerApp ends without an error, the run ends too.

        Raises:
            SimulationError: the ServerApp raises an error, or computes for longer than
                ``strategy.real_patience``.
        """
        while not self.turns.over and self._is_due():
            await self.turns.give()
        if not self.turns.over:
            return
        error = self.turns.error
        if error is None:
            self._server.stop("the ServerApp has ended")
            return
        if isinstance(error, SimulationError):
            raise error
        raise SimulationError(f"the ServerApp raised {error_of_app(error, self.folder)}") from error

    def _schedule_turn(self) -> None:
        """If the ServerApp's wait is over, schedule its turn after all events of this instant."""
        if not self.turns.over and self._is_due():
            self._server.timer("turn", self._server.now)

    def _is_due(self) -> bool:
        """Return whether the ServerApp can go on, as it does not wait or its wait is over."""
        return self._waiting is None or self._waiting.is_over(self._server.now)

    def _wait(self, until: float | None, missing: Iterable[str] | None = None) -> None:
        """Block the ServerApp's thread until a simulated time, or until messages are answered.

        Args:
            until: simulated time at which the wait ends at the latest (s); None for no limit.
            missing: IDs of the messages; the wait ends when all of them have replies. None to wait
                for the time only.

        Raises:
            SimulationError: the ServerApp has waited ``_MOST_IDLE`` times in a row while no
                message was unanswered, so that it might never end.
        """
        self._check_thread()
        end_s = None
        if until is not None:
            end_s = self._server.timer("app", until)  # ``until``, rounded to the clock's ticks
        self._waiting = Wait(end_s, None if missing is None else set(missing))
        if not self._unanswered:
            self._idle_waits += 1
            if self._idle_waits > _MOST_IDLE:
                raise SimulationError(
                    f"the ServerApp has waited {_MOST_IDLE} times in a row with no message under "
                    f"way{format_thread_line(self.turns.thread, self.folder)}"
                )
        self.turns.wait()
        self._server.cancel_timer("app")
        self._waiting = None

    def _check_thread(self) -> None:
        if self.turns.closing:
            raise RunOver
        thread = threading.current_thread()
        if thread is not self.turns.thread:
            raise RuntimeError(
                f"the Grid is called in the thread {thread.name!r}; in simulated time only the "
                "thread in which the ServerApp began may call it"
            )

    @contextmanager
    def _app_context(self) -> Iterator[None]:
        assert self._half is not None
        with self._half.in_use(), running(self):
            TaskIdentity.task_id = 1
            TaskIdentity.run_id = self.run_id
            TaskIdentity.node_id = SUPERLINK_NODE_ID
            yield

    def _run_app(self) -> None:
        context = Context(self.run_id, SUPERLINK_NODE_ID, {}, RecordDict(), dict(self._app.config))
        assert self._half is not None
        self._half.loaded(grid=self, context=context)
        self.rounds.end()

    @override
    def clock(self) -> float:
        return float(self._server.now)

    @override
    def note_figures(self, app_number: int, figures: Mapping[str, float]) -> None:
        self.rounds.note_figures(app_number, figures)

    @override
    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._wait(self._server.now + seconds)

    def facts(self) -> dict[str, object]:
        """Return entries about the app for ``summary.json``.

        Returns:
            ``algorithm`` (class name of the app's strategy), ``notes`` and ``warnings`` (lists of
            sentences on the times of messages); only the keys that have a value.
        """
        facts: dict[str, object] = {}
        if self.strategy is not None:
            facts["algorithm"] = type(self.strategy).__name__
        if self._samples is not None:
            for name, lines in self._samples.facts().items():
                if lines:
                    facts[name] = lines
        return facts

    def _close_round(self, ended: AppRound) -> None:
        """Record a round that has ended: its replies, mean metrics, and tasks by outcome.

        Raises:
            RunOver: this was the last round of the run.
        """
        self._record_updates(ended)
        metrics: dict[str, float | None] = {}
        for name, weight in ended.weights.items():
            if weight:  # the mean over the replies, weighted by examples
                metrics[name] = ended.sums[name] / weight
        metrics.update(ended.figures)  # metrics that the ServerApp itself has measured
        for name, value in metrics.items():
            if value is not None and not math.isfinite(value):
                metrics[name] = None  # the model has diverged
        # several outcomes of tasks may count in one column
        task_counts = dict.fromkeys(COUNTED_AS.values(), 0)
        for outcome, column in COUNTED_AS.items():
            task_counts[column] += ended.ends[outcome]
        selected = sum(task_counts.values())
        goes_on = self._server.note_round(ended.number, metrics, selected=selected, **task_counts)
        if not goes_on:
            raise RunOver

    def _record_updates(self, ended: AppRound) -> None:
        """Write the record ``aggregate`` of the replies that the ServerApp received in a round."""
        updates = ended.updates
        if not updates:
            return
        fields = {
            "tasks": [update.task for update in updates],
            "weights": [update.weight for update in updates],
        }
        ages = [update.age for update in updates]
        if any(ages):
            fields["staleness"] = ages
        self._server.emit("aggregate", round=ended.number, **fields)

    def set_run(self, run: Run) -> None:
        """Do nothing; part of Flower's interface.

        A session belongs to one run, which is known from the start.
        """

    @property
    def run(self) -> Run:
        return Run.create_empty(self.run_id)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        return [self._nodes[device] for device in self._server.clients.reachable()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages to the simulated devices, and return the messages' IDs without waiting."""
        self._check_thread()
        if isinstance(messages, list):
            sizes: dict[int, int] = {}  # id(content) -> bytes; messages may share a content
            return [self._push(message, sizes) for message in messages]
        # a generator may change a content between two messages, so no size is reused
        return [self._push(message, {}) for message in messages]

    def _push(self, message: Message, sizes: dict[int, int]) -> str:
        """Queue a message for its device, and return the message's ID.

        Args:
            message: the message.
            sizes: ``id(content)`` -> bytes, a cache to which the message's content is added.
        """
        device = self._receiver_of(message)
        metadata = message.metadata
        number = len(self._sent)
        name = f"message-{number}"
        metadata.__dict__["_message_id"] = name
        current_round = self.rounds.round_of(message)
        copy = deepcopy(message)  # the copy shares the arrays' bytes
        # the first arrays of a message are the app's model
        self.model = next(iter(copy.content.array_records.values()), None) or self.model
        copy.metadata.created_at = EPOCH_S + self._server.now
        content_id = id(message.content)
        if content_id not in sizes:
            sizes[content_id] = bytes_of_content(copy.content)
        size = bytes_of(copy, sizes[content_id])
        sent = Sent(copy, number, device, size, current_round)
        self._sent[name] = sent
        self._server.timer(f"expire {number}", self._server.now + metadata.ttl)
        self._queues[device].append(sent)
        self._idle_waits = 0
        self._unanswered += 1
        if not self._server.clients.idle(device):
            self._start_timeout(sent)
        self._send_next(device)
        return name

    def _receiver_of(self, message: Message) -> int:
        """Return the device of the node to which a message is addressed.

        Raises:
            ValueError: the message cannot be sent, or there is no such node.
        """
        metadata = message.metadata
        is_reply = metadata.reply_to_message_id != ""
        if is_reply or not metadata.ttl > 0 or not message.has_content():
            raise ValueError(
                "what is pushed must have content, and time to live, and be no reply; this is "
                f"{metadata!r}"
            )
        device = self._device_of.get(metadata.dst_node_id)
        if device is None:
            raise ValueError(
                f"there is no node {metadata.dst_node_id}; get_node_ids() tells which there are"
            )
        return device

    def _send_next(self, device: int) -> None:
        """Send the next message in a device's queue to the device, if the device is idle.

        Messages that already have an error as reply are skipped. If the device is unavailable, a
        call of ``on_return`` is requested for the time at which it becomes available.
        """
        queue = self._queues[device]
        while queue and queue[0].reply is not None:
            queue.popleft()
        if not queue:
            return
        if self._server.clients.idle(device):
            self._start_task(device, queue.popleft())
            return
        # ``on_return``, or the end of the device's task, calls this method again
        is_awaited = device in self._awaited or device in self._in_progress
        if not is_awaited and self._server.clients.await_return(device):
            self._awaited.add(device)

    def _start_task(self, device: int, sent: Sent) -> None:
        """Begin the task in which an idle device downloads a message, computes and replies."""
        kind = sent.message.metadata.message_type
        round_number = None if sent.round is None else sent.round.number
        continues = False
        previous_round = self._finished.pop(device, None)
        # of several tasks of a device in a round, only the last one is counted
        if previous_round is not None and previous_round is sent.round:
            continues = True
            self._continued.append(previous_round)
        rng = self._server.rng("client-app", device, self._task_counts[device])
        seed = int(rng.integers(1 << 32))
        self._task_counts[device] += 1
        contents = {
            kind: Opaque(sent.message, float(sent.bytes)),
            "seeds": Header((self._client_seed, seed)),
        }
        sent.task = self._server.ask(
            device, contents, kind, round=round_number, continues=continues
        )
        self._in_progress[device] = sent

    def _start_timeout(self, sent: Sent) -> None:
        """Start the timer ``unavailable_after`` of a message whose device cannot be reached.

        When the timer runs out without a reply, the ServerApp gets an error as the reply.
        """
        self._server.timer(f"gone {sent.number}", self._server.now + self._params.unavailable_after)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have come and were not returned before, without waiting.

        If two pulls in a row find no reply at the same simulated time, the second pull takes 0.01 s
        of simulated time. So time passes in an app that polls in a loop.

        Args:
            message_ids: IDs from ``push_messages``.

        Returns:
            Replies in the order in which the messages were pushed.
        """
        self._check_thread()
        numbers = sorted({self._sent[name].number for name in message_ids if name in self._sent})
        names = [f"message-{number}" for number in numbers]
        replies = self._receive(names)
        if replies:
            return replies
        if self._polled_at == self._server.now:
            self._wait(self._server.now + _POLL_S)
            replies = self._receive(names)
        self._polled_at = self._server.now
        return replies

    def _receive(self, names: Iterable[str]) -> list[Message]:
        """Return the replies that have come and were not returned before; mark them as received.

        Args:
            names: IDs of the messages whose replies are wanted.
        """
        replies = []
        for name in names:
            sent = self._sent[name]
            if sent.reply is not None and not sent.received:
                sent.received = True
                self._idle_waits = 0
                replies.append(sent.reply)
                if sent.task is not None:
                    self.rounds.note_reply(sent.task, sent.reply, sent.examples, sent.round)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages to the simulated devices, and wait for the replies.

        Args:
            messages: the messages.
            timeout: longest simulated time to wait (s); None for no limit.

        Returns:
            The replies that have come by then, in the order of ``messages``.
        """
        names = self.push_messages(messages)
        missing = [name for name in names if self._sent[name].reply is None]
        if missing and timeout is None:
            self._wait(until=None, missing=missing)
        elif missing and timeout is not None and timeout > 0:
            self._wait(self._server.now + timeout, missing)
        return self._receive(names)

    def _store_reply(self, sent: Sent, reply: Message) -> None:
        """Store the reply to a message, unless the message has been answered before."""
        if sent.reply is not None:
            return
        reply.metadata.__dict__["_message_id"] = f"reply-{sent.number}"
        sent.reply = reply
        self._unanswered -= 1
        self._server.cancel_timer(f"expire {sent.number}")
        self._server.cancel_timer(f"gone {sent.number}")
        if self._waiting is not None and self._waiting.missing is not None:
            self._waiting.missing.discard(sent.message.metadata.message_id)

    def _store_error_reply(self, sent: Sent, code: int) -> None:
        """Store Flower's own error message as the reply to a message.

        Args:
            sent: message that its device has not answered.
            code: Flower's ``ErrorCode``, a key of ``_UNAVAILABLE``.
        """
        with running(self):
            reply = Message(Error(code=code, reason=_UNAVAILABLE[code]), reply_to=sent.message)
        reply.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
        self._store_reply(sent, reply)

    def _uncount_continued(self) -> None:
        """Subtract done tasks from their rounds' counts if the device has a later task there.

        A device that answers several messages in a round has several tasks, and only the last one
        is counted. Every handler of an event calls this function first. ``_start_task`` does not
        subtract the earlier task itself, because the later task does not begin if the run ends
        with the present event.
        """
        while self._continued:
            self._continued.pop().ends["done"] -= 1

    def on_task_end(self, end: TaskEnd) -> None:
        """Process the end of a device's task, and send the device its next waiting message.

        If the task is done, its reply is stored. If it has failed, a timeout begins
        (``strategy.unavailable_after``), after which the ServerApp gets an error as the reply.
        """
        self._uncount_continued()
        sent = self._in_progress.pop(end.device)
        if sent.round is not None:
            sent.round.ends[end.outcome] += 1  # count of the round's tasks by outcome
        if end.outcome == "done":
            if sent.round is not None:
                self._finished[end.device] = sent.round
            answer: AppReply = end[f"{end.job}-reply"]
            sent.examples = answer.examples
            if self._samples is not None and not answer.reply.has_error():
                # a warning follows if the reply's sample count does not fit its simulated time
                config = config_of(sent.message, self._app.config)
                self._samples.note(end.job, config, answer.examples, answer.counted)
            self._store_reply(sent, answer.reply)
        elif sent.reply is None:
            self._start_timeout(sent)
        self._send_next(end.device)
        self._schedule_turn()

    def on_return(self, device: int) -> None:
        """Send the next waiting message to a device that has become available."""
        self._uncount_continued()
        self._awaited.discard(device)
        self._send_next(device)

    async def on_timer(self, name: str) -> None:
        """Handle a timer of the session that has run out.

        Args:
            name: ``app``: the time limit of the ServerApp's wait has passed, and the next turn of
                the ServerApp is scheduled. ``turn``: the ServerApp runs until its next wait.
                ``expire N``: the time to live of message N has passed, and an error becomes the
                reply to message N. ``gone N``: the device of message N was unavailable for the time
                ``strategy.unavailable_after``, and an error becomes the reply to message N.
        """
        if name == "turn":
            await self.go_on()
            return
        self._uncount_continued()
        purpose, _, number = name.partition(" ")
        if purpose == "expire":
            self._store_error_reply(self._sent[f"message-{number}"], ErrorCode.MESSAGE_UNAVAILABLE)
        elif purpose == "gone":
            sent = self._sent[f"message-{number}"]
            in_progress = self._in_progress.get(sent.device)
            # the device is available, and handles earlier messages first
            if sent.task is None and in_progress is not None:
                self._start_timeout(sent)
            elif in_progress is not sent:
                self._store_error_reply(sent, ErrorCode.NODE_UNAVAILABLE)
        self._schedule_turn()

    def tensors(self) -> dict[str, AnyArray]:
        """Return the arrays of the last model by name, for the run folder."""
        if self.model is None:
            return {}
        tensors = {}
        for name, array in self.model.items():
            if array.stype != "numpy.ndarray":
                continue
            values = array.numpy()
            if values.dtype.kind in "fiub":
                tensors[name] = np.ascontiguousarray(values)
        return tensors
