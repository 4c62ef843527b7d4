"""Checks that the world follows from the scenario and its seed, and that training took the time
that it implies.

A scenario has the distribution of each quantity of a device, and every draw is keyed, so the
columns of the devices can be drawn again. Values from a user's file, a kind of device or a preset
are left out: the folder does not contain these.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedsim.common import units
from fedsim.common.arrays import Floats
from fedsim.common.sizes import Sizes
from fedsim.common.streams import Streams
from fedsim.common.units import TICK_S
from fedsim.lab.audit.evidence import (
    NOTHING,
    Evidence,
    TomlTable,
    at_places,
    differing,
    findings,
    read,
)
from fedsim.world.meters.energy import DAY_S, SETTING, TABLE

_LINKS = {
    "link_down": ("down", "link-down", units.BytesPerSecond),
    "link_up": ("up", "link-up", units.BytesPerSecond),
    "latency": ("latency", "latency", units.Seconds),
}
_BATTERY = {
    "capacity_j": ("capacity", units.Joules),
    "initial_j": ("initial", float),
    "charge_w": ("charge", units.Watts),
}
_POWERS = {
    **{
        f"{key}_w": (key, units.Watts, "0 W")
        for key in ("idle", "compute", "receive", "send", "tail")
    },
    **{
        f"{way}_j_byte": (f"{way}_byte", units.JoulesPerByte, "0 J/B")
        for way in ("receive", "send")
    },
    "tail_s": ("tail_lasts", units.Seconds, None),
}
"""Each column's key and unit, and its value where neither the key nor a preset is there."""

# not each epoch is a pass
_OF_STEPS = ("pfedme", "flexcfl", "fedgroup", "flower", "heterofl", "hetlora", "flora")
_ASKS_OTHERS = ("moon",)  # their epochs take a longer pass
_ROUNDING = 1e-6


def devices_as_drawn(evidence: Evidence) -> Iterator[str]:
    """The devices' speeds, links and sample counts are those that the scenario's distributions
    and seed give.
    """
    if not evidence.run.has_all_devices:
        return
    scenario = evidence.run.scenario
    population = scenario["population"]
    network = scenario["network"]
    streams = Streams(scenario["seed"])
    count = population["devices"]
    columns = {
        "speed": _drawn(scenario, population.get("speed"), "world/speed", units.SamplesPerSecond)
    }
    if (slow := population.get("stragglers")) is not None:
        order = streams.generator("world/stragglers").permutation(count)
        factor = _drawn(scenario, slow["factor"], "world/stragglers/factor", float)
        columns["speed"] *= np.where(
            np.isin(np.arange(count), order[: round(slow["share"] * count)]), factor, 1.0
        )
    if population.get("samples", {}).get("kind") in ("uniform", "long-tail"):
        sizes = read(Sizes, population["samples"])
        columns["samples"] = sizes.draw(count, streams.generator("world/samples")).astype(
            np.float64
        )
    if "capacity" not in population and "device" not in population:
        for name, (key, purpose, unit) in _LINKS.items():
            if not (key == "latency" and ("edge" in network or network["kind"] == "regions")):
                columns[name] = _drawn(
                    scenario, network.get("device", {}).get(key), f"world/{purpose}", unit
                )
    yield from _differing(evidence.devices, columns, "")


def energy_as_said(evidence: Evidence) -> Iterator[str]:
    """Energy is counted as the scenario says, with the devices' batteries and powers that it
    draws.
    """
    scenario = evidence.run.scenario
    said = scenario.get("energy")
    if said is None or not evidence.run.has(TABLE):
        return
    setting = evidence.document(SETTING)
    overhead = math.nan if evidence.has_own_protocol else evidence.overhead
    for key, value in _setting(said, evidence.cells, overhead).items():
        if not _alike(setting[key], value):
            yield f"{key} is {setting[key]!r} in {SETTING}, the scenario says {value!r}"
    battery = said.get("battery", {})
    columns = {
        name: _drawn(scenario, battery.get(key), f"world/battery/{key}", unit)
        for name, (key, unit) in _BATTERY.items()
    }
    columns["initial_j"] *= np.where(columns["initial_j"] > 0, columns["capacity_j"], 0.0)
    factors = {
        "compute_w": said["utilisation"],
        "receive_j_byte": overhead,
        "send_j_byte": overhead,
    }
    free = "preset" not in said and "device" not in scenario["population"]
    for name, (key, unit, zero) in _POWERS.items():
        usual = {"kind": "constant", "value": zero} if free and zero else None
        columns[name] = _drawn(
            scenario, said.get(key, usual), f"world/energy/{key}", unit
        ) * factors.get(name, 1.0)
    yield from _differing(evidence.frame(TABLE, tuple(columns)), columns, "energy: ")


