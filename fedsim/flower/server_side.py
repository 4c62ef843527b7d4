"""The ServerApp at work: its Grid, whose messages go to simulated devices, and whose waiting is
simulated time.
"""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from fedsim.common.errors import SimulationError
from fedsim.federation.contents import Header, Opaque, TaskEnd
from fedsim.federation.server import Server
from fedsim.flower.app import Over, Turns, error_of_app, place_in, read_app
from fedsim.flower.client_side import AppReply, bytes_of, bytes_of_content, config_of, figure
from fedsim.flower.params import FlowerParams, SamplesTaken, SamplesTime
from fedsim.flower.replaced import EPOCH_S, AppHalf, replace_all, where

_NUMBERS = ("server-round", "server_round", "current-round", "current_round", "round")
_COUNTED = {
    "valid": ("done",),
    "slow": ("late", "memory"),
    "disconnected": ("lost", "left", "battery"),
}


@dataclass(eq=False)
class Round:
    """A round, open or over."""

    number: int  # from 0
    told: int | None  # its number as the app has it
    # tasks by outcome; one that another continues is left out
    ends: Counter[str] = field(default_factory=Counter)
    # tasks whose replies the ServerApp has, and their examples
    used: list[tuple[int, float]] = field(default_factory=list)
    sums: Counter[str] = field(default_factory=Counter)  # of each column value x examples
    weights: Counter[str] = field(default_factory=Counter)  # and examples
    own: dict[str, float] = field(default_factory=dict)  # measured by the ServerApp itself


class AppRounds:
    """The rounds of a run, one after another: ``names`` has the metric of each column; ``close``
    takes a round that is over.

    Messages of training make the rounds; of an app that has not trained yet, all messages do.
    Flower's own strategies number them: by ``group_id``, or by a config ``server-round``. Without a
    number a round begins whenever other arrays are sent than the last time, or a device is asked
    the same again where there are no arrays.
    """

    def __init__(self, names: dict[str, str], close: Callable[[Round], None]) -> None:
        self._names = names
        self._close = close
        self._open: Round | None = None
        self._count = 0
        self._sent: ArrayRecord | None = None
        self._asked: set[tuple[str, int]] = set()
        self._trains = False
        self.seen: set[str] = set()  # names of metrics

    def of(self, message: Message) -> Round | None:
        """The round that a message about to be sent is part of; a new round closes the one before.

        None: it makes no round.
        """
        if not self._leads(message):
            return None
        told = _told(message)
        asked = (message.metadata.message_type, message.metadata.dst_node_id)
        arrays = next(iter(message.content.array_records.values()), None)
        again = asked in self._asked if arrays is None else arrays != self._sent
        if not self._trains and _trains(message):
            self._trains = True
            # messages before prepare the first training, and are of its round
            if self._open is not None:
                self._open.told = told
                again = False
        if self._open is None or (told != self._open.told if told is not None else again):
            self.end()
            self._open = Round(self._count, told)
            self._count += 1
            self._asked.clear()
        self._sent = arrays if arrays is not None else self._sent
        self._asked.add(asked)
        return self._open

    def _leads(self, message: Message) -> bool:
        return not self._trains or _trains(message)

    def end(self) -> None:
        over = self._open
        self._open = None
        if over is not None:
            self._close(over)

    def note_reply(self, task: int, reply: Message, examples: float | None) -> None:
        one = self._open  # a late reply counts in the round in which it comes
        if one is None or reply.has_error():
            return
        content = reply.content
        weight = 1.0 if examples is None else examples
        self.seen |= {
            name
            for record in content.values()
            if not isinstance(record, ArrayRecord)
            for name in record
        }
        if self._leads(reply):
            one.used.append((task, weight))
        for column in ("train_loss",) if _trains(reply) else ("accuracy", "loss"):
            if (value := figure(content, self._names[column])) is not None:
                one.sums[column] += value * weight  # type: ignore[assignment]
                one.weights[column] += weight  # type: ignore[assignment]

    def note_figures(self, told: int, figures: dict[str, Any]) -> None:
        """Note what the ServerApp has measured in the round that it numbers ``told``."""
        self.seen |= set(figures)
        if self._open is not None and self._open.told in (told, None):
            self._open.own |= {
                column: float(figures[name])
                for column, name in self._names.items()
                if name in figures
            }


