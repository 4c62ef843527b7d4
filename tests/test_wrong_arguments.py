"""Every public method that fedsim hands to users' code, called with wrong arguments.

A mistake ends in an error of fedsim that names the argument or its value, and never in a bare
``TypeError`` or the like. A value that is accepted does no harm: the run goes on to its end, and its
folder passes the audit.
"""

import asyncio
import inspect
import math
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import simpy

import fedsim
from fedsim.clock.executors import Inline
from fedsim.common.errors import FedsimError, show_value
from fedsim.lab.audit import audit
from fedsim.plugin import (
    Client,
    Clients,
    Device,
    Lazy,
    Measured,
    Opaque,
    Partial,
    Pause,
    Peer,
    Server,
    ServerEdges,
    ServerModels,
    Strategy,
    Training,
    World,
    pure,
)
from fedsim.running.runner import Job

DEVICES = 400
EDGES = 100
UNKNOWN = 2 * DEVICES


@pure
def first(models: list[Any], **constants: Any) -> Any:
    return models[0]


@pure
def start_of(models: list[Any]) -> Any:
    return models[0][:3]


def of_samples(samples: Any, labels: Any, **constants: Any) -> Any:
    return np.zeros(3)


class Resting(Client[Any]):
    """Trains nothing, whatever it is asked for."""

    def work(self, device: Device, instruction: Any) -> Any:
        return (Pause("rest", 1.0),)

    def reply(self, device: Device, instruction: Any, result: Any) -> Any:
        return {"rested": 1}


class Swept(Strategy[Any]):
    """Calls ``play`` at its start, and trains nothing by itself."""

    Client = Resting
    play: ClassVar[Callable[["Swept"], Any]]

    async def on_start(self) -> None:
        self.state["model"] = self.server.models.initial()
        await type(self).play(self)
        self.server.timer("the end", 300.0)

    async def on_timer(self, name: str) -> None:
        if name == "the end":
            self.server.stop("all arguments are tried")

    async def on_task_end(self, message: Any) -> None:
        pass

    def models(self) -> Any:
        return {"global": (self.state["model"], None)}


def scenario() -> fedsim.Scenario:
    return fedsim.Scenario(
        data={"source": "digits"},
        model={"kind": "logistic"},
        population={"devices": DEVICES, "speed": "1 samples/s"},
        network={"kind": "tree", "cells": EDGES, "edge": {"send": "1 kB/s", "receive": "1 kB/s"}},
        strategy={"kind": f"{__name__}:Swept"},
        stop={"simulated_time": "1000 s"},
    )


ODD: dict[str, Any] = {
    "None": None,
    "text": "a",
    "empty text": "",
    "line break": "a\nb",
    "surrogate": "\ud800",
    "-1": -1,
    "1.5": 1.5,
    "NaN": math.nan,
    "infinity": math.inf,
    "2**40": 2**40,
    "10**400": 10**400,
    "unknown device": UNKNOWN,
    "True": True,
    "bytes": b"x",
    "object": object(),
    "list": [],
    "dict": {},
    "set": {1},
    "list of an object": [object()],
    "list of a text": ["a"],
    "list of NaN": [math.nan],
    "list of an unknown device": [UNKNOWN],
    "dict with an object": {"a": object()},
    "dict with a number as name": {1: 2},
    "number of numpy": np.int64(1),
    "array": np.array([1.0, 2.0]),
    "array of objects": np.array([object()]),
    "function": lambda *_, **__: None,
}


