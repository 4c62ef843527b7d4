"""Attacks of malicious devices, on labels or on updates."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.spec import Spec
from fedsim.federation import Contents, Device, LocalResult, Partial
from fedsim.federation.codecs import Arithmetic
from fedsim.learning import Ref
from fedsim.learning.functions import pure, weighted_sum


class Attack(Spec):
    """The base of every attack. By default it does nothing to the update."""

    flips_labels: ClassVar[bool] = False
    """Whether malicious devices see their training labels turned around."""

    kind: str

    def update(self, arithmetic: Arithmetic, update: Ref, start: Ref, stream: Sequence[Any]) -> Ref:
        """The update that a malicious device sends; ``start`` is where it began, ``stream``
        names a stream for this one.
        """
        return update

    def answer(
        self,
        arithmetic: Arithmetic,
        device: Device,
        count: int,
        result: LocalResult,
        reply: Contents,
    ) -> tuple[LocalResult, Contents]:
        """Result and reply of a device in its task of this number: every model is attacked, the
        update from its start.

        Any other model in a reply is a change of something (a control variate): it starts from 0.
        """
        meant = result.update
        if meant is None or result.start is None:
            return result, reply
        draw = (device.number, count)
        update = self.update(arithmetic, meant, result.start, ("world/attack", *draw))

        def attacked(name: str, value: Any) -> Any:
            if isinstance(value, Partial):
                return replace(value, model=attacked(name, value.model))
            if value is meant or not isinstance(value, Ref):
                return update if value is meant else value
            return self.update(arithmetic, value, device.zero(), (f"world/attack/{name}", *draw))

        return result._replace(update=update), {
            name: attacked(name, value) for name, value in reply.items()
        }


class LabelFlip(Attack):
    """The label l of each training sample is taken for C - 1 - l (Fang et al., "Local model
    poisoning attacks to Byzantine-robust federated learning", 2020). Test samples keep their
    labels, whatever happens to a device's data.
    """

    flips_labels: ClassVar[bool] = True
    kind: Literal["label-flip"] = "label-flip"


class _Along(Attack):
    sign: ClassVar[float] = 1.0
    factor: float = Field(gt=0.0, le=1e6)

    def update(self, arithmetic: Arithmetic, update: Ref, start: Ref, stream: Sequence[Any]) -> Ref:
        factor = self.sign * self.factor
        return arithmetic.apply(weighted_sum, [start, update], coefficients=[1.0 - factor, factor])


class SignFlip(_Along):
    """start - factor (update - start) (Li et al., "RSA: Byzantine-robust stochastic aggregation
    methods", 2019).
    """

    sign = -1.0
    kind: Literal["sign-flip"] = "sign-flip"
    factor: float = Field(default=1.0, gt=0.0, le=1e6)
    """how far it goes the other way."""


class Scaled(_Along):
    """start + factor (update - start) (the boosting of Bagdasaryan et al., "How to backdoor
    federated learning", 2020).
    """

    kind: Literal["scaled"] = "scaled"
    factor: float = Field(default=10.0, gt=0.0, le=1e6)
    """how many times as long the change is."""


@pure
def noise_around(
    models: list[NDArray[np.float32]], deviation: float, rng: np.random.Generator
) -> NDArray[np.floating]:
    """The model and Gaussian noise, [d]."""
    return models[0] + rng.normal(scale=deviation, size=len(models[0]))


class Gaussian(Attack):
    """start + N(0, deviation^2) in each coordinate (Blanchard et al., "Machine learning with
    adversaries", 2017, section 5).
    """

    kind: Literal["gaussian"] = "gaussian"
    deviation: float = Field(default=1.0, gt=0.0, le=1e6)
    """standard deviation of the noise."""

    def update(self, arithmetic: Arithmetic, update: Ref, start: Ref, stream: Sequence[Any]) -> Ref:
        return arithmetic.apply(
            noise_around, [start], deviation=self.deviation, stream=tuple(stream)
        )
