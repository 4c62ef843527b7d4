"""Encoding of the contents of messages as bytes.

A content has as many bytes as the simulation counts for it. The head of a packet (a message) has an
entry for each content, such as ``{"model": 650}`` for a model of 650 parameters. Keys of an entry:

- model: ``model`` (length). If the payload is a change: ``base`` (place, in the request, of the
  model to which the change is added). If the training loss is known: ``loss``.
- ``Lazy`` (numbers computed on demand): ``lazy`` (kind, such as ``loss``) and ``count``.
- other numbers: ``numbers`` (Python type), ``wire`` (type in the payload) and ``shape``.
- list with models: ``items`` (list of the items' entries).
- ``Opaque``: ``opaque`` (value) and ``bytes``. ``Header``: ``header`` (value).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import SimulationError, show_value
from fedsim.deployed.reading import (
    Json,
    PacketError,
    count_of,
    entry_of,
    finite_of,
    list_of,
    pair_of,
    read_safely,
    table_of,
    text_of,
)
from fedsim.deployed.trees import TreeWriter, read_report, read_tree, value_of, write_report
from fedsim.federation.codecs import Codec, CodedParts
from fedsim.federation.contents import Contents, Header, Lazy, Opaque
from fedsim.learning import Learner
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref

FORGOT = "forgot"
"""Entry of an answer's head, present if the node has lost the state of its device."""
SHIFT = "shift"
"""Entry of an answer's head: the device's message about its changed data, numbers by name."""


class ModelPlace(NamedTuple):
    """Position of a model in a message: the name of a content, and an index if it is a list.

    Attributes:
        content: name of the content.
        position: index in a content that is a list of models, from 0; None for a content that is
            one model.
    """

    content: str
    position: int | None = None

    def __str__(self) -> str:
        return self.content if self.position is None else f"{self.content}/{self.position}"


class PlacedModel(NamedTuple):
    """Model in a message, with its position there.

    An answer may have the change of a model that the request contained. The answer then names that
    model by its ``place`` in the request.

    Attributes:
        place: position of the model in the message.
        model: the model.
    """

    place: ModelPlace
    model: Ref


@dataclass(slots=True)
class Packet:
    """Message between server and device in a deployment, as it is sent between machines.

    Attributes:
        head: JSON table with the job, the round, and the encoding of each content. The run does not
            count its bytes.
        payloads: dict from name of a content, with ``/index`` for an item of a list, to its bytes.
        arrays: arrays to which the head refers; the run does not count their bytes.
    """

    head: dict[str, Json]
    payloads: dict[str, bytes] = field(default_factory=dict)
    arrays: list[AnyArray] = field(default_factory=list)

    def bytes_by_content(self) -> dict[str, int]:
        """Return the size of each content in the message (bytes), by the content's name."""
        sizes: dict[str, int] = {}
        for name, payload in self.payloads.items():
            content = name.rpartition("/")[0] if "/" in name else name
            sizes[content] = sizes.get(content, 0) + len(payload)
        return sizes


@pure
def total(models: list[AnyArray]) -> AnyArray:
    """Return the sum of a model and a decoded change of it.

    Args:
        models: the model and the change, float [d] each.
    """
    return models[0] + models[1]


