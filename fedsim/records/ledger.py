"""The ledger: every byte that moved, by direction and purpose, computed from the transfers.

The view ``strict`` counts all bytes that moved. The view ``paper`` counts as the FlexCFL paper does
(its Fig. 6): models and updates only, without IDs, scalars, other control traffic, and the initial
model that clients receive to find their group.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypedDict

from fedsim.common.units import show_bytes
from fedsim.world.meters.ended import Payloads

PROCESS = "process"
"""Purpose of the messages that processes of the world send, if a process names no other purpose."""
LedgerPreset = Literal["strict", "paper"]

NOT_IN_PAPER = (
    "initial-model",
    "id",
    "size-report",
    "probe-loss",
    "test-accuracy",
    "control",
    "class-counts",
)
"""Purposes that the view ``paper`` leaves out; it reproduces FlexCFL, Fig. 6, exactly."""


def split_by_purpose(payloads: Payloads, delivered: float) -> dict[str, float]:
    """Divide the delivered bytes of a message by the purposes of its payloads.

    A message has one or several payloads, such as a model and IDs, which arrive one after another.
    So a message that was cut off lacks the last payloads.

    Args:
        payloads: purpose (such as ``model``) and bytes of each payload, in order.
        delivered: bytes of the message that arrived.

    Returns:
        Purpose -> delivered bytes.
    """
    by_purpose: dict[str, float] = {}
    rest = delivered
    for purpose, size in payloads:
        arrived = min(size, rest)
        by_purpose[purpose] = by_purpose.get(purpose, 0.0) + arrived
        rest -= arrived
    return by_purpose


def sum_view(by_purpose: Mapping[str, float], preset: LedgerPreset) -> float:
    """Return the sum of bytes by one of two ways of counting, ``strict`` or ``paper``.

    Args:
        by_purpose: bytes by purpose, such as ``model``.
        preset: ``strict`` counts all bytes. ``paper`` leaves out the purposes in ``NOT_IN_PAPER``,
            such as initial models and tests, as the FlexCFL paper does.
    """
    # sorted, because the rounded sum of floats depends on their order
    return sum(
        size
        for purpose, size in sorted(by_purpose.items())
        if preset == "strict" or purpose not in NOT_IN_PAPER
    )


def total(moved: Mapping[str, Any]) -> float:
    """Return all bytes that a run moved: to devices, from devices, and between devices.

    Args:
        moved: the entry ``bytes`` of the run's summary.
    """
    return float(moved["down"] + moved["up"] + moved.get("peer", 0.0))


def show_peer(moved: Mapping[str, Any]) -> list[str]:
    """Describe, as texts for the user, the bytes that moved neither to nor from a server.

    They moved between devices, or were sent by processes of the scenario's section ``[world]``.

    Args:
        moved: the entry ``bytes`` of the run's summary.

    Returns:
        Texts such as ``1.05 MB between devices`` and ``2 MB of processes``; an empty list if no
        such bytes moved.
    """
    if "peer" not in moved:
        return []
    of_processes = moved["by_purpose"].get(PROCESS, 0.0)
    between_devices = moved["peer"] - of_processes
    texts = []
    if between_devices > 0 or not of_processes:
        texts.append(f"{show_bytes(between_devices)} between devices")
    if of_processes:
        texts.append(f"{show_bytes(of_processes)} of processes")
    return texts


def has_no_server(moved: Mapping[str, Any]) -> bool:
    """Return whether all messages of a run were from device to device.

    Args:
        moved: the entry ``bytes`` of the run's summary.
    """
    return bool(moved.get("peer")) and not moved["down"] + moved["up"]


def total_of_round(row: Mapping[str, Any]) -> float:
    """Return the bytes that moved in a round: to devices, from devices, and between devices.

    Args:
        row: the round's row of ``rounds.parquet``.
    """
    return float(row["bytes_down"] + row["bytes_up"] + (row.get("bytes_peer") or 0.0))


class LedgerState(TypedDict):
    """State of ``Ledger`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        down, up, peer: bytes to devices, from devices, and between other endpoints.
        wasted: bytes of tasks whose work was not used.
        by_purpose: bytes by purpose of the payload, such as ``model``.
        by_task: task ID -> bytes so far, for running tasks.
        idle: task ID -> True if a training of the running task finished no epoch.
        at_edges: task ID -> bytes of the task, if its answer waits at an edge server.
    """

    down: float
    up: float
    peer: float
    wasted: float
    by_purpose: dict[str, float]
    by_task: dict[int, float]
    idle: dict[int, bool]
    at_edges: dict[int, float]


class Ledger:
    """Account of all bytes that messages of a run moved; a message is added when it ends.

    Attributes:
        down: bytes to devices.
        up: bytes from devices.
        peer: bytes between other endpoints, such as two devices.
        wasted: bytes of tasks whose outcome is not ``done``, of tasks with a training that finished
            no epoch, and of tasks whose answers were lost with their edge server. A task is a
            device's work for a request of the server.
        by_purpose: bytes by purpose of the payload, such as ``model``.
    """

    def __init__(self) -> None:
        self.down = self.up = self.peer = self.wasted = 0.0
        self.by_purpose: dict[str, float] = {}
        self._by_task: dict[int, float] = {}
        self._idle: dict[int, bool] = {}  # task ID -> whether its training finished no epoch
        # task ID -> bytes that the task moved, if its answer is at an edge server and may be lost
        self._at_edges: dict[int, float] = {}

    def add(self, task: int | None, direction: str, payloads: Payloads, delivered: float) -> None:
        """Count the bytes of a message that has ended, complete or cut off.

        Args:
            task: the task of the message; None for a message outside of tasks.
            direction: ``down``, ``up`` or ``peer``.
            payloads: purpose and bytes of each payload, in order.
            delivered: bytes that have arrived.
        """
        if direction == "down":
            self.down += delivered
        elif direction == "up":
            self.up += delivered
        else:
            self.peer += delivered
        if len(payloads) == 1:  # true for most messages, and fast
            purpose, _ = payloads[0]
            self.by_purpose[purpose] = self.by_purpose.get(purpose, 0.0) + delivered
        else:
            for purpose, size in split_by_purpose(payloads, delivered).items():
                self.by_purpose[purpose] = self.by_purpose.get(purpose, 0.0) + size
        if task is not None:
            self._by_task[task] = self._by_task.get(task, 0.0) + delivered

    def note_idle(self, task: int) -> None:
        """Note that a task's training finished no epoch.

        ``close_task`` then counts the task's bytes as wasted, whatever the task's outcome.

        Args:
            task: ID of the task, a device's work for a request of the server.
        """
        self._idle[task] = True

    def note_edge(self, task: int) -> None:
        """Note that a task's answer goes to an edge server, which may lose it before the round ends.

        The task's bytes are stored until then, so that ``count_as_wasted`` can count them.

        Args:
            task: ID of the task, a device's work for a request of the server.
        """
        self._at_edges[task] = 0.0

    def close_task(self, task: int, outcome: str) -> None:
        """Close the account of a task, and count its bytes as wasted if its work cannot be used.

        Work cannot be used if the outcome is not ``done``, or if a training finished no epoch.

        Args:
            task: ID of the task, a device's work for a request of the server.
            outcome: how the task ended, such as ``done`` or ``late``.
        """
        moved = self._by_task.pop(task, 0.0)  # bytes that the task moved
        has_no_epoch = self._idle.pop(task, False)
        if outcome != "done" or has_no_epoch:
            self.wasted += moved
            self._at_edges.pop(task, None)
        elif task in self._at_edges:  # the task's answer may still be lost with the edge server
            self._at_edges[task] = moved

    def count_as_wasted(self, tasks: Sequence[int]) -> None:
        """Count the bytes of tasks as wasted, because an edge server that held their answers was lost.

        Args:
            tasks: IDs of the tasks.
        """
        self.wasted += sum([self._at_edges.pop(task, 0.0) for task in tasks])

    def close_round(self, running: Collection[int]) -> None:
        """Forget, at the end of a round, the bytes of tasks whose answers were at edge servers.

        The server has used these answers, so ``count_as_wasted`` can no longer concern them.

        Args:
            running: IDs of tasks that still run. Their answers may still be lost, so the bytes of
                these tasks are not forgotten.
        """
        self._at_edges = {task: moved for task, moved in self._at_edges.items() if task in running}

    def snapshot(self) -> LedgerState:
        """Return the state that a checkpoint saves; ``restore`` sets it in a resumed run."""
        return {
            "down": self.down,
            "up": self.up,
            "peer": self.peer,
            "wasted": self.wasted,
            "by_purpose": self.by_purpose,
            "by_task": self._by_task,
            "idle": self._idle,
            "at_edges": self._at_edges,
        }

    def restore(self, state: LedgerState) -> None:
        """Set the state that ``snapshot`` returned, when a run is resumed from a checkpoint."""
        self.down = state["down"]
        self.up = state["up"]
        self.peer = state["peer"]
        self.wasted = state["wasted"]
        self.by_purpose = state["by_purpose"]
        self._by_task = state["by_task"]
        self._idle = state["idle"]
        self._at_edges = state["at_edges"]

    def summary(self) -> dict[str, object]:
        """Return the entry ``bytes`` of ``summary.json``: a dict of sums of bytes.

        ``down``, ``up``, ``peer``, ``wasted`` and ``by_purpose`` are the attributes of this object.
        ``peer`` is missing if it is 0. ``paper`` is the sum of the bytes that the FlexCFL paper
        counts (``sum_view``).
        """
        entry: dict[str, object] = {"down": self.down, "up": self.up}
        if self.peer:
            entry["peer"] = self.peer
        entry["wasted"] = self.wasted
        entry["by_purpose"] = dict(sorted(self.by_purpose.items()))
        entry["paper"] = sum_view(self.by_purpose, "paper")
        return entry
