"""Does the energy add up: over the phases that the records tell of, over devices, rounds and summary, and in the batteries?

All of it is computed anew from the records and from what each device draws (``energy.parquet``, ``energy.json``), and without
the ledger that the run kept.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from fedsim.arrays import Floats
from fedsim.audit.evidence import Evidence, close, findings
from fedsim.language.units import TICK_S
from fedsim.meters.energy import COMPUTING, DAY_S, PHASES, PLACES, TABLE
from fedsim.records import folder as files
from fedsim.records.schema import DEVICES, OF_METERS, ROUNDS

_HOURS = np.arange(25) * 3600.0
_NOBODY = -1
_GOES_ON = -1  # the record of what is booked with every round


def energy_adds_up(evidence: Evidence) -> Iterator[str]:
    """Joules and grams of each device and phase are those of the records, and all books say the same."""
    stated = evidence.run.summary.get("energy")
    if (stated is None) == ("energy" in evidence.run.scenario):
        yield "the scenario counts energy, and the summary does not" if stated is None else "the scenario counts no energy"
    if stated is None:
        return
    account = _Account(evidence)
    table, phases, of_devices = account.table, stated["by_phase"], account.of_devices
    for phase in PHASES:
        told = pd.DataFrame({"told": table[f"{phase}_j"], "found": of_devices[phase]})
        text = f"device {{row}} has drawn {{told!r}} J for {phase}, the records say {{found!r}} J"
        yield from findings(text, told, ~close(told["told"], told["found"]))
    totals = {f"by_phase.{phase}": (phases[phase], table[f"{phase}_j"].sum()) for phase in PHASES}
    drawn = account.drawn
    for place in PLACES:
        totals[f"by_phase.{place}"] = phases[place], drawn["joules"][drawn["phase"] == place].sum()
    totals["joules"] = stated["joules"], sum(phases.values())
    totals["wasted"] = stated["wasted"], account.wasted()
    if account.zones:
        totals["grams"] = stated["grams"], drawn["grams"].sum()
    for name, (one, found) in totals.items():
        if not close(one, found):
            yield f"energy.{name} is {one!r} in the summary, what it sums up is {float(found)!r}"
    if account.zones:
        weights = drawn.groupby("device")["grams"].sum().reindex(table.index, fill_value=0.0)
        text = "device {row} weighs {grams!r} g, the records say {found!r} g"
        yield from findings(text, table.assign(found=weights), ~close(table["grams"], weights))
    joules = table[[f"{phase}_j" for phase in PHASES]].sum(axis=1)
    shown = evidence.frame(files.DEVICES, DEVICES, ("joules",))["joules"]
    due = joules if evidence.run.has_all_devices else joules[evidence.devices["device"]]
    if len(shown) != len(due) or not close(shown, due).all():
        yield f"the devices' joules in {files.DEVICES} are not those in {TABLE}"
    yield from _rounds(evidence, account)


def _rounds(evidence: Evidence, account: "_Account") -> Iterator[str]:
    """Each round has what was booked since the one before."""
    quantities = ("joules", "grams") if account.zones else ("joules",)
    rounds = evidence.frame(files.ROUNDS, ROUNDS, ("round", *quantities))
    if len(rounds) != len(account.round_rows):
        return  # a finding of another check
    for quantity in quantities:
        found = account.by_round(quantity)
        slack = 1e-6 + 1e-9 * np.abs(np.cumsum(found))  # each is a difference of two sums
        text = f"round {{round}} has {{{quantity}!r}} {quantity}, the records say {{found!r}}"
        yield from findings(text, rounds.assign(found=found), ~(np.abs(rounds[quantity] - found) <= slack))


def batteries_hold(evidence: Evidence) -> Iterator[str]:
    """No battery is below zero or over full; each holds what it held, plus what it got, less what was drawn."""
    if "energy" not in evidence.run.summary or not (evidence.events["kind"] == "battery").any():
        return
    account, told = _Account(evidence), evidence.said("battery")
    told = told.join(evidence.events[["device", "time"]])
    told = told.join(account.table, on="device")
    points = (told["points"] + 1.0).groupby(told["device"]).transform("sum")
    watts = told[[f"{name}_w" for name in ("idle", "compute", "receive", "send", "tail", "charge")]].sum(axis=1)
    slack = 1e-6 + 1e-9 * (told["charged"] + told["idle"] + told["drawn"]) + TICK_S * watts * points
    text = "the battery of device {device} holds {least!r} to {most!r} J; allowed are 0 to {capacity_j!r} J"
    yield from findings(text, told, (told["least"] < 0) | (told["most"] > told["capacity_j"] + slack))
    told["held"] = told["initial_j"] + told["charged"] - told["idle"] - told["drawn"]
    text = "the battery of device {device} holds {level!r} J at {time!r} s, its books {held!r} J"
    yield from findings(text, told, ~(np.abs(told["level"] - told["held"]) <= slack))
    if evidence.run.summary["status"] == "failed":  # nobody has told of the end of what was under way
        return
    took = account.of_devices[list(PHASES[1:])].sum(axis=1) - account.after_the_end()
    last = told.assign(slack=slack).drop_duplicates("device", keep="last").sort_values("device")
    last["took"] = took.reindex(last["device"]).to_numpy()
    text = "the battery of device {device} gave {drawn!r} J to tasks, they took {took!r} J"
    yield from findings(text, last, ~(np.abs(last["drawn"] - last["took"]) <= last["slack"]))


class _Account:
    """Energy that was drawn by the records."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence, self._events = evidence, evidence.events
        self.table = evidence.frame(TABLE, OF_METERS[TABLE], OF_METERS[TABLE].names[1:])
        self._setting = evidence.energy_setting
        self.zones: list[dict[str, Any]] = self._setting["zones"]
        self._end: float = evidence.run.summary["simulated_s"]
        self.round_rows = np.flatnonzero(self._events["kind"] == "round")

    @cached_property
    def drawn(self) -> pd.DataFrame:
        """Joules that were drawn from ``start`` to ``end`` (s), by ``phase`` or place.

        Columns: ``device`` and ``task`` for which they were drawn (-1: none), ``joules``, ``grams`` if carbon is counted, the
        grid's ``zone``, and ``row``: the record with which they were booked, ``_GOES_ON`` if they are booked with every round.
        """
        steps = self._evidence.steps.assign(end=self._evidence.steps["time"])
        computing = self._booked(steps[steps["step"].isin(COMPUTING)], "compute_w")
        shared = self._evidence.core_s.reindex(computing.index).to_numpy()
        of_cores = self._of_devices(computing, "compute_w") * shared
        computing["joules"] = np.where(np.isnan(shared), computing["joules"], of_cores)
        parts = {"idle": self._idle(), "compute": computing}
        for phase, step in (("receive", "download"), ("send", "upload")):
            own = steps[steps["step"] == step]
            booked = self._booked(own, f"{phase}_w")
            moved = self._evidence.messages["delivered"].reindex(own.index).to_numpy()
            parts[phase] = booked.assign(joules=booked["joules"] + moved * self._of_devices(own, f"{phase}_j_byte"))
        parts |= {"tail": self._tails(), **{place: self._place(place) for place in PLACES}}
        drawn = pd.concat([part.assign(phase=phase) for phase, part in parts.items()], ignore_index=True)
        drawn["zone"] = np.append(self.table["zone"].to_numpy(), 0)[drawn["device"]]  # of nobody the first
        grams = np.zeros(len(drawn))
        for number, zone in enumerate(self.zones):
            here = (drawn["zone"] == number).to_numpy()
            joules, start, end = (drawn[name].to_numpy()[here] for name in ("joules", "start", "end"))
            at_once = np.array(zone["hours"])[np.nan_to_num(np.mod(start + zone["offset_s"], DAY_S) // 3600).astype(np.int64)]
            mean = (_summed(zone, end) - _summed(zone, start)) / (end - start)
            grams[here] = joules * np.where(end > start, mean, at_once)
        drawn["grams"] = grams
        return drawn

    @cached_property
    def of_devices(self) -> pd.DataFrame:
        """Joules of each device (row) in each phase (column)."""
        found = self.drawn.groupby(["device", "phase"])["joules"].sum().unstack(fill_value=0)
        return found.reindex(index=self.table.index, columns=PHASES, fill_value=0.0)

    def after_the_end(self) -> pd.Series:
        """Joules of tails that each device's radio draws after the run, of which no battery tells."""
        tails = self.drawn[self.drawn["phase"] == "tail"]
        late = (tails["end"] - np.maximum(tails["start"], self._end)).clip(lower=0.0) * self._of_devices(tails, "tail_w")
        return late.groupby(tails["device"]).sum().reindex(self.table.index, fill_value=0.0)

    def wasted(self) -> float:
        """Joules of tasks that ended otherwise than done, or trained without an epoch that counts; their idling included."""
        wasted = self._evidence.in_vain
        idle = self._booked(wasted.assign(end=wasted["time"]), "idle_w")["joules"].sum()
        others = self.drawn["task"].isin(wasted["task"]) & (self.drawn["phase"] != "idle")
        return float(idle + self.drawn["joules"][others].sum())

    def _place(self, place: str) -> pd.DataFrame:
        """Energy of a place of the server's side."""
        messages, named, draws = self._evidence.messages, self._evidence.said("aggregate"), self._setting[place]
        events = self._events.loc[messages.index]
        of_devices, of_edges = events["kind"] == "step-end", events["kind"] == "edge-transfer"
        near = of_devices & ((messages["sender"] != "") | (messages["receiver"] != ""))
        began = messages["start"].where(of_edges, events["time"])
        began = began.where(~of_devices, self._evidence.steps["start"].reindex(events.index))
        moved = pd.DataFrame({"joules": draws["j_byte"] * messages["delivered"], "start": began, "end": events["time"]})
        here = named[named["at_edge"] == (place == "edge")]
        time = self._events["time"][here.index]
        updates = pd.DataFrame({"joules": draws["update_j"] * here["tasks"].map(len).astype(float), "start": time, "end": time})
        idle = pd.DataFrame({"joules": draws["idle_w"] * self._end, "start": 0.0, "end": self._end}, index=[_GOES_ON])
        parts = pd.concat([idle, moved[~near if place == "server" else of_devices | of_edges], updates])
        return parts.assign(device=_NOBODY, task=_NOBODY, row=parts.index)

    def by_round(self, quantity: str) -> Floats:
        """Joules or grams that were booked since the round before, with each record of a round; float64 [rounds]."""
        goes_on = self.drawn["row"] == _GOES_ON
        at_once = self.drawn[~goes_on]
        place = np.searchsorted(self.round_rows, at_once["row"], side="right")
        found = np.bincount(place, at_once[quantity], len(self.round_rows) + 1)[:-1].astype(np.float64)
        evenly = self.drawn[goes_on & (self.drawn["end"] > self.drawn["start"])]
        if quantity == "joules":
            return found + self._going_on(evenly, None)
        return found + sum(self._going_on(evenly[evenly["zone"] == number], zone) for number, zone in enumerate(self.zones))

    def _going_on(self, drawn: pd.DataFrame, zone: Any) -> Floats:
        """Energy that is drawn evenly, from round to round; float64 [rounds]. With a zone in grams."""
        watts = (drawn["joules"] / (drawn["end"] - drawn["start"])).to_numpy()
        times, total = self._events["time"].to_numpy()[self.round_rows], np.zeros(len(self.round_rows))
        for since, sign in ((drawn["start"].to_numpy(), 1.0), (drawn["end"].to_numpy(), -1.0)):
            order = np.argsort(since)
            until, now = (one if zone is None else _summed(zone, one) for one in (since[order], times))
            place = np.searchsorted(since[order], times, side="right")
            drawing, before = (np.append(0.0, np.cumsum(watts[order] * factor))[place] for factor in (1.0, until))
            total += sign * (drawing * now - before)
        return np.diff(total, prepend=0.0)

    def _of_devices(self, rows: pd.DataFrame, name: str) -> Floats:
        return self.table[name].to_numpy()[rows["device"]]

    def _booked(self, rows: pd.DataFrame, name: str) -> pd.DataFrame:
        """Energy at so many watts, from ``start`` to ``end`` of each record."""
        joules = self._of_devices(rows, name) * (rows["end"] - rows["start"])
        return rows[["device", "task", "start", "end"]].assign(joules=joules, row=rows.index)

    def _idle(self) -> pd.DataFrame:
        events, tasks = self._events, self._evidence.tasks
        if self._setting["idle_while"] == "working":
            return self._booked(tasks.assign(end=tasks["time"]), "idle_w")
        first = events[events["kind"] == "task-start"].drop_duplicates("device").set_index("device")["time"].sort_index()
        left = events[events["kind"] == "departure"].drop_duplicates("device").set_index("device")["time"]
        gone = left.reindex(first.index).clip(upper=self._end).fillna(self._end)
        there = pd.DataFrame({"device": first.index, "task": _NOBODY, "start": first.to_numpy()})
        there["end"] = np.maximum(gone.to_numpy(), there["start"])
        drawn = self._booked(there, "idle_w").assign(row=_GOES_ON)
        if not self._setting["batteries"]:
            return drawn
        plugged_in = np.isinf(self._of_devices(drawn, "capacity_j"))
        return pd.concat([drawn[plugged_in], self._told_idle()])

    def _told_idle(self) -> pd.DataFrame:
        """By the batteries, the energy that each device has drawn by being on, from its first task on."""
        told = self._evidence.said("battery").join(self._events[["device", "time"]])
        before = told.groupby("device")[["idle", "time"]].shift()
        drawn = told.assign(task=_NOBODY, start=before["time"], end=told["time"], row=told.index)
        drawn["joules"] = told["idle"] - before["idle"]
        return drawn.dropna(subset="start")[["device", "task", "start", "end", "joules", "row"]]

    def _tails(self) -> pd.DataFrame:
        """Radios that stay awake after a transfer: until its next one, or its battery is flat, or for their time."""
        events = self._events
        moving, ran_flat = events["step"].isin(("download", "upload")), events["outcome"] == "battery"
        begins = (events["kind"] == "step-end") & moving & ~ran_flat
        cuts = ((events["kind"] == "step-start") & moving) | ((events["kind"] == "step-end") & ran_flat)
        if self._setting["batteries"]:
            battery = self._evidence.said("battery")
            cuts |= events.index.isin(battery.index[battery["flat"]])
        turns = events.assign(row=events.index)[begins | cuts]
        following = turns.groupby("device")[["row", "time"]].shift(-1).fillna({"row": len(events), "time": np.inf})
        following = following[begins[turns.index]]
        tails = turns[begins[turns.index]].rename(columns={"time": "start"})
        asleep = tails["start"] + self._of_devices(tails, "tail_s")
        end = np.minimum(following["time"], asleep)
        drawn = self._booked(tails.assign(end=end), "tail_w")
        over = np.searchsorted(events["time"].to_numpy()[self.round_rows], asleep)  # the first round of which its end is known
        known, ending = np.append(self.round_rows, len(events))[over], following["row"].to_numpy()
        return drawn.assign(row=np.where(known <= drawn["row"], ending, np.minimum(ending, known - 1)).astype(np.int64))


def _summed(zone: Any, times: Any) -> Any:
    """The integral of a zone's intensity from a midnight before the run to some times (s)."""
    edges = np.append(0.0, np.cumsum(zone["hours"])) * 3600.0
    days, rest = np.divmod(times + zone["offset_s"], DAY_S)
    return days * edges[-1] + np.interp(rest, _HOURS, edges)
