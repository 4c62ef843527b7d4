"""Codecs of models and updates, which ``[messages]`` names.

A codec determines the bytes of a message and the values that the receiver decodes.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import show_value
from fedsim.common.former_names import warn_renamed
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.returns import find_outside, returns
from fedsim.common.spec import Spec
from fedsim.common.units import Bytes, LinkRate
from fedsim.learning import Ref
from fedsim.learning.functions import Function

Packed = bytes
"""Alias of the type ``bytes`` for a packed model; within ``Codec``, ``bytes`` is a method."""

_HERE = "fedsim.federation.codecs"
_TOOLS = "fedsim.toolbox.codecs"
CODECS = Registry(
    "codec",
    f"{_HERE}:Codec",
    {
        "plain": (
            f"{_HERE}:Plain",
            "every number, in a format that is counted and not carried out",
        ),
        "float16": (f"{_TOOLS}:Float16", "every number in 16 bits, as an IEEE half"),
        "bfloat16": (f"{_TOOLS}:BFloat16", "every number in 16 bits, with the range of float32"),
        "int8": (f"{_TOOLS}:Int8", "every number in 8 bits, in even steps up to the largest"),
        "qsgd": (
            f"{_TOOLS}:QSGD",
            "every number rounded at random to levels of the norm, unbiased",
        ),
        "top-k": (f"{_TOOLS}:TopK", "the largest changes alone, with error feedback"),
        "random-k": (f"{_TOOLS}:RandomK", "changes at random positions alone"),
        "sign": (
            f"{_TOOLS}:Sign",
            "the signs of changes and their mean magnitude, with error feedback",
        ),
    },
    usual="plain",
    key="messages",
)
_SIZE = "a finite size, 0 or more (bytes)", find_outside(least=0.0)
_BYTES_OF = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


class Arithmetic(Protocol):
    """Interface of deferred arithmetic with models, for codecs and attacks.

    Each call returns the name (``Ref``) of a model immediately. The weights of the model are
    computed when they are needed.
    """

    def mix(
        self,
        parts: Sequence[tuple[Ref, float]],
        otherwise: Ref | None = None,
        *,
        rescale: bool = True,
    ) -> Ref:
        """Return the sum of models, each times its coefficient; see ``ServerModels.mix``.

        Args:
            parts: pairs of a model and its coefficient.
            otherwise: the result if no model is finite, or if the coefficients cannot be rescaled.
                By default the result is NaN in these cases.
            rescale: whether the coefficients of the finite models are multiplied by a common
                factor, so that their sum is the sum of all coefficients.
        """

    def apply(
        self,
        function: Function,
        models: Sequence[Ref],
        *,
        stream: tuple[object, ...] | None = None,
        otherwise: Ref | None = None,
        leave_out: bool = False,
        size: int | None = None,
        **constants: object,
    ) -> Ref:
        """Return the result of a pure function of models; see ``ServerModels.apply``.

        Args:
            function: a function that the decorator ``pure`` marks as free of side effects.
            models: the models that the function receives, in this order.
            stream: full name of the random stream from which the function draws by its argument
                ``rng``; None if it draws no random numbers.
            otherwise: the result if a model is not finite; None: the result is not finite.
            leave_out: whether the function receives only the finite models; ``otherwise`` is then
                the result if there are none.
            size: length of the result; None for a model. If a size is given, the function receives
                all models, finite or not.
            constants: the function's keyword arguments, JSON-able.
        """


class Coded(NamedTuple):
    """Result of a codec for one model in a message: what is received, and what was left out.

    Attributes:
        received: the model as the receiver decodes it.
        residual: a model, such as the values left out, that the sender stores and adds to what it
            sends next under the same name (error feedback); None for no residual.
    """

    received: Ref
    residual: Ref | None = None

    @property
    def kept(self) -> Ref | None:
        """Former name of ``residual``."""
        warn_renamed("Coded.kept", "residual")
        return self.residual


class CodedParts(NamedTuple):
    """Arrays of a model before encoding and after decoding, from which a real message is written.

    ``Codec.encode`` returns them, and ``Codec.pack`` writes the message, in a deployment on real
    machines. A simulation writes no messages.

    Attributes:
        exact: the array before encoding [d]: the model, or its change if the codec encodes changes.
        sent: the array [d] that the receiver decodes from the message.
        start: model to which the receiver adds ``sent``; None if ``sent`` is the whole model.
    """

    exact: Ref
    sent: Ref
    start: Ref | None = None


def _find_wrong_code(value: Coded, *_: object, **__: object) -> str:
    is_right = isinstance(value.received, Ref) and isinstance(value.residual, Ref | None)
    return "" if is_right else show_value(value)


class Codec(Spec):
    """Base of every codec: a rule that compresses models for transmission, and decodes them.

    The simulated network carries the encoded bytes. Learning continues with the decoded model,
    losses included. ``ways`` lists the directions in which a codec may be used.

    Attributes:
        encode_rate: bytes of float32 that any device encodes (``up``) or decodes (``down``) in a
            second; None: coding takes no time. The server's part never takes time.

    Example:
        A codec of two bytes a parameter, in ``mine.py``:

        >>> import numpy as np
        >>> from fedsim.plugin import Codec, Coded, pure
        >>> @pure
        ... def halved(models):
        ...     return models[0].astype(np.float16).astype(np.float32)
        >>> class Half(Codec):
        ...     ways = ("up",)
        ...     def bytes(self, parameters):
        ...         return 2 * parameters
        ...     def code(self, arithmetic, parameters, value, base, residual):
        ...         return Coded(arithmetic.apply(halved, [value]))

        >>> import fedsim
        >>> result = fedsim.run(
        ...     fedsim.Scenario(
        ...         learning="off",
        ...         population={"devices": 1},
        ...         messages={"up": "mine:Half"},
        ...         strategy={"kind": "fedavg", "clients_per_round": 1},
        ...         stop={"rounds": 1},
        ...     )
        ... )
        >>> result.summary["bytes"]["down"], result.summary["bytes"]["up"]
        (2600.0, 1300.0)
    """

    former_hooks: ClassVar[Mapping[str, str]] = {
        "keeps_rest": "stores_residual",
        "of_sums": "for_added_up",
        "sends": "sent_share",
        "split": "encode",
    }
    """Former names of hooks, which are refused: former name -> present name."""

    ways: ClassVar[tuple[str, ...]] = ("down", "up")
    """Allowed directions: ``down`` to the devices, ``up`` to the server."""

    kind: str
    encode_rate: LinkRate | None = None

    @property
    @returns("a number above 0, 1 at most", find_outside(above=0.0, most=1.0))
    def sent_share(self) -> float:
        """Share of a model's parameters that are sent, above 0 and at most 1.

        The receiver has 0, or no change, for the parameters that are not sent.
        """
        return 1.0

    @property
    def stores_residual(self) -> bool:
        """Whether a device stores what was lost in encoding, and adds it to its next message.

        By default this is the key ``error_feedback``, or False without such a key. Allowed only for
        the direction ``up``.
        """
        return bool(getattr(self, "error_feedback", False))

    @property
    def is_lossless(self) -> bool:
        """Whether each model arrives unchanged. No decoded model is then computed."""
        return False

    @property
    def lengthens(self) -> bool:
        """Whether the decoded array may have a larger Euclidean norm than the original.

        An aggregation that clips updates on the devices refuses such a codec. Differences by
        rounding do not count.
        """
        return False

    @property
    def for_added_up(self) -> "Codec":
        """Variant of this codec for contents that device and server each add up over rounds.

        ``Traits.accumulated_contents`` names such contents, for example the update in FedDyn.
        Without correction, the encoding errors of all rounds would add up too. The variant
        therefore encodes in the way of a codec with error feedback. Yet the device stores no
        residual, because what encoding leaves out of a content is part of the device's next
        content anyway. By default the variant is this codec itself.
        """
        return self

    @returns("a finite time, 0 or more (s)", find_outside(least=0.0))
    def seconds(self, parameters: int) -> float:
        """Return the time that a device takes to encode or decode a model (s), by ``encode_rate``.

        Args:
            parameters: number of parameters.
        """
        return 4 * parameters / self.encode_rate if self.encode_rate else 0.0

    @returns(*_SIZE)
    def bytes(self, parameters: int) -> float:
        """Return the size of an encoded model (bytes).

        Args:
            parameters: number of parameters.
        """
        raise NotImplementedError

    @returns(*_SIZE)
    def part_bytes(self, count: int, parameters: int) -> float:
        """Return the encoded size of a part of a model, such as some of its tensors (bytes).

        Args:
            count: count of parameters in the part.
            parameters: count of parameters of the whole model.
        """
        return self.bytes(count)

    @returns("a Coded of a Ref, and of a Ref or None", _find_wrong_code)
    def code(
        self,
        arithmetic: Arithmetic,
        parameters: int,
        value: Ref,
        base: Ref | None,
        residual: Ref | None,
    ) -> Coded:
        """Encode and decode a model; the result is a reference that is computed when it is needed.

        If the message is cut off on its way, the sender's residual remains as it was.

        Args:
            arithmetic: deferred ``mix`` and ``apply``, as in ``Server.models``.
            parameters: count of parameters, d; with a part of a model, count of its parameters.
            value: the model that is sent.
            base: the model from which ``value`` was trained, known to both sides; None if there is
                no such model.
            residual: ``Coded.residual`` of the sender's last content of this name that arrived;
                None before the first.

        Returns:
            The decoded model, and the new residual.
        """
        raise NotImplementedError

    # payloads of a deployment; a simulation never packs a model

    @property
    def packs(self) -> bool:
        """Whether the codec can write real payloads, as a deployment on real machines needs."""
        return type(self).pack is not Codec.pack

    def encode(
        self,
        arithmetic: Arithmetic,
        parameters: int,
        value: Ref,
        base: Ref | None,
        residual: Ref | None,
    ) -> CodedParts:
        """Return the arrays from which ``pack`` writes the payload of a model.

        Called in a deployment on real machines, in place of ``code``. By default ``sent`` of the
        result is the whole decoded model that ``code`` returns, and ``start`` is None.

        Args:
            arithmetic: arithmetic with models on the side that encodes.
            parameters: count of parameters of the model.
            value: the model to encode.
            base: the model from which ``value`` was trained, known to both sides; None if there is
                no such model.
            residual: the residual that the sender has stored; None if there is none.
        """
        coded = self.code(arithmetic, parameters, value, base, residual)
        return CodedParts(exact=value, sent=coded.received)

    def pack(self, sent: NDArray[np.float32], exact: NDArray[np.float32]) -> Packed:
        """Return the payload that the receiver decodes to a given array; it has ``bytes(d)`` bytes.

        Args:
            sent: the array that the receiver decodes, float32 [d].
            exact: the array before encoding, float32 [d]. Some codecs write norms of it, which
                cannot be computed from ``sent``.

        Returns:
            The payload, from which ``unpack`` returns ``sent`` to the bit.
        """
        raise NotImplementedError

    def unpack(self, payload: Packed, parameters: int) -> NDArray[np.float32]:
        """Decode a payload that ``pack`` has returned.

        Args:
            payload: the payload.
            parameters: d, the length of the array.

        Returns:
            The decoded array, float32 [d].
        """
        raise NotImplementedError


CodecSpec = Annotated[Codec, KindField(CODECS)]


class Plain(Codec):
    """Values arrive unchanged, in float32; only their size follows ``dtype`` or ``size``.

    Attributes:
        dtype: number format that determines the bytes of a parameter in a message.
        size: size of a whole model in a message (bytes), for compressed messages; None: the size
            in the format ``dtype``.
    """

    kind: Literal["plain"] = "plain"
    dtype: Literal["float64", "float32", "float16", "bfloat16", "int8"] = "float32"
    size: Bytes | None = None

    @property
    def is_lossless(self) -> bool:
        return True

    def bytes(self, parameters: int) -> float:
        return parameters * _BYTES_OF[self.dtype] if self.size is None else self.size

    def part_bytes(self, count: int, parameters: int) -> float:
        return self.bytes(count) if self.size is None else self.size * count / parameters

    def code(
        self,
        arithmetic: Arithmetic,
        parameters: int,
        value: Ref,
        base: Ref | None,
        residual: Ref | None,
    ) -> Coded:
        return Coded(value)

    @property
    def packs(self) -> bool:
        return self.size is None and self.dtype in ("float32", "float64")

    def pack(self, sent: NDArray[np.float32], exact: NDArray[np.float32]) -> Packed:
        return sent.astype(f"<f{_BYTES_OF[self.dtype]}").tobytes()

    def unpack(self, payload: Packed, parameters: int) -> NDArray[np.float32]:
        return np.frombuffer(payload, f"<f{_BYTES_OF[self.dtype]}").astype(np.float32)
