"""A transfer's life: latency, the end, cancellation, ties, and what the caller may not ask for."""

import asyncio
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fedsim.clock.simulation import Simulation, on_grid, on_grid_after
from fedsim.common.errors import SimulationError
from fedsim.world.network import SERVER, star
from fedsim.world.network.protocol import Fluid
from fedsim.world.network.star import StarDirection
from tests.world.network_plays import KINDS, Kind, Send, StarWorld, play


def rates_of(half: StarDirection) -> dict[int, float]:
    return {flow_id: half.rate(flow_id) for flow_id in half._flows}


def run(simulation: Simulation) -> None:
    asyncio.run(simulation.run())


ANY = math.inf
TICK = 2**-30
END = on_grid_after(2 / 3)
THREE = [Send(0.0, 3000.0, kill=kill) for kill in (None, 4.0, 4.0)]
TIED = [Send(0.0, 4000.0, kill=8.0), Send(0.0, 4000.0, kill=8.0 - TICK)]


@KINDS
@pytest.mark.parametrize(
    ("world", "sends", "ended", "sent"),
    [
        # The first is alone for 2 s, then has half the link: latency loads none.
        (StarWorld([ANY] * 2, 1e3, [0.0, 2.0]), [Send(0.0, 4000.0)] * 2, [6.0, 8.0], [4000.0] * 2),
        (
            StarWorld([ANY] * 2, 1e3, [0.0, 2.0]),
            [Send(0.0, 4e3), Send(0.0, 4e3, kill=1.0)],
            [4.0, 1.0],
            [4000.0, 0.0],
        ),
        # No bytes take the latency alone; without limit there is no time at all.
        (StarWorld([1.0], 1.0, [0.1]), [Send(1.0, 0.0)], [1.0 + on_grid(0.1)], [0.0]),
        (
            StarWorld([ANY] * 3, ANY, [0.0, 0.0, 0.5]),
            [Send(1.0, 1e12)] * 3,
            [1.0, 1.0, 1.5],
            [1e12] * 3,
        ),
        # Directions share nothing.
        (
            StarWorld([1e3], 1e3, [0.0]),
            [Send(0.0, 4e3, None, 0, "up"), Send(0.0, 4e3, None, 0, "down")],
            [4.0] * 2,
            [4e3] * 2,
        ),
        # The share of a cancelled flow is returned at that instant.
        (StarWorld([ANY] * 3, 900.0, [0.0] * 3), THREE, [6.0, 4.0, 4.0], [3000.0, 1200.0, 1200.0]),
        # The cancellation comes first in the order of events, and is too late all the same.
        (
            StarWorld([500.0] * 2, ANY, [0.0] * 2),
            TIED,
            [8.0, 8.0 - TICK],
            [4000.0, 4000.0 - 500 * TICK],
        ),
        # An end between two ticks is settled by a cancellation at the tick.
        (
            StarWorld([ANY] * 2, 3.0, [0.0] * 2),
            [Send(0.0, 1.0), Send(0.0, 100.0, kill=END)],
            [2 / 3, END],
            [1.0, 3.0 * END - 1],
        ),
        (
            StarWorld([ANY] * 2, 100.0, [0.0] * 2),
            [Send(1.0, 50.0, kill=1.0), Send(1.0, 100.0)],
            [1.0, 2.0],
            [0.0, 100.0],
        ),
        # it stays as it ended
        (StarWorld([100.0], 100.0, [0.0]), [Send(0.0, 100.0, kill=5.0)], [1.0], [100.0]),
        # Ends some ns apart are told apart.
        (
            StarWorld([1e3] * 2, ANY, [0.0] * 2),
            [Send(0.0, 1e3), Send(0.0, 1000.000005)],
            [1.0, 1.000000005],
            [1e3, 1000.000005],
        ),
    ],
)
def test_ends_by_hand(
    kind: Kind, world: StarWorld, sends: list[Send], ended: list[float], sent: list[float]
) -> None:
    """Of those that are not cancelled the end is told at the next tick, and once."""
    played = play(kind(world), sends)
    assert [flow.ended for flow in played.flows] == pytest.approx(ended, rel=1e-15)
    assert [flow.sent for flow in played.flows] == pytest.approx(sent, abs=1e-9)
    done = [
        (number, on_grid_after(end))
        for number, end in enumerate(ended)
        if played.flows[number].sent == sends[number].size
    ]
    assert sorted(played.told) == done


