"""Lossy codecs of messages: they send a model, or its change, with fewer bits or fewer entries."""

import math
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.arrays import AnyArray, Floats, Floats32, Ints
from fedsim.federation.codecs import Arithmetic, Codec, Coded, CodedParts, Packed
from fedsim.learning import Ref
from fedsim.learning.functions import Function, pure


@pure
def added(models: list[Floats32]) -> NDArray[np.floating]:
    """Return the sum of two arrays, [d].

    Args:
        models: list of exactly two arrays, float32 [d] each.
    """
    return models[0] + models[1]


class Lossy(Codec):
    """Base of the lossy codecs, whose decoded array is a pure function of the original array.

    With ``error_feedback`` a device stores the residual, the part of a change that was not sent. It
    adds the residual to its next change, and stores the new residual (Stich, Cordonnier and Jaggi,
    "Sparsified SGD with memory", NeurIPS 2018; Karimireddy et al., "Error feedback fixes SignSGD",
    ICML 2019, Algorithm 2). An upload that fails does not change the residual.

    Attributes:
        encodes: the array that is encoded in an upload: ``change``, the update minus the model from
            which it was trained; or ``model``, the update itself. Downloads always encode the
            model itself.
        error_feedback: whether devices store the residual of uploaded changes for the next upload
            (d numbers for each device ever selected).
    """

    is_random: ClassVar[bool] = False
    """Whether ``function`` draws random numbers."""
    function: ClassVar[Function]
    """Pure function that encodes and decodes an array, given as a list of length 1.

    Its keyword arguments are ``constants``, and ``rng`` if ``is_random`` is true.
    """

    encodes: Literal["change", "model"] = "change"
    error_feedback: bool = False

    @model_validator(mode="after")
    def _check_error_feedback(self) -> Self:
        if self.error_feedback and self.encodes == "model":
            raise ValueError(
                "'error_feedback' is true and 'encodes' is 'model'; what was not sent is added "
                "to a 'change' alone"
            )
        return self

    def constants(self, parameters: int) -> dict[str, Any]:
        """Return the keyword arguments for ``function``, the codec's function on arrays.

        ``function`` encodes and decodes an array. By default it has no keyword arguments.

        Args:
            parameters: length of the array.
        """
        return {}

    @property
    def lengthens(self) -> bool:
        # error feedback adds the errors of earlier contents; unbiased random rounding adds variance
        return self.error_feedback or self.is_random

    @property
    def for_added_up(self) -> Codec:
        """Copy of this codec with error feedback, for contents that the receiver adds up.

        Such a content of a message is a change, which the server adds to a sum over all rounds. The
        strategy names the content in ``Traits.accumulated_contents``. Without error feedback the
        sum would also have the encoding errors of all rounds.
        """
        return self.model_copy(update={"error_feedback": True})

    def code(
        self,
        arithmetic: Arithmetic,
        parameters: int,
        value: Ref,
        base: Ref | None,
        residual: Ref | None,
    ) -> Coded:
        """Encode and decode the model ``value``; compute what the receiver gets, and the residual.

        The new residual, the encoding's error, is added to the next array that the sender encodes.
        """
        # ``exact`` is encoded; the receiver decodes ``sent``, and adds it to ``start`` if not None
        exact, sent, start = self.encode(arithmetic, parameters, value, base, residual)
        if sent is exact:  # nothing is lost
            return Coded(sent)
        new_residual = None
        if self.error_feedback:
            # if the training diverged, the last residual is kept, so that later changes are finite
            zero = arithmetic.mix([(value if start is None else start, 0.0)])
            otherwise = zero if residual is None else residual
            new_residual = arithmetic.mix([(exact, 1.0), (sent, -1.0)], otherwise=otherwise)
        received = sent
        if start is not None:
            received = arithmetic.apply(added, [start, sent])
        return Coded(received, new_residual)

    def encode(
        self,
        arithmetic: Arithmetic,
        parameters: int,
        value: Ref,
        base: Ref | None,
        residual: Ref | None,
    ) -> CodedParts:
        """Encode the model ``value``, or its change from ``base``, after adding ``residual``.

        Returns:
            The value before it is encoded, the value that is decoded, and ``base`` if a change is
            encoded, else None.
        """
        start = base if self.encodes == "change" else None
        exact = value
        if start is not None:
            exact = arithmetic.mix([(value, 1.0), (start, -1.0)])
        if residual is not None:
            exact = arithmetic.apply(added, [exact, residual])
        # the model's serial names the stream, so that all receivers of a model get the same result
        stream = ("messages/codec", value.serial) if self.is_random else None
        constants = self.constants(parameters)
        sent = arithmetic.apply(type(self).function, [exact], stream=stream, **constants)
        return CodedParts(exact, sent, start)


