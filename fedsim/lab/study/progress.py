"""Orders of a study's runs, and its progress: live lines on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rich.progress import Progress
from rich.text import Text

from fedsim.language.units import show_seconds
from fedsim.output.harmless import clean
from fedsim.output.terminal import Console, bar

How = Literal["new", "anew", "resume"]
Status = Literal["done", "failed", "interrupted"]
News: TypeAlias = Mapping[str, Any]

_LONGEST = 1000  # characters of a line


@dataclass(frozen=True)
class RunOrder:
    """A run to carry out; its scenario is TOML, and its label for people.

    ``how``: ``new`` where there is no folder, ``anew`` to remove the folder first, ``resume`` from its checkpoint.
    """

    label: str
    scenario: str
    folder: Path
    how: How


@dataclass(frozen=True)
class Ended:
    """Ending of a run: ``failed`` with an error, or else with its best accuracy (0..1), if any, and duration (s)."""

    order: RunOrder
    status: Status
    error: str = ""
    accuracy: float | None = None
    wall_s: float = 0.0


class StudyProgress:
    """Shows how far all runs are, and the real time left. Runs are known by the place of their order in the list."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Progress | None = None

    def begin(self, orders: Sequence[RunOrder], there: int) -> None:
        """These orders are to be carried out; ``there`` runs of the study are done already."""
        self.close()
        self._orders, self._shares, self._ended = orders, [0.0] * len(orders), 0
        self._first: dict[int, float] = {}  # where a run began: a resumed one where it was first heard of
        self._began = time.perf_counter()
        self._print(f"{len(orders)} runs to do, {there} are there")
        if self._console.is_terminal and orders:
            self._live = Progress(*bar(self._console), console=self._console, transient=True)
            self._all = self._live.add_task("", total=len(orders))
            self._live.start()

    def take(self, place: int, news: News) -> None:
        """News of a run from its worker: a ``progress`` (0..1), or a note for the user."""
        order = self._orders[place]
        if news["event"] != "progress":
            self._print(f"{clean(order.label)}: {news['text']}")
            return
        self._shares[place] = news["share"]
        self._first.setdefault(place, news["share"] if order.how == "resume" else 0.0)
        if self._live is not None:
            self._live.update(self._all, completed=sum(self._shares), description=self._so_far())

    def ended(self, place: int, run: Ended) -> None:
        said = "interrupted, to be gone on with"
        if run.status != "interrupted":
            self._ended += 1
            self._first.setdefault(place, 0.0)
            self._shares[place] = 1.0
            best = "" if run.accuracy is None else f"best accuracy {run.accuracy:.4f}, "
            said = f"failed: {run.error}" if run.status == "failed" else f"{best}{show_seconds(run.wall_s)}"
        self._print(f"{self._so_far()}: {clean(run.order.label)}: {said}")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _so_far(self) -> str:
        done = sum(self._shares[place] - first for place, first in self._first.items())
        left = len(self._orders) - sum(self._shares)
        time_left = show_seconds((time.perf_counter() - self._began) / done * left) if done else "unknown"
        return f"{self._ended}/{len(self._orders)}, about {time_left} left"

    def _print(self, text: str) -> None:
        self._console.print(Text(clean(text, _LONGEST)), soft_wrap=True)
