"""Types of the fields of records that fedsim's own meters read."""

from collections.abc import Sequence
from typing import NotRequired, TypedDict


class TaskFields(TypedDict):
    """Fields of the record ``task-start`` that meters read.

    Attributes:
        task: ID of the task.
        device: index of the device.
    """

    task: int
    device: int


class TaskEndFields(TaskFields):
    """Fields of the record ``task-end`` that meters read.

    Attributes:
        outcome: how the task ended: ``done``, or the cause of its early end.
    """

    outcome: str


class StepFields(TaskFields):
    """Fields of the record ``step-start`` that meters read.

    Attributes:
        step: name of the step, such as ``train``.
    """

    step: str


class BatteryFields(TypedDict):
    """Fields of the record ``battery``, the state of a device's battery, as meters read them.

    Attributes:
        device: index of the device.
        flat: whether the battery is flat.
    """

    device: int
    flat: bool


class UpdatesFields(TypedDict):
    """Fields of the records ``aggregate`` and ``updates-lost``: updates were combined, or lost.

    Attributes:
        tasks: IDs of the tasks that made the updates.
        edge: index of the edge server that has the updates; missing if the server has them.
    """

    tasks: Sequence[int]
    edge: NotRequired[int]


class EdgeTransferFields(TypedDict):
    """Fields of the record ``edge-transfer``, a message between an edge server and the server.

    Attributes:
        start: begin of the message (s).
        delivered: bytes transferred.
    """

    start: float
    delivered: float


class ServerTransferFields(TypedDict):
    """Fields that meters read of the record ``server-transfer``, a message inside the server.

    A strategy with several servers, such as one for each group of devices, records such a message
    when one server sends to another.

    Attributes:
        bytes: size of the message.
    """

    bytes: float
