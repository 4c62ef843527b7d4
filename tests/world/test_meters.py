"""Meters: one of the user's own in a run, stopped and gone on with; what is wrong is told; and
the bill, by hand.
"""

import copy
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import fedsim
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.lab.audit import audit
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder
from fedsim.testing import assert_same_run, eventful_world, go_on, run, run_until

MOVED = {"kind": "tests.own_parts:Moved", "price": 2.0}
CHECK = "meters agree with the records"
COSTS = {
    "device": {"per_hour": 0.3, "per_gigabyte": 7.0, "per_request": 0.01, "per_task": 0.1},
    "server": {"per_hour": 1.5, "per_gigabyte": 20.0, "per_request": 0.03},
}


def eventful() -> dict[str, Any]:
    sections = copy.deepcopy(
        eventful_world({"kind": "fedavg", "clients_per_round": 4, "deadline": "30 s"})
    )
    return sections | {"learning": "off", "meters": [MOVED], "costs": COSTS}


def test_a_meter_of_ones_own_has_its_columns_and_survives_stops(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    summary = run(eventful(), whole)
    plain = {name: value for name, value in eventful().items() if name not in ("costs", "meters")}
    assert run(plain)["events_sha256"] == summary["events_sha256"]
    folder = RunFolder(whole)
    by_device = dict.fromkeys(range(len(folder.devices)), 0.0)
    for row in folder.transfers:
        by_device[row["device"]] += row["delivered"]
    assert {row["device"]: row["moved"] for row in folder.devices} == pytest.approx(by_device)
    assert sum(by_device.values()) == pytest.approx(
        summary["bytes"]["down"] + summary["bytes"]["up"]
    )
    for row in folder.rounds:
        assert row["moved"] == pytest.approx(row["bytes_down"] + row["bytes_up"])
    trained = [
        event["data"]["epochs"]
        for event in folder.events
        if event["kind"] == "step-end" and event["step"] == "train"
    ]
    assert 0 < sum(row["epochs"] for row in folder.rounds) <= sum(trained)
    steps = [event for event in folder.events if event["kind"] in ("step-start", "step-end")]
    lasted = sum(
        event["time"] if event["kind"] == "step-end" else -event["time"] for event in steps
    )
    entry = {"price": pytest.approx(2 * sum(by_device.values())), "lasted_s": pytest.approx(lasted)}
    assert summary["meters"]["moved"] == entry
    field = pq.read_schema(whole / files.ROUNDS).field("moved")
    assert field.metadata == {b"unit": b"bytes", b"about": b"moved in the round"}
    assert fedsim.load_run(whole).rounds["moved"].sum() <= summary["meters"]["moved"]["price"] / 2
    assert not any(audit(whole, allow_code=True).values())
    for share in (0.3, 0.8):
        cut = tmp_path / f"cut-{share}"
        assert run_until(eventful(), cut, int(share * summary["events"])) == "interrupted"
        go_on(eventful(), cut)
        assert_same_run(whole, cut)
        for name in (files.ROUNDS, files.DEVICES):
            assert (cut / name).read_bytes() == (whole / name).read_bytes()
        again = RunFolder(cut).summary
        assert (again["meters"], again["costs"]) == (summary["meters"], summary["costs"])


@pytest.mark.parametrize("column", ["moved", "cost"])
@pytest.mark.parametrize("name", ["rounds", "devices"])
def test_the_audit_finds_what_was_changed(
    name: str, column: str, metered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDSIM_ALLOW_CODE")
    path = metered / f"{name}.parquet"
    kept = path.read_bytes()
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    values = [value + 0.01 for value in table[column].to_pylist()]
    pq.write_table(table.set_column(place, table.schema.field(place), [values]), path)
    try:
        assert audit(metered, allow_code=True)[CHECK]
        # code is imported only where that is allowed
        assert bool(audit(metered)[CHECK]) == (column == "cost")
    finally:
        path.write_bytes(kept)


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("metered") / "run"
    run(eventful(), path)
    return path


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        (
            {"meters": ["traffic"]},
            "kind is 'traffic'; allowed are your own as 'package.module:Class'",
        ),
        ({"meters": ["tests.own_parts:Slowest"]}, "not a subclass of fedsim.plugin.Meter"),
        ({"meters": ["tests.own_parts:Open"]}, "takes '\\*\\*'; allowed are parameters by name"),
        (
            {"meters": [MOVED | {"prize": 2.0}]},
            "unknown key 'prize'; allowed are kind, price.*did you mean 'price'",
        ),
        ({"meters": [MOVED, MOVED]}, "meters: two have the entry 'moved'"),
        ({"meters": ["tests.own_parts:Twice"]}, "the column 'speed' is in the table already"),
        (
            {"meters": ["tests.own_parts:Deaf"]},
            r"the meter 'Deaf': on_task_end \(own_parts.py, line \d+\) is .*'def "
            r"on_task_end\(self, time, fields\)'",
        ),
        (
            {"costs": {"devise": {}}},
            "unknown key 'devise'; allowed are currency, device, .*did you mean 'device'",
        ),
        (
            {"costs": {"server": {"per_task": 1.0}}},
            "costs.server has the unknown key 'per_task'; allowed are per_hour",
        ),
        ({"costs": {"device": {"per_hour": -1.0}}}, "costs.device.per_hour is -1.0; .*0"),
        ({"costs": {"currency": ""}}, "costs.currency is ''"),
        (
            {"costs": {"edge": {"per_hour": 1.0}}},
            "costs.edge is given, but network.kind has no cells",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        fedsim.Simulation(fedsim.Scenario(**eventful() | sections))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            "Fails",
            "the meter 'Fails' failed at .* s, in own_parts.py, line [0-9]+: KeyError: 'nothing'",
        ),
        (
            "Forgets",
            "the meter 'Forgets': totals gives 'nothing' for its column 'forgotten'; allowed "
            "is a number, or None",
        ),
    ],
)
def test_a_mistake_in_a_meter_is_told_by_file_and_line(kind: str, says: str) -> None:
    with pytest.raises(SimulationError, match=says):
        run(eventful() | {"meters": [f"tests.own_parts:{kind}"]})


