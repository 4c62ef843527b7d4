"""Choice of the solver and of the torch device for a scenario's model and training."""

from collections.abc import Callable

import torch
from torch import nn

from fedsim.common.errors import ScenarioError
from fedsim.learning.architecture import Architecture
from fedsim.learning.solvers.base import Solver
from fedsim.learning.solvers.by_trainer import ByTrainer
from fedsim.learning.solvers.cohort import Cohort, CohortByTrainer
from fedsim.learning.solvers.reference import Reference, module_of
from fedsim.learning.spec import LANES, Trainer, TrainingSpec


def choose_solver(
    model: Architecture | nn.Module,
    device: torch.device,
    solver_name: str,
    trainer: Trainer | None = None,
    losses: Callable[..., torch.Tensor] | None = None,
    lanes: int = LANES,
) -> Solver:
    """Choose the solver for a model by ``training.solver``, the trainer and the torch device.

    Args:
        model: a description of fedsim's own layers, or a torch module.
        device: the torch device on which the solver computes.
        solver_name: ``training.solver``: ``reference``, plain torch on any device; ``fast``, which
            allows gradients in closed form on a CPU, and stacks of models on a GPU; or ``cohort``,
            stacks on any device. Not used for a trainer other than fedsim's SGD.
        trainer: the scenario's trainer; None for fedsim's SGD.
        losses: a function that computes the loss of each sample, [n]; None for cross-entropy.
        lanes: ``training.lanes``, the count of models in a stack.

    Returns:
        For a trainer other than fedsim's SGD, ``CohortByTrainer`` if the trainer trains several
        devices together, else ``ByTrainer``. For fedsim's SGD: ``Reference`` for ``reference``,
        also on a GPU; ``Cohort`` for ``cohort``, and for ``fast`` on a GPU; for ``fast`` on a CPU
        ``Dense`` if ``model`` is a description of dense layers and the loss is cross-entropy, else
        ``Reference``.

    Raises:
        ScenarioError: the solver or the model does not take ``training.precision``.
    """
    in_bf16 = trainer is not None and trainer.in_bf16
    solver: Reference
    allows_closed_form = losses is None and solver_name == "fast" and device.type == "cpu"
    if trainer is not None and not isinstance(trainer, TrainingSpec):
        if trainer.stack_lanes > 1:
            solver = CohortByTrainer(_as_module(model), device, trainer, losses)
        else:
            solver = ByTrainer(_as_module(model), device, trainer, losses=losses)
    elif solver_name == "cohort" or (solver_name == "fast" and device.type == "cuda"):
        solver = Cohort(_as_module(model), device, losses=losses, lanes=lanes)
    elif allows_closed_form and isinstance(model, Architecture) and model.is_dense:
        if in_bf16:
            raise ScenarioError(
                "training.precision is 'bf16', but models of dense layers are trained in closed "
                "form, in float32, on a CPU; allowed are training.solver = 'reference' and "
                "'cohort', and training.precision = 'float32'"
            )
        from fedsim.learning.solvers.dense import Dense  # here, as it imports numba, which is slow

        return Dense(model)
    else:
        solver = Reference(_as_module(model), device, losses=losses)
    if in_bf16:
        solver.use_bf16()
    return solver


def _as_module(model: Architecture | nn.Module) -> nn.Module:
    return module_of(model) if isinstance(model, Architecture) else model


def torch_device(name: str) -> torch.device:
    """Return the torch device of a name such as ``cuda:0``, after checking that it exists.

    Raises:
        ScenarioError: this machine has no such device.
    """
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


def refuse_different_gpus() -> None:
    """Raise ``ScenarioError`` if the GPUs that this process sees are of several product types.

    The type of a GPU determines the last bits of its results. Workers with different GPUs would
    therefore compute different results.
    """
    models = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if len(set(models)) > 1:
        raise ScenarioError(
            f"training.device is 'cuda', but the GPUs differ, so that results would depend on the "
            f"worker that computes them: {', '.join(models)}; allowed are GPUs of one model, which "
            "CUDA_VISIBLE_DEVICES selects, or one worker"
        )
