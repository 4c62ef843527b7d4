"""The report of unfinished runs and studies, rebuilt as they grow and served on the loopback
address only.

The surrounding page polls every other second, and takes the new report unless the reader is
using the old one.
"""

import json
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedsim.analysis.report.gather import gather
from fedsim.analysis.report.markup import asset
from fedsim.analysis.report.page import build
from fedsim.clock.executors import start
from fedsim.common.errors import FedsimError
from fedsim.common.harmless import say
from fedsim.records.folder import SUMMARY
from fedsim.records.live import LIVE

HOST = "127.0.0.1"
_LOOK_S = 1.0  # between two looks at the folders
_LAST_S = 5.0  # open pages ask every two seconds
_SILENT_S = 10.0  # after which a connection that sends nothing is closed
_MOST_CONNECTIONS = 32  # at a time; another one ends the oldest
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "SAMEORIGIN",  # the surrounding page shows the report in a frame
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src "
        "data:; font-src data:; "
        "connect-src 'self'; frame-src 'self'; frame-ancestors 'self'; base-uri 'none'; "
        "form-action 'none'"
    ),
}


class Growing:
    """The newest report of folders of runs or studies, which may not exist yet.

    ``page`` is the report as HTML, empty at first. ``state``, for the surrounding page, has its
    ``version`` and ``title``, and a line for people, ``says``.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._seen = list[tuple[str, int]]()
        self.page = ""
        self.state: dict[str, Any] = {
            "version": 0,
            "says": "nothing to show yet: the first figures come after some seconds",
        }

    def look(self) -> bool:
        """Rebuild the report if something has changed; returns whether it did."""
        now = self._stamps()
        if not now or now == self._seen:
            return False
        try:
            subject = gather(self._paths)
            self.page = build(subject, live=True)
        except (
            FedsimError,
            OSError,
        ) as error:  # a run was just replacing or removing what was read: look again
            self.state = self.state | {"says": str(error)}
            return False
        self._seen = now
        count = len(subject.runs)
        summary = subject.runs[0].summary
        says = (
            f"{count} runs" if count > 1 else f"{summary['status']}, {summary['rounds']:,} rounds"
        )
        self.state = {
            "version": self.state["version"] + 1,
            "says": says,
            "title": f"Live: {subject.title}",
        }
        return True

    def _stamps(self) -> list[tuple[str, int]]:
        """The time of each run's last summary."""
        patterns = (SUMMARY, f"{LIVE}/{SUMMARY}", f"runs/*/seed-*/{SUMMARY}")
        found = []
        for summary in (
            summary
            for path in self._paths
            for pattern in patterns
            for summary in sorted(path.glob(pattern))
        ):
            with suppress(OSError):  # it was removed meanwhile
                found.append((str(summary), summary.stat().st_mtime_ns))
        return found


class _BoundedServer(ThreadingHTTPServer):
    """A server with so many connections at a time: another one ends the oldest."""

    def __init__(self, *args: Any) -> None:
        self._connections: deque[Any] = deque()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        if len(self._connections) > _MOST_CONNECTIONS:
            with suppress(OSError):  # it has just ended
                self._connections.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        with suppress(ValueError):  # a newer connection has ended it
            self._connections.remove(request)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that leaves in the middle of an answer is no error."""


def server_of(growing: Growing, port: int = 0) -> ThreadingHTTPServer:
    """A server of the growing report at a port of the loopback address (0 for any that is free).

    At most 32 connections are open at a time, of which another one ends the oldest. One that is
    silent for 10 s is closed.
    """

    class Handler(BaseHTTPRequestHandler):
        """Answers with the page around the report, the report, and its state."""

        timeout = _SILENT_S
        server_version = "fedsim"
        sys_version = ""

        def end_headers(self) -> None:
            """Every answer, that of a mistake included, is framed and run by no other page."""
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            super().end_headers()

        def do_GET(self) -> None:
            """Answer; a page of another name for this machine gets nothing (DNS rebinding)."""
            answers = {
                "/": ("text/html; charset=utf-8", asset("watch.html")),
                "/report": ("text/html; charset=utf-8", growing.page),
                "/state": ("application/json", json.dumps(growing.state)),
            }
            if self.headers.get("Host") not in {
                f"{name}:{made.server_port}" for name in (HOST, "localhost")
            }:
                self.send_error(403, "only 127.0.0.1 and localhost are answered")
                return
            if self.path not in answers:
                self.send_error(404)
                return
            kind, content = answers[self.path]
            body = content.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing of requests."""

    try:
        made = _BoundedServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise FedsimError(f"no page can be served at {HOST}:{port}: {error}") from None
    return made


def watch(
    paths: Sequence[Path], told: Callable[[str], None], over: threading.Event, port: int = 0
) -> None:
    """Serve the growing report of ``paths`` until it is ``over``, and a little longer for open
    pages to get the last one.

    Calls ``told`` with the address. Port 0 is any free one; ``FedsimError`` if it is taken.
    """
    growing = Growing(paths)
    with server_of(growing, port) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        told(f"http://{HOST}:{server.server_port}/")
        while not over.wait(_LOOK_S):
            growing.look()
        if growing.look():
            time.sleep(_LAST_S)
        server.shutdown()


@contextmanager
def watching(path: Path, port: int = 0) -> Iterator[None]:
    """Serve the report of this process's run from another process, which ends with this one."""
    # leaving it closes the pipe
    with start("fedsim.analysis.watch", "main", str(path), str(port), stdin=subprocess.PIPE):
        yield


def main() -> None:
    """Serve the report of a run folder at a port until standard input ends; ``watching`` starts
    this process.
    """
    path, port = sys.argv[1:]
    over = threading.Event()

    def wait() -> None:
        sys.stdin.buffer.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    try:
        watch(
            [Path(path)],
            lambda address: say(f"watch the run at {address}", err=True),
            over,
            int(port),
        )
    except FedsimError as error:
        say(f"fedsim: {error}", err=True)
