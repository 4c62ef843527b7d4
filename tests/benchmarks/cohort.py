"""The cohort solver with every strategy, and with architectures that people train.

    python -m tests.benchmarks.cohort strategies           # every strategy: the same bits by other executors
    python -m tests.benchmarks.cohort strategies fedavg    # this one alone
    python -m tests.benchmarks.cohort architectures        # difference from plain torch, time, what falls back
    python -m tests.benchmarks.cohort transfers            # bytes that a wave sends to a GPU, and reads

``strategies`` runs each strategy in the world ``star`` of ``hashes`` with ``training.solver =
"cohort"``: in the process itself, with two threads, and with memory for three models alone; then
the same with the CPU in place of a GPU, on which models stay. The hashes must agree; with models
that stay those of the models, since distances are summed up in another order there.
``architectures`` trains a stack of devices, and the same devices one by one. ``transfers`` computes
on torch's device ``meta``.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedsim
from fedsim.clock.executors import Executor, Inline, Threads
from fedsim.common.training import Batching, LocalEpochs, Training
from fedsim.learning import scratch
from fedsim.learning.data.federated import FederatedData, Pool, Shard, TokenShape
from fedsim.learning.host_copies import counted_copies
from fedsim.learning.models import ModelSpec, Perceptron
from fedsim.learning.modules import trained_tensors
from fedsim.learning.solvers.base import Descent, LocalSolve, Solved, draw_batches, use_one_thread
from fedsim.learning.solvers.cohort import Cohort
from fedsim.learning.solvers.reference import Reference, flat_weights
from fedsim.running.runner import Job
from fedsim.strategies import STRATEGIES as REGISTERED
from fedsim.toolbox.models.images import ResNet18
from fedsim.toolbox.models.residual import resnet18
from fedsim.toolbox.models.tokens import CharLSTM, Transformer
from tests.benchmarks.hashes import OF_WORLDS, STRATEGIES, WORLDS
from tests.benchmarks.script import parser
from tests.learning.small import learning
from tests.learning.stand_ins import meta_for_a_gpu, stand_in

CPU = torch.device("cpu")
_LANES = 4
_SMALL_ROOM = 4.0 * 1000 * 3  # bytes of three models of the world ``star``
_COMPARED = ("events_sha256", "models_sha256", "accuracy")


class Inverted(nn.Module):
    """Block of MobileNetV2 with group norm (Sandler et al. 2018)."""

    def __init__(self, inputs: int, outputs: int, stride: int, wider: int) -> None:
        super().__init__()
        hidden = inputs * wider
        self.adds = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False),
            nn.GroupNorm(4, hidden),
            nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.GroupNorm(4, hidden),
            nn.ReLU6(),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.GroupNorm(4, outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.body(x)
        return x + changed if self.adds else changed


def mobilenet() -> nn.Module:
    """MobileNetV2 for images of 32 x 32, with group norm."""
    blocks: list[nn.Module] = [
        nn.Conv2d(3, 32, 3, 1, 1, bias=False),
        nn.GroupNorm(4, 32),
        nn.ReLU6(),
    ]
    inputs = 32
    table = (
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for wider, outputs, count, first in table:
        for number in range(count):
            blocks.append(Inverted(inputs, outputs, first if number == 0 else 1, wider))
            inputs = outputs
    blocks += [nn.Conv2d(320, 1280, 1, bias=False), nn.GroupNorm(4, 1280), nn.ReLU6()]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 10))


class SmallViT(nn.Module):
    """Vision transformer with patches of 4 x 4, four layers of 64 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 64, 4, 4)
        self.place = nn.Parameter(torch.randn(64, 64) * 0.02)
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).transpose(1, 2) + self.place
        scores: Tensor = self.head(self.layers(patches).mean(1))
        return scores


