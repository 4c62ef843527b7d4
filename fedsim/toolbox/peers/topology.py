"""Graphs of neighbours: any graph that networkx generates, drawn once or again and again."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import networkx
import numpy as np
from pydantic import Field, model_validator

from fedsim.errors import ScenarioError, nearest
from fedsim.language.spec import Spec
from fedsim.toolbox.peers.base import PeerParams

Neighbours = tuple[tuple[int, ...], ...]

_SHORT = {"ring": "cycle_graph", "random-regular": "random_regular_graph", "torus": "grid_2d_graph"}
_USUAL: Mapping[str, Mapping[str, Any]] = {"random_regular_graph": {"d": 3}, "grid_2d_graph": {"periodic": True}}


T = TypeVar("T")


def keep(drawn: dict[int, T], number: int, value: T) -> None:
    """Keep what was drawn for a round, and for the last seven before it: devices are in few rounds at a time."""
    if len(drawn) >= 8:
        drawn.pop(next(iter(drawn)))
    drawn[number] = value


class Topology(Spec):
    """The graph of the devices: each sends to its neighbours.

    Attributes:
        kind: ``ring``, ``complete``, ``star``, ``random-regular`` (``d``), ``torus`` (``m``, ``n``), or any other generator of
            undirected graphs in networkx by its name: ``erdos_renyi``, ``watts_strogatz``, ``hypercube`` and so on.
        parameters: what the generator takes by name, but for the number of nodes, which is that of the devices.
        every: the graph is drawn again after so many rounds; None: it stays.
    """

    kind: str = "ring"
    parameters: dict[str, int | float | bool] = Field(default={})
    every: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, data: Any) -> Any:
        return {"kind": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        self._generator()
        return self

    def _generator(self) -> Any:
        name = _SHORT.get(self.kind, self.kind.replace("-", "_"))
        name = name if name.endswith("_graph") else f"{name}_graph"
        found = getattr(networkx.generators, name, None)
        if found is None:
            known = [name.removesuffix("_graph") for name in dir(networkx.generators) if name.endswith("_graph")]
            raise ValueError(
                f"'kind' is {self.kind!r}; allowed are {', '.join(_SHORT)}, complete, star and other generators of "
                f"networkx{nearest(self.kind, known)}"
            )
        return found

    def graph(self, devices: int, seed: int) -> "networkx.Graph[int]":
        """The graph, with nodes from 0; ``ScenarioError`` where the generator refuses, or makes something else."""
        generator = self._generator()
        takes, given = inspect.signature(generator).parameters, dict(_USUAL.get(generator.__name__, {}))
        given |= self.parameters
        if "seed" in takes:
            given["seed"] = seed
        if "n" in takes and "n" not in given:
            given["n"] = devices - 1 if generator.__name__ == "star_graph" else devices
        try:
            graph = networkx.convert_node_labels_to_integers(generator(**given), ordering="sorted")
        except (TypeError, ValueError, networkx.NetworkXException) as error:
            raise ScenarioError(f"strategy.topology.kind is {self.kind!r}: networkx says {error}") from None
        if graph.is_directed() or len(graph) != devices:
            found = f"{'a directed' if graph.is_directed() else 'an undirected'} graph of {len(graph)} nodes"
            raise ScenarioError(f"strategy.topology.kind is {self.kind!r}, {found}; allowed is an undirected one of {devices}")
        graph.remove_edges_from(list(networkx.selfloop_edges(graph)))
        return graph


class Graphs:
    """The graphs of a run. Every device knows them, from a seed that all know."""

    def __init__(self, topology: Topology, devices: int) -> None:
        self._topology, self._devices = topology, devices
        self._drawn: dict[int, Neighbours] = {}

    def in_round(self, number: int, rng: Callable[..., np.random.Generator]) -> Neighbours:
        """The neighbours of each device, ascending. ``rng`` makes a generator for a purpose and counts."""
        count = 0 if self._topology.every is None else number // self._topology.every
        if count not in self._drawn:
            graph = self._topology.graph(self._devices, int(rng("topology", count).integers(1 << 31)))
            keep(self._drawn, count, tuple(tuple(sorted(graph.neighbors(device))) for device in range(self._devices)))
        return self._drawn[count]


def mixing_weight(neighbours: Neighbours, device: int, other: int) -> float:
    """Metropolis-Hastings weight of a neighbour's model: 1 / (1 + the larger degree). The matrix is doubly stochastic."""
    return 1.0 / (1.0 + max(len(neighbours[device]), len(neighbours[other])))


class GraphParams(PeerParams):
    """Parameters of strategies on a graph.

    Attributes:
        topology: who is whose neighbour.
    """

    topology: Topology = Topology()

    def check(self, devices: int) -> None:
        self.topology.graph(devices, 0)
