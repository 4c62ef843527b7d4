"""Devices come to name things differently."""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.data.federated import FederatedData
from fedsim.data.shifts.base import Change, Shift, set_group
from fedsim.errors import ScenarioError
from fedsim.streams import Streams


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
