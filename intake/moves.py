"""What becomes of moved occurrences when their job changes under them.

One whose own instant is ahead is an occurrence of the new version, or is forgotten. One whose own instant has passed is
owed: it fires where it was moved to by whatever version there is then; where nothing can, it is recorded as left out by
hand, so that no occurrence is without a record. Rows written: overrides, skips.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import cast
from uuid import UUID

from tidewheel.arrays import instants, integers, uuids
from tidewheel.db import Conn
from tidewheel.intake.locks import JobRow
from tidewheel.jobs.timestamps import format_timestamp
from tidewheel.metrics import metrics
from tidewheel.occurrences import Override, SkipReason
from tidewheel.outbox import append
from tidewheel.scheduler.recurrence.fixed_delay import FixedDelay
from tidewheel.scheduler.recurrence.kinds import Schedule
from tidewheel.scheduler.recurrence.once import Manual, Once
from tidewheel.scheduler.recurrence.without import is_occurrence
from tidewheel.sql import Statements
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.intake")
_READ_COMING_OVERRIDES = _SQL["read_coming_overrides"]
_FORGET_OVERRIDES = _SQL["forget_overrides"]
_GIVE_UP_MOVES = _SQL["give_up_moves"]


def read_coming_overrides(
    connection: Conn, job_ids: Sequence[UUID], now: datetime
) -> dict[UUID, dict[datetime, Override]]:
    """What was said about occurrences of locked jobs that are still to come, by job and instant, in their order."""
    columns = {"job_ids": uuids(job_ids), "now": now}
    rows = connection.execute(_READ_COMING_OVERRIDES, columns, binary=True).fetchall()
    found: dict[UUID, dict[datetime, Override]] = {job: {} for job in job_ids}
    for job, at, moved_to, done in cast("list[tuple[UUID, datetime, datetime | None, bool]]", rows):
        found[job][at] = Override(at, moved_to, done)
    return found


def fit_moves(
    connection: Conn, installation: Installation, changed: Mapping[UUID, tuple[JobRow, Schedule]], now: datetime
) -> None:
    """Fit what was moved to the new versions of settled jobs.

    Args:
        connection: In the transaction that has locked and settled the jobs.
        installation: Shards and topics.
        changed: By id, each job as it was, with its new version's schedule under its calendars.
        now: The database's clock.
    """
    if not changed:
        return
    gone: list[tuple[UUID, datetime]] = []
    given_up: list[tuple[JobRow, datetime]] = []
    for job_id, overrides in read_coming_overrides(connection, list(changed), now).items():
        job, schedule = changed[job_id]
        for at in _waiting(overrides):
            if is_occurrence(schedule, at):
                continue
            if at > now:
                gone.append((job_id, at))
            elif isinstance(schedule, Once | FixedDelay | Manual):
                given_up.append((job, at))
    forget_overrides(connection, gone)
    give_up_moves(connection, installation, given_up, now)


def forget_all(connection: Conn, installation: Installation, jobs: Sequence[JobRow], now: datetime) -> None:
    """Forget what was said about coming occurrences of settled jobs that are being deleted."""
    if not jobs:
        return
    found = read_coming_overrides(connection, [job.job_id for job in jobs], now)
    # What has fired ahead of its own instant stays: made again, the job must not fire it twice.
    ahead = [(job, at) for job, said in found.items() for at, each in said.items() if at > now and not each.done]
    forget_overrides(connection, ahead)
    passed = [(job, at) for job in jobs for at in _waiting(found[job.job_id]) if at <= now]
    give_up_moves(connection, installation, passed, now)


def forget_overrides(connection: Conn, gone: Sequence[tuple[UUID, datetime]]) -> None:
    """Say nothing about these occurrences any more."""
    if gone:
        columns = {"job_ids": uuids(job for job, _ in gone), "instants": instants(at for _, at in gone)}
        connection.execute(_FORGET_OVERRIDES, columns)


def give_up_moves(
    connection: Conn, installation: Installation, gone: Sequence[tuple[JobRow, datetime]], now: datetime
) -> None:
    """Record moved occurrences whose own instant has passed as left out by hand: they are not to fire any more."""
    if not gone:
        return
    columns: dict[str, object] = {
        "job_ids": uuids(job.job_id for job, _ in gone),
        "instants": instants(at for _, at in gone),
        "versions": integers(job.version for job, _ in gone),
        "reason": SkipReason.BY_HAND,
        "now": now,
    }
    connection.execute(_GIVE_UP_MOVES, columns)
    metrics.count("occurrences", len(gone), SkipReason.BY_HAND)
    events = [
        lifecycle_row(
            installation,
            kind="occurrence.skipped",
            tenant=job.tenant,
            job_id=job.job_id,
            job_key=job.key,
            job_version=job.version,
            shard=job.shard,
            now=now,
            reason=SkipReason.BY_HAND,
            detail={
                "first_at": format_timestamp(at),
                "last_at": format_timestamp(at),
                "occurrences": "1",
                "exact": "true",
            },
        )
        for job, at in gone
    ]
    append(connection, events, shards=installation.shards)


def _waiting(overrides: Mapping[datetime, Override]) -> list[datetime]:
    """The moved ones that have not fired."""
    return [at for at, each in overrides.items() if each.moved_to is not None and not each.done]
