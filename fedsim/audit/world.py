"""Is the world the one that the scenario and its seed make?

A scenario says how each quantity of a device is drawn, and every draw is keyed, so the columns of the devices can be drawn
anew. What comes from a file of the user's, from a kind of device or from a preset is left out: the folder does not hold these.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedsim.arrays import Floats
from fedsim.audit.evidence import Evidence, findings, read
from fedsim.language import units
from fedsim.language.sizes import Sizes
from fedsim.meters.energy import DAY_S, SETTING, TABLE
from fedsim.records import folder as files
from fedsim.records.schema import DEVICES, OF_METERS
from fedsim.streams import Streams

TomlTable = Mapping[str, Any]

_LINKS = {
    "link_down": ("down", "link-down", units.BytesPerSecond),
    "link_up": ("up", "link-up", units.BytesPerSecond),
    "latency": ("latency", "latency", units.Seconds),
}
_BATTERY = {"capacity_j": ("capacity", units.Joules), "initial_j": ("initial", float), "charge_w": ("charge", units.Watts)}
_POWERS = {
    **{f"{key}_w": (key, units.Watts, "0 W") for key in ("idle", "compute", "receive", "send", "tail")},
    **{f"{way}_j_byte": (f"{way}_byte", units.JoulesPerByte, "0 J/B") for way in ("receive", "send")},
    "tail_s": ("tail_lasts", units.Seconds, None),
}
"""Each column's key and unit, and its value where neither the key nor a preset is there."""


def devices_as_drawn(evidence: Evidence) -> Iterator[str]:
    """The devices' speeds, links and sample counts are those that the scenario's distributions and seed give."""
    if evidence.run.has_all_devices:
        names = ("speed", "samples", *_LINKS)
        yield from _differing(evidence.frame(files.DEVICES, DEVICES, names), _of_devices(evidence), "")


def energy_as_said(evidence: Evidence) -> Iterator[str]:
    """Energy is counted as the scenario says, with the devices' batteries and powers that it draws."""
    said = evidence.run.scenario.get("energy")
    if said is None or not evidence.run.has(TABLE):
        return
    setting = evidence.energy_setting
    for key, value in _setting(evidence, said).items():
        if not _alike(setting[key], value):
            yield f"{key} is {setting[key]!r} in {SETTING}, the scenario says {value!r}"
    drawn = _of_energy(evidence, said)
    yield from _differing(evidence.frame(TABLE, OF_METERS[TABLE], tuple(drawn)), drawn, "energy: ")


def _differing(table: pd.DataFrame, drawn: Mapping[str, Floats], where: str) -> Iterator[str]:
    for name, values in drawn.items():
        text = f"{where}{name} of device {{row}} is {{{name}!r}}; by the scenario and its seed "
        if len(table) != len(values):
            yield from findings(text + "another number of devices", table)
            continue
        slack = units.TICK_S if name in ("latency", "tail_s") else 0.0
        wrong = ~np.isclose(table[name], values, rtol=1e-9, atol=slack) & ~np.isnan(values)
        yield from findings(text + "{wanted!r}", table.assign(wanted=values), wrong)


def _of_devices(evidence: Evidence) -> dict[str, Floats]:
    scenario = evidence.run.scenario
    population, network, draw = scenario["population"], scenario["network"], _DrawnQuantity(scenario)
    columns = {"speed": draw(population.get("speed"), "world/speed", units.SamplesPerSecond)}
    if "stragglers" in population:
        columns["speed"] *= draw.slowing(population["stragglers"])
    if population.get("samples", {}).get("kind") in ("uniform", "long-tail"):
        sizes = read(Sizes, population["samples"])
        columns["samples"] = sizes.draw(draw.devices, draw.streams.generator("world/samples")).astype(np.float64)
    if "capacity" not in population and "device" not in population:
        for name, (key, purpose, unit) in _LINKS.items():
            if not (key == "latency" and ("edge" in network or network["kind"] == "regions")):
                columns[name] = draw(network.get("device", {}).get(key), f"world/{purpose}", unit)
    return columns


