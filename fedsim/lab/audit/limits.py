"""Did devices work only while they were there, and did the run keep to its scenario: rounds,
time, clients, the model?
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedsim.common.arrays import Flags, Ints
from fedsim.common.stop import StopSpec
from fedsim.lab.audit.evidence import NOTHING, Evidence, at_places, findings, latest, numbered

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
"""Outputs of each layer of a kind of model, except the last, whose outputs are the classes."""

_FAMILIES = {
    ("global",): (
        *(
            "cata-fed",
            "fedasync",
            "fedat",
            "fedavg",
            "fedbuff",
            "feddr",
            "feddyn",
            "fednova",
            "fedprox",
        ),
        *(
            "flora",
            "heterofl",
            "hetlora",
            "hierfavg",
            "moon",
            "refl",
            "rfedavg",
            "scaffold",
            "tifl",
        ),
    ),
    ("global", "device"): ("ditto", "fedbn", "fedper", "fedrep", "pfedme"),
    ("group",): (
        "cfl",
        "fedgroup",
        "fesem",
        "fesem-mig",
        "fl-hc",
        "flexcfl",
        "fpfc",
        "hypcluster",
        "ifca",
        "ifca-mig",
        "lcfl",
    ),
    ("device",): ("local",),
}
_FILES = {kind: set(names) for names, kinds in _FAMILIES.items() for kind in kinds}
"""The files of models that a strategy leaves, if it leaves any."""


def devices_agree(evidence: Evidence) -> Iterator[str]:
    """One row a device, selected for a round as often as the records say, and at work only while
    it was there.

    Of very many devices there is one for each that was ever asked.
    """
    events = evidence.events
    devices = evidence.devices
    stated = evidence.run.scenario["population"]["devices"]
    starts, ends = (events["kind"] == kind for kind in ("task-start", "task-end"))
    number = np.arange(len(devices))
    if evidence.run.has_all_devices:
        if len(devices) != stated:
            yield f"there are {len(devices)} devices, the scenario says {stated}"
    else:
        number = devices["device"].to_numpy()
        asked = np.unique(events["device"][starts])
        if not np.array_equal(asked, number) or not (asked < stated).all():
            yield (
                f"there are rows of {len(devices)} devices; the records ask others, or "
                f"{len(asked)} of the {stated}"
            )
    yield from findings("row {row} is device {device}", devices, devices["device"] != number)
    asked = evidence.row_of(
        events["device"][starts & (events["round"] != NOTHING) & ~evidence.continues]
    )
    times = np.bincount(asked[asked >= 0], minlength=len(devices))
    text = "device {number} was selected {selected} times, the records say {times}"
    # the error of a failed run may come between a choice and its record
    unrecorded = devices["selected"] - times
    most_unrecorded = 1 if evidence.run.summary["status"] == "failed" else 0
    wrong = (unrecorded < 0) | (unrecorded > most_unrecorded)
    yield from findings(text, devices.assign(number=number, times=times), wrong)
    nobody = events["kind"].isin(("arrival", "departure", "shift")) & (events["device"] == NOTHING)
    yield from findings("record {row} ({kind}) is of no device", events, nobody)
    # A server may ask a device without knowing that it has left: that task ends at once.
    gone = events["task"].isin(events["task"][ends & (events["outcome"] == "left")])
    told = events[(ends | starts) & (events["device"] != NOTHING) & ~gone]
    row = evidence.row_of(told["device"])
    yield from findings("task {task} is on device {device}, which does not exist", told, row < 0)
    there = (at_places(devices["arrival"], row) <= told["time"]) & (
        told["time"] <= at_places(devices["departure"], row)
    )
    yield from findings(
        "device {device} works at {time!r} s, when it is not there", told, (row >= 0) & ~there
    )


def reachable(evidence: Evidence) -> Iterator[str]:
    """The table of availability is in order; steps lie within on phases; lost or flat devices
    went off, or were switched off.

    Devices without rows are left out.
    """
    table = evidence.availability
    end = evidence.run.summary["simulated_s"]
    before = table.shift()
    device = table["device"]
    time = table["time"]
    first = device != before["device"]
    wrong = (device < before["device"]) | (first & (time != 0)) | ~(time <= end)
    wrong |= ~first & ((time <= before["time"]) | (table["on"] == before["on"]))
    wrong |= (device < 0) | (device >= evidence.run.population)
    text = (
        "row {row} of the availability, device {device} at {time!r} s, is no change after the row "
        "before"
    )
    yield from findings(text, table, wrong)
    if wrong.any() or table.empty:
        return
    steps = evidence.steps
    ends = evidence.tasks
    steps = steps[(steps["device"] != NOTHING) & (steps["begun"] >= 0)]
    text = "task {task} has a step from {start!r} s to {time!r} s, while its device was away"
    yield from findings(text, steps, _away(table, steps))
    ends = ends[ends["outcome"].isin(("lost", "battery")) & (ends["device"] != NOTHING)]
    on = at_places(table["on"], _state(table, ends["device"], ends["time"])) == 1
    excused = _switched_off(evidence)[ends.index] | _edge_lost(evidence, ends)
    yield from findings(
        "task {task} was lost at {time!r} s, when its device was there", ends, on & ~excused
    )
    text = (
        "device {device} sends or receives a message from {start!r} s to {time!r} s, while it was "
        "away"
    )
    for way in ("sender", "receiver"):
        messages = evidence.said("message").join(evidence.events["time"])
        messages["device"] = numbered(messages[way], "device")
        yield from findings(text, messages, _away(table, messages))


def _away(table: pd.DataFrame, told: pd.DataFrame) -> Any:
    """Whether each device was off at some time from ``start`` to ``time`` (s), if that takes
    time; bool, as many.
    """
    state = _state(table, told["device"], told["start"])
    until = table["time"].shift(-1).where(table["device"] == table["device"].shift(-1), np.inf)
    there = (at_places(table["on"], state) == 1) & (told["time"] <= at_places(until, state))
    return (state >= 0) & (told["time"] > told["start"]) & ~there


def _state(table: pd.DataFrame, device: Any, time: Any) -> Ints:
    """The row of the availability that holds for each device at a time (s); -1 where there is
    none; int64, as many.
    """
    asked = pd.DataFrame(
        {"device": np.asarray(device, dtype=np.int64), "time": np.asarray(time, dtype=np.float64)}
    )
    changes = table[["device", "time"]].assign(
        device=table["device"].astype(np.int64), row=table.index
    )
    found = pd.merge_asof(
        asked.reset_index().sort_values("time"), changes.sort_values("time"), on="time", by="device"
    )
    return found.set_index("index")["row"].sort_index().fillna(-1).to_numpy(np.int64)


def _switched_off(evidence: Evidence) -> Flags:
    """Whether a process had switched each record's device off, or did so at that instant; bool
    [records].
    """
    events = evidence.events
    device = evidence.events["device"]
    off = (events["kind"] == "switch-off").to_numpy()
    act = latest(off | (events["kind"] == "switch-on"), device)
    just_now = at_places(events["time"], latest(off, device)) == events["time"].to_numpy()
    return np.asarray(np.append(off, False)[act] | just_now)


def _edge_lost(evidence: Evidence, ends: pd.DataFrame) -> Flags:
    """Whether the edge server of each record's device was lost at that instant; bool [ends]."""
    lost = evidence.said("edge-off")
    layout = evidence.network
    if not len(lost) or layout is None or "edges" not in layout:
        return np.zeros(len(ends), dtype=bool)
    of = np.array(layout["edges"]["of"])
    where = pd.MultiIndex.from_arrays([of[ends["device"] % len(of)], ends["time"]])
    return where.isin(
        pd.MultiIndex.from_arrays([lost["edge"], evidence.events["time"][lost.index]])
    )


