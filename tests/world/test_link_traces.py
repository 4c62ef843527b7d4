"""Links whose rates follow traces: bytes are the integral of the rate, on own and on shared links,
and worlds with them stop, go on and are audited like any other.
"""

import asyncio
import math
import tarfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedsim
from fedsim.clock.simulation import Simulation
from fedsim.common.errors import FedsimError, SimulationError
from fedsim.common.streams import Streams
from fedsim.lab.audit import audit
from fedsim.testing import assert_same_run, assert_sound, go_on, run, run_until
from fedsim.world.network import SERVER, Direction, Flow, Network, Star, ends
from fedsim.world.network.protocol import PLAIN, Tcp, Transport
from fedsim.world.network.traces import Assignment, LinkTraces, StepTrace
from tests.world.network_plays import Listed

Steps = Sequence[tuple[float, float]]
"""A trace as (length of a piece (s), its rate (bytes/s))."""


def trace_of(steps: Steps, *, loops: bool = True) -> StepTrace:
    begins = np.concatenate(([0.0], np.cumsum([length for length, _ in steps])))
    rates = [rate for _, rate in steps]
    return StepTrace("steps", begins[:-1].tolist(), rates, begins[-1].item(), loops=loops)


def assigned(*traces: StepTrace) -> Assignment:
    """Link i follows trace i from its begin."""
    return Assignment(traces, Streams(1), is_drawn=False, random_start=False)


class Integral:
    """Bytes that a trace carries, by a table of its pieces over many laps."""

    def __init__(self, steps: Steps, laps: int) -> None:
        lengths = np.array([length for length, _ in steps] * laps)
        self.times = np.concatenate(([0.0], np.cumsum(lengths)))
        carried = lengths * np.array([rate for _, rate in steps] * laps)
        self.bytes = np.concatenate(([0.0], np.cumsum(carried)))

    def until(self, time: float) -> float:
        return float(np.interp(time, self.times, self.bytes))

    def when(self, amount: float) -> float:
        """The first time at which ``amount`` bytes are carried."""
        place = int(np.searchsorted(self.bytes, amount, "left"))
        below, above = self.bytes[place - 1], self.bytes[place]
        begin, end = self.times[place - 1], self.times[place]
        return float(begin + (amount - below) / (above - below) * (end - begin))


def star(devices: int, traces: LinkTraces, protocol: Any = PLAIN, general: bool = False) -> Network:
    """A star of infinite links but for the traces; ``general`` by the rule for any network."""
    simulation = Simulation()
    column = np.full(devices, math.inf)
    columns = (column, column, np.zeros(devices))
    network: Network
    if general:
        links = {"server down": math.inf, "server up": math.inf}
        routes: dict[Direction, Any] = {"down": [["server down"]], "up": [["server up"]]}
        network = Listed(simulation, links, *columns, protocol, routes=routes)
    else:
        network = Star(simulation, *columns, transport=protocol)
    network.follow(traces)
    return network


def play(
    network: Network, sends: Sequence[tuple[float, float]], direction: Direction = "up"
) -> list[Flow]:
    """Send (time, bytes) from device i each, and run to the end."""
    simulation = network._simulation
    flows: dict[int, Flow] = {}

    def begin(number: int, size: float) -> None:
        flows[number] = network.send(*ends(number, direction), size, lambda: None)

    for number, (when, size) in enumerate(sends):
        simulation.wake(("start", number), when, lambda n=number, s=size: begin(n, s))  # type: ignore[misc]
    asyncio.run(simulation.run())
    return [flows[number] for number in range(len(sends))]


