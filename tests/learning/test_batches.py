"""Batches of one sample, which a norm by the batch does not take: known before the run from the
sizes of devices' data.
"""

from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.clock.executors import Inline
from fedsim.common.errors import ScenarioError
from fedsim.common.streams import Streams
from fedsim.lab.whole_forecast import forecast_lines
from fedsim.learning.data.federated import FederatedData
from fedsim.learning.data.shifts import SHIFTS
from tests.learning.small import federation
from tests.strategies.worlds import world

NORMED = {"kind": "module", "factory": "tests.learning.test_models:normed"}


def scenario(**more: Any) -> fedsim.Scenario:
    """Three devices with 10 training samples each, and batches of 3, of which the last has one."""
    training = {"lr": 0.1, "batch_size": 3} | more.pop("training", {})
    strategy = {"kind": "fedavg", "clients_per_round": 2}
    return fedsim.Scenario(
        **world({"source": "digits"}, 3, strategy, 1, model=NORMED, training=training, **more)
    )


def sizes(made: fedsim.Scenario) -> list[int]:
    return made.data.build(3, Streams(made.seed)).train_sizes().tolist()


def test_a_norm_by_the_batch_and_a_last_batch_of_one(tmp_path: Path) -> None:
    size = sizes(scenario())[0]
    leaves_one = {"batch_size": size - 1}
    says = (
        rf"the part '2' is a BatchNorm1d.*device 0 has one: it has {size} samples.*last_batch = "
        r"\"drop\" or \"merge\""
    )
    with pytest.raises(ScenarioError, match=says):
        fedsim.run(scenario(training=leaves_one), tmp_path / "keep")
    assert not (tmp_path / "keep").exists()
    with pytest.raises(ScenarioError, match=says):
        forecast_lines(scenario(training=leaves_one), Inline(), 0.1)
    for last in ("drop", "merge"):
        fedsim.run(scenario(training=leaves_one | {"last_batch": last}), tmp_path / last)


def data(*counts: int) -> FederatedData:
    return federation(counts, shape=(6,))


@pytest.mark.parametrize(
    ("shift", "known"),
    [
        (
            {"kind": "incremental", "at": {"rounds": [0, 2]}, "shares": [0.25, 1.0]},
            [{0: 3, 1: 5}, {0: 12, 1: 20}],
        ),
        (
            {"kind": "incremental", "at": {"rounds": [1]}, "shares": [0.5]},
            [{0: 12, 1: 20}, {0: 6, 1: 10}],
        ),
        (
            {"kind": "swap-all", "at": {"rounds": [1]}, "probability": 1.0},
            [{0: 12, 1: 20}, {0: 20, 1: 12}],
        ),
        (
            {"kind": "swap-all", "at": {"times": ["9 s"]}, "probability": 1.0},
            [{0: 12, 1: 20}, {0: 20, 1: 12}],
        ),
        ({"kind": "swap-all", "at": {"times": ["99 s"]}, "probability": 1.0}, [{0: 12, 1: 20}]),
        ({"kind": "swap-all", "among": "selected", "probability": 1.0}, [{0: 12, 1: 20}]),
    ],
)
def test_sizes_after_shifts_are_foreseen(
    shift: dict[str, Any], known: list[dict[int, int]]
) -> None:
    rule = SHIFTS.spec(shift["kind"]).model_validate(shift)
    before = data(12, 20)
    assert rule.foreseen(before, Streams(1), 3, 50.0, all_present=True) == known
    assert before.version(0) == 0
