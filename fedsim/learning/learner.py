"""What every learner offers, whether it learns or not."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.learning.evaluation import Evaluation
from fedsim.learning.functions import Function
from fedsim.learning.refs import Ref
from fedsim.training import Training


class Learner(Protocol):
    """Where models are made and measured: ``Learning``, or ``Off`` for time and bytes only."""

    @property
    def parameters(self) -> int:
        """Trained numbers of the model, d."""

    @property
    def learns(self) -> bool:
        """Whether models have weights."""

    @property
    def bytes(self) -> float:
        """Size of the model in float32."""

    @property
    def flops_per_sample(self) -> float:
        """FLOPs of a training step on one sample."""

    def initial(self, count: int = 0) -> Ref:
        """A freshly initialised model."""

    def train(self, training: Training, device: int, *, key: int, round: int = 0, version: int = 0) -> Ref:  # noqa: A002
        """The result of local training on a device."""

    def best(self, models: Sequence[Ref], device: int, *, version: int = 0) -> Ref:
        """The model, out of several, with the smallest training objective on a device's data."""

    def mix(self, parts: Sequence[tuple[Ref, float]], otherwise: Ref | None = None, *, rescale: bool = True) -> Ref:
        """A linear combination of models."""

    def given(self, weights: NDArray[np.floating]) -> Ref:
        """A model whose weights are known."""

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
        """What a pure function makes of models."""

    def shift(self, device: int, version: int) -> None:
        """From now on a device is tested on another version of its data."""

    def snapshot(self) -> int:
        """How many names were given out; ``restore`` takes it back."""

    def restore(self, state: int) -> None:
        """Go on with names after so many."""

    def tensors(self, weights: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """A flat model as named tensors."""

    async def value(self, ref: Ref) -> NDArray[np.float32]:
        """The weights of a model."""

    async def values(self, refs: Sequence[Ref]) -> list[NDArray[np.float32]]:
        """The weights of several models, computed together."""

    async def losses(self, tested: Sequence[Ref]) -> list[NDArray[np.float64]] | None:
        """The objectives that choices were made by."""

    async def choices(self, tested: Sequence[Ref]) -> list[int] | None:
        """What choices were made: positions among the models of each."""

    async def evaluate(self, models: Mapping[str, tuple[Ref, Sequence[int] | None]]) -> Evaluation | None:
        """Test models on the devices that they serve."""

    async def evaluate_each(self, models: Sequence[tuple[Ref, int]]) -> Evaluation | None:
        """Test a model a device."""

    async def train_loss(self, updates: Sequence[tuple[Ref, float]]) -> float | None:
        """Weighted mean of the devices' own training losses."""

    async def discrepancy(self, pairs: Sequence[tuple[Ref, Ref]]) -> float | None:
        """Mean distance of updates from their centers."""
