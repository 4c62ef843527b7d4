"""Targets besides a class and numbers: tokens of a sequence, several labels.

Metrics and losses of all are in ``fedsim.learning``.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.data.federated import Pool, TokenShape
from fedsim.learning.architecture import Shape
from fedsim.learning.objectives import UNASKED, Objective, Regression, entropies
from fedsim.streams import Streams

if TYPE_CHECKING:
    from torch import Tensor


class NextToken(Objective):
    """The next token at each of a sequence, by softmax cross-entropy over the vocabulary.

    Samples are tokens, [n, T + 1], of which a model sees all but the last.
    """

    kind: Literal["next-token"] = "next-token"
    metrics: list[str] = Field(default=["perplexity"])
    needs: ClassVar[str] = "samples that are sequences of two tokens or more"

    def sizes(self, shape: Shape, outputs: int) -> tuple[Shape, int]:
        if not isinstance(shape, TokenShape) or len(shape) != 1 or shape[0] < 2:
            raise self.misfit(f"{'tokens' if isinstance(shape, TokenShape) else 'numbers'} of shape {tuple(shape)}")
        return TokenShape.of((shape[0] - 1,), shape.vocabulary, "next"), shape.vocabulary

    def fitted(self, pool: Pool, streams: Streams) -> Pool:
        _, outputs = self.sizes(pool.shape, 0)
        return replace(pool, x=pool.x[:, :-1], targets=pool.x[:, 1:], outputs=outputs, answers="next")

    def each(self, outputs: "Tensor", targets: "Tensor", **options: Any) -> "Tensor":
        return entropies(outputs.transpose(1, 2), targets, ignore_index=UNASKED, **options)

    def asked(self, targets: "Tensor") -> "Tensor":
        return targets != UNASKED


class MaskedToken(NextToken):
    """The hidden tokens of a sequence, in whose places stands a token above the vocabulary (Devlin et al. 2019).

    Which of a sample are hidden is drawn once, at least one.

    Attributes:
        share: of the tokens, hidden at random.
    """

    kind: Literal["masked-token"] = "masked-token"  # type: ignore[assignment]
    share: float = Field(default=0.15, gt=0.0, lt=1.0)

    def sizes(self, shape: Shape, outputs: int) -> tuple[Shape, int]:
        _, vocabulary = super().sizes(shape, outputs)
        return TokenShape.of(tuple(shape), vocabulary + 1, "each"), vocabulary + 1

    def fitted(self, pool: Pool, streams: Streams) -> Pool:
        _, more = self.sizes(pool.shape, 0)
        draws = streams.generator("world/data/mask").random(pool.x.shape)
        hidden = (draws < self.share) | (draws == draws.min(axis=1, keepdims=True))
        x, targets = np.where(hidden, pool.vocabulary, pool.x), np.where(hidden, pool.x, UNASKED)
        return replace(pool, x=x, targets=targets, vocabulary=more, outputs=more, answers="each")


class MultiLabel(Regression):
    """Any number of C labels a sample, by binary cross-entropy; those whose output is above 0 are answered."""

    kind: Literal["multi-label"] = "multi-label"  # type: ignore[assignment]
    metrics: list[str] = Field(default=["f1"])
    needs: ClassVar[str] = "targets of 0 and 1, [n, C]"
    has_accuracy: ClassVar[bool] = True

    def _takes(self, targets: Any) -> bool:
        return targets.ndim == 2 and bool(np.isin(targets, (0, 1)).all())

    def each(self, outputs: "Tensor", targets: "Tensor", **options: Any) -> "Tensor":
        from torch.nn.functional import binary_cross_entropy_with_logits

        return binary_cross_entropy_with_logits(outputs, targets, reduction="none")

    def answers(self, outputs: "Tensor") -> "Tensor":
        return (outputs > 0).to(outputs.dtype)
