"""Checks that energy adds up: over the recorded phases, over devices, rounds and summary, and in
the batteries.

All is computed again from the records and from the power of each device (``energy.parquet``,
``energy.json``), without the ledger that the run kept.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats
from fedsim.common.units import TICK_S
from fedsim.lab.audit.evidence import Evidence, close, differing, findings
from fedsim.records import folder as files
from fedsim.records.schema import OF_METERS
from fedsim.world.meters.energy import DAY_S, PHASES, PLACES, SETTING, TABLE, computing_steps

_HOURS = np.arange(25) * 3600.0
_NOBODY = _GOES_ON = -1  # the device of a place, and the record of the costs of every round


def energy_adds_up(evidence: Evidence) -> Iterator[str]:
    """Joules and grams of each device and phase are those of the records, and all books say the
    same.
    """
    stated = evidence.run.summary.get("energy")
    if (stated is None) == ("energy" in evidence.run.scenario):
        yield (
            "the scenario counts energy, and the summary does not"
            if stated is None
            else "the scenario counts no energy"
        )
    if stated is None:
        return
    account = _Account(evidence)
    table = account.table
    drawn = account.drawn
    phases = stated["by_phase"]
    rounds = evidence.rounds
    numbers = evidence.frame(TABLE, ["device"])["device"].to_numpy()
    yield from differing(
        "{name} in row {row} is {told!r}, due is {due!r}",
        table.assign(device=numbers),
        {"device": table.index},
    )
    text = "{name} of device {row} is {told!r}, the records say {due!r}"
    yield from differing(text, table, account.of_devices.add_suffix("_j"))
    joules = drawn.groupby("phase")["joules"].sum()
    totals = {f"by_phase.{phase}": (phases[phase], table[f"{phase}_j"].sum()) for phase in PHASES}
    totals |= {f"by_phase.{place}": (phases[place], joules[place]) for place in PLACES}
    totals |= {
        "joules": (stated["joules"], sum(phases.values())),
        "wasted": (stated["wasted"], account.wasted()),
    }
    quantities = ["joules"]
    if account.zones:
        quantities.append("grams")
        totals["grams"] = stated["grams"], drawn["grams"].sum()
        weights = drawn.groupby("device")["grams"].sum().reindex(table.index, fill_value=0.0)
        yield from differing(text, table, {"grams": weights})
    for name, (one, found) in totals.items():
        if not close(one, found):
            yield f"energy.{name} is {one!r} in the summary, what it sums up is {float(found)!r}"
    of_devices = table[[f"{phase}_j" for phase in PHASES]].sum(axis=1)
    due = of_devices if evidence.run.has_all_devices else of_devices[evidence.devices["device"]]
    text = f"{{name}} in row {{row}} of {files.DEVICES} is {{told!r}}, in {TABLE} {{due!r}}"
    yield from differing(text, evidence.devices, {"joules": due})
    for quantity in quantities:
        booked = account.by_round(quantity)
        slack = 1e-6 + 1e-9 * np.abs(np.cumsum(booked))  # each is a difference of two sums
        text = "round {row} has {told!r} {name}, the records say {due!r}"
        yield from differing(text, rounds, {quantity: booked}, atol=slack)


def batteries_hold(evidence: Evidence) -> Iterator[str]:
    """No battery is below zero or over full; each level is the last one plus the charge minus
    the energy drawn.
    """
    if "energy" not in evidence.run.summary or not (evidence.events["kind"] == "battery").any():
        return
    account = _Account(evidence)
    told = (
        evidence.said("battery")
        .join(evidence.events[["device", "time"]])
        .join(account.table, on="device")
    )
    points = (told["points"] + 1.0).groupby(told["device"]).transform("sum")
    watts = told[
        [f"{name}_w" for name in ("idle", "compute", "receive", "send", "tail", "charge")]
    ].sum(axis=1)
    slack = 1e-6 + 1e-9 * (told["charged"] + told["idle"] + told["drawn"]) + TICK_S * watts * points
    text = (
        "the battery of device {device} holds {least!r} to {most!r} J; allowed are 0 to "
        "{capacity_j!r} J"
    )
    yield from findings(
        text, told, (told["least"] < 0) | (told["most"] > told["capacity_j"] + slack)
    )
    told["held"] = told["initial_j"] + told["charged"] - told["idle"] - told["drawn"]
    text = "the battery of device {device} holds {level!r} J at {time!r} s, its books {held!r} J"
    yield from findings(text, told, ~(np.abs(told["level"] - told["held"]) <= slack))
    if evidence.run.summary["status"] == "failed":  # unfinished work has no record of its end
        return
    took = account.of_devices[list(PHASES[1:])].sum(axis=1) - account.after_the_end()
    last = told.assign(slack=slack).drop_duplicates("device", keep="last").sort_values("device")
    last["took"] = took.reindex(last["device"]).to_numpy()
    text = "the battery of device {device} gave {drawn!r} J to tasks, they took {took!r} J"
    yield from findings(text, last, ~(np.abs(last["drawn"] - last["took"]) <= last["slack"]))


class _Account:
    """Energy by the records: in ``drawn``, and of each device (row) in each phase (column) in
    ``of_devices``.

    ``drawn`` has ``joules`` from ``start`` to ``end`` (s), by ``phase`` or place, for a ``device``
    and a ``task`` (-1: none); their ``grams``, the grid's ``zone``, and ``row``: the record with
    which they were booked.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._events = evidence.events
        self.table = evidence.frame(TABLE, OF_METERS[TABLE].names[1:])
        self._setting = evidence.document(SETTING)
        self.zones: list[dict[str, Any]] = self._setting["zones"]
        self._end: float = evidence.run.summary["simulated_s"]
        self._round_rows = np.flatnonzero(self._events["kind"] == "round")
        columns = ["device", "task", "start", "end", "joules", "row", "phase"]
        drawn = pd.concat(
            [part.assign(phase=phase)[columns] for phase, part in self._parts()], ignore_index=True
        )
        # without a device the first
        drawn["zone"] = np.append(self.table["zone"].to_numpy(), 0)[drawn["device"]]
        joules, start, end = (drawn[name] for name in ("joules", "start", "end"))
        drawn["grams"] = 0.0
        for number, zone in enumerate(self.zones):
            hour = np.nan_to_num(np.mod(start + zone["offset_s"], DAY_S) // 3600).astype(np.int64)
            mean = (_summed(zone, end) - _summed(zone, start)) / (end - start)
            grams = joules * np.where(end > start, mean, np.array(zone["hours"])[hour])
            drawn["grams"] = drawn["grams"].where(drawn["zone"] != number, grams)
        self.drawn = drawn
        found = drawn.groupby(["device", "phase"])["joules"].sum().unstack(fill_value=0)
        self.of_devices = found.reindex(index=self.table.index, columns=PHASES, fill_value=0.0)

    def _parts(self) -> Iterator[tuple[str, pd.DataFrame]]:
        evidence = self._evidence
        steps = (
            evidence.steps.join(evidence.core_s)
            .join(evidence.moved["delivered"])
            .join(self.table, on="device")
        )
        steps = steps.assign(end=steps["time"], row=steps.index)
        yield "idle", self._idle()
        computing = steps[steps["step"].isin(computing_steps())]
        core_s = computing["core_s"].fillna(computing["end"] - computing["start"])
        yield "compute", computing.assign(joules=computing["compute_w"] * core_s)
        for phase, step in (("receive", "download"), ("send", "upload")):
            own = steps[steps["step"] == step]
            joules = (
                own[f"{phase}_w"] * (own["end"] - own["start"])
                + own["delivered"] * own[f"{phase}_j_byte"]
            )
            yield phase, own.assign(joules=joules)
        yield "tail", self._tails()
        moved = evidence.moved
        named = evidence.said("aggregate")
        of_devices = moved["kind"] == "step-end"
        of_edges = moved["kind"] == "edge-transfer"
        near = of_devices & ((moved["sender"] != "") | (moved["receiver"] != ""))
        of_peers = moved["kind"] == "message"
        for place, passing in (("server", ~(near | of_peers)), ("edge", of_devices | of_edges)):
            draws = self._setting[place]
            here = named[named["at_edge"] == (place == "edge")]
            time = self._events["time"][here.index]
            joules = draws["update_j"] * here["tasks"].map(len).astype(float)
            updates = pd.DataFrame({"joules": joules, "start": time, "end": time})
            messages = moved[["start", "end"]].assign(joules=draws["j_byte"] * moved["delivered"])[
                passing
            ]
            idle = pd.DataFrame(
                {"joules": draws["idle_w"] * self._end, "start": 0.0, "end": self._end},
                index=[_GOES_ON],
            )
            parts = pd.concat([idle, messages, updates])
            yield place, parts.assign(device=_NOBODY, task=_NOBODY, row=parts.index)

    def after_the_end(self) -> pd.Series:
        """Joules of tails that each device's radio draws after the run, of which no battery
        tells.
        """
        tails = self.drawn[self.drawn["phase"] == "tail"]
        late = (tails["end"] - np.maximum(tails["start"], self._end)).clip(
            lower=0.0
        ) * self._of_devices(tails, "tail_w")
        return late.groupby(tails["device"]).sum().reindex(self.table.index, fill_value=0.0)

    def wasted(self) -> float:
        """Joules of tasks that ended otherwise than done, or trained without an epoch that
        counts; their idling included.
        """
        wasted = self._evidence.in_vain
        idle = self._booked(wasted.assign(end=wasted["time"]), "idle_w")["joules"].sum()
        others = self.drawn["task"].isin(wasted["task"]) & (self.drawn["phase"] != "idle")
        return float(idle + self.drawn["joules"][others].sum())

    def by_round(self, quantity: str) -> Floats:
        """Joules or grams that were booked since the round before, with each record of a round;
        float64 [rounds].
        """
        goes_on = self.drawn["row"] == _GOES_ON
        at_once = self.drawn[~goes_on]
        evenly = self.drawn[goes_on & (self.drawn["end"] > self.drawn["start"])]
        place = np.searchsorted(self._round_rows, at_once["row"], side="right")
        found = np.bincount(place, at_once[quantity], len(self._round_rows) + 1)[:-1].astype(
            np.float64
        )
        times = self._events["time"].to_numpy()[self._round_rows]
        total = np.zeros(len(self._round_rows))
        watts = (evenly["joules"] / (evenly["end"] - evenly["start"])).to_numpy()
        for number, zone in enumerate(self.zones if quantity == "grams" else [None]):
            own = (evenly["zone"] == number).to_numpy() | (zone is None)
            start, end, now = (
                one if zone is None else _summed(zone, one)
                for one in (evenly["start"], evenly["end"], times)
            )
            start = np.asarray(start)[own]
            end = np.asarray(end)[own]
            total += [
                float(np.sum(watts[own] * (np.clip(each, start, end) - start))) for each in now
            ]
        return found + np.diff(total, prepend=0.0)

    def _of_devices(self, rows: pd.DataFrame, name: str) -> Floats:
        return self.table[name].to_numpy()[rows["device"]]

    def _booked(self, rows: pd.DataFrame, name: str) -> pd.DataFrame:
        """Energy at so many watts, from ``start`` to ``end`` of each record."""
        return rows.assign(
            joules=self._of_devices(rows, name) * (rows["end"] - rows["start"]), row=rows.index
        )

    def _idle(self) -> pd.DataFrame:
        events = self._events
        tasks = self._evidence.tasks
        if self._setting["idle_while"] == "working":
            return self._booked(tasks.assign(end=tasks["time"]), "idle_w")
        first, left = (
            events[events["kind"] == kind]
            .drop_duplicates("device")
            .set_index("device")["time"]
            .sort_index()
            for kind in ("task-start", "departure")
        )
        gone = left.reindex(first.index).clip(upper=self._end).fillna(self._end)
        there = pd.DataFrame({"device": first.index, "task": _NOBODY, "start": first.to_numpy()})
        there["end"] = np.maximum(gone.to_numpy(), there["start"])
        drawn = self._booked(there, "idle_w").assign(row=_GOES_ON)
        if not self._setting["batteries"]:
            return drawn
        # Records of batteries have the idle energy of their devices, from the first task on.
        told = self._evidence.said("battery").join(events[["device", "time"]])
        before = told.groupby("device")[["idle", "time"]].shift()
        told = told.assign(
            task=_NOBODY,
            start=before["time"],
            end=told["time"],
            joules=told["idle"] - before["idle"],
        )
        plugged_in = drawn[np.isinf(self._of_devices(drawn, "capacity_j"))]
        return pd.concat([plugged_in, told.assign(row=told.index).dropna(subset="start")])

    def _tails(self) -> pd.DataFrame:
        """Radios that stay awake after a transfer: until its next one, or its battery is flat,
        or for their time.
        """
        events = self._events
        moving = events["step"].isin(("download", "upload"))
        ran_flat = events["outcome"] == "battery"
        begins = (events["kind"] == "step-end") & moving & ~ran_flat
        cuts = ((events["kind"] == "step-start") & moving) | (
            (events["kind"] == "step-end") & ran_flat
        )
        if self._setting["batteries"]:
            battery = self._evidence.said("battery")
            cuts |= events.index.isin(battery.index[battery["flat"]])
        turns = events.assign(row=events.index)[begins | cuts]
        following = (
            turns.groupby("device")[["row", "time"]]
            .shift(-1)
            .fillna({"row": len(events), "time": np.inf})
        )
        following = following[begins[turns.index]]
        tails = turns[begins[turns.index]].rename(columns={"time": "start"})
        asleep = tails["start"] + self._of_devices(tails, "tail_s")
        drawn = self._booked(tails.assign(end=np.minimum(following["time"], asleep)), "tail_w")
        # the first round of which its end is known
        over = np.searchsorted(events["time"].to_numpy()[self._round_rows], asleep)
        known = np.append(self._round_rows, len(events))[over]
        ending = following["row"].to_numpy()
        return drawn.assign(
            row=np.where(known <= drawn["row"], ending, np.minimum(ending, known - 1)).astype(
                np.int64
            )
        )


def _summed(zone: Any, times: Any) -> Any:
    """The integral of a zone's intensity from a midnight before the run to some times (s)."""
    edges = np.append(0.0, np.cumsum(zone["hours"])) * 3600.0
    days, rest = np.divmod(times + zone["offset_s"], DAY_S)
    return days * edges[-1] + np.interp(rest, _HOURS, edges)
