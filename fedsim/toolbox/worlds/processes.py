"""Processes of the world: outages of links and edge servers, upload slots, throttling by heat."""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Annotated, ClassVar, Literal, Self

import simpy
from pydantic import Field, model_validator

from fedsim.clock.environment import ProcessGenerator
from fedsim.clock.simulation import Record
from fedsim.common.units import BytesPerSecond, PositiveSeconds
from fedsim.world.processes.base import Process
from fedsim.world.processes.holds import Hold
from fedsim.world.processes.world import World
from fedsim.world.steps import computing_steps


class Outage(Process):
    """Base of the processes of the world by which a link or a server fails again and again.

    A subclass overrides ``fail``, which begins an outage.

    Attributes:
        every: time between two outages, and before the first.
        lasts: length of an outage.
        random: whether the times are exponential with the means ``every`` and ``lasts``; else they
            are constant.
    """

    restorable: ClassVar[bool] = True

    every: PositiveSeconds
    lasts: PositiveSeconds
    random: bool = True

    def fail(self, world: World) -> list[Hold]:
        """Begin an outage, such as by setting a link's rate to 0; ``run`` calls it for each outage.

        Args:
            world: the simulated links, servers and devices, which the method changes.

        Returns:
            The changes made to the world, each of which the caller ends when the outage ends.
        """
        raise NotImplementedError

    def run(self, world: World) -> ProcessGenerator:
        """Wait for the next outage, apply it until its end, and repeat this until the run ends.

        ``world.state`` holds all that a resumed run needs: the count of past ``outages``, whether
        an outage lasts now (``failed``), and when the outage ends or the next one begins
        (``until``, s).
        """
        state = world.state
        if not state:  # a new run, not a resumed one
            state["outages"] = 0
            state["failed"] = False
            state["until"] = self._draw_end(world, "every", 0)
        while True:
            if not state["failed"]:  # a run can be resumed during an outage
                yield world.until(state["until"])
                state["failed"] = True
                state["until"] = self._draw_end(world, "lasts", state["outages"])
            with ExitStack() as holds:
                for hold in self.fail(world):
                    holds.enter_context(hold)
                yield world.until(state["until"])
            state["outages"] += 1
            state["failed"] = False
            state["until"] = self._draw_end(world, "every", state["outages"])

    def _draw_end(self, world: World, key: Literal["every", "lasts"], number: int) -> float:
        """Return the simulated time at which the interval that begins now ends (s).

        Args:
            world: source of the present time and of the random draw.
            key: ``every`` for the time until the next outage, ``lasts`` for the length of an
                outage.
            number: index of the outage, which selects the random draw.
        """
        interval: float = getattr(self, key)
        if self.random:
            interval = world.rng(key, number).exponential(interval)
        return world.now + interval


class LinkOutage(Outage):
    """Repeated outages of a link, during which its rate is limited, by default to 0.

    ``every`` and ``lasts`` (``Outage``) are the times between outages and their lengths.

    Attributes:
        link: name of the link: ``server up``, ``cell 3 down``, ``device 7 up``, ``edge 1 receive``,
            or ``a -> b`` of a graph.
        rate: largest rate of the link during an outage; by default 0, so that transfers over the
            link wait.
    """

    kind: Literal["link-outage"] = "link-outage"
    link: str
    rate: Annotated[BytesPerSecond, Field(ge=0)] = 0.0

    def check(self, world: World) -> None:
        world.rate(self.link)

    def fail(self, world: World) -> list[Hold]:
        return [world.limit(self.link, self.rate)]


class EdgeOutage(Outage):
    """Repeated outages of an edge server.

    ``every`` and ``lasts`` (``Outage``) are the times between outages and their lengths.

    Attributes:
        edge: number of the edge server.
        work: effect of an outage: ``wasted``, the edge server loses its state, and its devices'
            tasks end; ``waits``, transfers over its links wait.
    """

    kind: Literal["edge-outage"] = "edge-outage"
    edge: int = Field(ge=0)
    work: Literal["wasted", "waits"] = "wasted"

    def check(self, world: World) -> None:
        world.rate(f"edge {self.edge} receive")

    def fail(self, world: World) -> list[Hold]:
        if self.work == "wasted":
            return [world.lose(self.edge)]
        receive = world.limit(f"edge {self.edge} receive", 0.0)
        send = world.limit(f"edge {self.edge} send", 0.0)
        return [receive, send]


class UploadSlots(Process):
    """Limit of simultaneous uploads to the server; further uploads wait, first come, first served.

    Attributes:
        slots: count of uploads that may run at a time.
    """

    restorable: ClassVar[bool] = True

    kind: Literal["upload-slots"] = "upload-slots"
    slots: int = Field(ge=1)

    def run(self, world: World) -> ProcessGenerator:
        world.queue("up", simpy.Resource(world.env, self.slots))
        yield world.env.event()


