"""Small modules as users bring them, each an instance of a class of trouble; they map [n, 6] to
[n, 3].

``RUNS`` are the same again on any number of threads; those of ``zoo_refused`` are refused.
"""

import functools
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

F_, C_ = 6, 3
CACHE: dict[int, Tensor] = {}


class Base(nn.Module):
    """Two dense layers, with a hidden one of 8 that subclasses change."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(F_, 8), nn.Linear(8, C_)
        self.begin()

    def begin(self) -> None:
        """Add parts."""

    def hidden(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Any:
        return self.b(self.hidden(torch.tanh(self.a(x))))


def made(hidden: Any = None, begin: Any = None, *, train: bool = True) -> Any:
    """A subclass whose hidden layer is changed by ``hidden(module, h)``, with ``train`` in
    training alone.
    """

    class Made(Base):
        def begin(self) -> None:
            if begin is not None:
                begin(self)

        def hidden(self, h: Tensor) -> Tensor:
            return h if hidden is None or (train and not self.training) else hidden(self, h)

    return Made


def _attention(self: Any, h: Tensor) -> Tensor:
    q = h.view(len(h), 1, 4, 2)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3 if self.training else 0.0).reshape(
        len(h), 8
    )


def _buffer(name: str, value: Tensor, **options: Any) -> Any:
    return lambda self: self.register_buffer(name, value.clone(), **options)


def _ema(self: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
    return h - self.mean


def _ema_replaced(self: Any, h: Tensor) -> Tensor:
    self.mean = 0.9 * self.mean + 0.1 * h.mean(0).detach()
    return h - self.mean


def _ema_data(self: Any, h: Tensor) -> Tensor:
    self.mean.data = self.mean.data * 0.9 + 0.1 * h.detach().mean(0)
    return h - self.mean


def _codebook(self: Any, h: Tensor) -> Tensor:
    nearest = torch.cdist(h, self.codes).argmin(1)
    with torch.no_grad():
        for code in range(4):
            if (nearest == code).any():
                self.codes[code] = 0.8 * self.codes[code] + 0.2 * h[nearest == code].mean(0)
    return h + (self.codes[nearest] - h).detach()


def _lazy_places(self: Any, h: Tensor) -> Tensor:
    if getattr(self, "places", None) is None:
        self.places = torch.linspace(0, 1, 8)
    return h + self.places


def _masks_by_size(self: Any, h: Tensor) -> Tensor:
    if len(h) not in self.masks:
        self.masks[len(h)] = torch.arange(len(h))[:, None] / len(h)
    return h + self.masks[len(h)]


def _global_cache(self: Any, h: Tensor) -> Tensor:
    if len(h) not in CACHE:
        CACHE[len(h)] = torch.ones(len(h), 1)
    return h * CACHE[len(h)]


def _keep_last(self: Any, h: Tensor) -> Tensor:
    self.last = h
    return h


def _features(self: Any, h: Tensor) -> Tensor:
    self.features.clear()
    self.features.append(h)
    return h


class LSTM(nn.Module):
    """Two layers with dropout between, over the features."""

    def __init__(self, kind: Any = nn.LSTM) -> None:
        super().__init__()
        self.rnn, self.b = kind(1, 5, 2, dropout=0.4, batch_first=True), nn.Linear(5, C_)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.rnn(x[:, :, None])[0][:, -1])


class Attention(nn.Module):
    """Attention with dropout, in a layer of a transformer too."""

    def __init__(self, layer: bool = False) -> None:
        super().__init__()
        self.up, self.b, self.is_layer = nn.Linear(1, 4), nn.Linear(4, C_), layer
        self.part = (
            nn.TransformerEncoderLayer(4, 2, 8, 0.2, batch_first=True)
            if layer
            else nn.MultiheadAttention(4, 2, 0.2, batch_first=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x[:, :, None])
        return self.b((self.part(h) if self.is_layer else self.part(h, h, h)[0]).mean(1))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(F_, C_, dtype=torch.cfloat) * 0.3)
        self.register_buffer("phase", torch.ones(C_, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.phase.mul_(torch.exp(torch.tensor(0.01j)))
        return (x.to(torch.cfloat) @ self.w * self.phase).real


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(F_, F_), nn.Linear(F_, F_)
        self.b.weight = self.a.weight
        scale = torch.ones(F_)
        self.a.register_buffer("scale", scale)
        self.b.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.a.scale.mul_(0.99)
        return self.b(torch.tanh(self.a(x)) * self.b.scale)[:, :C_]


class Checkpointed(Base):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(
            lambda x: self.b(self.drop(torch.tanh(self.a(x)))), x, use_reentrant=False
        )

    def begin(self) -> None:
        self.drop = nn.Dropout(0.3)


class CheckpointedDraws(Base):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(
            lambda x: self.b(F.dropout(torch.tanh(self.a(x)), 0.5, self.training)),
            x,
            use_reentrant=False,
        )


class Outputs(Base):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Any:
        z = super().forward(x)
        return {
            "dict": lambda: {"logits": z},
            "tuple": lambda: (z, z),
            "none": lambda: None,
            "mean": lambda: z.mean(0),
            "nan": lambda: z * float("nan"),
            "complex": lambda: z.to(torch.cfloat),
            "array": lambda: z.detach().numpy(),
        }[self.how]()


class LossByParameter(Base):
    """A temperature that only the loss uses."""

    def begin(self) -> None:
        self.log_t = nn.Parameter(torch.zeros(()))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs * self.log_t.exp(), y, reduction="none")


class LossByBuffer(Base):
    """A centre that the loss moves, in training alone."""

    def begin(self) -> None:
        self.register_buffer("centre", torch.zeros(C_))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.centre.lerp_(outputs.mean(0), 0.1)
        return F.cross_entropy(outputs - self.centre, y, reduction="none")


class LossByCentres(LossByBuffer):
    """A centre for each class; in tests they are moved, too, with ``always``."""

    def __init__(self, always: bool = False) -> None:
        super().__init__()
        self.always = always

    def begin(self) -> None:
        self.register_buffer("centres", torch.zeros(C_, C_))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.training or self.always:
            with torch.no_grad():
                self.centres[y] = self.centres[y] * 0.9 + 0.1 * outputs
        return F.cross_entropy(outputs, y, reduction="none") + 0.1 * (
            outputs - self.centres[y]
        ).square().sum(1)


class LossByDraws(Base):
    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs + torch.randn_like(outputs), y, reduction="none")


class Standardised(Base):
    """Standardises its samples, and divides the outputs of its loss; perhaps in place."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        return super().forward(x.sub_(mean).div_(2) if self.in_place else (x - mean) / 2)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.in_place:
            outputs = outputs.neg_()
            y = y.neg_().add_(C_ - 1)
        else:
            outputs = -outputs
            y = C_ - 1 - y
        return F.cross_entropy(outputs, y, reduction="none")


