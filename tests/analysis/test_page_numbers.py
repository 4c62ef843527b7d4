"""The numbers of a page against the run folder, for runs whose messages go different ways."""

import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fedsim
from fedsim.analysis.report.tables import read_devices
from fedsim.analysis.report.timeline import read_timeline
from fedsim.cli import main
from fedsim.common.units import show_bytes
from fedsim.records.ledger import total
from fedsim.records.reading import RunFolder

STAR = {"kind": "star", "device": {"down": "2 Mbit/s", "up": "1 Mbit/s", "latency": "20 ms"}}
TREE = STAR | {"kind": "tree", "cells": 2, "cell": {}, "edge": {"latency": "30 ms"}}
FAMILIES: dict[str, dict[str, Any]] = {
    "server": {"strategy": {"kind": "fedavg", "clients_per_round": 3}, "network": STAR},
    "peers": {"strategy": {"kind": "gossip"}, "network": STAR},
    "collectives": {"strategy": {"kind": "diloco", "local_steps": 2}, "network": STAR},
    "edges": {
        "strategy": {"kind": "hierfavg", "clients_per_round": 4, "kappa2": 2},
        "network": TREE,
    },
}


def played(family: str, folder: Path) -> RunFolder:
    scenario = fedsim.Scenario(
        learning="off",
        population={"devices": 6, "speed": "20 samples/s"},
        stop={"rounds": 3},
        **FAMILIES[family],
    )
    fedsim.run(scenario, folder)
    return RunFolder(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_tiles_and_headlines_count_the_bytes_of_all_endpoints(family: str, tmp_path: Path) -> None:
    run = played(family, tmp_path / "run")
    words = ["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]
    assert CliRunner().invoke(main, words).exit_code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    shown = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", shown)).split())
    sizes = run.summary["bytes"]
    moved = total(sizes)
    assert moved == pytest.approx(sum(run.table("transfers.parquet")["delivered"].to_pylist()))
    assert f"moved {show_bytes(moved)} " in text
    assert f"of {show_bytes(moved)} that moved was wasted" in text
    assert "nothing moved" not in text
    assert ("between devices" in text) == bool(sizes.get("peer"))


@pytest.mark.parametrize("family", FAMILIES)
def test_lanes_and_curves_of_peers_show_their_messages(family: str, tmp_path: Path) -> None:
    run = played(family, tmp_path / "run")
    data = read_timeline(run, most_lanes=100, most_steps=10_000)
    table = run.table("transfers.parquet").to_pandas()
    between = table[table["direction"] == "peer"]
    columns = data.columns
    assert len(columns["message_lane"]) == 2 * len(between)
    assert columns["message_sent"].sum() == len(between)
    assert data.header["without_server"] == (family in ("peers", "collectives"))
    times = columns["peer_time"].astype(float) * data.header["tick"]
    moved = float((np.diff(times) * columns["peer_value"][:-1]).sum())
    assert moved == pytest.approx(between["wire_bytes"].sum(), rel=1e-3)


def test_the_table_of_devices_counts_messages_at_both_ends(tmp_path: Path) -> None:
    run = played("peers", tmp_path / "run")
    table = read_devices(run)
    assert table["bytes"].sum() == pytest.approx(2 * run.summary["bytes"]["peer"])