def _of_energy(evidence: Evidence, said: TomlTable) -> dict[str, Floats]:
    draw, battery = _DrawnQuantity(evidence.run.scenario), said.get("battery", {})
    columns = {name: draw(battery.get(key), f"world/battery/{key}", unit) for name, (key, unit) in _BATTERY.items()}
    columns["initial_j"] *= np.where(columns["initial_j"] > 0, columns["capacity_j"], 0.0)
    overhead = math.nan if evidence.has_own_protocol else evidence.overhead
    factors = {"compute_w": said["utilisation"], "receive_j_byte": overhead, "send_j_byte": overhead}
    free = "preset" not in said and "device" not in evidence.run.scenario["population"]
    for name, (key, unit, zero) in _POWERS.items():
        usual = {"kind": "constant", "value": zero} if free and zero else None
        columns[name] = draw(said.get(key, usual), f"world/energy/{key}", unit) * factors.get(name, 1.0)
    return columns


def _setting(evidence: Evidence, said: TomlTable) -> dict[str, Any]:
    """Expected ``energy.json``, as far as the scenario says it."""

    def place(told: TomlTable | None, count: int) -> dict[str, float]:
        given = {key: value for key, value in (told or {}).items() if value is not None}
        given = {"idle": "0 W", "update": "0 J", "byte": "0 J/B"} | given
        return {
            "idle_w": count * read(units.Watts, given["idle"]),
            "update_j": read(units.Joules, given["update"]),
            "j_byte": read(units.JoulesPerByte, given["byte"]) * (math.nan if evidence.has_own_protocol else evidence.overhead),
        }

    setting = {
        "idle_while": said["idle_while"],
        "batteries": "battery" in said,
        "server": place(said.get("server"), 1),
        "edge": place(said.get("edge"), evidence.cells),
    }
    zones = said.get("carbon", {"zones": []})["zones"]
    if not any("file" in zone for zone in zones):
        starts = read(units.Seconds, said["starts"])
        setting["zones"] = [
            {
                "name": zone["name"] or f"zone {number}",
                "hours": [read(units.GramsPerJoule, one) for one in zone["intensity"]],
                "offset_s": (starts + read(units.Seconds, zone["ahead"])) % DAY_S,
            }
            for number, zone in enumerate(zones)
        ]
    return setting


def _alike(one: Any, other: Any) -> bool:
    """Equal tables, but for the rounding of their numbers and where ``other`` does not say one (NaN)."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return math.isnan(other) or math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


class _DrawnQuantity:
    """Draws a quantity of every device from its distribution in the scenario; NaN where the scenario does not tell it."""

    def __init__(self, scenario: TomlTable) -> None:
        self.devices, self.streams = scenario["population"]["devices"], Streams(scenario["seed"])

    def __call__(self, said: TomlTable | None, purpose: str, unit: Any) -> Floats:
        said, generator = said or {"kind": "unknown"}, self.streams.generator(purpose)

        def value(key: str) -> Any:
            return read(unit, said[key])

        match said["kind"]:
            case "constant":
                return np.full(self.devices, value("value"), dtype=np.float64)
            case "uniform":
                return np.asarray(generator.uniform(value("low"), value("high"), self.devices))
            case "lognormal":
                normal = generator.standard_normal(self.devices)
                return np.asarray(value("median") * np.exp(normal * math.log(said["spread"])))
            case "choice":
                weights = np.array(said["shares"]) / sum(said["shares"]) if said.get("shares") else None
                return np.asarray(generator.choice(np.array(read(list[unit], said["values"])), self.devices, p=weights))
            case "list":
                return np.array(read(list[unit], said["values"]), dtype=np.float64)
        return np.full(self.devices, np.nan)

    def slowing(self, said: TomlTable) -> Floats:
        """The factors of the devices' speeds, below 1 for stragglers."""
        factor = self(said["factor"], "world/stragglers/factor", float)
        order = self.streams.generator("world/stragglers").permutation(self.devices)
        return np.where(np.isin(np.arange(self.devices), order[: round(said["share"] * self.devices)]), factor, 1.0)
