"""Models that stay on a torch device: starts of trainings, results of trainings, and sums.

A model goes to the torch device when it is used there first, and comes back when the host reads it.
Results have the same bits wherever they are computed. A sum of models is computed in float64, by
two operations of torch for each model, a product and a sum. IEEE 754 defines the results of both,
for a GPU as for a CPU.
"""

import math
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from threading import RLock
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsim.common.arrays import AnyArray
from fedsim.common.tensor_files import AnyTensor, StoredTensor, array_of
from fedsim.learning.functions import RunningSum
from fedsim.learning.host_copies import FlatModel, to_device, to_host
from fedsim.learning.refs import Ref, weights_of
from fedsim.learning.resident import share_of_memory
from fedsim.learning.scratch import ComputedWeights, Scratch, Weights
from fedsim.learning.solvers.base import Solved
from fedsim.learning.streaming import ModelNode

_MEMORY_SHARE = 0.15  # share, for models, of a GPU's memory that is free when the run begins
# share of this memory for stored models; the rest is for new results and copies
_STORED_SHARE = 0.5
_TRIAL_MODELS = 20  # count of models in a trial sum
_TRIAL_WEIGHTS = 1 << 12  # count of weights of each model in a trial sum


def memory_for_models(device: torch.device) -> float:
    """Return the memory that may be used for models on a torch device (bytes).

    It is a share of a GPU's free memory, and 0 on a CPU, whose memory has the models already.

    Args:
        device: the torch device.
    """
    return share_of_memory(device, _MEMORY_SHARE)


class ResidentWeights(ComputedWeights):
    """Weights of a model that has been computed on a torch device, float32 [d].

    Each use on the host copies the weights, until ``leave`` replaces them by an array of the host.

    Args:
        models: the store of models on the torch device, which counts their memory.
        tensor: the weights, float32 [d].
        finite: whether all weights are finite numbers.

    Attributes:
        was_used: whether the weights have been used on the torch device since this attribute was
            last set to False. ``ResidentScratch`` reads and resets it, to find models that can be
            moved to the host.
    """

    __slots__ = ("_array", "_models", "_tensor", "was_used")

    def __init__(self, models: "ResidentModels", tensor: Tensor, finite: bool) -> None:
        super().__init__(len(tensor), finite)
        self._models = models
        self._tensor: Tensor | None = tensor
        self._array: Weights | None = None
        self.was_used = False

    @property
    def tensor(self) -> Tensor | None:
        """The weights on the torch device, which must not be changed; None if they have left it."""
        return self._tensor

    def read(self) -> Weights:
        if self._array is not None:
            return self._array
        assert self._tensor is not None
        return to_host(self._tensor)

    def leave(self, array: Weights) -> None:
        """Free the memory on the torch device, and read the weights from the host from now on.

        Args:
            array: a copy of the weights on the host, float32 [d].
        """
        self._array = array
        if self._tensor is not None:
            self._tensor = None
            self._models.release(self.nbytes)

    def __del__(self) -> None:
        if self._tensor is not None:
            self._models.release(self.nbytes)


class NamedWeights(NamedTuple):
    """Weights of a model, and its serial number, by which a worker finds a copy on its GPU.

    Attributes:
        serial: serial of the model's ``Ref``, which no other model of the run has.
        weights: the weights, float32 [d]; read only if the torch device lacks them.
    """

    serial: int
    weights: AnyTensor


class TrainedModel(NamedTuple):
    """Result of a device's local training, as a worker returns it.

    Attributes:
        weights: the trained weights, float32 [d].
        train_loss: the mean loss over the samples of the last epoch; NaN if there were no steps.
        numbers: name -> value that the trainer reports.
        state: name -> array of the trainer's state.
    """

    weights: Weights | ResidentWeights
    train_loss: float
    numbers: Mapping[str, float]
    state: Mapping[str, AnyArray]


