"""Models that stay on a torch device, so that each is copied there once."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import RLock
from typing import NamedTuple

import torch
from torch import Tensor

from fedsim.common.tensor_files import AnyTensor, array_of
from fedsim.learning.refs import Ref, weights_of
from fedsim.learning.resident import share_of_memory
from fedsim.learning.scratch import Weights
from fedsim.learning.solvers.base import Solved
from fedsim.learning.transfers import FlatModel, to_device, to_host

_SHARE = 0.15  # share of a GPU's free memory, at the first training, for models


def room_of(device: torch.device) -> float:
    """Return the memory that may be used for models on a torch device (bytes).

    It is a share of a GPU's free memory, and 0 on a CPU, whose memory has the models already.

    Args:
        device: the torch device.
    """
    return share_of_memory(device, _SHARE)


class NamedWeights(NamedTuple):
    """Weights of a model and its serial, by which a worker finds its copy on the torch device."""

    serial: int
    """serial of the model's ``Ref``, which no other model of the run has."""
    weights: AnyTensor
    """the weights, float32 [d]; read only if the torch device lacks them."""


class ResidentModels:
    """Models on a torch device, from which trainings start and which are tested.

    On a GPU a model of the host is copied when it is used first. If the memory for models is full,
    the copies that were used longest ago are freed, and made anew when they are used again. On a
    CPU models are used as they lie on the host. Several threads may use an object at once; each
    process has its own, with copies of its own.

    Args:
        device: the torch device.
        room: memory for models (bytes); 0 to keep none; None for ``room_of(device)``.
    """

    def __init__(self, device: torch.device, room: float | None = None) -> None:
        self.device = device
        self._given_room = room
        self._room = room
        self._lock = RLock()
        self._copies: OrderedDict[int, Tensor] = OrderedDict()
        self._copies_bytes = 0

    def __reduce__(self) -> tuple[object, ...]:
        return ResidentModels, (self.device, self._given_room)

    @property
    def stays(self) -> bool:
        """Whether models stay on the torch device after their use."""
        if self._room is None:
            self._room = room_of(self.device)
        return self._room > 0

    @property
    def used_bytes(self) -> int:
        """Memory of the models that lie on the torch device (bytes)."""
        return self._copies_bytes

    def named(self, ref: Ref) -> Weights | NamedWeights:
        """Return the weights of a computed model, for a worker that calls ``flat``.

        Args:
            ref: the model.

        Raises:
            ValueError: the model has not been computed.
        """
        if not self.stays or ref.held is None:
            return weights_of(ref)
        return NamedWeights(ref.serial, ref.held)

    def flat(self, model: Weights | NamedWeights) -> FlatModel:
        """Return a model where trainings and tests need it, float32 [d], which must not be changed.

        Args:
            model: the result of ``named``.

        Returns:
            A tensor on the torch device, which is copied there if it does not lie there yet; on a
            CPU the array.
        """
        if not isinstance(model, NamedWeights):
            return model
        with self._lock:  # so that two threads make one copy
            copy = self._copies.get(model.serial)
            if copy is None:
                copy = to_device(array_of(model.weights), self.device)
                self._copies[model.serial] = copy
                self._copies_bytes += copy.nbytes
                self._free_copies()
            else:
                self._copies.move_to_end(model.serial)
        return copy

    def of(self, ref: Ref) -> FlatModel:
        """Return a computed model where trainings and tests need it; see ``flat``.

        Args:
            ref: the model.
        """
        return self.flat(self.named(ref))

    def _free_copies(self) -> None:
        """Free the copies that were used longest ago, until all have room."""
        while self._copies and self._copies_bytes > (self._room or 0.0):
            _, oldest = self._copies.popitem(last=False)
            self._copies_bytes -= oldest.nbytes

    def settle(self, results: Sequence[Solved]) -> list[Solved]:
        """Bring results of trainings back to the host, all in one copy.

        Args:
            results: the results, whose models may lie on the torch device.

        Returns:
            The results, with models on the host.
        """
        models = [solved.weights for solved in results if isinstance(solved.weights, Tensor)]
        if not models:
            return list(results)
        rows = iter(to_host(torch.stack(models)))
        settled = []
        for solved in results:
            if isinstance(solved.weights, Tensor):
                solved = solved._replace(weights=next(rows).copy())
            settled.append(solved)
        return settled
