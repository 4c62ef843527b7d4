"""Are lifetimes, groups and tests of the devices those of records and rounds?"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from fedsim.clock.simulation import on_grid
from fedsim.common.arrays import Ints
from fedsim.common.streams import Streams
from fedsim.common.units import TICK_S, Seconds
from fedsim.lab.audit.evidence import NOTHING, Evidence, at_places, findings, read

_NO_GROUPS = (
    *(
        "d-psgd",
        "diloco",
        "ditto",
        "epidemic",
        "fedasync",
        "fedavg",
        "fedbn",
        "fedbuff",
        "feddr",
        "feddyn",
        "fednova",
    ),
    *(
        "fedper",
        "fedprox",
        "fedrep",
        "flora",
        "gossip",
        "heterofl",
        "hetlora",
        "local",
        "local-sgd",
        "moon",
        "pfedme",
    ),
    *("refl", "scaffold"),
)
"""Strategies without groups of devices."""

_ROUNDING = 1e-9
_MOST_ROWS = 20_000  # so that it takes a fraction of a second


def lifetimes_agree(evidence: Evidence) -> Iterator[str]:
    """Devices arrive and leave at the times of the table, each once; where the scenario says so,
    and not otherwise.
    """
    devices = evidence.devices
    events = evidence.events
    end = evidence.run.summary["simulated_s"]
    population = evidence.run.scenario["population"]
    for key, kind, never in (("arrivals", "arrival", 0.0), ("departures", "departure", math.inf)):
        times = devices[kind].astype(np.float64)
        if key not in population:
            yield from findings(
                f"device {{device}} has an {kind} at {{{kind}!r}} s, and the scenario has none",
                devices,
                times != never,
            )
            continue
        records = events[events["kind"] == kind]
        stated = at_places(times, evidence.row_of(records["device"]))
        text = f"device {{device}} has its {kind} at {{time!r}} s, by the table at {{stated!r}} s"
        wrong = (stated != records["time"].to_numpy()) & ~np.isnan(stated)
        yield from findings(text, records.assign(stated=stated), wrong)
        due = (
            (times != never) & (times < end)
            if key == "departures"
            else (times > never) & (times < end)
        )
        told = devices["device"].isin(records["device"])
        yield from findings(
            f"device {{device}} has its {kind} at {{{kind}!r}} s, which is not recorded",
            devices,
            due & ~told,
        )


def availability_as_drawn(evidence: Evidence) -> Iterator[str]:
    """Random phases of the availability are those that the scenario and its seed give, device by
    device.
    """
    scenario = evidence.run.scenario
    table = evidence.availability.iloc[:_MOST_ROWS]
    said = scenario["population"]["availability"]
    moves = {"arrivals", "departures"} & scenario["population"].keys()
    if said["kind"] != "renewal" or moves or "battery" in scenario.get("energy", {}) or table.empty:
        return  # lifetimes and flat batteries cut the phases short
    means = read(Seconds, said["mean_off"]), read(Seconds, said["mean_on"])
    streams = Streams(scenario["seed"])
    paths: Any = table.groupby("device")
    for device, own in paths:
        on = streams.uniform("world/availability/first", int(device)) < means[1] / sum(means)
        time = 0.0
        for count, (stated, is_on) in enumerate(
            zip(own["time"].tolist(), own["on"].tolist(), strict=True)
        ):
            if (stated, is_on) != (time, on):
                due = f"by the seed {'on' if on else 'off'} from {time!r} s"
                yield f"device {device} is {'on' if is_on else 'off'} from {stated!r} s, {due}"
                break
            drawn = -math.log(streams.uniform("world/availability", int(device), count)) * means[on]
            time += max(TICK_S, on_grid(drawn))
            on = not on


def groups_agree(evidence: Evidence) -> Iterator[str]:
    """All records of a task have its round and group, and each device ends in the group of its
    last assignment.
    """
    events = evidence.events
    devices = evidence.devices
    of_tasks = events[events["task"] != NOTHING]
    for name in ("round", "group"):
        first = of_tasks.drop_duplicates("task").set_index("task")[name]
        given = of_tasks["task"].map(first)
        text = f"record {{row}} of task {{task}} has the {name} {{{name}}}, its first one {{due}}"
        yield from findings(text, of_tasks.assign(due=given), of_tasks[name] != given)
    kind = evidence.run.scenario["strategy"]["kind"]
    if kind in _NO_GROUPS:
        yield from findings(
            "device {device} is in group {group}, and the strategy has none",
            devices,
            devices["group"] != NOTHING,
        )
    elif kind == "hierfavg":
        aggregates = evidence.said("aggregate").join(events["group"])
        text = "record {row} (aggregate) is of edge server {edge:g} and of the group {group}"
        yield from findings(
            text, aggregates[["edge", "group"]], aggregates["edge"] != aggregates["group"]
        )
        of = evidence.network["edges"]["of"] if evidence.network is not None else []
        if of:
            yield from _other_group(devices, np.array(of)[devices["device"] % len(of)])
    elif (events["kind"] == "assign").any():
        yield from _moves(evidence)
        last = (
            events[events["kind"] == "assign"]
            .drop_duplicates("device", keep="last")
            .set_index("device")["group"]
        )
        due = devices["device"].map(last).fillna(NOTHING)
        yield from _other_group(devices, due.to_numpy(np.int64))


def _moves(evidence: Evidence) -> Iterator[str]:
    """Each device moves from the group to which it was assigned before."""
    assigns = evidence.said("assign").join(evidence.events[["device", "group"]])
    groups = assigns["group"].astype(np.float64).where(assigns["group"] != NOTHING)
    had = groups.groupby(assigns["device"]).shift()
    text = "record {row} moves device {device} out of group {before}, it was in {had}"
    differs = ~((assigns["before"] == had) | (assigns["before"].isna() & had.isna()))
    yield from findings(text, assigns.assign(had=had), differs)


def _other_group(devices: pd.DataFrame, due: Ints) -> Iterator[str]:
    text = "device {device} is in group {group} in the end, by the records in {due}"
    yield from findings(text, devices.assign(due=due), np.asarray(devices["group"]) != due)


def shifts_as_said(evidence: Evidence) -> Iterator[str]:
    """Data shift as the scenario says, one occasion after another, each at one time.

    Rounds can begin in one instant, of strategies without a server for example, and so can
    occasions.
    """
    drift = evidence.run.scenario.get("drift", {}).get("kind")
    shifts = evidence.said("shift").join(evidence.events["time"]).assign(drift=drift)
    text = "record {row} is of a shift {what!r}, the scenario has {drift!r}"
    yield from findings(
        text, shifts, (shifts["what"] != drift) if drift is not None else slice(None)
    )
    before = shifts[["occasion", "time"]].shift()
    is_again = shifts["occasion"] == before["occasion"]
    is_later = shifts["time"] != before["time"]
    wrong = before["time"].notna() & (
        (shifts["occasion"] < before["occasion"]) | (is_again & is_later)
    )
    yield from findings(
        "record {row} is of the occasion {occasion}, at {time!r} s, out of turn", shifts, wrong
    )


def tests_agree(evidence: Evidence) -> Iterator[str]:
    """The devices' last accuracies, pooled or on the mean, are the accuracy of the last round
    that has one.
    """
    rounds = evidence.rounds
    devices = evidence.devices
    events = evidence.events
    measured = rounds["accuracy"].astype(np.float64).dropna()
    own = devices["accuracy"].astype(np.float64)
    if not len(measured):
        yield from findings(
            "device {device} has an accuracy, and no round has one", devices, ~np.isnan(own)
        )
        return
    at = rounds["time"].loc[measured.index[-1]]
    shifted = ((events["kind"] == "shift") & (events["time"] >= at)).any()
    if shifted or not evidence.run.has_all_devices or own.isna().all():
        return
    tested = devices["test_samples"].to_numpy(np.float64)
    pooled = float(np.nansum(own * tested) / tested[~np.isnan(own)].sum())
    last = float(measured.to_numpy()[-1])
    mean = float(np.nanmean(own))
    if min(abs(last - pooled), abs(last - mean)) > _ROUNDING:
        yield (
            f"the last accuracy is {last!r}; that of the devices is {pooled!r} pooled, and "
            f"{mean!r} on the mean"
        )
