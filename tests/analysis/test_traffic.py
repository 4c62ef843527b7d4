from pathlib import Path

import pytest
from matplotlib.axes import Axes

from fedsim.analysis.traffic import (
    draw_edges,
    draw_purposes_compared,
    draw_traffic,
    draw_traffic_compared,
    read_messages,
    read_parts,
)
from fedsim.records.ledger import sum_view
from fedsim.records.reading import RunFolder
from fedsim.testing import run
from tests.analysis.conftest import Ran
from tests.strategies.test_hierfavg import by_hand, outage


def widths(panel: Axes) -> float:
    """The lengths of all bars together (kB)."""
    return sum(patch.get_width() for patch in panel.patches) * 1e3  # type: ignore[attr-defined]


def total(run: RunFolder) -> float:
    return float(run.summary["bytes"]["down"] + run.summary["bytes"]["up"])


@pytest.mark.parametrize("name", ["run", "grouped"])
def test_parts_sum_up_to_the_ledger_and_the_curve_ends_at_all(name: str, request: pytest.FixtureRequest) -> None:
    """What parts of the server exchange is apart and never wasted; the ledger counts it as up."""
    run: RunFolder = request.getfixturevalue(name)
    parts, moved = read_parts(run), run.summary["bytes"]
    sums = parts.groupby("direction")["bytes"].sum()
    between = sum(row["delivered"] for row in run.transfers if row["sender"] is not None)
    assert dict(sums) == pytest.approx(
        {"down": moved["down"], "up": moved["up"] - between} | ({"server": between} if name == "grouped" else {})
    )
    assert dict(parts.groupby("purpose")["bytes"].sum()) == pytest.approx(moved["by_purpose"])
    assert parts.loc[parts["wasted"], "bytes"].sum() == pytest.approx(moved["wasted"])
    assert set(parts.loc[parts["wasted"], "direction"]) <= {"down", "up"}
    over_time, totals = draw_traffic(run).axes
    assert over_time.get_ylabel() == "moved so far (kB)"
    assert over_time.lines[0].get_ydata()[-1] * 1e3 == pytest.approx(total(run)) == widths(totals)  # type: ignore[index]
    paper = [line.get_ydata()[-1] * 1e3 for line in over_time.lines if line.get_gid() == "paper"]  # type: ignore[index]
    assert paper == pytest.approx([moved["paper"]] * (name == "grouped"))


def test_runs_side_by_side_and_seeds_as_one_bar_with_their_mean(run: RunFolder, renamed: RunFolder, ran: Ran) -> None:
    runs = [run, renamed, *(ran(str(seed), seed=seed, learning="off") for seed in (1, 2))]
    panel = draw_traffic_compared(runs).axes[0]
    assert len(panel.get_yticks()) == 4
    assert widths(panel) == pytest.approx(sum(map(total, runs)))
    totals = [total(run) for run in runs[2:]]
    assert totals[0] != totals[1]
    strict = draw_purposes_compared(runs[2:]).axes[0]
    assert len(strict.get_yticks()) == 1
    assert widths(strict) == pytest.approx(sum(totals) / 2)
    assert sorted(strict.lines[0].get_xdata() * 1e3) == pytest.approx(sorted(totals))  # type: ignore[operator]


def test_both_views_of_the_ledger(grouped: RunFolder, run: RunFolder) -> None:
    figure = draw_purposes_compared([grouped, run])
    strict, paper = figure.axes[:2]
    unit = {"MB": 1e6, "kB": 1e3}[strict.get_xlabel().split("(")[1].rstrip(")")]
    for place, folder in enumerate((grouped, run)):
        by_purpose = folder.summary["bytes"]["by_purpose"]
        totals = []
        for panel in (strict, paper):
            bars = [bar for bar in panel.patches if round(bar.get_y() + bar.get_height() / 2) == place]  # type: ignore[attr-defined]
            totals.append(sum(bar.get_width() for bar in bars) * unit)  # type: ignore[attr-defined]
        assert totals == pytest.approx([sum_view(by_purpose, "strict"), sum_view(by_purpose, "paper")])
    assert not [bar for bar in paper.patches if bar.get_gid() in ("initial-model", "id")]
    assert [bar for bar in strict.patches if bar.get_gid() == "initial-model"]


def test_messages_and_losses_of_each_edge_server(tmp_path: Path) -> None:
    """Edge 0 is lost from 13 to 23 s, with its model on the way since 12.65 s."""
    run(by_hand(**outage(13, 10), rounds=2), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    messages = read_messages(folder)
    counts = {(0, "down"): 1, (0, "up"): 1, (1, "down"): 2, (1, "up"): 2}
    assert messages.groupby(["device", "direction"]).size().to_dict() == counts
    lost = messages[messages["outcome"] == "lost"].to_dict("records")
    assert [(row["device"], row["start"], row["end"]) for row in lost] == [(0, pytest.approx(12.65), 13.0)]
    (panel,) = draw_edges(folder).axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["edge 0", "edge 1"]
    bars = {bar.get_gid(): len(bar.get_paths()) for bar in panel.collections if bar.get_gid()}
    assert bars == {"down": 3, "up": 3, "lost": 1}


def test_traffic_knows_what_was_lost_with_an_edge_server(tmp_path: Path) -> None:
    summary = run(by_hand(**outage(9, 4)), tmp_path / "run")
    parts = read_parts(RunFolder(tmp_path / "run"))
    assert parts.loc[parts["wasted"], "bytes"].sum() == summary["bytes"]["wasted"] == pytest.approx(3000)
    assert set(parts["direction"]) == {"down", "up"}
