"""A wrong value that a hook of a user's part returns, or that the part declares, is named."""

import asyncio
import inspect
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fedsim import plugin as fed
from fedsim.common.errors import FedsimError, ScenarioError, SimulationError
from fedsim.common.hooks import function_of
from fedsim.common.returns import guard
from fedsim.running.scenario import Scenario
from fedsim.testing import run
from tests import outside_parts as good
from tests.test_outside_parts import PARTS, world

HERE = "tests.test_part_returns:"
PLACE = r"\(test_part_returns\.py, line \d+\)"
NAN, INF = float("nan"), float("inf")
BASES = [
    *(fed.Strategy, fed.Client, fed.Synchronous, fed.SynchronousClient, fed.Asynchronous),
    *(fed.Grouped, fed.Peers, fed.PeerHalf, fed.StrategyParams, fed.RoundParams),
    *(fed.Selection, fed.Aggregation, fed.ServerOptimizer, fed.Deadline, fed.Codec, fed.Attack),
    *(fed.Trainer, fed.Source, fed.Partition, fed.Shift, fed.AvailabilityModel, fed.Availability),
    *(fed.Distribution, fed.NetworkModel, fed.Endpoints, fed.Network, fed.Protocol),
    *(fed.Process, fed.Meter),
]
"""The bases of all registries, and of the objects that users' parts make."""
ELSEWHERE = {
    "Strategy.remembered": "a service for subclasses, whose value is of the part's own class",
    "Trainer.train": "checked by the solver, which has the model",
    "Trainer.torch_optimiser": "any object with the methods of torch's optimisers",
    "Trainer.stack_steps": "any function without arguments",
}


class Nonsense:
    """A value of no type that any hook may return."""

    def __repr__(self) -> str:
        return "nonsense"


class Hook(NamedTuple):
    base: type
    name: str
    attribute: Any

    def __str__(self) -> str:
        return f"{self.base.__name__}.{self.name}"


def hooks() -> Iterator[Hook]:
    """Every public hook of the bases that returns something."""
    for base in BASES:
        for name, attribute in vars(base).items():
            function = function_of(attribute)
            is_inherited = any(name in vars(parent) for parent in base.__mro__[1:])
            is_private = name.startswith(("_", "model_"))
            if is_private or is_inherited or not inspect.isfunction(function):
                continue
            is_method = not isinstance(attribute, classmethod)
            if is_method and function.__annotations__.get("return") is not None:
                yield Hook(base, name, attribute)


HOOKS = [*hooks()]


def returning(attribute: Any, value: Any) -> Any:
    """A hook of the form of another one, with a value as its result."""
    if not inspect.isfunction(function_of(attribute)) or function_of(attribute) is not attribute:
        return property(lambda self: value)
    if inspect.iscoroutinefunction(attribute):

        async def awaited(*arguments: Any, **options: Any) -> Any:
            return value

        return awaited

    def hook(*arguments: Any, **options: Any) -> Any:
        return value

    return hook


def subclass(base: type, **attributes: Any) -> Any:
    names = {"__module__": __name__, "__qualname__": "Wrong", **attributes}
    return type(base)("Wrong", (base,), names)


def called(own: type, name: str) -> Any:
    hook = vars(own)[name]
    result = function_of(hook)(None)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


@pytest.mark.parametrize("base", BASES)
def test_a_hook_that_returns_nonsense_is_named(base: type) -> None:
    for hook in HOOKS:
        if hook.base is not base:
            continue
        own = subclass(base, **{hook.name: returning(hook.attribute, Nonsense())})
        own.__abstractmethods__ = frozenset()
        guard(own, "some.key")
        if str(hook) in ELSEWHERE:
            assert isinstance(called(own, hook.name), Nonsense)
            continue
        says = rf"some\.key: Wrong\.{hook.name} {PLACE} returns nonsense; allowed is "
        with pytest.raises(FedsimError, match=says):
            called(own, hook.name)


def test_all_hooks_are_there() -> None:
    assert len(HOOKS) > 150
    assert {*ELSEWHERE} <= {*map(str, HOOKS)}


def test_fedsims_own_classes_stay_as_they_are() -> None:
    before = dict(vars(fed.FedAvg)), dict(vars(fed.Selection))
    guard(fed.FedAvg, "strategy")
    guard(subclass(fed.Selection, select=returning(fed.Selection.select, None)), "a.key")
    assert (dict(vars(fed.FedAvg)), dict(vars(fed.Selection))) == before


