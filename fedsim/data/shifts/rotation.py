"""Devices come to hold their cameras differently."""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.data.federated import NO_GROUP, FederatedData
from fedsim.data.shifts.base import Change, Shift, set_group
from fedsim.errors import ScenarioError
from fedsim.streams import Streams


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
