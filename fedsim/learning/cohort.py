"""Local training of many devices: what a worker is asked, and how a cohort is split into such requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.data.federated import FederatedData, Shard
from fedsim.learning.refs import Ref, Trained, Weights
from fedsim.learning.solvers import batches
from fedsim.learning.solvers.base import Descent, LocalSolve, Solved, Solver, compute_with_one_thread
from fedsim.learning.training import TrainingSpec
from fedsim.streams import Streams

_MOST_UNEQUAL = 8  # devices in one stack differ at most by this factor in their number of steps
_MOST_ROWS = 1 << 12  # samples in one step of a stack, unless one device alone has more: bounds the working memory


@dataclass(frozen=True)
class Job:
    """One device's training, with its start known.

    Attributes:
        recipe: what was asked.
        weights: the base's weights, float32 [d].
        shard: the device's data, in the version that was asked for.
    """

    recipe: Trained
    weights: Weights
    shard: Shard

    @property
    def count(self) -> int:
        """How many samples it trains on."""
        return len(self.shard.train if self.recipe.samples is None else self.recipe.samples)

    def batch_size(self, usual: int) -> int:
        """The size of its batches, in a run where it is usually ``usual``."""
        return batches.WHOLE if self.recipe.full_batch else usual

    def width(self, usual: int) -> int:
        """Rows of its batch arrays."""
        return batches.width(self.count, self.batch_size(usual))

    def steps(self, usual: int) -> int:
        """SGD steps that it takes."""
        return batches.steps(self.count, self.batch_size(usual), self.recipe.epochs, self.recipe.iterations)


class Trainer:
    """Carries out jobs on a worker, and splits cohorts into what one worker does at a time. It never changes.

    Args:
        solver: trains the model.
        training: how.
        samples: the shared samples, without anybody's shard.
        streams: the run's streams.
    """

    def __init__(self, solver: Solver, training: TrainingSpec, samples: FederatedData, streams: Streams) -> None:
        self.solver = solver
        self.training = training
        self.samples = samples
        self.streams = streams

    @staticmethod
    def job(ref: Ref, data: FederatedData) -> Job:
        """The job that computes ``ref``, whose base is known, on a device of ``data``."""
        recipe = ref.recipe
        if not isinstance(recipe, Trained) or recipe.base.value is None:
            raise ValueError(f"{ref} is no training that could be done now")
        return Job(recipe, recipe.base.value, data.shard(recipe.device, recipe.version))

    def split(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Positions of the jobs that are done together, the longest work first.

        Looks at the jobs alone, never at the number of workers. Together are jobs with one learning rate, one proximal term
        and one width of batches, of like length, that the solver takes for good company, and no more rows than ``_MOST_ROWS``.
        """
        size = self.training.batch_size
        steps = [job.steps(size) for job in jobs]
        company = [self.solver.company(job.count, job.width(size), step) for job, step in zip(jobs, steps, strict=True)]

        def alike(at: int) -> tuple[float, float, int, str]:
            return jobs[at].recipe.lr, jobs[at].recipe.proximal, jobs[at].width(size), company[at].kind

        order = sorted(range(len(jobs)), key=lambda at: (alike(at), -steps[at], at))
        chunks: list[list[int]] = []
        for (_, _, width, _), group in groupby(order, alike):
            rest = list(group)
            while rest:
                long = [at for at in rest if steps[at] * _MOST_UNEQUAL >= steps[rest[0]]]
                most = min(_MOST_ROWS // width, *(company[at].most for at in long))
                chunks += _evenly(long, max(1, most))
                rest = rest[len(long) :]
        return sorted(chunks, key=lambda chunk: (-steps[chunk[0]], chunk[0]))

    def train(self, jobs: Sequence[Job]) -> list[Solved]:
        """Carry out jobs that ``split`` put together; the results in the order given."""
        compute_with_one_thread()
        recipe, training = jobs[0].recipe, self.training
        descent = Descent(recipe.lr, training.momentum, training.weight_decay, training.l2, recipe.proximal)
        return self.solver.solve([self._local_solve(job) for job in jobs], descent)

    def _local_solve(self, job: Job) -> LocalSolve:
        recipe = job.recipe
        x, y = self._samples(job)
        generator = self.streams.generator("learning/shuffle", recipe.device, recipe.key)
        size = job.batch_size(self.training.batch_size)
        order = batches.shuffled(generator, len(y), size, recipe.epochs, recipe.iterations)
        key = self.streams.word("learning/dropout", recipe.device, recipe.key)
        return LocalSolve(job.weights, torch.from_numpy(x), torch.from_numpy(y), order, key)

    def _samples(self, job: Job) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        x, y = self.samples.train_samples(job.shard)
        return (x, y) if job.recipe.samples is None else (x[job.recipe.samples], y[job.recipe.samples])


def _evenly(jobs: list[int], most: int) -> list[list[int]]:
    """Chunks of nearly equal length, at most ``most``."""
    count = -(-len(jobs) // most)
    ends = [len(jobs) * at // count for at in range(count + 1)]
    return [jobs[begin:end] for begin, end in pairwise(ends)]
