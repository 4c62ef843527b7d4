"""Speeds and links of devices: by kinds with a name, or by FedScale's table of real phones; and
how long kinds take to train.

``device_kinds.toml`` has the catalogue, every figure with its source and date. A kind's time
follows a roofline: each operation takes the longer of its arithmetic and its memory traffic
(Williams, Waterman and Patterson, "Roofline", CACM 2009). CPUs make further passes over some data,
GPUs none. A batch and an epoch have fixed costs besides.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ScenarioError, nearest, shown
from fedsim.common.files import read_toml
from fedsim.common.model_cost import ModelCost, Operations, Processor
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.training import Batching, CutBy, Training
from fedsim.common.units import (
    Bytes,
    FlopPerSecond,
    JoulesPerByte,
    LinkRate,
    Seconds,
    Watts,
    show_bytes,
)

_TABLE = Path(__file__).with_suffix(".toml")
LINKS = _TABLE.with_name("links.toml")
"""Kinds of links, to write scenarios with: rates, latency, their spread between users, and an
energy preset that fits.
"""

SpeedShare = Annotated[float, Field(gt=0.0, le=1.0)]


class DeviceKind(Spec):
    """The figures of a kind of device.

    Attributes:
        flops, flops_share: peak FLOP/s at float32 of the processor that trains, and the share
            that training reaches.
        gpu: whether that is a GPU, which makes no further passes over data.
        arm: whether it is a board with ARM cores, on which torch runs other kernels.
        bandwidth, bandwidth_share: peak bytes/s of its memory, and the share that training reaches.
        memory, memory_share: its memory, and the share that a training may take.
        batch, epoch: fixed costs of each (s).
        down, up, latency: its usual link; a scenario's ``[network.device]`` overrides it.
        idle, compute, radio: power while idle, and what computing, and sending or receiving, add
            to it (W).
        receive_byte, send_byte: what each byte on the wire adds (J/B).
        tail, tail_lasts: power of a radio that stays awake after a transfer (W), and for how long.
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
    def room(self) -> float:
        """Bytes that a training may take up."""
        return self.memory * self.memory_share


def _based(value: Any) -> Any:
    if not isinstance(value, Mapping) or "like" not in value:
        return value
    own = {key: figure for key, figure in value.items() if key != "like"}
    return {name: figure for name, (figure, *_) in figures(value["like"], "like").items()} | own


class _Like:
    """The key ``like`` in the schema for editors, which makes all other keys optional."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        kind = handler.resolve_ref_schema(handler(core))
        like = {
            "type": "string",
            "description": "A kind of the catalogue, which this one is like in all that it leaves out.",
        }
        return {**kind, "properties": {"like": like, **kind["properties"]}, "required": []}


OwnKind = Annotated[DeviceKind, BeforeValidator(_based), _Like()]


class Figure(NamedTuple):
    """A figure as a scenario writes it, its source ("estimate" and why, if none is published)
    and the source's month.
    """

    value: Any
    source: str
    date: str


def catalogue(file: Path = _TABLE) -> dict[str, str]:
    """Name -> description, of every kind in the catalogue; or in ``LINKS``."""
    return {name: entry["title"] for name, entry in _table(file).items()}


@cache
def _table(file: Path = _TABLE) -> dict[str, Any]:
    return read_toml(file)


def figures(name: Any, key: str, file: Path = _TABLE) -> dict[str, Figure]:
    """The figures of a kind of the catalogue, or of ``LINKS``, with their sources;
    ``ScenarioError`` at ``key`` for no kind.
    """
    known = _table(file)
    if name not in known:
        raise ScenarioError(
            f"{key} is {shown(name)}; allowed are {', '.join(known)}{nearest(str(name), known)}"
        )
    return {field: Figure(*said) for field, said in known[name].items() if field != "title"}


def estimates(names: Sequence[str], *, links: bool, energy: bool) -> str:
    """A warning that names these kinds' figures that are estimates, with those of links and
    energy if asked; else empty.
    """
    fields = {"flops", "flops_share", "bandwidth", "bandwidth_share", "batch"}
    fields |= {
        *(("down", "up", "latency") if links else ()),
        *(KIND_POWERS.values() if energy else ()),
    }
    found = []
    for name in names:
        known = figures(name, "kind") if name in _table() else {}
        of_kind = [
            field
            for field, figure in known.items()
            if field in fields and figure.source.startswith("estimate")
        ]
        found += [f"{name} ({', '.join(of_kind)})"] if of_kind else []
    return (
        f"rests on figures that are estimates, which nobody has measured: {'; '.join(found)}"
        if found
        else ""
    )


def find_kind(name: str, own: Mapping[str, DeviceKind], key: str) -> DeviceKind:
    """A kind by its name: one of the user's own, or of the catalogue; ``ScenarioError`` at
    ``key`` if there is none.
    """
    if name in own:
        return own[name]
    names = [*own, *_table()]
    if name not in names:
        allowed = f"allowed are {', '.join(names)}, or your own in population.kinds"
        raise ScenarioError(f"{key} is {shown(name)}; {allowed}{nearest(name, names)}")
    return DeviceKind.model_validate(
        {field: figure.value for field, figure in figures(name, key).items()}
    )


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
"""Draw of a kind of device, by the names that energy is counted by."""


@dataclass(frozen=True)
class Capacity:
    """Speeds of devices (samples/s, float64 [devices]), perhaps ``links``: down, up (bytes/s),
    latency (s), float64 [devices].

    ``which`` of the ``kinds``, with ``names``, each device is, int [devices]; None without kinds.
    """

    speed: Floats
    links: tuple[Floats, ...] | None
    kinds: Sequence[DeviceKind] = ()
    which: NDArray[np.integer] | None = None
    names: Sequence[str] = ()

    def name(self, device: int) -> str | None:
        """The name of a device's kind; None if it has none."""
        return None if self.which is None else self.names[int(self.which[device])]

    def flops(self) -> Floats | None:
        """FLOP/s that devices reach by their kinds, float64 [devices]; None without kinds."""
        return (
            None
            if self.which is None
            else np.array([kind.flops * kind.flops_share for kind in self.kinds])[self.which]
        )

    def powers(self) -> dict[str, Floats]:
        """Draw of devices by their kinds (W), by the names that energy is counted by; float64
        [devices] each.
        """
        if self.which is None:
            return {}
        return {
            name: np.array([getattr(kind, key) for kind in self.kinds])[self.which]
            for name, key in KIND_POWERS.items()
        }


