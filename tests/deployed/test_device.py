"""A device's half of a strategy on its own machine, without Flower."""

from dataclasses import dataclass

import pytest

import fedsim
from fedsim.common.errors import SimulationError
from fedsim.deployed.device import DeviceHalf
from fedsim.world.steps import Task, TaskStep


@dataclass(frozen=True, slots=True)
class Warm(TaskStep):
    """A kind of step of this test, which no machine knows how to carry out."""

    name = "warm"


def test_a_step_of_an_unknown_kind_is_refused_and_not_passed_over() -> None:
    scenario = fedsim.Scenario(
        data={"source": "digits"},
        population={"devices": 2},
        strategy={"kind": "fedavg", "clients_per_round": 2},
    )
    half = DeviceHalf(scenario, 0, pace=0.0)
    task = Task(0, 0, (Warm(),), 0, None, 0)
    with pytest.raises(SimulationError, match=r"step 'Warm'.* allowed are Train, Evaluate, Work"):
        half._carry_out(task, Warm())
