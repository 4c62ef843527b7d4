"""The ServerApp's Grid: its messages go to simulated devices, and its waiting is simulated time."""

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
from fedsim.federation.contents import Header, Opaque, TaskEnd
from fedsim.federation.server import Server
from fedsim.flower.app import read_app
from fedsim.flower.app_errors import error_of_app, place_of_thread
from fedsim.flower.client_side import AppReply, bytes_of, bytes_of_content, config_of
from fedsim.flower.params import FlowerParams, SamplesTaken, SamplesTime
from fedsim.flower.replaced import EPOCH_S, AppHalf, SessionBase, replace_all, where
from fedsim.flower.rounds import AppRound, AppRounds
from fedsim.flower.turns import Over, Turns

_COUNTED = {
    "valid": ("done",),
    "slow": ("late", "memory"),
    "disconnected": ("lost", "left", "battery"),
}

_POLL_S = 0.01  # simulated time of a repeated look for replies without any
_MOST_IDLE = 200_000  # waits of a ServerApp in a row with no message under way

_UNAVAILABLE = {
    ErrorCode.NODE_UNAVAILABLE: "the device cannot be reached, or disconnected before its answer",
    ErrorCode.MESSAGE_UNAVAILABLE: (
        "the time to live of the message was over before an answer was there"
    ),
}


@dataclass(slots=True)
class Sent:
    """A message that the ServerApp has pushed, and its answer."""

    message: Message
    """a copy of the message as it was pushed."""
    number: int
    device: int
    bytes: int
    round: AppRound | None
    """None: the message makes no round."""
    task: int | None = None
    """number of the device's task; None before it begins."""
    reply: Message | None = None
    examples: float | None = None
    """number of examples in the reply."""
    received: bool = False
    """whether the ServerApp has received the reply."""


