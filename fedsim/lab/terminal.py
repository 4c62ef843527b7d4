"""Output to a terminal: a console with sanitised text, and the progress and results of a run."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment

from fedsim.clock.simulation import Record
from fedsim.common.harmless import clean
from fedsim.common.units import show_bytes, show_seconds
from fedsim.records.ledger import total
from fedsim.records.notebook import strategy_of

if TYPE_CHECKING:
    from fedsim.common.stop import StopSpec

_TOTAL = 1000  # steps of the bar
_PLAIN_EVERY_S = 5.0
_LIVE_EVERY_S = 0.1
_SAVED_EVERY_S = 1.0


class Console(rich.console.Console):
    """rich's console without markup, which replaces characters that a terminal would obey."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Replaces unprintable characters in each segment; rich's own control codes stay."""
        for segment in super().render(renderable, options):
            harmless = segment.control or segment.text.isprintable() or segment.text == "\n"
            printable = (
                c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}"
                for c in segment.text
            )
            yield segment if harmless else segment._replace(text="".join(printable))


class RunProgress:
    """A sink that shows simulated time, round, accuracy, real time left, and new ``warnings`` of
    the strategy's ``facts``.
    """

    def __init__(
        self, stop: "StopSpec", console: Console, facts: Callable[[], Mapping[str, Any]] = dict
    ) -> None:
        self._stop = stop
        self._console = console
        self._facts = facts
        self._warned = 0
        self._began = time.perf_counter()
        self._shown = 0.0
        self._said_saved = 0.0
        self._round = 0
        self._accuracy = ""
        self._saved = ""
        self._live: Progress | None = None
        if console.is_terminal:
            left = (TextColumn("left", markup=False), TimeRemainingColumn())
            self._live = Progress(*bar(), *left, console=console, transient=True)
            self._bar = self._live.add_task("simulated 0 s", total=_TOTAL)
            self._live.start()

    def take(self, record: Record) -> None:
        if record.kind == "round":
            self._round = record.fields["round"] + 1
            if record.fields["accuracy"] is not None:
                self._accuracy = f", accuracy {record.fields['accuracy']:.4f}"
            self._warn()
        real = time.perf_counter()
        if real - self._shown >= (_LIVE_EVERY_S if self._live else _PLAIN_EVERY_S):
            self._shown = real
            self._show(record.time, real - self._began)

    def saved(self, rounds: int, simulated_s: float) -> None:
        """Say that the run can be resumed from here; without a live line at most once a second."""
        self._saved = f"saved at round {rounds} ({show_seconds(simulated_s)})"
        real = time.perf_counter()
        if self._live is None and real - self._said_saved >= _SAVED_EVERY_S:
            self._said_saved = real
            self._console.print(self._saved, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._warn()
        if self._live is not None:
            self._live.stop()

    def _warn(self) -> None:
        warnings = self._facts().get("warnings", [])
        for warning in warnings[self._warned :]:
            self._console.print(
                f"warning: {clean(warning, 400)}", highlight=False, markup=False, soft_wrap=True
            )
        self._warned = len(warnings)

    def _show(self, simulated_s: float, real_s: float) -> None:
        done = share_done(self._stop, self._round, simulated_s)
        text = f"simulated {show_seconds(simulated_s)}, round {self._round}{self._accuracy}"
        if self._live is not None:
            text += f", {self._saved}" if self._saved else ""
            self._live.update(self._bar, completed=done * _TOTAL, description=text)
        elif self._round:
            left_s = real_s * (1 - done) / done if done else 0.0
            # learning may go on at the end of time
            left = f", about {show_seconds(left_s)} left" if left_s >= 1.0 else ""
            self._console.print(f"{text}{left}", soft_wrap=True)


def bar() -> tuple[ProgressColumn, ...]:
    """The columns of a live line."""
    return BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False)


def share_done(stop: "StopSpec", rounds: int, simulated_s: float) -> float:
    """The share (0..1) of a run that is done after so many rounds and so much simulated time."""
    rounds_done = rounds / stop.rounds if stop.rounds is not None else 0.0
    time_done = simulated_s / stop.simulated_time if stop.simulated_time is not None else 0.0
    return min(1.0, max(rounds_done, time_done))


def outside_lines(lines: list[str], most: int = 5) -> list[str]:
    """Lines for people about values outside of the domain of a rule's fit, the first ``most`` of
    them.
    """
    more = (
        [f"outside of what a rule was fitted to: and {len(lines) - most} more"]
        if len(lines) > most
        else []
    )
    return [f"outside of what a rule was fitted to: {line}" for line in lines[:most]] + more


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """The main results of a run, as lines for people."""
    moved = summary["bytes"]
    accuracy = summary["accuracy"]
    between = f", {show_bytes(moved['peer'])} between devices" if "peer" in moved else ""
    best = f"no accuracy: {summary.get('no_accuracy')}"
    if accuracy["final"] is not None:
        best = f"accuracy {accuracy['final']:.4f} at the end, {accuracy['best']:.4f} at best"
    found = {
        name: told for name, told in summary.get("metrics", {}).items() if told["final"] is not None
    }
    lines = [
        f"{strategy_of(summary)}, seed {summary['seed']}: {summary['rounds']} rounds in "
        f"{show_seconds(summary['simulated_s'])} "
        f"of simulated time, {summary['wall_s']:.1f} s of real time ({summary['stopped']})",
        best,
        *(
            f"{name} {told['final']:.4g} at the end, {told['best']:.4g} at best"
            for name, told in found.items()
        ),
        f"moved {show_bytes(total(moved))} ({show_bytes(moved['down'])} down, "
        f"{show_bytes(moved['up'])} up{between}), "
        f"of which {show_bytes(moved['wasted'])} wasted",
    ]
    lines += summary.get("notes", [])
    lines += outside_lines(summary.get("outside_of_rules", []))
    if "not_finite" in summary:
        lines.append(
            "the strategy has made models whose weights are not all finite: "
            f"{summary['not_finite']}"
        )
    return lines