class ResidentModels:
    """Store of models on a torch device: starts and results of trainings, and models to be tested.

    On a GPU the store has two kinds of models:

    - Copies of models of the host. A model is copied at its first use on the GPU. If the memory for
      models is full, the copies that were used longest ago are freed. A freed copy is made again at
      its next use.
    - Models that were computed on the GPU, if ``keeps_results``. A result stays on the GPU if there
      is room, and is moved to the host otherwise.

    On a CPU nothing is stored. Several threads may use an object at the same time. If the object is
    sent to a worker process, the worker's object begins empty, and moves all results to the host.

    Args:
        device: the torch device.
        memory_bytes: memory for models; 0 to keep none; None for ``memory_for_models(device)``.
        keeps_results: whether results of trainings may stay on the torch device.
    """

    def __init__(
        self,
        device: torch.device,
        memory_bytes: float | None = None,
        *,
        keeps_results: bool = True,
    ) -> None:
        self.device = device
        # copies of this object in other processes get the same argument
        self._given_memory_bytes = memory_bytes
        self._memory_bytes = memory_bytes  # None until it is first needed
        self._keeps_results = keeps_results
        self._lock = RLock()  # held while the fields below change
        # serial of a model -> its copy, the one that was used longest ago first
        self._copies: OrderedDict[int, Tensor] = OrderedDict()
        self._copied_bytes = 0  # size of all ``_copies``
        # size of all ``ResidentWeights`` on the torch device; each subtracts its size (``release``)
        self._computed_bytes = 0

    def __reduce__(self) -> tuple[object, ...]:
        return partial(ResidentModels, keeps_results=False), (self.device, self._given_memory_bytes)

    @property
    def memory_bytes(self) -> float:
        """Memory of the torch device that may be used for models (bytes); 0 to keep none there."""
        if self._memory_bytes is None:
            self._memory_bytes = memory_for_models(self.device)
        return self._memory_bytes

    @property
    def stays(self) -> bool:
        """Whether the torch device may have models; False without memory for them, as on a CPU."""
        return self.memory_bytes > 0

    @property
    def used_bytes(self) -> int:
        """Memory of the models that lie on the torch device (bytes)."""
        return self._copied_bytes + self._computed_bytes

    @property
    def is_crowded(self) -> bool:
        """Whether models computed on the torch device should leave it, for new results.

        They should if they take up more than half of the memory for models.
        """
        return self._computed_bytes > _STORED_SHARE * self.memory_bytes

    def named(self, ref: Ref) -> Weights | NamedWeights:
        """Return a computed model in the form in which it is sent to a worker.

        The worker calls ``flat`` with it, to get the weights on the torch device.

        Args:
            ref: the model.

        Returns:
            The weights and the model's serial, by which ``flat`` finds a copy on the torch device;
            on a CPU only the weights.

        Raises:
            ValueError: the model has not been computed.
        """
        if not self.stays or ref.held is None:
            return weights_of(ref)
        return NamedWeights(ref.serial, ref.held)

    def flat(self, model: Weights | NamedWeights) -> FlatModel:
        """Return a model for a training or test on the torch device; it must not be changed.

        Args:
            model: the result of ``named``.

        Returns:
            The weights, float32 [d]: a tensor on the torch device, copied there if it does not lie
            there yet; on a CPU the array.
        """
        if not isinstance(model, NamedWeights):
            return model
        serial, weights = model
        if isinstance(weights, ResidentWeights):
            tensor = weights.tensor
            if tensor is not None:
                weights.was_used = True
                return tensor
        with self._lock:  # so that two threads make one copy
            if serial in self._copies:
                self._copies.move_to_end(serial)
                return self._copies[serial]
            copy = to_device(array_of(weights), self.device)
            if self._reserve(copy.nbytes):
                self._copies[serial] = copy
                self._copied_bytes += copy.nbytes
            return copy

    def of(self, ref: Ref) -> FlatModel:
        """Return the weights of a computed model for use on the torch device, float32 [d].

        The weights are a tensor there, or on a CPU the array, and must not be changed.

        Args:
            ref: the model.
        """
        return self.flat(self.named(ref))

    def _reserve(self, size: int) -> bool:
        """Free the copies that were used longest ago, until there is room for ``size`` bytes.

        Returns:
            Whether there is room; False if it does not suffice to free all copies.
        """
        with self._lock:
            while self._copies and self.used_bytes + size > self.memory_bytes:
                _, oldest = self._copies.popitem(last=False)
                self._copied_bytes -= oldest.nbytes
            return self.used_bytes + size <= self.memory_bytes

    def release(self, size: int) -> None:
        """Count the memory of a model that was computed on the torch device as free.

        ``ResidentWeights`` calls it when the model leaves the torch device or is deleted.

        Args:
            size: size of the model (bytes).
        """
        with self._lock:
            self._computed_bytes -= size

    def settle(self, results: Sequence[Solved]) -> list[TrainedModel]:
        """Let results of trainings stay on the torch device, or move them to the host in one copy.

        Args:
            results: the results, whose models may lie on the torch device.

        Returns:
            The results in order, as a worker returns them. A model stays if there is room.
        """
        tensors = [solved.weights for solved in results if isinstance(solved.weights, Tensor)]
        models = iter(self.keep(tensors))
        settled = []
        for weights, train_loss, numbers, state in results:
            model = next(models) if isinstance(weights, Tensor) else weights
            settled.append(TrainedModel(model, train_loss, numbers, state))
        return settled

    def keep(self, tensors: Sequence[Tensor]) -> Sequence[Weights | ResidentWeights]:
        """Let new models stay on the torch device if there is room; else move all to the host.

        Args:
            tensors: the models, float32 [d] each, in memory that nothing else uses.

        Returns:
            The weights of each model, which lie on the torch device, or are arrays on the host.
        """
        if not tensors:
            return []
        size = sum(tensor.nbytes for tensor in tensors)
        with self._lock:
            has_room = self._keeps_results and self._reserve(size)
            if has_room:
                self._computed_bytes += size
        if not has_room:
            arrays = to_host(torch.stack(list(tensors)))  # all models in one copy
            return [array.copy() for array in arrays]  # each copy can be freed by itself
        finite_flags = torch.stack([tensor.isfinite().all() for tensor in tensors])
        resident = []
        for tensor, is_finite in zip(tensors, to_host(finite_flags).tolist(), strict=True):
            resident.append(ResidentWeights(self, tensor, is_finite))
        return resident

    def bring_back(self, refs: Iterable[Ref], *, copies_stay: bool) -> None:
        """Move models that were computed on the torch device to the host, all in one copy.

        Args:
            refs: the models; models that lie on the host are skipped.
            copies_stay: whether copies stay on the torch device while there is room.
        """
        serials: dict[ResidentWeights, int] = {}  # several refs may share their weights
        tensors: dict[ResidentWeights, Tensor] = {}
        for ref in refs:
            weights = ref.held
            if isinstance(weights, ResidentWeights) and weights.tensor is not None:
                serials.setdefault(weights, ref.serial)
                tensors[weights] = weights.tensor
        if not tensors:
            return
        rows = to_host(torch.stack(list(tensors.values())))
        for (weights, tensor), row in zip(tensors.items(), rows, strict=True):
            array: Weights = row.copy()  # can be freed by itself, which a row cannot
            array.setflags(write=False)
            weights.leave(array)
            if copies_stay:
                with self._lock:
                    self._copies[serials[weights]] = tensor
                    self._copied_bytes += tensor.nbytes

    def distances(self, pairs: Sequence[tuple[Ref, Ref]]) -> list[float]:
        """Return the Euclidean distance of each pair of models, computed on the torch device.

        Args:
            pairs: pairs of computed models.
        """
        squares = []
        for first, second in pairs:
            change = self.tensor_of(first).double() - self.tensor_of(second)
            squares.append(change.square_().sum())
        return [math.sqrt(square) for square in to_host(torch.stack(squares)).tolist()]

    def tensor_of(self, ref: Ref) -> Tensor:
        model = self.of(ref)
        assert isinstance(model, Tensor)
        return model

    def new_sum(self, length: int) -> "MixSum":
        """Return an empty sum of coefficient x model, to which models are added one by one.

        Args:
            length: count of weights of a model, d.
        """
        return MixSum(self, length)

    @cached_property
    def adds_alike(self) -> bool:
        """Whether a trial sum of models has the same bits on the torch device as on the host.

        IEEE 754 requires equal bits. If a torch device has other bits, the host computes all sums.
        """
        generator = np.random.default_rng(0)
        expected = RunningSum(_TRIAL_WEIGHTS)
        total = to_device(expected.total, self.device)
        product = torch.empty_like(total)
        for coefficient in generator.normal(size=_TRIAL_MODELS).tolist():
            exponents = generator.integers(-149, 124, _TRIAL_WEIGHTS)  # the range of float32
            model = np.ldexp(generator.normal(size=_TRIAL_WEIGHTS), exponents).astype(np.float32)
            expected.add(model, coefficient)
            add_product(total, product, to_device(model, self.device), coefficient)
        is_same = to_host(total).tobytes() == expected.total.tobytes()
        return is_same and to_host(total.float()).tobytes() == expected.result().tobytes()


