"""Rows for COPY and arrays for hot statements, in PostgreSQL's binary form.

psycopg adapts each value of each row. Rows of one batch share most of their values (tenant, queue, lane, instants), so
this module joins fields that are encoded once. The caller picks the function of each column's type: the server checks
lengths, not meanings. Source: PostgreSQL manual, COPY, "Binary Format".

Arrays have ids, instants and texts in binary form, numbers and words as text, which need no escaping. psycopg adapts a
list element by element in Python, which for the arrays of a claim costs more than the statement. PostgreSQL reads an id
in 0.53 us from text and 0.03 from binary, a text of forty letters in 0.24 and 0.10. Source: PostgreSQL manual, section
8.15.2 (array value input); `array_recv`.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, LiteralString, NamedTuple, TypeVar, cast
from uuid import UUID

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from tidewheel.postgres.session import OwnConnection
from tidewheel.postgres.statements import Statements, trusted

if TYPE_CHECKING:
    from psycopg import Connection

Row = TypeVar("Row")

_READ_COLUMNS = Statements("tidewheel")["read_columns"]

NULL: Final = b"\xff\xff\xff\xff"
_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TAIL = b"\xff\xff"
_COUNT_BYTES = 2  # at the beginning of a row: the number of its fields
_PIECE_BYTES = 1 << 20  # written at once: more would only take memory twice
_FEW_ROWS = 16  # of one INSERT: for so few, parameters cost the server less than arrays
_MOST_ROWS = 5000  # of one INSERT
_LENGTH = struct.Struct(">i")
_INT2 = struct.Struct(">ih")
_INT4 = struct.Struct(">ii")
_INT8 = struct.Struct(">iq")
_ARRAY = struct.Struct(">iiIii")  # dimensions, has nulls, the elements' type, their count, the first index
_BYTEA_OID = 17
_UUID_LENGTH = _LENGTH.pack(16)
_TRUE, _FALSE = _LENGTH.pack(1) + b"\1", _LENGTH.pack(1) + b"\0"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_UUID, _INSTANT, _TEXT = 2950, 1184, 25  # type OIDs
NEVER = struct.pack(">iq", 8, 2**63 - 1)
"""`infinity`, as an element of instants."""


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
        rows: Each `columns(n)` and then its fields, in the statement's order.
    """
    if isinstance(connection, OwnConnection) and connection.tenant is not None:
        given = [*map(_fields, rows)]
        _insert_few(connection, statement, [[*map(_value, fields)] for fields in given[:_FEW_ROWS]])
        for part in _many(given):
            types = _columns(connection, statement)
            _unnest(connection, statement, types, _arrays(types, part))
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
        given = list(rows)
        _insert_few(connection, statement, given[:_FEW_ROWS])
        for part in _many(given):
            arrays = [list(values) for values in zip(*part, strict=True)]
            _unnest(connection, statement, [_Column(each, 0) for each in types], arrays)
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


class Uuids(bytes):
    """A uuid[] in binary form."""


class Instants(bytes):
    """A timestamptz[] in binary form."""


class Texts(bytes):
    """A text[] in binary form."""


class _UuidsDumper(Dumper):
    format, oid = Format.BINARY, 2951

    def dump(self, obj: bytes) -> bytes:
        return obj


class _InstantsDumper(_UuidsDumper):
    oid = 1185


class _TextsDumper(_UuidsDumper):
    oid = 1009


psycopg.adapters.register_dumper(Uuids, _UuidsDumper)
psycopg.adapters.register_dumper(Instants, _InstantsDumper)
psycopg.adapters.register_dumper(Texts, _TextsDumper)


def uuids(values: Iterable[UUID | None]) -> Uuids:
    """A uuid[].

    >>> uuids([UUID(int=1), None])[20:].hex(" ", 4)
    '00000010 00000000 00000000 00000000 00000001 ffffffff'
    """
    parts = [NULL if value is None else _UUID_LENGTH + value.int.to_bytes(16) for value in values]
    return Uuids(array_head(_UUID, len(parts), nulls=NULL in parts) + b"".join(parts))


def integers(values: Iterable[int]) -> str:
    """An integer[].

    >>> integers([1, 2])
    '{1,2}'
    """
    return "{" + ",".join(map(str, values)) + "}"


def instants(values: Iterable[datetime | None]) -> Instants:
    """A timestamptz[].

    >>> instants([datetime.fromisoformat("2000-01-01T00:00:01Z"), None])[20:].hex(" ", 4)
    '00000008 00000000 000f4240 ffffffff'
    """
    return instants_of([instant(value) for value in values])


def instants_of(elements: Sequence[bytes]) -> Instants:
    """Return a timestamptz[] of elements made by `instant`, and NEVER."""
    return Instants(array_head(_INSTANT, len(elements), nulls=NULL in elements) + b"".join(elements))


