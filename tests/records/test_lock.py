"""The lock of a folder: one holder at a time, named, and none that is dead."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsim.errors import RunFolderError
from fedsim.records.lock import LOCK, locked

_HOLDER = """
import sys, time
from pathlib import Path
from fedsim.records.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holder(folder: Path, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", _HOLDER, str(folder), str(seconds)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "held\n"
    return started


def test_the_holder_is_named_and_a_dead_one_is_none(tmp_path: Path) -> None:
    with holder(tmp_path, 60) as other:
        with pytest.raises(RunFolderError) as refusal, locked(tmp_path):
            pass
        assert str(refusal.value) == (
            f"another process ({other.pid} on {socket.gethostname()!r}) works in {str(tmp_path)!r}; wait, or end it"
        )
        other.kill()
    assert (tmp_path / LOCK).exists()  # nobody was there to remove it
    with locked(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_who_is_patient_gets_it_when_its_holder_has_ended(tmp_path: Path) -> None:
    with holder(tmp_path, 0.5):
        began = time.monotonic()
        with locked(tmp_path, patience_s=30):
            assert time.monotonic() - began < 30
            with pytest.raises(RunFolderError), locked(tmp_path):
                pass


@pytest.mark.parametrize("text", ["", "one two", "1 \x1b[31mred 3", "\x00" * 5000])
def test_a_name_that_says_nothing_is_not_repeated(tmp_path: Path, text: str) -> None:
    with locked(tmp_path):
        (tmp_path / LOCK).write_text(text)
        with pytest.raises(RunFolderError, match=r"^another process works in"), locked(tmp_path):
            pass


def test_a_link_to_another_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    (tmp_path / LOCK).symlink_to(tmp_path / "precious.txt")
    with pytest.raises(RunFolderError, match="cannot be locked"), locked(tmp_path):
        pass
    assert (tmp_path / "precious.txt").read_text() == "mine"
