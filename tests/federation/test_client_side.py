"""Results of a device's task: models of its trainings, and errors of functions that run for real."""

from collections.abc import Sequence
from typing import Any

import pytest

import fedsim
from fedsim.common.errors import SimulationError
from fedsim.plugin import (
    Client,
    Device,
    FedAvg,
    Instruction,
    Limit,
    PreviousResult,
    Real,
    TaskStep,
    Train,
    Training,
)
from fedsim.testing import quiet_world


class TwoTrainings(Client[Any]):
    """Trains twice; the second training starts from the result of the first one, which is cut off."""

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        first = Training(instruction["model"])
        second = Training(PreviousResult(((0, 1.0),)))
        # the first training ends before its first epoch, and the task goes on
        return (Train(first, Limit(stop_at=0.001, go_on=True)), Train(second))


class OneTraining(Client[Any]):
    """Trains once, as the second training of ``TwoTrainings`` is to train."""


class Fails(Client[Any]):
    """Calls a Python function that fails."""

    def real(self, device: Device, instruction: Instruction) -> Real:
        return Real(divide, (1, 0))


def divide(dividend: int, divisor: int) -> float:
    return dividend / divisor


class CutOff(FedAvg[Any]):
    Client = TwoTrainings


class Whole(FedAvg[Any]):
    Client = OneTraining


class Failing(FedAvg[Any]):
    Client = Fails


def run_with(strategy: type[FedAvg[Any]], **options: Any) -> dict[str, Any]:
    kind = f"{__name__}:{strategy.__name__}"
    sections = quiet_world({"kind": kind, "clients_per_round": 3, "local_epochs": 1}, rounds=2)
    return fedsim.run(fedsim.Scenario(**sections), **options).summary


def test_a_training_without_an_epoch_has_its_start_as_its_result() -> None:
    cut_off = run_with(CutOff)
    whole = run_with(Whole)
    assert cut_off["models_sha256"] == whole["models_sha256"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_real_function_that_fails_is_named(workers: int) -> None:
    message = r"the function of Fails\.real failed for device \d+.*: ZeroDivisionError: division"
    with pytest.raises(SimulationError, match=message):
        run_with(Failing, workers=workers)
