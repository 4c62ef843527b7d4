"""Quantities: read, refused, written back to the very same number."""

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from fedsim.common import units
from fedsim.common.units import (
    CLOCK_END_S,
    Bytes,
    BytesPerSecond,
    PerSecond,
    PositiveSeconds,
    SamplesPerSecond,
    Seconds,
)

TIME, RATE = TypeAdapter(Seconds), TypeAdapter(BytesPerSecond)


def test_times_and_other_quantities() -> None:
    times = {"90 s": 90.0, "2 h": 7200.0, "40 ms": 0.04, "1.5e3 s": 1500.0, "20min": 1200.0}
    assert {text: TIME.validate_python(text) for text in times} == times
    assert [RATE.validate_python(text) for text in ("40 Mbit/s", "1 Gbit/s", "3 kB/s")] == [
        5e6,
        1.25e8,
        3000.0,
    ]
    assert TypeAdapter(SamplesPerSecond).validate_python("400 samples/s") == 400
    assert TypeAdapter(PerSecond).validate_python("30 /h") == pytest.approx(30 / 3600)


OTHER_SCRIPTS = ("\uff19\uff10 s", "\u0669\u0660 s", "1e\uff12 s")


@pytest.mark.parametrize(
    "wrong",
    [90, 90.0, "90", "90 sek", "s", "-1 s", "", "nan s", None, [], "90 Mbit/s", *OTHER_SCRIPTS],
)
def test_what_is_not_a_time_is_refused_with_the_units_that_are(wrong: object) -> None:
    with pytest.raises(ValidationError, match=r"min|negative"):
        TIME.validate_python(wrong)


@pytest.mark.parametrize(
    "quantity", [Seconds, PositiveSeconds, Bytes, BytesPerSecond, SamplesPerSecond, PerSecond]
)
@pytest.mark.parametrize("number", ["1e-320", "1e-40", "1e40", "1e300", "1e400", "inf"])
def test_what_cannot_be_computed_with_is_refused_with_what_is_allowed(
    quantity: Any, number: str
) -> None:
    names = {
        Seconds: "s",
        PositiveSeconds: "s",
        Bytes: "B",
        BytesPerSecond: "B/s",
        SamplesPerSecond: "samples/s",
    }
    unit = names.get(quantity, "/s")
    if number == "inf" and quantity in (BytesPerSecond, SamplesPerSecond):
        assert TypeAdapter(quantity).validate_python(f"inf {unit}") == math.inf
        return
    with pytest.raises(ValidationError, match=rf"is (0 {unit}, or )?\S+ {unit} to \S+ {unit}"):
        TypeAdapter(quantity).validate_python(f"{number} {unit}")


def test_what_is_waited_for_moves_the_clock_even_at_its_end() -> None:
    with pytest.raises(ValidationError, match=r"above 0 s; allowed is 0\.001 s to"):
        TypeAdapter(PositiveSeconds).validate_python("1 us")
    assert CLOCK_END_S + TypeAdapter(PositiveSeconds).validate_python("1 ms") > CLOCK_END_S


@given(st.just(0.0) | st.floats(min_value=1e-3, max_value=1e10))
def test_written_back_it_reads_the_same(value: float) -> None:
    for adapter in (TIME, RATE):
        assert adapter.validate_python(adapter.dump_python(value)) == value


@pytest.mark.parametrize(
    ("kind", "text", "meant"),
    [
        (BytesPerSecond, "1 mbps", "Mbit/s"),
        (BytesPerSecond, "1 MBps", "MB/s"),
        (BytesPerSecond, "1 KB/s", "kB/s"),
        (Seconds, "3 Sec", "s"),
        (Seconds, "3 HOURS", "h"),
    ],
)
def test_a_unit_as_others_write_it_is_answered_with_ours(kind: Any, text: str, meant: str) -> None:
    with pytest.raises(ValidationError, match=rf"did you mean '{meant}'\?"):
        TypeAdapter(kind).validate_python(text)


@pytest.mark.parametrize(
    ("kind", "text", "written"),
    [
        (Seconds, "30 days", "30 day"),
        (Seconds, "5 mins", "5 min"),
        (Seconds, "2 hours", "2 h"),
        (Seconds, "90 secs", "90 s"),
        (Bytes, "5 megabytes", "5 MB"),
        (Bytes, "3 KB", "3 kB"),
        (BytesPerSecond, "2 Mbps", "2 Mbit/s"),
    ],
)
def test_plurals_and_usual_forms_are_read(kind: Any, text: str, written: str) -> None:
    adapter = TypeAdapter(kind)
    assert adapter.validate_python(text) == adapter.validate_python(written)
    pattern = adapter.json_schema()["pattern"]
    assert re.match(pattern, text)
    assert re.match(pattern, written)


def test_for_people() -> None:
    assert units.show_bytes(1.264e6) == "1.26 MB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (12.34, "12.3 s"),
        (59.94, "59.9 s"),
        (59.95, "1 min 00 s"),
        (64.8, "1 min 05 s"),
        (119.4, "1 min 59 s"),
        (119.6, "2 min 00 s"),
        (3599.4, "59 min 59 s"),
        (3599.5, "1 h 00 min"),
        (3725, "1 h 02 min"),
        (7199, "2 h 00 min"),
        (86369, "23 h 59 min"),
        (86370, "1 d 00 h"),
        (90000, "1 d 01 h"),
        (172799, "2 d 00 h"),
    ],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert units.show_seconds(seconds) == text


_SIZES_S = {"s": 1, "min": 60, "h": 3600, "d": 86400}


@given(st.floats(min_value=0.0, max_value=1e8))
def test_times_for_people_are_rounded_to_their_last_unit(value: float) -> None:
    """No part is ever 60 s, 60 min or 24 h, and the text is off by half of its last unit at most."""
    words = units.show_seconds(value).split()
    numbers = [float(word) for word in words[::2]]
    sizes = [_SIZES_S[unit] for unit in words[1::2]]
    total = sum(number * size for number, size in zip(numbers, sizes, strict=True))
    slack = (
        sizes[-1] / 2 if len(sizes) > 1 else 0.0005 * 10 ** math.ceil(math.log10(value + 1e-300))
    )
    assert abs(total - value) <= slack * (1 + 1e-9)
    for number, size, above in zip(numbers[1:], sizes[1:], sizes, strict=False):
        assert number * size < above
    assert len(sizes) > 1 or numbers[0] < 60
