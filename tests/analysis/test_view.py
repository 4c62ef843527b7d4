import numpy as np
import pytest

from fedsim.analysis.history import History
from fedsim.analysis.style import NothingToDrawError, PictureError
from fedsim.analysis.view import look_at, span_of_rounds
from fedsim.records.reading import RunFolder


@pytest.fixture
def history(run: RunFolder) -> History:
    return History(run)


def test_by_speed_the_fastest_comes_first(history: History) -> None:
    view = look_at(history)
    speeds = history.population["speed"][view.devices]
    assert speeds.is_monotonic_decreasing
    assert set(view.devices) == set(history.steps["device"])


def test_other_orders(history: History) -> None:
    assert list(look_at(history, order="number").devices) == sorted(set(history.steps["device"]))
    first = history.steps.groupby("device")["start"].min()
    assert first[look_at(history, order="first").devices].is_monotonic_increasing


def test_some_devices_are_spread_from_the_first_to_the_last(history: History) -> None:
    everyone, some = look_at(history), look_at(history, most=4)
    assert len(some.devices) == 4
    assert (some.devices[0], some.devices[-1]) == (everyone.devices[0], everyone.devices[-1])
    assert some.at_work == len(everyone.devices)
    assert set(some.steps["device"]) == set(some.devices)
    assert (some.devices[some.tasks["lane"]] == some.tasks["device"]).all()


def test_rounds_side_by_side_share_out_all_tasks(history: History, run: RunFolder) -> None:
    counts = []
    for number in range(len(run.rounds)):
        view = look_at(history, span_of_rounds(history, number, number + 1))
        assert list(view.rounds["round"]) == [number]
        counts.append(len(view.tasks))
    assert counts == [row["selected"] for row in run.rounds]


def test_what_cannot_be_shown_is_said(history: History) -> None:
    with pytest.raises(PictureError, match="rounds 0 to 7"):
        span_of_rounds(history, 8, 9)
    with pytest.raises(PictureError, match="did you mean 'speed'"):
        look_at(history, order="sped")
    with pytest.raises(PictureError, match="1 or more"):
        look_at(history, most=0)
    with pytest.raises(PictureError, match="must begin at 0"):
        look_at(history, (9.0, 3.0))
    with pytest.raises(NothingToDrawError, match="no device worked"):
        look_at(history, (history.end + 1, np.inf))
