"""Shifts of data besides complete exchanges: of two labels, released shares, other meanings of labels, turned images."""

import math
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator

from fedsim.arrays import Ints
from fedsim.data.federated import NO_GROUP, FederatedData, Shard
from fedsim.data.shifts import Change, Occasions, Shift, draw_pairs, exchange
from fedsim.errors import ScenarioError
from fedsim.streams import Streams

_HAIR = 1e-9  # so that 0.07 of 100 are 7, not 8


class SwapPart(Shift):
    """Random pairs of candidates exchange all samples of two labels that only one of them has (FlexCFL, section 5.3).

    Pairs come about as in ``swap-all``. Of each that fires, each device gives away one of its own labels, drawn at random:
    a label which it has among both its training and its test samples, and the other has not (code of FlexCFL). All training
    and test samples of the label go. A pair in which one has no such label stays as it is.

    Data of which a part has been exchanged are of no group (``NO_GROUP``) from then on. Single samples can move only between
    devices that turn, label and distort alike, for a sample takes no transform along; all else is refused.
    """

    kind: Literal["swap-part"] = "swap-part"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)
    """of each pair, on each occasion."""
    quirk: bool = False
    """as in the published code, where a pair that cannot exchange ends the occasion for all pairs after it."""

    def check(self, data: FederatedData) -> None:
        if not data.pool.labelled:
            raise ScenarioError("drift.kind is 'swap-part', which exchanges labels, and the data have targets instead")
        for shard in data.shards:
            _require_alike(data.shards[0], shard)

    def apply(self, data: FederatedData, occasion: int, candidates: Ints, streams: Streams) -> list[Change]:
        generator = streams.generator("world/drift", occasion)
        pairs = draw_pairs(candidates, generator)
        # Drawn for all pairs at once: what one pair draws does not depend on whether others could exchange.
        chance, *choices = generator.random((3, len(pairs)))
        changes: list[Change] = []
        for pair in np.flatnonzero(chance < self.probability).tolist():
            one, other = pairs[pair].tolist()
            mine, yours = data.current(one), data.current(other)
            _require_alike(mine, yours)
            owned = [np.intersect1d(data.train_labels(shard), data.test_labels(shard)) for shard in (mine, yours)]
            exclusive = np.setdiff1d(owned[0], owned[1]), np.setdiff1d(owned[1], owned[0])
            if all(map(len, exclusive)):
                gone, come = (own[int(draw[pair] * len(own))] for own, draw in zip(exclusive, choices, strict=True))
                to_one, to_other = _exchanged(data, mine, yours, gone, come), _exchanged(data, yours, mine, come, gone)
                changes += exchange(data, one, other, to_one, to_other)
            elif self.quirk:
                break
        _set_groups(data, changes)
        return changes


def _exchanged(data: FederatedData, mine: Shard, yours: Shard, gone: np.int64, come: np.int64) -> Shard:
    """``mine`` without the label ``gone``, and with the samples of ``come`` that ``yours`` has."""
    train = mine.train[data.train_labels(mine) != gone], yours.train[data.train_labels(yours) == come]
    test = mine.test[data.test_labels(mine) != gone], yours.test[data.test_labels(yours) == come]
    return Shard(np.concatenate(train), np.concatenate(test), mine.quarter_turns, mine.label_map)


def _require_alike(one: Shard, other: Shard) -> None:
    what = "drift.kind is 'swap-part', which moves single samples between devices"
    if one.augment_seed is not None or other.augment_seed is not None:
        raise ScenarioError(
            f"{what}; each device distorts its training images by draws of its own, which a sample cannot take along: allowed "
            'are data.augmentation = "none" and drift.kind = "swap-all"'
        )
    meanings = [(shard.quarter_turns % 4, shard.label_map is not None and shard.label_map.tolist()) for shard in (one, other)]
    if meanings[0] != meanings[1]:
        raise ScenarioError(
            f"{what}; with this data.partition devices turn images or permute labels each in their own way, so that a sample "
            "would change its meaning: allowed are the partitions other than 'rotations' and 'permutations', and "
            'drift.kind = "swap-all"'
        )