class CountingNorm(nn.BatchNorm1d):
    """A batch norm that counts batches as torch's does, and uses the count for nothing."""

    def forward(self, h: Tensor) -> Tensor:
        assert self.num_batches_tracked is not None
        if self.training:
            self.num_batches_tracked.add_(1)
        return F.batch_norm(
            h, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1
        )


class Loss(Base):
    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y)


def _single(self: Any, h: Tensor) -> Tensor:
    return self.norm(h)


def _dropouts() -> dict[str, Any]:
    image = lambda h: h.view(len(h), 2, 2, 2)  # noqa: E731
    drawn = {
        "dropout": lambda h: F.dropout(h, 0.5),
        "dropout1d": lambda h: F.dropout1d(h.view(len(h), 2, 4)),
        "dropout2d": lambda h: F.dropout2d(image(h)),
        "dropout3d": lambda h: F.dropout3d(image(h)[..., None]),
        "alpha": lambda h: F.alpha_dropout(h, 0.3, True),
        "feature_alpha": lambda h: F.feature_alpha_dropout(h.view(len(h), 2, 4), 0.3, True),
        "rrelu": lambda h: F.rrelu(h, training=True),
        "gumbel": lambda h: F.gumbel_softmax(h),
        "rand": lambda h: h * torch.rand(len(h), 1),
        "rand_like": lambda h: h + 0.1 * torch.rand_like(h),
        "randn": lambda h: h + 0.1 * torch.randn(h.shape),
        "randint": lambda h: h * torch.randint(1, 3, (len(h), 1)),
        "randperm": lambda h: h[:, torch.randperm(8)],
        "bernoulli": lambda h: h * torch.bernoulli(torch.full_like(h, 0.5)),
        "normal": lambda h: torch.normal(h, 0.1),
        "multinomial": lambda h: h[:, torch.multinomial(torch.ones(8), 8)],
        "poisson": lambda h: h * torch.poisson(torch.ones_like(h)),
        "bernoulli_": lambda h: h * torch.empty_like(h).bernoulli_(0.5),
        "uniform_": lambda h: h * torch.empty_like(h).uniform_(),
        "normal_": lambda h: h + torch.empty_like(h).normal_(),
        "exponential_": lambda h: h * torch.empty_like(h).exponential_(),
        "gamma": lambda h: h * torch.distributions.Gamma(torch.ones(8), 1.0).sample(),
        "depth": lambda h: h if float(torch.rand(())) < 0.5 else 2 * h,
        "inference": lambda h: h + _drawn_in_inference(h),
    }
    return {
        f"F.{name}": made(lambda self, h, draw=draw: draw(h).reshape(len(h), 8))
        for name, draw in drawn.items()
    }


