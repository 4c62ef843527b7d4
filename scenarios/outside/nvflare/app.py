"""FedAvg and FedAsync whose devices sleep after each training, as NVFlare's edge example has
them do.
"""

from typing import Any

import numpy as np

from fedsim.federation.client import Client
from fedsim.plugin import Device, FedAvg, Instruction
from fedsim.strategies.fedasync import FedAsync, FedAsyncParams
from fedsim.strategies.fedavg import FedAvgParams
from fedsim.world.steps import Pause, Train

MODULE = "fedsim.running.scenarios.outside.nvflare.app"
TYPES = ((100.0, 1.0), (200.0, 2.0), (400.0, 4.0))
"""Mean and standard deviation of the sleep (s), drawn once a device."""
EACH = (5.0, 1.0)
"""The same of a second sleep of every device."""


class DelayedClient(Client[Any]):
    """Sleeps max(0, N(m, s)) + max(0, N(5, 1)) s after its training; ``params.draw`` names the
    draws, 0 for no sleep.
    """

    def work(self, device: Device, instruction: Instruction) -> list[Any]:
        steps: list[Any] = [Train(self.training(device, instruction))]
        if not self.params.draw:
            return steps
        count = device.state["count"] = device.state.get("count", 0) + 1
        own = TYPES[
            int(np.random.default_rng([self.params.draw, device.number]).integers(len(TYPES)))
        ]
        generator = np.random.default_rng([self.params.draw, device.number, count])
        slept = sum(max(0.0, float(generator.normal(*of))) for of in (own, EACH))
        return [*steps, Pause("sleep", slept)]


class SynchronousParams(FedAvgParams):
    """``draw``: of types and delays; 0: none."""

    kind: str = f"{MODULE}:Delayed"  # type: ignore[assignment]
    draw: int = 0


class AsynchronousParams(FedAsyncParams):
    """``draw``: of types and delays; 0: none."""

    kind: str = f"{MODULE}:DelayedAsync"  # type: ignore[assignment]
    draw: int = 0


class Delayed(FedAvg[SynchronousParams]):
    """FedAvg with such devices."""

    Params = SynchronousParams
    Client = DelayedClient


class DelayedAsync(FedAsync):
    """FedAsync with such devices."""

    Params = AsynchronousParams
    Client = DelayedClient  # type: ignore[assignment]
