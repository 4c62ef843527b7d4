"""Training objectives of models on devices' own data: what a worker is asked, and how a wave is split into such requests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.data.federated import FederatedData, Shard
from fedsim.learning.refs import Best, Ref, Weights
from fedsim.learning.solvers.base import Solver, compute_with_one_thread

_SAMPLES_AT_ONCE = 512  # training samples in one request, unless one device alone has more: a model is loaded once for all


@dataclass(frozen=True)
class Question:
    """Which of several models is best on one device's data, with all of them known.

    Attributes:
        shard: the device's data, in the version that was asked for.
        models: weights, float32 [d] each.
    """

    shard: Shard
    models: list[Weights]

    @property
    def count(self) -> int:
        """Training samples of the device."""
        return len(self.shard.train)


class Chooser:
    """Answers questions on a worker, and splits waves of them into what one worker does at a time. It never changes.

    Args:
        solver: applies the models.
        samples: the shared samples, without anybody's shard.
    """

    def __init__(self, solver: Solver, samples: FederatedData) -> None:
        self._solver = solver
        self._all_samples = samples

    @staticmethod
    def question(ref: Ref, data: FederatedData) -> Question:
        """The question that ``ref`` stands for, whose models are known, put to a device of ``data``."""
        recipe = ref.recipe
        if not isinstance(recipe, Best):
            raise ValueError(f"{ref} is no choice that is still to be made")
        models = [model.value for model in recipe.models if model.value is not None]
        if len(models) < len(recipe.models):
            raise ValueError(f"{ref} is a choice between models of which some have no value")
        return Question(data.shard(recipe.device, recipe.version), models)

    def split(self, questions: Sequence[Question]) -> list[list[int]]:
        """Positions of the questions that are answered together, those with the most work first.

        Looks at the questions alone, never at the number of workers.
        """
        work = [question.count * len(question.models) for question in questions]
        chunks: list[list[int]] = []
        room = 0
        for at in sorted(range(len(questions)), key=lambda at: (-work[at], at)):
            if not chunks or questions[at].count > room:
                chunks.append([])
                room = _SAMPLES_AT_ONCE
            chunks[-1].append(at)
            room -= questions[at].count
        return chunks

    def mean_losses(self, questions: Sequence[Question]) -> list[NDArray[np.float64]]:
        """The mean loss over the device's training samples of each model, float64 [models] for each question."""
        compute_with_one_thread()
        samples = [self._samples(question) for question in questions]
        losses = [np.empty(len(question.models)) for question in questions]
        for weights, places in _by_model(questions):
            xs, ys = zip(*(samples[at] for at, _ in places), strict=True)
            for (at, position), loss in zip(places, self._solver.mean_losses(weights, xs, ys), strict=True):
                losses[at][position] = loss
        return losses

    def penalties(self, questions: Sequence[Question], l2: float) -> list[NDArray[np.float64]]:
        """The penalty l2 ||kernels||^2 of each model, float64 [models] for each question."""
        penalties = [np.zeros(len(question.models)) for question in questions]
        if l2:
            for weights, places in _by_model(questions):
                penalty = l2 * self._solver.kernel_norm(weights)
                for at, position in places:
                    penalties[at][position] = penalty
        return penalties

    def _samples(self, question: Question) -> tuple[Tensor, Tensor]:
        """A device's training samples in memory of torch's: aligned, whatever numpy's was."""
        x, y = self._all_samples.train_samples(question.shard)
        device = self._solver.device
        return torch.tensor(x, device=device), torch.tensor(y, device=device)


def _by_model(questions: Sequence[Question]) -> Iterator[tuple[Weights, list[tuple[int, int]]]]:
    """Each distinct model in order of appearance, with its places: questions, and positions among their models."""
    places: dict[int, list[tuple[int, int]]] = {}
    for at, question in enumerate(questions):
        for position, weights in enumerate(question.models):
            places.setdefault(id(weights), []).append((at, position))
    for found in places.values():
        at, position = found[0]
        yield questions[at].models[position], found
