"""Read, delete and drop the overrides of jobs that change.

When a job changes, a moved occurrence whose own instant is in the future belongs to the new version, or is deleted.
One whose own instant has passed is still due: the version in force fires it at the time it was moved to. If no version
can, it is recorded as skipped by request, so that each occurrence has a record. Rows written: overrides, skips.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import cast
from uuid import UUID

from tidewheel.intake.locks import JobRow
from tidewheel.intake.writing import Writing
from tidewheel.postgres.pg_binary import instants, integers, uuids
from tidewheel.postgres.session import Conn, at_commit
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.schedules.calendars import is_occurrence
from tidewheel.schedules.decision import Override, Skip, SkipReason
from tidewheel.schedules.schedule import FixedDelay, Manual, Once, Schedule
from tidewheel.transitions.events import skip_event

_SQL = Statements("tidewheel.intake")
_READ_UPCOMING_OVERRIDES = _SQL["read_upcoming_overrides"]
_DELETE_OVERRIDES = _SQL["delete_overrides"]
_DROP_MOVES = _SQL["drop_moves"]


def read_upcoming_overrides(
    connection: Conn, job_ids: Sequence[UUID], now: datetime
) -> dict[UUID, dict[datetime, Override]]:
    """Return the overrides of upcoming occurrences of locked jobs, by job and instant, in their order."""
    columns = {"job_ids": uuids(job_ids), "now": now}
    rows = connection.execute(_READ_UPCOMING_OVERRIDES, columns, binary=True).fetchall()
    found: dict[UUID, dict[datetime, Override]] = {job: {} for job in job_ids}
    for job, at, moved_to, done in cast("list[tuple[UUID, datetime, datetime | None, bool]]", rows):
        found[job][at] = Override(at, moved_to, done)
    return found


def fit_moves(writing: Writing, changed: Mapping[UUID, tuple[JobRow, Schedule]], now: datetime) -> None:
    """Delete or drop the moved occurrences that the new versions of jobs do not have.

    Args:
        changed: Each job's old row, with the schedule of its new version under its calendars, by id.
    """
    if not changed:
        return
    deleted: list[tuple[UUID, datetime]] = []
    dropped: list[tuple[JobRow, datetime]] = []
    for job_id, overrides in read_upcoming_overrides(writing.connection, list(changed), now).items():
        job, schedule = changed[job_id]
        for at in lost_moves(overrides, schedule, now):
            if at > now:
                deleted.append((job_id, at))
            else:
                dropped.append((job, at))
    delete_overrides(writing, deleted)
    drop_moves(writing, dropped, now)


def lost_moves(overrides: Mapping[datetime, Override], schedule: Schedule, now: datetime) -> list[datetime]:
    """Return the instants of moved occurrences that have not fired, and never fire by a new schedule."""
    alone = isinstance(schedule, Once | FixedDelay | Manual)
    return [at for at in _pending_moves(overrides) if (at > now or alone) and not is_occurrence(schedule, at)]


def delete_all_overrides(writing: Writing, jobs: Sequence[JobRow], now: datetime) -> None:
    """Delete the overrides of upcoming occurrences of jobs that are being deleted."""
    if not jobs:
        return
    found = read_upcoming_overrides(writing.connection, [job.job_id for job in jobs], now)
    # An occurrence that fired before its own instant keeps its override: a job created again must not fire it twice.
    ahead = [
        (job, at) for job, overrides in found.items() for at, each in overrides.items() if at > now and not each.done
    ]
    delete_overrides(writing, ahead)
    passed = [(job, at) for job in jobs for at in _pending_moves(found[job.job_id]) if at <= now]
    drop_moves(writing, passed, now)


def delete_overrides(writing: Writing, gone: Sequence[tuple[UUID, datetime]]) -> None:
    """Delete the overrides of these occurrences."""
    if gone:
        writing.execute(
            _DELETE_OVERRIDES, job_ids=uuids(job for job, _ in gone), instants=instants(at for _, at in gone)
        )


def drop_moves(writing: Writing, gone: Sequence[tuple[JobRow, datetime]], now: datetime) -> None:
    """Record moved occurrences whose own instant has passed as skipped by request."""
    if not gone:
        return
    writing.execute(
        _DROP_MOVES,
        job_ids=uuids(job.job_id for job, _ in gone),
        instants=instants(at for _, at in gone),
        versions=integers(job.version for job, _ in gone),
        reason=SkipReason.MANUAL,
        now=now,
    )
    at_commit(writing.connection, partial(metrics.count, "occurrences", len(gone), SkipReason.MANUAL))
    skips = ((job, Skip(SkipReason.MANUAL, at, at, 1)) for job, at in gone)
    writing.append([skip_event(writing.installation, job, job.key, skip, now) for job, skip in skips])


def _pending_moves(overrides: Mapping[datetime, Override]) -> list[datetime]:
    """Return the instants of the moved occurrences that have not fired."""
    return [at for at, each in overrides.items() if each.moved_to is not None and not each.done]
