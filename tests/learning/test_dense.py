"""Closed-form gradients against autograd, the same bits whatever the cohort; and compiled loops."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from fedsim.learning.architecture import Architecture, dense
from fedsim.learning.solvers.base import Descent, one_thread
from fedsim.learning.solvers.compiled import compiled, compiled_entry
from fedsim.learning.solvers.dense import Dense, Way
from fedsim.learning.solvers.reference import load_weights, module_of
from tests.learning.small import PULLS, RULES, plain_sgd, pulled, solve_of

WAYS: tuple[Way, ...] = get_args(Way)
RAGGED = (23, 4, 10, 61, 1, 37)


def perceptron(features: int, *widths: int) -> Architecture:
    return Architecture.of((features,), dense(*widths)[:-1])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread()


def _start(architecture: Architecture, seed: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.3, architecture.parameters).astype(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["float32", "float64"])
@pytest.mark.parametrize(("rule", "batch_size"), [*((rule, 10) for rule in RULES), (Descent(0.01), 1)], ids=str)
@pytest.mark.parametrize("widths", [(7,), (13, 7), (40, 9, 7)], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_closed_form_is_autograd(
    way: Way, widths: tuple[int, ...], rule: Descent, batch_size: int, dtype: torch.dtype, tolerance: float
) -> None:
    architecture = perceptron(61, *widths)
    number = np.float32 if dtype == torch.float32 else np.float64
    solves = [
        pulled(solve_of(_start(architecture, 100 + at, number), n, (61,), 7, seed=at, batch_size=batch_size), pull)
        for at, n in enumerate(RAGGED)
        for pull in PULLS
    ]
    solver = Dense(architecture, dtype, way=way)
    kernels = [name for name, shape in architecture.tensors if len(shape) == 2]
    for solve in solves:
        weights, loss, *_ = solver.solve(solve, rule)
        module = module_of(architecture).to(dtype)
        load_weights(list(module.parameters()), solve.weights)
        expected, expected_loss = plain_sgd(module, solve, rule, kernels)
        assert np.abs(weights - expected).max() <= tolerance * np.abs(expected).max()
        assert loss == pytest.approx(expected_loss, rel=max(tolerance, 1e-6))


@pytest.mark.parametrize("way", [*WAYS, None])
@pytest.mark.parametrize("sizes", [(784, 10), (61, 40, 9, 7), (90, 200, 9)], ids=str)
def test_a_result_depends_on_no_device_before_it_bit_for_bit(sizes: tuple[int, ...], way: Way | None) -> None:
    """One solver trains many devices in turn, by rules of all kinds, two of which diverge; a fresh one trains each alone."""
    architecture = perceptron(*sizes)
    solver = Dense(architecture, way=way)
    work = [
        (pulled(solve_of(_start(architecture, at), n, sizes[:1], sizes[-1], seed=at), PULLS[at % 4]), RULES[at % len(RULES)])
        for at, n in enumerate((139, 60, 7, 31, 1, 2, 64, 65))
    ]
    for value in (np.nan, np.inf):
        spoilt = np.full(architecture.parameters, value, np.float32)
        diverged = solve_of(spoilt, 20, sizes[:1], sizes[-1], seed=2)
        work.insert(3, (replace(diverged, anchor=spoilt), Descent(0.1, mu=0.1)))
    for solve, rule in (*work, *work[::-1]):
        found, alone = solver.solve(solve, rule), Dense(architecture, way=way).solve(solve, rule)
        assert found.weights.tobytes() == alone.weights.tobytes()
        assert found.train_loss == pytest.approx(alone.train_loss, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("way", WAYS)
def test_a_result_does_not_depend_on_where_in_memory_its_arrays_begin(way: Way) -> None:
    architecture = perceptron(61, 13, 7)
    solver = Dense(architecture, way=way)
    solve = pulled(solve_of(_start(architecture, 1), 37, (61,), 7, seed=1), "anchor and linear")
    expected = solver.solve(solve, RULES[-1])
    for begin in range(1, 16, 3):
        x = torch.empty(solve.x.numel() + begin)[begin:].view(solve.x.shape).copy_(solve.x)
        models = {}
        for name in ("weights", "anchor", "linear"):
            models[name] = np.empty(len(solve.weights) + begin, np.float32)[begin:]
            models[name][:] = getattr(solve, name)
            models[name].flags.writeable = False
        moved = solver.solve(replace(solve, x=x, **models), RULES[-1])
        assert moved.weights.tobytes() == expected.weights.tobytes()
        assert moved.train_loss == expected.train_loss


@compiled
def _halved(number: float) -> float:
    return number / 2


@compiled_entry
def _summed(numbers: np.ndarray[Any, Any], times: int) -> float:
    total = 0.0
    for _ in range(times):
        for number in numbers:
            total += _halved(number)
    return total


def test_other_threads_go_on_meanwhile() -> None:
    numbers = np.ones(1000)
    _summed(numbers, 1)
    worker = threading.Thread(target=_summed, args=(numbers, 1_000_000))
    worker.start()
    turns = 0
    while worker.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 10


def test_a_function_that_cannot_be_kept_is_compiled_all_the_same() -> None:
    space: dict[str, Any] = {}
    exec("def doubled(number):\n    return 2 * number", space)  # of no file, so there is no folder beside it
    assert compiled_entry(space["doubled"])(21) == 42


KEPT = """
from fedsim.learning.solvers.compiled import compiled_entry

@compiled_entry
def doubled(number):
    return 2 * number

print(doubled(21), doubled.stats.cache_hits[doubled.signatures[0]] if doubled.stats.cache_hits else 0)
"""


@pytest.mark.parametrize(
    ("ending", "damage"), [("nbi", lambda kept: kept[:20]), ("nbc", lambda kept: kept[:99] + b"\xff" * 50 + kept[149:])]
)
def test_what_is_kept_damaged_is_made_anew(ending: str, damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(KEPT)
    told: dict[str, Any] = {"cwd": tmp_path, "env": os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}}

    def answer() -> list[str]:
        return subprocess.run([sys.executable, "kept.py"], capture_output=True, text=True, check=True, **told).stdout.split()

    assert answer() == ["42", "0"]
    (kept,) = tmp_path.rglob(f"*.{ending}")
    kept.write_bytes(damage(kept.read_bytes()))
    assert answer() == ["42", "0"]
    assert answer() == ["42", "1"]
