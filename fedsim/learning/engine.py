"""Deferred learning: a model is only a name until its weights are needed.

Module ``computing`` then computes the model, and first all uncomputed models that it is made from.
Models whose weights are never needed, such as a late update that the server rejects, are never
computed.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedsim.clock.simulation import Simulation
from fedsim.common.errors import FedsimError, ScenarioError, SimulationError
from fedsim.common.streams import Streams
from fedsim.common.training import Batching, LocalEpochs, Training
from fedsim.learning.architecture import Architecture, Shape
from fedsim.learning.computing import ModelComputing
from fedsim.learning.data.federated import FederatedData
from fedsim.learning.derived import Derived
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.functions import DataFunction, call_error
from fedsim.learning.host_copies import to_device, to_host
from fedsim.learning.learner import Learner
from fedsim.learning.local_work import LocalWork
from fedsim.learning.models import Layered, Model, TorchModel
from fedsim.learning.module_files import fill_module
from fedsim.learning.modules import adapt_and_freeze, as_real, frozen_tensors, trained_tensors
from fedsim.learning.objectives import Classification, Objective
from fedsim.learning.refs import Ref, Trained
from fedsim.learning.resident import ResidentSamples
from fedsim.learning.resident_models import ResidentModels
from fedsim.learning.scratch import Weights
from fedsim.learning.solvers.base import Descent, LocalSolve, batch_width, draw_batches
from fedsim.learning.solvers.choice import choose_solver, refuse_different_gpus, torch_device
from fedsim.learning.solvers.cohort import Cohort
from fedsim.learning.solvers.probe import SAMPLES, probe
from fedsim.learning.solvers.reference import Reference, flat_weights, load_weights
from fedsim.learning.spec import Trainer
from fedsim.learning.testsets import TestSets, evaluate_block, evaluate_each, evaluation_of

_ADAPTERS = "strategy/adapters"  # random stream of LoRA's initial matrices
_INIT = "strategy/init"  # random stream of initial models, equal for all strategies with one seed
_TESTED_AT_ONCE = 64  # count of models in one request, if each model is tested on one device
_MOST_PARAMETERS = 1_000_000_000  # limit for one model (4 GB), as a run holds several models


class Learning(Learner):
    """Learner that trains and tests models, on the workers of the simulation's executor.

    A model is computed when its weights are first needed.

    Args:
        simulation: the simulation, whose executor carries out the work.
        model: the model of the scenario; a ``TorchModel``.
        training: the trainer of the scenario.
        data: the data of all devices.
        streams: the random streams of the run.
        root: ``data.root``, the folder in which ``model.file`` is found.
        objective: the objective of the scenario; by default classification.

    Raises:
        ScenarioError: the model does not fit the data, this machine has no ``training.device``, or
            its workers' GPUs differ.
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
        self._objective = objective or Classification()
        self._model = model
        self._training = training
        self._streams = streams
        self._data = data
        self._shape = shape
        self._classes = classes
        self._root = root
        self._architecture: Architecture | None = None  # None if a torch module gives the layers
        if isinstance(model, Layered):
            self._architecture = model.architecture(shape, classes)
        self._refuse_huge_model()
        device = torch_device(training.device)
        if len(simulation.executor.gpus) > 1:
            refuse_different_gpus()
        # None for cross-entropy, which is built into the solvers (``Dense``: in closed form)
        losses = None if self._objective.is_plain else self._objective.losses
        template = self._template(model)
        rule = training.sgd
        self._solver = choose_solver(template, device, rule.solver, training, losses, rule.lanes)
        all_samples = FederatedData(data.pool, [], data.augmentation)  # omits shards, which change
        samples = ResidentSamples(all_samples, device)
        if model.is_tried:
            self._try_module(data)
        if isinstance(self._solver, Cohort):
            self._try_stack(self._solver, data)
        # ``Dense`` is the only solver that is no ``Reference``. It computes on the host, and needs
        # no memory of a torch device.
        models_bytes = None if isinstance(self._solver, Reference) else 0.0
        self._models = ResidentModels(device, models_bytes)
        self._work = LocalWork(self._solver, training, samples, self._models, streams)
        self._tests = TestSets(data, samples)
        self._computing = ModelComputing(
            simulation,
            self._work,
            self._models,
            data,
            streams,
            self._initial,
            int(self.parameters),
            training.memory,
        )
        # each worker gets these objects once, and requests only refer to them
        for shared in (all_samples, samples, self._models, self._solver, self._work):
            simulation.executor.place(shared)

    def _refuse_huge_model(self) -> None:
        """Raise ``ScenarioError`` if the model has too many parameters for several copies."""
        if self.parameters > _MOST_PARAMETERS:
            raise ScenarioError(
                f"model.kind is {self._model.kind!r}, which has {self.parameters} parameters for "
                f"samples of shape {self._shape} and "
                f"{self._classes} classes; allowed are at most {_MOST_PARAMETERS}, or any number "
                'with learning = "off"'
            )

    def _template(self, model: TorchModel) -> Architecture | nn.Module:
        """Return the model from which the solver is built, which computes trainings and tests.

        Returns:
            Descriptions of the layers of a model of fedsim's own; else a torch module. A model with
            frozen tensors is always a module, which holds the values of these tensors.
        """
        if model.has_frozen:
            return self._module(0)
        if model.file is not None:
            self._module(0)  # raises an error now if the file does not fit
        if self._architecture is not None:
            return self._architecture
        return self._module()

    def _try_module(self, data: FederatedData) -> None:
        """Train a user's module for a few steps, to find out whether its results can be reproduced.

        It is trained on samples of the device with the most samples.

        Args:
            data: the data of all devices.

        Raises:
            ScenarioError: the module cannot be used, or its results cannot be reproduced.
        """
        assert isinstance(self._solver, Reference)
        largest = max(data.shards, key=lambda shard: len(shard.train))
        if len(largest.train) < 2:
            return
        shard = replace(largest, train=largest.train[:SAMPLES])
        # both modules are built with one seed, so that only an unseeded draw makes them differ
        first = self._module_weights(0)
        second = self._module_weights(0)
        if first.tobytes() != second.tobytes():
            raise ScenarioError(
                "the module of model.factory begins with other numbers each time that it is "
                "made: it draws from a generator "
                "that nobody seeds; allowed are draws from the global generators of torch, "
                "numpy and random, which have a seed"
            )
        probe(self._solver, self._objective, *data.train_samples(shard))

    def _try_stack(self, solver: Cohort, data: FederatedData) -> None:
        """Test for which batches the solver can train the models of several devices together.

        The solver stacks the models, and pads batches to a few widths. For each width, the first
        batch of one device is tried. For widths that fail, the reason is appended to ``notes``.

        Args:
            solver: the solver, which trains models that are stacked into one.
            data: the data of all devices.
        """
        tried_widths: set[int] = set()
        batching = self._training.batching
        for shard in sorted(data.shards, key=lambda shard: -len(shard.train)):
            samples = len(shard.train)
            # width of the widest batch of ``draw_batches``, which with ``last_batch = "merge"`` is
            # the last one
            width = max(batch_width(samples, batching.size), batching.last_size(samples))
            if not samples or width in tried_widths:
                continue
            tried_widths.add(width)
            x, y = data.train_samples(shard)
            training = LocalSolve(
                self._initial(0),
                to_device(x, solver.device),
                to_device(y, solver.device),
                draw_batches(np.random.default_rng(0), samples, batching, LocalEpochs(1)),
            )
            rule = Descent(self._training.lr, clip=self._training.sgd.clip)
            reason = solver.try_stack(training, rule)
            if reason:
                self.notes.append(
                    f"training.solver = 'cohort' trains devices with {samples} samples, and others "
                    f"with batches like theirs, one after the other: {reason}"
                )
        if solver.one_by_one:
            self.notes.append(
                "in a stack of training.solver = 'cohort', torch computes one model after the "
                f"other in {', '.join(solver.one_by_one)}"
            )

    @property
    def needs_sizes(self) -> bool:
        return bool(self._solver.single_sample_obstacle)

    def check_sizes(self, sizes: Mapping[int, int]) -> None:
        """Raise ``ScenarioError`` if a batch has one sample, and the module cannot train on one.

        Args:
            sizes: device -> count of training samples.
        """
        reason = self._solver.single_sample_obstacle
        if not reason:
            return
        failing_devices = []
        for device, size in sizes.items():
            if self._batching_of(device).last_size(size) == 1:
                failing_devices.append(device)
        if not failing_devices:
            return
        first = failing_devices[0]  # the advice is for this device
        batching = self._batching_of(first)
        size = sizes[first]
        if size == 1:
            allowed = "a data.partition without devices of one sample"
        elif batching.size == 1:
            allowed = "a training.batch_size of 2 or more"
        else:
            allowed = 'training.last_batch = "drop" or "merge"'
        raise ScenarioError(
            f"the module of model.factory cannot be trained on a batch of one sample ({reason}), "
            f"and the last batch of device {first} has one: it has {size} samples, in batches of "
            f"{batching.size} (as {len(failing_devices)} devices in all); "
            f"allowed is {allowed}, or a module that takes one, as with torch.nn.GroupNorm"
        )

    def _batching_of(self, device: int) -> Batching:
        default = self._training.batching
        if self.batch_sizes is None or not self.batch_sizes[device]:
            return default
        return Batching(self.batch_sizes.item(device), default.last)

    def given(self, weights: NDArray[np.floating]) -> Ref:
        ref = super().given(weights)
        ref.settle(np.array(weights, dtype=np.float32))
        return ref

    def of_data(
        self,
        function: DataFunction,
        device: int,
        version: int,
        constants: Mapping[str, object],
    ) -> Ref:
        """Compute values from a device's training samples in this call, and return their reference.

        ``Learner.of_data`` describes the arguments.

        Raises:
            SimulationError: the function raises an error, or returns no numbers.
        """
        x, y = self._data.train_samples(self._data.shard(device, version))
        try:
            values = np.asarray(function(x, y, **constants), dtype=np.float32).reshape(-1)
        except (FedsimError, MemoryError):
            raise
        except Exception as error:
            raise call_error(function, constants, error) from error
        ref = self._name("values", recipe=None, device=device)
        ref.settle(values)
        return ref

    def zero(self) -> Ref:
        ref = super().zero()
        ref.settle(np.zeros(self.parameters, dtype=np.float32))
        return ref

    def shift(self, device: int, version: int) -> None:
        self._tests.shift(device, version)

    def hold_restored(self, refs: Iterable[Ref]) -> None:
        stored = [ref for ref in refs if not isinstance(ref.held, Derived)]
        self._computing.scratch.hold_restored(stored)

    def free_derived(self) -> None:
        self._computing.scratch.free_substituted()

    async def values(self, refs: Sequence[Ref]) -> list[NDArray[np.float32]]:
        await self._computing.compute(refs)
        return self._computing.read(refs)

    async def distances(self, pairs: Sequence[tuple[Ref, Ref]]) -> list[float]:
        await self.compute([ref for pair in pairs for ref in pair])
        if self._models.stays and pairs:
            return self._models.distances(pairs)
        return await super().distances(pairs)

    async def compute(self, refs: Sequence[Ref]) -> None:
        await self._computing.compute(refs, stay=False)

    def compute_now(self, ref: Ref) -> None:
        # a coroutine that never waits ends at its first step
        self._computing.may_wait = False
        with suppress(StopIteration):
            self._computing.compute([ref]).send(None)
        self._computing.may_wait = True

    def frozen(self) -> NDArray[np.float32]:
        if not self.base_bytes:
            return super().frozen()
        tensors = frozen_tensors(self._module(0))
        parts = [as_real(tensor.detach()).to(torch.float32).reshape(-1) for tensor in tensors]
        return to_host(torch.cat(parts))

    @property
    def shapes(self) -> dict[str, Shape]:
        return dict(self._solver.tensors)

    def tensors(self, weights: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        shapes = self.shapes
        ends = np.cumsum([math.prod(shape) for shape in shapes.values()])[:-1]
        tensors = {}
        for (name, shape), part in zip(shapes.items(), np.split(weights, ends), strict=True):
            tensors[name] = part.reshape(shape)
        return tensors

    async def evaluate(self, models: Mapping[str, tuple[Ref, Sequence[int] | None]]) -> Evaluation:
        """Compute models if needed, and test each on the test samples of its devices.

        Args:
            models: name -> model, and its devices (None for all).
        """
        refs = [ref for ref, _ in models.values()]
        await self._computing.compute(refs, stay=self._computing.has_room(len(refs)))
        # models that are tested on one device each go into common requests to the workers
        personal: dict[str, tuple[Ref, int]] = {}
        shared: dict[str, tuple[Ref, Sequence[int] | None]] = {}
        for name, (ref, devices) in models.items():
            if devices is not None and len(devices) == 1:
                personal[name] = (ref, devices[0])
            else:
                shared[name] = (ref, devices)
        personal_results = await self._evaluate_personal(list(personal.values()))
        results = await self._evaluate_shared(shared)
        for position, name in enumerate(personal):
            results[name] = personal_results.entry(position)
        return Evaluation.concatenate([results[name] for name in models])

    async def _evaluate_shared(
        self, models: Mapping[str, tuple[Ref, Sequence[int] | None]]
    ) -> dict[str, Evaluation]:
        """Test models, whose weights are computed, each on the test samples of several devices.

        Args:
            models: name -> model, and the devices on whose samples it is tested (None for all).

        Returns:
            name -> evaluation.
        """
        samples_by_name = {}
        requests = []
        for name, (ref, devices) in models.items():
            model = self._models.named(ref)
            samples = self._tests.samples_of(devices)
            samples_by_name[name] = samples
            for block in samples.blocks:
                requests.append((self._solver, self._objective, self._models, model, block))
        block_results = iter(await self._computing.submit_all(evaluate_block, requests))
        evaluations = {}
        for name, samples in samples_by_name.items():
            results = [next(block_results) for _ in samples.blocks]
            evaluations[name] = evaluation_of(
                self._objective, samples.devices, samples.owner, results, samples.order
            )
        return evaluations

    async def _evaluate_personal(self, models: Sequence[tuple[Ref, int]]) -> Evaluation:
        """Test models, whose weights are computed, each on the test samples of a single device.

        Args:
            models: each model, and the index of the device on whose samples it is tested.

        Returns:
            One evaluation, with an entry for each model in order.
        """
        devices = [device for _, device in models]
        shards = [self._tests.shard(device) for device in devices]
        sizes = np.array([len(shard.test) for shard in shards], dtype=np.int64)
        # The models are sorted by count of samples, because solvers pad samples to the largest
        # count in a request. Models without samples are left out.
        order = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
        chunk_size = self._computing.models_at_once(_TESTED_AT_ONCE)

        def requests() -> Iterator[tuple[Any, ...]]:
            stores = self._tests.samples, self._models
            for start in range(0, len(order), chunk_size):
                chunk = order[start : start + chunk_size].tolist()
                tested = tuple(self._models.named(models[position][0]) for position in chunk)
                chunk_shards = tuple(shards[position] for position in chunk)
                yield self._solver, self._objective, *stores, tested, chunk_shards

        results = await self._computing.submit_all(evaluate_each, requests(), models=chunk_size)
        owner = np.repeat(order, sizes[order])  # for each result, the position of its model
        return evaluation_of(self._objective, devices, owner, results)

    def train(
        self,
        training: Training,
        device: int,
        *,
        key: int,
        round: int = 0,  # noqa: A002
        version: int = 0,
        before: Ref | None = None,
    ) -> Ref:
        """Return a reference to the model that a training will yield.

        ``Learner.train`` describes the arguments.

        Raises:
            ScenarioError: the training adds a term to the loss, and the scenario's trainer does not
                say that it applies such terms.
        """
        terms = training.terms
        if terms and not self._training.applies_terms:
            raise ScenarioError(
                f"training.kind is {self._training.kind!r}, and the strategy asks for a "
                f"{' and a '.join(terms)} term in the "
                "loss, which this trainer does not say that it applies; allowed are a trainer "
                "that minimises context.loss and "
                "says so by 'applies_terms: ClassVar[bool] = True', and training.kind 'sgd' "
                "and 'torch'"
            )
        return super().train(training, device, key=key, round=round, version=version, before=before)

    def last_gradient(self, update: Ref) -> Ref:
        recipe = update.recipe
        if not isinstance(recipe, Trained):
            raise SimulationError(
                f"{update.name} is no training that is still to be computed, so that its last "
                "gradient "
                "is gone; allowed is to ask in Client.computed or Client.reply, for "
                "LocalResult.trained"
            )
        training = replace(recipe.training, result="last-gradient")
        return self._name("gradient", replace(recipe, training=training), update.device)

    async def train_loss(self, updates: Sequence[tuple[Ref, float]]) -> float | None:
        await self.compute([ref for ref, _ in updates])
        finite = [(ref, weight) for ref, weight in updates if math.isfinite(ref.train_loss)]
        total_weight = math.fsum(weight for _, weight in finite)
        if not total_weight:
            return None
        return math.fsum(ref.train_loss * weight for ref, weight in finite) / total_weight

    def _initial(self, index: int) -> Weights:
        """Return the weights of an initial model, drawn or from ``model.file``; float32 [d].

        Args:
            index: index of the initial model.

        Raises:
            ScenarioError: models are to differ, but a file gives all of their weights.
        """
        has_file = self._model.file is not None
        if self._architecture is not None and not self._model.has_frozen and not has_file:
            return self._draw_weights(self._architecture, index)
        weights = self._module_weights(index)
        if index and has_file and np.array_equal(weights, self._initial(0)):
            raise ScenarioError(
                f"model.file is {self._model.file!r}, which gives every number of the model, "
                "and the strategy needs initial "
                "models that differ; allowed are strategies with one initial model"
            )
        return weights

    def _module_weights(self, index: int) -> Weights:
        """Build the module of an initial model, and return its initial weights, float32 [d].

        Args:
            index: index of the initial model.
        """
        return flat_weights(list(trained_tensors(self._module(index)).values()))

    def _draw_weights(self, architecture: Architecture, index: int) -> Weights:
        return architecture.initial(self._streams.generator(_INIT, index))

    def _module(self, index: int | None = None) -> nn.Module:
        """Build the module that is trained, with LoRA, frozen tensors and ``model.file`` applied.

        Args:
            index: index of the initial model whose weights the module gets; None if only the form
                of the module is used.
        """
        model = self._model
        draw = 0 if index is None else index
        # torch's seeds are signed, so that only 63 of the 64 bits can be used
        seed = self._streams.word(_INIT, count=draw) >> 1
        module = model.plain_module(self._shape, self._classes, seed)
        if self._architecture is not None and index is not None:
            load_weights(list(module.parameters()), self._draw_weights(self._architecture, index))
        adapters_seed = self._streams.word(_ADAPTERS, count=draw) >> 1
        adapt_and_freeze(module, model.lora, model.train, adapters_seed)
        if model.file is not None:
            fill_module(module, model.file, self._root)
        return module
