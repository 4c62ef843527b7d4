"""All devices' data in one place: what a federation trains on, for the reference line of centralised training."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedsim.data.federated import FederatedData, Index, Shard
from fedsim.data.transforms import rotate


def pool_shards(data: FederatedData) -> FederatedData:
    """One device with the samples of all devices, device after device.

    A sample that several devices hold counts as often as it did before. Where devices see the same samples turned or labelled
    differently, the pool has each as its device sees it.
    """
    train = np.concatenate([shard.train for shard in data.shards])
    test = np.concatenate([shard.test for shard in data.shards])
    if all(shard.quarter_turns == 0 and shard.label_map is None for shard in data.shards):
        return FederatedData(data.pool, [Shard(train, test)])
    seen = [_as_seen(data, shard, shard.train) for shard in data.shards]
    seen += [_as_seen(data, shard, shard.test) for shard in data.shards]
    pool = replace(data.pool, x=np.concatenate([x for x, _ in seen]), y=np.concatenate([y for _, y in seen]))
    places = np.arange(len(pool.y), dtype=np.int32)
    return FederatedData(pool, [Shard(places[: len(train)], places[len(train) :])])


def _as_seen(data: FederatedData, shard: Shard, index: Index) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Raw samples [n, *shape] and labels [n] as the shard's device sees them, before normalisation."""
    raw, labels = data.pool.x[index].astype(np.float32), data.pool.y[index]
    turned = rotate(raw, shard.quarter_turns) if shard.quarter_turns else raw
    return turned, labels if shard.label_map is None else shard.label_map[labels]
