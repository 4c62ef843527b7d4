import errno
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import fedsim
from fedsim.errors import DataError, FedsimError
from fedsim.output.mistakes import explained
from tests.calls import call


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
        (OSError(errno.ENOSPC, "No space left on device", "a.parquet"), 1, "fedsim: the disk that holds '.' is full; "),
        (OSError(errno.EACCES, "Permission denied", "a.txt"), 1, "fedsim: 'a.txt' cannot be used: Permission denied\n"),
        (OSError("no port"), 1, "fedsim: no port\n"),
        (MemoryError("3 GiB"), 1, "fedsim: there is not enough memory: 3 GiB\n"),
        (ZeroDivisionError("a bug"), 1, "fedsim: ZeroDivisionError: a bug, in test_mistakes.py, line "),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_one_message_and_an_exit_status(error: BaseException, status: int, text: str) -> None:
    found, output = told(error)
    assert (found, output[: len(text)], output.count("\n")) == (status, text, bool(text))


@pytest.mark.parametrize(
    ("do", "words", "both", "in_python", "on_command_line"),
    [
        (lambda: fedsim.run("quickstart", workers=0), ["--workers", "0"], "workers is 0; ", "workers", "--workers"),
        (lambda: fedsim.load("quickstart", ["seed"]), ["--set", "seed"], "'seed' is not of the form", "changes", "--set"),
        (lambda: fedsim.run("quickstart", __file__), ["--out", __file__], " is a file; give a folder", "out", "--out"),
        (lambda: fedsim.load("communication"), [], "is a study", "fedsim.run_study runs it", "'fedsim study' runs it"),
    ],
)
def test_errors_speak_the_language_of_who_reads_them(
    do: Callable[[], object], words: list[str], both: str, in_python: str, on_command_line: str
) -> None:
    with pytest.raises(FedsimError) as caught:
        do()
    output = call("run", "quickstart" if words else "communication", "--out", "out", *words).output
    assert (both in output, on_command_line in output) == (True, True)
    assert (both in str(caught.value), in_python in str(caught.value)) == (True, True)
    assert on_command_line not in str(caught.value)  # nothing of the command line is left


def test_what_is_no_scenario_is_refused_in_python_and_debug_shows_where() -> None:
    assert "Traceback" in told(ZeroDivisionError("a bug"), "--debug")[1]
    with pytest.raises(FedsimError, match=r"^\{'seed': 3\} is no file's path or name; .* by fedsim.Scenario\(\*\*tables\)"):
        fedsim.load({"seed": 3})  # type: ignore[arg-type]
    with pytest.raises(FedsimError, match=r"'quikstart' does not exist.*did you mean 'quickstart'"):
        fedsim.run("quikstart")


def test_a_full_disk_is_named_and_the_run_goes_on_once_there_is_room(tmp_path: Path) -> None:
    """On a disk of 200 kB, which a name space of its own has to mount."""
    changes = "--set learning=off --set checkpoint.rounds=1 --set evaluation.every=100"
    run = f"{shlex.quote(sys.executable)} -m fedsim run quickstart {changes} --out {tmp_path}/run"
    script = f"mount -t tmpfs -o size=200k none {tmp_path} && {run} && exit"
    script += f"; mount -o remount,size=9M {tmp_path}; {run} --resume --quiet"
    try:
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip("this system lets nobody mount a disk of their own")
    assert f"the disk that holds '{tmp_path}/run' is full; make room there, and --resume goes on" in done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("inside", ["new", "new/further.html"])
def test_no_verb_writes_into_a_run_folder(tiny_run: Path, inside: str) -> None:
    """Not even another run: the audit counts the files."""
    out = tiny_run / inside
    before = sorted(tiny_run.rglob("*"))
    verbs = [[verb, tiny_run] for verb in ("trace", "tensorboard", "mlflow", "wandb", "compare", "report")]
    for words in (*verbs, ["run", "quickstart"], ["study", "communication"]):
        result = call(*words, "--out", str(out))
        assert result.exit_code == 2, words
        assert "lies in the run folder 'run'" in result.output or "already holds files" in result.output, result.output
    assert sorted(tiny_run.rglob("*")) == before
