"""Is the world the one that the scenario and its seed make?

A scenario says how each quantity of a device is drawn, and every draw is keyed, so the columns of the devices can be drawn
anew. What comes from a file of the user's, from a kind of device or from a preset is left out: the folder does not hold these.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fedsim.arrays import Floats
from fedsim.language import units
from fedsim.language.sizes import Sizes
from fedsim.meters.energy import DAY_S, SETTING, TABLE
from fedsim.records import folder as files
from fedsim.records.audit.evidence import Evidence, findings
from fedsim.records.schema import DEVICES, OF_METERS
from fedsim.streams import Streams

Table = Mapping[str, Any]

_LINKS = {"link_down": "down", "link_up": "up", "latency": "latency"}
_POWERS = {"idle_w": "idle", "compute_w": "compute", "receive_w": "receive", "send_w": "send", "tail_w": "tail"}
_BYTES = {"receive_j_byte": "receive_byte", "send_j_byte": "send_byte"}
_BATTERY = {"capacity_j": ("capacity", units.Joules), "initial_j": ("initial", float), "charge_w": ("charge", units.Watts)}


def devices_as_drawn(evidence: Evidence) -> Iterator[str]:
    """The devices' speeds, links and sample counts are those that the scenario's distributions and seed give."""
    if evidence.run.has_all_devices:
        names = ("speed", "samples", *_LINKS)
        yield from _differing(evidence.frame(files.DEVICES, DEVICES, names), _of_devices(evidence), "")


def energy_as_said(evidence: Evidence) -> Iterator[str]:
    """What energy is counted by is what the scenario says, and the devices' batteries and powers are those that it draws."""
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
        wrong = ~np.isclose(table[name], values, rtol=1e-9, atol=slack)
        yield from findings(text + "{wanted!r}", table.assign(wanted=values), wrong)


def _of_devices(evidence: Evidence) -> dict[str, Floats]:
    scenario = evidence.run.scenario
    population, links = scenario["population"], scenario["network"].get("device", {})
    draw = _Draw(scenario)
    columns = {}
    if "speed" in population:
        columns["speed"] = draw(population["speed"], "world/speed", units.SamplesPerSecond)
        if columns["speed"] is not None and "stragglers" in population:
            columns["speed"] = draw.slowed(columns["speed"], population["stragglers"])
    if "samples" in population and population["samples"]["kind"] in ("uniform", "long-tail"):
        sizes = TypeAdapter[Any](Sizes).validate_python(population["samples"])
        columns["samples"] = sizes.draw(draw.devices, draw.streams.generator("world/samples")).astype(np.float64)
    if "capacity" not in population and "device" not in population:
        for name, key in _LINKS.items():
            kind = units.Seconds if key == "latency" else units.BytesPerSecond
            if key in links and not (key == "latency" and "edge" in scenario["network"]):
                columns[name] = draw(links[key], f"world/{key if key == 'latency' else f'link-{key}'}", kind)
    return {name: values for name, values in columns.items() if values is not None}


def _of_energy(evidence: Evidence, said: Table) -> dict[str, Floats]:
    draw, columns = _Draw(evidence.run.scenario), dict[str, Floats | None]()
    battery = said.get("battery", {})
    for name, (key, kind) in _BATTERY.items():
        if key in battery:
            columns[name] = draw(battery[key], f"world/battery/{key}", kind)
    capacity, share = columns.get("capacity_j"), columns.get("initial_j")
    columns["initial_j"] = None if capacity is None or share is None else np.where(share > 0, capacity, 0.0) * share
    free = "preset" not in said and "device" not in evidence.run.scenario["population"]
    for name, key in _POWERS.items():
        if key in said or free:
            drawn = draw(said.get(key, {"kind": "constant", "value": "0 W"}), f"world/energy/{key}", units.Watts)
            columns[name] = None if drawn is None else drawn * (said["utilisation"] if key == "compute" else 1.0)
    for name, key in _BYTES.items():
        if (key in said or free) and not evidence.has_own_protocol:
            drawn = draw(said.get(key, {"kind": "constant", "value": "0 J/B"}), f"world/energy/{key}", units.JoulesPerByte)
            columns[name] = None if drawn is None else drawn * evidence.overhead
    if "tail_lasts" in said:
        columns["tail_s"] = draw(said["tail_lasts"], "world/energy/tail_lasts", units.Seconds)
    return {name: values for name, values in columns.items() if values is not None}


def _setting(evidence: Evidence, said: Table) -> dict[str, Any]:
    """What ``energy.json`` is to say, as far as the scenario does."""

    def place(told: Table | None, count: int) -> dict[str, float]:
        told = told or {}
        watts, joules, a_byte = (told.get(key) for key in ("idle", "update", "byte"))
        return {
            "idle_w": count * (0.0 if watts is None else _read(units.Watts, watts)),
            "update_j": 0.0 if joules is None else _read(units.Joules, joules),
            "j_byte": 0.0 if a_byte is None else _read(units.JoulesPerByte, a_byte),
        }

    setting = {
        "idle_while": said["idle_while"],
        "batteries": "battery" in said,
        "server": place(said.get("server"), 1),
        "edge": place(said.get("edge"), evidence.cells),
    }
    zones = said.get("carbon", {"zones": []})["zones"]
    if not any("file" in zone for zone in zones):
        starts = _read(units.Seconds, said["starts"])
        setting["zones"] = [
            {
                "name": zone["name"] or f"zone {number}",
                "hours": [_read(units.GramsPerJoule, one) for one in zone["intensity"]],
                "offset_s": (starts + _read(units.Seconds, zone["ahead"])) % DAY_S,
            }
            for number, zone in enumerate(zones)
        ]
    return setting


def _read(kind: Any, text: Any) -> Any:
    return TypeAdapter[Any](kind).validate_python(text)


def _alike(one: Any, other: Any) -> bool:
    """Equal tables, but for the rounding of their numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


class _Draw:
    """Draws a quantity of every device from its distribution as the scenario writes it; None where a file has the values."""

    def __init__(self, scenario: Table) -> None:
        self.devices, self.streams = scenario["population"]["devices"], Streams(scenario["seed"])

    def __call__(self, said: Table, purpose: str, kind: Any) -> Floats | None:
        generator = self.streams.generator(purpose)

        def value(key: str) -> float:
            return float(_read(kind, said[key]))

        match said["kind"]:
            case "constant":
                return np.full(self.devices, value("value"))
            case "uniform":
                return np.asarray(generator.uniform(value("low"), value("high"), self.devices))
            case "lognormal":
                normal = generator.standard_normal(self.devices)
                return value("median") * np.exp(normal * math.log(said["spread"]))  # type: ignore[no-any-return]
            case "choice":
                shares = said.get("shares")
                weights = None if shares is None else np.array(shares) / sum(shares)
                return np.asarray(generator.choice(np.array(_read(list[kind], said["values"])), self.devices, p=weights))
            case "list":
                return np.array(_read(list[kind], said["values"]), dtype=np.float64)
        return None

    def slowed(self, speed: Floats, said: Table) -> Floats | None:
        """Speeds with those of stragglers."""
        factor = self(said["factor"], "world/stragglers/factor", float)
        if factor is None:
            return None
        slow: NDArray[np.int64] = self.streams.generator("world/stragglers").permutation(self.devices)
        slow = slow[: round(said["share"] * self.devices)]
        speed = speed.copy()
        speed[slow] *= factor[slow]
        return speed
