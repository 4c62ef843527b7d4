"""Strategies that fail."""

import os
import signal
import sys
from pathlib import Path

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


class LosesWorker(FedAvg):
    """On Ray: notes its rounds in a file, and takes its process with it when it is first in round 7."""

    async def aggregate(self) -> None:
        """Aggregate, or die."""
        if "ray" in sys.modules and sys.modules["ray"].is_initialized():
            number = self.state["round"]
            with Path(os.environ["LOSSES"], "rounds").open("a+") as rounds:
                rounds.seek(0)
                first = f"{number}\n" not in rounds.readlines()
                rounds.write(f"{number}\n")
            if number == 7 and first:
                self.die()
        await super().aggregate()

    def die(self) -> None:
        """Lose what is to be lost."""
        os.kill(os.getpid(), signal.SIGKILL)


class LosesNode(LosesWorker):
    """Takes its node with it, unless that is the head."""

    def die(self) -> None:
        """Kill the node, or let the other one come to it."""
        head = Path(os.environ["LOSSES"], "head").read_text()
        if sys.modules["ray"].get_runtime_context().get_node_id() != head:
            Path(os.environ["LOSSES"], "lost").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
