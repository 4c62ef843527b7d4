"""The table of availability: what the paths say, compact, the same however the run went, and
watched by the audit.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedsim
from fedsim.clock.simulation import Simulation
from fedsim.common.streams import Streams
from fedsim.lab.audit import audit
from fedsim.records.reading import RunFolder
from fedsim.running.assembly import Run
from fedsim.testing import assert_sound, eventful_world, run
from fedsim.toolbox.worlds.availability import Traces
from fedsim.world.availability import Renewal, changes
from fedsim.world.lifetimes import Bounded

CHECK = "devices worked only while they could be reached"


@pytest.fixture
def world() -> dict[str, Any]:
    """Devices that come, go, arrive and leave for good, for 40 rounds at most; time and bytes
    only.
    """
    sections = eventful_world(
        {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 2}, seed=4, rounds=12
    )
    return sections | {"learning": "off"}


def test_the_changes_of_a_trace_worked_out_by_hand() -> None:
    paths = Traces([(10.0, [2.0, 4.0]), (math.inf, [0.0, 3.0]), (10.0, [])], [0, 1, 2, 0])
    within = Bounded(
        paths, np.array([0.0, 0.0, 1.0, 13.0]), np.array([math.inf, 2.0, math.inf, 33.0])
    )
    table = changes(within.spans, np.arange(4), 25.0, 1000)
    rows = list(zip(*(table[name].tolist() for name in ("device", "time", "on")), strict=True))
    off_and_on = [
        (0, 0.0, False),
        *((0, 10.0 * lap + at, at == 2) for lap in range(3) for at in (2, 4)),
    ]
    assert rows == [
        *off_and_on,
        (1, 0.0, True),
        (1, 2.0, False),
        (2, 0.0, False),
        (3, 0.0, False),
        (3, 13.0, True),
        (3, 14.0, False),
        (3, 22.0, True),
        (3, 24.0, False),
    ]


def test_of_too_many_changes_devices_all_over_are_kept_whole() -> None:
    def renewal() -> Any:
        return Renewal(mean_on="1 min", mean_off="1 min").build(  # type: ignore[arg-type]
            Streams(1), 1000, None
        )

    all_of_them = changes(renewal().spans, np.arange(1000), 3600.0, 10**9)
    some = changes(renewal().spans, np.arange(1000), 3600.0, 8000)
    assert 7000 < len(some["time"]) <= 8000
    kept = np.unique(some["device"])
    for name in ("device", "time", "on"):
        assert (some[name] == all_of_them[name][np.isin(all_of_them["device"], kept)]).all()
    assert np.histogram(kept, bins=10, range=(0, 1000))[0].min() > len(kept) / 15


def test_a_run_writes_what_the_paths_say(world: dict[str, Any], tmp_path: Path) -> None:
    run(world, tmp_path / "r")
    folder = RunFolder(tmp_path / "r")
    end, table = folder.summary["simulated_s"], folder.table("availability.parquet").to_pandas()
    fresh = Run(fedsim.Scenario(**world), Simulation())
    assert sorted(set(table["device"])) == list(range(world["population"]["devices"]))
    for device, own in table.groupby("device"):
        own_times = [*own["time"], end]
        for start, until, on in zip(own_times, own_times[1:], own["on"], strict=False):
            for time in np.linspace(start, until, 4)[:-1].tolist():
                assert fresh._past_spans(np.array([device]), np.array([time]))[0].item() == on
    assert_sound(tmp_path / "r")


def test_of_many_devices_only_those_asked(world: dict[str, Any], tmp_path: Path) -> None:
    world["population"] |= {"devices": 2_001, "samples": {"low": 20, "high": 30}}
    del world["drift"]
    run(world, tmp_path / "r")
    folder = RunFolder(tmp_path / "r")
    asked = {event["device"] for event in folder.events if event["kind"] == "task-start"}
    assert set(folder.table("availability.parquet")["device"].to_pylist()) == asked
    assert 6 <= len(asked) < 100


class TestAudit:
    @pytest.fixture
    def folder(
        self, world: dict[str, Any], tmp_path: Path, made: Callable[[dict[str, Any], Path], Path]
    ) -> Path:
        made(world, tmp_path / "r")
        assert audit(tmp_path / "r")[CHECK] == []
        outcomes = {
            event["outcome"]
            for event in RunFolder(tmp_path / "r").events
            if event["kind"] == "task-end"
        }
        assert {"done", "lost"} <= outcomes
        return tmp_path / "r"

    def changed(self, folder: Path, **columns: Any) -> list[str]:
        path = folder / "availability.parquet"
        table = pq.read_table(path).to_pydict() | columns
        pq.write_table(pa.table(table, schema=pq.read_schema(path)), path)
        return audit(folder)[CHECK]

    def test_devices_that_are_said_to_be_away_all_the_time(self, folder: Path) -> None:
        steps = [event for event in RunFolder(folder).events if event["kind"] == "step-start"]
        found = self.changed(folder, device=list(range(24)), time=[0.0] * 24, on=[False] * 24)
        assert found
        assert all("while its device was away" in finding for finding in found)
        assert len(found) <= len(steps)

    def test_devices_that_are_said_to_be_there_all_the_time(self, folder: Path) -> None:
        lost = [
            e
            for e in RunFolder(folder).events
            if e["kind"] == "task-end" and e["outcome"] == "lost"
        ]
        found = self.changed(folder, device=list(range(24)), time=[0.0] * 24, on=[True] * 24)
        assert found == [
            f"task {e['task']} was lost at {e['time']!r} s, when its device was there" for e in lost
        ]

    def test_a_table_out_of_order(self, folder: Path) -> None:
        table = pq.read_table(folder / "availability.parquet").to_pydict()
        assert (
            "is no change after the row before" in self.changed(folder, time=table["time"][::-1])[0]
        )

    def test_a_folder_without_one_is_of_an_older_version_or_breaks_its_seal(
        self, folder: Path
    ) -> None:
        (folder / "availability.parquet").unlink()
        found = audit(folder)
        assert found[CHECK] == []
        assert any(
            "availability.parquet" in text
            for text in found["every file is there, whole and as it was sealed"]
        )