def _differing(table: pd.DataFrame, drawn: Mapping[str, Floats], where: str) -> Iterator[str]:
    text = where + "{name} of device {row} is {told!r}; by the scenario and its seed {due!r}"
    for name, values in drawn.items():
        if len(table) == len(values):
            # of which the scenario says nothing
            values = np.where(np.isnan(values), table[name], values)
        slack = TICK_S if name in ("latency", "tail_s") else 0.0
        yield from differing(text, table, {name: values}, atol=slack, equal_nan=True)


def _drawn(scenario: TomlTable, said: TomlTable | None, purpose: str, unit: Any) -> Floats:
    """A quantity of every device from its distribution in the scenario; NaN where the scenario
    does not tell it.
    """
    count = scenario["population"]["devices"]
    generator = Streams(scenario["seed"]).generator(purpose)
    said = said or {"kind": "unknown"}
    match said["kind"]:
        case "constant":
            return np.full(count, read(unit, said["value"]), dtype=np.float64)
        case "uniform":
            return np.asarray(
                generator.uniform(read(unit, said["low"]), read(unit, said["high"]), count)
            )
        case "lognormal":
            normal = generator.standard_normal(count)
            return np.asarray(
                read(unit, said["median"]) * np.exp(normal * math.log(said["spread"]))
            )
        case "choice":
            weights = np.array(said["shares"]) / sum(said["shares"]) if said.get("shares") else None
            return np.asarray(
                generator.choice(np.array(read(list[unit], said["values"])), count, p=weights)
            )
        case "list":
            return np.array(read(list[unit], said["values"]), dtype=np.float64)
    return np.full(count, np.nan)


