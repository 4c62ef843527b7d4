"""Runs carried out side by side by worker processes, one run a process at a time.

A worker that dies takes one run with it and is replaced. One that has had much memory is replaced after its run, since a
process does not give it back. When this process dies, its workers notice, save their runs and end; what they inherit (``keep``,
a lock) is held until the last of them is gone.
"""

import json
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Protocol

from fedsim.executors.isolated import start

How = Literal["new", "anew", "resume"]
Status = Literal["done", "failed", "interrupted"]

_GRACE_S = 30.0  # a worker without work that does not end within this time is killed


@dataclass(frozen=True)
class Order:
    """A run to carry out.

    Attributes:
        label: for people.
        scenario: as TOML.
        folder: the run folder.
        how: ``new`` where nothing is there, ``anew`` to remove what is there first, ``resume`` from its checkpoint.
    """

    label: str
    scenario: str
    folder: Path
    how: How


@dataclass(frozen=True)
class Ended:
    """How a run has ended.

    Attributes:
        order: what was to be done.
        status: how.
        error: what went wrong, of one that failed.
        accuracy: the best one (0..1), if any was measured.
        wall_s: how long it took, of one that is done (s).
    """

    order: Order
    status: Status
    error: str = ""
    accuracy: float | None = None
    wall_s: float = 0.0

    @classmethod
    def told(cls, order: Order, news: Mapping[str, Any]) -> "Ended":
        """As a worker says it."""
        return cls(order, news["status"], news.get("error", ""), news.get("accuracy"), news.get("wall_s", 0.0))


class Listener(Protocol):
    """Who is told how it goes; ``place`` is that of the order in the list."""

    def begin(self, orders: Sequence[Order], there: int) -> None:
        """These are to be carried out; so many runs of the study are done already."""

    def progress(self, place: int, share: float) -> None:
        """A run is this far (0..1)."""

    def note(self, place: int, text: str) -> None:
        """Something about a run that a user should know."""

    def ended(self, place: int, run: Ended) -> None:
        """A run has ended."""


def pass_on(listener: Listener, place: int, news: Mapping[str, Any]) -> None:
    """Tell what a worker says of a run that is under way."""
    if news["event"] == "progress":
        listener.progress(place, news["share"])
    else:
        listener.note(place, news["text"])


class Pool:
    """Carries out orders, with the same processes each time, until it is closed.

    Args:
        workers: how many runs at a time.
        listener: is told how it goes.
        keep: file descriptors that the workers inherit.
        most_bytes: of memory; a worker that has had more takes no further run.
    """

    def __init__(self, workers: int, listener: Listener, keep: Sequence[int] = (), most_bytes: int = 1 << 30) -> None:
        self._most_bytes = most_bytes
        self._workers = workers
        self._listener = listener
        self._keep = keep
        self._news: SimpleQueue[tuple[_Hand, Mapping[str, Any] | None]] = SimpleQueue()
        self._crew: list[_Hand] = []
        self._interrupted = False

    def interrupt(self, number: int) -> None:
        """Begin no further run, and pass a signal on to those under way: they save themselves. Safe in its handler."""
        self._interrupted = True
        for hand in self._crew:
            hand.interrupt(number)

    def run(self, orders: Sequence[Order]) -> list[Ended]:
        """Carry out the orders; returns how each run ended, in their order. Those never begun count as interrupted."""
        waiting = deque(range(len(orders)))
        ended: dict[int, Ended] = {}
        for hand in self._crew[: len(orders)]:  # they are idle
            if not self._interrupted:
                hand.give(waiting.popleft(), orders)
        while not self._interrupted and waiting and len(self._crew) < self._workers:
            self._hire().give(waiting.popleft(), orders)
        while any(hand.place is not None for hand in self._crew):
            hand, news = self._news.get()
            place = hand.place
            if place is None:  # its pipe closed when it had no work
                continue
            if news is not None and news["event"] != "ended":
                pass_on(self._listener, place, news)
                continue
            ended[place] = self._ending(orders[place], hand, news)
            self._listener.ended(place, ended[place])
            hand.place = None
            if is_over := news is None or news["peak_bytes"] > self._most_bytes:
                self._dismiss(hand)
            if waiting and not self._interrupted:
                (self._hire() if is_over else hand).give(waiting.popleft(), orders)
        return [ended.get(place, Ended(order, "interrupted")) for place, order in enumerate(orders)]

    def close(self) -> None:
        """Let all workers end; those still at work are killed."""
        for hand in self._crew:
            hand.dismiss()
        self._crew = []

    def _dismiss(self, hand: "_Hand") -> None:
        self._crew.remove(hand)
        hand.dismiss()

    def _hire(self) -> "_Hand":
        hand = _Hand(self._news, self._keep)
        self._crew.append(hand)
        return hand

    def _ending(self, order: Order, hand: "_Hand", news: Mapping[str, Any] | None) -> Ended:
        if news is not None:
            return Ended.told(order, news)
        reason = hand.exit_reason()
        if self._interrupted:  # it was told so before it could listen
            return Ended(order, "interrupted")
        return Ended(order, "failed", f"its process ended with {reason}")


class _Hand:
    """A worker process, and the order that it works on."""

    def __init__(self, news: "SimpleQueue[tuple[_Hand, Mapping[str, Any] | None]]", keep: Sequence[int]) -> None:
        self.place: int | None = None
        self._process = start(
            "fedsim.study.worker",
            "main",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            pass_fds=keep,
        )
        self._reader = threading.Thread(target=self._read, args=(news,), daemon=True)
        self._reader.start()

    def _read(self, news: "SimpleQueue[tuple[_Hand, Mapping[str, Any] | None]]") -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                news.put((self, json.loads(line)))
        news.put((self, None))

    def give(self, place: int, orders: Sequence[Order]) -> None:
        """Let it begin."""
        self.place, order = place, orders[place]
        content = {"scenario": order.scenario, "folder": str(order.folder), "how": order.how}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died before it began: the end of its pipe says so
            self._process.stdin.write(json.dumps(content) + "\n")
            self._process.stdin.flush()

    def interrupt(self, number: int) -> None:
        """Let it save its run and begin no other."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def exit_reason(self) -> str:
        """Why it ended, for people; waits until it has."""
        code = self._process.wait()
        return f"status {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"

    def dismiss(self) -> None:
        """Let it end; one that is still at work is killed."""
        if self.place is not None:
            self._process.kill()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
