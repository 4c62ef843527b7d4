"""Computation of many large models, in memory that does not grow with the count of models.

Models are computed in the order in which mixes (weighted sums) need them. A mix is an accumulator:
each part is added as soon as it and all previous parts are computed, and is then freed. Few models
are in memory at a time: the accumulators, and the results that workers have ready or in progress.

Python's garbage collection decides which models may be freed. The graph of recipes is first copied
into ``Twin`` objects, and removed from the models themselves. A model that is still alive has a
reference in a strategy's state, a message in transfer, the evaluation, or a recipe that is to be
computed later. The weights of such a model go to ``Scratch``. All further models are freed, and
keep the recipe by which they can be computed again.
"""

import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol

from fedsim.common.arrays import AnyArray
from fedsim.common.machine import return_memory
from fedsim.learning.derived import Derived, derived_of
from fedsim.learning.refs import (
    Applied,
    Best,
    Mixed,
    Recipe,
    Ref,
    parents,
    with_models_replaced,
)
from fedsim.learning.scratch import ComputedWeights, Scratch, Weights
from fedsim.learning.sums import coefficients_of, state_of

WAITING = 2
"""Results per worker that may be in progress, or ready and not yet used."""

_AHEAD = 8  # later steps that are searched for further work, per result that may be in progress
_RETURNED = 1 << 28  # size of freed models after which memory is given back to the system (bytes)
# from this depth of nested mixes on, a sum begins once all parts are computed, to bound memory
_OPEN_SUMS = 3


class ResultOf(NamedTuple):
    """Future result of a model that a worker computes together with other models.

    Attributes:
        future: future of a list of results.
        place: index of the model's result.
    """

    future: "Future[Any]"
    place: int = 0


class PartSum(Protocol):
    """Interface of a weighted sum of models, to which computed models are added one by one."""

    def add(self, ref: Ref, coefficient: float) -> None:
        """Add a computed model times its coefficient."""

    def result(self) -> Weights | ComputedWeights:
        """Return the sum so far, float32 [d]."""


class Calculator(Protocol):
    """Interface by which a ``Stream`` computes single models; ``ModelComputing`` implements it.

    The models from which a model is computed, its parents, must be computed before it.

    Attributes:
        workers: count of workers.
        at_once: count of trainings that a worker computes together.
    """

    workers: int

    @property
    def at_once(self) -> int: ...

    def begin(self, refs: Sequence[Ref]) -> list[ResultOf | Weights | ComputedWeights]:
        """Begin to compute models that are no mixes (weighted sums), without waiting for workers.

        Returns:
            For each model its weights, or a future and the index of the model's result in it.
        """

    def finish(self, ref: Ref, result: Any) -> None:
        """Store the result of a computation in its model.

        Args:
            ref: the model.
            result: the weights that ``begin`` has returned, or the worker's result.
        """

    async def wait(self, work: ResultOf) -> Any:
        """Wait for a result that ``begin`` has requested from a worker, and return it."""

    def note_left_out(self, ref: Ref, models: Sequence[Ref]) -> None:
        """Record that the mix ``ref`` leaves out ``models``, whose weights are not finite."""

    def new_sum(self) -> PartSum:
        """Return an empty sum of models."""

    def substitute(self, otherwise: Ref | None) -> Weights | ComputedWeights:
        """Return the weights that a mix gets if, for instance, all its models have non-finite ones.

        Args:
            otherwise: the model whose weights replace the sum (``Mixed.otherwise``), computed.

        Returns:
            float32 [d]; NaN if ``otherwise`` is None, as the mix names no such model.
        """

    def nothing(self) -> Weights:
        """Return the weighted sum of no models: zeros, float32 [d]."""

    def muted(self) -> AbstractContextManager[None]:
        """Return a context in which computations write no records, for models computed again."""


