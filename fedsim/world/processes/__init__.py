"""``[world] processes``: events of the world that a scenario adds, each a SimPy process."""

from fedsim.world.processes.activity import Activity
from fedsim.world.processes.base import PROCESSES, Process, WorldSpec
from fedsim.world.processes.holds import Hold
from fedsim.world.processes.processes import Processes
from fedsim.world.processes.values import DeviceFacts
from fedsim.world.processes.world import World

__all__ = [
    "PROCESSES",
    "Activity",
    "DeviceFacts",
    "Hold",
    "Process",
    "Processes",
    "World",
    "WorldSpec",
]
