"""Where a case is tried: a folder of its own, and a command line that is watched.

Each call is a child forked from this process, which has imported what takes long. It has as much
memory and time as a mistake of a user may cost, and a home without settings. What must hold of
every call is looked at here.
"""

import os
import pty
import re
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import fedsim
import fedsim.analysis.report  # so that a child need not
from fedsim import cli
from fedsim.analysis import __main__ as analysis
from fedsim.common.errors import FedsimError
from fedsim.testing import eventful_world, run

_LIMITS = {resource.RLIMIT_DATA: 4 << 30, resource.RLIMIT_FSIZE: 1 << 29, resource.RLIMIT_CORE: 0}
LONGEST_MESSAGE = 20_000
WITNESS = "imported"
"""The file that ``witness.py``, which lies beside every case's files, leaves when it is run."""

_WITNESS_CODE = f"""from pathlib import Path

Path({WITNESS!r}).touch()


class Witness:
    def __init__(self, **_):
        pass
"""
_UNEXPECTED = "--debug shows where"
_NOISE = re.compile(r"Traceback \(most recent call last\)|\b\w{0,40}Warning: |Exception ignored in")
_OURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\]8;[^\x1b]*\x1b\\|\r")
"""Sequences that a live display itself sends: colours, moves of the cursor, links."""
_FROM_FILES = ("\x1b]0;owned\x07", "\x1b[31;47;5m")
_NO_ROOM = "there is not enough memory"
_GRACE_S = 20.0  # what a run that was asked to stop has for that
# what Python itself does not show
_QUIET = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)

Verb = Callable[[list[str]], Any]


class Outcome(NamedTuple):
    status: int  # of one that was killed the signal, negative
    text: str  # stdout, then stderr
    stopped: bool  # it was sent SIGTERM when its patience was over
    where: str  # the traceback of an error that was not expected


class Place:
    """An empty folder, the calls in it with how they ended, and what was wrong: the same line
    wherever the same is wrong.
    """

    def __init__(self, folder: Path, verbs: dict[str, Verb], patience_s: float) -> None:
        self.folder = folder
        self._verbs = verbs
        self._patience_s = patience_s
        self.calls: list[tuple[list[str], Outcome]] = []
        self.complaints: list[str] = []
        (folder / "witness.py").write_text(_WITNESS_CODE)

    def complain(self, what: str) -> None:
        self.complaints.append(what)

    def call(
        self,
        *argv: str,
        allowed: Collection[int] = (0, 2),
        excuse: str = "",
        long: bool = False,
        terminal: bool = False,
    ) -> Outcome:
        """Carry out a command line, and check what must hold of each.

        ``allowed`` are exit statuses that are no mistake of fedsim's here; nor is 1 where it says
        ``excuse``. A ``long`` call may outlast the patience, but then it heeds SIGTERM.
        ``terminal``: stdout and stderr are a pseudo-terminal.
        """
        outcome = self._carry_out(list(argv), long, terminal)
        self.calls.append((list(argv), outcome))
        excused = _NO_ROOM in outcome.text or (excuse and excuse in outcome.text)
        fine = {*allowed, *([130] if outcome.stopped else []), *([1] if excused else [])}
        for what in self._wrong(argv[0], outcome, fine, terminal):
            self.complain(f"{argv[0]}: {what}")
        if (self.folder / WITNESS).exists():
            self.complain(f"{argv[0]}: code that a file named was run")
            (self.folder / WITNESS).unlink()
        return outcome

    def _carry_out(self, argv: list[str], long: bool, terminal: bool) -> Outcome:
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            tempfile.TemporaryFile("w+") as where,
        ):
            child, screen = pty.fork() if terminal else (os.fork(), -1)
            if child == 0:
                self._be_child(argv, *((None, None) if terminal else (out, err)), where)
            try:
                status, stopped = self._await(child, long, screen, out)
            finally:
                if screen >= 0:
                    os.close(screen)
            return Outcome(status, _text(out) + _text(err), stopped, _text(where))

    def _await(self, child: int, long: bool, screen: int, out: IO[bytes]) -> tuple[int, bool]:
        handle = os.pidfd_open(child)
        deadline, stopped = time.monotonic() + self._patience_s, False
        watched = [handle] if screen < 0 else [handle, screen]
        try:
            while True:
                ready, _, _ = select.select(watched, [], [], max(0.0, deadline - time.monotonic()))
                if screen in ready and not _read_some(screen, out):
                    watched = [handle]
                elif ready == [handle]:
                    break
                elif not ready and long and not stopped:
                    os.kill(child, signal.SIGTERM)
                    deadline, stopped = time.monotonic() + _GRACE_S, True
                elif not ready:
                    os.killpg(child, signal.SIGKILL)
                    break
        finally:
            os.close(handle)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), stopped

    def _be_child(
        self, argv: list[str], out: IO[bytes] | None, err: IO[bytes] | None, where: IO[str]
    ) -> NoReturn:
        status = 1
        try:
            if out is not None and err is not None:
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
            for limit, most in _LIMITS.items():
                resource.setrlimit(limit, (most, most))
            os.chdir(self.folder)
            sys.path.insert(0, "")
            os.environ |= {
                "HOME": str(self.folder),
                "XDG_CONFIG_HOME": str(self.folder),
                "TERM": "xterm-256color",
            }
            os.environ.pop("FEDSIM_ALLOW_CODE", None)
            sys.argv = ["fedsim", *argv]
            sys.stdout = TextIOWrapper(
                os.fdopen(1, "wb", closefd=False), "utf-8", "strict", line_buffering=True
            )
            sys.stderr = _Listening(where)
            warnings.resetwarnings()
            for kind in _QUIET:
                warnings.simplefilter("ignore", kind)
            status = self._do(argv)
        finally:
            os._exit(status)

    def _do(self, argv: list[str]) -> int:
        try:
            self._verbs[argv[0]](argv)
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
            status = 1
        try:
            sys.stdout.flush()
        except Exception:
            traceback.print_exc()
            status = 120
        sys.stderr.flush()
        return status

    def _wrong(
        self, verb: str, outcome: Outcome, fine: Collection[int], terminal: bool
    ) -> list[str]:
        found = []
        if outcome.status == -signal.SIGKILL:
            found.append(
                "did not stop within 20 s of SIGTERM"
                if outcome.stopped
                else f"hung for {self._patience_s:g} s"
            )
        elif outcome.where:
            found.append(f"unexpected {_last_frame(outcome.where)}")
        elif noise := _NOISE.search(outcome.text):
            line = outcome.text[noise.start() :][:500].partition("\n")[0]
            found.append(
                _last_frame(outcome.text)
                if line.startswith("Traceback")
                else f"noise: {_same(line)}"
            )
        elif outcome.status not in fine:
            found.append(
                f"exit status {outcome.status}: "
                f"{_same(outcome.text.strip().rpartition(chr(10))[2])}"
            )
        elif outcome.status == 2 and len(outcome.text) > LONGEST_MESSAGE:
            found.append(f"a message of more than {LONGEST_MESSAGE} characters")
        text = _OURS.sub("", outcome.text) if terminal else outcome.text
        if (harm := next(filter(harmful, text), None)) or (
            terminal and any(part in outcome.text for part in _FROM_FILES)
        ):
            found.append(
                f"prints a character of category {unicodedata.category(harm or _FROM_FILES[0][0])}"
            )
        return found


