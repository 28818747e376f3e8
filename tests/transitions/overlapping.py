"""Runs of one job, of any cause, that would overlap."""

from datetime import datetime, timedelta
from uuid import UUID

from tests.fixtures.database import Database
from tidewheel.ids import JobId, RunId, job_id, run_id
from tidewheel.runs import Cause, Overlap
from tidewheel.transitions.claim import Started
from tidewheel.transitions.create import create_runs
from tidewheel.transitions.new_runs import NewRun

JOB = job_id("default", "job")


def make(
    database: Database, overlap: str, cause: Cause = Cause.TRIGGER, *, key: str = "job", at: datetime | None = None
) -> RunId:
    """Create a run that is due now; runs of one job are a millisecond apart, in order."""
    job = job_id("default", key)
    [(version, shard, handler, queue, lane, definition, made)] = database.rows(
        "SELECT v.version, j.shard, v.handler, v.queue, v.lane, v.definition,"
        " (SELECT count(*) FROM runs WHERE job_id = j.job_id)"
        "  FROM jobs AS j JOIN job_versions AS v USING (job_id, version) WHERE job_id = %s",
        [job],
    )
    now = database.now()
    nominal = at or now + timedelta(milliseconds=made)
    made_of = run_id(job, nominal, cause, at=now)
    run = NewRun(
        made_of, JobId(job), "default", version, shard, cause, queue, lane, handler, overlap, nominal, now, definition
    )
    with database.transaction() as connection:
        assert create_runs(connection, database.installation, [run], now=now) == {run.run_id}
    return run.run_id


def holding(database: Database, *, key: str = "job") -> Started:
    return database.begin(make(database, Overlap.SKIP, key=key))


def waiting(database: Database, job: UUID = JOB) -> bool | None:
    found = database.rows("SELECT has_waiters FROM active_runs WHERE job_id = %s", [job])
    return found[0][0] if found else None


def signals(database: Database) -> list[tuple[UUID, int, str, UUID]]:
    rows = database.rows("SELECT run_id, attempt, kind, executor_id FROM signals ORDER BY created_at")
    return [(run, attempt, kind, executor) for run, attempt, kind, executor in rows]
