"""The memory that a training is said to need, beside what torch really holds at once."""

import weakref
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedsim.learning.architecture import LoRA, Shape
from fedsim.learning.data.federated import TokenShape
from fedsim.learning.models import CNN5, Perceptron, TorchModel
from fedsim.learning.modules import example
from fedsim.learning.objectives import Classification, Objective
from fedsim.learning.spec import TrainingSpec
from fedsim.toolbox.models.profile import profile
from fedsim.toolbox.models.tokens import CharLSTM, Transformer
from fedsim.toolbox.objectives import NextToken

TOKENS = TokenShape.of((32,), 61, "next")
Case = tuple[TorchModel, Shape, Objective]
CASES: Mapping[str, Case] = {
    "dense": (Perceptron(hidden=[200, 100]), (784,), Classification()),
    "convolutions": (CNN5(), (1, 28, 28), Classification()),
    "recurrent": (CharLSTM(), TOKENS, NextToken()),
    "transformer": (Transformer(hidden=64, layers=3), TOKENS, NextToken()),
    "adapters": (Transformer(hidden=64, layers=3, lora=LoRA(rank=2)), TOKENS, NextToken()),
    "last-block": (
        Transformer(hidden=64, layers=3, train=["blocks.2.*", "norm.*", "head.*"]),
        TOKENS,
        NextToken(),
    ),
}


class Held(TorchDispatchMode):
    """Counts the bytes of all tensors that torch holds at once: ``now``, and at ``most``."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._living = set[int]()

    def count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._living:
            return
        size = storage.nbytes()
        self._living.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._living.discard(key)
        self.now -= size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.count(leaf)
        return result


class Stepping:
    """SGD on a batch with torch alone.

    Args:
        case: the model, the shape of a sample, and the objective.
        momentum: of SGD.
        batch: count of samples.
    """

    def __init__(self, case: Case, momentum: float, batch: int) -> None:
        model, shape, self.objective = case
        classes = shape.vocabulary if isinstance(shape, TokenShape) else 10
        self.module: nn.Module = model.fitted(shape, classes)
        if next(self.module.parameters()).is_meta:
            self.module = self.module.to_empty(device="cpu")
        for parameter in self.module.parameters():
            nn.init.normal_(parameter, std=0.02)
        trained = [tensor for tensor in self.module.parameters() if tensor.requires_grad]
        self.optimiser = torch.optim.SGD(trained, 0.1, momentum, foreach=False)
        self.x = example(batch, shape)
        self.y = self.objective.answers(self.module(self.x).detach())

    def step(self) -> None:
        self.optimiser.zero_grad()
        self.objective.losses(self.module(self.x), self.y).mean().backward()
        self.optimiser.step()

    def held(self) -> int:
        """The most bytes that torch holds in two steps."""
        counter = Held()
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            counter.count(tensor)
        with counter:
            self.step()
            self.step()
        return counter.most

    def saved(self) -> int:
        """Bytes that autograd saves for the backward pass, without the model's own tensors."""
        own = {tensor.untyped_storage()._cdata for tensor in self.module.parameters()}
        storages: dict[int, int] = {}

        def save(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                storages[storage._cdata] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            loss = self.objective.losses(self.module(self.x), self.y).mean()
        loss.backward()
        return sum(storages.values())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", CASES)
def test_the_need_is_what_torch_holds_at_most(name: str, momentum: float) -> None:
    """The need counts gradients and saved tensors as if all lived at once.

    In truth a backward pass frees saved tensors while gradients come, which makes it hold up to a
    third less, and it has temporaries, which make it hold up to a tenth more.
    """
    case = CASES[name]
    stepping = Stepping(case, momentum, 16)
    cost = profile(stepping.module, case[1], TrainingSpec(momentum=momentum), case[2])
    needed = cost.memory + 16 * cost.memory_a_sample
    assert 0.7 * needed < stepping.held() < 1.1 * needed


@pytest.mark.parametrize("name", CASES)
def test_a_further_sample_needs_what_autograd_saves_for_it(name: str) -> None:
    """The fused attention of a CPU saves no scores, which the count includes."""
    case = CASES[name]
    seven = Stepping(case, 0.0, 7)
    cost = profile(seven.module, case[1], TrainingSpec(), case[2])
    saved = Stepping(case, 0.0, 8).saved() - seven.saved()
    if name in ("dense", "convolutions"):
        assert saved == cost.memory_a_sample
    assert 0.8 * cost.memory_a_sample < saved <= cost.memory_a_sample


def test_fewer_trained_blocks_need_less() -> None:
    whole = CASES["transformer"]
    last = CASES["last-block"]
    saved = [Stepping(case, 0.0, 8).saved() for case in (whole, last)]
    assert saved[1] < 0.5 * saved[0]
