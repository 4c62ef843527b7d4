"""Networks in which nothing moves any more: the run ends with words, unless something ends it
before.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.common.errors import SimulationError
from fedsim.plugin import Network, NetworkModel, Streams, Transport, World
from fedsim.testing import assert_same_run, assert_sound, go_on, run, run_until
from tests.calls import call

HERE = __name__
STAR: dict[str, Any] = {"kind": "star", "device": {"up": "1 kB/s", "down": "1 kB/s"}}
WITHIN_A_YEAR = (
    r"stand still since 0\.0 s, and nothing changed that within a year: server to device \d"
)


class Standstill:
    """A rule by which all flows stand still for ever."""

    next_end = math.inf

    def __init__(self) -> None:
        self.changed = False

    def enter(self, flow_id: int, *_: Any, **__: Any) -> None:
        self.changed = True

    def leave(self, flow_id: int, now: float) -> None:
        self.changed = True

    def recap(self, flow_id: int, size: float, cap: float, now: float) -> None:
        self.changed = True

    def set_capacity(self, link: str, capacity: float, now: float) -> None:
        self.changed = True

    def share(self, now: float) -> None:
        self.changed = False

    def advance(self, until: float) -> list[tuple[float, int]]:
        return []

    def sent(self, flow_id: int, at: float) -> float:
        return 0.0

    def rate(self, flow_id: int) -> float:
        return 0.0


class AtOnce(Standstill):
    """One that promises an end now, and never comes to it."""

    def share(self, now: float) -> None:
        super().share(now)
        self.next_end = now


class NoNumber(Standstill):
    """One whose next end is no number."""

    def share(self, now: float) -> None:
        super().share(now)
        self.next_end = math.nan


class OneChannel(Network):
    """All messages share one channel."""

    def route(self, source: int, destination: int) -> tuple[str, ...]:
        """The channel."""
        return ("air",)


class RuleSpec(NetworkModel):
    """A channel that is shared by a rule of these."""

    kind: str
    rule: str = "Standstill"

    def build(
        self,
        simulation: Any,
        streams: Streams,
        devices: int,
        rates: Any = None,
        root: Path | None = None,
    ) -> Network:
        columns, rule = self.columns(streams, devices, rates, root), globals()[self.rule]
        return OneChannel(
            simulation, {"air": 1e3}, *columns, Transport(self.protocol, streams), sharing=rule
        )


def world(network: dict[str, Any], *processes: Any, **strategy: Any) -> dict[str, Any]:
    """FedAvg of time and bytes alone, without a deadline and without a last time."""
    return {
        "learning": "off",
        "model": {"kind": "size", "bytes": "4 kB"},
        "population": {
            "devices": 8,
            "speed": "100 samples/s",
            "samples": {"low": 100, "high": 100},
        },
        "network": network,
        "strategy": {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 1} | strategy,
        "world": {"processes": [{"kind": f"{HERE}:{process.__name__}"} for process in processes]},
        "stop": {"rounds": 2},
    }


def ticks(world: World) -> Iterator[Any]:
    """Something else that goes on for ever."""
    while True:
        yield world.timeout(86_400.0)


def strike(world: World) -> Iterator[Any]:
    """From 9 s on no device sends anything any more."""
    yield world.timeout(9.0)
    for device in range(world.devices):
        world.limit(f"device {device} up")


def short_strike(world: World) -> Iterator[Any]:
    """The same, until 300 days have passed."""
    yield world.timeout(9.0)
    holds = [world.limit(f"device {device} up") for device in range(world.devices)]
    yield world.timeout(300 * 86_400.0)
    for hold in holds:
        hold.end()


@pytest.mark.parametrize("processes", [(), (ticks,)])
def test_a_rule_by_which_all_stand_still(processes: tuple[Any, ...], tmp_path: Path) -> None:
    """With other events that never end, too."""
    path = tmp_path / "scenario.toml"
    path.write_text(
        fedsim.Scenario(**world({"kind": f"{HERE}:RuleSpec"}, *processes)).to_toml(),
        encoding="utf-8",
    )
    result = call("run", path, "--out", tmp_path / "run", "--quiet", "--allow-code")
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    with pytest.raises(
        SimulationError,
        match=f"all 6 flows under way {WITHIN_A_YEAR}.* and 1 more; the sharing rule Standstill",
    ):
        run(world({"kind": f"{HERE}:RuleSpec"}, *processes))


@pytest.mark.parametrize(
    "network",
    [
        STAR | {"server": {"down": "0 B/s"}},
        STAR | {"device": {"down": "0 B/s", "up": "1 kB/s"}},
        {"kind": "tree", "cells": 2, "cell": {"down": "0 B/s"}, "device": {"up": "1 kB/s"}},
        {"kind": "tree", "cells": 2, "server": {"down": "0 B/s"}},
        STAR | {"server": {"down": "0 B/s"}, "protocol": "tcp"},
    ],
)
def test_links_without_a_rate(network: dict[str, Any]) -> None:
    """Refused beforehand, or the run ends with words."""
    with pytest.raises(fedsim.FedsimError, match=r"stand still since 0\.0 s|allowed"):
        run(world(network))


def test_an_outage_that_never_ends() -> None:
    with pytest.raises(
        SimulationError,
        match=r"all 6 flows under way stand still since 9\.0 s.*device 0 to server|to server",
    ):
        run(world(STAR, strike))


def test_what_ends_before(tmp_path: Path) -> None:
    """A deadline, a last time, or the end of an outage; also where it is resumed while all stand
    still.
    """
    assert run(world(STAR, strike, deadline="20 s"))["rounds"] == 2
    assert (
        run(world(STAR, strike) | {"stop": {"rounds": 2, "simulated_time": "1 h"}})["stopped"]
        == "simulated time"
    )
    whole = run(world(STAR, short_strike), tmp_path / "whole")
    assert whole["rounds"] == 2
    assert whole["simulated_s"] > 300 * 86_400
    assert_sound(tmp_path / "whole")


def test_it_is_resumed_while_all_stand_still(tmp_path: Path) -> None:
    sections = world({"kind": f"{HERE}:RuleSpec"}, deadline="30 s")
    summary = run(sections, tmp_path / "whole")
    assert run_until(sections, tmp_path / "cut", summary["events"] // 2) == "interrupted"
    go_on(sections, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("rule", ["AtOnce", "NoNumber"])
def test_a_rule_that_promises_an_end_and_never_comes_to_it(rule: str) -> None:
    """It would begin the same instant again and again."""
    with pytest.raises(
        SimulationError,
        match=f"the sharing rule {rule} was advanced to .* the next end of a flow is",
    ):
        run(world({"kind": f"{HERE}:RuleSpec", "rule": rule}))


@pytest.mark.parametrize(
    "start", [lambda world: world.env.run(), lambda world: world.env.run(until=2 * 365 * 86_400.0)]
)
def test_a_world_alone(start: Callable[[World], Any]) -> None:
    alone = fedsim.build_world({"devices": 2}, STAR)
    alone.limit("device 0 up")
    alone.send(0, "server", "1 kB")
    with pytest.raises(SimulationError, match="all 1 flows under way stand still since"):
        start(alone)


def test_who_moves_keeps_the_others_waiting() -> None:
    """Not all stand still: device 1 sends a file after another, and device 0 waits for two
    years.
    """
    alone = fedsim.build_world({"devices": 2}, STAR)
    hold = alone.limit("device 0 up")
    waiting = alone.send(0, "server", "1 kB")

    def sender() -> Iterator[Any]:
        for _ in range(8):
            yield alone.send(1, "server", 1e3 * 90 * 86_400)
        hold.end()

    alone.env.process(sender())
    alone.env.run(until=waiting)
    assert alone.now == pytest.approx(720 * 86_400 + 1.0)
