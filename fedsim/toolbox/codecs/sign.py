"""Signs with error feedback: EF-SignSGD, Algorithm 1.

Source: Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes" (ICML 2019).
"""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.arrays import Floats32
from fedsim.federation.codecs.lossy import Lossy
from fedsim.learning.functions import Function, pure
from fedsim.toolbox.codecs.buckets import count_of, in_buckets, joined


def encode(array: Floats32, bucket: int | None) -> bytes:
    """Each bucket's mean magnitude (4 bytes), and a bit for every number: whether it is below 0."""
    sums = np.abs(in_buckets(array, bucket)).sum(axis=1)
    counts = in_buckets(np.ones(len(array)), bucket).sum(axis=1)
    head: bytes = (sums / counts).astype("<f4").tobytes()
    return head + np.packbits(array < 0).tobytes()


def decode(written: bytes, size: int, bucket: int | None) -> Floats32:
    """The array [size] that ``encode`` has written."""
    head = 4 * count_of(size, bucket)
    signs = 1.0 - 2.0 * np.unpackbits(np.frombuffer(written[head:], np.uint8), count=size)
    scales = np.frombuffer(written[:head], "<f4")
    return joined(in_buckets(signs, bucket) * scales[:, None], size).astype(np.float32)


@pure
def through_the_wire(models: list[Floats32], bucket: int | None) -> Floats32:
    """The array as it arrives."""
    return decode(encode(models[0], bucket), len(models[0]), bucket)


class Sign(Lossy):
    """Of a change p its signs are sent, and ||p||_1 / d, by which they are scaled; 0 counts as above 0.

    Attributes:
        bucket: so many numbers in a row share a scale; None: all, as in Algorithm 1.
    """

    ways: ClassVar[tuple[str, ...]] = ("up",)
    kind: Literal["sign"] = "sign"
    bucket: int | None = Field(default=None, ge=1)
    error_feedback: bool = True

    def bytes(self, parameters: int) -> float:
        return -(-parameters // 8) + 4 * count_of(parameters, self.bucket)

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        return through_the_wire, {"bucket": self.bucket}
