"""A Flower deployment on this machine: one SuperLink and several SuperNodes, which run an app.

``python -m tests.benchmarks.deployment APP NODES [key=value ...]`` runs an app that
``fedsim flower export`` has written, by ``flwr run``, and ends all that it has started.

``python -m tests.benchmarks.deployment --engine FOLDER [STRATEGY ...]`` exports eight strategies, runs each
app on Flower's simulation engine with six nodes, and prints a table that compares it with its simulation.
``--loopback`` in place of ``--engine`` runs them as a SuperLink and six SuperNodes, by a rehearsal.
``--table FOLDER`` prints the table of runs that have ended.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from fedsim.deployed.export import export
from fedsim.deployed.server import EVENTS
from fedsim.lab.rehearsal.conduct import MEASURED, RehearsalPlan, rehearse
from fedsim.lab.rehearsal.differences import compare
from fedsim.lab.rehearsal.loop import SIMULATED, simulate
from fedsim.records.folder import SUMMARY
from fedsim.running.scenario import Scenario
from tests.children import popen

_BIN = Path(sys.executable).parent
_PATIENCE_S = 900.0
_NODES = 6
_CLIENTS = {"clients_per_round": 4, "local_epochs": 2}
_MODEL = {"kind": "mlp", "hidden": [32]}
_DEADLINE_S = 4.0  # on Flower's engine
_SPEEDS = (400.0, 340.0, 290.0, 250.0, 215.0, 40.0)  # samples/s on Flower's engine
_SLOWER = {"--engine": 1.0, "--loopback": 16.0}
"""How many times longer trainings and deadlines are than on Flower's engine.

