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
from fedsim.common.round_words import ROUND, count_rounds, round_word, stopped_in_words
from fedsim.common.units import show_bytes, show_seconds
from fedsim.records.ledger import show_peer, total
from fedsim.records.notebook import strategy_of

if TYPE_CHECKING:
    from fedsim.common.stop import StopSpec

_TOTAL = 1000  # steps of the progress bar
_PLAIN_EVERY_S = 5.0  # interval of printed lines, if the console is no terminal
_LIVE_EVERY_S = 0.1  # interval in which the progress bar is updated
_SAVED_EVERY_S = 1.0  # least interval of printed lines on checkpoints


class Console(rich.console.Console):
    """Console that prints text without markup of rich, and replaces control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the text segments of a renderable, without unprintable characters.

        Such characters are replaced; control codes that rich itself has added are kept.
        """
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable() or segment.text == "\n":
                yield segment
            else:
                yield segment._replace(text="".join(map(_printable, segment.text)))


def _printable(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    return "\N{REPLACEMENT CHARACTER}"


class RunProgress:
    """Display of a run's progress: simulated time, round, accuracy and remaining real time.

    Args:
        stop: limits at which the run ends.
        console: console to print to.
        facts: returns what the strategy reports about itself, as a dict. New entries of its list
            ``warnings`` are printed at the end of a round.
        word: the strategy's noun for a round.
    """

    def __init__(
        self,
        stop: "StopSpec",
        console: Console,
        facts: Callable[[], Mapping[str, Any]] = dict,
        word: str = ROUND,
    ) -> None:
        self._word = word
        self._stop = stop
        self._console = console
        self._facts = facts
        self._warnings_printed = 0
        # real times of the begin, and of the last lines on the progress and on a checkpoint
        self._start_s = time.perf_counter()
        self._last_line_s = 0.0
        self._last_saved_s = 0.0
        self._rounds = 0  # rounds that have ended
        # texts on the last test and on the newest checkpoint; empty if there is none yet
        self._accuracy = ""
        self._saved = ""
        self._live: Progress | None = None  # the progress bar; None without a terminal
        if console.is_terminal:
            remaining = (TextColumn("left", markup=False), TimeRemainingColumn())
            self._live = Progress(*progress_columns(), *remaining, console=console, transient=True)
            self._bar = self._live.add_task("simulated 0 s", total=_TOTAL)
            self._live.start()

    def take(self, record: Record) -> None:
        """Update the display from a record of the run."""
        if record.kind == "round":
            self._rounds = record.fields["round"] + 1
            if record.fields["accuracy"] is not None:
                self._accuracy = f", accuracy {record.fields['accuracy']:.4f}"
            self._warn()
        now_s = time.perf_counter()
        interval_s = _LIVE_EVERY_S if self._live else _PLAIN_EVERY_S
        if now_s - self._last_line_s >= interval_s:
            self._last_line_s = now_s
            self._show(record.time, now_s - self._start_s)

    def show_saved(self, rounds: int, simulated_s: float) -> None:
        """Show that a checkpoint was saved.

        If the console is no terminal, a line is printed, but not more than one in a second.

        Args:
            rounds: count of finished rounds.
            simulated_s: simulated time of the checkpoint (s).
        """
        self._saved = f"saved at {self._word} {rounds} ({show_seconds(simulated_s)})"
        now_s = time.perf_counter()
        if self._live is None and now_s - self._last_saved_s >= _SAVED_EVERY_S:
            self._last_saved_s = now_s
            self._console.print(self._saved, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._warn()
        if self._live is not None:
            self._live.stop()

    def _warn(self) -> None:
        warnings = self._facts().get("warnings", [])
        for warning in warnings[self._warnings_printed :]:
            self._console.print(
                f"warning: {clean(warning, 400)}", highlight=False, markup=False, soft_wrap=True
            )
        self._warnings_printed = len(warnings)

    def _show(self, simulated_s: float, real_s: float) -> None:
        """Update the progress bar; without a terminal, print a line from the first round on.

        Args:
            simulated_s: simulated time until now (s).
            real_s: real time since the start (s), from which the remaining time is estimated.
        """
        share = share_done(self._stop, self._rounds, simulated_s)  # done part of the run, 0..1
        text = f"simulated {show_seconds(simulated_s)}, {self._word} {self._rounds}{self._accuracy}"
        if self._live is not None:  # a terminal
            if self._saved:
                text += f", {self._saved}"
            self._live.update(self._bar, completed=share * _TOTAL, description=text)
        elif self._rounds:
            remaining_s = real_s * (1 - share) / share if share else 0.0
            if remaining_s >= 1.0:  # 0 s: the simulated time is over, but learning continues
                text += f", about {show_seconds(remaining_s)} left"
            self._console.print(text, soft_wrap=True)


def progress_columns() -> tuple[ProgressColumn, ...]:
    """Return the columns of a progress line: bar, percentage and description."""
    return BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False)


def share_done(stop: "StopSpec", rounds: int, simulated_s: float) -> float:
    """Return the share (0..1) of a run that is done.

    It is the larger one of the shares by rounds and by simulated time.

    Args:
        stop: limits at which the run ends.
        rounds: count of finished rounds.
        simulated_s: simulated time until now (s).
    """
    done = 0.0
    if stop.rounds is not None:
        done = rounds / stop.rounds
    if stop.simulated_time is not None:
        done = max(done, simulated_s / stop.simulated_time)
    return min(1.0, done)


def extrapolation_lines(lines: list[str], most: int = 5) -> list[str]:
    """Return warnings about values that lie outside the range to which a formula was fitted.

    Args:
        lines: descriptions of the values, one line each.
        most: greatest count of lines to return; lines beyond it are only counted.
    """
    shown = lines[:most]
    if len(lines) > most:
        shown.append(f"and {len(lines) - most} more")
    return [f"outside of what a rule was fitted to: {line}" for line in shown]


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """Return text lines with the main results of a run, from its summary."""
    traffic = summary["bytes"]
    accuracy = summary["accuracy"]
    moment = "at the end" if summary["status"] == "done" else "so far"
    lines = [
        f"{strategy_of(summary)}, seed {summary['seed']}: "
        f"{count_rounds(summary['rounds'], round_word(summary))} in "
        f"{show_seconds(summary['simulated_s'])} of simulated time, "
        f"{summary['wall_s']:.1f} s of real time ({stopped_in_words(summary)})",
    ]
    if accuracy["final"] is None:
        lines.append(f"no accuracy: {summary.get('no_accuracy')}")
    else:
        lines.append(f"accuracy {accuracy['final']:.4f} {moment}, {accuracy['best']:.4f} at best")
    for name, metric in summary.get("metrics", {}).items():
        if metric["final"] is not None:
            lines.append(f"{name} {metric['final']:.4g} {moment}, {metric['best']:.4g} at best")
    directions = [f"{show_bytes(traffic['down'])} down", f"{show_bytes(traffic['up'])} up"]
    directions += show_peer(traffic)
    lines.append(
        f"moved {show_bytes(total(traffic))} ({', '.join(directions)}), "
        f"of which {show_bytes(traffic['wasted'])} wasted"
    )
    lines += summary.get("notes", [])
    lines += extrapolation_lines(summary.get("outside_of_rules", []))
    if "not_finite" in summary:
        lines.append(
            "the strategy has made models whose weights are not all finite: "
            f"{summary['not_finite']}"
        )
    return lines
