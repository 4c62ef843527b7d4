"""A Flower deployment on this machine: one SuperLink and several SuperNodes, which run an app.

``python -m tests.benchmarks.deployment APP NODES [key=value ...]`` runs an app that
``fedsim flower export`` has written, by ``flwr run``, and ends all that it has started.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.children import popen

_BIN = Path(sys.executable).parent
_PATIENCE_S = 900.0


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        number: int = asked.getsockname()[1]
        return number


def wait_for(port: int) -> None:
    """Wait until a port of this machine takes connections."""
    last = time.monotonic() + _PATIENCE_S
    while time.monotonic() < last:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens on port {port}")


@contextmanager
def started(command: list[str], log: Path, env: dict[str, str]) -> Iterator[None]:
    """A process of a session of its own, which ends with all of its children."""
    with log.open("w") as file:
        process = popen(command, stdout=file, stderr=file, env=env, start_new_session=True)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5.0)


def deploy(app: Path, nodes: int, config: list[str], folder: Path) -> int:
    """Run an app on ``nodes`` SuperNodes; logs are written to ``folder``.

    Returns:
        The exit status of ``flwr run``.
    """
    api = free_port()
    home = folder / "home"
    home.mkdir(parents=True)
    (home / "config.toml").write_text(
        f'[superlink.here]\naddress = "127.0.0.1:{api}"\ninsecure = true\n'
    )
    path = f"{_BIN}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path}
    link = [
        *(
            str(_BIN / "flower-superlink"),
            "--insecure",
            "--disable-runtime-dependency-installation",
        ),
        *("--host", "127.0.0.1", "--port", str(api)),
    ]
    run_config = " ".join(config)
    with ExitStack() as stack:
        stack.enter_context(started(link, folder / "superlink.log", env))
        wait_for(api)
        for node in range(nodes):
            command = [
                *(str(_BIN / "flower-supernode"), "--insecure"),
                *("--superlink", f"127.0.0.1:{api}", "--port", str(free_port())),
                *("--node-config", f"partition-id={node} num-partitions={nodes}"),
            ]
            stack.enter_context(started(command, folder / f"node-{node}.log", env))
        command = [str(_BIN / "flwr"), "run", str(app), "here", "--stream"]
        if run_config:
            command += ["--run-config", run_config]
        return popen(command, env=env).wait(_PATIENCE_S)


def main(app: str, nodes: str, *config: str) -> int:
    # ended by a signal, it still ends what it has started
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="deployment-"))
    print(f"logs are in {folder}", flush=True)
    return deploy(Path(app), int(nodes), list(config), folder)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
