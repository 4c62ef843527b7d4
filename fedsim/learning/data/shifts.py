"""Rules by which a device's data change over time: when, the base of all, complete exchanges,
and the registry.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.units import PositiveSeconds, Seconds
from fedsim.learning.data.federated import FederatedData, Shard

_FORESEEN = 1_000  # occasions


class Occasions(Spec):
    """``at``: the occasions on which a rule of data shift is applied.

    Exactly one of the keys is given.
    """

    rounds: list[int] | None = None
    """at the start of these rounds (from 0), before any client is asked."""
    every_rounds: int | None = Field(default=None, ge=1)
    """at the start of every n-th round, the first included; 1 is every round."""
    times: list[Seconds] | None = None
    """at these simulated times."""
    every: PositiveSeconds | None = None
    """at every multiple of this simulated time."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        given = [key for key in type(self).model_fields if getattr(self, key) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are" if given else "none of them is"
            raise ValueError(
                f"one of 'rounds', 'every_rounds', 'times' and 'every' says when; {found} given"
            )
        values = getattr(self, given[0])
        if isinstance(values, list) and (
            not values or min(values) < 0 or values != sorted(set(values))
        ):
            raise ValueError(
                f"'{given[0]}' is {values}; allowed are ascending numbers, none below 0, at "
                "least one"
            )
        return self

    def has_round(self, number: int) -> bool:
        """Whether round ``number`` begins with an occasion."""
        return (
            number % self.every_rounds == 0
            if self.every_rounds is not None
            else number in (self.rounds or [])
        )

    def time(self, index: int) -> float | None:
        """The time (s) of timed occasion ``index``; None after the last."""
        if self.every is not None:
            return (index + 1) * self.every
        return self.times[index] if self.times is not None and index < len(self.times) else None


@dataclass(frozen=True)
class Change:
    """A device holds other data from now on.

    Attributes:
        device: number of the device.
        version: the number that ``FederatedData.replace_shard`` returned.
        partner: the device with which it exchanged; None for none.
    """

    device: int
    version: int
    partner: int | None = None


class Shift(Spec):
    """A rule by which the data of devices change, one occasion after the other.

    An occasion is a function of its number, the candidates and the data; draws come from the
    streams ``world/drift...``.
    """

    apart: ClassVar[bool] = False
    """Whether the data of a device after an occasion do not depend on the other candidates."""

    kind: str
    at: Occasions = Occasions(every_rounds=1)
    """when there is an occasion."""
    among: Literal["all", "selected"] = "all"
    """the candidates: ``all`` devices that are there, or only those ``selected`` for a round
    before (FlexCFL).
    """

    def check(self, data: FederatedData) -> None:
        """Raise ``ScenarioError`` for data to which the rule cannot be applied; called before a
        run.
        """

    def foreseen(
        self,
        data: FederatedData,
        streams: Streams,
        rounds: int | None,
        end: float | None,
        *,
        all_present: bool,
    ) -> list[dict[int, int]]:
        """Training samples of devices at first, and from each occasion on of those that change,
        as far as they are known.

        Args:
            data: the data before any shift; left as they are.
            streams: of the run.
            rounds, end: rounds, and simulated time (s), after which the run stops; None: unknown.
            all_present: whether no device comes or goes.
        """
        count = self._occasions(rounds, end)
        sizes = [dict(enumerate(data.train_sizes().tolist()))]
        if not (self.apart or (all_present and self.among == "all")):
            return sizes
        copy = replace(data, truth=data.initial_truth)
        for occasion in range(count):
            changes = self.apply(copy, occasion, np.arange(len(data.shards)), streams)
            after = {change.device: len(copy.current(change.device).train) for change in changes}
            if occasion == 0 and self.at.has_round(0) and self.among == "all" and all_present:
                sizes = [sizes[0] | after]  # nobody has trained before
            else:
                sizes.append(after)
        return sizes

    def _occasions(self, rounds: int | None, end: float | None) -> int:
        """Number of occasions within a run, at most ``_FORESEEN``."""
        count = 0
        if self.at.rounds is not None or self.at.every_rounds is not None:
            count = sum(
                self.at.has_round(number)
                for number in range(_FORESEEN if rounds is None else rounds)
            )
        while (
            (time := self.at.time(count)) is not None
            and count < _FORESEEN
            and time <= (math.inf if end is None else end)
        ):
            count += 1
        return min(count, _FORESEEN)

    @abstractmethod
    def apply(
        self, data: FederatedData, occasion: int, candidates: NDArray[np.int64], streams: Streams
    ) -> list[Change]:
        """Give devices other shards (``FederatedData.replace_shard``), and other true groups
        (``truth``).

        Args:
            data: the data of all devices.
            occasion: number of the occasion, from 0.
            candidates: the devices that may change, int64, distinct, in any order.
            streams: random numbers, by purposes ``world/drift...``.

        Returns:
            The devices that hold other data now, each once.
        """


class SwapAll(Shift):
    """Random pairs of candidates exchange their complete training and test data (Duan et al.
    2021, FlexCFL, section 5.3).

    On each occasion the candidates are paired at random (code of FlexCFL), and each pair
    exchanges with ``probability``. Rotation, labels, distortions and the true group go along.
    """

    kind: Literal["swap-all"] = "swap-all"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)
    """of each pair, on each occasion."""

    def apply(
        self, data: FederatedData, occasion: int, candidates: NDArray[np.int64], streams: Streams
    ) -> list[Change]:
        generator = streams.generator("world/drift", occasion)
        pairs = draw_pairs(candidates, generator)
        changes: list[Change] = []
        for one, other in pairs[generator.random(len(pairs)) < self.probability].tolist():
            changes += exchange(data, one, other, data.current(other), data.current(one))
            if data.truth is not None:
                data.truth[[one, other]] = data.truth[[other, one]]
        return changes


def draw_pairs(candidates: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Candidates in random pairs, int64 [floor(W / 2), 2]: in a random order the first with the
    last, and so on inwards.
    """
    order = generator.permutation(np.sort(candidates))
    half = len(order) // 2
    return np.stack([order[:half], order[::-1][:half]], axis=1)


def exchange(
    data: FederatedData, one: int, other: int, to_one: Shard, to_other: Shard
) -> list[Change]:
    """Give two devices their next shards."""
    return [
        Change(one, data.replace_shard(one, to_one), other),
        Change(other, data.replace_shard(other, to_other), one),
    ]


_TOOLS = "fedsim.toolbox.shifts"
_OTHERS = {
    "swap-part": (
        f"{_TOOLS}:SwapPart",
        "random pairs exchange all samples of two labels that only one of them has (FlexCFL)",
    ),
    "incremental": (
        f"{_TOOLS}:Incremental",
        "every candidate holds a larger share of its training data each time (FlexCFL)",
    ),
    "label-permutation": (
        f"{_TOOLS}:LabelPermutation",
        "each candidate permutes its labels with some probability",
    ),
    "rotation": (
        f"{_TOOLS}:Rotation",
        "each candidate's images turn, with some probability, by one to three quarter turns",
    ),
}
SHIFTS = Registry(
    "shift", "fedsim.learning.data.shifts:Shift", {**Registry.of("shift", SwapAll).known, **_OTHERS}
)
ShiftSpec = Annotated[Shift, SHIFTS]
