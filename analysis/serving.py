"""Server of a growing page on this machine alone, with a stream of the page's states.

It loads neither matplotlib nor the report, so that a page is there before anything can be drawn.
"""

import json
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, NotRequired, TypedDict

from fedsim.common.errors import FedsimError

HOST = "127.0.0.1"
_SILENT_S = 10.0  # time after which a silent connection is closed (s)
_HEARTBEAT_S = 5.0  # longest time between two messages of a stream (s)
_MOST_CONNECTIONS = 32  # greatest count of open connections; a further one ends the oldest
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
    """JSON object that tells browsers about a page which is rebuilt while its runs go on.

    Attributes:
        version: count of pages built so far; 0 before the first. If it grows, the browser loads the
            new page, or offers to load it.
        says: line of text on the runs, or on what the page waits for.
        over: whether no newer page can follow.
        title: title of the page; missing before the first page.
        runs: line of text for each active or failed run of studies; missing if there never was one.
    """

    version: int
    says: str
    over: bool
    title: NotRequired[str]
    runs: NotRequired[list[str]]


class LivePage:
    """Newest version of a page about unfinished runs, for the threads that send it to browsers.

    Beside the page it has the state: version, title, and a line of text on the runs
    (``PageState``). Browsers receive each new state by ``stream``, and load or offer a new page.

    Args:
        says: line of text on the runs that browsers show before the first page.
    """

    def __init__(self, says: str) -> None:
        self._changed = threading.Condition()
        self._change_count = 0
        self._stream_count = 0
        self._has_ended = False
        self._page = ""
        self._state: PageState = {"version": 0, "says": says, "over": False}

    @property
    def page(self) -> str:
        """The newest page as HTML; empty before the first."""
        return self._page

    @property
    def state(self) -> PageState:
        """Version, title and lines of text of the newest page, which browsers receive as JSON."""
        return self._state

    def say(self, text: str) -> None:
        """Replace the line of text that browsers show about the runs, without a new page.

        Args:
            text: the line, such as what the page waits for.
        """
        if text != self._state["says"]:
            self._change(self._page, {**self._state, "says": text})

    def tell_runs(self, lines: list[str]) -> None:
        """Replace the lines of text that browsers show, one for each active or failed run."""
        if lines != self._state.get("runs", []):
            self._change(self._page, {**self._state, "runs": lines})

    def show(self, page: str, title: str, says: str, *, over: bool = False) -> None:
        """Replace the page by a newer version, and tell the connected browsers.

        Args:
            page: the page as HTML.
            title: title of the browser's window.
            says: line of text on the runs.
            over: whether this is the last version.
        """
        version = self._state["version"] + 1
        changes: PageState = {"version": version, "says": says, "over": over, "title": title}
        self._change(page, {**self._state, **changes})

    def end(self, timeout_s: float) -> None:
        """End all calls of ``stream``, before the server stops.

        Args:
            timeout_s: longest time to wait until these calls have sent their last message (s).
        """
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._stream_count, timeout_s)

    @property
    def is_followed(self) -> bool:
        """Whether a browser is connected, so that a call of ``stream`` is running."""
        return self._stream_count > 0

    def stream(self, send: Callable[[str], None]) -> None:
        """Send a browser the page's state now and after each change, until ``end`` is called.

        The call lasts until then; each browser's connection has a thread for it. A state
        (``PageState``) is sent as a server-sent event. The last message is an event ``end``.

        Args:
            send: function that sends a text to the browser; it raises ``OSError`` if the browser
                has disconnected.
        """
        with self._changed:
            self._stream_count += 1
        try:
            self._stream(send)
        finally:
            with self._changed:
                self._stream_count -= 1
                self._changed.notify_all()

    def _stream(self, send: Callable[[str], None]) -> None:
        """Send the page's state after each change, or a heartbeat if nothing changes for long.

        Args:
            send: sends a text.
        """
        last_sent = -1  # number of the change whose state was sent last
        while True:
            self._wait_for_change(last_sent)
            # read before the state: a change or an end in between is sent in the next pass
            newest = self._change_count
            has_ended = self._has_ended
            heartbeat = ": still there\n\n"  # a comment of the protocol, which browsers ignore
            message = heartbeat
            if newest != last_sent:
                message = f"data: {json.dumps(self._state)}\n\n"
            send(message)
            last_sent = newest
            if has_ended:
                send("event: end\ndata: {}\n\n")
                return

    def _wait_for_change(self, last_sent: int) -> None:
        """Wait for news to send to a browser, at most for the time between two heartbeats.

        News is a change of the page's state, or the end of the page.

        Args:
            last_sent: number of the change that was sent last.
        """

        def has_news() -> bool:
            return self._change_count != last_sent or self._has_ended

        with self._changed:
            self._changed.wait_for(has_news, _HEARTBEAT_S)

    def _change(self, page: str, state: PageState) -> None:
        with self._changed:
            self._page = page
            self._state = state
            self._change_count += 1
            self._changed.notify_all()


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


def server_of(live: LivePage, port: int = 0) -> ThreadingHTTPServer:
    """Return an HTTP server of a live page on the loopback address.

    ``/`` is a page that shows ``/report``, the newest version of the live page, in a frame.
    ``/state`` is the state of the live page (``PageState``) as JSON, and ``/events`` sends each new
    state as a server-sent event. At most 32 connections are open; a further connection ends the
    oldest. A connection that sends nothing for 10 s is closed.

    Args:
        live: the live page.
        port: port to serve at; 0 for any free port.

    Raises:
        FedsimError: the port cannot be used.
    """

    class Handler(BaseHTTPRequestHandler):
        """HTTP request handler that answers the paths that ``server_of`` describes."""

        timeout = _SILENT_S
        server_version = "fedsim"
        sys_version = ""

        def end_headers(self) -> None:
            """Add headers to each response, so that no other site can frame or read it."""
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            super().end_headers()

        def do_GET(self) -> None:
            """Answer a request to the host ``127.0.0.1`` or ``localhost``; reject others with 403.

            The check of the host protects from DNS rebinding.
            """
            hosts = [f"{name}:{server.server_port}" for name in (HOST, "localhost")]
            if self.headers.get("Host") not in hosts:
                self.send_error(403, "only 127.0.0.1 and localhost are answered")
                return
            if self.path == "/events":
                self._stream()
                return
            answers = {
                "/": ("text/html; charset=utf-8", _surrounding_page),
                "/report": ("text/html; charset=utf-8", lambda: live.page),
                "/state": ("application/json", lambda: json.dumps(live.state)),
            }
            if self.path not in answers:
                self.send_error(404)
                return
            kind, content = answers[self.path]
            body = content().encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            with suppress(OSError):  # the reader has disconnected
                live.stream(self._send)

        def _send(self, text: str) -> None:
            self.wfile.write(text.encode())
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            """Write no log; the base class would write a line for each request."""

    try:
        server = _BoundedServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise FedsimError(f"no page can be served at {HOST}:{port}: {error}") from None
    return server


def _surrounding_page() -> str:
    file = resources.files("fedsim.analysis").joinpath("report", "assets", "watch.html")
    return file.read_text(encoding="utf-8")
