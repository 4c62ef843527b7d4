"""Scenario table ``[objective]``: the target of learning, its loss, and metrics of tests.

A model gives one answer or several for a sample: a class, each token of a sequence, or each value
of a vector. The loss of a sample is the mean over its answers. The loss and the accuracy of a test
are means over all answers. A metric keeps some values of each sample, and computes its result from
the values of all samples. Perplexity is thus computed over all tokens, and F1 over all scores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.imports import import_trusted, refuse_unless_allowed
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.learning.architecture import Shape
from fedsim.learning.data.federated import Pool

if TYPE_CHECKING:
    from torch import Tensor

_TOOLBOX = "fedsim.toolbox.objectives"

SampleNumbers = NDArray[np.float64]
"""Values that a metric keeps of n test samples, float64 [n, m]."""


@dataclass(frozen=True)
class EvaluationMetric:
    """Metric of tests of models, in addition to loss and accuracy.

    Some values of each test sample are kept; the metric is computed from the values of all samples.

    Attributes:
        name: name of the metric, and of its column in the table of rounds.
        kinds: values of ``objective.kind``, such as ``classification``, that allow the metric.
        keep: outputs and targets of n samples -> the values that the metric keeps, [n, m].
        value: kept values of at least one sample -> the metric; NaN if it is not defined.
        more_is_better: whether a greater value is better.
    """

    name: str
    kinds: tuple[str, ...]
    keep: "Callable[[Tensor, Tensor], Tensor]"
    value: Callable[[SampleNumbers], float]
    more_is_better: bool = False


def mean_of_values(facts: SampleNumbers) -> float:
    """Compute a metric as the mean of the values that it keeps of all test samples.

    Args:
        facts: the m values of each sample, [n, m]; m is usually 1.
    """
    return float(facts.mean())


def reported_metric(name: str, more_is_better: bool) -> EvaluationMetric:
    """Describe a metric that trainers report with their updates, and that tests do not compute.

    Args:
        name: name of the reported value.
        more_is_better: whether a greater value is better.

    Returns:
        A metric whose value for a round is the mean of the values reported with its updates.
    """
    return EvaluationMetric(
        name,
        kinds=(),  # no objective computes the metric in tests
        keep=_keep_nothing,
        value=mean_of_values,
        more_is_better=more_is_better,
    )


def _keep_nothing(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    return outputs[:0]


def _built_in_metrics() -> dict[str, EvaluationMetric]:
    metrics: dict[str, EvaluationMetric] = import_trusted(
        f"{_TOOLBOX}:METRICS", "objective.metrics"
    )
    return metrics


_import_function = cache(import_trusted)


@cache
def user_metric(path: str) -> EvaluationMetric:
    """Describe a user's metric: the mean of a function's values over the test samples.

    Args:
        path: import path ``package.module:function`` of a function of ``(outputs, targets)``, which
            returns one number for each sample; the metric is named after the function.
    """

    def keep(outputs: "Tensor", targets: "Tensor") -> "Tensor":
        return call_by_sample(path, "objective.metrics", outputs, targets)[:, None]

    more_is_better = getattr(_import_function(path, "objective.metrics"), "more_is_better", False)
    return EvaluationMetric(
        path.rpartition(":")[2],
        kinds=(),  # ``Objective`` allows a user's metric by its path
        keep=keep,
        value=mean_of_values,
        more_is_better=more_is_better,
    )


def call_by_sample(path: str, key: str, outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Call a user's function of outputs and targets that returns one value per sample.

    Args:
        path: import path of the function.
        key: the scenario's key that names the function, for error messages.
        outputs: outputs of a model, [n, ...].
        targets: targets of the samples, [n, ...].

    Returns:
        The values, [n].

    Raises:
        ScenarioError: the function returns anything but a tensor of the shape [n].
    """
    from torch import Tensor

    # copies, as the function may change its arguments in place, which are still needed
    result: object = _import_function(path, key)(outputs.clone(), targets.clone())
    form: object = type(result).__name__
    if isinstance(result, Tensor):
        form = tuple(result.shape)
        if form == (len(targets),):
            return result
    raise ScenarioError(
        f"{key} has {path!r}, which gave {form} for {len(targets)} samples; "
        "it must give a tensor with one number a sample"
    )


