"""`client.dead_letters`: list, count, show, redrive and purge dead letters; their records and reads.

A redrive and a purge are works. Each dead letter is redriven once: its new run is written in the transaction that locks
and marks it. A redriven run that fails again is a new dead letter, which the same redrive leaves alone.

An unreadable message belongs to the tenant of its topic, on a shared topic to the default tenant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, TypedDict, Unpack, cast
from uuid import UUID

from psycopg.rows import class_row
from pydantic import Field

from tidewheel.api_keys import Scope
from tidewheel.control.reads.job_position import read_job_position
from tidewheel.errors import UnknownDeadLetter, UnknownRun, refuse
from tidewheel.jobs.values import Instant, Key
from tidewheel.nouns.operation import DryRun, InDoors, Noun, Place, Rows, field_values, operation, reads
from tidewheel.nouns.runs.detail import show_run
from tidewheel.nouns.runs.model import ErrorType, OfLane, OfQueue, RunDetail
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.nouns.works.operations import (
    COUNTED,
    WORKS,
    Asked,
    Rate,
    Started,
    Survey,
    WorkReason,
    first_matches,
    start,
)
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.transitions import dead_letters as rows
from tidewheel.transitions.dead_letters import DeadLetterRef, LetterScan

_SQL = Statements("tidewheel.nouns.dead_letters")

LOOKED_AT = 20_000  # rows of one statement, matching or not: some tens of milliseconds
GROUPED = 10_000  # the newest dead letters: some tens of milliseconds
_GROUPS = 200
_SHOWN = 10  # of a dry run
_INDEXED = {"ids", "key", "since", "until"}

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)
_NEWEST: dict[str, object] = {"before_at": _LATEST, "before_id": (1 << 63) - 1}  # the place of the first page

Number = Annotated[int, Field(ge=1, le=2**63 - 1)]

_LETTERS = "/api/v1/dead-letters"

LettersRate = Annotated[
    Rate | None, Field(description="Maximum dead letters per second; without it there is no limit.")
]
Everything = Annotated[bool, InDoors("all"), Field(description="All dead letters; required without an id or a filter.")]


class DeadLetterFilter(TypedDict, total=False):
    """Filter of dead letters, which match all of its fields."""

    ids: Annotated[
        Annotated[Sequence[Number], Field(max_length=1000)] | None,
        Field(description="Only dead letters with these ids."),
    ]
    kind: Annotated[Literal["run", "message"] | None, Field(description="Only this kind.")]
    key: Annotated[Key | None, Field(description="Only those of the job with this key."), InDoors("job")]
    status: Annotated[Literal["failed", "timed_out"] | None, Field(description="Only runs in this final state.")]
    error_type: Annotated[ErrorType | None, Field(description="Only runs whose last attempt had this error type.")]
    queue: OfQueue
    lane: OfLane
    since: Annotated[Instant | None, Field(description="Created at this instant or later.")]
    until: Annotated[Instant | None, Field(description="Created at this instant or earlier.")]
    redriven: Annotated[bool | None, Field(description="Only redriven dead letters, or only the others.")]


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """A dead letter as lists show it."""

    id: Annotated[int, Field(description="Its id.")]
    kind: Annotated[str, Field(description="Its kind.")]
    run_id: Annotated[UUID | None, Field(description="The run; null for a message.")]
    key: Annotated[str | None, Field(description="Its job's key.")]
    job_id: Annotated[UUID | None, Field(description="Its job.")]
    status: Annotated[str | None, Field(description="The run's final state.")]
    cause: Annotated[str | None, Field(description="The run's cause.")]
    queue: Annotated[str | None, Field(description="The run's queue.")]
    lane: Annotated[str | None, Field(description="The run's lane.")]
    attempt: Annotated[int | None, Field(description="Its last attempt.")]
    error_type: Annotated[str | None, Field(description="The error type of that attempt.")]
    topic: Annotated[str | None, Field(description="The message's topic; null for a run.")]
    partition: Annotated[int | None, Field(description="Its partition.")]
    offset: Annotated[int | None, Field(description="Its offset.")]
    reason: Annotated[str, Field(description="The reason.")]
    created_at: Annotated[datetime, Field(description="When it was created.")]
    redriven_run_id: Annotated[UUID | None, Field(description="The new run after a redrive.")]
    redriven_at: Annotated[
        datetime | None,
        Field(description="When it was redriven: a new run was created, or the message was published again."),
    ]


@dataclass(frozen=True, slots=True)
class DeadLettersPage:
    """Dead letters, newest first; `at_least` is true if there are more than `total`."""

    dead_letters: tuple[DeadLetterSummary, ...]  # perhaps none before `next_cursor`: a page looks at so many at most
    next_cursor: Place | None
    total: int
    at_least: bool


def list_dead_letters(
    connection: Conn, tenant: str, *, after: Place | None = None, limit: Rows = 50, **filters: Unpack[DeadLetterFilter]
) -> DeadLettersPage:
    """List dead letters, newest first."""
    columns = filter_columns(connection, tenant, filters) | {"look": LOOKED_AT, "limit": limit + 1} | _NEWEST
    counted = connection.execute(_SQL["count_dead_letters"], columns, binary=True).fetchone()
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


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one cause."""

    kind: Annotated[str, Field(description="`run` or `message`.")]
    key: Annotated[str | None, Field(description="Their job's key; null for messages.")]
    job_id: Annotated[UUID | None, Field(description="Their job.")]
    error_type: Annotated[str | None, Field(description="The error type of their last attempts.")]
    status: Annotated[str | None, Field(description="The final state of their runs.")]
    count: Annotated[int, Field(description="Their number.")]
    first_at: Annotated[datetime, Field(description="The creation of the oldest one.")]
    last_at: Annotated[datetime, Field(description="The creation of the newest one.")]
    versions: Annotated[Sequence[int], Field(description="The versions of the job that the runs had, in order.")]
    current_version: Annotated[
        int | None, Field(description="The version that a new run gets; null if the job is deleted.")
    ]
    reason: Annotated[str, Field(description="The reason of the newest one.")]


