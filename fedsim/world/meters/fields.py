"""Types of the fields of records that fedsim's own meters read."""

from collections.abc import Sequence
from typing import NotRequired, TypedDict


class TaskFields(TypedDict):
    """Fields of the record ``task-start`` that meters read: ID of the task, index of the device."""

    task: int
    device: int


class TaskEndFields(TaskFields):
    """Fields of the record ``task-end`` that meters read; ``outcome`` is how the task ended."""

    outcome: str


class StepFields(TaskFields):
    """Fields of the record ``step-start`` that meters read; ``step`` is the name of the step."""

    step: str


class BatteryFields(TypedDict):
    """Fields of the record ``battery``, of a battery that ran flat or is charged again.

    ``flat`` is whether it ran flat; else it has reached the level at which the device restarts.
    """

    device: int
    flat: bool


class UpdatesFields(TypedDict):
    """Fields of the records ``aggregate`` and ``updates-lost``: updates are combined or lost.

    ``tasks`` has the IDs of the tasks that made the updates. ``edge`` is the index of the edge
    server that has them; it is missing if the server has them.
    """

    tasks: Sequence[int]
    edge: NotRequired[int]


class EdgeTransferFields(TypedDict):
    """Fields of the record ``edge-transfer``, a message between an edge server and the server.

    ``start`` is its begin (s), ``delivered`` the bytes transferred.
    """

    start: float
    delivered: float


class ServerTransferFields(TypedDict):
    """Fields of ``server-transfer``, a message between parts of the server: its size (bytes)."""

    bytes: float
