"""Kinds of steps of a task, such as a download: each kind is a class that begins and ends the step.

A user's kind of step is a class derived from ``TaskStep``, which ``Client.work`` returns
(docs/howto/step.md). A kind of step that ships also has:

- its name in ``common/step_names.py``, and its class in a file of this folder, listed here
- its power in ``POWERS`` of ``world/meters/energy.py``, if it draws any
- its category on the critical path (``_CATEGORIES`` of ``lab/compare/critical_path.py``), as an
  unknown step counts as computing, and its colour (``STEPS`` of ``analysis/palette.py``)
- its amounts in ``_AMOUNTS`` of ``analysis/report/timeline.py``, if its record has any
- its place in ``COMPUTATIONS`` of ``common/step_names.py``, if it computes in epochs
- a case in ``_carry_out`` of ``deployed/device.py``, and its name in ``_NAMES`` of
  ``deployed/step_log.py``, or a deployment refuses it
- its result in ``ClientSide._result``, if it computes a model
- its direction in ``DIRECTIONS`` of ``common/step_names.py``, if it is a message
- its place in ``fedsim.plugin``, if strategies may return it
"""

from fedsim.world.meters.energy import computing_steps
from fedsim.world.steps.base import (
    Cause,
    Ending,
    Outcome,
    StepServices,
    Task,
    TaskStep,
    WorkAmounts,
    in_line,
)
from fedsim.world.steps.computations import EpochStep, Evaluate, Plan, Train, Work
from fedsim.world.steps.pauses import Code, Pause, Queue
from fedsim.world.steps.transfers import Download, Payload, TransferStep, Upload

__all__ = [
    "Cause",
    "Code",
    "Download",
    "Ending",
    "EpochStep",
    "Evaluate",
    "Outcome",
    "Pause",
    "Payload",
    "Plan",
    "Queue",
    "StepServices",
    "Task",
    "TaskStep",
    "Train",
    "TransferStep",
    "Upload",
    "Work",
    "WorkAmounts",
    "computing_steps",
    "in_line",
]
