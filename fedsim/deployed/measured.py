"""Run folder of a deployment: the tables of a simulated run, with measured times and bytes."""

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedsim.clock.simulation import Record
from fedsim.common.step_names import DIRECTIONS
from fedsim.deployed.run import ServerRun
from fedsim.deployed.step_log import LoggedStep, read_step
from fedsim.deployed.wire import WireCounters
from fedsim.records import folder as files
from fedsim.records import parquet
from fedsim.records.recorder import Recorder
from fedsim.records.schema import AVAILABILITY, models_digest
from fedsim.running.scenario import Scenario
from fedsim.running.summary import summarise

if TYPE_CHECKING:
    from fedsim.running.model_files import Models

_MESSAGE_KINDS = ("sent", "received")


@dataclass(slots=True)
class _MeasuredTask:
    """Measured values of a task of a deployment, from which the records of its steps are made.

    Attributes:
        device: number of the task's device.
        fields: fields of each record of the task: device, round, group and task ID.
        start: time at which the server sent the request (s).
        payloads: dict from direction, ``down`` (request) or ``up`` (answer), to name and size
            (bytes) of each content.
        steps: the steps that its device has reported or logged.
    """

    device: int
    fields: dict[str, object]
    start: float
    payloads: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    steps: list[LoggedStep] = field(default_factory=list)


class _SortableRecord(NamedTuple):
    """Record, and the numbers by which it is sorted.

    Attributes:
        position: index of the record among the server's records. A record of a device's step comes
            between two of them, at an index that ends in .5.
        time: time of the record (s).
        order: number of the step's record within its task, from 1; 0 for other records.
        record: the record.
    """

    position: float
    time: float
    order: int
    record: Record


def with_steps(
    records: Sequence[Record],
    logged: Mapping[int, list[LoggedStep]],
    wire: WireCounters | None = None,
) -> list[Record]:
    """Replace the records of messages in a deployment by records of the devices' steps.

    The device's answer reports the steps of its task, such as download and training. For a task
    without an answer, the steps that the device has logged are used. If no steps are known, a
    download is assumed.

    Args:
        records: the server's records, in order of time.
        logged: dict from task ID to the steps that its device has logged.
        wire: byte counters of the links, which give the delivered bytes of a message that the end
            of its task has cut off. None if the links have no counters. Such a message then counts
            as 0 delivered bytes. Only a request to a device that was not lost, and of which no
            steps are known, counts as delivered completely.

    Returns:
        The records, in order of time.
    """
    tasks = _collect_tasks(records, logged)
    times = [record.time for record in records]
    start_positions: dict[int, int] = {}  # task -> index of its record task-start
    sortable: list[_SortableRecord] = []
    for position, record in enumerate(records):
        if record.kind in _MESSAGE_KINDS:
            continue
        sortable.append(_SortableRecord(position, record.time, 0, record))
        if record.kind == "task-start":
            start_positions[record.fields["task"]] = position
        elif record.kind == "task-end":
            task_id = record.fields["task"]
            step_records = _step_records(tasks[task_id], record, wire)
            # a step's record lies between the records that begin and end its task
            lowest = start_positions[task_id] + 0.5
            highest = position - 0.5
            for order, step_record in enumerate(step_records, 1):
                by_time = bisect.bisect_right(times, step_record.time) - 0.5
                step_position = min(max(by_time, lowest), highest)
                sortable.append(
                    _SortableRecord(step_position, step_record.time, order, step_record)
                )
    sortable.sort(key=lambda item: (item.position, item.time, item.order))
    return [item.record for item in sortable]


def _collect_tasks(
    records: Sequence[Record], logged: Mapping[int, list[LoggedStep]]
) -> dict[int, _MeasuredTask]:
    """Return the tasks by ID, with the steps and contents that records and logs have of them."""
    tasks: dict[int, _MeasuredTask] = {}
    for record in records:
        fields = record.fields
        if record.kind == "task-start":
            names = ("device", "round", "group", "task")
            columns = {name: fields[name] for name in names}
            task = _MeasuredTask(fields["device"], columns, record.time)
            tasks[fields["task"]] = task
            for step in logged.get(fields["task"], []):
                if step.name == "upload":  # its log has the bytes of the answer
                    task.payloads["up"] = step.sizes()
                else:
                    task.steps.append(step)
        elif record.kind in _MESSAGE_KINDS:
            task = tasks[fields["task"]]
            direction = "down" if record.kind == "sent" else "up"
            task.payloads[direction] = [
                (name, float(size)) for name, size in fields["bytes"].items()
            ]
            if fields["steps"]:  # the steps that an answer reports replace the logged steps
                task.steps = [read_step(step) for step in fields["steps"]]
    return tasks


def _step_records(task: _MeasuredTask, end: Record, wire: WireCounters | None) -> Iterator[Record]:
    """Yield the records ``step-start`` and ``step-end`` of each step of a task that has ended.

    Args:
        task: the task.
        end: its record ``task-end``. A step that was running at this time has the task's outcome.
        wire: counters of the links; None if there are none.
    """
    outcome = end.fields["outcome"]
    now = task.start
    for step in _steps_until(task, end.time, outcome):
        yield Record(now, "step-start", {**task.fields, "step": step.name})
        # whether the end of the task cut the step off
        is_cut = step.end > end.time and outcome != "done"
        step_start = now
        # clocks of device and server may differ: steps neither overlap nor outlast their task
        now = min(max(step.end, now), end.time)
        facts: dict[str, object] = {**step.facts}
        direction = DIRECTIONS.get(step.name)  # None for a step without a message
        if direction is not None:
            payloads = task.payloads.get(direction, [])
            size = sum(content_size for _, content_size in payloads)
            delivered = size
            if is_cut:
                span = (step_start, now)
                delivered = _delivered_of_cut(task, direction, size, span, outcome, wire)
            facts = {"bytes": size, "delivered": delivered, "payloads": payloads}
        if step.name == "train":
            facts.setdefault("epoch_ends", [])  # devices do not measure the ends of epochs
        facts |= {"step": step.name, "outcome": outcome if is_cut else "done"}
        yield Record(now, "step-end", {**task.fields, **facts})
        if is_cut:
            return