# Runs with a wrong part. A part is made of the right one of ``tests/outside_parts.py``.


def test_an_inherited_hook_is_checked_once() -> None:
    def seconds(self: Any, parameters: int) -> float:
        return -1.0

    first, second = (subclass(fed.Codec, seconds=seconds) for _ in range(2))
    heir = subclass(first)
    for codec, key in ((first, "a.key"), (second, "another.key"), (heir, "a.third")):
        codec.__abstractmethods__ = frozenset()
        guard(codec, key)
        guard(codec, key, like=fed.Codec)
    assert "seconds" not in vars(heir), "the class that it inherits from checks already"
    for codec, key in ((first, "a.key"), (second, "another.key"), (heir, "a.key")):
        with pytest.raises(SimulationError, match=rf"^{key}: Wrong\.seconds .* returns -1\.0; "):
            codec.seconds(None, 1)


class Asking(good.Turns):
    """A selection that asks its candidates a question."""

    def question(self, models: Any) -> fed.Contents:
        return {"number": 1}

    def answer(self, *_: Any) -> fed.Contents:
        return {"number": 2}

    async def choose(self, server: Any, state: Any, count: int, answers: Any) -> list[int]:
        return [*answers][:count]


class Case(NamedTuple):
    """A part of an entry point group with wrong attributes, and the words for the mistake."""

    group: str
    hook: str
    attributes: Mapping[str, Any]
    says: str
    right: type | None = None

    def __str__(self) -> str:
        return f"{self.group}.{self.hook}: {self.says}"


def first_class(group: str) -> type:
    """The right part of a group, by the first of its keys."""
    words = re.findall(r"\w+", json.dumps(PARTS[group]))
    found = (getattr(good, word, None) for word in words)
    return next(each for each in found if isinstance(each, type))


def each(group: str, hook: str, *values: Any, right: Any = None, **others: Any) -> Iterator[Case]:
    """A case for each value that the hook must not return."""
    attribute = inspect.getattr_static(right or first_class(group), hook)
    for value in values:
        own = {hook: returning(attribute, value), **others}
        yield Case(group, hook, own, f"returns {re.escape(repr(value))}; allowed is", right)


def declared(group: str, name: str, value: Any) -> Case:
    """A wrong value of an attribute of the class."""
    return Case(group, name, {name: value}, f"is {re.escape(repr(value))}; allowed is")


def wrong(group: str, hook: str, function: Any, says: str, right: type | None = None) -> Case:
    return Case(group, hook, {hook: function}, says, right)


def changed(array: Any, value: Any) -> Any:
    array = array.copy()
    array[3] = value
    return array


def raw(says: str, **changes: Callable[[Any], Any]) -> Case:
    """A source whose data set differs in some attributes."""

    def load(self: Any, root: Path | None) -> fed.Raw:
        right = good.Spirals.load(self, root)
        values = {name: change(getattr(right, name)) for name, change in changes.items()}
        return replace(right, **values)

    return wrong("source", "load", load, f"returns a Raw {says}")


def dealt(says: str, change: Callable[[fed.FederatedData], Any]) -> Case:
    """A partition whose result differs."""

    def split(self: Any, dataset: fed.Dataset, devices: int, streams: fed.Streams) -> Any:
        return change(good.Alternating.split(self, dataset, devices, streams))

    return wrong("partition", "split", split, says)


def first_shard(says: str, **changes: Any) -> Case:
    """A partition that gives device 0 another shard."""

    def change(data: fed.FederatedData) -> fed.FederatedData:
        first, *others = data.shards
        return replace(data, shards=[replace(first, **changes), *others])

    return dealt(says, change)


def index(*numbers: float, kind: Any = np.int32) -> Any:
    return np.array(numbers, dtype=kind)


def apply_wrong_shard(self: Any, data: fed.FederatedData, *_: Any) -> list[fed.Change]:
    shard = replace(data.current(1), train=index(1, 9000))
    return [fed.Change(1, data.replace_shard(1, shard))]


def path(hook: str, function: Callable[..., Any], says: str, **others: Any) -> Case:
    """An availability with another hook of its paths."""

    def build(self: Any, streams: fed.Streams, devices: int, root: Path | None) -> Any:
        return subclass(good.BlinkingPaths, **{hook: function}, **others)(self.phase)

    return Case("availability", hook, {"build": build}, says)