def test_a_phone_that_drives_receives_the_integral_of_its_trace(data_folder: Path) -> None:
    """Bytes of a download at many instants of one of Lumos5G's drives, and its end."""
    archive = data_folder / "traces" / "lumos5g_traces.tar.xz"
    name = "4g_trace_driving_50229_dr"
    with tarfile.open(archive) as members:
        member = next(entry for entry in members if entry.name.endswith(name))
        table = np.loadtxt(members.extractfile(member))  # type: ignore[arg-type]
    last = np.append(np.diff(table[:, 0]) > 0, True)  # of equal times the last row counts
    times = table[last, 0]
    rates = table[last, 1] * 1e6 / 8
    assert times[0] == 0
    length = times[-1] + (times[-1] - times[-2])
    carried = np.concatenate(([0.0], np.cumsum(rates * np.diff(np.append(times, length)))))
    key = {"kind": "trace", "file": str(archive), "members": name, "rate": "Mbit/s"}
    links = {"down": {**key, "starts": "begin"}}
    world = fedsim.build_world({"devices": 1}, {"kind": "star", "device": links})
    network = world._processes.network  # type: ignore[attr-defined]
    size = carried[-1] * 1.7
    message = world.send("server", 0, size)
    for now in sorted(np.random.default_rng(1).uniform(0.1, length, 300).tolist()):
        world.env.run(until=now)
        expected = float(np.interp(now, np.append(times, length), carried))
        assert network.sent(network._flows[0]) == pytest.approx(expected, rel=1e-9)
    world.env.run(until=message)
    rest = size - carried[-1]
    place = int(np.searchsorted(carried, rest)) - 1
    due = length + times[place] + (rest - carried[place]) / rates[place]
    assert abs(world.now - due) <= 1e-9


pieces = st.lists(
    st.tuples(st.floats(0.05, 5.0), st.one_of(st.just(0.0), st.floats(10.0, 1e4))),
    min_size=1,
    max_size=8,
).filter(lambda steps: any(rate for _, rate in steps))


def in_ticks(steps: Steps) -> Steps:
    return [(round(length * 2**20) / 2**20, rate) for length, rate in steps]


@settings(max_examples=40, deadline=None)
@given(pieces, st.floats(0.0, 20.0), st.floats(1.0, 1e5), st.booleans())
def test_a_lone_flow_ends_where_the_integral_is_its_bytes(
    steps: Steps, start: float, size: float, general: bool
) -> None:
    steps = in_ticks(steps)
    start = round(start * 2**20) / 2**20
    integral = Integral(steps, laps=2 + int((start + size) / 0.05 / len(steps)) % 4000 + 400)
    network = star(1, LinkTraces({"up": assigned(trace_of(steps))}, {}), general=general)
    target = integral.until(start) + size
    if target > integral.bytes[-1]:
        return
    (flow,) = play(network, [(start, size)])
    assert flow.ended is not None
    begin = integral.when(target * (1 - 1e-12))
    assert begin - 1e-9 <= flow.ended <= integral.when(target * (1 + 1e-12)) + 1e-9


def brute(
    sends: Sequence[tuple[float, float]], own: Sequence[Steps], shared: Steps, laps: int
) -> list[float]:
    """Ends of uploads over own links and one shared link, by max-min shares between all events."""
    rates_of = [Laps(steps, laps) for steps in (*own, shared)]
    left = [size for _, size in sends]
    ended: list[float] = [math.nan] * len(sends)
    events = sorted({*[when for when, _ in sends], *[t for steps in rates_of for t in steps.times]})
    for now, following in pairwise(events):
        time = now
        while time < following:
            running = [
                n for n, (when, _) in enumerate(sends) if when <= time and math.isnan(ended[n])
            ]
            caps = {n: rates_of[n].at(now) for n in running}
            room = rates_of[-1].at(now)
            shares: dict[int, float] = {}
            for place, n in enumerate(sorted(caps, key=caps.__getitem__)):
                shares[n] = min(caps[n], room / (len(caps) - place))
                room -= shares[n]
            step = following - time
            for n in running:
                if shares[n]:
                    step = min(step, left[n] / shares[n])
            for n in running:
                left[n] -= shares[n] * step
                if left[n] <= 1e-9 * sends[n][1]:
                    ended[n] = time + step
            time += step
            if step == 0:
                break
    return ended


