"""Energy: joules by phase by hand, what they weigh, whose they are, and an audit that finds what
is changed.
"""

import copy
import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import fedsim
from fedsim.common.streams import Streams
from fedsim.lab.audit import audit
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder
from fedsim.testing import StrategyContract, eventful_world, quiet_world, run, run_until
from fedsim.testing import assert_sound as sound
from fedsim.world.device_kinds import catalogue, find_kind
from fedsim.world.energy.spec import TITLES
from fedsim.world.meters.base import MeterContext
from fedsim.world.meters.energy import TABLE, Zone
from tests.benchmarks.hashes import STRATEGIES
from tests.lab.test_audit import found
from tests.lab.test_forgeries import column, times

ENERGY: dict[str, Any] = {
    "idle": "500 mW",
    "compute": "4 W",
    "utilisation": 0.75,
    "receive": "1 W",
    "send": "2 W",
    "receive_byte": "1 J/kB",
    "send_byte": "2 J/kB",
    "tail": "500 mW",
    "tail_lasts": "3 s",
}


def world(energy: dict[str, Any], rounds: int = 1, **more: Any) -> dict[str, Any]:
    """A device that receives 4,000 bytes in 1 + 4 s, trains for 20 s, and sends them in 1 + 8 s,
    round after round.
    """
    population = {
        "devices": 1,
        "speed": "10 samples/s",
        "samples": {"low": 100, "high": 100},
    } | more.pop("population", {})
    return {
        "learning": "off",
        "model": {"kind": "size", "bytes": "4 kB"},
        "population": population,
        "network": {
            "kind": "star",
            "device": {"down": "1 kB/s", "up": "0.5 kB/s", "latency": "1 s"},
        },
        "strategy": {"kind": "fedavg", "clients_per_round": 1, "local_epochs": 2},
        "energy": energy,
        "stop": {"rounds": rounds},
    } | more


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


