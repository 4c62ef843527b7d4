from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsim
from fedsim.analysis.accuracy import band, draw_costs
from fedsim.analysis.series import Series, group_by_scenario
from fedsim.analysis.style import NothingToDrawError, line_of, save
from fedsim.records.reading import RunFolder


def make(small: dict[str, Any], folder: Path, **changes: Any) -> RunFolder:
    fedsim.run(fedsim.Scenario(**small | changes), folder, executor="inline")
    return RunFolder(folder)


@pytest.fixture
def seeds(small: dict[str, Any], tmp_path: Path) -> list[RunFolder]:
    return [make(small, tmp_path / f"seed-{seed}", seed=seed) for seed in (1, 2, 3)]


def test_a_band_where_all_are_known() -> None:
    first = pd.DataFrame({"time": [0.0, 2.0, 4.0], "accuracy": [0.0, 0.4, 0.8]})
    other = pd.DataFrame({"time": [1.0, 3.0, 9.0], "accuracy": [0.4, 0.8, 0.2]})
    drawn = band([first, other], "time")
    assert drawn.at.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(drawn.low, [0.2, 0.4, 0.6, 0.7])
    np.testing.assert_allclose(drawn.high, [0.4, 0.6, 0.8, 0.8])
    np.testing.assert_allclose(drawn.mean, [0.3, 0.5, 0.7, 0.75])
    apart = pd.DataFrame({"time": [5.0, 6.0], "accuracy": [0.1, 0.2]})
    assert not len(band([first, apart], "time").at)


def test_seeds_of_a_scenario_are_one_line_with_a_band(small: dict[str, Any], seeds: list[RunFolder], tmp_path: Path) -> None:
    local = make(small, tmp_path / "prox", strategy=small["strategy"] | {"kind": "fedprox", "mu": 0.1})
    figure = draw_costs([seeds[0], local, *seeds[1:]])
    by_bytes, by_time, by_round = figure.axes[:3]
    curves = [[row["accuracy"] for row in run.rounds] for run in seeds]
    mean, low, high = np.mean(curves, axis=0), np.min(curves, axis=0), np.max(curves, axis=0)
    (line,) = [line for line in by_round.lines if line.get_gid() == "mean-0"]
    np.testing.assert_allclose(line.get_ydata(), mean)
    (area,) = [item for item in by_round.collections if item.get_gid() == "band-0"]
    corners = np.asarray(area.get_paths()[0].vertices)
    for place in range(len(mean)):
        ys = corners[corners[:, 0] == place + 1, 1]
        np.testing.assert_allclose([ys.min(), ys.max()], [low[place], high[place]])
    ends = [sum(row["bytes_down"] + row["bytes_up"] for row in run.rounds) for run in seeds]
    (line,) = [line for line in by_bytes.lines if line.get_gid() == "mean-0"]
    assert line.get_xdata()[-1] == pytest.approx(min(ends) / 1e3)
    assert "kB" in by_bytes.get_xlabel()
    assert not [item for item in by_time.collections if item.get_gid() == "band-1"]  # one seed has no band
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[:2] == ["fedavg (3 seeds)", "fedprox"]
    save(figure, tmp_path / "costs")


def test_many_series_have_a_panel_each(seeds: list[RunFolder]) -> None:
    """In each its own line and band in its colour, over the lines of all others."""
    series = [Series(f"line {number}", tuple(seeds), number) for number in range(7)]
    figure = draw_costs(seeds, series)
    panels = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title() for panel in panels] == [one.name for one in series] * 2
    for place, panel in enumerate(panels):
        (own,) = [line for line in panel.lines if str(line.get_gid()).startswith("mean")]
        assert own.get_color() == line_of(place % 7, 1.0)["color"]
        assert len(panel.lines) == 6 + 2  # and a dot at its end
        assert [item.get_gid() for item in panel.collections] == [f"band-{place % 7}"]


def test_series_are_called_after_what_makes_them_different(
    small: dict[str, Any], seeds: list[RunFolder], tmp_path: Path
) -> None:
    shorter = make(small, tmp_path / "short", strategy=small["strategy"] | {"local_epochs": 1})
    again = make(small, tmp_path / "again", seed=1)
    names = [(series.name, len(series.runs)) for series in group_by_scenario([*seeds, shorter])]
    assert names == [("fedavg, local_epochs 2", 3), ("fedavg, local_epochs 1", 1)]
    twice = group_by_scenario([*seeds, again])
    assert [len(series.runs) for series in twice] == [3, 1]
    assert len({series.name for series in twice}) == 2
    assert "again" in twice[1].name


def test_single_seeds_and_runs_without_accuracy_are_said(small: dict[str, Any], run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(NothingToDrawError, match="several seeds"):
        draw_costs([run])
    unlearned = [make(small, tmp_path / str(seed), seed=seed, learning="off") for seed in (1, 2)]
    with pytest.raises(NothingToDrawError, match="no round was evaluated"):
        draw_costs(unlearned)
