"""Every number in fewer bits: half floats, 8-bit integers, QSGD, signs. What arrives is what these bits can say."""

import math
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.arrays import Floats, Floats32
from fedsim.learning.functions import Function, pure
from fedsim.toolbox.codecs.lossy import Lossy


def _buckets(size: int, bucket: int | None) -> int:
    """Number of buckets, each with a scale of its own, that ``size`` numbers fill."""
    return -(-size // (bucket or max(size, 1)))


def _rows(array: NDArray[Any], bucket: int | None) -> Floats:
    """The array as rows of ``bucket`` numbers (None: one row), the last one filled with 0; float64 [buckets, bucket]."""
    rows = np.zeros((_buckets(len(array), bucket), max(1, min(bucket or len(array), len(array)))))
    rows.reshape(-1)[: len(array)] = array
    return rows


def _array(rows: Floats, size: int) -> Floats32:
    """The array [size] of which ``_rows`` has made rows; no number is -0."""
    return (rows.reshape(-1)[:size] + 0.0).astype(np.float32)


@pure
def as_float16(models: list[Floats32]) -> Floats32:
    """Every number rounded to the nearest half; beyond 65,504 it becomes infinite."""
    with np.errstate(over="ignore"):
        return models[0].astype(np.float16).astype(np.float32)


@pure
def as_bfloat16(models: list[Floats32]) -> Floats32:
    """The upper 16 bits of every float32, rounded to the nearest, of equals the even one."""
    bits = models[0].astype(np.float32).view(np.uint32)
    upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return (upper << np.uint32(16)).view(np.float32)


@pure
def as_int8(models: list[Floats32], bucket: int | None) -> Floats32:
    """Every number as a whole multiple, up to 127, of its bucket's largest magnitude over 127."""
    values = _rows(models[0], bucket)
    scales = (np.abs(values).max(axis=1, keepdims=True) / 127).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        levels = np.where(scales > 0, np.rint(values / scales), 0.0).clip(-127, 127)
    return _array(levels * scales, len(models[0]))


@pure
def as_levels(models: list[Floats32], levels: int, bucket: int | None, scale: float, rng: np.random.Generator) -> Floats32:
    """Every number's sign and level |v_i| s / ||v|| in its bucket, rounded up or down at random, times ``scale``."""
    values = _rows(models[0], bucket)
    exact = np.linalg.norm(values, axis=1)
    norms = exact.astype(np.float32)
    norms = np.where(norms < exact, np.nextafter(norms, np.float32(np.inf)), norms)[:, None]  # so that no level is above s
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(norms > 0, np.abs(values) * levels / norms, 0.0)
    level = np.floor(scaled)
    level += rng.random(level.shape) < scaled - level
    return _array(np.sign(values) * level * (norms.astype(np.float64) / levels), len(models[0])) * np.float32(scale)


@pure
def as_signs(models: list[Floats32], bucket: int | None) -> Floats32:
    """Every number's sign, and its bucket's mean magnitude."""
    array = models[0]
    counts = _rows(np.ones(len(array)), bucket).sum(axis=1, keepdims=True)
    scales = (np.abs(_rows(array, bucket)).sum(axis=1, keepdims=True) / counts).astype(np.float32)
    return _array(_rows(np.where(array < 0, -1.0, 1.0), bucket) * scales, len(array))


class Float16(Lossy):
    """Every number as an IEEE half: 11 bits of precision; a magnitude beyond 65,504 becomes infinite, and is then left out."""

    kind: Literal["float16"] = "float16"

    def bytes(self, parameters: int) -> float:
        return 2 * parameters

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        return as_float16, {}


class BFloat16(Lossy):
    """Every number as the upper half of a float32: its range, and 8 bits of precision."""

    kind: Literal["bfloat16"] = "bfloat16"

    def bytes(self, parameters: int) -> float:
        return 2 * parameters

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        return as_bfloat16, {}


class Int8(Lossy):
    """Every number as one of 255 even steps up to the largest magnitude.

    Attributes:
        bucket: so many numbers in a row share a scale; None: all.
    """

    kind: Literal["int8"] = "int8"
    bucket: int | None = Field(default=None, ge=1)

    def bytes(self, parameters: int) -> float:
        return parameters + 4 * _buckets(parameters, self.bucket)

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        return as_int8, {"bucket": self.bucket}


class QSGD(Lossy):
    """Every number as one of s levels of the norm and a sign, drawn so that the mean over all draws is what was meant.

    Source: Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding" (NeurIPS 2017).

    The variance is at most min(n / s^2, sqrt(n) / s) ||v||^2 over buckets of n numbers (Lemma 3.1). A number takes
    ceil(log2(2 s + 1)) bits: the paper's Elias code has a length that depends on the values, this one's is known beforehand.
    With error feedback the receiver divides by 1 + omega, that factor of the variance: then what is not sent is shorter than
    what was meant, and does not grow from round to round (Beznosikov et al., "On biased compression for distributed learning",
    2020).

    Attributes:
        levels: s.
        bucket: so many numbers in a row share a norm (section 4); None: all.
    """

    draws: ClassVar[bool] = True
    kind: Literal["qsgd"] = "qsgd"
    levels: int = Field(default=127, ge=1, le=32_767)
    bucket: int | None = Field(default=None, ge=1)

    def bytes(self, parameters: int) -> float:
        bits = (2 * self.levels).bit_length()
        return -(-parameters * bits // 8) + 4 * _buckets(parameters, self.bucket)

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        size = min(self.bucket or parameters, parameters)
        omega = min(size / self.levels**2, math.sqrt(size) / self.levels)
        scale = 1.0 / (1.0 + omega) if self.error_feedback else 1.0
        return as_levels, {"levels": self.levels, "bucket": self.bucket, "scale": scale}


class Sign(Lossy):
    """Of a change p its signs are sent, and ||p||_1 / d, by which they are scaled; 0 counts as above 0.

    Source: EF-SignSGD, Algorithm 1 of Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes"
    (ICML 2019).

    Attributes:
        bucket: so many numbers in a row share a scale; None: all, as in Algorithm 1.
    """

    ways: ClassVar[tuple[str, ...]] = ("up",)
    kind: Literal["sign"] = "sign"
    bucket: int | None = Field(default=None, ge=1)
    error_feedback: bool = True

    def bytes(self, parameters: int) -> float:
        return -(-parameters // 8) + 4 * _buckets(parameters, self.bucket)

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        return as_signs, {"bucket": self.bucket}
