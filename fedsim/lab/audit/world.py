"""Checks that the devices and the counting of energy follow from the scenario and its seed.

A scenario has the distribution of each quantity of a device, and every draw has a named random
stream. So the columns of the devices can be drawn again. Values from a user's file, a kind of
device or a preset are left out, because the folder does not contain them.
"""

import math
from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np
import pandas as pd

from fedsim.common import units
from fedsim.common.arrays import Floats
from fedsim.common.sizes import Sizes
from fedsim.common.streams import Streams
from fedsim.common.units import TICK_S
from fedsim.lab.audit.drawn import redraw
from fedsim.lab.audit.evidence import OWN_COLUMNS, Evidence, TomlTable
from fedsim.lab.audit.frames import read_quantity, report_differences
from fedsim.world.meters.energy import DAY_S, SETTING, TABLE

_LINKS = {
    "link_down": ("down", "link-down", units.BytesPerSecond),
    "link_up": ("up", "link-up", units.BytesPerSecond),
    "latency": ("latency", "latency", units.Seconds),
}
"""Dict from column of devices to key in the scenario, purpose of the random stream, and unit."""

_BATTERY = {
    "capacity_j": ("capacity", units.Joules),
    "initial_j": ("initial", float),
    "charge_w": ("charge", units.Watts),
}
"""Dict from column of batteries in ``energy.parquet`` to key in the scenario, and unit."""

_POWERS = {
    "idle_w": ("idle", units.Watts, "0 W"),
    "compute_w": ("compute", units.Watts, "0 W"),
    "receive_w": ("receive", units.Watts, "0 W"),
    "send_w": ("send", units.Watts, "0 W"),
    "tail_w": ("tail", units.Watts, "0 W"),
    "receive_j_byte": ("receive_byte", units.JoulesPerByte, "0 J/B"),
    "send_j_byte": ("send_byte", units.JoulesPerByte, "0 J/B"),
    "tail_s": ("tail_lasts", units.Seconds, None),
}
"""Dict from column of powers in ``energy.parquet`` to key in the scenario, unit, and default.

The default is the value if the scenario has neither the key nor a preset.
"""


