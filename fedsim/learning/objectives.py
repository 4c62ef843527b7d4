"""``[objective]``: the target of learning, its loss, and further metrics of tests.

A sample asks for one answer or several: a class, each token of a sequence, each number of a vector.
The loss of a sample is the mean over its answers; the loss and the accuracy of a test are means
over all answers. A metric keeps some numbers of each sample, and finds its figure from those of all
samples that are pooled: perplexity is that of all tokens, F1 of all scores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.imports import at, refuse_unless_allowed
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.learning.architecture import Shape
from fedsim.learning.data.federated import Pool

if TYPE_CHECKING:
    from torch import Tensor

_MORE = "fedsim.toolbox.objectives"

SampleNumbers = NDArray[np.float64]
"""Numbers that a metric keeps of samples, [n, m]."""


@dataclass(frozen=True)
class EvaluationMetric:
    """A figure of tests: the name of its column, and the kinds of objectives that it fits."""

    name: str
    kinds: tuple[str, ...]
    keep: "Callable[[Tensor, Tensor], Tensor]"
    """outputs and targets of samples -> its ``SampleNumbers`` of them."""
    value: Callable[[SampleNumbers], float]
    """``SampleNumbers`` of one sample at least -> the figure; NaN where it is not defined."""
    more_is_better: bool = False
    """whether the most is the best; else the least."""


def mean_of_samples(facts: SampleNumbers) -> float:
    """A figure that is the mean of all numbers kept."""
    return float(facts.mean())


def reported_metric(name: str, more_is_better: bool) -> EvaluationMetric:
    """A number that trainers report, of which a round has the mean over its updates; tests do
    not know it.
    """
    return EvaluationMetric(
        name, (), lambda outputs, targets: outputs[:0], mean_of_samples, more_is_better
    )


def _known_metrics() -> dict[str, EvaluationMetric]:
    found: dict[str, EvaluationMetric] = at(f"{_MORE}:METRICS", "objective.metrics")
    return found


_function = cache(at)


@cache
def own_metric(path: str) -> EvaluationMetric:
    """The mean of a user's function of outputs and targets, one number a sample; its name is the
    function's.
    """

    def keep(outputs: "Tensor", targets: "Tensor") -> "Tensor":
        return one_a_sample(path, "objective.metrics", outputs, targets)[:, None]

    more_is_better = getattr(_function(path, "objective.metrics"), "more_is_better", False)
    return EvaluationMetric(path.rpartition(":")[2], (), keep, mean_of_samples, more_is_better)


def one_a_sample(path: str, key: str, outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """The numbers that a user's function gives, one for each sample, [n]."""
    found: Tensor = _function(path, key)(outputs, targets)
    if tuple(found.shape) != (len(targets),):
        raise ScenarioError(
            f"{key} has {path!r}, which gave {tuple(found.shape)} for {len(targets)} samples; "
            "it must give one number a sample"
        )
    return found


