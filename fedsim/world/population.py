"""Population of devices as columns: a device is an index, and has a process only during a task."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.common.registry import Registry
from fedsim.common.sizes import LongTailSizes, UniformSizes
from fedsim.common.spec import OnlyWith, Spec
from fedsim.common.streams import Streams
from fedsim.common.training import Batching, CutBy, Training
from fedsim.world.availability import AlwaysOn, Availability, AvailabilitySpec
from fedsim.world.calendar import Calendar, CalendarSpec
from fedsim.world.columns import ALL, alike, distinct, mean
from fedsim.world.compute import HostSpec, SlowPhases
from fedsim.world.device_kinds import (
    CAPACITIES,
    Capacity,
    CapacityModel,
    OwnKind,
    find_kind,
)
from fedsim.world.distributions import (
    Choice,
    Constant,
    Count,
    Factor,
    FactorDistribution,
    FromFile,
    Jitter,
    JitterDistribution,
    Listed,
    NameDistribution,
    SpeedDistribution,
)
from fedsim.world.lifetimes import ArrivalsSpec, DeparturesSpec
from fedsim.world.local import LocalSpec, OwnTraining
from fedsim.world.rooflines import Rooflines
from fedsim.world.task import WorkAmounts

# A training step is a forward pass and a backward pass at twice its cost, so that a forward pass
# costs a third of the step.
_FORWARD_SHARE = 1 / 3

DeadlineBase = Literal["unslowed", "all"]
"""Base of a relative deadline.

