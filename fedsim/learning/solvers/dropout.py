"""Dropout whose masks are a function of device, task, step, layer and element.

Unlike the masks of torch's dropout, these masks do not depend on the order of the work.
"""

from itertools import count

import torch
from torch import Tensor, nn

_PER_CHANNEL = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
REPLACEABLE = (nn.Dropout, *_PER_CHANNEL)

_KEY_INCREMENT = 0xD1342543DE82EF95  # added to the key in each step
# constants of splitmix64, as signed 64-bit integers
_COUNTER_INCREMENT = -7046029254386353131
_MIX1 = -4658895280553007687
_MIX2 = -7723592293110705685


def _signed(word: int) -> int:
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


def step_key(key: int, step: int) -> int:
    """Return the random key of the dropout masks in an SGD step, as a signed 64-bit integer.

    Args:
        key: the key of the local training.
        step: index of the step.
    """
    return _signed(key + (step + 1) * _KEY_INCREMENT)


def advanced_key(key: int, steps: int) -> int:
    """Return the random key for a training that continues where an earlier one has stopped.

    Args:
        key: the key of the earlier local training.
        steps: count of steps of the earlier training. Step i of the later training gets the masks
            of step ``steps`` + i, as if there were a single training.
    """
    return (key + steps * _KEY_INCREMENT) % (1 << 64)


class KeyedDropout(nn.Module):
    """Dropout layer whose random mask is a function of its key and each element's index.

    The masks are thus the same in every solver. The caller must set the buffer ``key`` before each
    step.

    Args:
        rate: probability of a zero.
        position: index of the layer among its module's dropout layers, so that two layers have
            different masks.
        per_channel: whether whole channels become zero, instead of elements.
    """

    key: Tensor

    def __init__(self, rate: float, position: int, *, per_channel: bool = False) -> None:
        super().__init__()
        self.rate = rate
        self.salt = _signed(position * _MIX2)
        self.per_channel = per_channel
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    @property
    def p(self) -> float:
        """Probability of a zero, under the name that ``nn.Dropout`` gives it."""
        return self.rate

    def forward(self, x: Tensor) -> Tensor:
        """Set random elements of ``x`` to zero, and scale the rest up; in tests return ``x``."""
        if not self.training or self.rate == 0.0:
            return x
        shape = x.shape
        if self.per_channel:  # one number for each sample and channel
            shape = torch.Size([*x.shape[:2], *[1] * (x.ndim - 2)])
        # a random word for each element: a hash of its index, the key, and the layer's salt
        counter = torch.arange(1, shape.numel() + 1, device=x.device).view(shape)
        word = counter * _COUNTER_INCREMENT + (self.key + self.salt)
        word = _mix(_mix(word) + self.key)
        uniform = (word >> 40) & 0xFFFFFF  # the upper 24 bits, uniform in 0 to 2^24 - 1
        is_kept = uniform >= round(self.rate * (1 << 24))  # with the probability 1 - rate
        scale = 0.0 if self.rate >= 1.0 else 1.0 / (1.0 - self.rate)  # keeps the expectation
        return x * (is_kept.to(x.dtype) * scale)


def _mix(word: Tensor) -> Tensor:
    """Hash the elements of an int64 tensor, by the finaliser of the random generator splitmix64.

    Bit masks turn torch's arithmetic shifts into logical shifts.
    """
    word = (word ^ ((word >> 30) & ((1 << 34) - 1))) * _MIX1
    word = (word ^ ((word >> 27) & ((1 << 37) - 1))) * _MIX2
    return word ^ ((word >> 31) & ((1 << 33) - 1))


def with_keyed_dropout(module: nn.Module) -> nn.Module:
    """Replace each dropout layer of a module by ``KeyedDropout``, in place.

    Returns:
        The module, or the new layer if the module itself is a dropout layer.
    """
    positions = count()
    root = nn.ModuleList([module])
    for parent in list(root.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, REPLACEABLE):
                per_channel = isinstance(child, _PER_CHANNEL)
                dropout = KeyedDropout(float(child.p), next(positions), per_channel=per_channel)
                setattr(parent, name, dropout)
    return root[0]