@dataclass(slots=True, eq=False, repr=False)
class Twin(Ref):
    """Temporary copy of a model that stands for it during a computation with little memory.

    The twin takes the recipe (how the model is computed) from the model, which then refers to no
    other models, so that these can be freed.

    Attributes:
        original: weak reference to the model that was copied, which gets the result.
        uses: count of later steps of the computation that need the model's weights.
        children: count of occurrences of the model in recipes of other twins, which may compute it
            again.
        stays: whether the weights must stay in memory after the computation.
        spare: recipe of a computed model; ``recipe`` gets it back when the weights are freed, so that
            the model can be computed again.
    """

    original: "weakref.ref[Ref] | None" = None
    uses: int = 0
    children: int = 0
    stays: bool = False
    spare: Recipe | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.name, self.serial, None, self.device, self.held, self.finite, None, None)
        return Ref, (*fields, None, self.state)

    @property
    def outside(self) -> Ref | None:
        """The model of which this is a copy; None if it is not in use any more."""
        return None if self.original is None else self.original()


def twins_of(targets: Sequence[Ref], *, stay: bool, again: bool = False) -> list[Twin]:
    """Make twins, temporary copies, of models and of all uncomputed models that they need.

    A twin takes the recipe of its model.

    Args:
        targets: models to compute; computed models are skipped.
        stay: whether the weights of the targets must stay in memory after the computation.
        again: whether models are computed a second time. The models that the targets need are then
            twins of the first computation, which keep their recipes and get no result.

    Returns:
        The twins of the uncomputed targets, without duplicates.
    """
    twins: dict[Ref, Twin] = {}
    recipes: dict[Ref, Recipe] = {}
    computed: dict[Ref, Ref] = {}
    stack = list(targets)
    while stack:
        ref = stack.pop()
        recipe = ref.recipe
        if recipe is None or ref in twins:
            continue
        # no twin is needed if the original has weights by now
        original = ref.outside if isinstance(ref, Twin) else None
        if original is not None and original.held is not None:
            computed[ref] = original
            continue
        twins[ref] = Twin(ref.name, ref.serial, None, ref.device, loss=ref.loss, state=ref.state)
        recipes[ref] = recipe
        stack += parents(recipe)
    replacements: dict[Ref, Ref] = {**twins, **computed}
    for ref, twin in twins.items():
        recipe = with_models_replaced(recipes[ref], replacements)
        twin.recipe = recipe
        for parent in parents(recipe):
            if isinstance(parent, Twin):
                parent.uses += 1
                parent.children += 1
        if not again or ref in targets:
            twin.original = weakref.ref(ref)
            ref.recipe = None
    target_twins = [twins[ref] for ref in dict.fromkeys(targets) if ref in twins]
    for twin in target_twins:
        twin.stays = stay
    return target_twins


class ModelStep(NamedTuple):
    """Step of a computation of models: compute a model, add a part to a sum, or finish a sum.

    Attributes:
        ref: the model to compute, or the weighted sum.
        part: index of the model in ``ref.recipe.parts`` that is added to the sum ``ref``; None to
            compute the model ``ref``, or to finish the sum.
    """

    ref: Twin
    part: int | None = None


def steps_of(targets: Sequence[Twin]) -> deque[ModelStep]:
    """Return the steps that compute models, each after the steps of the models that it needs.

    The parts of a sum are in order. Values that are taken from a model, such as the tensors that a
    device keeps, come right after the model, which then need not stay in memory for them.
    """
    return _Planner(targets).steps


class _Needed(NamedTuple):
    """Model that a later step needs.

    Attributes:
        ref: the model.
        depth: count of sums that are in progress while the model is computed.
    """

    ref: Ref
    depth: int


