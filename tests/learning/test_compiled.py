"""What compiled loops promise: they run without Python's lock, keep NaN, and do without a folder to be kept in."""

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.learning.solvers.compiled import compiled, compiled_entry


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


def test_one_calls_another_and_what_is_not_finite_stays_so() -> None:
    assert _summed(np.arange(5.0), 2) == 10.0
    assert math.isnan(_summed(np.array([1.0, math.nan, 2.0]), 1))
    assert math.isnan(_summed(np.array([math.inf, -math.inf]), 1))
    assert _summed(np.array([1.0, math.inf]), 1) == math.inf


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
