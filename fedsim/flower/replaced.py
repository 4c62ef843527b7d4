"""Replacements of the clock, of waiting, modules, generators and threads, for apps of Flower.

A replacement acts in the thread of a simulated ServerApp alone. In that of a ClientApp
``time.sleep`` returns at once, and is counted. The clock is simulated for code that knows Flower:
the app's own, flwr, and packages that import it. Other libraries wait for real processes, sockets
and threads, so they get real time.
"""

import datetime
import logging
import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from inspect import signature
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import flwr.compat.common.recorddict_compat as compat
import numpy as np
import torch  # its generator is seeded before an app imports it, perhaps only within a function
from flwr.app import Message
from flwr.app.message import message as of_messages
from flwr.app.message_type import MessageType
from flwr.clientapp import client_app
from flwr.common import Code
from flwr.server import history, server
from flwr.server.client_manager import SimpleClientManager
from flwr.server.compat import app, app_utils
from flwr.server.workflow import default_workflows
from flwr.server.workflow.constant import MAIN_PARAMS_RECORD
from flwr.serverapp.strategy import Strategy, strategy_utils

from fedsim.flower.app import App, is_within

EPOCH_S = 1_577_836_800.0  # of simulated time 0 on the app's clock: 2020-01-01


class AppHalf:
    """The ServerApp or the ClientApp (``name``: ``server`` or ``client``), ``loaded`` with the
    generators at ``seed``.

    While an app is in use, it has its own modules, global generators and torch threads.
    """

    def __init__(self, app: App, name: str, seed: int) -> None:
        self._folder = app.folder
        self._modules: dict[str, ModuleType] = {}
        for known in [known for known, module in sys.modules.items() if self._has(module)]:
            del sys.modules[known]  # of another run: they may remember things
        with self.in_use(seed):
            self.loaded = app.load(name)
            self._generators = _generators()

    @contextmanager
    def in_use(self, seed: int | None = None) -> Iterator[None]:
        """Use this half; without a ``seed``, generators continue from their last use without
        one.
        """
        outside = _generators()
        threads = torch.get_num_threads()
        log = logging.getLogger("flwr")
        place = str(self._folder)
        level = log.level
        if seed is None:
            _set_generators(self._generators)
        else:
            random.seed(seed)
            np.random.seed(seed % (1 << 32))  # noqa: NPY002
            torch.default_generator.manual_seed(seed)
        torch.set_num_threads(1)  # sums of several threads have other last bits
        if "FLWR_LOG_LEVEL" not in os.environ:
            log.setLevel(logging.WARNING)
        sys.path.insert(0, place)
        sys.modules.update(self._modules)
        count = len(sys.modules)
        try:
            yield
        finally:
            if len(sys.modules) != count:
                self._modules |= {
                    name: module for name, module in sys.modules.items() if self._has(module)
                }
            for name in self._modules:
                sys.modules.pop(name, None)
            if place in sys.path:
                sys.path.remove(place)
            log.setLevel(level)
            torch.set_num_threads(threads)
            if seed is None:
                self._generators = _generators()
            _set_generators(outside)

    def _has(self, module: ModuleType) -> bool:
        """Whether a module lies in the app's folder; a package without a file has places alone."""
        try:
            file = getattr(module, "__file__", None) or next(
                iter(getattr(module, "__path__", ())), ""
            )
        except Exception:  # a module may do anything when asked
            return False
        return is_within(self._folder, str(file))


def _generators() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False), torch.default_generator.get_state()  # noqa: NPY002


