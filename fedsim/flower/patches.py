"""Patches of ``time`` and flwr for simulated Flower apps.

Patches take effect only in the threads of simulated apps. In a ServerApp's thread ``time.sleep``
lets simulated time pass, and clocks such as ``time.time`` return simulated time. In a ClientApp's
thread ``time.sleep`` does not wait, the sleep times are added up, and clocks return real time plus
this sum. This holds for the app's own code, flwr, and packages that import flwr. Other libraries
wait for real processes, sockets and threads, so they get real time.
"""

import datetime
import math
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

from fedsim.flower.app_errors import is_within

if TYPE_CHECKING:
    from flwr.server.compat import LegacyContext

AppHandler = Callable[[Message, Context], Message]
EPOCH_S = 1_577_836_800.0  # simulated time 0 on the app's clock: 2020-01-01


class ClientCall:
    """State of a call of a ClientApp, in which ``time.sleep`` returns without waiting.

    The clocks that the app reads show real time plus the time for which the app has called
    ``time.sleep``.

    Args:
        folder: folder of the app.
        now_s: time that Flower writes into messages during the call (s).

    Attributes:
        slept_s: time for which the app's code has called ``time.sleep`` (s).
        reply: reply of the app's function, before mods change it; None until it returns.
    """

    def __init__(self, folder: Path, now_s: float) -> None:
        self.folder = folder
        self.now_s = now_s
        self.slept_s = 0.0
        self.reply: Message | None = None


