"""Computation of models on a simulation's executor, in one of two orders.

The parents of a model are the models from which it is computed. If memory suffices, models are
computed in waves: a wave is a list of models whose parents are computed already, and its models are
computed together. Otherwise module ``streaming`` computes the models one by one, and frees each
model after its last use.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from fedsim.clock.simulation import Simulation
from fedsim.common.streams import Streams
from fedsim.learning import scratch
from fedsim.learning.data.federated import FederatedData
from fedsim.learning.derived import derived_of
from fedsim.learning.functions import (
    FunctionCall,
    NamedStream,
    carry_out_all,
    function_at,
    weighted_sum,
)
from fedsim.learning.local_work import LocalWork
from fedsim.learning.refs import (
    Applied,
    Best,
    Initial,
    Mixed,
    Recipe,
    Ref,
    Trained,
    Waves,
    weights_of,
)
from fedsim.learning.resident_models import (
    MixSum,
    ResidentModels,
    ResidentScratch,
    ResidentWeights,
)
from fedsim.learning.scratch import ComputedWeights, Scratch, Weights
from fedsim.learning.streaming import WAITING, ResultOf, Stream
from fedsim.learning.sums import coefficients_of, state_of

# requests per worker and wave; with fewer, workers would idle at a wave's end
_REQUESTS_PER_WORKER = 8


class _DelayedRecord(NamedTuple):
    """Record about the computation of a model, which is written once all models are computed.

    Attributes:
        serial: serial of the model, the count of models (``Ref``) that were created before it.
        kind: kind of the record, such as ``non-finite``.
        fields: values of the record by name.
    """

    serial: int
    kind: str
    fields: dict[str, Any]


class ModelComputing:
    """Computes models: results of local trainings, weighted sums, and other functions of models.

    A model is a ``Ref``, whose recipe is the computation that gives its weights, such as a training
    from another model. ``compute`` computes the weights, and before them the weights of the models
    that the recipe needs, which are the model's parents. Workers compute trainings and functions.

    Args:
        simulation: the simulation, whose executor has the workers.
        work: prepares jobs for the workers: local trainings, and choices of the best of several
            models on a device's data.
        models: store of the models on the torch device of the trainings.
        data: the data of all devices.
        streams: the random streams of the run.
        initial: returns the weights of an initial model, float32 [d], for its index.
        parameters: count of weights of a model, d.
        memory_bytes: memory for models; if it does not suffice for all, they are computed one by
            one. None for 256 MiB (``scratch.MEMORY_BYTES``).

    Attributes:
        may_wait: whether the simulation may handle events while it waits for the workers.
        scratch: storage of computed models, on the torch device, in memory and on disk.
    """

    def __init__(
        self,
        simulation: Simulation,
        work: LocalWork,
        models: ResidentModels,
        data: FederatedData,
        streams: Streams,
        initial: Callable[[int], Weights],
        parameters: int,
        memory_bytes: float | None = None,
    ) -> None:
        self._simulation = simulation
        self._work = work  # makes the jobs of trainings and choices, and carries them out
        self._models = models  # store of models on the torch device
        self._data = data
        self._streams = streams
        self._initial = initial  # index of an initial model -> its weights
        self.parameters = parameters  # count of weights of a model
        self.memory_bytes = scratch.MEMORY_BYTES if memory_bytes is None else memory_bytes
        self.workers = simulation.executor.workers
        self.may_wait = True
        self.scratch = Scratch(self.memory_bytes)
        if models.stays:
            self.scratch = ResidentScratch(self.memory_bytes, models)
        # records that are written once all models are computed one by one; None at other times
        self._records: list[_DelayedRecord] | None = None

    async def compute(self, targets: Iterable[Ref], *, stay: bool = True) -> None:
        """Compute models, and before them all models that they need, and store their weights.

        Args:
            targets: the models; computed models are skipped.
            stay: whether the weights of all targets are in memory at the end, for a caller that
                reads all of them next; False lets ``scratch`` store some of them on disk. Without
                effect if the memory for models suffices for all models of the computation.
        """
        models = list(targets)
        waves = Waves(models)
        if self.has_room(len(waves)):
            await self._compute_waves(waves)
            return
        # serial -> position in the order of waves, in which records are written
        positions = {ref.serial: index for index, ref in enumerate(chain.from_iterable(waves))}
        del waves  # would keep all models in memory
        self._records = []
        try:
            await Stream(self, self.scratch).compute(models, stay=stay)
            records = sorted(self._records, key=lambda record: positions[record.serial])
        finally:
            self._records = None
        for record in records:
            self._simulation.record(record.kind, record.fields)

    def _record(self, ref: Ref, kind: str, fields: dict[str, Any]) -> None:
        """Write a record of the simulation about the computation of a model.

        If models are computed one by one, ``compute`` writes the record at its end, because the
        order of records must be as in a computation in waves.

        Args:
            ref: the model.
            kind: kind of the record, such as ``non-finite``.
            fields: values of the record by name.
        """
        if self._records is None:
            self._simulation.record(kind, fields)
        else:
            self._records.append(_DelayedRecord(ref.serial, kind, fields))

    # methods of ``streaming.Calculator``, which compute one model at a time

    @property
    def at_once(self) -> int:
        """Count of trainings that a worker computes together."""
        return self._work.at_once

    def begin(self, refs: Sequence[Ref]) -> list[ResultOf | Weights | ComputedWeights]:
        """Begin to compute models, without waiting for the workers' results.

        Args:
            refs: the models; no weighted sum (``Mixed``) is allowed among them. The models from
                which they are computed must be computed already.

        Returns:
            For each model a ``ResultOf`` (future) if a worker computes it, else its weights, as an
            array (``Weights``) or on a torch device (``ComputedWeights``).
        """
        results: dict[int, ResultOf | Weights | ComputedWeights] = {}  # index in ``refs`` -> result
        trained: list[int] = []  # positions of the models that are results of trainings
        for position, ref in enumerate(refs):
            if isinstance(ref.recipe, Trained):
                trained.append(position)
            else:
                results[position] = self._begin(ref)
        jobs = [self._work.job(refs[position], self._data) for position in trained]
        order = self._work.order(jobs)
        for start in range(0, len(order), self.at_once):
            chunk = order[start : start + self.at_once]
            future = self._simulation.submit(self._work.train, [jobs[index] for index in chunk])
            for result_position, index in enumerate(chunk):
                results[trained[index]] = ResultOf(future, result_position)
        return [results[position] for position in range(len(refs))]

    def _begin(self, ref: Ref) -> ResultOf | Weights | ComputedWeights:
        recipe = ref.recipe
        submit = self._simulation.submit
        if isinstance(recipe, Best):
            return ResultOf(submit(self._work.objectives, [self._work.choice_job(ref, self._data)]))
        if isinstance(recipe, Initial):
            return self._initial(recipe.count)
        call = self._prepare_call(ref)
        if isinstance(call, FunctionCall):
            return ResultOf(submit(carry_out_all, [call]))
        return call

    async def wait(self, work: "ResultOf") -> Any:
        """Wait for a result that a worker computes, and return it.

        Args:
            work: future of a list of results, and the index of this result, as ``begin`` returns
                them.

        Returns:
            A ``TrainedModel`` for a training, the objective (loss plus L2 penalty) of each
            candidate for a choice among models, or the values of a function.
        """
        results = await self._wait_for(work.future)
        return results[work.position]

    def finish(self, ref: Ref, result: Any) -> None:
        """Store the result of a computation in its model.

        Args:
            ref: the model.
            result: the weights that ``begin`` has returned, or the result of ``wait``.
        """
        recipe = ref.recipe
        if isinstance(recipe, Trained):
            self._settle_training(ref, recipe.round, result)
        elif isinstance(recipe, Best):
            ref.choose(result)
        else:
            ref.settle(result)

    def note_left_out(self, ref: Ref, models: Sequence[Ref]) -> None:
        """Write records that a model is computed without some models, whose weights are not finite.

        Args:
            ref: the model that is computed.
            models: the models that are left out; each gets one record ``non-finite``.
        """
        for model in models:
            self._record(ref, "non-finite", {"device": model.device, "ref": model.name})

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Return a context in which computations write no records.

        It is used for models that are computed a second time, whose records were written in the
        first computation.
        """
        records = self._records
        self._records = []
        try:
            yield
        finally:
            self._records = records

    # computation in waves (lists of models that are computed together), for which memory must have
    # room for all models; with less room, ``Stream`` computes them one by one

    async def _compute_waves(self, waves: Waves) -> None:
        """Compute waves of models in order; the recipes in a wave are all of the same type."""
        for wave in waves:
            first = wave[0]  # the wave's only model, if it is an initial model or a mix
            recipe = first.recipe
            recipes = [ref.recipe for ref in wave]  # a computed model drops its recipe
            if isinstance(recipe, Trained):
                await self._train(wave)
            elif isinstance(recipe, Best):
                await self._choose(wave)
            elif isinstance(recipe, Applied):
                await self._apply(wave)
            elif isinstance(recipe, Initial):
                first.settle(self._initial(recipe.count))
            elif isinstance(recipe, Mixed):
                first.settle(self._mix(first, recipe))
                if first.state is not None:
                    models = [model for model, _ in recipe.parts]
                    finite = [model.finite for model in models]
                    first.state = state_of(recipe, finite, [model.state for model in models])
            self._hold(wave, recipes)

    def _hold(self, wave: Sequence[Ref], recipes: Sequence[Recipe | None]) -> None:
        """Put the weights of a wave's models into ``scratch``, which limits the memory of models.

        Args:
            wave: the models, computed.
            recipes: the recipe of each model, which the model itself has dropped.
        """
        for ref, computed in zip(wave, recipes, strict=True):
            if isinstance(computed, Best):  # a choice shares the memory of the chosen model
                continue
            models = computed.models if isinstance(computed, Applied) else ()
            self.scratch.hold(ref, derived_of(computed, models))

    async def _choose(self, refs: Sequence[Ref]) -> None:
        jobs = [self._work.choice_job(ref, self._data) for ref in refs]
        results = await self._submit_chunks(self._work.objectives, jobs)
        for ref, objectives in zip(refs, results, strict=True):
            ref.choose(objectives)

    async def _apply(self, refs: Sequence[Ref]) -> None:
        """Compute results of functions of models, on the workers if a function must be called."""
        called = []
        calls = []
        for ref in refs:
            call_or_weights = self._prepare_call(ref)
            if isinstance(call_or_weights, FunctionCall):
                called.append(ref)
                calls.append(call_or_weights)
            else:
                ref.settle(call_or_weights)
        values = await self._submit_chunks(carry_out_all, calls)
        for ref, value in zip(called, values, strict=True):
            ref.settle(value)

    def _prepare_call(self, ref: Ref) -> FunctionCall | Weights | ResidentWeights:
        """Return the function call by which a worker computes a model, or the model's weights.

        There are two cases without a call. The first is that the function cannot be applied: no
        model that it needs has finite weights, or one of them is not finite and the recipe does not
        leave models out. Then ``recipe.otherwise`` gives the weights. The second is a
        weighted sum with a model on the torch device, which is computed there.

        Args:
            ref: the model, which is the result of a function of models.
        """
        recipe = ref.recipe
        assert isinstance(recipe, Applied)
        models = list(recipe.models)
        if recipe.size is None:  # functions with a size, such as ``taken``, get all models
            models = self._filter_finite(ref, models)
        is_incomplete = len(models) < len(recipe.models)
        if not models or (is_incomplete and not recipe.leave_out):
            return self.substitute(recipe.otherwise)
        function = function_at(recipe.function)
        if function is weighted_sum and _are_resident(models):
            return self._add_up(models, recipe.constants["coefficients"])
        stream = None if recipe.stream is None else NamedStream(self._streams, recipe.stream)
        weights = self.read(models)
        return FunctionCall(function, weights, recipe.constants, stream, recipe.size)

    async def _train(self, refs: Sequence[Ref]) -> None:
        jobs = [self._work.job(ref, self._data) for ref in refs]
        results = await self._submit_chunks(
            self._work.train, jobs, self._work.order(jobs), self._work.at_once
        )
        for ref, job, solved in zip(refs, jobs, results, strict=True):
            self._settle_training(ref, job.recipe.round, solved)

    def _settle_training(self, ref: Ref, round_number: int, solved: Any) -> None:
        if solved.numbers:
            fields: dict[str, Any] = {"numbers": dict(solved.numbers), "device": ref.device}
            fields["round"] = round_number
            fields["ref"] = ref.name
            self._record(ref, "reported", fields)
        ref.settle(solved.weights, solved.train_loss, solved.numbers)
        ref.state = solved.state or ref.state

    async def _submit_chunks(
        self,
        work: Callable[..., Any],
        items: Sequence[Any],
        order: Sequence[int] | None = None,
        at_once: int = 1,
    ) -> list[Any]:
        """Apply a function to chunks of items on the workers, and wait for all results.

        Args:
            work: returns a list with one result for each item of its argument, a list.
            items: the items.
            order: indices of the items in the order of submission; None for ascending order.
            at_once: count of items that ``work`` processes together; the size of a chunk is a
                multiple of it.

        Returns:
            The result for each item, in the order of ``items``.
        """
        if order is None:
            order = range(len(items))
        # the least multiple of ``at_once`` that makes at most ``most_requests`` chunks
        most_requests = _REQUESTS_PER_WORKER * self._simulation.executor.workers
        least_size = max(1, math.ceil(len(items) / most_requests))
        chunk_size = math.ceil(least_size / at_once) * at_once
        requests = []
        for start in range(0, len(items), chunk_size):
            positions = order[start : start + chunk_size]
            requests.append(([items[position] for position in positions],))
        chunks = await self.submit_all(work, requests)
        results = dict(zip(order, chain(*chunks), strict=True))
        return [results[position] for position in range(len(items))]

    async def submit_all(
        self, function: Callable[..., Any], requests: Iterable[tuple[Any, ...]], models: int = 0
    ) -> list[Any]:
        """Submit requests to the workers, and wait for the result of each.

        Args:
            function: carries out a request on a worker.
            requests: the arguments of each request.
            models: count of models in each request. The requests in progress are limited so that
                their models fit into the memory for models; 0 for no limit.

        Returns:
            The results, in the order of ``requests``.
        """
        results = []
        pending: deque[Future[Any]] = deque()
        always_allowed = WAITING * self.workers  # count of requests that keeps all workers busy
        for request in requests:
            pending.append(self._simulation.submit(function, *request))
            del request  # so that its models can be freed before the next request is made
            while len(pending) >= always_allowed and not self.has_room(models * len(pending)):
                results.append(await self._wait_for(pending.popleft()))
        while pending:
            results.append(await self._wait_for(pending.popleft()))
        return results

    def has_room(self, models: int) -> bool:
        """Return whether the memory for models suffices for ``models`` models at a time."""
        return 4.0 * self.parameters * models <= self.memory_bytes

    def models_at_once(self, most: int) -> int:
        """Return how many models to put into one request to a worker, given the memory for models.

        Args:
            most: count of models if memory does not limit it.
        """
        # memory for one model in each request that may be in progress (bytes)
        size = 4.0 * self.parameters * WAITING * self.workers
        return max(1, min(most, int(self.memory_bytes / size)))

    async def _wait_for(self, future: "Future[Any]") -> Any:
        return await self._simulation.join(future) if self.may_wait else future.result()

    def _mix(self, ref: Ref, recipe: Mixed) -> Weights | ResidentWeights:
        """Compute the weighted sum of the finite models of a mix, float32 [d].

        Args:
            ref: the model that is computed, for records.
            recipe: the mix: its models, which are computed already, and their coefficients.
        """
        models = self._filter_finite(ref, [model for model, _ in recipe.parts])
        coefficients = coefficients_of(recipe, [model.finite for model, _ in recipe.parts])
        if coefficients is None:  # no model is finite, or the coefficients cannot be rescaled
            return self.substitute(recipe.otherwise)
        if not models:  # the mix has no models at all
            return self.nothing()
        if _are_resident(models):
            return self._add_up(models, coefficients)
        return weighted_sum([weights_of(model) for model in models], coefficients)

    def _add_up(
        self, models: Sequence[Ref], coefficients: Sequence[float]
    ) -> Weights | ResidentWeights:
        total = self.new_sum()
        for model, coefficient in zip(models, coefficients, strict=True):
            total.add(model, coefficient)
        return total.result()

    def read(self, models: Sequence[Ref]) -> list[Weights]:
        """Return the weights of computed models, float32 [d] each, on the host.

        The models that lie on the torch device are moved to the host, all in one copy.
        """
        if isinstance(self.scratch, ResidentScratch):
            self.scratch.bring_back(models)
        return [weights_of(model) for model in models]

    def new_sum(self) -> MixSum:
        """Return an empty sum, to which models on the host or torch device are added one by one."""
        return self._models.new_sum(self.parameters)

    def nothing(self) -> Weights:
        """Return the weighted sum of no models: zeros, float32 [d]."""
        return np.zeros(self.parameters, dtype=np.float32)

    def _filter_finite(self, ref: Ref, models: Sequence[Ref]) -> list[Ref]:
        """Return the models with finite weights, and record all other models as left out.

        Args:
            ref: the model that is computed from ``models``.
            models: the models.
        """
        self.note_left_out(ref, [model for model in models if not model.finite])
        return [model for model in models if model.finite]

    def substitute(self, otherwise: Ref | None) -> Weights | ResidentWeights:
        """Return the weights that a model gets if its computation (recipe) has no valid result.

        An example is a mix (weighted sum) of models of which none has finite weights.

        Args:
            otherwise: the model whose weights are used instead (``otherwise`` of the recipe),
                computed; None if the recipe names none.

        Returns:
            float32 [d]; NaN if ``otherwise`` is None.
        """
        if otherwise is None:
            return np.full(self.parameters, np.nan, dtype=np.float32)
        if isinstance(otherwise.held, ResidentWeights):
            return otherwise.held
        return weights_of(otherwise)


def _are_resident(models: Sequence[Ref]) -> bool:
    """Return whether at least one of several computed models lies on the torch device."""
    return any(isinstance(model.held, ResidentWeights) for model in models)
