"""Kinds of devices, such as a phone model, and the speeds, links and powers of devices by kind.

The file ``device_kinds.toml`` is the catalogue of kinds. Each of its figures has a source and a date.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from fedsim.common.arrays import Floats
from fedsim.common.errors import ScenarioError, nearest, show_value
from fedsim.common.files import read_toml
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.units import (
    Bytes,
    FlopPerSecond,
    JoulesPerByte,
    LinkRate,
    Seconds,
    Watts,
)

_TABLE = Path(__file__).with_suffix(".toml")
LINKS = _TABLE.with_name("links.toml")
"""Path of the catalogue of kinds of links, from which users can copy figures into scenarios.

A kind of link has rates, latency, their spread between users, and a suitable energy preset.
"""

SpeedShare = Annotated[float, Field(gt=0.0, le=1.0)]


class DeviceKind(Spec):
    """Speed, memory, link and powers of a kind of device, such as a phone or a board.

    Attributes:
        flops, flops_share: peak FLOP/s at float32 of the processor that trains, and the share
            that training reaches.
        gpu: whether the processor is a GPU; the times of a CPU include additional passes over the
            data of an operation.
        arm: whether the processor has ARM cores, for which torch has other kernels.
        bandwidth, bandwidth_share: peak bytes/s of the memory, and the share that training reaches.
        memory, memory_share: size of the memory (bytes), and the share that a training may take.
        batch, epoch: fixed time that is added to each batch, and to each epoch (s).
        down, up, latency: usual rates (bytes/s) and latency (s) of the device's link; a scenario's
            ``[network.device]`` overrides them.
        idle, compute, radio: power while idle, and the powers that computing, and sending or
            receiving, add to it (W).
        receive_byte, send_byte: energy that each byte on the wire adds (J/B).
        tail, tail_lasts: power of a radio that stays awake after a transfer (W), and the time for
            which it stays awake (s).
    """

    flops: FlopPerSecond
    flops_share: SpeedShare = 0.5
    gpu: bool = False
    arm: bool = False
    bandwidth: LinkRate
    bandwidth_share: SpeedShare = 0.5
    memory: Bytes
    memory_share: SpeedShare = 0.5
    batch: Seconds = 0.0
    epoch: Seconds = 0.0
    down: LinkRate = math.inf
    up: LinkRate = math.inf
    latency: Seconds = 0.0
    idle: Watts = 0.0
    compute: Watts = 0.0
    radio: Watts = 0.0
    receive_byte: JoulesPerByte = 0.0
    send_byte: JoulesPerByte = 0.0
    tail: Watts = 0.0
    tail_lasts: Seconds = 0.0

    @model_validator(mode="after")
    def _one_processor(self) -> "DeviceKind":
        if self.gpu and self.arm:
            raise ValueError("'gpu' and 'arm' both say which kernels train; give one of them")
        return self

    @property
    def training_memory(self) -> float:
        """Bytes of a device's memory that a training may take."""
        return self.memory * self.memory_share


def _complete(value: object) -> object:
    """Fill the missing values of a user's kind of device from the kind that its key ``like`` names.

    Args:
        value: the user's table of the scenario.

    Returns:
        The table with all values (FLOP/s, memory, powers ...) and without ``like``; a table that has
        no ``like`` is unchanged.
    """
    if not isinstance(value, Mapping) or "like" not in value:
        return value
    table: dict[object, object] = {}
    for name, figure in figures(value["like"], "like").items():
        table[name] = figure.value
    table |= value  # the user's values have precedence
    del table["like"]
    return table


class _LikeSchema:
    """Annotation of ``DeviceKind`` that adds the key ``like`` to its JSON schema.

    ``like`` names the kind from which missing values are taken, so all other keys become optional.
    """

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        kind = handler.resolve_ref_schema(handler(core))
        like = {
            "type": "string",
            "description": "A kind of the catalogue, which this one is like in all that it leaves out.",
        }
        return {**kind, "properties": {"like": like, **kind["properties"]}, "required": []}


OwnKind = Annotated[DeviceKind, BeforeValidator(_complete), _LikeSchema()]


class Figure(NamedTuple):
    """One property of a kind of device, such as its memory, with the source of its value.

    Attributes:
        value: the value, in the notation of a scenario.
        source: publication of the value; "estimate" and the reason if it is not published.
        date: the month of the source.
    """

    value: Any
    source: str
    date: str


def catalogue(file: Path = _TABLE) -> dict[str, str]:
    """Return the kinds of devices (or links) in a catalogue file: name -> description.

    Args:
        file: the catalogue: of kinds of devices by default, ``LINKS`` for kinds of links.
    """
    return {name: entry["title"] for name, entry in _table(file).items()}


@cache
def _table(file: Path = _TABLE) -> dict[str, Any]:
    return read_toml(file)


def figures(name: object, key: str, file: Path = _TABLE) -> dict[str, Figure]:
    """Return the properties of a kind of device or link: name -> value with its source.

    Args:
        name: name of the kind.
        key: the key of the scenario that has the name, for error messages.
        file: the catalogue: of kinds of devices by default, ``LINKS`` for kinds of links.

    Raises:
        ScenarioError: the file has no kind of this name.
    """
    table = _table(file)
    if not isinstance(name, str) or name not in table:
        raise ScenarioError(
            f"{key} is {show_value(name)}; allowed are {', '.join(table)}{nearest(str(name), table)}"
        )
    return {field: Figure(*entry) for field, entry in table[name].items() if field != "title"}


