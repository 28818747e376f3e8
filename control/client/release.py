"""`client.release`: release quarantined jobs, by key, by error, or all.

Each batch is one transaction that locks the timers and releases those that are quarantined by then. So an interrupted
call can be repeated, and one that runs beside firing or an edit releases nothing twice.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.client.connection import Connection
from tidewheel.errors import UnknownJob, refuse
from tidewheel.ids import job_id
from tidewheel.intake.lifecycle import release_jobs
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
_FIND_QUARANTINED_JOBS = _SQL["find_quarantined_jobs"]
_FIND_JOBS = _SQL["find_jobs"]

_BATCH = 200  # jobs released in one transaction: some tens of milliseconds
_SHOWN = 10  # of a dry run
_FIRST = UUID(int=0)

OnProgress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class QuarantinedJob:
    """A quarantined job, with the error and the time of its quarantine."""

    job_id: UUID
    key: str
    error: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """Result of a release.

    Args:
        released: How many jobs were released; of a dry run 0.
        matched: How many quarantined jobs matched.
        first: The first ten of these.
    """

    released: int
    matched: int
    first: tuple[QuarantinedJob, ...]


def release(
    connection: Connection,
    keys: Sequence[str],
    *,
    error: str | None,
    everything: bool,
    dry_run: bool,
    on_progress: OnProgress | None = None,
) -> ReleaseResult:
    """Release quarantined jobs; see `Client.release`."""
    if not keys and error is None and not everything:
        refuse("KEY", "no job is selected", "write keys, an error, or all")
    ids = [job_id(connection.tenant, key) for key in keys]
    _refuse_unknown(connection, keys, ids)
    columns: dict[str, object] = {"tenant": connection.tenant, "job_ids": ids or None, "error": error, "limit": _BATCH}
    first: list[QuarantinedJob] = []
    matched = released = 0
    for batch in _scan(connection, columns):
        first += batch[: _SHOWN - len(first)]
        matched += len(batch)
        if not dry_run:
            released += connection.write(partial(_release, connection, [job.job_id for job in batch], released))
            connection.notify(Channel.TIMERS, Channel.OUTBOX)
        if on_progress is not None:
            on_progress(matched)
    return ReleaseResult(released, matched, tuple(first))


def _refuse_unknown(connection: Connection, keys: Sequence[str], ids: Sequence[UUID]) -> None:
    if not keys:
        return
    with connection.snapshot() as reading:
        known = {cast("UUID", job) for (job,) in reading.execute(_FIND_JOBS, {"job_ids": list(ids)}, binary=True)}
    for key, job in zip(keys, ids, strict=True):
        if job not in known:
            raise UnknownJob(connection.tenant, key)


def _scan(connection: Connection, columns: dict[str, object]) -> Generator[list[QuarantinedJob]]:
    after = _FIRST
    while True:
        with connection.snapshot() as reading, reading.cursor(row_factory=class_row(QuarantinedJob)) as cursor:
            found = cursor.execute(_FIND_QUARANTINED_JOBS, {**columns, "after": after}).fetchall()
        if not found:
            return
        after = found[-1].job_id
        yield found


def _release(over: Connection, ids: Sequence[UUID], before: int, connection: Conn) -> int:
    released = len(release_jobs(connection, over.installation, ids))
    if released:  # as batches of a purge
        over.record(connection, "job.release", "jobs", objects=released, adds_up=before > 0)
    return released
