"""The report of unfinished runs and studies, rebuilt as they grow and served on loopback only.

The surrounding page gets each new state as a server-sent event, and takes the new report unless
the reader is using the old one.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedsim.analysis.serving import HOST, LivePage, server_of
from fedsim.clock.worker_process import start
from fedsim.common.errors import FedsimError
from fedsim.common.harmless import clean, say
from fedsim.lab.reading.study_folder import INDEX, is_study
from fedsim.lab.reading.study_progress import progress_lines
from fedsim.records.folder import SCENARIO, SUMMARY
from fedsim.records.live import LIVE

_LOOK_S = 0.5  # time between two checks of the folders (s)
_PAUSE_FACTOR = 4  # pause after a report is built, as a multiple of the time that building it took
# time (s) for which a folder must be unreadable before the page says so; a run that replaces its
# files makes its folder unreadable for a moment
_DAMAGED_S = 5.0
_MOST_LINES = 40  # the page has a line for each active or failed run of a study, up to this count
_LAST_S = 5.0  # longest time that open pages have to fetch the last report (s)
_DRAWN = "there is something to show: the first page is drawn, which takes some seconds"
_OVER = b"over\n"  # message to the server's process: the run is over, and its page stays


class Growing(LivePage):
    """Live page with the report of runs or studies, which is rebuilt as the runs grow.

    Args:
        paths: folders of runs or studies, which need not exist yet.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._last_stamps: list[tuple[str, int]] = []
        self._next_look_s = 0.0
        self._unreadable_since_s: float | None = None
        super().__init__(self._wait_in_words())

    def look(self, *, at_once: bool = False) -> bool:
        """Rebuild the report if a run has changed since the last rebuild.

        Args:
            at_once: whether to look for changes even if the report was rebuilt just before. By
                default the report is not rebuilt for a time after each rebuild, unless all runs
                have ended. This time is proportional to the duration of the rebuild.

        Returns:
            Whether the report was rebuilt. False also if a folder cannot be read at the moment, or
            if no run has written anything to show.
        """
        lines: list[str] = []
        for path in self._paths:
            lines += progress_lines(path)
        self.tell_runs(lines[:_MOST_LINES])
        have_ended = all((path / SUMMARY).is_file() for path in self._paths)
        is_in_pause = time.monotonic() < self._next_look_s
        if is_in_pause and not at_once and not have_ended:
            return False
        stamps = self._stamps()
        if stamps == self._last_stamps:
            return False
        start_s = time.monotonic()
        try:
            is_built = self._rebuild()
        except (FedsimError, OSError) as error:
            self._say_unreadable(error, start_s)
            return False
        self._unreadable_since_s = None
        self._last_stamps = stamps
        end_s = time.monotonic()
        self._next_look_s = end_s + _PAUSE_FACTOR * (end_s - start_s)
        return is_built

    def _rebuild(self) -> bool:
        """Build the report; return False if there is nothing to show yet."""
        if not any(map(_can_be_shown, self._paths)):
            self.say(self._wait_in_words())
            return False
        if not self.page:
            self.say(_DRAWN)
        # imported here, as it loads matplotlib, which takes seconds on a busy machine
        from fedsim.analysis.report.live import read_live

        live = read_live(self._paths)
        self.show(live.page, live.title, live.says, over=live.is_over)
        return True

    def _say_unreadable(self, error: Exception, now_s: float) -> None:
        """Show on the page that a folder cannot be read, if this has lasted for some seconds.

        Until then, a run may just be replacing its files.

        Args:
            error: the error of the last attempt.
            now_s: time of the attempt (s).
        """
        if self._unreadable_since_s is None:
            self._unreadable_since_s = now_s
        if now_s - self._unreadable_since_s >= _DAMAGED_S:
            self.say(clean(str(error), 400))

    def _wait_in_words(self) -> str:
        """Return a text on what the page waits for."""
        if any(map(_can_be_shown, self._paths)):
            return _DRAWN
        name = ", ".join(clean(str(path), 100) for path in self._paths)
        if any((path / SCENARIO).is_file() for path in self._paths):
            return (
                f"{name} has begun; waiting for its first tables, which come after its first task "
                "and some seconds"
            )
        return f"waiting for {name} to begin: the folder is not there yet, or still empty"

    def _stamps(self) -> list[tuple[str, int]]:
        """Return the path and modification time (ns) of each study's index and run's summary."""
        patterns = (SUMMARY, f"{LIVE}/{SUMMARY}", SCENARIO)
        stamps = []
        for path in self._paths:
            for pattern in (INDEX, *patterns, *(f"runs/*/seed-*/{name}" for name in patterns)):
                for file in sorted(path.glob(pattern)):
                    with suppress(OSError):  # the file has been removed
                        stamps.append((str(file), file.stat().st_mtime_ns))
        return stamps


