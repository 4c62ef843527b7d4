"""Checks that devices sent to the right peers, by the topology, random draws or all-reduces."""

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import pandas as pd

from fedsim.common.errors import RunFolderError
from fedsim.common.streams import Streams
from fedsim.lab.audit.evidence import Evidence, TomlTable
from fedsim.lab.audit.frames import NOTHING, endpoint_numbers
from fedsim.lab.audit.layout import coded_bytes, count_parameters, dense_tensors, saved_tensors

PeerPair = tuple[int, int]
_NeighbourFunction: TypeAlias = Callable[[int], list[list[int]]]
"""Function from the index of a round or graph to the receivers' IDs of each device."""

_GRAPH_GENERATORS = {
    "ring": "cycle_graph",
    "random-regular": "random_regular_graph",
    "torus": "grid_2d_graph",
}
"""Dict from kind of topology to NetworkX generator, for kinds that are not generators' names."""

_DEFAULT_ARGUMENTS: Mapping[str, Mapping[str, object]] = {
    "random_regular_graph": {"d": 3},
    "grid_2d_graph": {"periodic": True},
}
"""Dict from NetworkX generator to default arguments, which a scenario may omit."""


def check_peers(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each device or all-reduce that sent its models to wrong devices.

    The scenario's topology, random draws from its seed, or its kind of all-reduce (averaging by all
    devices) determine the receivers in each round. A device that sends to one of its receivers has
    to send to all. The messages of an all-reduce also need the right size. Only strategies whose
    devices send to each other are checked.
    """
    strategy = evidence.run.scenario["strategy"]
    messages = _find_messages(evidence)
    match strategy["kind"]:
        case "d-psgd" | "epidemic":
            yield from _check_receivers(evidence, messages)
        case "gossip":
            yield from _check_requests(evidence, messages)
        case "diloco" | "local-sgd":
            yield from _check_all_reduces(evidence, messages)
            yield from _check_fragments(evidence, messages)


def _find_messages(evidence: Evidence) -> pd.DataFrame:
    """Return the messages between devices in rounds.

    Returns:
        DataFrame with ``round``, ``source`` and ``target`` (device IDs), ``purpose`` of the first
        part, and ``bytes``.
    """
    transfers = evidence.transfers
    of_rounds = (transfers["direction"] == "peer") & (transfers["round"] != NOTHING)
    transfers = transfers[of_rounds]
    first_purposes = []
    for parts in evidence.payloads.lists:
        first_purposes.append(parts[0][0] if parts else "")
    messages = pd.DataFrame({"round": transfers["round"], "bytes": transfers["bytes"]})
    messages["source"] = endpoint_numbers(transfers["sender"], "device")
    messages["target"] = endpoint_numbers(transfers["receiver"], "device")
    messages["purpose"] = [first_purposes[code] for code in transfers["payloads"]]
    return messages


def _check_receivers(evidence: Evidence, messages: pd.DataFrame) -> Iterator[str]:
    """Yield a finding for each device and round whose messages go to other devices than expected.

    The expected receivers are the neighbours in the topology. In Epidemic Learning they are random,
    and are drawn again from the scenario's seed.

    Args:
        evidence: the run folder.
        messages: the messages between devices, as ``_find_messages`` returns them.
    """
    receivers = _receivers_in_round(evidence.run.scenario)
    pairs: Any = messages.groupby(["round", "source"])
    for (number, source), group in pairs:
        stated = sorted(group["target"])
        expected = sorted(receivers(int(number))[source])
        if stated != expected and not _is_repeated(stated, expected):
            yield (
                f"device {source} sent to {stated} in round {number}; by the scenario its "
                f"receivers are {expected}"
            )


def _receivers_in_round(scenario: TomlTable) -> _NeighbourFunction:
    if scenario["strategy"]["kind"] == "epidemic":
        return _draw_receivers(scenario)
    return _neighbours_in_round(scenario)


def _is_repeated(stated: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether a device sent to exactly its expected receivers, and equally often to each.

    A device repeats its round's messages if it was unreachable in between.

    Args:
        stated: ID of the receiver of each message.
        expected: IDs of the expected receivers.
    """
    counts = Counter(stated)
    return {*counts} == {*expected} and len(set(counts.values())) == 1


