from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.analysis.style import NothingToDrawError, save
from fedsim.analysis.traffic import draw_purposes_compared
from fedsim.records.ledger import sum_view
from fedsim.records.reading import RunFolder


def test_both_views_of_the_ledger(grouped: RunFolder, run: RunFolder, tmp_path: Path) -> None:
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
    above = strict.child_axes[0]
    figure.draw_without_rendering()
    assert above.get_xlabel() == "in models of 2.6 kB"  # 64 x 10 weights and 10 biases, four bytes each
    assert above.get_xlim()[1] == pytest.approx(strict.get_xlim()[1] * unit / 2600)
    save(figure, tmp_path / "purposes")


def test_seeds_are_one_bar_with_their_mean(small: dict[str, Any], tmp_path: Path) -> None:
    runs = []
    for seed in (1, 2):
        fedsim.run(fedsim.Scenario(**small | {"seed": seed, "learning": "off"}), tmp_path / str(seed), executor="inline")
        runs.append(RunFolder(tmp_path / str(seed)))
    strict = draw_purposes_compared(runs).axes[0]
    totals = [run.summary["bytes"]["down"] + run.summary["bytes"]["up"] for run in runs]
    assert totals[0] != totals[1]
    assert len(strict.get_yticks()) == 1
    assert sum(bar.get_width() for bar in strict.patches) * 1e3 == pytest.approx(sum(totals) / 2)  # type: ignore[attr-defined]
    assert sorted(strict.lines[0].get_xdata() * 1e3) == pytest.approx(sorted(totals))  # type: ignore[operator]


def test_runs_that_moved_nothing_are_said(small: dict[str, Any], tmp_path: Path) -> None:
    changes = {"strategy": {"kind": "local"}, "stop": {"rounds": 1}}
    fedsim.run(fedsim.Scenario(**small | changes), tmp_path / "alone", executor="inline")
    with pytest.raises(NothingToDrawError, match="moved any bytes"):
        draw_purposes_compared([RunFolder(tmp_path / "alone")])
