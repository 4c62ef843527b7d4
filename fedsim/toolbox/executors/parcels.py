"""Calls as parcels, for workers that do not see this process's memory: what is big and never changes is sent by reference.

Two kinds of things stay out of a parcel. What was *placed* (a trainer, a data set) is put into the cluster's store once, and
made once in each worker process. A big array that cannot be written, such as a model's weights, is *shared*: it is put there
when it first goes into a call, and dropped when nobody in this process holds it any more; workers read it where it lies.

Parcels are pickles. They are only ever made and opened by fedsim, in processes of one and the same run.
"""

import io
import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np

_SHARED_BYTES = 1 << 15  # a smaller array costs less in the parcel than in the store

ParcelReference = Any
"""Name of a thing in the store: a ``ray.ObjectRef``."""


@dataclass
class Parcel:
    """A pickle, and the references by the numbers in it; of placed things, ``buffers`` has the memory of their arrays."""

    content: bytes = b""
    buffers: list[pickle.PickleBuffer] = field(default_factory=list)
    placed: list[ParcelReference] = field(default_factory=list)
    shared: list[ParcelReference] = field(default_factory=list)


class Packer:
    """Makes parcels; ``put`` puts a thing into the store and gives its reference."""

    def __init__(self, put: Callable[[Any], ParcelReference]) -> None:
        self._put = put
        self._placed: dict[int, tuple[Any, ParcelReference]] = {}
        self._shared: dict[int, tuple[weakref.ref[Any], ParcelReference]] = {}

    def place(self, thing: Any) -> None:
        """Put ``thing`` into the store; from now on it goes into parcels by reference."""
        if id(thing) not in self._placed:
            self._placed[id(thing)] = (thing, self._put(self.pack(thing, apart=True)))

    def pack(self, thing: Any, *, apart: bool = False) -> Parcel:
        """A parcel with ``thing`` in it; with the memory of its arrays ``apart``."""
        parcel, memory = Parcel(), io.BytesIO()
        _Pickler(self, parcel, memory, apart).dump(thing)
        parcel.content = memory.getvalue()
        return parcel

    def reference(self, thing: Any) -> tuple[str, ParcelReference] | None:
        """The kind of ``thing`` and its reference, or None if it goes into a parcel by value."""
        if type(thing) is np.ndarray and not thing.flags.writeable and thing.nbytes >= _SHARED_BYTES:
            key = id(thing)
            known, reference = self._shared.get(key, (None, None))
            if known is None or known() is not thing:
                reference = self._put(thing)
                self._shared[key] = (weakref.ref(thing, lambda _: self._shared.pop(key, None)), reference)
            return "shared", reference
        held, reference = self._placed.get(id(thing), (None, None))
        return ("placed", reference) if held is thing and held is not None else None


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Puts numbers where placed and shared things stand, and into ``parcel`` the references that they mean."""

    def __init__(self, packer: Packer, parcel: Parcel, memory: io.BytesIO, apart: bool) -> None:
        super().__init__(memory, protocol=5, buffer_callback=parcel.buffers.append if apart else None)
        self._packer, self._parcel = packer, parcel

    def persistent_id(self, thing: Any) -> tuple[str, int] | None:
        """The kind and position of the reference to ``thing``, or None if ``thing`` goes into the pickle."""
        kind, reference = self._packer.reference(thing) or ("", None)
        if not kind:
            return None
        references = self._parcel.shared if kind == "shared" else self._parcel.placed
        if reference not in references:
            references.append(reference)
        return kind, references.index(reference)


class Opener:
    """Opens parcels in a worker, where it keeps what was placed; ``fetch`` gets things from the store."""

    def __init__(self, fetch: Callable[[Sequence[ParcelReference]], Sequence[Any]]) -> None:
        self._fetch = fetch
        self._kept: dict[ParcelReference, Any] = {}

    def open(self, parcel: Parcel, shared: Sequence[Any] | None = None) -> Any:
        """The content of the parcel; ``shared`` are the shared arrays, if they have been fetched already."""
        arrays = self._fetch(parcel.shared) if shared is None else shared
        for reference in parcel.placed:
            if reference not in self._kept:
                self._kept[reference] = self.open(*self._fetch([reference]))
        things = {"placed": [self._kept[reference] for reference in parcel.placed], "shared": arrays}
        return _Unpickler(parcel, things).load()


class _Unpickler(pickle.Unpickler):
    """Puts things where their numbers stand."""

    def __init__(self, parcel: Parcel, things: Mapping[str, Sequence[Any]]) -> None:
        super().__init__(io.BytesIO(parcel.content), buffers=parcel.buffers)
        self._things = things

    def persistent_load(self, number: tuple[str, int]) -> Any:
        kind, at = number
        return self._things[kind][at]
