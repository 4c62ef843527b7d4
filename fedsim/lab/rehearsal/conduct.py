"""Run a scenario's Flower app for real on this machine, with a SuperLink and SuperNodes."""

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedsim.clock.simulation import Simulation
from fedsim.common.errors import RunFolderError, ScenarioError, SimulationError
from fedsim.common.files import read_text
from fedsim.deployed import step_log, waits
from fedsim.deployed.executor import READY
from fedsim.deployed.export import export
from fedsim.deployed.wire import FILE as WIRE
from fedsim.lab.rehearsal.needs import free_port, obstacles, port_is_free
from fedsim.lab.rehearsal.network import (
    SERVER_ADDRESS,
    Namespaces,
    NodeLink,
    client_name,
    remove_leftovers,
)
from fedsim.lab.rehearsal.processes import RehearsalProcesses
from fedsim.records.folder import SUMMARY
from fedsim.running.assembly import Run
from fedsim.running.scenario import Scenario
from fedsim.world.network.spec import StarSpec
from fedsim.world.network.traced import TracedRate

MEASURED = "rehearsed"
"""Name of the measured run folder in a rehearsal's folder."""
SHORT_WAIT_S = 0.2
"""Default of ``RehearsalPlan.waits_s``, the longest time between two polls of a process (s)."""
_SUPERLINK_PORT = 8000
_PATIENCE_S = 600.0  # real time for the start of all nodes (s)
_RUNTIME_PORT = 8080  # port of each SuperNode if nodes have network namespaces
_MBIT_PER_BYTE = 8e-6
_POLL_S = 0.05  # interval in which a rehearsal looks for the app's end and the devices' changes (s)
_FOLDERS = ("app", "logs", "steps", "homes")


@dataclass(frozen=True)
class RehearsalPlan:
    """Options of a rehearsal, in which a scenario is run by real processes on this machine.

    Attributes:
        has_namespaces: whether devices and server have network namespaces of Linux, with links of
            the scenario's rates and latencies. Otherwise all use the loopback interface.
        trains: whether a training takes the time that this machine needs. Otherwise it takes the
            time that the scenario gives.
        waits_s: longest time between two polls of Flower's processes (s); None for the intervals
            that Flower uses by default.
        port: port of the SuperLink; None for any that is free.
    """

    has_namespaces: bool = True
    trains: bool = False
    waits_s: float | None = SHORT_WAIT_S
    port: int | None = None


def rehearse(
    scenario: Scenario,
    out: Path,
    plan: RehearsalPlan,
    notify: Callable[[str], None] = lambda _: None,
) -> Path:
    """Run a scenario with real processes of Flower on this machine, and record the times.

    Args:
        scenario: the scenario.
        out: folder of the rehearsal. It gets the folders ``app`` (the exported Flower app),
            ``logs`` (output of the processes) and ``rehearsed`` (the measured run folder).
        plan: options of the rehearsal.
        notify: is called with lines of progress.

    Returns:
        Path of the measured run folder, in ``out``.

    Raises:
        ScenarioError: the scenario, or this machine, does not allow the rehearsal.
        RunFolderError: ``out`` has a rehearsal already.
        SimulationError: a process has failed.
    """
    refuse(scenario, out, plan)
    if plan.has_namespaces:
        for name in remove_leftovers():
            notify(f"removed the namespace {name} of a rehearsal that was killed")
    for name in _FOLDERS:
        (out / name).mkdir(parents=True, exist_ok=True)
    measured = out / MEASURED
    # run configuration of the app; a device sleeps ``pace`` seconds for each second of the
    # scenario's trainings
    config: dict[str, object] = {
        "out": str(measured.resolve()),
        "patience": _PATIENCE_S,
        "pace": 0.0 if plan.trains else 1.0,
        "slept": "training",
    }
    export(scenario, out / "app", config)
    _Rehearsal(scenario, out.resolve(), plan, notify).run()
    if not (measured / SUMMARY).is_file():
        raise SimulationError(
            "the app has ended without results: it has failed, or Flower has ended it, as it does "
            "on a machine too busy for a process's heartbeats; the logs are in "
            f"{str(out / 'logs')!r}"
        )
    counters = out / "steps" / WIRE  # bytes of each link over time
    if counters.is_file():  # bytes are counted only with namespaces
        counters.rename(out / WIRE)
    for name in ("homes", "steps"):
        shutil.rmtree(out / name)
    return measured