class Laps:
    """A trace's rates over many laps, each piece once a lap."""

    def __init__(self, steps: Steps, laps: int) -> None:
        lengths: NDArray[np.float64] = np.array([length for length, _ in steps] * laps)
        self.times = np.concatenate(([0.0], np.cumsum(lengths)))[:-1].tolist()
        self.rates = [rate for _, rate in steps] * laps

    def at(self, time: float) -> float:
        return self.rates[int(np.searchsorted(self.times, time, "right")) - 1]


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.floats(50.0, 2e4), pieces), min_size=1, max_size=4),
    pieces,
    st.booleans(),
)
def test_flows_share_a_link_whose_rate_changes(
    flows: list[tuple[int, float, Steps]], shared: Steps, general: bool
) -> None:
    sends = [(start / 8, size) for start, size, _ in flows]
    own = [in_ticks(steps) for _, _, steps in flows]
    shared = in_ticks(shared)
    expected = brute(sends, own, shared, laps=30)
    horizon = min(30 * sum(length for length, _ in steps) for steps in (*own, shared))
    traces = LinkTraces(
        {"up": assigned(*map(trace_of, own))}, {"server up": (assigned(trace_of(shared)), 0)}
    )
    network = star(len(sends), traces, general=general)
    got = [flow.ended for flow in play(network, sends)]
    for end, due in zip(got, expected, strict=True):
        assert end is not None
        if due < horizon * 0.99:
            assert end == pytest.approx(due, abs=1e-6, rel=1e-7)


def test_a_flow_between_devices_follows_both_traces() -> None:
    """A device that sends and receives makes the network general in the middle of a trace."""
    steps = [(1.0, 100.0), (1.0, 0.0), (1.0, 50.0)]
    simulation = Simulation()
    column = np.full(2, math.inf)
    network = Star(simulation, column, column, np.zeros(2))
    network.follow(
        LinkTraces({"up": assigned(trace_of(steps)), "down": assigned(trace_of([(9.0, 40.0)]))}, {})
    )
    first = network.send(0, SERVER, 100.0, lambda: None)
    second: list[Flow] = []
    simulation.wake(
        ("start", 0), 0.5, lambda: second.append(network.send(0, 1, 100.0, lambda: None))
    )
    asyncio.run(simulation.run())
    # 50 bytes at first; then 40 a second to the device and 60 to the server until 1, 0 until 2,
    # 25 each until the first has its last 20 bytes at 2.8, and 40 for the second
    assert first.ended == pytest.approx(2.8, abs=1e-8)
    # 20 by 1, 40 by 2.8, 48 by 3, 88 by 4, 0 until 5, 98 from 5 on would need 12 more bytes
    assert second[0].ended == pytest.approx(5.3, abs=1e-8)


@pytest.mark.parametrize("loops", [True, False])
def test_a_trace_begins_anew_or_keeps_its_last_rate(loops: bool) -> None:
    trace = trace_of([(1.0, 100.0), (1.0, 20.0)], loops=loops)
    network = star(1, LinkTraces({"up": assigned(trace)}, {}))
    (flow,) = play(network, [(0.0, 200.0)])
    assert flow.ended == pytest.approx(2.8 if loops else 6.0, abs=1e-9)


def test_windows_over_a_trace_lose_no_byte_and_take_about_as_long() -> None:
    rng = np.random.default_rng(1)
    steps = [(rng.uniform(0.5, 3.0), rng.choice([0.0, 2e5, 1e6, 3e6])) for _ in range(30)]
    steps.append((1.0, 1e6))
    protocol = Transport(Tcp.model_validate({"model": "window"}), Streams(1))
    fluid = star(3, LinkTraces({}, {"server up": (assigned(trace_of(steps)), 0)}))
    window = star(3, LinkTraces({}, {"server up": (assigned(trace_of(steps)), 0)}), protocol)
    sends = [(0.0, 1e7), (1.0, 8e6), (3.0, 5e6)]
    expected = [flow.ended for flow in play(fluid, sends)]
    flows = play(window, sends)
    assert [flow.sent for flow in flows] == [size for _, size in sends]
    last = max(flow.ended or 0.0 for flow in flows)
    assert last == pytest.approx(max(end or 0.0 for end in expected) * 1514 / 1448, rel=0.25)


