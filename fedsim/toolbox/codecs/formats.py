"""Number formats that are carried out: what arrives is what 16 or 8 bits can say."""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedsim.arrays import Floats32
from fedsim.federation.codecs.lossy import Lossy
from fedsim.learning.functions import Function, pure
from fedsim.toolbox.codecs.buckets import count_of, in_buckets, joined

_MOST = 127


def encode_float16(array: Floats32) -> bytes:
    """Every number in 2 bytes, rounded to the nearest; beyond 65,504 it becomes infinite."""
    with np.errstate(over="ignore"):
        written: bytes = array.astype("<f2").tobytes()
    return written


def decode_float16(written: bytes) -> Floats32:
    """The array that ``encode_float16`` has written."""
    return np.frombuffer(written, "<f2").astype(np.float32)


def encode_bfloat16(array: Floats32) -> bytes:
    """The upper 16 bits of every float32, rounded to the nearest, of equals the even one."""
    bits = array.astype("<f4").view("<u4")
    written: bytes = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return written


def decode_bfloat16(written: bytes) -> Floats32:
    """The array that ``encode_bfloat16`` has written."""
    return (np.frombuffer(written, "<u2").astype("<u4") << 16).view("<f4").astype(np.float32)


def encode_int8(array: Floats32, bucket: int | None) -> bytes:
    """Each bucket's scale, the largest magnitude in it over 127 (4 bytes), and every number over it, rounded to the nearest."""
    values = in_buckets(array, bucket)
    scales = (np.abs(values).max(axis=1, keepdims=True) / _MOST).astype("<f4")
    with np.errstate(divide="ignore", invalid="ignore"):
        levels = np.where(scales > 0, np.rint(values / scales), 0.0)
    written: bytes = scales.tobytes() + joined(levels.clip(-_MOST, _MOST), len(array)).astype(np.int8).tobytes()
    return written


def decode_int8(written: bytes, size: int, bucket: int | None) -> Floats32:
    """The array [size] that ``encode_int8`` has written."""
    levels = in_buckets(np.frombuffer(written[-size:], np.int8), bucket)
    scales = np.frombuffer(written[:-size], "<f4")
    return joined(levels * scales[:, None], size).astype(np.float32)


@pure
def through_float16(models: list[Floats32]) -> Floats32:
    """The array as it arrives."""
    return decode_float16(encode_float16(models[0]))


@pure
def through_bfloat16(models: list[Floats32]) -> Floats32:
    """The array as it arrives."""
    return decode_bfloat16(encode_bfloat16(models[0]))


@pure
def through_int8(models: list[Floats32], bucket: int | None) -> Floats32:
    """The array as it arrives."""
    return decode_int8(encode_int8(models[0], bucket), len(models[0]), bucket)


class Float16(Lossy):
    """Every number as an IEEE half: 11 bits of precision; a magnitude beyond 65,504 becomes infinite, and is then left out."""

    kind: Literal["float16"] = "float16"

    def bytes(self, parameters: int) -> float:
        return 2 * parameters

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        return through_float16, {}


class BFloat16(Lossy):
    """Every number as the upper half of a float32: its range, and 8 bits of precision."""

    kind: Literal["bfloat16"] = "bfloat16"

    def bytes(self, parameters: int) -> float:
        return 2 * parameters

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        return through_bfloat16, {}


class Int8(Lossy):
    """Every number as one of 255 even steps up to the largest magnitude.

    Attributes:
        bucket: so many numbers in a row share a scale; None: all.
    """

    kind: Literal["int8"] = "int8"
    bucket: int | None = Field(default=None, ge=1)

    def bytes(self, parameters: int) -> float:
        return parameters + 4 * count_of(parameters, self.bucket)

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        return through_int8, {"bucket": self.bucket}
