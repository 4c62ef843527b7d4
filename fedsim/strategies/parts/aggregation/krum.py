"""Krum, Multi-Krum, and Bulyan, which is made of Krum.

Sources: Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient descent" (NeurIPS 2017), section 4;
El Mhamdi, Guerraoui and Rouault, "The hidden vulnerability of distributed learning in Byzantium" (ICML 2018), section 4.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.arrays import Floats
from fedsim.errors import ScenarioError
from fedsim.federation.server import Server
from fedsim.learning.functions import Function, pure
from fedsim.strategies.parts.aggregation import Entry
from fedsim.strategies.parts.aggregation.robust import Comparing, Robust

if TYPE_CHECKING:
    from fedsim.learning import Ref

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


def nearest(models: Models, malicious: int, best: int | None) -> list[int]:
    """Which updates Multi-Krum takes: the ``best`` of lowest score (None: n - f), of equals the first."""
    f = tolerated(len(models), malicious, Krum.least)
    order = np.argsort(scores(squared_distances(models), f), kind="stable")
    return [int(at) for at in order[: len(models) - f if best is None else best]]


def picked(models: Models, malicious: int) -> list[int]:
    """Which updates Bulyan takes: Krum picks n - 2 f, one by one."""
    f, left = tolerated(len(models), malicious, Bulyan.least), list(range(len(models)))
    distances, found = squared_distances(models), []
    for _ in range(len(models) - 2 * f):
        found.append(left.pop(int(scores(distances[np.ix_(left, left)], f).argmin())))
    return found


@pure
def bulyan(models: Models, malicious: int) -> NDArray[np.floating]:
    """Of the updates that are ``picked``: the mean of each coordinate over n - 4 f values around its median, [d]."""
    f, taken = tolerated(len(models), malicious, Bulyan.least), picked(models, malicious)
    values = np.sort(np.stack([models[at] for at in taken]), axis=0).astype(np.float64)
    far = np.argsort(np.abs(values - np.median(values, axis=0)), axis=0, kind="stable")
    around = np.take_along_axis(values, far[: len(taken) - 2 * f], axis=0)
    found: NDArray[np.floating] = around.mean(axis=0)
    return found


class _Tolerant(Comparing):
    least: ClassVar[tuple[int, int]]
    """(a, b): of n updates f may be malicious if n >= a f + b."""

    malicious: int = Field(default=1, ge=0, le=1_000_000)

    def taken(self, models: Models) -> list[int]:
        """Which of the finite updates, at least one, are taken."""
        raise NotImplementedError

    async def weigh(self, server: Server, entries: Sequence[Entry], weights: Sequence[float]) -> Sequence[float]:
        """Equal weights of the taken updates, 0 for the others; too few updates for f all get 0. Equal without learning."""
        if not server.learns:
            return weights
        if self.told(len(entries)):
            return [0.0] * len(entries)
        models = await server.values([entry["update"] for entry in entries])
        finite = [at for at, model in enumerate(models) if np.isfinite(model).all()]
        server.compute("distances", len(finite), server.setting.parameters, len(finite))
        taken = {finite[at] for at in self.taken([models[at] for at in finite])} if finite else set()
        return [1 / len(taken) if at in taken else 0.0 for at in range(len(entries))]

    def combine(
        self, server: Server, state: dict[str, Any], entries: Sequence[Entry], weights: Sequence[float], otherwise: "Ref"
    ) -> "Ref":
        """The model as it was (``otherwise``) where fewer updates came than f needs: no update could then be trusted."""
        return otherwise if self.told(len(entries)) else super().combine(server, state, entries, weights, otherwise)

    def told(self, updates: int) -> dict[str, int]:
        """``bears``: the number of malicious updates that so few updates would tolerate, where that is less than f."""
        f = tolerated(updates, self.malicious, self.least)
        return {"bears": f} if f < self.malicious else {}

    def check(self, clients: int) -> None:
        a, b = self.least
        if clients < a * self.malicious + b:
            raise ScenarioError(
                f"strategy.aggregation.malicious is {self.malicious}; {self.kind!r} then needs at least "
                f"{a * self.malicious + b} updates at a time ({a} f + {b}), and there are {clients}; allowed are at most "
                f"{tolerated(clients, self.malicious, self.least)}, or more clients"
            )


class Krum(_Tolerant):
    """The one update that is nearest to its n - f - 2 nearest others.

    It tolerates f malicious updates of n >= 2 f + 3. Where fewer come in a round, or to a group, the model stays as it was, and
    the record ``aggregate`` says how many they would tolerate (``bears``).

    Attributes:
        malicious: f.
    """

    least: ClassVar[tuple[int, int]] = (2, 3)
    kind: Literal["krum"] = "krum"

    def taken(self, models: Models) -> list[int]:
        return nearest(models, self.malicious, 1)


class MultiKrum(_Tolerant):
    """The mean of the updates with the best scores of Krum, which see.

    Attributes:
        malicious: f.
        best: how many; None: n - f.
    """

    least: ClassVar[tuple[int, int]] = (2, 3)
    kind: Literal["multi-krum"] = "multi-krum"
    best: int | None = Field(default=None, ge=1)

    def taken(self, models: Models) -> list[int]:
        return nearest(models, self.malicious, self.best)


class Bulyan(_Tolerant, Robust):
    """Krum picks n - 2 f updates; of these each coordinate is the mean of the values around its median.

    It tolerates f malicious updates of n >= 4 f + 3. Where fewer come in a round, or to a group, the model stays as it was, and
    the record ``aggregate`` says how many they would tolerate (``bears``).

    Attributes:
        malicious: f.
    """

    least: ClassVar[tuple[int, int]] = (4, 3)
    kind: Literal["bulyan"] = "bulyan"

    def rule(self) -> tuple[Function, dict[str, Any]]:
        return bulyan, {"malicious": self.malicious}

    def taken(self, models: Models) -> list[int]:
        return picked(models, self.malicious)
