"""Compilation of loops by numba: other threads go on, code is kept and checked, and processes that
start together compile it once.
"""

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

from fedsim.learning.solvers.compiled import compiled, compiled_entry, compiling
from tests.children import popen


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
    # of no file, so there is no folder beside it
    exec("def doubled(number):\n    return 2 * number", space)
    assert compiled_entry(space["doubled"])(21) == 42


KEPT_ALONE = """
import sys
from fedsim.learning.solvers.compiled import compiled_entry, compiling

@compiled_entry
def doubled(number):
    return 2 * number

print("ready", flush=True)
sys.stdin.readline()
with compiling(doubled):
    doubled(21)
print(sum(doubled.stats.cache_misses.values()))
"""


def test_of_processes_that_start_together_only_one_compiles(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(KEPT_ALONE)
    children = [
        popen(
            [sys.executable, "kept.py"],
            cwd=tmp_path,
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    answers = []
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        answers.append(int(child.communicate()[0]))
    assert sorted(answers) == [0, 1]


def test_a_function_that_cannot_be_kept_keeps_nobody_waiting() -> None:
    space: dict[str, Any] = {}
    exec("def doubled(number):\n    return 2 * number", space)
    doubled = compiled_entry(space["doubled"])
    with compiling(doubled), compiling(doubled):
        assert doubled(21) == 42


KEPT = """
from fedsim.learning.solvers.compiled import compiled_entry

@compiled_entry
def doubled(number):
    return 2 * number

print(doubled(21), doubled.stats.cache_hits[doubled.signatures[0]] if doubled.stats.cache_hits else 0)
"""


@pytest.mark.parametrize(
    ("ending", "damage"),
    [("nbi", lambda kept: kept[:20]), ("nbc", lambda kept: kept[:99] + b"\xff" * 50 + kept[149:])],
)
def test_what_is_kept_damaged_is_made_anew(
    ending: str, damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (tmp_path / "kept.py").write_text(KEPT)
    told: dict[str, Any] = {
        "cwd": tmp_path,
        "env": os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")},
    }

    def answer() -> list[str]:
        return subprocess.run(
            [sys.executable, "kept.py"], capture_output=True, text=True, check=True, **told
        ).stdout.split()

    assert answer() == ["42", "0"]
    (kept,) = tmp_path.rglob(f"*.{ending}")
    kept.write_bytes(damage(kept.read_bytes()))
    assert answer() == ["42", "0"]
    assert answer() == ["42", "1"]