class Objective(Spec):
    """Target of learning: the form of a model's output, the loss, and the metrics of tests."""

    kind: str
    metrics: list[str] = Field(default_factory=list)
    """figures of tests besides loss and accuracy, in the order of their columns: names, or your own
    functions as ``package.module:function`` of ``(outputs, targets)`` with one number a sample,
    [n], whose mean is taken; the least is the best unless the function has an attribute
    ``more_is_better = True``.
    """
    loss: str | None = None
    """your own loss, a function as in ``metrics``.

    A module's own method ``loss`` comes before it.
    """
    needs: ClassVar[str]
    """The samples or targets that it needs, for messages."""
    has_accuracy: ClassVar[bool] = True
    """Whether an answer is right or wrong."""
    of_entropy: ClassVar[bool] = True
    """Whether the usual loss is softmax cross-entropy."""

    @field_validator("loss")
    @classmethod
    def _may_be_imported(cls, loss: str | None) -> str | None:
        if loss is not None:
            refuse_unless_allowed(loss, "objective.loss")
        return loss

    @field_validator("metrics")
    @classmethod
    def _fit(cls, metrics: list[str]) -> list[str]:
        kind = cls.model_fields["kind"].default
        known = (
            [name for name, metric in _known_metrics().items() if kind in metric.kinds]
            if metrics
            else []
        )
        for name in metrics:
            if ":" in name:
                refuse_unless_allowed(name, "objective.metrics")
            elif name not in known:
                raise ScenarioError(
                    f"objective.metrics has {name!r}; allowed with objective.kind = {kind!r} "
                    f"are {', '.join(known)}, or your "
                    f"own as 'package.module:function'{nearest(name, known)}"
                )
        return metrics

    @property
    def is_plain(self) -> bool:
        """Whether it is classification by cross-entropy, which all solvers know."""
        return self.kind == "classification" and self.loss is None

    @property
    def figures(self) -> list[EvaluationMetric]:
        """The metrics."""
        return [
            own_metric(name) if ":" in name else _known_metrics()[name] for name in self.metrics
        ]

    def sizes(self, shape: Shape, outputs: int) -> tuple[Shape, int]:
        """The shape of a model's samples and its numbers an answer, for a source's samples, if
        they fit, and classes.
        """
        return shape, outputs

    def fitted(self, pool: Pool, streams: Streams) -> Pool:
        """The pool with the targets of this objective; ``ScenarioError`` where it has none."""
        raise NotImplementedError

    def misfit(self, found: str) -> ScenarioError:
        """The error for data that do not fit."""
        return ScenarioError(
            f"objective.kind is {self.kind!r}, which needs {self.needs}; data.source has {found}"
        )

    def losses(self, outputs: "Tensor", targets: "Tensor", **options: Any) -> "Tensor":
        """The loss of each sample, [n]; ``options`` are of torch's ``cross_entropy``."""
        if self.loss is not None:
            return one_a_sample(self.loss, "objective.loss", outputs, targets)
        asked = self.asked(targets).flatten(1)
        return (self.each(outputs, targets, **options).flatten(1) * asked).sum(dim=1) / asked.sum(
            dim=1
        ).clamp(min=1)

    def each(self, outputs: "Tensor", targets: "Tensor", **options: Any) -> "Tensor":
        """The usual loss of each answer, [n, ...]."""
        raise NotImplementedError

    def asked(self, targets: "Tensor") -> "Tensor":
        """Whether each answer counts, bool [n, ...]."""
        return targets == targets

    def answers(self, outputs: "Tensor") -> "Tensor":
        """The targets that a model's outputs predict, [n, ...]."""
        return outputs.argmax(dim=-1)


def told_targets(targets: NDArray[Any]) -> str:
    """Targets in words, for messages."""
    return f"targets {targets.dtype} of shape {targets.shape}"


def _labels_hint(targets: NDArray[Any]) -> str:
    """Advice on making labels of targets that are labels in another form; empty for real
    targets.
    """
    if (targets != np.rint(targets)).any():
        return ""
    if targets.shape[1:] == (1,):
        way = "y.astype(int)" if targets.dtype == np.float32 else "y[:, 0]"
        return f"; if these are labels, use {way}, of shape (n,)"
    is_one_hot = targets.ndim == 2 and targets.min() >= 0 and (targets.sum(axis=1) == 1).all()
    return "; if these are labels, one-hot, use y.argmax(axis=1)" if is_one_hot else ""


def entropies(outputs: "Tensor", targets: "Tensor", **options: Any) -> "Tensor":
    """Softmax cross-entropy of each answer."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(outputs, targets, reduction="none", **options)


class Classification(Objective):
    """One class a sample, by softmax cross-entropy."""

    kind: Literal["classification"] = "classification"
    needs: ClassVar[str] = "labels, one a sample"

    def fitted(self, pool: Pool, streams: Streams) -> Pool:
        if pool.targets is not None and (pool.targets.ndim > 1 or pool.targets.dtype != np.int64):
            raise self.misfit(f"{told_targets(pool.targets)}{_labels_hint(pool.targets)}")
        return pool

    def losses(self, outputs: "Tensor", targets: "Tensor", **options: Any) -> "Tensor":
        return (
            super().losses(outputs, targets)
            if self.loss
            else entropies(outputs, targets, **options)
        )


OBJECTIVES = Registry(
    "objective",
    "",
    {
        **Registry.of("objective", Classification).known,
        "next-token": (
            f"{_MORE}:NextToken",
            "the next token at each of a sequence, by cross-entropy over the vocabulary",
        ),
        "masked-token": (f"{_MORE}:MaskedToken", "the hidden tokens of a sequence"),
        "regression": (f"{_MORE}:Regression", "Numbers, by the squared error."),
        "multi-label": (
            f"{_MORE}:MultiLabel",
            "any number of C labels a sample, by binary cross-entropy",
        ),
    },
)
ObjectiveSpec = Annotated[Objective, OBJECTIVES]
