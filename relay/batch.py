"""Outbox rows on their way, as plain tuples: a named tuple would cost as much as handing the row to the producer.

Their addresses and ids stay PostgreSQL's own bytes, which go back in arrays that are joined and not converted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from struct import pack
from typing import Final, TypeAlias

from psycopg import adapters
from psycopg.adapt import Dumper
from psycopg.pq import Format

from tidewheel.outbox import OutboxClass

Pair: TypeAlias = tuple[int, OutboxClass]  # a slice and a class
Place: TypeAlias = tuple[datetime, int]  # in the order in which rows leave: publish_at and id

# POSITION is that of its slice and class among those that were read, from 1.
DueRow: TypeAlias = tuple[int, datetime, str, bytes | None, bytes | None, list[bytes] | None, bytes, bytes]
POSITION: Final = 0
PUBLISH_AT: Final = 1
TOPIC: Final = 2
KEY: Final = 3
VALUE: Final = 4
HEADERS: Final = 5
ADDRESS: Final = 6
ID: Final = 7

_TID: Final = adapters.types["tid"]
_INT8: Final = adapters.types["int8"]


class Addresses(bytes):
    """A tid[]."""


class Ids(bytes):
    """A bigint[]."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows read together.

    Args:
        rows: In the order in which they are produced: one slice and class after another.
        pairs: The slices and classes that were read.
        counts: How many rows there are of those that have any.
        full: Whether more may be due than was taken.
    """

    rows: Sequence[DueRow]
    pairs: Sequence[Pair]
    counts: Mapping[Pair, int]
    full: bool

    def __bool__(self) -> bool:
        """Whether there are any rows."""
        return bool(self.rows)

    def last(self) -> Iterator[tuple[Pair, Place]]:
        """Where the last row of each slice and class stands."""
        end = 0
        for pair, count in self.counts.items():
            end += count
            yield pair, place_of(self.rows[end - 1])


@dataclass(slots=True)
class Published:
    """What became of a batch; a row in neither list stays and is tried again."""

    proven: list[DueRow] = field(default_factory=list[DueRow])
    refused: list[tuple[DueRow, str]] = field(default_factory=list[tuple[DueRow, str]])


def place_of(row: DueRow) -> Place:
    """Where a row stands in its slice and class."""
    return row[PUBLISH_AT], int.from_bytes(row[ID])


def counts_of(rows: Iterable[DueRow], pairs: Sequence[Pair]) -> dict[Pair, int]:
    """How many rows there are of each slice and class that has any, in the rows' order."""
    return {pairs[position - 1]: count for position, count in Counter([row[POSITION] for row in rows]).items()}


def addresses(rows: Sequence[DueRow]) -> Addresses:
    """Where the rows lie."""
    return Addresses(_array(_TID.oid, 6, [row[ADDRESS] for row in rows]))


def ids(rows: Sequence[DueRow]) -> Ids:
    """Their ids."""
    return Ids(_array(_INT8.oid, 8, [row[ID] for row in rows]))


def _array(oid: int, size: int, parts: list[bytes]) -> bytes:
    # Dimensions, whether there are nulls, type, length, lower bound. Source: PostgreSQL's arrayfuncs.c, array_recv.
    if not parts:
        return pack(">iiI", 0, 0, oid)
    return pack(">iiIii", 1, 0, oid, len(parts), 1) + pack(">i", size) + pack(">i", size).join(parts)


class _AddressesDumper(Dumper):
    format = Format.BINARY
    oid = _TID.array_oid

    def dump(self, obj: Addresses) -> bytes:
        return obj


class _IdsDumper(Dumper):
    format = Format.BINARY
    oid = _INT8.array_oid

    def dump(self, obj: Ids) -> bytes:
        return obj


adapters.register_dumper(Addresses, _AddressesDumper)
adapters.register_dumper(Ids, _IdsDumper)
