"""Rows in the form of binary COPY, for the writers of the hot path.

psycopg adapts each value of each row. Rows of one batch share most of their values (tenant, queue, lane, instants), so
this module joins fields that are encoded once. The caller picks the function of each column's type: the server checks
lengths, not meanings. Source: PostgreSQL manual, COPY, "Binary Format".
"""

import struct
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, LiteralString, NamedTuple
from uuid import UUID

from psycopg.adapt import Dumper
from psycopg.pq import Format

from tidewheel.postgres.session import OwnConnection
from tidewheel.postgres.statements import trusted

if TYPE_CHECKING:
    from psycopg import Connection

NULL: Final = b"\xff\xff\xff\xff"

_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TAIL = b"\xff\xff"
_PIECE_BYTES = 1 << 20  # written at once: more would only take memory twice
_PARAMETERS = 4096  # of one INSERT; the protocol allows 65,535

_LENGTH = struct.Struct(">i")
_INT2 = struct.Struct(">ih")
_INT4 = struct.Struct(">ii")
_INT8 = struct.Struct(">iq")
_ARRAY = struct.Struct(">iiIii")  # dimensions, has nulls, the elements' type, their count, the first index
_BYTEA_OID = 17
_UUID_LENGTH = _LENGTH.pack(16)
_TRUE, _FALSE = _LENGTH.pack(1) + b"\1", _LENGTH.pack(1) + b"\0"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def columns(count: int) -> bytes:
    """Return the head of a row with `count` columns."""
    return struct.pack(">h", count)


def text(value: str | None) -> bytes:
    """A text column."""
    return NULL if value is None else bytea(value.encode())


def bytea(value: bytes | None) -> bytes:
    """A bytea column."""
    return NULL if value is None else _LENGTH.pack(len(value)) + value


def uuid(value: UUID | None) -> bytes:
    """A uuid column."""
    return NULL if value is None else _UUID_LENGTH + value.bytes


def int2(value: int) -> bytes:
    """A smallint column."""
    return _INT2.pack(2, value)


def int4(value: int) -> bytes:
    """An integer column."""
    return _INT4.pack(4, value)


def boolean(value: bool) -> bytes:  # noqa: FBT001 - a column's value
    """A boolean column."""
    return _TRUE if value else _FALSE


def int8(value: int) -> bytes:
    """A bigint column."""
    return _INT8.pack(8, value)


def instant(value: datetime | None) -> bytes:
    """A timestamptz column: microseconds since 2000."""
    if value is None:
        return NULL
    since = value - _EPOCH
    return _INT8.pack(8, (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def array_head(element: int, count: int, *, nulls: bool = False) -> bytes:
    """Return the head of an array of `count` elements of a type OID; an empty array is its head only."""
    return _ARRAY.pack(1, nulls, element, count, 1) if count else _ARRAY.pack(0, 0, element, 0, 0)[:12]


def byteas(values: Sequence[bytes] | None) -> bytes:
    """A bytea[] column, of one dimension and without nulls."""
    if not values:
        return NULL
    body = b"".join([part for value in values for part in (_LENGTH.pack(len(value)), value)])
    return _LENGTH.pack(_ARRAY.size + len(body)) + array_head(_BYTEA_OID, len(values)) + body


def copy_rows(connection: "Connection[tuple[object, ...]]", statement: LiteralString, rows: Iterable[bytes]) -> None:
    """COPY rows in, in the caller's transaction.

    Where it acts for a tenant they are inserted: row-level security refuses COPY.

    Args:
        statement: `COPY … FROM STDIN (FORMAT BINARY)`.
        rows: Each `columns(n)` and then its fields, in the statement's order.
    """
    if isinstance(connection, OwnConnection) and connection.tenant is not None:
        _insert(connection, statement, [_fields(row) for row in rows])
        return
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        piece, size = [_HEAD], 0
        for row in rows:
            piece.append(row)
            size += len(row)
            if size > _PIECE_BYTES:
                copy.write(b"".join(piece))
                piece, size = [], 0
        piece.append(_TAIL)
        copy.write(b"".join(piece))


def copy_values(
    connection: "Connection[tuple[object, ...]]",
    statement: LiteralString,
    types: Sequence[str],
    rows: Iterable[Sequence[object]],
) -> None:
    """Do the same with rows of Python values and the names of their columns' types."""
    if isinstance(connection, OwnConnection) and connection.tenant is not None:
        _insert(connection, statement, list(rows))
        return
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row(row)


class Field(NamedTuple):
    """A field in the server's binary form, whose type is the column's."""

    value: bytes


class FieldDumper(Dumper):
    """Sends a field as it is, and leaves its type to the server."""

    format = Format.BINARY

    def dump(self, obj: Field) -> bytes:
        """Return the bytes of a field."""
        return obj.value


def _insert(connection: OwnConnection, statement: LiteralString, rows: Sequence[Sequence[object]]) -> None:
    target, _, _ = statement.replace("COPY ", "INSERT INTO ", 1).partition(" FROM STDIN")
    with connection.cursor() as cursor:
        cursor.adapters.register_dumper(Field, FieldDumper)
        at = 0
        while at < len(rows):
            width = len(rows[at])
            some = rows[at : at + max(1, _PARAMETERS // width)]
            values = ", ".join([f"({', '.join(['%s'] * width)})"] * len(some))
            cursor.execute(trusted(f"{target} VALUES {values}"), [each for row in some for each in row])
            at += len(some)


def _fields(row: bytes) -> list[Field | None]:
    """Return the fields of a row of binary COPY."""
    found: list[Field | None] = []
    at = 2  # the number of fields
    while at < len(row):
        [length] = _LENGTH.unpack_from(row, at)
        at += _LENGTH.size
        found.append(None if length < 0 else Field(row[at : at + length]))
        at += max(length, 0)
    return found
