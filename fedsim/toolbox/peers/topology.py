"""Graphs of neighbours for strategies without a server, by the generators of networkx."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import networkx
from pydantic import Field, model_validator

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.spec import Spec

_GENERATORS = {
    "ring": "cycle_graph",
    "random-regular": "random_regular_graph",
    "torus": "grid_2d_graph",
}
_DEFAULT_ARGUMENTS: Mapping[str, Mapping[str, object]] = {
    "random_regular_graph": {"d": 3},
    "grid_2d_graph": {"periodic": True},
}
# parameters of networkx's generators that a scenario cannot set
_RESERVED_PARAMETERS = ("seed", "create_using", "backend", "backend_kwargs")
_LOG_NODE_COUNTS: Mapping[str, Callable[[float, float], float]] = {
    "hypercube_graph": lambda n, _: n * math.log(2),
    "dorogovtsev_goltsev_mendes_graph": lambda n, _: n * math.log(3),
    "sudoku_graph": lambda n, _: 4 * math.log(max(n, 1)),
    "navigable_small_world_graph": lambda n, dim: dim * math.log(max(n, 1)),
    "mycielski_graph": lambda n, _: n * math.log(2),
}
"""Name of a generator with many more nodes than ``n`` -> function that computes their count.

The function maps ``n`` and ``dim`` to the logarithm of the count of nodes.
"""


class Topology(Spec):
    """Graph of a strategy without a server: each device sends only to its neighbours in the graph.

    Attributes:
        kind: ``ring``; ``random-regular``, with the parameter ``d``, the number of neighbours;
            ``torus``, with the parameters ``m`` and ``n``, the side lengths; or the name of a
            generator of undirected graphs in networkx, such as ``complete``, ``star``,
            ``erdos_renyi`` or ``hypercube``.
        parameters: arguments of the generator by name, such as ``{ p = 0.1 }`` for ``erdos_renyi``.
            The number of nodes is not among them; it is the number of devices.
        every: number of rounds after which a graph with random edges is drawn again; None: one
            graph is used in all rounds.
    """

    kind: str = "ring"
    parameters: dict[str, int | float | bool] = Field(default={})
    every: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _expand_kind(cls, data: object) -> object:
        return {"kind": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        parameters = inspect.signature(self._generator()).parameters
        if self.every is not None and "seed" not in parameters:
            raise ValueError(
                f"'every' is {self.every}, which counts only with a graph that is drawn, such as "
                f"'random-regular' or 'erdos_renyi'; {self.kind!r} is always the same"
            )
        return self

    def _generator(self) -> "Callable[..., networkx.Graph[Any]]":
        """Return the function of networkx that generates graphs of ``self.kind``.

        Raises:
            ValueError: networkx has no such generator.
        """
        # a name that only fedsim has, or networkx's name with or without its ending ``_graph``
        name = _GENERATORS.get(self.kind, self.kind.replace("-", "_"))
        stem = name.removesuffix("_graph")
        generator = getattr(networkx.generators, f"{stem}_graph", None)
        if callable(generator):
            make_graph: Callable[..., networkx.Graph[Any]] = generator
            return make_graph
        functions = [name for name in dir(networkx.generators) if name.endswith("_graph")]
        kinds = [name.removesuffix("_graph") for name in functions]
        more = f"complete, star and other generators of networkx{nearest(self.kind, kinds)}"
        raise ValueError(f"'kind' is {self.kind!r}; allowed are {', '.join(_GENERATORS)}, {more}")

    def _check_parameters(self, accepted: Sequence[str], devices: int) -> None:
        """Check the names and the sizes of the graph generator's arguments.

        Args:
            accepted: names of the generator's parameters.
            devices: count of devices, the wanted count of nodes.

        Raises:
            ScenarioError: an argument is unknown, or larger than ``devices``.
        """
        allowed = [name for name in accepted if name not in _RESERVED_PARAMETERS]
        key = "strategy.topology.parameters"
        for name, value in self.parameters.items():
            if name not in allowed:
                names = ", ".join(allowed) or "none"
                hint = nearest(name, allowed)
                raise ScenarioError(
                    f"{key} has {name!r}; allowed with {self.kind!r} are {names}{hint}"
                )
            if isinstance(value, int) and abs(value) > devices:
                raise ScenarioError(
                    f"{key} has {name} = {value}; allowed are at most {devices}, the number of "
                    "devices"
                )

    def _check_duration(self, devices: int) -> None:
        """Check that the generator ends soon, as it would not with some arguments.

        Args:
            devices: count of devices, the wanted count of nodes.

        Raises:
            ScenarioError: the generator would never end, or the graph would have many more nodes
                than devices.
        """
        key = "strategy.topology.parameters"
        name = self._generator().__name__
        if name == "duplication_divergence_graph" and self.parameters.get("p") == 0:
            raise ScenarioError(
                f"{key} has p = 0, with which networkx never ends; allowed is a probability above 0"
            )
        if name not in _LOG_NODE_COUNTS:
            return
        size = self.parameters.get("n", devices)
        dimensions = self.parameters.get("dim", 2)
        # logarithms, as such counts may be too large for a float
        log_node_count = _LOG_NODE_COUNTS[name](size, dimensions)
        # some of the counts are rough, hence the factor 4; ``graph`` compares the exact count
        if log_node_count > math.log(4 * devices):
            raise ScenarioError(
                f"{key}: with n = {size} {self.kind!r} has more than {devices} nodes, one a device"
            )

    def graph(self, devices: int, seed: int) -> "networkx.Graph[int]":
        """Generate the graph of neighbours.

        Args:
            devices: the count of nodes, one for each device.
            seed: seed of a graph with random edges; not used for other graphs.

        Returns:
            An undirected graph without self-loops, whose nodes are numbered from 0 as the devices
            are.

        Raises:
            ScenarioError: the generator does not accept the arguments, or the graph is directed or
                has another count of nodes than ``devices``.
        """
        generator = self._generator()
        accepted = [*inspect.signature(generator).parameters]
        self._check_parameters(accepted, devices)
        self._check_duration(devices)
        arguments = self._arguments(generator.__name__, accepted, devices, seed)
        try:
            graph = generator(**arguments)
            graph = networkx.convert_node_labels_to_integers(graph, ordering="sorted")
        except Exception as error:  # networkx may raise any error for a user's arguments
            raise ScenarioError(
                f"strategy.topology.kind is {self.kind!r} with {self.parameters}: networkx says "
                f"{type(error).__name__}: {error}"
            ) from None
        if graph.is_directed() or len(graph) != devices:
            direction = "a directed" if graph.is_directed() else "an undirected"
            raise ScenarioError(
                f"strategy.topology.kind is {self.kind!r}, {direction} graph of "
                f"{len(graph)} nodes; allowed is an undirected one of {devices}"
            )
        graph.remove_edges_from(list(networkx.selfloop_edges(graph)))
        return graph

    def _arguments(
        self, name: str, accepted: Sequence[str], devices: int, seed: int
    ) -> dict[str, object]:
        """Return the arguments of the graph's generator, by name.

        Args:
            name: name of the generator.
            accepted: names of the generator's parameters.
            devices: count of devices, from which the parameter ``n`` follows if it is not given.
            seed: seed of a graph with random edges.
        """
        arguments = {**_DEFAULT_ARGUMENTS.get(name, {}), **self.parameters}
        if "seed" in accepted:
            arguments["seed"] = seed
        if "n" in accepted and "n" not in arguments:
            # a star of networkx has a hub besides its n nodes
            arguments["n"] = devices - 1 if name == "star_graph" else devices
        return arguments
