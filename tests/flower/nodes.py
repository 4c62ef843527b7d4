"""Nodes of an exported app in threads of this process, with Flower's messages and without its network."""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

NODES = 4


class ThreadGrid(Grid):
    """Each node answers in a thread of its own, one message after another."""

    def __init__(self, app: ClientApp, pace: float) -> None:
        self._app = app
        self._config = {"pace": pace}
        self.states = [RecordDict() for _ in range(NODES)]
        self.partitions = {node: node - 1 for node in range(1, NODES + 1)}  # node -> partition-id
        self._threads = [ThreadPoolExecutor(1) for _ in range(NODES)]
        self._replies: dict[str, Future[Message]] = {}
        self._count = 0
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(self, *args: object, **named: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.partitions)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        self._count += 1
        name = f"message-{self._count}"
        message.metadata.__dict__["_message_id"] = name
        device = self.partitions[message.metadata.dst_node_id]
        thread = self._threads[device % NODES]
        work = thread.submit(self._answer, deepcopy(message), device)
        self._replies[name] = work
        return name

    def _answer(self, message: Message, device: int) -> Message:
        config = {"partition-id": device}
        node = message.metadata.dst_node_id
        state = self.states[device % NODES]
        return self._app(message, Context(1, node, config, state, self._config))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names = [name for name in message_ids if self._replies[name].done()]
        return [self._replies.pop(name).result() for name in names]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError
