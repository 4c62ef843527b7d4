"""Whatever a file holds: fedsim ends in time, says why, and keeps what it promises. No traceback ever.

Few cases here, always the same; ``python -m tests.benchmarks.fuzz`` tries as many others as wanted.
"""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = {"scenarios": 5, "folders": 2, "inputs": 8}


@pytest.mark.skipif(sys.platform != "linux", reason="watches forked processes as only Linux lets one")
def test_it_is_done_or_refused(tmp_path: Path) -> None:
    counts = [word for kind, count in CASES.items() for word in (f"--{kind}", str(count))]
    command = [sys.executable, "-m", "tests.benchmarks.fuzz", *counts, "--out", str(tmp_path / "out")]
    told = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout[-5000:] + told.stderr[-2000:]