class _Planner:
    """Planner of the steps that compute models.

    Args:
        targets: the models.

    Attributes:
        steps: the steps, in order.
    """

    def __init__(self, targets: Sequence[Twin]) -> None:
        self.steps: deque[ModelStep] = deque()
        self._visited: set[Twin] = set()
        self._planned: set[Ref] = set()
        self._taken = _taken_from(targets)
        for target in targets:
            self._plan(target)

    def _plan(self, target: Twin) -> None:
        """Append the steps of a model, and before them the steps of all models that it needs.

        A stack of iterators replaces recursion, as chains of models may be of any length.
        """
        stack = [iter([_Needed(target, 0)])]
        while stack:
            needed = next(stack[-1], None)
            if needed is None:
                stack.pop()
                continue
            ref, depth = needed
            if isinstance(ref, Twin) and ref.recipe is not None and ref not in self._visited:
                self._visited.add(ref)
                stack.append(self._visit(ref, ref.recipe, depth))

    def _visit(self, ref: Twin, recipe: Recipe, depth: int) -> Iterator[_Needed]:
        """Append the steps of a model, and yield each model that it needs before the step with it.

        The caller appends the steps of a yielded model before it takes the next one.
        """
        if isinstance(recipe, Mixed):
            yield from self._visit_mix(ref, recipe, depth)
        else:
            for parent in parents(recipe):
                yield _Needed(parent, depth)
        self._append(ref)

    def _visit_mix(self, ref: Twin, recipe: Mixed, depth: int) -> Iterator[_Needed]:
        opens_early = depth < _OPEN_SUMS
        if not opens_early:  # all parts are computed before the sum begins
            for part, _ in recipe.parts:
                yield _Needed(part, depth)
        for position, (part, _) in enumerate(recipe.parts):
            if opens_early:
                is_open = position > 0  # the sum takes up memory from its first part on
                yield _Needed(part, depth + 1 if is_open else depth)
            self.steps.append(ModelStep(ref, position))
        if recipe.otherwise is not None:
            yield _Needed(recipe.otherwise, depth)

    def _append(self, ref: Twin) -> None:
        """Append the step that computes a model, and the steps of values that are taken from it."""
        waiting = [ref]
        while waiting:
            computed = waiting.pop()
            self.steps.append(ModelStep(computed))
            self._planned.add(computed)
            for values in self._taken.get(computed, ()):
                if values not in self._visited and _has_all(values, self._planned):
                    self._visited.add(values)
                    waiting.append(values)


def _taken_from(targets: Sequence[Twin]) -> dict[Twin, list[Twin]]:
    """Map uncomputed models to the values that are taken from them, such as a device's tensors.

    Such values are results of functions that have a size (``Applied.size``), as they are no models.
    """
    taken: dict[Twin, list[Twin]] = {}
    seen: set[Twin] = set()
    waiting = list(targets)
    while waiting:
        ref = waiting.pop()
        if ref in seen or ref.recipe is None:
            continue
        seen.add(ref)
        sources = [parent for parent in parents(ref.recipe) if isinstance(parent, Twin)]
        if isinstance(ref.recipe, Applied) and ref.recipe.size is not None:
            for source in sources:
                taken.setdefault(source, []).append(ref)
        waiting += sources
    return taken


def _has_all(ref: Twin, done: Set[Ref]) -> bool:
    """Return whether all models that a model needs are computed, or are in ``done``.

    Args:
        ref: the model.
        done: models that earlier steps will have computed.
    """
    assert ref.recipe is not None
    return all(parent.recipe is None or parent in done for parent in parents(ref.recipe))


@dataclass(slots=True, eq=False)
class _Sum:
    """Weighted sum of models of which some parts are added already.

    Attributes:
        total: the sum so far; None before the first part, and if the sum must be repeated.
        finite: for each part so far, whether its weights are finite.
        repeat: whether the sum must be computed again, because a part was not finite and the
            coefficients of all other parts are thus rescaled.
        states: the trainer's state of each part so far; empty if the mix has no state.
    """

    total: PartSum | None = None
    finite: list[bool] = field(default_factory=list)
    repeat: bool = False
    states: list[Mapping[str, AnyArray] | None] = field(default_factory=list)


