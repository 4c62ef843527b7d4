"""Models as a strategy's server code uses them."""

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arguments import (
    CALLABLE,
    COUNT,
    FLAG,
    INDEX,
    LIST,
    STREAM_ID,
    ArgumentRule,
    is_number,
    is_text,
    list_of,
    optional,
    refusal,
    takes,
)
from fedsim.common.errors import SimulationError, show_value
from fedsim.common.former_names import warn_renamed
from fedsim.federation.argument_rules import (
    MODEL,
    MODELS,
    PAIRS,
    WEIGHTED_MODELS,
    WEIGHTS,
    devices_of,
)
from fedsim.federation.compute_queue import ComputeQueue
from fedsim.federation.contents import Lazy
from fedsim.learning.functions import Function
from fedsim.learning.refs import Ref, length_of

if TYPE_CHECKING:
    from fedsim.federation.evaluator import Evaluator
    from fedsim.learning import Learner


_READABLE = ("loss", "losses", "choice", "numbers")  # values of ``Lazy.what``


def _is_readable(value: object) -> bool:
    return isinstance(value, Lazy) and isinstance(value.ref, Ref) and value.what in _READABLE


def _is_stream(value: object) -> bool:
    """Return whether a value is the name of a random stream: a purpose, and numbers of -1 or more."""
    if not isinstance(value, tuple | list) or not value:
        return False
    return is_text(value[0]) and all(STREAM_ID.fits(None, number) for number in value[1:])


_STREAM = ArgumentRule(
    lambda _, value: _is_stream(value), "a tuple of a text and whole numbers of -1 or more"
)
_DEVICES = devices_of(attrgetter("_devices"))
_INPUTS = list_of(MODEL, "models", least=1)
_LAZY = list_of(
    ArgumentRule(
        lambda _, value: _is_readable(value), f"Lazy of a model, with {', '.join(_READABLE)}"
    ),
    "contents",
)


