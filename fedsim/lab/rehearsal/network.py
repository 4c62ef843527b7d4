"""Linux network namespaces for a server and its clients, joined by links with rate and latency.

A further namespace, the core, acts as the router between them. Every rate is a token bucket
(``tc tbf``) at the sending end of its link. Many kernels have no ``netem``, so a process delays the
packets. It reads them from a TUN device of the core, and writes them back after their latency.
Traffic stays in the namespaces, because they have no link to the outside.
"""

import heapq
import itertools
import os
import re
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedsim.common.errors import SimulationError

SERVER_ADDRESS = "10.99.0.2"
"""Address of the server in its namespace."""
PREFIX = "fedsim"
"""First letters of the names of all namespaces; the ID of the process that made them follows."""
_OWN_NAME = re.compile(rf"{PREFIX}([1-9]\d*)-(core|server|probe|client\d+)")
_DELAY_DEVICE = "lag"
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_TUNSETIFF = 0x400454CA
_DELAY_TABLE = 100  # number of the routing table of packets that are delayed
_SOURCE_NETWORK = 14  # index in an IPv4 packet of the third byte of the source address
_DESTINATION_NETWORK = 18
_LEAST_BURST = 8_000  # least size of a token bucket (bytes)
_BURST_S = 0.001  # a bucket holds at least what its link sends in this time (s)


class NodeLink(NamedTuple):
    """Link of the server or of a client in a rehearsal with Linux network namespaces.

    The link leads to the core, the namespace that routes between the server and all clients.

    Attributes:
        to_core: rate at which the server or client sends (Mbit/s on the wire); None for no limit.
        from_core: rate at which it receives (Mbit/s on the wire); None for no limit.
        latency_ms: latency of each packet, each way (ms). It is used for clients only.
    """

    to_core: float | None = None
    from_core: float | None = None
    latency_ms: float = 0.0


def _run(*words: object) -> None:
    command = [str(word) for word in words]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise SimulationError(f"{' '.join(command)} failed: {completed.stderr.strip()}")