class Session(SessionBase):
    """Flower's Grid, and the ServerApp that uses the Grid.

    The ServerApp's thread and the simulation take turns, so that nothing needs a lock.

    Args:
        params: the scenario's keys.
        server: the simulated server.

    Attributes:
        folder: folder of the app.
        run_id: the id that Flower gives a run.
        turns: the ServerApp's thread.
        rounds: the rounds so far.
        model: the arrays that the ServerApp sent last, or that its strategy returned at the end.
        strategy: the app's strategy, of a class of Flower; None without one.
    """

    def __init__(self, params: FlowerParams, server: Server) -> None:
        self._params = params
        self._server = server
        self._app = read_app(params.app, params.run_config)
        self.folder = self._app.folder
        ids = server.rng("nodes").integers(1, 1 << 63, size=server.devices + 1)
        *self._nodes, self.run_id = ids.tolist()
        self._device_of = {node: device for device, node in enumerate(self._nodes)}
        self.turns = Turns(
            self._run, self._around, server.result, self.folder, params.real_patience
        )
        names = {"accuracy": params.accuracy, "loss": params.loss, "train_loss": params.train_loss}
        self.rounds = AppRounds(names, self._close_round)
        self.model: ArrayRecord | None = None
        self.strategy: object = None
        self._samples: SamplesTaken | None = None
        if isinstance(params.time, SamplesTime):
            self._samples = SamplesTaken(params.time)
        self._sent: dict[str, Sent] = {}
        self._at_work: dict[int, Sent] = {}  # by device, which handles one message at a time
        self._queues: dict[int, deque[Sent]] = defaultdict(deque)
        self._awaited = set[int]()
        self._open = 0  # messages without an answer
        self._counts = Counter[int]()
        # rounds of tasks that begin after the turn, and continue a task that counts already
        self._continued: list[AppRound] = []
        self._finished: dict[int, AppRound] = {}  # round of each device's last task, if it was done
        self._until: float | None = None  # time until which the ServerApp waits at most (s)
        # messages whose answers the ServerApp waits for; None: it waits for the time alone
        self._missing: set[str] | None = set()
        self._polled_at = -1.0  # time of the last pull without a reply (s)
        self._idle = 0
        self._half: AppHalf
        self._client_seed = int(server.rng("client-app-loading").integers(1 << 32))

    async def begin(self) -> None:
        """Load the ServerApp, and give it its first turn."""
        replace_all()
        seed = int(self._server.rng("server-app").integers(1 << 32))
        self._half = AppHalf(self._app, "server", seed)
        await self.go_on()

    async def go_on(self) -> None:
        """Give the ServerApp turns as long as it has nothing to wait for.

        Raises:
            SimulationError: the ServerApp raises, or never ends.
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
        """Schedule a turn after all messages of this instant, if the ServerApp waits no longer."""
        if not self.turns.over and self._is_due():
            self._server.timer("turn", self._server.now)

    def _is_due(self) -> bool:
        """Whether the ServerApp has nothing to wait for."""
        if self._missing == set():
            return True
        return self._until is not None and self._server.now >= self._until

    def _wait(self, until: float | None, missing: Iterable[str] | None = None) -> None:
        """End the ServerApp's turn until a time (s), or until some messages are answered."""
        self._check_thread()
        self._missing = None if missing is None else set(missing)
        self._until = None if until is None else self._server.timer("app", until)
        if not self._open:
            self._idle += 1
            if self._idle > _MOST_IDLE:
                raise SimulationError(
                    f"the ServerApp has waited {_MOST_IDLE} times in a row with no message under "
                    f"way{place_of_thread(self.turns.thread, self.folder)}"
                )
        self.turns.wait()
        self._server.cancel_timer("app")
        self._missing = set()

    def _check_thread(self) -> None:
        if self.turns.closing:
            raise Over
        thread = threading.current_thread()
        if thread is not self.turns.thread:
            raise RuntimeError(
                f"the Grid is called in the thread {thread.name!r}; in simulated time only the "
                "thread in which the ServerApp began may call it"
            )

    @contextmanager
    def _around(self) -> Iterator[None]:
        with self._half.in_use(), where(side=self):
            TaskIdentity.task_id = 1
            TaskIdentity.run_id = self.run_id
            TaskIdentity.node_id = SUPERLINK_NODE_ID
            yield

    def _run(self) -> None:
        context = Context(self.run_id, SUPERLINK_NODE_ID, {}, RecordDict(), dict(self._app.config))
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
        """Facts of the run: the app's algorithm, and notes and warnings on times."""
        facts: dict[str, object] = {}
        if self.strategy is not None:
            facts["algorithm"] = type(self.strategy).__name__
        if self._samples is not None:
            for name, lines in self._samples.facts().items():
                if lines:
                    facts[name] = lines
        return facts

    def _close_round(self, ended: AppRound) -> None:
        self._record_updates(ended)
        figures: dict[str, float | None] = {}
        for name, weight in ended.weights.items():
            if weight:
                figures[name] = ended.sums[name] / weight
        figures.update(ended.figures)
        counts = {}
        for name, outcomes in _COUNTED.items():
            counts[name] = sum(ended.ends[outcome] for outcome in outcomes)
        selected = sum(counts.values())
        if not self._server.note_round(ended.number, figures, selected=selected, **counts):
            raise Over

    def _record_updates(self, ended: AppRound) -> None:
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
        """Do nothing, as a session has one run, which is set."""

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
        """Send messages, and return their ids at once."""
        self._check_thread()
        if isinstance(messages, list):
            sizes: dict[int, int] = {}  # of contents, which several messages may share
            return [self._push(message, sizes) for message in messages]
        # contents from a generator may change meanwhile
        return [self._push(message, {}) for message in messages]

    def _push(self, message: Message, sizes: dict[int, int]) -> str:
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
        number = len(self._sent)
        name = f"message-{number}"
        metadata.__dict__["_message_id"] = name
        current = self.rounds.of(message)
        copy = deepcopy(message)  # the copy shares the arrays' bytes
        self.model = next(iter(copy.content.array_records.values()), None) or self.model
        copy.metadata.created_at = EPOCH_S + self._server.now
        content = id(message.content)
        if content not in sizes:
            sizes[content] = bytes_of_content(copy.content)
        size = bytes_of(copy, sizes[content])
        sent = Sent(copy, number, device, size, current)
        self._sent[name] = sent
        self._server.timer(f"expire {number}", self._server.now + metadata.ttl)
        self._queues[device].append(sent)
        self._idle = 0
        self._open += 1
        if not self._server.clients.idle(device):
            self._doubt(sent)
        self._serve(device)
        return name

    def _serve(self, device: int) -> None:
        """Send the next message of a device's queue, or wait for the device's return."""
        queue = self._queues[device]
        while queue and queue[0].reply is not None:
            queue.popleft()
        if not queue:
            return
        if self._server.clients.idle(device):
            self._start(device, queue.popleft())
            return
        is_awaited = device in self._awaited or device in self._at_work
        if not is_awaited and self._server.clients.await_return(device):
            self._awaited.add(device)

    def _start(self, device: int, sent: Sent) -> None:
        """Begin the task of an idle device that handles a message."""
        kind = sent.message.metadata.message_type
        number = None if sent.round is None else sent.round.number
        finished = self._finished.pop(device, None)
        continues = finished is not None and finished is sent.round
        if finished is not None and continues:
            self._continued.append(finished)
        rng = self._server.rng("client-app", device, self._counts[device])
        seed = int(rng.integers(1 << 32))
        self._counts[device] += 1
        contents = {
            kind: Opaque(sent.message, float(sent.bytes)),
            "seeds": Header((self._client_seed, seed)),
        }
        sent.task = self._server.ask(device, contents, kind, round=number, continues=continues)
        self._at_work[device] = sent

    def _doubt(self, sent: Sent) -> None:
        """Start the patience for a device that is unavailable."""
        self._server.timer(f"gone {sent.number}", self._server.now + self._params.unavailable_after)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """New replies to some messages, in the order in which the messages were pushed."""
        self._check_thread()
        numbers = sorted({self._sent[name].number for name in message_ids if name in self._sent})
        names = [f"message-{number}" for number in numbers]
        replies = self._receive(names)
        if not replies:
            if self._polled_at == self._server.now:
                self._wait(self._server.now + _POLL_S)
                replies = self._receive(names)
            self._polled_at = self._server.now
        return replies

    def _receive(self, names: Iterable[str]) -> list[Message]:
        """Give the ServerApp the replies that it has not received yet."""
        replies = []
        for name in names:
            sent = self._sent[name]
            if sent.reply is not None and not sent.received:
                sent.received = True
                self._idle = 0
                replies.append(sent.reply)
                if sent.task is not None:
                    self.rounds.note_reply(sent.task, sent.reply, sent.examples, sent.round)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push messages, and wait until all are answered, at most for ``timeout`` (s)."""
        names = self.push_messages(messages)
        missing = [name for name in names if self._sent[name].reply is None]
        if missing and timeout is None:
            self._wait(None, missing)
        elif missing and timeout is not None and timeout > 0:
            self._wait(self._server.now + timeout, missing)
        return self._receive(names)

    def _answer(self, sent: Sent, reply: Message) -> None:
        """Store the reply to a message, unless the message has one."""
        if sent.reply is not None:
            return
        reply.metadata.__dict__["_message_id"] = f"reply-{sent.number}"
        sent.reply = reply
        self._open -= 1
        self._server.cancel_timer(f"expire {sent.number}")
        self._server.cancel_timer(f"gone {sent.number}")
        if self._missing is not None:
            self._missing.discard(sent.message.metadata.message_id)

    def _answer_for(self, sent: Sent, code: int) -> None:
        """Store Flower's own answer in place of a device's reply."""
        with where(now_s=EPOCH_S + self._server.now):
            reply = Message(Error(code=code, reason=_UNAVAILABLE[code]), reply_to=sent.message)
        reply.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
        self._answer(sent, reply)

    # Messages from the simulation, before which the tasks of the last handler have begun.

    def _settle(self) -> None:
        """Take tasks that have been continued out of their rounds' counts."""
        while self._continued:
            self._continued.pop().ends["done"] -= 1

    def on_task_end(self, end: TaskEnd) -> None:
        """Receive the reply of a device, or wait for a device that sent none."""
        self._settle()
        sent = self._at_work.pop(end.device)
        if sent.round is not None:
            sent.round.ends[end.outcome] += 1
        if end.outcome == "done":
            if sent.round is not None:
                self._finished[end.device] = sent.round
            outcome: AppReply = end[f"{end.job}-reply"]
            sent.examples = outcome.examples
            if self._samples is not None and not outcome.reply.has_error():
                config = config_of(sent.message, self._app.config)
                self._samples.note(end.job, config, outcome.examples, outcome.counted)
            self._answer(sent, outcome.reply)
        elif sent.reply is None:
            self._doubt(sent)
        self._serve(end.device)
        self._schedule_turn()

    def on_return(self, device: int) -> None:
        """Send the next message to a device that has become available."""
        self._settle()
        self._awaited.discard(device)
        self._serve(device)

    async def on_timer(self, name: str) -> None:
        """Handle the end of a wait.

        Args:
            name: ``turn`` or ``app`` for the ServerApp, ``expire N`` for the time to live of
                message N, ``gone N`` for the patience with its device.
        """
        if name == "turn":
            await self.go_on()
            return
        self._settle()
        purpose, _, number = name.partition(" ")
        if purpose == "expire":
            self._answer_for(self._sent[f"message-{number}"], ErrorCode.MESSAGE_UNAVAILABLE)
        elif purpose == "gone":
            sent = self._sent[f"message-{number}"]
            working = self._at_work.get(sent.device)
            # the device is available, but has other messages to answer first
            if sent.task is None and working is not None:
                self._doubt(sent)
            elif working is not sent:
                self._answer_for(sent, ErrorCode.NODE_UNAVAILABLE)
        self._schedule_turn()

    def tensors(self) -> dict[str, AnyArray]:
        """The model's arrays of numbers, by name; only arrays in numpy's format."""
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
