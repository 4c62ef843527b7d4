"""Start and end of the processes of a rehearsal, each of which writes its output to a log."""

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

    It is a context manager that ends the processes on exit. A further process, the guard, ends them
    even if this process is killed.

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
        """Register a network namespace, so that it is removed even if this process is killed.

        The guard, a further process, removes it.

        Args:
            name: name of the namespace in the system.
        """
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
            name: name of the process, by which other methods refer to it.
            command: the words of its command.
            env: its environment variables.
        """
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=env, start_new_session=True
            )
        self._write_to_guard(f"group {process.pid}")
        self._started[name] = process
        return process

    def log(self, name: str) -> Path:
        """Return the path of the file with the output of the process called ``name``."""
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
        """Give all threads of the rehearsal's processes real-time priority, if that is allowed.

        Other programs of this machine then delay the rehearsal less. In a real deployment, each
        device has a machine of its own.
        """
        groups = {process.pid for process in self._started.values()}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # a process or a thread has just ended, or is another user's
                # the fields after the command's name in brackets: state, parent, process group
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[2]) in groups:
                    for thread in stat.parent.glob("task/[0-9]*"):
                        give_real_time_priority(int(thread.name))

    def check(self) -> None:
        """Raise ``SimulationError`` if any process of the rehearsal has ended.

        The error quotes the last lines of the process's log.
        """
        for name, process in self._started.items():
            status = process.poll()
            if status is not None:
                raise SimulationError(
                    f"the process {name!r} of the rehearsal has ended with status {status}:\n"
                    f"{self.tail(name)}"
                )

    def tail(self, name: str) -> str:
        """Return the last 12 lines of the output of the process called ``name``, for errors."""
        lines = self.log(name).read_text(errors="replace").splitlines()
        return "\n".join(lines[-12:])

    def wait_for(self, name: str, text: str, patience_s: float) -> None:
        """Wait until a process has written a text to its log, which shows that it is ready.

        Args:
            name: name of the process.
            text: the text.
            patience_s: longest real time to wait (s).

        Raises:
            SimulationError: a process of the rehearsal has ended, or the text has not come in time.
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
        """End all processes of the rehearsal, and remove the registered network namespaces."""
        assert self._guard.stdin is not None
        with suppress(OSError):
            self._guard.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(_END_S)
        for process in self._started.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
