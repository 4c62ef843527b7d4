"""Whatever a file holds: fedsim ends in time, says why, and keeps what it promises. No traceback ever.

Few cases of each kind here, always the same; ``python -m tests.benchmarks.fuzz`` tries as many others as wanted.
"""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = {"scenarios": 120, "folders": 24, "inputs": 33, "terminals": 20}


@pytest.mark.parametrize("kind", CASES)
def test_it_is_done_or_refused(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.benchmarks.fuzz", f"--{kind}", str(CASES[kind]), "--out", str(tmp_path / "out")]
    told = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout[-4000:] + told.stderr[-2000:]