``unslowed``: the mean epoch time as if there were no stragglers. ``all``: the mean epoch time with
the stragglers at their reduced speed.
"""


@dataclass
class Population:
    """Properties of all devices as arrays with one entry per device.

    Attributes:
        speed: training speed on the reference model (samples/s). If devices have kinds, it is the
            speed on the trained model in full batches.
        samples, version: count of training samples that the device holds now, and the version of
            its data, from 0; int64.
        cost: cost of a sample of the trained model, relative to the reference model.
        arrival, departure: time at which the device joins, and leaves for good (s), float64;
            ``inf`` for a device that never leaves.
        slowness: factor of a straggler's speed, already contained in ``speed``; 1 for the devices
            that are no stragglers.
        rooflines: training times of kinds of devices, instead of ``speed`` and ``cost``.
        flops: FLOP/s that each device reaches, float64; None if unknown.
        share_of: function that returns the relative cost of a sample of a smaller model
            (``Training.cut``).
        batching: how an epoch's samples are divided into batches.
        own: local trainings that differ by device; None if all devices train alike.
        trainable: count of devices that may train, the first ones.
    """

    speed: Floats
    samples: Ints
    cost: float
    arrival: Floats
    departure: Floats
    slowness: Floats = field(default_factory=lambda: np.ones(1))
    rooflines: Rooflines | None = None
    flops: Floats | None = None
    share_of: Callable[[CutBy, float], float] | None = None
    batching: Batching = field(default=Batching(1))
    own: OwnTraining | None = None
    version: Ints = field(init=False)
    trainable: int = field(init=False)

    def __post_init__(self) -> None:
        self.trainable = len(self.speed)
        self.version = alike(0, len(self.speed))
        self.slowness = np.broadcast_to(self.slowness, self.speed.shape)

    def shift(self, device: int, version: int, samples: int) -> None:
        """Replace the device's data by another version, which has ``samples`` training samples."""
        if not self.version.flags.writeable:  # arrays that were shared until this first shift
            self.version, self.samples = self.version.copy(), self.samples.copy()
        self.version[device] = version
        self.samples[device] = samples

    def training_s(self, device: int, training: Training, samples: int) -> float:
        """Return the time (s) of an epoch on ``samples`` samples, without random variation.

        Args:
            device: index of the device.
            training: the training, which may be of a smaller model.
            samples: count of samples on which the device trains.
        """
        if self.own is not None:
            training = self.own.with_batch(device, training)
        if self.rooflines is not None:
            return (
                training.share
                * self.rooflines.training_s(device, training, samples)
                / self.slowness.item(device)
            )
        cost = self.cost * (1.0 + _FORWARD_SHARE * training.asked_besides)
        if training.cut is not None and self.share_of is not None:
            cost *= self.share_of(*training.cut)
        return training.share * (
            training.samples_an_epoch(samples, self.batching) * cost / self.speed.item(device)
        )

    def testing_s(self, device: int, samples: int) -> float:
        """Return the time (s) of a forward pass over ``samples`` samples, without jitter."""
        if self.rooflines is not None:
            return self.rooflines.testing_s(device, samples) / self.slowness.item(device)
        return samples * self.cost / self.speed.item(device) * _FORWARD_SHARE

    def working_s(self, device: int, work: WorkAmounts) -> float:
        """Return the time (s) of a step ``Work``, which computes without a model.

        Random variation and slow phases are not included.

        Args:
            device: index of the device.
            work: the samples, FLOPs and seconds of the step.

        Raises:
            SimulationError: the work has FLOPs, and the FLOP/s of the devices are unknown.
        """
        seconds = work.seconds
        if work.samples:
            seconds += work.samples * self.cost / self.speed.item(device)
        if work.flops:
            if self.flops is None:
                raise SimulationError(
                    "work in FLOPs needs population.device, or population.speed with "
                    "reference_flops"
                )
            seconds += work.flops / self.flops.item(device)
        return seconds

    def failing_s(self, device: int, training: Training | None, samples: int) -> float | None:
        """Return the time after which a computation runs out of memory (s); None if it has enough.

        Args:
            device: index of the device.
            training: the training; None for a test.
            samples: count of samples on which the device computes.
        """
        if self.rooflines is None:
            return None
        if self.own is not None and training is not None:
            training = self.own.with_batch(device, training)
        return self.rooflines.failing_s(device, training, samples)

    def fit(
        self, device: int, training: Training, samples: int, rooflines: Rooflines | None = None
    ) -> Training:
        """Return a training limited to those last layers for which its device has memory.

        It is unchanged if the memory suffices for all, or for not even one.

        Args:
            device: index of the device.
            training: the training.
            samples: samples on which the device trains.
            rooflines: the memory of kinds of devices; None for ``self.rooflines``.
        """
        rooflines = rooflines or self.rooflines
        if rooflines is None:
            return training
        if self.own is not None:
            training = self.own.with_batch(device, training)
        return rooflines.fit(int(rooflines.which[device]), training, samples)

    def epochs_s(self, devices: slice = ALL, over: DeadlineBase = "all") -> Floats:
        """Return the time (s) of an epoch on each device in a slice, float64 [devices].

        Random variation (jitter) is not included.

        Args:
            devices: the slice; by default all devices.
            over: ``all``: stragglers count at their reduced speed; ``unslowed``: at their usual speed.
        """
        slowness = self.slowness[devices] if over == "unslowed" else 1.0
        if self.rooflines is not None:
            sizes = None
            if self.own is not None:
                sizes = self.own.batch_size
            epochs: Floats = self.rooflines.epochs_s(self.samples, sizes) / self.slowness
            return epochs[devices] * slowness
        samples = self._taken(devices)
        return samples * self.cost / (self.speed[devices] / slowness)

    def _taken(self, devices: slice) -> Ints:
        """Return how many samples an epoch of each device in a slice trains on, int64."""
        samples = self.samples[devices]
        if self.own is None or self.batching.last != "drop":
            return self.batching.taken(samples)
        own_sizes = self.own.batch_size[devices]
        sizes = np.where(own_sizes == 0, self.batching.size, own_sizes)
        return samples - samples % sizes * (samples >= sizes)

    def batching_of(self, device: int) -> Batching:
        """Return how the samples of an epoch on a device are divided into batches."""
        if self.own is None:
            return self.batching
        return self.own.batching(device, self.batching)

    def passes(self, devices: slice, epochs: int) -> Floats:
        """Return how often a training of each device in a slice passes over its data, float64.

        Args:
            devices: the slice.
            epochs: ``strategy.local_epochs``, for devices without their own epochs or steps.
        """
        samples = self.samples[devices]
        if self.own is None:
            return np.full(len(samples), float(epochs))
        return self.own.passes(devices, epochs, samples, self.batching)

    def mean_epoch_s(self, over: DeadlineBase) -> float:
        """Return the mean time of an epoch over the devices that may train (s), without jitter.

        Args:
            over: ``all``: stragglers count at their reduced speed; ``unslowed``: at their usual speed.
        """
        if self.rooflines is not None:
            return float(np.mean(self.epochs_s(over=over)[: self.trainable]))
        with np.errstate(divide="ignore"):
            return mean(lambda devices: self.epochs_s(devices, over), self.trainable)


