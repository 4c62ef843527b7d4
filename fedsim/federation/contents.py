"""Messages and their contents by name; the type of a content determines its encoded bytes.

A content is one of:

- a ``Ref`` (model or update) or ``Partial`` (some tensors of a model), encoded by ``[messages]``; a
  list or tuple of refs;
- values of 4 bytes each: one number, a sequence or an array of numbers, or numbers computed on
  demand (``Lazy``);
- ``Header``: any value in the message's header, whose bytes are not counted, as in the papers;
- ``Opaque``: any other value, with its bytes.

A message takes no time if no content has counted bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np

from fedsim.common.arguments import is_number, is_whole, plain
from fedsim.common.errors import SimulationError, nearest, show_value
from fedsim.common.saved import saved
from fedsim.common.training import Places
from fedsim.learning.refs import Ref
from fedsim.world.steps import Payload

Contents = Mapping[str, Any]
"""Contents of a message by name; records of transferred bytes list them by these names."""

# name of the part of a message that holds a model's frozen tensors, which a device receives with
# its first model
BASE = "base"
# name of the part of a message that holds a trainer's state, which is sent with models and updates
# if ``training.state`` is ``sent``
STATE = "optimiser"
_NUMBER_BYTES = 4.0


@saved()
@dataclass(slots=True)
class Header:
    """Content that travels in a message's header and costs no bytes, such as a count of samples.

    Attributes:
        value: any JSON value, or a model; the receiver gets it as it is.

    Example:
        >>> from fedsim.plugin import Header
        >>> contents = {"samples": Header(120)}
        >>> contents["samples"].value
        120
    """

    value: Any


@saved()
@dataclass(slots=True)
class Opaque:
    """Content of a message with a value that fedsim does not look into; only its size counts.

    Attributes:
        value: any value; the receiver gets it as it is.
        bytes: size of the value in the message (bytes).
    """

    value: Any
    bytes: float


@saved()
@dataclass(frozen=True, slots=True)
class Lazy:
    """Content with numbers that a device computes from models, such as a loss; 4 bytes a number.

    The values are computed when the server reads them by ``ServerModels.numbers``.

    - ``Lazy("loss", result.update)`` reports the loss of the last local epoch.
    - ``Lazy("losses", result.tested, count=m)`` reports the losses of the m models that an
      ``Evaluate`` step has tested.
    - ``Lazy("choice", result.tested)`` reports the index of the best of these models, from 0.

    Attributes:
        what: ``loss``, ``losses``, ``choice``, or ``numbers``, the result of a function of
            models (``Device.numbers``).
        ref: the trained or tested model (``LocalResult``), or the result of the function.
        count: length of the result that is sent.
    """

    what: str
    ref: Ref
    count: int = 1


@saved()
@dataclass(frozen=True, slots=True)
class Partial:
    """Content with some tensors of a model; the receiver has all further tensors already.

    The receiver gets a whole model, made of the sent tensors and of the tensors that it has.

    Attributes:
        model: the model of which some tensors are sent.
        rest: the model of which the receiver has all further tensors, which cost no bytes;
            ``model`` itself if the receiver has these tensors of ``model``.
        places: ranges of the parameters that are sent: pairs (begin, end) of positions in the array
            of all parameters of the model, ascending. Numbers of numpy become plain numbers.
    """

    model: Ref
    rest: Ref
    places: Places

    def __post_init__(self) -> None:
        places = plain(self.places)
        # wrong values are refused when the message is sent, as the error can name the content then
        if isinstance(places, list) and all(map(is_range, places)):
            object.__setattr__(self, "places", tuple(map(tuple, places)))

    @property
    def count(self) -> int:
        """Count of the model's parameters that are sent, which determines the bytes."""
        return sum(end - begin for begin, end in self.places)


class EncodedSizes(Protocol):
    """Interface by which ``payloads`` asks for the sizes of encoded models in a message (bytes).

    ``DirectionCodec``, the codec of one direction, implements it for whole models (``model_bytes``)
    and for parts of models.
    """

    @property
    def model_bytes(self) -> float: ...
    def part_bytes(self, count: int) -> float: ...


_payload = lru_cache(maxsize=256, typed=True)(
    Payload
)  # cached, as most messages have the payloads of earlier messages


def payloads(contents: Contents, sizes: EncodedSizes) -> tuple[Payload, ...]:
    """Return name and bytes of each content of a message that costs bytes (all but ``Header``).

    Args:
        contents: the contents by name.
        sizes: encoded sizes of models.

    Raises:
        SimulationError: a content has a type or a size that cannot be sent.
    """
    parts = []
    for name, value in contents.items():
        if type(value) is not Header:
            parts.append(_payload(name, _bytes(name, value, sizes)))
    return tuple(parts)


