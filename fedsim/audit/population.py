"""Are lifetimes, groups and tests of the devices those of records and rounds?"""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedsim.audit.evidence import NOTHING, Evidence, at_places, findings

_NO_GROUPS = (
    *("d-psgd", "diloco", "ditto", "epidemic", "fedasync", "fedavg", "fedbn", "fedbuff", "feddr", "feddyn", "fednova"),
    *("fedper", "fedprox", "fedrep", "flora", "gossip", "heterofl", "hetlora", "local", "local-sgd", "moon", "pfedme"),
    *("refl", "scaffold"),
)
"""Strategies without groups of devices."""

_ROUNDING = 1e-9


def lifetimes_agree(evidence: Evidence) -> Iterator[str]:
    """Devices arrive and leave at the times of the table, each once; where the scenario says so, and not otherwise."""
    devices, events, end = evidence.devices, evidence.events, evidence.run.summary["simulated_s"]
    population = evidence.run.scenario["population"]
    for key, kind, never in (("arrivals", "arrival", 0.0), ("departures", "departure", math.inf)):
        times = devices[kind].astype(np.float64)
        if key not in population:
            yield from findings(
                f"device {{device}} has an {kind} at {{{kind}!r}} s, and the scenario has none", devices, times != never
            )
            continue
        records = events[events["kind"] == kind]
        stated = at_places(times, evidence.row_of(records["device"]))
        text = f"device {{device}} has its {kind} at {{time!r}} s, by the table at {{stated!r}} s"
        wrong = (stated != records["time"].to_numpy()) & ~np.isnan(stated)
        yield from findings(text, records.assign(stated=stated), wrong)
        due = (times != never) & (times < end) if key == "departures" else (times > never) & (times < end)
        told = devices["device"].isin(records["device"])
        yield from findings(f"device {{device}} has its {kind} at {{{kind}!r}} s, which is not recorded", devices, due & ~told)


def groups_agree(evidence: Evidence) -> Iterator[str]:
    """All records of a task have its round and group, and each device ends in the group of its last assignment."""
    events, devices = evidence.events, evidence.devices
    of_tasks = events[events["task"] != NOTHING]
    for name in ("round", "group"):
        first = of_tasks.drop_duplicates("task").set_index("task")[name]
        due = of_tasks["task"].map(first)
        text = f"record {{row}} of task {{task}} has the {name} {{{name}}}, its first one {{due}}"
        yield from findings(text, of_tasks.assign(due=due), of_tasks[name] != due)
    kind = evidence.run.scenario["strategy"]["kind"]
    if kind in _NO_GROUPS:
        yield from findings(
            "device {device} is in group {group}, and the strategy has none", devices, devices["group"] != NOTHING
        )
    elif kind == "hierfavg":
        of = evidence.network["edges"]["of"] if evidence.network is not None else []
        due = np.array(of)[devices["device"] % len(of)] if of else devices["group"]
        yield from _other_group(devices, due)
    elif (events["kind"] == "assign").any():
        yield from _moves(evidence)
        last = events[events["kind"] == "assign"].drop_duplicates("device", keep="last").set_index("device")["group"]
        yield from _other_group(devices, devices["device"].map(last).fillna(NOTHING).astype(np.int64))


def _moves(evidence: Evidence) -> Iterator[str]:
    """Each device moves from the group to which it was assigned before."""
    assigns = evidence.said("assign").join(evidence.events[["device", "group"]])
    groups = assigns["group"].astype(np.float64).where(assigns["group"] != NOTHING)
    had = groups.groupby(assigns["device"]).shift()
    text = "record {row} moves device {device} out of group {before}, it was in {had}"
    differs = ~((assigns["before"] == had) | (assigns["before"].isna() & had.isna()))
    yield from findings(text, assigns.assign(had=had), differs)


def _other_group(devices: pd.DataFrame, due: "pd.Series[int] | np.ndarray[tuple[int], np.dtype[np.int64]]") -> Iterator[str]:
    text = "device {device} is in group {group} in the end, by the records in {due}"
    yield from findings(text, devices.assign(due=due), np.asarray(devices["group"]) != np.asarray(due))


def tests_agree(evidence: Evidence) -> Iterator[str]:
    """The devices' last accuracies, pooled or on the mean, are the accuracy of the last round that has one."""
    rounds, devices, events = evidence.rounds, evidence.devices, evidence.events
    measured = rounds["accuracy"].astype(np.float64).dropna()
    own = devices["accuracy"].astype(np.float64)
    if not len(measured):
        yield from findings("device {device} has an accuracy, and no round has one", devices, ~np.isnan(own))
        return
    at = rounds["time"].loc[measured.index[-1]]
    shifted = ((events["kind"] == "shift") & (events["time"] >= at)).any()
    if shifted or not evidence.run.has_all_devices or own.isna().all():
        return
    tested = devices["test_samples"].to_numpy(np.float64)
    pooled = float(np.nansum(own * tested) / tested[~np.isnan(own)].sum())
    mean = float(np.nanmean(own))
    if min(abs(measured.iat[-1] - pooled), abs(measured.iat[-1] - mean)) > _ROUNDING:
        yield f"the last accuracy is {measured.iat[-1]!r}; that of the devices is {pooled!r} pooled, and {mean!r} on the mean"
