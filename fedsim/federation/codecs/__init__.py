"""Codecs write models and updates on the wire: their bytes, and the values that the receiver gets."""

from typing import Annotated, ClassVar, NamedTuple

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from fedsim.language.registry import Registry
from fedsim.language.spec import Spec
from fedsim.language.units import BytesPerSecond
from fedsim.learning import Learner, Ref

_HERE = "fedsim.federation.codecs"
_TOOLS = "fedsim.toolbox.codecs"
CODECS = Registry(
    "codec",
    f"{_HERE}:Codec",
    {
        "plain": (f"{_HERE}.plain:Plain", "every number, in a format that is counted and not carried out"),
        "float16": (f"{_TOOLS}.formats:Float16", "every number in 16 bits, as an IEEE half"),
        "bfloat16": (f"{_TOOLS}.formats:BFloat16", "every number in 16 bits, with the range of float32"),
        "int8": (f"{_TOOLS}.formats:Int8", "every number in 8 bits, in even steps up to the largest"),
        "qsgd": (f"{_TOOLS}.qsgd:QSGD", "every number rounded at random to levels of the norm, unbiased"),
        "top-k": (f"{_TOOLS}.sparse:TopK", "the largest changes alone, with error feedback"),
        "random-k": (f"{_TOOLS}.sparse:RandomK", "changes at random positions alone"),
        "sign": (f"{_TOOLS}.sign:Sign", "the signs of changes and their mean magnitude, with error feedback"),
    },
    usual="plain",
)


class Coded(NamedTuple):
    """A content after its way through a codec.

    Attributes:
        received: what the receiver gets back.
        kept: what the sender keeps of it for the next time; None for nothing.
    """

    received: Ref
    kept: Ref | None = None


def _above_0(rate: float) -> float:
    if not rate:
        raise PydanticCustomError("quantity", "a device that encodes at 0 B/s never answers; allowed is more", {})
    return rate


class Codec(Spec):
    """The base of every codec of models: a pure rule, whose loss the learning sees and whose bytes the network carries.

    Attributes:
        encode_rate: bytes of float32 that a device encodes (``up``) or decodes (``down``) a second, whatever its speed; None:
            that takes no time. The server takes none.
    """

    ways: ClassVar[tuple[str, ...]] = ("down", "up")
    """Whether it can be used from the server to the devices, or from them to the server."""

    kind: str
    encode_rate: Annotated[BytesPerSecond, AfterValidator(_above_0)] | None = None

    @property
    def sends(self) -> float:
        """Share of the numbers that is sent; the receiver has 0, or no change, for the others."""
        return 1.0

    @property
    def lengthens(self) -> bool:
        """Whether an array may be longer when it arrives than it was, by more than rounding."""
        return False

    def seconds(self, parameters: int) -> float:
        """Time that a device takes to encode or decode so many parameters (s)."""
        return 4 * parameters / self.encode_rate if self.encode_rate else 0.0

    def bytes(self, parameters: int) -> float:
        """Bytes of a model with so many parameters, as it is encoded."""
        raise NotImplementedError

    def part_bytes(self, count: int, parameters: int) -> float:
        """Bytes of ``count`` out of so many parameters, by themselves."""
        return self.bytes(count)

    def code(self, arithmetic: Learner, parameters: int, value: Ref, base: Ref | None, kept: Ref | None) -> Coded:
        """Encode and decode a content.

        Args:
            arithmetic: to compute with.
            parameters: d.
            value: what is sent.
            base: a model that sender and receiver both have: for an update that from which it was trained; else None.
            kept: what the sender has kept of the last content of this name.
        """
        raise NotImplementedError


CodecSpec = Annotated[Codec, CODECS]