def _set_generators(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.default_generator.set_state(states[2])


class Sleeper:
    """A ClientApp at work, and how long its code has slept (s), by which its clocks advance."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slept_s = 0.0


class _Here(threading.local):
    side: Any = None  # the ``server_side.Session`` whose ServerApp this thread is
    sleeper: Sleeper | None = None  # this thread is a ClientApp's
    now_s: float | None = None  # time of Flower's own clock, of messages alone
    reply: Any = None  # of the ClientApp's function, before mods may hide its content


here = _Here()


@contextmanager
def where(**state: Any) -> Iterator[None]:
    """Within it these attributes of ``here`` have other values."""
    vars(here).update(state)
    try:
        yield
    finally:
        for name in state:
            vars(here).pop(name, None)


_knows_flower = {"flwr": True}  # by top package


def _side_of_caller() -> Any:
    """The simulated ServerApp or ClientApp, if the caller of the caller knows Flower."""
    side = here.side or here.sleeper
    if side is None:
        return None
    frame = sys._getframe(2)
    if is_within(side.folder, frame.f_code.co_filename):
        return side
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    if package not in _knows_flower:
        modules = [
            module
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] == package
        ]
        _knows_flower[package] = any(map(_has_of_flower, modules))
    return side if _knows_flower[package] else None


def _has_of_flower(module: ModuleType) -> bool:
    """Whether a module has imported from Flower; attributes of other objects may run code."""
    for value in list(vars(module).values()):
        kind = type(value)
        name = (
            value.__name__
            if kind is ModuleType
            else value.__module__
            if issubclass(kind, type | FunctionType)
            else ""
        )
        if str(name).partition(".")[0] == "flwr":
            return True
    return False


@cache
def replace_all() -> None:
    """Install the replacements, once a process."""
    for name, begin_s in (("time", EPOCH_S), ("monotonic", 0.0), ("perf_counter", 0.0)):
        _replace_clock(name, 1.0, begin_s)
        _replace_clock(f"{name}_ns", 1e9, begin_s)
    real_sleep = time.sleep

    @wraps(real_sleep)
    def sleep(seconds: float) -> None:
        side = _side_of_caller()
        if side is None or not 0 <= seconds < math.inf:
            real_sleep(seconds)  # which raises an error where there is a side
        elif isinstance(side, Sleeper):
            side.slept_s += seconds
        else:
            side.sleep(seconds)

    time.sleep = strategy_utils.sleep = sleep  # type: ignore[assignment]
    of_messages.now = _now
    make = client_app.make_ffn
    client_app.make_ffn = lambda function, mods: make(_noted(function), mods)
    _instead(Strategy, "start", _start)
    for place in (app, default_workflows, app_utils):
        _instead(place, "start_update_client_manager_thread", _follow_nodes)
    _instead(SimpleClientManager, "wait_for", _wait_for)
    read_fit = partial(compat.recorddict_to_fitres, keep_input=False)
    for name, how in (
        ("fit_clients", (MessageType.TRAIN, compat.fitins_to_recorddict, read_fit)),
        (
            "evaluate_clients",
            (
                MessageType.EVALUATE,
                compat.evaluateins_to_recorddict,
                compat.recorddict_to_evaluateres,
            ),
        ),
    ):
        _instead(server, name, partial(_ask_all, how))
    _instead(server, "reconnect_clients", lambda *_, **__: ([], []))
    _instead(app, "run_fl", _run_fl)
    _instead(default_workflows, "default_centralized_evaluation_workflow", _note_state)
    for name in ("add_loss_centralized", "add_metrics_centralized"):
        _instead(history.History, name, _note_history)


def _replace_clock(name: str, scale: float, begin_s: float) -> None:
    real: Callable[[], Any] = getattr(time, name)

    @wraps(real)
    def told() -> Any:
        side = _side_of_caller()
        if side is None:
            return real()
        if isinstance(side, Sleeper):
            return real() + type(real())(side.slept_s * scale)
        seconds = (begin_s + side.clock()) * scale
        return seconds if scale == 1.0 else round(seconds)

    setattr(time, name, told)


def _instead(place: Any, name: str, other: Callable[..., Any]) -> None:
    """In the thread of a simulated ServerApp ``other(real, side, *args, **named)`` is called
    instead of ``real``.
    """
    real = getattr(place, name)

    @wraps(real)
    def call(*args: Any, **named: Any) -> Any:
        return real(*args, **named) if here.side is None else other(real, here.side, *args, **named)

    setattr(place, name, call)


def _now() -> datetime.datetime:
    now_s = here.now_s if here.side is None else EPOCH_S + here.side.clock()
    return (
        datetime.datetime.now(tz=datetime.UTC)
        if now_s is None
        else datetime.datetime.fromtimestamp(now_s, tz=datetime.UTC)
    )


def _noted(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @wraps(function)
    def call(message: Any, context: Any) -> Any:
        here.reply = function(message, context)
        return here.reply

    return call


def _start(real: Any, side: Any, self: Any, *args: Any, **named: Any) -> Any:
    call = signature(real).bind(self, *args, **named)
    side.strategy = self
    side.model = call.arguments["initial_arrays"]
    given: Any = call.arguments.get("evaluate_fn")

    def evaluate(number: int, arrays: Any) -> Any:
        side.model = arrays
        measured = given(number, arrays)
        if measured is not None:
            side.rounds.note_figures(number, dict(measured))
        return measured

    if given is not None:
        call.arguments["evaluate_fn"] = evaluate
    result = real(*call.args, **call.kwargs)
    side.model = result.arrays or side.model
    return result


# The legacy ServerApp waits in threads: one that follows which nodes there are, and one for each
# client.


def _follow_nodes(
    real: Any, side: Any, grid: Any, manager: Any
) -> tuple[threading.Thread, Any, Any]:
    """Have the manager look for nodes whenever it is asked; the thread that does so every 5 s is
    left out.
    """
    thread = threading.Thread()
    stop = threading.Event()
    done = threading.Event()
    stop.set()
    thread.start()
    app_utils._update_client_manager(grid, manager, stop, done)
    return thread, stop, done


def _wait_for(
    real: Any, side: Any, manager: Any, num_clients: int, timeout: float = 86_400
) -> bool:
    end = side.clock() + timeout
    while manager.num_available() < num_clients and side.clock() < end:
        side.sleep(1.0)
    return len(manager) >= num_clients


def _ask_all(
    how: Any,
    real: Any,
    side: Any,
    client_instructions: Any,
    max_workers: Any,
    timeout: Any,
    group_id: int,
) -> tuple[list[Any], list[Any]]:
    """Ask all clients at once, and wait for them together; ``how``: the kind of message, to
    write one, to read a reply.
    """
    kind, write, read = how
    results = list[Any]()
    failures = list[Any]()
    messages = [
        Message(write(of, True), client.node_id, kind, group_id=str(group_id), ttl=timeout)
        for client, of in client_instructions
    ]
    for (client, _), reply in zip(
        client_instructions, side.send_and_receive(messages), strict=True
    ):
        if reply.has_error():
            failures.append(
                ValueError(f"Message contains an Error (reason: {reply.error.reason}).")
            )
            continue
        result = client, read(reply.content)
        (results if result[1].status.code == Code.OK else failures).append(result)
    return results, failures


def _run_fl(real: Any, side: Any, server: Any, config: Any) -> Any:
    side.strategy = server.strategy
    history = real(server=server, config=config)
    if server.parameters.tensors:
        side.model = compat.parameters_to_arrayrecord(server.parameters, keep_input=True)
    return history


def _note_state(real: Any, side: Any, grid: Any, context: Any) -> None:
    side.strategy = context.strategy
    side.model = context.state.array_records[MAIN_PARAMS_RECORD]
    real(grid, context)


def _note_history(real: Any, side: Any, self: Any, server_round: int, **measured: Any) -> None:
    side.rounds.note_figures(server_round, dict(measured.get("metrics", measured)))
    real(self, server_round, **measured)
