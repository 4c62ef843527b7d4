import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.errors import DataError
from fedsim.output.mistakes import explained


def told(error: BaseException, *words: str) -> tuple[int, str]:
    @click.command()
    @explained("fedsim")
    def command() -> None:
        raise error

    result = CliRunner().invoke(command, list(words))
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (DataError("data is missing"), 2, "fedsim: data is missing\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "a.parquet"),
            1,
            "fedsim: the disk that holds '.' is full; make room there, and try again\n",
        ),
        (OSError(errno.EACCES, "Permission denied", "a.txt"), 1, "fedsim: 'a.txt' cannot be used: Permission denied\n"),
        (OSError("no port"), 1, "fedsim: no port\n"),
        (MemoryError(), 1, "fedsim: there is not enough memory\n"),
        (MemoryError("3 GiB"), 1, "fedsim: there is not enough memory: 3 GiB\n"),
        (
            ZeroDivisionError("a bug"),
            1,
            "fedsim: ZeroDivisionError: a bug, in test_mistakes.py, line N (--debug shows where)\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_one_message_and_an_exit_status(error: BaseException, status: int, text: str) -> None:
    found, output = told(error)
    assert (found, re.sub(r"line \d+", "line N", output)) == (status, text)


def test_a_full_disk_is_named_and_the_run_goes_on_once_there_is_room(tmp_path: Path) -> None:
    """On a disk of 200 kB, which a name space of its own has to mount."""
    script = f"mount -t tmpfs -o size=$SIZE none {tmp_path} && {sys.executable} -m fedsim run quickstart --set learning=off"
    script += f" --set checkpoint.rounds=1 --set evaluation.every=100 --out {tmp_path}/run"
    words = [
        "unshare",
        "-rm",
        "sh",
        "-c",
        f"{script} && exit; mount -o remount,size=9M {tmp_path}; {script[script.index('&&') + 3 :]} --resume --quiet",
    ]
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"SIZE": "200k"}, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip("this system lets nobody mount a disk of their own")
    assert f"the disk that holds '{tmp_path}/run' is full; make room there, and --resume goes on" in done.stderr
    assert done.returncode == 0, done.stderr


def test_debug_shows_where() -> None:
    assert "Traceback" in told(ZeroDivisionError("a bug"), "--debug")[1]


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    for words in (["report", path], ["audit", path], ["trace", path], ["compare", path, "--out", tmp_path / "x.csv"]):
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 2
        assert result.output.endswith("cannot be used: File name too long\n")


@pytest.mark.parametrize("inside", ["new", "new/further.html"])
def test_no_verb_writes_into_a_run_folder(tiny_run: Path, inside: str) -> None:
    """Not even another run: the audit counts the files."""
    out = tiny_run / inside
    before = sorted(tiny_run.rglob("*"))
    verbs = [[verb, tiny_run] for verb in ("trace", "tensorboard", "mlflow", "wandb", "compare", "report")]
    for words in (*verbs, ["run", "quickstart"], ["study", "communication"]):
        result = CliRunner().invoke(main, [*map(str, words), "--out", str(out)])
        assert result.exit_code == 2, words
        assert "lies in the run folder 'run'" in result.output or "already holds files" in result.output, result.output
    assert sorted(tiny_run.rglob("*")) == before
