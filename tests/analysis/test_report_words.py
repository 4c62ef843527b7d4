"""The scenario in words: every kind that a scenario can name has some, and they say its numbers."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.analysis.report import words
from fedsim.lab.catalogue import catalogue

_FILES = sorted((Path(fedsim.__file__).parents[1] / "scenarios").rglob("*.toml"))
_REAL = "worlds.toml"  # what the testbed builds
# No studies, no papers.
SCENARIOS = [path for path in _FILES if path.name != _REAL and not {"base", "tables"} & set(tomllib.loads(path.read_text()))]
OUTAGE = {"kind": "link-outage", "link": "server up", "every": "1 h", "lasts": "2 min"}
EDGES = {"kind": "tree", "cells": 4, "edge": {"latency": "30 ms"}}
CRASH = {"kind": "edge-outage", "edge": 2, "every": "1 min", "lasts": "5 s"}


def described(scenario: fedsim.Scenario) -> str:
    return words.describe(tomllib.loads(scenario.to_toml()))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_shipped_scenarios(path: Path) -> None:
    scenario = fedsim.load(path)
    text = described(scenario)
    assert text.count(". ") >= 5
    assert not re.search(r"None|\bnan\b|[{}\[\]_]|\(\)|  |,\.|\.\.|; ;|\binf\b", text), text
    assert f"{scenario.population.devices:,} devices hold" in text
    assert words.strategy_name(scenario.strategy.kind) in text


def test_every_kind_is_known() -> None:
    known = catalogue()
    assert {name for name, _ in known["data sources"]} == set(words._SOURCES)
    assert {name for name, _ in known["partitions"]} == set(words._PARTITIONS)
    assert [words.strategy_name(kind) for kind in ("fedavg", "scaffold", "ifca-mig")] == [
        "FedAvg",
        "SCAFFOLD",
        "IFCA with migration",
    ]


NEEDED: dict[str, dict[str, Any]] = {"population": {"devices": 20}, "network": {"kind": "star"}}


def of(section: str, **keys: Any) -> dict[str, Any]:
    return {section: NEEDED.get(section, {}) | keys}


QUANTILE = {"kind": "quantile", "share": 0.8, "most": "2 min"}
CRASHES = {"network": EDGES} | of("world", processes=[CRASH, CRASH | {"random": False, "work": "waits"}])
SAID: list[tuple[dict[str, Any], str]] = [
    (of("strategy", kind="fedbuff", concurrency=7, buffer=3), "FedBuff keeps 7 devices at work for"),
    (of("strategy", kind="fedat", tiers=4), "FedAT has 4 tiers; each asks 10 of its devices for 1 local epoch"),
    (of("strategy", kind="fedprox", mu=0.25), "its proximal term weighs 0.25"),
    (of("strategy", kind="fedavg", deadline={"kind": "relative", "times": 1.5}), "within 1.5 times the mean time of 5 epochs"),
    (of("strategy", kind="fedavg", deadline=QUANTILE), "within a time that follows from what earlier rounds took"),
    (of("world", processes=[{"kind": "upload-slots", "slots": 1}]), "takes 1 upload at a time; the others queue."),
    (
        of("world", processes=[OUTAGE | {"random": False}, OUTAGE | {"rate": "5 kbit/s"}]),
        "carries nothing for 2 min. Every 1 h the link server up carries 5 kbit/s only for 2 min, on average.",
    ),
    (of("world", processes=[{"kind": "tests.world.test_processes:forever"}]), "forever, of the user's own"),
    ({"stop": {"simulated_time": "2 h", "accuracy": 0.9}}, "ends after 2 h of simulated time or at an accuracy of 0.9"),
    ({"learning": "off"}, "Nothing is learned: the run counts time and bytes"),
    ({"drift": {"kind": "swap-all", "probability": 0.5, "at": {"every_rounds": 4}}}, "Every 4 rounds, devices with"),
    ({"drift": {"kind": "incremental"}}, "At rounds 0, 50, 100 and 150, devices hold a larger share"),
    (of("network", kind="tree", cells=4, cell={"down": "5 Mbit/s"}), "They are in 4 cells with 5 Mbit/s down each."),
    (
        {"network": EDGES} | of("strategy", kind="hierfavg", clients_per_round=6, kappa2=3),
        "HierFAVG asks 6 devices a round for 3 edge rounds of 1 local epoch, and waits for all of them.",
    ),
    (CRASHES, "in 4 cells; there is an edge server in each cell, with 30 ms of latency from there to the server."),
    (CRASHES, "server 2 crashes and is gone for 5 s, on average. Every 1 min edge server 2 is cut off for 5 s."),
    (of("network"), "Messages take no simulated time."),
    (of("network", server={"up": "1 MB/s"}, protocol="tcp"), "has 8 Mbit/s up; messages travel by tcp."),
    (of("population", devices=1) | of("strategy", clients_per_round=1), "One device holds"),
    (of("population", speed={"kind": "choice", "values": ["1 samples/s", "2 samples/s"]}), "1 samples/s or 2"),
    (of("population", speed="9 samples/s", stragglers={"share": 0.3}), "30% of them are slowed to 50% of their speed"),
    (of("population", speed=["1 samples/s"] * 20, jitter=0.1), "is what is listed for each; an epoch's time varies by 10%."),
    (
        of("population", availability={"kind": "diurnal", "most": 0.4, "least": 0.05}),
        "5% to 40% of the devices can be reached, most at 02:00 local time.",
    ),
    (
        of("population", device={"kind": "choice", "values": ["laptop", "phone-mid"], "shares": [1, 3]}),
        "The devices are laptop (25%) and phone-mid (75%), and",
    ),
]


@pytest.mark.parametrize(("changes", "expected"), SAID)
def test_what_is_said(changes: dict[str, Any], expected: str) -> None:
    assert expected in described(fedsim.Scenario(**changes))


def test_a_strategy_of_the_users_own_and_tables_from_elsewhere() -> None:
    assert words.strategy_name("mine.module:Mine") == "Mine"
    assert words.describe({}) == ""
    assert "9 devices hold" in words.describe({"population": {"devices": 9}, "data": {"source": {"kind": "x"}, "partition": 7}})
