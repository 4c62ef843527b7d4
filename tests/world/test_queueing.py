"""Windows and queues: known answers of TCP's rules, and laws that hold on any links."""

import numpy as np
import pytest
from pydantic import ValidationError

from fedsim.clock.simulation import Simulation
from fedsim.common.errors import SimulationError
from fedsim.common.streams import Streams
from fedsim.world.network import Direction, Flow, Star, ends
from fedsim.world.network.congestion import Control, Senders, cubic_window, first_state, reduce
from fedsim.world.network.protocol import Tcp, Transport
from fedsim.world.network.queueing import Queueing

PACKET = 1514.0
WIRE = 1514 / 1448


def star(rates: list[float], latency: float, server: float, **keys: object) -> Star:
    protocol = Tcp.model_validate({"model": "window", **keys})
    column = np.array(rates)
    delays = np.full(len(rates), latency)
    transport = Transport(protocol, Streams(1))
    return Star(Simulation(), column, column, delays, server, server, transport)


def rule_of(network: Star) -> Queueing:
    rule = network._rules[0]
    assert isinstance(rule, Queueing)
    return rule


def start(network: Star, size: float, direction: Direction = "up") -> list[Flow]:
    flows = []
    for device in range(network.devices):
        flows.append(network.send(*ends(device, direction), size, lambda: None))
    return flows


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize(
    ("rate", "latency", "size"), [(5e5, 0.0, 2e6), (5e5, 0.02, 1e5), (1.25e6, 0.02, 1e5)]
)
def test_a_lone_flow_takes_slow_start_and_bytes_over_rate(
    direction: Direction, rate: float, latency: float, size: float
) -> None:
    network = star([rate], latency, np.inf)
    (flow,) = start(network, size, direction)
    network._simulation.env.run()
    expected = latency + Tcp().sending_s(size, rate, 2 * latency)
    assert flow.ended == pytest.approx(expected, rel=0.07)


def test_slow_start_doubles_every_round_trip() -> None:
    network = star([1e9], 0.05, np.inf)
    (flow,) = start(network, 1e7)
    sent = []
    for count in range(1, 5):
        network._simulation.env.run(until=0.05 + 0.1 * count - 1e-3)
        sent.append(network.sent(flow) * WIRE / PACKET)
    assert sent == pytest.approx([10, 30, 70, 150], rel=0.02)


def test_cubics_window_is_the_curve_and_starts_at_seven_tenths() -> None:
    peak = np.array([100.0])
    plateau_s = float(np.cbrt(100 * 0.3 / 0.4))
    at = [cubic_window(np.array([t]), peak, 0.7 * peak).item() for t in (0.0, plateau_s, 9.0)]
    assert at == pytest.approx([70.0, 100.0, 0.4 * (9.0 - plateau_s) ** 3 + 100.0])


@pytest.mark.parametrize(("control", "factor"), [("cubic", 0.7), ("reno", 0.5)])
def test_a_loss_reduces_the_window(control: Control, factor: float) -> None:
    senders = Senders.none()
    senders.append(first_state(0.1, 100.0, 1e9, 0.0))
    reduce(senders, control, np.array([True]))
    assert senders.window.item() == senders.threshold.item() == pytest.approx(100 * factor)


@pytest.mark.parametrize("control", ["cubic", "reno"])
def test_equal_flows_share_alike_and_fill_a_link_with_a_queue_of_one_product(
    control: str,
) -> None:
    network = star([1e7] * 4, 0.02, 1e6, control=control, queue={"time": "40 ms"})
    flows = start(network, 5e7)
    network._simulation.env.run(until=8.0)
    sent = np.array([network.sent(flow) for flow in flows])
    assert sent.sum() * WIRE == pytest.approx(8e6, rel=0.08)
    assert sent == pytest.approx(np.full(4, sent.mean()), rel=0.35)


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("control", ["cubic", "reno"])
@pytest.mark.parametrize(
    ("rates", "latency", "server", "holds"),
    [([1e6, 2e6, 5e5], 0.02, 1e6, True), ([2e6, 2e6], 0.08, 1e6, False)],
)
def test_bytes_are_conserved_and_no_queue_is_longer_than_its_length(
    rates: list[float],
    latency: float,
    server: float,
    direction: Direction,
    control: str,
    holds: bool,
) -> None:
    network = star(rates, latency, server, control=control, holds_back=holds)
    rule = rule_of(network)
    flows = start(network, 3e5, direction)
    while network._simulation.env.peek() < np.inf:
        network._simulation.env.step()
        assert np.abs(rule.balance()).max(initial=0.0) < 1e-3
        for waiting, length in rule.queued().values():
            assert waiting <= length + 1e-3
    assert all(flow.sent == flow.size for flow in flows)
    last = max(flow.ended or 0.0 for flow in flows)
    least = max(3e5 * WIRE * len(rates) / server, 3e5 * WIRE / min(rates))
    assert last >= latency + least - 1e-6


def test_an_outage_holds_all_flows_and_a_cut_flow_keeps_what_arrived() -> None:
    network = star([1e6], 0.01, 1e6)
    env = network._simulation.env
    (flow,) = start(network, 1e6)
    env.run(until=0.5)
    network.limit("server up", 0.0)
    env.run(until=5.0)
    assert network.rate(flow) == 0
    network.limit("server up", None)
    env.run(until=5.2)
    arrived = network.sent(flow)
    network.cancel(flow)
    env.run(until=6.0)
    assert 0 < flow.sent == arrived < flow.size


@pytest.mark.parametrize(
    "keys",
    [
        {"control": "reno"},
        {"queue": {"time": "60 ms"}},
        {"model": "window", "weight_spread": 1.3},
        {"model": "window", "late_weight": 0.8},
        {"model": "window", "weight_by_round_trip": 1.0},
        {"model": "window", "queue": {}},
        {"model": "window", "queue": {"time": "1 ms", "size": "1 kB"}},
        {"model": "window", "control": "vegas"},
    ],
)
def test_keys_without_an_effect_are_refused(keys: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Tcp.model_validate(keys)


def test_an_unknown_link_is_refused_by_name() -> None:
    with pytest.raises(SimulationError, match="server upp"):
        star([1e6], 0.0, 1e6, queues={"server upp": {"time": "60 ms"}})
