"""The picture of edge servers, of a run that was worked out by hand."""

from pathlib import Path

import pytest

from fedsim.analysis.edges import draw_edges, read_messages
from fedsim.analysis.style import NothingToDrawError
from fedsim.analysis.traffic import read_parts
from fedsim.records.reading import RunFolder
from fedsim.testing import run
from tests.strategies.test_hierfavg import by_hand, outage


def test_messages_and_losses_of_each_edge_server(tmp_path: Path) -> None:
    """Edge 0 is lost from 13 to 23 s, with its model on the way since 12.65 s."""
    run(by_hand(**outage(13, 10), rounds=2), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    messages = read_messages(folder)
    assert messages.groupby(["edge", "direction"]).size().to_dict() == {
        (0, "down"): 1,
        (0, "up"): 1,
        (1, "down"): 2,
        (1, "up"): 2,
    }
    lost = messages[messages["outcome"] == "lost"].to_dict("records")
    assert [(row["edge"], row["start"], row["end"]) for row in lost] == [(0, pytest.approx(12.65), 13.0)]
    (panel,) = draw_edges(folder).axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["edge 0", "edge 1"]
    bars = {bar.get_gid(): len(bar.get_paths()) for bar in panel.collections if bar.get_gid()}
    assert bars == {"down": 3, "up": 3, "lost": 1}


def test_traffic_knows_what_was_lost_with_an_edge_server(tmp_path: Path) -> None:
    summary = run(by_hand(**outage(9, 4)), tmp_path / "run")
    parts = read_parts(RunFolder(tmp_path / "run"))
    assert parts.loc[parts["wasted"], "bytes"].sum() == summary["bytes"]["wasted"] == pytest.approx(3000)
    assert set(parts["direction"]) == {"down", "up"}


def test_without_edge_servers_there_is_nothing_to_draw(tmp_path: Path) -> None:
    run(by_hand() | {"strategy": {"kind": "fedavg", "clients_per_round": 2}}, tmp_path / "run")
    with pytest.raises(NothingToDrawError, match="no edge server had a message"):
        draw_edges(RunFolder(tmp_path / "run"))
