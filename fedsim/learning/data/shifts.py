"""Shifts of devices' data over time: base class, occasions, ``swap-all``, and registry."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.returns import returns
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.units import PositiveSeconds, Seconds
from fedsim.learning.data.federated import FederatedData, Shard
from fedsim.learning.data.mistakes import find_wrong_change

_MOST_OCCASIONS = 1_000  # greatest count of occasions that ``foreseen`` computes


class Occasions(Spec):
    """``at``: when a shift changes the devices' data; exactly one of the keys is given.

    Attributes:
        rounds: at the start of these rounds (from 0), before any client gets a task.
        every_rounds: at the start of every n-th round, the first included; 1 is every round.
        times: at these simulated times (s), ascending.
        every: at every multiple of this simulated time (s), but not at time 0.
    """

    rounds: list[int] | None = None
    every_rounds: int | None = Field(default=None, ge=1)
    times: list[Seconds] | None = None
    every: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _require_one_key(self) -> Self:
        """Raise ``ValueError`` unless exactly one key is given, and a list is ascending."""
        keys = [key for key in type(self).model_fields if getattr(self, key) is not None]
        if len(keys) != 1:
            given_keys = "none of them is"
            if keys:
                given_keys = f"{' and '.join(keys)} are"
            raise ValueError(
                "one of 'rounds', 'every_rounds', 'times' and 'every' says when; "
                f"{given_keys} given"
            )
        values = getattr(self, keys[0])
        if isinstance(values, list):
            is_ascending = values == sorted(set(values))
            if not values or not is_ascending or min(values) < 0:
                raise ValueError(
                    f"'{keys[0]}' is {values}; allowed are ascending numbers, none below 0, at "
                    "least one"
                )
        return self

    def has_round(self, number: int) -> bool:
        """Return whether the data change at the start of a round.

        False if the occasions are given as times.

        Args:
            number: index of the round, from 0.
        """
        if self.every_rounds is not None:
            return number % self.every_rounds == 0
        return self.rounds is not None and number in self.rounds

    def time(self, index: int) -> float | None:
        """Return the simulated time (s) of an occasion, on which the data change.

        Args:
            index: index of the occasion, from 0.

        Returns:
            The time; None after the last occasion, or if occasions are given as rounds.
        """
        if self.every is not None:
            return (index + 1) * self.every
        if self.times is not None and index < len(self.times):
            return self.times[index]
        return None


@dataclass(frozen=True)
class Change:
    """Record of how a shift has changed a device's data; ``Shift.apply`` returns it.

    Attributes:
        device: index of the device.
        version: the new version, which ``FederatedData.replace_shard`` has returned.
        partner: index of the device with which it has exchanged data; None for no exchange.
    """

    device: int
    version: int
    partner: int | None = None


_CHANGES = "a list of Change, one for each device that replace_shard has given another shard"


class Shift(Spec):
    """Base of the rules by which the data of devices change during a run (data drift).

    An occasion is a start of a round or a simulated time at which data change. The changes may
    depend only on the occasion's index, the devices that may change, their data, and draws from
    the random streams whose names begin with ``world/drift``.

    Attributes:
        at: the occasions of the shift.
        among: the devices whose data may change: ``all`` available devices, or only devices that
            were ``selected`` for an earlier round (FlexCFL).
    """

    apart: ClassVar[bool] = False
    """Whether a device's change does not depend on which other devices may change their data."""

    kind: str
    at: Occasions = Occasions(every_rounds=1)
    among: Literal["all", "selected"] = "all"

    def check(self, data: FederatedData) -> None:
        """Check, before a run, that the shift can be applied to the data; by default it always can.

        Args:
            data: the data of all devices.

        Raises:
            ScenarioError: the rule cannot be applied.
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
        """Predict the devices' counts of training samples during a run, as far as is possible.

        It is for checks, before the run, that the model can be trained on all of these counts.

        Args:
            data: the data before any shift, which are not changed.
            streams: random streams of the run.
            rounds: count of rounds of the run; None if unknown.
            end: simulated time (s) at which the run stops; None if unknown.
            all_present: whether no device joins or leaves during the run.

        Returns:
            Dicts of device -> count of training samples. The first has all devices; each later
            dict has the devices that change on an occasion of the shift, such as the start of a
            round. There is only the first if the changes cannot be predicted.
        """
        sizes = [dict(enumerate(data.train_sizes().tolist()))]
        knows_candidates = all_present and self.among == "all"
        # with ``apart`` a device's change does not depend on which devices may change
        is_predictable = self.apart or knows_candidates
        if not is_predictable:
            return sizes
        trial_data = replace(data, truth=data.initial_truth)  # a copy without the shifts so far
        devices = np.arange(len(data.shards))
        changes_before_training = knows_candidates and self.at.has_round(0)
        for occasion in range(self._count_occasions(rounds, end)):
            changed_sizes = {}
            for change in self.apply(trial_data, occasion, devices, streams):
                changed_sizes[change.device] = len(trial_data.current(change.device).train)
            if occasion == 0 and changes_before_training:
                sizes[0].update(changed_sizes)  # no device trains with the count before the change
            else:
                sizes.append(changed_sizes)
        return sizes

    def _count_occasions(self, rounds: int | None, end: float | None) -> int:
        """Return on how many occasions of a run the data change, or 1,000 if there are more.

        Args:
            rounds: count of rounds of the run; None if unknown.
            end: simulated time (s) at which the run stops; None if unknown.
        """
        if self.at.rounds is not None or self.at.every_rounds is not None:
            numbers = range(_MOST_OCCASIONS if rounds is None else rounds)
            count = sum(self.at.has_round(number) for number in numbers)
            return min(count, _MOST_OCCASIONS)
        if end is None:
            end = math.inf
        for count in range(_MOST_OCCASIONS):
            time = self.at.time(count)
            if time is None or time > end:
                return count
        return _MOST_OCCASIONS

    @abstractmethod
    @returns(
        _CHANGES, find_wrong_change, allowed_draws="streams.generator('world/drift', occasion)"
    )
    def apply(
        self, data: FederatedData, occasion: int, candidates: NDArray[np.int64], streams: Streams
    ) -> list[Change]:
        """Change the data of devices on one occasion of the shift, by ``data.replace_shard``.

        ``data.truth`` holds the true group of each device; the devices of a group have similar
        data. If a device's new data belong to another group, an override must change ``data.truth``
        too.

        Args:
            data: the data of all devices, changed in place.
            occasion: index of the occasion, from 0.
            candidates: the devices that may change, int64, distinct, in any order.
            streams: random streams of the run; draws are allowed from streams whose names begin
                with ``world/drift``.

        Returns:
            The changes, one for each device whose data changed.
        """


class SwapAll(Shift):
    """Shift by which devices in random pairs exchange their complete training and test data.

    On each occasion the devices that may change are paired at random, and each pair exchanges with
    ``probability``. The samples keep their rotation, label map and augmentation, and the devices
    exchange their true groups too (Duan et al. 2021, FlexCFL, section 5.3, and its code).

    Attributes:
        probability: probability that a pair swaps, on each occasion.
    """

    kind: Literal["swap-all"] = "swap-all"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)

    def apply(
        self, data: FederatedData, occasion: int, candidates: NDArray[np.int64], streams: Streams
    ) -> list[Change]:
        generator = streams.generator("world/drift", occasion)
        pairs = draw_pairs(candidates, generator)
        changes: list[Change] = []
        exchanges = generator.random(len(pairs)) < self.probability
        for first, second in pairs[exchanges].tolist():
            changes += exchange(data, first, second, data.current(second), data.current(first))
            if data.truth is not None:  # the devices exchange their true groups, too
                data.truth[[first, second]] = data.truth[[second, first]]
        return changes


def draw_pairs(candidates: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Pair devices at random: the first of a random order with the last, and so on inwards.

    Args:
        candidates: the devices, int64 [W].
        generator: source of the random order.

    Returns:
        The pairs, int64 [floor(W / 2), 2]. With an odd count one device is left out.
    """
    order = generator.permutation(np.sort(candidates))
    half = len(order) // 2
    return np.stack([order[:half], order[::-1][:half]], axis=1)


def exchange(
    data: FederatedData, first: int, second: int, first_shard: Shard, second_shard: Shard
) -> list[Change]:
    """Replace the data of two devices that exchange data, each by a new version.

    Args:
        data: the data of all devices, changed in place.
        first: index of a device.
        second: index of its partner.
        first_shard: the next data of ``first``: indices and transform of samples.
        second_shard: the next data of ``second``.

    Returns:
        The changes of the first and the second device.
    """
    return [
        Change(first, data.replace_shard(first, first_shard), second),
        Change(second, data.replace_shard(second, second_shard), first),
    ]


_TOOLS = "fedsim.toolbox.shifts"
_IN_TOOLBOX = {
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
_KNOWN = {**Registry.of("shift", SwapAll).known, **_IN_TOOLBOX}
SHIFTS = Registry("shift", "fedsim.learning.data.shifts:Shift", _KNOWN, key="drift")
ShiftSpec = Annotated[Shift, KindField(SHIFTS)]
