"""The ledger: every byte that moved, by direction and purpose, read off the transfers.

The ledger holds what really moved (``strict``). ``paper`` is a view over the same rows that counts
as the FlexCFL paper does (its Fig. 6): models and updates only, without the initial model sent to
cold clients, ids, scalars and other control traffic.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from fedsim.world.meters.base import Payloads

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
"""Purposes that the papers leave out of their traffic figures (FlexCFL, Fig. 6, is reproduced by
it exactly).
"""


def split_by_purpose(payloads: Payloads, delivered: float) -> dict[str, float]:
    """The delivered bytes of one message by purpose: what was sent first arrived first."""
    shares: dict[str, float] = {}
    for purpose, size in payloads:
        part = min(size, delivered)
        shares[purpose] = shares.get(purpose, 0.0) + part
        delivered -= part
    return shares


def sum_view(by_purpose: Mapping[str, float], preset: LedgerPreset) -> float:
    """Total bytes under a preset."""
    return sum(
        part
        for purpose, part in sorted(by_purpose.items())
        if preset == "strict" or purpose not in NOT_IN_PAPER
    )


def total(moved: Mapping[str, Any]) -> float:
    """All bytes of the ``bytes`` entry of a summary."""
    return float(moved["down"] + moved["up"] + moved.get("peer", 0.0))


def total_of_round(row: Mapping[str, Any]) -> float:
    """All bytes of a row of rounds."""
    return float(row["bytes_down"] + row["bytes_up"] + (row.get("bytes_peer") or 0.0))


class Ledger:
    """Bytes that moved to devices, from them, and between other endpoints (``peer``), summed in
    order of the messages' ends.

    ``wasted`` are those of tasks that ended late, lost or left, or trained without one epoch
    that counts.
    """

    def __init__(self) -> None:
        self.down = self.up = self.peer = self.wasted = 0.0
        self.by_purpose: dict[str, float] = {}
        self._by_task: dict[int, float] = {}
        self._idle: dict[int, bool] = {}  # tasks that trained without an epoch that counts
        # what tasks moved whose work is at an edge server, and may be lost there
        self._at_edges: dict[int, float] = {}

    def add(self, task: int | None, direction: str, payloads: Payloads, delivered: float) -> None:
        """A message has ended, whole or cut short; one between parts of the server's side
        belongs to no task.
        """
        if direction == "down":
            self.down += delivered
        elif direction == "up":
            self.up += delivered
        else:
            self.peer += delivered
        shares = (
            {payloads[0][0]: delivered}
            if len(payloads) == 1
            else split_by_purpose(payloads, delivered)
        )
        for purpose, part in shares.items():
            self.by_purpose[purpose] = self.by_purpose.get(purpose, 0.0) + part
        if task is not None:
            self._by_task[task] = self._by_task.get(task, 0.0) + delivered

    def note_idle(self, task: int) -> None:
        """A training of a task has ended without an epoch that counts: all that the task moves
        is wasted.
        """
        self._idle[task] = True

    def note_edge(self, task: int) -> None:
        self._at_edges[task] = 0.0

    def close_task(self, task: int, outcome: str) -> None:
        """A task has ended; unless it was done, and with an epoch that counts, what it moved was
        wasted.
        """
        moved = self._by_task.pop(task, 0.0)
        idle = self._idle.pop(task, False)
        if outcome != "done" or idle:
            self.wasted += moved
            self._at_edges.pop(task, None)
        elif task in self._at_edges:
            self._at_edges[task] = moved

    def lose(self, tasks: Sequence[int]) -> None:
        """Count the bytes of updates lost with their edge server as wasted."""
        self.wasted += sum([self._at_edges.pop(task, 0.0) for task in tasks])

    def close_round(self, running: Collection[int]) -> None:
        """A round is closed: what edge servers held is in it, but for tasks that still run."""
        self._at_edges = {task: moved for task, moved in self._at_edges.items() if task in running}

    def summary(self) -> dict[str, Any]:
        return {
            "down": self.down,
            "up": self.up,
            **({"peer": self.peer} if self.peer else {}),
            "wasted": self.wasted,
            "by_purpose": dict(sorted(self.by_purpose.items())),
            "paper": sum_view(self.by_purpose, "paper"),
        }