def world(**more: Any) -> dict[str, Any]:
    """Three devices that receive 4 MB in 1 + 4 s, train for 20 s, and send them in 1 + 8 s: 34 s
    a round, each alone.
    """
    return {
        "learning": "off",
        "model": {"kind": "size", "bytes": "4 MB"},
        "population": {"devices": 3, "speed": "10 samples/s", "samples": {"low": 100, "high": 100}},
        "network": {
            "kind": "star",
            "device": {"down": "1 MB/s", "up": "0.5 MB/s", "latency": "1 s"},
        },
        "strategy": {"kind": "fedavg", "clients_per_round": 3, "local_epochs": 2},
        "stop": {"rounds": 2},
    } | more


def test_a_bill_to_the_cent(tmp_path: Path) -> None:
    """Two rounds of 34 s: a device works 68 s, sends 8 MB in 2 messages; the server sends 24 MB
    in 6, for 68 s.
    """
    device = {"per_hour": 36.0, "per_gigabyte": 10.0, "per_request": 0.02, "per_task": 0.1}
    server = {"per_hour": 360.0, "per_gigabyte": 100.0, "per_request": 0.5}
    summary = run(
        world(costs={"currency": "EUR", "device": device, "server": server}), tmp_path / "run"
    )
    assert summary["simulated_s"] == 68
    # a device: 0.68 + 0.08 + 0.04 + 0.20 = 1; the server: 6.80 + 2.40 + 3.00 = 12.20
    bill = summary["costs"]
    assert bill["currency"] == "EUR"
    assert bill["total"] == pytest.approx(15.2, abs=1e-9)
    assert bill["by_kind"] == pytest.approx({"device": 3.0, "edge": 0.0, "server": 12.2}, abs=1e-9)
    assert bill["by_item"] == pytest.approx(
        {"hours": 8.84, "gigabytes": 2.64, "requests": 3.12, "tasks": 0.6}, abs=1e-9
    )
    folder = RunFolder(tmp_path / "run")
    assert [row["cost"] for row in folder.rounds] == pytest.approx([7.6, 7.6], abs=1e-9)
    assert [row["cost"] for row in folder.devices] == pytest.approx([1.0] * 3, abs=1e-9)
    assert not any(audit(tmp_path / "run").values())


def test_edge_servers_pay_for_what_they_send(tmp_path: Path) -> None:
    """A tree of three cells: what an edge server sends down to its device, and up to the server,
    is at its own rate.
    """
    network = {"kind": "tree", "cells": 3, "cell": {"down": "1 MB/s", "up": "1 MB/s"}, "edge": {}}
    network["device"] = {"down": "1 MB/s", "up": "1 MB/s"}
    strategy = {"kind": "hierfavg", "clients_per_round": 3, "local_epochs": 1, "kappa2": 1}
    edge, server = {"per_hour": 3.6, "per_request": 0.01}, {"per_request": 1.0}
    summary = run(
        world(network=network, strategy=strategy, costs={"edge": edge, "server": server}),
        tmp_path / "run",
    )
    folder = RunFolder(tmp_path / "run")
    sent = [
        row["sender"] or ("server" if row["direction"] == "down" else "device")
        for row in folder.transfers
    ]
    by_edges = sum(sender.startswith("edge") for sender in sent)
    assert by_edges > 0 < sent.count("server")
    due = {
        "device": 0.0,
        "edge": 3 * 0.001 * summary["simulated_s"] + 0.01 * by_edges,
        "server": 1.0 * sent.count("server"),
    }
    assert summary["costs"]["by_kind"] == pytest.approx(due, abs=1e-9)
    assert not any(audit(tmp_path / "run").values())
