"""Processes of a rehearsal, with their logs; all of them end with it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fedsim.common.errors import SimulationError
from fedsim.lab.rehearsal.network import give_real_time_priority

_END_S = 20.0  # time that the guard has to end everything (s)


class RehearsalProcesses:
    """Processes of a rehearsal (Flower's server and clients), which end when the rehearsal ends.

    Each has its own session. A further process, the guard, ends them even if this process is
    killed.

    Args:
        logs: folder for the output of each process.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        command = [sys.executable, "-m", "fedsim.lab.rehearsal.guard"]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def __enter__(self) -> "RehearsalProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def guard_namespace(self, name: str) -> None:
        """Let the guard remove a network namespace when the rehearsal ends."""
        self._write_to_guard(f"namespace {name}")

    def _write_to_guard(self, line: str) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{line}\n".encode())
        self._guard.stdin.flush()

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        """Start a process, whose output goes to the log ``NAME.log``.

        Args:
            name: name of the process in this rehearsal.
            command: the words of its command.
            env: its environment.
        """
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=env, start_new_session=True
            )
        self._write_to_guard(f"group {process.pid}")
        self._started[name] = process
        return process

    def log(self, name: str) -> Path:
        """Return the path of the file to which a process of the rehearsal writes its output."""
        return self._logs / f"{name}.log"

    def pause(self, name: str) -> None:
        """Pause a process and its children (SIGSTOP), until ``resume``."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a paused process and its children go on (SIGCONT)."""
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._started[name].pid, number)

    def give_real_time_priority(self) -> None:
        """Give all threads of the processes real-time priority, if the system allows it.

        The devices of a real deployment do not compete for the cores of one machine.
        """
        groups = {process.pid for process in self._started.values()}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # a process or a thread has just ended, or is another user's
                # after the command's name in brackets: state, parent, process group
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[2]) in groups:
                    for thread in stat.parent.glob("task/[0-9]*"):
                        give_real_time_priority(int(thread.name))

    def check(self) -> None:
        """Raise ``SimulationError`` if a process has ended, with the end of its log."""
        for name, process in self._started.items():
            status = process.poll()
            if status is not None:
                raise SimulationError(
                    f"the process {name!r} of the rehearsal has ended with status {status}:\n"
                    f"{self.tail(name)}"
                )

    def tail(self, name: str) -> str:
        """Return the last 12 lines of a process's output, for error messages."""
        lines = self.log(name).read_text(errors="replace").splitlines()
        return "\n".join(lines[-12:])

    def wait_for(self, name: str, text: str, patience_s: float) -> None:
        """Wait until a process has written a text to its log.

        Raises:
            SimulationError: a process has ended, or the text has not come in time.
        """
        deadline = time.monotonic() + patience_s
        while text not in self.log(name).read_text(errors="replace"):
            self.check()
            if time.monotonic() > deadline:
                raise SimulationError(
                    f"the process {name!r} is not ready after {patience_s:g} s:\n{self.tail(name)}"
                )
            time.sleep(0.1)

    def end(self) -> None:
        """End all processes of the rehearsal, and remove its network namespaces."""
        assert self._guard.stdin is not None
        with suppress(OSError):
            self._guard.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(_END_S)
        for process in self._started.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
