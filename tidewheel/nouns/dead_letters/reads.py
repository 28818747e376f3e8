"""Reads of dead letters, each of a bounded number of rows.

An unreadable message belongs to the tenant of its topic, on a shared topic to the default tenant.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.job_position import read_job_position
from tidewheel.errors import UnknownDeadLetter, UnknownRun
from tidewheel.ids import job_id
from tidewheel.nouns.dead_letters.model import (
    DeadLetterDetail,
    DeadLetterFilter,
    DeadLetterGroup,
    DeadLetterGroups,
    DeadLettersPage,
    DeadLetterSummary,
)
from tidewheel.nouns.operation import Place, field_values
from tidewheel.nouns.runs.detail import show_run
from tidewheel.nouns.runs.model import RunDetail
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.nouns.works.model import COUNTED, Survey
from tidewheel.nouns.works.reads import first_matches
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.transitions import dead_letters as rows
from tidewheel.transitions.dead_letters import DeadLetterRef, LetterScan

_SQL = Statements("tidewheel.nouns.dead_letters")
_LIST_DEAD_LETTERS = _SQL["list_dead_letters"]
_COUNT_DEAD_LETTERS = _SQL["count_dead_letters"]
_LAST_DEAD_LETTER_LOOKED_AT = _SQL["last_dead_letter_looked_at"]
_READ_DEAD_LETTER = _SQL["read_dead_letter"]
_GROUP_DEAD_LETTERS = _SQL["group_dead_letters"]

LOOKED_AT = 20_000  # rows of one statement, matching or not: some tens of milliseconds
GROUPED = 10_000  # the newest dead letters: some tens of milliseconds
_GROUPS = 200
_SHOWN = 10  # of a dry run
_UNINDEXED = ("kind", "redriven", "status", "error_type", "queue", "lane")

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)
_NEWEST: dict[str, object] = {"before_at": _LATEST, "before_id": (1 << 63) - 1}  # the place of the first page


def list_dead_letters(
    connection: Conn, tenant: str, filters: DeadLetterFilter, *, after: Place | None = None, limit: int = 50
) -> DeadLettersPage:
    """Return a page of a tenant's dead letters, the newest first.

    A page looks at 20,000 dead letters at most. With a filter that few match, it may be short and have a cursor.
    """
    columns = filter_columns(connection, tenant, filters) | {"look": LOOKED_AT, "limit": limit + 1} | _NEWEST
    counted = connection.execute(_COUNT_DEAD_LETTERS, columns, binary=True).fetchone()
    total, seen = cast("tuple[int, int]", counted)
    if after is not None:
        columns |= {"before_at": after[0], "before_id": after[1]}
    found = _list(connection, columns)
    last = found[limit - 1] if len(found) > limit else None
    return DeadLettersPage(
        dead_letters=tuple(found[:limit]),
        next_cursor=(last.created_at, last.id) if last else _last_looked_at(connection, columns),
        total=min(total, COUNTED),
        at_least=total > COUNTED or seen == LOOKED_AT,
    )


def group_dead_letters(
    connection: Conn, tenant: str, *, since: datetime | None = None, redriven: bool | None = None
) -> DeadLetterGroups:
    """Group a tenant's newest 10,000 dead letters by cause."""
    require_tenant(connection, tenant)
    columns = {"tenant": tenant, "since": since or EARLIEST, "redriven": redriven, "look": GROUPED, "limit": _GROUPS}
    found = connection.execute(_GROUP_DEAD_LETTERS, columns, binary=True).fetchall()
    looked_at = cast("int", found[0][-1]) if found else 0
    groups = tuple(DeadLetterGroup(*cast("tuple[Any, ...]", row)[:-1]) for row in found)
    return DeadLetterGroups(groups, looked_at, at_least=looked_at >= GROUPED)


def show_dead_letter(connection: Conn, tenant: str, number: int) -> DeadLetterDetail:
    """Return one dead letter.

    Raises:
        UnknownDeadLetter: The tenant has no dead letter of this id.
    """
    columns = filter_columns(connection, tenant, {"ids": [number]})
    found = _list(connection, {**columns, **_NEWEST, "look": 1, "limit": 1})
    row = connection.execute(_READ_DEAD_LETTER, {"id": number, "tenant": tenant}, binary=True).fetchone()
    if not found or row is None:
        raise UnknownDeadLetter(number)
    key, value = cast("tuple[bytes | None, bytes | None]", row)
    run = _run(connection, tenant, found[0].run_id)
    return DeadLetterDetail(**field_values(found[0]), run=run, message_key=key, message_value=value)