def refuse(scenario: Scenario, out: Path, plan: RehearsalPlan) -> None:
    """Raise an error if a rehearsal of the scenario cannot begin; nothing is changed.

    Args:
        scenario: the scenario.
        out: folder of the rehearsal.
        plan: options of the rehearsal.

    Raises:
        ScenarioError: the scenario or this machine does not allow the rehearsal, or the port is
            taken.
        RunFolderError: ``out`` has a rehearsal already.
    """
    reasons = list(obstacles(scenario, has_namespaces=plan.has_namespaces))
    if reasons:
        raise ScenarioError("\n".join(reasons))
    if any((out / name).exists() for name in (*_FOLDERS, MEASURED)):
        raise RunFolderError(f"--out {str(out)!r} has a rehearsal already; give a new folder")
    if plan.port is not None and not plan.has_namespaces and not port_is_free(plan.port):
        raise ScenarioError(
            f"--port {plan.port} is taken by another process of this machine; give another one, "
            "or none for any that is free"
        )


def links_of(scenario: Scenario, run: Run) -> tuple[NodeLink, list[NodeLink]]:
    """Return the link of the server, and the links of all devices, that a rehearsal builds.

    Args:
        scenario: the scenario, whose network is a star.
        run: a run of the scenario, which has drawn the devices' links.
    """
    assert isinstance(scenario.network, StarSpec)
    server = scenario.network.server
    down = run.network.access["down"]
    up = run.network.access["up"]
    latencies = run.network.latencies
    devices = [
        NodeLink(_mbit(up.item(device)), _mbit(down.item(device)), latencies.item(device) * 1e3)
        for device in range(scenario.population.devices)
    ]
    assert not isinstance(server.down, TracedRate), "refused"
    assert not isinstance(server.up, TracedRate), "refused"
    return NodeLink(_mbit(server.down), _mbit(server.up)), devices


def _mbit(rate: float) -> float | None:
    return None if math.isinf(rate) else rate * _MBIT_PER_BYTE


class _AvailabilityChange(NamedTuple):
    """Change of a device's availability in the scenario.

    Attributes:
        time_s: time after the run's begin (s).
        device: ID of the device.
        is_on: whether the device is available from this time on.
    """

    time_s: float
    device: int
    is_on: bool


