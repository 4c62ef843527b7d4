"""Memory of a device's node between two tasks, as a packet that Flower stores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from fedsim.common.arrays import Ints
from fedsim.deployed.packing import Packet
from fedsim.deployed.reading import PacketError
from fedsim.deployed.trees import TreeWriter, read_tree
from fedsim.federation.client import Instruction
from fedsim.federation.contents import Lazy, received
from fedsim.federation.direction_codec import CodedContents
from fedsim.learning import Learner
from fedsim.learning.refs import Ref


@dataclass
class SentAnswer:
    """Answer of a device's last task, which the device stores until the next request.

    The next request says whether the answer has arrived. If the answer has arrived,
    ``Client.on_sent`` is called with the stored answer.

    Attributes:
        job, round, contents: the request that was answered: attributes of its ``Instruction``.
        reply: decoded contents of the answer by name, as ``Client.on_sent`` receives them.
        residuals: dict from content to the part that the codec did not send. If the answer has
            arrived, this part is added to the same content of the next answer.
    """

    job: str
    round: int | None
    contents: dict[str, object]
    reply: dict[str, object]
    residuals: Mapping[str, Ref]

    @classmethod
    def of(cls, instruction: Instruction, answer: CodedContents) -> Self:
        """Build the object from a request and the encoded answer to it, without ``Lazy`` values.

        ``Lazy`` values are numbers, such as a loss, that are computed only when they are read.
        """
        return cls(
            job=instruction.job,
            round=instruction.round,
            contents=_without_lazy(instruction.contents),
            reply=_without_lazy(received(answer.arriving)),
            residuals=answer.residuals,
        )

    @property
    def instruction(self) -> Instruction:
        """Request of the server to which this was the answer, without its ``Lazy`` values."""
        return Instruction(self.job, self.contents, self.round)


def _without_lazy(contents: Mapping[str, object]) -> dict[str, object]:
    """Return a message's contents without ``Lazy`` values, numbers that are computed when read."""
    return {name: value for name, value in contents.items() if not isinstance(value, Lazy)}


@dataclass
class DeviceMemory:
    """Values that a node stores between two tasks of its device.

    Attributes:
        state: ``Device.state``, the strategy's values on the device.
        residuals: dict from content to the part that the codec did not send; it is added to the
            same content of the next answer.
        has_base: whether the device has the model's frozen tensors, which no training changes.
        speed: measured speed of the device (samples/s); None if it was not measured.
        count: index of the device's last task among its tasks, from 0; -1 before the first.
        last: answer of the last task, stored until the server confirms its arrival. None if
            neither the strategy nor the codec acts on the arrival.
        labels: ``LabelHistory.snapshot``; empty before the first task.
    """

    state: dict[str, object] = field(default_factory=dict)
    residuals: dict[str, Ref] = field(default_factory=dict)
    has_base: bool = False
    speed: float | None = None
    count: int = -1
    last: SentAnswer | None = None
    labels: dict[str, Ints] = field(default_factory=dict)

    def write_to(self, packet: Packet, learner: Learner) -> None:
        """Write the memory to a packet, from which ``read_memory`` restores it in the next task.

        Args:
            packet: the packet that Flower stores between the tasks; its head and arrays are
                replaced.
            learner: computes the models in the memory that are not computed yet, so that their
                weights can be stored.
        """
        writer = TreeWriter(learner)
        values = dict(vars(self))
        if self.last is not None:  # ``TreeWriter`` takes dicts, and no ``SentAnswer``
            values["last"] = vars(self.last)
        packet.head = {"memory": writer.write(values)}
        packet.arrays = writer.arrays


def read_memory(packet: Packet, learner: Learner) -> DeviceMemory:
    """Restore the memory that ``DeviceMemory.write_to`` has written after a device's last task.

    Args:
        packet: the packet. Before the device's first task it is empty, and the memory is empty too.
        learner: creates the references to the models in the memory.

    Raises:
        PacketError: the packet has another form.
    """
    if "memory" not in packet.head:
        return DeviceMemory()
    values = read_tree(packet.head["memory"], packet.arrays, learner)
    if not isinstance(values, dict):
        raise PacketError("the memory of a node is no table")
    try:
        if values["last"] is not None:
            values["last"] = SentAnswer(**values["last"])
        return DeviceMemory(**values)
    except (KeyError, TypeError) as error:
        raise PacketError(f"the memory of a node cannot be read: {error}") from error