def batch_normed() -> nn.Module:
    """A network with norms by the batch."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(7200, 10)
    )


def torch_dropout() -> nn.Module:
    """A network that draws in its forward, besides torch's dropout layers."""

    class Noisy(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = super().forward(nn.functional.dropout(x, 0.2, self.training))
            return scores

    return Noisy(nn.Flatten(), nn.Linear(3072, 10))


TOKENS = TokenShape.of((20,), 61)
ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP, 200 units": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 200), nn.ReLU(), nn.Linear(200, 10)),
        (3, 32, 32),
    ),
    "ResNet-18, group norm": (lambda: resnet18(3, 10), (3, 32, 32)),
    "MobileNetV2, group norm": (mobilenet, (3, 32, 32)),
    "ViT, 4 layers": (SmallViT, (3, 32, 32)),
    "char-lstm": (lambda: CharLSTM().made(TOKENS, 61), TOKENS),
    "transformer": (lambda: Transformer().made(TOKENS, 61), TOKENS),
    "MLP, 7 units": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 7), nn.ReLU(), nn.Linear(7, 10)),
        (3, 32, 32),
    ),
    "batch norm": (batch_normed, (3, 32, 32)),
    "dropout in forward": (torch_dropout, (3, 32, 32)),
}


def trainings(module: nn.Module, shape: tuple[int, ...]) -> list[tuple[LocalSolve, Descent]]:
    """One epoch on two batches, for each lane of a stack."""
    draw = np.random.default_rng(0)
    weights = flat_weights(list(trained_tensors(module).values()))
    work = []
    for device in range(_LANES):
        samples = 32 - 2 * device
        if isinstance(shape, TokenShape):
            x = torch.from_numpy(draw.integers(0, 61, (samples, *shape)))
            y = torch.from_numpy(draw.integers(0, 61, samples))
        else:
            x = torch.from_numpy(draw.normal(size=(samples, *shape)).astype(np.float32))
            y = torch.from_numpy(draw.integers(0, 10, samples))
        solve = LocalSolve(
            weights, x, y, draw_batches(draw, samples, Batching(16), LocalEpochs(1)), key=device
        )
        work.append((solve, Descent(0.01, momentum=0.9)))
    return work


def difference(expected: Sequence[Solved], found: Sequence[Solved]) -> float:
    """Return the greatest difference of weights, relative to the greatest weight of a model."""
    worst = 0.0
    for plain, stacked in zip(expected, found, strict=True):
        scale = np.abs(plain.weights).max()
        worst = max(worst, float(np.abs(plain.weights - stacked.weights).max() / scale))
    return worst


def difference_in_double(module: nn.Module, work: Sequence[tuple[LocalSolve, Descent]]) -> float:
    """Return the difference of a stack from plain torch in float64, which tells rounding from error."""
    double = []
    for solve, descent in work:
        double.append((replace(solve, weights=solve.weights.astype(np.float64)), descent))
    cohort = Cohort(module, CPU, torch.float64, lanes=_LANES)
    reason = cohort.try_stack(*double[0])
    assert not reason, reason
    plain = Reference(module, CPU, torch.float64)
    return difference(plain.solve_all(double), cohort.solve_all(double))


def show_architectures() -> int:
    """Print a row for each architecture; return 1 if a stack differs from plain torch."""
    use_one_thread()
    wrong = 0
    for name, (make, shape) in ARCHITECTURES.items():
        torch.manual_seed(0)
        module = make()
        work = trainings(module, shape)
        cohort = Cohort(module, CPU, lanes=_LANES)
        reason = cohort.try_stack(*work[0])
        if reason:
            print(f"{name:<24} one at a time: {reason}", flush=True)
            continue
        begin = time.process_time()
        expected = Reference(module, CPU).solve_all(work)
        alone_s = time.process_time() - begin
        begin = time.process_time()
        found = cohort.solve_all(work)
        stacked_s = time.process_time() - begin
        single = difference(expected, found)
        double = difference_in_double(module, work)
        same = [solved.weights.tobytes() for solved in cohort.solve_all(work[::-1])][::-1]
        turned = same == [solved.weights.tobytes() for solved in found]
        wrong += double > 1e-9 or not turned
        lane_by_lane = (
            f"; lane by lane: {', '.join(cohort.one_by_one)}" if cohort.one_by_one else ""
        )
        print(
            f"{name:<24} {len(work[0][0].weights):>10} numbers  difference {single:.1e}, "
            f"in float64 {double:.1e}  "
            f"bits by place {'same' if turned else 'DIFFER'}  CPU {alone_s:.2f} s alone, "
            f"{stacked_s:.2f} s stacked{lane_by_lane}",
            flush=True,
        )
    return 1 if wrong else 0


