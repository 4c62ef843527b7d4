"""Parcels: pickles of calls, without the objects that lie in the store of a Ray cluster."""

import io
import pickle
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import cloudpickle
import numpy as np

from fedsim.clock.answers import Answer
from fedsim.common.arrays import AnyArray

if TYPE_CHECKING:
    from torch.nn import Parameter

# least size (bytes) of a shared array; a smaller array costs less in the parcel
_SHARED_BYTES = 1 << 15


class Stored(Protocol):
    """Reference to an object in a Ray cluster's store: the part of ``ray.ObjectRef`` in use."""

    def future(self) -> "Future[Answer]": ...


@dataclass
class Parcel:
    """Pickle of an object, with references to the parts that are in a Ray cluster's object store.

    There are two kinds of such parts. Placed parts, such as a data set, are unpickled once per
    worker process. Shared parts are large read-only arrays. ``Packer`` creates parcels, and
    ``Opener`` unpacks them.

    Attributes:
        content: the pickle, in which ("placed" or "shared", index) replaces an omitted object.
        buffers: memory of the arrays of a placed object, outside the pickle.
        placed: references to the omitted placed objects, in order of index.
        shared: references to the omitted shared arrays, in order of index.
    """

    content: bytes = b""
    buffers: list[pickle.PickleBuffer] = field(default_factory=list)
    placed: list[Stored] = field(default_factory=list)
    shared: list[Stored] = field(default_factory=list)


class Packer:
    """Packer of function calls for Ray's workers; a packed call is a parcel.

    It runs in the main process. An object that several calls use is sent to Ray's store only once:
    ``place`` puts an object into the store, and a large read-only array is put there when it is
    packed for the first time.

    Args:
        put: puts an object into the cluster's store, and returns its reference.
    """

    def __init__(self, put: Callable[[object], Stored]) -> None:
        self._put = put
        # id of an object -> the object (or a weak reference to it), and its reference in the store
        self._placed: dict[int, tuple[object, Stored]] = {}
        self._shared: dict[int, tuple[weakref.ref[AnyArray], Stored]] = {}

    def place(self, thing: object) -> None:
        """Put an object into the cluster's store, so that later parcels only refer to it.

        The object is kept alive as long as this packer.
        """
        if id(thing) not in self._placed:
            self._placed[id(thing)] = (thing, self._put(self.pack(thing, apart=True)))

    def pack(self, thing: object, *, apart: bool = False) -> Parcel:
        """Pickle an object into a parcel, without the parts that lie in the cluster's store.

        Args:
            thing: the object.
            apart: whether the memory of the object's arrays is stored in ``Parcel.buffers``, outside
                the pickle. ``place`` does so, so that workers can read large arrays in place.

        Returns:
            The parcel.
        """
        parcel = Parcel()
        memory = io.BytesIO()
        buffer_callback = parcel.buffers.append if apart else None
        pickler = cloudpickle.Pickler(memory, protocol=5, buffer_callback=buffer_callback)
        if apart:
            pickler.reducer_override = partial(_reduce, pickler.reducer_override)
        pickler.persistent_id = partial(self._persistent_id, parcel)
        pickler.dump(thing)
        parcel.content = memory.getvalue()
        return parcel

    def _persistent_id(self, parcel: Parcel, thing: object) -> tuple[str, int] | None:
        """Return the ID that replaces a part of an object in a pickle (``persistent_id``).

        The pickler calls this for each part. If the part is in the cluster's store, its reference
        is added to the parcel. A large read-only array is put into the store first.

        Args:
            parcel: the parcel for which the object is pickled.
            thing: a part of the object.

        Returns:
            ("placed" or "shared", index of the reference); None to pickle the part itself.
        """
        if _is_shared(thing):  # a large read-only array
            return "shared", _index_in(self._share(thing), parcel.shared)
        if id(thing) not in self._placed:
            return None
        placed_thing, reference = self._placed[id(thing)]
        if placed_thing is not thing:  # another object has had this id
            return None
        return "placed", _index_in(reference, parcel.placed)

    def _share(self, array: AnyArray) -> Stored:
        """Return the reference to a large array in the cluster's store.

        The first call for an array puts it into the store. The reference is deleted when the array
        is garbage collected.
        """
        key = id(array)
        entry = self._shared.get(key)
        if entry is not None:
            shared_array, reference = entry
            if shared_array() is array:  # else the entry is of a collected array that had this id
                return reference
        reference = self._put(array)
        weak_array = weakref.ref(array, lambda _: self._shared.pop(key, None))
        self._shared[key] = (weak_array, reference)
        return reference


