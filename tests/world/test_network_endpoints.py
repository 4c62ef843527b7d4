"""Any endpoint sends to any other: against brute force, by hand, and saved and taken up again."""

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import networkx
import numpy as np
import pytest

from fedsim.clock.environment import LAST
from fedsim.clock.simulation import Simulation
from fedsim.common.errors import SimulationError
from fedsim.common.streams import Streams
from fedsim.running.checkpoint.codec import Decoder, Encoder
from fedsim.toolbox.worlds.graphs import EdgeServers, Graph, TreeSpec, build_graph_network
from fedsim.world.network import SERVER, Flow, Network, Star
from fedsim.world.network.protocol import Fluid, Protocol, Tcp, Transport
from tests.world.network_plays import Listed


@dataclass(frozen=True)
class Send:
    """One message: seconds, endpoints, bytes, and when it is cancelled (s)."""

    start: float
    source: int
    destination: int
    size: float
    kill: float = math.inf


@dataclass(frozen=True)
class World:
    """A network, messages, changes of links (time, link, bytes/s or None), and for each message
    its links and latency (s).
    """

    protocol: Protocol
    build: Callable[[Simulation], Network]
    capacity: dict[str, float]
    sends: list[Send]
    limits: list[tuple[float, str, float | None]]
    routes: list[list[str]]
    latencies: list[float]


class Course:
    """A world's messages on their way."""

    def __init__(self, world: World, now: float = 0.0) -> None:
        self.world, self.simulation = world, Simulation()
        self.before: dict[float, dict[int, float]] = {}
        self.network = world.build(self.simulation)
        self.flows: dict[int, Flow] = {}
        self.simulation.env.restart(now)

    def begin(self) -> "Course":
        sends, limits = self.world.sends, self.world.limits
        times = {"send": [send.start for send in sends], "limit": [limit[0] for limit in limits]}
        for kind, whens in (times | {"kill": [send.kill for send in sends]}).items():
            for number, when in enumerate(whens):
                if when < math.inf:
                    self.wake(kind, number, when)
        return self

    def wake(self, kind: str, number: int, when: float) -> None:
        if kind in ("network", "latency"):
            self.simulation.env.rearm(kind, number, when)
        else:
            self.simulation.wake((kind, number), when, lambda: getattr(self, kind)(number))

    def send(self, number: int) -> None:
        send = self.world.sends[number]
        self.flows[number] = self.network.send(
            send.source, send.destination, send.size, lambda: None
        )

    def kill(self, number: int) -> None:
        self.network.cancel(self.flows[number])

    def limit(self, number: int) -> None:
        self.network.limit(*self.world.limits[number][1:])

    def watch(self, looks: int) -> "Course":
        """Read all flows at every sixteenth of a second, before all else and after it: which is
        the same, and changes nothing.

        (A flow that no link limits is sent in the very instant of its solve.)
        """
        for number in range(looks):
            when = number / 16
            self.simulation.wake(
                ("before", number),
                when,
                lambda: self.before.update({self.simulation.now: self.read()}),
            )
            self.simulation.wake(("after", number), when, self.compare, LAST)
        return self

    def read(self) -> dict[int, float]:
        network = self.network
        found = {}
        for number, flow in self.flows.items():
            way = flow.source, flow.destination
            limited = any(
                rate < math.inf
                for _, rate in [*network.links_between(*way), *network.own_links(*way)]
            )
            if limited and network.rate(flow) >= 0:
                found[number] = network.sent(flow)
        return found

    def compare(self) -> None:
        after = self.read()
        for number, sent in self.before[self.simulation.now].items():
            assert after[number] == pytest.approx(sent, rel=1e-12, abs=1e-9)

    def run(self) -> list[tuple[float | None, float]]:
        asyncio.run(self.simulation.run())
        return [(flow.ended, flow.sent) for _, flow in sorted(self.flows.items())]

    def cut(self, when: float) -> "Course":
        """Run until then, write all down, and take it up in another simulation."""
        self.simulation.wake(("cut", 0), when, self.simulation.interrupt)
        self.run()
        encoder = Encoder()
        state = {
            "network": self.network.snapshot(),
            "flows": self.flows,
            "alarms": self.simulation.alarms(),
        }
        written = json.loads(json.dumps(encoder.encode(state)))
        state = Decoder(encoder.arrays).decode(written)
        again = Course(self.world, self.simulation.now)
        again.network.restore(state["network"])
        again.flows = state["flows"]
        for flow in again.flows.values():
            flow.done = lambda: None
        for alarm in state["alarms"]:
            again.wake(*alarm)
        return again


