"""A device's half of a strategy on its own machine, without Flower."""

from dataclasses import dataclass

import pytest

import fedsim
from fedsim.common.errors import SimulationError
from fedsim.common.training import Limit, Training
from fedsim.deployed.device import DeviceHalf
from fedsim.deployed.packing import ContentPacker, Packet
from fedsim.deployed.step_log import StepLog
from fedsim.federation.client import Instruction
from fedsim.federation.contents import BASE
from fedsim.federation.task_context import TaskContext
from fedsim.world.steps import Task, TaskStep, Train


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


@pytest.mark.parametrize(
    ("at_least", "go_on", "goes_on", "epochs"),
    [(3, False, True, 3), (4, False, False, 0), (4, True, True, 0)],
)
def test_a_training_of_fewer_epochs_than_its_limit_demands_has_failed_as_in_a_simulation(
    *, at_least: int, go_on: bool, goes_on: bool, epochs: int
) -> None:
    scenario = fedsim.Scenario(
        data={"source": "digits"},
        population={"devices": 2},
        strategy={"kind": "fedavg", "clients_per_round": 2},
    )
    half = DeviceHalf(scenario, 0, pace=1e-12)
    learner = half._learner
    contents = {"model": learner.initial()}
    task = Task(0, 0, (), 0, None, 0, context=TaskContext(Instruction("train", contents, 0)))
    task.samples = 10
    step = Train(Training(learner.initial(), 3), Limit(at_least=at_least, go_on=go_on))
    assert half._carry_out(task, step) is goes_on
    assert task.epochs == epochs


@pytest.mark.parametrize("brings_base", [False, True])
def test_the_download_of_a_device_with_a_pace_lasts_as_long_as_all_bytes_of_the_request(
    *, brings_base: bool
) -> None:
    scenario = fedsim.Scenario(
        data={"source": "digits"},
        model={"kind": "mlp", "hidden": [13], "train": "3.*"},
        population={"devices": 2},
        network={"kind": "star", "device": {"down": "8 kbit/s", "up": "8 kbit/s"}},
        strategy={"kind": "fedavg", "clients_per_round": 2},
    )
    half = DeviceHalf(scenario, 0, pace=1e-12)
    learner = half._learner
    request = ContentPacker(scenario.messages.down, learner).pack(
        {"model": learner.initial()}, {}, {}
    )
    request.head |= {"task": 0, "count": 0, "job": "train", "round": 0, "asked_at": 0.0}
    if brings_base:
        request.payloads[BASE] = learner.frozen().astype("<f4").tobytes()
    log = StepLog(0, 0, None)
    half.answer(request, Packet({}), lambda: 0.0, log)
    trained = 4 * (13 * 10 + 10)
    frozen = 4 * (64 * 13 + 13)
    assert log.steps[0].end == pytest.approx((trained + frozen * brings_base) / 1000)
    assert (half.device in half._devices.with_base) == brings_base