class SessionBase(Grid):  # type: ignore[misc]
    """Interface through which fedsim's replacements of Flower's functions use a running ServerApp.

    Attributes:
        folder: folder of the app.
        model: the arrays that the ServerApp sent last, or that its strategy returned at the end;
            None until then.
        strategy: instance of Flower's ``Strategy`` class that the app uses; None if it uses none.
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
            app_number: the app's own index of the round.
            figures: name of a metric in the app -> value.
        """
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass for the ServerApp.

        Args:
            seconds: the time (s).
        """
        raise NotImplementedError


class _Thread(threading.local):  # a context variable would also reach other threads of the app
    app: SessionBase | ClientCall | None = None  # the simulated app that runs in this thread


_thread = _Thread()


@contextmanager
def running(app: SessionBase | ClientCall) -> Iterator[None]:
    """Context manager in which the patches of ``time`` and of flwr apply to this thread.

    Args:
        app: the simulated app that this thread runs.
    """
    outer_app = _thread.app
    _thread.app = app
    try:
        yield
    finally:
        _thread.app = outer_app


_knows_flower = {"flwr": True}  # top-level package -> whether it imports flwr


def _app_of_caller() -> SessionBase | ClientCall | None:
    """Return the simulated app of this thread, for a patched function of ``time``.

    Returns:
        The app's session or call. None if the patched function has to return real time: the
        thread runs no simulated app, or the function was called by code that is neither the app's
        nor in a package that imports flwr.
    """
    app = _thread.app
    if app is None:
        return None
    caller = sys._getframe(2)  # 0 is this function, 1 the patched function
    if is_within(app.folder, caller.f_code.co_filename):
        return app
    package = str(caller.f_globals.get("__name__")).partition(".")[0]
    if package not in _knows_flower:
        _knows_flower[package] = _imports_flower(package)
    return app if _knows_flower[package] else None


def _imports_flower(package: str) -> bool:
    """Return whether any loaded module of a top-level package has imported from flwr."""
    modules = list(sys.modules.items())
    own_modules = [module for name, module in modules if name.partition(".")[0] == package]
    return any(map(_module_imports_flower, own_modules))


def _module_imports_flower(module: ModuleType) -> bool:
    """Return whether an attribute of a module is a module, class or function of flwr."""
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
    """Install fedsim's patches of ``time`` and of Flower's functions, once per process.

    The patches have an effect only in threads that run a simulated app (``running``).
    """
    for name, begin_s in (("time", EPOCH_S), ("monotonic", 0.0), ("perf_counter", 0.0)):
        _replace_clock(name, 1.0, begin_s)
        _replace_clock(f"{name}_ns", 1e9, begin_s)
    _replace_sleep()
    message_module.now = _message_time
    # the ClientApp's reply is noted before mods, wrappers of its function, change it
    wrap_by_mods = client_app.make_ffn
    client_app.make_ffn = lambda function, mods: wrap_by_mods(_note_reply(function), mods)
    _replace(Strategy, "start", _start_strategy)
    # legacy apps run without threads; their models and metrics are stored in the session
    for module in (app, default_workflows, app_utils):
        _replace(module, "start_update_client_manager_thread", _follow_nodes)
    _replace(SimpleClientManager, "wait_for", _wait_for)
    _replace(server, "fit_clients", partial(_exchange_with_all, _FIT))
    _replace(server, "evaluate_clients", partial(_exchange_with_all, _EVALUATE))
    _replace(server, "reconnect_clients", _reconnect_none)
    _replace(app, "run_fl", _run_fl)
    _replace(default_workflows, "default_centralized_evaluation_workflow", _note_state)
    for name in ("add_loss_centralized", "add_metrics_centralized"):
        _replace(history.History, name, _note_history)


def _replace_clock(name: str, scale: float, begin_s: float) -> None:
    """Patch a clock of ``time``, such as ``time.monotonic``, for simulated apps.

    A ServerApp gets simulated time. A ClientApp gets real time, plus the time for which it has
    called ``time.sleep``.

    Args:
        name: name of the function.
        scale: units of the function's result per second.
        begin_s: result of the function for a ServerApp at simulated time 0 (s).
    """
    real: Callable[[], float] = getattr(time, name)

    @wraps(real)
    def read() -> float:
        app = _app_of_caller()
        if app is None:
            return real()
        if isinstance(app, ClientCall):
            number = type(real())  # type of the clock's value, float or int
            return real() + number(app.slept_s * scale)
        simulated = (begin_s + app.clock()) * scale
        return simulated if scale == 1.0 else round(simulated)  # nanoseconds are integers

    setattr(time, name, read)


def _replace_sleep() -> None:
    """Patch ``time.sleep``: a ServerApp waits in simulated time, a ClientApp adds up its sleep."""
    real = time.sleep

    @wraps(real)
    def sleep(seconds: float) -> None:
        app = _app_of_caller()
        if app is None or not 0 <= seconds < math.inf:
            real(seconds)  # sleeps; raises the usual error for an invalid time of a simulated app
        elif isinstance(app, ClientCall):
            app.slept_s += seconds
        else:
            app.sleep(seconds)

    for module in (time, strategy_utils):
        vars(module)["sleep"] = sleep


def _replace(owner: object, name: str, replacement: Callable[..., object]) -> None:
    """Replace a function of flwr for the threads of simulated ServerApps.

    Args:
        owner: module or class that has the function.
        name: name of the function.
        replacement: called instead in these threads, with the original function, the thread's
            session, and the arguments of the call.
    """
    real: Callable[..., object] = getattr(owner, name)

    @wraps(real)
    def call(*args: object, **named: object) -> object:
        session = _thread.app
        if not isinstance(session, SessionBase):
            return real(*args, **named)
        return replacement(real, session, *args, **named)

    setattr(owner, name, call)


def _message_time() -> datetime.datetime:
    app = _thread.app
    if app is None:
        return datetime.datetime.now(tz=datetime.UTC)
    now_s = app.now_s if isinstance(app, ClientCall) else EPOCH_S + app.clock()
    return datetime.datetime.fromtimestamp(now_s, tz=datetime.UTC)


def _note_reply(function: AppHandler) -> AppHandler:
    """Wrap a ClientApp's function so that its reply is also stored in ``ClientCall.reply``."""

    @wraps(function)
    def call(message: Message, context: Context) -> Message:
        reply = function(message, context)
        if isinstance(_thread.app, ClientCall):
            _thread.app.reply = reply
        return reply

    return call


