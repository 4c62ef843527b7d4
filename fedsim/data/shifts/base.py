"""What every rule of data shift can do, and what several of them share."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.data.federated import NO_GROUP, FederatedData, Shard
from fedsim.data.shifts.occasions import EVERY_ROUND, Occasions
from fedsim.language.spec import Spec
from fedsim.streams import Streams


@dataclass(frozen=True)
class Change:
    """A device holds other data from now on.

    Attributes:
        device: whose data.
        version: the number of what it holds now.
        partner: the device with which it exchanged; None where there is none.
    """

    device: int
    version: int
    partner: int | None = None


class Shift(Spec):
    """A rule by which the data of devices change, one occasion after the other.

    What happens on an occasion follows from its number, the candidates and the data alone; all draws come from the streams
    ``world/drift`` and ``world/drift/...``.

    Attributes:
        at: when there is an occasion.
        among: who may change: ``all`` devices that are there, or those that have been ``selected`` for a round before (so the
            published experiments of FlexCFL do it for strategies with groups).
    """

    at: Occasions = EVERY_ROUND
    among: Literal["all", "selected"] = "all"

    def check(self, data: FederatedData) -> None:
        """Refuse data to which the rule cannot be applied; to be called before a run.

        Raises:
            ScenarioError: the rule and the data do not go together.
        """

    @abstractmethod
    def apply(self, data: FederatedData, occasion: int, candidates: NDArray[np.int64], streams: Streams) -> list[Change]:
        """Change ``data`` once.

        Args:
            data: given its next versions and the truth about them; older versions stay as they are.
            occasion: how often the rule was applied before: 0, 1, ...
            candidates: the devices that may change, int64, in any order, each at most once.
            streams: of the run.

        Returns:
            The devices that hold other data now, each once.

        Raises:
            ScenarioError: the rule and the data do not go together.
        """


def draw_pairs(candidates: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Candidates in random pairs, int64 [floor(W / 2), 2]: in a random order the first with the last, and so on inwards."""
    order = generator.permutation(np.sort(candidates))
    half = len(order) // 2
    return np.stack([order[:half], order[::-1][:half]], axis=1)


def exchange(data: FederatedData, one: int, other: int, to_one: Shard, to_other: Shard) -> list[Change]:
    """Give two partners what they hold from now on."""
    return [
        Change(one, data.replace_shard(one, to_one), other),
        Change(other, data.replace_shard(other, to_other), one),
    ]


def set_group(data: FederatedData, device: int, group: int = NO_GROUP) -> None:
    """Say the true group of a device's data, where groups are known at all."""
    if data.truth is not None:
        data.truth[device] = group
