"""What an app finds otherwise here than under Flower: the clock, and the few places where Flower waits in threads of its own.

Each replacement asks whether it is called in the thread of a simulated ServerApp, and is what it stands for everywhere else.
The clock is simulated for those who know Flower: the app's own code, flwr, and packages that import it. Other libraries wait
for what is real (a process, a socket, a thread), so they get real time.
"""

import datetime
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Protocol

from fedsim.flower.turns import is_within

EPOCH_S = 1_577_836_800.0  # of simulated time 0 on the app's clock: 2020-01-01


class ServerSide(Protocol):
    """What the thread of a ServerApp is told by, and tells.

    Attributes:
        folder: where the app's own code lies.
    """

    folder: Path

    def clock(self) -> float:
        """The simulated time (s)."""

    def sleep(self, seconds: float) -> None:
        """Let so much simulated time pass."""

    def note_model(self, record: Any) -> None:
        """An ArrayRecord that the server now has."""

    def note_algorithm(self, strategy: Any) -> None:
        """The app's own strategy."""

    def note_figures(self, number: int, figures: dict[str, Any]) -> None:
        """What the server has measured itself in a round (from 1)."""


_here = threading.local()


@contextmanager
def server_side(side: ServerSide) -> Iterator[None]:
    """Within it this thread is a simulated ServerApp's."""
    _here.side = side
    try:
        yield
    finally:
        _here.side = None


@contextmanager
def frozen(now_s: float) -> Iterator[None]:
    """Within it Flower's own clock (of messages alone) stands at a time in this thread."""
    _here.now_s = now_s
    try:
        yield
    finally:
        _here.now_s = None


def _side() -> ServerSide | None:
    return getattr(_here, "side", None)


def _side_of_caller() -> ServerSide | None:
    """The simulated ServerApp, where the function that called the one that asks knows Flower."""
    side = _side()
    if side is None:
        return None
    frame = sys._getframe(2)
    if is_within(side.folder, frame.f_code.co_filename):
        return side
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    if package not in _knows_flower:
        _knows_flower[package] = any(
            _has_of_flower(module) for name, module in list(sys.modules.items()) if name.partition(".")[0] == package
        )
    return side if _knows_flower[package] else None


_knows_flower = {"flwr": True}  # by top package


def _has_of_flower(module: ModuleType) -> bool:
    """Whether a module has imported something of Flower's; attributes of other objects may do anything when asked for."""
    for value in list(vars(module).values()):
        kind = type(value)
        name = value.__name__ if kind is ModuleType else value.__module__ if issubclass(kind, type | FunctionType) else ""
        if str(name).partition(".")[0] == "flwr":
            return True
    return False


def note_reply(reply: Any) -> None:
    """What a function of the ClientApp has answered, before any mod has changed it."""
    _here.reply = reply


def noted_reply() -> Any:
    """The last one in this thread, which is forgotten."""
    reply, _here.reply = getattr(_here, "reply", None), None
    return reply


_lock, _done = threading.Lock(), False


def replace_all() -> None:
    """Put the replacements into their places, once a process."""
    global _done
    with _lock:
        if not _done:
            _replace_clock()
            _replace_in_flower()
            _done = True


def _replace_clock() -> None:
    def simulated(name: str, scale: float, begin_s: float, whole: bool = False) -> None:
        real: Callable[[], Any] = getattr(time, name)

        @wraps(real)
        def told() -> Any:
            side = _side_of_caller()
            if side is None:
                return real()
            seconds = (begin_s + side.clock()) * scale
            return round(seconds) if whole else seconds

        setattr(time, name, told)

    for name, begin_s in (("time", EPOCH_S), ("monotonic", 0.0), ("perf_counter", 0.0)):
        simulated(name, 1.0, begin_s)
        simulated(f"{name}_ns", 1e9, begin_s, whole=True)
    real_sleep = time.sleep

    @wraps(real_sleep)
    def sleep(seconds: float) -> None:
        side = _side_of_caller()
        if side is None:
            real_sleep(seconds)
        else:
            side.sleep(seconds)

    time.sleep = sleep  # type: ignore[assignment]