class Objective(Spec):
    """Base of the tasks that models learn, such as classification: outputs, loss and test metrics.

    Attributes:
        metrics: names of metrics of tests besides loss and accuracy, in the order of their columns.
            ``package.module:function`` is your own metric: the function gets ``(outputs, targets)``
            and returns one number for each sample, [n], of which the metric is the mean. The least
            value is the best unless the function has an attribute ``more_is_better = True``.
        loss: your own loss, a function as in ``metrics``. It is not used if the module has a method
            ``loss``.
    """

    kind: str
    metrics: list[str] = Field(default_factory=list)
    loss: str | None = None
    needs: ClassVar[str]
    """The samples or targets that the objective needs, for messages."""
    has_accuracy: ClassVar[bool] = True
    """Whether each answer is right or wrong, so that a test has an accuracy."""
    of_entropy: ClassVar[bool] = True
    """Whether the built-in loss is softmax cross-entropy."""

    @field_validator("loss")
    @classmethod
    def _check_loss(cls, loss: str | None) -> str | None:
        if loss is not None:
            refuse_unless_allowed(loss, "objective.loss")
        return loss

    @field_validator("metrics")
    @classmethod
    def _refuse_unfit_metrics(cls, metrics: list[str]) -> list[str]:
        """Raise ``ScenarioError`` if a metric is unknown, not allowed, or of other objectives."""
        if not metrics:
            return metrics
        kind = cls.model_fields["kind"].default
        names = [name for name, metric in _built_in_metrics().items() if kind in metric.kinds]
        for name in metrics:
            if ":" in name:
                refuse_unless_allowed(name, "objective.metrics")
            elif name not in names:
                raise ScenarioError(
                    f"objective.metrics has {name!r}; allowed with objective.kind = {kind!r} "
                    f"are {', '.join(names)}, or your "
                    f"own as 'package.module:function'{nearest(name, names)}"
                )
        return metrics

    @property
    def is_plain(self) -> bool:
        """Whether the objective is classification by cross-entropy, not by a user's own loss."""
        return self.kind == "classification" and self.loss is None

    @property
    def figures(self) -> list[EvaluationMetric]:
        """Metrics that the scenario lists in ``objective.metrics``, in order."""
        metrics = []
        for name in self.metrics:
            metrics.append(user_metric(name) if ":" in name else _built_in_metrics()[name])
        return metrics

    def sizes(self, shape: Shape, outputs: int) -> tuple[Shape, int]:
        """Return the shape of a sample and the count of outputs of a model for this objective.

        Args:
            shape: shape of a sample of the source.
            outputs: count of classes of the source.

        Returns:
            The shape of a sample as the model receives it, and the count of values that the model
            outputs for each answer (the prediction of a class, a token or numbers).

        Raises:
            ScenarioError: the samples do not fit the objective.
        """
        return shape, outputs

    def fitted(self, pool: Pool, streams: Streams) -> Pool:
        """Return the pool, which has all samples, with the targets that this objective needs.

        Args:
            pool: all samples, with the targets of the data source.
            streams: the random streams of the run.

        Raises:
            ScenarioError: the samples have no targets that fit.
        """
        raise NotImplementedError

    def misfit(self, contents: str) -> ScenarioError:
        """Return the error that the data do not fit this objective; the caller raises it.

        Args:
            contents: text on the data, such as ``targets float32 of shape (9,)``.
        """
        return ScenarioError(
            f"objective.kind is {self.kind!r}, which needs {self.needs}; data.source has {contents}"
        )

    def losses(self, outputs: "Tensor", targets: "Tensor", **options: Any) -> "Tensor":
        """Compute the loss of each sample: the mean over its answers, such as its tokens.

        Answers that do not count (``asked``) are left out. A user's own loss function replaces the
        built-in loss.

        Args:
            outputs: outputs of a model, [n, ...].
            targets: targets of the samples, [n, ...].
            **options: options of torch's ``cross_entropy``.

        Returns:
            The losses, [n].
        """
        if self.loss is not None:
            return call_by_sample(self.loss, "objective.loss", outputs, targets)
        is_counted = self.asked(targets).flatten(1)  # [n, answers]
        losses = self.each(outputs, targets, **options).flatten(1)
        # a sample without an answer that counts has the loss 0
        return (losses * is_counted).sum(dim=1) / is_counted.sum(dim=1).clamp(min=1)

    def each(self, outputs: "Tensor", targets: "Tensor", **options: Any) -> "Tensor":
        """Compute the built-in loss of each answer, such as each token of a sequence; [n, ...].

        Args:
            outputs: outputs of a model, [n, ...].
            targets: targets of the samples, [n, ...].
            **options: options of torch's ``cross_entropy``.
        """
        raise NotImplementedError

    def asked(self, targets: "Tensor") -> "Tensor":
        """Return which answers count in loss and accuracy, bool [n, ...]; by default all do.

        An answer is a model's prediction: one for each sample, or one for each token. An override
        excludes answers without a target, such as the answers for padded tokens.

        Args:
            targets: targets of n samples, [n, ...].
        """
        return targets == targets

    def answers(self, outputs: "Tensor") -> "Tensor":
        """Return a model's predictions, which are right where they equal the targets; [n, ...].

        By default a prediction is the index of the greatest output.

        Args:
            outputs: outputs of a model, [n, ..., classes].
        """
        return outputs.argmax(dim=-1)