SuperNodes on this machine add seconds to a message while other work keeps the machine busy.
"""
_STRATEGIES: dict[str, dict[str, object]] = {
    "fedavg-deadline": {"strategy": {"kind": "fedavg", "deadline": _DEADLINE_S, **_CLIENTS}},
    "fedprox": {"strategy": {"kind": "fedprox", "mu": 0.1, **_CLIENTS}},
    "scaffold": {"strategy": {"kind": "scaffold", **_CLIENTS}},
    "fedbuff": {
        "strategy": {"kind": "fedbuff", "concurrency": 3, "buffer": 2, "local_epochs": 2},
    },
    "cata-fed": {
        "strategy": {
            "kind": "cata-fed",
            "clusters": 1,
            "deadline": 3.65,  # far from a whole number of epochs of any device
            "smallest_part": 10,
            **_CLIENTS,
        },
    },
    "flexcfl": {
        "data": {"source": "digits", "partition": {"kind": "label-groups", "groups": 2}},
        "strategy": {
            "kind": "flexcfl",
            "groups": 2,
            "moment": {"kind": "pre-training", "devices": 2, "newcomers": "selection"},
            **_CLIENTS,
        },
    },
    "fedavg-qsgd": {"strategy": {"kind": "fedavg", **_CLIENTS}, "messages": {"up": "qsgd"}},
    "fedavg-lora": {
        "strategy": {"kind": "fedavg", **_CLIENTS},
        "model": {**_MODEL, "lora": {"rank": 2}},
    },
}


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


def scenario(name: str, slower: float) -> Scenario:
    """Return the scenario of a strategy of the table: six devices, of which one is slow.

    Args:
        name: name of the strategy in the table.
        slower: factor of the times of trainings, and of deadlines.
    """
    sections: dict[str, object] = {
        "name": name,
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0}},
        "model": _MODEL,
        "population": {
            "devices": _NODES,
            "speed": [f"{speed / slower} samples/s" for speed in _SPEEDS],
        },
        "network": {"kind": "star", "device": {"down": "2 Mbit/s", "up": "1 Mbit/s"}},
        "stop": {"rounds": 3},
        **_STRATEGIES[name],
    }
    strategy = sections["strategy"]
    if isinstance(strategy, dict) and "deadline" in strategy:
        deadline_s = strategy["deadline"] * slower
        sections["strategy"] = {**strategy, "deadline": f"{deadline_s} s"}
    return Scenario(**sections)


@contextmanager
def engine(folder: Path) -> Iterator[Callable[[Path], int]]:
    """Start a SuperLink with Flower's simulation engine, and yield a function that runs an app."""
    port = free_port()
    home = folder / "home"
    home.mkdir(parents=True)
    (home / "config.toml").write_text(
        f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    path = f"{_BIN}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path}
    env |= {"OMP_NUM_THREADS": "1"}
    link = [
        *(str(_BIN / "flower-superlink"), "--insecure", "--simulation"),
        *("--disable-runtime-dependency-installation", "--isolation", "subprocess"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    # a process for each node, so that no node's sleep holds up another's
    workers = f"num-supernodes={_NODES} init-args-num-cpus={_NODES} client-resources-num-cpus=1"

    def run(app: Path) -> int:
        command = [str(_BIN / "flwr"), "run", str(app), "here", "--stream"]
        command += ["--federation-config", workers]
        with (app.parent / "run.log").open("w") as log:
            return popen(command, env=env, stdout=log, stderr=log).wait(_PATIENCE_S)

    with started(link, folder / "superlink.log", env):
        wait_for(port)
        yield run


def largest_difference(one: Path, other: Path) -> float:
    """Return the largest difference of a weight between the final models of two run folders."""
    files = sorted(path.relative_to(one) for path in (one / "models").rglob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no models in {one}")
    largest = 0.0
    for file in files:
        tensors = load_file(one / file)
        others = load_file(other / file)
        for name, tensor in tensors.items():
            largest = max(largest, float(np.abs(tensor - others[name]).max()))
    return largest


def payload_bytes(measured: Path) -> dict[str, int]:
    """Return the bytes of the payloads by direction, without answers that the server ignored."""
    sizes = {"down": 0, "up": 0}
    for line in (measured / EVENTS).read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "sent":
            sizes["down"] += sum(event["bytes"].values())
        elif event["kind"] == "received" and not event["late"]:
            sizes["up"] += sum(event["bytes"].values())
    return sizes


def row(name: str, simulated: Path, measured: Path) -> str:
    """Return the row of a strategy in the table."""
    differences = compare(simulated, measured)
    sizes = []
    for direction, size in payload_bytes(measured).items():
        expected = differences.simulated.bytes[direction]
        sizes.append(f"{size:,} {direction}" + ("" if size == expected else f" ({expected:,.0f})"))
    late = {which: len(rows) for which, rows in differences.late.items()}
    weights = largest_difference(simulated, measured)
    mean = differences.mean_round
    tasks = f"{late['both']}, {late['simulated']}, {late['rehearsed']}"
    length = f"{mean.measured:.2f} s"
    cells = [name, f"{weights:.1g}", ", ".join(sizes), tasks, length, f"{mean.error:+.1%}"]
    return f"| {' | '.join(cells)} |"


def run_all(way: str, folder: Path, names: list[str]) -> None:
    """Simulate strategies, and run them for real on Flower's engine or in a rehearsal."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        run = stack.enter_context(engine(folder / "engine")) if way == "--engine" else None
        for name in names:
            world = scenario(name, _SLOWER[way])
            place = (folder / name).resolve()
            simulate(world, place / SIMULATED)
            if run is None:
                rehearse(world, place, RehearsalPlan(has_namespaces=False))
            else:
                export(world, place / "app", {"out": str(place / MEASURED), "pace": 1.0})
                run(place / "app")
            print(f"{name} has run", flush=True)


def tabulate(folder: Path) -> int:
    """Print a row for each strategy whose runs are in a folder; return 1 if a run has failed.

    Bytes in brackets are the simulated ones if they differ. Tasks that were not done are counted
    in both runs, in the simulation only, and in the deployment only.
    """
    head = ("strategy", "weights", "bytes", "not done", "mean round", "simulated / measured - 1")
    print(f"| {' | '.join(head)} |")
    print(f"|{'---|' * len(head)}")
    failed = 0
    for name in _STRATEGIES:
        place = folder / name
        if (place / MEASURED / SUMMARY).exists():
            print(row(name, place / SIMULATED, place / MEASURED))
        elif place.exists():
            failed = 1
            print(f"| {name} | failed; its log is in {place} |")
    return failed


def main(app: str, nodes: str, *config: str) -> int:
    # ended by a signal, it still ends what it has started
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if app in ("--engine", "--loopback"):
        run_all(app, Path(nodes), list(config) or list(_STRATEGIES))
        app = "--table"
    if app == "--table":
        return tabulate(Path(nodes))
    folder = Path(tempfile.mkdtemp(prefix="deployment-"))
    print(f"logs are in {folder}", flush=True)
    return deploy(Path(app), int(nodes), list(config), folder)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
