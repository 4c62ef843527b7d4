"""Checks that devices worked only while they were present, and that the run kept to its scenario.

The scenario limits rounds, time and clients, and sets the layers of the saved models.
"""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import pandas as pd

from fedsim.common.arrays import Ints
from fedsim.common.stop import StopSpec
from fedsim.common.tensor_files import StoredTensor
from fedsim.lab.audit.evidence import Evidence, TomlTable
from fedsim.lab.audit.frames import NOTHING, report_rows, values_at_rows
from fedsim.lab.audit.strategies import WITH_GLOBAL_MODEL, WITH_GROUP_MODELS, WITH_PERSONAL_MODELS

_WIDTHS: Mapping[str, tuple[int, ...]] = {
    "logistic": (),
    "femnist-mlp": (512,),
    "mnist-cnn": (32, 64),
    "femnist-cnn": (32, 32, 32, 64, 64, 64, 128),
    "fashion-cnn": (32, 64, 1024),
    "lcfl-cnn": (16, 32, 256),
    "lcfl-cifar-cnn": (32, 84, 256),
    "cfl-cnn": (32, 64, 64, 128),
    "cata-cnn": (32, 32, 64, 64, 128, 128, 1024, 512, 256),
    "cnn5": (32, 64, 128),
}
"""Dict from kind of model to the count of outputs of each layer except the last."""

_BY_ROUND = r"\d+ rounds|accuracy .* reached|no progress of .*"
"""Regular expression for the stop reasons that end a run at the end of a round."""


def check_devices(evidence: Evidence) -> Iterator[str]:
    """Yield findings if the table of devices disagrees with the run's records.

    A device's row has to state as many selections as the records show. A device must not work
    before its arrival or after its departure. The table has to have a row for every device or, in
    runs that list only devices with tasks, a row for exactly the devices that had a task.
    """
    events = evidence.events
    devices = evidence.devices
    population = evidence.run.scenario["population"]["devices"]
    starts = events["kind"] == "task-start"
    ends = events["kind"] == "task-end"
    device_ids = np.arange(len(devices))
    if evidence.run.has_all_devices:
        if len(devices) != population:
            yield f"there are {len(devices)} devices, the scenario says {population}"
    else:
        device_ids = devices["device"].to_numpy()
        recorded = np.unique(events["device"][starts])
        if not np.array_equal(recorded, device_ids) or not (recorded < population).all():
            yield (
                f"there are rows of {len(devices)} devices; the records ask others, or "
                f"{len(recorded)} of the {population}"
            )
    yield from report_rows("row {row} is device {device}", devices, devices["device"] != device_ids)
    yield from _check_selections(evidence, device_ids)
    of_devices = events["kind"].isin(("arrival", "departure", "shift"))
    template = "record {row} ({kind}) is of no device"
    yield from report_rows(template, events, of_devices & (events["device"] == NOTHING))
    # A server may ask a device without knowing that the device has left. Such a task ends at once
    # with the outcome ``left``, and is allowed.
    has_left = events["task"].isin(events["task"][ends & (events["outcome"] == "left")])
    work = events[(ends | starts) & (events["device"] != NOTHING) & ~has_left]
    yield from _check_lifetimes(evidence, work)


def _check_selections(evidence: Evidence, device_ids: Ints) -> Iterator[str]:
    """Yield a finding for each device that was selected more or less often than its row states.

    Args:
        evidence: the run folder.
        device_ids: ID of the device of each row in the table of devices; int64 [rows].
    """
    events = evidence.events
    devices = evidence.devices
    starts = events["kind"] == "task-start"
    of_rounds = starts & (events["round"] != NOTHING) & ~evidence.is_continuation
    rows = evidence.row_of(events["device"][of_rounds])
    selections = np.bincount(rows[rows >= 0], minlength=len(devices))
    # a failed run may have ended between a selection and the record of its task
    most_unrecorded = 1 if evidence.run.summary["status"] == "failed" else 0
    unrecorded = devices["selected"] - selections
    wrong = (unrecorded < 0) | (unrecorded > most_unrecorded)
    template = "device {id} was selected {selected} times, the records say {selections}"
    yield from report_rows(template, devices.assign(id=device_ids, selections=selections), wrong)


def _check_lifetimes(evidence: Evidence, work: pd.DataFrame) -> Iterator[str]:
    """Yield a finding for each task of an unknown device, or of an absent device.

    A device is present from its arrival to its departure by the table of devices.

    Args:
        evidence: the run folder.
        work: records that begin or end tasks.
    """
    devices = evidence.devices
    row = evidence.row_of(work["device"])
    yield from report_rows("task {task} is on device {device}, which does not exist", work, row < 0)
    has_arrived = values_at_rows(devices["arrival"], row) <= work["time"]
    has_not_left = work["time"] <= values_at_rows(devices["departure"], row)
    wrong = (row >= 0) & ~(has_arrived & has_not_left)
    template = "device {device} works at {time!r} s, when it is not there"
    yield from report_rows(template, work, wrong)


