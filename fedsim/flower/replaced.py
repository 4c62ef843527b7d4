"""Patches of ``time``, flwr, imported modules and global generators, for simulated Flower apps.

Patches take effect only in the thread of a simulated ServerApp. In the thread of a ClientApp
``time.sleep`` returns at once, and its time is added up. The clock is simulated for the app's own
code, flwr, and packages that import flwr. Other libraries wait for real processes, sockets and
threads, so they get real time.
"""

import datetime
import logging
import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial, wraps
from inspect import signature
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import flwr.compat.common.recorddict_compat as compat
import numpy as np
import torch  # its generator is seeded before an app imports it, perhaps only within a function
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.message import message as message_module
from flwr.app.message_type import MessageType
from flwr.clientapp import client_app
from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes
from flwr.server import ServerConfig, history, server
from flwr.server.client_manager import ClientManager, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat import app, app_utils
from flwr.server.workflow import default_workflows
from flwr.server.workflow.constant import MAIN_PARAMS_RECORD
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy, strategy_utils

from fedsim.flower.app import App, Half
from fedsim.flower.app_errors import is_within

if TYPE_CHECKING:
    from flwr.server.compat import LegacyContext

AppHandler = Callable[[Message, Context], Message]
States = tuple[Any, Any, torch.Tensor]  # of the generators of random, numpy and torch

EPOCH_S = 1_577_836_800.0  # simulated time 0 on the app's clock: 2020-01-01


class AppHalf:
    """A loaded ServerApp or ClientApp, isolated: own modules, random generators and torch threads.

    Args:
        app: Flower app to load.
        half: ``server`` or ``client``.
        seed: seed of the global generators while the half is loaded (below 2**32).

    Attributes:
        loaded: the ServerApp or the ClientApp.
    """

    def __init__(self, app: App, half: Half, seed: int) -> None:
        self._folder = app.folder
        self._modules: dict[str, ModuleType] = {}
        for name in self._names_of_modules():
            del sys.modules[name]  # may hold state of another run
        with self.in_use(seed):
            self.loaded = app.load(half)
            self._generators = _generators()

    @contextmanager
    def in_use(self, seed: int | None = None) -> Iterator[None]:
        """Context manager in which the process has the app's own modules and random states.

        Args:
            seed: seed of the global generators; None for the states at the end of the last use
                without a seed.
        """
        outside = _generators()
        threads = torch.get_num_threads()
        log = logging.getLogger("flwr")
        level = log.level
        place = str(self._folder)
        if seed is None:
            _set_generators(self._generators)
        else:
            random.seed(seed)
            np.random.seed(seed % (1 << 32))  # noqa: NPY002
            torch.default_generator.manual_seed(seed)
        torch.set_num_threads(1)  # sums in several threads differ in their last bits
        if "FLWR_LOG_LEVEL" not in os.environ:
            log.setLevel(logging.WARNING)
        sys.path.insert(0, place)
        sys.modules.update(self._modules)
        count = len(sys.modules)
        try:
            yield
        finally:
            if len(sys.modules) != count:
                for name in self._names_of_modules():
                    self._modules[name] = sys.modules[name]
            for name in self._modules:
                sys.modules.pop(name, None)
            if place in sys.path:
                sys.path.remove(place)
            log.setLevel(level)
            torch.set_num_threads(threads)
            if seed is None:
                self._generators = _generators()
            _set_generators(outside)

    def _names_of_modules(self) -> list[str]:
        """Return the names in ``sys.modules`` whose files are in the app's folder."""
        modules = list(sys.modules.items())
        return [name for name, module in modules if is_within(self._folder, _place(module))]


def _place(module: ModuleType) -> str:
    """Return the path of a module's file, or of a namespace package's first folder.

    Empty if it has neither.
    """
    try:
        file = getattr(module, "__file__", None)
        if file:
            return str(file)
        folders = iter(getattr(module, "__path__", ()))
        return str(next(folders, ""))
    except Exception:  # attributes of a module may run any code
        return ""


def _generators() -> States:
    return (
        random.getstate(),
        np.random.get_state(legacy=False),  # noqa: NPY002
        torch.default_generator.get_state(),
    )


