"""Whatever a public docstring, signature or page points to is exported, and explained where an
author looks for it.
"""

import ast
import builtins
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fedsim
import fedsim.testing
from fedsim import plugin
from fedsim.common.kind_field import specs_of
from fedsim.common.spec import attribute_descriptions
from fedsim.running.scenario import Scenario
from tests.test_source import ROOT, SOURCES, tree_of

DOCS = Path(__file__).resolve().parents[1] / "docs"
# pages about other frameworks' names, and about the insides
OTHERS = {"flower", "coming", "design"}
PAGES = [
    page
    for folder in (DOCS, DOCS / "howto", DOCS / "guide")
    for page in sorted(folder.glob("*.md"))
    if page.stem not in OTHERS
]
PUBLIC: dict[str, Any] = {
    name: getattr(face, name) for face in (fedsim, plugin) for name in face.__all__
} | {"StrategyContract": fedsim.testing.StrategyContract}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}
VARIABLES = {
    "server": "Server",
    "server.clients": "Clients",
    "server.models": "ServerModels",
    "server.edges": "ServerEdges",
    "device": "Device",
    "world": "World",
    "context": "TrainingContext",
    "message": "TaskEnd",
    "instruction": "Instruction",
    "setting": "RunInfo",
    "simulation": "Simulation",
    "scenario": "Scenario",
    "arithmetic": "Arithmetic",
}
"""The class of a variable by the name that pages and docstrings give it."""
OF_OTHERS = (
    *("fedsim/flower/", "fedsim/lab/", "fedsim/clock/executors", "fedsim/common/"),
    *(
        "fedsim/learning/modules",
        "fedsim/learning/solvers/",
        "fedsim/toolbox/models/",
        "fedsim/toolbox/sources/",
        "analysis/",
    ),
)
"""Where objects are Flower's, the system's, pydantic's or torch's."""
OF_PYTHON = {"__self__", "__qualname__", "sysconf_names", "lora", "rounds", "start", "beta2"}
"""Attributes of Python, and of built-in tables: no author's."""
INSIDES = {
    # of a ref, which says that nobody else looks inside
    *("Applied", "Best", "Initial", "Loss", "Mixed", "Trained", "StoredTensor"),
    "ComputedWeights",
    *("Dispatch", "Devices", "Environment", "Processes"),  # that the engine makes its objects with
    # of the engine, passed on unseen
    *("Alarm", "Join", "Population", "Capacity", "Rooflines", "Augmentation"),
    *("Task", "StepServices", "Plan"),  # of kinds of steps (docs/howto/step.md)
    *("CodedParts", "QueueingRules"),  # of built-in codecs and of the window model
    *("LinkTraces", "SharedLinks"),  # of built-in networks, by which links follow traces
    *("Split", "TrainingSpec"),  # of built-in strategies and of the built-in trainer
    *("SecureAggregation", "SecureState"),  # of secure aggregation
}
"""Classes in public signatures that authors of parts never hold."""


def functions_of(cls: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(cls).items():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


def fedsim_types(annotation: Any) -> Iterator[str]:
    if isinstance(annotation, type) and annotation.__module__.startswith("fedsim."):
        yield annotation.__name__.partition("[")[0]
    arguments = annotation if isinstance(annotation, list | tuple) else typing.get_args(annotation)
    for argument in arguments:
        yield from fedsim_types(argument)


def hints(owner: Any, module: str) -> dict[str, Any]:
    names = vars(sys.modules[module]) | PUBLIC
    try:
        return typing.get_type_hints(owner, names)
    except NameError:  # imported for type checking alone
        return {}


def test_every_type_in_a_public_signature_is_exported() -> None:
    missing, seen = set(), 0
    for name, cls in CLASSES.items():
        owners = [
            (name, cls),
            *((f"{name}.{each}", function) for each, function in functions_of(cls)),
        ]
        # keys of a table are on the scenario's pages
        for where, owner in owners[issubclass(cls, plugin.Spec) :]:
            for key, annotation in hints(owner, cls.__module__).items():
                for found in () if key.startswith("_") else fedsim_types(annotation):
                    seen += 1
                    if found not in PUBLIC and found not in INSIDES:
                        missing.add(f"{where}: {found}")
    assert seen > 250
    assert missing == set()


def members_of(cls: type) -> set[str]:
    fields = {name for name in vars(cls).get("__annotations__", ()) if not name.startswith("_")}
    return fields | {name for name, _ in functions_of(cls)}


def is_explained(cls: type, member: str) -> bool:
    """Whether a class or one of its bases has a text for a member: a docstring, an entry of
    Attributes, or a literal behind.
    """
    texts = [
        inspect.getdoc(vars(base).get(member))
        for base in cls.__mro__
        if member in vars(base) and is_code(vars(base)[member])
    ]
    return any(texts) or any(member in attribute_descriptions(base) for base in cls.__mro__)


def is_code(value: Any) -> bool:
    return isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)


