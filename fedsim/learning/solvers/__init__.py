"""Local SGD. ``reference`` says in plain torch what a solver does; the others do the same faster, behind ``pick``."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fedsim.learning.architecture import Architecture
    from fedsim.learning.solvers.base import Solver

Choice = Literal["fast", "reference"]


def pick(model: "Architecture | nn.Module", device: "torch.device", choice: Choice) -> "Solver":
    """The solver of a model on a device: the fastest that there is for it, or the plain reference."""
    from torch import nn

    from fedsim.learning.solvers.reference import Reference, batch_norms, module_of

    if isinstance(model, nn.Module) or choice == "reference" or device.type != "cpu":
        module = model if isinstance(model, nn.Module) else module_of(model)
        if choice == "reference" or device.type == "cpu" or batch_norms(module):  # what pads stacked batches is no sample
            return Reference(module, device)
        from fedsim.learning.solvers.stacked import Stacked

        return Stacked(module, device)
    from fedsim.learning.solvers.chain import Chain  # with numba, which nothing above needs
    from fedsim.learning.solvers.dense import Dense

    return Dense(model) if model.is_dense else Chain(model)
