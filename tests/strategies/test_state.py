"""The typed memory of strategies and parts: its fields, entries by key, and a round trip."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from fedsim.running.checkpoint.codec import Decoder, Encoder
from fedsim.strategies.state import State, new_state, state_of_slot


@dataclass
class Inner(State):
    """Memory of a part."""

    count: int = 0


@dataclass
class Outer(State):
    """Memory of a strategy."""

    model: str = field(init=False)
    round: int = 0
    pairs: dict[int, tuple[int, float]] = field(default_factory=dict)
    part: Inner = field(default_factory=Inner)


class Part:
    State = Inner


def test_fields_and_entries_are_the_same() -> None:
    state = Outer()
    assert "model" not in state
    state.model = "w"
    state["round"] = 3
    state |= {"extra": [1]}
    assert (state["model"], state.round, state["extra"]) == ("w", 3, [1])
    assert [*state] == ["round", "pairs", "part", "model", "extra"]
    with pytest.raises(KeyError):
        state["rounds"]


def test_a_part_has_its_class_or_a_dict() -> None:
    states: dict[int, Any] = {}
    assert new_state(Part()) == Inner()
    assert new_state(None) == {}
    assert state_of_slot(states, 2, Part()) is state_of_slot(states, 2, Part())
    assert states == {2: Inner()}


def test_it_is_restored_with_its_classes() -> None:
    state = Outer(round=2, pairs={1: (3, 0.5)})
    state["extra"] = {"a": state.part}
    encoder = Encoder()
    restored = Decoder(encoder.arrays).decode(encoder.encode(state))
    assert type(restored) is Outer
    assert "model" not in restored
    assert (restored.round, restored.pairs, restored.part) == (2, {1: (3, 0.5)}, Inner())
    assert restored["extra"]["a"] is restored.part


def test_many_ranges_of_a_model_are_one_array() -> None:
    many = tuple((3 * number, 3 * number + 2) for number in range(1000))
    few = ((0, 2), (4, 6))
    mixed = tuple((number, None) for number in range(1000))
    equal = tuple((3 * number, 3 * number + 2) for number in range(1000))
    value = {"many": many, "equal": equal, "few": few, "mixed": mixed, "empty": ()}
    encoder = Encoder()
    tables = encoder.encode(value)
    assert len(encoder.arrays) == 1
    assert len(json.dumps(tables["root"]["many"])) < 40
    decoded = Decoder(encoder.arrays).decode(json.loads(json.dumps(tables)))
    assert decoded == value
    assert decoded["many"] is decoded["equal"]
