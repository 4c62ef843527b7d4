"""Strategies that fail."""

import os
import signal
import sys
from pathlib import Path

from fedsim.strategies.fedavg import FedAvg


class Fails(FedAvg):
    async def aggregate(self) -> None:
        raise ValueError("on purpose")


class Dies(FedAvg):
    async def aggregate(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class LosesWorker(FedAvg):
    """On Ray: notes its rounds in a file, and takes its process with it when it is first in
    round 7.
    """

    async def aggregate(self) -> None:
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
        os.kill(os.getpid(), signal.SIGKILL)


class LosesNode(LosesWorker):
    def die(self) -> None:
        head = Path(os.environ["LOSSES"], "head").read_text()
        if sys.modules["ray"].get_runtime_context().get_node_id() != head:
            Path(os.environ["LOSSES"], "lost").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
