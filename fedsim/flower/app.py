"""A Flower app: its ``pyproject.toml``, its two halves, and the threads in which they take
turns.
"""

import asyncio
import os
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar

from fedsim.common.errors import ScenarioError, SimulationError, nearest, shown
from fedsim.common.files import flat, read_toml

T = TypeVar("T")
Value = bool | int | float | str

_FILE = "pyproject.toml"
_MOST_CALLS = 8  # that an error names, and errors that led to another that are looked at
_FETCHING = (
    "huggingface_hub",
    "datasets",
    "fsspec",
    "requests",
    "httpx",
    "httpcore",
    "urllib3",
    "aiohttp",
    "flwr_datasets",
)
_UNREACHED = (
    "Connect",
    "Offline",
    "Timeout",
    "LocalEntryNotFound",
    "Network",
    "MaxRetry",
    "NameResolution",
    "Proxy",
)
_NO_CONNECTION = "couldn't connect to"  # as transformers and datasets say it
_GRACE_S = 1.0  # real seconds that an app has to end when the run is over


@dataclass(frozen=True)
class App:
    """A Flower app; its halves as ``module:attribute``, its run configuration with the changes
    of the scenario.
    """

    folder: Path
    server: str
    client: str
    config: dict[str, Value]

    def load(self, half: str) -> Any:
        """Import the ServerApp or the ClientApp (``half``: ``server`` or ``client``); its folder
        is on ``sys.path``.

        Raises ``SimulationError`` if it cannot be imported, or is something else.
        """
        from flwr.clientapp import ClientApp
        from flwr.serverapp import ServerApp

        path = getattr(self, half)
        called = f"{half}app"
        wanted = ServerApp if half == "server" else ClientApp
        try:
            found = resolve_name(path)
        except Exception as error:
            raise SimulationError(
                f"the {called} {path!r} cannot be loaded: {error_of_app(error, self.folder)}"
            ) from error
        if not isinstance(found, wanted):
            raise SimulationError(
                f"the {called} {path!r} is a {type(found).__name__}; it must be a {wanted.__name__}"
            )
        return found


def read_app(place: str, run_config: Mapping[str, Any]) -> App:
    """The app in the folder ``place``, its ``[tool.flwr.app.config]`` changed by ``run_config``,
    as ``flwr run`` does.

    Raises ``ScenarioError`` if there is no such app, or it has no such key.
    """
    folder = Path(place).expanduser().resolve()
    try:
        written = read_toml(folder / _FILE)
    except OSError:
        what = "give the folder of a Flower app, from the working directory on or from the root"
        raise ScenarioError(
            f"strategy.app is {place!r}, but there is no {str(folder / _FILE)!r}; {what}"
        ) from None
    except ValueError as error:
        raise ScenarioError(
            f"strategy.app: {str(folder / _FILE)!r} is not valid TOML: {error}"
        ) from None
    for key in ("tool", "flwr", "app"):
        written = written.get(key, {}) if isinstance(written, dict) else {}
    components = written.get("components", {})
    for name in ("serverapp", "clientapp"):
        if not (isinstance(components.get(name), str) and ":" in components[name]):
            key = f"tool.flwr.app.components.{name}"
            raise ScenarioError(
                f"strategy.app is {place!r}, whose {_FILE} does not say {key} = 'module:attribute'"
            )
    config = flat(written.get("config", {}))
    changes = flat(run_config)
    for key, value in changes.items():
        if key not in config:
            known = f"{', '.join(config) or 'none'}{nearest(key, config)}"
            raise ScenarioError(
                f"strategy.run_config has the key {key!r}, which the app lacks; it has {known}"
            )
        if not isinstance(value, Value):
            raise ScenarioError(
                f"strategy.run_config.{key} is {shown(value)}; allowed are numbers, texts, "
                "true and false"
            )
    return App(folder, components["serverapp"], components["clientapp"], config | changes)


def is_within(folder: Path, file: str) -> bool:
    """Whether a file is in a folder, outside of an environment of packages there (``.venv``)."""
    inside = f"{folder}{os.sep}"
    return file.startswith(inside) and not (
        sys.prefix.startswith(inside) and file.startswith(f"{sys.prefix}{os.sep}")
    )


def place_in(what: BaseException | threading.Thread, folder: Path) -> str:
    """Place of an error or a thread in the code of a folder: ``", in client_app.py, line 12"``;
    ``""`` if elsewhere.
    """
    if isinstance(what, BaseException):
        frames = traceback.extract_tb(what.__traceback__)
    else:
        frames = traceback.extract_stack(sys._current_frames().get(what.ident or 0))
    inside = [frame for frame in frames if is_within(folder, frame.filename)]
    return f", in {Path(inside[-1].filename).name}, line {inside[-1].lineno}" if inside else ""


