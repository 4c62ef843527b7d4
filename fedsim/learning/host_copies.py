"""Copies of numbers between the host and a torch device, all of which are made here.

Arrays of numpy lie on the host, and tensors on the torch device of a solver. On a CPU both are the
same memory, but the copies are counted all the same, so that a test without a GPU can tell what a
GPU would be sent.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.common.arrays import AnyArray
from fedsim.learning.scratch import Weights

FlatModel = Weights | Tensor
"""Values of a model, float [d], on the host (an array) or on a torch device (a tensor)."""


@dataclass
class CopyCounts:
    """Counts of copies between the host and a torch device, for tests of performance.

    Attributes:
        to_device, to_host: counts of copies in each direction.
        to_device_bytes, to_host_bytes: sizes of all copies in each direction (bytes).
    """

    to_device: int = 0
    to_host: int = 0
    to_device_bytes: int = 0
    to_host_bytes: int = 0


_counts: list[CopyCounts] = []


def to_device(values: AnyArray, device: torch.device, *, shares: bool = False) -> Tensor:
    """Copy an array to a torch device.

    Args:
        values: the array.
        device: the torch device.
        shares: whether, on a CPU, the tensor may share the memory of an array that is writable.
            Otherwise the tensor has new memory of torch, which is aligned.

    Returns:
        The tensor, with the array's shape and dtype.
    """
    for counts in _counts:
        counts.to_device += 1
        counts.to_device_bytes += values.nbytes
    if shares and values.flags.writeable:
        return torch.from_numpy(values).to(device)
    return torch.tensor(values).to(device)


def to_host(tensor: Tensor) -> AnyArray:
    """Copy a tensor from its torch device to the host; on a CPU the array shares its memory."""
    for counts in _counts:
        counts.to_host += 1
        counts.to_host_bytes += tensor.nbytes
    values: AnyArray = tensor.detach().cpu().numpy()
    return values


def on_device(model: FlatModel, device: torch.device) -> Tensor:
    """Return a model as a tensor on a torch device; an array is copied there.

    Args:
        model: the model, float [d]; a tensor lies on the torch device already.
        device: the torch device.
    """
    return model if isinstance(model, Tensor) else to_device(model, device)


def on_host(model: FlatModel) -> Weights:
    """Return a model as an array on the host, float [d]; a tensor is copied there."""
    return to_host(model) if isinstance(model, Tensor) else model


def difference(minuend: FlatModel, subtrahend: FlatModel) -> FlatModel:
    """Return the difference of two models, on the host or torch device of the first one."""
    if isinstance(minuend, Tensor):
        return minuend - on_device(subtrahend, minuend.device)
    values: Weights = minuend - on_host(subtrahend)
    return values


def total(first: FlatModel, second: FlatModel) -> FlatModel:
    """Return the sum of two models, on the host or torch device of the first one."""
    if isinstance(first, Tensor):
        return first + on_device(second, first.device)
    values: Weights = first + on_host(second)
    return values


@contextmanager
def counted_copies() -> Iterator[CopyCounts]:
    """Return a context that counts the copies between host and torch device, in all threads.

    Yields:
        The counts so far.
    """
    counts = CopyCounts()
    _counts.append(counts)
    try:
        yield counts
    finally:
        _counts[:] = [other for other in _counts if other is not counts]
