"""Local trainings and choices of models for many devices, which workers carry out.

A *recipe* says how a model is computed. A *job* is a recipe with the device's data, as it is sent to
a worker. There it becomes a ``LocalSolve``, the tensors of one training, from which a solver makes a
``Solved``.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.common.streams import Streams
from fedsim.common.training import Batching
from fedsim.learning.data.federated import FederatedData, Shard, stratified_part
from fedsim.learning.host_copies import FlatModel, difference
from fedsim.learning.refs import Best, Ref, Trained
from fedsim.learning.resident import ResidentSamples
from fedsim.learning.resident_models import NamedWeights, ResidentModels, TrainedModel
from fedsim.learning.scratch import Weights
from fedsim.learning.solvers.base import (
    Descent,
    LocalSolve,
    Solved,
    Solver,
    TrainingTask,
    draw_batches,
    use_one_thread,
)
from fedsim.learning.solvers.dropout import advanced_key
from fedsim.learning.spec import Trainer


class TrainingJob(NamedTuple):
    """Inputs of a device's local training, as they are sent to a worker.

    Attributes:
        recipe: description of the training: its model, epochs and further options.
        shard: the device's samples.
        samples: indices of the training samples that are used, int64 [n]; None for all.
        lr: learning rate of the round.
        batching: batch size, and treatment of an epoch's last batch.
    """

    recipe: Trained
    shard: Shard
    samples: NDArray[np.int64] | None
    lr: float
    batching: Batching

    @property
    def size(self) -> int:
        """Count of samples that the device trains on."""
        return len(self.shard.train if self.samples is None else self.samples)


class ChoiceJob(NamedTuple):
    """Inputs of a choice among models, as sent to a worker: the models and a device's samples.

    The worker computes the loss of each model, by which the best one is chosen.

    Attributes:
        shard: the device's samples.
        models: the weights of each model, float32 [d].
        samples: indices of the training samples that are used, int64 [n]; None for all.
    """

    shard: Shard
    models: list[Weights | NamedWeights]
    samples: NDArray[np.int64] | None


def last_gradient(solver: Solver, solve: LocalSolve, descent: Descent) -> Solved:
    """Compute the gradient of the last SGD step of a local training (``Learner.last_gradient``).

    The training is carried out up to that step. The last step is then taken twice from there: with
    learning rate 0, which changes only running statistics, and with learning rate 1. The gradient
    is the difference of the resulting weights.

    Args:
        solver: the solver of the model.
        solve: the device's start model, samples and batches.
        descent: the rule of an SGD step.

    Returns:
        The gradient [d] in place of the weights, with the loss of the last batch. If there are no
        steps, the gradient is zero and the loss NaN.
    """
    last = solve.batches.steps - 1
    if last < 0:
        start = solve.weights
        zero = torch.zeros_like(start) if isinstance(start, torch.Tensor) else np.zeros_like(start)
        return Solved(zero, math.nan)
    earlier_steps = replace(solve, batches=solve.batches.between(0, last))
    earlier = solver.solve(earlier_steps, descent)
    key = advanced_key(solve.key, last)
    batch = solve.batches.between(last, last + 1)
    # the proximal term still pulls to the start of the whole training
    anchor = solve.weights if solve.anchor is None else solve.anchor
    step = replace(solve, weights=earlier.weights, batches=batch, key=key, anchor=anchor)
    unmoved = solver.solve(step, replace(descent, lr=0.0, momentum=0.0))
    moved = solver.solve(step, replace(descent, lr=1.0, momentum=0.0))
    with np.errstate(over="ignore", invalid="ignore"):  # a device may have diverged
        return Solved(difference(unmoved.weights, moved.weights), moved.train_loss)


class LocalWork:
    """Provider of jobs for the workers: local trainings, and choices of the best of several models.

    A choice finds the model of least loss on a device's data. ``job`` and ``choice_job`` collect
    the inputs of a training and of a choice in the run's process. ``train`` and ``objectives``
    compute the results on a worker.

    Args:
        solver: the solver of the run's model.
        training: the trainer of the scenario.
        samples: all samples on the solver's torch device; sent to each worker once.
        models: models on the solver's torch device; each worker has such an object.
        streams: the random streams of the run.
    """

    def __init__(
        self,
        solver: Solver,
        training: Trainer,
        samples: ResidentSamples,
        models: ResidentModels,
        streams: Streams,
    ) -> None:
        self._solver = solver
        self._training = training
        self._samples = samples  # samples of all devices, on the solver's torch device
        self._models = models  # models to be trained or tested, on the solver's torch device
        self._streams = streams

    def job(self, ref: Ref, data: FederatedData) -> TrainingJob:
        """Collect the inputs of the training that computes a model.

        Args:
            ref: the model, a result of local training; the models from which it is trained have
                been computed.
            data: the data of all devices.
        """
        recipe = ref.recipe
        assert isinstance(recipe, Trained)
        training = recipe.training
        shard = data.shard(recipe.device, recipe.version)
        lr = training.lr
        if lr is None:
            lr = self._training.lr_in(recipe.round)
        batching = training.batching(self._training.batching)
        samples = None
        part = training.part
        if part is not None:
            samples = stratified_part(data.train_labels(shard), part.splits, part.number)
        return TrainingJob(recipe, shard, samples, lr, batching)

    def order(self, jobs: Sequence[TrainingJob]) -> list[int]:
        """Return the order in which to start trainings: the trainings with most SGD steps first.

        A long training thus does not begin last, while other workers are idle.

        Returns:
            Indices of the jobs.
        """
        steps = [job.recipe.training.sgd_steps(job.size, job.batching) for job in jobs]
        return sorted(range(len(jobs)), key=lambda position: -steps[position])

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainedModel]:
        """Carry out local trainings, on a worker.

        Args:
            jobs: the inputs of each training.

        Returns:
            For each job the trained weights, the loss, and the trainer's reports and state.
        """
        use_one_thread()
        results: list[TrainedModel] = []
        for begin in range(0, len(jobs), self.at_once):
            solved = self._train_at_once(jobs[begin : begin + self.at_once])
            results += self._models.settle(solved)
        return results

    @property
    def at_once(self) -> int:
        """Count of trainings that a worker's solver computes together."""
        return self._solver.at_once

    def _train_at_once(self, jobs: Sequence[TrainingJob]) -> list[Solved]:
        """Carry out at most ``at_once`` local trainings, which the solver may compute together."""
        results: dict[int, Solved] = {}
        trainings: dict[int, tuple[LocalSolve, Descent]] = {}
        # The first job's solver serves all jobs: only ``Dense`` has a second one, and it takes one
        # job at a time.
        solver = self._solver_of(jobs[0])
        for position, job in enumerate(jobs):
            solve = self._local_solve(job)
            descent = self._descent(job)
            if job.recipe.training.result == "last-gradient":
                results[position] = last_gradient(solver, solve, descent)
            else:
                trainings[position] = solve, descent
        solved = solver.solve_all(list(trainings.values()))
        results.update(zip(trainings, solved, strict=True))
        return [results[position] for position in range(len(jobs))]

    def _solver_of(self, job: TrainingJob) -> Solver:
        """Return the run's solver, or its version by autograd if a gradient has no closed form."""
        needs_autograd = job.recipe.training.contrast is not None
        needs_autograd |= self._training.sgd.clip is not None
        return self._solver.by_autograd if needs_autograd else self._solver

    def _descent(self, job: TrainingJob) -> Descent:
        """Return the rule of a training's SGD steps: learning rate, momentum and penalties."""
        rule = self._training.sgd
        local = job.recipe.training
        return Descent(
            job.lr,
            rule.momentum,
            rule.weight_decay,
            rule.l2,
            mu=local.proximal.mu,
            l2_on=rule.l2_on,
            held=local.held,
            clip=rule.clip,
        )

    def _local_solve(self, job: TrainingJob) -> LocalSolve:
        """Collect the tensors, batches and keys of random numbers of a training, on a worker."""
        recipe = job.recipe
        training = recipe.training
        x, y = self._samples.train(job.shard, job.samples)
        batches = draw_batches(
            self._streams.generator("learning/shuffle", recipe.device, recipe.key),
            len(y),
            job.batching,
            training.amount,
        )
        contrast = training.contrast
        if contrast is not None:
            contrast = replace(contrast, previous=self._models.of(contrast.previous))
        state = None  # the trainer's state after the device's previous training
        before = recipe.before
        if before is not None and before.finite:
            state = before.state
        return LocalSolve(
            self._models.of(training.start),
            x,
            y,
            batches,
            key=self._streams.word("learning/dropout", recipe.device, recipe.key),
            anchor=self._weights_of(training.proximal.anchor),
            linear=self._weights_of(training.linear),
            contrast=contrast,
            task=TrainingTask(recipe.device, recipe.round, training.epochs),
            state=state,
        )

    def _weights_of(self, ref: Ref | None) -> FlatModel | None:
        return None if ref is None else self._models.of(ref)

    def choice_job(self, ref: Ref, data: FederatedData) -> ChoiceJob:
        """Collect the inputs of a choice of the best of several models on a device's data.

        Args:
            ref: the model that is the result of the choice; all candidates have been computed.
            data: the data of all devices.
        """
        recipe = ref.recipe
        assert isinstance(recipe, Best)
        shard = data.shard(recipe.device, recipe.version)
        samples = None
        if recipe.batch is not None:
            size, key = recipe.batch
            if size < len(shard.train):
                generator = self._streams.generator("learning/batch", recipe.device, key)
                samples = generator.choice(len(shard.train), size, replace=False)
        return ChoiceJob(shard, [self._models.named(model) for model in recipe.models], samples)

    def objectives(self, jobs: Sequence[ChoiceJob]) -> list[NDArray[np.float64]]:
        """Compute the values by which choices among models are made.

        Args:
            jobs: for each choice, the models and the device's data.

        Returns:
            For each job, the mean loss of each model over the samples plus the L2 penalty, float64
            [models].
        """
        use_one_thread()
        solver = self._solver
        rule = self._training.sgd
        results = []
        for shard, models, samples in jobs:
            x, y = self._samples.train(shard, samples)
            # a copy in memory that torch aligns, as the last bits of results depend on alignment
            inputs = x.clone()
            losses = []
            for model in models:
                weights = self._models.flat(model)
                losses.append(solver.objective(weights, inputs, y.clone(), rule.l2, rule.l2_on))
            results.append(np.array(losses))
        return results
