"""Local trainings and choices of models of many devices: carried out on workers, in requests of like work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.data.federated import FederatedData, Shard, stratified_part
from fedsim.learning.refs import Best, Ref, Trained, Weights, parents
from fedsim.learning.solvers.base import (
    WHOLE,
    Descent,
    LocalSolve,
    Solved,
    Solver,
    batch_width,
    compute_with_one_thread,
    shuffled,
)
from fedsim.learning.spec import Trainer
from fedsim.streams import Streams
from fedsim.training import Contrast, Places

_MOST_UNEQUAL = 8  # devices in one stack differ at most by this factor in their number of steps
_MOST_ROWS = 1 << 12  # samples in one step of a stack, unless one device alone has more: bounds the working memory


@dataclass(frozen=True)
class TrainingJob:
    """One device's training, with its start known.

    Attributes:
        recipe: what was asked.
        lr: learning rate.
        batch_size: samples of a batch.
        weights: of the start, float32 [d].
        anchor, linear: of the models in the proximal and the linear term; None without them.
        contrast: the contrastive term, with the weights of its previous model.
        shard: the device's data, in the version that was asked for.
        samples: positions within its training samples that it trains on, int64 [k]; None for all.
        state: what its trainer has kept of its last training.
    """

    recipe: Trained
    lr: float
    batch_size: int
    weights: Weights
    anchor: Weights | None
    linear: Weights | None
    contrast: Contrast | None
    shard: Shard
    samples: NDArray[np.int64] | None
    state: Mapping[str, NDArray[Any]] | None

    @property
    def count(self) -> int:
        """Number of samples that it trains on."""
        return len(self.shard.train if self.samples is None else self.samples)

    @property
    def width(self) -> int:
        """Rows of its batch arrays."""
        return batch_width(self.count, self.batch_size)

    @property
    def steps(self) -> int:
        """SGD steps that it takes."""
        return self.recipe.training.sgd_steps(self.count, self.batch_size)


class TrainingRunner:
    """Carries out jobs on a worker, and splits cohorts into what one worker does at a time. It never changes.

    ``samples`` are the shared ones, without anybody's shard.
    """

    def __init__(self, solver: Solver, training: Trainer, samples: FederatedData, streams: Streams) -> None:
        self.solver = solver
        self.training = training
        self.samples = samples
        self.streams = streams

    def job(self, ref: Ref, data: FederatedData) -> TrainingJob:
        """The job that computes ``ref``, whose start is known."""
        recipe = ref.recipe
        if not isinstance(recipe, Trained) or any(parent.value is None for parent in parents(recipe)):
            raise ValueError(f"{ref} is no training that could be done now")
        training, shard = recipe.training, data.shard(recipe.device, recipe.version)
        anchor, linear = (None if model is None else model.value for model in (training.anchor, training.linear))
        contrast = training.contrast and replace(training.contrast, previous=training.contrast.previous.value)
        lr = self.training.lr_in(recipe.round) if training.lr is None else training.lr
        batch_size = WHOLE if training.full_batch else self.training.batch_size
        part = training.part
        state = recipe.before.state if recipe.before is not None and recipe.before.finite else None
        samples = None if part is None else stratified_part(data.train_labels(shard), part.splits, part.number)
        return TrainingJob(recipe, lr, batch_size, training.start.value, anchor, linear, contrast, shard, samples, state)

    def split(self, jobs: Sequence[TrainingJob]) -> list[list[int]]:
        """Positions of the jobs that are done together; those with the most steps in all come first, so that none is left last.

        Looks at the jobs alone, never at the number of workers. Together are jobs with one learning rate and one proximal term,
        the same tensors held and one width of batches, all or none with a contrastive term, of like length and one kind of
        hint from the solver, and no more rows than ``_MOST_ROWS``.
        """
        steps = [job.steps for job in jobs]
        hints = [self.solver.batch_hint(job.count, job.width, step) for job, step in zip(jobs, steps, strict=True)]

        def alike(at: int) -> tuple[float, float, int, str, Places, bool]:
            training = jobs[at].recipe.training
            return jobs[at].lr, training.mu, jobs[at].width, hints[at].kind, training.held, training.contrast is None

        order = sorted(range(len(jobs)), key=lambda at: (alike(at), -steps[at], at))
        chunks: list[list[int]] = []
        for (_, _, width, *_), group in groupby(order, alike):
            rest = list(group)
            while rest:
                long = [at for at in rest if steps[at] * _MOST_UNEQUAL >= steps[rest[0]]]
                most = min(_MOST_ROWS // width, *(hints[at].most for at in long))
                chunks += _evenly(long, max(1, most))
                rest = rest[len(long) :]
        return sorted(chunks, key=lambda chunk: (-sum(steps[at] for at in chunk), chunk[0]))

    def train(self, jobs: Sequence[TrainingJob]) -> list[Solved]:
        """Carry out jobs that ``split`` put together; the results in the order given."""
        compute_with_one_thread()
        first, training, local = jobs[0], self.training.sgd, jobs[0].recipe.training
        mixed = (local.mu, training.l2_on, local.held, training.clip)
        descent = Descent(first.lr, training.momentum, training.weight_decay, training.l2, *mixed)
        solver = self.solver if local.contrast is None and training.clip is None else self.solver.plain
        return solver.solve([self._local_solve(job) for job in jobs], descent)

    def _local_solve(self, job: TrainingJob) -> LocalSolve:
        recipe = job.recipe
        x, y = self.samples.train_samples(job.shard)
        if job.samples is not None:
            x, y = x[job.samples], y[job.samples]
        generator = self.streams.generator("learning/shuffle", recipe.device, recipe.key)
        training = recipe.training
        order = shuffled(generator, len(y), job.batch_size, training.epochs, training.steps, only=training.only_batch)
        key = self.streams.word("learning/dropout", recipe.device, recipe.key)
        terms, task = (job.anchor, job.linear, job.contrast), (recipe.device, recipe.round, training.epochs)
        return LocalSolve(job.weights, torch.from_numpy(x), torch.from_numpy(y), order, key, *terms, task, job.state)


def _evenly(jobs: list[int], most: int) -> list[list[int]]:
    """Chunks of nearly equal length, at most ``most``."""
    count = -(-len(jobs) // most)
    ends = [len(jobs) * at // count for at in range(count + 1)]
    return [jobs[begin:end] for begin, end in pairwise(ends)]


_SAMPLES_AT_ONCE = 512  # training samples in one request, unless one device alone has more


class Question(NamedTuple):
    """Choice of the best of several known models, float32 [d] each, on the training samples of a shard or some (positions)."""

    shard: Shard
    models: list[Weights]
    samples: NDArray[np.int64] | None = None

    @property
    def asked(self) -> int:
        """Number of samples that it asks about."""
        return len(self.shard.train if self.samples is None else self.samples)


class Chooser:
    """Answers questions on a worker, and splits waves of them into what one worker does at a time. It never changes."""

    def __init__(self, solver: Solver, training: Trainer, samples: FederatedData, streams: Streams) -> None:
        self._solver = solver
        self._training = training.sgd
        self._all_samples = samples
        self._streams = streams

    def question(self, ref: Ref, data: FederatedData) -> Question:
        """The question that ``ref`` stands for, whose models are known."""
        recipe = ref.recipe
        if not isinstance(recipe, Best):
            raise ValueError(f"{ref} is no choice that is still to be made")
        models = [model.value for model in recipe.models if model.value is not None]
        if len(models) < len(recipe.models):
            raise ValueError(f"{ref} is a choice between models of which some have no value")
        shard, samples = data.shard(recipe.device, recipe.version), None
        if recipe.batch is not None and recipe.batch[0] < len(shard.train):
            size, key = recipe.batch
            generator = self._streams.generator("learning/batch", recipe.device, key)
            samples = generator.choice(len(shard.train), size, replace=False)
        return Question(shard, models, samples)

    def split(self, questions: Sequence[Question]) -> list[list[int]]:
        """Positions of the questions that are answered together, those with the most work first.

        Looks at the questions alone, never at the number of workers.
        """
        counts = [question.asked for question in questions]
        work = [count * len(question.models) for count, question in zip(counts, questions, strict=True)]
        chunks: list[list[int]] = []
        room = 0
        for at in sorted(range(len(questions)), key=lambda at: (-work[at], at)):
            if not chunks or counts[at] > room:
                chunks.append([])
                room = _SAMPLES_AT_ONCE
            chunks[-1].append(at)
            room -= counts[at]
        return chunks

    def objectives(self, questions: Sequence[Question]) -> list[NDArray[np.float64]]:
        """The mean loss of each model over the device's training samples, and its penalty; float64 [models] each."""
        compute_with_one_thread()
        solver, l2 = self._solver, self._training.l2
        found = []
        for shard, models, chosen in questions:
            # Copied into memory of torch's, which is aligned, whatever numpy's was.
            parts = self._all_samples.train_samples(shard)
            x, y = (torch.tensor(part if chosen is None else part[chosen], device=solver.device) for part in parts)
            losses = np.array([solver.mean_loss(weights, x, y) for weights in models])
            found.append(losses + [l2 * solver.kernel_norm(weights, self._training.l2_on) if l2 else 0.0 for weights in models])
        return found
