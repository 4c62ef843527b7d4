"""QSGD (Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding", NeurIPS 2017)."""

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedsim.arrays import Floats32
from fedsim.federation.codecs.lossy import Lossy
from fedsim.learning.functions import Function, pure
from fedsim.toolbox.codecs.buckets import count_of, in_buckets, joined, pack, unpack


def bits_of(levels: int) -> int:
    """Bits that tell the 2 s + 1 values of a number apart."""
    return (2 * levels).bit_length()


def encode(array: Floats32, levels: int, bucket: int | None, rng: np.random.Generator) -> bytes:
    """Each bucket's norm (4 bytes), and every number's sign and level: |v_i| s / ||v||, rounded up or down at random."""
    values = in_buckets(array, bucket)
    exact = np.linalg.norm(values, axis=1)
    norms = exact.astype("<f4")
    norms = np.where(norms < exact, np.nextafter(norms, np.float32(np.inf)), norms)  # so that no level is above s
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(norms[:, None] > 0, np.abs(values) * levels / norms[:, None], 0.0)
    level = np.floor(scaled)
    level += rng.random(level.shape) < scaled - level
    head: bytes = norms.tobytes()
    return head + pack(joined(np.sign(values) * level, len(array)) + levels, bits_of(levels))


def decode(written: bytes, size: int, levels: int, bucket: int | None) -> Floats32:
    """The array [size] that ``encode`` has written."""
    head = 4 * count_of(size, bucket)
    level = in_buckets(unpack(written[head:], size, bits_of(levels)) - levels, bucket)
    norms = np.frombuffer(written[:head], "<f4").astype(np.float64)
    return joined(level * (norms[:, None] / levels), size).astype(np.float32)


@pure
def through_the_wire(
    models: list[Floats32], levels: int, bucket: int | None, scale: float, rng: np.random.Generator
) -> Floats32:
    """The array as it arrives, scaled by its receiver."""
    return decode(encode(models[0], levels, bucket, rng), len(models[0]), levels, bucket) * np.float32(scale)


class QSGD(Lossy):
    """Every number as one of s levels of the norm and a sign, drawn so that the mean over all draws is what was meant.

    The variance is at most min(n / s^2, sqrt(n) / s) ||v||^2 over buckets of n numbers (Lemma 3.1). A number takes
    ceil(log2(2 s + 1)) bits: the paper's Elias code has a length that depends on the values, this one's is known beforehand.
    With error feedback the receiver divides by 1 + omega, that factor of the variance: then what is not sent is shorter than
    what was meant, and does not grow from round to round (Beznosikov et al., "On biased compression for distributed learning",
    2020).

    Attributes:
        levels: s.
        bucket: so many numbers in a row share a norm (section 4); None: all.
    """

    kind: Literal["qsgd"] = "qsgd"
    levels: int = Field(default=127, ge=1, le=32_767)
    bucket: int | None = Field(default=None, ge=1)

    @property
    def draws(self) -> bool:
        return True

    def bytes(self, parameters: int) -> float:
        return -(-parameters * bits_of(self.levels) // 8) + 4 * count_of(parameters, self.bucket)

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        size = min(self.bucket or parameters, parameters)
        omega = min(size / self.levels**2, math.sqrt(size) / self.levels)
        scale = 1.0 / (1.0 + omega) if self.error_feedback else 1.0
        return through_the_wire, {"levels": self.levels, "bucket": self.bucket, "scale": scale}
