"""Events that a strategy's code on the server receives: ends of tasks and of other messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fedsim.common.saved import saved
from fedsim.federation.contents import Contents, missing_content
from fedsim.learning.evaluation import AccuracyOver
from fedsim.world.network.endpoints import Direction
from fedsim.world.steps import Outcome

VisibleOutcome = Literal["done", "late", "memory", "lost"]
"""Outcome of a task as the server learns it; ``TaskEnd`` describes the outcomes."""

RoundCount = Literal["valid", "slow", "disconnected"]
"""Column of ``rounds.parquet`` in which a round counts a task."""

# An outcome of a task has three forms. ``Outcome`` is recorded, the server learns
# ``VisibleOutcome``, and the round counts the task in a column. A strategy may count a task
# otherwise, as CATA-Fed does if the client has finished no epoch.
#
# recorded            the server learns   counted as
# done                done                valid
# late, stopped       late                slow
# memory              memory              slow
# lost, left, battery lost                disconnected
#
# ``cancelled`` is the outcome of an activity of a process, and never of a task.
VISIBLE: Mapping[Outcome, VisibleOutcome] = {
    "done": "done",
    "late": "late",
    "stopped": "late",
    "memory": "memory",
    "lost": "lost",
    "left": "lost",
    "battery": "lost",
}
"""Outcome of a task -> outcome that the server learns.

The server does not learn why a device has disconnected.
"""

COUNTED_AS: Mapping[VisibleOutcome, RoundCount] = {
    "done": "valid",
    "late": "slow",
    "memory": "slow",
    "lost": "disconnected",
}
"""Outcome that the server learns -> column that counts the task."""


class _WithContents:
    __slots__ = ()
    contents: Contents

    def __getitem__(self, name: str) -> Any:
        try:
            return self.contents[name]
        except KeyError:
            raise missing_content(self, self.contents, name) from None


@saved()
@dataclass(slots=True)  # a frozen dataclass takes four times as long to create
class TaskEnd(_WithContents):
    """End of a task, with all that the server learns of the device.

    ``message["update"]`` is a content of the answer.

    Attributes:
        task: ID of the task, as ``Server.ask`` returned it.
        device: ID of the device.
        round: the round for which the device was asked; None if it was asked for no round.
        group: the group for which the device was asked; None if it was asked for no group.
        job: name of what the device was asked to do, such as ``train``.
        outcome: ``done`` if every step was carried out. ``late``: ended by the server; ``lost``:
            the device disconnected; ``memory``: the training does not fit into the device's memory.
        asked: contents of the server's message by name, as the device received them.
        contents: contents of the answer by name, as the server received them; empty unless the task
            is done. By default ``update`` (a model, None if no epoch was finished), ``samples`` and
            ``epochs``.
    """

    task: int
    device: int
    round: int | None
    group: int | None
    job: str
    outcome: VisibleOutcome
    asked: Contents
    contents: Contents


@dataclass(slots=True)
class Carried(_WithContents):
    """Ended message between an edge server and the server.

    ``message["model"]`` is one of its contents.

    Attributes:
        edge: ID of the edge server.
        direction: ``down`` to the edge server, ``up`` from the edge server.
        round: the round for which the message was sent; None if it was sent for no round.
        outcome: ``done`` if the message has arrived, ``lost`` if the edge server was lost.
        contents: the received contents by name; empty unless the message has arrived.
    """

    edge: int
    direction: Direction
    round: int | None
    outcome: Outcome
    contents: Contents


@dataclass(slots=True)
class PeerMessage(_WithContents):
    """Ended message from device to device.

    Attributes:
        source: ID of the sender.
        destination: ID of the receiver.
        outcome: ``done`` if the message has arrived, ``lost`` if sender or receiver could not be
            reached.
        contents: the received contents by name; empty unless the message has arrived.
    """

    source: int
    destination: int
    outcome: Outcome
    contents: Contents


class Handlers(Protocol):
    """Interface of a strategy's code on the server: the methods that are called when something happens.

    ``fedsim.plugin.Strategy`` documents each of them.
    """

    @property
    def score(self) -> AccuracyOver: ...
    async def on_start(self) -> None: ...
    async def on_task_end(self, message: TaskEnd) -> None: ...
    async def on_carried(self, message: Carried) -> None: ...
    async def on_peer_message(self, message: PeerMessage) -> None: ...
    async def on_edge_lost(self, edge: int) -> None: ...
    async def on_timer(self, name: str) -> None: ...
    async def on_return(self, device: int) -> None: ...
    async def on_arrival(self, device: int) -> None: ...
    async def on_shift(self, device: int, contents: Contents) -> None: ...
    def groups_of(self, devices: Sequence[int]) -> list[int | None]: ...
