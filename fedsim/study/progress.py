"""How far a study is: live lines on a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence

from rich.progress import Progress, TaskID
from rich.text import Text

from fedsim.language.units import show_seconds
from fedsim.output.harmless import clean
from fedsim.output.progress import bar
from fedsim.output.terminal import Console
from fedsim.study.pool import Ended, Order

_LONGEST = 1000  # characters of a line


class StudyProgress:
    """A listener that shows how far all runs are, those under way one by one, and the real time left.

    Args:
        console: where to show it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._orders: Sequence[Order] = ()
        self._began = time.perf_counter()
        self._shares: list[float] = []
        self._first: dict[int, float] = {}  # where a run began: a resumed one where it was first heard of
        self._ended = 0
        self._live: Progress | None = None
        self._bars: dict[int, TaskID] = {}

    def begin(self, orders: Sequence[Order], there: int) -> None:
        """These are to be carried out."""
        self.close()
        self._first, self._ended, self._bars = {}, 0, {}
        self._orders, self._shares = orders, [0.0] * len(orders)
        self._began = time.perf_counter()
        self._print(f"{len(orders)} runs to do, {there} are there")
        if self._console.is_terminal and orders:
            self._live = Progress(*bar(self._console), console=self._console, transient=True)
            self._all = self._live.add_task("", total=len(orders))
            self._live.start()

    def progress(self, place: int, share: float) -> None:
        """A run is this far."""
        self._first.setdefault(place, share if self._orders[place].how == "resume" else 0.0)
        self._shares[place] = share
        if self._live is not None:
            if place not in self._bars:
                self._bars[place] = self._live.add_task(clean(self._orders[place].label), total=1.0)
            self._live.update(self._bars[place], completed=share)
            self._live.update(self._all, completed=sum(self._shares), description=self._so_far())

    def note(self, place: int, text: str) -> None:
        """Something about a run."""
        self._print(f"{clean(self._orders[place].label)}: {text}")

    def ended(self, place: int, run: Ended) -> None:
        """A run has ended."""
        if place in self._bars and self._live is not None:
            self._live.remove_task(self._bars.pop(place))
        if run.status != "interrupted":
            self._ended += 1
            self._first.setdefault(place, 0.0)
            self._shares[place] = 1.0
        self._print(f"{self._so_far()}: {clean(run.order.label)}: {_how(run)}")

    def close(self) -> None:
        """Take the live lines away."""
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


def _how(run: Ended) -> str:
    if run.status == "failed":
        return f"failed: {run.error}"
    if run.status == "interrupted":
        return "interrupted, to be gone on with"
    best = "" if run.accuracy is None else f"best accuracy {run.accuracy:.4f}, "
    return f"{best}{show_seconds(run.wall_s)}"
