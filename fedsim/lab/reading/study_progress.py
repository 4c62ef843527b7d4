"""Progress of a study's active runs, for pages that show the study while it goes on.

Each process that carries out runs of the study has its own file in the study's folder, which it
renews every few seconds. The file is removed at the end, unless runs have failed.
"""

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from fedsim.common.files import read_json, replacing
from fedsim.common.harmless import clean

_PATTERN = "progress-*.json"
_WRITE_INTERVAL_S = 2.0  # least time between two writings (s)
_FRESH_S = 60.0  # age after which the process of a file is taken for dead (s)
_MOST_NOTE_CHARACTERS = 300  # upper bound of the length of a note (characters)


@dataclass
class RunNews:
    """Entry of a study's progress file: progress of an active run, or the error of a failed run.

    Attributes:
        share: part of the run that is done (0..1).
        note: last line from the run, such as its node, output of its code, or its error.
        failed: whether the run has failed.
    """

    share: float = 0.0
    note: str = ""
    failed: bool = False


class ProgressFile:
    """File in a study's folder with the progress of this process's runs, for pages on the study.

    It is rewritten after changes, every two seconds at most, and removed by ``close`` unless runs
    have failed. A new instance also removes such files of processes that have ended.

    Args:
        folder: the study's folder.
    """

    def __init__(self, folder: Path) -> None:
        clear(folder)
        self._path = folder / f"progress-{socket.gethostname()}-{os.getpid()}.json"
        self._runs: dict[str, RunNews] = {}
        self._written_at = time.monotonic()

    def take_share(self, label: str, share: float) -> None:
        """Store the progress of a run, and write the file, at most every two seconds.

        Args:
            label: name of the run.
            share: done part of the run (0..1).
        """
        self._news_of(label).share = share
        self._write()

    def take_note(self, label: str, note: str) -> None:
        """Store a line of text about a run, and write the file, at most every two seconds.

        Args:
            label: name of the run.
            note: the line, such as the name of the run's node.
        """
        self._news_of(label).note = clean(note, _MOST_NOTE_CHARACTERS)
        self._write()

    def end(self, label: str, error: str) -> None:
        """Remove a run that has ended from the file, or list its error there if it has failed.

        Args:
            label: name of the run.
            error: message of the error with which the run failed; empty if it did not fail.
        """
        self._runs.pop(label, None)
        if error:
            self._runs[label] = RunNews(1.0, clean(error, _MOST_NOTE_CHARACTERS), failed=True)
        self._write()

    def close(self) -> None:
        """Remove the file; if runs have failed, keep the file with only the failed runs."""
        self._runs = {label: news for label, news in self._runs.items() if news.failed}
        if self._runs:
            self._write(is_last=True)
        else:
            self._path.unlink(missing_ok=True)

    def _news_of(self, label: str) -> RunNews:
        return self._runs.setdefault(label, RunNews())

    def _write(self, *, is_last: bool = False) -> None:
        now = time.monotonic()
        if not is_last and now - self._written_at < _WRITE_INTERVAL_S:
            return
        self._written_at = now
        runs = {label: asdict(news) for label, news in self._runs.items()}
        with suppress(OSError), replacing(self._path) as beside:
            beside.write_text(json.dumps(runs), encoding="utf-8")


def clear(folder: Path) -> None:
    """Remove the progress files of processes that have ended from a study's folder.

    These are files that were not written for a minute, and files of only failed runs.
    """
    for path in sorted(folder.glob(_PATTERN)):
        with suppress(OSError):
            is_stale = _age_s(path) > _FRESH_S
            if is_stale or all(news.failed for news in _read(path).values()):
                path.unlink()


def progress_lines(folder: Path) -> list[str]:
    """Return a line for each active or failed run of a study: its name, progress and last note.

    Args:
        folder: the study's folder.
    """
    lines = []
    for path in sorted(folder.glob(_PATTERN)):
        with suppress(OSError):  # the file may be removed meanwhile
            is_fresh = _age_s(path) <= _FRESH_S  # otherwise its process is dead
            for label, news in _read(path).items():
                if news.failed:
                    lines.append(f"{label}: failed: {news.note}")
                elif is_fresh and news.note:
                    lines.append(f"{label}: {news.share:.0%}, {news.note}")
                elif is_fresh:
                    lines.append(f"{label}: {news.share:.0%}")
    return lines


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _read(path: Path) -> dict[str, RunNews]:
    try:
        return {clean(label): RunNews(**news) for label, news in read_json(path).items()}
    except (ValueError, TypeError, AttributeError):  # not a file of progress
        return {}
