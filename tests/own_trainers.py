"""Trainers of a user's own: a good one, and the mistakes that one can make."""

import random
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.plugin import Trainer


class Steady(Trainer):
    """Adam with noise in its gradients, and moments that stay on the device."""

    reports: ClassVar[Mapping[str, bool]] = {"mean_loss": False}
    noise: float = 0.01
    """standard deviation of what is added to each gradient."""
    enough: float = 0.0
    """loss of a batch that is the last one."""
    applies_terms: ClassVar[bool] = True

    def train(
        self, model: nn.Module, data: Any, context: Any
    ) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
        draw = torch.Generator().manual_seed(context.seed)
        mean = context.state.get("mean", torch.zeros(1))
        for x, y in data:
            model.zero_grad()
            loss = context.loss(model(x), y)
            loss.backward()
            mean = 0.9 * mean + 0.1 * loss.detach()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.data -= context.lr * (
                        parameter.grad + self.noise * torch.randn(parameter.shape, generator=draw)
                    )
            if loss < self.enough:
                break
        context.state["mean"] = mean
        return model.state_dict(), {"mean_loss": float(mean), "round": context.round}


class Ignorant(Steady):  # does not say that it applies what a strategy adds
    applies_terms: ClassVar[bool] = False


class Satisfied(Steady):  # takes no further batch when the loss of one is low enough
    stops_early: ClassVar[bool] = True
    enough: float = 2.2


class Wrong(Trainer):  # makes one mistake
    how: str

    def train(self, model: nn.Module, data: Any, context: Any) -> Any:
        state = model.state_dict()
        name = next(iter(state))
        wrong: dict[str, Callable[[], object]] = {
            "nan": lambda: [value.fill_(float("nan")) for value in state.values()],
            "shape": lambda: state.update({name: state[name][:1]}),
            "few": lambda: state.pop(name),
            "entropy": lambda: np.random.default_rng(),
            "random": random.random,
            "numpy": np.random.rand,
            "torch": lambda: torch.rand(1),
            "gpu": lambda: state[name].cuda(7),
            "kept": lambda: context.state.update(mean=3.0),
        }
        while self.how == "forever":
            state[name].sum()
        wrong.get(self.how, lambda: None)()
        return {"none": None, "text": (state, {"norm": "large"})}.get(self.how, (state, {}))