class Heat(Process):
    """Devices throttle by heat, in two states with hysteresis.

    A device's heat, at first 0, approaches a target exponentially (Newton's law of cooling). The
    target is 1 while the device computes at full speed, ``factor`` while it computes slowly, and 0
    in all other time, such as in transfers and pauses. The device becomes slow at a heat of
    ``slow_at``, and fast again at ``fast_at``.

    Attributes:
        devices: the devices that get warm; None: all.
        factor: factor of the speed of a slow device.
        warms: time constant of warming and cooling.
        slow_at: heat, 0 to 1, at which a device becomes slow.
        fast_at: heat, below ``slow_at``, at which a slow device becomes fast again.
    """

    restorable: ClassVar[bool] = True

    kind: Literal["heat"] = "heat"
    devices: list[int] | None = None
    factor: float = Field(default=0.5, gt=0.0, lt=1.0)
    warms: PositiveSeconds = 180.0
    slow_at: float = Field(default=0.9, gt=0.0, lt=1.0)
    fast_at: float = Field(default=0.85, gt=0.0, lt=1.0)

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
        if self.fast_at >= self.slow_at:
            raise ValueError(
                "'fast_at' must be below 'slow_at', or a device would change between them "
                "without end"
            )
        return self

    def check(self, world: World) -> None:
        for device in self.devices or ():
            world.device(device)

    def run(self, world: World) -> ProcessGenerator:
        """Start a process for each device, which is told when its device starts or stops computing."""
        # device -> event of its next start or end of computing
        changes: dict[int, simpy.Event] = {}
        computing: dict[int, bool] = {}  # device -> whether it computes since its last such event
        warming = frozenset(computing_steps())

        def note_step(record: Record) -> None:
            device = record.fields["device"]
            step = record.fields["step"]
            if device in changes and step in warming:
                computing[device] = record.kind == "step-start"
                if not changes[device].triggered:
                    changes[device].succeed()

        world.simulation.listen(note_step, kinds=("step-start", "step-end"))
        devices = range(world.devices) if self.devices is None else self.devices
        for device in devices:
            world.env.process(self._throttle(world, device, changes, computing))
        yield world.env.event()  # never fires, so that this process lasts to the end of the run

    def _throttle(
        self, world: World, device: int, changes: dict[int, simpy.Event], computing: dict[int, bool]
    ) -> ProcessGenerator:
        """Slow a device each time its heat rises to ``slow_at``, until it falls to ``fast_at``.

        This is the SimPy process of one device. It goes on to the end of the run.

        Args:
            world: the simulated devices, whose speeds this process changes.
            device: index of the device.
            changes: device -> event that fires when the device next begins or ends to compute. The
                process stores a new event here before each wait, and ``run`` fires it.
            computing: device -> whether it computes since the last such event; ``run`` stores it.
        """
        state = world.state.setdefault(
            str(device), {"heat": 0.0, "since": world.now, "computes": False, "slow": False}
        )
        # in a resumed run the device may be slow already
        hold = world.slow(device, self.factor) if state["slow"] else None
        while True:
            change = world.env.event()
            changes[device] = change
            target, crossing = self._next_crossing(state)
            if crossing == math.inf:
                yield change
            else:
                yield change | world.until(crossing)
            # the heat approaches the target exponentially
            decay = math.exp((state["since"] - world.now) / self.warms)
            state["heat"] = target + (float(state["heat"]) - target) * decay
            state["since"] = world.now
            if change.triggered:  # the device has begun or ended to compute
                state["computes"] = computing[device]
            elif hold is None:  # the device's heat has reached ``slow_at``
                state["slow"] = True
                state["heat"] = self.slow_at
                hold = world.slow(device, self.factor)
            else:  # the device has cooled to ``fast_at``
                state["slow"] = False
                state["heat"] = self.fast_at
                hold.end()
                hold = None

    def _next_crossing(self, state: Mapping[str, float]) -> tuple[float, float]:
        """Return the heat that a device approaches, and when it becomes slow, or fast again.

        Args:
            state: the device's ``heat`` at time ``since`` (s), and whether it ``computes`` and is
                ``slow``.

        Returns:
            The heat that the device approaches, and the time at which its heat reaches ``slow_at``
            (a fast device) or ``fast_at`` (a slow device); infinite if it never does.
        """
        target = 0.0
        if state["computes"]:
            target = self.factor if state["slow"] else 1.0
        bound = self.fast_at if state["slow"] else self.slow_at
        cools_too_little = state["slow"] and target >= bound
        warms_too_little = not state["slow"] and target < bound
        if cools_too_little or warms_too_little:
            return target, math.inf
        # heat(t) = target + (heat - target) exp(-t / warms), solved for heat(t) = bound
        ratio = (state["heat"] - target) / (bound - target)
        return target, float(state["since"]) + self.warms * math.log(max(1.0, ratio))
