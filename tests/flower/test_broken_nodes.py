"""Nodes that answer nonsense, twice, too late, or without their state: the run goes on."""

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedsim.clock.simulation import Record
from fedsim.common.errors import RunFolderError, SimulationError
from fedsim.deployed import nodes as deployed_nodes
from fedsim.deployed.client import client_app, client_half
from fedsim.deployed.export import export
from fedsim.deployed.records import HEAD, PAYLOADS
from fedsim.deployed.server import Deployment
from fedsim.lab.audited import audit_run
from fedsim.plugin import Client, Device, Header, Instruction, LocalResult, Strategy, TaskEnd
from fedsim.records.reading import RunFolder
from fedsim.running.scenario import Scenario, load
from tests.flower.nodes import NODES, ThreadGrid
from tests.flower.test_deployed import FEDAVG, SCAFFOLD, both, model

FOUR = {"kind": "fedavg", "clients_per_round": NODES}
THREE_OF_FOUR = {"kind": "fedavg", "clients_per_round": 3, "over_selection": 1.3}


def deployment_of(
    folder: Path,
    strategy: dict[str, object],
    rounds: int,
    grid_type: type[ThreadGrid] = ThreadGrid,
) -> tuple[Deployment, ThreadGrid]:
    """A deployment of an exported app, and its nodes, before it begins."""
    scenario = Scenario(
        data={"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0}},
        population={"devices": NODES, "speed": "500 samples/s"},
        strategy=strategy,
        stop={"rounds": rounds},
    )
    export(scenario, folder / "app")
    path = folder / "app/fedsim_app/scenario.toml"
    grid = grid_type(client_app(path), 0.0)
    return Deployment(load(path), grid, 0.0), grid


def kinds(deployment: Deployment, kind: str) -> list[Record]:
    return [record for record in deployment.records if record.kind == kind]


# Answers that cannot be read.

Change = Callable[[RecordDict], None]


def head_of(records: RecordDict) -> dict[str, object]:
    head: dict[str, object] = json.loads(str(records.config_records[HEAD]["json"]))
    return head


def with_head(**entries: object) -> Change:
    def change(records: RecordDict) -> None:
        records[HEAD] = ConfigRecord({"json": json.dumps(head_of(records) | entries)})

    return change


def with_json(text: str) -> Change:
    def change(records: RecordDict) -> None:
        records[HEAD] = ConfigRecord({"json": text})

    return change


def with_content(name: str, form: object) -> Change:
    def change(records: RecordDict) -> None:
        contents = head_of(records)["contents"]
        assert isinstance(contents, dict)
        with_head(contents=contents | {name: form})(records)

    return change


def without_payloads(records: RecordDict) -> None:
    del records[PAYLOADS]


def with_short_payload(records: RecordDict) -> None:
    array = Array("uint8", (3,), "fedsim.payload", b"abc")
    records[PAYLOADS] = ArrayRecord({"update": array})


CHANGES: dict[str, Change] = {
    "no records": RecordDict.clear,
    "no JSON": with_json("{"),
    "a list": with_json("[1]"),
    "a deep list": with_json("[" * 100_000),
    "another task": with_head(task=10**6),
    "a strange outcome": with_head(outcome="fine"),
    "no steps": with_head(steps=None),
    "a strange step": with_head(steps=[{"step": "train", "start": 0, "end": 1, "facts": {}}]),
    "a time that is none": with_head(took_s=float("nan")),
    "no contents": with_head(contents={}),
    "contents in a list": with_head(contents=[1, 2]),
    "a negative weight": with_content("samples", {"header": -3}),
    "a weight in words": with_content("samples", {"header": "many"}),
    "no model": with_content("update", {"numbers": "float", "wire": "<f4", "shape": [650]}),
    "a long model": with_content("update", {"model": 10**12}),
    "a base that nobody sent": with_content("update", {"model": 650, "base": ["other", 3]}),
    "an array that is missing": with_content("samples", {"header": {"array": 9}}),
    "no payloads": without_payloads,
    "a short payload": with_short_payload,
}


class BrokenGrid(ThreadGrid):
    """The first device's answers are changed, each in another way."""

    changes: Sequence[Change] = list(CHANGES.values())
    changed = 0

    def _answer(self, message: Message, device: int) -> Message:
        reply = super()._answer(message, device)
        if device == 0 and message.metadata.message_type == "train":
            self.changes[self.changed](reply.content)
            self.changed += 1
        return reply


def test_answers_that_cannot_be_read_end_their_tasks_and_nothing_else(tmp_path: Path) -> None:
    deployment, _ = deployment_of(tmp_path, FOUR, len(CHANGES), BrokenGrid)
    deployment.execute(tmp_path / "out", 0, 60.0)
    faults = kinds(deployment, "node-fault")
    assert [record.fields["device"] for record in faults] == [0] * len(CHANGES)
    assert all(record.fields["reason"] for record in faults)
    ends = kinds(deployment, "task-end")
    outcomes = [(record.fields["device"] == 0, record.fields["outcome"]) for record in ends]
    assert set(outcomes) == {(True, "lost"), (False, "done")}
    run = RunFolder(tmp_path / "out")
    assert run.summary["rounds"] == len(CHANGES)
    assert np.isfinite(model(tmp_path / "out")).all()
    findings = audit_run(tmp_path / "out").findings
    assert {name: problems for name, problems in findings.items() if problems} == {}


class FailingGrid(ThreadGrid):
    """The first device's answers cannot be pulled."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            if reply.metadata.src_node_id == 1 and reply.metadata.message_type == "train":
                raise ValueError("an object has another hash")
        return replies


def test_an_answer_that_flower_cannot_hand_over_ends_its_task(tmp_path: Path) -> None:
    deployment, _ = deployment_of(tmp_path, FOUR, 2, FailingGrid)
    deployment.execute(tmp_path / "out", 0, 60.0)
    ends = kinds(deployment, "task-end")
    lost = [record.fields["device"] for record in ends if record.fields["outcome"] == "lost"]
    assert lost == [0, 0]


# Answers that come twice or late.


class TwiceGrid(ThreadGrid):
    """Each request is carried out twice, and each answer is handed over twice."""

    def _answer(self, message: Message, device: int) -> Message:
        super()._answer(message, device)
        return super()._answer(message, device)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        return [*replies, *replies]


def test_messages_that_come_twice_count_once(tmp_path: Path) -> None:
    simulated, deployment = both(tmp_path, SCAFFOLD, grid_type=TwiceGrid)
    assert np.allclose(model(tmp_path / "simulated"), model(tmp_path / "deployed"), atol=1e-5)
    assert len(kinds(deployment, "received")) == 9
    assert not kinds(deployment, "node-forgot")
    assert RunFolder(tmp_path / "deployed").summary["bytes"] == simulated.summary["bytes"]


class HoldingGrid(ThreadGrid):
    """The first answer of the first device is held back until the third round has begun.

    The server gets no answer before all nodes have given theirs, so that each node has downloaded
    its request before the round ends.
    """

    held = ""

    def _push(self, message: Message) -> str:
        name = super()._push(message)
        is_first = message.metadata.dst_node_id == 1 and not self.held
        if is_first and message.metadata.message_type == "train":
            self.held = name
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names = list(message_ids)
        is_round_asked = self._count % NODES == 0
        if not is_round_asked or (self.held in names and self._count < 3 * NODES):
            return []
        wait(list(self._replies.values()))
        return super().pull_messages(names)


def test_a_late_answer_of_a_former_round_is_noted_and_ignored(tmp_path: Path) -> None:
    deployment, _ = deployment_of(tmp_path, THREE_OF_FOUR, 4, HoldingGrid)
    deployment.execute(tmp_path / "out", 0, 60.0)
    late = [record for record in kinds(deployment, "received") if record.fields["late"]]
    first = next(record for record in late if record.fields["round"] == 0)
    assert first.fields["device"] == 0
    tasks = [record.fields["tasks"] for record in kinds(deployment, "aggregate")]
    assert not any(first.fields["task"] in names for names in tasks)
    assert [len(names) for names in tasks] == [3] * 4
    bytes_down = RunFolder(tmp_path / "out").summary["bytes"]["down"]
    assert bytes_down == 4 * NODES * 2600  # late nodes have received their requests
    findings = audit_run(tmp_path / "out").findings
    assert {name: problems for name, problems in findings.items() if problems} == {}


# Answers without a model.


class Measuring(Client[Any]):
    """Trains, and answers with the number of its samples alone."""

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Any:
        return {"samples": Header(device.samples)}


class Counting(Strategy[Any]):
    """Asks all devices in each of two rounds, and keeps its first model."""

    Client = Measuring

    async def on_start(self) -> None:
        self.state.update(model=self.server.models.initial(), round=0)
        self.ask_all()

    def ask_all(self) -> None:
        self.state["answers"] = []
        self.server.begin_round(self.state["round"])
        for device in range(NODES):
            contents = {"model": self.state["model"]}
            self.server.ask(device, contents, round=self.state["round"])

    async def on_task_end(self, message: TaskEnd) -> None:
        self.state["answers"].append(message["samples"])
        if len(self.state["answers"]) < NODES:
            return
        counts = {"selected": NODES, "valid": NODES, "slow": 0, "disconnected": 0}
        await self.server.finish_round(self.state["round"], self.models(), [], **counts)
        self.state["round"] += 1
        if self.state["round"] == 2:
            self.server.stop("two rounds")
        else:
            self.ask_all()

    def models(self) -> Any:
        return {"global": (self.state["model"], None)}


def test_answers_without_a_model_are_recorded_as_such(tmp_path: Path) -> None:
    own: dict[str, object] = {"kind": "tests.flower.test_broken_nodes:Counting"}
    deployment, _ = deployment_of(tmp_path, own, 2)
    deployment.execute(tmp_path / "out", 0, 60.0)
    listed = [record.fields["tasks"] for record in kinds(deployment, "no-update")]
    assert [sorted(tasks) for tasks in listed] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    findings = audit_run(tmp_path / "out").findings
    assert {name: problems for name, problems in findings.items() if problems} == {}


# Nodes without their state.


class ForgettingGrid(ThreadGrid):
    """The first device has no state in its second task, and in its fourth an older one."""

    tasks = 0
    older: RecordDict | None = None

    def _answer(self, message: Message, device: int) -> Message:
        if device == 0 and message.metadata.message_type == "train":
            self.tasks += 1
            if self.tasks == 2:
                self.states[0] = RecordDict()
            if self.tasks == 4 and self.older is not None:
                self.states[0] = self.older
        reply = super()._answer(message, device)
        if self.tasks == 2:
            self.older = RecordDict(dict(self.states[0]))
        return reply


@pytest.mark.parametrize(("strategy", "count"), [(SCAFFOLD, 2), (FEDAVG, 0)])
def test_a_node_that_has_lost_its_state_goes_on_and_is_named(
    strategy: dict[str, object], count: int, tmp_path: Path
) -> None:
    every = strategy | {"clients_per_round": NODES}
    deployment, _ = deployment_of(tmp_path, every, 4, ForgettingGrid)
    deployment.execute(tmp_path / "out", 0, 60.0)
    forgot = [record.fields["device"] for record in kinds(deployment, "node-forgot")]
    assert forgot == [0] * count
    assert RunFolder(tmp_path / "out").summary["rounds"] == 4


class RestartedGrid(ThreadGrid):
    """The first node is started anew in the second round; Flower lists both for some time."""

    def _push(self, message: Message) -> str:
        if self._count == 2 * NODES + 2:
            self.partitions[101] = 0
        if self._count == 2 * NODES + 6:
            self.partitions.pop(1, None)
        return super()._push(message)


def test_a_node_that_is_started_anew_takes_over_from_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployed_nodes, "_NODES_EVERY_S", 0.0)
    deployment, _ = deployment_of(tmp_path, {**FOUR, "clients_per_round": 2}, 8, RestartedGrid)
    deployment.execute(tmp_path / "out", 0, 60.0)
    assert [record.fields["device"] for record in kinds(deployment, "node-gone")] == [0]
    assert [record.fields["device"] for record in kinds(deployment, "node-return")] == [0]
    assert RunFolder(tmp_path / "out").summary["rounds"] == 8


def test_a_node_with_a_wrong_number_is_named_when_others_are_missing(tmp_path: Path) -> None:
    deployment, grid = deployment_of(tmp_path, FEDAVG, 1)
    grid.partitions = {1: 0, 2: 1, 3: 1, 4: 2, 5: NODES}
    for device in range(NODES):  # loaded now, so that all nodes answer at once
        client_half(tmp_path / "app/fedsim_app/scenario.toml", device, 0.0, "all")
    with pytest.raises(SimulationError, match=r"3 of 4 nodes") as caught:
        deployment.execute(tmp_path / "out", 0, 1.0)
    assert "partition-id = 1 too" in str(caught.value)
    assert f"partition-id = {NODES}; allowed are 0 to {NODES - 1}" in str(caught.value)


# Errors of the run itself.


class LackingGrid(ThreadGrid):
    """The first device's answers lack the content that SCAFFOLD adds to the default ones."""

    def _answer(self, message: Message, device: int) -> Message:
        reply = super()._answer(message, device)
        if device == 0 and message.metadata.message_type == "train":
            contents = head_of(reply.content)["contents"]
            assert isinstance(contents, dict)
            kept = {name: contents[name] for name in ("update", "samples", "epochs")}
            with_head(contents=kept)(reply.content)
        return reply


def test_a_content_of_a_strategy_s_own_that_is_missing_is_named(tmp_path: Path) -> None:
    every = SCAFFOLD | {"clients_per_round": NODES}
    deployment, _ = deployment_of(tmp_path, every, 2, LackingGrid)
    with pytest.raises(SimulationError, match=r"answer of device 0 .*the strategy reads 'control"):
        deployment.execute(tmp_path / "out", 0, 60.0)


def test_a_folder_with_a_run_is_not_written_over(tmp_path: Path) -> None:
    deployment, _ = deployment_of(tmp_path, FEDAVG, 1)
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(RunFolderError, match="has a run already"):
        deployment.execute(tmp_path, 0, 60.0)


class EndingGrid(ThreadGrid):
    """The SuperLink is gone in the second round."""

    def _push(self, message: Message) -> str:
        if self._count == 2 * NODES + 2:
            raise ConnectionError("no SuperLink")
        return super()._push(message)


def test_an_error_in_mid_run_leaves_what_was_measured(tmp_path: Path) -> None:
    deployment, _ = deployment_of(tmp_path, FOUR, 3, EndingGrid)
    with pytest.raises(ConnectionError, match="no SuperLink"):
        deployment.execute(tmp_path / "out", 0, 60.0)
    run = RunFolder(tmp_path / "out")
    assert (run.summary["status"], run.summary["rounds"]) == ("failed", 1)
    assert np.isfinite(model(tmp_path / "out")).all()
