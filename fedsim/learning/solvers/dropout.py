"""Dropout whose masks are a function of (device, task, step, layer, element), not of the order
of the work as torch's.
"""

from itertools import count

import torch
from torch import Tensor, nn

_PER_CHANNEL = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
REPLACEABLE = (nn.Dropout, *_PER_CHANNEL)

_OF_STEP = 0xD1342543DE82EF95
# of splitmix64, as signed words
_STEP = -7046029254386353131
_MIX1 = -4658895280553007687
_MIX2 = -7723592293110705685


def _signed(word: int) -> int:
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


def step_key(key: int, step: int) -> int:
    """The key of one SGD step of a local solve, as a signed 64-bit number."""
    return _signed(key + (step + 1) * _OF_STEP)


def advanced_key(key: int, steps: int) -> int:
    """The key under which a local solve's first step has the masks of step ``steps`` under
    ``key``.
    """
    return (key + steps * _OF_STEP) % (1 << 64)


class KeyedDropout(nn.Module):
    """Dropout by a counter hash of the element's position, or channel's, under a key that is set
    before each step.

    ``place`` numbers the layer within its module, so that two layers have different masks.
    """

    key: Tensor

    def __init__(self, rate: float, place: int, *, per_channel: bool = False) -> None:
        super().__init__()
        self.rate = rate
        self.salt = _signed(place * _MIX2)
        self.per_channel = per_channel
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` with zeros, the rest scaled up; unchanged in evaluation."""
        if not self.training or self.rate == 0.0:
            return x
        shape = (
            torch.Size((*x.shape[:2], *(1 for _ in x.shape[2:]))) if self.per_channel else x.shape
        )
        word = torch.arange(1, shape.numel() + 1, device=x.device).view(shape) * _STEP + (
            self.key + self.salt
        )
        word = _mixed(_mixed(word) + self.key)
        kept = ((word >> 40) & 0xFFFFFF) >= round(self.rate * (1 << 24))
        return x * (kept.to(x.dtype) * (0.0 if self.rate >= 1.0 else 1.0 / (1.0 - self.rate)))


def _mixed(word: Tensor) -> Tensor:
    """The finaliser of splitmix64 on int64 (the masks make torch's arithmetic shift a logical
    one).
    """
    word = (word ^ ((word >> 30) & ((1 << 34) - 1))) * _MIX1
    word = (word ^ ((word >> 27) & ((1 << 37) - 1))) * _MIX2
    return word ^ ((word >> 31) & ((1 << 33) - 1))


def with_keyed_dropout(module: nn.Module) -> nn.Module:
    """Replace every dropout layer within ``module``, in place, by a keyed one; returns the
    module.
    """
    places = count()
    whole = nn.ModuleList([module])
    for parent in list(whole.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, REPLACEABLE):
                setattr(
                    parent,
                    name,
                    KeyedDropout(
                        float(child.p), next(places), per_channel=isinstance(child, _PER_CHANNEL)
                    ),
                )
    return whole[0]