def models_odd(strategy: Swept) -> dict[str, Any]:
    """Values with models, of which some have another shape."""
    models = strategy.server.models
    model = models.initial()
    other = models.apply(start_of, [model], size=3)
    return {
        "model": model,
        "model of another shape": other,
        "list of it": [other],
        "pair with a text": [(model, "a")],
        "pair with NaN": [(model, math.nan)],
        "three of a pair": [(model, 1.0, 2.0)],
        "contents of another shape": {"model": other},
        "contents without a model": {"number": 3},
        "Opaque of no size": {"x": Opaque(1, math.nan)},
        "Opaque of a text": {"x": Opaque(1, "a")},  # type: ignore[arg-type]
        "Lazy of a text": {"x": Lazy("loss", "a", "b")},  # type: ignore[arg-type]
        "Lazy of less than nothing": {"x": Lazy("loss", model, -1)},
        "unknown Lazy": [Lazy("loses", model)],
        "Partial of texts": {"x": Partial("a", "b", "c")},  # type: ignore[arg-type]
        "Partial backwards": {"x": Partial(model, model, [(0, -3)])},
        "Measured of texts": [Measured("a", "b")],  # type: ignore[arg-type]
        "Measured with NaN": [Measured(model, math.nan)],
        "Measured of an unknown device": [Measured(model, 1.0, model, model, UNKNOWN)],
        "assigned without devices": {"global": model},
        "assigned to an unknown device": {"global": (model, [UNKNOWN])},
        "assigned to a text": {"global": (model, "abc")},
        "named by a number": {3: (model, None)},
        "figure of a text": {"accuracy": "a"},
        "figure NaN": {"accuracy": math.nan},
        "figure that fedsim fills": {"bytes_up": 7.0},
    }


class Bench:
    """A run with everything that calls need, and right arguments that are fresh for each call."""

    def __init__(self, strategy: Swept) -> None:
        self.server = strategy.server
        self.simulation = strategy.server._simulation
        self.next_device = 0
        self.rounds = count(UNKNOWN + 1)
        self.odd = ODD | models_odd(strategy)

    def model(self) -> Any:
        return self.server.models.initial()

    def update(self) -> Any:
        """The result of a training that is still to be computed."""
        return self.server._dispatch.learner.train(Training(self.model(), 1), 0, key=1)

    def idle(self) -> int:
        """A device without a task."""
        while not self.server.clients.idle(self.next_device):
            self.next_device += 1
        return self.next_device

    def free_edge(self) -> int:
        """An edge server without a message under way."""
        busy = {message.edge for message in self.server._dispatch.edge_channel.in_transit.values()}
        return min(set(range(EDGES)) - busy)

    def owner(self, kind: type) -> Any:
        """The object of a class on which methods are called."""
        server = self.server
        return {
            Server: server,
            Clients: server.clients,
            ServerModels: server.models,
            ServerEdges: server.edges,
            Device: server._dispatch.devices.of(0),
            Peer: server.peer(self.idle()),
            World: self.simulation.world,
            fedsim.Simulation: self.simulation,
        }[kind]


async def nothing() -> None:
    pass


