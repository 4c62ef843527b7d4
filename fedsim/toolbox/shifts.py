"""Shifts of data besides complete exchanges: of two labels, released shares, other meanings of
labels, turned images.
"""

import math
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from fedsim.common.arrays import Ints
from fedsim.common.errors import ScenarioError
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import NO_GROUP, FederatedData, Shard
from fedsim.learning.data.shifts import Change, Occasions, Shift, draw_pairs, exchange

_HAIR = 1e-9  # so that 0.07 of 100 are 7, not 8


class SwapPart(Shift):
    """Random pairs of candidates exchange all samples of two labels that only one of them has
    (FlexCFL, section 5.3).

    Pairs are drawn as in ``swap-all``. In each that fires, each device gives away a random label
    out of those that are among both its training and its test samples, and not among both of the
    other's (code of FlexCFL), with all samples of it. A pair in which one device has no such label
    stays as it is.

    A device that has exchanged is of no group (``NO_GROUP``) from then on. Samples move without
    a transform, so devices that turn, label or distort them differently are refused.
    """

    kind: Literal["swap-part"] = "swap-part"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)
    """of each pair, on each occasion."""
    quirk: bool = False
    """as in the published code: a pair that cannot exchange ends the occasion for all pairs
    after it.
    """

    def check(self, data: FederatedData) -> None:
        if not data.pool.labelled:
            raise ScenarioError(
                "drift.kind is 'swap-part', which exchanges labels, and the data have targets "
                "instead"
            )
        for shard in data.shards:
            _require_alike(data.shards[0], shard)

    def apply(
        self, data: FederatedData, occasion: int, candidates: Ints, streams: Streams
    ) -> list[Change]:
        generator = streams.generator("world/drift", occasion)
        pairs = draw_pairs(candidates, generator)
        # Drawn for all pairs at once: what one pair draws does not depend on whether others could
        # exchange.
        chance, *choices = generator.random((3, len(pairs)))
        changes: list[Change] = []
        for pair in np.flatnonzero(chance < self.probability).tolist():
            one, other = pairs[pair].tolist()
            mine = data.current(one)
            yours = data.current(other)
            _require_alike(mine, yours)
            owned = [
                np.intersect1d(data.train_labels(shard), data.test_labels(shard))
                for shard in (mine, yours)
            ]
            exclusive = np.setdiff1d(owned[0], owned[1]), np.setdiff1d(owned[1], owned[0])
            if all(map(len, exclusive)):
                gone, come = (
                    own[int(draw[pair] * len(own))]
                    for own, draw in zip(exclusive, choices, strict=True)
                )
                to_one = _exchanged(data, mine, yours, gone, come)
                to_other = _exchanged(data, yours, mine, come, gone)
                changes += exchange(data, one, other, to_one, to_other)
            elif self.quirk:
                break
        _set_groups(data, changes)
        return changes


def _exchanged(
    data: FederatedData, mine: Shard, yours: Shard, gone: np.int64, come: np.int64
) -> Shard:
    train = (
        mine.train[data.train_labels(mine) != gone],
        yours.train[data.train_labels(yours) == come],
    )
    test = mine.test[data.test_labels(mine) != gone], yours.test[data.test_labels(yours) == come]
    return Shard(np.concatenate(train), np.concatenate(test), mine.quarter_turns, mine.label_map)


def _require_alike(one: Shard, other: Shard) -> None:
    meanings = [
        (shard.quarter_turns % 4, shard.label_map is not None and shard.label_map.tolist())
        for shard in (one, other)
    ]
    if meanings[0] != meanings[1] or one.augment_seed is not None or other.augment_seed is not None:
        raise ScenarioError(
            "drift.kind is 'swap-part', which moves single samples between devices, and here "
            "each device turns, labels or "
            'distorts them in its own way: allowed are data.augmentation = "none", a '
            "data.partition other than 'rotations' "
            "and 'permutations', and drift.kind = \"swap-all\""
        )


class Incremental(Shift):
    """On each occasion every candidate holds a larger share of its training data (FlexCFL,
    section 5.3: 25 % every 50 rounds).

    On occasion k a device holds the first ``shares[k]`` of its samples, rounded up, in an order
    shuffled once for each device. Test data and the true group stay. Before the first occasion a
    device holds everything.
    """

    apart: ClassVar[bool] = True
    kind: Literal["incremental"] = "incremental"
    at: Occasions = Occasions(rounds=[0, 50, 100, 150])
    shares: list[Annotated[float, Field(gt=0.0, le=1.0)]] = Field(
        default=[0.25, 0.5, 0.75, 1.0], min_length=1
    )
    """of a device's training samples, in (0, 1], not falling."""
    as_published: bool = False
    """as in the published code: each share is of what is released at that time, n/4, n/8, 3n/32
    and 3n/32 by default.
    """

    @field_validator("shares")
    @classmethod
    def _rising(cls, shares: list[float]) -> list[float]:
        if shares != sorted(shares):
            raise ValueError(f"{shares} fall; each share includes the one before it")
        return shares

    def apply(
        self, data: FederatedData, occasion: int, candidates: Ints, streams: Streams
    ) -> list[Change]:
        changes: list[Change] = []
        for device in np.sort(candidates).tolist() if occasion < len(self.shares) else ():
            everything = data.shards[device].train
            size = self.released(len(everything), occasion)
            if size != len(data.current(device).train):
                order = streams.generator("world/drift/order", device).permutation(len(everything))
                shard = replace(data.shards[device], train=everything[order[:size]])
                changes.append(Change(device, data.replace_shard(device, shard)))
        return changes

    def released(self, samples: int, occasion: int) -> int:
        """Number of a device's ``samples`` that it holds from ``occasion`` on."""
        size = samples
        for share in self.shares[: occasion + 1]:
            size = math.ceil((size if self.as_published else samples) * share - _HAIR)
        return max(1, size)