def _reduce(usual: Callable[[object], object], thing: object) -> object:
    """Return how an object is pickled, as a pickler's ``reducer_override`` does.

    A frozen parameter of torch is pickled as an array, any other object as usual. torch would copy
    the memory of a parameter into the pickle, while the memory of an array stays outside. In a
    worker such a parameter is then a view of the store's memory. This memory is read-only, which is
    safe for modules that workers only copy.

    Args:
        usual: cloudpickle's ``reducer_override``, for all other objects.
        thing: the object.
    """
    if "torch" in sys.modules:
        from torch.nn import Parameter

        if type(thing) is Parameter and _is_plain_frozen(thing):
            return _frozen_parameter, (thing.detach().numpy(),)
    return usual(thing)


def _is_plain_frozen(parameter: "Parameter") -> bool:
    """Return whether a parameter of torch can be pickled as an array (see ``_reduce``).

    The parameter must be frozen, and a large contiguous tensor on the CPU without additional state.
    """
    import torch

    if parameter.requires_grad or parameter.device.type != "cpu" or vars(parameter):
        return False
    is_plain = parameter.layout == torch.strided and parameter.is_contiguous()
    is_known = parameter.dtype in (torch.float32, torch.float64)
    return is_plain and is_known and parameter.nbytes >= _SHARED_BYTES


def _frozen_parameter(array: AnyArray) -> "Parameter":
    """Return a frozen parameter of torch that is a view of an array."""
    import torch

    with warnings.catch_warnings():
        # nothing writes to the parameter: modules are copied before they compute
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        tensor = torch.from_numpy(array)
    return torch.nn.Parameter(tensor, requires_grad=False)


def _is_shared(thing: object) -> TypeGuard[AnyArray]:
    if type(thing) is not np.ndarray:
        return False
    return not thing.flags.writeable and thing.nbytes >= _SHARED_BYTES


def _index_in(reference: Stored, references: list[Stored]) -> int:
    """Return the index of a reference in a list; append the reference first if it is missing."""
    if reference not in references:
        references.append(reference)
    return references.index(reference)


class Opener:
    """Unpacker of parcels in a worker process, which fetches the objects that a parcel refers to.

    A placed object (``Packer.place``), such as a data set, stays in memory for later parcels.

    Args:
        fetch: returns the stored objects of a list of references, in order.
    """

    def __init__(self, fetch: Callable[[Sequence[Stored]], Sequence[Any]]) -> None:
        self._fetch = fetch
        self._placed: dict[Stored, object] = {}

    def open(self, parcel: Parcel, shared: Sequence[AnyArray] | None = None) -> Any:
        """Unpack a parcel, and return the object in it.

        Args:
            parcel: the parcel.
            shared: the large arrays that the parcel omits; None to fetch them from the store.
        """
        arrays = self._fetch(parcel.shared) if shared is None else shared
        # objects that several parcels use are in the store, and are unpacked once in a process
        for reference in parcel.placed:
            if reference not in self._placed:
                self._placed[reference] = self.open(*self._fetch([reference]))
        # the pickle has a list's name and an index in place of each omitted object
        omitted: dict[str, Sequence[object]] = {
            "placed": [self._placed[reference] for reference in parcel.placed],
            "shared": arrays,
        }
        unpickler = _Unpickler(io.BytesIO(parcel.content), buffers=parcel.buffers)
        unpickler.omitted = omitted
        return unpickler.load()


class _Unpickler(pickle.Unpickler):
    omitted: Mapping[str, Sequence[object]]

    def persistent_load(self, pid: tuple[str, int]) -> object:
        kind, index = pid
        return self.omitted[kind][index]
