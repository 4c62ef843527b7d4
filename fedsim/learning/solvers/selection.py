"""The choice of a solver and of a torch device for a scenario's model and training."""

from collections.abc import Callable

import torch
from torch import nn

from fedsim.common.errors import ScenarioError
from fedsim.learning.architecture import Architecture
from fedsim.learning.solvers.base import Solver
from fedsim.learning.solvers.by_trainer import ByTrainer
from fedsim.learning.solvers.reference import Reference, module_of
from fedsim.learning.spec import Trainer, TrainingSpec


def pick(
    model: Architecture | nn.Module,
    device: torch.device,
    choice: str,
    trainer: Trainer | None = None,
    losses: Callable[..., torch.Tensor] | None = None,
) -> Solver:
    """Pick the fastest solver for a model.

    Args:
        model: layers as data, or a module.
        device: the device on which the solver computes.
        choice: ``training.solver``; ``fast`` allows closed forms.
        trainer: the trainer; None for fedsim's SGD.
        losses: a function that computes the loss of each sample, [n]; None for cross-entropy.

    Returns:
        A solver that calls the trainer if it is not fedsim's SGD. Otherwise closed forms for dense
        layers with cross-entropy on a CPU, and else autograd.
    """
    if trainer is not None and not isinstance(trainer, TrainingSpec):
        return ByTrainer(_as_module(model), device, trainer, losses=losses)
    allows_closed_form = losses is None and choice == "fast" and device.type == "cpu"
    if allows_closed_form and isinstance(model, Architecture) and model.is_dense:
        from fedsim.learning.solvers.dense import Dense  # with numba, which nothing else needs

        return Dense(model)
    return Reference(_as_module(model), device, losses=losses)


def _as_module(model: Architecture | nn.Module) -> nn.Module:
    return module_of(model) if isinstance(model, Architecture) else model


def torch_device(name: str) -> torch.device:
    """The torch device of a name; ``ScenarioError`` if this machine lacks the device."""
    if name.startswith("cuda"):
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = torch.device(name).index
        if not count or (index is not None and index >= count):
            devices = ", ".join(["cpu", *(f"cuda:{number}" for number in range(count))])
            raise ScenarioError(
                f"training.device is {name!r}, but this machine has no such device; it has "
                f"{devices}"
            )
    return torch.device(name)
