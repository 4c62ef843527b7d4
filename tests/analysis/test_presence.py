"""Off phases as stretches: those of the paths, within lifetimes, with what processes switched off."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.analysis.history import History
from fedsim.analysis.report.timeline import read_timeline
from fedsim.analysis.timeline import draw_timeline
from fedsim.records.reading import RunFolder
from fedsim.records.trace import trace_events
from tests.analysis.conftest import Made
from tests.analysis.test_timeline import marks


@pytest.fixture
def outage(small: dict[str, Any], tmp_path: Path, made: Made) -> RunFolder:
    """Four devices with known phases: the second arrives at 5 s, the third leaves at 20 s, the last is switched off."""
    (tmp_path / "on.csv").write_text("device,start,end\n0,0,8\n0,12,1000\n1,0,1000\n2,1,1000\n3,0,1000\n")
    small["population"] |= {
        "devices": 4,
        "availability": {"kind": "intervals", "file": str(tmp_path / "on.csv"), "unit": "s"},
        "arrivals": {"kind": "schedule", "times": ["5 s"], "devices": [1]},
        "departures": {"kind": "schedule", "times": ["20 s"], "devices": [2]},
    }
    small["strategy"] = {"kind": "fedavg", "clients_per_round": 3, "deadline": "4 s", "retry": "1 s"}
    small |= {"learning": "off", "stop": {"simulated_time": "30 s"}}
    small["world"] = {"processes": [{"kind": "tests.analysis.test_presence:nightfall"}]}
    return RunFolder(made(small, tmp_path / "r"))


def nightfall(world: Any) -> Any:
    yield world.timeout(10.0)
    with world.off(3):
        yield world.timeout(6.0)


def test_stretches(outage: RunFolder) -> None:
    presence = History(outage)
    assert list(presence.there.itertuples(index=False, name=None)) == [
        (0, 0.0, 30.0),
        (1, 5.0, 30.0),
        (2, 0.0, 20.0),
        (3, 0.0, 30.0),
    ]
    off = [(0, 8.0, 12.0), (2, 0.0, 1.0), (3, 10.0, 16.0)]
    assert list(presence.away.itertuples(index=False, name=None)) == off
    assert list(presence.known) == [0, 1, 2, 3]


def test_the_timeline_shows_them(outage: RunFolder) -> None:
    figure = draw_timeline(outage, order="number")
    (bands,) = (item for item in figure.axes[0].collections if item.get_gid() == "away")
    assert len(bands.get_paths()) == 3
    assert marks(figure).keys() >= {"arrival", "departure"}
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"idle", "cannot be reached", "arrives", "leaves for good"} <= set(words)
    assert "idle or disconnected" not in words


def test_the_report_has_them(outage: RunFolder) -> None:
    data = read_timeline(outage, 1000, 100_000)
    seconds = {name: np.round(data.columns[name] * data.header["tick"], 3).tolist() for name in ("off_start", "off_end")}
    assert (seconds["off_start"], seconds["off_end"]) == ([8.0, 0.0, 10.0], [12.0, 1.0, 16.0])
    assert data.columns["off_first"].tolist() == [0, 1, 1, 2, 3]


def test_the_trace_has_those_of_the_table(outage: RunFolder) -> None:
    slices = [entry for entry in trace_events(outage) if entry["name"] == "cannot be reached"]
    assert [(entry["tid"], entry["ts"], entry["dur"]) for entry in slices] == [(0, 8e6, 4e6), (2, 0.0, 1e6)]


def test_a_folder_of_an_older_version(outage: RunFolder) -> None:
    (outage.path / "availability.parquet").unlink()
    assert History(outage).away.empty
    words = [text.get_text() for text in draw_timeline(outage).legends[0].get_texts()]
    assert "idle or disconnected" in words
    assert not any(entry["name"] == "cannot be reached" for entry in trace_events(outage))


def test_shifts_have_marks(grouped: RunFolder) -> None:
    shown = marks(draw_timeline(grouped))
    worked = {event["device"] for event in grouped.events if event["kind"] == "task-start"}
    for kind in ("arrival", "departure", "shift"):
        assert shown[kind] == sum(event["kind"] == kind and event["device"] in worked for event in grouped.events) > 0


def test_lanes_are_of_devices_whose_phases_are_known(unlearned: RunFolder) -> None:
    import pyarrow.parquet as pq

    path = unlearned.path / "availability.parquet"
    table = pq.read_table(path)
    pq.write_table(table.filter([device % 2 == 0 for device in table["device"].to_pylist()]), path)
    figure = draw_timeline(RunFolder(unlearned.path), order="number")
    names = [int(label.get_text().split()[0]) for label in figure.axes[0].get_yticklabels()]
    assert names
    assert all(name % 2 == 0 for name in names)
