"""Samples that stay on a torch device, so that they are copied there once for many uses."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.common.arrays import AnyArray
from fedsim.learning.data.federated import FederatedData, Shard
from fedsim.learning.host_copies import to_device

_MEMORY_SHARE = 0.25  # share, for samples, of a GPU's memory that is free at the first training
_ContentKey = tuple[object, ...]
_ResidentTensors = tuple[Tensor, ...]


def share_of_memory(device: torch.device, share: float) -> float:
    """Return a share of a GPU's free memory (bytes); 0 on a CPU.

    Args:
        device: the torch device.
        share: the share, 0 to 1.
    """
    if device.type != "cuda":
        return 0.0
    free, _ = torch.cuda.mem_get_info(device)
    return share * free


def memory_for_samples(device: torch.device) -> float:
    """Return how much memory of a torch device may be used for samples (bytes).

    On a GPU this is a share of its free memory. On a CPU it is 0, as the samples are in its memory
    already.

    Args:
        device: the torch device.
    """
    return share_of_memory(device, _MEMORY_SHARE)


class ResidentSamples:
    """Store of samples on a torch device, which normalises them for a model at each use.

    On a GPU a shard (the samples of one device) is copied when it is used first, in the data set's
    type, so that bytes stay bytes. If the memory for samples is full, the shards that were used
    longest ago are freed, and copied anew when they are used again. On a CPU nothing is stored, and
    each use reads the samples from ``data``. Several threads may use an object at the same time.

    Args:
        data: all samples (the pool); the shards, indices of samples, are arguments of the methods.
        device: the torch device.
        memory_bytes: memory for samples; 0 to keep none; None for ``memory_for_samples(device)``.
    """

    def __init__(
        self, data: FederatedData, device: torch.device, memory_bytes: float | None = None
    ) -> None:
        self.data = data
        self.device = device
        # copies of this object in other processes get the same argument
        self._given_memory_bytes = memory_bytes
        self._memory_bytes = memory_bytes  # None until it is first needed
        self._lock = Lock()  # held while the fields below change
        # values that determine the content of tensors -> the tensors, used longest ago first
        self._tensors: OrderedDict[_ContentKey, _ResidentTensors] = OrderedDict()
        self._used_bytes = 0

    def __reduce__(self) -> tuple[object, ...]:
        return ResidentSamples, (self.data, self.device, self._given_memory_bytes)

    @property
    def stays(self) -> bool:
        """Whether the torch device may keep samples; False without memory for it, as on a CPU."""
        if self._memory_bytes is None:
            self._memory_bytes = memory_for_samples(self.device)
        return self._memory_bytes > 0

    @property
    def used_bytes(self) -> int:
        """Memory of the samples that lie on the torch device (bytes)."""
        return self._used_bytes

    def train(self, shard: Shard, chosen: NDArray[np.int64] | None = None) -> tuple[Tensor, Tensor]:
        """Return the training samples of a shard, as a model receives them.

        Args:
            shard: a device's data: samples of the pool, and their transformation.
            chosen: indices of the samples that are returned, int64 [n]; None for all.

        Returns:
            The samples, float32 (tokens: int64) [n, *shape], and their targets, [n, ...].
        """
        if not self.stays:
            x, y = self.data.train_samples(shard)
            if chosen is not None:
                x = x[chosen]
                y = y[chosen]
            return self._send(x), self._send(y)
        raw, targets = self._raw_samples("train", shard)
        if chosen is not None:
            rows = to_device(chosen, self.device)
            raw = raw[rows]
            targets = targets[rows]
        return self._normalised(raw), targets

    def test(self, shard: Shard) -> tuple[Tensor, Tensor]:
        """Return the test samples of a shard, as a model receives them, in memory of torch.

        Args:
            shard: a device's data: samples of the pool, and their transformation.

        Returns:
            The samples, float32 (tokens: int64) [m, *shape], and their targets, [m, ...].
        """
        if not self.stays:
            x, y = self.data.test_samples(shard)
            return to_device(x, self.device), to_device(y, self.device)
        raw, targets = self._raw_samples("test", shard)
        return self._normalised(raw), targets

    def numbers(self, values: AnyArray) -> Tensor:
        """Return an array that is used often, such as targets, as a tensor on the torch device.

        The tensor stays there as samples do, and is returned again for an array of equal values.
        """
        if not self.stays:
            return self._send(values)
        key = ("numbers", values.dtype.str, values.shape, values.tobytes())
        (tensor,) = self._get_or_send(key, lambda: (to_device(values, self.device),))
        return tensor

    def _send(self, values: AnyArray) -> Tensor:
        return to_device(values, self.device, shares=True)

    def _raw_samples(self, part: str, shard: Shard) -> tuple[Tensor, Tensor]:
        """Return the training or test samples of a shard, which stay on the torch device.

        The samples are copied there if the device lacks them. Shards with equal contents share a
        copy.

        Args:
            part: ``train`` or ``test``.
            shard: a device's data: samples of the pool, and their transformation.

        Returns:
            The samples, not normalised, [n, *shape], and their targets, [n, ...].
        """
        # indices and transform determine the content; not the device, as devices exchange data
        index = shard.train if part == "train" else shard.test
        labels = None if shard.label_map is None else shard.label_map.tobytes()
        transform = (shard.quarter_turns, shard.augment_seed, labels, shard.flips)

        def send() -> _ResidentTensors:
            if part == "train":
                x = self.data.raw_train(shard)
                y = self.data.train_targets(shard)
            else:
                x = self.data.raw_test(shard)
                y = self.data.test_targets(shard)
            return self._send(x), self._send(y)

        raw, targets = self._get_or_send((part, index.tobytes(), *transform), send)
        return raw, targets

    def _get_or_send(
        self, key: _ContentKey, send: Callable[[], _ResidentTensors]
    ) -> _ResidentTensors:
        """Return tensors that lie on the torch device, and copy them there if they do not.

        If memory is short, the tensors that were used longest ago are freed.

        Args:
            key: values that determine the content of the tensors.
            send: copies the tensors to the torch device; called if they are not there.
        """
        with self._lock:
            if key in self._tensors:
                self._tensors.move_to_end(key)
                return self._tensors[key]
        tensors = send()  # without the lock, as sending takes long
        with self._lock:
            if key not in self._tensors:  # another thread may have sent them meanwhile
                self._tensors[key] = tensors
                self._used_bytes += _size(tensors)
            while self._used_bytes > (self._memory_bytes or 0.0):
                _, oldest = self._tensors.popitem(last=False)
                self._used_bytes -= _size(oldest)
        return tensors

    def _normalised(self, raw: Tensor) -> Tensor:
        """Scale and standardise samples in new memory, with the same bits as on the CPU."""
        pool = self.data.pool
        if pool.vocabulary:
            return raw
        # Scale, mean and deviation become tensors on the torch device. A GPU would not divide by a
        # number on the host, but multiply by its reciprocal, which gives other bits.
        scale, mean, std = [
            self.numbers(np.asarray(number, dtype=np.float32))
            for number in (pool.scale, pool.mean, pool.std)
        ]
        return raw.to(torch.float32, copy=True).mul_(scale).sub_(mean).div_(std)


def _size(tensors: _ResidentTensors) -> int:
    return sum(tensor.nbytes for tensor in tensors)
