"""Rounds that really happen: a server and clients as processes in network namespaces, real TCP
over shaped links.

    python scenarios/validation/testbed.py NAME...      # worlds of worlds.toml; writes logs/NAME.csv

Needs Linux, root, ``ip`` and ``tc``. Topology: server - core - client. Every rate is a token bucket
(``tc tbf``: burst 8 kB, queue 60 ms) at the sending end of its link. Latency is made by ``netem``'s
stand-in, a process that reads packets from a TUN device of the core and writes them back when their
time has come: many kernels have no ``netem``. All processes read one monotonic clock. Logs have the
format of ``fedsim calibrate``.
"""

import csv
import fcntl
import heapq
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORLDS = HERE / "worlds.toml"
LOGS = HERE / "logs"

_PORT = 5005
_PAUSE_S = 0.5  # between rounds
# version and size; size, and when it got, trained and sent
_ORDER, _ANSWER = struct.Struct("!qq"), struct.Struct("!qddd")
_IFF_TUN, _IFF_NO_PI, _TUNSETIFF = 0x0001, 0x1000, 0x400454CA
_LAG = "lag"

World = dict[str, Any]


def reason_not_to() -> str | None:
    """Why nothing can be run here; None if it can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} here (iproute2)"
    return None


# The network.


def _do(*words: object) -> None:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"testbed: {' '.join(map(str, words))} failed: {done.stderr.strip()}")


class Network:
    """The namespaces of a world, gone when it is left.

    Args:
        world: as ``worlds.toml`` has it.
    """

    def __init__(self, world: World) -> None:
        self._world, self._prefix = world, f"fedsim{os.getpid()}"
        self._made: list[str] = []

    def __enter__(self) -> "Network":
        core = self._add("core")
        for key in ("ip_forward", "conf.all.rp_filter", "conf.default.rp_filter"):
            self.run(
                "core", "sysctl", "-q", "-w", f"net.ipv4.{key}={int(key == 'ip_forward')}"
            ).wait()
        limits = self._world.get("server", {})
        self._connect("server", 0, limits.get("down"), limits.get("up"))
        for place, client in enumerate(self._world["clients"], start=1):
            self._connect(f"client{place - 1}", place, client["up"], client["down"])
        if any(client.get("latency") for client in self._world["clients"]):
            _do("ip", "-n", core, "tuntap", "add", "dev", _LAG, "mode", "tun")
            _do("ip", "-n", core, "link", "set", _LAG, "up")
            _do("ip", "-n", core, "route", "add", "default", "dev", _LAG, "table", 100)
            # what comes from a link is delayed, and then goes its way
            for place in range(len(self._world["clients"]) + 1):
                _do("ip", "-n", core, "rule", "add", "iif", f"c{place}", "lookup", 100)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def run(self, where: str, *words: str) -> "subprocess.Popen[bytes]":
        """Start a command in a namespace."""
        return subprocess.Popen(["ip", "netns", "exec", f"{self._prefix}-{where}", *words])

    def _add(self, what: str) -> str:
        name = f"{self._prefix}-{what}"
        _do("ip", "netns", "add", name)
        self._made.append(name)
        _do("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def _connect(
        self, what: str, place: int, towards_core: float | None, from_core: float | None
    ) -> None:
        """A pair of devices between the core (``c0``, ``c1`` ...) and a namespace (``e``),
        10.99.PLACE.0/24.
        """
        core, name = f"{self._prefix}-core", self._add(what)
        _do(
            "ip",
            "link",
            "add",
            f"c{place}",
            "netns",
            core,
            "type",
            "veth",
            "peer",
            "name",
            "e",
            "netns",
            name,
        )
        for where, device, host, rate in (
            (core, f"c{place}", 1, from_core),
            (name, "e", 2, towards_core),
        ):
            _do("ip", "-n", where, "addr", "add", f"10.99.{place}.{host}/24", "dev", device)
            # so that the bucket counts packets
            _do("ip", "-n", where, "link", "set", device, "gso_max_segs", 1)
            _do("ip", "-n", where, "link", "set", device, "up")
            if rate is not None:
                shape = ("tbf", "rate", f"{rate}mbit", "burst", "8kb", "latency", "60ms")
                _do("tc", "-n", where, "qdisc", "add", "dev", device, "root", *shape)
        _do("ip", "-n", name, "route", "add", "default", "via", f"10.99.{place}.1")


def delay(latencies_ms: list[float]) -> None:
    """Hold up each packet of the core by its client's latency, for ever."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH", _LAG.encode(), _IFF_TUN | _IFF_NO_PI))
    waiting: list[tuple[float, int, bytes]] = []
    count = 0
    while True:
        wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        if select.select([tun], [], [], wait)[0]:
            with suppress(BlockingIOError):
                while True:
                    packet = os.read(tun, 2048)
                    if packet[0] >> 4 == 4:
                        client = max(packet[14], packet[18]) - 1  # the server's network is 0
                        count += 1
                        heapq.heappush(
                            waiting, (time.monotonic() + latencies_ms[client] / 1e3, count, packet)
                        )
        while waiting and waiting[0][0] <= time.monotonic():
            os.write(tun, heapq.heappop(waiting)[2])


