"""The README's Python runs as it stands."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=["run", "watch"])
def test_python_blocks_run(code: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scenarios", tmp_path / "scenarios")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0.9" in done.stdout


def test_files_and_verbs_that_it_names_are_there() -> None:
    for path in re.findall(r"`((?:scenarios|fedsim|tests|analysis)/[\w/.]+\.(?:py|toml))`", README):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m (tests\.benchmarks\.\w+)", README):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