def words(values: Iterable[str]) -> str:
    """Return a text[] of Tidewheel's own words: states, causes, lanes; never of a client's text.

    >>> words(["queued", "retrying"])
    '{queued,retrying}'
    """
    return "{" + ",".join(values) + "}"


def texts(values: Iterable[str | None]) -> Texts:
    """Return a text[] of any texts.

    >>> texts(["a,b", None])[20:].hex(" ", 4)
    '000000 03612c62 ffffffff'
    """
    parts = [text(value) for value in values]
    return Texts(array_head(_TEXT, len(parts), nulls=NULL in parts) + b"".join(parts))


def _insert_few(connection: OwnConnection, statement: LiteralString, rows: Sequence[Sequence[object]]) -> None:
    """Insert rows with a parameter for each field.

    The first rows of many too: the server names a column that is missing, and keeps the columns until the commit.
    """
    if rows:
        values = ", ".join([f"({', '.join(['%s'] * len(rows[0]))})"] * len(rows))
        _execute(connection, f"{_target(statement)} VALUES {values}", [field for row in rows for field in row])


def _many(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Return the rows behind the first few, in parts of one INSERT each."""
    return (rows[at : at + _MOST_ROWS] for at in range(_FEW_ROWS, len(rows), _MOST_ROWS))


def _execute(connection: OwnConnection, statement: str, parameters: Sequence[object]) -> None:
    with connection.cursor() as cursor:
        cursor.adapters.register_dumper(Field, FieldDumper)
        cursor.execute(trusted(statement), parameters)


def _target(statement: LiteralString) -> str:
    return statement.replace("COPY ", "INSERT INTO ", 1).partition(" FROM STDIN")[0]


class _Column(NamedTuple):
    """A column of a COPY: its type, and the OID of this type."""

    type: str
    oid: int


_BYTEAS = "bytea[]"  # sent as text: arrays of one array have the same length
_KNOWN: dict[str, Sequence[_Column]] = {}


def _unnest(
    connection: OwnConnection, statement: LiteralString, columns: Sequence[_Column], arrays: Sequence[object]
) -> None:
    """Insert many rows as an array for each column, which the server unnests.

    10,000 runs have half a million fields, and a parameter for each field costs psycopg and the planner microseconds.
    """
    names = [f"c{number}" for number in range(len(columns))]
    sent = ", ".join("%s::text[]" if each.type == _BYTEAS else f"%s::{each.type}[]" for each in columns)
    read = ", ".join(f"{name}::{each.type}" for name, each in zip(names, columns, strict=True))
    select = f"SELECT {read} FROM unnest({sent}) AS u ({', '.join(names)})"  # noqa: S608 - of types in the catalog
    _execute(connection, f"{_target(statement)} {select}", arrays)


def _columns(connection: OwnConnection, statement: LiteralString) -> Sequence[_Column]:
    """Return the columns of a COPY, which are looked up once in a process."""
    known = _KNOWN.get(statement)
    if known is None:
        table, _, rest = statement.removeprefix("COPY ").partition(" (")
        names = [name.strip() for name in rest.partition(")")[0].split(",")]
        found = connection.execute(_READ_COLUMNS, {"table": table, "names": names}, binary=True).fetchall()
        known = _KNOWN[statement] = [_Column(*each) for each in cast("list[tuple[str, int]]", found)]
    return known


def _arrays(columns: Sequence[_Column], rows: Sequence[Sequence[bytes]]) -> list[Field]:
    """Return an array for each column of rows of fields."""
    arrays: list[Field] = []
    for (kind, oid), fields in zip(columns, zip(*rows, strict=True), strict=True):
        sent, element = ([*map(_byteas_text, fields)], _TEXT) if kind == _BYTEAS else (fields, oid)
        arrays.append(Field(array_head(element, len(sent), nulls=NULL in sent) + b"".join(sent)))
    return arrays


def _value(field: bytes) -> Field | None:
    return None if field == NULL else Field(field[_LENGTH.size :])


def _fields(row: bytes, at: int = _COUNT_BYTES) -> list[bytes]:
    """Return the fields of a row of binary COPY, each with its length; or the elements of an array."""
    found: list[bytes] = []
    while at < len(row):
        [length] = _LENGTH.unpack_from(row, at)
        end = at + _LENGTH.size + length if length > 0 else at + _LENGTH.size
        found.append(row[at:end])
        at = end
    return found


def _byteas_text(field: bytes) -> bytes:
    """Return a field made by `byteas` as a text."""
    if field == NULL:
        return field
    values = [element[_LENGTH.size :].hex().encode() for element in _fields(field, _LENGTH.size + _ARRAY.size)]
    return bytea(b"{" + b",".join([b'"\\\\x' + value + b'"' for value in values]) + b"}")
