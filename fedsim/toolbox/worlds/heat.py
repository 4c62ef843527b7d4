"""Boards that throttle: they get warm while they compute, and are slow until they have cooled down."""

import math
from collections.abc import Generator
from typing import Any, ClassVar, Literal, Self

import simpy
from pydantic import Field, model_validator

from fedsim.language.units import PositiveSeconds
from fedsim.simulation import Record
from fedsim.world.processes.base import Process
from fedsim.world.processes.world import World

_STILL = ("download", "upload", "queue")
"""The steps of a task for which a device does not compute."""


class Heat(Process):
    """Devices throttle by heat, in two states with hysteresis.

    The heat of a device goes exponentially towards 0 while it does not compute, towards 1 while it computes at full speed, and
    towards ``factor`` while it computes slowly (Newton's law of cooling). It begins at 0 and becomes slow at a heat of
    ``slow_at``; it is fast again at ``fast_at``.

    Attributes:
        devices: which ones get warm; None: all.
        factor: of its speed, while a device is slow.
        warms: the time constant, in which 63 % of the way is gone (s).
    """

    restorable: ClassVar[bool] = True

    kind: Literal["heat"] = "heat"
    devices: list[int] | None = None
    factor: float = Field(default=0.5, gt=0.0, lt=1.0)
    warms: PositiveSeconds = 180.0
    slow_at: float = Field(default=0.9, gt=0.0, lt=1.0)
    fast_at: float = Field(default=0.85, gt=0.0, lt=1.0)

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.fast_at >= self.slow_at:
            raise ValueError("'fast_at' must be below 'slow_at', or a device would change between them without end")
        return self

    def check(self, world: World) -> None:
        for device in self.devices or ():
            world.device(device)

    def run(self, world: World) -> Generator[Any, Any, Any]:
        turns: dict[int, simpy.Event] = {}
        computing: dict[int, bool] = {}

        def hear(record: Record) -> None:
            device, step = record.fields["device"], record.fields["step"]
            if device in turns and step not in _STILL:
                computing[device] = record.kind == "step-start"
                if not turns[device].triggered:
                    turns[device].succeed()

        world.simulation.listen(hear, kinds=("step-start", "step-end"))
        for device in range(world.devices) if self.devices is None else self.devices:
            world.env.process(self._life(world, device, turns, computing))
        yield world.env.event()

    def _life(
        self, world: World, device: int, turns: dict[int, simpy.Event], computing: dict[int, bool]
    ) -> Generator[Any, Any, Any]:
        state = world.state.setdefault(str(device), {"heat": 0.0, "since": world.now, "computes": False, "slow": False})
        hold = world.slow(device, self.factor) if state["slow"] else None
        while True:
            turn = turns[device] = world.env.event()
            target, crosses = self._course(state)
            yield turn if crosses == math.inf else turn | world.until(crosses)
            state["heat"] = target + (float(state["heat"]) - target) * math.exp((state["since"] - world.now) / self.warms)
            state["since"] = world.now
            if turn.triggered:
                state["computes"] = computing[device]
            elif hold is None:
                state |= {"slow": True, "heat": self.slow_at}
                hold = world.slow(device, self.factor)
            else:
                state |= {"slow": False, "heat": self.fast_at}
                hold.end()
                hold = None

    def _course(self, state: dict[str, Any]) -> tuple[float, float]:
        """The heat that a device goes towards, and when it will be slow, or fast again, if it goes on like this (s)."""
        target = 0.0 if not state["computes"] else self.factor if state["slow"] else 1.0
        bound = self.fast_at if state["slow"] else self.slow_at
        if state["slow"] == (target >= bound):
            return target, math.inf
        away = (state["heat"] - target) / (bound - target)
        return target, float(state["since"]) + self.warms * math.log(max(1.0, away))
