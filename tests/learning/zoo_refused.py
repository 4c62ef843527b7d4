"""Modules of the zoo that are refused, by words that their message has."""

import collections
import functools
import itertools
import os
import random
import secrets
import time
import uuid
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.learning import zoo_state
from tests.learning.zoo import (
    C_,
    F_,
    Base,
    CheckpointedDraws,
    Loss,
    LossByCentres,
    Outputs,
    _buffer,
    _compiled,
    _ema,
    _norm,
    _set,
    made,
)

STEPS = 0
NESTED = 0
PROPERTY = [0]


def _bump(self: Any, h: Tensor) -> Tensor:
    self.steps += 1
    return h


def _bump_class(self: Any, h: Tensor) -> Tensor:
    type(self).steps += 1
    return h


def _bump_global(self: Any, h: Tensor) -> Tensor:
    global STEPS
    STEPS += 1
    return h * (1 + 0.001 * STEPS)


def _bump_helper(self: Any, h: Tensor) -> Tensor:
    zoo_state.STEPS += 1
    return h


def _bump_attribute(self: Any, h: Tensor) -> Tensor:
    _bump_attribute.calls += 1  # type: ignore[attr-defined]
    return h


_bump_attribute.calls = 0  # type: ignore[attr-defined]


def _bump_nested(self: Any, h: Tensor) -> Tensor:
    def inner(h: Tensor) -> Tensor:
        global NESTED
        NESTED += 1
        return h

    return inner(h)


class ByProperty(Base):
    @property
    def scale(self) -> float:
        PROPERTY[0] += 1
        return 1.0

    def hidden(self, h: Tensor) -> Tensor:
        return h * self.scale if self.training else h


class Straight(torch.autograd.Function):
    n = 0

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Straight.n += 1
        return gradient


class Settings:
    step = 0


def _bump_environment(self: Any, h: Tensor) -> Tensor:
    os.environ["ZOO_STEPS"] = str(int(os.environ.get("ZOO_STEPS", "0")) + 1)
    return h


def _bump_torch(self: Any, h: Tensor) -> Tensor:
    torch.zoo_steps = getattr(torch, "zoo_steps", 0) + 1  # type: ignore[attr-defined]
    return h


class Renorm(nn.BatchNorm1d):
    """Batch renormalisation (Ioffe, 2017), whose bounds grow after 60 batches."""

    start = 60

    def forward(self, h: Tensor) -> Tensor:
        if not self.training:
            return super().forward(h)
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        self.num_batches_tracked += 1
        bound = max(0, int(self.num_batches_tracked) - self.start) / 10
        shift = (h.detach().mean(0) - self.running_mean).clamp(-bound, bound)
        with torch.no_grad():
            self.running_mean.lerp_(h.mean(0), 0.1)
        return h - h.mean(0) + shift


class EarlyRenorm(Renorm):
    start = 0


def _bump_settings(self: Any, h: Tensor) -> Tensor:
    Settings.step += 1
    return h


class Dict(dict[str, int]):
    n = 0


class Mapped(collections.abc.Mapping[str, int]):
    n = 0

    def __getitem__(self, key: str) -> int:
        return {"x": 1}[key]

    def __iter__(self) -> Any:
        return iter(["x"])

    def __len__(self) -> int:
        return 1


def _bump_mapping(self: Any, h: Tensor) -> Tensor:
    self.c.n += 1
    return h


def _bump_middle(self: Any, h: Tensor) -> Tensor:
    self.use[150] += 1
    return h


@functools.lru_cache
def cached_noise(n: int) -> Tensor:
    return 1 + 0.3 * torch.randn(n, 1)


def _set_dtype() -> None:
    torch.set_default_dtype(torch.float64)


def _state(self: Any, h: Tensor) -> Tensor:
    out = h if self.state is None else h + 0.1 * self.state
    self.state = h.mean(0).detach()
    return out


def _history(self: Any, h: Tensor) -> Tensor:
    self.history.append(float(h.detach().mean()))
    return h


