"""Runs of Flower apps, and a plain loop, the oracle of the models: an app in this process,
without time and devices.
"""

import asyncio
import random
import sys
from collections.abc import Iterable
from concurrent.futures import Future
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.server import server as legacy
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

import fedsim
from fedsim.clock.executors import Executor, Inline
from fedsim.common.streams import Streams
from fedsim.flower.app import read_app
from fedsim.running.runner import EndedRun, Job

APPS = Path(__file__).parent / "apps"


class PlainGrid(Grid):
    """Each message is answered as soon as it is pushed."""

    def __init__(self, client_app: Any, config: dict[str, Any], devices: int, seed: int) -> None:
        self._client_app, self._config, self._streams = client_app, config, Streams(seed)
        *self.nodes, self.run_id = (
            self._streams.generator("strategy/nodes")
            .integers(1, 1 << 63, size=devices + 1)
            .tolist()
        )
        self._states = {node: RecordDict() for node in self.nodes}
        self._counts = dict.fromkeys(self.nodes, 0)
        self._replies: dict[str, Message] = {}
        self.sent: list[Message] = []

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        return Run.create_empty(self.run_id)

    def create_message(self, *args: Any, **named: Any) -> Message:
        return Message(*args, **named)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        node = message.metadata.dst_node_id
        device = self.nodes.index(node)
        message.metadata.__dict__["_message_id"] = name = f"plain-{len(self.sent)}"
        self.sent.append(message)
        seed = int(
            self._streams.generator("strategy/client-app", device, self._counts[node]).integers(
                1 << 32
            )
        )
        self._counts[node] += 1
        node_config = {"partition-id": device, "num-partitions": len(self.nodes)}
        context = Context(self.run_id, node, node_config, self._states[node], dict(self._config))
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        seed_all(seed)
        self._replies[name] = self._client_app(deepcopy(message), context)
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def one_by_one(
    ask: Any,
    sort: Any,
    client_instructions: Any,
    max_workers: int | None,
    timeout: float | None,
    group_id: int,
) -> tuple[list[Any], list[Any]]:
    """What legacy servers do in threads, whose order is anybody's guess."""
    results: list[Any] = []
    failures: list[Any] = []
    for client, told in client_instructions:
        answer: Future[Any] = Future()
        answer.set_result(ask(client, told, timeout, group_id))
        sort(answer, results, failures)
    return results, failures


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def run_plain(app: str, devices: int, seed: int = 1, **run_config: Any) -> list[Message]:
    read = read_app(str(APPS / app), run_config)
    sys.path.insert(0, str(read.folder))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    before = legacy.fit_clients, legacy.evaluate_clients
    legacy.fit_clients = partial(
        one_by_one, legacy.fit_client, legacy._handle_finished_future_after_fit
    )
    legacy.evaluate_clients = partial(
        one_by_one, legacy.evaluate_client, legacy._handle_finished_future_after_evaluate
    )
    try:
        grid = PlainGrid(read.load("client"), read.config, devices, seed)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, grid.run_id, 1
        seed_all(int(Streams(seed).generator("strategy/server-app").integers(1 << 32)))
        read.load("server")(
            grid=grid, context=Context(grid.run_id, 1, {}, RecordDict(), dict(read.config))
        )
    finally:
        legacy.fit_clients, legacy.evaluate_clients = before
        torch.set_num_threads(threads)
        sys.path.remove(str(read.folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == app]:
            del sys.modules[name]
    return grid.sent


def last_arrays(sent: list[Message]) -> dict[str, np.ndarray[Any, Any]]:
    for message in reversed(sent):
        for record in message.content.array_records.values():
            return {name: array.numpy() for name, array in record.items()}
    raise AssertionError("no arrays were ever sent")


STAR = {"kind": "star", "server": {"down": "20 Mbit/s", "up": "10 Mbit/s"}}
LINKS = {"down": "1 Mbit/s", "up": "500 kbit/s", "latency": "40 ms"}
CHURN = {"kind": "renewal", "mean_on": "30 s", "mean_off": "10 s"}


def scenario(
    app: str, devices: int = 6, population: dict[str, Any] | None = None, **strategy: Any
) -> dict[str, Any]:
    """Sections of a scenario: equal devices that are always there, on links without limit."""
    place = app if "/" in app else str(APPS / app)
    return {
        "population": {"devices": devices, "speed": "20 samples/s"} | (population or {}),
        "network": {"kind": "star"},
        "strategy": {"kind": "flower", "app": place} | strategy,
        "stop": {"rounds": 100, "simulated_time": "1 day"},
    }


def eventful(app: str, devices: int = 20, **strategy: Any) -> dict[str, Any]:
    """The same with stragglers, jitter, links and devices that come and go."""
    sections = scenario(app, devices, **strategy)
    sections["population"] |= {
        "speed": {"kind": "lognormal", "median": "5 samples/s", "spread": 3.0},
        "jitter": 0.2,
    }
    sections["population"] |= {"availability": CHURN}
    return sections | {"network": STAR | {"device": LINKS}}


def execute(
    sections: dict[str, Any], folder: Path | None = None, executor: Executor | None = None
) -> EndedRun:
    return asyncio.run(Job(fedsim.Scenario(**sections), folder, executor or Inline()).execute())
