"""Parts of strategies that a scenario chooses apart: selection, aggregation, server optimiser,
deadline, secure aggregation.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from fedsim.federation import Client, Contents, Device, Instruction, LocalResult, Real
from fedsim.world.task import Computation


class PartClient(Client[Any]):
    """A strategy's client half ``own`` with the jobs of a part besides; its other jobs are as
    they are without it.
    """

    jobs: ClassVar[tuple[str, ...]]

    def __init__(self, own: Client[Any], part: Any) -> None:
        super().__init__(own.params, own.setting)
        self._own = own
        self._part = part

    def real(self, device: Device, instruction: Instruction) -> Real | None:
        return None if instruction.job in self.jobs else self._own.real(device, instruction)

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        return () if instruction.job in self.jobs else self._own.work(device, instruction)

    def computed(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> LocalResult:
        return (
            result
            if instruction.job in self.jobs
            else self._own.computed(device, instruction, result)
        )

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        return self._own.reply(device, instruction, result)

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        if instruction.job not in self.jobs:
            self._own.sent(device, instruction, reply)

    def on_shift(self, device: Device) -> Contents | None:
        return self._own.on_shift(device)