def test_a_trace_that_ends_with_0_ends_the_run_with_words() -> None:
    trace = trace_of([(10.0, 100.0), (1.0, 0.0)], loops=False)
    network = star(2, LinkTraces({"up": assigned(trace)}, {}))
    with pytest.raises(
        SimulationError,
        match=r"stand still since 10\.0 s.*device 0 to server. Traces have ended with rate 0.*"
        r"device 0 up \(trace 'steps'\)",
    ):
        play(network, [(0.0, 2000.0), (1.0, 10.0)])


def test_constant_traces_are_constant_rates() -> None:
    trace = trace_of([(0.3, 123.4567), (0.4, 123.4567), (7.1, 123.4567)])
    assert trace.mean == 123.4567
    assert trace.next_change(1e9) == math.inf


# scenarios

WORLDS: dict[str, dict[str, Any]] = {
    "star": {"kind": "star"},
    "tree": {"kind": "tree", "cells": 3, "edge": {"receive": "2 Mbit/s", "send": "2 Mbit/s"}},
}


def write_traces(folder: Path) -> None:
    """Six walks with stalls, a server's link, and a constant one."""
    rng = np.random.default_rng(5)
    folder.mkdir(exist_ok=True)
    for walk in range(6):
        rates = rng.choice([0.0, 0.3, 1.0, 2.0, 6.0], 40)
        rates[0] = 1.0
        lines = [f"{second} {rate}" for second, rate in enumerate(rates)]
        (folder / f"walk{walk}").write_text("\n".join(lines) + "\n")
    (folder.parent / "server.csv").write_text("time,rate\n0,3\n0.7,0.9\n2,5\n")
    (folder.parent / "flat.csv").write_text("time,rate\n0,0.5\n0.7,0.5\n2,0.5\n")


def scenario(folder: Path, kind: str = "star", **sections: Any) -> dict[str, Any]:
    """Digits over traces: the walks of devices, and the server's link."""
    write_traces(folder / "walks")
    walks = {"kind": "trace", "file": str(folder / "walks"), "rate": "Mbit/s"}
    server = {"kind": "trace", "file": str(folder / "server.csv"), "rate": "Mbit/s"}
    network: dict[str, Any] = {
        **WORLDS[kind],
        "device": {"down": walks, "up": walks, "latency": "30 ms"},
        "server": {"down": "5 Mbit/s", "up": server},
    }
    return {
        "seed": 4,
        "learning": "off",
        "model": {"kind": "mlp", "hidden": [150]},
        "population": {
            "devices": 12,
            "speed": "300 samples/s",
            "samples": {"kind": "uniform", "low": 20, "high": 60},
            "availability": {"kind": "renewal", "mean_on": "60 s", "mean_off": "5 s"},
        },
        "network": network,
        "strategy": {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 1},
        "stop": {"rounds": 4},
        **sections,
    }


WINDOW = {"kind": "tcp", "model": "window"}