def _trains(message: Message) -> bool:
    return message.metadata.message_type.partition(".")[0] == "train"  # type: ignore[no-any-return]


def _told(message: Message) -> int | None:
    if (group := message.metadata.group_id).isdecimal():
        return int(group)
    configs = message.content.config_records.values()
    return next(
        (record[name] for record in configs for name in _NUMBERS if type(record.get(name)) is int),
        None,
    )


_POLL_S = 0.01  # simulated time of a repeated look for replies without any
_MOST_IDLE = 200_000  # waits of a ServerApp in a row with no message under way

_UNAVAILABLE = {
    ErrorCode.NODE_UNAVAILABLE: "the device cannot be reached, or vanished before it had answered",
    ErrorCode.MESSAGE_UNAVAILABLE: "the time to live of the message was over before an answer was there",
}


@dataclass(slots=True)
class Sent:
    """A message that the ServerApp has pushed, and its answer."""

    message: Message  # as it was then
    number: int
    device: int
    bytes: int
    round: Round | None  # None: it makes no round
    task: int | None = None
    reply: Message | None = None
    examples: float | None = None  # that the reply tells of
    taken: bool = False  # the ServerApp has the reply


class Session(Grid):  # type: ignore[misc]
    """Flower's Grid, and the ServerApp that uses it; its thread and the simulation take turns,
    so nothing needs a lock.
    """

    def __init__(self, params: FlowerParams, server: Server) -> None:
        self._params = params
        self._server = server
        self._app = read_app(params.app, params.run_config)
        self.folder = self._app.folder
        *self._nodes, self.run_id = (
            server.rng("nodes").integers(1, 1 << 63, size=server.devices + 1).tolist()
        )
        self._device_of = {node: device for device, node in enumerate(self._nodes)}
        self.turns = Turns(
            self._run, self._around, server.result, self.folder, params.real_patience
        )
        names = {"accuracy": params.accuracy, "loss": params.loss, "train_loss": params.train_loss}
        self.rounds = AppRounds(names, self._close_round)
        # that the ServerApp sent last, or its strategy returned in the end
        self.model: ArrayRecord | None = None
        self.strategy: Any = None  # the app's own, if it has one
        self._taken = SamplesTaken(params.time) if isinstance(params.time, SamplesTime) else None
        self._sent: dict[str, Sent] = {}
        self._at_work: dict[int, Sent] = {}  # by device, which takes one message at a time
        self._queues: dict[int, deque[Sent]] = defaultdict(deque)
        self._awaited = set[int]()
        self._open = 0  # messages that nobody has answered yet
        self._counts = Counter[int]()
        # of tasks that begin when the turn is over: they are no selections of their own
        self._continued: list[Round] = []
        self._finished: dict[int, Round] = {}  # of each device's last task, if that was done
        self._until: float | None = None  # the ServerApp waits until then at most (s),
        # or until these are answered; None: for the time alone
        self._missing: set[str] | None = set()
        self._asked_at = -1.0  # when it last asked for replies that were not there (s)
        self._idle = 0
        self._half: AppHalf
        self._client_seed = int(server.rng("client-app-loading").integers(1 << 32))

    async def begin(self) -> None:
        """Load the ServerApp, and give it its first turn."""
        replace_all()
        self._half = AppHalf(
            self._app, "server", int(self._server.rng("server-app").integers(1 << 32))
        )
        await self.go_on()

    async def go_on(self) -> None:
        """Give the ServerApp its turn while it has nothing to wait for; ``SimulationError`` if
        it raises or never ends.
        """
        while not self.turns.over and self._is_due():
            await self.turns.give()
        if not self.turns.over:
            return
        if (error := self.turns.error) is not None:
            if isinstance(error, SimulationError):
                raise error
            raise SimulationError(
                f"the ServerApp raised {error_of_app(error, self.folder)}"
            ) from error
        self._server.stop("the ServerApp has ended")

    def _call(self) -> None:
        """Ask for the ServerApp's turn, once all messages of this instant are there, if it waits
        for nothing more.
        """
        if not self.turns.over and self._is_due():
            self._server.timer("turn", self._server.now)

    def _is_due(self) -> bool:
        return self._missing == set() or (
            self._until is not None and self._server.now >= self._until
        )

    def _wait(self, until: float | None, missing: Iterable[str] | None = None) -> None:
        self._check_thread()
        self._missing = None if missing is None else set(missing)
        self._until = None if until is None else self._server.timer("app", until)
        if not self._open:
            self._idle += 1
            if self._idle > _MOST_IDLE:
                told = (
                    f"the ServerApp has waited {_MOST_IDLE} times in a row with no message under "
                    "way"
                )
                raise SimulationError(told + place_in(self.turns.thread, self.folder))
        self.turns.wait()
        self._server.cancel_timer("app")
        self._missing = set()

    def _check_thread(self) -> None:
        if self.turns.closing:
            raise Over
        if (thread := threading.current_thread()) is not self.turns.thread:
            only = "in simulated time only the thread in which the ServerApp began may call it"
            raise RuntimeError(f"the Grid is called in the thread {thread.name!r}; {only}")

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

    def clock(self) -> float:
        return float(self._server.now)

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._wait(self._server.now + seconds)

    def facts(self) -> dict[str, Any]:
        facts = (
            {}
            if self._taken is None
            else {name: told for name, told in self._taken.facts().items() if told}
        )
        return (
            facts if self.strategy is None else {"algorithm": type(self.strategy).__name__} | facts
        )

    def _close_round(self, one: Round) -> None:
        if one.used:
            tasks, weights = zip(*one.used, strict=True)
            self._server.emit(
                "aggregate", round=one.number, tasks=list(tasks), weights=list(weights)
            )
        means: dict[str, float | None] = {
            name: one.sums[name] / weight for name, weight in one.weights.items() if weight
        }
        counts = {
            name: sum(one.ends[outcome] for outcome in outcomes)
            for name, outcomes in _COUNTED.items()
        }
        if not self._server.note_round(
            one.number, means | one.own, selected=sum(counts.values()), **counts
        ):
            raise Over

    def set_run(self, run: Run) -> None:
        """There is one run, which is set."""

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
        """Send messages; returns their ids at once."""
        self._check_thread()
        # of contents that several messages share; what a generator yields may change on the way
        sizes: dict[int, int] = {}
        return [
            self._push(message, sizes if isinstance(messages, list) else {}) for message in messages
        ]

    def _push(self, message: Message, sizes: dict[int, int]) -> str:
        metadata = message.metadata
        if metadata.reply_to_message_id != "" or not metadata.ttl > 0 or not message.has_content():
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
        metadata.__dict__["_message_id"] = name = f"message-{number}"
        one = self.rounds.of(message)
        copy = deepcopy(message)  # which shares the arrays' bytes
        self.model = next(iter(copy.content.array_records.values()), None) or self.model
        copy.metadata.created_at = EPOCH_S + self._server.now
        if (content := id(message.content)) not in sizes:
            sizes[content] = bytes_of_content(copy.content)
        size = bytes_of(copy, sizes[content])
        sent = self._sent[name] = Sent(copy, number, device, size, one)
        self._server.timer(f"expire {number}", self._server.now + metadata.ttl)
        self._queues[device].append(sent)
        self._idle = 0
        self._open = self._open + 1
        if not self._server.clients.idle(device):
            self._doubt(sent)
        self._serve(device)
        return name

    def _serve(self, device: int) -> None:
        queue = self._queues[device]
        while queue and queue[0].reply is not None:
            queue.popleft()
        if not queue:
            return
        if self._server.clients.idle(device):
            sent = queue.popleft()
            kind = sent.message.metadata.message_type
            number = None if sent.round is None else sent.round.number
            before: Any = self._finished.pop(device, None)
            continues = before is not None and before is sent.round
            if continues:
                self._continued.append(before)
            seed = int(
                self._server.rng("client-app", device, self._counts[device]).integers(1 << 32)
            )
            self._counts[device] += 1
            contents = {
                kind: Opaque(sent.message, float(sent.bytes)),
                "seeds": Header((self._client_seed, seed)),
            }
            sent.task = self._server.ask(device, contents, kind, round=number, continues=continues)
            self._at_work[device] = sent
        elif (
            device not in self._awaited
            and device not in self._at_work
            and self._server.clients.await_return(device)
        ):
            self._awaited.add(device)

    def _doubt(self, sent: Sent) -> None:
        """Wait for a device that is away, or has gone."""
        self._server.timer(f"gone {sent.number}", self._server.now + self._params.unavailable_after)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are there and were not pulled before, in the order in which the messages
        were pushed.
        """
        self._check_thread()
        wanted = sorted({self._sent[name].number for name in message_ids if name in self._sent})
        names = [f"message-{number}" for number in wanted]
        if not (replies := self._take(names)):
            if self._asked_at == self._server.now:
                self._wait(self._server.now + _POLL_S)
                replies = self._take(names)
            self._asked_at = self._server.now
        return replies

    def _take(self, names: Iterable[str]) -> list[Message]:
        replies = []
        for sent in map(self._sent.__getitem__, names):
            if sent.reply is not None and not sent.taken:
                sent.taken = True
                self._idle = 0
                replies.append(sent.reply)
                if sent.task is not None:
                    self.rounds.note_reply(sent.task, sent.reply, sent.examples)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push messages, and wait until all are answered, at most for ``timeout`` (s)."""
        names = self.push_messages(messages)
        missing = [name for name in names if self._sent[name].reply is None]
        if missing and (timeout is None or timeout > 0):
            self._wait(None if timeout is None else self._server.now + timeout, missing)
        return self._take(names)

    def _answer(self, sent: Sent, reply: Message) -> None:
        if sent.reply is None:
            reply.metadata.__dict__["_message_id"] = f"reply-{sent.number}"
            sent.reply = reply
            self._open -= 1
            self._server.cancel_timer(f"expire {sent.number}")
            self._server.cancel_timer(f"gone {sent.number}")
            if self._missing is not None:
                self._missing.discard(sent.message.metadata.message_id)

    def _answer_for(self, sent: Sent, code: int) -> None:
        """Flower's own answer in the place of a device."""
        with where(now_s=EPOCH_S + self._server.now):
            reply = Message(Error(code=code, reason=_UNAVAILABLE[code]), reply_to=sent.message)
        reply.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
        self._answer(sent, reply)

    # Messages from the simulation: what was asked in the handler before has begun.

    def _settle(self) -> None:
        while self._continued:
            self._continued.pop().ends["done"] -= 1

    def on_task_end(self, end: TaskEnd) -> None:
        """Take the answer of a device, or wait for a device that gave none."""
        self._settle()
        sent = self._at_work.pop(end.device)
        if sent.round is not None:
            sent.round.ends[end.outcome] += 1
        if end.outcome == "done":
            if sent.round is not None:
                self._finished[end.device] = sent.round
            outcome: AppReply = end[f"{end.job}-reply"]
            sent.examples = outcome.examples
            if self._taken is not None and not outcome.reply.has_error():
                self._taken.note(
                    end.job,
                    config_of(sent.message, self._app.config),
                    outcome.examples,
                    outcome.counted,
                )
            self._answer(sent, outcome.reply)
        elif sent.reply is None:
            self._doubt(sent)
        self._serve(end.device)
        self._call()

    def on_return(self, device: int) -> None:
        self._settle()
        self._awaited.discard(device)
        self._serve(device)

    async def on_timer(self, name: str) -> None:
        """Handle the end of a patience, of a message's time to live, of the ServerApp's sleep,
        or its turn.
        """
        if name == "turn":
            await self.go_on()
            return
        self._settle()
        what, _, number = name.partition(" ")
        if what == "expire":
            self._answer_for(self._sent[f"message-{number}"], ErrorCode.MESSAGE_UNAVAILABLE)
        elif what == "gone":
            sent = self._sent[f"message-{number}"]
            working = self._at_work.get(sent.device)
            # it is there, but has others to answer first
            if sent.task is None and working is not None:
                self._doubt(sent)
            elif working is not sent:
                self._answer_for(sent, ErrorCode.NODE_UNAVAILABLE)
        self._call()

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The model's arrays by their names, those that are numpy's."""
        if self.model is None:
            return {}
        arrays = {
            name: array.numpy()
            for name, array in self.model.items()
            if array.stype == "numpy.ndarray"
        }
        return {
            name: np.ascontiguousarray(values)
            for name, values in arrays.items()
            if values.dtype.kind in "fiub"
        }