def describe_targets(targets: AnyArray) -> str:
    """Return a text on the dtype and shape of targets, for error messages."""
    return f"targets {targets.dtype} of shape {targets.shape}"


def _advise_labels(targets: AnyArray) -> str:
    """Return advice to convert targets to labels, if they look like labels; else "".

    Targets look like labels if they are whole numbers in one column, or one-hot.
    """
    if (targets != np.rint(targets)).any():
        return ""
    if targets.shape[1:] == (1,):
        conversion = "y.astype(int)" if targets.dtype == np.float32 else "y[:, 0]"
        return f"; if these are labels, use {conversion}, of shape (n,)"
    is_one_hot = targets.ndim == 2 and targets.min() >= 0 and (targets.sum(axis=1) == 1).all()
    return "; if these are labels, one-hot, use y.argmax(axis=1)" if is_one_hot else ""


def entropies(outputs: "Tensor", targets: "Tensor", **options: Any) -> "Tensor":
    """Compute the softmax cross-entropy of each answer (sample or token), without taking a mean.

    Args:
        outputs: outputs of a model, [n, classes] or [n, classes, ...].
        targets: the true classes, int64 [n] or [n, ...].
        **options: options of torch's ``cross_entropy``.
    """
    from torch.nn.functional import cross_entropy

    return cross_entropy(outputs, targets, reduction="none", **options)


class Classification(Objective):
    """Objective of predicting one class for each sample, by softmax cross-entropy."""

    kind: Literal["classification"] = "classification"
    needs: ClassVar[str] = "labels, one a sample"

    def fitted(self, pool: Pool, streams: Streams) -> Pool:
        if pool.targets is not None and (pool.targets.ndim > 1 or pool.targets.dtype != np.int64):
            raise self.misfit(f"{describe_targets(pool.targets)}{_advise_labels(pool.targets)}")
        return pool

    def losses(self, outputs: "Tensor", targets: "Tensor", **options: Any) -> "Tensor":
        if self.loss:
            return super().losses(outputs, targets)
        return entropies(outputs, targets, **options)


OBJECTIVES = Registry(
    "objective",
    "",
    {
        **Registry.of("objective", Classification).known,
        "next-token": (
            f"{_TOOLBOX}:NextToken",
            "the next token at each of a sequence, by cross-entropy over the vocabulary",
        ),
        "masked-token": (f"{_TOOLBOX}:MaskedToken", "the hidden tokens of a sequence"),
        "regression": (f"{_TOOLBOX}:Regression", "Numbers, by the squared error."),
        "multi-label": (
            f"{_TOOLBOX}:MultiLabel",
            "any number of C labels a sample, by binary cross-entropy",
        ),
    },
)
ObjectiveSpec = Annotated[Objective, KindField(OBJECTIVES)]