class Incremental(Shift):
    """On each occasion every candidate holds a larger share of its training data (FlexCFL, section 5.3: 25 % every 50 rounds).

    On occasion k these are the first ``shares[k]`` of its samples, in an order shuffled once for each device; rounded up, as in
    the published code. So a release keeps what was released before, distorted as it was. Test data and the true group stay.
    After the last share nothing happens any more.

    The first occasion belongs at the start of a run: before it, a device holds everything.
    """

    kind: Literal["incremental"] = "incremental"
    at: Occasions = Occasions(rounds=[0, 50, 100, 150])
    shares: list[Annotated[float, Field(gt=0.0, le=1.0)]] = Field(default=[0.25, 0.5, 0.75, 1.0], min_length=1)
    """of a device's training samples, in (0, 1], not falling."""
    as_published: bool = False
    """as in the published code, which takes each share of what is released at that time: with the defaults n/4, n/8, 3n/32 and
    3n/32 of n samples, so that data vanish. Each size is rounded up.
    """

    @field_validator("shares")
    @classmethod
    def _rising(cls, shares: list[float]) -> list[float]:
        if shares != sorted(shares):
            raise ValueError(f"{shares} fall; each share includes the one before it")
        return shares

    def apply(self, data: FederatedData, occasion: int, candidates: Ints, streams: Streams) -> list[Change]:
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
    """Each candidate permutes its labels with some probability: a change of concept that no picture shows.

    The permutation, uniform among those that change something, is applied to the labels as they are now, of training and
    test samples alike. The device's data are of no group (``NO_GROUP``) from then on. Whether and how a device permutes does
    not depend on the other candidates.
    """

    kind: Literal["label-permutation"] = "label-permutation"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)
    """of each candidate, on each occasion."""

    def check(self, data: FederatedData) -> None:
        if data.pool.targets is not None:
            raise ScenarioError(
                "drift.kind is 'label-permutation', which gives labels other meanings, and the model learns targets instead; "
                "allowed without data.column, and with objective.kind = 'classification'"
            )
        if data.pool.classes < 2:
            raise ScenarioError("drift.kind is 'label-permutation'; the data have 1 class, and at least 2 are needed")

    def apply(self, data: FederatedData, occasion: int, candidates: Ints, streams: Streams) -> list[Change]:
        self.check(data)
        changes, identity = list[Change](), np.arange(data.pool.classes)
        for device in _firing(data, candidates, self.probability, streams.generator("world/drift", occasion)):
            shard, generator = data.current(device), streams.generator("world/drift", occasion, device)
            label_map = identity
            while np.array_equal(label_map, identity):
                label_map = generator.permutation(data.pool.classes)
            label_map = label_map if shard.label_map is None else label_map[shard.label_map]
            changes.append(Change(device, data.replace_shard(device, replace(shard, label_map=label_map))))
        _set_groups(data, changes)
        return changes


class Rotation(Shift):
    """Each candidate's images turn, with some probability, by a further one, two or three quarter turns.

    Training and test images turn alike. Whether and how far a device's turn does not depend on the other candidates. Where
    the true groups are told apart by their rotations alone (partition ``rotations``), the device's data are of the group with
    the new rotation, or of none (``NO_GROUP``) where no group has it; where groups differ in something else, of none.
    """

    kind: Literal["rotation"] = "rotation"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)
    """of each candidate, on each occasion."""

    def check(self, data: FederatedData) -> None:
        shape = data.pool.shape
        if len(shape) != 3 or shape[1] != shape[2]:
            raise ScenarioError(
                f"drift.kind is 'rotation'; the samples have the shape {shape}, and only square images can be turned"
            )

    def apply(self, data: FederatedData, occasion: int, candidates: Ints, streams: Streams) -> list[Change]:
        self.check(data)
        generator, changes = streams.generator("world/drift", occasion), list[Change]()
        fires = _firing(data, candidates, self.probability, generator)
        turns = generator.integers(1, 4, len(data.shards)).tolist()
        for device in fires:
            shard = data.current(device)
            turned = replace(shard, quarter_turns=(shard.quarter_turns + turns[device]) % 4)
            changes.append(Change(device, data.replace_shard(device, turned)))
        _set_groups(data, changes, _group_of_turns(data))
        return changes


def _firing(data: FederatedData, candidates: Ints, probability: float, generator: np.random.Generator) -> list[int]:
    """The candidates that change; one draw for each device of the population."""
    fires = generator.random(len(data.shards)) < probability
    return [device for device in np.sort(candidates).tolist() if fires[device]]


def _set_groups(data: FederatedData, changes: list[Change], groups: dict[int, int] | None = None) -> None:
    """Say the true groups of changed data, by their quarter turns or none, where groups are known at all."""
    if data.truth is not None:
        for change in changes:
            data.truth[change.device] = (groups or {}).get(data.current(change.device).quarter_turns, NO_GROUP)


def _group_of_turns(data: FederatedData) -> dict[int, int]:
    """The true group that goes with a number of quarter turns; empty where the groups are not a matter of turns alone."""
    if data.initial_truth is None:
        return {}
    turns = [shard.quarter_turns % 4 for shard in data.shards]
    pairs = np.unique(np.stack([turns, data.initial_truth]), axis=1)
    one_to_one = all(len(np.unique(row)) == pairs.shape[1] for row in pairs)
    return dict(pairs.T.tolist()) if one_to_one else {}