# The two halves.


def _receive(connection: socket.socket, size: int) -> bytes:
    content = bytearray(size)
    view, there = memoryview(content), 0
    while there < size:
        got = connection.recv_into(view[there:])
        if not got:
            raise ConnectionError("the other side is gone")
        there += got
    return bytes(content)


def _tuned(connection: socket.socket, world: World) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_CONGESTION, world.get("congestion", "cubic").encode()
    )
    return connection


def _trainer(world: World, number: int) -> Callable[[bytes], bytes]:
    """What a client does with a model: it sleeps for a known time, or trains a linear model with
    torch.
    """
    if world.get("training") != "torch":

        def sleep(model: bytes) -> bytes:
            time.sleep(world["clients"][number]["train"])
            return model

        return sleep
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(number)
    classes = 10
    features = world["bytes"] // 4 // classes
    inputs, labels = (
        torch.randn(world["samples"], features),
        torch.randint(classes, (world["samples"],)),
    )

    def train(model: bytes) -> bytes:
        weights = (
            torch.frombuffer(bytearray(model), dtype=torch.float32)
            .reshape(classes, features)
            .requires_grad_()
        )
        optimiser = torch.optim.SGD([weights], lr=0.01)
        for batch, wanted in zip(torch.split(inputs, 10), torch.split(labels, 10), strict=True):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(batch @ weights.T, wanted).backward()
            optimiser.step()
        return weights.detach().numpy().tobytes()

    train(bytes(world["bytes"]))  # the first pass loads what later ones have
    return train


def _connected() -> socket.socket:
    """A connection to the server, as soon as it listens."""
    for _ in range(100):
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("10.99.0.2", _PORT))
        time.sleep(0.1)
    raise ConnectionError("the server does not listen")


def client(world: World, number: int, connection: socket.socket) -> None:
    """A client: each model that it gets is trained and sent back, until it is sent none."""
    train = _trainer(world, number)
    connection.sendall(_ORDER.pack(number, 0))
    while True:
        _, size = _ORDER.unpack(_receive(connection, _ORDER.size))
        if not size:
            return
        model = _receive(connection, size)
        got = time.monotonic()
        update = train(model)
        trained = time.monotonic()
        connection.sendall(_ANSWER.pack(len(update), got, trained, time.monotonic()) + update)