def _set_generators(states: States) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.default_generator.set_state(states[2])


class Sleeper:
    """Replacement of ``time.sleep`` in a ClientApp: the sleep is simulated.

    ``time.sleep`` adds to ``slept_s`` instead of sleeping, and the clocks that the app reads
    advance by the sum.

    Args:
        folder: folder of the app.

    Attributes:
        slept_s: time for which the app's code has called ``time.sleep`` (s).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slept_s = 0.0


class SessionBase(Grid):  # type: ignore[misc]
    """Base of ``Session``, with what fedsim's patches of Flower's functions use.

    Attributes:
        folder: folder of the app.
        model: the arrays that the ServerApp sent last, or that its strategy returned at the end.
        strategy: the app's strategy, of a class of Flower; None without one.
    """

    folder: Path
    model: ArrayRecord | None
    strategy: object

    def clock(self) -> float:
        """Return the simulated time (s)."""
        raise NotImplementedError

    def note_figures(self, app_number: int, figures: Mapping[str, float]) -> None:
        """Receive metrics that the ServerApp itself has measured.

        Args:
            app_number: the app's own number of the round.
            figures: name of a metric in the app -> value.
        """
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass for the ServerApp.

        Args:
            seconds: the time (s).
        """
        raise NotImplementedError


class _Here(threading.local):
    side: "SessionBase | None" = None  # the ServerApp that runs in this thread
    sleeper: Sleeper | None = None  # the ClientApp that runs in this thread
    now_s: float | None = None  # time that Flower writes into messages (s); None for real time
    reply: Message | None = None  # reply of the ClientApp's function, before mods change it


here = _Here()


@contextmanager
def where(**state: object) -> Iterator[None]:
    """Context manager that marks this thread as running a simulated app, for fedsim's patches.

    The attributes are set on ``here``, of which each thread has its own. Patches of Flower's
    functions read there which simulated app the thread runs.

    Args:
        state: the attributes by name.
    """
    vars(here).update(state)
    try:
        yield
    finally:
        for name in state:
            vars(here).pop(name, None)


_knows_flower = {"flwr": True}  # top-level package: whether it imports flwr


def _side_of_caller() -> "SessionBase | Sleeper | None":
    """Return the ServerApp or ClientApp of this thread, for a patched function of ``time``.

    Returns:
        The app's session or sleeper. None if the patched function has to return real time: the
        thread runs no simulated app, or the function was called by code that is neither the app's
        nor in a package that imports flwr.
    """
    side = here.side or here.sleeper
    if side is None:
        return None
    frame = sys._getframe(2)
    if is_within(side.folder, frame.f_code.co_filename):
        return side
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    if package not in _knows_flower:
        _knows_flower[package] = _imports_flower(package)
    return side if _knows_flower[package] else None


def _imports_flower(package: str) -> bool:
    """Return whether any loaded module of a top-level package has imported from flwr."""
    modules = list(sys.modules.items())
    own_modules = [module for name, module in modules if name.partition(".")[0] == package]
    return any(map(_has_of_flower, own_modules))


def _has_of_flower(module: ModuleType) -> bool:
    """Return whether a module has imported something from flwr, by its attributes."""
    for value in list(vars(module).values()):
        kind = type(value)  # isinstance reads value.__class__, which may run any code
        origin: object = ""
        if kind is ModuleType:
            origin = value.__name__
        elif issubclass(kind, type | FunctionType):
            origin = value.__module__
        if str(origin).partition(".")[0] == "flwr":
            return True
    return False


@cache
def replace_all() -> None:
    """Install fedsim's patches of ``time`` and of Flower's functions, once per process."""
    for name, begin_s in (("time", EPOCH_S), ("monotonic", 0.0), ("perf_counter", 0.0)):
        _replace_clock(name, 1.0, begin_s)
        _replace_clock(f"{name}_ns", 1e9, begin_s)
    _replace_sleep()
    message_module.now = _now
    make = client_app.make_ffn
    client_app.make_ffn = lambda function, mods: make(_note_reply(function), mods)
    _replace(Strategy, "start", _start)
    for module in (app, default_workflows, app_utils):
        _replace(module, "start_update_client_manager_thread", _follow_nodes)
    _replace(SimpleClientManager, "wait_for", _wait_for)
    _replace(server, "fit_clients", partial(_ask_all, _FIT))
    _replace(server, "evaluate_clients", partial(_ask_all, _EVALUATE))
    _replace(server, "reconnect_clients", _reconnect_none)
    _replace(app, "run_fl", _run_fl)
    _replace(default_workflows, "default_centralized_evaluation_workflow", _note_state)
    for name in ("add_loss_centralized", "add_metrics_centralized"):
        _replace(history.History, name, _note_history)