def _start_strategy(
    real: Callable[..., Result], session: SessionBase, strategy: Strategy, *args: Any, **named: Any
) -> Result:
    """Replacement of Flower's ``Strategy.start``, which stores the app's models in its session.

    It also notes the metrics that the ServerApp measures (``evaluate_fn``), and calls the original.

    Args:
        real: the original function.
        session: the session of the ServerApp.
        strategy: the app's strategy.
        args, named: the other arguments of the call.

    Returns:
        The result of the original function.
    """
    call = signature(real).bind(strategy, *args, **named)
    session.strategy = strategy
    session.model = call.arguments["initial_arrays"]
    evaluate_app = call.arguments.get("evaluate_fn")
    if evaluate_app is not None:

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            session.model = arrays
            metrics: MetricRecord | None = evaluate_app(number, arrays)
            if metrics is not None:
                session.note_figures(number, dict(metrics))
            return metrics

        call.arguments["evaluate_fn"] = evaluate
    result = real(*call.args, **call.kwargs)
    session.model = result.arrays or session.model
    return result


# Legacy ServerApps wait in threads: one that polls the connected nodes, and one for each client.
# The patches below replace these threads.


def _follow_nodes(
    real: Callable[..., object], session: SessionBase, grid: Grid, manager: ClientManager
) -> tuple[threading.Thread, threading.Event, threading.Event]:
    """Let the client manager of a legacy app update its list of nodes at each query.

    It replaces Flower's ``start_update_client_manager_thread``, whose thread also updates the list
    every 5 s.

    Returns:
        A thread that has ended, its stop event, and the event that the manager is ready; the last
        two are set.
    """
    thread = threading.Thread()  # a thread without a function, which ends immediately
    stop = threading.Event()
    is_ready = threading.Event()  # ``_update_client_manager`` sets it
    stop.set()
    thread.start()
    app_utils._update_client_manager(grid, manager, stop, is_ready)
    return thread, stop, is_ready


def _wait_for(
    real: Callable[..., bool],
    session: SessionBase,
    manager: SimpleClientManager,
    num_clients: int,
    timeout: float = 86_400,
) -> bool:
    """Replacement of ``SimpleClientManager.wait_for``, in which simulated time passes.

    It counts the connected clients once per simulated second, until there are ``num_clients``, or
    for at most ``timeout`` seconds. It returns whether there are enough.
    """
    end_s = session.clock() + timeout
    while manager.num_available() < num_clients and session.clock() < end_s:
        session.sleep(1.0)
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


def _exchange_with_all(
    exchange: Exchange,
    real: Callable[..., object],
    session: SessionBase,
    client_instructions: list[tuple[ClientProxy, FitIns | EvaluateIns]],
    max_workers: int | None,
    timeout: float | None,
    group_id: int,
) -> tuple[list[tuple[ClientProxy, FitRes | EvaluateRes]], list[Any]]:
    """Replacement of Flower's ``fit_clients`` and ``evaluate_clients`` that uses no threads.

    It sends the instructions to all clients at the same simulated time, and waits for all replies.

    Returns:
        Pairs of a client and its result, and the failures: errors, or pairs of a client and a
        result whose status is not OK.
    """
    results = []
    failures: list[Any] = []
    messages = []
    for client, instructions in client_instructions:
        keep_input = True
        content = exchange.write(instructions, keep_input)
        message = Message(
            content,
            client.node_id,
            exchange.message_type,
            group_id=str(group_id),
            ttl=timeout,
        )
        messages.append(message)
    replies = session.send_and_receive(messages)
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
    real: Callable[..., object], session: SessionBase, *args: object, **named: object
) -> tuple[list[Any], list[Any]]:
    return [], []


def _run_fl(
    real: Callable[..., history.History],
    session: SessionBase,
    server: server.Server,
    config: ServerConfig,
) -> history.History:
    """Replacement of Flower's ``run_fl``, which runs a legacy app.

    It also stores the app's strategy and last model in the session.
    """
    session.strategy = server.strategy
    record = real(server=server, config=config)
    if server.parameters.tensors:
        session.model = compat.parameters_to_arrayrecord(server.parameters, keep_input=True)
    return record


def _note_state(
    real: Callable[..., None], session: SessionBase, grid: Grid, context: "LegacyContext"
) -> None:
    session.strategy = context.strategy
    session.model = context.state.array_records[MAIN_PARAMS_RECORD]
    real(grid, context)


def _note_history(
    real: Callable[..., None],
    session: SessionBase,
    record: history.History,
    server_round: int,
    **figures: Any,
) -> None:
    session.note_figures(server_round, dict(figures.get("metrics", figures)))
    real(record, server_round, **figures)