class _Listening(TextIOWrapper):
    """stderr as Python opens it, which keeps the traceback of an error that is told as one that
    nobody expected.
    """

    def __init__(self, where: IO[str]) -> None:
        super().__init__(
            os.fdopen(2, "wb", closefd=False), "utf-8", "backslashreplace", line_buffering=True
        )
        self._where = where

    def write(self, text: str) -> int:
        if _UNEXPECTED in text and sys.exc_info()[0] is not None:
            self._where.write(traceback.format_exc())
            self._where.flush()
        return super().write(text)


def loaded_verbs() -> dict[str, Verb]:
    """All that can be called, imported and warm: a child that is forked need not do that again."""
    run(eventful_world({"kind": "flexcfl", "groups": 2}, rounds=2))
    threads = {
        (thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()
    } - {"jemalloc_bg_thd"}
    assert len(threads) == 1, f"threads do not outlive a fork, but there are {threads}"
    verbs: dict[str, Verb] = dict.fromkeys(cli.main.commands, cli.main)
    return verbs | {"load_run": _load_run, "analysis": lambda argv: analysis.main(argv[1:])}


def _load_run(argv: list[str]) -> None:
    """As in a notebook: a run is loaded, and all of it looked at."""
    with suppress(FedsimError):
        loaded = fedsim.load_run(argv[1])
        names = ("summary", "scenario", "rounds", "devices", "events", "transfers")
        looks: list[Callable[[], object]] = [partial(getattr, loaded, name) for name in names]
        for look in [*looks, loaded.models, loaded._repr_html_, lambda: loaded.figure("accuracy")]:
            with suppress(FedsimError):
                look()


def in_a_child(do: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:
        try:
            do()
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def harmful(character: str) -> bool:
    """Whether a terminal may obey a character, or show text in another order because of it."""
    return character not in "\n\t" and unicodedata.category(character) in (
        "Cc",
        "Cf",
        "Cs",
        "Zl",
        "Zp",
    )


def _read_some(screen: int, out: IO[bytes]) -> bool:
    with suppress(OSError):  # the other end is closed
        return bool(out.write(os.read(screen, 1 << 16)))
    return False


def _text(file: IO[Any]) -> str:
    file.seek(0)
    content = file.read()
    return (
        content.decode("utf-8", "surrogateescape") if isinstance(content, bytes) else str(content)
    )


def _last_frame(text: str) -> str:
    own = re.findall(r'File ".*/((?:fedsim|analysis)/.*?)", line \d+, in (\S+)', text)
    place = ":".join(own[-1]) if own else "?"
    return f"{_same(text.strip().rpartition(chr(10))[2])} at {place}"


def _same(line: str) -> str:
    line = re.sub(r"(.)\1{9,}", r"\1...", line[:500])
    return re.sub(r"[-+]?\d[\d.e+-]*", "N", re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", line))[:160]
