"""``[population]`` of a scenario, from which a ``Population`` is built."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ScenarioError
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.sizes import LongTailSizes, UniformSizes
from fedsim.common.spec import OnlyWith, Spec
from fedsim.common.streams import Streams
from fedsim.world.availability import AlwaysOn, Availability, AvailabilitySpec
from fedsim.world.calendar import Calendar, CalendarSpec
from fedsim.world.columns import alike, distinct
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
from fedsim.world.hosts import HostSpec
from fedsim.world.lifetimes import ArrivalsSpec, DeparturesSpec
from fedsim.world.own_training import LocalSpec
from fedsim.world.population import Population
from fedsim.world.rooflines import Rooflines
from fedsim.world.time_variation import SlowPhases


class Stragglers(Spec):
    """``population.stragglers``: a random share of the devices is slow in the whole run.

    Source: CATA-Fed, section 5.2.2, tentative stragglers.

    Attributes:
        share: share of the devices that are slow, 0 to 1.
        factor: factor of the speed of each slow device.
    """

    share: float = Field(ge=0.0, le=1.0)
    factor: FactorDistribution = Constant[Factor](value=0.5)

    def slowness(self, streams: Streams, devices: int, root: Path | None) -> Floats:
        """Draw the factor by which each device's speed is multiplied, at most 1; float64 [devices].

        The factor is 1 for devices that are no stragglers. Draws are from the random streams
        ``world/stragglers`` (the devices) and ``world/stragglers/factor``.
        """
        generator = streams.generator("world/stragglers/factor")
        factor = self.factor.by_device("population.stragglers.factor", generator, devices, root)
        order = streams.generator("world/stragglers").permutation(devices)
        stragglers = order[: round(self.share * devices)]
        slowness = np.ones(devices)
        slowness[stragglers] = factor[stragglers]
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
)
SamplesByDevice = Annotated[
    UniformSizes | LongTailSizes | Listed[Count] | FromFile[Count],
    KindField(SAMPLE_COUNTS, by_device=True),
]


class PopulationSpec(Spec):
    """``[population]``: how many devices, how fast, and when they can be reached.

    Attributes:
        devices: count of devices.
        tested_only: count of devices that are tested and never train, so that strategies do not see
            them; they have the highest indices. None: all devices may train.
        speed: training speed in samples/s: of the trained model, or of the reference model if
            ``reference_flops`` is set.
        capacity: speeds and links of real phones or hospitals, instead of ``speed`` and links;
            ``population = "fedscale"`` is a short form.
        device: kind of each device by name (see ``fedsim list``), instead of ``speed``: one for all,
            a choice with shares, a list, or a column of a file.
        kinds: kinds of your own by name: all figures of a kind of device, or the key ``like`` with
            the name of another kind, and the figures that differ.
        short_of_memory: rule for devices with too little memory for the training. ``fail``: their
            tasks end for lack of memory; ``refuse``: they never join; ``fewer-layers``: they train
            as many last layers as fit.
        samples: count of each device's training samples in a run without learning: ``{low, high}``,
            ``"long-tail"``, a list or a file's column. None: the counts of the partitioned data.
        reference_flops: FLOPs of training on one sample (forward and backward) for the model to
            which ``speed`` refers; None: ``speed`` refers to the trained model.
        jitter: coefficient of variation of an epoch's time.
        slow_phases: phases in which a device is slow.
        stragglers: devices that are slow all the time.
        host: machines whose cores the devices share; None: each device has its own.
        calendar: date and time of simulated time 0, and the devices' time zones; None: midnight UTC
            for all devices.
        availability: when devices can be reached between their arrival and departure.
        fitted_at_once: count of clients that were active at a time in the log from which ``fedsim
            calibrate`` wrote this section; ``fedsim check`` warns if a strategy has another count.
            None if the section is not from a log.
        local: epochs, steps, batch size and learning rate by device or by kind of device; None: all
            devices train alike.
        arrivals: devices that join later; None if all are present from the start.
        departures: devices that leave for good; None if all stay.
    """

    devices: int = Field(default=100, ge=1, le=100_000_000)
    tested_only: int | None = Field(default=None, ge=1)
    speed: SpeedDistribution | None = None
    capacity: Annotated[CapacityModel, KindField(CAPACITIES)] | None = None
    device: NameDistribution | None = None
    kinds: dict[str, OwnKind] = Field(default_factory=dict)
    short_of_memory: Annotated[Shortage, OnlyWith("device")] = "fail"
    samples: SamplesByDevice | None = None
    reference_flops: float | None = Field(default=None, ge=1.0, le=1e30)
    jitter: JitterDistribution = Constant[Jitter](value=0.0)
    slow_phases: SlowPhases | None = None
    stragglers: Stragglers | None = None
    host: HostSpec | None = None
    calendar: CalendarSpec | None = None
    availability: AvailabilitySpec = AlwaysOn()
    fitted_at_once: int | None = Field(default=None, ge=1)
    local: LocalSpec | None = None
    arrivals: ArrivalsSpec | None = None
    departures: DeparturesSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, data: object) -> object:
        return {"capacity": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _check_speeds(self) -> Self:
        # only one of these three keys can set the devices' speeds
        keys = [name for name in ("speed", "capacity", "device") if getattr(self, name) is not None]
        if len(keys) > 1:
            raise ValueError(
                f"{keys[0]!r} and {keys[1]!r} both say how fast devices are; give one of them"
            )
        if self.device is not None and self.reference_flops is not None:
            raise ValueError(
                "'reference_flops' is for 'speed'; the kinds of 'device' know how fast they are"
            )
        # names of kinds in the scenario; names in a file are checked when the file is read
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
        """Whether any device may be unavailable at some time, arrive late or depart."""
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
            generator = streams.generator("world/speed")
            speeds = speed.by_device("population.speed", generator, self.devices, root)
            return Capacity(speeds, links=None)
        generator = streams.generator("world/device")
        names = self.device.by_device("population.device", generator, self.devices, root)
        kind_names, which = distinct(names)  # the kinds, and the index of each device's kind
        kinds = [find_kind(name, self.kinds, "population.device") for name in kind_names.tolist()]
        down = np.array([kind.down for kind in kinds])[which]
        up = np.array([kind.up for kind in kinds])[which]
        latency = np.array([kind.latency for kind in kinds])[which]
        # these speeds are not used: ``Rooflines`` computes the training times of kinds
        speeds = alike(np.inf, self.devices)
        return Capacity(speeds, (down, up, latency), kinds, which, kind_names.tolist())

    def sizes(self, streams: Streams, root: Path | None) -> Ints:
        """Draw the devices' training sample counts in a world without data, int64 [devices].

        Args:
            streams: random streams; draws are from the stream ``world/samples``.
            root: folder of data files; None for the working directory.
        """
        generator = streams.generator("world/samples")
        if isinstance(self.samples, UniformSizes | LongTailSizes):
            return self.samples.draw(self.devices, generator)
        assert self.samples is not None
        counts = self.samples.by_device("population.samples", generator, self.devices, root)
        return counts.astype(np.int64)

    def jitters(self, streams: Streams, root: Path | None) -> Floats:
        """Draw the coefficient of variation of each device's epoch time, float64 [devices].

        Args:
            streams: random streams; draws are from the stream ``world/jitter/size``.
            root: folder of data files; None for the working directory.
        """
        # a user's capacity model has jitters too, which apply unless ``population.jitter`` is set
        is_default = isinstance(self.jitter, Constant) and self.jitter.value == 0
        if is_default and self.capacity is not None:
            jitters = self.capacity.jitters(streams, self.devices)
            if jitters is not None:
                return jitters
        generator = streams.generator("world/jitter/size")
        return self.jitter.by_device("population.jitter", generator, self.devices, root)

    def paths(self, streams: Streams, root: Path | None) -> Availability:
        """Build the availability of all devices (when each can be reached).

        Arrivals and departures of devices are not applied yet.

        Args:
            streams: random streams.
            root: folder of data files; None for the working directory.
        """
        calendar = Calendar.assumed(self.devices)
        if self.calendar is not None:
            calendar = self.calendar.build(streams, self.devices, root)
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
        """Build the object with the properties of all devices, from speeds that are already drawn.

        Stragglers, arrivals and departures are drawn here.

        Args:
            streams: random streams.
            speed: training speed of each device if it is no straggler (samples/s), [devices]; ignored
                if there are ``rooflines``.
            samples: count of training samples of each device, int64 [devices].
            flops_per_sample: FLOPs of training on one sample.
            root: folder of data files; None for the working directory.
            rooflines: speeds of kinds of devices by computation and memory.
            flops: FLOP/s of each device if it is no straggler, [devices]; None: ``speed`` times
                ``reference_flops``.

        Raises:
            ScenarioError: the speed of a device is not above 0, a device leaves before it arrives, or
                no device has the memory for its usual training.
        """
        if rooflines is not None:
            if self.local is None or self.local.batch_size is None:
                # raises an error if no device has the memory for its usual training
                rooflines.check(int(samples.min()))
            speed = rooflines.speeds()
        _check_speed(speed)
        if flops is None and self.reference_flops is not None:
            flops = speed * self.reference_flops
        slowness: Floats = np.ones(1)  # factor of the speed; one value stands for all devices
        if self.stragglers is not None:
            slowness = self.stragglers.slowness(streams, self.devices, root)
            speed = speed * slowness
            if flops is not None:
                flops = flops * slowness
        # cost of a sample, relative to a sample of the model for which ``speed`` is given
        cost = 1.0
        if self.reference_flops is not None:
            cost = flops_per_sample / self.reference_flops
        arrival = self._draw_arrival(streams, root)
        departure = self._draw_departure(streams, arrival, root)
        if self.tested_only is not None:  # devices that never arrive are hidden from strategies
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