def _replace_clock(name: str, scale: float, begin_s: float) -> None:
    """Patch a function of ``time`` to return simulated time to simulated apps.

    Args:
        name: name of the function.
        scale: units of the function's result per second.
        begin_s: the function's result at simulated time 0 (s).
    """
    real: Callable[[], float] = getattr(time, name)

    @wraps(real)
    def read() -> float:
        side = _side_of_caller()
        if side is None:
            return real()
        if isinstance(side, Sleeper):
            number = type(real())  # float or int
            return real() + number(side.slept_s * scale)
        seconds = (begin_s + side.clock()) * scale
        return seconds if scale == 1.0 else round(seconds)

    setattr(time, name, read)


def _replace_sleep() -> None:
    real = time.sleep

    @wraps(real)
    def sleep(seconds: float) -> None:
        side = _side_of_caller()
        if side is None or not 0 <= seconds < math.inf:
            real(seconds)  # raises the usual error if a simulated app passes an invalid time
        elif isinstance(side, Sleeper):
            side.slept_s += seconds
        else:
            side.sleep(seconds)

    for module in (time, strategy_utils):
        vars(module)["sleep"] = sleep


def _replace(place: object, name: str, replacement: Callable[..., object]) -> None:
    """Patch a function of flwr in the threads of simulated ServerApps.

    Args:
        place: module or class that has the function.
        name: name of the function.
        replacement: called instead, with the original function, the session, and the arguments of
            the call.
    """
    real: Callable[..., object] = getattr(place, name)

    @wraps(real)
    def call(*args: object, **named: object) -> object:
        if here.side is None:
            return real(*args, **named)
        return replacement(real, here.side, *args, **named)

    setattr(place, name, call)


def _now() -> datetime.datetime:
    now_s = here.now_s
    if here.side is not None:
        now_s = EPOCH_S + here.side.clock()
    if now_s is None:
        return datetime.datetime.now(tz=datetime.UTC)
    return datetime.datetime.fromtimestamp(now_s, tz=datetime.UTC)


def _note_reply(function: AppHandler) -> AppHandler:
    """Wrap a ClientApp's function so that its reply is also stored in ``here.reply``."""

    @wraps(function)
    def call(message: Message, context: Context) -> Message:
        here.reply = function(message, context)
        return here.reply

    return call


def _start(
    real: Callable[..., Result], side: "SessionBase", strategy: Strategy, *args: Any, **named: Any
) -> Result:
    """Replacement of Flower's ``Strategy.start``, which stores the app's models in its session.

    It also notes the metrics that the ServerApp measures (``evaluate_fn``), and calls the original.

    Args:
        real: the original function.
        side: the session of the ServerApp.
        strategy: the app's strategy.
        args, named: the other arguments of the call.

    Returns:
        The result of the original function.
    """
    call = signature(real).bind(strategy, *args, **named)
    side.strategy = strategy
    side.model = call.arguments["initial_arrays"]
    evaluate_app = call.arguments.get("evaluate_fn")
    if evaluate_app is not None:

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            side.model = arrays
            metrics: MetricRecord | None = evaluate_app(number, arrays)
            if metrics is not None:
                side.note_figures(number, dict(metrics))
            return metrics

        call.arguments["evaluate_fn"] = evaluate
    result = real(*call.args, **call.kwargs)
    side.model = result.arrays or side.model
    return result


# Legacy ServerApps wait in threads: one that polls the connected nodes, and one for each client.
# The patches below replace these threads.


