"""How well the roofline tells how long training takes: ten models, measured here on one thread
of torch, and predicted.

    python -m tests.benchmarks.roofline                    # measure, fit, predict; half a minute on an idle core
    python -m tests.benchmarks.roofline --seconds 5        # longer, where others work on the machine
    python -m tests.benchmarks.roofline --batches          # recurrent models and others in batches of 1 to 256

What a batch costs in any case is measured on a layer of one number. Two numbers are fitted, on four
of the models (those that are marked): the FLOP/s and the bytes/s that this core reaches. The other
six are predicted. The four were chosen by what is counted of them, so that bytes for each FLOP
differ as much as they can. Times are those of the thread's processor, the least of many steps in
three passes. The allocator keeps what it has: whether pages are given back and zeroed anew depends
on what ran before, and makes a step longer by up to a quarter. Exit status 1 if the mean error of
the ten, or of the six, is above 25 %.

``--batches`` predicts nine models by the rates fitted in batches of 32; what recurrent layers
cost was fitted to the first four.
"""

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from scipy.optimize import least_squares
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedsim.common.model_cost import ModelCost
from fedsim.toolbox.models.profile import profile
from fedsim.world.rooflines import operations_s
from tests.benchmarks.script import parser

BATCH, CLASSES = 32, 10
MOST_ERROR = 0.25


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.GroupNorm(8, outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1), nn.GroupNorm(8, outputs)),
        )
        self.around = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(x) + self.around(x))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def dense(*widths: int) -> nn.Module:
    layers = [
        part for before, after in pairwise(widths) for part in (nn.Linear(before, after), nn.ReLU())
    ]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def convolutional(
    channels: int, side: int, first: int, second: int, kernel: int, hidden: int
) -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(
        *block(channels, first),
        *block(first, second),
        dense(second * (side // 4) ** 2, hidden, CLASSES),
    )


def residual(width: int, each: int) -> nn.Module:
    widths = [width] + [width * 2**group for group in range(3) for _ in range(each)]
    blocks = [
        Residual(inputs, outputs, 1 if inputs == outputs else 2)
        for inputs, outputs in pairwise(widths)
    ]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES))
    return nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), nn.ReLU(), *blocks, *head)


def separable() -> nn.Module:
    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        depth = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs)
        return [
            depth,
            nn.GroupNorm(4, inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, outputs, 1),
            nn.GroupNorm(4, outputs),
            nn.ReLU(),
        ]

    widths = (16, 32, 64, 64, 128, 128)
    blocks = [
        part
        for i, o, s in zip(widths, widths[1:], (1, 2, 1, 2, 1), strict=False)
        for part in block(i, o, s)
    ]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), *blocks, *head)


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(16, 128), encoder, Mean(), nn.Linear(128, CLASSES))


class Recurrent(nn.Module):
    def __init__(
        self, kind: Callable[..., nn.RNNBase], inputs: int, hidden: int, layers: int = 1
    ) -> None:
        super().__init__()
        self.inner, self.outer = (
            kind(inputs, hidden, layers, batch_first=True),
            nn.Linear(hidden, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x)[0][:, -1])  # type: ignore[no-any-return]


Model = tuple[Callable[[], nn.Module], tuple[int, ...]]
MODELS: dict[str, Model] = {
    "logistic": (lambda: dense(784, CLASSES), (784,)),
    "mlp-128": (lambda: dense(784, 128, CLASSES), (784,)),
    "mlp-1024": (lambda: dense(784, 1024, 1024, CLASSES), (784,)),
    "cnn-16-32": (lambda: convolutional(1, 28, 16, 32, 5, 128), (1, 28, 28)),
    "cnn-32-64": (lambda: convolutional(1, 28, 32, 64, 5, 512), (1, 28, 28)),
    "cnn-64-128": (lambda: convolutional(3, 32, 64, 128, 3, 256), (3, 32, 32)),
    "resnet-8": (lambda: residual(16, 1), (3, 32, 32)),
    "resnet-14": (lambda: residual(32, 2), (3, 32, 32)),
    "mobilenet": (separable, (3, 32, 32)),
    "transformer": (transformer, (32, 16)),
}
FITTED = ("mlp-1024", "cnn-64-128", "resnet-14", "mobilenet")
PASSES = 3
BATCHED: dict[str, Model] = {
    "lstm-128": (lambda: Recurrent(nn.LSTM, 8, 128), (80, 8)),
    "lstm-256-256": (lambda: Recurrent(nn.LSTM, 8, 256, 2), (80, 8)),
    "lstm-64": (lambda: Recurrent(nn.LSTM, 28, 64), (28, 28)),
    "gru-128": (lambda: Recurrent(nn.GRU, 16, 128), (40, 16)),
    "lstm-100-100": (lambda: Recurrent(nn.LSTM, 8, 100, 2), (60, 8)),
    "lstm-192": (lambda: Recurrent(nn.LSTM, 32, 192), (40, 32)),
    "gru-64": (lambda: Recurrent(nn.GRU, 28, 64), (28, 28)),
    "rnn-128": (lambda: Recurrent(nn.RNN, 16, 128), (50, 16)),
    "transformer": MODELS["transformer"],
}
BATCHES = (1, 4, 32, 128, 256)