def check_drawn_devices(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each device whose speed, link or sample count is not the drawn value.

    The values are drawn again from the scenario's distributions and seed. Nothing is checked if the
    table of devices lacks devices.
    """
    if not evidence.run.has_all_devices:
        return
    scenario = evidence.run.scenario
    population = scenario["population"]
    columns = {"speed": _draw_speeds(scenario)}
    if population.get("samples", {}).get("kind") in ("uniform", "long-tail"):
        sizes = read_quantity(Sizes, population["samples"])
        generator = Streams(scenario["seed"]).generator("world/samples")
        columns["samples"] = sizes.draw(population["devices"], generator).astype(np.float64)
    if "capacity" not in population and "device" not in population:
        columns.update(_draw_links(evidence))
    if "local" in population:
        columns.update(_draw_local_settings(scenario))
    yield from _check_columns(evidence.devices, columns, "")


def _draw_local_settings(scenario: TomlTable) -> dict[str, Floats]:
    """Draw the settings of ``population.local``: epochs, SGD steps, batch size, learning rate.

    Settings from a file are left out. A setting by kind of device is NaN, which equals any value,
    if the devices' kinds are from a file.

    Returns:
        Dict from column of ``devices.parquet`` to values; float64 [devices].
    """
    columns = {}
    for key, column in OWN_COLUMNS.items():
        section = scenario["population"]["local"].get(key)
        if section is None or section["kind"] == "file":
            continue
        if section["kind"] == "by-kind":
            values = _values_by_kind(scenario, section["values"])
        else:
            values = redraw(scenario, section, f"world/local/{key}", float)
        columns[column] = values
    return columns


def _values_by_kind(scenario: TomlTable, values: TomlTable) -> Floats:
    """Return a setting that depends on the kind of device, for each device; float64 [devices].

    The kinds are drawn again from the seed. A setting is NaN if its device's kind has none.

    Args:
        scenario: the scenario.
        values: value by name of the kind; ``default`` for all others.
    """
    count = scenario["population"]["devices"]
    section = scenario["population"]["device"]
    generator = Streams(scenario["seed"]).generator("world/device")
    match section["kind"]:
        case "constant":
            names = [section["value"]] * count
        case "choice":
            weights = None
            if "shares" in section:
                weights = np.array(section["shares"]) / sum(section["shares"])
            names = generator.choice(np.array(section["values"]), count, p=weights).tolist()
        case "list":
            names = section["values"]
        case _:
            return np.full(count, np.nan)
    default = values.get("default", math.nan)
    return np.array([values.get(name, default) for name in names], dtype=np.float64)


def _draw_speeds(scenario: TomlTable) -> Floats:
    """Draw the speed of each device (samples/s), with stragglers slowed down; float64 [devices]."""
    population = scenario["population"]
    speed = redraw(scenario, population.get("speed"), "world/speed", units.SamplesPerSecond)
    stragglers = population.get("stragglers")
    if stragglers is not None:
        count = population["devices"]
        order = Streams(scenario["seed"]).generator("world/stragglers").permutation(count)
        slow_devices = order[: round(stragglers["share"] * count)]
        factor = redraw(scenario, stragglers["factor"], "world/stragglers/factor", float)
        speed *= np.where(np.isin(np.arange(count), slow_devices), factor, 1.0)
    return speed


def _draw_links(evidence: Evidence) -> dict[str, Floats]:
    """Draw the rates (bytes/s) and the latency (s) of each device's link again, from the seed.

    The latencies of a graph's links on the way to the server are added.

    Returns:
        Dict from column of ``devices.parquet`` to values; float64 [devices].
    """
    scenario = evidence.run.scenario
    network = scenario["network"]
    # With edge servers or regions, the table's latency includes the way beyond the device's own
    # link, which is not drawn here.
    adds_latency = "edge" in network or network["kind"] == "regions"
    columns = {}
    for name, (key, purpose, unit) in _LINKS.items():
        if key == "latency" and adds_latency:
            continue
        section = network.get("device", {}).get(key)
        columns[name] = redraw(scenario, section, f"world/{purpose}", unit)
    layout = evidence.network
    if "latency" in columns and layout is not None and "delays" in layout:
        delays = np.array(layout["delays"]["places"], dtype=np.float64)
        columns["latency"] = columns["latency"] + np.resize(delays, len(columns["latency"]))
    return columns


def check_energy_settings(evidence: Evidence) -> Iterator[str]:
    """Yield findings if powers, batteries or ``energy.json`` do not follow from the scenario.

    ``energy.json`` has the settings by which the run counted energy, such as the zones of the grid.
    Powers and batteries of devices are drawn again from the seed.
    """
    scenario = evidence.run.scenario
    section = scenario.get("energy")
    if section is None or not evidence.run.has(TABLE):
        return
    settings = evidence.document(SETTING)
    overhead = math.nan if evidence.has_own_protocol else evidence.overhead
    for key, value in _expected_settings(section, evidence.cells, overhead).items():
        if not _is_json_close(settings[key], value):
            yield f"{key} is {settings[key]!r} in {SETTING}, the scenario says {value!r}"
    columns = {**_draw_batteries(scenario), **_draw_powers(scenario, overhead)}
    yield from _check_columns(evidence.frame(TABLE, tuple(columns)), columns, "energy: ")


def _draw_batteries(scenario: TomlTable) -> dict[str, Floats]:
    """Draw capacity, initial energy (J) and charging power (W) of each device's battery again.

    Returns:
        Dict from column of ``energy.parquet`` to values; float64 [devices].
    """
    battery = scenario["energy"].get("battery", {})
    columns = {}
    for name, (key, unit) in _BATTERY.items():
        columns[name] = redraw(scenario, battery.get(key), f"world/battery/{key}", unit)
    # The scenario gives the initial energy as a share of the capacity. The capacity may be
    # infinite, and a share of 0 times infinity would be NaN.
    share = columns["initial_j"]
    columns["initial_j"] = share * np.where(share > 0, columns["capacity_j"], 0.0)
    return columns


def _draw_powers(scenario: TomlTable, overhead: float) -> dict[str, Floats]:
    """Draw each device's powers (W), energies per byte (J) and tail time (s) again from the seed.

    Args:
        scenario: the scenario.
        overhead: bytes on the wire per byte of payload.

    Returns:
        Dict from column of ``energy.parquet`` to values; float64 [devices].
    """
    section = scenario["energy"]
    factors = {
        "compute_w": section["utilisation"],
        "receive_j_byte": overhead,
        "send_j_byte": overhead,
    }
    has_preset = "preset" in section or "device" in scenario["population"]
    columns = {}
    for name, (key, unit, default) in _POWERS.items():
        default_section = None
        if default is not None and not has_preset:
            default_section = {"kind": "constant", "value": default}
        values = redraw(scenario, section.get(key, default_section), f"world/energy/{key}", unit)
        columns[name] = values * factors.get(name, 1.0)
    return columns


def _check_columns(table: pd.DataFrame, drawn: Mapping[str, Floats], prefix: str) -> Iterator[str]:
    """Yield a finding for each cell of a table that differs from the drawn value.

    Args:
        table: a table of devices.
        drawn: dict from column to expected values, NaN if any value is right; float64 [devices].
        prefix: text before each finding.
    """
    template = (
        prefix + "{name} of device {row} is {stated!r}; by the scenario and its seed {expected!r}"
    )
    for name, values in drawn.items():
        expected = values
        if len(table) == len(values):
            expected = np.where(np.isnan(values), table[name], values)
        slack = TICK_S if name in ("latency", "tail_s") else 0.0
        yield from report_differences(template, table, {name: expected}, atol=slack, equal_nan=True)


def _expected_settings(section: TomlTable, cells: int, overhead: float) -> dict[str, object]:
    """Return the entries of ``energy.json`` that the scenario's ``[energy]`` section gives.

    Zones are left out if any of them is from a user's file.

    Args:
        section: the scenario's ``[energy]`` section.
        cells: count of the network's cells.
        overhead: bytes on the wire per byte of payload.
    """
    settings = {
        "idle_while": section.get("idle_while", "working"),
        "batteries": "battery" in section,
        "server": _server_energy(section.get("server") or {}, 1, overhead),
        "edge": _server_energy(section.get("edge") or {}, cells, overhead),
    }
    zones = section.get("carbon", {"zones": []})["zones"]
    if any("file" in zone for zone in zones):
        return settings
    starts = read_quantity(units.Seconds, section["starts"])
    settings["zones"] = []
    for number, zone in enumerate(zones):
        hours = read_quantity(list[units.GramsPerJoule], zone["intensity"])
        ahead = read_quantity(units.Seconds, zone["ahead"])
        settings["zones"].append(
            {
                "name": zone["name"] or f"zone {number}",
                "hours": hours * (24 // len(hours)),  # a shorter list repeats
                "offset_s": (starts + ahead) % DAY_S,
            }
        )
    return settings


def _server_energy(section: TomlTable, count: int, overhead: float) -> dict[str, float]:
    """Return the energy settings of the server, or of ``count`` edge servers together.

    Args:
        section: the scenario's section on their energy.
        count: count of servers, whose idle powers are added.
        overhead: bytes on the wire per byte of payload.

    Returns:
        Dict with ``idle_w`` (W), ``update_j`` (J per aggregated update) and ``j_byte`` (J per byte
        of payload).
    """
    idle = read_quantity(units.Watts, section.get("idle") or "0 W")
    update = read_quantity(units.Joules, section.get("update") or "0 J")
    byte = read_quantity(units.JoulesPerByte, section.get("byte") or "0 J/B")
    return {"idle_w": count * idle, "update_j": update, "j_byte": byte * overhead}


def _is_json_close(stated: object, expected: object) -> bool:
    """Whether two JSON values are equal up to rounding; NaN in ``expected`` equals any number."""
    if isinstance(stated, dict) and isinstance(expected, dict):
        if stated.keys() != expected.keys():
            return False
        return all(_is_json_close(stated[key], expected[key]) for key in stated)
    if isinstance(stated, list) and isinstance(expected, list):
        return len(stated) == len(expected) and all(map(_is_json_close, stated, expected))
    if isinstance(stated, float) or isinstance(expected, float):
        number, expected_number = cast("tuple[float, float]", (stated, expected))
        return math.isnan(expected_number) or math.isclose(number, expected_number, rel_tol=1e-9)
    return bool(stated == expected)
