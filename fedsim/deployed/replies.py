"""Replies of nodes, pulled in threads, so that the clock of a server never waits for an upload."""

import time
from collections import deque
from collections.abc import Iterator
from threading import Event, Lock, Thread
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

_MOST_THREADS = 32
_LOOK_S = 0.1  # real time between two requests of a thread to Flower (s)


class Reply(NamedTuple):
    """Reply to a message of the server, as received from Flower.

    Attributes:
        name: ID of the message that is answered.
        wall: time of the day of the arrival (s since 1970).
        content: the reply, or the exception that Flower raised when the reply was requested.
    """

    name: str
    wall: float
    content: Message | Exception


class Replies:
    """Threads that fetch the replies to messages from Flower.

    Flower offers a reply as soon as the upload of the reply begins. A request for the reply then
    waits until the upload ends. Each thread therefore requests the reply to one message at a time.

    Args:
        grid: Flower's Grid.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._lock = Lock()
        self._open: deque[str] = deque()  # IDs of messages of which no thread fetches the reply now
        self._arrived: deque[Reply] = deque()
        self._threads: list[Thread] = []
        self._ended = Event()

    def expect(self, name: str) -> None:
        """Add a message whose reply the threads will fetch.

        Args:
            name: ID of the message.
        """
        with self._lock:
            self._open.append(name)
        if len(self._threads) < _MOST_THREADS:
            thread = Thread(target=self._pull_all, name="fedsim-replies", daemon=True)
            self._threads.append(thread)
            thread.start()

    def take(self) -> Iterator[Reply]:
        """Yield the replies that have arrived since the last call, in order of arrival."""
        while self._arrived:
            yield self._arrived.popleft()

    def end(self) -> None:
        """End the threads. A thread that is fetching a reply ends with the process."""
        self._ended.set()

    def _pull_all(self) -> None:
        """Fetch replies, one at a time, until the run ends; each thread runs this."""
        while not self._ended.wait(_LOOK_S):
            with self._lock:
                name = self._open.popleft() if self._open else None
            if name is None:
                continue
            try:
                replies = list(self._grid.pull_messages([name]))
            except Exception as error:  # the error concerns this reply only; the thread goes on
                self._arrived.append(Reply(name, time.time(), error))
                continue
            for reply in replies:
                self._arrived.append(Reply(name, time.time(), reply))
            if not replies:  # the reply has not arrived yet
                with self._lock:
                    self._open.append(name)
