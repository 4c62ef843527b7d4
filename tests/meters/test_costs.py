"""The bill, by hand."""

from pathlib import Path
from typing import Any

import pytest

from fedsim.audit import audit
from fedsim.records.reading import RunFolder
from fedsim.testing import run


def world(**more: Any) -> dict[str, Any]:
    """Three devices that receive 4 MB in 1 + 4 s, train for 20 s, and send them in 1 + 8 s: 34 s a round, each alone."""
    return {
        "learning": "off",
        "model": {"kind": "size", "bytes": "4 MB"},
        "population": {"devices": 3, "speed": "10 samples/s", "samples": {"low": 100, "high": 100}},
        "network": {"kind": "star", "device": {"down": "1 MB/s", "up": "0.5 MB/s", "latency": "1 s"}},
        "strategy": {"kind": "fedavg", "clients_per_round": 3, "local_epochs": 2},
        "stop": {"rounds": 2},
    } | more


def test_a_bill_to_the_cent(tmp_path: Path) -> None:
    """Two rounds of 34 s: a device works 68 s, sends 8 MB in 2 messages; the server sends 24 MB in 6, for 68 s."""
    device = {"per_hour": 36.0, "per_gigabyte": 10.0, "per_request": 0.02, "per_task": 0.1}
    server = {"per_hour": 360.0, "per_gigabyte": 100.0, "per_request": 0.5}
    summary = run(world(costs={"currency": "EUR", "device": device, "server": server}), tmp_path / "run")
    assert summary["simulated_s"] == 68
    of_device = 68 * 0.01 + 0.008 * 10 + 2 * 0.02 + 2 * 0.1  # 0.68 + 0.08 + 0.04 + 0.20 = 1.00
    of_server = 68 * 0.1 + 0.024 * 100 + 6 * 0.5  # 6.80 + 2.40 + 3.00 = 12.20
    bill = summary["costs"]
    assert (round(of_device, 9), round(of_server, 9)) == (1.0, 12.2)
    assert bill["currency"] == "EUR"
    assert bill["total"] == pytest.approx(15.2, abs=1e-9)
    assert bill["by_kind"] == pytest.approx({"device": 3.0, "edge": 0.0, "server": 12.2}, abs=1e-9)
    assert bill["by_item"] == pytest.approx({"hours": 8.84, "gigabytes": 2.64, "requests": 3.12, "tasks": 0.6}, abs=1e-9)
    folder = RunFolder(tmp_path / "run")
    assert [row["cost"] for row in folder.rounds] == pytest.approx([7.6, 7.6], abs=1e-9)
    assert [row["cost"] for row in folder.devices] == pytest.approx([1.0] * 3, abs=1e-9)
    assert not any(audit(tmp_path / "run").values())


def test_edge_servers_pay_for_what_they_send(tmp_path: Path) -> None:
    """A tree of three cells: what an edge server sends down to its device, and up to the server, is at its own rate."""
    network = {"kind": "tree", "cells": 3, "cell": {"down": "1 MB/s", "up": "1 MB/s"}, "edge": {}}
    network["device"] = {"down": "1 MB/s", "up": "1 MB/s"}
    strategy = {"kind": "hierfavg", "clients_per_round": 3, "local_epochs": 1, "kappa2": 1}
    edge, server = {"per_hour": 3.6, "per_request": 0.01}, {"per_request": 1.0}
    summary = run(world(network=network, strategy=strategy, costs={"edge": edge, "server": server}), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    sent = [row["sender"] or ("server" if row["direction"] == "down" else "device") for row in folder.transfers]
    by_edges = sum(sender.startswith("edge") for sender in sent)
    assert by_edges > 0 < sent.count("server")
    due = {"device": 0.0, "edge": 3 * 0.001 * summary["simulated_s"] + 0.01 * by_edges, "server": 1.0 * sent.count("server")}
    assert summary["costs"]["by_kind"] == pytest.approx(due, abs=1e-9)
    assert not any(audit(tmp_path / "run").values())


def test_prices_change_nothing_that_happens() -> None:
    assert run(world())["events_sha256"] == run(world(costs={"device": {"per_hour": 1.0}}))["events_sha256"]
