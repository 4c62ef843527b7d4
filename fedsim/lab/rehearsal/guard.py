"""Guard of a rehearsal: ends its processes and removes its namespaces, however the rehearsal ends.

``python -m fedsim.lab.rehearsal.guard`` reads lines ``group ID`` and ``namespace NAME`` from stdin.
When stdin closes, as it does when the rehearsal ends or is killed, the guard ends these process
groups and removes these network namespaces.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from fedsim.lab.rehearsal.network import remove

_GRACE_S = 1.0  # time that processes have to end by themselves (s)


def guard(lines: Iterable[str]) -> None:
    """Wait until a rehearsal is over, then end its processes and remove its namespaces.

    The function runs in a process that outlives the rehearsal, even if the rehearsal is killed.

    Args:
        lines: lines from the rehearsal, ``group ID`` for each process group to end and
            ``namespace NAME`` for each network namespace to remove. The end of the lines means that
            the rehearsal is over.
    """
    groups: list[int] = []
    namespaces: list[str] = []
    for line in lines:
        kind, _, name = line.strip().partition(" ")
        if kind == "group":
            groups.append(int(name))
        elif kind == "namespace":
            namespaces.append(name)
    # a paused process must continue before it can end by itself; a process that does not end by
    # itself in time is killed
    for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
        if number == signal.SIGKILL:
            _wait_for(groups)
        for group in groups:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
    for namespace in namespaces:
        remove(namespace)


def _wait_for(groups: list[int]) -> None:
    """Wait until no process of some groups is left, for ``_GRACE_S`` seconds at most.

    Args:
        groups: IDs of the process groups.
    """
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and any(map(_exists, groups)):
        time.sleep(0.05)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(_number, signal.SIG_IGN)
    guard(sys.stdin)