class Namespaces:
    """Context manager of a rehearsal's Linux network namespaces: for the server and each client.

    Links with limited rates join them to a further namespace, ``core``, which routes between them.
    All namespaces are made on entry, and removed on exit.

    Args:
        server: the server's link.
        clients: the links of the clients.

    Attributes:
        names: names of the namespaces in the system, such as ``fedsim1234-core``, that are made and
            not yet removed.
    """

    def __init__(self, server: NodeLink, clients: Sequence[NodeLink]) -> None:
        self._server = server
        self._clients = clients
        self._prefix = f"{PREFIX}{os.getpid()}"
        self.names: list[str] = []

    def __enter__(self) -> "Namespaces":
        try:
            self._build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove all network namespaces of this rehearsal, and end the processes in them."""
        while self.names:
            remove(self.names.pop())

    def _build(self) -> None:
        """Make namespaces and links, and route packets to the delaying process if it is needed."""
        core = self._add("core")
        # The core forwards packets. Without the filter, they may also come back from the delaying
        # process, on another interface than the one that leads to their source.
        settings = ("ip_forward=1", "conf.all.rp_filter=0", "conf.default.rp_filter=0")
        for setting in settings:
            _run(*self.within("core"), "sysctl", "-q", "-w", f"net.ipv4.{setting}")
        self._connect("server", 0, self._server)
        for number, link in enumerate(self._clients):
            self._connect(client_name(number), number + 1, link)
        if self.has_latency:
            _run("ip", "-n", core, "tuntap", "add", "dev", _DELAY_DEVICE, "mode", "tun")
            _run("ip", "-n", core, "link", "set", _DELAY_DEVICE, "up")
            default_route = ("default", "dev", _DELAY_DEVICE, "table", _DELAY_TABLE)
            _run("ip", "-n", core, "route", "add", *default_route)
            # packets from links are routed to the delaying process, which writes them back
            for number in range(len(self._clients) + 1):
                interface = f"c{number}"
                _run("ip", "-n", core, "rule", "add", "iif", interface, "lookup", _DELAY_TABLE)

    @property
    def has_latency(self) -> bool:
        """Whether any client's link has a latency, so that the command ``delaying`` has to run."""
        return any(link.latency_ms for link in self._clients)

    def within(self, where: str) -> list[str]:
        """Return the words that start a command in a namespace, to put before the command.

        Args:
            where: the namespace: ``core``, ``server``, or a name from ``client_name``.
        """
        return ["ip", "netns", "exec", self.name(where)]

    def name(self, where: str) -> str:
        """Return the name of a namespace in the system, such as ``fedsim1234-core``.

        Args:
            where: the namespace: ``core``, ``server``, or a name from ``client_name``.
        """
        return f"{self._prefix}-{where}"

    def delaying(self) -> list[str]:
        """Return the words of the command that delays packets by the links' latencies."""
        latencies = [str(link.latency_ms) for link in self._clients]
        module = "fedsim.lab.rehearsal.network"
        return [*self.within("core"), sys.executable, "-m", module, *latencies]

    def set_link(self, client: int, *, is_up: bool) -> None:
        """Take a client's link up or down.

        Args:
            client: index of the client, from 0.
            is_up: whether to take it up.
        """
        state = "up" if is_up else "down"
        _run("ip", "-n", self.name("core"), "link", "set", f"c{client + 1}", state)

    def _add(self, where: str) -> str:
        name = self.name(where)
        _run("ip", "netns", "add", name)
        self.names.append(name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def _connect(self, where: str, number: int, link: NodeLink) -> None:
        """Make the namespace of the server or of a client, and link it to the namespace ``core``.

        The link is the network 10.99.NUMBER.0/24.

        Args:
            where: ``server``, or a name from ``client_name``. The link is called ``e`` there.
            number: number of the link, 0 for the server. The link is called ``cNUMBER`` in the
                core.
            link: rates of the link; its latency is not used here.
        """
        core = self.name("core")
        name = self._add(where)
        ends = ("type", "veth", "peer", "name", "e", "netns", name)
        _run("ip", "link", "add", f"c{number}", "netns", core, *ends)
        for space, device, host, rate in (
            (core, f"c{number}", 1, link.from_core),
            (name, "e", 2, link.to_core),
        ):
            _run("ip", "-n", space, "addr", "add", f"10.99.{number}.{host}/24", "dev", device)
            # without segmentation offload, so that the token bucket counts single packets
            _run("ip", "-n", space, "link", "set", device, "gso_max_segs", 1)
            _run("ip", "-n", space, "link", "set", device, "up")
            if rate is not None:
                burst = max(_LEAST_BURST, round(rate * 1e6 / 8 * _BURST_S))
                shape = ("tbf", "rate", f"{rate}mbit", "burst", burst, "latency", "60ms")
                _run("tc", "-n", space, "qdisc", "add", "dev", device, "root", *shape)
        # no default route, so that a connection to another machine fails at once
        _run("ip", "-n", name, "route", "add", "10.99.0.0/16", "via", f"10.99.{number}.1")


def client_name(number: int) -> str:
    """Return the name of a client's network namespace, such as ``client3`` for the index 3."""
    return f"client{number}"


def remove(name: str) -> None:
    """End all processes in a network namespace of Linux, and remove the namespace."""
    pids = subprocess.run(
        ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
    ).stdout.split()
    for pid in map(int, pids):
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def remove_leftovers() -> list[str]:
    """Remove network namespaces of rehearsals whose process has ended, and return their names."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    removed: list[str] = []
    for line in listed.stdout.splitlines():
        name = line.partition(" ")[0]
        match = _OWN_NAME.fullmatch(name)
        if match is None or Path(f"/proc/{match[1]}").exists():  # its rehearsal is still running
            continue
        remove(name)
        removed.append(name)
    return removed


def _read_packets(tun: int) -> Iterator[bytes]:
    """Yield the packets that wait in a TUN device, until it has none.

    Args:
        tun: file descriptor of the device, which does not block.
    """
    with suppress(BlockingIOError):
        while True:
            yield os.read(tun, 2048)


def delay(latencies_ms: Sequence[float]) -> None:
    """Delay each packet between server and client by the client's latency; never returns.

    The process that runs this function is in the namespace ``core``, which routes all packets. The
    process reads the packets from a TUN device there, and writes each packet back when its latency
    has passed.

    Args:
        latencies_ms: latency of each client's packets, each way (ms).
    """
    import fcntl  # only Unix has it

    # opens the TUN device: each read gives a packet to delay, each write puts a packet on its way
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH", _DELAY_DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    # heap of time to leave, index of arrival (which decides if times are equal), and packet
    waiting: list[tuple[float, int, bytes]] = []
    arrival_numbers = itertools.count()
    while True:
        wait_s = None  # if no packet waits, ``select`` returns when the next packet arrives
        if waiting:
            wait_s = max(0.0, waiting[0][0] - time.monotonic())
        select.select([tun], [], [], wait_s)
        for packet in _read_packets(tun):
            # third byte of an address 10.99.NUMBER.HOST: 0 for the server, else client + 1
            client = max(packet[_SOURCE_NETWORK], packet[_DESTINATION_NETWORK]) - 1
            is_ipv4 = packet[0] >> 4 == 4
            if not is_ipv4 or not 0 <= client < len(latencies_ms):
                continue  # drops the packet, which is not between server and client
            leaves_at = time.monotonic() + latencies_ms[client] / 1e3
            heapq.heappush(waiting, (leaves_at, next(arrival_numbers), packet))
        while waiting and waiting[0][0] <= time.monotonic():
            packet = heapq.heappop(waiting)[2]
            with suppress(OSError):  # for example if the destination's link is cut
                os.write(tun, packet)


def give_real_time_priority(thread: int = 0) -> None:
    """Give a thread real-time priority (round robin), if the system allows it.

    Threads and processes that the thread starts later inherit the priority.

    Args:
        thread: ID of the thread; 0 for the calling thread.
    """
    with suppress(OSError):
        os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(10))


if __name__ == "__main__":
    give_real_time_priority()
    delay([float(word) for word in sys.argv[1:]])
