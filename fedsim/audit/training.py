"""Did training take as long as the devices' speeds, samples and hosts say?"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedsim.arrays import Flags, Floats
from fedsim.audit.evidence import Evidence, at_places, findings, read
from fedsim.language.units import TICK_S, Bytes
from fedsim.streams import Streams

_TICKS_PER_SECOND = 1 << 30
_OF_STEPS = (
    "pfedme",
    "flexcfl",
    "fedgroup",
    "flower",
    "heterofl",
    "hetlora",
    "flora",
)  # not all epochs are passes of the model
_ASKS_OTHERS = ("moon",)  # their epochs take a longer pass
_ROUNDING = 1e-6
_ON_CORES = ("train", "evaluate", "compute")


def epochs_agree(evidence: Evidence) -> Iterator[str]:
    """As many epochs as ends of epochs, or none that counts; in order, and within the training."""
    text = "task {task} trained {epochs:g} of {asked:g} epochs, which are said to end at {ends}"
    told = evidence.trainings
    yield from findings(text, told, ~_plausible(told))


def durations_agree(evidence: Evidence) -> Iterator[str]:
    """A device's last training took its samples over its speed an epoch, by the jitter of that instant."""
    scenario = evidence.run.scenario
    population, strategy = scenario["population"], scenario["strategy"]["kind"]
    jitter = population["jitter"]
    of_steps = strategy in _OF_STEPS or scenario["strategy"].get("local_steps")
    drawn = "device" in population or population.get("capacity", {}).get("kind", "fedscale") != "fedscale"
    own = ":" in strategy or ":" in scenario.get("training", {}).get("kind", "")  # a trainer of one's own may stop early
    if drawn or of_steps or own or jitter["kind"] != "constant":
        return
    streams, sigma = Streams(scenario["seed"]), math.sqrt(math.log1p(jitter["value"] ** 2))
    slow = population.get("slow_phases", {"factor": 1.0})["factor"]
    told = _last_of_device(evidence)
    row = evidence.row_of(told["device"])
    epoch_s = at_places(evidence.devices["samples"] / evidence.devices["speed"], row)

    def ratio(training: Any, epoch_s: float) -> float:
        begins = [training.start, *training.ends]
        seconds = begins[-1] - begins[0]
        if not math.isnan(training.core_s):  # of an epoch that was cut off too
            seconds = training.core_s if begins[-1] == training.time else math.nan
        if not 0 < epoch_s < math.inf or not seconds > 1e4 * TICK_S * len(training.ends):
            return math.nan
        drawn = [_jitter(streams, sigma, training.device, time) if sigma else 1.0 for time in begins[:-1]]
        return float(seconds / (epoch_s * math.fsum(drawn)))

    ratios = np.array([ratio(one, seconds) for one, seconds in zip(told.itertuples(), epoch_s, strict=True)], dtype=np.float64)
    usual = 1.0
    if "reference_flops" in population or strategy in _ASKS_OTHERS:
        usual = float(np.nanmedian(ratios)) if slow == 1.0 and not np.isnan(ratios).all() else math.nan
    if math.isnan(usual):
        return
    slack = _ROUNDING if usual == 1.0 else 1e-4
    wrong = (ratios < usual * (1 - slack)) | (ratios > usual / slow * (1 + slack))
    text = "device {device}: its last training took {ratio:.6g} times as long as its samples over its speed"
    yield from findings(text, told.assign(ratio=ratios / usual), wrong)


def _jitter(streams: Streams, sigma: float, device: int, begin: float) -> float:
    return math.exp(sigma * streams.normal("world/jitter", device, int(begin * _TICKS_PER_SECOND)) - sigma**2 / 2)


def _plausible(told: pd.DataFrame) -> Flags:
    count, epochs = told["ends"].map(len), told["epochs"]
    ends = told["ends"].explode().dropna().astype(np.float64)
    before = ends.groupby(level=0).shift().fillna(told["start"])
    late = ~((before <= ends) & (ends <= told["time"].reindex(ends.index)))
    right = ((epochs == count) | (epochs == 0)) & (count <= told["asked"]) & (epochs >= 0)
    return right.to_numpy() & ~told.index.isin(ends.index[late])


def _last_of_device(evidence: Evidence) -> pd.DataFrame:
    """The last training of each device of which an epoch has ended, on all its samples as it has them at the end."""
    events, told = evidence.events, evidence.trainings
    last = told[told["ends"].map(bool) & ~told["in_part"]].drop_duplicates("device", keep="last").sort_values("device")
    changed = events[events["kind"] == "shift"].groupby("device")["time"].last().reindex(last["device"]).fillna(-1.0)
    paced = last["device"].isin(events["device"][events["kind"] == "pace"])
    return last[(last["start"].to_numpy() > changed.to_numpy()) & ~paced.to_numpy()]


def hosts_shared(evidence: Evidence) -> Iterator[str]:
    """Each computation had its host's even share at every instant, and no host had more tasks at once than it has room for."""
    host = evidence.run.scenario["population"].get("host")
    if host is None:
        return
    steps = evidence.steps[evidence.steps["step"].isin(_ON_CORES) & (evidence.steps["outcome"] != "memory")]
    for _, own in steps.join(evidence.core_s).groupby(steps["device"] % host["number"]):
        had = _shares(host, own["start"].to_numpy(), own["time"].to_numpy())
        text = "device {device} had {core_s!r} s of a core by {time!r} s; its host's share was {had!r} s"
        yield from findings(text, own.assign(had=had), ~(np.abs(own["core_s"] - had) <= _ROUNDING * (1 + had)))
    tasks, slots = _at_work(evidence), host.get("workers", math.inf)
    if "memory" in host:
        memory, each = (read(Bytes, host[key]) for key in ("memory", "task_memory"))
        slots = min(slots, memory // each)
    for number, own in tasks.groupby(tasks["device"] % host["number"]):
        most = _busy(own["start"].to_numpy(), own["time"].to_numpy())[1].max()
        if most > slots:
            yield f"host {number} had {most:g} tasks at once; it has room for {slots:g}"


def _busy(start: Any, end: Any) -> tuple[Floats, Floats]:
    """Times at which intervals begin or end, ascending, and how many there are from each on; ends come first."""
    times = np.concatenate([end, start])
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(np.repeat([-1.0, 1.0], [len(end), len(start)])[order])


def _shares(host: Mapping[str, Any], start: Any, end: Any) -> Floats:
    """Seconds of a core that each of a host's computations got; float64 [computations]."""
    times, busy = _busy(start, end)
    cores = host.get("cores", 1)
    counts, work = zip([1.0, 1.0], *host.get("throughput", [[cores, cores]]), strict=True)
    rates = np.interp(busy, counts, work) / np.maximum(busy, 1)
    served = np.append(0.0, np.cumsum(rates[:-1] * np.diff(times)))
    shares: Floats = np.interp(end, times, served) - np.interp(start, times, served)
    return shares


def _at_work(evidence: Evidence) -> pd.DataFrame:
    """Tasks from when they have a worker to their end: a step ``queue`` that comes first is for one."""
    tasks, first = evidence.tasks, evidence.steps.sort_values("begun").drop_duplicates("task")
    waited = first[first["step"] == "queue"].set_index("task")["time"]
    return tasks.assign(start=tasks["task"].map(waited).fillna(tasks["start"]))