PLACES = {
    "server": {"idle": "100 W", "update": "5 J", "byte": "1 J/MB"},
    "edge": {"idle": "10 W", "byte": "2 J/kB"},
}
LINKS: dict[str, Any] = {"device": {"down": "1 kB/s", "up": "0.5 kB/s", "latency": "1 s"}}
WIRE = 4 * 1514 / 1448  # kB that TCP makes of 4 kB
CODECS = {
    way: {"kind": "float16", "encode_rate": rate}
    for way, rate in (("down", "4 kB/s"), ("up", "2 kB/s"))
}
TREE = {"network": {"kind": "tree", "cells": 2} | LINKS}
TCP = {"network": {"kind": "star", "protocol": {"kind": "tcp", "slow_start": False}} | LINKS}
BY_HAND: dict[str, tuple[dict[str, Any], dict[str, Any], list[float], dict[str, float]]] = {
    # 34 s: idle all the time; 9 J to receive, 60 to train, 26 to send; 3 s of tail in the training,
    # and after the run.
    "a round": (
        ENERGY,
        {},
        [113.5],
        {"idle": 17, "compute": 60, "receive": 9, "send": 26, "tail": 3, "server": 0, "edge": 0},
    ),
    # A radio awake for 30 s: 20 s until it sends; then none, as the next round begins at once; 20 s
    # again; 30 s.
    "tails are cut short": (
        ENERGY | {"tail_lasts": "30 s"},
        {"rounds": 2},
        [122, 122],
        {"tail": 35, "joules": 259},
    ),
    # The run ends 5 s into the upload: 2 J/s and 2,000 bytes; all of it was wasted.
    "cut off": (
        ENERGY,
        {"stop": {"rounds": 1, "simulated_time": "30 s"}},
        [],
        {"send": 14, "joules": 101, "wasted": 101},
    ),
    # 100 W for 34 s, 5 J an update, 8,000 bytes at the server; and at the one of two cells that
    # they pass.
    "the server's side": (PLACES, TREE, [4101.008], {"server": 3405.008, "edge": 2 * 340 + 16}),
    # By TCP 4,000 bytes are 4,182.3 on the wire: so much longer, and at 1 and 2 J/kB so much more;
    # latency, time, bytes.
    "bytes on the wire": (
        ENERGY | {"server": {"byte": "3 J/kB"}},
        TCP,
        [],
        {"receive": 1 + WIRE + WIRE, "send": 2 + 4 * WIRE + 2 * WIRE, "server": 6 * WIRE},
    ),
    # 4,000 bytes of float32: 1 s to decode and 2 s to encode at 3 W, and half of them to receive
    # and send.
    "codecs": (
        ENERGY,
        {"messages": CODECS},
        [105],
        {"idle": 15.5, "compute": 60 + 9, "receive": 5, "send": 14, "tail": 3},
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_joules_by_hand(name: str, tmp_path: Path) -> None:
    energy, more, rounds, due = BY_HAND[name]
    said = run(world(energy, **more), tmp_path / "run")["energy"]
    folder, found = sound(tmp_path / "run"), said | said["by_phase"]
    assert {key: found[key] for key in {"wasted": 0.0} | due} == pytest.approx(
        {"wasted": 0.0} | due, rel=1e-8
    )
    assert found["joules"] == close(math.fsum(said["by_phase"].values()))
    assert folder.rows(TABLE)[0]["send_j"] == pytest.approx(found["send"])
    assert name == "bytes on the wire" or [row["joules"] for row in folder.rounds] == [
        close(each) for each in rounds
    ]


def test_slow_phases_take_the_same_power_for_longer(tmp_path: Path) -> None:
    slow = {"factor": 0.5, "mean_normal": "5 s", "mean_slow": "5 s"}
    run(world(ENERGY, population={"slow_phases": slow}), tmp_path / "run")
    folder = sound(tmp_path / "run")
    begin, end = (event["time"] for event in folder.events if event["step"] == "train")
    assert end - begin > 21
    assert folder.summary["energy"]["by_phase"]["compute"] == close(3 * (end - begin))


def test_carbon_by_the_hour_and_zone(tmp_path: Path) -> None:
    """The run begins 10 s before a full hour, after which a kilowatt-hour weighs twice as much."""
    hours = [f"{100 if hour < 8 else 200} g/kWh" for hour in range(24)]
    energy = ENERGY | {
        "starts": "28790 s",
        "carbon": {"intensity": hours},
        "server": {"idle": "1 kW"},
    }
    summary = run(world(energy), tmp_path / "run")
    kwh = 3.6e6
    # Until 10 s: 5 s idle ... receiving 9 J, a quarter of the training, all of the tail.
    before = 0.5 * 10 + 9 + 60 / 4 + 1.5 + 1000 * 10
    after = 0.5 * 24 + 60 * 3 / 4 + 26 + 1000 * 24 + 1.5
    assert summary["energy"]["grams"] == close((100 * before + 200 * after) / kwh)
    folder = sound(tmp_path / "run")
    assert folder.rounds[0]["grams"] == close(summary["energy"]["grams"] - 1.5 * 200 / kwh)
    zones = {
        "zones": [{"intensity": "36 kg/kWh"}, {"intensity": hours, "share": 1e6, "ahead": "20 h"}]
    }
    summary = run(
        world(ENERGY | {"carbon": zones, "server": {"update": "7 J"}}), tmp_path / "zones"
    )
    assert summary["energy"]["grams"] == close(7 * 0.01 + 115 * 200 / kwh)
    sound(tmp_path / "zones")


def test_a_zone_over_days() -> None:
    zone = Zone([float(hour) for hour in range(24)], 3600.0 * 23)
    assert zone.grams(2.0, 0.0, 3600.0) == close(46)
    assert zone.grams(2.0, 1800.0, 5400.0) == close(23)
    assert zone.grams(1.0, 0.0, 10 * 86_400.0) == close(11.5)
    assert zone.grams(3.0, 7200.0, 7200.0) == close(3.0)


def test_carbon_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    path.write_text(
        "hour,intensity\n" + "".join(f"{hour},{100 + hour} g/kWh\n" for hour in range(24))
    )
    energy = ENERGY | {"carbon": {"file": str(path)}}
    assert run(world(energy))["energy"]["grams"] == close(115 * 100 / 3.6e6)
    for text, said in (
        ("hour\n", "has no column 'intensity'"),
        ("intensity\n1 g/kWh\n", "has 1 rows; allowed are 24"),
    ):
        path.write_text(text)
        with pytest.raises(fedsim.DataError, match=said):
            run(world(energy))


def columns_of(energy: dict[str, Any], devices: int = 1) -> Any:
    """The energy meter's columns of a scenario with such an ``[energy]``."""
    spec = fedsim.Scenario(**world(energy)).energy
    assert spec is not None
    return spec.build(MeterContext(devices, None, Streams(1))).columns


def test_presets_and_what_is_said_beside_them() -> None:
    columns = columns_of({"preset": "smartphone-4g", "idle": "1 W"}, 3)
    assert columns["idle_w"].tolist() == [1.0] * 3
    assert columns["tail_s"][0] == pytest.approx(11.576, abs=1e-9)
    idle = columns_of({"preset": ["raspberry-pi-4", "laptop"], "shares": [0.25, 0.75]}, 4000)[
        "idle_w"
    ]
    assert set(idle.tolist()) == {2.35, 4.0}
    assert 0.22 < (idle == 2.35).mean() < 0.28


def test_powers_of_the_devices_kinds(tmp_path: Path) -> None:
    """Where there is neither a preset nor watts, a kind's powers count: those of the catalogue,
    or one's own.
    """
    kinds = {"devices": 3, "device": ["mine", "raspberry-pi-5", "mine"]}
    kinds |= {
        "kinds": {
            "mine": {"like": "raspberry-pi-4", "idle": "1 W", "compute": "2 W", "radio": "3 W"}
        }
    }
    own = {"population": kinds, "model": {"kind": "logistic"}, "network": {"kind": "star"}}

    def drawn(energy: dict[str, Any], name: str) -> RunFolder:
        sections = world(energy, **own)
        del sections["population"]["speed"]
        run(sections, tmp_path / name)
        return sound(tmp_path / name)

    rows = drawn({"send": "7 W"}, "kinds").table(TABLE).to_pydict()
    assert rows["idle_w"] == [1.0, 3.0, 1.0]
    assert rows["compute_w"] == [2.0, 8.0, 2.0]
    assert rows["receive_w"] == [3.0, 0.5, 3.0]
    assert rows["send_w"] == [7.0] * 3
    assert (
        drawn({"preset": "laptop"}, "preset").table(TABLE).column("idle_w").to_pylist() == [4.0] * 3
    )


@pytest.mark.parametrize("name", sorted(TITLES.keys() & catalogue().keys()))
def test_a_preset_that_is_a_kind_of_device_draws_what_the_kind_does(name: str) -> None:
    kind = find_kind(name, {}, "device")
    drawn = {
        "idle_w": kind.idle,
        "compute_w": kind.compute,
        "receive_w": kind.radio,
        "send_w": kind.radio,
    }
    columns = columns_of({"preset": name})
    assert {column: values.item() for column, values in columns.items() if values.item()} == drawn


def test_a_training_without_an_epoch_that_counts_is_wasted_energy(tmp_path: Path) -> None:
    """CATA-Fed's slow straggler sends the model back as it was: its task is done, and all that
    it drew is wasted.

    Not so what it drew to report its size before: 4 bytes in 1.008 s, at 2.5 W and 2 J/kB.
    """
    strategy = {"kind": "cata-fed", "clients_per_round": 2, "deadline": "40 s", "clusters": 1}
    population = {"devices": 2, "speed": ["10 samples/s", "2 samples/s"]}
    run(world(ENERGY, population=population, strategy=strategy), tmp_path / "run")
    folder = sound(tmp_path / "run")
    ends = [
        event for event in folder.events if event["kind"] == "step-end" and event["step"] == "train"
    ]
    assert {event["device"]: event["data"]["epochs"] > 0 for event in ends} == {0: True, 1: False}
    assert {event["outcome"] for event in folder.events if event["kind"] == "task-end"} == {"done"}
    assert folder.summary["energy"]["wasted"] == close(
        folder.devices[1]["joules"] - 1.008 * 2.5 - 0.008
    )


def test_device_by_device() -> None:
    """A list says it for each device, as for speeds; and a scenario that is written out says the
    same.
    """
    battery = {"capacity": ["10 J", "20 J"], "charge": "1 W"}
    battery["charging"] = {"kind": "daily", "begins": ["1 h", "2 h"], "lasts": "1 h"}
    energy = {
        "idle": ["1 W", "2 W"],
        "tail_lasts": ["1 s", "2 s"],
        "carbon": {"intensity": "475 g/kWh"},
        "battery": battery,
    }
    scenario = fedsim.Scenario(**world(energy, population={"devices": 2}))
    assert fedsim.Scenario(**tomllib.loads(scenario.to_toml())) == scenario
    spec = scenario.energy
    assert spec is not None
    columns = spec.build(MeterContext(2, None, Streams(1))).columns
    assert [columns[name].tolist() for name in ("idle_w", "tail_s", "initial_j")] == [
        [1, 2],
        [1, 2],
        [10, 20],
    ]
    with pytest.raises(fedsim.ScenarioError, match=r"energy\.idle lists 2 values for 3 devices"):
        spec.build(MeterContext(3, None, Streams(1)))


def test_a_flat_battery_is_in_the_table_of_availability(tmp_path: Path) -> None:
    """Off from the instant at which the battery is flat to that at which it is charged again;
    the audit looks at it.
    """
    battery = {
        "capacity": "100 J",
        "charge": "5 W",
        "charging": {"kind": "daily", "begins": "60 s", "lasts": "1 h"},
    }
    battery |= {"restart": 0.5}
    summary = run(world(ENERGY | {"battery": battery}, rounds=2), tmp_path / "run")
    folder = sound(tmp_path / "run")
    flat = [
        event["time"]
        for event in folder.events
        if event["kind"] == "task-end" and event["outcome"] == "battery"
    ]
    changes = folder.table(files.AVAILABILITY).to_pydict()
    assert summary["simulated_s"] > 70
    assert changes["on"][:3] == [True, False, True]
    assert changes["time"][:3] == [0, flat[0], 70]  # 60 s, and 10 s to charge half of it
    path = tmp_path / "run" / files.AVAILABILITY
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 1), path)
    check = audit(tmp_path / "run")["devices worked only while they could be reached"]
    assert any("was lost" in problem for problem in check)


