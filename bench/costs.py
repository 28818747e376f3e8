"""What single parts of a run's rows cost: open_runs, the second index of job_runs, attempts; each left out in turn."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import LiteralString
from uuid import UUID, uuid4

from tidewheel.bench.stage import Stage
from tidewheel.clock import monotonic_seconds
from tidewheel.ids import JobId, run_id
from tidewheel.postgres.partitions import day_of, ensure_days
from tidewheel.postgres.session import Conn
from tidewheel.runs import Cause

ROWS = 100_000
BATCH = 2000
_AT = datetime(2026, 11, 20, 12, tzinfo=UTC)

_JOB_RUNS = (
    "COPY job_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, created_at) "
    "FROM STDIN (FORMAT BINARY)"
)
_OPEN_RUNS = (
    "COPY open_runs (run_id, job_id, tenant, shard, queue, lane, handler, cause, overlap, state, job_version, "
    "scheduled_at, publish_at, created_at) FROM STDIN (FORMAT BINARY)"
)
_ATTEMPTS = (
    "COPY attempts (run_id, attempt, tenant, executor_id, started_at, finished_at, outcome, claimed_from) "
    "FROM STDIN (FORMAT BINARY)"
)


def measure(stage: Stage) -> dict[str, float]:
    """Microseconds per row of each part, by COPY in commits of 2,000 on one connection; and of a claim and an end."""
    with stage.connect() as connection:
        ensure_days(connection, [day_of(_AT)])
        connection.commit()
        jobs = [JobId(uuid4()) for _ in range(ROWS)]
        runs = [run_id(job, _AT, Cause.TIMER) for job in jobs]
        executor, by = uuid4(), "tidewheel.runs.standard/7/123456@1795167546000"
        job_run = [
            (r, j, "default", 1, 7, "timer", "default", "standard", _AT, _AT) for r, j in zip(runs, jobs, strict=True)
        ]
        open_run = [
            (r, j, "default", 7, "default", "standard", "noop", "timer", "skip", "queued", 1, _AT, _AT, _AT)
            for r, j in zip(runs, jobs, strict=True)
        ]
        attempt = [(r, 1, "default", executor, _AT, _AT, "succeeded", by) for r in runs]
        figures = {"job_runs_us": _copy(connection, _JOB_RUNS, job_run)}
        connection.execute("TRUNCATE job_runs")
        connection.execute("DROP INDEX job_runs_by_job")
        connection.commit()
        figures["job_runs_without_second_index_us"] = _copy(connection, _JOB_RUNS, job_run)
        connection.execute("CREATE INDEX job_runs_by_job ON job_runs (job_id, scheduled_at)")
        connection.commit()
        figures["open_runs_us"] = _copy(connection, _OPEN_RUNS, open_run)
        claim = {"by": by, "me": executor}
        figures["claim_us"] = _batches(runs, lambda part: connection.execute(_CLAIM, {"runs": part, **claim}))
        connection.commit()
        figures["end_open_run_us"] = _batches(runs, lambda part: connection.execute(_END, {"runs": part}))
        connection.commit()
        figures["attempts_us"] = _copy(connection, _ATTEMPTS, attempt)
        figures["finish_job_run_us"] = _batches(
            runs, lambda part: connection.execute(_FINISH, {"runs": part, "at": _AT})
        )
        connection.commit()
    return figures


_CLAIM = (
    "UPDATE open_runs SET state = 'running', attempt = attempt + 1, executor_id = %(me)s, claimed_from = %(by)s,"
    " started_at = tidewheel_now() WHERE run_id = ANY (%(runs)s)"
)
_END = "DELETE FROM open_runs WHERE run_id = ANY (%(runs)s)"
_FINISH = (
    "UPDATE job_runs SET state = 'succeeded', attempt = 1, started_at = %(at)s, finished_at = %(at)s "
    "WHERE run_id = ANY (%(runs)s)"
)


def _copy(connection: Conn, statement: LiteralString, rows: Sequence[tuple[object, ...]]) -> float:
    started = monotonic_seconds()
    for batch in range(0, ROWS, BATCH):
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(_TYPES[statement])
            for row in rows[batch : batch + BATCH]:
                copy.write_row(row)
        connection.commit()
    return (monotonic_seconds() - started) / ROWS * 1e6


def _batches(runs: Sequence[UUID], execute: Callable[[list[UUID]], object]) -> float:
    started = monotonic_seconds()
    for batch in range(0, ROWS, BATCH):
        execute(list(runs[batch : batch + BATCH]))
    return (monotonic_seconds() - started) / ROWS * 1e6


_TYPES = {
    _JOB_RUNS: ["uuid", "uuid", "text", "int4", "int2", "text", "text", "text", "timestamptz", "timestamptz"],
    _OPEN_RUNS: ["uuid", "uuid", "text", "int2"] + ["text"] * 6 + ["int4"] + ["timestamptz"] * 3,
    _ATTEMPTS: ["uuid", "int4", "text", "uuid", "timestamptz", "timestamptz", "text", "text"],
}
