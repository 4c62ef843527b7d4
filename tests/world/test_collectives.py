"""All-reduce as processes over endpoints, against closed forms."""

import re
from collections.abc import Generator
from typing import Any

import pytest

import fedsim
from fedsim.common.errors import SimulationError
from fedsim.toolbox.peers.collectives import AllReduce, CollectiveKind, plan_all_reduce

SIZE, RATE, DELAY = 100e6, 10e6, 0.02


def world(nodes: int) -> fedsim.world.processes.World:
    device = {"up": f"{RATE!r} B/s", "latency": f"{DELAY / 2} s"}
    return fedsim.build_world({"devices": nodes}, {"kind": "star", "device": device})


def time_s(kind: CollectiveKind, nodes: int, pieces: int = 1, connections: int = 1) -> float:
    here = world(nodes)
    group = AllReduce(here, range(nodes), SIZE, kind, pieces, connections)
    here.env.run(until=here.env.all_of([group.join(rank) for rank in range(nodes)]))
    return here.now


ONE = SIZE / RATE


@pytest.mark.parametrize(
    ("kind", "pieces", "seconds"),
    [
        ("ring", 1, 2 * 7 / 8 * ONE + 14 * DELAY),
        # while a piece is under way the next one is sent: only the last waits
        ("ring", 4, 2 * 7 / 8 * ONE + DELAY),
        ("butterfly", 1, 2 * 7 / 8 * ONE + 2 * DELAY),
        # 7 -> 3 -> 1 -> 0 and back, with two children each on the way
        ("tree", 1, (1 + 1 + 1 + 2 + 2 + 1) * ONE + 6 * DELAY),
        # a server's own link has no limit here, and half the latency is each device's
        ("server", 1, ONE + DELAY),
    ],
)
def test_equal_links_in_closed_form(kind: CollectiveKind, pieces: int, seconds: float) -> None:
    assert time_s(kind, 8, pieces) == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize("nodes", [2, 3, 5, 8])
@pytest.mark.parametrize("kind", ["ring", "tree", "butterfly", "server"])
def test_programs_add_up_every_contribution_once(kind: str, nodes: int) -> None:
    """Carried out by hand with sets: in the end everybody knows of everybody, and every message
    that is sent is taken.
    """
    programs = plan_all_reduce(kind, nodes).steps_by_rank
    known = [{rank} for rank in range(len(programs))]
    at, under_way = [0] * len(programs), dict[tuple[int, int], list[set[int]]]()
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            if at[rank] < len(program) and all(
                under_way.get((other, rank)) for other in program[at[rank]].receive
            ):
                step, moved = program[at[rank]], True
                at[rank] += 1
                for other in step.receive:
                    known[rank] |= under_way[other, rank].pop(0)
                for other in step.send:
                    under_way.setdefault((rank, other), []).append({*known[rank]})
    assert at == [len(program) for program in programs]
    assert not any(under_way.values())
    assert all(set(range(nodes)) <= one for one in known)


def test_the_slowest_link_sets_the_pace() -> None:
    """One link of half the rate doubles a ring."""
    rates = {"kind": "list", "values": ["10 MB/s"] * 3 + ["5 MB/s"]}
    here = fedsim.build_world({"devices": 4}, {"kind": "star", "device": {"up": rates}})
    group = AllReduce(here, range(4), SIZE)
    here.env.run(until=here.env.all_of([group.join(rank) for rank in range(4)]))
    assert here.now == pytest.approx(2 * 3 / 4 * 2 * ONE, rel=1e-6)


@pytest.mark.parametrize("connections", [1, 4, 8, 12])
def test_pieces_hide_delays_with_any_number_of_connections(connections: int) -> None:
    """Eight pieces wait for one delay; connections divide each message, and make no link faster."""
    assert time_s("ring", 4, 8, connections) == pytest.approx(2 * 3 / 4 * ONE + DELAY, rel=1e-6)


def test_connections_are_shares_of_a_link_that_others_use() -> None:
    """Two nodes with three connections each have six of seven shares of the server's link."""
    here = fedsim.build_world({"devices": 3}, {"kind": "star", "server": {"up": f"{RATE} B/s"}})

    def other() -> Generator[Any, Any, None]:
        yield here.send(2, "server", 10 * SIZE)

    here.env.process(other())
    group = AllReduce(here, range(2), SIZE, "server", connections=3)
    here.env.run(until=here.env.all_of([group.join(rank) for rank in range(2)]))
    assert here.now == pytest.approx(2 * ONE * 7 / 6, rel=1e-6)


def test_nodes_wait_for_the_last_one_and_go_on_with_the_next() -> None:
    here = world(3)
    group, ends = AllReduce(here, [0, 1, "device 2"], SIZE), list[float]()

    def node(rank: int) -> Generator[Any, Any, None]:
        for _ in range(2):
            yield here.timeout(10.0 * rank)
            yield group.join(rank)
            ends.append(here.now)

    for rank in range(3):
        here.env.process(node(rank))
    here.env.run()
    alone = 2 * 2 / 3 * ONE + 4 * DELAY
    assert min(ends) > 20 + ONE
    assert max(ends) == pytest.approx(40 + 2 * alone, rel=1e-6)


def test_a_lost_message_is_taken_up_where_it_stopped() -> None:
    here = world(3)
    group = AllReduce(here, range(3), SIZE)
    done = here.env.all_of([group.join(rank) for rank in range(3)])

    def away() -> Generator[Any, Any, None]:
        yield here.timeout(1.0)
        with here.off(1):
            yield here.timeout(5.0)

    here.env.process(away())
    here.env.run(until=done)
    assert here.now == pytest.approx(2 * 2 / 3 * ONE + 4 * DELAY + 5.0 + DELAY, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"kind": "rink"},
            "there is no all-reduce 'rink'; allowed are ring, tree, butterfly, server (did you "
            "mean 'ring'?)",
        ),
        ({"pieces": 0}, "pieces of an all-reduce is 0; allowed are 1 or more"),
        ({"nodes": [0]}, "an all-reduce among 1 nodes; allowed are 2 or more"),
        ({"size": "5 km"}, "the vector of an all-reduce is '5 km'"),
    ],
)
def test_mistakes(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(SimulationError, match=re.escape(says)):
        AllReduce(world(3), **({"nodes": range(3), "size": SIZE} | arguments))
    with pytest.raises(SimulationError, match="no node of rank 3"):
        AllReduce(world(3), range(3), SIZE).join(3)
