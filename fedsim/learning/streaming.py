"""Computation of many large models, in memory that does not grow with the count of models.

Models are computed in the order in which mixes (weighted sums) need them. A mix is an accumulator:
each part is added as soon as it and all previous parts are computed, and is then freed. Few models
are in memory at a time: the accumulators, and the results that workers have ready or in progress.

Python's garbage collection decides which models may be freed. A model has a recipe, which names the
models from which it is computed. The recipes are first moved from the models to ``ModelNode``
objects. A model that is still alive then has a reference in a strategy's state, a message in
transfer, the evaluation, or a recipe that is to be computed later. ``Scratch`` stores its weights,
in memory or on disk. The weights of all other models are freed after their last use, and the recipe
stays, by which they can be computed again.
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

_STEPS_AHEAD = 8  # count of later steps searched for work, per result that may be in progress
_RETURNED_BYTES = 1 << 28  # size of freed models after which the system gets memory back (bytes)
# Depth of nested mixes from which a sum begins only once all its parts are computed. This bounds
# the count of unfinished sums in memory.
_OPEN_SUMS = 3


class ResultOf(NamedTuple):
    """Future result of a model that a worker computes together with other models.

    Attributes:
        future: future of a list of results.
        position: index of the model's result in the list.
    """

    future: "Future[Any]"
    position: int = 0


class PartSum(Protocol):
    """Interface of a weighted sum of models, to which computed models are added one by one."""

    def add(self, ref: Ref, coefficient: float) -> None:
        """Add a computed model times its coefficient to the sum."""

    def result(self) -> Weights | ComputedWeights:
        """Return the sum so far, float32 [d]."""


class Calculator(Protocol):
    """Interface by which a ``Stream`` computes single models; ``ModelComputing`` implements it.

    A ``Stream`` calls it for models whose parents, the models that they need, are computed.

    Attributes:
        workers: count of workers.
        at_once: count of trainings that a worker computes together.
    """

    workers: int

    @property
    def at_once(self) -> int: ...

    def begin(self, refs: Sequence[Ref]) -> list[ResultOf | Weights | ComputedWeights]:
        """Begin to compute models that are no weighted sums (``Mixed``), without waiting.

        The list has an item for each model: a ``ResultOf`` if a worker computes the model, else the
        model's weights, as an array (``Weights``) or on a torch device (``ComputedWeights``).
        """

    def finish(self, ref: Ref, result: Any) -> None:
        """Store a result, which ``begin`` or ``wait`` has returned, as the weights of ``ref``."""

    async def wait(self, work: ResultOf) -> Any:
        """Wait for a result that ``begin`` has requested from a worker, and return it."""

    def note_left_out(self, ref: Ref, models: Sequence[Ref]) -> None:
        """Record that the weighted sum ``ref`` leaves out ``models``, which are not finite."""

    def new_sum(self) -> PartSum:
        """Return an empty weighted sum, to which computed models are added one by one."""

    def substitute(self, otherwise: Ref | None) -> Weights | ComputedWeights:
        """Return the weights that replace a weighted sum which cannot be computed, float32 [d].

        An example is a sum of models of which none is finite. The result has the weights of the
        model ``otherwise``, or NaN if ``otherwise`` is None.
        """

    def nothing(self) -> Weights:
        """Return the weighted sum of no models: zeros, float32 [d]."""

    def muted(self) -> AbstractContextManager[None]:
        """Return a context in which models are computed again, without a second set of records."""


@dataclass(slots=True, eq=False, repr=False)
class ModelNode(Ref):
    """Node of a graph of models, which stands for a model during a computation with little memory.

    The node takes the recipe (how the model is computed) from the model. The model then refers to
    no other models, so that these can be freed.

    Attributes:
        reference: weak reference to the model, which gets the result; None if no model gets it.
        uses_left: count of later steps of the computation that need the node's weights.
        recipes_left: count of the node's occurrences in recipes that other nodes still have.
        stays: whether the weights must stay in memory after the computation.
        spare_recipe: recipe of a computed node; ``recipe`` gets it back when the weights are freed,
            so that the node can be computed again.
    """

    reference: "weakref.ref[Ref] | None" = None
    uses_left: int = 0
    recipes_left: int = 0
    stays: bool = False
    spare_recipe: Recipe | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # the node is pickled as a plain ref; workers need no recipe, loss, losses and choice (None)
        fields = (self.name, self.serial, None, self.device, self.held, self.finite)
        return Ref, (*fields, None, None, None, self.state)

    @property
    def original(self) -> Ref | None:
        """The model for which the node stands; None if nothing uses the model any more."""
        return None if self.reference is None else self.reference()


def build_graph(
    targets: Sequence[Ref], *, stay: bool, is_repetition: bool = False
) -> list[ModelNode]:
    """Build the graph of some models and of all uncomputed models that they need.

    Each node takes the recipe (how the model is computed) from its model.

    Args:
        targets: models to compute; computed models are skipped.
        stay: whether the weights of the targets must stay in memory after the computation.
        is_repetition: whether the targets are weighted sums that are computed again, as a model of
            the sum was not finite. All other models then keep their recipes, and get no result.

    Returns:
        The nodes of the uncomputed targets, without duplicates.
    """
    nodes: dict[Ref, ModelNode] = {}
    recipes: dict[Ref, Recipe] = {}
    computed: dict[Ref, Ref] = {}  # node of an earlier graph -> its computed original
    # a node for each uncomputed model that the targets need, found through the recipes
    stack = list(targets)
    while stack:
        ref = stack.pop()
        recipe = ref.recipe
        if recipe is None or ref in nodes:  # computed, or found before
            continue
        # no new node is needed if the original has weights by now
        original = ref.original if isinstance(ref, ModelNode) else None
        if original is not None and original.held is not None:
            computed[ref] = original
            continue
        nodes[ref] = ModelNode(
            ref.name, ref.serial, recipe=None, device=ref.device, loss=ref.loss, state=ref.state
        )
        recipes[ref] = recipe
        stack += parents(recipe)
    replacements: dict[Ref, Ref] = {**nodes, **computed}  # model in a recipe -> its replacement
    for ref, node in nodes.items():
        recipe = with_models_replaced(recipes[ref], replacements)
        node.recipe = recipe
        for parent in parents(recipe):
            if isinstance(parent, ModelNode):
                parent.uses_left += 1
                parent.recipes_left += 1
        if not is_repetition or ref in targets:
            node.reference = weakref.ref(ref)
            ref.recipe = None
    target_nodes = [nodes[ref] for ref in dict.fromkeys(targets) if ref in nodes]
    for node in target_nodes:
        node.stays = stay
    return target_nodes


class ModelStep(NamedTuple):
    """Step of a computation of models: compute a model, add a part to a sum, or finish a sum.

    Attributes:
        node: the model to compute, or the weighted sum.
        part: index of the model in ``node.recipe.parts`` that is added to the sum ``node``; None to
            compute the model ``node``, or to finish the sum.
    """

    node: ModelNode
    part: int | None = None


def steps_of(targets: Sequence[ModelNode]) -> deque[ModelStep]:
    """Return the steps that compute models, in an order that frees models early.

    The step of a model comes after the steps of the models that it needs. The parts of a sum are in
    order. Values that are taken from a model, such as the tensors that a device keeps, come right
    after the model, so that the model need not stay in memory for them.
    """
    return _Planner(targets).steps


class _NeededModel(NamedTuple):
    """Model that a later step needs.

    Attributes:
        ref: the model.
        depth: count of sums that are in progress while the model is computed.
    """

    ref: Ref
    depth: int


class _Planner:
    """Planner of the ``steps`` that compute models, for ``steps_of``."""

    def __init__(self, targets: Sequence[ModelNode]) -> None:
        self.steps: deque[ModelStep] = deque()
        self._visited: set[ModelNode] = set()
        self._planned: set[Ref] = set()
        self._values_of = _map_values(targets)
        for target in targets:
            self._plan(target)

    def _plan(self, target: ModelNode) -> None:
        """Append the steps of a model, and before them the steps of all models that it needs.

        A stack of iterators replaces recursion, as chains of models may be of any length.
        """
        stack = [iter([_NeededModel(target, depth=0)])]  # a model, a model that it needs, ...
        while stack:
            needed = next(stack[-1], None)
            if needed is None:
                stack.pop()
                continue
            ref, depth = needed
            if isinstance(ref, ModelNode) and ref.recipe is not None and ref not in self._visited:
                self._visited.add(ref)
                stack.append(self._visit(ref, ref.recipe, depth))

    def _visit(self, node: ModelNode, recipe: Recipe, depth: int) -> Iterator[_NeededModel]:
        """Append the steps of a model, of which each may need other models.

        The iterator yields each needed model before it appends the step that uses this model. The
        caller appends the steps of the yielded model before it resumes the iterator.
        """
        if isinstance(recipe, Mixed):
            yield from self._visit_mix(node, recipe, depth)
        else:
            for parent in parents(recipe):
                yield _NeededModel(parent, depth)
        self._append(node)

    def _visit_mix(self, node: ModelNode, recipe: Mixed, depth: int) -> Iterator[_NeededModel]:
        """Append the steps that add the parts of a mix (weighted sum); yield each part before."""
        adds_at_once = depth < _OPEN_SUMS
        if not adds_at_once:  # all parts are computed before the sum begins
            for part, _ in recipe.parts:
                yield _NeededModel(part, depth)
        for position, (part, _) in enumerate(recipe.parts):
            if adds_at_once:
                is_open = position > 0  # the sum takes up memory from its first part on
                yield _NeededModel(part, depth + 1 if is_open else depth)
            self.steps.append(ModelStep(node, position))
        if recipe.otherwise is not None:
            yield _NeededModel(recipe.otherwise, depth)

    def _append(self, node: ModelNode) -> None:
        """Append the step that computes a model, and the steps that take values from it."""
        waiting = [node]
        while waiting:
            computed = waiting.pop()
            self.steps.append(ModelStep(computed))
            self._planned.add(computed)
            for values in self._values_of.get(computed, ()):
                if values not in self._visited and _has_all_parents(values, self._planned):
                    self._visited.add(values)
                    waiting.append(values)


def _map_values(targets: Sequence[ModelNode]) -> dict[ModelNode, list[ModelNode]]:
    """Map uncomputed models to the values that are taken from them, such as a device's tensors.

    Such values are results of functions that have a size (``Applied.size``), as they are no models.
    """
    values_of: dict[ModelNode, list[ModelNode]] = {}
    visited: set[ModelNode] = set()
    waiting = list(targets)
    while waiting:
        node = waiting.pop()
        if node in visited or node.recipe is None:
            continue
        visited.add(node)
        sources = [parent for parent in parents(node.recipe) if isinstance(parent, ModelNode)]
        if isinstance(node.recipe, Applied) and node.recipe.size is not None:
            for source in sources:
                values_of.setdefault(source, []).append(node)
        waiting += sources
    return values_of


def _has_all_parents(node: ModelNode, planned: Set[Ref]) -> bool:
    """Return whether each model that ``node`` needs is computed, or has an earlier step."""
    assert node.recipe is not None
    return all(parent.recipe is None or parent in planned for parent in parents(node.recipe))


@dataclass(slots=True, eq=False)
class _Sum:
    """Weighted sum of models of which some parts are added already.

    Attributes:
        total: the sum so far; None before the first part, and if the sum must be repeated.
        finite: for each part so far, whether its weights are finite.
        must_repeat: whether the sum must be computed again, with rescaled coefficients.
        states: the trainer's state of each part so far; empty if the mix has no state.
    """

    total: PartSum | None = None
    finite: list[bool] = field(default_factory=list)
    must_repeat: bool = False
    states: list[Mapping[str, AnyArray] | None] = field(default_factory=list)


class Stream:
    """Computation of models one by one, which frees each model after its last use.

    Args:
        calculator: computes single models.
        scratch: stores computed models that the strategy or a later computation may still use.
    """

    def __init__(self, calculator: Calculator, scratch: Scratch) -> None:
        self._calculator = calculator
        self._scratch = scratch
        self._freed_bytes = 0

    async def compute(self, targets: Sequence[Ref], *, stay: bool) -> None:
        """Compute models, and before them all models that they need.

        Args:
            targets: the models; computed models are skipped.
            stay: whether the targets' weights are kept in memory; otherwise ``Scratch`` stores them
                and may move them to the disk.
        """
        nodes = build_graph(targets, stay=stay)
        try:
            await self._compute_all(nodes)
        except BaseException:
            _return_recipes(nodes)
            raise

    async def _compute_all(self, nodes: Sequence[ModelNode]) -> None:
        """Compute models, and before them all models that they need, step by step."""
        steps = steps_of(nodes)
        waiting: dict[ModelNode, ResultOf | Weights | ComputedWeights] = {}  # models in progress
        sums: dict[ModelNode, _Sum] = {}  # mix with some parts added -> the sum so far
        while steps:
            node, part = steps.popleft()
            if part is not None:
                self._add_part(node, part, sums)
            elif isinstance(node.recipe, Mixed):
                await self._finish_mix(node, node.recipe, sums.pop(node, _Sum()))
            else:
                await self._compute(node, steps, waiting)

    async def _compute(
        self,
        node: ModelNode,
        steps: deque[ModelStep],
        waiting: dict[ModelNode, ResultOf | Weights | ComputedWeights],
    ) -> None:
        """Compute a model that is no weighted sum, and begin to compute the next on idle workers.

        Args:
            node: the model.
            steps: the later steps.
            waiting: model -> its result or a future of it, for models whose computation has begun.
        """
        calculator = self._calculator
        starting = [] if node in waiting else [node]
        most_waiting = WAITING * calculator.workers * calculator.at_once
        # A worker trains ``at_once`` models together. Unless ``node`` itself must begin, further
        # models wait until ``at_once`` of them may begin, as smaller groups would be slower.
        if starting or len(waiting) <= most_waiting - calculator.at_once:
            free_places = most_waiting - len(waiting) - len(starting)
            starting += self._next_ready(steps, waiting, free_places)
        waiting.update(zip(starting, calculator.begin(starting), strict=True))
        result: Any = waiting.pop(node)
        if isinstance(result, ResultOf):
            result = await calculator.wait(result)
        recipe = node.recipe
        assert recipe is not None
        calculator.finish(node, result)
        del result  # ``node`` alone has the weights now, and can free them
        self._publish(node, recipe)
        for parent in parents(recipe):
            self._note_use(parent)

    def _next_ready(
        self, steps: deque[ModelStep], waiting: Mapping[ModelNode, object], most: int
    ) -> list[ModelNode]:
        """Return the next models that can begin now, as all models that they need are computed.

        Args:
            steps: the later steps of the computation.
            waiting: models whose computation has begun already.
            most: greatest count of models to return.
        """
        ready: list[ModelNode] = []
        most_waiting = WAITING * self._calculator.workers * self._calculator.at_once
        for step in islice(steps, _STEPS_AHEAD * most_waiting):
            if len(ready) >= most:
                break
            if step.part is None and step.node not in waiting and _is_ready(step.node):
                ready.append(step.node)
        return ready

    def _publish(self, node: ModelNode, recipe: Recipe) -> None:
        """Copy the result of a computed node to the original model, if that still exists.

        The node's own weights are freed if no later step needs them. Its recipe is kept as
        ``spare_recipe``, by which freed weights can be computed again.

        Args:
            node: the computed node.
            recipe: its recipe.
        """
        node.spare_recipe = recipe
        original = node.original
        if original is not None:
            original.held = node.held
            original.finite = node.finite
            original.losses = node.losses
            original.choice = node.choice
            original.state = node.state
        if not node.uses_left:
            self._free(node)
            _drop_recipe(node)

    def _note_use(self, ref: Ref) -> None:
        """Count down the uses of a model that a step has used; free its weights after the last."""
        if isinstance(ref, ModelNode):
            ref.uses_left -= 1
            if not ref.uses_left:
                self._free(ref)
                _drop_recipe(ref)

    def _free(self, node: ModelNode) -> None:
        """Free the weights of a node that no later step needs, unless they must stay.

        If its original model still exists, ``Scratch`` stores the weights for it.
        """
        if node.stays:
            return
        if node.held is not None:
            self._freed_bytes += node.held.nbytes
        original = node.original
        # ``Best`` has no weights of its own: it shares the memory of the chosen model
        if original is not None and not isinstance(node.spare_recipe, Best):
            self._scratch.hold(original, _derived_weights(node.spare_recipe))
        node.held = None
        node.recipe = node.spare_recipe  # so that the node can be computed again
        node.spare_recipe = None
        if node.state is not None:
            node.state = {}  # freed; None would say that the model never has a state
        if self._freed_bytes > _RETURNED_BYTES:
            self._freed_bytes = 0
            return_memory()

    def _add_part(self, node: ModelNode, position: int, sums: dict[ModelNode, _Sum]) -> None:
        """Add a part, a computed model, to a mix (weighted sum) that is computed part by part.

        A part that is not finite is left out.

        Args:
            node: the mix.
            position: index of the part.
            sums: mix -> the sum of its parts so far, which is changed.
        """
        recipe = node.recipe
        assert isinstance(recipe, Mixed)
        mix = sums.setdefault(node, _Sum())
        part, coefficient = recipe.parts[position]
        mix.finite.append(part.finite)
        if node.state is not None:
            mix.states.append(part.state)
        if not part.finite and recipe.rescale:
            # the sum is computed anew after the last part, with other coefficients (``_repeat``)
            mix.must_repeat = True
            mix.total = None
        if part.finite and not mix.must_repeat:
            if mix.total is None:
                mix.total = self._calculator.new_sum()
            mix.total.add(part, coefficient)
        self._note_use(part)

    async def _finish_mix(self, node: ModelNode, recipe: Mixed, mix: _Sum) -> None:
        """Store the result of a mix whose parts are all added, and record the parts left out."""
        pairs = zip(recipe.parts, mix.finite, strict=True)
        left_out = [part for (part, _), is_finite in pairs if not is_finite]
        self._calculator.note_left_out(node, left_out)
        node.settle(await self._weights_of(node, recipe, mix))
        if node.state is not None:
            node.state = state_of(recipe, mix.finite, mix.states)
        self._publish(node, recipe)
        if recipe.otherwise is not None:
            self._note_use(recipe.otherwise)

    async def _weights_of(
        self, node: ModelNode, recipe: Mixed, mix: _Sum
    ) -> Weights | ComputedWeights:
        """Return the weights of a mix whose parts are all added, or their substitute."""
        coefficients = coefficients_of(recipe, mix.finite)
        if coefficients is None:  # no part is finite, or the coefficients cannot be rescaled
            return self._calculator.substitute(recipe.otherwise)
        if not coefficients:  # the mix has no parts at all
            return self._calculator.nothing()
        if mix.total is None:  # a part was not finite, and the coefficients are rescaled
            return await self._repeat(node, recipe, mix.finite, coefficients)
        weights = mix.total.result()
        mix.total = None
        return weights

    async def _repeat(
        self,
        node: ModelNode,
        recipe: Mixed,
        finite: Sequence[bool],
        coefficients: Sequence[float],
    ) -> Weights:
        """Compute the sum of the finite parts of a mix (weighted sum) again, with new coefficients.

        This is needed if a part was not finite, and the coefficients of the other parts are
        therefore rescaled. Parts that have been freed are computed again.

        Args:
            node: the mix.
            recipe: the recipe of the mix, with all parts.
            finite: for each part, whether its weights are finite.
            coefficients: the new coefficient of each finite part.

        Returns:
            The sum, float32 [d].
        """
        pairs = zip(recipe.parts, finite, strict=True)
        finite_models = [model for (model, _), is_finite in pairs if is_finite]
        parts = tuple(zip(finite_models, coefficients, strict=True))
        # a new ref: the recipe of ``node`` still has all parts, and this one only the finite ones
        finite_mix = Ref(node.name, node.serial, Mixed(parts, otherwise=None, rescale=False))
        with self._calculator.muted():  # the first computation of the parts has been recorded
            await self._compute_all(build_graph([finite_mix], stay=True, is_repetition=True))
        assert finite_mix.value is not None
        return finite_mix.value


def _drop_recipe(computed: ModelNode) -> None:
    """Remove the recipe of a computed node, unless the node may have to be computed again.

    That may be so while a recipe that contains the node may still be carried out, for example while
    a sum of which the node is a part is in progress. If the recipe is removed, the models in it may
    be in no other recipe, so that their recipes are removed in turn. This frees the models to which
    only these recipes refer, such as a device's previous model.
    """
    waiting = [computed]
    while waiting:
        node = waiting.pop()
        recipe = node.spare_recipe or node.recipe
        if node.recipes_left or node.uses_left or recipe is None:
            continue
        node.spare_recipe = None
        node.recipe = None
        for parent in parents(recipe):
            if isinstance(parent, ModelNode):
                parent.recipes_left -= 1
                waiting.append(parent)


def _derived_weights(recipe: Recipe | None) -> Derived | None:
    """Return a node's weights as changed slices of another model; None if that saves no memory."""
    if not isinstance(recipe, Applied):
        return None
    originals = [
        model.original if isinstance(model, ModelNode) else model for model in recipe.models
    ]
    return derived_of(recipe, originals)


def _is_ready(node: ModelNode) -> bool:
    """Return whether a model is uncomputed, is no mix, and needs only computed models."""
    recipe = node.recipe
    if recipe is None or isinstance(recipe, Mixed):
        return False
    return all(parent.held is not None for parent in parents(recipe))


def _return_recipes(nodes: Sequence[ModelNode]) -> None:
    """Give the original models of nodes their recipes back, after a failed computation.

    Models that have been computed need no recipe, and get none.
    """
    stack: list[Ref] = list(nodes)
    visited: set[Ref] = set()
    while stack:
        ref = stack.pop()
        if not isinstance(ref, ModelNode) or ref in visited:
            continue
        visited.add(ref)
        recipe = ref.recipe or ref.spare_recipe
        original = ref.original
        if original is not None and original.held is None:
            original.recipe = recipe
        if recipe is not None:
            stack += parents(recipe)
