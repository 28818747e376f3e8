"""Stored forms that a view decodes: one that cannot be read leaves its row readable, and all others.

A later release, a restore or a hand in the database may leave a form that this release does not know. `readable`,
`rows_as` and the loaders of `show_damaged` are the only places that pass over one: they count the form in a metric, and
log it.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin, get_type_hints
from uuid import UUID

import psycopg
from psycopg import Cursor
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.rows import BaseRowFactory

from tidewheel.errors import Unavailable, refuse
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.postgres.session import Conn, OwnConnection
from tidewheel.postgres.statements import Statements

if TYPE_CHECKING:
    from tidewheel.schemas.generated.records import JobDefinition
_LOG = logging.getLogger(__name__)
UNREADABLE = "unreadable"  # the kind of a schedule that cannot be read
T = TypeVar("T")
D = TypeVar("D")
_READ_RUN_PAYLOAD = Statements("tidewheel.control")["read_run_payload"]


def readable(form: str, row: object, read: Callable[[], T], instead: D) -> T | D:
    """Return what a reader returns, or a substitute if the stored form cannot be read.

    Args:
        form: The kind of stored form, as the metric has it.

    Raises:
        psycopg.Error: A statement failed, and with it the transaction.
    """
    try:
        return read()
    except (psycopg.Error, Unavailable):
        raise
    except Exception as error:  # noqa: BLE001 - no reader of one form may fail the rows beside it
        _pass_over(form, row, error)
        return instead


def read_definition(content: bytes | None, row: object) -> "JobDefinition | None":
    """Return the definition of a job's version; None without one, or for one that cannot be read."""
    from tidewheel.schemas.codec import decode  # here: a list of runs needs no codec
    from tidewheel.schemas.generated.records import JobDefinition

    if content is None:
        return None
    return readable("definition", row, lambda: decode(content, JobDefinition), None)


def read_stored_json(form: str, content: bytes | str | None, row: object) -> object:
    """Return the value of a stored JSON text; None without one, or for one that cannot be read."""
    return None if content is None else readable(form, row, lambda: json.loads(content), None)


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload: the run's own, or that of its job's version."""

    content: bytes
    content_type: str
    is_own: bool


def legible(form: str, row: object, read: Callable[[], T]) -> T:
    """Return what a reader returns, or refuse the call about one row whose stored form cannot be read."""
    if (found := readable(form, row, lambda: (read(),), None)) is None:
        refuse(form, f"the stored {form} of {row} cannot be read", "the log has the error; submit the job again")
    return found[0]


def rows_as(kind: type[T]) -> BaseRowFactory[T]:
    """Return rows as records, as `class_row`; a JSON column that has no mapping or list is an empty one."""
    documents = documents_as(kind)

    def factory(cursor: Cursor[T]) -> Callable[[Sequence[object]], T]:
        make = documents(cast("Cursor[dict[str, Any]]", cursor))
        return lambda values: kind(**make(values))

    return cast("BaseRowFactory[T]", factory)


def documents_as(kind: type[object]) -> BaseRowFactory[dict[str, Any]]:
    """Return rows as mappings by column, with the JSON columns of a record as `rows_as` reads them."""
    wanted = [(name, empty) for name, hint in get_type_hints(kind).items() if (empty := _empty(hint)) is not None]

    def factory(cursor: Cursor[dict[str, Any]]) -> Callable[[Sequence[object]], dict[str, Any]]:
        names = [column.name for column in cursor.description or ()]

        def make(values: Sequence[object]) -> dict[str, Any]:
            row = dict(zip(names, values, strict=True))
            for name, empty in wanted:
                if row.get(name) is not None and not _is_like(row[name], empty):
                    _pass_over(name, next(iter(row.values())), TypeError(f"{type(row[name]).__name__} in its place"))
                    row[name] = empty
            return row

        return make

    return cast("BaseRowFactory[dict[str, Any]]", factory)


def _empty(hint: object) -> object:
    """Return the empty value of a mapping, a list or a list of mappings; None for other types."""
    parts = [each for each in get_args(hint) if each is not NoneType] if isinstance(hint, UnionType) else [hint]
    kind = get_origin(parts[0])
    if kind in {Mapping, dict}:
        return {}
    return [] if kind is Sequence and get_origin(get_args(parts[0])[0]) is Mapping else None


def _is_like(value: object, empty: object) -> bool:
    if isinstance(empty, dict):
        return isinstance(value, dict)
    return isinstance(value, list) and all(isinstance(each, dict) for each in cast("list[object]", value))


def read_run_payload(connection: Conn, tenant: str, run_id: UUID) -> Payload | None:
    """Return the payload of a run that the database has; None if it has no such run of the tenant."""
    row = connection.execute(_READ_RUN_PAYLOAD, {"run_id": run_id, "tenant": tenant}, binary=True).fetchone()
    if row is None:
        return None
    own, own_type, packed = cast("tuple[bytes | None, str | None, bytes]", row)
    definition = read_definition(packed, f"run {run_id}")
    of_job = (b"", JSON_CONTENT) if definition is None else (definition.payload, definition.payload_content_type)
    return Payload(*of_job, is_own=False) if own is None else Payload(own, own_type or of_job[1], is_own=True)


def show_damaged(connection: Conn, *, shows: bool) -> None:
    """Let a connection read what Python does not have as the nearest instant or duration, or refuse it.

    A transaction that writes refuses them: it would store what it has read.
    """
    if isinstance(connection, OwnConnection):
        if shows and not connection.knows_damaged:
            for name in _NEAREST:
                for form in (Format.TEXT, Format.BINARY):
                    connection.adapters.register_loader(name, _loader(name, form))
            connection.knows_damaged = True
        connection.shows_damaged = shows


# Far enough from Python's own limits that a view may add a zone or a year.
_FIRST, _LAST = datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, tzinfo=UTC)
_LONGEST = timedelta(days=366_000)
_NEAREST: Mapping[str, tuple[object, object]] = {
    "timestamptz": (_FIRST, _LAST), "date": (_FIRST.date(), _LAST.date()), "interval": (-_LONGEST, _LONGEST)
}  # fmt: skip


@cache
def _loader(name: str, form: Format) -> type[Loader]:
    """Return a loader that asks psycopg's own one first."""
    # psycopg has one of each.
    exact = cast("type[Loader]", psycopg.adapters.get_loader(psycopg.adapters.types[name].oid, form))

    class Nearest(Loader):
        format = form

        def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
            super().__init__(oid, context)
            self._load = exact(oid, context).load

        def load(self, data: Buffer) -> object:
            try:
                return self._load(data)
            except psycopg.DataError as error:
                if not (isinstance(self.connection, OwnConnection) and self.connection.shows_damaged):
                    raise
                _pass_over(name, "a row", error)
                content = bytes(data)
                is_early = content[:1] == b"-" or content.endswith(b"BC") if form is Format.TEXT else content[0] > 127
                return _NEAREST[name][0 if is_early else 1]

    return Nearest


def _pass_over(form: str, row: object, error: Exception) -> None:
    from tidewheel.process.metrics import metrics  # here: the command line starts without Prometheus

    metrics.count("stored_forms_unreadable", 1, form)
    _log_once(form, str(row), f"{type(error).__name__}: {error}")


@lru_cache(maxsize=1000)  # each form is logged once, and again after a thousand others
def _log_once(form: str, row: str, error: str) -> None:
    _LOG.error("the stored %s of %s cannot be read and is left out of views: %s", form, row, error)
