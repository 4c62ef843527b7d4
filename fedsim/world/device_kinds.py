"""Kinds of devices by name: what each can compute, move, hold and send, and what power it draws.

``device_kinds.toml`` has the catalogue, every figure with its source and date; a scenario adds kinds of its own in
``population.kinds``, from nothing or from one of these.
"""

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from fedsim import files
from fedsim.errors import ScenarioError, nearest, shown
from fedsim.language.spec import Spec
from fedsim.language.units import Bytes, FlopPerSecond, Seconds, Watts
from fedsim.world.distributions import LinkRate

_TABLE = Path(__file__).with_suffix(".toml")

Share = Annotated[float, Field(gt=0.0, le=1.0)]


class DeviceKind(Spec):
    """The figures of a kind of device.

    Attributes:
        flops: peak FLOP/s at float32, of the part that trains (CPU or GPU).
        flops_share: how much of it training reaches.
        gpu: whether that part is a GPU, which spares the passes over data that CPUs make beside an operation.
        bandwidth: peak bytes/s of its memory.
        bandwidth_share: how much of it training reaches.
        memory: its memory.
        memory_share: how much of it a training may take.
        batch, epoch: fixed costs of each (s).
        down, up, latency: its usual link; a scenario's ``[network.device]`` goes before it.
        idle: power while it does nothing (W).
        compute: what computing adds to that (W).
        radio: what sending or receiving adds to that (W).
    """

    flops: FlopPerSecond
    flops_share: Share = 0.5
    gpu: bool = False
    bandwidth: LinkRate
    bandwidth_share: Share = 0.5
    memory: Bytes
    memory_share: Share = 0.5
    batch: Seconds = 0.0
    epoch: Seconds = 0.0
    down: LinkRate = math.inf
    up: LinkRate = math.inf
    latency: Seconds = 0.0
    idle: Watts = 0.0
    compute: Watts = 0.0
    radio: Watts = 0.0

    @property
    def room(self) -> float:
        """Bytes that a training may take up."""
        return self.memory * self.memory_share


def _based(value: Any) -> Any:
    """A kind of the user's own may be like one of the catalogue, but for what it says itself."""
    if not isinstance(value, Mapping) or "like" not in value:
        return value
    own = {key: figure for key, figure in value.items() if key != "like"}
    return {name: figure for name, (figure, *_) in figures(value["like"], "like").items()} | own


OwnKind = Annotated[DeviceKind, BeforeValidator(_based)]


class Figure(NamedTuple):
    """A figure of the catalogue, as a scenario would write it, its source ("estimate" with its reason where nobody has
    published it) and the date of that: ``YYYY-MM``.
    """

    value: Any
    source: str
    date: str


@cache
def catalogue() -> dict[str, str]:
    """Name -> what it is, of every kind in the catalogue."""
    return {name: entry["title"] for name, entry in _table().items()}


@cache
def _table() -> dict[str, Any]:
    return files.read_toml(_TABLE)


def figures(name: Any, key: str) -> dict[str, Figure]:
    """The figures of a kind of the catalogue, with their sources; ``ScenarioError`` at ``key`` if there is no such kind."""
    if name not in _table():
        raise ScenarioError(f"{key} is {shown(name)}; allowed are {', '.join(_table())}{nearest(str(name), _table())}")
    entry = _table()[name]
    return {field: Figure(*entry[field]) for field in DeviceKind.model_fields if field in entry}


def find_kind(name: str, own: Mapping[str, DeviceKind], key: str) -> DeviceKind:
    """A kind by its name: one of the user's own, or of the catalogue; ``ScenarioError`` at ``key`` if there is none."""
    if name in own:
        return own[name]
    if name not in _table():
        names = [*own, *_table()]
        raise ScenarioError(
            f"{key} is {shown(name)}; allowed are {', '.join(names)}, or your own in population.kinds{nearest(name, names)}"
        )
    return DeviceKind.model_validate({field: figure.value for field, figure in figures(name, key).items()})