def measured_s(
    module: nn.Module, shape: Sequence[int], seconds: float, batch: int = BATCH
) -> float:
    """The least processor time of an SGD step on a batch (s), over so many seconds of steps."""
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-3, foreach=False)
    x, y = torch.randn(batch, *shape), torch.randint(CLASSES, (batch,))
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end or len(times) < 5:
        begun = time.thread_time()
        optimiser.zero_grad()
        cross_entropy(module(x), y).backward()
        optimiser.step()
        times.append(time.thread_time() - begun)
    return min(times)


def batch_s(
    cost: ModelCost, flops: float, bandwidth: float, fixed: float, batch: int = BATCH
) -> float:
    return fixed + sum(
        operations_s(part, batch, flops, bandwidth)
        for part in (cost.forward, cost.backward, cost.update)
    )


def fit(
    costs: Mapping[str, ModelCost], times: Mapping[str, float], fixed: float
) -> tuple[float, float]:
    """The FLOP/s and bytes/s with which the roofline is nearest to the times (s), by their
    logarithms.
    """

    def off(logarithms: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[float]:
        flops, bandwidth = np.exp(logarithms).tolist()
        return [
            float(np.log(batch_s(costs[name], flops, bandwidth, fixed) / times[name]))
            for name in times
        ]

    flops, bandwidth = np.exp(least_squares(off, np.log([5e10, 1e10])).x).tolist()
    return flops, bandwidth


def main() -> int:
    options = parser(__doc__, seconds=2.0, batches=False).parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    for threshold in (-1, -3):  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, where there is glibc
        getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)(threshold, 1 << 30)
    costs = {name: profile(make(), shape) for name, (make, shape) in MODELS.items()}
    rows, each_s = (
        [*MODELS.items(), ("", (lambda: nn.Linear(1, CLASSES), (1,)))] * PASSES,
        options.seconds / PASSES,
    )
    times: dict[str, float] = {}
    for name, (make, shape) in rows:
        times[name] = min(times.get(name, np.inf), measured_s(make(), shape, each_s))
    fixed = times.pop("")
    flops, bandwidth = fit(costs, {name: times[name] for name in FITTED}, fixed)
    print(
        f"a batch costs {fixed * 1e6:.0f} us in any case; fitted: {flops / 1e9:.1f} GFLOP/s, "
        f"{bandwidth / 1e9:.1f} GB/s"
    )
    for name, (make, shape) in BATCHED.items() if options.batches else ():
        cost = profile(make(), shape)
        took = {
            batch: measured_s(make(), shape, options.seconds / PASSES, batch) for batch in BATCHES
        }
        cells = [
            f"{s * 1e3:.2f} ms {batch_s(cost, flops, bandwidth, fixed, batch) / s - 1:+.0%}"
            for batch, s in took.items()
        ]
        print(
            f"{name:14}",
            *(f"{batch:4}: {cell:16}" for batch, cell in zip(BATCHES, cells, strict=True)),
            flush=True,
        )
    errors = {}
    for name in MODELS:
        told = batch_s(costs[name], flops, bandwidth, fixed)
        errors[name] = told / times[name] - 1
        mark = "fitted" if name in FITTED else ""
        print(
            f"{name:12} {times[name] * 1e3:9.3f} ms measured {told * 1e3:9.3f} ms predicted "
            f"{errors[name]:+7.1%}  {mark}"
        )
    ten, six = (
        [abs(errors[name]) for name in MODELS if name not in left_out] for left_out in ((), FITTED)
    )
    means = float(np.mean(ten)), float(np.mean(six))
    print(
        f"mean error: {means[0]:.1%} of the ten, {means[1]:.1%} of the six that were not "
        f"fitted; worst: {max(ten):.1%}"
    )
    return 1 if max(means) > MOST_ERROR else 0


if __name__ == "__main__":
    raise SystemExit(main())
