"""Reader of graphs in node-link JSON, with the capacities and latencies of edges.

An attribute that fedsim does not use raises an error with the attribute's name.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from fedsim.common.errors import ScenarioError, nearest, show_value
from fedsim.common.files import read_keyed_json
from fedsim.common.notes import note
from fedsim.common.units import LinkRate, Seconds

if TYPE_CHECKING:
    import networkx

LABELS = (
    "name",
    "label",
    "title",
    "description",
    "comment",
    "color",
    "colour",
    "style",
    "shape",
    "size",
    "width",
)
"""Attributes of nodes, edges and graphs that are accepted and ignored: labels and styles."""

PLACES = ("pos", "x", "y", "z", "lat", "lon", "latitude", "longitude", "city", "country")
"""Attributes of nodes that are accepted and ignored, as latencies are attributes of edges."""

_TOP_KEYS = ("directed", "multigraph", "graph", "nodes", "edges", "links")
_NOT_NODE_LINK = "is not node-link JSON: 'nodes' with 'id', 'edges' with 'source' and 'target'"
_EDGE_ATTRIBUTES = ("capacity", "latency")
# common name of an attribute -> fedsim's name
_SYNONYMS = {
    "bandwidth": "capacity",
    "bw": "capacity",
    "rate": "capacity",
    "speed": "capacity",
    "throughput": "capacity",
    "datarate": "capacity",
    "data_rate": "capacity",
    "delay": "latency",
    "lat": "latency",
    "propagation_delay": "latency",
    "prop_delay": "latency",
}
# attribute that fedsim rejects -> the reason
_WHY_REJECTED = {
    "weight": "routes have the fewest hops, whatever the weights; leave it out",
    "cost": "routes have the fewest hops, whatever the costs; leave it out",
    "loss": 'no link loses packets; network.protocol = "tcp" has the usual effects of headers and '
    "slow start",
    "jitter": "latencies of links are constant; a process of the world can change rates",
    "rtt": "a round trip is twice the 'latency', which is one way",
}


def read_graph(path: Path) -> "networkx.Graph[str]":
    """Read the graph of a network from a node-link JSON file, and print a note on its size.

    Args:
        path: the file.

    Returns:
        The graph; each edge has ``capacity`` (bytes/s) and ``latency`` (s, by default 0).

    Raises:
        ScenarioError: the file is missing or malformed, or has an attribute that fedsim does not
            use.
    """
    import networkx

    where = f"network.file {str(path)!r}"
    try:
        data = read_keyed_json(path)
        # networkx before 3.4 wrote "links"
        edges = data["edges"] if "edges" in data else data["links"]
        nodes = [(str(node["id"]), node) for node in data["nodes"]]
        links = [(str(edge["source"]), str(edge["target"]), edge) for edge in edges]
    except OSError as error:
        raise ScenarioError(f"{where} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ScenarioError(f"{where} {_NOT_NODE_LINK} ({error})") from None
    except (KeyError, TypeError, AttributeError):
        raise ScenarioError(f"{where} {_NOT_NODE_LINK}") from None
    _check_top(where, data)
    graph: networkx.Graph[str] = networkx.Graph()
    if data.get("directed", False):
        graph = networkx.DiGraph()
    for node, attributes in nodes:
        if node in graph:
            raise ScenarioError(f"{where}: the node {node!r} is there twice; give each once")
        _refuse_unused(f"{where}: the node {node!r}", attributes, ("id",), LABELS + PLACES)
        graph.add_node(node)
    for tail, head, attributes in links:
        edge = f"{where}: the edge {tail!r} - {head!r}"
        _check_ends(edge, tail, head, graph)
        graph.add_edge(tail, head, **_edge_properties(edge, attributes))
    delayed = sum(properties["latency"] > 0 for _, _, properties in graph.edges(data=True))
    kind = "one-way links" if graph.is_directed() else "links, each both ways"
    note(
        f"{str(path)!r}: {len(graph)} nodes, {graph.number_of_edges()} {kind}, {delayed} of them "
        "with a latency"
    )
    return graph


def _check_ends(edge: str, tail: str, head: str, graph: "networkx.Graph[str]") -> None:
    """Raise ``ScenarioError`` if an edge from ``tail`` to ``head`` cannot be added to a graph.

    It cannot if a node is unknown, both nodes are the same, or the edge is in the graph already.

    Args:
        edge: text that names the edge, for error messages.
        tail: name of the node at which the edge begins.
        head: name of the node at which the edge ends.
        graph: the graph.
    """
    for node in (tail, head):
        if node not in graph:
            raise ScenarioError(f"{edge} has the unknown node {node!r}{nearest(node, graph)}")
    if tail == head:
        raise ScenarioError(f"{edge} leads back to its own node; give edges between two")
    if graph.has_edge(tail, head):
        raise ScenarioError(f"{edge} is there twice; give it once with the capacity of both")


def _check_top(where: str, data: Mapping[str, object]) -> None:
    """Raise ``ScenarioError`` if the top level of a graph file has an invalid or unused key.

    Args:
        where: text that names the file, for error messages.
        data: the JSON object of the file.
    """
    if "edges" in data and "links" in data:
        raise ScenarioError(f"{where} has 'edges' and 'links'; allowed is one of them")
    for key in ("directed", "multigraph"):
        if not isinstance(data.get(key, False), bool):
            raise ScenarioError(
                f"{where}: {key!r} is {show_value(data[key])}; it must be true or false"
            )
    _refuse_unused(where, data, _TOP_KEYS, ())
    graph = data.get("graph", {})
    if not isinstance(graph, Mapping):
        raise ScenarioError(
            f"{where}: 'graph' is {show_value(graph)}; it must be an object of labels"
        )
    _refuse_unused(f"{where}: 'graph'", graph, (), LABELS)


def _refuse_unused(
    owner: str, attributes: Mapping[str, object], used: Iterable[str], labels: Iterable[str]
) -> None:
    """Raise ``ScenarioError`` if an attribute is neither used nor a label that may be ignored.

    Args:
        owner: the node, edge or file that has the attributes, for error messages.
        attributes: name -> value.
        used: names of the attributes that fedsim reads.
        labels: names of the attributes that are accepted and ignored.
    """
    allowed = [*used, *labels]
    for name in attributes:
        if name in allowed:
            continue
        uses = f"used are {', '.join(used)}" if used else "none is used"
        more = f", and labels are {', '.join(labels)}" if labels else ""
        raise ScenarioError(
            f"{owner} has {show_value(name)}, which nothing uses; {uses}{more}"
            f"{nearest(name, allowed)}"
        )


def _edge_properties(edge: str, attributes: Mapping[str, object]) -> dict[str, float]:
    """Return the ``capacity`` (bytes/s) and ``latency`` (s) of an edge of a graph in a file.

    Args:
        edge: text that names the edge, for error messages.
        attributes: the edge's attributes in the file.

    Raises:
        ScenarioError: an attribute is missing, unused or invalid.
    """
    for name in attributes:
        is_latency = name == "delay" and "latency" not in attributes  # ``delay`` alone is accepted
        if name in _SYNONYMS and not is_latency:
            raise ScenarioError(
                f"{edge} has {name!r}, which nothing uses; name it {_SYNONYMS[name]!r}"
            )
        if name in _WHY_REJECTED:
            raise ScenarioError(f"{edge} has {name!r}, which nothing uses: {_WHY_REJECTED[name]}")
    _refuse_unused(
        edge, attributes, ("source", "target", "key", *_EDGE_ATTRIBUTES), (*LABELS, "delay")
    )
    if attributes.get("capacity") is None:
        raise ScenarioError(f"{edge} has no 'capacity', such as '1 Gbit/s'")
    latency = attributes.get("latency", attributes.get("delay", "0 s"))
    return {
        "capacity": _parse_quantity(
            edge, "capacity", TypeAdapter(LinkRate), attributes["capacity"]
        ),
        "latency": _parse_quantity(edge, "latency", TypeAdapter(Seconds), latency),
    }


def _parse_quantity(edge: str, name: str, quantity: TypeAdapter[float], text: object) -> float:
    """Convert a text with a unit, such as "40 ms", to a number in the base unit.

    Args:
        edge: text that names the edge, for error messages.
        name: name of the attribute, for error messages.
        quantity: pydantic type of the quantity, such as ``Seconds``.
        text: the attribute's value in the file.

    Raises:
        ScenarioError: the text is not such a quantity.
    """
    try:
        return quantity.validate_python(text)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise ScenarioError(f"{edge} has the {name} {show_value(text)}: {message}") from None