def _can_be_shown(path: Path) -> bool:
    """Whether a folder has something to report: a study, or a run whose tables were written."""
    return is_study(path) or any((path / name).is_file() for name in (SUMMARY, f"{LIVE}/{SUMMARY}"))


def watch(
    paths: Sequence[Path],
    announce: Callable[[str], None],
    over: threading.Event,
    port: int = 0,
) -> None:
    """Serve the report of runs or studies over HTTP until ``over`` is set.

    The report is rebuilt when a run has changed. After ``over`` is set, browsers have at most 5 s
    to receive the last report.

    Args:
        paths: folders of runs or studies, which need not exist yet.
        announce: function that is called with the address of the report, once it is served.
        over: event that the caller sets to end the server.
        port: port to serve at; 0 for any free port.

    Raises:
        FedsimError: the port cannot be used.
    """
    growing = Growing(paths)
    with server_of(growing, port) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        announce(f"http://{HOST}:{server.server_port}/")
        try:
            while not over.wait(_LOOK_S):
                growing.look()
            if growing.look(at_once=True) and growing.is_followed:
                time.sleep(1.0)  # so that open pages can fetch the last report
        finally:
            growing.end(_LAST_S)
            server.shutdown()


class WatchedRun:
    """Web page with the report of this process's run (``fedsim run --watch``).

    A child process serves the page to browsers.

    Args:
        server: the child process, whose standard input is a pipe.
    """

    def __init__(self, server: "subprocess.Popen[bytes]") -> None:
        self._server = server

    def stay(self) -> None:
        """Keep serving the page of the finished run, and wait until the user presses Ctrl-C.

        The child process goes on serving the page, and prints the page's address again. The call
        returns after Ctrl-C, or when the child process has ended.
        """
        assert self._server.stdin is not None
        with suppress(KeyboardInterrupt, BrokenPipeError):
            self._server.stdin.write(_OVER)
            self._server.stdin.flush()
            self._server.wait()


@contextmanager
def watching(path: Path, port: int = 0) -> Iterator[WatchedRun]:
    """Serve the report of this process's run over HTTP, from a child process that calls ``main``.

    The child process ends at the end of the context, or with this process.

    Args:
        path: the run's folder.
        port: port to serve at; 0 for any free port.

    Yields:
        The page, which ``stay`` keeps open after the run.
    """
    # the end of the context closes the pipe, which ends the child process
    with start(
        "fedsim.analysis.watch", "main", str(path), str(port), stdin=subprocess.PIPE
    ) as server:
        yield WatchedRun(server)


def main() -> None:
    """Serve the report of an unfinished run over HTTP, until standard input ends.

    ``watching`` starts this function in a child process, with two command-line arguments: the run
    folder, and the port (0 for any free port). The pipe to its standard input is closed when the
    parent process ends or needs the report no longer. The page's address is printed to standard
    error; only this machine can open it.
    """
    path, port = sys.argv[1:]
    over = threading.Event()
    addresses: list[str] = []

    def wait_for_end_of_input() -> None:
        for line in sys.stdin.buffer:
            if line == _OVER and addresses:
                say(f"the page stays at {addresses[0]} (Ctrl-C ends it)", err=True)
        over.set()

    def announce(address: str) -> None:
        addresses.append(address)
        say(f"watch the run at {address}", err=True)
        threading.Thread(target=wait_for_end_of_input, daemon=True).start()

    try:
        watch([Path(path)], announce, over, int(port))
    except FedsimError as error:
        say(f"fedsim: {error}", err=True)
