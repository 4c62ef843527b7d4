"""How evenly devices are selected: Jain's index against known answers and against the published figures."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.records.fairness import jain_index, selections, worst_decile
from tests.strategies.clustered import ran


def test_the_index_of_known_allocations() -> None:
    assert jain_index([3, 3, 3]) == 1.0
    assert jain_index([1, 0, 0, 0]) == 0.25
    assert jain_index([1, 2, 3]) == pytest.approx(36 / (3 * 14))
    assert math.isnan(jain_index([0, 0]))
    assert math.isnan(jain_index([]))


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.1, 1e3))
def test_the_index_lies_between_its_bounds_and_knows_no_unit(values: list[float], scale: float) -> None:
    index = jain_index(values)
    if sum(values) > 1e-3:
        assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
        assert jain_index([value * scale for value in values]) == pytest.approx(index)


def test_the_worst_decile_is_the_mean_of_the_lowest_tenth() -> None:
    assert worst_decile(range(100)) == pytest.approx(4.5)
    assert worst_decile([5.0, 7.0]) == 5.0
    assert worst_decile(range(11)) == 0.5
    assert math.isnan(worst_decile([]))


def test_outcomes_add_up_by_device_and_by_group(small: dict[str, Any], tmp_path: Path) -> None:
    small["strategy"] = {"kind": "tifl", "tiers": 3, "clients_per_round": 5, "local_epochs": 8, "deadline": "20 s"}
    small["population"]["availability"] = {"kind": "renewal", "mean_on": "1 min", "mean_off": "20 s"}
    small |= {"learning": "off", "stop": {"rounds": 40}}
    run = ran(small, tmp_path / "run")
    found = selections(run)
    assert sorted(found["group"].dropna().unique()) == sorted({row["group"] for row in run.devices if row["group"] is not None})
    assert len(found) == sum(row["selected"] for row in run.rounds) == sum(row["selected"] for row in run.devices)
    assert found["valid"].sum() == sum(row["valid"] for row in run.rounds) < len(found)
    by_device = found["device"].value_counts()
    assert all(by_device.get(row["device"], 0) == row["selected"] for row in run.devices)
