"""Did the run keep to what its scenario allows: rounds, time, clients, and the model that is trained?"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedsim.audit.evidence import NOTHING, Evidence
from fedsim.language.stop import StopSpec

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
        *("cata-fed", "fedasync", "fedat", "fedavg", "fedbuff", "feddr", "feddyn", "fednova", "fedprox"),
        *("flora", "heterofl", "hetlora", "hierfavg", "moon", "refl", "rfedavg", "scaffold", "tifl"),
    ),
    ("global", "device"): ("ditto", "fedbn", "fedper", "fedrep", "pfedme"),
    ("group",): ("cfl", "fedgroup", "fesem", "fesem-mig", "fl-hc", "flexcfl", "hypcluster", "ifca", "ifca-mig", "lcfl"),
    ("device",): ("local",),
}
_FILES = {kind: set(names) for names, kinds in _FAMILIES.items() for kind in kinds}
"""The files of models that a strategy leaves, if it leaves any."""


def limits_kept(evidence: Evidence) -> Iterator[str]:
    """No more rounds, time and clients than the scenario allows, and no end before one of its conditions is met."""
    summary, scenario = evidence.run.summary, evidence.run.scenario
    stop = StopSpec.model_validate(scenario["stop"])
    rounds, time = summary["rounds"], summary["simulated_s"]
    if stop.rounds is not None and rounds > stop.rounds:
        yield f"there were {rounds} rounds, the scenario allows {stop.rounds}"
    if stop.simulated_time is not None and time > stop.simulated_time:
        yield f"the run went on to {time!r} s, the scenario allows {stop.simulated_time!r} s"
    reached = (evidence.rounds["accuracy"] >= (math.inf if stop.accuracy is None else stop.accuracy)).to_numpy()
    if reached[:-1].any():
        yield f"the accuracy at which the run was to stop, {stop.accuracy!r}, was reached in round {int(reached.argmax())}"
    wanted = {"simulated time": time == stop.simulated_time}
    if found := re.fullmatch(r"(\d+) rounds", str(summary["stopped"])):
        wanted[summary["stopped"]] = int(found[1]) == rounds == stop.rounds
    if re.fullmatch(r"accuracy .* reached", str(summary["stopped"])):
        wanted[summary["stopped"]] = bool(reached[-1:].any())
    if not wanted.get(summary["stopped"], True):
        reason = json.dumps(summary["stopped"])
        yield f"the run stopped as {reason}, which is not what the scenario says of {rounds} rounds and {time!r} s"
    yield from _clients(evidence, scenario["strategy"], scenario["population"]["devices"])


def _clients(evidence: Evidence, said: Mapping[str, Any], devices: int) -> Iterator[str]:
    if ":" in said["kind"]:
        return  # its parameters have a meaning of its own
    events = evidence.events
    starts = events[(events["kind"] == "task-start") & (events["round"] != NOTHING)]
    most = _cohort(said, devices)
    if most is not None:
        asked = starts.groupby("round")["device"].nunique()
        for number, count in asked[asked > most].items():
            yield f"round {number} asked {count} clients, the scenario allows {most}"
    if "concurrency" in said:
        ends = events[(events["kind"] == "task-end") & events["task"].isin(starts["task"])]
        change = events.index.isin(starts.index).astype(int) - events.index.isin(ends.index)
        at_work = np.cumsum(change)
        if len(at_work) and at_work.max() > said["concurrency"]:
            when = events["time"].tolist()[int(at_work.argmax())]
            yield f"{at_work.max()} clients were at work at {when!r} s, the scenario allows {said['concurrency']}"


def _cohort(said: Mapping[str, Any], devices: int) -> int | None:
    """Most clients that a round asks; None where the scenario sets no limit."""
    if "participation" in said:
        share = max(said["participation"], said["moment"].get("participation", 0.0))
        return int(round(share * devices) + said.get("groups", 0))
    if said.get("clients_per_round") is None:
        return None
    tiers = said["tiers"] if said["kind"] == "fedat" else 1
    return int(math.ceil(said["clients_per_round"] * said.get("over_selection", 1.0) - 1e-9) * tiers)


def models_as_said(evidence: Evidence) -> Iterator[str]:
    """Models are of the scenario's kind, and every file of the strategy's and every group of the devices' is there."""
    run, models = evidence.run, evidence.run.models()
    strategy, model = run.scenario["strategy"]["kind"], run.scenario.get("model", {"kind": "module"})
    learns = run.scenario.get("learning") == "on" and run.summary["status"] != "failed"
    wanted = _FILES.get(strategy, set()) if learns else set()
    if strategy in ("lcfl", "fl-hc") and "global" in models and "group" not in models:  # the run has ended in its warm-up
        wanted = {"global"}
    if wanted and {"keep", "send"} & model.keys():
        wanted = wanted | {"device"}
    if not evidence.said("aggregate")["tasks"].map(len).any():  # nobody has a model of its own or of a group yet
        wanted = wanted - {"device", "group"}
    for name in sorted(wanted - models.keys()):
        yield f"there is no models/{name}.safetensors, which the strategy {strategy!r} leaves"
    whole = tuple(model["hidden"]) if model["kind"] == "mlp" else _WIDTHS.get(model["kind"])
    widths = None if whole is None or "train" in model else tuple(math.ceil(model.get("width", 1.0) * each) for each in whole)
    for name in sorted(wanted & models.keys()):
        for member, found in sorted(_layers(models[name]).items()):
            if widths is not None and found[:-1] != widths:
                one = f"{name}/{member}" if member else name
                yield f"the layers of model {one!r} put out {list(found[:-1])}, those of {model['kind']!r} {list(widths)}"
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
    return {member: tuple(outputs for _, outputs in sorted(layers)) for member, layers in found.items()}