def error_of_app(error: BaseException, folder: Path) -> str:
    """The error of the app in a folder, with its place there, the calls that led to it, the
    folder, and perhaps a hint.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if is_within(folder, frame.filename)
    ]
    calls = [
        f"{Path(frame.filename).relative_to(folder)}:{frame.lineno} {frame.name}"
        for frame in frames[-_MOST_CALLS:]
    ]
    led = f"; by {' > '.join(calls)}" if len(calls) > 1 else ""
    where = (
        f"{place_in(error, folder)}{led}; the app is in {str(folder)!r}, and --debug shows all "
        "calls"
    )
    return f"{type(error).__name__}: {error}{where}{_hint_at_hub(error)}"


def _hint_at_hub(error: BaseException) -> str:
    """A hint where an error, or one that led to it, is of a library that fetches data and has
    reached no hub.
    """
    linked: BaseException | None = error
    for _ in range(_MOST_CALLS):
        if linked is None:
            break
        package = type(linked).__module__.partition(".")[0]
        is_of_network = isinstance(linked, ConnectionError | TimeoutError | socket.gaierror)
        is_unreached = package in _FETCHING and any(
            word in type(linked).__name__ for word in _UNREACHED
        )
        if is_of_network or is_unreached or _NO_CONNECTION in str(linked):
            return (
                ". The app fetches data or models from a hub that cannot be reached from here: "
                "fetch them once where it "
                "can be, copy that cache and set HF_HOME to it and HF_HUB_OFFLINE=1, or have "
                "the app read local files"
            )
        linked = linked.__cause__ or linked.__context__
    return ""


def _endless(called: str, patience_s: float, place: str) -> SimulationError:
    hint = "if that is no mistake, give strategy.real_patience more"
    return SimulationError(
        f"{called} has computed for {patience_s:g} s of real time{place}; {hint}"
    )


def carried_out(function: Callable[[], T], patience_s: float, folder: Path, called: str) -> T:
    """Compute a function in another thread; ``SimulationError`` after ``patience_s`` real
    seconds.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)

    thread = threading.Thread(target=run, name="ClientApp", daemon=True)
    thread.start()
    thread.join(min(patience_s, threading.TIMEOUT_MAX))
    if not answer.done():
        raise _endless(called, patience_s, place_in(thread, folder))
    return answer.result()


class Over(BaseException):
    """The run is over: ends the ServerApp's thread wherever it waits."""


class Turns:
    """A function in a thread of its own, which takes turns with the simulation.

    Each turn is within ``around``; ``result`` waits for real work. A turn of more than
    ``patience_s`` real seconds raises an error with the place in the code of ``folder``.
    """

    def __init__(
        self,
        function: Callable[[], None],
        around: Callable[[], AbstractContextManager[Any]],
        result: Callable[[Future[None]], Awaitable[None]],
        folder: Path,
        patience_s: float,
    ) -> None:
        self._function = function
        self._around = around
        self._result = result
        self._folder = folder
        self._patience_s = patience_s
        self.thread = threading.Thread(target=self._run, name="ServerApp", daemon=True)
        self._turn = threading.Semaphore(0)
        self._back: Future[None] = Future()
        self._within = ExitStack()
        self.closing = self.over = False
        self.error: BaseException | None = None

    async def give(self) -> None:
        """Run the function until it waits or is ``over``, perhaps with an ``error``;
        ``SimulationError`` after the patience.
        """
        self._back = Future()
        if self.thread.ident is None:
            self.thread.start()
        else:
            self._turn.release()
        alarm = asyncio.get_running_loop().call_later(self._patience_s, self._take)
        try:
            await self._result(self._back)
        finally:
            alarm.cancel()

    def _take(self) -> None:
        if not self._back.done():
            place = place_in(self.thread, self._folder)
            self._back.set_exception(
                _endless("the ServerApp", self._patience_s, f" without calling the Grid{place}")
            )

    def wait(self) -> None:
        """Give the turn back, from within the thread, and wait for the next one; ``Over``: there
        is none.
        """
        self._give_back()
        self._turn.acquire()
        if self.closing:
            raise Over
        self._within.enter_context(self._around())

    def close(self) -> None:
        """End the function if it waits; an endless computation is left alone."""
        self.closing = True
        if self.thread.ident is not None and not self.over:
            self._turn.release()
            self.thread.join(_GRACE_S)

    def _run(self) -> None:
        self._within.enter_context(self._around())
        try:
            with suppress(Over):
                self._function()
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            if not self.closing:
                self._give_back()

    def _give_back(self) -> None:
        self._within.close()
        if not self._back.done():
            self._back.set_result(None)
