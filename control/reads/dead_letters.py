"""Read dead letters: failed runs, and messages that are no valid request.

An unreadable message belongs to the tenant of its topic, on a shared topic to the default tenant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeAlias, TypedDict, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.run_detail import RunDetail, show_run
from tidewheel.control.reads.tenants import require_tenant
from tidewheel.errors import UnknownDeadLetter, UnknownRun, refuse
from tidewheel.ids import job_id
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import DEAD_LETTERED, Lane
from tidewheel.transitions import redrives
from tidewheel.transitions.redrives import DeadLetterRef, LetterScan

_SQL = Statements("tidewheel.control")
_LIST_DEAD_LETTERS = _SQL["list_dead_letters"]
_COUNT_DEAD_LETTERS = _SQL["count_dead_letters"]
_LAST_DEAD_LETTER_LOOKED_AT = _SQL["last_dead_letter_looked_at"]
_READ_DEAD_LETTER = _SQL["read_dead_letter"]

COUNTED = 10_000  # matches beyond this are not counted: no client pages through more
LOOKED_AT = 20_000  # rows of one statement, matching or not: some tens of milliseconds
_SURVEYED = 25  # statements that count before a redrive or a purge: half a million dead letters, some seconds
_SHOWN = 10  # of a dry run
_UNINDEXED = ("kind", "redriven", "status", "error_type", "queue", "lane")

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)
_ALL = (1 << 63) - 1
Place: TypeAlias = tuple[datetime, int]
"""The place of a dead letter: its creation and its id."""

_NEWEST: dict[str, object] = {"before_at": _LATEST, "before_id": _ALL}  # the place of the first page


class DeadLetterKind(StrEnum):
    """Kind of a dead letter."""

    RUN = "run"
    """A run that failed or timed out for good."""
    MESSAGE = "message"
    """A message that is no valid request."""


class DeadLetterFilter(TypedDict, total=False):
    """Filter of dead letters, which match all of its fields.

    Attributes:
        ids: Only these.
        kind: `run` or `request`.
        key: Only of this job.
        status: The run's final state: `failed` or `timed_out`.
        error_type: The error type of its last attempt.
        queue: Of this queue.
        lane: Of this lane.
        since: Created at this instant or later.
        until: Created at this instant or before.
        redriven: True for redriven ones only, False for all others.
    """

    ids: Sequence[int] | None
    kind: str | None
    key: str | None
    status: str | None
    error_type: str | None
    queue: str | None
    lane: str | None
    since: datetime | None
    until: datetime | None
    redriven: bool | None


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """A dead letter as lists show it.

    Args:
        id: Its id.
        kind: Its kind.
        run_id: The run; None for a message.
        key: Its job's key.
        job_id: Its job.
        status: The run's final state.
        cause: The run's cause.
        queue: The run's queue.
        lane: The run's lane.
        attempt: Its last attempt.
        error_type: The error type of that attempt.
        topic: The message's topic; None for a run.
        partition: Its partition.
        offset: Its offset.
        reason: The reason.
        created_at: When it was created.
        redriven_run_id: The new run after a redrive.
        redriven_at: When it was redriven: a new run was created, or the message was published again.
    """

    id: int
    kind: str
    run_id: UUID | None
    key: str | None
    job_id: UUID | None
    status: str | None
    cause: str | None
    queue: str | None
    lane: str | None
    attempt: int | None
    error_type: str | None
    topic: str | None
    partition: int | None
    offset: int | None
    reason: str
    created_at: datetime
    redriven_run_id: UUID | None
    redriven_at: datetime | None


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Dead letters, the newest first.

    Args:
        dead_letters: The page.
        next_cursor: The place to continue after; None on the last page. A page may be empty and have one.
        total: How many all pages have, or a lower bound.
        at_least: True if there may be more than `total`.
    """

    dead_letters: tuple[DeadLetterSummary, ...]
    next_cursor: Place | None
    total: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class DeadLetterDetail:
    """A dead letter with everything about it.

    Args:
        summary: The dead letter as in lists.
        run: The run with its attempts and retry chain; None for a message, and after the run's retention.
        message_key: The key of a message, byte for byte.
        message_value: Its value.
    """

    summary: DeadLetterSummary
    run: RunDetail | None
    message_key: bytes | None
    message_value: bytes | None


def list_dead_letters(
    connection: Conn, tenant: str, filters: DeadLetterFilter, *, after: Place | None = None, limit: int = 50
) -> DeadLetterPage:
    """Return a page of a tenant's dead letters, the newest first.

    A page looks at 20,000 dead letters at most. With a filter that few match, it may be short and have a cursor.

    Args:
        connection: Reads the rows.
        tenant: The tenant.
        filters: Only dead letters that match all of these.
        after: Begin after this place; its dead letter may be purged meanwhile.
        limit: How many at most.

    Raises:
        InvalidInput: There is no such tenant, kind, status or lane.
        UnknownJob: There is no such job and never was one.
    """
    columns = filter_columns(connection, tenant, filters) | {"look": LOOKED_AT, "limit": limit + 1} | _NEWEST
    counted = connection.execute(_COUNT_DEAD_LETTERS, columns, binary=True).fetchone()
    total, seen = cast("tuple[int, int]", counted)
    if after is not None:
        columns |= {"before_at": after[0], "before_id": after[1]}
    found = _list(connection, columns)
    last = found[limit - 1] if len(found) > limit else None
    return DeadLetterPage(
        dead_letters=tuple(found[:limit]),
        next_cursor=(last.created_at, last.id) if last else _last_looked_at(connection, columns),
        total=min(total, COUNTED),
        at_least=total > COUNTED or seen == LOOKED_AT,
    )