class Stream:
    """Computation of models one by one, which frees each model after its last use.

    Args:
        calculator: computes single models.
        scratch: stores computed models that are still referenced.
    """

    def __init__(self, calculator: Calculator, scratch: Scratch) -> None:
        self._calculator = calculator
        self._scratch = scratch
        self._freed_bytes = 0

    async def compute(self, targets: Sequence[Ref], *, stay: bool) -> None:
        """Compute models, and before them all models that they need.

        Args:
            targets: the models; computed models are skipped.
            stay: whether the targets' weights stay in memory; otherwise ``Scratch`` stores them.
        """
        twins = twins_of(targets, stay=stay)
        try:
            await self._compute_all(twins)
        except BaseException:
            _restore(twins)
            raise

    async def _compute_all(self, twins: Sequence[Twin]) -> None:
        steps = steps_of(twins)
        waiting: dict[Twin, ResultOf | Weights | ComputedWeights] = {}
        sums: dict[Twin, _Sum] = {}
        while steps:
            ref, part = steps.popleft()
            if part is not None:
                self._add(ref, part, sums)
            elif isinstance(ref.recipe, Mixed):
                await self._finish_mix(ref, ref.recipe, sums.pop(ref, _Sum()))
            else:
                await self._compute(ref, steps, waiting)

    async def _compute(
        self,
        ref: Twin,
        steps: deque[ModelStep],
        waiting: dict[Twin, ResultOf | Weights | ComputedWeights],
    ) -> None:
        """Compute a model that is no mix, and begin to compute the next ones on idle workers.

        Args:
            ref: the model.
            steps: the later steps.
            waiting: model -> its result or a future of it, for models whose computation has begun.
        """
        calculator = self._calculator
        begins = [] if ref in waiting else [ref]
        most = WAITING * calculator.workers * calculator.at_once
        # A worker trains ``at_once`` models together. Unless ``ref`` itself must begin, further models
        # wait until so many may begin, as smaller groups would be slower.
        if begins or len(waiting) <= most - calculator.at_once:
            begins += self._next(steps, waiting, most - len(waiting) - len(begins))
        waiting.update(zip(begins, calculator.begin(begins), strict=True))
        result: Any = waiting.pop(ref)
        if isinstance(result, ResultOf):
            result = await calculator.wait(result)
        recipe = ref.recipe
        assert recipe is not None
        calculator.finish(ref, result)
        del result
        self._settled(ref, recipe)
        for parent in parents(recipe):
            self._use(parent)

    def _next(
        self, steps: deque[ModelStep], waiting: Mapping[Twin, object], most: int
    ) -> list[Twin]:
        """Return the next models that can begin now, as all models that they need are computed.

        Args:
            steps: the later steps of the computation.
            waiting: models whose computation has begun already.
            most: greatest count of models to return.
        """
        ready: list[Twin] = []
        ahead = _AHEAD * WAITING * self._calculator.workers * self._calculator.at_once
        for step in islice(steps, ahead):
            if len(ready) >= most:
                break
            if step.part is None and step.ref not in waiting and _is_ready(step.ref):
                ready.append(step.ref)
        return ready

    def _settled(self, ref: Twin, recipe: Recipe) -> None:
        """Copy the result of a computed twin to its original model, if this still exists.

        The twin's own weights are freed if no later step needs them.

        Args:
            ref: the computed twin.
            recipe: its recipe.
        """
        ref.spare = recipe
        outside = ref.outside
        if outside is not None:
            outside.held = ref.held
            outside.finite = ref.finite
            outside.losses = ref.losses
            outside.choice = ref.choice
            outside.state = ref.state
        if not ref.uses:
            self._free(ref)
            _forget(ref)

    def _use(self, ref: Ref) -> None:
        """Note that a step has used a model, and free its weights after the last use."""
        if isinstance(ref, Twin):
            ref.uses -= 1
            if not ref.uses:
                self._free(ref)
                _forget(ref)

    def _free(self, ref: Twin) -> None:
        """Free the weights of a twin that no later step needs, unless they must stay.

        If its original model still exists, ``Scratch`` stores the weights for it.
        """
        if ref.stays:
            return
        if ref.held is not None:
            self._freed_bytes += ref.held.nbytes
        outside = ref.outside
        # a choice shares the memory of the chosen model
        if outside is not None and not isinstance(ref.spare, Best):
            self._scratch.hold(outside, _derived(ref.spare))
        ref.held = None
        ref.recipe = ref.spare
        ref.spare = None
        if ref.state is not None:
            ref.state = {}
        if self._freed_bytes > _RETURNED:
            self._freed_bytes = 0
            return_memory()

    def _add(self, ref: Twin, position: int, sums: dict[Twin, _Sum]) -> None:
        """Add a part to a mix, i.e. a weighted sum of models, that is computed part by part.

        Args:
            ref: the mix.
            position: index of the part.
            sums: mix -> the sum of its parts so far, which is changed.
        """
        recipe = ref.recipe
        assert isinstance(recipe, Mixed)
        mix = sums.setdefault(ref, _Sum())
        part, coefficient = recipe.parts[position]
        mix.finite.append(part.finite)
        if ref.state is not None:
            mix.states.append(part.state)
        if not part.finite:
            mix.repeat = mix.repeat or recipe.rescale
            if mix.repeat:
                mix.total = None
        elif not mix.repeat:
            if mix.total is None:
                mix.total = self._calculator.new_sum()
            mix.total.add(part, coefficient)
        self._use(part)

    async def _finish_mix(self, ref: Twin, recipe: Mixed, mix: _Sum) -> None:
        left_out = []
        for (part, _), is_finite in zip(recipe.parts, mix.finite, strict=True):
            if not is_finite:
                left_out.append(part)
        self._calculator.note_left_out(ref, left_out)
        ref.settle(await self._weights_of(ref, recipe, mix))
        if ref.state is not None:
            ref.state = state_of(recipe, mix.finite, mix.states)
        self._settled(ref, recipe)
        if recipe.otherwise is not None:
            self._use(recipe.otherwise)

    async def _weights_of(self, ref: Twin, recipe: Mixed, mix: _Sum) -> Weights | ComputedWeights:
        coefficients = coefficients_of(recipe, mix.finite)
        if coefficients is None:
            return self._calculator.substitute(recipe.otherwise)
        if not coefficients:
            return self._calculator.nothing()
        if mix.total is None:
            return await self._repeat(ref, recipe, mix.finite, coefficients)
        weights = mix.total.result()
        mix.total = None
        return weights

    async def _repeat(
        self,
        ref: Twin,
        recipe: Mixed,
        finite: Sequence[bool],
        coefficients: Sequence[float],
    ) -> Weights:
        """Compute the sum of a mix's finite parts again, with new coefficients.

        It is needed if a part was not finite after others were added. Parts that have been freed
        are computed again.

        Args:
            ref: the mix.
            recipe: its parts.
            finite: for each part, whether its weights are finite.
            coefficients: the new coefficient of each finite part.

        Returns:
            The sum, float32 [d].
        """
        pairs = zip(recipe.parts, finite, strict=True)
        models = [part for (part, _), is_finite in pairs if is_finite]
        parts = tuple(zip(models, coefficients, strict=True))
        again = Ref(ref.name, ref.serial, Mixed(parts, None, rescale=False))
        with self._calculator.muted():
            await self._compute_all(twins_of([again], stay=True, again=True))
        assert again.value is not None
        return again.value