def limits_kept(evidence: Evidence) -> Iterator[str]:
    """No more rounds, time and clients than the scenario allows, and no end before one of its
    conditions is met.
    """
    summary = evidence.run.summary
    scenario = evidence.run.scenario
    rounds, time, stopped = (summary[key] for key in ("rounds", "simulated_s", "stopped"))
    stop = StopSpec.model_validate(scenario["stop"])
    if stop.rounds is not None and rounds > stop.rounds:
        yield f"there were {rounds} rounds, the scenario allows {stop.rounds}"
    if stop.simulated_time is not None and time > stop.simulated_time:
        yield f"the run went on to {time!r} s, the scenario allows {stop.simulated_time!r} s"
    reached = (
        evidence.rounds["accuracy"] >= (math.inf if stop.accuracy is None else stop.accuracy)
    ).to_numpy()
    if reached[:-1].any():
        yield (
            f"the accuracy at which the run was to stop, {stop.accuracy!r}, was reached in round "
            f"{int(reached.argmax())}"
        )
    can_be = stopped != "simulated time" or time == stop.simulated_time
    if found := re.fullmatch(r"(\d+) rounds", str(stopped)):
        can_be = int(found[1]) == rounds == stop.rounds
    if re.fullmatch(r"accuracy .* reached", str(stopped)):
        can_be = bool(reached[-1:].any())
    if not can_be:
        reason = json.dumps(stopped)
        yield (
            f"the run stopped as {reason}, which is not what the scenario says of {rounds} rounds "
            f"and {time!r} s"
        )
    by_round = re.fullmatch(r"\d+ rounds|accuracy .* reached", str(stopped))
    last = evidence.rounds["time"].tolist()[-1:]
    if by_round and last and last[0] != time:
        yield (
            f"the run stopped as {json.dumps(stopped)} at {time!r} s, and its last round was at "
            f"{last[0]!r} s"
        )
    said = scenario["strategy"]
    events = evidence.events
    if ":" in said["kind"]:
        return  # its parameters have a meaning of its own
    starts = events[(events["kind"] == "task-start") & (events["round"] != NOTHING)]
    most = _cohort(said, scenario["population"]["devices"])
    at_once = said.get("concurrency", math.inf)
    if said["kind"] == "fedat":  # a tier that lost its clients asks others in the same version
        most, at_once = math.inf, most
    asked = starts.groupby("round")["device"].nunique()
    for number, count in asked[asked > most].items():
        yield f"round {number} asked {count} clients, the scenario allows {most:g}"
    ends = events[(events["kind"] == "task-end") & events["task"].isin(starts["task"])]
    at_work = np.cumsum(events.index.isin(starts.index).astype(int) - events.index.isin(ends.index))
    if at_work.max(initial=0) > at_once:
        when = events["time"].tolist()[int(at_work.argmax())]
        yield f"{at_work.max()} clients were at work at {when!r} s, the scenario allows {at_once:g}"


