"""Each device's data change by themselves: samples come to light, labels are permuted, images turn."""

import math
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from fedsim.data.federated import NO_GROUP, FederatedData
from fedsim.data.shifts.base import Change, Occasions, Shift, set_group
from fedsim.errors import ScenarioError
from fedsim.streams import Streams

_HAIR = 1e-9  # so that 0.07 of 100 are 7, not 8


class Incremental(Shift):
    """On each occasion every candidate holds a larger share of its training data (FlexCFL, section 5.3: 25 % every 50 rounds).

    On occasion k these are the first ``shares[k]`` of its samples, in an order shuffled once for each device; rounded up, as in
    the published code. So a release keeps what was released before, distorted as it was. Test data and the true group stay.
    After the last share nothing happens any more.

    The first occasion belongs at the start of a run: before it, a device holds everything.

    Attributes:
        shares: of a device's training samples, in (0, 1], not falling.
        as_published: as in the published code, which takes each share of what is released at that time: with the defaults
            n/4, n/8, 3n/32 and 3n/32 of n samples, so that data vanish. Each size is rounded up.
    """

    kind: Literal["incremental"] = "incremental"
    at: Occasions = Occasions(rounds=[0, 50, 100, 150])
    shares: list[Annotated[float, Field(gt=0.0, le=1.0)]] = Field(default=[0.25, 0.5, 0.75, 1.0], min_length=1)
    as_published: bool = False

    @field_validator("shares")
    @classmethod
    def _rising(cls, shares: list[float]) -> list[float]:
        if shares != sorted(shares):
            raise ValueError(f"{shares} fall; each share includes the one before it")
        return shares

    def apply(self, data: FederatedData, occasion: int, candidates: NDArray[np.int64], streams: Streams) -> list[Change]:
        """Release the share of this occasion."""
        changes: list[Change] = []
        if occasion < len(self.shares):
            for device in np.sort(candidates).tolist():
                everything = data.shards[device].train
                size = self.released(len(everything), occasion)
                if size != len(data.current(device).train):
                    order = streams.generator("world/drift/order", device).permutation(len(everything))
                    shard = replace(data.shards[device], train=everything[order[:size]])
                    changes.append(Change(device, data.replace_shard(device, shard)))
        return changes

    def released(self, samples: int, occasion: int) -> int:
        """How many of a device's ``samples`` it holds from ``occasion`` on."""
        size = samples
        for share in self.shares[: occasion + 1]:
            size = math.ceil((size if self.as_published else samples) * share - _HAIR)
        return max(1, size)


class LabelPermutation(Shift):
    """Each candidate permutes its labels with some probability: a change of concept that no picture shows.

    The permutation, uniform among those that change something, is applied to the labels as they are now, of training and
    test samples alike. The device's data are of no group (``NO_GROUP``) from then on. Whether and how a device permutes does
    not depend on the other candidates.

    Attributes:
        probability: of each candidate, on each occasion.
    """

    kind: Literal["label-permutation"] = "label-permutation"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)

    def check(self, data: FederatedData) -> None:
        """Refuse data with one class."""
        if data.pool.classes < 2:
            raise ScenarioError("drift.kind is 'label-permutation'; the data have 1 class, and at least 2 are needed")

    def apply(self, data: FederatedData, occasion: int, candidates: NDArray[np.int64], streams: Streams) -> list[Change]:
        """Give devices other labels."""
        self.check(data)
        fires = streams.generator("world/drift", occasion).random(len(data.shards)) < self.probability
        devices = np.sort(candidates)
        changes: list[Change] = []
        for device in devices[fires[devices]].tolist():
            shard = data.current(device)
            label_map = _draw(data.pool.classes, streams.generator("world/drift", occasion, device))
            if shard.label_map is not None:
                label_map = label_map[shard.label_map]
            changes.append(Change(device, data.replace_shard(device, replace(shard, label_map=label_map))))
            set_group(data, device)
        return changes


def _draw(classes: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """A permutation of the labels other than the identity, int64 [C]."""
    identity = np.arange(classes)
    permutation = identity
    while np.array_equal(permutation, identity):
        permutation = generator.permutation(classes)
    return permutation


class Rotation(Shift):
    """Each candidate's images turn, with some probability, by a further one, two or three quarter turns.

    Training and test images turn alike. Whether and how far a device's turn does not depend on the other candidates. Where
    the true groups are told apart by their rotations alone (partition ``rotations``), the device's data are of the group with
    the new rotation, or of none (``NO_GROUP``) where no group has it; where groups differ in something else, of none.

    Attributes:
        probability: of each candidate, on each occasion.
    """

    kind: Literal["rotation"] = "rotation"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)

    def check(self, data: FederatedData) -> None:
        """Refuse all but square images."""
        shape = data.pool.shape
        if len(shape) != 3 or shape[1] != shape[2]:
            raise ScenarioError(
                f"drift.kind is 'rotation'; the samples have the shape {shape}, and only square images can be turned"
            )

    def apply(self, data: FederatedData, occasion: int, candidates: NDArray[np.int64], streams: Streams) -> list[Change]:
        """Turn the images of devices."""
        self.check(data)
        generator = streams.generator("world/drift", occasion)
        fires = generator.random(len(data.shards)) < self.probability
        turns = generator.integers(1, 4, len(data.shards))
        devices = np.sort(candidates)
        groups = _group_of_turns(data)
        changes: list[Change] = []
        for device in devices[fires[devices]].tolist():
            shard = data.current(device)
            turned = (shard.quarter_turns + int(turns[device])) % 4
            changes.append(Change(device, data.replace_shard(device, replace(shard, quarter_turns=turned))))
            set_group(data, device, groups.get(turned, NO_GROUP))
        return changes


def _group_of_turns(data: FederatedData) -> dict[int, int]:
    """The true group that goes with a number of quarter turns; empty where the groups are not a matter of turns alone."""
    if data.initial_truth is None:
        return {}
    turns = [shard.quarter_turns % 4 for shard in data.shards]
    pairs = np.unique(np.stack([turns, data.initial_truth]), axis=1)
    one_to_one = all(len(np.unique(row)) == pairs.shape[1] for row in pairs)
    return dict(pairs.T.tolist()) if one_to_one else {}