def estimates(names: Sequence[str], *, links: bool, energy: bool) -> str:
    """Return a warning that names the estimated properties of some kinds of devices.

    A property is estimated if no value is published.

    Args:
        names: names of kinds of devices; the user's own kinds are ignored.
        links: whether properties of links are included.
        energy: whether powers are included.

    Returns:
        The warning; empty if no property is an estimate.
    """
    # the properties that the warning considers
    fields = {"flops", "flops_share", "bandwidth", "bandwidth_share", "batch"}
    if links:
        fields |= {"down", "up", "latency"}
    if energy:
        fields |= {*KIND_POWERS.values()}
    phrases = []  # for each kind with estimates: its name and the estimated properties
    for name in names:
        if name not in _table():
            continue
        estimated = []
        for field, figure in figures(name, "kind").items():
            if field in fields and figure.source.startswith("estimate"):
                estimated.append(field)
        if estimated:
            phrases.append(f"{name} ({', '.join(estimated)})")
    if not phrases:
        return ""
    return f"rests on figures that are estimates, which nobody has measured: {'; '.join(phrases)}"


def find_kind(name: str, user_kinds: Mapping[str, DeviceKind], key: str) -> DeviceKind:
    """Return the kind of device with a name.

    Args:
        name: name of a user's kind, or of a kind of the catalogue.
        user_kinds: the user's kinds.
        key: the key of the scenario that has the name, for error messages.

    Raises:
        ScenarioError: no kind has this name.
    """
    if name in user_kinds:
        return user_kinds[name]
    names = [*user_kinds, *_table()]
    if name not in names:
        allowed = f"allowed are {', '.join(names)}, or your own in population.kinds"
        raise ScenarioError(f"{key} is {show_value(name)}; {allowed}{nearest(name, names)}")
    values = {field: figure.value for field, figure in figures(name, key).items()}
    return DeviceKind.model_validate(values)


KIND_POWERS = {
    "idle_w": "idle",
    "compute_w": "compute",
    "receive_w": "radio",
    "send_w": "radio",
    "receive_j_byte": "receive_byte",
    "send_j_byte": "send_byte",
    "tail_w": "tail",
    "tail_s": "tail_lasts",
}
"""Coefficient of the energy meter -> the key of ``DeviceKind`` that has it."""


@dataclass(frozen=True)
class Capacity:
    """Speeds, links and kinds of all devices, from the scenario or drawn from its distributions.

    Attributes:
        speed: speeds of training (samples/s), infinity if the kinds of devices give the speed;
            float64 [devices].
        links: rates of the links to and from each device (bytes/s), and latencies (s) if they are
            known; float64 [devices] each. None if the section ``[network]`` gives the links.
        kinds: kinds of devices that occur; empty if devices have no kinds.
        which: index of each device's kind in ``kinds``; int64 [devices]. None if devices have no
            kinds.
        names: names of the kinds, in the order of ``kinds``.
    """

    speed: Floats
    links: tuple[Floats, ...] | None
    kinds: Sequence[DeviceKind] = ()
    which: NDArray[np.integer] | None = None
    names: Sequence[str] = ()

    def name(self, device: int) -> str | None:
        """Return the name of a device's kind; None if devices have no kinds."""
        return None if self.which is None else self.names[int(self.which[device])]

    def flops(self) -> Floats | None:
        """FLOP/s that each device reaches, float64 [devices]; None if devices have no kinds."""
        if self.which is None:
            return None
        kind_flops = np.array([kind.flops * kind.flops_share for kind in self.kinds])
        flops: Floats = kind_flops[self.which]
        return flops

    def powers(self) -> dict[str, Floats]:
        """Return the energy coefficients of each device, which follow from its kind.

        They are powers (W), energies per byte (J), and the time for which a radio stays awake after a
        transfer (s).

        Returns:
            Name (a key of ``KIND_POWERS``, such as ``idle_w``) -> float64 [devices]; empty if devices
            have no kinds.
        """
        if self.which is None:
            return {}
        columns = {}
        for name, key in KIND_POWERS.items():
            kind_values = np.array([getattr(kind, key) for kind in self.kinds])
            columns[name] = kind_values[self.which]  # ``which``: index of each device's kind
        return columns


class CapacityModel(Spec):
    """Base of the models of ``population.capacity``, which draw each device's speed and link jointly."""

    kind: str

    def draw(self, streams: Streams, devices: int, root: Path | None) -> Capacity:
        """Draw speeds and links of all devices.

        Args:
            streams: random streams of the run; draws are from the stream ``world/capacity``.
            devices: number of devices.
            root: folder of data files; None for the working directory.

        Returns:
            The speeds, links and kinds of all devices.
        """
        raise NotImplementedError

    def jitters(self, streams: Streams, devices: int) -> Floats | None:
        """Return how much epoch times vary at random on each device, by the device's kind.

        The key ``population.jitter``, if it is set, replaces these values.

        Args:
            streams: random streams of the run.
            devices: number of devices.

        Returns:
            Coefficient of variation for each device, float64 [devices]; None if epochs do not vary.
        """
        return None


_CAPACITIES = "fedsim.toolbox.worlds.capacities"
_KNOWN: dict[str, tuple[str | type[Spec], str]] = {
    "fedscale": (f"{_CAPACITIES}:FedScaleCapacity", "Rows of FedScale's client capacity file."),
    "hospitals-fets": (
        f"{_CAPACITIES}:HospitalsCapacity",
        "Hospitals as slow as those of the FeTS federation were.",
    ),
}
CAPACITIES = Registry("capacity", "", _KNOWN, usual="fedscale")