def check_limits(evidence: Evidence) -> Iterator[str]:
    """Yield findings if rounds, time or clients exceed the scenario's limits.

    The run also has to end by one of the scenario's stop conditions.
    """
    stop = StopSpec.model_validate(evidence.run.scenario["stop"])
    yield from _check_end(evidence, stop)
    strategy = evidence.run.scenario["strategy"]
    if ":" not in strategy["kind"]:  # a user's own strategy has its own parameters
        yield from _check_clients(evidence, strategy)


def _check_end(evidence: Evidence, stop: StopSpec) -> Iterator[str]:
    """Yield findings if the run went on after one of the scenario's stop conditions was met.

    The reason that the run states for its end also has to agree with these conditions.

    Args:
        evidence: the run folder.
        stop: the scenario's stop conditions.
    """
    summary = evidence.run.summary
    rounds = summary["rounds"]
    time = summary["simulated_s"]
    if stop.rounds is not None and rounds > stop.rounds:
        yield f"there were {rounds} rounds, the scenario allows {stop.rounds}"
    if stop.simulated_time is not None and time > stop.simulated_time:
        yield f"the run went on to {time!r} s, the scenario allows {stop.simulated_time!r} s"
    accuracy = math.inf if stop.accuracy is None else stop.accuracy
    is_reached = (evidence.rounds["accuracy"] >= accuracy).to_numpy()
    if is_reached[:-1].any():
        yield (
            f"the accuracy at which the run was to stop, {stop.accuracy!r}, was reached in round "
            f"{int(is_reached.argmax())}"
        )
    yield from _check_reason(evidence, stop, ends_with_accuracy=bool(is_reached[-1:].any()))


def _check_reason(evidence: Evidence, stop: StopSpec, *, ends_with_accuracy: bool) -> Iterator[str]:
    """Yield findings if the reason that the run states for its end cannot be true.

    Args:
        evidence: the run folder.
        stop: the scenario's stop conditions.
        ends_with_accuracy: whether the last round reached the accuracy at which the run is to stop.
    """
    summary = evidence.run.summary
    rounds = summary["rounds"]
    time = summary["simulated_s"]
    stopped = summary["stopped"]
    is_possible = True  # reasons other than these three are not checked
    by_rounds = re.fullmatch(r"(\d+) rounds", str(stopped))
    if stopped == "simulated time":
        is_possible = time == stop.simulated_time
    elif by_rounds is not None:
        is_possible = int(by_rounds[1]) == rounds == stop.rounds
    elif re.fullmatch(r"accuracy .* reached", str(stopped)):
        is_possible = ends_with_accuracy
    reason = json.dumps(stopped)
    if not is_possible:
        yield (
            f"the run stopped as {reason}, which is not what the scenario says of {rounds} rounds "
            f"and {time!r} s"
        )
    round_ends = evidence.rounds["time"].tolist()
    if re.fullmatch(_BY_ROUND, str(stopped)) and round_ends and round_ends[-1] != time:
        yield (
            f"the run stopped as {reason} at {time!r} s, and its last round was at "
            f"{round_ends[-1]!r} s"
        )


def _check_clients(evidence: Evidence, strategy: TomlTable) -> Iterator[str]:
    """Yield findings if a round asks more clients than the strategy's parameters allow.

    The count of clients that work at the same time is limited, too.

    Args:
        evidence: the run folder.
        strategy: the strategy's section of the scenario.
    """
    events = evidence.events
    starts = events[(events["kind"] == "task-start") & (events["round"] != NOTHING)]
    largest_cohort = _largest_cohort(strategy, evidence.trainable)
    most_at_work = strategy.get("concurrency", math.inf)
    if strategy["kind"] == "fedat":
        # a tier replaces lost clients within a round, so only its clients at a time are limited
        most_at_work = largest_cohort
        largest_cohort = math.inf
    clients = starts.groupby("round")["device"].nunique()
    for number, count in clients[clients > largest_cohort].items():
        yield f"round {number} asked {count} clients, the scenario allows {largest_cohort:g}"
    ends = events[(events["kind"] == "task-end") & events["task"].isin(starts["task"])]
    # each record changes the count of clients at work by +1 (start), -1 (end) or 0
    change = events.index.isin(starts.index).astype(int) - events.index.isin(ends.index)
    at_work = np.cumsum(change)
    largest_count = at_work.max(initial=0)
    if largest_count > most_at_work:
        time = events["time"].tolist()[int(at_work.argmax())]
        yield (
            f"{largest_count} clients were at work at {time!r} s, the scenario allows "
            f"{most_at_work:g}"
        )


