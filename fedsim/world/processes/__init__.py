"""``[world] processes``: what happens to the world beside its rules, each a process of SimPy."""

from fedsim.world.processes.activity import Activity
from fedsim.world.processes.base import PROCESSES, Process, WorldSpec
from fedsim.world.processes.world import DeviceFacts, Hold, Processes, World

__all__ = ["PROCESSES", "Activity", "DeviceFacts", "Hold", "Process", "Processes", "World", "WorldSpec"]