@pytest.mark.parametrize(
    ("energy", "said"),
    [
        (
            {"preset": "smartphone-wify"},
            "energy.preset is 'smartphone-wify'.*allowed are smartphone-wifi.*did you mean",
        ),
        ({"idle": 3}, "energy.idle.*a power needs its unit"),
        ({"idel": "3 W"}, "unknown key 'idel'.*idle"),
        ({"starts": "25 h"}, "less than '24 h'"),
        ({"edge": {"idle": "1 W"}}, "energy.edge.*no cells"),
        (
            {"carbon": {"intensity": ["1 g/kWh"] * 23}},
            "'intensity' has 23 entries; allowed is 1, or 24",
        ),
        (
            {"carbon": {"intensity": "3"}},
            "energy.carbon.* is '3': a carbon intensity is a number and a unit out of g/J.*'$",
        ),
        ({"battery": {}}, "energy.battery.capacity is missing"),
        (
            {"battery": {"capacity": "10 Wh", "charging": "dayly"}},
            "energy.battery.charging.kind is 'dayly'.*daily",
        ),
    ],
)
def test_mistakes(energy: dict[str, Any], said: str) -> None:
    with pytest.raises(fedsim.ScenarioError, match=f"(?s){said}"):
        run(world(energy))


def test_the_audit_finds_what_was_changed(tmp_path: Path) -> None:
    run(
        world(
            ENERGY | {"carbon": {"intensity": "100 g/kWh"}, "battery": {"capacity": "150 J"}},
            rounds=2,
        ),
        tmp_path / "run",
    )
    sound(tmp_path / "run")
    check, held = (
        "energy adds up over phases, devices and rounds",
        "no battery was below zero, or gave what it did not hold",
    )
    for name, key, factor, finds in (
        (TABLE, "compute_j", 1.01, check),
        (TABLE, "compute_w", 1.01, held),
        (TABLE, "initial_j", 1.01, held),
        (files.DEVICES, "joules", 1.01, check),
        (files.ROUNDS, "joules", 9.0, check),
    ):
        kept = (tmp_path / "run" / name).read_bytes()
        column(tmp_path / "run", name, key, times(factor))
        assert found(tmp_path / "run", [finds]), key
        (tmp_path / "run" / name).write_bytes(kept)
    path = tmp_path / "run" / files.SUMMARY
    summary = json.loads(path.read_text())
    for key in ("joules", "wasted", "grams"):
        path.write_text(
            json.dumps(summary | {"energy": summary["energy"] | {key: summary["energy"][key] + 1}})
        )
        assert any(f"energy.{key}" in problem for problem in audit(tmp_path / "run")[check])


