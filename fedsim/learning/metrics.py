"""Metrics of tests: each keeps some numbers a sample, and finds its figure from those of all samples that are pooled.

So a figure is exact for any set of devices: perplexity is that of all tokens, F1 and AUC are those of all pooled scores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import ScenarioError
from fedsim.language.imports import at
from fedsim.language.stop import MORE_IS_BETTER

if TYPE_CHECKING:
    from torch import Tensor

SampleNumbers = NDArray[np.float64]
"""Numbers that a metric keeps of samples, [n, m]."""

UNASKED = -100
"""A target token that is no answer: neither a loss nor a metric counts it."""


@dataclass(frozen=True)
class EvaluationMetric:
    """A figure of tests: the name of its column, and the kinds of objectives that it fits.

    Attributes:
        keep: outputs and targets of samples -> its ``SampleNumbers`` of them.
        value: ``SampleNumbers`` of one sample at least -> the figure; NaN where it is not defined.
        more_is_better: whether the most is the best; else the least.
    """

    name: str
    kinds: tuple[str, ...]
    keep: "Callable[[Tensor, Tensor], Tensor]"
    value: Callable[[SampleNumbers], float]
    more_is_better: bool = False


def _mean(facts: SampleNumbers) -> float:
    return float(facts.mean())


def reported_metric(name: str, more_is_better: bool) -> EvaluationMetric:
    """A number that trainers report, of which a round has the mean over its updates; tests do not know it."""
    return EvaluationMetric(name, (), lambda outputs, targets: outputs[:0], _mean, more_is_better)


def _entropies(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """The summed cross-entropy of each sample's tokens, and their number."""
    import torch
    from torch.nn.functional import cross_entropy

    each = cross_entropy(outputs.transpose(1, 2), targets, reduction="none", ignore_index=UNASKED).double()
    return torch.stack([each.sum(dim=1), (targets != UNASKED).sum(dim=1)], dim=1)


def _perplexity(facts: SampleNumbers) -> float:
    total, tokens = facts.sum(axis=0)
    with np.errstate(over="ignore"):
        return float(np.exp(total / tokens))


def _squares(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    return (outputs - targets).square().mean(dim=1, keepdim=True)


def _labels(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Scores of labels, whether each is answered, and whether it is true: [n, 3 C], each C of them together."""
    import torch
    from torch.nn.functional import one_hot

    if targets.ndim == 2:
        return torch.cat([outputs, outputs > 0, targets], dim=1)
    answered, truth = (one_hot(labels, outputs.shape[1]) for labels in (outputs.argmax(dim=1), targets))
    return torch.cat([outputs.softmax(dim=1), answered, truth], dim=1)


def _f1(facts: SampleNumbers) -> float:
    from sklearn.metrics import f1_score

    _, answered, truth = np.split(facts, 3, axis=1)
    there = (answered + truth).any(axis=0)
    return float(np.mean(f1_score(truth[:, there], answered[:, there], average=None))) if there.any() else float("nan")


def _auc(facts: SampleNumbers) -> float:
    from sklearn.metrics import roc_auc_score

    scores, _, truth = np.split(facts, 3, axis=1)
    there = np.flatnonzero(truth.any(axis=0) & ~truth.all(axis=0))
    if not len(there) or not np.isfinite(scores).all():
        return float("nan")
    return float(np.mean([roc_auc_score(truth[:, label], scores[:, label]) for label in there]))


_TOKENS, _NUMBERS, _LABELLED = ("next-token", "masked-token"), ("regression",), ("classification", "multi-label")
METRICS = {
    name: EvaluationMetric(name, kinds, keep, value, MORE_IS_BETTER[name])
    for name, kinds, keep, value in (
        ("perplexity", _TOKENS, _entropies, _perplexity),
        ("mse", _NUMBERS, _squares, _mean),
        ("rmse", _NUMBERS, _squares, lambda facts: float(np.sqrt(facts.mean()))),
        ("f1", _LABELLED, _labels, _f1),
        ("auc", _LABELLED, _labels, _auc),
    )
}
"""``perplexity``: e to the mean cross-entropy of all tokens. ``mse``, ``rmse``: the mean squared error and its root. ``f1``,
``auc``: means over labels (of classes each against the rest), of F1 over those that are true or answered somewhere, of the area
under the ROC curve over those that some samples have and some lack."""


_function = cache(at)


@cache
def own_metric(path: str) -> EvaluationMetric:
    """The mean of a user's function of outputs and targets, one number a sample; its name is the function's."""

    def keep(outputs: "Tensor", targets: "Tensor") -> "Tensor":
        return one_a_sample(path, "objective.metrics", outputs, targets)[:, None]

    more_is_better = getattr(_function(path, "objective.metrics"), "more_is_better", False)
    return EvaluationMetric(path.rpartition(":")[2], (), keep, _mean, more_is_better)


def one_a_sample(path: str, key: str, outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """The numbers that a user's function gives, one for each sample, [n]."""
    found: Tensor = _function(path, key)(outputs, targets)
    if tuple(found.shape) != (len(targets),):
        raise ScenarioError(
            f"{key} has {path!r}, which gave {tuple(found.shape)} for {len(targets)} samples; it must give one number a sample"
        )
    return found
