"""`explain` without an instant: the last and the next occurrence, or all that did not fire."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from psycopg.rows import class_row

from tidewheel.control.explain.explain import explain
from tidewheel.control.explain.explanation import MISFIRE_AFTER, Explanation, OccurrenceOutcome
from tidewheel.control.reads.job_position import JobPosition, read_job_position
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState

_FIND_UNFIRED = Statements("tidewheel.control")["find_unfired"]
MAX_UNFIRED = 1_000
_HELD = (OccurrenceOutcome.PAUSED, OccurrenceOutcome.WAITING)


@dataclass(frozen=True, slots=True)
class Around:
    """The occurrences around the present; the words of `present` say why there is none."""

    key: str
    now: datetime
    last: Explanation | None
    next: Explanation | None
    present: Explanation


@dataclass(frozen=True, slots=True)
class Unfired:
    """An occurrence that did not fire, or a span of them.

    Args:
        at: Its nominal instant; of a span the first.
        last_at: The last instant of a span; the same as `at` for one occurrence.
        occurrences: How many.
        exact: False if there are more than that.
        reason: The ledger's word for the reason; `paused` or `waiting` if nothing is recorded yet.
        words: The reason in sentences, of the first.
    """

    at: datetime
    last_at: datetime
    occurrences: int
    exact: bool
    reason: str
    words: str


@dataclass(frozen=True, slots=True)
class UnfiredOccurrences:
    """The occurrences of a time that did not fire.

    Args:
        now: Its end: the database's clock.
        unfired: The newest first.
        any_due: True if an occurrence was due in that time; False if there was none to fire.
        words: Of the present instant: the reason why there is no occurrence.
    """

    key: str
    zone: str
    since: datetime
    now: datetime
    unfired: tuple[Unfired, ...]
    has_more: bool
    any_due: bool
    next_at: datetime | None
    words: str


def around(connection: Conn, tenant: str, key: str, *, misfire_after: timedelta = MISFIRE_AFTER) -> Around:
    """Explain the last due occurrence of a job and the next one."""
    now = read_job_position(connection, tenant, key).now

    def explained(at: datetime | None) -> Explanation | None:
        return None if at is None else explain(connection, tenant, key, at, misfire_after=misfire_after)

    present = explain(connection, tenant, key, now, misfire_after=misfire_after, unit=timedelta(0))
    last_due, following = _occurrences(present)
    last = present if last_due == now else explained(last_due)
    return Around(key, now, last, explained(following), present)


def _occurrences(present: Explanation) -> tuple[datetime | None, datetime | None]:
    """Return the last due occurrence and the next one; a job that never had one has runs alone."""
    if present.between_runs:
        return None, None
    is_due = present.outcome is not OccurrenceOutcome.NO_OCCURRENCE and present.version is not None
    return present.at if is_due else present.before, present.after


def unfired(
    connection: Conn,
    tenant: str,
    key: str,
    span: timedelta,
    *,
    limit: int = 50,
    misfire_after: timedelta = MISFIRE_AFTER,
) -> UnfiredOccurrences:
    """Return what did not fire in the last `span`, the newest first; a row may be many occurrences."""
    job = read_job_position(connection, tenant, key)
    since = job.now - span

    def words(at: datetime) -> Explanation:
        return explain(connection, tenant, key, at, misfire_after=misfire_after, unit=timedelta(0))

    found, has_more = unfired_between(connection, job, since, job.now, limit=limit, misfire_after=misfire_after)
    present = words(job.now)
    if job.cursor_at is not None and job.cursor_at <= job.now:
        held = words(job.cursor_at)
        if held.outcome in _HELD:
            last = present.before if present.before and present.before > held.at else held.at
            found.insert(0, Unfired(held.at, last, 1, last == held.at, held.outcome, held.words))
    last_due, following = _occurrences(present)
    any_due = bool(found) or (last_due is not None and last_due >= since)
    return UnfiredOccurrences(
        key, present.zone, since, job.now, tuple(found), has_more, any_due, next_at=following, words=present.words
    )


def unfired_between(
    connection: Conn, job: JobPosition, since: datetime, until: datetime, *, limit: int, misfire_after: timedelta
) -> tuple[list[Unfired], bool]:
    """Return the recorded occurrences that did not fire, the newest first; True if there are more."""
    columns: dict[str, object] = {
        "job_id": job.job_id, "since": since, "now": until, "skipped": RunState.SKIPPED, "limit": limit + 1
    }  # fmt: skip
    with connection.cursor(row_factory=class_row(Unfired), binary=True) as cursor:
        recorded = cursor.execute(_FIND_UNFIRED, columns).fetchall()
    found = [
        replace(each, words=explain(connection, job.tenant, job.key, each.at, misfire_after=misfire_after).words)
        for each in recorded[:limit]
    ]
    return found, len(recorded) > limit
