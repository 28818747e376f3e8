"""Write and read Avro's binary primitives, for the generated `wire` module of the hot path.

fastavro's dictionaries take 6.2 us to encode and 5.9 us to decode one run request, without its record (2 cores, Python
3.11). Code for each field takes half of that, with the record. fastavro stays the authority: tests compare every byte
with it, and it resolves foreign schemas.

Every reader takes the message and a position, and returns the value and the position behind it. The position only
grows, so a false length can neither allocate nor hang: the slice is cut short, and the caller sees a position beyond
the end. Invalid bytes raise ValueError, IndexError or OverflowError.

Source: Apache Avro 1.12 Specification, "Binary encoding".

`split_at` serves many records that differ in a few values: encode one record with a placeholder in place of each value
that varies, and split the bytes at the placeholders. The pieces are then joined with the encoded values of each record,
which costs much less than encoding it: runs that end together and jobs that are created together share most of their
bytes.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeVar
from uuid import uuid4

T = TypeVar("T")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DOUBLE = struct.Struct("<d")
_WORD = struct.Struct("<Q")
MAX_ITEMS = 65_536  # of an array or map: sixty times what is ever written; 1 MiB of them took 130 ms to refuse
_MAX_VARINT_BYTES = 10  # 64 bits, seven to a byte
_INT32 = 1 << 31

# Fourteen bits of a number as two bytes: more follow, or these are the last.
_PAIRS = tuple(bytes((bits & 127 | 128, bits >> 7 | 128)) for bits in range(1 << 14))
_LAST_PAIRS = tuple(bytes((bits & 127 | 128, bits >> 7)) for bits in range(1 << 14))
PLACEHOLDER = str(uuid4())
"""A value that no record holds, because it is random in each process; 36 characters, as ids are."""


def _varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


class _Numbers(dict[int, bytes]):
    """Encoded numbers by their value, for any number of so many bits: `numbers[n]`.

    Lengths, versions, shards and counts nearly always lie below 8,192 (two bytes): those are held, and a look-up costs
    a fifth of the loop; others are encoded on demand.
    """

    def __init__(self, bits: int) -> None:
        super().__init__((number, _varint(number)) for number in range(8192))
        self._bits = bits

    def __missing__(self, number: int) -> bytes:
        if not -(1 << self._bits - 1) <= number < 1 << self._bits - 1:
            raise OverflowError(f"{number} does not fit {self._bits} bits")
        return _varint(number)


LONGS, INT32S = _Numbers(64), _Numbers(32)


def long(number: int) -> bytes:
    """Encode a 64-bit number."""
    return LONGS[number]


def text(value: str) -> bytes:
    """Encode a string."""
    encoded = value.encode()
    return long(len(encoded)) + encoded


def blob(value: bytes) -> bytes:
    """Encode bytes."""
    return long(len(value)) + value


def double(value: float) -> bytes:
    """Encode a 64-bit floating point number."""
    return _DOUBLE.pack(value)


def boolean(value: bool) -> bytes:  # noqa: FBT001 - the value itself, not a flag
    """Encode a truth value."""
    return b"\1" if value else b"\0"


def instant(moment: datetime) -> bytes:
    """Encode an aware instant as microseconds since the epoch."""
    since = moment - EPOCH
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    z = micros << 1
    if 1 << 49 <= z < 1 << 56:  # 1978 to 3111: eight bytes, by pairs because the loop takes five times as long
        return _PAIRS[z & 16383] + _PAIRS[z >> 14 & 16383] + _PAIRS[z >> 28 & 16383] + _LAST_PAIRS[z >> 42]
    return _varint(micros)


# An instant that many messages share costs a tenth when it is the same object, as within one batch.
cached_instant = lru_cache(maxsize=4096)(instant)


def strings(values: Mapping[str, str]) -> bytes:
    """Encode a map of strings, in one block."""
    if not values:
        return b"\0"
    return b"".join((long(len(values)), *(text(key) + text(value) for key, value in values.items()), b"\0"))


def array(values: Sequence[T], item: Callable[[T], bytes]) -> bytes:
    """Encode an array, in one block."""
    if not values:
        return b"\0"
    return b"".join((long(len(values)), *map(item, values), b"\0"))


def long_at(data: bytes, at: int) -> tuple[int, int]:
    """Read a 64-bit number."""
    if (byte := data[at]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number = byte & 0x7F
    # Durations in milliseconds have three or four bytes: written out they take half of what the loop does.
    if (byte := data[at + 1]) < 0x80:
        number |= byte << 7
        return (number >> 1) ^ -(number & 1), at + 2
    number |= (byte & 0x7F) << 7
    if (byte := data[at + 2]) < 0x80:
        number |= byte << 14
        return (number >> 1) ^ -(number & 1), at + 3
    number |= (byte & 0x7F) << 14
    if (byte := data[at + 3]) < 0x80:
        number |= byte << 21
        return (number >> 1) ^ -(number & 1), at + 4
    number = shift = 0
    for position in range(at, at + _MAX_VARINT_BYTES):
        byte = data[position]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >= 1 << 64:
                break
            return (number >> 1) ^ -(number & 1), position + 1
        shift += 7
    raise ValueError("a number is longer than 64 bits")


def int_at(data: bytes, at: int) -> tuple[int, int]:
    """Read a 32-bit number."""
    number, behind = long_at(data, at)
    if not -_INT32 <= number < _INT32:
        raise ValueError(f"{number} does not fit 32 bits")
    return number, behind


def size_at(data: bytes, at: int) -> tuple[int, int]:
    """Read a length of several bytes; return it doubled, as a single byte has it."""
    number, behind = long_at(data, at)
    if not 0 <= number <= len(data) - behind:
        raise ValueError(f"a length of {number} with {len(data) - behind} bytes left")
    return number << 1, behind


def text_at(data: bytes, at: int) -> tuple[str, int]:
    """Read a string."""
    doubled, start = data[at], at + 1
    if doubled & 0x81:
        doubled, start = size_at(data, at)
    behind = start + (doubled >> 1)
    return data[start:behind].decode(), behind


def double_at(data: bytes, at: int) -> tuple[float, int]:
    """Read a 64-bit floating point number."""
    behind = at + 8
    if behind > len(data):
        raise ValueError("the message ends inside a number")
    return float(_DOUBLE.unpack_from(data, at)[0]), behind


def boolean_at(data: bytes, at: int) -> tuple[bool, int]:
    """Read a truth value."""
    if (byte := data[at]) > 1:
        msg = f"{byte:#04x} is not a truth value"
        raise ValueError(msg)
    return byte == 1, at + 1


def instant_at(data: bytes, at: int) -> tuple[datetime, int]:
    """Read an instant, in UTC."""
    if len(data) - at < 8:
        return _short_instant_at(data, at)
    word: int = _WORD.unpack_from(data, at)[0]
    if word & 0x8080808080808081 == 0x0080808080808080:
        # Eight bytes, not negative, as from 1978 to 3111: the groups of seven bits are gathered in pairs.
        word = word & 0x007F007F007F007F | (word & 0x7F007F007F007F00) >> 1
        word = word & 0x00003FFF00003FFF | (word & 0x3FFF00003FFF0000) >> 2
        word = word & 0x000000000FFFFFFF | (word & 0x0FFFFFFF00000000) >> 4
        return EPOCH + timedelta(0, 0, word >> 1), at + 8
    return _short_instant_at(data, at)


def _short_instant_at(data: bytes, at: int) -> tuple[datetime, int]:
    micros, behind = long_at(data, at)
    return EPOCH + timedelta(0, 0, micros), behind


def planned_instant_at(data: bytes, at: int) -> tuple[datetime, int]:
    """Read an instant that many messages share; a cached one is read five times as fast."""
    if moment := _seen(data[at : at + 8]):
        return moment, at + 8
    return instant_at(data, at)


@lru_cache(maxsize=1024)  # the instants of some minutes
def _seen(encoded: bytes) -> datetime | None:
    """Return the instant of exactly these bytes; None if they are not one."""
    try:
        moment, behind = instant_at(encoded, 0)
    except (IndexError, ValueError, OverflowError):
        return None
    return moment if behind == 8 else None


def strings_at(data: bytes, at: int) -> tuple[dict[str, str], int]:
    """Read a map of strings, in however many blocks."""
    values: dict[str, str] = {}
    while data[at]:
        count, at = _block_at(data, at, len(values))
        for _ in range(count):
            key, at = text_at(data, at)
            values[key], at = text_at(data, at)
    return values, at + 1


def array_at(data: bytes, at: int, item_at: Callable[[bytes, int], tuple[T, int]]) -> tuple[tuple[T, ...], int]:
    """Read an array, in however many blocks."""
    values: list[T] = []
    while data[at]:
        count, at = _block_at(data, at, len(values))
        for _ in range(count):
            value, at = item_at(data, at)
            values.append(value)
    return tuple(values), at + 1


def slot(record_type: type, name: str) -> Callable[[object, object], None]:
    """Return the setter of one slot of a frozen record, for new records."""
    setter: Callable[[object, object], None] = getattr(record_type, name).__set__
    return setter


def optional_at(data: bytes, at: int, value_at: Callable[[bytes, int], tuple[T, int]]) -> tuple[T | None, int]:
    """Read a nullable value."""
    if (branch := data[at]) == 0:
        return None, at + 1
    require_value(branch)
    return value_at(data, at + 1)


def require_value(branch: int) -> None:
    """Refuse a union's branch byte that is not that of its second type."""
    if branch != 2:
        msg = f"branch byte {branch:#04x} of a union of two"
        raise ValueError(msg)


