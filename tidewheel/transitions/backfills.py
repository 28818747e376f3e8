"""Backfills for intake and scheduler: the row, versions in force, missing occurrences, events.

Intake writes a backfill's row when it accepts, pauses, resumes or cancels it. The scheduler writes it when it creates
runs and when the backfill ends. Both hold the row's lock, which they acquire before those of jobs and open runs.
An intake batch does so within each group of neighbours: a batch of several groups can deadlock, and is repeated.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import append
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.transitions")

MAX_VERSIONS = 1000
"""Versions in force in one range: a deploy a day for almost three years."""

_UNDONE = [RunState.SKIPPED, RunState.CANCELLED]


@dataclass(frozen=True, slots=True)
class VersionInForce:
    """A job version in force later than `after`, not later than `until`; None is no bound."""

    version: int
    schedule_json: str
    policy_json: str
    after: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class CoveredInstants:
    """The occurrences of a range that are not missing: they have a run, or are not decided yet.

    Args:
        recorded: Times with a run, or moved to a later time at which they have not fired yet.
        undecided_from: The time from which the job's timer has not decided.
    """

    recorded: frozenset[datetime]
    undecided_from: datetime | None

    def __contains__(self, at: datetime) -> bool:
        return at in self.recorded or (self.undecided_from is not None and at >= self.undecided_from)

    @property
    def is_empty(self) -> bool:
        """True if every occurrence is missing."""
        return not self.recorded and self.undecided_from is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A backfill's row.

    Args:
        job_version: The version that was current when the backfill was accepted.
        state: A `BackfillState`.
        what: `missing_only` or `all`.
        versions: `as_of` or `current`.
        occurrences: The number of occurrences in the range when it was accepted.
        cursor_at: The next time to decide; None if none is left.
        requested_from: Coordinates of the request's message; None if it did not come through Kafka.
        created_at: In whole milliseconds; part of the ids of its runs, and of no other backfill's.
        existing_count: The number of occurrences that were not missing.
    """

    backfill_id: UUID
    tenant: str
    job_id: UUID
    shard: int
    job_version: int
    state: str
    first_at: datetime
    last_at: datetime
    what: str
    versions: str
    overlap: str | None
    newest_first: bool
    max_concurrent: int
    occurrences: int
    expected_count: int
    cursor_at: datetime | None
    request_id: str | None
    requested_from: str | None
    traceparent: str | None
    reason: str | None
    created_at: datetime
    created_count: int = 0
    existing_count: int = 0


def read_versions(
    connection: Conn, job_id: UUID, *, version: int | None, first: datetime, last: datetime
) -> list[VersionInForce]:
    """Return the versions for a range by time, or one version for all of it; at most `MAX_VERSIONS` + 1."""
    columns = {"job_id": job_id, "version": version, "first": first, "last": last, "limit": MAX_VERSIONS + 1}
    with connection.cursor(row_factory=class_row(VersionInForce), binary=True) as cursor:
        return cursor.execute(
            _SQL["read_versions_in_force"] if version is None else _SQL["read_one_version"], columns
        ).fetchall()


def read_covered_instants(connection: Conn, job_id: UUID, first: datetime, last: datetime) -> CoveredInstants:
    """Return the occurrences of a past range that are not missing; both ends belong to the range.

    An occurrence is not missing if a timer or a backfill has created a run for it that was neither skipped nor
    cancelled, ended or not.
    """
    # The timer first: an occurrence that it fires meanwhile has its run before the second statement reads.
    row = connection.execute(_SQL["read_undecided"], {"job_id": job_id}, binary=True).fetchone()
    undecided_from = row[0] if row and isinstance(row[0], datetime) and row[0] <= last else None
    columns = {"job_id": job_id, "first": first, "last": last, "undone": _UNDONE}
    rows = connection.execute(_SQL["read_recorded"], columns, binary=True).fetchall()
    return CoveredInstants(frozenset(at for (at,) in rows if isinstance(at, datetime)), undecided_from)


def append_backfill_event(
    connection: Conn,
    installation: Installation,
    kind: str,
    backfill: Backfill,
    *,
    job_key: str,
    now: datetime,
    reason: str | None = None,
) -> None:
    """Append the lifecycle event of a backfill that has changed."""
    event = lifecycle_row(
        installation,
        kind=kind,
        tenant=backfill.tenant,
        job_id=backfill.job_id,
        job_key=job_key,
        job_version=backfill.job_version,
        shard=backfill.shard,
        now=now,
        reason=reason,
        detail={
            "backfill_id": str(backfill.backfill_id),
            "first_at": format_timestamp(backfill.first_at),
            "last_at": format_timestamp(backfill.last_at),
            "occurrences": str(backfill.occurrences),
            "created_count": str(backfill.created_count),
            "existing_count": str(backfill.existing_count),
        },
    )
    append(connection, [event], shards=installation.shards)
