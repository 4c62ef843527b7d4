"""Messages to a strategy, and the handlers that take them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedsim.world.network.endpoints import Direction
from fedsim.world.task import Outcome


class _WithContents:
    __slots__ = ()
    contents: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.contents[name]


@dataclass(slots=True)  # frozen ones take four times as long to make
class TaskEnd(_WithContents):
    """A task has ended. What came back, if anything did, is here; nothing else about the device is known.

    Attributes:
        task, device, round, group, job: as asked.
        outcome: ``done`` when every step was carried out; else why not (``late``, ``lost``, ``left``, ``battery``).
        asked: what the server had sent, by name.
        contents: what it received, by name; empty unless the task is done.
    """

    task: int
    device: int
    round: int | None
    group: int | None
    job: str
    outcome: Outcome
    asked: Mapping[str, Any]
    contents: Mapping[str, Any]


@dataclass(slots=True)
class Carried(_WithContents):
    """A message between an edge server and the server has ended.

    Attributes:
        edge, direction, round: as sent.
        outcome: ``done`` when it has arrived, ``lost`` when the edge server was lost.
        contents: what was received, by name; empty unless it is done.
    """

    edge: int
    direction: Direction
    round: int | None
    outcome: Outcome
    contents: Mapping[str, Any]


@dataclass(slots=True)
class PeerMessage(_WithContents):
    """A message from device to device has ended.

    Attributes:
        source, destination: the devices.
        outcome: ``done`` when it has arrived, ``lost`` when one of the two could not be reached.
        contents: what was received, by name; empty unless it is done.
    """

    source: int
    destination: int
    outcome: Outcome
    contents: Mapping[str, Any]


class Handlers(Protocol):
    """Handlers that the server calls; ``strategies.base.Strategy`` says when."""

    @property
    def score(self) -> str: ...
    async def on_start(self) -> None: ...
    async def on_task_end(self, message: TaskEnd) -> None: ...
    async def on_carried(self, message: Carried) -> None: ...
    async def on_peer_message(self, message: PeerMessage) -> None: ...
    async def on_edge_lost(self, edge: int) -> None: ...
    async def on_timer(self, name: str) -> None: ...
    async def on_return(self, device: int) -> None: ...
    async def on_arrival(self, device: int) -> None: ...
    async def on_shift(self, device: int, contents: Mapping[str, Any]) -> None: ...
    def groups_of(self, devices: Sequence[int]) -> list[int | None]: ...