class _Rehearsal:
    """A rehearsal: real processes of Flower that run a scenario on this machine.

    ``run`` starts the processes, waits for the end of the app, and ends the processes.

    Args:
        scenario: the scenario.
        out: absolute path of the rehearsal's folder, which has an exported app.
        plan: options of the rehearsal.
        notify: is called with lines of progress.
    """

    def __init__(
        self, scenario: Scenario, out: Path, plan: RehearsalPlan, notify: Callable[[str], None]
    ) -> None:
        self._scenario = scenario
        self._out = out
        self._plan = plan
        self._notify = notify
        self._run = Run(scenario, Simulation())  # never carried out; has drawn devices and links
        self._devices = scenario.population.devices  # count of devices
        self._network: Namespaces | None = None  # None for loopback, or until it is built
        # environment variables of all processes; ``_home`` adds a folder for each
        self._env = {
            **os.environ,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(plan.waits_s or 1.0),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            step_log.VARIABLE: str(out / "steps"),
        }
        self._env.pop(waits.VARIABLE, None)
        if plan.waits_s is not None:
            self._env[waits.VARIABLE] = str(plan.waits_s)

    def run(self) -> None:
        """Start network and processes, wait for the end of the app, and end all of them.

        Raises:
            SimulationError: a process has failed.
        """
        with ExitStack() as stack:
            processes = stack.enter_context(RehearsalProcesses(self._out / "logs"))
            if self._plan.has_namespaces:
                self._network = self._build_network(stack, processes)
            host, port = self._start_superlink(processes)
            self._start_nodes(processes, host, port)
            app = self._start_app(processes, f"{host}:{port}")
            self._watch(processes, app)

    def _build_network(self, stack: ExitStack, processes: RehearsalProcesses) -> Namespaces:
        """Make the network namespaces, and start the processes that delay packets and count bytes.

        Args:
            stack: on its exit, the namespaces are removed.
            processes: the processes of the rehearsal, to which the two are added.
        """
        server, devices = links_of(self._scenario, self._run)
        network = stack.enter_context(Namespaces(server, devices))
        for name in network.names:  # the guard removes them, even if this process is killed
            processes.guard_namespace(name)
        if network.has_latency:
            processes.start("latency", network.delaying(), self._env)
        module = "fedsim.deployed.wire"
        words = (str(self._out / "steps" / WIRE), str(self._devices))
        command = [*network.within("core"), sys.executable, "-m", module, *words]
        processes.start("wire", command, self._env)
        self._notify(f"{self._devices} devices and the server have network namespaces")
        return network

    def _within(self, where: str) -> list[str]:
        """Return the words that run a command in a network namespace, to put before the command.

        Empty if the rehearsal has no namespaces.
        """
        return [] if self._network is None else self._network.within(where)

    def _home(self, name: str) -> dict[str, str]:
        """Make a folder for Flower's own files, and return environment variables that name it.

        Each process gets a folder of its own.

        Args:
            name: name of the process and of the folder.
        """
        home = self._out / "homes" / name
        home.mkdir(exist_ok=True)
        return {**self._env, "FLWR_HOME": str(home)}

    def _start_superlink(self, processes: RehearsalProcesses) -> tuple[str, int]:
        """Start Flower's SuperLink, and return its host and port when it is ready."""
        host = SERVER_ADDRESS
        port = self._plan.port or _SUPERLINK_PORT
        if self._network is None:
            host = "127.0.0.1"
            port = self._plan.port or free_port()
        command = [
            *self._within("server"),
            "flower-superlink",
            "--insecure",
            "--disable-runtime-dependency-installation",
            *("--host", host, "--port", str(port)),
        ]
        processes.start("superlink", command, self._home("superlink"))
        processes.wait_for("superlink", "running on http", _PATIENCE_S)
        self._notify(f"the SuperLink listens on {host}:{port}")
        return host, port

    def _start_nodes(self, processes: RehearsalProcesses, host: str, port: int) -> None:
        """Start a SuperNode and the executor of its ClientApp for each device."""
        for device in range(self._devices):
            within = self._within(client_name(device))
            # in namespaces of their own, all nodes may use the same port
            runtime = _RUNTIME_PORT if self._network is not None else free_port()
            node = [
                *within,
                *(sys.executable, "-m", "fedsim.deployed.supernode", "--insecure"),
                *("--superlink", f"{host}:{port}", "--isolation", "process"),
                *("--host", "127.0.0.1", "--port", str(runtime)),
                *("--node-config", f"partition-id={device} num-partitions={self._devices}"),
            ]
            name = f"node-{device}"
            processes.start(name, node, self._home(name))
            processes.wait_for(name, "running on http", _PATIENCE_S)
            module = "fedsim.deployed.executor"
            words = (str(self._out / "app"), f"127.0.0.1:{runtime}", str(device))
            executor = [*within, sys.executable, "-m", module, *words]
            processes.start(_executor_name(device), executor, self._home(name))
        for device in range(self._devices):
            processes.wait_for(_executor_name(device), READY, _PATIENCE_S)
        if self._network is not None and not self._plan.trains:
            processes.give_real_time_priority()
        self._notify(f"{self._devices} SuperNodes are ready")

    def _start_app(self, processes: RehearsalProcesses, address: str) -> "subprocess.Popen[bytes]":
        """Start the app by ``flwr run``, for the SuperLink at an address HOST:PORT."""
        env = self._home("app")
        home = Path(env["FLWR_HOME"])
        (home / "config.toml").write_text(
            f'[superlink.rehearsal]\naddress = "{address}"\ninsecure = true\n'
        )
        command = [
            *self._within("server"),
            *("flwr", "run", str(self._out / "app"), "rehearsal", "--stream"),
        ]
        return processes.start("app", command, env)

    def _watch(self, processes: RehearsalProcesses, app: "subprocess.Popen[bytes]") -> None:
        """Wait for the end of the app, and meanwhile pause the nodes of unavailable devices.

        Args:
            processes: the processes of the rehearsal.
            app: the process of ``flwr run``.

        Raises:
            SimulationError: the app has failed.
        """
        begin: float | None = None  # real time of the run's begin (s since 1970); None before it
        changes = self._availability_changes()  # in the order of their times
        while app.poll() is None:
            time.sleep(_POLL_S)
            if begin is None:
                begin = self._read_begin()
                if begin is not None:
                    self._notify("the run has begun")
                continue
            while changes and changes[0].time_s <= time.time() - begin:
                time_s, device, is_on = changes.pop(0)
                self._switch(processes, device, is_on)
                state = "on" if is_on else "off"
                self._notify(f"{time_s:8.2f} s: device {device} is {state}")
        if app.returncode:
            raise SimulationError(f"'flwr run' has failed:\n{processes.tail('app')}")

    def _read_begin(self) -> float | None:
        file = self._out / "steps" / step_log.BEGAN
        return float(read_text(file)) if file.exists() else None

    def _availability_changes(self) -> list[_AvailabilityChange]:
        """Return the times at which devices become available or unavailable, sorted.

        At time 0, only the devices that are unavailable then have an entry.
        """
        # without a time limit in the scenario, only the changes of the first day
        end_s = self._scenario.stop.simulated_time or 24 * 3600.0
        columns: Mapping[str, list[float]] = {
            name: values.tolist() for name, values in self._run.availability_columns(end_s).items()
        }
        rows = zip(columns["time"], columns["device"], columns["on"], strict=True)
        changes = []
        for time_s, device, is_on in rows:
            if time_s > 0.0 or not is_on:
                changes.append(_AvailabilityChange(time_s, int(device), bool(is_on)))
        return sorted(changes)

    def _switch(self, processes: RehearsalProcesses, device: int, is_on: bool) -> None:
        if self._network is not None:
            self._network.set_link(device, is_up=is_on)
        for name in (f"node-{device}", _executor_name(device)):
            if is_on:
                processes.resume(name)
            else:
                processes.pause(name)


def _executor_name(device: int) -> str:
    return f"executor-{device}"
