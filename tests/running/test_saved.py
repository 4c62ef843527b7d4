"""Which classes and fields a checkpoint saves: each declared field can be encoded, or is omitted."""

import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from pkgutil import walk_packages
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np
import pytest

import fedsim
from fedsim.common.errors import CheckpointError
from fedsim.common.saved import SAVED_FORMS, saved, saved_classes
from fedsim.common.tensor_files import StoredTensor
from fedsim.running.checkpoint.codec import Decoder, Encoder
from fedsim.running.checkpoint.snapshot import SavedRun

PLAIN = (bool, int, float, str, type(None), np.integer, np.floating, StoredTensor)
CONTAINERS = (list, tuple, deque, dict, Mapping, Sequence)
PACKAGES = (
    *(
        "fedsim.common.",
        "fedsim.world.",
        "fedsim.records.",
        "fedsim.federation.",
        "fedsim.running.",
    ),
    *("fedsim.strategies.", "fedsim.toolbox.strategies.", "fedsim.toolbox.selection."),
    *("fedsim.toolbox.peers.", "fedsim.toolbox.aggregation."),
)
"""Modules with saved classes, and with the types of their fields."""
OPEN = {
    # models, or numbers of a device's earlier trainings
    *("anchor", "linear", "models", "previous", "start"),
    # what the strategy sends and receives
    *("answers", "arriving", "asked", "contents", "peer_messages", "reports", "value"),
    # states of strategies, of their parts, of devices, meters, networks and processes
    *("aggregation", "cloud", "deadline", "meters", "network", "optimiser", "selection", "server"),
    *("computing", "sending", "states", "strategy"),
    *("constants", "context", "cuts", "rounds", "stream"),
}
"""Fields whose type is open: their values are found to be saved only when a run is saved."""


def all_types() -> dict[str, Any]:
    """All types of fedsim by name, which annotations name without an import at run time."""
    names: dict[str, Any] = {}
    for module in walk_packages(fedsim.__path__, "fedsim."):
        if module.name.startswith(PACKAGES):
            names |= vars(import_module(module.name))
    return names


NAMES = all_types()


def shipped() -> list[type]:
    """The saved classes of fedsim."""
    return [cls for cls in saved_classes().values() if cls.__module__.startswith("fedsim.")]


def hints_of(cls: type) -> dict[str, Any]:
    names = NAMES | vars(sys.modules[cls.__module__])
    return get_type_hints(cls, localns=names)


def unsaved(hint: Any, place: str) -> Iterator[str]:
    """The parts of a field's type that a checkpoint cannot store."""
    origin = get_origin(hint)
    if origin is Literal or origin is np.ndarray or hint in SAVED_FORMS:
        return
    if origin in (Union, types.UnionType) or origin in CONTAINERS:
        for part in get_args(hint):
            if part is not Ellipsis:
                yield from unsaved(part, place)
    elif is_typeddict(hint):
        for name, part in hints_of(hint).items():
            yield from unsaved(part, f"{hint.__name__}.{name}")
    elif hint is Any or hint is object:
        if place.partition(".")[2] not in OPEN:
            yield f"{place}: {hint}"
    elif not isinstance(hint, type):
        yield f"{place}: {getattr(origin, '__name__', hint)}"
    elif not (issubclass(hint, PLAIN) or hint in CONTAINERS or is_base(hint)):
        yield f"{place}: {hint.__name__}"


def is_base(cls: type) -> bool:
    """Whether a class only has objects of subclasses, which are saved."""
    return not is_dataclass(cls) and any(issubclass(other, cls) for other in SAVED_FORMS)


def unsaved_fields(cls: type) -> list[str]:
    omitted = SAVED_FORMS[cls].omit
    return [
        problem
        for name, hint in hints_of(cls).items()
        if name not in omitted and get_origin(hint) is not ClassVar
        for problem in unsaved(hint, f"{cls.__name__}.{name}")
    ]


def test_each_declared_field_of_a_saved_class_can_be_encoded_or_is_omitted() -> None:
    assert len(shipped()) > 90
    assert [problem for cls in shipped() for problem in unsaved_fields(cls)] == []


def test_each_declared_part_of_the_state_of_a_run_can_be_encoded() -> None:
    assert list(unsaved(SavedRun, "SavedRun")) == []


class Pair(NamedTuple):
    """A tuple that is not registered, which a checkpoint would restore as a plain one."""

    first: int
    second: int


@dataclass
class Waiting:
    """A class with fields that no checkpoint can store."""

    device: int
    queue: "list[Future[int]]"
    seen: "set[int] | None" = None
    pair: "dict[int, Pair] | None" = None


@pytest.fixture
def registered() -> Iterator[None]:
    saved(omit=("queue",))(Waiting)
    yield
    del SAVED_FORMS[Waiting]


@pytest.mark.usefixtures("registered")
def test_a_field_of_another_type_is_named() -> None:
    assert unsaved_fields(Waiting) == ["Waiting.seen: set", "Waiting.pair: Pair"]
    saved()(Waiting)
    assert unsaved_fields(Waiting)[0] == "Waiting.queue: Future"


@pytest.mark.usefixtures("registered")
def test_an_omitted_field_is_neither_written_nor_read() -> None:
    encoder = Encoder()
    tables: Any = encoder.encode(Waiting(3, [Future()]))
    ((_, content),) = tables["objects"]
    assert content == {"device": 3, "seen": None, "pair": None}
    assert vars(Decoder(encoder.arrays).decode(tables)) == content
    content["queue"] = []
    with pytest.raises(CheckpointError, match="Waiting has the fields"):
        Decoder(encoder.arrays).decode(tables)


def test_an_object_of_a_class_that_is_not_registered_is_refused() -> None:
    with pytest.raises(CheckpointError, match="a Waiting cannot be kept in a checkpoint"):
        Encoder().encode(Waiting(3, []))


def test_a_saved_name_is_of_one_class_and_its_final_one() -> None:
    for cls in shipped():
        assert getattr(sys.modules[cls.__module__], SAVED_FORMS[cls].name) is cls