def add_product(total: Tensor, product: Tensor, model: Tensor, coefficient: float) -> None:
    """Add coefficient x model to a sum, in two operations, each of which is rounded by itself.

    A GPU would compute a single operation with one rounding (fused multiply-add), and the result
    would have other bits.

    Args:
        total: the sum, float64 [d], which is changed.
        product: working memory, float64 [d].
        model: the model, float32 [d].
        coefficient: its coefficient.
    """
    product.copy_(model).mul_(coefficient)
    total.add_(product)


class MixSum:
    """Sum of coefficient x model, to which models are added one by one, on host or torch device.

    The sum begins on the host, and moves to the torch device with the first model that was computed
    there. If ``ResidentModels.adds_alike`` is False, the sum stays on the host. The result is
    bitwise equal to ``weighted_sum`` of the same models in the same order.

    Args:
        models: store of the models on the torch device.
        length: count of weights of a model, d.
    """

    def __init__(self, models: ResidentModels, length: int) -> None:
        self._models = models
        self._length = length
        # The sum lies on the host or on the torch device; all fields are None for an empty sum.
        self._host: RunningSum | None = None
        self._total: Tensor | None = None  # the sum on the torch device, float64 [d]
        self._product: Tensor | None = None  # working memory of ``add_product``

    def add(self, ref: Ref, coefficient: float) -> None:
        """Add a computed model times its coefficient to the sum."""
        if isinstance(ref.held, ResidentWeights) and self._models.adds_alike:
            self._move_to_device()
        if self._total is not None and self._product is not None:
            add_product(self._total, self._product, self._models.tensor_of(ref), coefficient)
            return
        if self._host is None:
            self._host = RunningSum(self._length)
        self._host.add(weights_of(ref), coefficient)

    def _move_to_device(self) -> None:
        if self._total is not None:
            return
        device = self._models.device
        if self._host is None:
            self._total = torch.zeros(self._length, dtype=torch.float64, device=device)
        else:
            self._total = to_device(self._host.total, device)
            self._host = None
        self._product = torch.empty_like(self._total)

    def result(self) -> Weights | ResidentWeights:
        """Return the sum so far, float32 [d]."""
        if self._total is not None:
            (result,) = self._models.keep([self._total.float()])
            return result
        if self._host is None:
            return np.zeros(self._length, dtype=np.float32)
        return self._host.result()


