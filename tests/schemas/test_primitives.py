"""Avro's primitives, over their whole range, against fastavro."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, cast

import pytest
from fastavro import schemaless_writer as _writer  # pyright: ignore[reportUnknownVariableType]
from hypothesis import example, given
from hypothesis import strategies as st

from tidewheel.schemas import primitives

_write = cast("Callable[[BytesIO, object, object], None]", _writer)
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
instants = st.datetimes(timezones=st.just(UTC))


def fastavro(schema: object, value: object) -> bytes:
    target = BytesIO()
    _write(target, schema, value)
    return target.getvalue()


@given(st.integers(-(2**63), 2**63 - 1))
@example(8191)
@example(8192)
@example(-1)
def test_numbers_equal_fastavro_and_round_trip(number: int) -> None:
    assert primitives.long(number) == fastavro("long", number)
    assert primitives.long_at(b"." + primitives.long(number), 1) == (number, 1 + len(primitives.long(number)))


@given(instants)
@example(datetime(1970, 1, 1, tzinfo=UTC))
@example(datetime(1978, 12, 2, 19, 29, 36, 710655, tzinfo=UTC))
@example(datetime(1978, 12, 2, 19, 29, 36, 710656, tzinfo=UTC))
@example(datetime(3111, 9, 17, 17, 11, 54, 862079, tzinfo=UTC))
@example(datetime(3111, 9, 17, 17, 11, 54, 862080, tzinfo=UTC))
@example(datetime.max.replace(tzinfo=UTC))
@example(datetime.min.replace(tzinfo=UTC))
def test_instants_equal_fastavro_and_round_trip(moment: datetime) -> None:
    encoded = primitives.instant(moment)
    assert encoded == fastavro(MICROS, moment)
    for padding in (b"", b"\x80" * 8, b"\x01" * 8):
        assert primitives.instant_at(encoded + padding, 0) == (moment, len(encoded))
        assert primitives.planned_instant_at(encoded + padding, 0) == (moment, len(encoded))


def test_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(TypeError):
        primitives.instant(datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(("numbers", "bits"), [(primitives.INT32S, 32), (primitives.LONGS, 64)])
def test_numbers_out_of_range_are_refused(numbers: Mapping[int, bytes], bits: int) -> None:
    for number in (1 << bits - 1, -(1 << bits - 1) - 1):
        with pytest.raises(OverflowError):
            numbers[number]


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (primitives.long_at, b"\xff" * 11),
        (primitives.long_at, b"\xff" * 9 + b"\x02"),
        (primitives.int_at, primitives.long(2**31)),
        (primitives.boolean_at, b"\2"),
        (primitives.double_at, b"1234567"),
        (primitives.instant_at, primitives.long(2**62)),
        (primitives.text_at, b"\4\xc3\x28"),
        (primitives.text_at, b"\1"),
    ],
)
def test_invalid_encoding_is_refused(read: Callable[[bytes, int], Any], data: bytes) -> None:
    with pytest.raises((ValueError, OverflowError)):
        read(data, 0)
