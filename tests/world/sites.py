"""Some devices at work on a bare clock, without a server and learning."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

from fedsim.clock.simulation import Record
from fedsim.common.streams import Streams
from fedsim.common.training import Batching
from fedsim.world.availability import AlwaysOn, Availability
from fedsim.world.batteries import Batteries
from fedsim.world.hosts import HostSpec
from fedsim.world.messages import Messages
from fedsim.world.network import Network
from fedsim.world.population import Population
from fedsim.world.steps import Task, TaskStep
from fedsim.world.task_runner import TaskRunner
from fedsim.world.time_variation import TimeVariation


class WorkSite:
    """Carries out tasks; ``records`` tell what happened, ``ended`` has the tasks that are over."""

    def __init__(
        self,
        network: Network,
        population: Population,
        availability: Availability | None = None,
        batteries: Batteries | None = None,
        host: HostSpec | None = None,
        batch_size: int = 10,
    ) -> None:
        messages = Messages(network._simulation, network, 0, lambda edge: None)
        population.batching = Batching(batch_size)
        self.simulation, self.population, self.availability = (
            messages.simulation,
            population,
            availability or AlwaysOn(),
        )
        compute = TimeVariation(Streams(1), 0.0, None, len(population.speed))
        self.ended: list[Task] = []
        self.records: list[Record] = []
        self.following: Callable[[Task], tuple[TaskStep, ...]] | None = None
        self.tasks = TaskRunner(
            messages,
            population,
            self.availability,
            compute,
            self._more,
            self.ended.append,
            batteries,
            host,
        )
        self.simulation.listen(self.records.append)

    def _more(self, task: Task) -> tuple[TaskStep, ...]:
        """The steps that follow on those that were asked for, once these are carried out."""
        following, self.following = self.following, None
        return () if following is None else following(task)

    def start(self, *steps: TaskStep, device: int = 0, at: float = 0.0) -> None:
        """Give an idle device a task of round 0 at a time (s)."""

        def give() -> None:
            if self.tasks.is_idle(device):
                self.tasks.start(device, steps, 0, None)

        self.simulation.wake(("start", device), at, give)

    def run(self, until: float = math.inf) -> None:
        """Run to the end, or until a time (s)."""
        if until < math.inf:
            self.simulation.wake(("stop", 0), until, lambda: self.simulation.stop("time"))
        asyncio.run(self.simulation.run())

    def steps(self, device: int = 0) -> list[tuple[Any, ...]]:
        """(step, end, outcome, amount) of each step of a device; an amount is of bytes, or of
        epochs.
        """
        return [
            (
                end.fields["step"],
                end.time,
                end.fields["outcome"],
                end.fields.get("delivered", end.fields.get("epochs")),
            )
            for end in self.records
            if end.kind == "step-end" and end.fields["device"] == device
        ]