@dataclass(frozen=True, slots=True)
class DeadLetterGroups:
    """Groups of dead letters, largest first."""

    groups: Annotated[tuple[DeadLetterGroup, ...], Field(description="The 200 largest.")]
    looked_at: Annotated[int, Field(description="How many of the newest dead letters were read.")]
    at_least: Annotated[bool, Field(description="True if there may be more dead letters.")]


def group_dead_letters(
    connection: Conn,
    tenant: str,
    *,
    since: Annotated[Instant | None, Field(description="Created at this instant or later.")] = None,
    redriven: Annotated[bool | None, Field(description="Only redriven dead letters, or only the others.")] = None,
) -> DeadLetterGroups:
    """Group the newest 10,000 dead letters by job, error type and final state, largest group first."""
    require_tenant(connection, tenant)
    columns = {"tenant": tenant, "since": since or EARLIEST, "redriven": redriven, "look": GROUPED, "limit": _GROUPS}
    found = connection.execute(_SQL["group_dead_letters"], columns, binary=True).fetchall()
    looked_at = cast("int", found[0][-1]) if found else 0
    groups = tuple(DeadLetterGroup(*cast("tuple[Any, ...]", row)[:-1]) for row in found)
    return DeadLetterGroups(groups, looked_at, at_least=looked_at >= GROUPED)


@dataclass(frozen=True, slots=True)
class DeadLetterDetail(DeadLetterSummary):
    """A dead letter with its run, or with its message."""

    run: RunDetail | None  # with its attempts and retry chain; None for a message, and after the run's retention
    message_key: bytes | None
    message_value: bytes | None


def show_dead_letter(
    connection: Conn, tenant: str, number: Annotated[Number, Field(description="The dead letter's id.")]
) -> DeadLetterDetail:
    """Show a dead letter: its run with attempts and retry chain, or its message."""
    columns = filter_columns(connection, tenant, {"ids": [number]})
    found = _list(connection, {**columns, **_NEWEST, "look": 1, "limit": 1})
    row = connection.execute(_SQL["read_dead_letter"], {"id": number, "tenant": tenant}, binary=True).fetchone()
    if not found or row is None:
        raise UnknownDeadLetter(number)
    key, value = cast("tuple[bytes | None, bytes | None]", row)
    run = _run(connection, tenant, found[0].run_id)
    return DeadLetterDetail(**field_values(found[0]), run=run, message_key=key, message_value=value)


def survey_dead_letters(connection: Conn, tenant: str, filters: DeadLetterFilter) -> Survey[DeadLetterSummary]:
    """Count a tenant's dead letters up to the newest one of now, and return the oldest ones."""
    if ids := filters.get("ids"):
        scan = scan_dead_letters(connection, filter_columns(connection, tenant, {"ids": ids}), None, len(ids))
        if missing := set(ids) - {letter.id for letter in scan.letters}:
            raise UnknownDeadLetter(min(missing))
    columns = filter_columns(connection, tenant, filters)
    found, complete = first_matches(partial(scan_dead_letters, connection, columns), COUNTED + 1)
    cursor = {"at": EARLIEST.isoformat(), "id": 0}
    if complete and not found:
        return Survey(0, at_least=False, first=(), filter={}, cursor=cursor)
    shown: DeadLetterFilter = {"ids": [letter.id for letter in found[:_SHOWN]]}
    first = _list(connection, {**filter_columns(connection, tenant, shown), **_NEWEST, "look": _SHOWN, "limit": _SHOWN})
    # By the filters of the index alone: a rare error would read all dead letters.
    others = dict.fromkeys(DeadLetterFilter.__annotations__.keys() - _INDEXED)
    newest = _list(connection, {**columns, **others, **_NEWEST, "look": 1, "limit": 1})
    # A run that is redriven now and fails again is a dead letter of a later time.
    stored = {**columns, "until": newest[0].created_at}
    return Survey(
        min(len(found), COUNTED), len(found) > COUNTED or not complete, tuple(reversed(first)),
        {name: value for name, value in stored.items() if name not in {"tenant", "key"}}, cursor,
    )  # fmt: skip


