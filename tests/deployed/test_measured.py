"""Records of steps, from what devices report or log."""

from pathlib import Path
from typing import Any

import pytest

from fedsim.clock.simulation import Record
from fedsim.common.errors import SimulationError
from fedsim.deployed.measured import with_steps
from fedsim.deployed.step_log import LoggedStep, StepLog, logged_steps
from fedsim.deployed.waits import VARIABLE, longest_wait_s
from fedsim.deployed.wire import WireCounters


def record(time: float, kind: str, task: int, **fields: Any) -> Record:
    whose = {"task": task, "device": task, "round": 0, "group": None}
    return Record(time, kind, whose | fields)


def message(time: float, kind: str, task: int, steps: tuple[LoggedStep, ...] = ()) -> Record:
    trees = [step.tree() for step in steps]
    return record(time, kind, task, bytes={"model": 100}, steps=trees)


DOWNLOAD = LoggedStep("download", 0.0, 2.0)
TRAIN = LoggedStep("train", 2.0, 5.0, {"epochs": 1, "asked": 1})


def steps_of(records: list[Record], task: int) -> list[tuple[str, float, str]]:
    return [
        (it.fields["step"], it.time, it.fields["outcome"])
        for it in records
        if it.kind == "step-end" and it.fields["task"] == task
    ]


def test_steps_of_two_tasks_are_in_the_order_of_time() -> None:
    late = LoggedStep("download", 0.0, 3.0)
    other = LoggedStep("train", 3.0, 4.0, {"epochs": 1, "asked": 1})
    made = with_steps(
        [
            record(0.0, "task-start", 0),
            message(0.0, "sent", 0),
            record(0.0, "task-start", 1),
            message(0.0, "sent", 1),
            message(6.0, "received", 1, (late, other)),
            record(6.0, "task-end", 1, outcome="done"),
            message(7.0, "received", 0, (DOWNLOAD, TRAIN)),
            record(7.0, "task-end", 0, outcome="done"),
        ],
        {},
    )
    assert [it.time for it in made] == sorted(it.time for it in made)
    assert not {"sent", "received"} & {it.kind for it in made}
    assert steps_of(made, 0) == [
        ("download", 2.0, "done"),
        ("train", 5.0, "done"),
        ("upload", 7.0, "done"),
    ]
    assert steps_of(made, 1)[-1] == ("upload", 6.0, "done")
    (upload,) = [
        it.fields
        for it in made
        if it.kind == "step-end" and it.fields["step"] == "upload" and it.fields["task"] == 0
    ]
    assert upload["bytes"] == upload["delivered"] == 100.0
    assert upload["payloads"] == [("model", 100.0)]


@pytest.mark.parametrize(
    ("end", "due"),
    [
        (1.0, [("download", 1.0, "late")]),
        (4.0, [("download", 2.0, "done"), ("train", 4.0, "late")]),
        (6.0, [("download", 2.0, "done"), ("train", 5.0, "done"), ("upload", 6.0, "late")]),
    ],
)
def test_a_task_without_an_answer_has_the_steps_that_its_device_logged(
    end: float, due: list[tuple[str, float, str]]
) -> None:
    records = [
        record(0.0, "task-start", 0),
        message(0.0, "sent", 0),
        record(end, "task-end", 0, outcome="late"),
    ]
    upload = LoggedStep("upload", 5.0, 5.0, {"bytes": {"update": 40}})
    made = with_steps(records, {0: [DOWNLOAD, TRAIN, upload]})
    assert steps_of(made, 0) == due
    cut = made[-2].fields
    if cut["step"] == "upload":
        assert (cut["bytes"], cut["delivered"]) == (40.0, 0.0)


def test_the_wire_tells_how_much_of_a_message_that_was_cut_has_arrived(tmp_path: Path) -> None:
    (tmp_path / "wire.csv").write_text("100.0,0,5,0\n101.9,0,70,0\n104.0,0,99,0\n")
    records = [
        record(0.0, "task-start", 0),
        message(0.0, "sent", 0),
        record(2.0, "task-end", 0, outcome="lost"),
    ]
    cut = with_steps(records, {}, WireCounters(tmp_path / "wire.csv", 100.0))[-2].fields
    assert (cut["step"], cut["bytes"], cut["delivered"]) == ("download", 100.0, 65.0)


def test_a_log_is_read_as_written_but_for_half_a_line(tmp_path: Path) -> None:
    log = StepLog(7, 3, tmp_path)
    log.add(DOWNLOAD)
    log.add(TRAIN)
    with (tmp_path / "steps-3.jsonl").open("a") as file:
        file.write('{"task": 8, "step": "down')
    assert logged_steps(tmp_path) == {7: [DOWNLOAD, TRAIN]}
    assert logged_steps(None) == {}


def test_a_wait_that_is_none_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert longest_wait_s() is None
    monkeypatch.setenv(VARIABLE, "0.2")
    assert longest_wait_s() == 0.2
    monkeypatch.setenv(VARIABLE, "soon")
    with pytest.raises(SimulationError, match=r"FEDSIM_FLOWER_WAITS = 'soon'; allowed are seconds"):
        longest_wait_s()
