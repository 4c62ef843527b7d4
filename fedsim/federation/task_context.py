"""State of a device's task, between the server's request and the device's answer."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Self

from fedsim.common.saved import saved
from fedsim.federation.client import Instruction
from fedsim.federation.direction_codec import CodedContents
from fedsim.learning.refs import Ref
from fedsim.world.steps import Task

TaskStage = Literal["asked", "computing", "answered"]
"""Progress of the strategy's code in a task.

``asked``: the device has not called ``Client.work``. ``computing``: it has called ``Client.work``,
and does its steps. ``answered``: it has called ``Client.reply``, and sends the answer, if any.
"""


@saved(omit=("real",))
@dataclass(slots=True)
class TaskContext:
    """State of a running task, between the server's request and the device's answer.

    Attributes:
        instruction: the request as the strategy's code on the device receives it.
        stage: progress of the strategy's code: ``asked``, ``computing`` or ``answered``.
        has_computed: whether ``Client.work`` has returned any computation.
        answer: contents of the answer as the server will decode them, and the residuals
            (compression errors) that the device stores if the answer arrives; None before the
            answer, or if the device sends none.
        real: future of the Python function that ``Client.real`` returns; None before the function
            begins and after its end. The function takes no simulated time. A resumed run calls it
            again.
        brings_base: whether the request contains the model's frozen tensors (the base model).
        ahead: models of the task's trainings, if the trainer may stop early. The simulated time of
            such a training depends on the count of its batches. The training is therefore computed
            at its begin.
    """

    instruction: Instruction
    stage: TaskStage = "asked"
    has_computed: bool = False
    answer: CodedContents | None = None
    real: "Future[object] | None" = None
    brings_base: bool = False
    ahead: list[Ref] = field(default_factory=list)

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the context of a task that a request of the strategy has started."""
        assert isinstance(task.context, cls)
        return task.context