def _hook(self: Any) -> None:
    seen: list[float] = []
    self.a.register_forward_hook(lambda part, args, out: seen.append(1.0))


def _bump_counter(self: Any, h: Tensor) -> Tensor:
    return h * (1 + 0.001 * next(self.counter))


def _bump_buffer(self: Any, h: Tensor) -> Tensor:
    self.n += 1
    return h


def _flag(self: Any, h: Tensor) -> Tensor:
    out = h * 2 if self.flag else h
    self.flag = True
    return out


REFUSED: dict[str, tuple[Any, str]] = {
    "random": (made(lambda self, h: h * random.random()), "Python's random"),
    "numpy": (made(lambda self, h: h * np.random.rand()), "numpy.random"),  # noqa: NPY002
    "torch.manual_seed": (made(lambda self, h: (torch.manual_seed(0), h)[1]), "generator of torch"),
    "default_rng": (made(lambda self, h: h * np.random.default_rng().random()), "other numbers"),
    "rng coin": (
        made(lambda self, h: h * (np.random.default_rng().random() < 0.5)),
        "other numbers",
    ),
    "urandom": (made(lambda self, h: h * os.urandom(1)[0]), "other numbers"),
    "clock": (made(lambda self, h: h * (time.perf_counter_ns() % 1000)), "other numbers"),
    "random in tests": (
        made(lambda self, h: h if self.training else h * random.random(), train=False),
        "Python's random",
    ),
    "unseeded tests": (
        made(
            lambda self, h: h if self.training else h * np.random.default_rng().random(),
            train=False,
        ),
        "other numbers",
    ),
    # these draw in each step, and their draws have an effect once in a billion steps
    "rare default_rng": (
        made(lambda self, h: h * 2 if np.random.default_rng().random() < 1e-9 else h),
        "a generator that nobody seeds .* zoo_refused.py:",
    ),
    "rare urandom": (
        made(lambda self, h: h * 2 if os.urandom(4) == b"zoo!" else h),
        "a generator that nobody seeds",
    ),
    "rare Random": (
        made(lambda self, h: h * 2 if random.Random().random() < 1e-9 else h),
        "a generator that nobody seeds",
    ),
    "rare secrets": (
        made(lambda self, h: h * 2 if secrets.randbelow(1 << 30) == 1 else h),
        "a generator that nobody seeds",
    ),
    "rare uuid": (
        made(lambda self, h: h * 2 if uuid.uuid4().int % (1 << 30) == 1 else h, train=False),
        "a generator that nobody seeds",
    ),
    "environment": (made(_bump_environment), "os.environ"),
    "module of a package": (made(_bump_torch), "torch.zoo_steps"),
    "renorm": (_norm(lambda: EarlyRenorm(8)), "'norm.num_batches_tracked'"),
    "late renorm": (_norm(lambda: Renorm(8)), "'norm.num_batches_tracked'"),
    "own rng": (
        made(lambda self, h: h * self.rng.random(), _set("rng", lambda: np.random.default_rng(0))),
        "'rng'",
    ),
    "own generator": (
        made(lambda self, h: h * torch.rand(8, generator=self.g), _set("g", torch.Generator)),
        "'g'",
    ),
    "own random": (
        made(lambda self, h: h * self.r.random(), _set("r", lambda: random.Random(0))),
        "'r'",
    ),
    "helper counter": (made(_bump_helper), "zoo_state.STEPS"),
    "function counter": (made(_bump_attribute), r"_bump_attribute|hidden\(\)"),
    "nested counter": (made(_bump_nested), "NESTED"),
    "property counter": (ByProperty, "PROPERTY"),
    "gradient counter": (made(lambda self, h: Straight.apply(h)), "Straight.n"),
    "settings counter": (made(_bump_settings), "Settings.step"),
    "dict's attribute": (made(_bump_mapping, _set("c", Dict)), "'c'"),
    "mapping's attribute": (made(_bump_mapping, _set("c", Mapped)), "'c'"),
    "long list": (made(_bump_middle, _set("use", lambda: [0] * 300)), "'use'"),
    "cached noise": (
        made(lambda self, h: h * cached_noise(len(h))),
        "cached_noise.*the cache of a function",
    ),
    "threads": (made(lambda self, h: (torch.set_num_threads(2), h)[1]), "torch.set_num_threads"),
    "dtype": (made(lambda self, h: (_set_dtype(), h)[1]), "torch.set_default_dtype"),
    "dtype at first": (made(None, lambda self: _set_dtype()), "torch.set_default_dtype"),
    "counter": (made(_bump, _set("steps", int)), "'steps'"),
    "class counter": (
        type("Shared", (made(_bump_class),), {"steps": 0, "__module__": __name__}),
        "steps",
    ),
    "global counter": (made(_bump_global), "STEPS"),
    "state": (made(_state, _set("state", lambda: None)), "'state'"),
    "history": (made(_history, _set("history", list)), "'history'"),
    "deque": (made(_history, _set("history", collections.deque)), "'history'"),
    "hook": (made(None, _hook), "hooks"),
    "iterator": (made(_bump_counter, _set("counter", itertools.count)), "'counter'"),
    "flag": (made(_flag, _set("flag", bool)), "'flag'"),
    "integer buffer": (made(_bump_buffer, _buffer("n", torch.zeros(1, dtype=torch.long))), "'n'"),
    "hidden buffer": (made(_ema, _buffer("mean", torch.zeros(8), persistent=False)), "'mean'"),
    "plain tensor": (made(_ema, _set("mean", lambda: torch.zeros(8))), "'mean'"),
    "partial": (
        made(
            lambda self, h: (self.f(1.0), h)[1],
            lambda self: setattr(self, "f", functools.partial(list.append, [])),
        ),
        "'f'",
    ),
    "ema in tests": (made(_ema, _buffer("mean", torch.zeros(8)), train=False), "'mean'"),
    "history in tests": (
        made(
            lambda self, h: h if self.training else _history(self, h),
            _set("history", list),
            train=False,
        ),
        "'history'",
    ),
    "checkpoint and draws": (CheckpointedDraws, "backward pass"),
    "scalar loss": (Loss, "one loss a sample"),
    "loss moves in tests": (lambda: LossByCentres(True), "'centres' in a test"),
    "script": (
        lambda: _compiled(lambda: torch.jit.script(nn.Linear(F_, C_))),
        "made by torch.jit.script",
    ),
    "script within": (
        _norm(lambda: _compiled(lambda: torch.jit.script(nn.Linear(8, 8)))),
        "'norm' is a .*made by torch.jit.script",
    ),
    "trace": (
        lambda: _compiled(lambda: torch.jit.trace(nn.Linear(F_, C_), torch.zeros(2, F_))),
        "made by torch.jit.script or",
    ),
    **{
        f"outputs {how}": ((lambda how=how: Outputs(how)), says)
        for how, says in {
            "dict": r"outputs\['logits'\]",
            "tuple": r"outputs\[0\]",
            "none": "NoneType",
            "mean": "outputs of shape",
            "nan": "gives NaN",
            "complex": "complex outputs",
            "array": "ndarray",
        }.items()
    },
    "grows": (
        made(
            lambda self, h: (setattr(self, "q", torch.cat([self.q, h.detach().mean(0)[None]])), h)[
                1
            ],
            _buffer("q", torch.zeros(1, 8)),
        ),
        "'q'",
    ),
    "meta": (lambda: made()().to("meta"), "'meta'"),
    "fails": (made(lambda self, h: h @ torch.ones(3)), "mat|size"),
    "random init": (
        made(None, lambda self: self.a.weight.data.mul_(np.random.default_rng().random())),
        "begins with other",
    ),
    "lock": (made(None, _set("lock", __import__("threading").Lock)), "'lock'"),
}
"""Name -> the same, and a pattern of the message."""