RIGHT: dict[str, Callable[[Bench], Any]] = {
    "at_edge": lambda bench: False,
    "alone": lambda bench: False,
    "among": lambda bench: [0, 1],
    "args": lambda bench: (),
    "at_least": lambda bench: 1,
    "blueprint": lambda bench: None,
    "by": lambda bench: Swept.on_start,
    "callback": lambda bench: lambda: None,
    "cause": lambda bench: "late",
    "close": lambda bench: lambda: None,
    "constants": lambda bench: 1,
    "contents": lambda bench: {"model": bench.model()},
    "continues": lambda bench: False,
    "count": lambda bench: 3,
    "counts": lambda bench: 0,
    "action": lambda bench: lambda: None,
    "d": lambda bench: 2,
    "data": lambda bench: 1,
    "delay": lambda bench: 1.0,
    "destination": lambda bench: "server",
    "device": lambda bench: 0,
    "devices": lambda bench: [0, 1],
    "direction": lambda bench: "up",
    "edge": lambda bench: 0,
    "edges": lambda bench: 0,
    "epochs": lambda bench: 1,
    "factor": lambda bench: 0.5,
    "fields": lambda bench: 1,
    "figures": lambda bench: {},
    "final": lambda bench: lambda: None,
    "function": lambda bench: first,
    "generator": lambda bench: (event for event in ()),
    "group": lambda bench: None,
    "handler": lambda bench: nothing,
    "idle": lambda bench: True,
    "ids": lambda bench: 1,
    "job": lambda bench: "train",
    "kind": lambda bench: "note",
    "kinds": lambda bench: ("note",),
    "leave_out": lambda bench: False,
    "least": lambda bench: 1,
    "link": lambda bench: "device 0 up",
    "m": lambda bench: 1,
    "model": Bench.model,
    "models": lambda bench: [bench.model()],
    "n": lambda bench: 2,
    "name": lambda bench: "timer",
    "number": lambda bench: 0,
    "other": Bench.model,
    "otherwise": lambda bench: None,
    "parts": lambda bench: [(bench.model(), 1.0)],
    "places": lambda bench: [(0, 2)],
    "priority": lambda bench: 1,
    "purpose": lambda bench: "draw",
    "rate": lambda bench: 5.0,
    "reason": lambda bench: "enough",
    "receiver": lambda bench: "group-1",
    "rescale": lambda bench: True,
    "rest": Bench.model,
    "round": lambda bench: None,
    "samples": lambda bench: 1,
    "seconds": lambda bench: 1.0,
    "sender": lambda bench: "group-0",
    "sent": lambda bench: [],
    "sink": lambda bench: lambda record: None,
    "size": lambda bench: None,
    "slots": lambda bench: simpy.Resource(bench.simulation.env, 1),
    "solve": lambda bench: lambda: None,
    "source": lambda bench: 0,
    "start": lambda bench: None,
    "stay": lambda bench: True,
    "steps": lambda bench: 2,
    "stream": lambda bench: ("draw", 1),
    "task": lambda bench: 10**6,
    "update": Bench.model,
    "updates": lambda bench: (),
    "value": Bench.model,
    "waited": lambda bench: 0.0,
    "weights": lambda bench: np.zeros(650),
    "what": lambda bench: "mix",
    "when": lambda bench: 50.0,
    "work": lambda bench: 1.0,
    "Server.ask.device": Bench.idle,
    "Server.finish_round.models": lambda bench: {"global": (bench.model(), None)},
    "Server.finish_round.number": lambda bench: next(bench.rounds),
    "Server.note_round.number": lambda bench: next(bench.rounds),
    "Server.result.work": lambda bench: bench.simulation.submit(len, ()),
    "ServerModels.test.devices": lambda bench: [0],
    "ServerModels.train_loss.updates": lambda bench: [],
    "Device.last_gradient.update": Bench.update,
    "Device.of_data.function": lambda bench: of_samples,
    "Simulation.join.work": lambda bench: bench.simulation.submit(len, ()),
    "Simulation.submit.function": lambda bench: dict,
    "Simulation.wake.name": lambda bench: ("stop", 7),
    "ServerEdges.carry.edge": Bench.free_edge,
    "World.compute.work": lambda bench: 0.0,
    "World.send.size": lambda bench: 10.0,
}
"""Parameter of all methods, or of one method -> a right value."""

NAMES_OF_KEYWORDS: dict[str, tuple[str, ...]] = {
    "counts": ("selected", "epsilon", "other", "time"),
    "data": ("other", "device", "round", "group", "task", "step", "outcome"),
    "fields": ("other", "device", "round", "group", "task", "step", "outcome"),
    "constants": ("constant",),
}
"""Parameter such as ``**counts`` -> names of arguments that are tried for it."""

OF_ONE_RUN = ("stop",)
"""Methods that end the run if they accept an argument; they are called at its end."""

ONLY_WRONG = ("queue",)
"""Methods without a right call: the audit looks for the process of the scenario that queues."""

SAID_OTHERWISE = {
    "blueprint": "scenario",
    "contents": "content",
    "devices": "device",
    "edges": "edge server",
    "function": "marked by",
    "handler": "coroutine",
    "models": "models()",
    "number": "round",
    "updates": "Measured",
    "weights": "array",
}
"""Parameter -> how an error may name it."""

