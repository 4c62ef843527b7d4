"""Local trainings and choices of models of many devices: carried out on workers, in requests of
like work.
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
from fedsim.learning.refs import Best, Ref, Trained, Weights
from fedsim.learning.solvers.base import Descent, LocalSolve, Solved, Solver, one_thread, shuffled
from fedsim.learning.solvers.dropout import advanced_key
from fedsim.learning.spec import Trainer


class TrainingJob(NamedTuple):
    """One device's training, with its start known; ``samples`` are positions of those that it
    trains on, None for all.
    """

    recipe: Trained
    shard: Shard
    samples: NDArray[np.int64] | None
    lr: float
    batching: Batching


Question = tuple[Shard, list[Weights], NDArray[np.int64] | None]
"""Choice of the best of several known models, float32 [d] each, on the training samples of a
shard or some (positions).
"""


def last_gradient(solver: Solver, solve: LocalSolve, descent: Descent) -> Solved:
    """The gradient of the last step of a local solve, [d], as weights; zeros without a step."""
    last = solve.batches.steps - 1
    if last < 0:
        return Solved(np.zeros_like(solve.weights), math.nan)
    before = solver.solve(replace(solve, batches=solve.batches.between(0, last)), descent)
    key = advanced_key(solve.key, last)
    batch = solve.batches.between(last, last + 1)
    anchor = solve.weights if solve.anchor is None else solve.anchor
    step = replace(solve, weights=before.weights, batches=batch, key=key, anchor=anchor)
    still = solver.solve(step, replace(descent, lr=0.0, momentum=0.0))  # running statistics move
    moved = solver.solve(step, replace(descent, lr=1.0, momentum=0.0))
    with np.errstate(over="ignore", invalid="ignore"):  # of a device that has diverged
        return Solved(still.weights - moved.weights, moved.train_loss)


class LocalWork:
    """Makes jobs and questions, and carries them out on a worker; ``samples`` are the shared
    ones, without shards.
    """

    def __init__(
        self, solver: Solver, training: Trainer, samples: FederatedData, streams: Streams
    ) -> None:
        self._solver = solver
        self._training = training
        self._samples = samples
        self._streams = streams

    def job(self, ref: Ref, data: FederatedData) -> TrainingJob:
        """The job that computes ``ref``, whose start is known."""
        recipe = ref.recipe
        assert isinstance(recipe, Trained)
        training = recipe.training
        shard = data.shard(recipe.device, recipe.version)
        lr = self._training.lr_in(recipe.round) if training.lr is None else training.lr
        part = training.part
        samples = None
        if part is not None:
            samples = stratified_part(data.train_labels(shard), part.splits, part.number)
        return TrainingJob(recipe, shard, samples, lr, training.batching(self._training.batching))

    def order(self, jobs: Sequence[TrainingJob]) -> list[int]:
        """Positions of the jobs, those with the most steps first, so that no long one is left
        last.
        """
        counts = [len(job.shard.train if job.samples is None else job.samples) for job in jobs]
        steps = [
            job.recipe.training.sgd_steps(n, job.batching)
            for n, job in zip(counts, jobs, strict=True)
        ]
        return sorted(range(len(jobs)), key=lambda at: -steps[at])

    def train(self, jobs: Sequence[TrainingJob]) -> list[Solved]:
        """Carry out jobs; the results in the order given."""
        one_thread()
        rule = self._training.sgd
        found = []
        for job in jobs:
            local = job.recipe.training
            own = (local.mu, rule.l2_on, local.held, rule.clip)
            descent = Descent(job.lr, rule.momentum, rule.weight_decay, rule.l2, *own)
            solver = (
                self._solver if local.contrast is None and rule.clip is None else self._solver.plain
            )
            solve = self._local_solve(job)
            if local.last_gradient:
                found.append(last_gradient(solver, solve, descent))
            else:
                found.append(solver.solve(solve, descent))
        return found

    def _local_solve(self, job: TrainingJob) -> LocalSolve:
        recipe = job.recipe
        training = job.recipe.training
        x, y = self._samples.train_samples(job.shard)
        if job.samples is not None:
            x = x[job.samples]
            y = y[job.samples]
        generator = self._streams.generator("learning/shuffle", recipe.device, recipe.key)
        before = recipe.before
        return LocalSolve(
            training.start.value,
            torch.from_numpy(x),
            torch.from_numpy(y),
            shuffled(
                generator,
                len(y),
                job.batching.size,
                training.epochs,
                training.steps,
                only=training.only_batch,
                last=job.batching.last,
            ),
            key=self._streams.word("learning/dropout", recipe.device, recipe.key),
            anchor=None if training.anchor is None else training.anchor.value,
            linear=None if training.linear is None else training.linear.value,
            contrast=training.contrast
            and replace(training.contrast, previous=training.contrast.previous.value),
            task=(recipe.device, recipe.round, training.epochs),
            state=before.state if before is not None and before.finite else None,
        )

    def question(self, ref: Ref, data: FederatedData) -> Question:
        """The choice or function that ``ref`` describes, with known models."""
        recipe = ref.recipe
        assert isinstance(recipe, Best)
        shard = data.shard(recipe.device, recipe.version)
        samples = None
        if recipe.batch is not None and recipe.batch[0] < len(shard.train):
            size, key = recipe.batch
            generator = self._streams.generator("learning/batch", recipe.device, key)
            samples = generator.choice(len(shard.train), size, replace=False)
        return shard, [model.value for model in recipe.models if model.value is not None], samples

    def objectives(self, questions: Sequence[Question]) -> list[NDArray[np.float64]]:
        """The mean loss of each model over the device's training samples, and its penalty;
        float64 [models] each.
        """
        one_thread()
        solver = self._solver
        rule = self._training.sgd
        found = []
        for shard, models, chosen in questions:
            # copied into memory of torch's, which is aligned, whatever numpy's was
            parts = self._samples.train_samples(shard)
            x, y = (
                torch.tensor(part if chosen is None else part[chosen], device=solver.device)
                for part in parts
            )
            found.append(
                np.array(
                    [solver.objective(weights, x, y, rule.l2, rule.l2_on) for weights in models]
                )
            )
        return found