def split_at(encoded: bytes, *placeholders: bytes) -> list[bytes]:
    """Split encoded bytes at each placeholder, in their order; return one piece more than placeholders.

    Give a placeholder as it is encoded, with its length if its format writes one: its value may differ in length.

    >>> split_at(b"id=**;run=**;end", b"**", b"**")
    [b'id=', b';run=', b';end']
    """
    pieces: list[bytes] = []
    rest = encoded
    for placeholder in placeholders:
        piece, found, rest = rest.partition(placeholder)
        if not found:
            raise ValueError(f"the encoded record has no placeholder {placeholder!r}")
        pieces.append(piece)
    if any(placeholder in rest for placeholder in placeholders):
        raise ValueError("the encoded record has a placeholder more than it is split at")
    return [*pieces, rest]


def _block_at(data: bytes, at: int, before: int) -> tuple[int, int]:
    """Read a block's count; refuse it before the first item if it exceeds the limit or the bytes left."""
    count, at = long_at(data, at)
    if count < 0:  # then the block's size in bytes follows, which only skipping needs
        count = -count
        _, at = long_at(data, at)
    if not 0 < count <= MAX_ITEMS - before:
        raise ValueError(f"a block of {count} items after {before}; at most {MAX_ITEMS} are read")
    if count > len(data) - at:
        raise ValueError(f"a block of {count} items with {len(data) - at} bytes left")
    return count, at
