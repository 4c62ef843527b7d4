"""``learning = "off"``: the learner that never learns. Time and bytes are all that a run then measures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError
from fedsim.learning.architecture import Shape
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.functions import Function
from fedsim.learning.models import ModelSpec
from fedsim.learning.refs import Ref
from fedsim.training import Training


class Off:
    """Gives out names of models that have a size and a cost, and no weights.

    Args:
        model: what is pretended to be trained.
        shape: shape of one sample.
        classes: number of classes.

    Every test answers None: nothing was measured. Whoever asks for weights gets a ``SimulationError``.
    """

    def __init__(self, model: ModelSpec, shape: Shape, classes: int) -> None:
        self.parameters = model.parameters(shape, classes)
        self.bytes = 4.0 * self.parameters
        self.flops_per_sample = model.flops(shape, classes)
        self.learns = False
        self._serial = 0

    def initial(self, count: int = 0) -> Ref:
        """A name."""
        return self._name("model")

    def train(self, training: Training, device: int, *, key: int, round: int = 0, version: int = 0) -> Ref:  # noqa: A002
        """A name."""
        return self._name("update", device)

    def best(self, models: Sequence[Ref], device: int, *, version: int = 0) -> Ref:
        """A name."""
        return self._name("choice", device)

    def mix(self, parts: Sequence[tuple[Ref, float]], otherwise: Ref | None = None, *, rescale: bool = True) -> Ref:
        """A name."""
        return self._name("model")

    def given(self, weights: NDArray[np.floating]) -> Ref:
        """A name."""
        return self._name("model")

    def apply(
        self,
        function: Function,
        models: Sequence[Ref],
        *,
        stream: tuple[Any, ...] | None = None,
        otherwise: Ref | None = None,
        leave_out: bool = False,
        size: int | None = None,
        **constants: Any,
    ) -> Ref:
        """A name."""
        return self._name("model")

    def shift(self, device: int, version: int) -> None:
        """Nothing to do: nothing is tested."""

    def snapshot(self) -> int:
        """How many names were given out; ``restore`` takes it back. The models themselves are kept by who names them."""
        return self._serial

    def restore(self, state: int) -> None:
        """Go on with names after so many."""
        self._serial = state

    def tensors(self, weights: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """There are none."""
        return {}

    async def value(self, ref: Ref) -> NDArray[np.float32]:
        """There is none.

        Raises:
            SimulationError: always.
        """
        raise SimulationError(
            f'the strategy looks at the weights of {ref.name}, but learning = "off" has none; set learning = "on"'
        )

    async def values(self, refs: Sequence[Ref]) -> list[NDArray[np.float32]]:
        """There are none.

        Raises:
            SimulationError: for any ref.
        """
        return [await self.value(ref) for ref in refs]

    async def losses(self, tested: Sequence[Ref]) -> list[NDArray[np.float64]] | None:
        """None: nothing is measured."""
        return None

    async def choices(self, tested: Sequence[Ref]) -> list[int] | None:
        """None: nothing is measured."""
        return None

    async def evaluate(self, models: Mapping[str, tuple[Ref, Sequence[int] | None]]) -> Evaluation | None:
        """None: nothing is measured."""
        return None

    async def evaluate_each(self, models: Sequence[tuple[Ref, int]]) -> Evaluation | None:
        """None: nothing is measured."""
        return None

    async def train_loss(self, updates: Sequence[tuple[Ref, float]]) -> float | None:
        """None: nothing is measured."""
        return None

    async def discrepancy(self, pairs: Sequence[tuple[Ref, Ref]]) -> float | None:
        """None: nothing is measured."""
        return None

    def _name(self, what: str, device: int | None = None) -> Ref:
        ref = Ref(f"{what}-{self._serial}", self._serial, None, device)
        self._serial += 1
        return ref