def _draw_receivers(scenario: TomlTable) -> _NeighbourFunction:
    """Return a function from index of a round to the receivers of each device in Epidemic Learning.

    They are drawn again from the scenario's seed.
    """
    streams = Streams(scenario["seed"])
    devices = scenario["population"]["devices"]
    sample_size = scenario["strategy"]["sample_size"]

    @cache
    def receivers(number: int) -> list[list[int]]:
        generator = streams.generator("strategy/epidemic", number)
        drawn = []
        for device in range(devices):
            draw = generator.choice(devices - 1, sample_size, replace=False)
            drawn.append((draw + (draw >= device)).tolist())  # skip the device's own ID
        return drawn

    return receivers


def _neighbours_in_round(scenario: TomlTable) -> _NeighbourFunction:
    """Return a function from the index of a round to each device's neighbours in its topology."""
    rounds_per_graph = scenario["strategy"]["topology"].get("every")
    neighbours = _neighbours_in_graph(scenario)
    if rounds_per_graph is None:
        return lambda number: neighbours(0)
    return lambda number: neighbours(number // rounds_per_graph)


def _neighbours_in_graph(scenario: TomlTable) -> _NeighbourFunction:
    """Return a function from graph index to each device's neighbours in that graph.

    The scenario's topology may change over time; its graphs are numbered from 0. The function
    raises ``RunFolderError`` if the scenario's topology is impossible.
    """
    import networkx

    topology = scenario["strategy"]["topology"]
    devices = scenario["population"]["devices"]
    streams = Streams(scenario["seed"])
    kind = topology["kind"]
    name = _generator_name(kind)
    generator = getattr(networkx.generators, name, None)
    if generator is None:
        raise RunFolderError(f"strategy.topology.kind is {kind!r}, of which there is no graph")
    parameters = inspect.signature(generator).parameters

    @cache
    def neighbours(number: int) -> list[list[int]]:
        arguments = {**_DEFAULT_ARGUMENTS.get(name, {}), **topology.get("parameters", {})}
        if "seed" in parameters:
            draw = streams.generator("strategy/topology", number).integers(1 << 31)
            arguments["seed"] = int(draw)
        if "n" in parameters and "n" not in arguments:
            # ``star_graph(n)`` has n nodes around its centre
            arguments["n"] = devices - 1 if name == "star_graph" else devices
        try:
            graph = generator(**arguments)
        except (TypeError, ValueError, networkx.NetworkXException) as error:
            raise RunFolderError(f"the scenario's topology cannot be made: {error}") from None
        # device IDs replace the nodes' labels, which are pairs of coordinates in a torus
        graph = networkx.convert_node_labels_to_integers(graph, ordering="sorted")
        if len(graph) != devices:
            raise RunFolderError(
                f"the scenario's topology has {len(graph)} nodes, and there are {devices} devices"
            )
        lists = []
        for device in range(devices):
            lists.append([peer for peer in graph.neighbors(device) if peer != device])
        return lists

    return neighbours


def _generator_name(kind: str) -> str:
    """Return the name of the NetworkX generator for a kind of topology, such as ``star_graph``."""
    stem = _GRAPH_GENERATORS.get(kind, kind.replace("-", "_")).removesuffix("_graph")
    return f"{stem}_graph"


def _check_requests(evidence: Evidence, messages: pd.DataFrame) -> Iterator[str]:
    """Yield a finding for each gossip request to another device than the one drawn from the seed.

    A device draws one of its neighbours in each round.

    Args:
        evidence: the run folder.
        messages: the messages between devices; requests have the purpose ``ask``.
    """
    scenario = evidence.run.scenario
    streams = Streams(scenario["seed"])
    neighbours = _neighbours_in_round(scenario)
    requests = messages[messages["purpose"] == "ask"][
        ["round", "source", "target"]
    ].drop_duplicates()
    for number, source, target in requests.itertuples(index=False):
        options = sorted(neighbours(number)[source])
        expected = None
        if options:
            expected = int(streams.generator("strategy/partner", number, source).choice(options))
        if target != expected:
            yield (
                f"device {source} asked device {target} in round {number}; by the scenario it asks "
                f"{expected}"
            )


def _check_all_reduces(evidence: Evidence, messages: pd.DataFrame) -> Iterator[str]:
    """Yield a finding for each all-reduce (averaging by all devices) with wrong messages.

    The collective operation, such as ``ring``, determines the count of messages between each pair.
    """
    scenario = evidence.run.scenario
    collective = scenario["strategy"]["collective"]
    expected = _count_messages(collective, scenario["population"]["devices"])
    last = messages["round"].max()
    for number, group in messages.groupby("round"):
        stated = Counter(zip(group["source"], group["target"], strict=True))
        is_unfinished = number == last and stated <= expected  # the run may end within a round
        if stated == expected or is_unfinished:
            continue
        # a difference of Counters keeps positive counts only: too many messages, else too few
        wrong_pairs = (stated - expected) or (expected - stated)
        pair = next(iter(wrong_pairs))
        sender, receiver = pair
        yield (
            f"all-reduce {number} has {stated[pair]} messages from device {sender} to device "
            f"{receiver}; a {collective} has {expected[pair]}"
        )


def _check_fragments(evidence: Evidence, messages: pd.DataFrame) -> Iterator[str]:
    """Yield a finding for each all-reduce whose messages have a wrong size.

    An all-reduce averages a fragment of the model over all devices. In a tree, each message has the
    whole fragment; otherwise it has 1/n of the fragment, for n devices.
    """
    scenario = evidence.run.scenario
    parts = 1
    if scenario["strategy"]["collective"] != "tree":
        parts = scenario["population"]["devices"]
    sizes = messages[["round", "bytes"]].drop_duplicates()
    for number, size in sizes.itertuples(index=False):
        fragment = _fragment_bytes(evidence, int(number))
        if fragment is None:
            continue
        expected = fragment * (1 / parts)
        if not math.isclose(size, expected, rel_tol=1e-9):
            yield (
                f"all-reduce {number} has messages of {size!r} bytes; by the scenario they have "
                f"{expected!r}"
            )


def _count_messages(kind: str, devices: int) -> Counter[PeerPair]:
    """Return a Counter from (sender, receiver) to the count of messages in one all-reduce.

    Args:
        kind: ``ring``, ``tree``, or any other name for direct messages between all pairs.
        devices: count of devices.
    """
    counts = Counter[PeerPair]()
    if kind == "ring":
        for device in range(devices):
            # n - 1 messages to add up the parts, n - 1 more to distribute the sums
            counts[device, (device + 1) % devices] = 2 * (devices - 1)
    elif kind == "tree":
        # a binary tree, numbered by level
        edges = [((child - 1) // 2, child) for child in range(1, devices)]
        counts.update(edges)
        counts.update((child, parent) for parent, child in edges)
    else:
        for sender in range(devices):
            for receiver in range(devices):
                if sender != receiver:
                    counts[sender, receiver] = 2
    return counts


def _fragment_bytes(evidence: Evidence, number: int) -> float | None:
    """Return the encoded size of the part of the model that an all-reduce averages (bytes).

    Args:
        evidence: the run folder.
        number: index of the all-reduce, which determines the part.

    Returns:
        The size; None if the folder does not determine it.
    """
    scenario = evidence.run.scenario
    tensors = saved_tensors(evidence)
    if tensors is None:
        trained_and_frozen = dense_tensors(scenario)
        if trained_and_frozen is None:
            return None
        tensors = trained_and_frozen[0]
    model_parameters = count_parameters(tensors)
    fragments = scenario["strategy"]["fragments"]
    fragment = number % fragments
    # fragments are equal up to one parameter; all-reduces take them in turn
    begin = fragment * model_parameters // fragments
    end = (fragment + 1) * model_parameters // fragments
    codec = scenario.get("messages", {}).get("up", {"kind": "plain", "dtype": "float32"})
    return coded_bytes(codec, end - begin, model_parameters)
