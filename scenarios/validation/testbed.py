"""Rounds that really happen: a server and clients as processes in network namespaces, real TCP
over shaped links.

    python scenarios/validation/testbed.py NAME...      # worlds of worlds.toml; writes logs/NAME.csv

Needs Linux, root, ``ip`` and ``tc``. Topology: server - core - client. Every rate is a token bucket
(``tc tbf``: burst 8 kB, queue 60 ms) at the sending end of its link, and latency is made by a process
(``fedsim.lab.rehearsal.network``, which ``fedsim rehearse`` uses too). All processes read one monotonic clock. Logs have the
format of ``fedsim calibrate``. Connections have CUBIC from their first packet on, whatever the machine's default is;
``logs/index.json`` has what they had, and the default.
"""

import csv
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from typing import Any

from fedsim.lab.rehearsal.network import (
    SERVER_ADDRESS,
    Namespaces,
    NodeLink,
    give_real_time_priority,
)

HERE = Path(__file__).resolve().parent
WORLDS = HERE / "worlds.toml"
LOGS = HERE / "logs"

CONGESTION = "cubic"
"""Congestion control of all connections, unless a world has its own."""
DEFAULT_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
"""Congestion control of the machine's other sockets, which none of the testbed's has."""
_PORT = 5005
_PAUSE_S = 0.5  # between rounds
# version and size; size, and when it got, trained and sent
_ORDER, _ANSWER = struct.Struct("!qq"), struct.Struct("!qddd")
World = dict[str, Any]


def reason_not_to() -> str | None:
    """Why nothing can be run here; None if it can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} here (iproute2)"
    return None


def network_of(world: World) -> Namespaces:
    """Namespaces of a world, with its links (``fedsim.lab.rehearsal.network``)."""
    limits = world.get("server", {})
    server = NodeLink(to_core=limits.get("down"), from_core=limits.get("up"))
    clients = [
        NodeLink(one["up"], one["down"], one.get("latency", 0.0)) for one in world["clients"]
    ]
    return Namespaces(server, clients)


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


def begin_with(connection: socket.socket, world: World) -> socket.socket:
    """Set a socket's congestion control before it connects or listens; return the socket.

    A socket that begins with the machine's default may keep traits of it: one that has been
    connected by BBR paces for good, also after it is set to CUBIC. Sockets that a listening socket
    accepts have its congestion control from their first packet on.

    Args:
        connection: a socket that is neither connected nor listening.
        world: its ``congestion`` is used, CUBIC by default.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    name = world.get("congestion", CONGESTION)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    return connection


def congestion_of(connection: socket.socket) -> str:
    """Return the congestion control that a socket has."""
    name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.rstrip(b"\0").decode()


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


def connect(world: World, address: tuple[str, int]) -> socket.socket:
    """Return a connection to the server, as soon as it listens.

    Args:
        world: its ``congestion`` is the connection's from the first packet on.
        address: host and port of the server.

    Raises:
        ConnectionError: the server does not listen after ten seconds.
    """
    for _ in range(100):
        connection = begin_with(socket.socket(), world)
        try:
            connection.connect(address)
        except ConnectionRefusedError:
            connection.close()
            time.sleep(0.1)
        else:
            return connection
    raise ConnectionError("the server does not listen")


def listen(world: World, address: tuple[str, int]) -> socket.socket:
    """Return a socket that listens, and whose connections have the world's ``congestion``."""
    door = begin_with(socket.socket(), world)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind(address)
    door.listen()
    return door


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
    """Wait for all clients, serve, and write the log.

    The first line of standard output names the congestion control of the server's connections.
    """
    with listen(world, (SERVER_ADDRESS, _PORT)) as door:
        connections = {}
        for _ in world["clients"]:
            connection = door.accept()[0]
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connections[_ORDER.unpack(_receive(connection, _ORDER.size))[0]] = connection
    names = {congestion_of(connection) for connection in connections.values()}
    print(" ".join(sorted(names)), flush=True)
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


def run(name: str, world: World) -> None:
    """Run a world and write its log, with the machine's load beside it."""
    LOGS.mkdir(exist_ok=True)
    log, told = LOGS / f"{name}.csv", json.dumps(world)
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        network = stack.enter_context(network_of(world))

        def begin(command: list[str]) -> "subprocess.Popen[bytes]":
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        def start(where: str, role: str, more: object) -> "subprocess.Popen[bytes]":
            words = [sys.executable, __file__, f"--{role}", told, str(more)]
            return begin([*network.within(where), *words])

        if network.has_latency:
            begin(network.delaying())
        serving = start("server", "server", log)
        for number in range(len(world["clients"])):
            start(f"client{number}", "client", number)
        said = serving.communicate()[0].decode()
        if serving.returncode:
            raise SystemExit(f"testbed: the server of {name!r} failed")
    index = LOGS / "index.json"
    runs = json.loads(index.read_text()) if index.exists() else {}
    runs[name] = {
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "cores": os.cpu_count(),
        "kernel": os.uname().release,
        "congestion": said.strip(),
        "began_with": said.strip(),
        "default": DEFAULT_CONGESTION.read_text().strip(),
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
        give_real_time_priority()
        match role:
            case "server":
                server(world, Path(more))
            case "client":
                client(world, int(more), connect(world, (SERVER_ADDRESS, _PORT)))
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