class Server:
    """The server: rounds, or versions each time that the buffer is full; writes down what it and
    its clients say.

    Args:
        world: as ``worlds.toml`` has it.
        connections: of the clients, by number.
    """

    def __init__(self, world: World, connections: dict[int, socket.socket]) -> None:
        self._world, self._connections = world, connections
        self._lock = threading.Lock()
        self._rows: list[tuple[Any, ...]] = []
        self._version, self._buffered, self._since = 0, 0, time.monotonic()
        self._model = bytes(world["bytes"])

    def serve(self) -> list[tuple[Any, ...]]:
        """All rounds; returns the log's rows."""
        if "buffer" in self._world:
            self._together(self._keep_busy)
        else:
            for _ in range(self._world["rounds"]):
                start = time.monotonic()
                self._together(self._ask)
                self._row(-1, "round", start, time.monotonic(), "")
                self._version += 1
                time.sleep(_PAUSE_S)
        for connection in self._connections.values():
            connection.sendall(_ORDER.pack(0, 0))
        return self._rows

    def _together(self, what: Callable[[int], None]) -> None:
        threads = [
            threading.Thread(target=what, args=(number,)) for number in sorted(self._connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _row(
        self,
        number: int,
        what: str,
        start: float,
        end: float,
        size: object,
        version: int | None = None,
    ) -> None:
        samples = self._world.get("samples", 100) if what == "train" else ""
        with self._lock:
            self._rows.append(
                (
                    self._version if version is None else version,
                    number,
                    what,
                    start,
                    end,
                    size,
                    samples,
                )
            )

    def _ask(self, number: int) -> None:
        connection, version, size = self._connections[number], self._version, len(self._model)
        start = time.monotonic()
        connection.sendall(_ORDER.pack(version, size) + self._model)
        length, got, trained, sent = _ANSWER.unpack(_receive(connection, _ANSWER.size))
        update = _receive(connection, length)
        end = time.monotonic()
        for what, begin, over, moved in (
            ("down", start, got, size),
            ("train", got, trained, ""),
            ("up", sent, end, length),
        ):
            self._row(number, what, begin, over, moved, version)
        if self._world.get("training") == "torch":
            self._model = update

    def _keep_busy(self, number: int) -> None:
        while self._version < self._world["rounds"]:
            self._ask(number)
            with self._lock:
                self._buffered += 1
                full = (
                    self._buffered % self._world["buffer"] == 0
                    and self._version < self._world["rounds"]
                )
                self._version += full
            if full:
                now = time.monotonic()
                self._row(-1, "round", self._since, now, "", self._version - 1)
                self._since = now


def server(world: World, path: Path) -> None:
    """Wait for all clients, serve, and write the log."""
    with socket.create_server(("10.99.0.2", _PORT)) as door:
        connections = {}
        for _ in world["clients"]:
            connection = _tuned(door.accept()[0], world)
            connections[_ORDER.unpack(_receive(connection, _ORDER.size))[0]] = connection
    write(path, Server(world, connections).serve())


def write(path: Path, rows: list[tuple[Any, ...]]) -> None:
    """Write a log, in order of time."""
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("round", "client", "what", "start", "end", "bytes", "samples"))
        table.writerows(
            [f"{cell:.6f}" if isinstance(cell, float) else cell for cell in row]
            for row in sorted(rows, key=itemgetter(3, 4))
        )


# All together.


def _first() -> None:
    """Before all that is not urgent: the clients of a real deployment do not share two cores."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))


def run(name: str, world: World) -> None:
    """Run a world and write its log, with the machine's load beside it."""
    LOGS.mkdir(exist_ok=True)
    log, told = LOGS / f"{name}.csv", json.dumps(world)
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        network = stack.enter_context(Network(world))

        def start(where: str, role: str, more: object) -> "subprocess.Popen[bytes]":
            process = network.run(where, sys.executable, __file__, f"--{role}", told, str(more))
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        if any(one.get("latency") for one in world["clients"]):
            start("core", "delay", "")
        serving = start("server", "server", log)
        for number in range(len(world["clients"])):
            start(f"client{number}", "client", number)
        if serving.wait():
            raise SystemExit(f"testbed: the server of {name!r} failed")
    index = LOGS / "index.json"
    runs = json.loads(index.read_text()) if index.exists() else {}
    runs[name] = {
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "cores": os.cpu_count(),
        "kernel": os.uname().release,
    }
    lines = ",\n".join(
        f" {json.dumps(one)}: {json.dumps(runs[one], sort_keys=True)}" for one in sorted(runs)
    )
    index.write_text(f"{{\n{lines}\n}}\n")
    print(
        f"written {log.relative_to(HERE)} (load {load:.1f} before, {os.getloadavg()[0]:.1f} "
        f"after, {os.cpu_count()} cores)"
    )


def main() -> None:
    """Run the worlds that are named, or all."""
    if sys.argv[1:2] and sys.argv[1].startswith("--"):
        role, world, more = sys.argv[1].removeprefix("--"), json.loads(sys.argv[2]), sys.argv[3]
        _first()
        match role:
            case "delay":
                delay([one.get("latency", 0.0) for one in world["clients"]])
            case "server":
                server(world, Path(more))
            case "client":
                client(world, int(more), _tuned(_connected(), world))
        return
    worlds = tomllib.loads(WORLDS.read_text())
    names = sys.argv[1:] or list(worlds)
    for name in names:
        if name not in worlds:
            raise SystemExit(
                f"testbed: there is no world {name!r}; allowed are {', '.join(worlds)}"
            )
    if why := reason_not_to():
        raise SystemExit(
            f"testbed: {why}; the logs that are kept can be compared all the same: compare.py"
        )
    for name in names:
        run(name, worlds[name])


if __name__ == "__main__":
    main()
