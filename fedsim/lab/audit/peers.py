"""Did devices send to those that the scenario's topology, draws or all-reduce say?"""

import inspect
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pandas as pd

from fedsim.common.errors import RunFolderError
from fedsim.common.streams import Streams
from fedsim.lab.audit.evidence import NOTHING, Evidence, TomlTable, numbered
from fedsim.lab.audit.layout import coded_bytes, dense_tensors, left_tensors, numbers

PeerPair = tuple[int, int]

_GENERATORS = {
    "ring": "cycle_graph",
    "random-regular": "random_regular_graph",
    "torus": "grid_2d_graph",
}
_USUAL: Mapping[str, Mapping[str, Any]] = {
    "random_regular_graph": {"d": 3},
    "grid_2d_graph": {"periodic": True},
}


def peers_as_said(evidence: Evidence) -> Iterator[str]:
    """In each round each device sends to the receivers of the scenario, and to all of them once
    it sends to one.
    """
    strategy = evidence.run.scenario["strategy"]
    messages = _messages(evidence)
    match strategy["kind"]:
        case "d-psgd" | "epidemic":
            yield from _rounds_of_neighbours(evidence, messages)
        case "gossip":
            yield from _asks(evidence, messages)
        case "diloco" | "local-sgd":
            yield from _all_reduces(evidence, messages)


def _messages(evidence: Evidence) -> pd.DataFrame:
    """Messages from device to device within rounds: ``round``, ``source``, ``to`` and their
    first purpose and bytes.
    """
    told = evidence.transfers
    told = told[(told["direction"] == "peer") & (told["round"] != NOTHING)]
    first = [parts[0] if parts else ("", 0.0) for parts in evidence.payloads]
    found = pd.DataFrame({"round": told["round"], "bytes": told["bytes"]})
    found["source"] = numbered(told["sender"], "device")
    found["to"] = numbered(told["receiver"], "device")
    return found.assign(purpose=[first[code][0] for code in told["payloads"]])


def _rounds_of_neighbours(evidence: Evidence, messages: pd.DataFrame) -> Iterator[str]:
    receivers = _receivers(evidence.run.scenario)
    pairs: Any = messages.groupby(["round", "source"])
    for (number, source), own in pairs:
        due = receivers(int(number))[source]
        if (found := sorted(own["to"])) != sorted(due) and not _sent_again(found, due):
            yield (
                f"device {source} sent to {found} in round {number}; by the scenario its receivers "
                f"are {sorted(due)}"
            )


def _sent_again(found: Sequence[int], due: Sequence[int]) -> bool:
    """Whether a device has sent to the same receivers more than once, as one does that was away
    and begins a round again.
    """
    counts = Counter(found)
    return {*counts} == {*due} and len(set(counts.values())) == 1


