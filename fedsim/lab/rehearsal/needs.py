"""Requirements of a rehearsal (a real run of a scenario's Flower app) on machine and scenario."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedsim.common.files import read_text
from fedsim.common.machine import usable_memory
from fedsim.common.streams import Streams
from fedsim.deployed.refusals import refusals
from fedsim.running.scenario import Scenario
from fedsim.world.distributions import Constant
from fedsim.world.network.traced import TracedRate

MOST_DEVICES = 20
"""Upper bound of the devices of a rehearsal; each device is two processes on this machine."""
_LEAST_FLOWER = (1, 41)
_NODE_BYTES = 600e6  # memory of a node's processes, with torch loaded, as measured
_SERVER_BYTES = 1.2e9  # memory of SuperLink and ServerApp


def obstacles(scenario: Scenario, *, has_namespaces: bool) -> Iterator[str]:
    """Yield each reason, as a sentence, why a scenario cannot be rehearsed on this machine.

    A rehearsal runs the scenario for real, as processes of Flower.

    Args:
        scenario: the scenario.
        has_namespaces: whether the rehearsal has network namespaces, and not only loopback.
    """
    yield from refusals(scenario)
    devices = scenario.population.devices
    if devices > MOST_DEVICES:
        yield (
            f"population.devices is {devices}; a rehearsal runs each device as processes of this "
            f"machine; allowed are 1 to {MOST_DEVICES}"
        )
    for name in ("arrivals", "departures"):
        if getattr(scenario.population, name) is not None:
            yield f"population.{name} is not rehearsed; leave it out"
    for name in ("slow_phases", "stragglers"):
        if getattr(scenario.population, name) is not None:
            yield (
                f"population.{name} is not rehearsed, as devices train at population.speed; leave "
                "it out, or list each device's slowed speed in population.speed"
            )
    if has_namespaces and scenario.network.kind != "star":
        yield (
            f"network.kind is {scenario.network.kind!r}, which a rehearsal cannot build; allowed "
            "is 'star', or --loopback, which shapes no links"
        )
    if has_namespaces:
        yield from _links_that_change(scenario)
    yield from _missing_flower(_flower_version())
    needed_bytes = _SERVER_BYTES + devices * _NODE_BYTES
    free_bytes = _free_memory()
    if needed_bytes > free_bytes:
        yield (
            f"{devices} nodes need some {needed_bytes / 1e9:.1f} GB of memory, and "
            f"{free_bytes / 1e9:.1f} GB are free here; take fewer devices"
        )
    if has_namespaces:
        yield from _missing_tools()


def simulated_only(scenario: Scenario, *, has_namespaces: bool, trains: bool) -> Iterator[str]:
    """Yield the name of each scenario key that the simulation applies and the rehearsal does not.

    A rehearsal runs the scenario for real, as processes of Flower.

    Args:
        scenario: the scenario, which can be rehearsed.
        has_namespaces: whether the rehearsal has network namespaces, and not only loopback.
        trains: whether a training takes the time that this machine needs. Otherwise it takes the
            time that the scenario gives.
    """
    population = scenario.population
    capacity = population.capacity
    if trains:
        yield "population.speed"
    if not isinstance(population.jitter, Constant) or population.jitter.value:
        yield "population.jitter"
    elif capacity is not None:
        jitters = capacity.jitters(Streams(scenario.seed), population.devices)
        if jitters is not None and jitters.any():
            yield "the jitter of population.capacity"
    if population.host is not None:
        yield "population.host"
    if not has_namespaces:
        yield "network"
    elif scenario.network.device.loss:
        yield "network.device.loss"
    if scenario.server.patience:
        yield "server.patience"
    if scenario.costs is not None:
        yield "costs"
    if scenario.meters:
        yield "meters"


def _links_that_change(scenario: Scenario) -> Iterator[str]:
    """Yield a sentence against a rehearsal for each rate, latency or loss that follows a trace.

    A rehearsal sets the rates and latencies of its links once.
    """
    network = scenario.network
    traced = [f"device.{name}" for name, value in network.device if isinstance(value, TracedRate)]
    for links in network.shared_links:
        if isinstance(links.rate, TracedRate):
            traced.append(links.key.removeprefix("network."))
    for key in traced:
        yield (
            f"network.{key} follows a trace, and a rehearsal shapes links once; give a constant, "
            "or --loopback, which shapes no links"
        )


def _flower_version() -> str | None:
    """Return the version of Flower that is installed here; None if there is none."""
    try:
        return version("flwr")
    except PackageNotFoundError:
        return None


def _missing_flower(installed: str | None) -> Iterator[str]:
    """Yield a reason against a rehearsal if Flower is too old or not installed.

    Args:
        installed: Flower's installed version; None if it is not installed.
    """
    least = ".".join(map(str, _LEAST_FLOWER))
    advice = f"a rehearsal needs Flower {least} or later (fedsim[flower], see docs/flower.md)"
    if installed is None:
        yield f"Flower is not installed here; {advice}"
        return
    major_and_minor = [int(digits) for digits in re.findall(r"\d+", installed)[:2]]
    if tuple(major_and_minor) < _LEAST_FLOWER:
        yield f"Flower {installed} is installed here; {advice}"


def _free_memory() -> float:
    """Return the memory (bytes) that new processes may take here."""
    limit = float(usable_memory())
    with suppress(OSError):
        for line in read_text(Path("/proc/meminfo")).splitlines():
            if line.startswith("MemAvailable:"):
                limit = min(limit, float(line.split()[1]) * 1024.0)
    return limit


def _missing_tools() -> Iterator[str]:
    """Yield each reason why this machine cannot make network namespaces with shaped links."""
    advice = "; or take --loopback, which shapes no links"
    if sys.platform != "linux":
        yield f"network namespaces need Linux, and this is {sys.platform}{advice}"
        return
    if os.geteuid() != 0:
        yield f"network namespaces need root{advice}"
    missing = [tool for tool in ("ip", "tc", "sysctl") if shutil.which(tool) is None]
    if missing:
        yield f"there is no {' and no '.join(missing)} here (iproute2, procps){advice}"
    elif os.geteuid() == 0 and not _can_shape():
        yield f"this kernel has no token buckets (tc tbf, CONFIG_NET_SCH_TBF){advice}"
    if not Path("/dev/net/tun").exists():
        yield f"there is no /dev/net/tun, by which latencies are made{advice}"


def _can_shape() -> bool:
    """Whether this process can make network namespaces and limit rates by token buckets."""
    name = f"fedsim{os.getpid()}-probe"
    shape = ["tbf", "rate", "10mbit", "burst", "8kb", "latency", "60ms"]
    commands = [
        ["ip", "netns", "add", name],
        ["tc", "-n", name, "qdisc", "add", "dev", "lo", "root", *shape],
    ]
    try:
        return all(
            subprocess.run(command, capture_output=True, check=False).returncode == 0
            for command in commands
        )
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def port_is_free(port: int) -> bool:
    """Whether a port of 127.0.0.1 is free, so that a process can listen on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number
