"""FedCompass: a schedule that is worked out by hand, and what becomes of late and lost answers."""

from typing import Any

import pytest

import fedsim
from fedsim.common.errors import ScenarioError
from tests.strategies.runs import initial_weights, model_of, played, told
from tests.strategies.test_asynchronous import local, three_wells

__all__ = ["three_wells"]

COMPASS: dict[str, Any] = {
    "kind": "fedcompass",
    "concurrency": 3,
    "min_steps": 1,
    "max_steps": 4,
    "latest_factor": 1.2,
}


def test_five_versions_by_hand(three_wells: dict[str, Any]) -> None:
    """A step takes devices 0, 1, 2 the time of 1, 2.5, 4.2 s, and each begins with one step.

    At 1 s device 0 opens a group for 5 s with 4 steps. At 2.5 s device 1 joins it with 1 step. At
    4.2 s device 2 cannot (0.8 s are left for a step of 4.2 s): it opens a group for 8.4 s. At 5 s
    devices 0 and 1 have answered, and join that group with 3 steps and 1 step. Device 1 answers at
    7.5 s, device 0 at 8 s, device 2 at 8.4 s, when the group is aggregated.
    """
    three_wells["strategy"] = COMPASS
    three_wells["stop"] = {"rounds": 5}
    run, records = played(three_wells)
    aggregates = told(records, "aggregate")
    times = [record.time for record in records if record.kind == "aggregate"]
    assert times == pytest.approx([1.0, 2.5, 4.2, 5.0, 8.4])
    wells = [-2.0, 1.0, 5.0]
    versions = [float(initial_weights(three_wells)[0])]
    # (device, its steps, the version that it trained from) of each update
    for updates in (
        [(0, 1, 0)],
        [(1, 1, 0)],
        [(2, 1, 0)],
        [(0, 4, 1), (1, 1, 2)],
        [(1, 1, 4), (0, 3, 4), (2, 1, 3)],
    ):
        version = len(versions) - 1
        staleness = [version - start for _, _, start in updates]
        assert aggregates[version]["staleness"] == staleness
        weights = [0.9 * (1 + age) ** -0.5 / 3 for age in staleness]
        assert aggregates[version]["weights"] == pytest.approx(weights)
        w = versions[-1]
        for (device, steps, start), weight in zip(updates, weights, strict=True):
            w += weight * (local(versions[start], wells[device], steps) - versions[start])
        versions.append(w)
    assert model_of(run)[0] == pytest.approx(versions[-1], rel=1e-5)


def test_a_late_answer_counts_in_the_next_aggregation_of_a_group(
    three_wells: dict[str, Any],
) -> None:
    """Device 2 becomes four times as slow for its second training, and its group does not wait."""
    three_wells["strategy"] = COMPASS
    three_wells["stop"] = {"rounds": 12}
    three_wells["population"] |= {
        "slow_phases": {"factor": 0.2, "mean_normal": "6 s", "mean_slow": "6 s"}
    }
    _, records = played(three_wells)
    aggregates = told(records, "aggregate")
    done = [
        record.fields["task"]
        for record in records
        if record.kind == "task-end" and record.fields["outcome"] == "done"
    ]
    # a group is aggregated without an answer at that time only if one of its answers is late
    answered_at = {record.time for record in records if record.kind == "task-end"}
    waited_in_vain = [
        record.time
        for record in records
        if record.kind == "aggregate" and record.time not in answered_at
    ]
    assert waited_in_vain
    counted = [task for aggregate in aggregates for task in aggregate["tasks"]]
    assert len(counted) == len(set(counted))
    assert set(counted) <= set(done)
    # nobody works alone for ever: at most those that rest in an open group are not counted yet
    assert len(set(done) - set(counted)) <= 3


def test_the_limits_of_steps_are_checked() -> None:
    with pytest.raises(ScenarioError, match="'max_steps' is 3; allowed is 'min_steps' = 20"):
        fedsim.Scenario(strategy={"kind": "fedcompass", "max_steps": 3})
    with pytest.raises(ScenarioError, match="local_epochs"):
        fedsim.Scenario(strategy={"kind": "fedcompass", "local_epochs": 3})