def kind_to_redrive(filters: DeadLetterFilter) -> str | None:
    """Return the kind of a redrive by a filter: runs, unless `kind` or `ids` name messages."""
    return filters.get("kind") or (None if filters.get("ids") else DeadLetterKind.RUN)


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
    key, value = row
    return DeadLetterDetail(
        summary=found[0],
        run=_run(connection, tenant, found[0].run_id),
        message_key=key if isinstance(key, bytes) else None,
        message_value=value if isinstance(value, bytes) else None,
    )


def require_dead_letters(connection: Conn, tenant: str, ids: Sequence[int]) -> None:
    """Check that a tenant has all of these dead letters.

    Raises:
        UnknownDeadLetter: It has no dead letter of one of these ids.
    """
    if not ids:
        return
    scan = _scan(connection, filter_columns(connection, tenant, {"ids": ids}), None, len(ids))
    if missing := set(ids) - {letter.id for letter in scan.letters}:
        raise UnknownDeadLetter(min(missing))


@dataclass(frozen=True, slots=True)
class DeadLetterSurvey:
    """Dead letters that match a filter, before they are redriven or purged.

    Args:
        counted: Their number, `COUNTED` at most, among the oldest half a million.
        at_least: True if there may be more.
        first: The oldest ten.
        newest_at: The creation of the newest one, or later; None without a match.
    """

    counted: int
    at_least: bool
    first: tuple[DeadLetterSummary, ...]
    newest_at: datetime | None


def survey_dead_letters(connection: Conn, tenant: str, filters: DeadLetterFilter) -> DeadLetterSurvey:
    """Count a tenant's dead letters, and return the oldest ones.

    Raises:
        InvalidInput: There is no such tenant, kind, status or lane.
        UnknownJob: There is no such job and never was one.
    """
    columns = filter_columns(connection, tenant, filters)
    found, complete = _oldest(connection, columns, COUNTED + 1)
    if complete and not found:
        return DeadLetterSurvey(0, at_least=False, first=(), newest_at=None)
    ids: DeadLetterFilter = {"ids": [letter.id for letter in found[:_SHOWN]]}
    first = _list(connection, {**filter_columns(connection, tenant, ids), **_NEWEST, "look": _SHOWN, "limit": _SHOWN})
    # By the filters of the index alone: a rare error would read all dead letters.
    newest = _list(connection, {**columns, **dict.fromkeys(_UNINDEXED), **_NEWEST, "look": 1, "limit": 1})
    at_least = len(found) > COUNTED or not complete
    return DeadLetterSurvey(min(len(found), COUNTED), at_least, tuple(reversed(first)), newest[0].created_at)


def scan_dead_letters(
    connection: Conn, tenant: str, filters: DeadLetterFilter, *, after: DeadLetterRef | None, limit: int
) -> LetterScan:
    """Look at the dead letters after one of them, the oldest first; return those that match.

    Raises:
        InvalidInput: There is no such tenant, kind, status or lane.
        UnknownJob: There is no such job and never was one.
    """
    return _scan(connection, filter_columns(connection, tenant, filters), after, limit)


def filter_columns(connection: Conn, tenant: str, filters: DeadLetterFilter) -> dict[str, object]:
    """Return the parameters of a filter in SQL.

    Raises:
        InvalidInput: There is no such tenant, kind, status or lane.
        UnknownJob: There is no such job and never was one.
    """
    require_tenant(connection, tenant)
    for path, allowed in _ALLOWED:
        value = filters.get(path)
        if value is not None and value not in allowed:
            refuse(path, f"{value!r} is not valid", f"write one of {', '.join(allowed)}")
    key = filters.get("key")
    if key is not None:
        read_job_position(connection, tenant, key)
    return {
        "tenant": tenant,
        "ids": None if (ids := filters.get("ids")) is None else list(ids),
        "kind": filters.get("kind"),
        "job_id": None if key is None else job_id(tenant, key),
        "status": filters.get("status"),
        "error_type": filters.get("error_type"),
        "queue": filters.get("queue"),
        "lane": filters.get("lane"),
        "since": filters.get("since") or EARLIEST,
        "until": filters.get("until") or _LATEST,
        "redriven": filters.get("redriven"),
    }


_ALLOWED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("kind", tuple(DeadLetterKind)),
    ("status", tuple(sorted(DEAD_LETTERED))),
    ("lane", tuple(Lane)),
)


def _oldest(connection: Conn, columns: Mapping[str, object], limit: int) -> tuple[list[DeadLetterRef], bool]:
    """Return the oldest dead letters that match, and True if it looked at all of them."""
    found: list[DeadLetterRef] = []
    after: DeadLetterRef | None = None
    for _ in range(_SURVEYED):
        scan = _scan(connection, columns, after, limit - len(found))
        found += scan.letters
        after = scan.last
        if after is None or len(found) == limit:
            break
    return found, after is None


def _scan(connection: Conn, columns: Mapping[str, object], after: DeadLetterRef | None, limit: int) -> LetterScan:
    place = {"after_at": EARLIEST, "after_id": 0}
    if after is not None:
        place = {"after_at": after.created_at, "after_id": after.id}
    return redrives.scan_dead_letters(connection, {**columns, **place, "limit": limit, "look": LOOKED_AT})


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
