"""Executor of a node's ClientApp, in forks of a process that has loaded all libraries and data.

Flower's SuperExec starts a process for each message, which loads torch, fedsim and the data anew.
``python -m fedsim.deployed.executor APP ADDRESS DEVICE`` asks a SuperNode for tasks as SuperExec
does, and forks for each of them. The SuperNode runs with ``--isolation process``, and ADDRESS is
its Runtime API.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.common.errors import FedsimError
from fedsim.common.files import read_toml
from fedsim.common.harmless import say
from fedsim.deployed.export import PACKAGE
from fedsim.deployed.waits import shorten_waits

if TYPE_CHECKING:
    from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

# modules that each task needs, loaded once before the forks
_OF_EACH_TASK = ("flwr.supernode.runtime.run_clientapp", "httpcore")
READY = "fedsim: the node is ready"
"""Line that an executor prints before it asks for tasks."""
# PR_SET_PDEATHSIG, the option of Linux's ``prctl`` that chooses the signal which a process gets
# when its parent ends
_DEATH_SIGNAL = 1


class ForkExecutor:
    """Plug-in of Flower's SuperExec that passes each task through a pipe to another process.

    The other process runs ``execute``. It has loaded all libraries and data, and carries out each
    task in a fork of itself, so that a task does not load them again.

    Args:
        tasks: file descriptor of the pipe's end for writing.
    """

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def get_eligible_capacity(
        self, supported_task_types: set[str], **_: object
    ) -> tuple[set[str], set[str]]:
        """Tell Flower that tasks of all given types can be launched now, for any app."""
        return supported_task_types, set()

    def wait_for_capacity(self, *_: object, **__: object) -> None:
        """Return without waiting: a task can be launched at any time."""

    def launch(self, spec: "ExecutionSpec") -> "LaunchResult":
        """Write a task to the pipe when Flower launches it; ``execute`` then carries it out."""
        from flwr.supercore.superexec.executor.types import LaunchResult

        line = json.dumps({"address": spec.runtime_api_address, "token": spec.token})
        os.write(self._tasks, f"{line}\n".encode())
        return LaunchResult.accepted()

    def close(self) -> None:
        """Do nothing; the process that runs ``execute`` ends when the pipe is closed."""

    def reconcile(self) -> None:
        """Do nothing; Flower calls this to clean up after tasks, and ``execute`` does so itself."""


def end_with_parent() -> None:
    """Ask the system to kill this process when its parent ends (only on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _fetch_tasks(address: str, tasks: int) -> None:
    """Fetch tasks from the SuperNode until the process is killed, and write them to a pipe.

    Args:
        address: HOST:PORT of the SuperNode's Runtime API.
        tasks: file descriptor of the pipe.
    """
    end_with_parent()
    module = importlib.import_module("flwr.supercore.superexec.run_superexec")
    vars(module)["get_executor"] = lambda *_, **__: ForkExecutor(tasks)
    module.run_superexec(runtime_api_address=address, insecure=True)


def _fork(line: str) -> None:
    """Carry out a task in a fork of this process, which has all modules loaded.

    Args:
        line: the task as it was written to the pipe.
    """
    is_parent = os.fork() != 0
    if is_parent:
        return
    end_with_parent()
    status = 1
    try:
        from flwr.supernode.runtime.run_clientapp import run_clientapp

        task = json.loads(line)
        run_clientapp(runtime_api_address=task["address"], token=task["token"], insecure=True)
        status = 0
    except SystemExit as end:
        status = 0 if not end.code else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _reap() -> None:
    """Remove ended forks from the system's table of processes."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


def execute(app: Path, address: str, device: int) -> None:
    """Carry out the tasks of a device's SuperNode, each in a fork of this process.

    It returns when the process that asks the SuperNode for tasks has ended.

    Args:
        app: folder of the exported app.
        address: HOST:PORT of the SuperNode's Runtime API.
        device: number of the node's device.
    """
    from fedsim.deployed.client import client_half

    for name in _OF_EACH_TASK:
        importlib.import_module(name)
    shorten_waits()
    package = app / PACKAGE
    sys.path.insert(0, str(package / "own"))
    config = read_toml(app / "pyproject.toml")["tool"]["flwr"]["app"]["config"]
    half = client_half(package / "scenario.toml", device, config["pace"], config["slept"])
    half.warm_up()
    say(READY)
    reader, writer = os.pipe()
    is_fetcher = os.fork() == 0  # the forked process, which asks the SuperNode for tasks
    if is_fetcher:
        os.close(reader)
        _fetch_tasks(address, writer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as tasks:
        for line in tasks:  # until the fetcher has ended
            _reap()
            _fork(line)


def main() -> None:
    """Call ``execute`` with the command line's arguments: APP, ADDRESS and DEVICE.

    If fedsim raises an error, print its message and exit with status 1.
    """
    app, address, device = sys.argv[1:]
    try:
        execute(Path(app), address, int(device))
    except FedsimError as error:
        say(f"fedsim: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
