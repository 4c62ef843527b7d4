"""Every number, in a format that counts for the bytes alone: the learning stays in float32."""

from typing import Literal

from pydantic import model_validator

from fedsim.federation.codecs import Codec, Coded
from fedsim.language.units import Bytes
from fedsim.learning import Learner, Ref

_BYTES_PER_PARAMETER = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


class Plain(Codec):
    """Values arrive as they are; their size is that of a number format, or is given.

    Attributes:
        dtype: number format, one of float64, float32 (the default), float16, bfloat16, int8.
        size: the size itself, for compressed messages.
    """

    kind: Literal["plain"] = "plain"
    dtype: str = "float32"
    size: Bytes | None = None

    @model_validator(mode="after")
    def _known(self) -> "Plain":
        if self.dtype not in _BYTES_PER_PARAMETER:
            raise ValueError(f"'dtype' is {self.dtype!r}; allowed are {', '.join(_BYTES_PER_PARAMETER)}")
        return self

    def bytes(self, parameters: int) -> float:
        return parameters * _BYTES_PER_PARAMETER[self.dtype] if self.size is None else self.size

    def part_bytes(self, count: int, parameters: int) -> float:
        return self.bytes(count) if self.size is None else self.size * count / parameters

    def code(self, arithmetic: Learner, parameters: int, value: Ref, base: Ref | None, kept: Ref | None) -> Coded:
        return Coded(value)
