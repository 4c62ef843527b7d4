"""``[malicious]``: devices that attack the learning, by false labels or by what they make of their updates.

An attack on an update is a pure function of the update and of the model from which it was trained, carried out on the device
before it answers. No half of a strategy knows of it: the client half answers with the attacked update as if it were its own.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.errors import ScenarioError
from fedsim.language.registry import Registry
from fedsim.language.spec import Spec
from fedsim.learning import Learner, Ref
from fedsim.learning.functions import pure, weighted_sum
from fedsim.streams import Streams

_HERE = "fedsim.federation.malicious"
ATTACKS = Registry(
    "attack",
    f"{_HERE}:Attack",
    {
        "label-flip": (f"{_HERE}:LabelFlip", "training labels are turned around: l becomes C - 1 - l"),
        "sign-flip": (f"{_HERE}:SignFlip", "the change goes the other way"),
        "gaussian": (f"{_HERE}:Gaussian", "noise instead of a change"),
        "scaled": (f"{_HERE}:Scaled", "the change is many times as long"),
    },
    usual="label-flip",
)


class Attack(Spec):
    """The base of every attack. By default it does nothing to the update."""

    flips_labels: ClassVar[bool] = False
    """Whether malicious devices see their training labels turned around."""

    kind: str

    def update(self, arithmetic: Learner, update: Ref, start: Ref, stream: Sequence[Any]) -> Ref:
        """The update that a malicious device sends.

        Args:
            arithmetic: to compute with.
            update: what it has trained.
            start: the model from which it did.
            stream: the name of a stream of its own, for this one update.
        """
        return update


class LabelFlip(Attack):
    """The label l of each training sample is taken for C - 1 - l (Fang et al., "Local model poisoning attacks to
    Byzantine-robust federated learning", 2020). Test samples keep their labels, whatever happens to a device's data.
    """

    flips_labels: ClassVar[bool] = True
    kind: Literal["label-flip"] = "label-flip"


class _Along(Attack):
    """start + sign x factor (update - start)."""

    sign: ClassVar[float] = 1.0
    factor: float = Field(gt=0.0, le=1e6)

    def update(self, arithmetic: Learner, update: Ref, start: Ref, stream: Sequence[Any]) -> Ref:
        factor = self.sign * self.factor
        return arithmetic.apply(weighted_sum, [start, update], coefficients=[1.0 - factor, factor])


class SignFlip(_Along):
    """start - factor (update - start) (Li et al., "RSA: Byzantine-robust stochastic aggregation methods", 2019).

    Attributes:
        factor: how far it goes the other way.
    """

    sign = -1.0
    kind: Literal["sign-flip"] = "sign-flip"
    factor: float = Field(default=1.0, gt=0.0, le=1e6)


class Scaled(_Along):
    """start + factor (update - start) (the boosting of Bagdasaryan et al., "How to backdoor federated learning", 2020).

    Attributes:
        factor: how many times as long the change is.
    """

    kind: Literal["scaled"] = "scaled"
    factor: float = Field(default=10.0, gt=0.0, le=1e6)


@pure
def noise_around(models: list[NDArray[np.float32]], deviation: float, rng: np.random.Generator) -> NDArray[np.floating]:
    """The first model and Gaussian noise, [d]; all else is there to be waited for."""
    return models[0] + rng.normal(scale=deviation, size=len(models[0]))


class Gaussian(Attack):
    """start + N(0, deviation^2) in each coordinate (Blanchard et al., "Machine learning with adversaries", 2017, section 5).

    Attributes:
        deviation: standard deviation of the noise.
    """

    kind: Literal["gaussian"] = "gaussian"
    deviation: float = Field(default=1.0, gt=0.0, le=1e6)

    def update(self, arithmetic: Learner, update: Ref, start: Ref, stream: Sequence[Any]) -> Ref:
        return arithmetic.apply(noise_around, [start], deviation=self.deviation, stream=tuple(stream))


class MaliciousSpec(Spec):
    """``[malicious]``: which devices attack, and how.

    Attributes:
        attack: how (a kind, or a table with one).
        share: a share of the devices, rounded: the first of a random order, so that a larger share in the same world has the
            same ones and more. Newcomers may be among them.
        devices: these instead.
    """

    attack: Annotated[Attack, ATTACKS]
    share: float | None = Field(default=None, ge=0.0, le=1.0)
    devices: list[int] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.share is None) == (self.devices is None):
            raise ValueError("'share' and 'devices' both say which devices are malicious; give one of them")
        return self

    def check(self, devices: int) -> None:
        """Refuse devices that are not there.

        Raises:
            ScenarioError: names the first of them.
        """
        for device in self.devices or ():
            if not 0 <= device < devices:
                raise ScenarioError(f"malicious.devices has {device}; allowed are 0 to {devices - 1}")

    def members(self, streams: Streams, devices: int) -> list[int]:
        """The malicious of so many devices, in order; draws from ``world/malicious``."""
        if self.devices is not None:
            return sorted(set(self.devices))
        assert self.share is not None
        order = streams.generator("world/malicious").permutation(devices)
        found: list[int] = np.sort(order[: round(self.share * devices)]).tolist()
        return found
