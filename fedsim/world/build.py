"""A world alone: devices, their availability, a network and processes, without any learning or
strategy.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from fedsim.clock.simulation import Simulation
from fedsim.common.errors import ScenarioError
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.wording import explain
from fedsim.world.compute import Compute
from fedsim.world.life import TaskRunner
from fedsim.world.lifetimes import Lifetimes, bounded
from fedsim.world.messages import Messages
from fedsim.world.network import NetworkSpec, StarSpec
from fedsim.world.population import PopulationSpec
from fedsim.world.processes import Processes, World, WorldSpec


class _WorldSections(Spec):
    seed: int = Field(default=1, ge=0)
    population: PopulationSpec = PopulationSpec()
    network: NetworkSpec = StarSpec()
    world: WorldSpec = WorldSpec()


def build_world(
    population: Mapping[str, Any] | None = None,
    network: Mapping[str, Any] | None = None,
    processes: Sequence[Any] = (),
    seed: int = 1,
) -> World:
    """A world without learning or strategy, for processes of your own; ``world.env`` is its
    SimPy environment.

    Arguments have the form of a scenario's sections, ``processes`` that of ``[world]``; the same
    seed gives the same world.
    """
    world = {"processes": [*processes]}
    given: dict[str, Any] = {
        "population": population or {},
        "network": network or {},
        "seed": seed,
        "world": world,
    }
    try:
        sections = _WorldSections(**given)
    except ValidationError as error:
        raise ScenarioError(explain(error, given, "the world")) from None
    simulation = Simulation()
    streams = Streams(seed)
    spec = sections.population
    capacity = spec.capacities(streams, None)
    links = None if sections.network.has_device_rates and capacity.kinds else capacity.links
    net = sections.network.build(simulation, streams, spec.devices, links, None)
    samples = (
        np.zeros(spec.devices, dtype=np.int64)
        if spec.samples is None
        else spec.sizes(streams, None)
    )
    devices = spec.build(
        streams, capacity.speed, samples, spec.reference_flops or 1.0, None, None, capacity.flops()
    )
    availability = bounded(spec.paths(streams, None), devices.arrival, devices.departure)
    messages = Messages(simulation, net, sections.network.edge_servers, _ignore)
    compute = Compute(streams, spec.jitters(streams, None), spec.slow_phases, spec.devices)
    tasks = TaskRunner(
        messages, devices, availability, compute, lambda task: (), _ignore, None, spec.host
    )
    Lifetimes(simulation, devices.arrival, devices.departure, availability, _ignore)
    return Processes(sections.world.processes, streams, capacity, tasks, _ignore).world


def _ignore(_: object) -> None:  # there is no server to notify
    pass
