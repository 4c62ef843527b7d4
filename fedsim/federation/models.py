"""Models in the hands of a server half: names that it combines, and values that it asks for."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError
from fedsim.federation.contents import Lazy
from fedsim.learning.functions import Function
from fedsim.learning.refs import Ref

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch


class ServerModels:
    """Arithmetic with models, and their values. What is named is computed when a value is asked for."""

    def __init__(self, dispatch: "Dispatch", parameters: int) -> None:
        self._dispatch = dispatch
        self._learner = dispatch.learner
        self._parameters = parameters

    def initial(self, count: int = 0) -> Ref:
        """A freshly initialised model; another ``count`` is another draw. The same for every strategy with the same seed."""
        return self._learner.initial(count)

    def mix(self, parts: Sequence[tuple[Ref, float]], otherwise: Ref | None = None, *, rescale: bool = True) -> Ref:
        """The linear combination sum of coefficient x model, in the order given; not computed until it is needed.

        Updates that are not finite are left out, the other coefficients rescaled to the same sum (``rescale = False``: left
        as they are, right for a sum of differences). ``otherwise`` stands in when nothing is left, or when what is left sums
        to 0; without it the mix is then itself not finite.
        """
        self._dispatch.compute("mix", len(parts), self._parameters, 1)
        return self._learner.mix(parts, otherwise, rescale=rescale)

    def given(self, weights: NDArray[np.floating]) -> Ref:
        """The model that has these weights, an array [d]."""
        return self._learner.given(weights)

    def zero(self) -> Ref:
        """The model whose weights are all 0."""
        return self.given(np.zeros(self._parameters, dtype=np.float32))

    def apply(
        self,
        function: "Function",
        models: Sequence[Ref],
        *,
        stream: tuple[Any, ...] | None = None,
        otherwise: Ref | None = None,
        leave_out: bool = False,
        size: int | None = None,
        **constants: Any,
    ) -> Ref:
        """The result of a pure function of models; not computed until it is needed.

        Args:
            function: ``function(models, **constants)`` of a list of arrays, float32 [d] each, gives an array [d]. It stands at
                the top of a module, is marked by ``@pure``, changes nothing that it is given, and may run in any process.
            models: what it is given.
            stream: a purpose, and numbers: the function is given ``rng`` too, the generator of the strategy's so named.
            otherwise: stands in where one of ``models`` is not finite; without it the result is then itself not finite.
            leave_out: a model that is not finite is left out instead, as in ``mix``; ``otherwise`` stands in for none at all.
            size: how many numbers the function gives; None for a model. With a number it is given all models, finite or not.
            constants: what else the function is given; JSON-able.
        """
        self._dispatch.compute("mix", len(models), self._parameters, 1)
        named = None if stream is None else (f"strategy/{stream[0]}", *stream[1:])
        how: dict[str, Any] = {"stream": named, "otherwise": otherwise, "leave_out": leave_out, "size": size}
        return self._learner.apply(function, models, **how, **constants)

    @property
    def learns(self) -> bool:
        """Whether models have weights; not with ``learning = "off"``, where who decides by values must decide otherwise."""
        return self._learner.learns

    async def value(self, model: Ref) -> NDArray[np.float32]:
        """The weights, flat, float32 [d]. Forces them to be computed."""
        return await self._learner.value(model)

    async def values(self, models: Sequence[Ref]) -> list[NDArray[np.float32]]:
        """The weights of several models, computed together."""
        return await self._learner.values(models)

    async def numbers(self, sent: Sequence[Lazy]) -> list[NDArray[np.float64]]:
        """Numbers that devices have sent, an array each; all of one kind.

        Raises:
            SimulationError: without learning there are none.
        """
        learner, refs = self._learner, [content.ref for content in sent]
        if not sent:
            return []
        if not learner.learns:
            raise SimulationError(
                f'the strategy looks at {sent[0].what} that devices sent, but learning = "off" has none; set learning = "on"'
            )
        match sent[0].what:
            case "loss":
                await learner.values(refs)  # as one cohort
                losses = [await learner.train_loss([(ref, 1.0)]) for ref in refs]
                return [np.array([math.nan if loss is None else loss]) for loss in losses]
            case "losses":
                return await learner.losses(refs) or []
            case "choice":
                return [np.array([choice]) for choice in await learner.choices(refs) or []]
        return [value.astype(np.float64) for value in await learner.values(refs)]

    async def choices(self, sent: Sequence[Lazy]) -> list[int]:
        """The one whole number that each device has sent: which model it chose, say."""
        return [int(numbers[0]) for numbers in await self.numbers(sent)]

    async def train_loss(self, updates: Sequence[tuple[Ref, float]]) -> float | None:
        """The weighted mean of what devices report as their training loss; None where there is none."""
        return await self._learner.train_loss(updates)

    async def test(self, model: Ref, devices: Sequence[int] | None = None) -> float | None:
        """Accuracy of a model on the pooled test samples of devices (None: all); None where nothing is measured.

        Moves no bytes and takes no time: a strategy whose devices report their accuracies asks them for that message too.
        """
        return await self._dispatch.evaluator.test(model, devices)

    async def agreement(self, number: int, models: Sequence[Ref]) -> dict[str, float]:
        """See ``Evaluator.agreement``."""
        return await self._dispatch.evaluator.agreement(number, models)