def route(links: Any, says: str) -> Case:
    """A network whose flows take other links."""

    def build(self: Any, simulation: Any, streams: fed.Streams, devices: int, *rest: Any) -> Any:
        own = subclass(good.Masts, route=returning(fed.Network.route, links))
        transport = fed.Transport(self.protocol, streams)
        columns = self.columns(streams, devices, *rest)
        return own(simulation, {"mast 0": 1e6}, *columns, transport, masts=1)

    return Case("network", "route", {"build": build}, says)


def client(hook: str, value: Any) -> Case:
    """A strategy with another hook of its client half."""
    half = subclass(good.RingClient, **{hook: returning(fed.Client.work, value)})
    return Case("strategy", hook, {"Client": half}, f"returns {re.escape(repr(value))}; allowed is")


def drawing(group: str, hook: str, draw: Callable[[], Any], says: str) -> Case:
    """A part that is right, but for a draw from a generator of the process."""

    def drawn(self: Any, *arguments: Any, **options: Any) -> Any:
        draw()
        return getattr(first_class(group), hook)(self, *arguments, **options)

    return wrong(group, hook, drawn, f"draws from the global generator of {says}")


def draw_numpy() -> float:
    return float(np.random.random())  # noqa: NPY002


def flags_and(ends: float) -> Any:
    return np.ones(9, dtype=bool), np.full(9, ends)


def chosen(*devices: int) -> Any:
    return returning(fed.Selection.choose, [*devices])