@pytest.mark.parametrize(
    ("kind", "strategy", "protocol"),
    [
        ("star", {"kind": "fedavg", "clients_per_round": 6, "deadline": "9 s"}, "fluid"),
        ("star", {"kind": "fedbuff", "concurrency": 6, "buffer": 3}, "tcp"),
        ("star", {"kind": "fedavg", "clients_per_round": 6}, WINDOW),
        ("tree", {"kind": "hierfavg", "kappa2": 2}, "fluid"),
    ],
)
def test_runs_over_traces_are_sound_and_go_on(
    tmp_path: Path, kind: str, strategy: dict[str, Any], protocol: Any
) -> None:
    sections = scenario(tmp_path, kind, strategy=strategy)
    sections["network"]["protocol"] = protocol
    sections["world"] = {
        "processes": [
            {"kind": "link-outage", "link": "device 1 up", "every": "8 s", "lasts": "3 s"},
            {"kind": "link-outage", "link": "server up", "every": "20 s", "lasts": "2 s", "rate": "100 kbit/s"},
        ]
    }  # fmt: skip
    summary = run(sections, tmp_path / "whole")
    assert_sound(tmp_path / "whole")
    assert run_until(sections, tmp_path / "cut", summary["events"] // 2) == "interrupted"
    go_on(sections, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("kind", "strategy", "protocol"),
    [
        ("star", {"kind": "fedavg", "clients_per_round": 2}, WINDOW),
        ("star", {"kind": "fedasync", "concurrency": 6}, "tcp"),
        ("star", {"kind": "d-psgd", "deadline": "60 s"}, "tcp"),
        ("tree", {"kind": "hierfavg", "kappa2": 2}, "tcp"),
    ],
)
def test_a_constant_trace_changes_nothing(
    tmp_path: Path, kind: str, strategy: dict[str, Any], protocol: Any
) -> None:
    sections = scenario(tmp_path, kind, strategy=strategy, stop={"rounds": 2})
    flat = {"kind": "trace", "file": str(tmp_path / "flat.csv"), "rate": "Mbit/s"}
    digests = []
    for rate in ("500 kbit/s", flat):
        sections["network"]["device"] |= {"down": rate, "up": rate}
        sections["network"]["server"] = {"down": rate, "up": rate}
        sections["network"]["protocol"] = protocol
        digests.append(run(sections)["events_sha256"])
    assert digests[0] == digests[1]


def test_the_audit_finds_other_traces_and_places(tmp_path: Path) -> None:
    sections = scenario(tmp_path, stop={"rounds": 3})
    run(sections, tmp_path / "run")
    findings = audit(tmp_path / "run")
    assert not any(findings.values())
    path = tmp_path / "run" / "link_traces.parquet"
    table = pq.read_table(path)
    slower = (table["value"].to_numpy() * 0.5).tolist()
    pq.write_table(table.set_column(5, "rate", [slower]), path)
    findings = audit(tmp_path / "run")
    assert findings["no link carried more than it can"]
    assert findings["links follow their traces from where scenario and seed say"]
    pq.write_table(table, path)
    links = tmp_path / "run" / "traced_links.parquet"
    moved = pq.read_table(links)
    pq.write_table(moved.set_column(3, "ahead", [(moved["ahead"].to_numpy() + 1).tolist()]), links)
    findings = audit(tmp_path / "run")
    assert findings["links follow their traces from where scenario and seed say"]


def packets(folder: Path, size: float, **keys: Any) -> float:
    """Time (s) of an upload over 8 Mbit/s with windows, 40 ms of round trip and further keys."""
    links = {"up": "8 Mbit/s", "latency": "20 ms", **keys}
    network = {"kind": "star", "device": links, "protocol": WINDOW}
    world = fedsim.build_world({"devices": 1}, network)
    message = world.send(0, "server", size)
    world.env.run(until=message)
    assert message.outcome == "done"
    rule = world._processes.network._rules[0]  # type: ignore[attr-defined]
    assert abs(rule.balance()).max(initial=0.0) < 1e-3
    return world.now


@pytest.mark.long
def test_random_losses_slow_a_sender_as_theory_says() -> None:
    """Ott et al. (1996): Reno has a mean of 1.31 segments / (R sqrt(loss)) with random losses."""
    links = {"up": "80 Mbit/s", "latency": "50 ms", "loss": 0.002}
    protocol = {"control": "reno", "hystart": False} | WINDOW
    network = {"kind": "star", "device": links, "protocol": protocol}
    world = fedsim.build_world({"devices": 1}, network)
    world.send(0, "server", "1 GB")
    flows = world._processes.network  # type: ignore[attr-defined]
    sent = []
    for now in (20.0, 220.0):  # after slow start
        world.env.run(until=now)
        sent.append(flows.sent(flows._flows[0]))
    rate = (sent[1] - sent[0]) / 200
    assert rate == pytest.approx(1.31 * 1448 / (0.1 * math.sqrt(0.002)), rel=0.15)


def test_losses_and_latencies_follow_their_traces(tmp_path: Path) -> None:
    (tmp_path / "loss").write_text("0 0\n6 5\n12 0\n")
    (tmp_path / "delay").write_text("0 20\n6 200\n12 20\n")
    trace = {"kind": "trace", "starts": "begin", "ends": "hold"}
    plain = packets(tmp_path, 5e6)
    lossy = {**trace, "file": str(tmp_path / "loss"), "loss": "%"}
    delayed = {**trace, "file": str(tmp_path / "delay"), "latency": "ms"}
    # before the sixth second nothing differs
    assert packets(tmp_path, 4e6, loss=lossy) == packets(tmp_path, 4e6)
    assert packets(tmp_path, 4e6, latency=delayed) == pytest.approx(packets(tmp_path, 4e6))
    assert plain < 6
    long = packets(tmp_path, 10e6)
    assert packets(tmp_path, 10e6, loss=lossy) > long + 3
    # the link's queue of 100 ms is less than the round trip, which the window has to grow to
    assert long + 0.05 < packets(tmp_path, 10e6, latency=delayed) < long + 6


@pytest.mark.parametrize("latency", ["20 ms", "trace"])
def test_runs_with_losses_are_sound_and_go_on(tmp_path: Path, latency: str) -> None:
    sections = scenario(tmp_path, stop={"rounds": 2})
    (tmp_path / "losses.csv").write_text("time,loss\n0,0\n2,0.03\n5,0.001\n")
    (tmp_path / "delays.csv").write_text("time,latency\n0,20\n1,150\n3,40\n")
    links = sections["network"]["device"]
    links["latency"] = latency
    links["loss"] = 0.01
    if latency == "trace":
        links["latency"] = {"kind": "trace", "file": str(tmp_path / "delays.csv")}
        links["loss"] = {"kind": "trace", "file": str(tmp_path / "losses.csv")}
    sections["network"]["protocol"] = WINDOW
    summary = run(sections, tmp_path / "whole")
    assert_sound(tmp_path / "whole")
    assert run_until(sections, tmp_path / "cut", summary["events"] // 2) == "interrupted"
    go_on(sections, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("key", ["latency", "loss"])
def test_losses_and_changing_latencies_need_windows(tmp_path: Path, key: str) -> None:
    (tmp_path / "file").write_text("0 0.1\n1 0.2\n")
    links = {key: {"kind": "trace", "file": str(tmp_path / "file")}}
    with pytest.raises(FedsimError, match=f"device.{key} is a trace, .*model = 'window'"):
        fedsim.build_world({"devices": 1}, {"kind": "star", "device": links})


def test_a_changed_trace_is_refused_on_resume(tmp_path: Path) -> None:
    sections = scenario(tmp_path)
    assert run_until(sections, tmp_path / "cut", 60) == "interrupted"
    (tmp_path / "walks" / "walk3").write_text("0 1\n1 2\n")
    with pytest.raises(FedsimError, match=r"files of \[network.device.down\] .*has changed"):
        go_on(sections, tmp_path / "cut")


def test_down_and_up_of_a_device_are_at_one_place(tmp_path: Path) -> None:
    sections = scenario(tmp_path)
    world = fedsim.build_world({"devices": 12}, sections["network"], seed=3)
    traces = world._processes.network.traces  # type: ignore[attr-defined]
    places = [traces.of(f"device {device} down")[1] for device in range(12)]
    for device in range(12):
        down, ahead = traces.of(f"device {device} down")
        up, same = traces.of(f"device {device} up")
        assert (down.name, ahead) == (up.name, same)
        assert 0 <= ahead < down.length
        assert world.device(device).down == down.mean
    assert len({*places}) == 12
    means = traces.of_devices["down"].means(12).tolist()
    assert means == [world.device(device).down for device in range(12)]