def test_every_member_of_an_exported_class_is_explained() -> None:
    untold = [
        f"{name}.{member}"
        for name in plugin.__all__
        if name in CLASSES
        for member in sorted(members_of(CLASSES[name]) - {"kind", "model_config"})
        if not is_explained(CLASSES[name], member)
    ]
    assert untold == []


@cache
def keys() -> set[str]:
    """Keys of a scenario's tables, such as ``world.processes``."""
    specs = [
        (name, spec)
        for name, field in Scenario.model_fields.items()
        for spec in specs_of(field).values()
    ]
    return {f"{name}.{key}" for name, spec in specs for key in spec.model_fields}


def names_in(text: str) -> Iterator[tuple[str, str]]:
    """Names of classes, and members of classes and of known variables, in the code spans of a
    text.
    """
    for span in re.findall(r"``([^`\n]+)``", text) + re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text):
        for path in re.findall(
            r"(?<![\w./:\"'~-])([A-Za-z_]\w*(?:\.[a-z_]\w*)*)\b(?![\w/:\"'-])", span
        ):
            head, _, member = path.rpartition(".")
            if re.fullmatch(r"[A-Z][a-z]\w*", path.partition(".")[0]):
                yield path.partition(".")[0], path.partition(".")[2]
            elif head in VARIABLES and member not in ("toml", "json", "py") and path not in keys():
                yield VARIABLES[head], member


@cache
def defined() -> set[str]:
    """Names of the classes of the package."""
    return {
        node.name
        for path in SOURCES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    }


def resolves(name: str, member: str, inside: Any) -> bool:
    if hasattr(inside, name) and not member:
        return True
    if name in PUBLIC and not member:
        return True
    cls = CLASSES.get(name)
    first = member.partition(".")[0]
    if cls is None:
        return name in vars(builtins) or name not in defined()
    return not first or is_explained(cls, first)


def docstrings() -> Iterator[tuple[str, Any, str]]:
    for name, value in PUBLIC.items():
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value, value.__doc__ or ""
        for member, function in functions_of(value) if inspect.isclass(value) else ():
            yield f"{name}.{member}", value, function.__doc__ or ""


def test_every_name_in_a_public_docstring_is_exported_and_explained() -> None:
    lost, seen = set(), 0
    for where, inside, text in docstrings():
        for name, member in names_in(text):
            seen += 1
            if not resolves(name, member, inside):
                lost.add(f"{where}: {name}.{member}")
    assert seen > 100
    assert lost == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_on_a_page_is_exported_and_explained(page: Path) -> None:
    text = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    lost = {
        f"{name}.{member}" for name, member in names_in(text) if not resolves(name, member, None)
    }
    assert lost == set()


def asked_for() -> Iterator[tuple[str, str]]:
    """Each attribute of some object that the code asks for by a literal name, with a default:
    file and name.
    """
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("getattr", "hasattr")
            ):
                optional = node.func.id == "hasattr" or len(node.args) == 3
                name = node.args[1]
                if optional and isinstance(name, ast.Constant):
                    yield path.relative_to(ROOT).as_posix(), name.value


def test_no_hook_is_asked_for_without_a_page_that_names_it() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "howto").glob("*.md"))
    found = {name for path, name in asked_for() if not path.startswith(OF_OTHERS)}
    # those are Python's own
    hooks = {name for name in found - OF_PYTHON if not name.startswith("__")}
    assert {name for name in hooks if not re.search(rf"`[^`]*\b{name}\b[^`]*`", pages)} == set()


def test_it_would_be_seen() -> None:
    for text in (
        "``Server.no_such``",
        "`server.clients.no_such(3)`",
        "`Dispatch`",
        "`Ref.no_such`",
    ):
        assert [each for each in names_in(text) if not resolves(*each, None)], text