def _cohort(said: Mapping[str, Any], devices: int) -> float:
    if "participation" in said:
        share = max(said["participation"], said["moment"].get("participation", 0.0))
        return float(round(share * devices) + said.get("groups", 0))
    if said.get("clients_per_round") is None:
        return math.inf
    tiers = said["tiers"] if said["kind"] == "fedat" else 1
    return float(
        math.ceil(said["clients_per_round"] * said.get("over_selection", 1.0) - 1e-9) * tiers
    )


def models_as_said(evidence: Evidence) -> Iterator[str]:
    """Models are of the scenario's kind, and every file of the strategy's and every group of the
    devices' is there.
    """
    run = evidence.run
    models = evidence.run.models()
    strategy = run.scenario["strategy"]["kind"]
    model = run.scenario.get("model", {"kind": "module"})
    learns = run.scenario.get("learning") == "on" and run.summary["status"] != "failed"
    wanted = _FILES.get(strategy, set()) if learns else set()
    # the run has ended in its warm-up
    if strategy in ("lcfl", "fl-hc") and "global" in models and "group" not in models:
        wanted = {"global"}
    if wanted and {"keep", "send"} & model.keys():
        wanted = wanted | {"device"}
    # no device has its own or a group model yet
    if not evidence.said("aggregate")["tasks"].map(len).any():
        wanted = wanted - {"device", "group"}
    for name in sorted(wanted - models.keys()):
        yield f"there is no models/{name}.safetensors, which the strategy {strategy!r} leaves"
    whole = tuple(model["hidden"]) if model["kind"] == "mlp" else _WIDTHS.get(model["kind"])
    widths = (
        None
        if whole is None or "train" in model
        else tuple(math.ceil(model.get("width", 1.0) * each) for each in whole)
    )
    for name in sorted(wanted & models.keys()):
        for member, found in sorted(_layers(models[name]).items()):
            if widths is not None and found[:-1] != widths:
                one = f"{name}/{member}" if member else name
                yield (
                    f"the layers of model {one!r} put out {list(found[:-1])}, those of "
                    f"{model['kind']!r} {list(widths)}"
                )
    if "group" in wanted & models.keys():
        there = {int(name.partition("/")[0]) for name in models["group"]}
        groups = evidence.devices["group"]
        for group in sorted(set(groups[groups != NOTHING].tolist()) - there):
            yield f"devices are in group {group}, of which there is no model"


def _layers(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Of each model in a file, how many outputs each layer has, in order."""
    found: dict[str, list[tuple[int, int]]] = {}
    for name, values in tensors.items():
        told = re.fullmatch(r"(?:(.*)/)?(\d+)\.weight", name)
        if told is not None:
            found.setdefault(told[1] or "", []).append((int(told[2]), values.shape[0]))
    return {
        member: tuple(outputs for _, outputs in sorted(layers)) for member, layers in found.items()
    }
