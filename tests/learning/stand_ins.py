"""Devices that stand in for a GPU: the CPU, on which models go a GPU's way, and torch's ``meta``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedsim.learning import engine, resident, resident_models
from fedsim.learning.host_copies import CopyCounts, counted_copies
from fedsim.learning.resident_models import ResidentModels
from fedsim.learning.solvers.base import Descent, LocalSolve
from fedsim.learning.solvers.cohort import Cohort, kind_of
from fedsim.learning.solvers.stack import Stack

CPU = torch.device("cpu")
META = torch.device("meta")
ROOM = 1e9


def stand_in(monkeypatch: pytest.MonkeyPatch, room: float = ROOM) -> None:
    """Let the CPU stand in for a GPU, with memory for samples, and ``room`` for models (bytes)."""
    monkeypatch.setattr(resident, "memory_for_samples", lambda _: ROOM)
    monkeypatch.setattr(resident_models, "memory_for_models", lambda _: room)


class Crossings(TorchDispatchMode):
    """Lists torch's operations that take a tensor of the host and give one of ``meta``.

    Arithmetic with a number of the host is left out: GPUs get it with the operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        is_copy = "copy" in str(func)
        takes = any(tensor.device == CPU and (is_copy or tensor.ndim) for tensor in tensors)
        if takes and any(tensor.device == META for tensor in results):
            self.operations.append(str(func))
        return result


class StepLoops:
    """What all loops of steps have done: how many there were, and what crossed within them."""

    def __init__(self) -> None:
        self.count = 0
        self.crossings: list[str] = []
        self.transfers: list[CopyCounts] = []


@contextmanager
def meta_for_a_gpu(room: float = ROOM) -> Iterator[StepLoops]:
    """Let learners compute on ``meta``, on which numbers that come to the host are 0, and true.

    Any other number that is read raises, and so does a tensor that lies elsewhere. Modules and
    stacks are not tried before.

    Args:
        room: memory for models on ``meta`` (bytes).
    """
    loops = StepLoops()
    read = Tensor.cpu
    descend = Stack.descend

    def zeros(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return read(tensor)
        made = torch.ones if tensor.dtype == torch.bool else torch.zeros
        return made(tensor.shape, dtype=tensor.dtype)

    def watched(self: Stack, *args: Any) -> Tensor:
        with Crossings() as crossings, counted_copies() as counts:
            losses = descend(self, *args)
        loops.count += 1
        loops.crossings += crossings.operations
        loops.transfers.append(counts)
        return losses

    def allow(self: Cohort, solve: LocalSolve, descent: Descent) -> str:
        self.stackable_widths.add(kind_of(solve, descent).width)
        return ""

    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch, room)
        patch.setattr(engine, "torch_device", lambda _: META)
        patch.setattr(engine.Learning, "_try_module", lambda *_: None)
        patch.setattr(Cohort, "try_stack", allow)
        patch.setattr(Stack, "descend", watched)
        patch.setattr(Tensor, "cpu", zeros)
        patch.setattr(ResidentModels, "adds_alike", True)
        yield loops
