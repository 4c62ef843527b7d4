"""The report of unfinished runs and studies, rebuilt as they grow and served on loopback only.

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
from typing import Any, NotRequired, TypedDict

from fedsim.analysis.report.gather import gather
from fedsim.analysis.report.markup import asset
from fedsim.analysis.report.page import build
from fedsim.clock.executors import start
from fedsim.common.errors import FedsimError
from fedsim.common.harmless import say
from fedsim.lab.reading.study_progress import progress_lines
from fedsim.records.folder import SUMMARY
from fedsim.records.live import LIVE

HOST = "127.0.0.1"
_LOOK_S = 1.0  # time between two checks of the folders (s)
_LAST_S = 5.0  # time of the last report (s); open pages poll every two seconds
_SILENT_S = 10.0  # time after which a silent connection is closed (s)
_MOST_LINES = 40  # most runs of studies of which the page shows a line
_MOST_CONNECTIONS = 32  # most open connections; one more ends the oldest
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


class PageState(TypedDict):
    """State of a growing report for the surrounding page.

    Attributes:
        version: count of reports so far.
        says: line of text to show.
        title: title of the page.
        runs: line of text for each active or failed run of studies.
    """

    version: int
    says: str
    title: NotRequired[str]
    runs: NotRequired[list[str]]


class Growing:
    """Report of growing runs or studies, rebuilt when they change. Folders need not exist yet.

    Attributes:
        page: the newest report as HTML, empty at first.
        state: state for the surrounding page: ``version``, ``title``, and ``says``, a line of text
            to show.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._last_stamps: list[tuple[str, int]] = []
        self.page = ""
        self.state: PageState = {
            "version": 0,
            "says": "nothing to show yet: the first figures come after some seconds",
        }

    def look(self) -> bool:
        """Rebuild the report if a run has changed; return whether it was rebuilt."""
        lines: list[str] = []
        for path in self._paths:
            lines += progress_lines(path)
        self.state = {**self.state, "runs": lines[:_MOST_LINES]}
        stamps = self._stamps()
        if not stamps or stamps == self._last_stamps:
            return False
        try:
            subject = gather(self._paths)
            self.page = build(subject, live=True)
        except (FedsimError, OSError) as error:
            # a run may be replacing its files; the next call tries again
            reason = str(error)
            if not self.page:
                reason = f"waiting until the first tables are complete ({error})"
            self.state = {**self.state, "says": reason}
            return False
        self._last_stamps = stamps
        count = len(subject.runs)
        summary = subject.runs[0].summary
        text = f"{summary['status']}, {summary['rounds']:,} rounds"
        if count > 1:
            text = f"{count} runs"
        self.state = {
            "version": self.state["version"] + 1,
            "says": text,
            "title": f"Live: {subject.title}",
            "runs": lines[:_MOST_LINES],
        }
        return True

    def _stamps(self) -> list[tuple[str, int]]:
        """Return the path and modification time (ns) of each run's newest summary."""
        patterns = (SUMMARY, f"{LIVE}/{SUMMARY}", f"runs/*/seed-*/{SUMMARY}")
        stamps = []
        for path in self._paths:
            for pattern in patterns:
                for summary in sorted(path.glob(pattern)):
                    with suppress(OSError):  # the file has been removed
                        stamps.append((str(summary), summary.stat().st_mtime_ns))
        return stamps


class _BoundedServer(ThreadingHTTPServer):
    """HTTP server with a limit of open connections; a connection beyond it ends the oldest."""

    def __init__(self, *args: Any) -> None:
        self._connections: deque[Any] = deque()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        if len(self._connections) > _MOST_CONNECTIONS:
            with suppress(OSError):  # the connection has just ended
                self._connections.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        with suppress(ValueError):  # a newer connection has ended this one
            self._connections.remove(request)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error, since a browser may disconnect in the middle of a response."""


def server_of(growing: Growing, port: int = 0) -> ThreadingHTTPServer:
    """Return an HTTP server of the growing report on the loopback address.

    At most 32 connections are open; a connection beyond them ends the oldest. A connection that
    sends nothing for 10 s is closed.

    Args:
        growing: the report.
        port: port to serve at; 0 for any free port.

    Raises:
        FedsimError: the port cannot be used.
    """

    class Handler(BaseHTTPRequestHandler):
        """Request handler that sends the surrounding page, the report, and the report's state."""

        timeout = _SILENT_S
        server_version = "fedsim"
        sys_version = ""

        def end_headers(self) -> None:
            """Add headers that forbid other sites to frame or read a response, including errors."""
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            super().end_headers()

        def do_GET(self) -> None:
            """Answer only requests to a loopback host name, as a protection against DNS rebinding."""
            answers = {
                "/": ("text/html; charset=utf-8", asset("watch.html")),
                "/report": ("text/html; charset=utf-8", growing.page),
                "/state": ("application/json", json.dumps(growing.state)),
            }
            hosts = [f"{name}:{server.server_port}" for name in (HOST, "localhost")]
            if self.headers.get("Host") not in hosts:
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

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    try:
        server = _BoundedServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise FedsimError(f"no page can be served at {HOST}:{port}: {error}") from None
    return server


def watch(
    paths: Sequence[Path], announce: Callable[[str], None], over: threading.Event, port: int = 0
) -> None:
    """Serve the growing report of folders until ``over`` is set, and then for a few seconds more.

    Args:
        paths: folders of runs or studies.
        announce: called with the address of the report.
        over: event that ends the server.
        port: port to serve at; 0 for any free port.

    Raises:
        FedsimError: the port cannot be used.
    """
    growing = Growing(paths)
    with server_of(growing, port) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        announce(f"http://{HOST}:{server.server_port}/")
        while not over.wait(_LOOK_S):
            growing.look()
        if growing.look():
            time.sleep(_LAST_S)
        server.shutdown()


@contextmanager
def watching(path: Path, port: int = 0) -> Iterator[None]:
    """Serve the report of this process's run from a child process, which ends with this process.

    Args:
        path: the run's folder.
        port: port to serve at; 0 for any free port.
    """
    # the end of the context closes the pipe, which ends the child process
    with start("fedsim.analysis.watch", "main", str(path), str(port), stdin=subprocess.PIPE):
        yield


def main() -> None:
    """Serve the report of a run folder until standard input ends; ``watching`` starts this."""
    path, port = sys.argv[1:]
    over = threading.Event()

    def wait() -> None:
        sys.stdin.buffer.read()
        over.set()

    def announce(address: str) -> None:
        say(f"watch the run at {address}", err=True)

    threading.Thread(target=wait, daemon=True).start()
    try:
        watch([Path(path)], announce, over, int(port))
    except FedsimError as error:
        say(f"fedsim: {error}", err=True)
