"""Steps in which a task sends a message between its device and the server, or an edge server."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedsim.common.saved import saved
from fedsim.common.step_names import DOWNLOAD, UPLOAD
from fedsim.world.network.endpoints import SERVER, Direction, ends
from fedsim.world.steps.base import Cause, Ending, StepServices, Task, TaskStep

_DISCONNECTED = ("lost", "left", "battery")


@saved()
class Payload(NamedTuple):
    """Part of a message, such as a model, with its size.

    Attributes:
        purpose: name of the part, such as ``"model"``, by which a run's traffic is counted.
        bytes: size of the encoded part (bytes).
    """

    purpose: str
    bytes: float


class TransferStep(TaskStep):
    """Base of the task steps that send one message between a device and its server.

    The server is the device's edge server if the task has one.

    Attributes:
        payloads: parts of the message.
        direction: ``down`` to the device, ``up`` from it.
    """

    __slots__ = ()
    payloads: tuple[Payload, ...]
    direction: ClassVar[Direction]

    def begin(self, task: Task, services: StepServices) -> None:
        size = 0.0
        for part in self.payloads:
            size += part.bytes
        peer = SERVER if task.edge is None else services.network.devices + task.edge
        route = ends(task.device, self.direction, peer)
        task.flow = services.network.send(*route, size, task.end_step)
        services.battery_watch.predict(task)

    def end(self, task: Task, services: StepServices, cause: Cause | None) -> Ending:
        """End the message; return the cause of its early end, and fields of its record.

        Args:
            task: the task.
            services: services of the world, as in ``TaskStep.begin``.
            cause: cause of an early end; None if the last byte has arrived.

        Returns:
            The cause, and the fields of the step's record, such as ``bytes`` and ``delivered``. The
            cause becomes None if the device disconnects in the instant in which the last byte
            arrives.
        """
        network = services.network
        flow = task.flow
        assert flow is not None
        task.flow = None
        if task.slot is not None:
            task.release("slot")
        if cause is not None:
            # a flow that ends in this instant is not cancelled, and has then sent all its bytes
            network.cancel(flow)
            has_arrived = flow.sent == flow.size and services.simulation.now > task.step_start
            if cause in _DISCONNECTED and has_arrived:
                cause = None
        facts: dict[str, object] = {
            "bytes": flow.size,
            "delivered": flow.sent,
            "payloads": self.payloads,
        }
        if network.overhead != 1:
            facts["wire_bytes"] = flow.sent * network.overhead
        if task.edge is not None:
            role = "receiver" if self.direction == "up" else "sender"
            facts[role] = network.name(network.devices + task.edge)
        return cause, facts

    def is_due(self, task: Task, services: StepServices) -> bool:
        assert task.flow is not None
        return services.network.finish(task.flow)


# not frozen, because the construction of a frozen object takes four times as long
@dataclass(slots=True)
class Download(TransferStep):
    """Task step in which the server sends payloads to the device, as one message.

    Attributes:
        payloads: the parts of the message, with their sizes.
    """

    payloads: tuple[Payload, ...]
    name = DOWNLOAD
    power = "receive"
    direction: ClassVar[Direction] = "down"


@dataclass(slots=True)
class Upload(TransferStep):
    """Task step in which the device sends payloads to the server, as one message.

    Attributes:
        payloads: the parts of the message, with their sizes.
    """

    payloads: tuple[Payload, ...]
    name = UPLOAD
    power = "send"
    direction: ClassVar[Direction] = "up"