class ResidentScratch(Scratch):
    """Storage of computed models on a torch device, and beyond its memory on the host and disk.

    If the models that were computed on the torch device take up more than half of its memory for
    models, models move to the host, in the order in which they were stored. A model that the torch
    device has used since its last turn is skipped once.

    Args:
        memory_bytes: memory of the host for models.
        models: store of the models on the torch device.
    """

    def __init__(self, memory_bytes: float, models: ResidentModels) -> None:
        super().__init__(memory_bytes)
        self._models = models
        # id(ref) -> weak reference to the model; the next model to leave the device is the first
        self._resident: OrderedDict[int, weakref.ref[Ref]] = OrderedDict()

    def hold(self, ref: Ref, substitute: StoredTensor | None = None) -> None:
        if not isinstance(ref.held, ResidentWeights):
            super().hold(ref, substitute)
            return
        key = id(ref)
        self._resident.setdefault(key, weakref.ref(ref, partial(self._drop_reference, key)))
        while self._resident and self._models.is_crowded:
            self._free_resident()

    def _drop_reference(self, key: int, _: object = None) -> None:
        self._resident.pop(key, None)

    def _free_resident(self) -> None:
        """Move the first model in the queue to the host, or to the end of the queue.

        It goes to the end of the queue if the torch device has used it since it was put there.
        """
        key, reference = next(iter(self._resident.items()))
        ref = reference()
        if ref is None or not isinstance(ref.held, ResidentWeights):
            self._drop_reference(key)
        elif ref.held.was_used:
            ref.held.was_used = False
            self._resident.move_to_end(key)
        else:
            self._bring_back([ref], copies_stay=False)

    def bring_back(self, refs: Sequence[Ref]) -> None:
        """Move models from the torch device, if they lie there, to the memory of the host.

        Args:
            refs: computed models.
        """
        self._bring_back(refs, copies_stay=True)

    def _bring_back(self, refs: Sequence[Ref], *, copies_stay: bool) -> None:
        self._models.bring_back(refs, copies_stay=copies_stay)
        for ref in refs:
            if not isinstance(ref.held, ResidentWeights):
                continue
            self._drop_reference(id(ref))
            ref.held = ref.held.read()
            if not isinstance(ref, ModelNode):
                super().hold(ref)
            elif ref.original is not None:  # ``Stream`` stores it after the last use of the node
                ref.original.held = ref.held