def survey_dead_letters(connection: Conn, tenant: str, filters: DeadLetterFilter) -> Survey[DeadLetterSummary]:
    """Count a tenant's dead letters up to the newest one of now, and return the oldest ones.

    Raises:
        UnknownDeadLetter: It has no dead letter of one of the ids.
    """
    _require(connection, tenant, filters.get("ids") or ())
    columns = filter_columns(connection, tenant, filters)
    found, complete = first_matches(partial(scan_dead_letters, connection, columns), COUNTED + 1)
    cursor = {"at": EARLIEST.isoformat(), "id": 0}
    if complete and not found:
        return Survey(0, at_least=False, first=(), filter={}, cursor=cursor)
    ids: DeadLetterFilter = {"ids": [letter.id for letter in found[:_SHOWN]]}
    first = _list(connection, {**filter_columns(connection, tenant, ids), **_NEWEST, "look": _SHOWN, "limit": _SHOWN})
    # By the filters of the index alone: a rare error would read all dead letters.
    newest = _list(connection, {**columns, **dict.fromkeys(_UNINDEXED), **_NEWEST, "look": 1, "limit": 1})
    # A run that is redriven now and fails again is a dead letter of a later time.
    stored = {**columns, "until": newest[0].created_at}
    return Survey(
        min(len(found), COUNTED), len(found) > COUNTED or not complete, tuple(reversed(first)),
        {name: value for name, value in stored.items() if name not in {"tenant", "key"}}, cursor,
    )  # fmt: skip


def scan_dead_letters(
    connection: Conn, columns: Mapping[str, object], after: DeadLetterRef | None, limit: int
) -> LetterScan:
    """Look at the dead letters after one of them, the oldest first; return those that match."""
    place = {"after_at": EARLIEST, "after_id": 0}
    if after is not None:
        place = {"after_at": after.created_at, "after_id": after.id}
    return rows.scan_dead_letters(connection, {**columns, **place, "limit": limit, "look": LOOKED_AT})


def filter_columns(connection: Conn, tenant: str, filters: DeadLetterFilter) -> dict[str, object]:
    """Return the parameters of a filter in SQL.

    Raises:
        InvalidInput: There is no such tenant.
        UnknownJob: There is no such job and never was one.
    """
    require_tenant(connection, tenant)
    columns: dict[str, object] = dict.fromkeys(DeadLetterFilter.__annotations__) | filters
    key, ids = filters.get("key"), filters.get("ids")
    if key is not None:
        read_job_position(connection, tenant, key)
    columns |= {"since": filters.get("since") or EARLIEST, "until": filters.get("until") or _LATEST}
    ids_or_none = None if ids is None else list(ids)
    return columns | {"tenant": tenant, "ids": ids_or_none, "job_id": None if key is None else job_id(tenant, key)}


def _require(connection: Conn, tenant: str, ids: Sequence[int]) -> None:
    if ids:
        scan = scan_dead_letters(connection, filter_columns(connection, tenant, {"ids": ids}), None, len(ids))
        if missing := set(ids) - {letter.id for letter in scan.letters}:
            raise UnknownDeadLetter(min(missing))


def _list(connection: Conn, columns: dict[str, object]) -> list[DeadLetterSummary]:
    with connection.cursor(row_factory=class_row(DeadLetterSummary), binary=True) as cursor:
        return cursor.execute(_LIST_DEAD_LETTERS, columns).fetchall()


def _last_looked_at(connection: Conn, columns: Mapping[str, object]) -> Place | None:
    return cast("Place | None", connection.execute(_LAST_DEAD_LETTER_LOOKED_AT, columns, binary=True).fetchone())


def _run(connection: Conn, tenant: str, run_id: UUID | None) -> RunDetail | None:
    if run_id is None:
        return None
    try:
        return show_run(connection, tenant, run_id)
    except UnknownRun:
        return None  # the partition of its day is dropped
