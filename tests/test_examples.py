"""Docstrings of the public face: arguments are explained, and the examples of the names that users
meet most often run.

An example is a doctest under ``Example:``. It runs by itself, in an empty folder, as the file
``mine.py`` would, so that scenarios name its classes by ``mine:NAME``.
"""

import dataclasses
import doctest
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedsim
import fedsim.plugin
import fedsim.testing
from fedsim.common.spec import Spec, attribute_descriptions
from tests.test_source import CEILINGS

MOST_USED = [
    "fedsim:load",
    "fedsim:Scenario",
    "fedsim:run",
    "fedsim:Result",
    "fedsim:load_run",
    "fedsim:Simulation",
    "fedsim:build_world",
    "fedsim.plugin:World",
    "fedsim.plugin:World.send",
    "fedsim.plugin:World.compute",
    "fedsim.plugin:World.timeout",
    "fedsim.plugin:World.until",
    "fedsim.plugin:World.device",
    "fedsim.plugin:World.emit",
    "fedsim.plugin:World.rng",
    "fedsim.plugin:World.limit",
    "fedsim.plugin:World.slow",
    "fedsim.plugin:World.off",
    "fedsim.plugin:Activity",
    "fedsim.plugin:Process",
    "fedsim.plugin:AllReduce",
    "fedsim.plugin:Streams",
    "fedsim.plugin:Streams.generator",
    "fedsim.plugin:Spec",
    "fedsim.plugin:State",
    "fedsim.plugin:FedAvg",
    "fedsim.plugin:Strategy",
    "fedsim.plugin:SynchronousClient",
    "fedsim.plugin:Selection",
    "fedsim.plugin:Codec",
    "fedsim.plugin:Meter",
    "fedsim.plugin:Server.ask",
    "fedsim.plugin:Clients.sample",
    "fedsim.plugin:Training",
    "fedsim.plugin:Batching",
    "fedsim.plugin:Header",
    "fedsim.plugin:pure",
    "fedsim.plugin:Source",
    "fedsim.plugin:Raw",
    "fedsim.plugin:Dataset",
    "fedsim.plugin:federated",
    "fedsim.plugin:Partition",
    "fedsim.plugin:Availability",
    "fedsim.plugin:Span",
    "fedsim.plugin:RunFolder",
    "fedsim.testing:quiet_world",
    "fedsim.testing:eventful_world",
    "fedsim.testing:assert_sound",
    "fedsim.testing:assert_same_run",
]
"""The names that docs, scenarios, tests and the toolbox use most; without types that fedsim hands
out and keys alone (``Ref``, ``Instruction``), which the examples of others show.
"""


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The file that an example is, in an empty folder."""
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    monkeypatch.chdir(tmp_path)
    return module


@pytest.mark.parametrize("name", MOST_USED)
def test_an_example_does_what_it_shows(name: str, mine: ModuleType) -> None:
    docstring = inspect.getdoc(pkgutil.resolve_name(name)) or ""
    example = docstring.partition("\nExample:\n")[2]
    test = doctest.DocTestParser().get_doctest(example, {}, name, None, None)
    assert test.examples
    test.globs = vars(mine)
    report: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=report.append, clear_globs=False)
    if report:
        pytest.fail("".join(report), pytrace=False)


def test_forty_names_have_an_example() -> None:
    assert len(set(MOST_USED)) >= 40


def test_every_example_runs() -> None:
    """``MOST_USED`` has every name with an example, and no example is skipped."""
    listed = {id(pkgutil.resolve_name(name)) for name in MOST_USED}
    found = [
        name
        for name, value in public_names()
        if ">>>" in (getattr(value, "__doc__", None) or "") and id(value) not in listed
    ]
    assert found == []
    assert not [name for name in MOST_USED if "+SKIP" in pkgutil.resolve_name(name).__doc__]


def public_names() -> Iterator[tuple[str, Any]]:
    """Functions and classes of the public face, and the methods that each class defines."""
    met: set[int] = set()
    for face in (fedsim, fedsim.plugin, fedsim.testing):
        for name in getattr(face, "__all__", dir(face)):
            value = getattr(face, name)
            is_ours = getattr(value, "__module__", "").startswith("fedsim.")
            if not is_ours or id(value) in met:
                continue
            met.add(id(value))
            if inspect.isfunction(value):
                yield name, value
            elif inspect.isclass(value):
                yield name, value
                yield from _methods(name, value)


def _methods(name: str, cls: type) -> Iterator[tuple[str, Any]]:
    for member in vars(cls):
        if not member.startswith("_"):
            method = getattr(cls, member)
            if inspect.isfunction(method) or inspect.ismethod(method):
                yield f"{name}.{member}", method


MADE_BY_FEDSIM = {
    "Activity",
    "Asynchronous",
    "Client",
    "Clients",
    "Device",
    "FedAvg",
    "Grouped",
    "LoadedStudy",
    "LocalData",
    "Meter",
    "Network",
    "Peer",
    "PeerHalf",
    "Peers",
    "Result",
    "Server",
    "ServerEdges",
    "ServerModels",
    "Strategy",
    "Synchronous",
    "SynchronousClient",
    "TrainingContext",
    "World",
}
"""Classes whose constructor users never call."""


def lacks_args(name: str, value: Any) -> bool:
    """Whether parameters are met that no docstring explains.

    A method that overrides another needs no docstring. Fields of a data class are explained at
    their place or under ``Attributes``. pytest calls the tests of ``StrategyContract``.
    """
    docstring = inspect.getdoc(value) or ""
    if re.search(r"^Args:$", docstring, re.MULTILINE) or ".test_" in name:
        return False
    if not inspect.isclass(value):
        return bool(parameters(value))
    if issubclass(value, Spec | Exception) or name in MADE_BY_FEDSIM:
        return False
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        fields = [name for name in vars(value).get("__annotations__", ()) if name[0] != "_"]
        return bool(set(fields) - set(attribute_descriptions(value)))
    return "__init__" in vars(value) and bool(parameters(value))


def parameters(value: Any) -> list[str]:
    return [name for name in inspect.signature(value).parameters if name != "self"]


def test_parameters_are_explained() -> None:
    """The number of exceptions may only fall."""
    lacking = [name for name, value in public_names() if lacks_args(name, value)]
    assert len(lacking) <= CEILINGS["public"]["parameters without Args"], lacking
