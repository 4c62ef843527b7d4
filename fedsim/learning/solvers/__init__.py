"""Local SGD. ``reference`` says in plain torch what a solver does; the others do the same faster, behind ``pick``."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fedsim.learning.architecture import Architecture
    from fedsim.learning.solvers.base import Solver

Choice = Literal["fast", "reference"]


def pick(model: "Architecture | nn.Module", device: "torch.device", choice: Choice) -> "Solver":
    """The solver of a model on a device: closed forms for dense layers on a CPU, otherwise torch."""
    from torch import nn

    from fedsim.learning.solvers.reference import Reference, batch_norms, module_of

    if choice == "fast" and device.type == "cpu" and not isinstance(model, nn.Module) and model.is_dense:
        from fedsim.learning.solvers.dense import Dense  # with numba, which nothing else needs

        return Dense(model)
    module = model if isinstance(model, nn.Module) else module_of(model)
    if choice == "reference" or device.type == "cpu" or batch_norms(module):  # what pads stacked batches is no sample
        return Reference(module, device)
    from fedsim.learning.solvers.stacked import Stacked

    return Stacked(module, device)
