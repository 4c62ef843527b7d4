"""Ended steps and messages, in the form in which meters and the ledger of bytes receive them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedsim.common.step_names import DIRECTIONS

Payloads = tuple[tuple[str, float], ...]
"""Parts of a message in the order in which they are sent, each as purpose and bytes."""

MESSAGES = ("edge-transfer", "message", "server-transfer")
"""Kinds of the records of messages that end outside of tasks."""


class Step(NamedTuple):
    """Step of a task on a device, such as a download or training, that has ended.

    Attributes:
        start, end: begin and end of the step (s).
        device, task: index of the device, and ID of the task.
        name: ``download``, ``train``, ``evaluate``, ``compute``, ``upload``, ``encode``,
            ``decode``, ``sleep``, ``start-up`` or ``queue``.
        outcome: ``done``, or the cause of the step's early end.
        fields: all fields of the step's record ``step-end``, such as ``epochs``, ``samples`` and
            ``delivered``.
    """

    start: float
    end: float
    device: int
    task: int
    name: str
    outcome: str
    fields: Mapping[str, Any]


class Transfer(NamedTuple):
    """Message that has ended, complete or cut short, with the columns of ``transfers.parquet``.

    Attributes:
        start, end: begin and end of the message (s).
        device: index of the device of the message's task; None for a message outside of tasks.
        direction: ``up``, ``down``, or ``peer`` for a message that is neither.
        purpose: names of its parts, such as ``model``, joined by ``+``.
        bytes: payload of the message.
        delivered: bytes of payload that have arrived.
        wire_bytes: size of the delivered bytes on the links, with headers.
        outcome: ``done``, or the cause of the message's early end.
        round, task: index of its round and ID of its task; None if it has no round, or no task.
        payloads: name and bytes of each part.
        sender, receiver: names of the sender and receiver, such as ``edge 1``; None for the server,
            and for the device of the message's task. ``source`` and ``destination`` have all names.
    """

    start: float
    end: float
    device: int | None
    direction: str
    purpose: str
    bytes: float
    delivered: float
    wire_bytes: float
    outcome: str
    round: int | None
    task: int | None
    payloads: Payloads
    sender: str | None
    receiver: str | None

    @property
    def source(self) -> str:
        """Name of the sender: ``device 3``, ``edge 1``, ``server`` or a part of the server."""
        if self.sender:
            return self.sender
        return "server" if self.direction == "down" else f"device {self.device}"

    @property
    def destination(self) -> str:
        """Name of the receiver: ``device 3``, ``edge 1``, ``server`` or a part of the server."""
        if self.receiver:
            return self.receiver
        return "server" if self.direction == "up" else f"device {self.device}"


def transfer_of(time: float, kind: str, fields: Mapping[str, Any], start: float) -> Transfer | None:
    """Return the message that ends with a record; None if the record ends no message.

    Args:
        time: time of the record (s).
        kind: kind of the record, such as ``step-end`` or ``edge-transfer``.
        fields: fields of the record.
        start: begin of the step (s), if ``kind`` is ``step-end``; else it is not used.
    """
    if kind == "server-transfer":
        return _instant_transfer(time, fields)
    device: int | None = None
    sender: str | None
    receiver: str | None
    if kind in ("edge-transfer", "message"):
        direction, sender, receiver = ends_of(fields)
        start = fields["start"]
    elif kind == "step-end" and fields["step"] in DIRECTIONS:
        device = fields["device"]
        direction = DIRECTIONS[fields["step"]]
        sender = fields.get("sender")
        receiver = fields.get("receiver")
    else:
        return None
    payloads: Payloads = fields["payloads"]
    delivered = fields["delivered"]
    # names of the payloads, such as ``model+mask``
    purpose = payloads[0][0] if len(payloads) == 1 else "+".join([name for name, _ in payloads])
    wire_bytes = fields.get("wire_bytes", delivered)  # recorded only if there are headers
    # the fields are given by position, because keywords would take most of this function's time
    return Transfer(
        start,
        time,
        device,
        direction,
        purpose,
        fields["bytes"],
        delivered,
        wire_bytes,
        fields["outcome"],
        fields["round"],
        fields.get("task"),
        payloads,
        sender,
        receiver,
    )


def _instant_transfer(time: float, fields: Mapping[str, Any]) -> Transfer:
    """Return the message of a record ``server-transfer``, which takes no time and is on no link.

    Strategies with several servers, such as one for each group, record messages between them so.

    Args:
        time: time of the record (s).
        fields: fields of the record.
    """
    purpose = fields["purpose"]
    size = fields["bytes"]
    return Transfer(
        start=time,
        end=time,
        device=None,
        direction="up",
        purpose=purpose,
        bytes=size,
        delivered=size,
        wire_bytes=0.0,
        outcome="done",
        round=fields.get("round"),
        task=None,
        payloads=((purpose, size),),
        sender=fields["sender"],
        receiver=fields["receiver"],
    )


def ends_of(fields: Mapping[str, object]) -> tuple[str, str, str]:
    """Return direction, sender and receiver of a message that belongs to no device's task.

    Args:
        fields: fields of the record ``edge-transfer`` or ``message`` that the message ended with.

    Returns:
        Direction (``up``, ``down`` or ``peer``), name of the sender, and name of the receiver.
    """
    if "source" in fields:
        return "peer", str(fields["source"]), str(fields["destination"])
    edge = f"edge {fields['edge']}"
    direction = str(fields["direction"])
    if direction == "down":
        return direction, "server", edge
    return direction, edge, "server"
