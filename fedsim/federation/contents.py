"""Messages and their contents, by name: each kind has one form on the wire, from which its bytes
follow.

A content is one of:

- a ``Ref`` (model or update) or ``Partial`` (some tensors of one), encoded by ``[messages]``; a
  list or tuple of refs;
- numbers: one, a sequence or an array of them, or numbers computed on demand (``Lazy``), 4 bytes
  each;
- ``Header``: any value in the message's header, whose bytes are not counted, as in the papers;
- ``Opaque``: any other value, with its bytes.

A message without counted bytes takes no time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from fedsim.common.errors import SimulationError
from fedsim.common.training import Places
from fedsim.learning.refs import Ref
from fedsim.world.network.endpoints import Direction
from fedsim.world.steps import Payload
from fedsim.world.task import Outcome

Contents = Mapping[str, Any]
"""Contents of a message by name. Names are the purposes of the ledger."""

# purpose of a model's frozen tensors, sent with the first model that a device receives
BASE = "base"
# purpose of a trainer's state, sent with models and updates if ``training.state`` is ``sent``
STATE = "optimiser"
_NUMBER_BYTES = 4.0


@dataclass(slots=True)
class Header:
    """A content in the header of a message, which costs no bytes: counts of samples, a deadline.

    Attributes:
        value: any JSON value, or a model; the receiver gets it as it is.

    Example:
        >>> from fedsim.plugin import Header
        >>> contents = {"samples": Header(120)}
        >>> contents["samples"].value
        120
    """

    value: Any


@dataclass(slots=True)
class Opaque:
    """A content that fedsim does not look into.

    Attributes:
        value: any value; the receiver gets it as it is.
        bytes: its bytes on the wire.
    """

    value: Any
    bytes: float


@dataclass(frozen=True, slots=True)
class Lazy:
    """Numbers that a device computes from models, 4 bytes each, for ``ServerModels.numbers``.

    They are computed when the server asks for them. ``Lazy("loss", result.update)`` reports the
    loss of the last local epoch. ``Lazy("losses", result.tested, count=m)`` reports the losses of
    the m models that an ``Evaluate`` step has tested, ``Lazy("choice", result.tested)`` the best
    one's position.

    Attributes:
        what: ``loss``, ``losses``, ``choice``, or ``numbers``, the result of a function of
            models (``Device.numbers``).
        ref: the trained or tested model (``LocalResult``), or the result of the function.
        count: length of the result that is sent.
    """

    what: str
    ref: Ref
    count: int = 1


@dataclass(frozen=True, slots=True)
class Partial:
    """Some tensors of a model; the receiver completes them by tensors that it has already.

    Attributes:
        model: the model whose tensors are sent.
        rest: the model that has the other tensors; ``model`` itself if the receiver has these.
        places: ranges of the tensors that are sent: pairs of begin and end in the flat model,
            ascending.
    """

    model: Ref
    rest: Ref
    places: Places

    @property
    def count(self) -> int:
        """Number of values that are sent."""
        return sum(end - begin for begin, end in self.places)


class WireSizes(Protocol):
    """Sizes of models on the wire (bytes)."""

    @property
    def model_bytes(self) -> float: ...
    def part_bytes(self, count: int) -> float: ...


_payload = lru_cache(maxsize=256, typed=True)(Payload)  # most messages are like those before


def payloads(contents: Contents, sizes: WireSizes) -> tuple[Payload, ...]:
    """The parts of a message whose bytes are counted.

    Args:
        contents: the contents by name.
        sizes: sizes of models on the wire.

    Raises:
        SimulationError: a content that cannot be sent.
    """
    parts = []
    for name, value in contents.items():
        if type(value) is not Header:
            parts.append(_payload(name, _bytes(name, value, sizes)))
    return tuple(parts)


def _bytes(name: str, value: Any, sizes: WireSizes) -> float:
    match value:
        case Ref():
            return sizes.model_bytes
        case Partial():
            return sizes.part_bytes(value.count)
        case Opaque():
            return value.bytes
        case Lazy():
            return value.count * _NUMBER_BYTES
        case int() | float() | np.number() | np.ndarray():
            return np.size(value) * _NUMBER_BYTES
        case Sequence() if not isinstance(value, str):
            return sum([_bytes(name, item, sizes) for item in value])
    raise SimulationError(
        f"the content {name!r} of a message is a {type(value).__name__}; allowed are refs, "
        "Partial, numbers, Opaque and Header"
    )


def has_model(contents: Contents) -> bool:
    """Whether contents have a model, or tensors of one."""
    for value in contents.values():
        items = value if isinstance(value, list | tuple) else (value,)
        for item in items:
            content = item.value if type(item) is Opaque else item
            if isinstance(content, Ref | Partial):
                return True
    return False


def received(contents: Contents) -> dict[str, Any]:
    """Contents as the receiver has them: the values of headers and opaque contents themselves."""
    values: dict[str, Any] = {}
    for name, value in contents.items():
        values[name] = value.value if type(value) in (Header, Opaque) else value
    return values


class _WithContents:
    __slots__ = ()
    contents: Contents

    def __getitem__(self, name: str) -> Any:
        return self.contents[name]


@dataclass(slots=True)  # frozen ones take four times as long to make
class TaskEnd(_WithContents):
    """The end of a task, with all that the server learns of the device.

    ``message["update"]`` is a content of the answer.

    Attributes:
        task: its number, as ``Server.ask`` returned it.
        device: number of the device.
        round: the round for which it was asked; None: for none.
        group: the group for which it was asked; None: for none.
        job: the job that it was asked for.
        outcome: ``done`` if every step was carried out. ``late``: ended by the server; ``lost``:
            the device disconnected; ``memory``: the training does not fit into the device's memory;
            ``stopped``: the run ended.
        asked: the server's message, by name, as the device received it.
        contents: the answer, by name, as the server received it; empty unless the task is done. By
            default ``update`` (a model, None without a finished epoch), ``samples`` and ``epochs``.
    """

    task: int
    device: int
    round: int | None
    group: int | None
    job: str
    outcome: Outcome
    asked: Contents
    contents: Contents


@dataclass(slots=True)
class Carried(_WithContents):
    """A message between an edge server and the server, when it has ended.

    ``message["model"]`` is one of its contents.

    Attributes:
        edge: number of the edge server.
        direction: ``down`` to the edge server, ``up`` from it.
        round: the round for which it was sent; None: for none.
        outcome: ``done`` if it has arrived, ``lost`` if the edge server was lost.
        contents: what was received, by name; empty unless it is done.
    """

    edge: int
    direction: Direction
    round: int | None
    outcome: Outcome
    contents: Contents


@dataclass(slots=True)
class PeerMessage(_WithContents):
    """A message from device to device, when it has ended.

    Attributes:
        source: number of the sender.
        destination: number of the receiver.
        outcome: ``done`` if it has arrived, ``lost`` if one of the two could not be reached.
        contents: what was received, by name; empty unless it is done.
    """

    source: int
    destination: int
    outcome: Outcome
    contents: Contents


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
    async def on_shift(self, device: int, contents: Contents) -> None: ...
    def groups_of(self, devices: Sequence[int]) -> list[int | None]: ...