def _receivers(scenario: TomlTable) -> Any:
    """Of each round the receivers of every device."""
    strategy = scenario["strategy"]
    streams = Streams(scenario["seed"])
    devices = scenario["population"]["devices"]

    @cache
    def drawn(number: int) -> list[list[int]]:
        generator = streams.generator("strategy/epidemic", number)
        draws = [
            generator.choice(devices - 1, strategy["sample_size"], replace=False)
            for _ in range(devices)
        ]
        return [(draw + (draw >= device)).tolist() for device, draw in enumerate(draws)]

    if strategy["kind"] == "epidemic":
        return drawn
    every = strategy["topology"].get("every")
    graph = _graphs(scenario)
    return lambda number: graph(0 if every is None else number // every)


def _graphs(scenario: TomlTable) -> Any:
    """The neighbours of every device in the graph of a number."""
    import networkx

    topology = scenario["strategy"]["topology"]
    devices = scenario["population"]["devices"]
    streams = Streams(scenario["seed"])
    name = (
        _GENERATORS.get(topology["kind"], topology["kind"].replace("-", "_")).removesuffix("_graph")
        + "_graph"
    )
    generator = getattr(networkx.generators, name, None)
    if generator is None:
        raise RunFolderError(
            f"strategy.topology.kind is {topology['kind']!r}, of which there is no graph"
        )

    @cache
    def neighbours(number: int) -> list[list[int]]:
        arguments = {**_USUAL.get(name, {}), **topology.get("parameters", {})}
        known = inspect.signature(generator).parameters
        if "seed" in known:
            arguments["seed"] = int(
                streams.generator("strategy/topology", number).integers(1 << 31)
            )
        if "n" in known and "n" not in arguments:
            arguments["n"] = devices - 1 if name == "star_graph" else devices
        try:
            made = generator(**arguments)
        except (TypeError, ValueError, networkx.NetworkXException) as error:
            raise RunFolderError(f"the scenario's topology cannot be made: {error}") from None
        graph = networkx.convert_node_labels_to_integers(made, ordering="sorted")
        if len(graph) != devices:
            raise RunFolderError(
                f"the scenario's topology has {len(graph)} nodes, and there are {devices} devices"
            )
        return [
            [other for other in graph.neighbors(device) if other != device]
            for device in range(devices)
        ]

    return neighbours


def _asks(evidence: Evidence, messages: pd.DataFrame) -> Iterator[str]:
    """A device asks the neighbour that its stream draws."""
    scenario = evidence.run.scenario
    streams = Streams(scenario["seed"])
    every = scenario["strategy"]["topology"].get("every")
    graph = _graphs(scenario)
    asked = messages[messages["purpose"] == "ask"]
    for number, source, to in (
        asked[["round", "source", "to"]].drop_duplicates().itertuples(index=False)
    ):
        near = sorted(graph(0 if every is None else number // every)[source])
        due = (
            int(streams.generator("strategy/partner", number, source).choice(near))
            if near
            else None
        )
        if to != due:
            yield (
                f"device {source} asked device {to} in round {number}; by the scenario it asks "
                f"{due}"
            )


def _all_reduces(evidence: Evidence, messages: pd.DataFrame) -> Iterator[str]:
    """Each all-reduce that is over has the messages of its collective, each with its share of
    the vector.
    """
    scenario = evidence.run.scenario
    strategy = scenario["strategy"]
    devices = scenario["population"]["devices"]
    due, share = _collective(strategy["collective"], devices)
    last = messages["round"].max()
    for number, own in messages.groupby("round"):
        found = Counter(zip(own["source"], own["to"], strict=True))
        # the run may have ended within its last one
        if found == due or (number == last and found <= due):
            continue
        pair = next(iter((found - due) or (due - found)))
        where = f"device {pair[0]} to device {pair[1]}"
        yield (
            f"all-reduce {number} has {found[pair]} messages from {where}; a "
            f"{strategy['collective']} has {due[pair]}"
        )
    sizes = messages[["round", "bytes"]].drop_duplicates()
    for number, size in sizes.itertuples(index=False):
        whole = _fragment_bytes(evidence, int(number))
        if whole is not None and not math.isclose(size, whole * share, rel_tol=1e-9):
            yield (
                f"all-reduce {number} has messages of {size!r} bytes; by the scenario they have "
                f"{whole * share!r}"
            )


def _collective(kind: str, nodes: int) -> tuple[Counter[PeerPair], float]:
    """The messages of an all-reduce, and the part of the vector in each."""
    everybody = range(nodes)
    if kind == "ring":
        return Counter(
            {(node, (node + 1) % nodes): 2 * (nodes - 1) for node in everybody}
        ), 1 / nodes
    if kind == "tree":
        pairs = [((node - 1) // 2, node) for node in range(1, nodes)]
        return Counter([*pairs, *((child, parent) for parent, child in pairs)]), 1.0
    return Counter(
        {(one, other): 2 for one in everybody for other in everybody if one != other}
    ), 1 / nodes


def _fragment_bytes(evidence: Evidence, number: int) -> float | None:
    """Bytes of the fragment of an all-reduce as the codec writes it; None where they are not
    known.
    """
    scenario = evidence.run.scenario
    left = left_tensors(evidence)
    expected = dense_tensors(scenario)
    tensors = left if left is not None or expected is None else expected[0]
    if tensors is None:
        return None
    whole = numbers(tensors)
    count = scenario["strategy"]["fragments"]
    part = number % count
    fragment = (part + 1) * whole // count - part * whole // count
    codec = scenario.get("messages", {}).get("up", {"kind": "plain", "dtype": "float32"})
    return coded_bytes(codec, fragment, whole)