SLOW = {"segment": "100 B", "initial_window": 1, "round_trip": "0.25 s"}
PROTOCOLS = (
    Fluid(),
    Fluid(weight_spread=2.0),
    Fluid(slow_start=True, **SLOW),
    Tcp(header="10 B", **SLOW),
)


def draw(seed: int, *, protocols: Sequence[Protocol] = PROTOCOLS) -> World:
    """A random world: a star, a tree with edge servers, or a graph without circles with edge
    servers and hosts.
    """
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(2, 7))
    transport = Transport(protocols[seed // 3 % len(protocols)], Streams(seed))
    own = {
        way: rng.choice([300.0, 1000.0, math.inf, float(rng.uniform(100, 2000))], devices)
        for way in ("down", "up")
    }
    latency = rng.choice([0.0, 0.125, 0.25], devices)
    columns = own["down"], own["up"], latency
    capacity = {
        f"device {device} {way}": float(own[way][device])
        for way in own
        for device in range(devices)
    }
    rate = lambda: float(rng.choice([400.0, 1500.0, math.inf, float(rng.uniform(100, 2000))]))  # noqa: E731
    edge_latency, others, kind = 0.125, 0, ("star", "tree", "graph")[seed % 3]
    node_of: dict[int, Any] = {}
    if kind == "star":
        shared = {"server down": rate(), "server up": rate()}
        build = lambda simulation: Star(simulation, *columns, *shared.values(), transport=transport)  # noqa: E731
    elif kind == "tree":
        cells = int(rng.integers(1, 4))
        names = ["server down", "server up", "cell down", "cell up", "edge receive", "edge send"]
        rates = {name: rate() for name in names}
        section = {part: {} for part in ("server", "cell", "edge")}
        for name, number in rates.items():
            section[name.split()[0]][name.split()[1]] = f"{number!r} B/s"
        section["edge"]["latency"] = "0.125 s"
        spec = TreeSpec.model_validate({"cells": cells, "protocol": transport.protocol, **section})
        build = lambda simulation: spec.build(simulation, transport.streams, devices, columns)  # noqa: E731
        shared = {name: rates[name] for name in names[:2]}
        for name in names[2:]:
            of, way = name.split()
            shared |= {f"{of} {cell} {way}": rates[name] for cell in range(cells)}
        others, stations = cells, [device % cells for device in range(devices)]
    else:
        graph: networkx.Graph[str] = networkx.Graph()
        graph.add_node("n0")
        for node in range(1, int(rng.integers(3, 8))):
            graph.add_edge(f"n{node}", f"n{rng.integers(node)}", capacity=rate())
        attach = [f"n{node}" for node in rng.integers(1, len(graph), 3)]
        edges, hosts = list(dict.fromkeys(attach)), ["n0", "n1"]
        receive, send = rate(), rate()
        count = len(edges)
        at_edges = EdgeServers(edges, [receive] * count, [send] * count, edge_latency)
        build = lambda simulation: build_graph_network(  # noqa: E731
            simulation, columns, graph, "n0", attach, transport, at_edges, hosts
        )
        ways = [(a, b, data["capacity"]) for a, b, data in graph.edges(data=True)]
        shared = {
            f"{tail} -> {head}": size for a, b, size in ways for tail, head in ((a, b), (b, a))
        }
        for edge in range(len(edges)):
            shared |= {f"edge {edge} receive": receive, f"edge {edge} send": send}
        node_of = {SERVER: "n0"} | {device: attach[device % 3] for device in range(devices)}
        node_of |= {devices + number: node for number, node in enumerate([*edges, *hosts])}
        others, walks = len(edges) + len(hosts), dict(networkx.all_pairs_shortest_path(graph))
        # An edge server is the first on the way to the server: here at the very node, unless that
        # is the server's own.
        stations = [edges.index(attach[device % 3]) for device in range(devices)]
    servers = others - (2 if kind == "graph" else 0)

    def route(source: int, destination: int) -> list[str]:
        way = [f"device {source} up"] if 0 <= source < devices else []
        way += [f"edge {source - devices} send"] if 0 <= source - devices < servers else []
        if kind == "star":
            way += (
                ["server down"]
                if source == SERVER
                else ["server up"]
                if destination == SERVER
                else []
            )
        elif kind == "tree":
            tail, head = (
                end if end == SERVER else end % cells if end < devices else end - devices
                for end in (source, destination)
            )
            if tail != head:
                way.append("server down" if tail == SERVER else f"cell {tail} up")
                way.append("server up" if head == SERVER else f"cell {head} down")
        else:
            walk = walks[node_of[source]][node_of[destination]]
            way += [f"{tail} -> {head}" for tail, head in pairwise(walk)]
        way += (
            [f"edge {destination - devices} receive"]
            if 0 <= destination - devices < servers
            else []
        )
        return way + ([f"device {destination} down"] if 0 <= destination < devices else [])

    def delay(source: int, destination: int) -> float:
        seconds, at = 0.0, []
        for end in (source, destination):
            seconds += latency[end] if 0 <= end < devices else 0.0
            at.append(devices + stations[end] if kind != "star" and 0 <= end < devices else end)
        return seconds + sum(
            edge_latency for end in at if at[0] != at[1] and 0 <= end - devices < servers
        )

    sends = []
    for _ in range(int(rng.integers(3, 11))):
        source, destination = rng.choice(
            np.arange(SERVER, devices + others), 2, replace=False
        ).tolist()
        start = float(rng.integers(0, 12)) / 4
        kill = start + float(rng.integers(0, 20)) / 4 + 1 / 16 if rng.random() < 0.3 else math.inf
        sends.append(
            Send(
                start,
                source,
                destination,
                float(rng.choice([0.0, 500.0, rng.uniform(1, 4000)])),
                kill,
            )
        )
    limits: list[tuple[float, str, float | None]] = []
    for link in rng.choice(list(capacity | shared), 2, replace=False).tolist():
        begin = float(rng.integers(0, 16)) / 4 + 1 / 32
        limits += [
            (begin, link, float(rng.choice([0.0, 200.0, 5000.0]))),
            (begin + float(rng.integers(1, 9)) / 4, link, None),
        ]
    pairs = [(send.source, send.destination) for send in sends]
    routes, latencies = [route(*pair) for pair in pairs], [delay(*pair) for pair in pairs]
    return World(transport.protocol, build, capacity | shared, sends, limits, routes, latencies)


def fair(
    routes: dict[int, list[str]], capacity: dict[str, float], weights: list[float]
) -> dict[int, float]:
    """Weighted max-min rates: the link with the least share for a unit of weight is settled, and
    so on.
    """
    rates: dict[int, float] = {}
    room = dict(capacity)
    while len(rates) < len(routes):
        open_ = [flow for flow in routes if flow not in rates]
        there = {
            link: sum(weights[flow] for flow in open_ if link in routes[flow])
            for flow in open_
            for link in routes[flow]
        }
        least, link = min(
            ((room[link] / weight, link) for link, weight in there.items()), default=(math.inf, "")
        )
        for flow in open_:
            if least == math.inf or link in routes[flow]:
                rates[flow] = max(least, 0.0) * weights[flow]
                for name in routes[flow]:
                    room[name] -= rates[flow] if rates[flow] < math.inf else 0.0
    return rates


def brute(world: World, weights: list[float]) -> list[tuple[float | None, float]]:
    """When each message has ended (s), and what of it was sent, from one change of rates to the
    next.

    In slow start a message's window is a link of its own. It doubles every round trip, until it
    did not limit the message.
    """
    sends, capacity, now, protocol = world.sends, dict(world.capacity), 0.0, world.protocol
    enters = [send.start + latency for send, latency in zip(sends, world.latencies, strict=True)]
    trips = [2 * latency + protocol.round_trip for latency in world.latencies]
    wire = [send.size * protocol.overhead for send in sends]
    sent, ended = [0.0] * len(sends), [math.inf] * len(sends)
    windows: dict[int, tuple[float, float]] = {}  # bytes/s, and when it doubles
    opened: set[int] = set()

    def own(flow: int) -> float:
        return min(
            (capacity[link] for link in world.routes[flow] if link.startswith("device")),
            default=math.inf,
        )

    while True:
        there = [
            flow for flow in range(len(sends)) if enters[flow] <= now and ended[flow] == math.inf
        ]
        for flow in set(there) - opened:
            opened.add(flow)
            if wire[flow] and protocol.slow_start and protocol.window < own(flow) * trips[flow]:
                windows[flow] = protocol.window / trips[flow], now + trips[flow]
        routes = {
            flow: world.routes[flow] + [f"window {flow}"] * (flow in windows) for flow in there
        }
        rates = fair(
            routes,
            capacity | {f"window {flow}": rate for flow, (rate, _) in windows.items()},
            weights,
        )
        over = [
            f
            for f in there
            if rates[f] == math.inf or wire[f] - sent[f] <= 1e-9 * max(rates[f], 1.0)
        ]
        if over:
            for flow in over:
                ended[flow], sent[flow] = now, wire[flow]
                windows.pop(flow, None)
            continue
        times = [when for when in (*enters, *(limit[0] for limit in world.limits)) if when > now]
        times += [
            send.kill
            for flow, send in enumerate(sends)
            if ended[flow] == math.inf and now < send.kill < math.inf
        ]
        times += [
            now + (wire[flow] - sent[flow]) / rate for flow, rate in rates.items() if rate > 0
        ]
        times += [when for _, when in windows.values()]
        if not times:
            return [(end, part / protocol.overhead) for end, part in zip(ended, sent, strict=True)]
        for flow, rate in rates.items():
            sent[flow] += rate * (min(times) - now)
        now = min(times)
        capacity |= {
            name: world.capacity[name] if rate is None else rate
            for when, name, rate in world.limits
            if when == now
        }
        for flow, send in enumerate(sends):
            if send.kill == now and ended[flow] == math.inf:
                ended[flow] = now
                windows.pop(flow, None)
        for flow, (window, when) in list(windows.items()):
            if when <= now:
                del windows[flow]
                if rates[flow] > window * (1 - 1e-12) and 2 * window < own(flow):
                    windows[flow] = 2 * window, now + trips[flow]


@pytest.mark.parametrize("first", [0, 250, 500, 750])
def test_random_networks_do_what_brute_force_says(first: int) -> None:
    """In 342, 885 and 2073 a window widens, or a link changes, in the instant in which the
    network becomes general.
    """
    general = 0
    for seed in {*range(first, first + 250), 342, 885, 2073}:
        world = draw(seed)
        course = Course(world).begin()
        found = course.run()
        expected = brute(world, [course.flows[number].weight for number in range(len(world.sends))])
        assert np.array(found, dtype=float) == pytest.approx(
            np.array(expected), rel=1e-8, abs=1e-7
        ), seed
        general += course.network._general
    assert general > 185


def test_a_reader_at_every_instant_changes_nothing() -> None:
    for seed in range(60):
        world = draw(seed, protocols=(*PROTOCOLS, Tcp(weight_by_round_trip=1.0, **SLOW)))
        plain, watched = Course(world).begin(), Course(world).watch(320).begin()
        assert watched.run() == plain.run(), seed


def test_a_snapshot_between_any_two_instants_changes_nothing() -> None:
    """Twice in a row, before and after the network has become general, with weights and windows
    too.
    """
    for seed in range(30):
        world = draw(seed, protocols=(PROTOCOLS[0], PROTOCOLS[3]))
        whole = Course(world).begin().run()
        first = float(np.random.default_rng(seed).integers(0, 40)) / 8 + 1 / 64
        assert Course(world).begin().cut(first).cut(first + 0.8125).run() == whole, seed


def test_latency_is_both_ends_and_twice_the_way_to_the_core() -> None:
    section = {"cells": 2, "edge": {"latency": "1 s"}}
    # devices 0 and 2 are in cell 0, whose edge server is 3; device 1 in cell 1, with 4
    own = np.array([0.25, 0.5, 2.0])
    network = TreeSpec.model_validate(section).build(Simulation(), Streams(1), 3, (own, own, own))
    expected = {
        (0, 1): 2.75,
        (0, 2): 2.25,
        (0, 3): 0.25,
        (0, 4): 2.25,
        (3, 4): 2.0,
        (1, SERVER): 1.5,
        (3, SERVER): 1.0,
    }
    assert {pair: network.latency_s(*pair) for pair in expected} == expected
    assert {pair: network.latency_s(*pair[::-1]) for pair in expected} == expected


def test_routes_through_any_graph_are_the_shortest_and_the_same_back() -> None:
    for seed in range(20):
        graph = networkx.gnm_random_graph(9, 14, seed=seed)
        graph = networkx.relabel_nodes(
            graph.subgraph(max(networkx.connected_components(graph), key=len)), str
        )
        networkx.set_edge_attributes(graph, 1.0, "capacity")
        nodes = sorted(graph)
        network = build_graph_network(
            Simulation(), (np.ones(0),) * 3, graph, nodes[0], nodes, hosts=nodes
        )
        for tail, head in networkx.all_pairs_shortest_path_length(graph):
            for other, hops in head.items():
                there, back = (network._path(*pair) for pair in ((tail, other), (other, tail)))
                assert len(there) == hops
                assert [" -> ".join(link.split(" -> ")[::-1]) for link in there[::-1]] == back


def routed(graph: "networkx.Graph[str]", attach: list[str]) -> Graph:
    unlimited = np.full(2, math.inf)
    columns = (unlimited, unlimited, np.zeros(2))
    return build_graph_network(Simulation(), columns, graph, "s", attach)


def test_routes_have_the_fewest_hops_and_among_these_the_first_by_name() -> None:
    edges = [("s", "b"), ("b", "z"), ("s", "a"), ("a", "z"), ("s", "c"), ("c", "d"), ("d", "z")]
    down, up = [("s -> a", 5.0), ("a -> z", 5.0)], [("z -> a", 5.0), ("a -> s", 5.0)]
    for order in (edges, edges[::-1]):
        graph: networkx.Graph[str] = networkx.Graph()
        graph.add_edges_from(order, capacity=5.0)
        network = routed(graph, ["z", "d"])
        ways = [network.links_between(*pair) for pair in ((SERVER, 0), (0, SERVER), (1, SERVER))]
        assert ways == [down, up, [("d -> c", 5.0), ("c -> s", 5.0)]]


def test_a_directed_edge_goes_one_way() -> None:
    graph: networkx.Graph[str] = networkx.DiGraph()
    graph.add_weighted_edges_from(
        [("s", "z", 3.0), ("z", "m", 2.0), ("m", "s", 1.0)], weight="capacity"
    )
    network = routed(graph, ["z"])
    assert network.links_between(SERVER, 1) == [("s -> z", 3.0)]
    assert network.links_between(1, SERVER) == [("z -> m", 2.0), ("m -> s", 1.0)]
    assert [network.lone_rates(way)[0] for way in ("down", "up")] == [3.0, 1.0]


def test_routes_that_lead_nowhere_are_refused() -> None:
    graph: networkx.Graph[str] = networkx.Graph([("s", "north", {"capacity": 1.0})])
    graph.add_node("island")
    with pytest.raises(SimulationError, match="no way from the server 's' for node 'island'"):
        routed(graph, ["island"])
    network = Listed(
        Simulation(), {"a": 1.0}, *[np.ones(1)] * 3, routes={"down": [["a"]], "up": [["b"]]}
    )
    with pytest.raises(SimulationError, match="the route from 0 to -1 has the unknown link 'b'"):
        network.links_between(0, SERVER)
