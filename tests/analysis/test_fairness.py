import numpy as np
import pytest

from fedsim.analysis.fairness import draw_fairness, selections_of_devices, selections_of_groups, waiting_times
from fedsim.lab.reading.fairness import jain_over_time
from fedsim.records.reading import RunFolder


def test_selections_add_up(split: RunFolder) -> None:
    asked = sum(event["kind"] == "task-start" and event["round"] is not None for event in split.events)
    counts = selections_of_devices(split)
    assert counts.sum() == asked
    assert (np.diff(counts) <= 0).all()
    _, jain = jain_over_time(split)
    assert jain[-1] == pytest.approx(counts.sum() ** 2 / len(counts) / (counts**2).sum())


def test_one_run_is_drawn_over_rounds(run: RunFolder) -> None:
    figure = draw_fairness([run])
    jain, *waiting = figure.axes[:4]
    np.testing.assert_array_equal(jain.lines[0].get_ydata(), jain_over_time(run)[1])
    for panel, values in zip(waiting, ("mean", "tenth", "longest"), strict=True):
        np.testing.assert_array_equal(panel.lines[0].get_ydata(), waiting_times(run, "round")[values])
    assert {panel.get_xlabel() for panel in figure.axes[:4]} == {"rounds aggregated"}


def test_runs_with_and_without_rounds_are_drawn_over_time(run: RunFolder, split: RunFolder, roundless: RunFolder) -> None:
    waiting = waiting_times(roundless, "time")
    np.testing.assert_array_equal(waiting["at"], [row["time"] for row in roundless.rounds])
    assert (waiting["mean"] <= waiting["longest"]).all()
    assert (waiting["longest"] <= waiting["at"]).all()
    figure = draw_fairness([run, split, roundless])
    assert all(panel.get_xlabel().startswith("simulated time") for panel in figure.axes[:4])
    assert len(figure.axes[0].lines) == 3
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[:3] == ["run: fedavg", "split: cata-fed", "roundless: fedasync"]


@pytest.mark.parametrize("name", ["run", "grouped"])
def test_waiting_counts_rounds_since_the_last_selection(name: str, request: pytest.FixtureRequest) -> None:
    """Newcomers count from their arrival on, leavers until they leave."""
    run: RunFolder = request.getfixturevalue(name)
    waiting = waiting_times(run, "round")
    ends = [row["time"] for row in run.rounds]
    np.testing.assert_array_equal(waiting["at"], np.arange(len(ends)) + 1)
    chosen = {(event["round"], event["device"]) for event in run.events if event["kind"] == "task-start"}
    for number, end in enumerate(ends):
        waits = []
        for row in run.devices:
            if not row["arrival"] <= end < (row["departure"] if row["departure"] is not None else np.inf):
                continue
            first = sum(before <= row["arrival"] for before in ends) if row["arrival"] else 0
            past = [number - earlier for earlier in range(number + 1) if (earlier, row["device"]) in chosen]
            waits.append(min(past) if past else number + 1 - first)
        found = (*waiting.loc[number, ["mean", "tenth", "longest"]],)
        assert found == pytest.approx((np.mean(waits), np.percentile(waits, 90), max(waits)))


def test_selections_by_group(split: RunFolder) -> None:
    groups = selections_of_groups(split)
    assert len(groups) > 1
    assert groups["valid"].sum() == sum(row["valid"] for row in split.rounds)
    panel = draw_fairness([split]).axes[-1]
    assert [bar.get_height() for bar in panel.patches] == [*groups["valid"], *groups["failed"]]
