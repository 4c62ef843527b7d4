"""Parts of strategies: selection, aggregation, server optimiser, deadline, secure aggregation."""

from collections.abc import Sequence
from typing import Any, ClassVar

from fedsim.federation import Client, Contents, Device, Instruction, LocalResult, Real
from fedsim.world.steps import TaskStep


class PartClient(Client[Any]):
    """Base of a part's code on devices: it wraps the strategy's code, and handles its own ``jobs``.

    Any other job is passed to the wrapped code. A part is a selection, secure aggregation, or the
    keeping of tensors on devices.

    Args:
        client: the strategy's code on devices.
        part: the selection, secure aggregation, or keeping of tensors.
    """

    jobs: ClassVar[tuple[str, ...]]

    def __init__(self, client: Client[Any], part: Any) -> None:
        super().__init__(client.params, client.setting)
        self._client = client
        self._part = part

    def real(self, device: Device, instruction: Instruction) -> Real | None:
        return None if instruction.job in self.jobs else self._client.real(device, instruction)

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        return () if instruction.job in self.jobs else self._client.work(device, instruction)

    def computed(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> LocalResult:
        if instruction.job in self.jobs:
            return result
        return self._client.computed(device, instruction, result)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        return self._client.reply(device, instruction, result)

    def on_sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        if instruction.job not in self.jobs:
            self._client.on_sent(device, instruction, reply)

    def on_shift(self, device: Device) -> Contents | None:
        return self._client.on_shift(device)
