"""Interfaces between a run and a strategy's code: on the server, on devices, and messages.

The package also tests models. It imports ``learning``, ``world``, ``clock`` and ``common``.
"""

from fedsim.federation.client import (
    BEST,
    Client,
    Instruction,
    LocalResult,
    PreviousResult,
    Real,
    RunInfo,
)
from fedsim.federation.contents import Contents, Header, Lazy, Opaque, Partial, payloads
from fedsim.federation.devices import Device
from fedsim.federation.events import Carried, PeerMessage, TaskEnd
from fedsim.federation.peer import Peer
from fedsim.federation.server import Server

__all__ = [
    "BEST", "Carried", "Client", "Contents", "Device", "Header", "Instruction", "Lazy", "LocalResult", "Opaque", "Partial",
    "Peer", "PeerMessage", "PreviousResult", "Real", "RunInfo", "Server", "TaskEnd", "payloads",
]  # fmt: skip
