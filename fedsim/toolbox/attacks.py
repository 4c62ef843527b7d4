"""Attacks of malicious devices, on labels or on updates."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.spec import Spec
from fedsim.federation import Contents, Device, LocalResult, Partial
from fedsim.federation.codecs import Arithmetic
from fedsim.learning import Ref
from fedsim.learning.functions import pure, weighted_sum


class Attack(Spec):
    """Base of the attacks of malicious devices on labels or on updates (``malicious.attack``).

    A subclass overrides ``update``, which computes the sent update from the honest update; by
    default the honest update is sent.
    """

    flips_labels: ClassVar[bool] = False
    """Whether malicious devices train on flipped labels."""

    kind: str

    def update(
        self, arithmetic: Arithmetic, update: Ref, start: Ref, stream: Sequence[object]
    ) -> Ref:
        """Return the update that a malicious device sends.

        Args:
            arithmetic: deferred operations on models.
            update: the honest update.
            start: the model from which the update was trained.
            stream: name of the random stream for this update, as a sequence of parts.

        Returns:
            Reference to the update that is sent, [d]; its value is computed later.
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
        """Apply the attack to every model in the result and the reply of a malicious device.

        ``update`` is called for each of these models. For the trained update its argument ``start``
        is ``result.start``. For any other model in the reply, such as a control variate, ``start``
        is the zero model, because that model is a change already.

        Args:
            arithmetic: deferred operations on models.
            device: the malicious device.
            count: index of the task, for the name of the random stream.
            result: result of the honest training.
            reply: contents of the honest message to the server, by name.

        Returns:
            The attacked result and reply.
        """
        honest = result.update
        if honest is None or result.start is None:
            return result, reply
        task = (device.number, count)  # these numbers are part of the names of random streams
        update = self.update(arithmetic, honest, result.start, ("world/attack", *task))

        def attack_model(name: str, model: Ref) -> Ref:
            if model is honest:
                return update  # result and reply must have the same ``Ref``
            return self.update(arithmetic, model, device.zero(), (f"world/attack/{name}", *task))

        def attack_content(name: str, value: object) -> object:
            if isinstance(value, Partial):  # the value holds some tensors of a model
                return replace(value, model=attack_model(name, value.model))
            if isinstance(value, Ref):
                return attack_model(name, value)
            return value  # not a model

        attacked_reply = {name: attack_content(name, value) for name, value in reply.items()}
        return result._replace(update=update), attacked_reply


class LabelFlip(Attack):
    """Malicious devices train on flipped labels: with C classes, label l becomes C - 1 - l.

    Labels that a shift of data (``drift``) has changed are flipped too. Test samples keep their
    labels (Fang et al., "Local model poisoning attacks to Byzantine-robust federated learning",
    2020).
    """

    flips_labels: ClassVar[bool] = True
    kind: Literal["label-flip"] = "label-flip"


class _ScaledChange(Attack):
    sign: ClassVar[float] = 1.0
    factor: float = Field(gt=0.0, le=1e6)

    def update(
        self, arithmetic: Arithmetic, update: Ref, start: Ref, stream: Sequence[object]
    ) -> Ref:
        factor = self.sign * self.factor
        return arithmetic.apply(weighted_sum, [start, update], coefficients=[1.0 - factor, factor])


class SignFlip(_ScaledChange):
    """A malicious device sends the opposite change, start - factor (update - start).

    start is the model that the device received, and update the model that it trained. Source: Li et
    al., "RSA: Byzantine-robust stochastic aggregation methods" (2019).

    Attributes:
        factor: length of the sent change, relative to the honest change.
    """

    sign = -1.0
    kind: Literal["sign-flip"] = "sign-flip"
    factor: float = Field(default=1.0, gt=0.0, le=1e6)


class Scaled(_ScaledChange):
    """A malicious device sends a scaled change, start + factor (update - start).

    start is the model that the device received, and update the model that it trained. Source: the
    boosting of Bagdasaryan et al., "How to backdoor federated learning" (2020).

    Attributes:
        factor: length of the sent change, relative to the honest change.
    """

    kind: Literal["scaled"] = "scaled"
    factor: float = Field(default=10.0, gt=0.0, le=1e6)


@pure
def noise_around(
    models: list[NDArray[np.float32]], deviation: float, rng: np.random.Generator
) -> NDArray[np.floating]:
    """Add Gaussian noise to a model.

    Args:
        models: list of exactly one model, float32 [d]; ``Arithmetic.apply`` passes models as a
            list.
        deviation: standard deviation of the noise of each coordinate.
        rng: source of the noise.

    Returns:
        The noisy model, [d].
    """
    return models[0] + rng.normal(scale=deviation, size=len(models[0]))


class Gaussian(Attack):
    """A malicious device sends Gaussian noise in place of a change, start + N(0, deviation^2).

    start is the model that the device received. The noise is drawn anew for each coordinate of each
    update. Source: Blanchard et al., "Machine learning with adversaries" (2017), section 5.

    Attributes:
        deviation: standard deviation of the noise.
    """

    kind: Literal["gaussian"] = "gaussian"
    deviation: float = Field(default=1.0, gt=0.0, le=1e6)

    def update(
        self, arithmetic: Arithmetic, update: Ref, start: Ref, stream: Sequence[object]
    ) -> Ref:
        return arithmetic.apply(
            noise_around, [start], deviation=self.deviation, stream=tuple(stream)
        )
