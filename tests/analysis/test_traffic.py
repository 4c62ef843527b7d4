from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import fedsim
from fedsim.analysis.style import NothingToDrawError, save
from fedsim.analysis.traffic import draw_traffic, draw_traffic_compared, read_parts
from fedsim.records.reading import RunFolder


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


def test_runs_side_by_side(run: RunFolder, renamed: RunFolder, unlearned: RunFolder, tmp_path: Path) -> None:
    figure = draw_traffic_compared([run, renamed, unlearned])
    panel = figure.axes[0]
    assert len(panel.get_yticks()) == 3
    totals = [folder.summary["bytes"]["down"] + folder.summary["bytes"]["up"] for folder in (run, renamed, unlearned)]
    widths = sum(patch.get_width() for patch in panel.patches)  # type: ignore[attr-defined]
    assert widths * 1e3 == pytest.approx(sum(totals))
    for path in save(figure, tmp_path / "compared"):
        assert path.stat().st_size > 5_000
    ElementTree.parse(tmp_path / "compared.svg")


def test_a_run_that_moved_nothing_is_said(small: dict[str, Any], tmp_path: Path) -> None:
    small["strategy"] = {"kind": "local"}
    small["stop"] = {"rounds": 1}
    fedsim.run(fedsim.Scenario(**small), tmp_path / "alone", executor="inline")
    alone = RunFolder(tmp_path / "alone")
    with pytest.raises(NothingToDrawError, match="moved no bytes"):
        draw_traffic(alone)
    with pytest.raises(NothingToDrawError, match="moved any bytes"):
        draw_traffic_compared([alone, alone])


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
