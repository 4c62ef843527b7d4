"""MOON's contrastive term (``fedsim.training.Contrast``): how alike representations are to those of two other models."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.training import Contrast


class Contrasted:
    """The term in one local training.

    Args:
        contrast: weight and temperature.
        alike, other: representations of all samples by the start and by the previous model, [n, features].
        seen: gets the representation of each batch by the model that is trained (``watched``).
    """

    def __init__(self, contrast: Contrast, alike: Tensor, other: Tensor, seen: list[Tensor]) -> None:
        self._contrast, self._models, self._seen = contrast, (alike, other), seen

    def loss(self, batch: Tensor) -> Tensor:
        """The weighted mean of the term over the samples of a batch, of which the representations have just been seen."""
        own = self._seen[-1].flatten(1)
        self._seen.clear()
        alike, other = (functional.cosine_similarity(own, each[batch]) for each in self._models)
        return self._contrast.weight * functional.softplus((other - alike) / self._contrast.temperature).mean()


def representations(module: nn.Module, apply: Callable[[], object]) -> Tensor:
    """The input of a module's last dense layer, [n, features], while ``apply`` asks it about samples."""
    with torch.no_grad(), watched(module) as seen:
        apply()
    return torch.cat(seen).flatten(1)


@contextmanager
def watched(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the input of a module's last dense layer, of each forward pass from now on."""
    seen: list[Tensor] = []
    last = [part for part in module.modules() if isinstance(part, nn.Linear)][-1]
    handle = last.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        yield seen
    finally:
        handle.remove()
