"""Checks that lifetimes, groups, data shifts and accuracies of devices agree with the records."""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedsim.clock.simulation import on_grid
from fedsim.common.arrays import Ints
from fedsim.common.streams import Streams
from fedsim.common.units import TICK_S, Seconds
from fedsim.common.user_records import OWN_KINDS
from fedsim.lab.audit.evidence import Evidence
from fedsim.lab.audit.frames import NOTHING, read_quantity, report_rows, values_at_rows
from fedsim.lab.audit.strategies import WITHOUT_GROUPS

_ROUNDING = 1e-9
# upper bound of the checked rows of availability, so that the check takes a fraction of a second
_MOST_CHECKED_ROWS = 20_000


def check_lifetimes(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each device whose arrival or departure contradicts scenario or records.

    The table of devices has these times (s). If the scenario defines no arrivals, all arrivals have
    to be 0. If it defines no departures, all departures have to be infinite. Otherwise each time
    within the run needs a record with the same time.
    """
    devices = evidence.devices
    events = evidence.events
    end = evidence.run.summary["simulated_s"]
    population = evidence.run.scenario["population"]
    if evidence.tested_only:
        yield from _check_tested_only(evidence)
        devices = devices[devices["device"] < evidence.trainable]
    if evidence.refuses_devices:
        # devices without enough memory never arrive, so they have no record of a departure either
        devices = devices[devices["arrival"].astype(np.float64) != math.inf]
    for key, kind, unset in (("arrivals", "arrival", 0.0), ("departures", "departure", math.inf)):
        times = devices[kind].astype(np.float64)
        if key not in population:
            template = (
                f"device {{device}} has an {kind} at {{{kind}!r}} s, and the scenario has none"
            )
            yield from report_rows(template, devices, times != unset)
            continue
        # each record is compared with its device's row of the table
        records = events[events["kind"] == kind]
        stated = values_at_rows(times, evidence.row_of(records["device"]))
        # NaN is the time of a device that the table leaves out
        differs = (stated != records["time"].to_numpy()) & ~np.isnan(stated)
        template = (
            f"device {{device}} has its {kind} at {{time!r}} s, by the table at {{stated!r}} s"
        )
        yield from report_rows(template, records.assign(stated=stated), differs)
        # each row of the table is compared with its record; a device that is present from the begin
        # has none
        needs_record = (times != unset) & (times < end)
        if key == "arrivals":
            needs_record &= times > 0.0
        is_recorded = devices["device"].isin(records["device"])
        template = f"device {{device}} has its {kind} at {{{kind}!r}} s, which is not recorded"
        yield from report_rows(template, devices, needs_record & ~is_recorded)


def _check_tested_only(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each device that is only tested, but arrives, works or has a group."""
    devices = evidence.devices
    tested_only = devices[devices["device"] >= evidence.trainable]
    template = "device {device} is tested only, and arrives at {arrival!r} s"
    arrival = tested_only["arrival"].astype(np.float64)
    yield from report_rows(template, tested_only, arrival != math.inf)
    template = "device {device} is tested only, and was selected {selected} times"
    yield from report_rows(template, tested_only, tested_only["selected"] != 0)
    template = "device {device} is tested only, and in group {group}"
    yield from report_rows(template, tested_only, tested_only["group"] != NOTHING)
    works = evidence.events[evidence.events["device"] >= evidence.trainable]
    works = works[works["task"] != NOTHING]
    template = "device {device} is tested only, and has the task {task}"
    yield from report_rows(template, works, works["task"] != NOTHING)


def check_availability(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each device that became reachable or unreachable at a wrong time.

    The times are drawn again from the scenario's seed. Only availability of the kind ``renewal`` is
    checked, in which devices alternate between random online and off phases. If the table of
    availability is large, only its first rows are checked. Scenarios with arrivals, departures or
    batteries are skipped, because these cut phases short. So are scenarios with devices that never
    train.
    """
    scenario = evidence.run.scenario
    population = scenario["population"]
    section = population["availability"]
    table = evidence.availability.iloc[:_MOST_CHECKED_ROWS]
    has_lifetimes = {"arrivals", "departures", "tested_only"} & population.keys()
    has_batteries = "battery" in scenario.get("energy", {})
    if has_lifetimes or has_batteries or evidence.refuses_devices:
        return
    if section["kind"] != "renewal" or table.empty:
        return
    mean_off = read_quantity(Seconds, section["mean_off"])
    mean_on = read_quantity(Seconds, section["mean_on"])
    streams = Streams(scenario["seed"])
    for _, path in table.groupby("device"):
        device = int(path["device"].to_numpy(np.int64)[0])
        phases = _draw_phases(streams, device, mean_on, mean_off)
        for start, is_on in zip(path["time"].tolist(), path["on"].tolist(), strict=True):
            expected_start, expected_on = next(phases)
            if (start, is_on) != (expected_start, expected_on):
                yield (
                    f"device {device} is {_on_or_off(is_on)} from {start!r} s, by the seed "
                    f"{_on_or_off(expected_on)} from {expected_start!r} s"
                )
                break


def _on_or_off(is_on: bool) -> str:
    return "on" if is_on else "off"


def _draw_phases(
    streams: Streams, device: int, mean_on: float, mean_off: float
) -> Iterator[tuple[float, bool]]:
    """Draw the times at which a device becomes reachable or unreachable again, from the seed.

    Args:
        streams: the scenario's random streams.
        device: device ID.
        mean_on: mean duration of an online phase (s).
        mean_off: mean duration of an unreachable phase (s).

    Yields:
        Simulated time (s) from which the device is in the state, and whether it is online; endless.
    """
    share_on = mean_on / (mean_off + mean_on)
    is_on = bool(streams.uniform("world/availability/first", device) < share_on)
    time = 0.0
    count = 0
    while True:
        yield time, is_on
        mean = mean_on if is_on else mean_off
        # exponential, of at least one tick of the clock
        duration = -math.log(streams.uniform("world/availability", device, count)) * mean
        time += max(TICK_S, on_grid(duration))
        is_on = not is_on
        count += 1


def check_groups(evidence: Evidence) -> Iterator[str]:
    """Yield findings for tasks with several rounds or groups, and for devices in a wrong group.

    All records that fedsim writes about one task have to state the same round and the same group
    (cluster). In the table of devices, a device has to be in the group to which it was assigned
    last. If the strategy has no groups, no device may be in a group.
    """
    events = evidence.events
    devices = evidence.devices
    # the strategy's own records may name a task without the task's round and group
    of_tasks = events[(events["task"] != NOTHING) & events["kind"].isin(OWN_KINDS)]
    for name in ("round", "group"):
        first_of_task = of_tasks.drop_duplicates("task").set_index("task")[name]
        records = of_tasks[["task"]].assign(
            stated=of_tasks[name], expected=of_tasks["task"].map(first_of_task)
        )
        template = (
            f"record {{row}} of task {{task}} has the {name} {{stated}}, its first one {{expected}}"
        )
        yield from report_rows(template, records, records["stated"] != records["expected"])
    kind = evidence.run.scenario["strategy"]["kind"]
    if kind in WITHOUT_GROUPS:
        template = "device {device} is in group {group}, and the strategy has none"
        yield from report_rows(template, devices, devices["group"] != NOTHING)
    elif kind == "hierfavg":
        yield from _check_edges(evidence)
    elif (events["kind"] == "assign").any():
        yield from _check_moves(evidence)
        assigns = events[events["kind"] == "assign"].drop_duplicates("device", keep="last")
        last = assigns.set_index("device")["group"]
        expected = devices["device"].map(last).fillna(NOTHING)
        yield from _check_final_groups(devices, expected.to_numpy(np.int64))


def _check_edges(evidence: Evidence) -> Iterator[str]:
    """Yield findings for groups of HierFAVG whose index is not the index of their edge server.

    The groups of edge servers' aggregations, and of devices attached to edge servers, are checked.
    """
    aggregates = evidence.data_of("aggregate").join(evidence.events["group"])
    aggregates = aggregates[["edge", "group"]]
    template = "record {row} (aggregate) is of edge server {edge:g} and of the group {group}"
    yield from report_rows(template, aggregates, aggregates["edge"] != aggregates["group"])
    if evidence.network is None:
        return
    edge_of = evidence.network["edges"]["of"]
    if edge_of:
        devices = evidence.devices
        yield from _check_final_groups(devices, np.array(edge_of)[devices["device"] % len(edge_of)])


def _check_moves(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each record of an assignment that states a wrong previous group."""
    assigns = evidence.data_of("assign").join(evidence.events[["device", "group"]])
    groups = assigns["group"].astype(np.float64).where(assigns["group"] != NOTHING)
    expected = groups.groupby(assigns["device"]).shift()
    stated = assigns["previous_group"]
    is_right = (stated == expected) | (stated.isna() & expected.isna())
    template = (
        "record {row} moves device {device} out of group {previous_group}, it was in {expected}"
    )
    yield from report_rows(template, assigns.assign(expected=expected), ~is_right)


def _check_final_groups(devices: pd.DataFrame, expected: Ints) -> Iterator[str]:
    """Yield a finding for each device whose group at the run's end is not the expected one.

    Args:
        devices: the table of devices.
        expected: expected group of each device; int64 [devices].
    """
    template = "device {device} is in group {group} in the end, by the records in {expected}"
    yield from report_rows(
        template, devices.assign(expected=expected), np.asarray(devices["group"]) != expected
    )


def check_shifts(evidence: Evidence) -> Iterator[str]:
    """Yield findings for shifts of devices' data of the wrong kind or in the wrong order.

    Data shift on occasions (such as the begin of a round), which the run numbers in order; the data
    of several devices may shift on the same occasion. The number never decreases, and all
    shifts of an occasion have the same time. Several occasions may have the same time, because
    rounds can begin in one instant.
    """
    drift = evidence.run.scenario.get("drift", {}).get("kind")
    shifts = evidence.data_of("shift").join(evidence.events["time"]).assign(drift=drift)
    wrong = None if drift is None else shifts["what"] != drift
    template = "record {row} is of a shift {what!r}, the scenario has {drift!r}"
    yield from report_rows(template, shifts, wrong)
    previous = shifts[["occasion", "time"]].shift()
    is_same_occasion = shifts["occasion"] == previous["occasion"]
    is_other_time = shifts["time"] != previous["time"]
    is_earlier_occasion = shifts["occasion"] < previous["occasion"]
    out_of_turn = is_earlier_occasion | (is_same_occasion & is_other_time)
    template = "record {row} is of the occasion {occasion}, at {time!r} s, out of turn"
    yield from report_rows(template, shifts, previous["time"].notna() & out_of_turn)


def check_tests(evidence: Evidence) -> Iterator[str]:
    """Yield a finding if the run's last accuracy is not the mean of the devices' last accuracies.

    The table of rounds has the run's accuracies, and the table of devices has each device's last
    accuracy. The mean may be plain or weighted by test samples. If no round has an accuracy, no
    device may have an accuracy. The mean is not checked if data have shifted since the test, or if
    the table of devices lacks devices.
    """
    rounds = evidence.rounds
    devices = evidence.devices
    devices = devices[devices["device"] < evidence.trainable]
    events = evidence.events
    measured = rounds["accuracy"].astype(np.float64).dropna()
    accuracies = devices["accuracy"].astype(np.float64)  # NaN for a device without a test
    if not len(measured):
        template = "device {device} has an accuracy, and no round has one"
        yield from report_rows(template, devices, ~np.isnan(accuracies))
        return
    last_time = rounds["time"].loc[measured.index[-1]]
    # Not comparable: accuracies on data that shifted since the round, the mean over a table that
    # leaves out devices, and runs that test no single devices.
    has_shifted = ((events["kind"] == "shift") & (events["time"] >= last_time)).any()
    if has_shifted or not evidence.run.has_all_devices or accuracies.isna().all():
        return
    samples = devices["test_samples"].to_numpy(np.float64)
    pooled = float(np.nansum(accuracies * samples) / samples[~np.isnan(accuracies)].sum())
    last = float(measured.to_numpy()[-1])
    mean = float(np.nanmean(accuracies))
    if min(abs(last - pooled), abs(last - mean)) > _ROUNDING:
        yield (
            f"the last accuracy is {last!r}; that of the devices is {pooled!r} pooled, and "
            f"{mean!r} on the mean"
        )
