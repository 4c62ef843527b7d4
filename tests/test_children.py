"""What a test starts ends with it: also in a session of its own, and what its children have
started.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import ROOT, all_end, descendants, popen, python_within, wait_until

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells which processes come from which"
)

FAMILY = """
import os, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100000)"], start_new_session=True)
Path(sys.argv[1]).write_text(str(child.pid))
if sys.argv[2] == "stays":
    time.sleep(100000)
"""


@pytest.mark.parametrize("parent", ["stays", "ends"])
def test_children_and_orphans_end(parent: str, tmp_path: Path) -> None:
    born = tmp_path / "born"
    with pytest.raises(RuntimeError, match="the test fails"), all_end():  # noqa: PT012
        process = popen([sys.executable, "-c", FAMILY, born, parent], start_new_session=True)
        wait_until(lambda: born.exists() and born.read_text())
        if parent == "ends":
            process.wait()
        grandchild = int(born.read_text())
        wait_until(lambda: grandchild in descendants())
        raise RuntimeError("the test fails")
    assert grandchild not in descendants()
    assert not _is_running(grandchild)
    assert not _is_running(process.pid)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_test_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """With the very fixture of all tests: pytest in a process, whose test fails while a child of
    its is at work.
    """
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import _children_end_with_their_test, _orphans_are_adopted\n"
    )
    (tmp_path / "test_fails.py").write_text(
        "import subprocess, sys\n\ndef test_fails():\n"
        f"    child = subprocess.Popen([sys.executable, '-c', {FAMILY!r}, "
        f"{str(tmp_path / 'born')!r}, 'ends'])\n"
        "    child.wait()\n    assert False\n"
    )
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    assert not _is_running(int((tmp_path / "born").read_text()))


def test_what_takes_too_much_is_ended() -> None:
    assert python_within(1, "while True: pass").returncode < 0
    assert python_within(30, "print(1)").stdout == "1\n"
