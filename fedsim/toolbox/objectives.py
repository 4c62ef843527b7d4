"""Objectives (token prediction, regression, multi-label), and the built-in metrics of tests."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.common.arrays import AnyArray
from fedsim.common.stop import MORE_IS_BETTER
from fedsim.common.streams import Streams
from fedsim.learning.architecture import Shape
from fedsim.learning.data.federated import Pool, TokenShape
from fedsim.learning.objectives import (
    EvaluationMetric,
    Objective,
    SampleNumbers,
    describe_targets,
    entropies,
    mean_of_values,
)

if TYPE_CHECKING:
    from torch import Tensor


UNASKED = -100
"""Target of a token that the model need not predict; it is in no loss and no metric."""


def _entropy_sums(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Compute each sample's sum of cross-entropies over its tokens, and count of tokens, [n, 2]."""
    import torch
    from torch.nn.functional import cross_entropy

    losses = cross_entropy(
        outputs.transpose(1, 2), targets, reduction="none", ignore_index=UNASKED
    ).double()
    return torch.stack([losses.sum(dim=1), (targets != UNASKED).sum(dim=1)], dim=1)


def _perplexity(facts: SampleNumbers) -> float:
    total, tokens = facts.sum(axis=0)
    with np.errstate(over="ignore"):
        return float(np.exp(total / tokens))


