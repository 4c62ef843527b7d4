"""Types of the fields of records that fedsim's own meters read."""

from collections.abc import Sequence
from typing import NotRequired, TypedDict


class TaskFields(TypedDict):
    """Fields of the record ``task-start`` that meters read."""

    task: int
    device: int


class TaskEndFields(TaskFields):
    """Fields of ``task-end``."""

    outcome: str


class StepFields(TaskFields):
    """Fields of ``step-start``."""

    step: str


class BatteryFields(TypedDict):
    """Fields of ``battery``: a battery ran flat, or is charged to the level of a restart."""

    device: int
    flat: bool


class UpdatesFields(TypedDict):
    """Fields of ``aggregate`` and ``updates-lost``; ``edge`` is the edge server of the updates."""

    tasks: Sequence[int]
    edge: NotRequired[int]


class EdgeTransferFields(TypedDict):
    """Fields of ``edge-transfer``: begin of the message (s), and bytes transferred."""

    start: float
    delivered: float


class ServerTransferFields(TypedDict):
    """Fields of ``server-transfer``: size of the message (bytes)."""

    bytes: float
