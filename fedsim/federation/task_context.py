"""State of a device's task, between the server's request and the device's answer."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Self

from fedsim.federation.client import Instruction
from fedsim.federation.contents import Contents
from fedsim.learning.refs import Ref
from fedsim.world.task import Task


@dataclass(slots=True)
class TaskContext:
    """State of a running task, between the server's request and the device's answer.

    Attributes:
        instruction: the request as the strategy's code on the device receives it.
        begun: whether ``Client.work`` was called.
        computed: whether ``Client.work`` returned any computation.
        reply: decoded contents of the answer by name; None before the answer, or if the device
            sends none.
        replied: whether ``Client.reply`` was called.
        residuals: residuals of the codec by content name, which the device stores if its answer
            arrives; None before the answer.
        real: future of the function of ``Client.real``; None before it begins and after its end.
        brings_base: whether the request contains the model's frozen tensors.
        ahead: results of trainings that may stop early, computed in advance because the simulated
            duration follows from them.
    """

    instruction: Instruction
    begun: bool = False
    computed: bool = False
    reply: Contents | None = None
    replied: bool = False
    residuals: Mapping[str, Ref] | None = None
    real: "Future[object] | None" = None
    brings_base: bool = False
    ahead: list[Ref] = field(default_factory=list)

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the context of a task that a strategy has asked for."""
        assert isinstance(task.context, cls)
        return task.context
