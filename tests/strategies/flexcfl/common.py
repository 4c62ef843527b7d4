"""What the tests of FlexCFL share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedsim
from fedsim.running.assembly import Run
from fedsim.simulation import Simulation
from fedsim.training import Training
from tests.strategies.clustered import Sections, weights

FULL = {"batch_size": 10_000}  # every step on all samples: no order of batches


def flexcfl(groups: int, clients: int, **others: Any) -> Sections:
    return {"kind": "flexcfl", "groups": groups, "clients_per_round": clients, "local_epochs": 2} | others


def made(sections: Sections) -> Run:
    """A run that has not begun."""
    run: Run = Simulation(fedsim.Scenario(**sections)).installed
    return run


def pretrained(sections: Sections) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
    """The initial model, and what every device makes of it in 50 steps in its first task."""
    run = made(sections)
    start, devices = run.learner.initial(), sections["population"]["devices"]
    trained = [run.learner.train(Training(start, steps=50), device, key=0) for device in range(devices)]
    initial, *values = weights(run, [start, *trained])
    return initial, values