HARMFUL = {
    ("function", "handler"): "its result is refused when it is called",
    (
        "unknown device",
        "selected",
    ): "as the others, it contradicts the round's tasks: audit says so",
    ("number of numpy", "selected"): "",
}
"""Label of a value and parameter -> why an accepted value may do harm."""

LEFT_OUT = {
    "Simulation.record": "fedsim's own way to write records, without checks",
    "Clients.arrived": "a former name of joined",
    "ServerModels.agreement": "a former name of consensus",
    "Peer.written": "a former name of encode",
}

OWNERS = (Server, Clients, ServerModels, ServerEdges, Device, Peer, World, fedsim.Simulation)


def methods_of(owner: type) -> list[str]:
    """The public methods of a class that take arguments; those that end the run come last."""
    methods = []
    for name, function in vars(owner).items():
        is_method = inspect.isfunction(function) and not name.startswith("_")
        if not is_method or f"{owner.__name__}.{name}" in LEFT_OUT:
            continue
        if len(inspect.signature(function).parameters) > 1:
            methods.append(name)
    return sorted(methods, key=lambda name: name in OF_ONE_RUN)


class Sweep:
    """Calls of all methods of a class, each with right arguments and then with one wrong argument.

    Args:
        owner: the class.

    Attributes:
        calls, refused: count of calls with a wrong argument, and of the refused ones.
        faults: calls that fail otherwise than by an error of fedsim that names the argument.
    """

    def __init__(self, owner: type) -> None:
        self.owner = owner
        self.calls = 0
        self.refused = 0
        self.faults: list[str] = []

    async def play(self, strategy: Swept) -> None:
        bench = Bench(strategy)
        for method in methods_of(self.owner):
            parameters = inspect.signature(getattr(self.owner, method)).parameters
            if method not in ONLY_WRONG:
                await call(bench, self.owner, method)
            for parameter in list(parameters.values())[1:]:
                names = (parameter.name,)
                if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                    names = NAMES_OF_KEYWORDS[parameter.name]
                for name in names:
                    for label in bench.odd:
                        if (label, name) not in HARMFUL:
                            await self._try(bench, method, parameter.name, name, label)

    async def _try(self, bench: Bench, method: str, parameter: str, name: str, label: str) -> None:
        self.calls += 1
        try:
            await call(bench, self.owner, method, parameter, name, bench.odd[label])
        except FedsimError as error:
            self.refused += 1
            hints = (name, show_value(bench.odd[label])[:30], SAID_OTHERWISE.get(name, name))
            if not any(hint in str(error) for hint in hints):
                self.faults.append(f"{method}({name}: {label}) says only {error}")
        except Exception as error:
            self.faults.append(f"{method}({name}: {label}) raises {type(error).__name__}: {error}")


async def call(
    bench: Bench, owner: type, method: str, wrong: str = "", name: str = "", value: object = None
) -> None:
    """Call a method with right arguments, and one wrong argument of the parameter ``wrong``."""
    function = getattr(bench.owner(owner), method)
    bound = inspect.signature(function).bind_partial()
    for parameter in inspect.signature(function).parameters.values():
        is_wrong = parameter.name == wrong
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            bound.arguments[parameter.name] = {name: value} if is_wrong else {}
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            bound.arguments[parameter.name] = (value,) if is_wrong else ()
        elif is_wrong:
            bound.arguments[parameter.name] = value
        else:
            special = RIGHT.get(f"{owner.__name__}.{method}.{parameter.name}")
            bound.arguments[parameter.name] = (special or RIGHT[parameter.name])(bench)
    result = function(*bound.args, **bound.kwargs)
    if inspect.isawaitable(result):
        await result


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner.__name__)
def test_wrong_arguments_are_refused_by_name_or_do_no_harm(owner: type, tmp_path: Path) -> None:
    sweep = Sweep(owner)
    Swept.play = sweep.play
    asyncio.run(Job(scenario(), tmp_path / "run", Inline()).execute())
    assert sweep.faults == []
    assert not any(audit(tmp_path / "run").values())
    assert sweep.calls > 350
    assert sweep.refused > sweep.calls / 2
