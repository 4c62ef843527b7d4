"""Strategies that fail."""

import os
import signal

from fedsim.strategies.fedavg import FedAvg


class Fails(FedAvg):
    """Has a mistake in it."""

    async def aggregate(self) -> None:
        """Fail."""
        raise ValueError("on purpose")


class Dies(FedAvg):
    """Takes its process with it."""

    async def aggregate(self) -> None:
        """Die."""
        os.kill(os.getpid(), signal.SIGKILL)
