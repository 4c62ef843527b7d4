import numpy as np
import pandas as pd
import pytest

from fedsim.analysis.activity import Activity, read_activity
from fedsim.analysis.presence import Presence, read_presence
from fedsim.analysis.style import NothingToDrawError, PictureError
from fedsim.analysis.view import look_at, span_of_rounds
from fedsim.records.reading import RunFolder

Frame = pd.DataFrame


@pytest.fixture
def activity(run: RunFolder) -> Activity:
    return read_activity(run)


@pytest.fixture
def population(run: RunFolder) -> pd.DataFrame:
    return pd.DataFrame(run.devices)


@pytest.fixture
def presence(run: RunFolder, activity: Activity) -> Presence:
    return read_presence(run, activity.end)


def test_by_speed_the_fastest_comes_first(activity: Activity, population: Frame, presence: Presence) -> None:
    view = look_at(activity, population, presence)
    speeds = population.set_index("device")["speed"][view.devices]
    assert speeds.is_monotonic_decreasing
    assert set(view.devices) == set(activity.steps["device"])


def test_other_orders(activity: Activity, population: Frame, presence: Presence) -> None:
    assert list(look_at(activity, population, presence, order="number").devices) == sorted(set(activity.steps["device"]))
    first = activity.steps.groupby("device")["start"].min()
    assert first[look_at(activity, population, presence, order="first").devices].is_monotonic_increasing


def test_some_devices_are_spread_from_the_first_to_the_last(activity: Activity, population: Frame, presence: Presence) -> None:
    everyone, some = look_at(activity, population, presence), look_at(activity, population, presence, most=4)
    assert len(some.devices) == 4
    assert (some.devices[0], some.devices[-1]) == (everyone.devices[0], everyone.devices[-1])
    assert some.at_work == len(everyone.devices)
    assert set(some.steps["device"]) == set(some.devices)
    assert (some.devices[some.tasks["lane"]] == some.tasks["device"]).all()


def test_rounds_side_by_side_share_out_all_tasks(
    activity: Activity, population: Frame, presence: Presence, run: RunFolder
) -> None:
    counts = []
    for number in range(len(run.rounds)):
        view = look_at(activity, population, presence, span_of_rounds(activity, number, number + 1))
        assert list(view.rounds["round"]) == [number]
        counts.append(len(view.tasks))
    assert counts == [row["selected"] for row in run.rounds]


def test_what_cannot_be_shown_is_said(activity: Activity, population: Frame, presence: Presence) -> None:
    with pytest.raises(PictureError, match="rounds 0 to 7"):
        span_of_rounds(activity, 8, 9)
    with pytest.raises(PictureError, match="did you mean 'speed'"):
        look_at(activity, population, presence, order="sped")
    with pytest.raises(PictureError, match="1 or more"):
        look_at(activity, population, presence, most=0)
    with pytest.raises(PictureError, match="must begin at 0"):
        look_at(activity, population, presence, (9.0, 3.0))
    with pytest.raises(NothingToDrawError, match="no device worked"):
        look_at(activity, population, presence, (activity.end + 1, np.inf))
