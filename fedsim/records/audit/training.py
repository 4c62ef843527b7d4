"""Did training take as long as the devices' speeds and samples say?"""

import math
from collections.abc import Iterator

import numpy as np

from fedsim.arrays import Floats, Ints
from fedsim.language.units import TICK_S
from fedsim.records.audit.columns import Mask, Sequences
from fedsim.records.audit.evidence import Evidence
from fedsim.streams import Streams

_TICKS_PER_SECOND = 1 << 30
_OF_STEPS = ("pfedme", "flexcfl", "fedgroup", "flower")  # an epoch of theirs need not be a pass over the device's samples
_ASKS_OTHERS = ("moon",)  # their epochs take a longer pass
_ROUNDING = 1e-6


def epochs_agree(evidence: Evidence) -> Iterator[str]:
    """As many epochs as ends of epochs, or none that counts; in order, and within the training."""
    told = evidence.events.trainings
    for place in np.flatnonzero(~_plausible(evidence)).tolist():
        task = evidence.events.shown("task", told.at[place])
        ends, count = told.ends(place).tolist(), told.epochs.item(place)
        yield f"task {task} trained {count:g} of {told.asked.item(place):g} epochs, which are said to end at {ends}"


def durations_agree(evidence: Evidence) -> Iterator[str]:
    """A device's last training took its samples over its speed an epoch, by the jitter of that instant."""
    scenario = evidence.run.scenario
    population, strategy = scenario["population"], scenario["strategy"]["kind"]
    jitter = population["jitter"]
    if "device" in population or strategy in _OF_STEPS or ":" in strategy or jitter["kind"] != "constant":
        return
    table = evidence.devices
    rows = _last_of_device(evidence)
    told, events = evidence.events.trainings, evidence.events
    start, device = _starts(evidence)[rows], events["device"][told.at[rows]]
    row = evidence.row_of(device)
    undisturbed = table["samples"][row] / table["speed"][row]
    streams, sigma = Streams(scenario["seed"]), math.sqrt(math.log1p(jitter["value"] ** 2))
    slow = population.get("slow_phases", {"factor": 1.0})["factor"]
    ratio = np.full(len(rows), np.nan)
    for place, (one, begin, epoch_s) in enumerate(zip(rows.tolist(), start.tolist(), undisturbed.tolist(), strict=True)):
        begins = [begin, *told.ends(one).tolist()]
        seconds = begins[-1] - begin
        drawn = (
            [_jitter(streams, sigma, int(device[place]), time) for time in begins[:-1]] if sigma else [1.0] * (len(begins) - 1)
        )
        if 0 < epoch_s < math.inf and seconds > 1e4 * TICK_S * len(drawn):
            ratio[place] = seconds / (epoch_s * math.fsum(drawn))
    known = ~np.isnan(ratio)
    usual = 1.0
    if "reference_flops" in population or strategy in _ASKS_OTHERS:
        usual = float(np.median(ratio[known])) if known.any() and slow == 1.0 else math.nan
    slack = _ROUNDING if usual == 1.0 else 1e-4
    wrong = known & ~((ratio >= usual * (1 - slack)) & (ratio <= usual / slow * (1 + slack))) & (not math.isnan(usual))
    for place in np.flatnonzero(wrong).tolist():
        took = f"its last training took {ratio.item(place) / usual:.6g} times as long as its samples over its speed"
        yield f"device {device[place]}: {took}"


def _jitter(streams: Streams, sigma: float, device: int, begin: float) -> float:
    return math.exp(sigma * streams.normal("world/jitter", device, int(begin * _TICKS_PER_SECOND)) - sigma**2 / 2)


def _starts(evidence: Evidence) -> Floats:
    """When each training began (s); float64 [trainings]."""
    events, told = evidence.events, evidence.events.trainings
    begins = events.are("step-start")
    rows = np.sort(np.concatenate([np.flatnonzero(begins), told.at]))
    lives = Sequences(events["task"][rows])
    rows = rows[lives.order]
    latest = lives.latest_before(begins[rows])
    start = np.full(events.count, np.nan)
    start[rows] = np.where(latest >= 0, events["time"][rows[latest]], np.nan)
    return start[told.at]


def _plausible(evidence: Evidence) -> Mask:
    events, told = evidence.events, evidence.events.trainings
    count = np.diff(told.begin)
    right = ((told.epochs == count) | (told.epochs == 0)) & (count <= told.asked) & (told.epochs >= 0)
    of = np.repeat(np.arange(len(told.at)), count)
    begin = np.concatenate([[np.nan], told.all_ends])[:-1]
    first = told.begin[:-1][count > 0]
    begin[first] = _starts(evidence)[count > 0]
    wrong = ~((begin <= told.all_ends) & (told.all_ends <= events["time"][told.at][of]))
    right[of[wrong]] = False
    return right  # type: ignore[no-any-return]


def _last_of_device(evidence: Evidence) -> Ints:
    """The last training of each device of which an epoch has ended, on all its samples as it has them at the end."""
    events, told = evidence.events, evidence.events.trainings
    usable = (np.diff(told.begin) > 0) & ~told.in_part
    rows = np.flatnonzero(usable)
    device = events["device"][told.at[rows]]
    lives = Sequences(device)
    last = rows[lives.order][lives.last]
    changed = np.flatnonzero(events.are("shift"))
    held_since = np.full(max(events["device"].max(initial=0), 0) + 1, -1.0)
    held_since[events["device"][changed]] = events["time"][changed]  # of several the last
    owner = events["device"][told.at[last]]
    kept = _starts(evidence)[last] > held_since[owner]
    return last[kept & ~np.isin(owner, events["device"][events.are("pace")])]  # type: ignore[no-any-return]
