"""Results of a task's earlier trainings, from which a later training of the task starts."""

from dataclasses import dataclass

from fedsim.common.saved import saved
from fedsim.learning.refs import Ref


@saved()
@dataclass(frozen=True, slots=True)
class PreviousResult:
    """Weighted sum of results of a task's earlier trainings, and of other models.

    A client names it as the start of a later ``Training`` of the same task, or as the anchor of the
    later training's proximal term. The sum is computed when the earlier trainings are done.

    Attributes:
        parts: pairs of a model and its coefficient. An int i in place of a model stands for the
            result of the task's training with index i, from 0.
    """

    parts: tuple[tuple[Ref | int, float], ...]