def _largest_cohort(strategy: TomlTable, devices: int) -> float:
    """Return the greatest count of clients that a round may ask; infinity if it is unlimited.

    Args:
        strategy: the strategy's section of the scenario.
        devices: count of devices that may train.
    """
    if "participation" in strategy:
        # the count of clients is rounded in each group, which adds at most one client per group
        share = max(strategy["participation"], strategy["moment"].get("participation", 0.0))
        return float(round(share * devices) + strategy.get("groups", 0))
    clients = strategy.get("clients_per_round")
    if clients is None:
        return math.inf
    tiers = strategy["tiers"] if strategy["kind"] == "fedat" else 1
    # 1e-9, because a rounding error could add a client: 10 * 1.1 is 11.000000000000002
    return float(math.ceil(clients * strategy.get("over_selection", 1.0) - 1e-9) * tiers)


def check_saved_models(evidence: Evidence) -> Iterator[str]:
    """Yield findings if saved models are missing, or have other layers than the scenario's model.

    Each group that a device belongs to needs a model, too.
    """
    models = evidence.models
    strategy = evidence.run.scenario["strategy"]["kind"]
    model = evidence.run.scenario.get("model", {"kind": "module"})
    expected = _expected_files(evidence, models)
    for name in sorted(expected - models.keys()):
        yield f"there is no models/{name}.safetensors, which the strategy {strategy!r} leaves"
    widths = _layer_widths(model)
    if widths is not None:
        for name in sorted(expected & models.keys()):
            yield from _check_layers(name, models[name], model["kind"], widths)
    if "group" in expected & models.keys():
        saved = {int(name.partition("/")[0]) for name in models["group"]}
        groups = evidence.devices["group"]
        for group in sorted(set(groups[groups != NOTHING].tolist()) - saved):
            yield f"devices are in group {group}, of which there is no model"


def _expected_files(evidence: Evidence, models: Collection[str]) -> set[str]:
    """Return the names, without suffix, of the model files that the run has to leave.

    Args:
        evidence: the run folder.
        models: names, without suffix, of the model files in the folder.
    """
    run = evidence.run
    strategy = run.scenario["strategy"]["kind"]
    expected = set[str]()
    if run.scenario.get("learning") == "on" and run.summary["status"] != "failed":
        expected = _strategy_files(strategy)
    ended_in_warm_up = "global" in models and "group" not in models
    if strategy in ("lcfl", "fl-hc") and ended_in_warm_up:
        expected = {"global"}
    if expected and {"keep", "send"} & run.scenario.get("model", {}).keys():
        expected.add("device")
    if not evidence.data_of("aggregate")["tasks"].map(len).any():
        # no aggregation has produced a group's or device's model yet
        expected -= {"device", "group"}
    return expected


def _strategy_files(strategy: str) -> set[str]:
    """Return the names, without suffix, of the model files that runs of a strategy leave."""
    names = set[str]()
    if strategy in WITH_GLOBAL_MODEL or strategy in WITH_PERSONAL_MODELS:
        names.add("global")
    if strategy in WITH_GROUP_MODELS:
        names.add("group")
    if strategy in WITH_PERSONAL_MODELS or strategy == "local":
        names.add("device")
    return names


def _layer_widths(model: TomlTable) -> tuple[int, ...] | None:
    """Return the count of outputs of each layer of the model but the last.

    Returns:
        The counts; None if the scenario does not determine them.
    """
    if model["kind"] == "mlp":
        full_widths: tuple[int, ...] | None = tuple(model["hidden"])
    else:
        full_widths = _WIDTHS.get(model["kind"])
    if full_widths is None or "train" in model:
        return None
    share = model.get("width", 1.0)
    return tuple(math.ceil(share * outputs) for outputs in full_widths)


def _check_layers(
    name: str, tensors: Mapping[str, StoredTensor], kind: str, widths: tuple[int, ...]
) -> Iterator[str]:
    """Yield a finding for each model in a file if its layers do not have the scenario's widths.

    Args:
        name: name of the file, without suffix.
        tensors: the tensors of the file.
        kind: kind of the scenario's model, for the finding.
        widths: expected count of outputs of each layer but the last.
    """
    for member, outputs in sorted(_layer_outputs(tensors).items()):
        if outputs[:-1] != widths:
            label = f"{name}/{member}" if member else name
            yield (
                f"the layers of model {label!r} put out {list(outputs[:-1])}, those of {kind!r} "
                f"{list(widths)}"
            )


def _layer_outputs(tensors: Mapping[str, StoredTensor]) -> dict[str, tuple[int, ...]]:
    """Return the count of outputs of each layer of each model in a file.

    Returns:
        Dict from name of the model (``""`` if the file has only one) to the counts of its layers,
        in order.
    """
    layers: dict[str, dict[int, int]] = {}
    for name, values in tensors.items():
        match = re.fullmatch(r"(?:(.*)/)?(\d+)\.weight", name)
        if match is not None:
            layers.setdefault(match[1] or "", {})[int(match[2])] = values.shape[0]
    outputs = {}
    for member, by_index in layers.items():
        outputs[member] = tuple(by_index[index] for index in sorted(by_index))
    return outputs
