"""Reading changes nothing in any network at any time, whatever starts, ends and is cancelled when."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.simulation import Simulation
from fedsim.streams import Streams
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
    more = replace(world, caps=[*world.caps, 1.0, 1.0], latency=[*world.latency, 0.0, 0.0])

    def build(simulation: Simulation) -> Network:
        network = more.star(simulation)
        network.send(len(world.caps), len(world.caps) + 1, 0.0, lambda: None)
        return network

    return build


KINDS = pytest.mark.parametrize("kind", [star, graph, tree, general])


def outcome(played: Played) -> Any:
    return [(flow.ended, flow.sent) for flow in played.flows], played.told, played.instants


@KINDS
@settings(max_examples=40, deadline=None)
@given(plays())
def test_a_reader_at_every_instant_changes_nothing(kind: Kind, case: tuple[StarWorld, list[Send]]) -> None:
    """And what is read before a solve is what is read after it, also of ends that nobody has carried out yet.

    (A flow that no link limits is sent in the very instant of its solve; there is nothing to compare.)
    """
    world, sends = case
    before: dict[float, dict[int, float]] = {}

    def read(network: Network, flows: list[Flow]) -> None:
        load_of(network)
        sent = {flow.id: network.sent(flow) for flow in flows if network.rate(flow) >= 0}
        before.setdefault(network._simulation.now, sent)

    def compare(network: Network, flows: list[Flow]) -> None:
        known = before.get(network._simulation.now, {})
        for flow in flows:
            if flow.id in known and network.lone_rate(flow.source, flow.destination) < math.inf:
                assert network.sent(flow) == pytest.approx(known[flow.id], rel=1e-12, abs=1e-9)
        read(network, flows)

    plain = play(kind(world), sends)
    beside = [(one + other) / 2 for one, other in zip(plain.instants, plain.instants[1:], strict=False)]
    watched = play(kind(world), sends, at=sorted({*plain.instants, *beside}), read=read, after_solve=compare)
    assert outcome(watched) == outcome(plain)
