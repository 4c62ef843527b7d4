"""Does the energy add up: over the phases that the records tell of, over devices, rounds and summary, and in the batteries?

All of it is computed anew from the records and from what each device draws (``energy.parquet``, ``energy.json``), and without
the ledger that the run kept.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedsim.arrays import Floats, Ints
from fedsim.language.units import TICK_S
from fedsim.meters.energy import COMPUTING, DAY_S, PHASES, PLACES, TABLE
from fedsim.records import folder as files
from fedsim.records.audit.columns import NO_WORD, Columns, Mask, Sequences
from fedsim.records.audit.evidence import Evidence
from fedsim.records.schema import DEVICES, OF_METERS, ROUNDS

_HOURS = np.arange(25) * 3600.0
_GOES_ON = -1


class _Bookings(NamedTuple):
    """Joules that were drawn from ``start`` to ``end`` (s) by devices for tasks; [bookings] each. Task -1: for none.

    ``row``: the number of the record with which they were booked; ``_GOES_ON`` for what is booked with every round.
    """

    device: Ints
    task: Ints
    joules: Floats
    start: Floats
    end: Floats
    row: Ints


def energy_adds_up(evidence: Evidence) -> Iterator[str]:
    """Joules and grams of each device and phase are those of the records, and all books say the same."""
    stated = evidence.run.summary.get("energy")
    if (stated is None) == ("energy" in evidence.run.scenario):
        yield "the scenario counts energy, and the summary does not" if stated is None else "the scenario counts no energy"
    if stated is None:
        return
    account = _Account(evidence)
    table, phases = account.table, account.phases
    for phase in PHASES:
        found = account.of_devices(phase)
        for device in np.flatnonzero(~_close(found, table[f"{phase}_j"])).tolist():
            told = table[f"{phase}_j"].item(device)
            yield f"device {device} has drawn {told!r} J for {phase}, the records say {found.item(device)!r} J"
        yield from _differs(f"energy.by_phase.{phase}", stated["by_phase"][phase], table[f"{phase}_j"].sum())
    for place in PLACES:
        yield from _differs(f"energy.by_phase.{place}", stated["by_phase"][place], account.place(place).joules.sum())
    yield from _differs("energy.joules", stated["joules"], sum(stated["by_phase"].values()))
    yield from _differs("energy.wasted", stated["wasted"], account.wasted())
    everything = [*phases.values(), *(account.place(one) for one in PLACES)]
    if account.setting["zones"]:
        yield from _differs("energy.grams", stated["grams"], sum(account.grams(one).sum() for one in everything))
        weights: Floats = np.sum([np.bincount(one.device, account.grams(one), table.count) for one in phases.values()], axis=0)
        for device in np.flatnonzero(~_close(weights, table["grams"])).tolist():
            yield f"device {device} weighs {table['grams'].item(device)!r} g, the records say {weights.item(device)!r} g"
    joules: Floats = np.sum([table[f"{phase}_j"] for phase in PHASES], axis=0)
    told = Columns(evidence.run, files.DEVICES, DEVICES, ("joules",), evidence.words)["joules"]
    shown = joules if evidence.run.has_all_devices else joules[evidence.devices["device"]]
    if len(told) != len(shown) or not _close(told, shown).all():
        yield f"the devices' joules in {files.DEVICES} are not those in {TABLE}"
    yield from _rounds(evidence, account, everything)


def _rounds(evidence: Evidence, account: "_Account", everything: list[_Bookings]) -> Iterator[str]:
    """Each round has what was booked since the one before."""
    quantities = ("joules", "grams") if account.setting["zones"] else ("joules",)
    rounds = Columns(evidence.run, files.ROUNDS, ROUNDS, ("round", *quantities), evidence.words)
    if rounds.count != len(evidence.events.rounds):
        return  # which another check tells
    for quantity in quantities:
        found: Floats = np.sum([account.by_round(one, grams=quantity == "grams") for one in everything], axis=0)
        slack = 1e-6 + 1e-9 * np.abs(np.cumsum(found))  # each is a difference of two sums
        for row in np.flatnonzero(~(np.abs(rounds[quantity] - found) <= slack)).tolist():
            told = rounds[quantity].item(row)
            yield f"round {rounds.shown('round', row)} has {told!r} {quantity}, the records say {found.item(row)!r}"


def batteries_hold(evidence: Evidence) -> Iterator[str]:
    """No battery is below zero or over full; each holds what it held, plus what it got, less what was drawn."""
    if "energy" not in evidence.run.summary or not evidence.events.are("battery").any():
        return
    account, told = _Account(evidence), evidence.events.batteries
    table, device = account.table, evidence.events["device"][told.at]
    points = np.bincount(device, told.points + 1.0, table.count)[device]
    watts = sum(table[f"{name}_w"][device] for name in ("idle", "compute", "receive", "send", "tail", "charge"))
    slack = 1e-6 + 1e-9 * (told.charged + told.idle + told.drawn) + TICK_S * watts * points
    for place in np.flatnonzero((told.least < 0) | (told.most > table["capacity_j"][device] + slack)).tolist():
        least, most, capacity = told.least.item(place), told.most.item(place), table["capacity_j"].item(device.item(place))
        yield f"the battery of device {device[place]} holds {least!r} to {most!r} J; allowed are 0 to {capacity!r} J"
    held = table["initial_j"][device] + told.charged - told.idle - told.drawn
    for place in np.flatnonzero(~(np.abs(told.level - held) <= slack)).tolist():
        when, level = evidence.events["time"][told.at].item(place), told.level.item(place)
        yield f"the battery of device {device[place]} holds {level!r} J at {when!r} s, its books {held.item(place)!r} J"
    if evidence.run.summary["status"] == "failed":  # nobody has told of the end of what was under way
        return
    last = Sequences(device).order[Sequences(device).last]
    drawn = np.sum([account.of_devices(phase) for phase in PHASES[1:]], axis=0)
    for place in last[~(np.abs(told.drawn - drawn[device]) <= slack)[last]].tolist():
        one = drawn.item(device.item(place))
        yield f"the battery of device {device[place]} gave {told.drawn.item(place)!r} J to tasks, they took {one!r} J"


def _close(left: Any, right: Any) -> Any:
    return np.isclose(left, right, rtol=1e-9, atol=1e-6)


def _differs(name: str, stated: float, found: float) -> Iterator[str]:
    if not _close(stated, found):
        yield f"{name} is {stated!r} in the summary, what it sums up is {float(found)!r}"


class _Account:
    """What the records say that was drawn."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence, self._events = evidence, evidence.events
        self.table = Columns(evidence.run, TABLE, OF_METERS[TABLE], OF_METERS[TABLE].names[1:], evidence.words)
        self.setting = evidence.energy_setting
        self._end = evidence.run.summary["simulated_s"]

    @cached_property
    def phases(self) -> dict[str, _Bookings]:
        """The bookings of each phase."""
        steps, end, start = self._steps
        words, drawn = self._evidence.words, {}
        computing = np.isin(self._events["step"][steps], [words[step] for step in COMPUTING])
        drawn["compute"] = self._booked(steps[computing], "compute_w", start[computing], end[computing])
        for phase, step in (("receive", "download"), ("send", "upload")):
            own = self._events["step"][steps] == words[step]
            by_time = self._booked(steps[own], f"{phase}_w", start[own], end[own])
            moved = self._delivered[steps[own]] * self.table[f"{phase}_j_byte"][by_time.device]
            drawn[phase] = by_time._replace(joules=by_time.joules + moved)
        return {"idle": self._idle(), **drawn, "tail": self._tails()}

    def of_devices(self, phase: str) -> Floats:
        """What each device has drawn in a phase (J), float64 [devices]."""
        return np.bincount(self.phases[phase].device, self.phases[phase].joules, self.table.count).astype(np.float64)

    def wasted(self) -> float:
        """Joules of tasks that ended otherwise than done, or trained without an epoch that counts; their idling included."""
        tasks, start, end = self._lives
        is_wasted = self._events["outcome"][tasks] != self._evidence.words["done"]
        is_wasted |= np.isin(self._events["task"][tasks], self._events["task"][self._events.idle])
        is_wasted |= np.isin(self._events["task"][tasks], self._events.lost_updates[0])
        idle = self._booked(tasks, "idle_w", start, end).joules[is_wasted].sum()
        names = self._events["task"][tasks[is_wasted]]
        return float(idle + sum(one.joules[np.isin(one.task, names)].sum() for one in list(self.phases.values())[1:]))

    def place(self, place: str) -> _Bookings:
        """What a place of the server's side has drawn."""
        events, messages, draws = self._events, self._events.messages, self.setting[place]
        of_devices, of_edges = (events.are(kind)[messages.at] for kind in ("step-end", "edge-transfer"))
        near = of_devices & ((messages.sender != NO_WORD) | (messages.receiver != NO_WORD))
        kept = ~near if place == "server" else of_devices | of_edges
        begun = np.full(events.count, np.nan)
        steps, _, start = self._steps
        begun[steps] = start
        end = events["time"][messages.at]
        began = np.where(of_devices, begun[messages.at], np.where(of_edges, messages.start, end))
        named = events.aggregations
        here = named.at_edge == (place == "edge")
        parts = [
            (np.array([draws["idle_w"] * self._end]), np.zeros(1), np.array([self._end]), np.array([_GOES_ON])),
            ((draws["j_byte"] * messages.delivered)[kept], began[kept], end[kept], messages.at[kept]),
            ((draws["update_j"] * np.diff(named.begin))[here], *([events["time"][named.at[here]]] * 2), named.at[here]),
        ]
        joules, start, end, row = (np.concatenate(column) for column in zip(*parts, strict=True))
        nobody = np.full(len(joules), -1)
        return _Bookings(nobody, nobody, joules, start, end, row)

    def grams(self, drawn: _Bookings) -> Floats:
        """What bookings weigh; those of nobody are drawn in the first zone; float64 [bookings]."""
        zone, found = self._zone_of(drawn), np.zeros(len(drawn.joules))
        for place, told in enumerate(self.setting["zones"]):
            own = zone == place
            start, end = drawn.start[own], drawn.end[own]
            at_once = np.array(told["hours"])[np.mod(start + told["offset_s"], DAY_S).astype(np.int64) // 3600]
            mean = (_summed(told, end) - _summed(told, start)) / (end - start)
            found[own] = drawn.joules[own] * np.where(end > start, mean, at_once)
        return found

    def by_round(self, drawn: _Bookings, *, grams: bool) -> Floats:
        """Joules or grams that were booked since the round before, with each record of a round; float64 [rounds]."""
        rows = self._round_rows
        at_once = drawn.row != _GOES_ON
        amounts = (self.grams(drawn) if grams else drawn.joules)[at_once]
        place = np.searchsorted(rows, drawn.row[at_once], side="right")
        found: Floats = np.bincount(place, amounts, len(rows) + 1)[:-1].astype(np.float64)
        zone = self._zone_of(drawn)
        for number, told in enumerate(self.setting["zones"] if grams else [None]):
            own = ~at_once & ((zone == number) | (told is None)) & (drawn.end > drawn.start)
            if own.any():
                found = found + self._going_on(_Bookings(*(column[own] for column in drawn)), told)
        return found

    def _going_on(self, drawn: _Bookings, zone: Any) -> Floats:
        """What is drawn evenly, from round to round; float64 [rounds]. With a zone in grams."""
        watts, times, total = drawn.joules / (drawn.end - drawn.start), self._events["time"][self._round_rows], 0.0
        for since, sign in ((drawn.start, 1.0), (drawn.end, -1.0)):
            order = np.argsort(since)
            until, now = (one if zone is None else _summed(zone, one) for one in (since[order], times))
            sums = (np.concatenate([[0.0], np.cumsum(watts[order] * factor)]) for factor in (1.0, until))
            drawing, before = (one[np.searchsorted(since[order], times, side="right")] for one in sums)
            total = total + sign * (drawing * now - before)
        return np.diff(total, prepend=0.0)

    def _zone_of(self, drawn: _Bookings) -> Any:
        return np.where(drawn.device >= 0, self.table["zone"][drawn.device], 0)

    def _booked(self, rows: Ints, name: str, start: Floats, end: Floats) -> _Bookings:
        device = self._events["device"][rows]
        return _Bookings(device, self._events["task"][rows], self.table[name][device] * (end - start), start, end, rows)

    @cached_property
    def _round_rows(self) -> Ints:
        return np.array([at for at, _ in self._events.rounds], dtype=np.int64)

    @cached_property
    def _steps(self) -> tuple[Ints, Floats, Floats]:
        """Records of ends of steps, their times, and when each began."""
        rows = np.flatnonzero(self._events.are_any(("step-start", "step-end")))
        lives = Sequences(self._events["task"][rows])
        rows = rows[lives.order]
        ends = self._events.are("step-end")[rows]
        begun = lives.latest_before(~ends)[ends]
        times = self._events["time"]
        return rows[ends], times[rows[ends]], times[rows[begun]]

    @cached_property
    def _lives(self) -> tuple[Ints, Floats, Floats]:
        """Records of ends of tasks, when each began, and when it ended."""
        rows = np.flatnonzero(self._events.are_any(("task-start", "task-end")))
        lives = Sequences(self._events["task"][rows])
        rows = rows[lives.order]
        ends = self._events.are("task-end")[rows]
        begun = lives.latest_before(~ends)[ends]
        times = self._events["time"]
        return rows[ends], times[rows[begun]], times[rows[ends]]

    @cached_property
    def _delivered(self) -> Floats:
        found = np.zeros(self._events.count)
        found[self._events.messages.at] = self._events.messages.delivered
        return found

    def _idle(self) -> _Bookings:
        if self.setting["idle_while"] == "working":
            return self._booked(self._lives[0], "idle_w", *self._lives[1:])
        first, start = self._first(self._events.are("task-start"))
        gone = np.full(self.table.count, self._end)
        left, when = self._first(self._events.are("departure"))
        gone[left] = np.minimum(when, self._end)
        end = np.maximum(gone[first], start)
        nobody, goes_on = np.full(len(first), -1), np.full(len(first), _GOES_ON)
        drawn = _Bookings(first, nobody, self.table["idle_w"][first] * (end - start), start, end, goes_on)
        if not self.setting["batteries"]:
            return drawn
        plugged_in = np.isinf(self.table["capacity_j"][first])
        both = (_Bookings(*(column[plugged_in] for column in drawn)), self._told_idle())
        joined: Any = map(np.concatenate, zip(*both, strict=True))
        return _Bookings(*joined)

    def _first(self, wanted: Mask) -> tuple[Ints, Floats]:
        """The devices of some records, and the time of the first of each."""
        devices, first = np.unique(self._events["device"][wanted], return_index=True)
        return devices.astype(np.int64), self._events["time"][wanted][first]

    def _told_idle(self) -> _Bookings:
        """What the batteries say that each device has drawn by being on, from its first task on."""
        told = self._events.batteries
        lives = Sequences(self._events["device"][told.at])
        rows, idle = told.at[lives.order], told.idle[lives.order]
        later = ~lives.first
        before = np.flatnonzero(later) - 1
        device, times = self._events["device"][rows[later]], self._events["time"]
        joules = idle[later] - idle[before]
        return _Bookings(device, np.full(len(device), -1), joules, times[rows[before]], times[rows[later]], rows[later])

    def _tails(self) -> _Bookings:
        """Radios that stay awake after a transfer: until the next one of the device, or its battery is flat, or the end."""
        events, words = self._events, self._evidence.words
        moving = np.isin(events["step"], [words["download"], words["upload"]])
        ran_flat = events["outcome"] == words["battery"]
        begins = events.are("step-end") & moving & ~ran_flat
        cuts = (events.are("step-start") & moving) | (events.are("step-end") & ran_flat)
        if self.setting["batteries"]:
            cuts[events.batteries.at[events.batteries.flat]] = True
        rows = np.flatnonzero(begins | cuts)
        lives = Sequences(events["device"][rows])
        rows = rows[lives.order]
        following = np.append(rows[1:], 0)
        until = np.where(lives.last, self._end, events["time"][following])
        begin = begins[rows]
        start, device = events["time"][rows][begin], events["device"][rows[begin]]
        asleep = start + self.table["tail_s"][device]
        drawn = self._booked(rows[begin], "tail_w", start, np.minimum(np.minimum(until[begin], asleep), self._end))
        ending = np.where(lives.last, events.count, following)[begin]
        over = np.searchsorted(events["time"][self._round_rows], asleep)  # the first round of which its end is known
        known = np.append(self._round_rows, events.count)[over]
        return drawn._replace(row=np.where(known <= drawn.row, ending, np.minimum(ending, known - 1)))


def _summed(zone: Any, times: Floats) -> Floats:
    """The integral of a zone's intensity from a midnight before the run to some times (s)."""
    edges = np.concatenate([[0.0], np.cumsum(zone["hours"])]) * 3600.0
    days, rest = np.divmod(times + zone["offset_s"], DAY_S)
    return days * edges[-1] + np.interp(rest, _HOURS, edges)  # type: ignore[no-any-return]