def _forget(ref: Twin) -> None:
    """Remove the recipe of a computed twin, unless a recipe that has the twin may be used again.

    The twin's parents may then be in no recipe any more, so that their recipes are removed in turn.
    This frees the models to which only these recipes refer, such as a device's previous model.
    While a mix is in progress, its parts keep their recipes, as they may be computed again.
    """
    waiting = [ref]
    while waiting:
        twin = waiting.pop()
        recipe = twin.spare or twin.recipe
        if twin.children or twin.uses or recipe is None:
            continue
        twin.spare = None
        twin.recipe = None
        for parent in parents(recipe):
            if isinstance(parent, Twin):
                parent.children -= 1
                waiting.append(parent)


def _derived(recipe: Recipe | None) -> Derived | None:
    """Return a computed twin's weights as slices in a different model, or None (``derived_of``)."""
    if not isinstance(recipe, Applied):
        return None
    originals = [model.outside if isinstance(model, Twin) else model for model in recipe.models]
    return derived_of(recipe, originals)


def _is_ready(ref: Twin) -> bool:
    """Return whether a model can be computed now: no mix, and all that it needs is computed."""
    recipe = ref.recipe
    if recipe is None or isinstance(recipe, Mixed):
        return False
    return all(parent.held is not None for parent in parents(recipe))


def _restore(twins: Sequence[Twin]) -> None:
    """Give the original models of twins their recipes back, after a failed computation.

    Models that have been computed need no recipe, and get none.
    """
    stack: list[Ref] = list(twins)
    visited: set[Ref] = set()
    while stack:
        ref = stack.pop()
        if not isinstance(ref, Twin) or ref in visited:
            continue
        visited.add(ref)
        recipe = ref.recipe or ref.spare
        outside = ref.outside
        if outside is not None and outside.held is None:
            outside.recipe = recipe
        if recipe is not None:
            stack += parents(recipe)