@KINDS
def test_nothing_without_latency_is_told_in_the_same_instant_but_never_from_within_start(
    kind: Kind,
) -> None:
    simulation = Simulation()
    network = kind(StarWorld([1.0], 1.0, [0.0]))(simulation)
    order: list[str] = []

    def begin() -> None:
        network.send(0, SERVER, 0.0, lambda: order.append(f"told at {simulation.now}"))
        order.append("started")

    simulation.wake(("start", 0), 3.0, begin)
    run(simulation)
    assert order == ["started", "told at 3.0"]


class TestEnd:
    @KINDS
    def test_flows_that_end_together_are_told_in_the_order_of_their_starts(
        self, kind: Kind
    ) -> None:
        many = 1000
        caps = [1000.0 + 10 * (device % 7) for device in range(many)]
        sends = [Send(0.0, 8 * caps[device]) for device in range(many)]
        played = play(kind(StarWorld(caps, math.inf, [0.0] * many)), sends)
        assert played.told == [(number, 8.0) for number in range(many)]
        assert played.instants == [0.0, 8.0]  # one sharing for all starts, one for all ends
        shared = play(
            kind(StarWorld([math.inf] * many, 1e6, [0.0] * many)), [Send(0.0, 1000.0)] * many
        )
        assert [flow.ended for flow in shared.flows] == pytest.approx([1.0] * many, rel=1e-12)
        assert [number for number, _ in shared.told] == list(range(many))

    @KINDS
    def test_what_starts_when_one_ends_is_in_the_same_solve(self, kind: Kind) -> None:
        simulation = Simulation()
        network = kind(StarWorld([math.inf] * 2, 1000.0, [0.0] * 2))(simulation)
        ends: list[float] = []

        def told() -> None:
            ends.append(simulation.now)

        def told_and_again() -> None:
            network.send(0, SERVER, 1000.0, told)

        network.send(0, SERVER, 1000.0, told_and_again)
        network.send(1, SERVER, 1500.0, told)
        run(simulation)
        # 1 ends at 3 s: 1000 bytes until 2 s, 500 more beside the new flow
        assert ends == [3.0, 3.5]


@KINDS
@pytest.mark.parametrize("size", [4000.0, 0.0])
@pytest.mark.parametrize(("early", "expected"), [(4 * TICK, True), (1e-6, False)])
def test_a_deadline_some_ticks_before_its_end_finishes_a_flow(
    kind: Kind, early: float, expected: bool, size: float
) -> None:
    """Of a message that shares its link with one of 8,000 bytes, or that has its latency alone."""
    simulation, end = Simulation(), 0.5 + size / 500
    network = kind(StarWorld([math.inf] * 2, 1000.0, [0.5] * 2))(simulation)
    flows = [
        network.send(device, SERVER, of, lambda: None) for device, of in enumerate((size, 8000.0))
    ]
    found: list[bool] = []
    simulation.wake(("finish", 0), end - early, lambda: found.append(network.finish(flows[0])))
    run(simulation)
    saved = early if expected and size else 0.0  # the other one has the link so much sooner
    assert (found, flows[0].ended) == ([expected], end - early if expected else end)
    assert flows[1].ended == pytest.approx(0.5 + (8000 + size) / 1000 - saved / 2, abs=1e-12)


