"""Builder of the parts of a world, and ``build_world``, which builds a world without learning.

A world has devices, their availability, a network, tasks and processes.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field, ValidationError

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Ints
from fedsim.common.errors import ScenarioError
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.wording import explain
from fedsim.world.availability import Availability
from fedsim.world.batteries import Batteries, Powered
from fedsim.world.lifetimes import Lifetimes, bounded
from fedsim.world.messages import Messages
from fedsim.world.network import Network, NetworkSpec, StarSpec
from fedsim.world.population import Population
from fedsim.world.population_spec import PopulationSpec
from fedsim.world.processes import Process, Processes, World, WorldSpec
from fedsim.world.rooflines import Rooflines
from fedsim.world.steps import Task, TaskStep
from fedsim.world.task_runner import TaskRunner
from fedsim.world.time_variation import TimeVariation


class WorldBuilder:
    """Builder of the devices, network and task runner, for a run and for ``build_world``.

    The constructor builds the network. Then call, in this order, ``build_devices``,
    ``add_batteries`` (optional), ``build_tasks``, ``build_lifetimes`` and ``build_processes``.

    Args:
        simulation: the clock.
        streams: random streams of the seed.
        spec: the scenario's section ``[population]``.
        network: the scenario's section ``[network]``.
        root: folder of data files; None for the working directory.

    Attributes:
        capacity: sampled speeds, links and kinds of the devices.
        network: the network.
        population: the devices; set by ``build_devices``.
        availability: when each device can be reached; set by ``build_devices``.
        all_stay: whether all devices are present throughout; set by ``build_devices``.
        messages, tasks: messages that belong to no task, and runner of the tasks; set by
            ``build_tasks``.
    """

    population: Population
    availability: Availability
    all_stay: bool
    messages: Messages
    tasks: TaskRunner

    def __init__(
        self,
        simulation: Simulation,
        streams: Streams,
        spec: PopulationSpec,
        network: NetworkSpec,
        root: Path | None,
    ) -> None:
        self._simulation = simulation
        self._streams = streams
        self._spec = spec
        self._root = root
        self._edges = network.edge_servers
        # set before ``build_tasks`` if the scenario has batteries
        self._batteries: Batteries | None = None
        self.capacity = spec.capacities(streams, root)
        links = self.capacity.links
        if network.has_device_rates and self.capacity.kinds:
            links = None  # rates of ``[network.device]`` take precedence over the kinds' links
        self.network: Network = network.build(simulation, streams, spec.devices, links, root)
        traces = network.link_traces(streams, spec.devices, root, with_rates=links is None)
        if traces is not None:
            self.network.follow(traces)

    def build_devices(self, samples: Ints, flops: float, rooflines: Rooflines | None) -> None:
        """Build ``population``, the devices, and ``availability``, when each can be reached.

        Args:
            samples: count of training samples of each device; int64 [devices].
            flops: FLOPs of training on one sample.
            rooflines: training times of kinds of devices; None if devices have no kinds.
        """
        # order: memory and availability depend on the population
        capacity = self.capacity
        self.population = self._spec.build(
            self._streams, capacity.speed, samples, flops, self._root, rooflines, capacity.flops()
        )
        if self._spec.local is not None:
            self.population.own = self._spec.local.build(
                self._streams, self._spec.devices, self._root, capacity, self._spec.kinds
            )
        if self._spec.short_of_memory == "refuse" and rooflines is not None:
            self._exclude_by_memory(rooflines)
        paths = self._spec.paths(self._streams, self._root)
        self.availability = bounded(paths, self.population.arrival, self.population.departure)
        # ``bounded`` returns the same object if all devices are present throughout
        self.all_stay = self.availability is paths

    def _exclude_by_memory(self, rooflines: Rooflines) -> None:
        """Set the arrival of devices with too little memory for their training to infinity.

        Args:
            rooflines: training times and memory of the devices.
        """
        population = self.population
        batch_sizes = None  # None: all devices have the batch size of ``[training]``
        if population.own is not None:
            batch_sizes = population.own.batch_size
        is_short = rooflines.short(population.samples, batch_sizes)
        if is_short.any():
            population.arrival = np.where(is_short, np.inf, population.arrival)

    def add_batteries(self, batteries: Batteries) -> Powered:
        """Make devices unreachable while their batteries are flat; return the new availability."""
        self._batteries = batteries
        powered = Powered(self.availability, batteries)
        self.availability = powered
        return powered

    def build_tasks(
        self,
        on_edge_lost: Callable[[int], None],
        next_steps: Callable[[Task], tuple[TaskStep, ...]],
        on_task_end: Callable[[Task], None],
    ) -> None:
        """Build ``messages`` and ``tasks``; ``build_devices`` must have been called before.

        Args:
            on_edge_lost: function that is called with the index of an edge server when it fails.
            next_steps: function that returns the next steps of a task that has carried out all of its
                steps; an empty tuple ends the task.
            on_task_end: function that is called once with each task that has ended.
        """
        spec = self._spec
        self.messages = Messages(self._simulation, self.network, self._edges, on_edge_lost)
        jitter = spec.jitters(self._streams, self._root)
        compute = TimeVariation(self._streams, jitter, spec.slow_phases, spec.devices)
        self.tasks = TaskRunner(
            self.messages,
            self.population,
            self.availability,
            compute,
            next_steps,
            on_task_end,
            self._batteries,
            spec.host,
        )

    def build_lifetimes(self, on_arrival: Callable[[int], None]) -> Lifetimes:
        """Build the object that records arrivals and departures of devices, and reports arrivals.

        Args:
            on_arrival: function that is called with the index of a newly arrived device when it first
                becomes available.
        """
        return Lifetimes(
            self._simulation,
            self.population.arrival,
            self.population.departure,
            self.availability,
            on_arrival,
        )

    def build_processes(
        self, specs: Sequence[Process], on_switched_on: Callable[[int], None]
    ) -> Processes:
        """Build and start the SimPy processes of the scenario's ``[world]``, such as outages.

        Args:
            specs: the processes of the scenario.
            on_switched_on: function that is called with the index of a device that a process has
                switched on again.
        """
        return Processes(specs, self._streams, self.capacity, self.tasks, on_switched_on)


class _WorldSections(Spec):
    seed: int = Field(default=1, ge=0)
    population: PopulationSpec = PopulationSpec()
    network: NetworkSpec = StarSpec()
    world: WorldSpec = WorldSpec()


def build_world(
    population: Mapping[str, object] | None = None,
    network: Mapping[str, object] | None = None,
    processes: Sequence[object] = (),
    seed: int = 1,
) -> World:
    """Build a world without learning and without a strategy, for SimPy processes of your own.

    Equal arguments give equal worlds. ``world.env`` is SimPy's environment.

    Args:
        population: keys of ``[population]``; None for the defaults.
        network: table ``[network]``, with its ``kind``.
        processes: entries of ``[world] processes``.
        seed: seed of all random streams.

    Returns:
        The world at time 0.

    Raises:
        ScenarioError: a key is unknown, or its value is not allowed.
        DataError: a file is missing or malformed.

    Example:
        >>> import fedsim
        >>> world = fedsim.build_world(
        ...     population={"devices": 3, "speed": "100 samples/s"},
        ...     network={"kind": "star", "device": {"up": "8 Mbit/s", "latency": "20 ms"}},
        ... )
        >>> def train_and_send(world):
        ...     yield world.compute(0, samples=50)
        ...     message = yield world.send("device 0", "server", "5 MB")
        ...     return round(world.now, 6), message.outcome
        >>> world.env.run(until=world.env.process(train_and_send(world)))
        (5.52, 'done')
    """
    values: dict[str, object] = {
        "population": population or {},
        "network": network or {},
        "seed": seed,
        "world": {"processes": [*processes]},
    }
    try:
        sections = _WorldSections.model_validate(values)
    except ValidationError as error:
        raise ScenarioError(explain(error, values, "the world")) from None
    simulation = Simulation()
    spec = sections.population
    streams = Streams(seed)
    world = WorldBuilder(simulation, streams, spec, sections.network, root=None)
    samples = np.zeros(spec.devices, dtype=np.int64)
    if spec.samples is not None:
        samples = spec.sizes(streams, root=None)
    # training on a sample costs as much as with the reference model
    world.build_devices(samples, flops=spec.reference_flops or 1.0, rooflines=None)
    world.build_tasks(on_edge_lost=_ignore, next_steps=lambda task: (), on_task_end=_ignore)
    world.build_lifetimes(on_arrival=_ignore)
    return world.build_processes(sections.world.processes, on_switched_on=_ignore).world


def _ignore(_: object) -> None:  # callback of a world without a server
    pass