class ServerModels:
    """API of a strategy's server code for models: to create, mix, compute and test them.

    A model is a reference (``Ref``), whose weights are computed only when they are needed.

    - ``initial`` and ``zero`` return models to start from, ``given`` a model of weights that the
      strategy has computed, ``mix`` a weighted sum of models, and ``apply`` the result of a
      function of models. Nothing is computed at the call.
    - ``value`` and ``values`` compute the weights of models as arrays.
    - ``numbers`` returns numbers such as losses that devices have sent as ``Lazy`` contents, and
      ``choices`` the index of the best of several models, by each device's test. Such contents,
      too, are computed only when the strategy reads them.
    - ``test`` returns a model's accuracy, ``train_loss`` the mean loss of devices' trainings, and
      ``consensus`` how far devices' models are apart.

    A call with a wrong argument raises ``SimulationError``, which names the argument and its value.
    """

    def __init__(
        self,
        learner: "Learner",
        computations: ComputeQueue,
        evaluator: "Evaluator",
        parameters: int,
        devices: int,
    ) -> None:
        self._learner = learner
        self._computations = computations
        self._evaluator = evaluator
        self._parameters = parameters
        self._devices = devices  # count of devices

    @takes(count=COUNT)
    def initial(self, count: int = 0) -> Ref:
        """Return the name (``Ref``) of a freshly initialised model.

        With the same seed and ``count``, every strategy gets the same model.

        Args:
            count: index of the initialisation, from 0; each index has other weights.
        """
        return self._learner.initial(count)

    @takes(parts=LIST, otherwise=optional(MODEL), rescale=FLAG)
    def mix(
        self,
        parts: Sequence[tuple[Ref, float]],
        otherwise: Ref | None = None,
        *,
        rescale: bool = True,
    ) -> Ref:
        """Return the sum of models, each times its coefficient, added in the given order.

        Nothing is computed until a value is needed. Models with weights that are infinite or NaN
        are left out. The coefficients of the remaining models are then multiplied by a common
        factor, so that their sum is the sum of all coefficients.

        Args:
            parts: pairs of a model and its coefficient.
            otherwise: the model that replaces the sum if there is no sum: every model is left out,
                or some are left out and no factor exists, because the coefficients of all models
                or of the remaining models sum to 0. None: the result is NaN in these cases.
            rescale: whether coefficients are multiplied by this factor; False for sums of
                differences.

        Raises:
            SimulationError: an item of ``parts`` is no pair of a model (``Ref``) and a number, or
                the models differ in length.
        """
        self._check_parts(parts)
        # the simulated time of the operation, by ``[server] speed``
        self._computations.add("mix", len(parts), self._parameters)
        return self._learner.mix(parts, otherwise, rescale=rescale)

    @takes(weights=WEIGHTS)
    def given(self, weights: NDArray[np.floating]) -> Ref:
        """Return a name (``Ref``) for weights that the strategy has computed itself.

        Args:
            weights: the array of all d parameters, float [d], in the order in which ``value``
                returns them.

        Raises:
            SimulationError: the array has another shape, or no numbers.
        """
        return self._learner.given(weights)

    def zero(self) -> Ref:
        """Return the model whose weights are all 0."""
        return self._learner.zero()

    @takes(
        function=CALLABLE,
        models=_INPUTS,
        stream=optional(_STREAM),
        otherwise=optional(MODEL),
        leave_out=FLAG,
        size=optional(COUNT),
    )
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
        """Return the result of a pure function of models; it is computed when it is needed.

        Args:
            function: a function ``function(models, **constants)`` that takes a list of arrays,
                float32 [d] each, and returns an array [d]. The function is defined at the top of a
                module, marked by ``@pure``, does not change its arguments, and may run in any
                process.
            models: a list of models, passed to the function in this order.
            stream: name of the random generator that the function receives as ``rng``: a purpose (a
                word) and numbers such as the round; None if the function draws no random numbers.
            otherwise: the result if one of ``models`` is not finite; by default a model that is not
                finite.
            leave_out: whether models that are not finite are left out, as in ``mix``; ``otherwise``
                is then the result if no model remains.
            size: length of the result; None if the result is a model. If a size is given, the
                function receives all models, finite or not, whatever ``otherwise`` and
                ``leave_out`` are.
            constants: keyword arguments of the function, JSON-able.

        Returns:
            A model, or with ``size`` a ref of an array [size], which ``value`` computes.

        Raises:
            SimulationError: an argument is wrong, or the function is not marked by ``@pure``. If the
                function fails, ``value`` or a test raises the error.
        """
        # the simulated time of the operation, by ``[server] speed``
        self._computations.add("mix", len(models), self._parameters)
        full_stream = None if stream is None else (f"strategy/{stream[0]}", *stream[1:])
        options: dict[str, Any] = {
            "stream": full_stream,
            "otherwise": otherwise,
            "leave_out": leave_out,
            "size": size,
        }
        return self._learner.apply(function, models, **options, **constants)

    @property
    def learns(self) -> bool:
        """Whether models have weights; False with ``learning = "off"``."""
        return self._learner.learns

    @takes(model=MODEL)
    async def value(self, model: Ref) -> NDArray[np.float32]:
        """Return the weights of a model, which are computed if they are needed for the first time.

        Args:
            model: name (``Ref``) of the model.

        Returns:
            All parameters in one array, float32 [d], read-only.

        Raises:
            SimulationError: ``learning = "off"``, so that models have no weights (``learns``).
        """
        return await self._learner.value(model)

    @takes(models=MODELS)
    async def values(self, models: Sequence[Ref]) -> list[NDArray[np.float32]]:
        """Return the weights of several models, computed together; see ``value``.

        Args:
            models: a list of models.

        Returns:
            The weights of each model in this order, float32 [d] each.

        Raises:
            SimulationError: ``learning = "off"``, and the list is not empty.
        """
        return await self._learner.values(models)

    @takes(models=MODELS, stay=FLAG)
    async def note_skipped(self, models: Sequence[Ref], *, stay: bool = True) -> None:
        """Count the memory of models that the strategy would read here (``values``) with learning.

        With ``learning = "off"`` models have no weights, and a strategy calls this method in place
        of ``values``. ``fedsim check`` forecasts the memory of a run with learning from such a run
        without weights.

        Args:
            models: a list of models.
            stay: whether their weights would be in memory at the same time.
        """
        await self._learner.note_skipped(models, stay=stay)

    @takes(sent=_LAZY)
    async def numbers(self, sent: Sequence[Lazy]) -> list[NDArray[np.float64]]:
        """Return numbers that devices have sent as ``Lazy`` contents, and compute them if needed.

        A ``Lazy`` content is computed only when the server reads it by this method. The numbers are
        losses, the index of the best of several models, or results of ``Device.numbers``.

        Args:
            sent: a list of ``Lazy`` contents of the same kind, such as ``message["loss"]`` of
                several messages.

        Returns:
            A float64 array [count] for each content, ``count`` being ``Lazy.count``.

        Raises:
            SimulationError: ``learning = "off"``, and the list is not empty.
        """
        learner = self._learner
        if not sent:
            return []
        if not learner.learns:
            raise SimulationError(
                f'the strategy looks at {sent[0].what} that devices sent, but learning = "off" '
                'has none; set learning = "on"'
            )
        refs = [content.ref for content in sent]
        values = await learner.values(refs)  # computes all models together, before each is read
        match sent[0].what:
            case "loss":
                losses = [await learner.train_loss([(ref, 1.0)]) for ref in refs]
                return [np.array([math.nan if loss is None else loss]) for loss in losses]
            case "losses":
                return [np.asarray(ref.losses) for ref in refs]
            case "choice":
                return [np.array([ref.choice]) for ref in refs]
        return [value.astype(np.float64) for value in values]

    @takes(sent=_LAZY)
    async def choices(self, sent: Sequence[Lazy]) -> list[int]:
        """Return, for each of several devices, the index of the model that did best on its data.

        A device tests several models by an ``Evaluate`` step, and sends the index as
        ``Lazy("choice", ...)``, a content that is computed only when the server reads it by this
        method.

        Args:
            sent: the ``Lazy`` contents of the devices' messages, one for each device.

        Returns:
            For each content, the index of the best model among the models of the ``Evaluate`` step,
            from 0.

        Raises:
            SimulationError: ``learning = "off"``, and the list is not empty.
        """
        return [int(numbers[0]) for numbers in await self.numbers(sent)]

    @takes(updates=WEIGHTED_MODELS)
    async def train_loss(self, updates: Sequence[tuple[Ref, float]]) -> float | None:
        """Return the weighted mean of devices' training losses in their last local epoch.

        Args:
            updates: pairs of an update (``message["update"]``) and its weight. Updates without a
                finite loss are left out.

        Returns:
            The mean; None if no update has a loss, as with ``learning = "off"``.
        """
        return await self._learner.train_loss(updates)

    @takes(model=MODEL, devices=optional(_DEVICES))
    async def test(self, model: Ref, devices: Sequence[int] | None = None) -> float | None:
        """Return the accuracy of a model on test samples, at no cost in time or bytes.

        A real server could not measure this accuracy.

        Args:
            model: name (``Ref``) of the model.
            devices: a list of devices whose test samples are pooled; None: all devices.

        Returns:
            The share of right answers, 0 to 1; None if nothing was tested, as with ``learning =
            "off"``.
        """
        self._refuse_other("ServerModels.test", model)
        return await self._evaluator.test(model, devices)

    @takes(number=INDEX, models=MODELS)
    async def consensus(self, number: int, models: Sequence[Ref]) -> dict[str, float]:
        """Return how far the devices' models agree, in a strategy without a server.

        Models are compared only if ``[evaluation]`` has a test after the round.

        Args:
            number: index of the round, from 0.
            models: a list of the devices' models.

        Returns:
            ``consensus``, the root mean square distance of the models from their mean, and
            ``mean_accuracy``, the accuracy of that mean; empty if no test is due.
        """
        for model in models:
            self._refuse_other("ServerModels.consensus", model)
        return await self._evaluator.consensus(number, models)

    async def agreement(self, number: int, models: Sequence[Ref]) -> dict[str, float]:
        """Former name of ``consensus``.

        Args:
            number: index of the round, from 0.
            models: a list of the devices' models.
        """
        warn_renamed("ServerModels.agreement", "consensus")
        return await self.consensus(number, models)

    def _refuse_other(self, method: str, model: Ref) -> None:
        """Raise ``SimulationError`` if a ref is an array whose length differs from a model's."""
        length = length_of(model, self._parameters)
        if length not in (None, self._parameters):
            raise SimulationError(
                f"{method}: {model} is an array of {length} numbers; allowed are models, of "
                f"{self._parameters}"
            )

    def _check_parts(self, parts: Sequence[object]) -> None:
        """Check the argument ``parts`` of ``mix``: pairs of a model and a number, of equal lengths.

        Raises:
            SimulationError: an item is no such pair, or the models differ in length.
        """
        lengths = set[int]()
        for part in parts:
            if not isinstance(part, PAIRS) or len(part) != 2 or not is_number(part[1]):
                raise refusal(
                    "ServerModels.mix", "an item of parts", part, "a pair (model, number)"
                )
            model = part[0]
            if not isinstance(model, Ref):
                hint = (
                    "if it comes from 'state', the loop may keep an entry of that name there: use "
                    "another name"
                )
                raise SimulationError(
                    f"mix is given {show_value(model)}; a model (Ref) is needed; {hint}"
                )
            length = length_of(model, self._parameters)  # None: unknown before it is computed
            if length is not None:
                lengths.add(length)
        if len(lengths) > 1:
            raise SimulationError(
                f"ServerModels.mix: parts are arrays of {' and '.join(map(str, sorted(lengths)))} "
                "numbers; allowed are equal lengths"
            )