def scan_dead_letters(
    connection: Conn, columns: Mapping[str, object], after: DeadLetterRef | None, limit: int
) -> LetterScan:
    """Look at the dead letters after one of them, oldest first; return those that match."""
    place = {"after_at": EARLIEST, "after_id": 0}
    if after is not None:
        place = {"after_at": after.created_at, "after_id": after.id}
    return rows.scan_dead_letters(connection, {**columns, **place, "limit": limit, "look": LOOKED_AT})


def filter_columns(connection: Conn, tenant: str, filters: DeadLetterFilter) -> dict[str, object]:
    """Return the parameters of a filter in SQL."""
    require_tenant(connection, tenant)
    columns: dict[str, object] = dict.fromkeys(DeadLetterFilter.__annotations__) | filters
    key, ids = filters.get("key"), filters.get("ids")
    of_job = None if key is None else read_job_position(connection, tenant, key).job_id
    columns |= {"since": filters.get("since") or EARLIEST, "until": filters.get("until") or _LATEST}
    ids_or_none = None if ids is None else list(ids)
    return columns | {"tenant": tenant, "ids": ids_or_none, "job_id": of_job}


def _list(connection: Conn, columns: dict[str, object]) -> list[DeadLetterSummary]:
    return read_rows(connection, class_row(DeadLetterSummary), _SQL["list_dead_letters"], columns)


def _last_looked_at(connection: Conn, columns: Mapping[str, object]) -> Place | None:
    return cast("Place | None", connection.execute(_SQL["last_dead_letter_looked_at"], columns, binary=True).fetchone())


def _run(connection: Conn, tenant: str, run_id: UUID | None) -> RunDetail | None:
    if run_id is None:
        return None
    try:
        return show_run(connection, tenant, run_id)
    except UnknownRun:
        return None  # the partition of its day is dropped


@dataclass(frozen=True, slots=True)
class DeadLetterWork(Started):
    """A redrive or a purge that a call has started, or that its dry run would."""

    first: Annotated[tuple[DeadLetterSummary, ...], Field(description="Of a dry run: the first ten.")] = ()


class DeadLetters(Noun):
    """Dead letters: failed runs, and messages that are not requests."""

    list = operation(f"GET {_LETTERS}", "list_dead_letters", scope=Scope.READ, python_only=("ids",))(
        reads(list_dead_letters)
    )
    groups = operation(f"GET {_LETTERS}/groups", "group_dead_letters", scope=Scope.READ)(reads(group_dead_letters))
    get = operation(f"GET {_LETTERS}/{{number}}", "get_dead_letter", scope=Scope.READ)(reads(show_dead_letter))

    @operation(
        f"POST {_LETTERS}:redrive", "redrive_dead_letters", scope=Scope.OPERATE,
        python_only=("redriven", "request_id"), starts=WORKS, sent={"error_type": "TimeoutError", "rate": 10},
    )  # fmt: skip
    def redrive(
        self,
        *,
        rate: LettersRate = None,
        dry_run: DryRun = False,
        everything: Everything = False,
        reason: WorkReason = None,
        request_id: str | None = None,
        **filters: Unpack[DeadLetterFilter],
    ) -> DeadLetterWork:
        """Redrive dead letters, oldest first: schedulers create new runs, or publish messages again.

        Without a kind or ids of messages, only runs are redriven. The work continues after the caller exits. It skips
        dead letters that were already redriven, and newer ones.
        """
        _ensure_selected(filters, chosen=everything or dry_run)
        kind = filters.get("kind") or (None if filters.get("ids") else "run")
        filters = {**filters, "redriven": False, "kind": kind}
        return self._start("dlq.redrive", filters, Asked(rate, reason, request_id, dry_run=dry_run))

    @operation(
        f"POST {_LETTERS}:purge", "purge_dead_letters", scope=Scope.OPERATE, python_only=("request_id",), starts=WORKS,
        danger="a deleted dead letter cannot be redriven", sent={"job": "nightly", "redriven": True},
    )  # fmt: skip
    def purge(
        self,
        *,
        rate: LettersRate = None,
        dry_run: DryRun = False,
        everything: Everything = False,
        reason: WorkReason = None,
        request_id: str | None = None,
        **filters: Unpack[DeadLetterFilter],
    ) -> DeadLetterWork:
        """Delete dead letters, oldest first; their runs are kept.

        Schedulers delete the dead letters. The work continues after the caller exits, and skips newer dead letters.
        """
        _ensure_selected(filters, chosen=everything or dry_run)
        return self._start("dlq.purge", filters, Asked(rate, reason, request_id, dry_run=dry_run))

    def _start(self, action: str, filters: DeadLetterFilter, asked: Asked) -> DeadLetterWork:
        survey = partial(survey_dead_letters, tenant=self._call.tenant, filters=filters)
        return start(self._call, action, asked, survey, DeadLetterWork)


def _ensure_selected(filters: DeadLetterFilter, *, chosen: bool) -> None:
    if not chosen and all(value is None for value in filters.values()):
        refuse("ids", "no dead letter is selected", "give ids, a filter or `all` (`everything` in Python)")