class Stragglers(Spec):
    """Tentative stragglers (CATA-Fed, section 5.2.2): a share of the devices, in a random order,
    is always slow.
    """

    share: float = Field(ge=0.0, le=1.0)
    """share of the devices that are slow, 0 to 1."""
    factor: FactorDistribution = Constant[Factor](value=0.5)
    """factor of the speed of each slow device."""

    def slowness(self, streams: Streams, devices: int, root: Path | None) -> Floats:
        """Draw by which factor each device's speed is reduced; float64 [devices].

        The factor is 1 for devices that are no stragglers. Draws are from ``world/stragglers`` and
        ``world/stragglers/factor``.
        """
        generator = streams.generator("world/stragglers/factor")
        factor = self.factor.by_device("population.stragglers.factor", generator, devices, root)
        slow = streams.generator("world/stragglers").permutation(devices)[
            : round(self.share * devices)
        ]
        slowness = np.ones(devices)
        slowness[slow] = factor[slow]
        return slowness


Shortage = Literal["fail", "refuse", "fewer-layers"]
"""Treatment of a device with too little memory for the training."""

SAMPLE_COUNTS = Registry.of(
    "sample count",
    UniformSizes,
    LongTailSizes,
    Listed[Count],
    FromFile[Count],
    usual="uniform",
    by_device=True,
)
SamplesByDevice = Annotated[
    UniformSizes | LongTailSizes | Listed[Count] | FromFile[Count], SAMPLE_COUNTS
]