class ContentPacker:
    """Converter of messages' contents to bytes and back, for one direction (down or up).

    Args:
        codec: the codec of models in this direction.
        learner: creates references to decoded models, and computes the models to send.
        added_up: names of contents that device and server each add up over rounds. They are encoded
            by ``codec.for_added_up``.
    """

    def __init__(self, codec: Codec, learner: Learner, added_up: Collection[str] = ()) -> None:
        self._codec = codec
        self._learner = learner
        self._added_up = added_up

    def pack(
        self,
        contents: Contents,
        bases: Mapping[Ref, PlacedModel],
        residuals: Mapping[str, Ref],
    ) -> Packet:
        """Encode the contents of a message as a packet.

        The entry ``contents`` of the packet's head says how each content is encoded.

        Args:
            contents: the contents by name.
            bases: dict whose keys are updates (trained models) among the contents. Its value for an
                update is the model of the request from which the update was trained, with the
                model's position in the request.
            residuals: dict from name of a content to its residual, the part that the codec left out
                when the sender last encoded this content.

        Raises:
            SimulationError: a content has a type that a deployment cannot send.
        """
        packet = Packet({})
        writer = TreeWriter(self._learner)
        entries: dict[str, Json] = {}
        for name, value in contents.items():
            if isinstance(value, Header):
                entries[name] = {"header": writer.write(value.value)}
            elif isinstance(value, Opaque):
                entries[name] = {"opaque": writer.write(value.value), "bytes": value.bytes}
            elif isinstance(value, Ref):
                entries[name] = self._pack_model(packet, name, name, value, bases, residuals)
            else:
                entries[name] = self._pack_other(packet, name, value)
        packet.head["contents"] = entries
        packet.arrays = writer.arrays
        return packet

    def _pack_other(self, packet: Packet, name: str, value: object) -> Json:
        """Pack a content that is not a model, and return its entry in the packet's head.

        Args:
            packet: the packet, which gets the payload.
            name: name of the content, with ``/index`` for an item of a list.
            value: the content.
        """
        if isinstance(value, Lazy):
            packet.payloads[name] = self._lazy_values(value).astype("<f4").tobytes()
            return {"lazy": value.what, "count": value.count}
        if isinstance(value, list | tuple) and any(isinstance(item, Ref) for item in value):
            items: list[Json] = []
            for index, item in enumerate(value):
                item_name = f"{name}/{index}"
                if isinstance(item, Ref):
                    # an item has no residual, and is never sent as a change
                    items.append(self._pack_model(packet, item_name, "", item, {}, {}))
                else:
                    items.append(self._pack_other(packet, item_name, item))
            return {"items": items}
        if not isinstance(value, list | tuple | int | float | np.number | np.ndarray):
            raise SimulationError(
                f"the content {name!r} of a message is a {type(value).__name__}, which a "
                "deployed strategy cannot send; allowed are models, numbers, Lazy, Opaque and "
                "Header"
            )
        array = np.asarray(value)
        # little-endian, four bytes a number, as the simulation counts
        has_floats = array.dtype.kind == "f"
        wire = "<f4" if has_floats else "<i4"
        packet.payloads[name] = array.astype(wire).tobytes()
        type_name = "array"  # also for a number of numpy
        if isinstance(value, list | tuple | int | float):
            type_name = type(value).__name__
        return {"numbers": type_name, "wire": wire, "shape": list(array.shape)}

    def _lazy_values(self, content: Lazy) -> AnyArray:
        """Compute and return the numbers of a ``Lazy`` content, such as a loss."""
        ref = content.ref
        numbers = value_of(self._learner, ref)  # computes the losses and the choice too
        match content.what:
            case "loss":
                return np.array([ref.train_loss])
            case "losses":
                return np.asarray(ref.losses)
            case "choice":
                return np.array([ref.choice])
        return numbers

    def _pack_model(
        self,
        packet: Packet,
        payload_name: str,
        name: str,
        model: Ref,
        bases: Mapping[Ref, PlacedModel],
        residuals: Mapping[str, Ref],
    ) -> Json:
        """Pack a model, and return its entry in the packet's head.

        Args:
            packet: the packet, which gets the payload.
            payload_name: name of the payload.
            name: name of the content; empty for an item of a list, which has no residual.
            model: the model.
            bases: dict whose keys are updates (trained models) among the contents. Its value for an
                update is the model of the request from which the update was trained, with the
                model's position in the request.
            residuals: dict from name of a content to the part that the codec left out when the
                sender last encoded this content.
        """
        base = bases.get(model)
        base_model = None if base is None else base.model
        parts = self._encode(name, model, base_model, residuals.get(name))
        sent = value_of(self._learner, parts.sent)  # the array as the receiver decodes it
        exact = value_of(self._learner, parts.exact)  # the array before the codec changed it
        packet.payloads[payload_name] = self._codec.pack(sent, exact)
        entry: dict[str, Json] = {"model": len(sent)}
        is_change = parts.start is not None  # the receiver adds a change to the base
        if is_change and base is not None:
            entry["base"] = [base.place.content, base.place.position]
        if model.loss is not None:
            self._learner.compute_now(model)
            entry["loss"] = write_report(model.loss)
        return entry

    def _encode(self, name: str, model: Ref, base: Ref | None, residual: Ref | None) -> CodedParts:
        """Apply the codec to a model, without computing the result.

        Args:
            name: name of the content; empty for an item of a list.
            model: the model.
            base: model from which ``model`` was trained, known to both sides; None if there is none.
            residual: part that the codec left out when the sender last encoded this content; None
                if there is none.
        """
        # whether device and server each add up the content over rounds
        is_added_up = name in self._added_up
        codec = self._codec.for_added_up if is_added_up else self._codec
        size = int(self._learner.parameters)
        return codec.encode(self._learner, size, model, base, residual)

    def unpack(self, packet: Packet, model_at: Callable[[ModelPlace], Ref]) -> Contents:
        """Decode a packet into the contents of a message.

        An answer may contain the change of a model that the request contained. The decoded change
        is added to this model.

        Args:
            packet: the packet.
            model_at: function that returns the model at a place of the request.

        Raises:
            PacketError: the packet cannot be read.
        """
        contents: dict[str, object] = {}
        entries = table_of(entry_of(packet.head, "contents"), "contents")
        for name, entry in entries.items():
            label = f"the content {show_value(name)}"
            read = partial(self._unpack, packet, name, table_of(entry, label), model_at)
            contents[name] = read_safely(label, read)
        return contents

    def _unpack(
        self,
        packet: Packet,
        payload_name: str,
        entry: Mapping[str, Json],
        model_at: Callable[[ModelPlace], Ref],
    ) -> object:
        """Decode one content of a packet, or one item of a content that is a list.

        Args:
            packet: the packet.
            payload_name: name of the payload.
            entry: entry of the content or item in the packet's head.
            model_at: returns the model at a place of the request.

        Raises:
            PacketError: the packet has no such payload, or it cannot be read.
        """
        if "header" in entry:
            return Header(read_tree(entry["header"], packet.arrays, self._learner))
        if "opaque" in entry:
            size = finite_of(entry_of(entry, "bytes"), "bytes")
            return Opaque(read_tree(entry["opaque"], packet.arrays, self._learner), size)
        if "items" in entry:
            values = []
            for index, item in enumerate(list_of(entry["items"], "items")):
                fields = table_of(item, "an item")
                values.append(self._unpack(packet, f"{payload_name}/{index}", fields, model_at))
            return values
        if payload_name not in packet.payloads:
            raise PacketError(f"it has no payload {show_value(payload_name)}")
        payload = packet.payloads[payload_name]
        if "model" in entry:
            return self._unpack_model(payload, entry, model_at)
        if "lazy" in entry:
            return self._unpack_lazy(payload, entry)
        return _unpack_numbers(payload, entry)

    def _unpack_model(
        self, payload: bytes, entry: Mapping[str, Json], model_at: Callable[[ModelPlace], Ref]
    ) -> Ref:
        """Decode a model. If the payload is the change of a model of the request, add both.

        Args:
            payload: the encoded model or change.
            entry: entry of the content in the packet's head.
            model_at: returns the model at a place of the request.
        """
        size = count_of(entry["model"], "the length of a model")
        expected_size = int(self._learner.parameters)
        if size != expected_size:
            raise PacketError(f"a model has {size} numbers, and the scenario's has {expected_size}")
        expected_bytes = self._codec.bytes(size)
        if len(payload) != expected_bytes:
            raise PacketError(
                f"a model has {len(payload)} bytes, and {expected_bytes:.0f} are expected"
            )
        sent = self._learner.received(self._codec.unpack(payload, size))
        model = sent
        if "base" in entry:
            base_content, index = pair_of(entry["base"], "base")
            content_name = text_of(base_content, "the name of a base")
            position = None if index is None else count_of(index, "the index of a base")
            base = model_at(ModelPlace(content_name, position))
            model = self._learner.apply(total, [base, sent])
        if "loss" in entry:
            model.loss = read_report(entry["loss"])
        return model

    def _unpack_lazy(self, payload: bytes, entry: Mapping[str, Json]) -> Lazy:
        """Decode computed numbers, such as a loss, as an object that is computed already."""
        values = np.frombuffer(payload, "<f4").astype(np.float32)
        what = text_of(entry["lazy"], "the kind of computed numbers")
        if len(values) != entry_of(entry, "count"):
            raise PacketError(f"it has {len(values)} numbers, and its count is {entry['count']}")
        ref = self._learner.received(values)
        match what:
            case "loss":
                ref.loss = read_report([values.item(), {}])
            case "losses":
                ref.losses = values.astype(np.float64)
            case "choice":
                ref.choice = int(values.item())
            case "numbers":
                pass
            case _:
                raise PacketError(f"it has computed numbers of the unknown kind {show_value(what)}")
        return Lazy(what, ref, len(values))