def _replace_in_flower() -> None:
    from flwr.app.message import message as of_messages
    from flwr.clientapp import client_app
    from flwr.server import history, server
    from flwr.server.client_manager import SimpleClientManager
    from flwr.server.compat import app, app_utils
    from flwr.server.workflow import default_workflows
    from flwr.serverapp.strategy import Strategy, strategy_utils

    strategy_utils.sleep = time.sleep  # taken from its module before it was replaced there
    of_messages.now = _now
    make = client_app.make_ffn
    client_app.make_ffn = lambda function, mods: make(_noted(function), mods)
    _instead(Strategy, "start", _start)
    for place in (app, default_workflows, app_utils):
        _instead(place, "start_update_client_manager_thread", _follow_nodes)
    _instead(SimpleClientManager, "wait_for", _wait_for)
    for name in ("fit_clients", "evaluate_clients"):
        _instead(server, name, _ask_all(name))
    _instead(server, "reconnect_clients", lambda *_: lambda *args, **named: ([], []))
    _instead(app, "run_fl", _run_fl)
    _instead(default_workflows, "default_centralized_evaluation_workflow", _note_state)
    _instead(history.History, "add_loss_centralized", _note_loss)
    _instead(history.History, "add_metrics_centralized", _note_metrics)


def _instead(place: Any, name: str, make: Callable[[Callable[..., Any], ServerSide], Callable[..., Any]]) -> None:
    """In the thread of a simulated ServerApp ``make(what was there, its side)`` is called instead."""
    real = getattr(place, name)

    @wraps(real)
    def call(*args: Any, **named: Any) -> Any:
        side = _side()
        return (real if side is None else make(real, side))(*args, **named)

    setattr(place, name, call)


def _now() -> datetime.datetime:
    """Flower's own: when a message was made."""
    side, now_s = _side(), getattr(_here, "now_s", None)
    if side is not None:
        now_s = EPOCH_S + side.clock()
    return datetime.datetime.now(tz=datetime.UTC) if now_s is None else datetime.datetime.fromtimestamp(now_s, tz=datetime.UTC)


