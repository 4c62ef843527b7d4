"""Messages between any two endpoints: times, cuts and books (runs of peers and of edge servers are resumed)."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.audit import audit
from fedsim.executors.inline import Inline
from fedsim.lab.trackers.trace import trace_events
from fedsim.running.runner import Job
from fedsim.testing import assert_sound, quiet_world
from fedsim.world.task import Payload

SIZE = 100_000.0
SERVER = -1


def world(**population: Any) -> dict[str, Any]:
    sections = quiet_world({"kind": "fedavg", "clients_per_round": 2}, rounds=1)
    sections["population"] |= population
    device = {"down": "1 MB/s", "up": "100 kB/s", "latency": "50 ms"}
    return sections | {"network": {"kind": "star", "device": device}, "learning": "off", "stop": {"simulated_time": "40 s"}}


def play(sections: dict[str, Any], folder: Path, *ends: tuple[int, int]) -> tuple[list[tuple[float, str]], dict[str, Any]]:
    """Send a message between each two endpoints at 30 s; when and how each ends, and the summary."""
    job, told = Job(fedsim.Scenario(**sections), folder, Inline()), []

    def send() -> Generator[Any, Any, None]:
        yield job.simulation.env.timeout(30)
        for pair in ends:
            job.run.messages.send(
                *pair, (Payload("model", SIZE),), 7, lambda message, outcome: told.append((job.simulation.now, outcome))
            )

    job.simulation.process(send())
    return told, asyncio.run(job.execute()).summary


def test_any_endpoints_and_their_books(tmp_path: Path) -> None:
    """Two messages of a device share its link up; one of the server's does not; ledger, transfers and trace tell of all.

    They pass no server, which draws nothing for them.
    """
    told, summary = play(
        world() | {"energy": {"server": {"byte": "1 J/kB"}}}, tmp_path / "run", (20, 21), (20, 22), (SERVER, 23)
    )
    assert [(pytest.approx(when, abs=1e-6), how) for when, how in told] == [
        (30 + 0.05 + SIZE / 1e6, "done"),
        *[(30 + 0.1 + 2 * SIZE / 1e5, "done")] * 2,
    ]
    run = assert_sound(tmp_path / "run")
    rows = [row for row in run.transfers if row["direction"] == "peer"]
    assert [(row["sender"], row["receiver"], row["round"], row["delivered"]) for row in rows] == [
        ("server", "device 23", 7, SIZE),
        ("device 20", "device 21", 7, SIZE),
        ("device 20", "device 22", 7, SIZE),
    ]
    assert summary["bytes"]["peer"] == 3 * SIZE
    assert [entry["name"] for entry in trace_events(run) if entry["ph"] == "b"][1] == "device 20 to device 21"


def test_a_device_that_disconnects_cuts_what_it_sends_and_receives(tmp_path: Path) -> None:
    """The traces of two devices end within a message, and before one; what moved is charged."""
    ends = {21: 30.6, 22: 29.0}
    lines = [f"{device},0 s,{ends.get(device, 1000)} s" for device in range(24)]
    (tmp_path / "on.csv").write_text("device,start,end\n" + "\n".join(lines))
    sections = world(availability={"kind": "intervals", "file": "on.csv"})
    sections["data"] |= {"root": str(tmp_path)}
    told, summary = play(sections, tmp_path / "run", (20, 21), (22, 23))
    assert sorted(told) == [(30.0, "lost"), (pytest.approx(30.6), "lost")]
    assert_sound(tmp_path / "run")
    assert summary["bytes"]["peer"] == pytest.approx(0.5 * 1e5)


def test_the_audit_finds_what_no_link_can_have_carried(tmp_path: Path) -> None:
    """The same transfers over a link said to be slower."""
    import pyarrow.parquet as parquet

    play(world(), tmp_path / "run", (20, 21), (20, 22))
    path = tmp_path / "run" / "devices.parquet"
    table = parquet.read_table(path)
    at = table.column_names.index("link_up")
    slower = [rate.as_py() * (0.9 if device == 20 else 1.0) for device, rate in enumerate(table.column("link_up"))]
    parquet.write_table(table.set_column(at, "link_up", [slower]), path)
    assert "link up of device 20" in str(audit(tmp_path / "run")["no link carried more than it can"])
