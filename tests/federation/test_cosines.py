"""Kinds of pairs of updates, against their definition pair by pair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.federation.cosines import kinds_of_pairs, spread_by_kind

_DEVICES = 8
groupings = st.lists(st.integers(-1, 2), min_size=_DEVICES, max_size=_DEVICES)


def kind_of(a: int, b: int, groups: list[int], truth: list[int] | None) -> str | None:
    if truth is not None and -1 in (truth[a], truth[b]):
        return None
    if groups[a] != groups[b]:
        return "across"
    if truth is None:
        return "within"
    if truth[a] != truth[b]:
        return "unlike"
    members = [device for device in range(_DEVICES) if groups[device] == groups[a]]
    true_groups = {truth[device] for device in members} - {-1}
    return "alike" if len(true_groups) > 1 else "settled"


@given(
    devices=st.lists(st.integers(0, _DEVICES - 1), min_size=2, unique=True),
    groups=groupings,
    truth=st.none() | groupings,
)
def test_each_pair_is_of_one_kind_or_of_none(
    devices: list[int], groups: list[int], truth: list[int] | None
) -> None:
    true_groups = None if truth is None else np.array(truth)
    kinds = kinds_of_pairs(devices, np.array(groups), true_groups)
    for row, a in enumerate(devices):
        for column, b in enumerate(devices):
            found = [kind for kind, is_kind in kinds.items() if is_kind[row, column]]
            expected = kind_of(a, b, groups, truth)
            assert found == ([] if expected is None else [expected])


def test_the_spread_is_of_finite_cosines_of_different_updates() -> None:
    units = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [np.nan, 0.0]])
    every = np.ones((4, 4), dtype=np.bool_)
    kinds = {"all": every, "none": ~every}
    assert spread_by_kind(units, kinds) == {"all": pytest.approx([0.0, 1.4 / 3, 0.8], abs=1e-6)}
