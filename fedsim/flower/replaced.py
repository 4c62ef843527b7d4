"""Replacements of the clock, of waiting, modules, generators and threads, for apps of Flower.

A replacement acts in the thread of a simulated ServerApp alone. In the thread of a ClientApp
``time.sleep`` returns at once, and is counted. The clock is simulated for code that knows Flower:
the app's own, flwr, and packages that import flwr. Other libraries wait for real processes,
sockets and threads, so they get real time.
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
    """The ServerApp or the ClientApp, with its own modules, global generators and torch threads.

    Args:
        app: the app.
        half: which half of the app.
        seed: seed of the generators while the half is loaded (below 2**32).

    Attributes:
        loaded: the ServerApp or the ClientApp.
    """

    def __init__(self, app: App, half: Half, seed: int) -> None:
        self._folder = app.folder
        self._modules: dict[str, ModuleType] = {}
        for name in self._names_of_modules():
            del sys.modules[name]  # of another run, which they may remember
        with self.in_use(seed):
            self.loaded = app.load(half)
            self._generators = _generators()

    @contextmanager
    def in_use(self, seed: int | None = None) -> Iterator[None]:
        """Context in which the half's modules, generators and threads are the process's own.

        Args:
            seed: seed of the generators; None to continue from the last use without a seed.
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
        """Names of the imported modules that lie in the app's folder."""
        modules = list(sys.modules.items())
        return [name for name, module in modules if is_within(self._folder, _place(module))]


def _place(module: ModuleType) -> str:
    """The file of a module, or the first folder of a package without a file; ``""`` for neither."""
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
    """A ClientApp at work, and how long its code has slept (s), by which its clocks advance."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slept_s = 0.0


class SessionBase(Grid):  # type: ignore[misc]
    """Interface of a ServerApp's session, for the replaced functions of Flower.

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
        """Note values that the ServerApp has measured.

        Args:
            app_number: the app's own number of the round.
            figures: the values by the app's names.
        """
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass.

        Args:
            seconds: how long (s).
        """
        raise NotImplementedError


class _Here(threading.local):
    side: "SessionBase | None" = None  # the ServerApp that runs in this thread
    sleeper: Sleeper | None = None  # the ClientApp that runs in this thread
    now_s: float | None = None  # time of Flower's own clock, of messages alone
    reply: Message | None = None  # of the ClientApp's function, before mods may hide its content


here = _Here()


@contextmanager
def where(**state: object) -> Iterator[None]:
    """Context in which attributes of ``here`` have other values.

    Args:
        state: the values by attribute.
    """
    vars(here).update(state)
    try:
        yield
    finally:
        for name in state:
            vars(here).pop(name, None)


_knows_flower = {"flwr": True}  # by top package


def _side_of_caller() -> "SessionBase | Sleeper | None":
    """The simulated ServerApp or ClientApp, if the caller of the caller knows Flower."""
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
    """Whether a module of a package has imported from Flower."""
    modules = list(sys.modules.items())
    own_modules = [module for name, module in modules if name.partition(".")[0] == package]
    return any(map(_has_of_flower, own_modules))


def _has_of_flower(module: ModuleType) -> bool:
    """Whether a module has a module, class or function of Flower as an attribute."""
    for value in list(vars(module).values()):
        kind = type(value)  # isinstance asks the value, which may run any code
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
    """Install the replacements, once a process."""
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
    """Replace a function of ``time``.

    Args:
        name: the function.
        scale: units of the function's result in a second.
        begin_s: result at simulated time 0 (s).
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
            real(seconds)  # raises an error for a simulated app
        elif isinstance(side, Sleeper):
            side.slept_s += seconds
        else:
            side.sleep(seconds)

    for module in (time, strategy_utils):
        vars(module)["sleep"] = sleep


def _replace(place: object, name: str, replacement: Callable[..., object]) -> None:
    """Replace a function of Flower in the threads of simulated ServerApps.

    Args:
        place: the module or class.
        name: the function.
        replacement: called instead, with the function, the session and the function's arguments.
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
    """The ClientApp's function, with its reply noted in ``here``."""

    @wraps(function)
    def call(message: Message, context: Context) -> Message:
        here.reply = function(message, context)
        return here.reply

    return call


def _start(
    real: Callable[..., Result], side: "SessionBase", strategy: Strategy, *args: Any, **named: Any
) -> Result:
    """``Strategy.start``, with its models and central evaluations noted in the session."""
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


# The legacy ServerApp waits in threads: one that follows which nodes there are, and one for each
# client.


def _follow_nodes(
    real: Callable[..., object], side: "SessionBase", grid: Grid, manager: ClientManager
) -> tuple[threading.Thread, threading.Event, threading.Event]:
    """Update the manager's nodes once, without the thread that does so every 5 s.

    The manager updates them again whenever it is asked for a node.
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
    """A message of the legacy ServerApp to clients, and their replies, as Flower's objects."""

    message_type: str
    write: Callable[[Any, bool], RecordDict]
    """writes instructions (``FitIns``, ``EvaluateIns``) as the content of a message."""
    read: Callable[[RecordDict], FitRes | EvaluateRes]
    """reads the content of a reply."""


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
    """Send instructions to all clients at once, and wait for all replies together.

    Returns:
        The results with their clients, and the failures.
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
    """``run_fl`` of a legacy ServerApp, with its strategy and last model noted in the session."""
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