def _bytes(name: str, value: Any, sizes: EncodedSizes) -> float:
    """Return the size of a content of a message, or of an item of a list in it (bytes).

    Args:
        name: name of the content, for the error message.
        value: the content.
        sizes: sizes of encoded models and of parts of models.

    Raises:
        SimulationError: the value is of a type that cannot be sent.
    """
    match value:
        case Ref():
            return sizes.model_bytes
        case Partial():
            _check_partial(name, value)
            return sizes.part_bytes(value.count)
        case Opaque():
            if not is_size(value.bytes):
                raise _content_error(
                    name, f"Opaque with bytes={show_value(value.bytes)}", SIZE_IN_WORDS
                )
            return value.bytes
        case Lazy():
            if not _is_count(value.count):
                count = f"Lazy with count={show_value(value.count)}"
                raise _content_error(name, count, "a whole number of 0 or more")
            return value.count * _NUMBER_BYTES
        case int() | float() | np.number():
            return _NUMBER_BYTES
        case np.ndarray() if value.dtype.kind in "biuf":
            return value.size * _NUMBER_BYTES
        case Sequence() if not isinstance(value, str):
            return sum([_bytes(name, item, sizes) for item in value])
    raise _content_error(
        name, type(value).__name__, "refs, Partial, numbers, Opaque and Header", are=True
    )


_MOST_BYTES = 1e18  # readers of a run folder report a larger size as damage
SIZE_IN_WORDS = f"a number from 0 to {_MOST_BYTES:g}"
"""Allowed sizes of a content of a message (bytes), in words."""


def is_size(value: object) -> bool:
    """Return whether a value is an allowed size of a content: a number of bytes from 0 to 1e18."""
    return is_number(value) and 0 <= cast(float, value) <= _MOST_BYTES


def _is_count(value: object) -> bool:
    """Return whether a value is a count of numbers (4 bytes each) that one content may have."""
    # a product of ints, as an int may be too large for a float
    return is_whole(value) and is_size(int(_NUMBER_BYTES) * cast(int, value))


def is_range(value: object) -> bool:
    """Return whether a value is a range of parameters of a model, (begin, end)."""
    if not isinstance(value, tuple | list) or len(value) != 2 or not all(map(is_whole, value)):
        return False
    return bool(0 <= value[0] <= value[1])


def _check_partial(name: str, content: Partial) -> None:
    """Raise ``SimulationError`` if a content ``Partial`` has no models, or wrong ranges."""
    if not isinstance(content.model, Ref) or not isinstance(content.rest, Ref):
        model = content.rest if isinstance(content.model, Ref) else content.model
        raise _content_error(name, f"Partial of {show_value(model)}", "two models (Ref)", are=True)
    places = content.places
    is_list = isinstance(places, list | tuple) and all(map(is_range, places))
    if not is_list or not _is_count(content.count):
        allowed = "a list of ranges (begin, end)"
        raise _content_error(name, f"Partial with places={show_value(places)}", allowed)


def _content_error(name: str, value: str, allowed: str, *, are: bool = False) -> SimulationError:
    verb = "are" if are else "is"
    return SimulationError(
        f"the content {name!r} of a message is a {value}; allowed {verb} {allowed}"
    )


def has_model(contents: Contents) -> bool:
    """Return whether the contents of a message include a model, or some tensors of a model.

    Args:
        contents: name -> model, number or other value that the message carries.
    """
    for value in contents.values():
        items = value if isinstance(value, list | tuple) else (value,)
        for item in items:
            content = item.value if type(item) is Opaque else item
            if isinstance(content, Ref | Partial):
                return True
    return False


def holds_model(value: object) -> bool:
    """Return whether a value that the receiver of a message gets is a model, or contains one.

    Args:
        value: the value; lists, tuples and mappings are searched.
    """
    if isinstance(value, Mapping):
        return any(map(holds_model, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_model, value))
    return isinstance(value, Ref | Partial)


def received(contents: Contents) -> dict[str, Any]:
    """Return the contents of a message as the receiver's code reads them: plain values and models.

    ``Header`` and ``Opaque`` contents are replaced by their values; models remain.
    """
    values: dict[str, Any] = {}
    for name, value in contents.items():
        values[name] = value.value if type(value) in (Header, Opaque) else value
    return values


def missing_content(message: object, contents: Contents, name: object) -> SimulationError:
    """Return the error for a content that a message does not have.

    Args:
        message: the message, such as a ``TaskEnd`` or an ``Instruction``.
        contents: the message's contents by name.
        name: the name that was looked up.
    """
    owner = type(message).__name__
    if not contents:
        outcome = getattr(message, "outcome", "done")
        reason = "" if outcome == "done" else f": its outcome is {outcome!r}"
        return SimulationError(
            f"the {owner} has no content {show_value(name)}, and no other{reason}"
        )
    hint = nearest(str(name), contents)
    return SimulationError(
        f"the {owner} has no content {show_value(name)}{hint}; it has {', '.join(contents)}"
    )
