from pathlib import Path

import pytest

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


def test_parts_sum_up_to_the_ledger(run: RunFolder) -> None:
    parts, moved = read_parts(run), run.summary["bytes"]
    for direction in ("down", "up"):
        assert parts.loc[parts["direction"] == direction, "bytes"].sum() == pytest.approx(moved[direction])
    for purpose, size in moved["by_purpose"].items():
        assert parts.loc[parts["purpose"] == purpose, "bytes"].sum() == pytest.approx(size)
    assert 0 < parts.loc[parts["wasted"], "bytes"].sum() == pytest.approx(moved["wasted"])


def test_the_curve_ends_at_all_bytes(run: RunFolder) -> None:
    over_time, totals = draw_traffic(run).axes
    moved = run.summary["bytes"]
    top = over_time.lines[0].get_ydata()
    assert over_time.get_ylabel() == "moved so far (kB)"
    assert top[-1] * 1e3 == pytest.approx(moved["down"] + moved["up"])  # type: ignore[index]
    widths = sum(patch.get_width() for patch in totals.patches)  # type: ignore[attr-defined]
    assert widths * 1e3 == pytest.approx(moved["down"] + moved["up"])


def test_runs_side_by_side(run: RunFolder, renamed: RunFolder, unlearned: RunFolder) -> None:
    figure = draw_traffic_compared([run, renamed, unlearned])
    panel = figure.axes[0]
    assert len(panel.get_yticks()) == 3
    totals = [folder.summary["bytes"]["down"] + folder.summary["bytes"]["up"] for folder in (run, renamed, unlearned)]
    widths = sum(patch.get_width() for patch in panel.patches)  # type: ignore[attr-defined]
    assert widths * 1e3 == pytest.approx(sum(totals))


def test_what_parts_of_the_server_exchange_is_apart_and_never_wasted(grouped: RunFolder) -> None:
    parts, moved = read_parts(grouped), grouped.summary["bytes"]
    between = parts[parts["direction"] == "server"]
    assert between["bytes"].sum() == pytest.approx(
        sum(row["delivered"] for row in grouped.transfers if row["sender"] is not None)
    )
    assert 0 < between["bytes"].sum() < moved["up"]
    assert parts.loc[parts["direction"] != "down", "bytes"].sum() == pytest.approx(moved["up"])
    assert parts.loc[parts["wasted"], "bytes"].sum() == pytest.approx(moved["wasted"])
    over_time, totals = draw_traffic(grouped).axes
    widths = sum(patch.get_width() for patch in totals.patches)  # type: ignore[attr-defined]
    assert widths * 1e3 == pytest.approx(moved["down"] + moved["up"])
    (paper,) = [line for line in over_time.lines if line.get_gid() == "paper"]
    top = over_time.lines[0].get_ydata()
    assert paper.get_ydata()[-1] / top[-1] == pytest.approx(moved["paper"] / (moved["down"] + moved["up"]))  # type: ignore[index]


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


def test_seeds_are_one_bar_with_their_mean(ran: Ran) -> None:
    runs = [ran(str(seed), seed=seed, learning="off") for seed in (1, 2)]
    strict = draw_purposes_compared(runs).axes[0]
    totals = [run.summary["bytes"]["down"] + run.summary["bytes"]["up"] for run in runs]
    assert totals[0] != totals[1]
    assert len(strict.get_yticks()) == 1
    assert sum(bar.get_width() for bar in strict.patches) * 1e3 == pytest.approx(sum(totals) / 2)  # type: ignore[attr-defined]
    assert sorted(strict.lines[0].get_xdata() * 1e3) == pytest.approx(sorted(totals))  # type: ignore[operator]


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