@pytest.mark.parametrize(
    ("world", "send", "message"),
    [
        (StarWorld([100.0] * 2, 100.0, [0.0] * 2), (0, 0, 1.0), "endpoint 0 sends to itself"),
        (StarWorld([100.0] * 2, 100.0, [0.0] * 2), (0, 2, 1.0), "no endpoint 2; allowed are -1 "),
        (StarWorld([100.0] * 2, 100.0, [0.0] * 2), (-2, 1, 1.0), "no endpoint -2; "),
        *(
            (StarWorld([1.0], 1.0, [0.0]), (0, SERVER, size), "be finite and not negative")
            for size in (-1.0, math.nan)
        ),
        (StarWorld([1.0, 0.0], 1.0, [0.0] * 2), (), "device 1 has a link down of 0.0 B/s"),
        (StarWorld([1.0], 0.0, [0.0]), (), "0.0 B/s; a .* must be above 0"),
        (StarWorld([1.0], 1.0, [math.inf]), (), "a latency of inf s"),
        (StarWorld([1.0], 1.0, []), (), "1 rates down, 1 up and 0 latencies"),
    ],
)
@KINDS
def test_refused(kind: Kind, world: StarWorld, send: tuple[Any, ...], message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        kind(world)(Simulation()).send(*send, lambda: None)


@KINDS
def test_what_is_sent_so_far_and_how_fast(kind: Kind) -> None:
    simulation = Simulation()
    network = kind(StarWorld([100.0, math.inf], 1000.0, [0.0, 0.0]))(simulation)
    flows = [network.send(device, SERVER, 1e6, lambda: None) for device in range(2)]
    seen: list[tuple[list[float], list[float]]] = []

    def look() -> None:
        seen.append(([network.rate(f) for f in flows], [network.sent(f) for f in flows]))
        for flow in flows:
            network.cancel(flow)

    simulation.wake(("look", 0), 10.0, look)
    run(simulation)
    assert seen == [([100.0, 900.0], [1000.0, 9000.0])]
    assert network.lone_rates("up").tolist() == [100.0, 1000.0]


class TestStar:
    def test_no_bits_are_lost_in_a_week(self) -> None:
        """A link that is never idle: what was sent is what it carries, and its clocks have been
        set back on the way.
        """
        generator = np.random.default_rng(5)
        half, capacity, now = StarDirection(1e6 / 3), Fraction(1e6 / 3), 0.0
        sizes = dict(enumerate(generator.lognormal(17.0, 0.5, 12_000).tolist()))
        waiting, sent, furthest = list(sizes)[:20:-1], Fraction(0), 0.0
        for number in range(21):
            half.enter(number, sizes[number], [math.inf, 1e4, 2e5][number % 3], now)
        half.share(now)
        while now < 7 * 86400:
            for now, number in half.advance(half.next_end):
                sent += Fraction(sizes.pop(number))
                one = waiting.pop()
                half.enter(one, sizes[one], [math.inf, 1e4, 2e5][one % 3], now)
            half.share(now)
            furthest = max(furthest, half._clock / half._level)
        sent += sum((Fraction(half.sent(number, now)) for number in rates_of(half)), Fraction(0))
        assert abs(float(sent / capacity - Fraction(now))) < 1e-9
        assert 4000 < furthest < 2 * 4096

    def test_clocks_that_are_set_back_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        caps = [math.inf, 3e3, math.inf, 700.0, 5e3]
        world = StarWorld(caps, 1e3, [0.0] * 5, Fluid(weight_spread=2.0))
        sends = [
            Send(500.0 * (number // 5), 1e3 * (1 + number % 9), device=number % 5)
            for number in range(60)
        ]
        plain = play(world.star, sends).flows
        monkeypatch.setattr(star, "_SET_BACK_S", 1e-3)
        for flow, other in zip(plain, play(world.star, sends).flows, strict=True):
            assert flow.ended == pytest.approx(other.ended, rel=1e-14)

    def test_heaps_do_not_grow_with_what_has_left(self) -> None:
        half = StarDirection(1000.0)
        half.enter(0, 1e6, 10.0, 0.0)  # ends before all that come and go behind it
        half.enter(1, 1e12, 600.0, 0.0)
        half.enter(2, 1e12, 600.0, 0.0)
        for number in range(3, 5000):
            now = number * 1e-3
            # the two fast ones change sides again and again
            half.enter(number, 1e9 + number, 10.0 * (number % 3 + 1), now)
            half.share(now)
            half.leave(number, now)
            half.share(now)
        lengths = [len(tier.flows) for tier in half._tiers.values()]
        lengths += map(len, (*half._ends, *half._caps))
        assert max(lengths) < 200

    def test_equal_links_change_sides_as_one(self) -> None:
        """A link that is just about to fill: each start and end moves all flows, and costs no
        more for it.
        """
        half = StarDirection(1000.0 * 500)
        for number in range(500):
            half.enter(number, 1e9, 1000.0, 0.0)
        half.share(0.0)
        assert set(rates_of(half).values()) == {1000.0}
        half.enter(500, 1e9, 1000.0, 0.0)
        half.share(0.0)
        assert set(rates_of(half).values()) == {1000.0 * 500 / 501}
        half.leave(3, 0.0)
        half.share(0.0)
        assert set(rates_of(half).values()) == {1000.0}
        assert len(half._tiers) == 1


def test_a_link_at_rest_carries_nothing_whatever_its_flows_weigh() -> None:
    """The weights of tcp, under which sums of rates are exact only as whole numbers."""
    draw = np.random.default_rng(0)
    half = StarDirection(math.inf)
    for flow in range(13):
        half.enter(flow, 1e5, 3476.25, 0.0, weight=float(draw.uniform(0.5, 2.0)))
    half.share(0.0)
    half.set_capacity("", 0.0, 1.0)
    half.share(1.0)
    assert set(rates_of(half).values()) == {0.0}
    assert half.next_end == math.inf
    half.enter(13, 1e5, 3476.25, 2.0, weight=1.3)
    half.set_capacity("", math.inf, 3.0)
    half.share(3.0)
    ends = {flow: end for end, flow in half.advance(100.0)}
    alone = 1e5 / 3476.25
    assert [ends[flow] for flow in range(14)] == pytest.approx([alone + 2.0] * 13 + [alone + 3.0])
