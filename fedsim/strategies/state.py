"""Bases of the states of strategies and of their parts: dataclasses that are saved with a run."""

from collections.abc import Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from fedsim.common.saved import register_saved

K = TypeVar("K")


PartState = Any
"""State of a strategy or part: an object of its class ``State``, or a dict if it has no class."""


@dataclass
class Entries(Mapping[str, Any]):
    """Base of dataclasses whose fields can also be read and set by key, as in a dict.

    ``update["samples"]`` is ``update.samples``. Entries that no field declares can be set by key. A
    checkpoint saves objects of this class, with such entries.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        register_saved(cls)

    def __getitem__(self, name: str) -> Any:
        try:
            return self.__dict__[name]  # faster than ``vars(self)[name]``; called for each update
        except KeyError:
            if isinstance(getattr(type(self), name, None), property):  # former name of a field
                return getattr(self, name)
            raise

    def __setitem__(self, name: str, value: object) -> None:
        setattr(self, name, value)

    def __delitem__(self, name: str) -> None:
        del vars(self)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def __or__(self, entries: Mapping[str, Any]) -> Self:
        changed = copy(self)
        changed |= entries
        return changed

    def __ior__(self, entries: Mapping[str, Any]) -> Self:
        for name, value in entries.items():
            self[name] = value
        return self


@dataclass
class State(Entries, MutableMapping[str, Any]):
    """Base of the memory of a strategy or of a part, which is saved with a run and restored.

    Fields hold JSON-able values, refs, and lists or dicts of JSON-able values and refs. A field
    that has no value before the run begins is declared with ``field(init=False)``.

    Fields can be read and set by key, as in a dict: ``state["round"]`` is ``state.round``. A
    subclass of a strategy may thus add entries that no field declares. Added entries are saved too.

    Example:
        >>> from dataclasses import dataclass, field
        >>> from fedsim.plugin import State
        >>> @dataclass
        ... class Memory(State):
        ...     rounds: int = 0
        ...     losses: list[float] = field(default_factory=list)
        >>> memory = Memory()
        >>> memory.rounds += 1
        >>> memory["rounds"]
        1
    """


def new_state(part: object) -> PartState:
    """Return an empty state for a part of a strategy, such as a selection.

    It is an object of the part's class ``State``, or a dict if the part declares none.
    """
    return getattr(part, "State", dict)()


def state_of_slot(states: dict[K, PartState], slot: K, part: object) -> PartState:
    """Return the state of an aggregation or server optimiser for one of several models.

    Both need a state for each model (slot), such as one per group. A state is created at its first
    use.

    Args:
        states: key of a model -> state; a created state is added.
        slot: key of the model, such as the index of its group.
        part: the aggregation or server optimiser.
    """
    if slot not in states:
        states[slot] = new_state(part)
    return states[slot]