def _follow_nodes(
    real: Callable[..., object], side: "SessionBase", grid: Grid, manager: ClientManager
) -> tuple[threading.Thread, threading.Event, threading.Event]:
    """Update the client manager's nodes once, in place of Flower's thread that polls every 5 s.

    The manager updates its nodes again at each query.

    Returns:
        A thread that does nothing, its stop event, and the event of the first update.
    """
    thread = threading.Thread()
    stop = threading.Event()
    done = threading.Event()
    stop.set()
    thread.start()
    app_utils._update_client_manager(grid, manager, stop, done)
    return thread, stop, done


def _wait_for(
    real: Callable[..., bool],
    side: "SessionBase",
    manager: SimpleClientManager,
    num_clients: int,
    timeout: float = 86_400,
) -> bool:
    end_s = side.clock() + timeout
    while manager.num_available() < num_clients and side.clock() < end_s:
        side.sleep(1.0)
    return len(manager) >= num_clients


@dataclass(frozen=True)
class Exchange:
    """Converters between messages and Flower's older types, such as ``FitIns`` and ``FitRes``.

    They serve apps with the older interface of Flower.

    Attributes:
        message_type: Flower's type of these messages, such as ``train``.
        write: converts ``FitIns`` or ``EvaluateIns`` to the content of a message.
        read: converts the content of a reply to ``FitRes`` or ``EvaluateRes``.
    """

    message_type: str
    write: Callable[[Any, bool], RecordDict]
    read: Callable[[RecordDict], FitRes | EvaluateRes]


_FIT = Exchange(
    MessageType.TRAIN,
    compat.fitins_to_recorddict,
    partial(compat.recorddict_to_fitres, keep_input=False),
)
_EVALUATE = Exchange(
    MessageType.EVALUATE, compat.evaluateins_to_recorddict, compat.recorddict_to_evaluateres
)


def _ask_all(
    exchange: Exchange,
    real: Callable[..., object],
    side: "SessionBase",
    client_instructions: list[tuple[ClientProxy, FitIns | EvaluateIns]],
    max_workers: int | None,
    timeout: float | None,
    group_id: int,
) -> tuple[list[tuple[ClientProxy, FitRes | EvaluateRes]], list[Any]]:
    """Patch of ``fit_clients`` and ``evaluate_clients`` that uses no threads.

    Sends the instructions to all clients at the same simulated time, and waits for all replies.

    Returns:
        Pairs of a client and its result, and the failures: errors, or pairs of a client and a
        result whose status is not OK.
    """
    results = []
    failures: list[Any] = []
    messages = []
    for client, instructions in client_instructions:
        content = exchange.write(instructions, True)
        message = Message(
            content,
            client.node_id,
            exchange.message_type,
            group_id=str(group_id),
            ttl=timeout,
        )
        messages.append(message)
    replies = side.send_and_receive(messages)
    for (client, _), reply in zip(client_instructions, replies, strict=True):
        if reply.has_error():
            failures.append(
                ValueError(f"Message contains an Error (reason: {reply.error.reason}).")
            )
            continue
        result = exchange.read(reply.content)
        if result.status.code == Code.OK:
            results.append((client, result))
        else:
            failures.append((client, result))
    return results, failures


def _reconnect_none(
    real: Callable[..., object], side: "SessionBase", *args: object, **named: object
) -> tuple[list[Any], list[Any]]:
    return [], []


def _run_fl(
    real: Callable[..., history.History],
    side: "SessionBase",
    server: server.Server,
    config: ServerConfig,
) -> history.History:
    """Patch of ``run_fl`` that stores a legacy app's strategy and last model in the session."""
    side.strategy = server.strategy
    record = real(server=server, config=config)
    if server.parameters.tensors:
        side.model = compat.parameters_to_arrayrecord(server.parameters, keep_input=True)
    return record


def _note_state(
    real: Callable[..., None], side: "SessionBase", grid: Grid, context: "LegacyContext"
) -> None:
    side.strategy = context.strategy
    side.model = context.state.array_records[MAIN_PARAMS_RECORD]
    real(grid, context)


def _note_history(
    real: Callable[..., None],
    side: "SessionBase",
    record: history.History,
    server_round: int,
    **figures: Any,
) -> None:
    side.note_figures(server_round, dict(figures.get("metrics", figures)))
    real(record, server_round, **figures)