def _noted(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A function of a ClientApp whose own answer is noted: mods may hide what it says."""

    @wraps(function)
    def call(message: Any, context: Any) -> Any:
        reply = function(message, context)
        note_reply(reply)
        return reply

    return call


def _start(real: Callable[..., Any], side: ServerSide) -> Callable[..., Any]:
    """``Strategy.start``, which tells what it measures and what it makes."""

    def start(self: Any, grid: Any, initial_arrays: Any, *args: Any, **named: Any) -> Any:
        at = 4  # its place among ``args``: after num_rounds, timeout, train_config and evaluate_config
        given = named.pop("evaluate_fn", None) if len(args) <= at else args[at]
        side.note_algorithm(self)
        side.note_model(initial_arrays)

        def evaluate(number: int, arrays: Any) -> Any:
            side.note_model(arrays)
            measured = given(number, arrays)
            if measured is not None:
                side.note_figures(number, dict(measured))
            return measured

        result = real(self, grid, initial_arrays, *args[:at], **named, evaluate_fn=None if given is None else evaluate)
        if result.arrays:
            side.note_model(result.arrays)
        return result

    return start


# The legacy ServerApp waits in threads: one that follows which nodes there are, and one for each client.


def _follow_nodes(real: Callable[..., Any], side: ServerSide) -> Callable[..., Any]:
    """The nodes are looked up whenever somebody asks the client manager, instead of every 5 s in a thread."""
    from flwr.server.compat.grid_client_proxy import GridClientProxy

    def follow(grid: Any, manager: Any) -> tuple[Any, threading.Event, threading.Event]:
        known: dict[int, Any] = {}

        def look() -> None:
            there = set(grid.get_node_ids())
            for node in [node for node in known if node not in there]:
                manager.unregister(known.pop(node))
            for node in there.difference(known):  # in Flower's order, which is always the same for the same numbers
                known[node] = GridClientProxy(node_id=node, grid=grid, run_id=grid.run.run_id)
                manager.register(known[node])

        def looking(asked: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(asked)
            def ask(*args: Any, **named: Any) -> Any:
                look()
                return asked(*args, **named)

            return ask

        for name in ("num_available", "all", "sample"):
            setattr(manager, name, looking(getattr(manager, name)))
        manager.look_again = look
        done = threading.Event()
        done.set()
        return _NoThread(), done, done

    return follow


class _NoThread:
    def join(self) -> None:
        """There is nothing to wait for."""


def _wait_for(real: Callable[..., Any], side: ServerSide) -> Callable[..., Any]:
    def wait_for(self: Any, num_clients: int, timeout: float = 86_400) -> bool:
        end = side.clock() + timeout
        while len(self.clients) < num_clients and side.clock() < end:
            side.sleep(1.0)
            getattr(self, "look_again", lambda: None)()
        return len(self.clients) >= num_clients

    return wait_for


def _ask_all(name: str) -> Callable[[Callable[..., Any], ServerSide], Callable[..., Any]]:
    """``fit_clients`` and ``evaluate_clients``: all are asked at once, and waited for together."""

    def make(real: Callable[..., Any], side: ServerSide) -> Callable[..., Any]:
        import flwr.compat.common.recorddict_compat as compat
        from flwr.app import Message
        from flwr.app.message_type import MessageType
        from flwr.common import Code
        from flwr.server.compat.grid_client_proxy import GridClientProxy

        kind = MessageType.TRAIN if name == "fit_clients" else MessageType.EVALUATE
        write = compat.fitins_to_recorddict if name == "fit_clients" else compat.evaluateins_to_recorddict

        def read(content: Any) -> Any:
            return (
                compat.recorddict_to_fitres(content, False)
                if kind == MessageType.TRAIN
                else compat.recorddict_to_evaluateres(content)
            )

        def ask(client_instructions: Any, max_workers: int | None, timeout: float | None, group_id: int) -> Any:
            if not all(isinstance(client, GridClientProxy) for client, _ in client_instructions):
                return real(client_instructions, max_workers, timeout, group_id)
            messages = [
                Message(write(told, True), client.node_id, kind, group_id=str(group_id), ttl=timeout)
                for client, told in client_instructions
            ]
            results: list[Any] = []
            failures: list[Any] = []
            replies = client_instructions[0][0].grid.send_and_receive(messages) if messages else []
            for (client, _), reply in zip(client_instructions, replies, strict=True):
                if reply.has_error():
                    failures.append(ValueError(f"Message contains an Error (reason: {reply.error.reason})."))
                    continue
                result = client, read(reply.content)
                (results if result[1].status.code == Code.OK else failures).append(result)
            return results, failures

        return ask

    return make


def _run_fl(real: Callable[..., Any], side: ServerSide) -> Callable[..., Any]:
    from flwr.compat.common.recorddict_compat import parameters_to_arrayrecord

    def run(server: Any, config: Any) -> Any:
        side.note_algorithm(server.strategy)
        history = real(server=server, config=config)
        if server.parameters.tensors:
            side.note_model(parameters_to_arrayrecord(server.parameters, keep_input=True))
        return history

    return run


def _note_state(real: Callable[..., Any], side: ServerSide) -> Callable[..., Any]:
    from flwr.server.workflow.constant import MAIN_PARAMS_RECORD

    def evaluate(grid: Any, context: Any) -> None:
        side.note_algorithm(context.strategy)
        side.note_model(context.state.array_records[MAIN_PARAMS_RECORD])
        real(grid, context)

    return evaluate


def _note_loss(real: Callable[..., Any], side: ServerSide) -> Callable[..., Any]:
    def add(self: Any, server_round: int, loss: float) -> None:
        side.note_figures(server_round, {"loss": loss})
        real(self, server_round, loss)

    return add


def _note_metrics(real: Callable[..., Any], side: ServerSide) -> Callable[..., Any]:
    def add(self: Any, server_round: int, metrics: dict[str, Any]) -> None:
        side.note_figures(server_round, dict(metrics))
        real(self, server_round, metrics)

    return add
