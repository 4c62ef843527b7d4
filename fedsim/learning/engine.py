"""Deferred learning: models are names until a value is needed.

Then a model and its uncomputed ancestors are computed in waves (``refs.waves``), all trainings
of a wave as one cohort. Models that are not needed, such as a straggler's update, are never
computed.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedsim.clock.simulation import Simulation
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.common.streams import Streams
from fedsim.common.training import Training
from fedsim.learning.architecture import Architecture
from fedsim.learning.cohort import LocalWork
from fedsim.learning.data.federated import FederatedData
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.functions import (
    FunctionCall,
    carry_out_all,
    function_at,
    mean_state,
    weighted_sum,
)
from fedsim.learning.learner import Learner
from fedsim.learning.models import Layered, Model, TorchModel
from fedsim.learning.modules import fit, load, numbers
from fedsim.learning.objectives import Classification, Objective
from fedsim.learning.refs import Applied, Best, Initial, Mixed, Ref, Trained, Weights, waves
from fedsim.learning.solvers.base import Solver
from fedsim.learning.solvers.by_trainer import ByTrainer
from fedsim.learning.solvers.probe import SAMPLES, probe
from fedsim.learning.solvers.reference import Reference, flat_weights, load_weights, module_of
from fedsim.learning.spec import Trainer, TrainingSpec
from fedsim.learning.testsets import TestSets, counted, judge, judge_each

_ADAPTERS = "strategy/adapters"
_INIT = "strategy/init"  # the stream of initial models: one seed gives every strategy the same
_TESTED_AT_ONCE = 64  # models in one request to a worker when each has a device of its own
# for each worker, at most, of trainings, choices or functions: with fewer, some would idle at the
# end
_REQUESTS = 8
_MOST_PARAMETERS = 1_000_000_000  # 4 GB, of which a run holds several


class Learning(Learner):
    """Computes models on a simulation's executor, when their numbers are asked for; ``root`` is
    ``data.root``.

    Raises:
        ScenarioError: the model does not fit the data, or ``training.device`` is not there.
        DataError: ``model.file`` does not fit the model.
    """

    learns: ClassVar[bool] = True

    def __init__(
        self,
        simulation: Simulation,
        model: Model,
        training: Trainer,
        data: FederatedData,
        streams: Streams,
        root: Path | None = None,
        objective: Objective | None = None,
    ) -> None:
        assert isinstance(model, TorchModel), "the scenario has refused any other"
        shape = data.pool.shape
        classes = data.pool.outputs or data.pool.classes
        super().__init__(model, shape, classes)
        self._simulation = simulation
        self._may_wait = True
        self._objective = objective or Classification()
        self._model = model
        self._training = training
        self._streams = streams
        self._data = data
        self._samples_are = (shape, classes)
        self._root = root
        self._architecture = (
            model.architecture(shape, classes) if isinstance(model, Layered) else None
        )
        if self.parameters > _MOST_PARAMETERS:
            raise ScenarioError(
                f"model.kind is {model.kind!r}, which has {self.parameters} parameters for "
                f"samples of shape {shape} and "
                f"{classes} classes; allowed are at most {_MOST_PARAMETERS}, or any number "
                'with learning = "off"'
            )
        device = _device(training.device)
        whole: Architecture | nn.Module | None = self._architecture
        if model.has_frozen or model.file is not None:
            # the frozen tensors of all models are those of the first one
            first = self._module(0, 0)
            whole = first if model.has_frozen else whole
        losses = None if self._objective.is_plain else self._objective.losses
        self._solver = pick(whole or self._module(), device, training.sgd.solver, training, losses)
        samples = FederatedData(data.pool, [], data.augmentation)  # without shards, which change
        if model.is_tried:
            self._try(data)
        self._work = LocalWork(self._solver, training, samples, streams)
        self._tests = TestSets(data, samples, device)
        for thing in (samples, self._solver, self._work):
            simulation.executor.place(thing)

    def _try(self, data: FederatedData) -> None:
        """Refuse a module with state or draws that cannot be had again."""
        assert isinstance(self._solver, Reference)
        largest = max(data.shards, key=lambda shard: len(shard.train))
        if len(largest.train) < 2:
            return
        shard = replace(largest, train=largest.train[:SAMPLES])
        initial, again = (
            flat_weights(list(numbers(self._module(0, 0)).values())) for _ in range(2)
        )
        if initial.tobytes() != again.tobytes():
            raise ScenarioError(
                "the module of model.factory begins with other numbers each time that it is "
                "made: it draws from a generator "
                "that nobody seeds; allowed are draws from the global generators of torch, "
                "numpy and random, which have a seed"
            )
        probe(self._solver, self._objective, *data.train_samples(shard))

    @property
    def needs_sizes(self) -> bool:
        return bool(self._solver.fails_on_one)

    def check_sizes(self, sizes: Mapping[int, int]) -> None:
        batching = self._training.batching
        why = self._solver.fails_on_one
        if not why:
            return
        single = [device for device, size in sizes.items() if batching.last_size(size) == 1]
        if not single:
            return
        size = sizes[single[0]]
        if size == 1:
            allowed = "a data.partition without devices of one sample"
        elif batching.size == 1:
            allowed = "a training.batch_size of 2 or more"
        else:
            allowed = 'training.last_batch = "drop" or "merge"'
        raise ScenarioError(
            f"the module of model.factory cannot be trained on a batch of one sample ({why}), "
            "and the last batch of device "
            f"{single[0]} has one: it has {size} samples, in batches of {batching.size} (as "
            f"{len(single)} devices in all); "
            f"allowed is {allowed}, or a module that takes one, as with torch.nn.GroupNorm"
        )

    def given(self, weights: NDArray[np.floating]) -> Ref:
        ref = super().given(weights)
        ref.settle(np.array(weights, dtype=np.float32))
        return ref

    def shift(self, device: int, version: int) -> None:
        self._tests.shift(device, version)

    # Numbers.

    async def values(self, refs: Sequence[Ref]) -> list[NDArray[np.float32]]:
        await self._compute(refs)
        return [_known(ref) for ref in refs]

    def compute_now(self, ref: Ref) -> None:
        self._may_wait = False
        with suppress(StopIteration):
            self._compute([ref]).send(None)
        self._may_wait = True

    def tensors(self, weights: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        shapes = self._solver.tensors
        ends = np.cumsum([math.prod(shape) for _, shape in shapes])[:-1]
        parts = np.split(weights, ends)
        return {
            name: part.reshape(shape) for (name, shape), part in zip(shapes, parts, strict=True)
        }

    async def evaluate(self, models: Mapping[str, tuple[Ref, Sequence[int] | None]]) -> Evaluation:
        await self._compute(ref for ref, _ in models.values())
        alone = {
            name: (ref, served[0])
            for name, (ref, served) in models.items()
            if served is not None and len(served) == 1
        }
        together = await self._evaluate_each(list(alone.values()))
        results = {name: together.row(at) for at, name in enumerate(alone)}
        tested = {
            name: (self._tests.of(served), _known(ref))
            for name, (ref, served) in models.items()
            if name not in alone
        }
        asked = [
            (weights, *block) for samples, weights in tested.values() for block in samples.blocks
        ]
        judged = iter(
            await self._joined(judge, [(self._solver, self._objective, *each) for each in asked])
        )
        for name, (samples, _) in tested.items():
            parts = [next(judged) for _ in samples.blocks]
            results[name] = counted(
                self._objective, samples.devices, samples.owner, parts, samples.order
            )
        return Evaluation.together([results[name] for name in models])

    async def _evaluate_each(self, models: Sequence[tuple[Ref, int]]) -> Evaluation:
        """Each model, which is known, on the test samples of its one device; results in the
        order given.
        """
        tests = [(_known(ref), self._tests.shard(device)) for ref, device in models]
        sizes = np.array([len(shard.test) for _, shard in tests], dtype=np.int64)
        order = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
        chunks = [order[at : at + _TESTED_AT_ONCE] for at in range(0, len(order), _TESTED_AT_ONCE)]
        parts = [zip(*(tests[at] for at in chunk), strict=True) for chunk in chunks]
        judged = await self._joined(
            judge_each,
            [(self._solver, self._objective, self._tests.samples, *part) for part in parts],
        )
        return counted(
            self._objective,
            [device for _, device in models],
            np.repeat(order, sizes[order]),
            judged,
        )

    def train(self, training: Training, device: int, **how: Any) -> Ref:
        if (terms := training.terms) and not self._training.applies_terms:
            raise ScenarioError(
                f"training.kind is {self._training.kind!r}, and the strategy asks for a "
                f"{' and a '.join(terms)} term in the "
                "loss, which this trainer does not say that it applies; allowed are a trainer "
                "that minimises context.loss and "
                "says so by 'applies_terms: ClassVar[bool] = True', and training.kind 'sgd' "
                "and 'torch'"
            )
        return super().train(training, device, **how)

    def first_epoch(self, update: Ref) -> Ref:
        recipe = update.recipe
        if not isinstance(recipe, Trained) or recipe.training.epochs < 2:
            return update
        once = replace(recipe.training, epochs=1)
        same = {
            "key": recipe.key,
            "round": recipe.round,
            "version": recipe.version,
            "before": recipe.before,
        }
        return self.train(once, recipe.device, **same)

    def last_gradient(self, update: Ref) -> Ref:
        recipe = update.recipe
        if not isinstance(recipe, Trained):
            raise SimulationError(
                f"{update.name} is no training that is still to be computed, so that its last "
                "gradient "
                "is gone; allowed is to ask in Client.computed or Client.reply, for "
                "LocalResult.trained"
            )
        training = replace(recipe.training, last_gradient=True)
        return self._name("gradient", replace(recipe, training=training), update.device)

    async def train_loss(self, updates: Sequence[tuple[Ref, float]]) -> float | None:
        await self._compute(ref for ref, _ in updates)
        known = [
            (ref.train_loss, weight) for ref, weight in updates if math.isfinite(ref.train_loss)
        ]
        total = math.fsum(weight for _, weight in known)
        return math.fsum(loss * weight for loss, weight in known) / total if total else None

    async def _compute(self, wanted: Iterable[Ref]) -> None:
        for wave in waves(wanted):
            recipe = wave[0].recipe
            first = wave[0]
            if isinstance(recipe, Trained):
                await self._train(wave)
            elif isinstance(recipe, Best):
                questions = [self._work.question(ref, self._data) for ref in wave]
                found = await self._in_chunks(self._work.objectives, questions)
                for ref, objectives in zip(wave, found, strict=True):
                    ref.choose(objectives)
            elif isinstance(recipe, Applied):
                await self._apply(wave)
            elif isinstance(recipe, Initial):
                first.settle(self._initial(recipe.count))
            elif isinstance(recipe, Mixed):
                first.settle(self._mixed(recipe))
                if first.state is not None:
                    states = [(part.state, weight) for part, weight in recipe.parts if part.finite]
                    first.state = (
                        mean_state(states) or (recipe.otherwise and recipe.otherwise.state) or {}
                    )

    async def _apply(self, refs: Sequence[Ref]) -> None:
        calls = []
        for ref in refs:
            if isinstance(call := self._call(ref), FunctionCall):
                calls.append((ref, call))
            else:
                ref.settle(call)
        values = await self._in_chunks(carry_out_all, [call for _, call in calls])
        for (ref, _), value in zip(calls, values, strict=True):
            ref.settle(value)

    def _call(self, ref: Ref) -> FunctionCall | Weights:
        """The call that computes ``ref``, or the weights that replace its result."""
        recipe = ref.recipe
        assert isinstance(recipe, Applied)
        kept = list(recipe.models) if recipe.size is not None else self._finite(recipe.models)
        if not kept or (len(kept) < len(recipe.models) and not recipe.leave_out):
            return self._stand_in(recipe.otherwise)
        stream = None if recipe.stream is None else (self._streams, *recipe.stream)
        values = [_known(model) for model in kept]
        return FunctionCall(
            function_at(recipe.function), values, recipe.constants, stream, recipe.size
        )

    async def _train(self, refs: Sequence[Ref]) -> None:
        jobs = [self._work.job(ref, self._data) for ref in refs]
        found = await self._in_chunks(self._work.train, jobs, self._work.order(jobs))
        for ref, job, solved in zip(refs, jobs, found, strict=True):
            if solved.numbers:
                told = {"device": ref.device, "round": job.recipe.round, "ref": ref.name}
                self._simulation.emit("reported", numbers=dict(solved.numbers), **told)
            ref.settle(solved.weights, solved.train_loss, solved.numbers)
            ref.state = solved.state or ref.state

    async def _in_chunks(
        self, work: Callable[..., Any], items: Sequence[Any], order: Sequence[int] | None = None
    ) -> list[Any]:
        """The result for each item, of ``work``, which takes a list of items; requests go out in
        an order of positions.
        """
        order = range(len(items)) if order is None else order
        size = max(1, -(-len(items) // (_REQUESTS * self._simulation.executor.workers)))
        requests = [
            ([items[place] for place in order[at : at + size]],)
            for at in range(0, len(items), size)
        ]
        results = dict(zip(order, chain(*await self._joined(work, requests)), strict=True))
        return [results[at] for at in range(len(items))]

    async def _joined(
        self, function: Callable[..., Any], requests: Iterable[tuple[Any, ...]]
    ) -> list[Any]:
        """The result of each request to the workers; all are under way before the first is
        awaited.
        """
        futures = [self._simulation.submit(function, *request) for request in requests]
        return [
            await self._simulation.join(future) if self._may_wait else future.result()
            for future in futures
        ]

    def _initial(self, count: int) -> Weights:
        if (
            self._architecture is not None
            and not self._model.has_frozen
            and self._model.file is None
        ):
            return self._drawn(count)
        found = flat_weights(list(numbers(self._module(0, count)).values()))
        if count and self._model.file is not None and np.array_equal(found, self._initial(0)):
            raise ScenarioError(
                f"model.file is {self._model.file!r}, which gives every number of the model, "
                "and the strategy needs initial "
                "models that differ; allowed are strategies with one initial model"
            )
        return found

    def _drawn(self, *ids: int) -> Weights:
        assert self._architecture is not None
        return self._architecture.initial(self._streams.generator(_INIT, *ids))

    def _module(self, *ids: int) -> nn.Module:
        """The module as it is trained, initialised under seeds of the run's, or as its file
        says.
        """
        model = self._model
        module = model.plain_module(*self._samples_are, self._streams.word(_INIT, *ids) >> 1)
        if self._architecture is not None:
            load_weights(list(module.parameters()), self._drawn(ids[-1]))
        fit(module, model.lora, model.train, self._streams.word(_ADAPTERS, *ids) >> 1)
        if model.file is not None:
            load(module, model.file, self._root)
        return module

    def _mixed(self, recipe: Mixed) -> Weights:
        self._finite([part for part, _ in recipe.parts])
        kept = [(part, coefficient) for part, coefficient in recipe.parts if part.finite]
        if len(kept) < len(recipe.parts):
            total = math.fsum(coefficient for _, coefficient in recipe.parts)
            left = math.fsum(coefficient for _, coefficient in kept)
            if not kept or (recipe.rescale and 0.0 in (total, left)):
                return self._stand_in(recipe.otherwise)
            if recipe.rescale:
                kept = [(part, coefficient * (total / left)) for part, coefficient in kept]
        if not kept:
            return np.zeros(self.parameters, dtype=np.float32)
        return weighted_sum(
            [_known(part) for part, _ in kept], [coefficient for _, coefficient in kept]
        )

    def _finite(self, models: Sequence[Ref]) -> list[Ref]:
        """The finite models among some; the others are recorded."""
        for model in models:
            if not model.finite:
                self._simulation.emit("non-finite", device=model.device, ref=model.name)
        return [model for model in models if model.finite]

    def _stand_in(self, otherwise: Ref | None) -> Weights:
        """The weights of a model that cannot be computed."""
        return (
            np.full(self.parameters, np.nan, dtype=np.float32)
            if otherwise is None
            else _known(otherwise)
        )


def pick(
    model: Architecture | nn.Module,
    device: torch.device,
    choice: str,
    trainer: Trainer | None = None,
    losses: Callable[..., torch.Tensor] | None = None,
) -> Solver:
    """The solver of a model on a device: another trainer than SGD, closed forms for dense layers
    on a CPU, or torch.

    ``losses``: that of each sample instead of cross-entropy, for which there are no closed forms.
    """
    other = None if isinstance(trainer, TrainingSpec) else trainer
    is_plain = other is None and losses is None and choice == "fast" and device.type == "cpu"
    if is_plain and isinstance(model, Architecture) and model.is_dense:
        from fedsim.learning.solvers.dense import Dense  # with numba, which nothing else needs

        return Dense(model)
    module = module_of(model) if isinstance(model, Architecture) else model
    return (
        Reference(module, device, losses=losses)
        if other is None
        else ByTrainer(module, device, other, losses=losses)
    )


def _known(ref: Ref) -> Weights:
    """The weights of a ref that has been computed."""
    if ref.value is None:
        raise ValueError(f"{ref} has no value: it is not of this run, or its run has no learning")
    return ref.value


def _device(name: str) -> torch.device:
    """The torch device, which must be there."""
    if name.startswith("cuda"):
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = torch.device(name).index
        if not found or (index is not None and index >= found):
            there = f"cpu{''.join(f', cuda:{at}' for at in range(found))}"
            raise ScenarioError(
                f"training.device is {name!r}, but this machine has no such device; it has {there}"
            )
    return torch.device(name)
