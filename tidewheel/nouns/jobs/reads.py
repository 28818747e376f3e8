"""Read jobs: a page of a tenant's, or one with all its details.

The next occurrence is that of a run created ahead of its time. Without such a run it is the timer's instant, the first
without a record. With calendars, skips or moves it is the next occurrence that fires. A job that is paused, quarantined
or waiting for the end of its run has no next occurrence from its timer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Unpack, cast
from uuid import UUID

from psycopg.types.json import Jsonb

from tidewheel.control.reads.job_position import read_job_error, read_job_position
from tidewheel.control.reads.stored import UNREADABLE, documents_as, read_definition, read_stored_json, readable
from tidewheel.errors import UnknownJob
from tidewheel.ids import job_id
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.values import format_second
from tidewheel.nouns.freezes.reads import freezes_of
from tidewheel.nouns.jobs.model import JobDetail, JobFilter, JobPage, JobSummary, LastRun
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, read_row, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decision import HoldReason

_SQL = Statements("tidewheel.control")
_FIND_JOBS_OF_PAGE = _SQL["find_jobs_of_page"], _SQL["find_last_jobs_of_page"]

# Columns that records have as they are.
_OF_SUMMARY = ("key", "job_id", "version", "paused", "paused_until", "finished_at", "hold_reason")
_OF_DETAIL = ("effective_at", "created_at", "paused_by", "pause_reason", "paused_at", "consecutive_failures")
_OF_RUN = ("run_id", "state", "scheduled_at", "started_at", "reason", "error_type")

COUNTED = 10_000  # matches beyond this are not counted: no client pages through more
LOOKED_AT = 20_000  # rows of a page, matching or not: some tens of milliseconds
_READ_AT_ONCE = 250  # jobs
_PAGE_CHARACTERS = 1 << 20  # of labels and schedules: 64 labels have 20,000
LOOKED_AT_WITH_VERSIONS = 10_000  # each needs its row of job_versions


def list_jobs(
    connection: Conn, tenant: str, *, occurs: bool = False, after: str = "", limit: int = 50, last_first: bool = False,
    counts: bool = True, **filters: Unpack[JobFilter],
) -> JobPage:  # fmt: skip
    """Return a page of a tenant's jobs, in the order of their keys.

    A page looks at 20,000 jobs at most. With a filter that few match, it may be short, or empty, and have a cursor. It
    is also short if its labels and schedules have more than a million characters.

    Args:
        occurs: True for jobs whose schedule has a further occurrence only: no manual ones.
        last_first: True for the opposite order.
        counts: False for a page whose total is not read: then it is that of the jobs that were looked at.
        **filters: Without those that are None. `unwell` looks at the newest 500 failures of the last 7 days.
    """
    require_tenant(connection, tenant)
    given: dict[str, object] = {name: value for name, value in filters.items() if value is not None}
    prefix, labels = filters.get("prefix") or "", filters.get("labels") or {}
    columns = {
        **dict.fromkeys(JobFilter.__annotations__), **given, "tenant": tenant, "prefix": prefix,
        "beyond": _beyond(prefix), "labels": Jsonb(dict(labels)), "occurs": occurs,
        "last_first": last_first,
    }  # fmt: skip
    is_narrow = bool(labels) or occurs or not given.keys() <= {"prefix", "labels"}
    look = LOOKED_AT if not given.keys() & {"lane", "queue"} else min(LOOKED_AT, LOOKED_AT_WITH_VERSIONS)
    # Without a filter each row matches: none is read beyond those that are counted, and those of the page.
    paging = look if is_narrow else limit + 1
    counting = paging if is_narrow or not counts else max(COUNTED, limit) + 1
    counted = found = _find(connection, columns, "" if counts else after, limit=limit + 1, look=counting)
    if after and counts:
        found = _find(connection, columns, after, limit=limit + 1, look=paging)
    page, left, read = list[JobSummary](), _PAGE_CHARACTERS, 0
    while left > 0 and (part := found.job_ids[read : min(read + _READ_AT_ONCE, limit)]):
        rows = read_rows(connection, documents_as(JobSummary), _SQL["list_jobs"], {"job_ids": part})
        page += (_summary(connection, tenant, row) for row in (reversed(rows) if last_first else rows))
        left -= sum(len(str(row["labels"])) + len(row["schedule_json"]) for row in rows)
        read += len(part)
    return JobPage(
        jobs=tuple(page),
        next_cursor=page[-1].key if read < len(found.job_ids) else found.goes_on_after,
        total=min(counted.matching, COUNTED),
        at_least=counted.matching > COUNTED or counted.goes_on_after is not None,
    )


def jobs_of(connection: Conn, tenant: str, job_ids: Sequence[UUID]) -> list[JobSummary]:
    """Return these jobs of a tenant as lists show them, in the order of their keys."""
    rows = read_rows(connection, documents_as(JobSummary), _SQL["list_jobs"], {"job_ids": list(job_ids)})
    return [_summary(connection, tenant, row) for row in rows]


def find_unwell(connection: Conn, job_ids: Sequence[UUID]) -> set[UUID]:
    """Return those of some jobs that fail, as the filter `unwell` has them."""
    rows = connection.execute(_SQL["find_unwell"], {"job_ids": uuids(job_ids)}, binary=True).fetchall()
    return {job for (job,) in cast("list[tuple[UUID]]", rows)}


def list_children(connection: Conn, tenant: str, key: str, *, limit: int) -> list[str]:
    """Return the keys of the first jobs that follow a job in its workflow."""
    columns = {"job_id": job_id(tenant, key), "limit": limit}
    return [str(child) for (child,) in connection.execute(_SQL["list_children"], columns, binary=True)]


def read_plain_schedules(connection: Conn, job_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Return the stored schedules of those jobs whose timers fire each occurrence at its time."""
    rows = connection.execute(_SQL["read_plain_schedules"], {"job_ids": uuids(job_ids)}, binary=True).fetchall()
    return dict(cast("list[tuple[UUID, str]]", rows))