SHORT_COLUMN = {"who": index(1, 2)}
THREES: Any = [3] * 9
LATE = np.ones(9), np.ones(9), np.full(9, -1.0)
WEIGH = returning(fed.Aggregation.weigh, [])
ALWAYS = property(lambda self: True)
AWAY = returning(fed.Availability.span, fed.Span(False, 0.0, 1e9))
ODD = fed.Span("on", 0.0, INF)  # type: ignore[arg-type]
MISSING = fed.Coded(None)  # type: ignore[arg-type]
SHORT = lambda _, __, size: np.ones(size - 1)  # noqa: E731 - a hook
ENDS = lambda _, __, time: fed.Span(True, 0.0, time)  # noqa: E731
BEGINS = lambda _, __, time: fed.Span(True, time + 1, INF)  # noqa: E731
MANY = lambda _, entries: [1.0] * (len(entries) + 1)  # noqa: E731
NANS = lambda _, entries: [NAN] * len(entries)  # noqa: E731
SWAPPED = lambda _, __, ___, ____, result, reply: (reply, result)  # noqa: E731
CASES = [
    *each("protocol", "weight", 0.0, -1.0, NAN, INF, None, weighs=ALWAYS),
    *each("protocol", "overhead", 0.5, NAN, INF, None),
    wrong("protocol", "overhead", lambda self: 1.2, "it must be a property"),
    *each("protocol", "window", -3.0, 0.0, NAN, None),
    *each("protocol", "sending_s", -1.0, NAN, None),
    *each("protocol", "weighs", None, "no"),
    *each("deadline", "limit_s", -1.0, 0.0, NAN, INF, "3 s"),
    *each("deadline", "least_s", -1.0, 0.0, NAN, INF, None),
    *each("deadline", "among", None, 30.0),
    *each("deadline", "mean_over", "some"),
    *each("deadline", "bounds_training", None),
    *each("source", "load", None, 3),
    raw("of 4 classes whose y_train is an array with 99 at 3", y_train=lambda y: changed(y, 99)),
    raw("of 4 classes whose y_test is an array with -1 at 3", y_test=lambda y: changed(y, -1)),
    raw(r"whose x_train is an array with nan at \[3, 0\]", x_train=lambda x: changed(x, NAN)),
    raw(r"with x_train of shape \(2,\) a sample, x_test \(1,\)", x_test=lambda x: x[:, :1]),
    raw("with 1000 samples x_train and 999 labels y_train", y_train=lambda y: y[:-1]),
    raw(r"whose y_train is \[0, 1", y_train=lambda y: y.tolist()),
    raw("without training samples", x_train=lambda x: x[:0], y_train=lambda y: y[:0]),
    raw("with classes = 0", classes=lambda _: 0),
    raw("with classes = 2.5", classes=lambda _: 2.5),
    raw("with peak = 0.0", peak=lambda _: 0.0),
    raw("of 3 tokens whose x_train is an array with", vocabulary=lambda _: 3),
    raw(r"of 1200 samples whose column 'who' has the shape \(2,\)", columns=lambda _: SHORT_COLUMN),
    *each("source", "surplus", None),
    declared("source", "known", ((7,), "4")),
    *each("partition", "split", None, []),
    dealt("returns 8 shards for 9 devices", lambda data: replace(data, shards=data.shards[1:])),
    dealt("3 as the shard of device 0", lambda data: replace(data, shards=THREES)),
    dealt("returns data whose 'truth' is", lambda data: replace(data, truth=index(1, 2))),
    first_shard("9000 among the train indices of device 0, of a pool of", train=index(1, 9000)),
    first_shard("-1 among the test indices of device 0", test=index(-1)),
    first_shard("an array of float64 of shape", train=index(1.0, kind=float)),
    first_shard("no training sample for device 0", train=index()),
    first_shard("a test index twice for device 0", test=index(3, 3)),
    first_shard("for device 0, of 10 classes", label_map=index(1, 2)),
    *each("partition", "under", None),
    declared("partition", "usual_normalize", "pixels"),
    *each("shift", "apply", None),
    wrong("shift", "apply", lambda *_: [3], "returns 3 among the changes"),
    wrong("shift", "apply", lambda *_: [fed.Change(99, 1)], "device 99, which is no candidate"),
    wrong("shift", "apply", lambda *_: [fed.Change(1, 7)], "to version 7, which replace_shard"),
    wrong("shift", "apply", apply_wrong_shard, "9000 among the train indices of device 1"),
    *each("attack", "update", None, 3.0),
    *each("attack", "answer", None),
    wrong("attack", "answer", SWAPPED, r"returns \(\{'update'"),
    declared("attack", "flips_labels", None),
    *each("server_optimiser", "step", None, 3.0),
    *each("availability", "build", None),
    path("span", lambda *_: True, "returns True; allowed is a Span"),
    path("span", lambda *_: (True, 0.0, INF), r"returns \(True, 0.0, inf\); allowed is a Span"),
    path("span", lambda *_: fed.Span(True, 0.0, NAN), "end=nan"),
    path("span", lambda *_: ODD, r"returns Span\(on='on'"),
    path("span", ENDS, r"end=0.0\) for 0.0 s; allowed is a Span"),
    path("span", BEGINS, r"start=1.0, end=inf\) for 0.0 s; allowed is a Span"),
    path("on", lambda *_: [True], r"returns \[True\]; allowed is an array"),
    path("next_on", lambda *_: -1.0, "returns -1.0 for", span=AWAY),
    path("spans", lambda *_: flags_and(0.0), "an end at 0.0 s for 0.0 s"),
    wrong("distribution", "draw", SHORT, r"returns an array of float64 of shape \(8,\)"),
    wrong("distribution", "draw", lambda *_: np.full(9, NAN), "an array with nan at 0"),
    wrong("distribution", "draw", lambda *_: np.full(9, -1.0), "an array with -1.0 at 0"),
    wrong("distribution", "draw", lambda *_: np.zeros(9), "an array with 0.0 at 0"),
    *each("distribution", "draw", 3.0, [3.0] * 9, None),
    wrong("distribution", "by_device", lambda *_: np.ones(3), r"float64 of shape \(3,\)"),
    *each("selection", "select", None),
    wrong("selection", "select", lambda *_, **__: [*range(7)], "7 devices for a count of 6"),
    *each("selection", "choose", None, right=Asking),
    wrong("selection", "choose", chosen(3, 3), r"returns \[3, 3\] for a count of 6", Asking),
    wrong("selection", "choose", chosen(99), "device 99, which has not answered", Asking),
    wrong("selection", "asked_first", lambda *_: [99], "99, which 'select' has not", Asking),
    *each("selection", "question", None, right=Asking),
    *each("selection", "answer", None, right=Asking),
    *each("selection", "look", None, right=Asking),
    *each("selection", "patience_s", -1.0, NAN, INF, right=Asking),
    *each("selection", "report", None),
    *each("selection", "fewest", 0, None, 2.5),
    declared("selection", "uniform", "yes"),
    wrong("selection", "uniform", lambda self: True, r"it must be a value \(ClassVar\)"),
    *each("aggregation", "weights", None),
    wrong("aggregation", "weights", MANY, r"returns \[1.0, 1.0"),
    wrong("aggregation", "weights", NANS, "an array with nan at 0"),
    wrong("aggregation", "weigh", WEIGH, r"returns \[\] for \d updates"),
    *each("aggregation", "combine", None),
    *each("aggregation", "on_device", None),
    *each("aggregation", "for_rounds_of", None),
    *each("aggregation", "record_fields", None),
    *each("aggregation", "accounts", None),
    declared("aggregation", "protection", "strong"),
    *each("codec", "bytes", -1.0, NAN, INF, None),
    *each("codec", "seconds", -1.0, NAN, None),
    *each("codec", "code", None, MISSING),
    declared("codec", "ways", "up"),
    *each("trainer", "lr_in", NAN, -1.0, None),
    *each("trainer", "batching", None),
    *each("network", "build", None),
    wrong("network", "columns", lambda *_: LATE, "returns an array with -1.0 at 0"),
    *each("network", "places", 0, 1.5),
    route("mast 0", "returns 'mast 0'; allowed is a list"),
    route(["mast 1"], r"returns the unknown link 'mast 1' \(did you mean 'mast 0'\?\)"),
    *each("process_of_the_world", "run", None),
    *each("meter", "of_devices", None),
    *each("meter", "summary", None),
    *each("meter", "files", None),
    *each("meter", "totals", None),
    declared("meter", "device_columns", (("trips", "", ""),)),
    *each("strategy", "models", None),
    *each("strategy", "facts", None),
    client("reply", []),
    client("work", None),
    client("computed", None),
    drawing("partition", "split", draw_numpy, r"numpy.random, .* streams.generator"),
    drawing("partition", "split", random.random, "Python's random, .* streams.generator"),
    drawing("partition", "split", lambda: torch.rand(1), r"torch, .* streams.generator"),
    drawing("source", "load", draw_numpy, r"numpy.random, .* numpy.random.default_rng\(SEED\)"),
    drawing("shift", "apply", draw_numpy, "numpy.random, .* streams.generator"),
    drawing("availability", "build", draw_numpy, "numpy.random, .* streams.generator"),
    drawing("distribution", "draw", draw_numpy, "numpy.random, .* the given 'generator'"),
    drawing("selection", "select", random.random, "Python's random, .* server.rng"),
]


