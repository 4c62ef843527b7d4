"""Krum, Multi-Krum, and Bulyan, which is made of Krum.

Sources: Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient descent" (NeurIPS 2017), section 4;
El Mhamdi, Guerraoui and Rouault, "The hidden vulnerability of distributed learning in Byzantium" (ICML 2018), section 4.
"""

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.learning.functions import Function, pure
from fedsim.strategies.parts.aggregation.robust import Robust

Floats = NDArray[np.float64]
Models = list[NDArray[np.float32]]


def squared_distances(models: Models) -> Floats:
    """||u_i - u_j||^2 of all pairs, float64 [n, n]."""
    found = np.zeros((len(models), len(models)))
    for at, one in enumerate(models):
        for other in range(at):
            difference = np.subtract(one, models[other], dtype=np.float64)
            found[at, other] = found[other, at] = difference @ difference
    return found


def scores(distances: Floats, malicious: int) -> Floats:
    """The score of each update: the sum of the squared distances to its n - f - 2 nearest others (section 4), float64 [n].

    With so few updates that this is less than 1 the nearest alone counts; f is the number of the malicious.
    """
    near = max(1, len(distances) - malicious - 2)
    others = np.where(np.eye(len(distances), dtype=np.bool_), np.inf, distances)
    found: Floats = np.sort(others, axis=1)[:, :near].sum(axis=1)
    return found


def tolerated(updates: int, malicious: int, least: tuple[int, int]) -> int:
    """f, or the most for which n updates are enough: n >= a f + b with (a, b) = ``least``; 0 where they never are."""
    return max(0, min(malicious, (updates - least[1]) // least[0]))


@pure
def krum(models: Models, malicious: int, best: int | None) -> NDArray[np.floating]:
    """The mean of the ``best`` updates of lowest score (None: n - f), of equals the first, [d]."""
    f = tolerated(len(models), malicious, Krum.least)
    order = np.argsort(scores(squared_distances(models), f), kind="stable")
    chosen = np.sort(order[: len(models) - f if best is None else best])
    found: NDArray[np.floating] = np.stack([models[at] for at in chosen]).mean(axis=0, dtype=np.float64)
    return found


@pure
def bulyan(models: Models, malicious: int) -> NDArray[np.floating]:
    """Krum picks n - 2 f updates, one by one; then the mean of each coordinate over n - 4 f values around its median."""
    f, left = tolerated(len(models), malicious, Bulyan.least), list(range(len(models)))
    distances, picked = squared_distances(models), []
    for _ in range(len(models) - 2 * f):
        picked.append(left.pop(int(scores(distances[np.ix_(left, left)], f).argmin())))
    values = np.sort(np.stack([models[at] for at in picked]), axis=0).astype(np.float64)
    far = np.argsort(np.abs(values - np.median(values, axis=0)), axis=0, kind="stable")
    nearest = np.take_along_axis(values, far[: len(picked) - 2 * f], axis=0)
    found: NDArray[np.floating] = nearest.mean(axis=0)
    return found


class _Tolerant(Robust):
    least: ClassVar[tuple[int, int]]
    """(a, b): of n updates f may be malicious if n >= a f + b."""

    malicious: int = Field(default=1, ge=0, le=1_000_000)

    def check(self, clients: int) -> None:
        """A whole cohort must be enough for f."""
        a, b = self.least
        if clients < a * self.malicious + b:
            raise ScenarioError(
                f"strategy.aggregation.malicious is {self.malicious}; {self.kind!r} then needs at least "
                f"{a * self.malicious + b} clients a round ({a} f + {b}), and there are {clients}; allowed are at most "
                f"{tolerated(clients, self.malicious, self.least)}, or more clients"
            )


class Krum(_Tolerant):
    """The one update that is nearest to its n - f - 2 nearest others.

    It bears f malicious updates of n >= 2 f + 3. Where fewer come in a round, or to a group, f is the most that they allow.

    Attributes:
        malicious: f.
    """

    least: ClassVar[tuple[int, int]] = (2, 3)
    kind: Literal["krum"] = "krum"

    def rule(self) -> tuple[Function, dict[str, Any]]:
        """``krum``."""
        return krum, {"malicious": self.malicious, "best": 1}


class MultiKrum(_Tolerant):
    """The mean of the updates with the best scores of Krum, which see.

    Attributes:
        malicious: f.
        best: how many; None: n - f.
    """

    least: ClassVar[tuple[int, int]] = (2, 3)
    kind: Literal["multi-krum"] = "multi-krum"
    best: int | None = Field(default=None, ge=1)

    def rule(self) -> tuple[Function, dict[str, Any]]:
        """``krum`` with several."""
        return krum, {"malicious": self.malicious, "best": self.best}


class Bulyan(_Tolerant):
    """Krum picks n - 2 f updates; of these each coordinate is the mean of the values around its median.

    It bears f malicious updates of n >= 4 f + 3. Where fewer come in a round, or to a group, f is the most that they allow.

    Attributes:
        malicious: f.
    """

    least: ClassVar[tuple[int, int]] = (4, 3)
    kind: Literal["bulyan"] = "bulyan"

    def rule(self) -> tuple[Function, dict[str, Any]]:
        """``bulyan``."""
        return bulyan, {"malicious": self.malicious}