def _setting(said: TomlTable, cells: int, overhead: float) -> dict[str, Any]:
    def place(told: TomlTable | None, count: int) -> dict[str, float]:
        given = {"idle": "0 W", "update": "0 J", "byte": "0 J/B"} | {
            key: own for key, own in (told or {}).items() if own
        }
        idle_w = count * read(units.Watts, given["idle"])
        update_j = read(units.Joules, given["update"])
        return {
            "idle_w": idle_w,
            "update_j": update_j,
            "j_byte": read(units.JoulesPerByte, given["byte"]) * overhead,
        }

    setting = {"idle_while": said.get("idle_while", "working"), "batteries": "battery" in said}
    setting |= {"server": place(said.get("server"), 1), "edge": place(said.get("edge"), cells)}
    zones = said.get("carbon", {"zones": []})["zones"]
    if not any("file" in zone for zone in zones):
        starts = read(units.Seconds, said["starts"])
        setting["zones"] = [
            {
                "name": zone["name"] or f"zone {number}",
                "hours": read(list[units.GramsPerJoule], zone["intensity"])
                * (24 // len(zone["intensity"])),
                "offset_s": (starts + read(units.Seconds, zone["ahead"])) % DAY_S,
            }
            for number, zone in enumerate(zones)
        ]
    return setting


def _alike(one: Any, other: Any) -> bool:
    """Equal tables, but for the rounding of their numbers and where ``other`` does not say one
    (NaN).
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return math.isnan(other) or math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def epochs_agree(evidence: Evidence) -> Iterator[str]:
    """As many epochs as ends of epochs, or none that counts; in order, and within the training."""
    told = evidence.trainings
    count = told["ends"].map(len)
    epochs = told["epochs"]
    ends = told["ends"].explode().dropna().astype(np.float64)
    before = ends.groupby(level=0).shift().fillna(told["start"])
    late = ~((before <= ends) & (ends <= told["time"].reindex(ends.index)))
    right = ((epochs == count) | (epochs == 0)) & (count <= told["asked"]) & (epochs >= 0)
    text = "task {task} trained {epochs:g} of {asked:g} epochs, which are said to end at {ends}"
    yield from findings(text, told, ~right | told.index.isin(ends.index[late]))


_PLAIN = (
    "fedasync",
    "fedavg",
    "fedbn",
    "fedbuff",
    "feddr",
    "feddyn",
    "fednova",
    "fedper",
    "fedprox",
    "refl",
)
"""Strategies each of whose trainings is of ``local_epochs``."""


def epochs_as_said(evidence: Evidence) -> Iterator[str]:
    """Clients are asked for as many epochs as the scenario says, in rounds; a selection may have
    them profiled before.
    """
    strategy = evidence.run.scenario["strategy"]
    if strategy["kind"] not in _PLAIN:
        return
    trainings = evidence.trainings
    of_rounds = evidence.events["round"].loc[trainings.index] != NOTHING
    told = trainings[of_rounds].assign(due=strategy["local_epochs"])
    text = "task {task} was asked for {asked:g} epochs, by the scenario for {due}"
    yield from findings(text, told, told["asked"] != told["due"])


def durations_agree(evidence: Evidence) -> Iterator[str]:
    """A device's last training took its samples over its speed an epoch, by the jitter of that
    instant.
    """
    scenario = evidence.run.scenario
    events = evidence.events
    told = evidence.trainings
    population = scenario["population"]
    streams = Streams(scenario["seed"])
    strategy = scenario["strategy"]["kind"]
    jitter = population["jitter"]
    of_steps = strategy in _OF_STEPS or scenario["strategy"].get("local_steps")
    drawn = (
        "device" in population
        or population.get("capacity", {}).get("kind", "fedscale") != "fedscale"
    )
    # a trainer of one's own may stop early
    own = ":" in strategy or ":" in scenario.get("training", {}).get("kind", "")
    if drawn or of_steps or own or jitter["kind"] != "constant":
        return
    # The last training of each device of which an epoch has ended, on all its samples as it has
    # them at the end.
    told = (
        told[told["ends"].map(bool) & ~told["in_part"]]
        .drop_duplicates("device", keep="last")
        .sort_values("device")
    )
    shifted = (
        events[events["kind"] == "shift"]
        .groupby("device")["time"]
        .last()
        .reindex(told["device"])
        .fillna(-1.0)
    )
    paced = told["device"].isin(events["device"][events["kind"] == "pace"])
    told = told[(told["start"].to_numpy() > shifted.to_numpy()) & ~paced.to_numpy()]
    epoch_s = at_places(
        evidence.devices["samples"] / evidence.devices["speed"], evidence.row_of(told["device"])
    )
    sigma = math.sqrt(math.log1p(jitter["value"] ** 2))

    def ratio(training: Any, epoch_s: float) -> float:
        begins = [training.start, *training.ends]
        seconds = begins[-1] - begins[0]
        if not math.isnan(training.core_s):  # of an epoch that was cut off too
            seconds = training.core_s if begins[-1] == training.time else math.nan
        if not 0 < epoch_s < math.inf or not seconds > 1e4 * TICK_S * len(training.ends):
            return math.nan
        draws = (
            [
                streams.normal("world/jitter", training.device, int(time / TICK_S))
                for time in begins[:-1]
            ]
            if sigma
            else []
        )
        factor = (
            math.fsum(math.exp(sigma * draw - sigma**2 / 2) for draw in draws)
            if sigma
            else len(training.ends)
        )
        return float(seconds / (epoch_s * factor))

    ratios = np.array(
        [ratio(one, seconds) for one, seconds in zip(told.itertuples(), epoch_s, strict=True)],
        dtype=np.float64,
    )
    usual = 1.0
    slow = population.get("slow_phases", {"factor": 1.0})["factor"]
    if "reference_flops" in population or strategy in _ASKS_OTHERS:
        usual = (
            float(np.nanmedian(ratios)) if slow == 1.0 and not np.isnan(ratios).all() else math.nan
        )
    slack = _ROUNDING if usual == 1.0 else 1e-4
    # nothing is where it is not known
    wrong = (ratios < usual * (1 - slack)) | (ratios > usual / slow * (1 + slack))
    text = (
        "device {device}: its last training took {ratio:.6g} times as long as its samples over its "
        "speed"
    )
    yield from findings(text, told.assign(ratio=ratios / usual), wrong)