def with_part(case: Case) -> dict[str, Any]:
    """The sections of a scenario with the case's part instead of the right one."""
    right = first_class(case.group)
    sys.modules[__name__].__dict__["Wrong"] = subclass(case.right or right, **case.attributes)
    text = json.dumps(world(case.group))
    own = text.replace(f"tests.outside_parts:{right.__name__}", f"{HERE}Wrong")
    sections: dict[str, Any] = json.loads(own)
    return sections


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_wrong_value_is_refused_by_name(case: Case, tmp_path: Path) -> None:
    is_written = case.group in ("availability", "meter")
    with pytest.raises((ScenarioError, SimulationError)) as caught:
        run(with_part(case), tmp_path / "run" if is_written else None)
    is_value = case.says.startswith("is ")  # of a class that has no line of its own here
    place = "" if is_value else f" {PLACE}"
    assert re.search(rf"Wrong\.{case.hook}{place}.* {case.says}", str(caught.value)), caught.value


def test_a_part_of_python_is_checked_too() -> None:
    own = subclass(good.Shrinking, limit_s=lambda *_: -1.0)(kind="own", first="40 s")
    with pytest.raises(SimulationError, match=rf"Wrong\.limit_s {PLACE} returns -1.0; allowed"):
        run(world() | {"strategy": {"clients_per_round": 3, "deadline": own}})


class Declares(fed.Codec):  # says in one word what must be a tuple
    ways = "up"  # type: ignore[assignment]


class Lacks(fed.Source):  # has no 'load'
    pass


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"messages": {"up": f"{HERE}Declares"}}, rf"Declares\.ways {PLACE} is 'up'; allowed is"),
        ({"data": {"source": f"{HERE}Lacks"}}, rf"Lacks {PLACE} has no 'load', which it has to"),
    ],
)
def test_a_class_is_named_with_its_place(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        Scenario(**sections)


class Duck:
    """Paths that are like an availability, and do not inherit it."""

    def span(self, device: int, time: float) -> fed.Span:
        return fed.Span(True, 0.0, time)

    next_on, on, spans = fed.Availability.next_on, fed.Availability.on, fed.Availability.spans


def test_paths_that_inherit_nothing_are_checked_too() -> None:
    build = {"build": lambda *_: Duck()}
    with pytest.raises(SimulationError, match=rf"availability: Duck\.span {PLACE} returns Span"):
        run(with_part(Case("availability", "span", build, "")))


def test_the_blinking_paths_move_on_for_any_length() -> None:
    paths = good.BlinkingPaths(0.7)
    for count in range(1, 3000):
        time = count * 0.7
        span = paths.span(0, time)
        assert span.start <= time < span.end
