"""Strategies that fail."""

import os
import signal
import sys
import time
from pathlib import Path

from fedsim.strategies.fedavg import FedAvg
from tests.children import GENEROUS_S


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
                os.kill(os.getpid(), signal.SIGKILL)
        await super().aggregate()


class LosesNode(FedAvg):
    """On Ray: takes the first node but the head with it in round 7, for which the head waits."""

    async def aggregate(self) -> None:
        is_on_ray = "ray" in sys.modules and sys.modules["ray"].is_initialized()
        if is_on_ray and self.state["round"] == 7:
            self.lose_node()
        await super().aggregate()

    def lose_node(self) -> None:
        losses = Path(os.environ["LOSSES"])
        node = sys.modules["ray"].get_runtime_context().get_node_id()
        if node == (losses / "head").read_text():
            for _ in range(int(GENEROUS_S / 0.05)):
                if (losses / "lost").exists():
                    break
                time.sleep(0.05)
        elif not (losses / "lost").exists():
            (losses / "lost").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
