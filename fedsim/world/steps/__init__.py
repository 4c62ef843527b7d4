"""Kinds of steps of a task, such as a download: each kind is a class that begins and ends the step."""

from fedsim.world.meters.energy import computing_steps
from fedsim.world.steps.computations import EpochStep, Evaluate, Plan, Train, Work
from fedsim.world.steps.pauses import Code, Pause, Queue
from fedsim.world.steps.transfers import Download, Payload, TransferStep, Upload
from fedsim.world.task import Cause, Ending, Outcome, TaskStep

Computation = Train | Evaluate | Work | Pause
"""Steps that the client half of a strategy may request of its device."""

__all__ = [
    "Cause",
    "Code",
    "Computation",
    "Download",
    "Ending",
    "EpochStep",
    "Evaluate",
    "Outcome",
    "Pause",
    "Payload",
    "Plan",
    "Queue",
    "TaskStep",
    "Train",
    "TransferStep",
    "Upload",
    "Work",
    "computing_steps",
]
