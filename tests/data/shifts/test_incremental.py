"""Training data that come to light bit by bit."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedsim.data.shifts import Incremental
from fedsim.streams import Streams
from tests.data.shifts.conftest import everyone, plain


def test_quarter_by_quarter() -> None:
    data = plain((list(range(40)), [50, 51]), ([41, 42, 43, 44, 45, 46, 47, 48], []), truth=[3, 4])
    held: list[list[int]] = []
    for occasion in range(6):
        changes = Incremental().apply(data, occasion, everyone(data), Streams(1))
        assert [change.device for change in changes] == ([0, 1] if occasion < 4 else [])
        held.append(data.current(0).train.tolist())
    assert [len(samples) for samples in held] == [10, 20, 30, 40, 40, 40]
    assert all(more[: len(less)] == less for less, more in pairwise(held)), "what is there stays"
    assert held[3] != list(range(40)) == sorted(held[3])
    assert data.current(0).test is data.shards[0].test
    assert data.truth is not None
    assert data.truth.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("samples", "sizes"),
    [(32, [8, 4, 3, 3]), (21, [6, 3, 3, 3]), (9, [3, 2, 2, 2]), (1, [1, 1, 1, 1])],  # by hand: 21/4 -> 6, 6/2, 9/4 -> 3
    ids=str,
)
def test_as_published_data_vanish(samples: int, sizes: list[int]) -> None:
    data = plain((list(range(samples)), []))
    found = []
    for occasion in range(4):
        Incremental(as_published=True).apply(data, occasion, everyone(data), Streams(1))
        found.append(len(data.current(0).train))
    assert found == sizes


def test_each_device_has_an_order_of_its_own() -> None:
    data = plain(*[(list(range(20)), [])] * 3)
    Incremental(shares=[0.5]).apply(data, 0, everyone(data), Streams(1))
    assert len({tuple(data.current(device).train.tolist()) for device in range(3)}) == 3


def test_a_share_that_binary_fractions_miss() -> None:
    assert 0.07 * 100 > 7
    assert Incremental(shares=[0.07]).released(100, 0) == 7


@given(st.integers(1, 50_000), st.lists(st.integers(1, 100), min_size=1, max_size=5))
def test_shares_are_rounded_up(samples: int, percent: list[int]) -> None:
    percent.sort()
    rule = Incremental(shares=[share / 100 for share in percent])
    assert [rule.released(samples, k) for k in range(len(percent))] == [-(-samples * share // 100) for share in percent]


def test_who_comes_late_holds_what_the_occasion_says() -> None:
    data = plain((list(range(40)), []), (list(range(20)), []))
    for occasion, may in enumerate(([0], [0], [0, 1])):
        Incremental().apply(data, occasion, np.array(may), Streams(1))
    assert [len(data.current(device).train) for device in range(2)] == [30, 15]
    assert [data.version(device) for device in range(2)] == [3, 1]


def test_nothing_new_is_no_change() -> None:
    data = plain(([7], []), (list(range(40)), []))
    rule = Incremental(shares=[0.5, 0.5, 1.0])
    changed = [[c.device for c in rule.apply(data, k, everyone(data), Streams(1))] for k in range(4)]
    assert changed == [[1], [], [1], []]


@pytest.mark.parametrize("shares", [[], [0.0], [0.5, 1.5], [0.5, 0.25]], ids=str)
def test_impossible_shares_are_refused(shares: list[float]) -> None:
    with pytest.raises(ValidationError, match="shares"):
        Incremental(shares=shares)