def _unpack_numbers(payload: bytes, entry: Mapping[str, Json]) -> object:
    """Decode an array, list, tuple, bool or number, as its entry in the head says."""
    wire = text_of(entry_of(entry, "wire"), "wire")
    if wire not in ("<f4", "<i4"):
        raise PacketError(f"numbers have the type {show_value(wire)}; allowed are '<f4' and '<i4'")
    shape = list_of(entry_of(entry, "shape"), "shape")
    sizes = [count_of(size, "a size of an array") for size in shape]
    array = np.frombuffer(payload, wire).reshape(sizes)
    array = array.astype(np.float64 if wire == "<f4" else np.int64)
    match entry_of(entry, "numbers"):
        case "array":
            return array
        case "list":
            return array.tolist()
        case "tuple":
            return tuple(array.tolist())
        case "bool":
            return bool(array)
    return array.item()  # an int or a float, by the type of the payload


def models_in(contents: Mapping[str, object]) -> list[PlacedModel]:
    """Return all models in the contents of a message, with their positions, in order."""
    models: list[PlacedModel] = []
    for name, value in contents.items():
        if isinstance(value, Ref):
            models.append(PlacedModel(ModelPlace(name), value))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            for index, item in enumerate(value):
                if isinstance(item, Ref):
                    models.append(PlacedModel(ModelPlace(name, index), item))
    return models