def _squares(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    return (outputs - targets).square().mean(dim=1, keepdim=True)


def _scores_and_labels(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Concatenate the scores, the predicted labels and the true labels, each [n, C], to [n, 3 C].

    Labels are 0 or 1; ``_f1`` and ``_auc`` read the result.
    """
    import torch
    from torch.nn.functional import one_hot

    if targets.ndim == 2:
        return torch.cat([outputs, outputs > 0, targets], dim=1)
    classes = outputs.shape[1]
    answered = one_hot(outputs.argmax(dim=1), classes)
    truth = one_hot(targets, classes)
    return torch.cat([outputs.softmax(dim=1), answered, truth], dim=1)


def _root_of_mean(facts: SampleNumbers) -> float:
    return float(np.sqrt(facts.mean()))


def _f1(facts: SampleNumbers) -> float:
    from sklearn.metrics import f1_score

    _, answered, truth = np.split(facts, 3, axis=1)
    labels = np.flatnonzero((answered + truth).any(axis=0))
    if not len(labels):
        return float("nan")
    return float(np.mean(f1_score(truth[:, labels], answered[:, labels], average=None)))


def _auc(facts: SampleNumbers) -> float:
    from sklearn.metrics import roc_auc_score

    scores, _, truth = np.split(facts, 3, axis=1)
    labels = np.flatnonzero(truth.any(axis=0) & ~truth.all(axis=0))
    if not len(labels) or not np.isfinite(scores).all():
        return float("nan")
    return float(np.mean([roc_auc_score(truth[:, label], scores[:, label]) for label in labels]))


def _metric(
    name: str,
    kinds: tuple[str, ...],
    keep: "Callable[[Tensor, Tensor], Tensor]",
    value: Callable[[SampleNumbers], float],
) -> EvaluationMetric:
    return EvaluationMetric(name, kinds, keep, value, MORE_IS_BETTER[name])


_TOKENS = ("next-token", "masked-token")
_NUMBERS = ("regression",)
_LABELLED = ("classification", "multi-label")
METRICS = {
    "perplexity": _metric("perplexity", _TOKENS, _entropy_sums, _perplexity),
    "mse": _metric("mse", _NUMBERS, _squares, mean_of_values),
    "rmse": _metric("rmse", _NUMBERS, _squares, _root_of_mean),
    "f1": _metric("f1", _LABELLED, _scores_and_labels, _f1),
    "auc": _metric("auc", _LABELLED, _scores_and_labels, _auc),
}
"""The built-in metrics by name.

``perplexity`` is e to the mean cross-entropy of all tokens. ``mse`` and ``rmse`` are the mean
squared error and its root. ``f1`` is the mean F1 over the labels that are true or predicted for at
least one sample. ``auc`` is the mean area under the ROC curve over the labels that some samples
have and some samples lack. A class counts as a label, against all other classes.
"""


class _Tokens(Objective):
    """The base of objectives that predict tokens, by softmax cross-entropy."""

    metrics: list[str] = Field(default=["perplexity"])
    needs: ClassVar[str] = "samples that are sequences of two tokens or more"

    def _vocabulary(self, shape: Shape) -> int:
        """Return the count of different tokens in samples of a shape.

        Raises:
            ScenarioError: the samples are not sequences of two tokens or more.
        """
        if not isinstance(shape, TokenShape):
            raise self.misfit(f"numbers of shape {tuple(shape)}")
        if len(shape) != 1 or shape[0] < 2:
            raise self.misfit(f"tokens of shape {tuple(shape)}")
        return shape.vocabulary

    def each(self, outputs: "Tensor", targets: "Tensor", **options: object) -> "Tensor":
        return entropies(outputs.transpose(1, 2), targets, ignore_index=UNASKED, **options)

    def asked(self, targets: "Tensor") -> "Tensor":
        return targets != UNASKED


class NextToken(_Tokens):
    """Prediction of the next token at each token of a sequence, by softmax cross-entropy.

    A sample has T + 1 tokens; the model receives the first T, and predicts the last T.
    """

    kind: Literal["next-token"] = "next-token"

    def sizes(self, shape: Shape, outputs: int) -> tuple[Shape, int]:
        vocabulary = self._vocabulary(shape)
        return TokenShape.of((shape[0] - 1,), vocabulary, "next"), vocabulary

    def fitted(self, pool: Pool, streams: Streams) -> Pool:
        _, outputs = self.sizes(pool.shape, outputs=0)
        return replace(
            pool, x=pool.x[:, :-1], targets=pool.x[:, 1:], outputs=outputs, answers="next"
        )


class MaskedToken(_Tokens):
    """Prediction of hidden tokens of a sequence (masked language model, Devlin 2019).

    In the model's input an additional token, the mask, replaces each hidden token. The hidden
    tokens of a sample, at least one, are drawn once for the whole run.

    Attributes:
        share: probability that a token is hidden.
    """

    kind: Literal["masked-token"] = "masked-token"
    share: float = Field(default=0.15, gt=0.0, lt=1.0)

    def sizes(self, shape: Shape, outputs: int) -> tuple[Shape, int]:
        tokens = self._vocabulary(shape) + 1
        return TokenShape.of(tuple(shape), tokens, "each"), tokens

    def fitted(self, pool: Pool, streams: Streams) -> Pool:
        _, tokens = self.sizes(pool.shape, outputs=0)
        draws = streams.generator("world/data/mask").random(pool.x.shape)
        # the token with the smallest draw is always hidden, so that each sample has a hidden token
        hidden = (draws < self.share) | (draws == draws.min(axis=1, keepdims=True))
        x = np.where(hidden, pool.vocabulary, pool.x)
        targets = np.where(hidden, pool.x, UNASKED)
        return replace(
            pool, x=x, targets=targets, vocabulary=tokens, outputs=tokens, answers="each"
        )


class _Numbers(Objective):
    """The base of objectives whose targets are numbers, [n, k]."""

    of_entropy: ClassVar[bool] = False

    def fitted(self, pool: Pool, streams: Streams) -> Pool:
        if pool.targets is None:
            raise self.misfit("labels")
        if not self._accepts(pool.targets):
            raise self.misfit(describe_targets(pool.targets))
        return replace(pool, targets=pool.targets.astype(np.float32))

    def _accepts(self, targets: AnyArray) -> bool:
        raise NotImplementedError


class Regression(_Numbers):
    """Prediction of numbers; the loss is the squared error."""

    kind: Literal["regression"] = "regression"
    metrics: list[str] = Field(default=["mse"])
    needs: ClassVar[str] = "targets that are floats, [n] or [n, k]"
    has_accuracy: ClassVar[bool] = False

    def _accepts(self, targets: AnyArray) -> bool:
        return targets.ndim == 2 and np.issubdtype(targets.dtype, np.floating)

    def each(self, outputs: "Tensor", targets: "Tensor", **options: object) -> "Tensor":
        return (outputs - targets).square()

    def answers(self, outputs: "Tensor") -> "Tensor":
        return outputs


class MultiLabel(_Numbers):
    """Prediction of any number of C labels for a sample; the loss is the binary cross-entropy.

    A label is predicted if its output, a logit, is above 0.
    """

    kind: Literal["multi-label"] = "multi-label"
    metrics: list[str] = Field(default=["f1"])
    needs: ClassVar[str] = "targets of 0 and 1, [n, C]"

    def _accepts(self, targets: AnyArray) -> bool:
        return targets.ndim == 2 and bool(np.isin(targets, (0, 1)).all())

    def each(self, outputs: "Tensor", targets: "Tensor", **options: object) -> "Tensor":
        from torch.nn.functional import binary_cross_entropy_with_logits

        return binary_cross_entropy_with_logits(outputs, targets, reduction="none")

    def answers(self, outputs: "Tensor") -> "Tensor":
        return (outputs > 0).to(outputs.dtype)
