"""Processes of tests: all that a test has started ends with it, however it ends, and waiting is
for events, not for a time.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

GENEROUS_S = 600.0
"""What is waited for at most.

It ends a test that would hang, and says nothing of how fast anything is.
"""

_started: list["subprocess.Popen[Any]"] = []
ROOT = Path(__file__).resolve().parents[1]
# PR_SET_CHILD_SUBREAPER: what is left without a parent becomes a child of this process
_SUBREAPER = 36
_SPARED = ("resource_tracker", "forkserver")  # Python's own helpers, which serve later tests too


def popen(command: list[Any], **how: Any) -> "subprocess.Popen[Any]":
    """A process that a test talks to; ``how`` is for ``subprocess.Popen``."""
    started = subprocess.Popen([str(word) for word in command], **how)
    _started.append(started)
    return started


def fedsim(*words: object, **how: Any) -> "subprocess.Popen[Any]":
    """``fedsim WORDS`` in a process of its own."""
    return popen([sys.executable, "-c", "from fedsim.cli import main; main()", *words], **how)


def ended(process: "subprocess.Popen[Any]") -> tuple[Any, Any]:
    """What a process has written to stdout and stderr when it has come to its end."""
    return process.communicate(timeout=GENEROUS_S)


def wait_until(ready: Callable[[], object], process: "subprocess.Popen[Any] | None" = None) -> None:
    """Wait until something is there, or fail if the ``process`` that is to bring it has ended
    before.
    """
    last = time.monotonic() + GENEROUS_S
    while not ready():
        if process is not None and process.poll() is not None and not ready():
            raise AssertionError(
                f"it has ended with {process.returncode} before: {process.communicate()}"
            )
        if time.monotonic() > last:
            raise AssertionError(f"it has not come in {GENEROUS_S:g} s")
        time.sleep(0.02)


def python_within(cpu_s: int, code: str) -> "subprocess.CompletedProcess[str]":
    """Run code in a process that the system ends with SIGXCPU after so much processor time,
    whatever the machine's load is.
    """
    limit = (
        f"import resource; resource.setrlimit(resource.RLIMIT_CPU, ({cpu_s}, "
        "resource.RLIM_INFINITY))\n"
    )
    command = [sys.executable, "-c", limit + code]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=GENEROUS_S, check=False
    )


def limit_cpu_from_now(cpu_s: int) -> None:
    """End this process with SIGXCPU when it has used so much more processor time."""
    used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    resource.setrlimit(
        resource.RLIMIT_CPU, (used + cpu_s, resource.getrlimit(resource.RLIMIT_CPU)[1])
    )


def adopt_orphans() -> None:
    """Have processes whose parent has ended become children of this one, where the system can
    (Linux).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def descendants() -> dict[int, str]:
    """All processes that come from this one, by number, with their command lines; only Linux
    tells.
    """
    children_of = _children_by_kernel if _KERNEL_LISTS_CHILDREN else _children_by_search()
    commands: dict[int, str] = {}
    parents = [os.getpid()]
    while parents:
        for child in children_of(parents.pop()):
            if child not in commands:
                commands[child] = _command_line(child)
                parents.append(child)
    return commands


# Every test asks twice: reading a list takes microseconds, a search among all processes milliseconds.
_KERNEL_LISTS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()


def _children_by_kernel(parent: int) -> list[int]:
    """The children of all threads of a process, those that have ended but are not waited for too."""
    children: list[int] = []
    for thread in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):  # the thread has just ended
            children += map(int, thread.read_text().split())
    return children


def _children_by_search() -> Callable[[int], list[int]]:
    """The same for a kernel without such lists."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    return lambda parent: children.get(parent, [])


def _command_line(process: int) -> str:
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace")


@contextmanager
def all_end() -> Iterator[None]:
    """Kill what was started within, in whatever session or by whatever child, when the context
    is left.
    """
    before = set(descendants())
    count = len(_started)
    try:
        yield
    finally:
        end_others(before)
        for process in _started[count:]:
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                with suppress(OSError):  # what was to be written has no reader any more
                    pipe.close()
        del _started[count:]


def end_others(spared: set[int]) -> None:
    """Kill all processes that come from this one but some; those that are killed start no more."""
    for _ in range(10):
        found = descendants()
        others = [
            child
            for child in found
            if child not in spared and not any(word in found[child] for word in _SPARED)
        ]
        if not others:
            return
        for child in others:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        for child in others:
            with suppress(ChildProcessError):  # it is another one's, which is killed too
                os.waitpid(child, 0)
