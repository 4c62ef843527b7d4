"""Exported halves over Flower's messages, with nodes in threads of this process."""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

import fedsim
from fedsim.deployed.client import client_app
from fedsim.deployed.export import export
from fedsim.deployed.server import Deployment
from fedsim.running.runner import EndedRun
from fedsim.running.scenario import Scenario, load

NODES = 4
SCAFFOLD = {"kind": "scaffold", "clients_per_round": 3}
FEDAVG = {"kind": "fedavg", "clients_per_round": 3}


class ThreadGrid(Grid):
    """Each node answers in a thread of its own, one message after another."""

    def __init__(self, app: ClientApp, pace: float) -> None:
        self._app = app
        self._config = {"pace": pace}
        self._states = [RecordDict() for _ in range(NODES)]
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
        return range(1, NODES + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        self._count += 1
        name = f"message-{self._count}"
        message.metadata.__dict__["_message_id"] = name
        device = message.metadata.dst_node_id - 1
        work = self._threads[device].submit(self._answer, deepcopy(message), device)
        self._replies[name] = work
        return name

    def _answer(self, message: Message, device: int) -> Message:
        config = {"partition-id": device}
        node = message.metadata.dst_node_id
        return self._app(message, Context(1, node, config, self._states[device], self._config))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names = [name for name in message_ids if self._replies[name].done()]
        return [self._replies.pop(name).result() for name in names]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError


def both(
    folder: Path, strategy: dict[str, object], pace: float = 0.0, **sections: object
) -> tuple[EndedRun, Deployment]:
    """A scenario simulated, and its exported app run in real time."""
    scenario = Scenario(
        data={"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0}},
        population={"devices": NODES, "speed": "500 samples/s"},
        strategy=strategy,
        stop={"rounds": 3},
        **sections,
    )
    simulated = fedsim.run(scenario, folder / "simulated")
    export(scenario, folder / "app")
    path = folder / "app/fedsim_app/scenario.toml"
    deployment = Deployment(load(path), ThreadGrid(client_app(path), pace), pace)
    deployment.execute(folder / "deployed", 0, 60.0)
    return simulated, deployment


def sizes(deployment: Deployment, kind: str) -> int:
    sent = [record.fields["bytes"] for record in deployment.records if record.kind == kind]
    return sum(sum(by_content.values()) for by_content in sent)


def model(folder: Path) -> np.ndarray:
    from safetensors.numpy import load_file

    tensors = load_file(folder / "models/global.safetensors")
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


@pytest.mark.parametrize("strategy", [FEDAVG, SCAFFOLD], ids=["fedavg", "scaffold"])
def test_models_and_bytes_are_the_simulated_ones(
    strategy: dict[str, object], tmp_path: Path
) -> None:
    simulated, deployment = both(tmp_path, strategy)
    assert np.allclose(model(tmp_path / "simulated"), model(tmp_path / "deployed"), atol=1e-5)
    assert sizes(deployment, "sent") == simulated.summary["bytes"]["down"]
    assert sizes(deployment, "received") == simulated.summary["bytes"]["up"]


def test_a_codec_s_payloads_have_the_counted_bytes(tmp_path: Path) -> None:
    simulated, deployment = both(tmp_path, FEDAVG, messages={"up": "qsgd", "down": "int8"})
    assert sizes(deployment, "sent") == simulated.summary["bytes"]["down"]
    assert sizes(deployment, "received") == simulated.summary["bytes"]["up"]
    rounds = [record for record in deployment.records if record.kind == "round"]
    assert abs(rounds[-1].fields["accuracy"] - simulated.summary["accuracy"]["final"]) < 0.1