def show_job(connection: Conn, tenant: str, key: str, *, as_stored: bool = False) -> JobDetail:
    """Return one job; `as_stored` keeps the secrets in its URL and its zone, for a change of it."""
    from tidewheel.nouns.jobs.versions import keep_zone, submitted_job  # here: a list of jobs needs no codec

    row = read_row(connection, documents_as(JobSummary), _SQL["show_job"], {"job_id": job_id(tenant, key)})
    if row is None:
        deleted_at = read_job_position(connection, tenant, key).deleted_at
        raise UnknownJob(tenant, key, None if deleted_at is None else format_second(deleted_at))
    definition = read_definition(row["definition"], f"job {key}")
    held = row["hold_reason"] == HoldReason.QUARANTINED
    error, quarantined_at = (read_job_error(connection, row["job_id"]) if held else None) or (None, None)
    job = submitted_job(key, row["spec"], definition, as_stored=as_stored)
    return JobDetail(
        summary=_summary(connection, tenant, row),
        job=keep_zone(connection, tenant, job) if as_stored else job,
        error=error,
        quarantined_at=quarantined_at,
        freezes=freezes_of(connection, tenant, row["job_id"]),
        **{name: row[name] for name in _OF_DETAIL},
    )


def _beyond(prefix: str) -> str | None:
    """Return the first text after all keys with a prefix; None if there is none.

    >>> _beyond("job-"), _beyond("")
    ('job.', None)
    """
    rest = prefix.rstrip(chr(0x10FFFF))
    if not rest:
        return None
    after = ord(rest[-1]) + 1
    return rest[:-1] + chr(0xE000 if after == 0xD800 else after)


@dataclass(frozen=True, slots=True)
class _Found:
    """Result of a search: how many match, and the last key looked at if there may be more."""

    job_ids: Sequence[UUID]
    matching: int
    goes_on_after: str | None


def _find(connection: Conn, columns: Mapping[str, object], after: str, *, limit: int, look: int) -> _Found:
    last_first = bool(columns["last_first"])
    bound = {"beyond": after or columns["beyond"], "after": ""} if last_first else {"after": after}
    page = {**columns, **bound, "limit": limit, "look": look, "count_limit": COUNTED + 1}
    row = connection.execute(_FIND_JOBS_OF_PAGE[last_first], page, binary=True).fetchone()
    job_ids, matching, looked_at, last_seen = cast("tuple[list[UUID], int, int, str | None]", row)
    return _Found(job_ids, matching, last_seen if looked_at >= look else None)


def _next_at(connection: Conn, tenant: str, row: Mapping[str, Any]) -> tuple[datetime | None, datetime | None]:
    """Return the time of the next occurrence that fires, and the time by which its timer must be due."""
    if row["hold_reason"] is not None or not row["leaves_out"]:
        known = (row["ahead_at"], row["next_at"] if row["hold_reason"] is None else None)
        next_at = min((at for at in known if at is not None), default=None)
        return next_at, row["paused_until"] if row["hold_reason"] == HoldReason.PAUSE else row["next_at"]
    from tidewheel.control.explain.upcoming import next_times  # here: only jobs with calendars or overrides need it

    key: str = row["key"]
    return readable("schedule", f"job {key}", lambda: next_times(connection, tenant, key), (None, None))


def _summary(connection: Conn, tenant: str, row: Mapping[str, Any]) -> JobSummary:
    next_at, due = _next_at(connection, tenant, row)
    stored = read_stored_json("schedule", row["schedule_json"], f"job {row['key']}")
    schedule = as_object(stored) or {"kind": UNREADABLE}
    timezone = schedule.get("timezone")
    return JobSummary(
        kind=str(schedule.get("kind")),
        schedule=schedule,
        timezone=timezone if isinstance(timezone, str) else None,
        labels=row["labels"] or {},
        next_at=next_at,
        # Only firing sets a timer later than that, after a failure.
        postponed_until=row["due_at"] if row["due_at"] and due and row["due_at"] > due else None,
        last_run=_last_run(row),
        **{name: row[name] for name in _OF_SUMMARY},
    )


def _last_run(row: Mapping[str, Any]) -> LastRun | None:
    if row["run_id"] is None or row["state"] is None or row["scheduled_at"] is None:
        return None
    began, ended = row["started_at"], row["ended_at"]
    took = ended - began if ended and began else None
    return LastRun(finished_at=ended, duration=took, **{name: row[name] for name in _OF_RUN})