class CapacityModel(Spec):
    """The base of speeds and links that come together, device by device."""

    kind: str

    def draw(self, streams: Streams, devices: int, root: Path | None) -> Capacity:
        """Speeds and links of all devices; draws from ``world/capacity``."""
        raise NotImplementedError

    def jitters(self, streams: Streams, devices: int) -> Floats | None:
        """Coefficients of variation of epochs, where ``population.jitter`` says none; float64
        [devices].
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


_CHECKED_BATCHES = range(16, 65)
_ARM_BATCH = 16
_ARM_NUMBERS = 3 * 224 * 224
_RULES: dict[Processor, str] = {
    "cpu": "times of training on a CPU follow a rule for batches of 16 to 64 on one core: 8 % off on "
    "the mean of six models, "
    "12 % at most; recurrent ones 8 % to 11 % on the mean, 28 % at most from batches of 4 on",
    "arm": "times of training on ARM cores follow a rule for batches of 16 images on a Raspberry Pi "
    "4: a model left out of its "
    "26 is 13 % off in the median, 52 % at most",
}


def _processor(kind: DeviceKind) -> Processor:
    if kind.gpu:
        return "gpu"
    return "arm" if kind.arm else "cpu"


def operations_s(
    operations: Operations,
    samples: int,
    flops: float,
    bandwidth: float,
    processor: Processor = "cpu",
) -> float:
    """Time of operations on a batch of ``samples`` (s), at so many FLOP/s and bytes/s; a GPU
    makes no further passes.
    """
    work, moved, again, arm_work, arm_again = (
        operations[:, 0::2] + samples * operations[:, 1::2]
    ).T
    if processor == "arm":
        work = arm_work
        again = arm_again
    return float(
        (
            np.maximum(work / flops, moved / bandwidth)
            + (0 if processor == "gpu" else again / bandwidth)
        ).sum()
    )


class Rooflines:
    """Training times of devices; ``which`` of the ``kinds`` each is; ``cost_of`` gives a smaller
    model's (``Training.cut``).
    """

    def __init__(
        self,
        kinds: Sequence[DeviceKind],
        which: NDArray[np.integer],
        cost: ModelCost,
        batching: Batching,
        cost_of: Callable[[CutBy, float], ModelCost] | None = None,
    ) -> None:
        self.kinds = kinds
        self.which = which
        self._cost = cost
        self._batching = batching
        self._batch_s = cache(self._batch_s_of)
        self._smaller = cache(lambda by, size: Rooflines(kinds, which, cost_of(by, size), batching))  # type: ignore[misc]

    def training_s(self, device: int, training: Training, samples: int) -> float:
        """Duration (s) of one epoch of a training."""
        if training.cut is not None:
            return self._smaller(*training.cut).training_s(
                device, replace(training, cut=None), samples
            )
        kind = int(self.which[device])
        batching = training.batching(self._batching)
        if not samples:
            return self.kinds[kind].epoch
        passes, rest = (
            (1, 0) if training.steps is None else divmod(training.steps, batching.count(samples))
        )
        if training.only_batch is not None:
            passes = 0
            rest = training.steps or 0
        size = min(batching.size, samples)
        learning_s, asking_s = (
            passes * self._epoch_s(kind, samples, batching, learns)
            + rest * self._batch_s(kind, size, learns)
            for learns in (True, False)
        )
        return self.kinds[kind].epoch + learning_s + training.asked_besides * asking_s

    def rules(self) -> list[str]:
        """Lines about the rules of training times that the kinds of the devices follow: the
        domain and the error of each.
        """
        processors = {_processor(kind) for kind in self._present()}
        return [_RULES[processor] for processor in sorted(processors & {*_RULES})]

    def outside_of_rules(self, numbers: int) -> list[str]:
        """Lines about what lies outside of that domain, for samples of so many ``numbers``."""
        size = self._batching.size
        processors = {_processor(kind) for kind in self._present()}
        lines = []
        if processors & {"cpu", "gpu"} and size not in _CHECKED_BATCHES:
            checked = f"{_CHECKED_BATCHES.start} to {_CHECKED_BATCHES.stop - 1}"
            lines.append(
                f"times of batches of {size} samples are less certain: they were compared with "
                f"real ones at {checked} "
                "(docs/time.md)"
            )
        if "arm" in processors and (size, numbers) != (_ARM_BATCH, _ARM_NUMBERS):
            lines.append(
                "times of boards with ARM cores are less certain: their rule is of batches of "
                f"{_ARM_BATCH} images of "
                f"{_ARM_NUMBERS} numbers, and here batches of {size} samples of {numbers} are "
                "trained on (docs/time.md)"
            )
        return lines

    def _present(self) -> list["DeviceKind"]:
        return [self.kinds[place] for place in np.unique(self.which).tolist()]

    def testing_s(self, device: int, samples: int) -> float:
        """Seconds of a forward pass over so many samples."""
        return self._pass_s(
            int(self.which[device]), samples, min(self._batching.size, samples), False
        )

    def epochs_s(self, samples: Ints) -> Floats:
        """Seconds of an epoch of every device on so many samples each, float64 [devices]."""
        seconds = np.empty(len(samples))
        for kind, figures in enumerate(self.kinds):
            own = self.which == kind
            counts, places = np.unique(samples[own], return_inverse=True)
            each = [
                figures.epoch + self._epoch_s(kind, count, self._batching, True)
                for count in counts.tolist()
            ]
            seconds[own] = np.array(each)[places]
        return seconds

    def speeds(self) -> Floats:
        """Samples/s of every device in full batches, float64 [devices]."""
        size = self._batching.size
        speeds = [size / self._batch_s(kind, size, True) for kind in range(len(self.kinds))]
        by_device: Floats = np.array(speeds)[self.which]
        return by_device

    def needed(self, training: Training | None, samples: int) -> float:
        """Bytes that training on so many samples, or with None testing on them, takes up."""
        if training is None:
            return self._cost.weights
        batch = self._largest_batch(training, samples)
        return (
            self._cost.memory
            + batch * self._cost.memory_a_sample
            + training.asked_besides * self._cost.weights
        )

    def failing_s(self, device: int, training: Training | None, samples: int) -> float | None:
        """Seconds until the device finds that it has no room for that: in the first forward
        pass; None if it has.
        """
        if training is not None and training.cut is not None:
            return self._smaller(*training.cut).failing_s(
                device, replace(training, cut=None), samples
            )
        kind = int(self.which[device])
        if self.needed(training, samples) <= self.kinds[kind].room:
            return None
        return self.kinds[kind].epoch + self._batch_s(
            kind, max(1, min(self._batching.size, samples)), False
        )

    def check(self, samples: int) -> None:
        """Raise ``ScenarioError`` for a model that no device has room to train on ``samples``."""
        needed = self.needed(Training(None), samples)
        room = max(kind.room for kind in self.kinds)
        if needed > room:
            sizes = (
                f"training the model takes {show_bytes(needed)}, and no device has room, at most "
                f"{show_bytes(room)}"
            )
            raise ScenarioError(f"population.device: {sizes}")

    def _largest_batch(self, training: Training, samples: int) -> int:
        batching = training.batching(self._batching)
        return max(min(batching.size, samples), batching.last_size(samples))

    def _epoch_s(self, kind: int, samples: int, batching: Batching, learns: bool) -> float:
        """Time of a pass over the batches of an epoch (s)."""
        if batching.last != "merge" or samples <= batching.size:
            return self._pass_s(kind, batching.taken(samples), min(batching.size, samples), learns)
        last = batching.last_size(samples)
        return self._pass_s(kind, samples - last, batching.size, learns) + self._batch_s(
            kind, last, learns
        )

    def _pass_s(self, kind: int, samples: int, size: int, learns: bool) -> float:
        full, rest = divmod(samples, size) if samples else (0, 0)
        return full * self._batch_s(kind, size, learns) + (
            self._batch_s(kind, rest, learns) if rest else 0.0
        )

    def _batch_s_of(self, kind: int, samples: int, learns: bool) -> float:
        figures = self.kinds[kind]
        cost = self._cost
        parts = (cost.forward, cost.backward, cost.update) if learns else (cost.forward,)
        rates = figures.flops * figures.flops_share, figures.bandwidth * figures.bandwidth_share
        return figures.batch + sum(
            operations_s(part, samples, *rates, _processor(figures)) for part in parts
        )
