"""Process that makes some shards slow in real time, and changes nothing that happens in them.

The shards are named by ``PACED_SHARDS``, such as ``3 5``, and compared with Slurm's index of the
task.
"""

import os
import time
from collections.abc import Generator
from typing import Any

from fedsim.plugin import Process, Seconds

_WAIT_S = 0.5


class Pace(Process):
    """Waits half a second of real time, every so many simulated seconds."""

    restorable = True
    kind: str
    every: Seconds = 20.0

    def run(self, world: Any) -> Generator[Any, Any, Any]:
        shard = os.environ.get("SLURM_ARRAY_TASK_ID", "")
        is_slow = shard in os.environ.get("PACED_SHARDS", "").split()
        world.state.setdefault("next", self.every)
        while True:
            yield world.until(world.state["next"])
            world.state["next"] += self.every
            if is_slow:
                time.sleep(_WAIT_S)
