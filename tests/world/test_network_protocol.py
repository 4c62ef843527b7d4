"""What a protocol makes of transfers: headers, slow start, weights; by hand, and against a count
of round trips one by one.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsim
from fedsim.clock.simulation import Simulation
from fedsim.common.streams import Streams
from fedsim.world.network import SERVER, Network
from fedsim.world.network.protocol import Bbr, Fluid, Protocol, Tcp
from tests.world.network_plays import KINDS, Kind, Send, StarWorld, play


def doubling(**how: Any) -> Protocol:
    """Windows of 100, 200, 400 ... bytes, a round trip of 1 s."""
    return Fluid.model_validate(
        {"slow_start": True, "segment": "100 B", "initial_window": 1, "round_trip": "1 s"} | how
    )


@KINDS
@pytest.mark.parametrize(("kill", "ended", "sent"), [(None, 10.0, 14480.0), (5.0, 5.0, 7240.0)])
def test_headers_take_time_and_are_no_part_of_what_is_sent(
    kind: Kind, kill: float | None, ended: float, sent: float
) -> None:
    world = StarWorld([1514.0], math.inf, [0.0], Tcp(slow_start=False))
    (flow,) = play(kind(world), [Send(0.0, 10 * 1448.0, kill=kill)]).flows
    assert (flow.ended, flow.sent, flow.wire) == pytest.approx((ended, sent, 15140.0), rel=1e-15)


def test_fluid_has_no_headers_and_bbr_no_slow_start() -> None:
    assert (Fluid().overhead, Tcp().overhead, Bbr().overhead) == (1.0, 1514 / 1448, 1514 / 1448)
    # at its rate at once, however far
    assert Bbr().sending_s(10 * 1448.0, 1514.0, 1.0) == pytest.approx(10.0)
    assert not Bbr().weighs


class TestSlowStart:
    @KINDS
    @pytest.mark.parametrize(
        ("world", "sends", "ended"),
        [
            # 100, 200 and 400 bytes in a second each, then the link's 500 a second.
            (
                StarWorld([500.0], math.inf, [0.0], doubling()),
                [Send(2.0, 1200.0)],
                [2.0 + 3.0 + 1.0],
            ),
            # Twice the latency is a round trip.
            (
                StarWorld([500.0], math.inf, [0.5], doubling(round_trip="0 s")),
                [Send(0.0, 1200.0)],
                [0.5 + 3.0 + 1.0],
            ),
            # A link without limit still has a window.
            (StarWorld([math.inf], math.inf, [0.0], doubling()), [Send(0.0, 500.0)], [2.5]),
            # Seconds 0 to 7, a gets 100, 200, 400, 800, 800, 600, 500 of 1000; b, from 3 on, 100,
            # 200, 400, 500, and then all.
            (
                StarWorld([math.inf] * 2, 1e3, [0.0] * 2, doubling()),
                [Send(0.0, 3400.0), Send(3.0, 2200.0)],
                [7.0, 8.0],
            ),
        ],
    )
    def test_by_hand(
        self, kind: Kind, world: StarWorld, sends: list[Send], ended: list[float]
    ) -> None:
        assert [flow.ended for flow in play(kind(world), sends).flows] == pytest.approx(
            ended, rel=1e-14
        )

    @KINDS
    @given(
        rate=st.floats(1e3, 1e8),
        size=st.floats(1.0, 1e8),
        latency=st.sampled_from([0.0, 0.002, 0.04, 0.5]),
        window=st.sampled_from([1, 2, 10, 33]),
    )
    def test_one_flow_is_the_closed_form_and_the_count(
        self, kind: Kind, rate: float, size: float, latency: float, window: int
    ) -> None:
        world = StarWorld([rate], math.inf, [latency], Tcp(initial_window=window))
        built: list[Network] = []

        def build(simulation: Simulation) -> Network:
            built.append(kind(world)(simulation))
            return built[0]

        (flow,) = play(build, [Send(0.0, size)]).flows
        round_trip = built[0].round_trip_s(0, SERVER)
        left, share, seconds = size * 1514 / 1448, window * 1514.0, built[0].latency_s(0, SERVER)
        while share < rate * round_trip and left > share:
            left, share, seconds = left - share, 2 * share, seconds + round_trip
        seconds += left / min(rate, share / round_trip if round_trip else math.inf)
        assert flow.ended == pytest.approx(seconds, rel=1e-9, abs=2e-9)
        assert built[0].nominal_s(0, "up", size) == pytest.approx(seconds, rel=1e-12)
        assert built[0].all_alone_s("up", size)[0] == pytest.approx(seconds, rel=1e-9, abs=2e-9)

    def test_times_alone_are_told_for_all_at_once(self) -> None:
        rates, round_trips = (
            np.array([500.0, math.inf, 50.0, math.inf]),
            np.array([1.0, 1.0, 1.0, 0.0]),
        )
        assert doubling().sending_s(700.0, rates, round_trips).tolist() == [3.0, 3.0, 14.0, 0.0]


class TestWeights:
    @KINDS
    def test_a_transfer_s_weight_hangs_on_its_device_and_count_alone(self, kind: Kind) -> None:
        world = StarWorld([1e3] * 3, math.inf, [0.0] * 3, Tcp())
        often = [
            Send(float(start), size, device=device)
            for device in (0, 2)
            for start, size in ((0, 10.0), (50, 2e4))
        ]
        few = [Send(3.0, 7.0, device=2), Send(4.0, 99.0, device=2, direction="down")]
        one, other = (
            [flow.weight for flow in play(kind(world), sends).flows] for sends in (often, few)
        )
        assert one[2:] == other
        assert len(set(one)) == 4

    def test_they_are_lognormal(self) -> None:
        protocol, streams = Tcp(weight_spread=1.5), Streams(3)
        logs = np.log(
            [protocol.weight(streams, device, 0, 0.1, "up") for device in range(4000)]
        ) / math.log(1.5)
        assert abs(logs.mean()) < 0.05
        assert logs.std() == pytest.approx(1.0, abs=0.04)

    def test_downloads_of_one_machine_take_turns(self) -> None:
        """With a queue of 1 ms: 1/21 of the power at 20 ms, half at 1 ms, all on the spot;
        uploads are as they are.
        """
        said, streams = {"kind": "tcp", "weight_spread": 2.0}, Streams(3)
        taking, unlike = Tcp.model_validate(said), Tcp.model_validate(said | {"turns": False})
        for round_trip, power in ((0.0, 1.0), (0.001, 0.5), (0.02, 1 / 21)):
            whole = unlike.weight(streams, 7, 2, round_trip, "down")
            assert (
                unlike.weight(streams, 7, 2, round_trip, "up")
                == taking.weight(streams, 7, 2, round_trip, "up")
                == whole
            )
            assert taking.weight(streams, 7, 2, round_trip, "down") == pytest.approx(
                whole**power, rel=1e-12
            )
        assert not Fluid(weight_spread=2.0).turns

    @KINDS
    def test_a_client_whose_own_link_is_its_fair_share_gets_that(self, kind: Kind) -> None:
        """The server's link of 24 Mbit/s and six downloads, one to a link of 4 Mbit/s: 2.09 s
        really, for each of them.
        """
        rates = [2e6, 2e6, 5e5, 2e6, 1e6, 2e6]
        world = StarWorld(rates, 3e6, [0.01] * 6, Tcp(slow_start=False))
        flows = play(
            kind(world), [Send(0.0, 1e6, device=device, direction="down") for device in range(6)]
        ).flows
        assert [flow.ended for flow in flows] == pytest.approx(
            [0.01 + 1e6 * 1514 / 1448 / 5e5] * 6, rel=0.02
        )


def test_one_of_the_user_s_own(small: dict[str, Any]) -> None:
    protocol = {"kind": "tests.own_parts:Satellite", "initial_window": 4}
    scenario = fedsim.Scenario(**small | {"network": {"kind": "star", "protocol": protocol}})
    assert scenario.network.protocol.weight(Streams(1), 0, 0, 0.6, "down") == 0.5
    assert 'kind = "tests.own_parts:Satellite"' in scenario.to_toml()


def test_who_comes_late_to_a_shared_link_gets_less() -> None:
    """1,000 bytes each at 100 B/s: from 2 s on two thirds go to the first, who ends at 14 s, and
    then all to the second.
    """
    network = {
        "kind": "star",
        "server": {"up": "100 B/s"},
        "protocol": {"kind": "fluid", "late_weight": 0.5},
    }
    world = fedsim.build_world({"devices": 2}, network)
    ends = []

    def send(device: int, begin: float) -> Iterator[Any]:
        yield world.until(begin)
        yield world.send(device, "server", 1000.0)
        ends.append(world.now)

    world.env.process(send(0, 0.0))  # type: ignore[arg-type]
    world.env.process(send(1, 2.0))  # type: ignore[arg-type]
    world.env.run()
    assert ends == pytest.approx([14.0, 20.0], abs=1e-6)