def _drawn_in_inference(h: Tensor) -> Tensor:
    with torch.inference_mode():
        found = F.dropout(torch.ones_like(h))
    return found.clone()


def _norm(norm: Any) -> Any:
    return made(_single, lambda self: setattr(self, "norm", norm()), train=False)


def _old_weight_norm() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        return nn.utils.weight_norm(nn.Linear(8, 8))


def _compiled(make: Any) -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        found: nn.Module = make()
    return found


def _double() -> nn.Module:
    return made()().double()


@functools.lru_cache
def cached_table(n: int) -> Tensor:
    return torch.linspace(0, 1, n)[:, None]


def _set(name: str, value: Any) -> Any:
    return lambda self: setattr(self, name, value())


RUNS: dict[str, Any] = {
    **_dropouts(),
    "attention": made(_attention, train=False),
    "mc-dropout in tests": made(lambda self, h: F.dropout(h, 0.2), train=False),
    "nn.AlphaDropout": _norm(nn.AlphaDropout),
    "nn.RReLU": _norm(nn.RReLU),
    "nn.Dropout": _norm(nn.Dropout),
    "lstm": LSTM,
    "gru": lambda: LSTM(nn.GRU),
    "mha": Attention,
    "encoder": lambda: Attention(True),
    "ema": made(_ema, _buffer("mean", torch.zeros(8))),
    "ema replaced": made(_ema_replaced, _buffer("mean", torch.zeros(8))),
    "ema by data": made(_ema_data, _buffer("mean", torch.zeros(8))),
    "codebook": made(_codebook, _buffer("codes", torch.eye(4, 8))),
    "batch norm": _norm(lambda: nn.BatchNorm1d(8)),
    "batch norm, no statistics": _norm(lambda: nn.BatchNorm1d(8, track_running_stats=False)),
    "group norm": _norm(lambda: nn.GroupNorm(2, 8)),
    "spectral norm": _norm(lambda: parametrizations.spectral_norm(nn.Linear(8, 8))),
    "weight norm": _norm(lambda: parametrizations.weight_norm(nn.Linear(8, 8))),
    "old spectral norm": _norm(lambda: nn.utils.spectral_norm(nn.Linear(8, 8))),
    "old weight norm": _norm(_old_weight_norm),
    "complex": Complex,
    "double": _double,
    "half": lambda: made()().half(),
    "bfloat16": lambda: made()().bfloat16(),
    "tied": Tied,
    "lazy": made(_lazy_places, train=False),
    "masks": made(_masks_by_size, _set("masks", dict)),
    "global cache": made(_global_cache),
    "last": made(_keep_last),
    "features": made(_features, _set("features", list)),
    "unused": made(None, lambda self: setattr(self, "extra", nn.Linear(2, 2))),
    "checkpoint": Checkpointed,
    "mask of -inf": made(
        lambda self, h: h + self.mask.clamp(min=-1),
        _buffer("mask", torch.full((8,), -np.inf)),
        train=False,
    ),
    "constant": made(
        lambda self, h: h * self.c, _buffer("c", torch.arange(8.0), persistent=False), train=False
    ),
    "integers": made(lambda self, h: h * self.c, _buffer("c", torch.arange(8)), train=False),
    "loss by a parameter": LossByParameter,
    "loss by a buffer": LossByBuffer,
    "loss by centres": LossByCentres,
    "loss by draws": LossByDraws,
    "in place": lambda: Standardised(in_place=True),
    "not in place": lambda: Standardised(in_place=False),
    "counting norm": _norm(lambda: CountingNorm(8)),
    "cached table": made(lambda self, h: h + cached_table(len(h)), train=False),
    "frozen integers": made(
        None, lambda self: setattr(self, "n", nn.Parameter(torch.arange(3), requires_grad=False))
    ),
}
"""Name -> a class or function that makes the module."""


def build(name: str) -> nn.Module:
    """The module of a name."""
    from tests.learning.zoo_refused import REFUSED  # which needs this module

    maker = RUNS[name] if name in RUNS else REFUSED[name][0]
    found: nn.Module = maker()
    return found


class Scaled(nn.Module):
    """A user's own normalisation, by a running scale."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.scale.mul_(0.9).add_(0.1 * (x.abs().mean(0) + 0.1))
        return x / self.scale


class Normed(nn.Module):
    """Digits, normalised by ``Scaled``, with a dropout as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = Scaled(), nn.Linear(64, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.dropout(torch.relu(self.a(self.norm(x.flatten(1)))), 0.2, self.training))