def compare(kind: str) -> str:
    """Run a strategy with the cohort solver in three ways; return what differs, or why not run."""
    sections = WORLDS["star"] | OF_WORLDS.get(kind, {})
    sections |= {"strategy": {"kind": kind} | STRATEGIES.get(kind, {})}
    training = dict(sections["training"]) | {"solver": "cohort", "lanes": _LANES}
    scenario = fedsim.Scenario(**sections | {"training": training, "stop": {"rounds": 6}})

    def told(executor: Executor) -> dict[str, Any]:
        job = Job(scenario, None, executor)
        summary = asyncio.run(job.execute()).summary
        return {name: summary.get(name) for name in _COMPARED}

    expected = told(Inline())
    ways = {"two threads": told(Threads(2))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scratch, "MEMORY_BYTES", _SMALL_ROOM)
        ways["little memory"] = told(Inline())
    wrong = [way for way, found in ways.items() if found != expected]
    staying: dict[str, dict[str, Any]] = {}
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        staying["on the device"] = told(Inline())
        stand_in(patch, _SMALL_ROOM)
        staying["little room there, two threads"] = told(Threads(2))
        patch.setattr(scratch, "MEMORY_BYTES", _SMALL_ROOM)
        staying["little room there, little memory"] = told(Inline())
    first = staying["on the device"]
    for way, found in staying.items():
        is_same = found == first and found["models_sha256"] == expected["models_sha256"]
        if not is_same or found["accuracy"] != expected["accuracy"]:
            wrong.append(way)
    return f"DIFFERS by {', '.join(wrong)}" if wrong else "same"


def images(devices: int) -> FederatedData:
    """Devices with 32 training images of 3 x 32 x 32 each."""
    draw = np.random.default_rng(0)
    samples = 34 * devices
    pool = Pool(
        draw.integers(0, 256, (samples, 3, 32, 32), np.uint8), draw.integers(0, 10, samples), 10
    )
    index = np.arange(samples, dtype=np.int32).reshape(devices, 34)
    return FederatedData(pool, [Shard(part[:32], part[32:]) for part in index])


def copies_of_wave(model: ModelSpec, room: float) -> tuple[float, float]:
    """Return the bytes that a wave of 16 trainings sends to a GPU and reads, in a tested round.

    Args:
        model: the model.
        room: memory for models on the GPU (bytes).
    """
    devices = 16
    with meta_for_a_gpu(room):
        options = {"solver": "cohort", "lanes": devices, "batch_size": 16, "memory": "4 GB"}
        core, _ = learning(images(devices), model, **options)
        mean = core.initial()
        for _ in range(3):
            with counted_copies() as counts:
                start = mean
                updates = []
                for device in range(devices):
                    updates.append(core.train(Training(start), device, key=start.serial))
                mean = core.mix([(update, 1 / devices) for update in updates])
                asyncio.run(core.evaluate({"model": (mean, None)}))
                asyncio.run(core.distances([(update, mean) for update in updates]))
    return counts.to_device_bytes, counts.to_host_bytes


def show_transfers() -> int:
    """Print the bytes that a wave sends and reads, without and with models that stay."""
    models: dict[str, ModelSpec] = {
        "ResNet-18": ResNet18(),
        "perceptron of that size": Perceptron(hidden=[3660]),
        "perceptron, 128 units": Perceptron(),
    }
    for name, model in models.items():
        for way, room in {"models come back": 0.0, "models stay": 1e12}.items():
            sent, read = copies_of_wave(model, room)
            print(f"{name:<24} {way:<16} up {sent:>13,.0f} B  down {read:>13,.0f} B", flush=True)
    return 0


def show_strategies(kinds: list[str]) -> int:
    """Print a row for each strategy; return 1 if hashes differ."""
    wrong = 0
    for kind in kinds or [
        kind for kind in dict.fromkeys([*REGISTERED, *STRATEGIES]) if kind != "flower"
    ]:
        try:
            result = compare(kind)
        except fedsim.FedsimError as error:
            result = f"refused: {error}"
        wrong += result.startswith("DIFFERS")
        print(f"{kind:<16} {result}", flush=True)
    return 1 if wrong else 0


def main() -> int:
    """Run one of the comparisons."""
    arguments = parser(__doc__)
    arguments.add_argument("what", choices=["strategies", "architectures", "transfers"])
    arguments.add_argument("kinds", nargs="*", metavar="STRATEGY")
    options = arguments.parse_args()
    if options.what == "architectures":
        return show_architectures()
    if options.what == "transfers":
        return show_transfers()
    return show_strategies(options.kinds)


if __name__ == "__main__":
    sys.exit(main())