# Energy and batteries in whole runs: nothing changes without them, and with them a run is still
# resumed to the bit.


FEDAVG = {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"}
BATTERY = {
    "capacity": {"kind": "uniform", "low": "20 J", "high": "150 J"},
    "initial": {"kind": "uniform", "low": 0.1, "high": 1.0},
}
CHARGED = {
    "charge": "3 W",
    "charging": {"kind": "renewal", "mean_on": "30 s", "mean_off": "30 s"},
    "restart": 0.3,
}
PHONE: dict[str, Any] = {
    "preset": "smartphone-4g",
    "receive_byte": "1 J/kB",
    "send_byte": "2 J/kB",
    "tail_lasts": "4 s",
}
PHONE |= {"carbon": {"intensity": "400 g/kWh"}, "server": {"idle": "50 W"}}


def test_nothing_happens_otherwise_when_energy_is_counted_or_batteries_are_never_flat(
    tmp_path: Path,
) -> None:
    sections = eventful_world(FEDAVG, seed=4, rounds=6) | {"learning": "off"}
    without = run(sections)
    assert "energy" not in without
    for name, energy in {
        "counted": PHONE,
        "endless": PHONE | {"battery": {"capacity": "inf J"} | CHARGED},
    }.items():
        summary = run(sections | {"energy": energy}, tmp_path / name)
        assert summary["events_sha256"] == without["events_sha256"]
        sound(tmp_path / name)


def test_two_strategies_have_the_same_batteries() -> None:
    """What is drawn by lot is the same; levels differ by what is asked."""
    sections = quiet_world(FEDAVG) | {
        "energy": PHONE | {"battery": BATTERY | CHARGED},
        "learning": "off",
    }
    other = copy.deepcopy(sections) | {
        "strategy": {"kind": "fedbuff", "concurrency": 7, "buffer": 3}
    }
    runs = [fedsim.Simulation(fedsim.Scenario(**each)).installed for each in (sections, other)]
    for name, drawn in runs[0].meters.of_sections["energy"].columns.items():
        assert (drawn == runs[1].meters.of_sections["energy"].columns[name]).all(), name


@pytest.mark.parametrize("kind", ["flexcfl", "cata-fed", "fedbuff"])
def test_batteries_run_flat_at_any_instant(kind: str, tmp_path: Path) -> None:
    """No run hangs, all books balance, and some tasks end for that; stopped on the way the run
    is the same.
    """
    contract = StrategyContract()
    contract.strategy = {"kind": kind} | STRATEGIES[kind]
    contract.sections = {"energy": PHONE | {"battery": BATTERY | CHARGED}, "learning": "off"}
    contract.test_it_goes_on_as_if_it_had_not_been_stopped(tmp_path)
    assert (tmp_path / "cut" / TABLE).read_bytes() == (tmp_path / "whole" / TABLE).read_bytes()
    assert (
        RunFolder(tmp_path / "cut").summary["energy"]
        == RunFolder(tmp_path / "whole").summary["energy"]
    )
    folder = sound(tmp_path / "whole")
    outcomes = [event["outcome"] for event in folder.events if event["kind"] == "task-end"]
    assert "battery" in outcomes
    assert "done" in outcomes
    assert folder.summary["energy"]["wasted"] > 0


def test_a_population_that_is_flat_for_good_ends_the_run(tmp_path: Path) -> None:
    sections = quiet_world(FEDAVG, rounds=10_000) | {"learning": "off"}
    summary = run(
        sections | {"energy": PHONE | {"battery": {"capacity": "100 J"}}}, tmp_path / "run"
    )
    assert summary["stopped"] == "no device will ever be there again"
    assert summary["simulated_s"] < 3600
    folder = sound(tmp_path / "run")
    drawn = sum(row["joules"] for row in folder.devices)
    assert 0 < drawn <= 24 * 100 + 1e-6


def test_an_interrupted_run_balances_too(tmp_path: Path) -> None:
    sections = quiet_world(FEDAVG) | {
        "learning": "off",
        "energy": PHONE | {"battery": BATTERY | CHARGED},
    }
    assert run_until(sections, tmp_path / "run", 80) == "interrupted"
    sound(tmp_path / "run")
