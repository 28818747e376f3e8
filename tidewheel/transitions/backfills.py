"""What accepting a backfill and making its runs have in common: versions in force, what is missing, events.

A backfill's row is written by `tidewheel.intake` (accepted, paused, resumed, cancelled) and by `tidewheel.scheduler`
(its runs are made, it ends), both under its lock, which is taken before those of jobs and open runs.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import first_run_id
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import append
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.transitions")
_READ_VERSIONS_IN_FORCE = _SQL["read_versions_in_force"]
_READ_ONE_VERSION = _SQL["read_one_version"]
_READ_UNDECIDED = _SQL["read_undecided"]
_READ_RECORDED = _SQL["read_recorded"]

MOST_VERSIONS = 1000
"""Versions in force in one range: a deploy a day for almost three years."""

_UNDONE = [RunState.SKIPPED, RunState.CANCELLED]


@dataclass(frozen=True, slots=True)
class VersionInForce:
    """A job version and when it was in force: later than `after`, not later than `until`; None is no bound."""

    version: int
    schedule: str
    policy: str
    after: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class CoveredInstants:
    """The instants of a range that are not missing: those with a run, and those whose outcome is still to come.

    Args:
        recorded: Instants with a run, or moved to a time at which they have not fired yet.
        undecided_from: From here on the job's timer has not said what becomes of its instants.
    """

    recorded: frozenset[datetime]
    undecided_from: datetime | None

    def __contains__(self, at: datetime) -> bool:
        return at in self.recorded or (self.undecided_from is not None and at >= self.undecided_from)

    @property
    def nothing(self) -> bool:
        """Whether every instant is missing."""
        return not self.recorded and self.undecided_from is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A backfill's row.

    Args:
        backfill_id: Its id.
        tenant: The job's.
        job_id: The job.
        shard: The job's.
        job_version: The one that was current when it was accepted.
        state: A `BackfillState`.
        first_at: The first instant of its range.
        last_at: The last.
        what: `missing_only` or `all`.
        versions: `as_of` or `current`.
        overlap: In place of the job's policy.
        newest_first: Whether the last instant comes first.
        max_concurrent: How many of its runs may be open at once.
        occurrences: How many the range held when it was accepted.
        wanted: How many of them were to be run then.
        cursor_at: The next instant to look at; None when none is left.
        request_id: The request's.
        traceparent: The request's.
        reason: Why it was made, paused or cancelled.
        created_at: In whole milliseconds; in the ids of its runs, and of no other's.
        made: How many runs were made.
        passed_over: How many instants were not missing.
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
    wanted: int
    cursor_at: datetime | None
    request_id: str | None
    traceparent: str | None
    reason: str | None
    created_at: datetime
    made: int = 0
    passed_over: int = 0


def read_versions(
    connection: Conn, job_id: UUID, *, version: int | None, first: datetime, last: datetime
) -> list[VersionInForce]:
    """The versions that count in a range, by time, ascending; of more than `MOST_VERSIONS` one more than that.

    Args:
        connection: To read by.
        job_id: The job.
        version: The one that counts throughout; None: those in force.
        first: Where the range begins.
        last: Where it ends.
    """
    columns = {"job_id": job_id, "version": version, "first": first, "last": last, "most": MOST_VERSIONS + 1}
    with connection.cursor(row_factory=class_row(VersionInForce), binary=True) as cursor:
        return cursor.execute(_READ_VERSIONS_IN_FORCE if version is None else _READ_ONE_VERSION, columns).fetchall()


def read_covered_instants(connection: Conn, job_id: UUID, first: datetime, last: datetime) -> CoveredInstants:
    """What is not missing of a past range, both ends of which belong to it.

    An instant is there when a timer or a backfill has made a run for it that was not skipped or cancelled, whether it
    has ended or not.
    """
    # The timer first: what it moves past meanwhile has its run before the second statement looks.
    row = connection.execute(_READ_UNDECIDED, {"job_id": job_id}, binary=True).fetchone()
    undecided_from = row[0] if row and isinstance(row[0], datetime) and row[0] <= last else None
    columns = {
        "job_id": job_id, "first": first, "last": last, "first_run_id": first_run_id(first), "undone": _UNDONE
    }  # fmt: skip
    rows = connection.execute(_READ_RECORDED, columns, binary=True).fetchall()
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
    """Write the lifecycle event of a backfill that something has happened to."""
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
            "made": str(backfill.made),
            "passed_over": str(backfill.passed_over),
        },
    )
    append(connection, [event], shards=installation.shards)