class PopulationSpec(Spec):
    """``[population]``: how many devices, how fast, and when they can be reached."""

    devices: int = Field(default=100, ge=1, le=100_000_000)
    """count of devices."""
    tested_only: int | None = Field(default=None, ge=1)
    """count of devices, the last ones, that are tested and never train: no strategy meets them. None:
    all may train.
    """
    speed: SpeedDistribution | None = None
    """training speed in samples/s, for the scenario's own model, or for the reference model if
    that is given.
    """
    capacity: Annotated[CapacityModel, CAPACITIES] | None = None
    """speeds and links of real phones or hospitals, instead of ``speed`` and links; short:
    ``population = "fedscale"``.
    """
    device: NameDistribution | None = None
    """kinds of the devices by name (see ``fedsim list``), instead of ``speed``: one, shares, a
    list, or from a file.
    """
    kinds: dict[str, OwnKind] = Field(default_factory=dict)
    """kinds of your own by name: all figures of ``DeviceKind``, or the kind that they are
    ``like`` and other figures.
    """
    short_of_memory: Annotated[Shortage, OnlyWith("device")] = "fail"
    """devices with too little memory for the training. ``fail``: their tasks end for lack of memory;
    ``refuse``: they are never admitted; ``fewer-layers``: they train the last layers that fit.
    """
    samples: SamplesByDevice | None = None
    """training samples without learning: ``{low, high}``, ``"long-tail"``, a list or a file's
    column; None: as dealt.
    """
    reference_flops: float | None = Field(default=None, ge=1.0, le=1e30)
    """FLOPs a sample (forward and backward) of the model that ``speed`` is for; None: ``speed``
    is for the trained model.
    """
    jitter: JitterDistribution = Constant[Jitter](value=0.0)
    """coefficient of variation of an epoch's time."""
    slow_phases: SlowPhases | None = None
    """phases in which a device is slow."""
    stragglers: Stragglers | None = None
    """devices that are slow all the time."""
    host: HostSpec | None = None
    """machines that the devices share; None: each computes alone."""
    calendar: CalendarSpec | None = None
    """date and time of simulated time 0, and the devices' time zones; None: midnight UTC for all
    devices.
    """
    availability: AvailabilitySpec = AlwaysOn()
    """when devices can be reached while they are there."""
    fitted_at_once: int | None = Field(default=None, ge=1)
    """clients at a time in the log that this was fitted to (``fedsim calibrate``); ``fedsim
    check`` warns of other numbers.
    """
    local: LocalSpec | None = None
    """epochs, steps, batch size and learning rate by device or by kind of device; None: all devices
    train alike.
    """
    arrivals: ArrivalsSpec | None = None
    """devices that join later; None if all are there from the start."""
    departures: DeparturesSpec | None = None
    """devices that leave for good; None if all stay."""

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, data: object) -> object:
        return {"capacity": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _check_speeds(self) -> Self:
        keys = [name for name in ("speed", "capacity", "device") if getattr(self, name) is not None]
        if len(keys) > 1:
            raise ValueError(
                f"{keys[0]!r} and {keys[1]!r} both say how fast devices are; give one of them"
            )
        if self.device is not None and self.reference_flops is not None:
            raise ValueError(
                "'reference_flops' is for 'speed'; the kinds of 'device' know how fast they are"
            )
        names: Sequence[str] = ()
        if isinstance(self.device, Constant):
            names = [self.device.value]
        elif isinstance(self.device, Choice | Listed):
            names = self.device.values
        for name in names:
            find_kind(name, self.kinds, "population.device")
        return self

    @model_validator(mode="after")
    def _check_hosts(self) -> Self:
        if self.host is None:
            return self
        if self.slow_phases is not None:
            raise ValueError(
                "'host' shares its cores, which 'slow_phases' cannot change; give one of them"
            )
        if self.host.number > self.devices:
            raise ValueError(
                f"'host' has {self.host.number} hosts for {self.devices} devices; allowed are "
                f"1 to {self.devices}"
            )
        return self

    @model_validator(mode="after")
    def _check_presence(self) -> Self:
        if self.arrivals is not None:
            self.arrivals.check("population.arrivals", self.devices)
        if self.departures is not None:
            self.departures.check("population.departures", self.devices)
        if self.trainable < 1:
            raise ValueError(
                f"'tested_only' is {self.tested_only} for {self.devices} devices; allowed are 1 to "
                f"{self.devices - 1}, so that one device can train"
            )
        return self

    @property
    def trainable(self) -> int:
        """Count of devices that may train; they have the first IDs."""
        return self.devices - (self.tested_only or 0)

    @property
    def comes_and_goes(self) -> bool:
        """Whether any device may be unavailable, arrive late or depart."""
        return (
            self.availability.kind != "always"
            or self.arrivals is not None
            or self.departures is not None
        )

    def capacities(self, streams: Streams, root: Path | None) -> Capacity:
        """Return the devices' speeds (samples/s), and their links if a file or kinds have them.

        Args:
            streams: random streams.
            root: folder of data files; None for the working directory.

        Raises:
            DataError, ScenarioError: a file is missing or malformed.
        """
        if self.capacity is not None:
            return self.capacity.draw(streams, self.devices, root)
        if self.device is None:
            speed = self.speed if self.speed is not None else Constant(value=math.inf)
            return Capacity(
                speed.by_device(
                    "population.speed", streams.generator("world/speed"), self.devices, root
                ),
                None,
            )
        names = self.device.by_device(
            "population.device", streams.generator("world/device"), self.devices, root
        )
        kind_names, which = distinct(names)
        kinds = [find_kind(name, self.kinds, "population.device") for name in kind_names.tolist()]
        down, up, latency = (
            np.array([getattr(kind, name) for kind in kinds])[which]
            for name in ("down", "up", "latency")
        )
        return Capacity(
            alike(np.inf, self.devices), (down, up, latency), kinds, which, kind_names.tolist()
        )

    def sizes(self, streams: Streams, root: Path | None) -> Ints:
        """Draw the devices' training sample counts in a world without data, int64 [devices].

        Args:
            streams: random streams; draws are from ``world/samples``.
            root: folder of data files; None for the working directory.
        """
        generator = streams.generator("world/samples")
        if isinstance(self.samples, UniformSizes | LongTailSizes):
            return self.samples.draw(self.devices, generator)
        assert self.samples is not None
        return self.samples.by_device("population.samples", generator, self.devices, root).astype(
            np.int64
        )

    def jitters(self, streams: Streams, root: Path | None) -> Floats:
        """Draw the coefficient of variation of each device's epoch time, float64 [devices].

        Args:
            streams: random streams; draws are from ``world/jitter/size``.
            root: folder of data files; None for the working directory.
        """
        silent = isinstance(self.jitter, Constant) and self.jitter.value == 0
        if (
            silent
            and self.capacity is not None
            and (own := self.capacity.jitters(streams, self.devices)) is not None
        ):
            return own
        return self.jitter.by_device(
            "population.jitter", streams.generator("world/jitter/size"), self.devices, root
        )

    def paths(self, streams: Streams, root: Path | None) -> Availability:
        """Build the availability of all devices (when each can be reached).

        Arrivals and departures of devices are not applied yet.

        Args:
            streams: random streams.
            root: folder of data files; None for the working directory.
        """
        calendar = (
            Calendar.assumed(self.devices)
            if self.calendar is None
            else self.calendar.build(streams, self.devices, root)
        )
        return self.availability.build_on(streams, self.devices, root, calendar)

    def build(
        self,
        streams: Streams,
        speed: Floats,
        samples: Ints,
        flops_per_sample: float,
        root: Path | None = None,
        rooflines: Rooflines | None = None,
        flops: Floats | None = None,
    ) -> Population:
        """Build the population from its sampled columns.

        Args:
            streams: random streams.
            speed: training speed of each device before it is slowed (samples/s), [devices]; ignored
                if there are ``rooflines``.
            samples: count of training samples of each device, int64 [devices].
            flops_per_sample: FLOPs of training on one sample.
            root: folder of data files; None for the working directory.
            rooflines: speeds of kinds of devices by computation and memory.
            flops: FLOP/s of each device before it is slowed, [devices]; None: ``speed`` times
                ``reference_flops``.

        Raises:
            ScenarioError: a device has no speed, or leaves before it arrives.
        """
        if rooflines is not None:
            if self.local is None or self.local.batch_size is None:
                rooflines.check(int(samples.min()))
            speed = rooflines.speeds()
        _check_speed(speed)
        if flops is None and self.reference_flops is not None:
            flops = speed * self.reference_flops
        slowness: Floats = np.ones(1)
        if self.stragglers is not None:
            slowness = self.stragglers.slowness(streams, self.devices, root)
            speed = speed * slowness
            if flops is not None:
                flops = flops * slowness
        cost = 1.0
        if self.reference_flops is not None:
            cost = flops_per_sample / self.reference_flops
        arrival = self._draw_arrival(streams, root)
        departure = self._draw_departure(streams, arrival, root)
        if self.tested_only is not None:  # to a strategy they are devices that never come
            arrival = arrival.copy()
            arrival[self.trainable :] = np.inf
        population = Population(
            speed=speed,
            samples=samples,
            cost=cost,
            arrival=arrival,
            departure=departure,
            slowness=slowness,
            rooflines=rooflines,
            flops=flops,
        )
        population.trainable = self.trainable
        return population

    def _draw_arrival(self, streams: Streams, root: Path | None) -> Floats:
        """Draw the time at which each device joins (s), float64 [devices]."""
        start = alike(0.0, self.devices)
        if self.arrivals is None:
            return start
        return self.arrivals.draw("population.arrivals", streams, start, 0.0, root)

    def _draw_departure(self, streams: Streams, arrival: Floats, root: Path | None) -> Floats:
        """Draw the time at which each device leaves for good (s), float64 [devices].

        Args:
            streams: random streams.
            arrival: time at which each device joins (s), float64 [devices].
            root: folder of data files; None for the working directory.

        Raises:
            ScenarioError: a device leaves before it arrives.
        """
        if self.departures is None:
            return alike(np.inf, self.devices)
        departure = self.departures.draw("population.departures", streams, arrival, np.inf, root)
        too_early = departure <= arrival
        if too_early.any():
            device = int(np.argmax(too_early))
            raise ScenarioError(
                f"population.departures: device {device} leaves at {departure[device]:.12g} s but "
                f"arrives at {arrival[device]:.12g} s; allowed are times after its arrival"
            )
        return departure


def _check_speed(speed: Floats) -> None:
    """Raise ``ScenarioError`` if the speed of any device is NaN, zero or negative."""
    slowest = int(np.argmin(speed))
    if not speed[slowest] > 0:
        raise ScenarioError(
            f"population.speed of device {slowest} is {speed[slowest]:g} samples/s; allowed is more "
            "than 0"
        )
