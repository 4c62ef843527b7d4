"""What must hold in any network at any time, whatever starts, ends and is cancelled when."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.simulation import Simulation
from fedsim.world.network import Direction, Flow, Network
from fedsim.world.network.protocol import Fluid, Protocol, Tcp
from fedsim.world.network.spec import TreeSpec
from tests.world.network_plays import Played, Send, StarWorld, load_of, play

QUARTERS = st.integers(0, 20).map(lambda quarters: quarters / 4)  # so that ties are common
CAPS = st.one_of(st.sampled_from([1e3, 5e3, 1e4, math.inf]), st.floats(1e3, 1e5))
SIZES = st.one_of(st.sampled_from([0.0, 1.0, 1e4, 2e4]), st.floats(0.0, 1e5))

PROTOCOLS: list[Protocol] = [
    Fluid(),
    Fluid(weight_spread=3.0),
    Fluid(slow_start=True, initial_window=1, round_trip="0.1 s"),
    Tcp(weight_by_round_trip=1.0),
]

DIRECTIONS: list[tuple[Direction, ...]] = [("up",), ("down",), ("up", "down")]


@st.composite
def plays(draw: st.DrawFn) -> tuple[StarWorld, list[Send]]:
    devices = draw(st.integers(1, 10))
    caps = draw(st.lists(CAPS, min_size=devices, max_size=devices))
    latency = draw(st.lists(st.sampled_from([0.0, 0.25, 0.1]), min_size=devices, max_size=devices))
    server = draw(st.one_of(st.sampled_from([1e3, 2e4, math.inf]), st.floats(1e3, 3e5)))
    world = StarWorld(caps, server, latency, draw(st.sampled_from(PROTOCOLS)))
    sends = []
    for device in range(devices):
        for direction in draw(st.sampled_from(DIRECTIONS)):
            start, lasts = draw(QUARTERS), draw(st.one_of(st.none(), QUARTERS))
            sends.append(Send(start, draw(SIZES), None if lasts is None else start + lasts, device, direction))
    return world, sends


Kind = Callable[[StarWorld], Callable[[Simulation], Network]]


def star(world: StarWorld) -> Callable[[Simulation], Network]:
    return world.star


def graph(world: StarWorld) -> Callable[[Simulation], Network]:
    return world.graph


def tree(world: StarWorld) -> Callable[[Simulation], Network]:
    """The same devices and server, and two cells between them."""
    import numpy as np

    from fedsim.streams import Streams

    spec = TreeSpec.model_validate(
        {
            "cells": 2,
            "protocol": world.protocol,
            "cell": {"down": "7 kB/s", "up": "9 kB/s"},
            "server": {"down": f"{world.server!r} B/s", "up": f"{world.server!r} B/s"},
        }
    )
    caps, latency = np.array(world.caps), world.latency[0]
    spec = spec.model_copy(update={"device": spec.device.model_validate({"latency": f"{latency!r} s"})})
    return lambda simulation: spec.build(simulation, Streams(1), len(caps), (caps, caps))


def general(world: StarWorld) -> Callable[[Simulation], Network]:
    """The star, after a message between two more devices: it shares its links by the general rule from the first solve on."""
    from dataclasses import replace

    more = replace(world, caps=[*world.caps, 1.0, 1.0], latency=[*world.latency, 0.0, 0.0])

    def build(simulation: Simulation) -> Network:
        network = more.star(simulation)
        network.send(len(world.caps), len(world.caps) + 1, 0.0, lambda: None)
        return network

    return build


KINDS = pytest.mark.parametrize("kind", [star, graph, tree, general])


def assert_max_min(network: Network, flows: list[Flow]) -> None:
    """No link over its capacity; each flow is held by its window, or by a full link on which none has more for its weight.

    (Weights are rounded to 2^-40 by the star.)
    """
    load = load_of(network)
    for used, capacity in load.values():
        assert used <= capacity * (1 + 1e-12)
    fastest: dict[str, float] = {}
    for flow in flows:
        for link in links_of(network, flow):
            fastest[link] = max(fastest.get(link, 0.0), network.rate(flow) / flow.weight)
    for flow in flows:
        rate, window = network.rate(flow), network._windows.get(flow.id, math.inf)
        assert rate <= window * (1 + 1e-12)
        if 0 < rate < window * (1 - 1e-12):
            full = [link for link in links_of(network, flow) if load[link][0] >= load[link][1] * (1 - 1e-12)]
            assert any(rate / flow.weight >= fastest[link] * (1 - 1e-9) for link in full)


def links_of(network: Network, flow: Flow) -> list[str]:
    return [name for name, _ in network._links_of(flow)]


@KINDS
@settings(max_examples=60, deadline=None)
@given(plays())
def test_rates_are_max_min_fair_after_every_solve(kind: Kind, case: tuple[StarWorld, list[Send]]) -> None:
    world, sends = case
    play(kind(world), sends, after_solve=assert_max_min)


@KINDS
@settings(max_examples=60, deadline=None)
@given(plays())
def test_bytes_are_the_integral_of_rates(kind: Kind, case: tuple[StarWorld, list[Send]]) -> None:
    world, sends = case
    integral: dict[int, float] = {}
    rates: dict[int, tuple[Flow, float]] = {}
    last = 0.0

    def add_up(network: Network, flows: list[Flow]) -> None:
        nonlocal last
        now = network._simulation.now
        for flow, rate in rates.values():
            end = now if flow.ended is None else min(flow.ended, now)
            integral[flow.id] = integral.get(flow.id, 0.0) + rate * max(end - last, 0.0)
        rates.clear()
        rates.update({flow.id: (flow, rate) for flow in flows if (rate := network.rate(flow)) > 0})
        last = now

    played = play(kind(world), sends, after_solve=add_up)
    told = {number for number, _ in played.told}
    for number, (send, flow) in enumerate(zip(sends, played.flows, strict=True)):
        if number in told:
            assert flow.sent == send.size
        else:
            assert flow.ended == send.kill
            assert 0 <= flow.sent <= send.size
        assert flow.ended is not None
        if flow.sent > 0 and network_limits(world, send):
            # Rates change at exact times, which lie up to a tick (0.93 ns) before the solves at which they are read here.
            assert integral.get(flow.id, 0.0) == pytest.approx(flow.sent * world.protocol.overhead, rel=1e-9, abs=1e-2)


def network_limits(world: StarWorld, send: Send) -> bool:
    assert send.device is not None
    return math.isfinite(world.server) or math.isfinite(world.caps[send.device])


@settings(max_examples=200, deadline=None)
@given(plays())
def test_star_graph_and_the_general_rule_agree(case: tuple[StarWorld, list[Send]]) -> None:
    world, sends = case
    for other in (graph, general):
        for one, same in zip(play(world.star, sends).flows, play(other(world), sends).flows, strict=True):
            assert one.ended == pytest.approx(same.ended, rel=1e-9, abs=1e-9)
            assert one.sent == pytest.approx(same.sent, rel=1e-9, abs=1e-6)


def outcome(played: Played) -> Any:
    return [(flow.ended, flow.sent) for flow in played.flows], played.told, played.instants


@KINDS
@settings(max_examples=60, deadline=None)
@given(plays())
def test_a_reader_at_every_instant_changes_nothing(kind: Kind, case: tuple[StarWorld, list[Send]]) -> None:
    world, sends = case

    def read(network: Network, flows: list[Flow]) -> None:
        load_of(network)
        for flow in flows:
            network.sent(flow)
            network.rate(flow)

    plain = play(kind(world), sends)
    beside = [(one + other) / 2 for one, other in zip(plain.instants, plain.instants[1:], strict=False)]
    watched = play(kind(world), sends, at=sorted(plain.instants + beside), read=read, after_solve=read)
    assert outcome(watched) == outcome(plain)


@KINDS
@settings(max_examples=60, deadline=None)
@given(plays())
def test_what_is_read_before_the_solve_is_what_is_read_after_it(kind: Kind, case: tuple[StarWorld, list[Send]]) -> None:
    """Also where ends lie between the last solve and now that nobody has carried out yet.

    (A flow that no link limits is sent in the very instant of its solve; there is nothing to compare.)
    """
    world, sends = case
    before: dict[float, dict[int, float]] = {}

    def read(network: Network, flows: list[Flow]) -> None:
        before.setdefault(network._simulation.now, {flow.id: network.sent(flow) for flow in flows})

    def compare(network: Network, flows: list[Flow]) -> None:
        known = before.get(network._simulation.now, {})
        for flow in flows:
            if flow.id in known and network.lone_rate(flow.source, flow.destination) < math.inf:
                assert network.sent(flow) == pytest.approx(known[flow.id], rel=1e-12, abs=1e-9)

    instants = play(kind(world), sends).instants
    play(kind(world), sends, at=sorted(set(instants)), read=read, after_solve=compare)
    assert not instants or before