def _count_buckets(size: int, bucket: int | None) -> int:
    """Return how many buckets of ``bucket`` values an array of ``size`` values fills.

    With ``bucket`` None all values are in one bucket.
    """
    if bucket is None:
        bucket = max(size, 1)
    return -(-size // bucket)


def _split_buckets(array: AnyArray, bucket: int | None) -> Floats:
    """Split an array into rows of ``bucket`` values, padded with 0; float64 [buckets, bucket]."""
    size = len(array)
    width = size if bucket is None else min(bucket, size)
    rows = np.zeros((_count_buckets(size, bucket), max(1, width)))
    rows.reshape(-1)[:size] = array
    return rows


def _join_buckets(rows: Floats, size: int) -> Floats32:
    """Join the rows of ``_split_buckets`` to an array [size]; drops the padding, turns -0 into 0."""
    return (rows.reshape(-1)[:size] + 0.0).astype(np.float32)


@pure
def as_float16(models: list[Floats32]) -> Floats32:
    """Round every value of an array to the nearest float16, as float32 [d].

    A magnitude beyond 65,504 becomes infinite.

    Args:
        models: list of exactly one array, float32 [d].
    """
    with np.errstate(over="ignore"):
        return models[0].astype(np.float16).astype(np.float32)


@pure
def as_bfloat16(models: list[Floats32]) -> Floats32:
    """Round every value of an array to the nearest bfloat16, as float32 [d]; ties to even.

    A bfloat16 has the upper 16 bits of a float32.

    Args:
        models: list of exactly one array, float32 [d].
    """
    bits = models[0].astype(np.float32).view(np.uint32)
    lowest_kept_bit = (bits >> np.uint32(16)) & np.uint32(1)
    # half of the lowest kept bit, less 1 if that bit is 0, rounds to nearest with ties to even
    upper = (bits + np.uint32(0x7FFF) + lowest_kept_bit) >> np.uint32(16)
    return (upper << np.uint32(16)).view(np.float32)


def _int8_scales(values: Floats) -> Floats32:
    """Return the step between int8 levels of each bucket, float32 [buckets, 1].

    Args:
        values: the values of the buckets, [buckets, width].
    """
    largest: Floats = np.abs(values).max(axis=1, keepdims=True)
    return (largest / 127).astype(np.float32)


def _norms(values: Floats) -> Floats32:
    """Return the L2 norm of each bucket, rounded up to a float32; float32 [buckets, 1].

    As norms are rounded up, no value of ``as_levels`` gets a level above its largest level.

    Args:
        values: the values of the buckets, [buckets, width].
    """
    exact = np.linalg.norm(values, axis=1)
    norms: Floats32 = exact.astype(np.float32)
    rounded: Floats32 = np.where(norms < exact, np.nextafter(norms, np.float32(np.inf)), norms)
    return rounded[:, None]


def _levels_of(decoded: Floats, unit: AnyArray) -> Ints:
    """Divide decoded values by the unit of their bucket, and return the integer quotients.

    Args:
        decoded: the decoded values of the buckets, [buckets, width].
        unit: difference between adjacent levels in each bucket, [buckets, 1].

    Returns:
        The levels, int64 [buckets, width]; 0 where the unit is 0 or the quotient is not finite.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        levels = np.rint(decoded / unit)
    return np.where(np.isfinite(levels), levels, 0.0).astype(np.int64)


@pure
def as_int8(models: list[Floats32], bucket: int | None) -> Floats32:
    """Round every value to one of 255 even levels, as int8 does (encode and decode).

    The step between levels is 1/127 of the largest magnitude in the value's bucket, a run of
    consecutive values.

    Args:
        models: list of exactly one array, float32 [d].
        bucket: count of values in a bucket; None: all values are one bucket.

    Returns:
        The rounded values, [d].
    """
    values = _split_buckets(models[0], bucket)
    scales = _int8_scales(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        levels = np.where(scales > 0, np.rint(values / scales), 0.0).clip(-127, 127)
    return _join_buckets(levels * scales, len(models[0]))


@pure
def as_levels(
    models: list[Floats32], levels: int, bucket: int | None, scale: float, rng: np.random.Generator
) -> Floats32:
    """Round every value at random to a level of its bucket's norm (QSGD; encode and decode).

    The array is divided into buckets, runs of consecutive values. In a bucket v the level of a
    value v_i is |v_i| s / ||v||, rounded up or down at random, so that its expectation is exact.

    Args:
        models: list of exactly one array, float32 [d].
        levels: s, the count of levels above 0.
        bucket: count of values in a bucket; None: all values are one bucket.
        scale: factor of the result.
        rng: source of the random rounding.

    Returns:
        The decoded values sign(v_i) (level / s) ||v||, times ``scale``, [d].
    """
    values = _split_buckets(models[0], bucket)
    norms = _norms(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(norms > 0, np.abs(values) * levels / norms, 0.0)
    level = np.floor(scaled)
    fraction = scaled - level  # the probability of rounding up
    level += rng.random(level.shape) < fraction
    rounded = np.sign(values) * level * (norms.astype(np.float64) / levels)
    return _join_buckets(rounded, len(models[0])) * np.float32(scale)


@pure
def as_signs(models: list[Floats32], bucket: int | None) -> Floats32:
    """Replace every value by its sign times the mean magnitude of its bucket (encode and decode).

    Args:
        models: list of exactly one array, float32 [d].
        bucket: count of consecutive values in a bucket; None: all values are one bucket.

    Returns:
        The decoded values, [d]; the sign of 0 is positive.
    """
    array = models[0]
    counts = _split_buckets(np.ones(len(array)), bucket).sum(axis=1, keepdims=True)  # no padding
    totals = np.abs(_split_buckets(array, bucket)).sum(axis=1, keepdims=True)
    scales = (totals / counts).astype(np.float32)  # mean magnitudes, [buckets, 1]
    signs = _split_buckets(np.where(array < 0, -1.0, 1.0), bucket)
    return _join_buckets(signs * scales, len(array))


class Halved(Lossy):
    """Base of the codecs that send every value in two bytes, half the size of a float32."""

    def bytes(self, parameters: int) -> float:
        return 2 * parameters


class Float16(Halved):
    """Every value is sent as an IEEE half (float16), with 11 bits of precision.

    A magnitude above 65,504 becomes infinite, and the aggregation leaves out such an update.
    """

    kind: Literal["float16"] = "float16"
    function: ClassVar[Function] = as_float16

    def pack(self, sent: Floats32, exact: Floats32) -> Packed:
        with np.errstate(over="ignore"):
            return sent.astype("<f2").tobytes()

    def unpack(self, payload: Packed, parameters: int) -> Floats32:
        return np.frombuffer(payload, "<f2").astype(np.float32)


class BFloat16(Halved):
    """Every value is sent as a bfloat16, with the range of float32 and 8 bits of precision."""

    kind: Literal["bfloat16"] = "bfloat16"
    function: ClassVar[Function] = as_bfloat16

    def pack(self, sent: Floats32, exact: Floats32) -> Packed:
        return (sent.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()

    def unpack(self, payload: Packed, parameters: int) -> Floats32:
        return (np.frombuffer(payload, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


class Bucketed(Lossy):
    """Base of the codecs that scale each run of ``bucket`` values by one factor of 4 bytes.

    Attributes:
        bucket: count of consecutive values that share a scale; None: one scale for all values.
    """

    bucket: int | None = Field(default=None, ge=1)

    def constants(self, parameters: int) -> dict[str, Any]:
        return {"bucket": self.bucket}

    def _read_scales(self, payload: Packed, parameters: int) -> tuple[Floats32, Packed]:
        """Read the scales of the buckets from the bytes of an encoded array.

        Args:
            payload: the bytes, as ``pack`` returns them.
            parameters: length of the array.

        Returns:
            The scales, float32 [buckets, 1], and the bytes after them.
        """
        size = 4 * _count_buckets(parameters, self.bucket)
        scales = np.frombuffer(payload[:size], "<f4").astype(np.float32)
        return scales[:, None], payload[size:]


class Int8(Bucketed):
    """Every value is sent as an int8, one of 255 even levels.

    The levels go from minus to plus the largest magnitude of the values that share a scale.
    """

    kind: Literal["int8"] = "int8"
    function: ClassVar[Function] = as_int8

    def bytes(self, parameters: int) -> float:
        return parameters + 4 * _count_buckets(parameters, self.bucket)

    def pack(self, sent: Floats32, exact: Floats32) -> Packed:
        scales = _int8_scales(_split_buckets(exact, self.bucket))
        levels = _levels_of(_split_buckets(sent, self.bucket), scales).astype(np.int8)
        return scales.astype("<f4").tobytes() + levels.reshape(-1)[: len(sent)].tobytes()

    def unpack(self, payload: Packed, parameters: int) -> Floats32:
        scales, rest = self._read_scales(payload, parameters)
        levels = _split_buckets(np.frombuffer(rest, np.int8), self.bucket)
        return _join_buckets(levels * scales, parameters)


class QSGD(Bucketed):
    """Every value is sent as a sign and one of s levels of a norm, rounded at random without bias.

    Source: Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and
    encoding" (NeurIPS 2017).

    The norm is the L2 norm of a bucket v of n values (key ``bucket``). The variance of the decoded
    v is at most omega ||v||^2 with omega = min(n / s^2, sqrt(n) / s) (Lemma 3.1). Every value takes
    ceil(log2(2 s + 1)) bits; the paper's Elias code has a length that depends on the values. With
    error feedback the receiver divides the decoded values by 1 + omega, so that the residual does
    not grow from round to round (Beznosikov et al., "On biased compression for distributed
    learning", 2020).

    Attributes:
        levels: s, the number of levels above 0.
    """

    is_random: ClassVar[bool] = True
    kind: Literal["qsgd"] = "qsgd"
    function: ClassVar[Function] = as_levels
    levels: int = Field(default=127, ge=1, le=32_767)

    def bytes(self, parameters: int) -> float:
        return _bitmap_bytes(parameters * self._bits) + 4 * _count_buckets(parameters, self.bucket)

    @property
    def _bits(self) -> int:
        """Count of bits of an encoded value, which is an integer from -``levels`` to ``levels``."""
        return (2 * self.levels).bit_length()

    def constants(self, parameters: int) -> dict[str, Any]:
        size = parameters if self.bucket is None else min(self.bucket, parameters)
        omega = min(size / self.levels**2, math.sqrt(size) / self.levels)
        scale = 1.0 / (1.0 + omega) if self.error_feedback else 1.0
        return {"levels": self.levels, "bucket": self.bucket, "scale": scale}

    def pack(self, sent: Floats32, exact: Floats32) -> Packed:
        norms = _norms(_split_buckets(exact, self.bucket))
        scale = self.constants(len(sent))["scale"]
        unit = norms.astype(np.float64) / self.levels * scale
        levels = _levels_of(_split_buckets(sent, self.bucket), unit) + self.levels
        shifts = np.arange(self._bits - 1, -1, -1)  # the highest bit of a level comes first
        digits = levels.reshape(-1)[: len(sent), None] >> shifts & 1
        return norms.astype("<f4").tobytes() + np.packbits(digits.astype(np.uint8)).tobytes()

    def unpack(self, payload: Packed, parameters: int) -> Floats32:
        norms, rest = self._read_scales(payload, parameters)
        digits = np.unpackbits(np.frombuffer(rest, np.uint8), count=parameters * self._bits)
        weights = 1 << np.arange(self._bits - 1, -1, -1)
        levels = digits.reshape(parameters, self._bits).astype(np.int64) @ weights - self.levels
        scale = self.constants(parameters)["scale"]
        rounded = _split_buckets(levels, self.bucket) * (norms.astype(np.float64) / self.levels)
        return _join_buckets(rounded, parameters) * np.float32(scale)


class Sign(Bucketed):
    """Only the signs of a change are sent, with the mean magnitude as their common scale.

    Source: EF-SignSGD of Karimireddy et al., "Error feedback fixes SignSGD" (ICML 2019), Algorithm
    1. A value of 0 counts as positive. With ``bucket`` each bucket has a scale.
    """

    ways: ClassVar[tuple[str, ...]] = ("up",)
    kind: Literal["sign"] = "sign"
    function: ClassVar[Function] = as_signs
    error_feedback: bool = True

    def bytes(self, parameters: int) -> float:
        return _bitmap_bytes(parameters) + 4 * _count_buckets(parameters, self.bucket)

    def pack(self, sent: Floats32, exact: Floats32) -> Packed:
        scales = np.abs(_split_buckets(sent, self.bucket)).max(axis=1)
        payload: Packed = scales.astype("<f4").tobytes() + np.packbits(exact >= 0).tobytes()
        return payload

    def unpack(self, payload: Packed, parameters: int) -> Floats32:
        scales, rest = self._read_scales(payload, parameters)
        positive = np.unpackbits(np.frombuffer(rest, np.uint8), count=parameters)
        signs = _split_buckets(np.where(positive, 1.0, -1.0), self.bucket)
        return _join_buckets(signs * scales, parameters)


class Sparse(Lossy):
    """Base of the codecs that send k of the d entries of an array, with their positions.

    Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with memory" (2018).

    Attributes:
        share: k / d, where k is rounded to a whole number of at least 1; 1: all entries are sent.
    """

    ways: ClassVar[tuple[str, ...]] = ("up",)
    share: float = Field(default=0.01, gt=0.0, le=1.0)

    @property
    def sent_share(self) -> float:
        return self.share

    def k(self, parameters: int) -> int:
        """Return how many entries of an array of ``parameters`` entries are sent."""
        return min(max(1, round(self.share * parameters)), parameters)

    def bytes(self, parameters: int) -> float:
        """Return the size of the sent values and their positions (bytes).

        If k = d, no positions are sent.
        """
        k = self.k(parameters)
        value_bytes = 4 * k
        if k == parameters:
            return value_bytes
        if self._sends_bitmap(parameters):
            return value_bytes + _bitmap_bytes(parameters)
        return value_bytes + 4 * k

    def _sends_bitmap(self, parameters: int) -> bool:
        """Return whether positions are sent as a bitmap of d bits, not as k integers of 4 bytes.

        The shorter format is used, or the bitmap if both have the same length.
        """
        return _bitmap_bytes(parameters) <= 4 * self.k(parameters)

    def pack(self, sent: Floats32, exact: Floats32) -> Packed:
        """Pack the k values that are sent, float32, after their positions.

        Positions are a bitmap or int32 numbers, whichever is smaller. If k = d, none are packed.
        """
        size = len(sent)
        k = self.k(size)
        if k == size:
            return sent.astype("<f4").tobytes()
        # fewer than k values may differ from 0; positions of zeros then fill up the k positions
        order = np.argsort(sent == 0, kind="stable")
        positions = np.sort(order[:k])
        packed_positions = positions.astype("<i4").tobytes()
        if self._sends_bitmap(size):
            mask = np.zeros(size, dtype=np.bool_)
            mask[positions] = True
            packed_positions = np.packbits(mask).tobytes()
        return packed_positions + sent[positions].astype("<f4").tobytes()

    def unpack(self, payload: Packed, parameters: int) -> Floats32:
        """Unpack the positions, and the k values in the last 4 k bytes; other entries are 0."""
        k = self.k(parameters)
        values = np.frombuffer(payload[-4 * k :], "<f4")
        if k == parameters:
            return values.astype(np.float32)
        packed_positions = payload[: -4 * k]
        array = np.zeros(parameters, dtype=np.float32)
        if self._sends_bitmap(parameters):
            bits = np.unpackbits(np.frombuffer(packed_positions, np.uint8), count=parameters)
            array[bits.astype(np.bool_)] = values
        else:
            array[np.frombuffer(packed_positions, "<i4")] = values
        return array

    def encode(
        self,
        arithmetic: Arithmetic,
        parameters: int,
        value: Ref,
        base: Ref | None,
        residual: Ref | None,
    ) -> CodedParts:
        if self.k(parameters) == parameters:
            return CodedParts(value, value)
        return super().encode(arithmetic, parameters, value, base, residual)


def _bitmap_bytes(size: int) -> int:
    """Return the size of a bitmap of ``size`` bits (bytes)."""
    return -(-size // 8)


def _keep_positions(array: Floats32, positions: Ints) -> Floats32:
    """Return a copy of an array in which all entries except the ones at ``positions`` are 0."""
    result = np.zeros_like(array)
    result[positions] = array[positions]
    return result


def largest(array: Floats32, k: int) -> Ints:
    """Return the positions of the k entries of largest magnitude, ascending.

    Of entries of equal magnitude the first entries are selected.
    """
    negated = -np.abs(array)
    kth = np.partition(negated, k - 1)[k - 1]
    is_selected = negated < kth
    ties = np.flatnonzero(negated == kth)
    is_selected[ties[: k - np.count_nonzero(is_selected)]] = True
    return np.flatnonzero(is_selected)


@pure
def largest_alone(models: list[Floats32], k: int) -> Floats32:
    """Return a copy of an array with all entries 0 but the k of largest magnitude (top-k); [d].

    Args:
        models: list of exactly one array, float32 [d].
        k: count of entries that remain.
    """
    return _keep_positions(models[0], largest(models[0], k))


class TopK(Sparse):
    """The ``share`` of entries of largest magnitude is sent.

    With error feedback the device stores the other entries as residual. The sent entries and the
    residual sum exactly to the change.
    """

    kind: Literal["top-k"] = "top-k"
    function: ClassVar[Function] = largest_alone
    error_feedback: bool = True

    def constants(self, parameters: int) -> dict[str, Any]:
        return {"k": self.k(parameters)}


@pure
def drawn_alone(models: list[Floats32], k: int, scale: float, rng: np.random.Generator) -> Floats32:
    """Return a copy of an array with all entries 0 but k drawn at random (random-k); float32 [d].

    Args:
        models: list of exactly one array, float32 [d].
        k: count of entries that remain.
        scale: factor of the remaining entries.
        rng: source of the draws.
    """
    seed = int(rng.integers(2**63))
    positions = np.sort(np.random.default_rng(seed).choice(len(models[0]), k, replace=False))
    return _keep_positions(models[0], positions) * np.float32(scale)


class RandomK(Sparse):
    """A ``share`` of the entries is sent, drawn uniformly without replacement.

    Without error feedback the receiver multiplies the sent entries by d / k if k of d entries were
    sent, which removes the bias (Konecny et al., "Federated learning: strategies for improving
    communication efficiency", 2016).
    """

    is_random: ClassVar[bool] = True
    kind: Literal["random-k"] = "random-k"
    function: ClassVar[Function] = drawn_alone

    def constants(self, parameters: int) -> dict[str, Any]:
        k = self.k(parameters)
        scale = 1.0 if self.error_feedback else parameters / max(k, 1)
        return {"k": k, "scale": scale}