def _delivered_of_cut(
    task: _MeasuredTask,
    direction: str,
    size: float,
    span: tuple[float, float],
    outcome: str,
    wire: WireCounters | None,
) -> float:
    """Return how many bytes of a message had arrived when the end of its task cut it off.

    Args:
        task: the task.
        direction: ``down`` or ``up``.
        size: size of the message (bytes).
        span: start and end of the transfer (s).
        outcome: outcome of the task.
        wire: counters of the links; None if there are none, so that nothing is measured.
    """
    if wire is not None:
        start, end = span
        return min(size, wire.moved(task.device, direction, start, end))
    if not task.steps and outcome != "lost":
        return size  # a late device of which no steps are known has received its request
    return 0.0


def _steps_until(task: _MeasuredTask, last: float, outcome: str) -> list[LoggedStep]:
    """Return the steps of a task that began before the task ended, its first step included always.

    A task whose steps are unknown has a download. If the device has sent an answer, or has begun to
    send it, an upload follows.

    Args:
        task: the task.
        last: time of the task's end (s).
        outcome: outcome of the task.
    """
    steps = task.steps or [LoggedStep("download", task.start, math.inf)]
    upload_start = steps[-1].end
    if outcome == "done":
        if task.payloads.get("up"):  # the answer has contents
            steps = [*steps, LoggedStep("upload", upload_start, last)]
        return steps
    has_begun_upload = "up" in task.payloads and bool(task.steps)
    if has_begun_upload:
        steps = [*steps, LoggedStep("upload", upload_start, math.inf)]
    began_in_time = [step for step in steps[1:] if step.start < last]
    return [steps[0], *began_in_time]


class DeploymentEnd(NamedTuple):
    """Outcome of a deployment: status, reason and real time.

    Attributes:
        status: the run's status: ``done`` or ``failed``.
        stopped: why the run ended.
        wall_s: real time of the run, with the wait for its nodes (s).
    """

    status: str
    stopped: str
    wall_s: float


def write_run_folder(
    out: Path,
    scenario: Scenario,
    run: ServerRun,
    records: Sequence[Record],
    ended: DeploymentEnd,
    models: "Models",
    best: "Models",
    mark: Mapping[str, object],
) -> None:
    """Write the tables, the models and the summary of a deployment to its folder.

    Args:
        out: the existing folder.
        scenario: the scenario of the app.
        run: the run of the strategy's server code.
        records: records of the run, in which ``with_steps`` has replaced the records of messages by
            records of the devices' steps.
        ended: outcome of the run.
        models: the strategy's models at the end: file name -> tensors by name.
        best: the models that had the best test, in the same form; empty without
            ``evaluation.keep_best``.
        mark: settings of the deployment, such as ``pace``, for the summary's entry ``measured``.
    """
    # tables and models
    files.write_text(out / files.SCENARIO, scenario.to_toml())
    recorder = Recorder(out, run.meters)
    for record in records:
        recorder.take(record)
    recorder.close()
    files.write_models(out, models)
    files.write_models(out, best, files.BEST)
    parquet.write_meters(out, run.meters)
    parquet.write_devices(out, run.device_columns(), run.meters)
    parquet.write_columns(out / files.AVAILABILITY, _availability(run, records), AVAILABILITY)

    # the summary, with the checksums of these files
    summary = summarise(
        run, recorder, ended.status, ended.stopped, models_digest(models), ended.wall_s
    )
    summary[files.MEASURED] = dict(mark)
    if summary["accuracy"]["final"] is None:
        reason = run.strategy.why_no_accuracy()
        if not reason:
            reason = run.evaluator.why_no_accuracy(summary["rounds"], run.strategy.models())
        summary["no_accuracy"] = reason
    parts = recorder.parts  # part files of tables, which are not needed beside the final files
    summary["files_sha256"] = files.fingerprints(out, but=parts)
    files.write_summary(out, summary)
    for part in parts:
        part.unlink()


class _ConnectionChange(NamedTuple):
    """Change of a device's connection at a time (s).

    Attributes:
        device: number of the device.
        time: time of the change (s).
        is_on: whether the device's node is connected from then on.
    """

    device: int
    time: float
    is_on: bool


def _availability(run: ServerRun, records: Sequence[Record]) -> dict[str, Sequence[float]]:
    """Return the columns of ``availability.parquet``: a row for each change of a connection.

    A device that is not connected at time 0 also has a row for this time.

    Returns:
        ``device``, ``time`` (s), and ``on``: whether the device's node was connected from then on.
    """
    changes: dict[int, list[_ConnectionChange]] = {}
    for record in records:
        if record.kind in ("node", "node-return", "node-gone"):
            device = record.fields["device"]
            is_on = record.kind != "node-gone"
            change = _ConnectionChange(device, record.time, is_on)
            changes.setdefault(device, []).append(change)
    rows: list[_ConnectionChange] = []
    for device in range(run.scenario.population.devices):
        device_changes = changes.get(device, [])
        is_connected_at_0 = bool(device_changes) and device_changes[0].time <= 0.0
        if not is_connected_at_0:
            rows.append(_ConnectionChange(device, 0.0, is_on=False))
        rows += device_changes
    return {
        "device": [row.device for row in rows],
        "time": [row.time for row in rows],
        "on": [row.is_on for row in rows],
    }
