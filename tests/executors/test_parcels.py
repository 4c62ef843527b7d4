"""Parcels: what goes into a call by value, what by reference, and that both arrive as what they were."""

import gc
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedsim.toolbox.executors.parcels import Opener, Packer, Parcel


class Store:
    """An object store: what is put into it is pickled, and comes out as a copy."""

    def __init__(self) -> None:
        self.content: list[bytes] = []

    def put(self, thing: Any) -> int:
        self.content.append(pickle.dumps(thing, protocol=5))
        return len(self.content) - 1

    def fetch(self, references: Sequence[int]) -> list[Any]:
        return [pickle.loads(self.content[reference]) for reference in references]


@dataclass
class Holder:
    """Something that holds another."""

    held: Any

    def first(self, count: int) -> Any:
        return self.held[:count]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def packer(store: Store) -> Packer:
    return Packer(store.put)


def sent(parcel: Parcel) -> Parcel:
    """The parcel as it arrives in another process."""
    arrived: Parcel = pickle.loads(pickle.dumps(parcel, protocol=5))
    return arrived


def weights(value: float = 1.0, size: int = 1 << 14, *, writeable: bool = False) -> NDArray[np.float32]:
    array = np.full(size, value, dtype=np.float32)
    array.setflags(write=writeable)
    return array


def test_a_placed_thing_is_sent_once_and_made_once(store: Store, packer: Packer) -> None:
    thing = Holder(list(range(10_000)))
    packer.place(thing)
    packer.place(thing)
    parcels = [packer.pack((sum, [thing, number])) for number in range(3)]
    assert len(store.content) == 1
    assert max(len(parcel.content) for parcel in parcels) < 200
    opener = Opener(store.fetch)
    first, *others = [opener.open(sent(parcel))[1][0] for parcel in parcels]
    assert first == thing
    assert all(one is first for one in others)
    one, equal = opener.open(sent(packer.pack([thing, Holder(thing.held)])))  # an equal thing is not the placed one
    assert one is first is not equal
    function, args = opener.open(sent(packer.pack((thing.first, (3,)))))  # a method brings nothing along
    assert function(*args) == [0, 1, 2]


def test_what_a_placed_thing_holds_may_be_placed_itself(store: Store, packer: Packer) -> None:
    pool = Holder(np.arange(100_000))
    users = [Holder(pool), Holder(pool)]
    for thing in (pool, *users):
        packer.place(thing)
    assert sum(len(content) > 100_000 for content in store.content) == 1
    first, second, itself = Opener(store.fetch).open(sent(packer.pack((*users, pool))))
    assert first.held is second.held is itself
    np.testing.assert_array_equal(itself.held, pool.held)


def test_read_only_arrays_are_put_once_and_stay_themselves(store: Store, packer: Packer) -> None:
    shared = weights(3.0)
    parcels = [packer.pack({"base": shared, "anchor": shared}) for _ in range(3)]
    assert (len(store.content), len(parcels[2].content) < 200) == (1, True)
    opened = Opener(store.fetch).open(sent(parcels[2]))
    assert opened["base"] is opened["anchor"]
    np.testing.assert_array_equal(opened["base"], shared)


def test_small_and_writeable_arrays_and_those_of_a_subclass_go_by_value(store: Store, packer: Packer) -> None:
    small, own = weights(1.0, 10), weights(2.0, writeable=True)
    masked = np.ma.masked_array(np.zeros(1 << 14), mask=np.arange(1 << 14) == 7)  # type: ignore[no-untyped-call]
    masked.setflags(write=False)
    parcel = packer.pack([small, own, masked])
    own[:] = 5.0
    opened = Opener(store.fetch).open(sent(parcel))
    assert store.content == []
    assert [array[0] for array in opened[:2]] == [1.0, 2.0]
    assert opened[2].mask.sum() == 1


def test_an_array_that_is_gone_is_forgotten_and_its_address_means_nothing(store: Store, packer: Packer) -> None:
    addresses = set()
    for value in range(50):
        array = weights(float(value))
        addresses.add(id(array))
        opened = Opener(store.fetch).open(sent(packer.pack([array])))
        assert opened[0][0] == value
        del array
    gc.collect()
    assert len(addresses) < 50, "no address was used twice, so this has shown nothing"
    assert packer._shared == {}