class LabelPermutation(Shift):
    """Each candidate permutes its labels with some probability: a change of concept that no
    picture shows.

    The permutation, uniform among all but the identity, is applied to the present labels of
    training and test samples. The device is of no group (``NO_GROUP``) from then on. Its draws do
    not depend on the other candidates.
    """

    apart: ClassVar[bool] = True
    kind: Literal["label-permutation"] = "label-permutation"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)
    """of each candidate, on each occasion."""

    def check(self, data: FederatedData) -> None:
        if data.pool.targets is not None:
            raise ScenarioError(
                "drift.kind is 'label-permutation', which gives labels other meanings, and the "
                "model learns targets instead; "
                "allowed without data.column, and with objective.kind = 'classification'"
            )
        if data.pool.classes < 2:
            raise ScenarioError(
                "drift.kind is 'label-permutation'; the data have 1 class, and at least 2 are "
                "needed"
            )

    def apply(
        self, data: FederatedData, occasion: int, candidates: Ints, streams: Streams
    ) -> list[Change]:
        self.check(data)
        changes = list[Change]()
        identity = np.arange(data.pool.classes)
        for device in _firing(
            data, candidates, self.probability, streams.generator("world/drift", occasion)
        ):
            shard = data.current(device)
            generator = streams.generator("world/drift", occasion, device)
            label_map = identity
            while np.array_equal(label_map, identity):
                label_map = generator.permutation(data.pool.classes)
            label_map = label_map if shard.label_map is None else label_map[shard.label_map]
            changes.append(
                Change(device, data.replace_shard(device, replace(shard, label_map=label_map)))
            )
        _set_groups(data, changes)
        return changes


class Rotation(Shift):
    """Each candidate's images turn, with some probability, by a further one, two or three
    quarter turns.

    Training and test images turn alike. A device's draws do not depend on the other candidates.
    Where the true groups differ by their rotations alone (partition ``rotations``), the device is
    of the group with the new rotation from then on; in all other cases it is of no group
    (``NO_GROUP``).
    """

    apart: ClassVar[bool] = True
    kind: Literal["rotation"] = "rotation"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)
    """of each candidate, on each occasion."""

    def check(self, data: FederatedData) -> None:
        shape = data.pool.shape
        if len(shape) != 3 or shape[1] != shape[2]:
            raise ScenarioError(
                "drift.kind is 'rotation', which turns square images; the samples have the "
                f"shape {shape}"
            )

    def apply(
        self, data: FederatedData, occasion: int, candidates: Ints, streams: Streams
    ) -> list[Change]:
        self.check(data)
        generator = streams.generator("world/drift", occasion)
        changes = list[Change]()
        fires = _firing(data, candidates, self.probability, generator)
        turns = generator.integers(1, 4, len(data.shards)).tolist()
        for device in fires:
            shard = data.current(device)
            turned = replace(shard, quarter_turns=(shard.quarter_turns + turns[device]) % 4)
            changes.append(Change(device, data.replace_shard(device, turned)))
        _set_groups(data, changes, _group_of_turns(data))
        return changes


def _firing(
    data: FederatedData, candidates: Ints, probability: float, generator: np.random.Generator
) -> list[int]:
    fires = generator.random(len(data.shards)) < probability
    return [device for device in np.sort(candidates).tolist() if fires[device]]


def _set_groups(
    data: FederatedData, changes: list[Change], groups: dict[int, int] | None = None
) -> None:
    """Set the true groups of changed data where groups are known: that of the quarter turns, or
    none.
    """
    if data.truth is not None:
        for change in changes:
            data.truth[change.device] = (groups or {}).get(
                data.current(change.device).quarter_turns, NO_GROUP
            )


def _group_of_turns(data: FederatedData) -> dict[int, int]:
    """The true group of each number of quarter turns; empty where the groups differ by something
    else.
    """
    truth = () if data.initial_truth is None else data.initial_truth.tolist()
    pairs = {
        (shard.quarter_turns % 4, group) for shard, group in zip(data.shards, truth, strict=False)
    }
    one_to_one = all(len(set(column)) == len(pairs) for column in zip(*pairs, strict=True))
    return dict(pairs) if one_to_one else {}
