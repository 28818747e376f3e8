"""`costs`, `ledger`: the cost of single parts of a run's rows, each left out in turn.

The parts are job_runs, finished_runs and its second index, and attempts. `ledger` has the cost of a fired occurrence,
of a span passed over and of a run that overlap skips.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import LiteralString, cast
from uuid import UUID, uuid4

from tidewheel.bench.environment import Environment
from tidewheel.bench.load import database_now, load_jobs
from tidewheel.clock import monotonic_seconds
from tidewheel.ids import JobId, run_id
from tidewheel.postgres.partitions import day_of, ensure_days
from tidewheel.postgres.session import Conn, Session
from tidewheel.runs import Cause
from tidewheel.scheduler.firing import FireBatch, fire
from tidewheel.transitions.claim import Claim, claim_runs

ROWS = 100_000
BATCH = 2000
_AT = datetime(2026, 11, 20, 12, tzinfo=UTC)

_FINISHED_RUNS = (
    "COPY finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at, "
    "created_at, started_at, finished_at, state, attempt) FROM STDIN (FORMAT BINARY)"
)
_JOB_RUNS = (
    "COPY job_runs (run_id, job_id, tenant, shard, queue, lane, handler, cause, overlap, state, job_version, "
    "scheduled_at, publish_at, created_at) FROM STDIN (FORMAT BINARY)"
)
_ATTEMPTS = (
    "COPY attempts (run_id, attempt, tenant, executor_id, started_at, finished_at, outcome, claimed_from) "
    "FROM STDIN (FORMAT BINARY)"
)


def measure(environment: Environment) -> dict[str, float]:
    """Measure microseconds per row of each part by COPY, and of a claim and an end."""
    with environment.connect() as connection:
        ensure_days(connection, [day_of(_AT)])
        connection.commit()
        jobs = [JobId(uuid4()) for _ in range(ROWS)]
        runs = [run_id(job, _AT, Cause.TIMER) for job in jobs]
        executor, by = uuid4(), "tidewheel.runs.standard/7/123456@1795167546000"
        finished_run = [
            (r, j, "default", 1, 7, "timer", "default", "standard", _AT, _AT, _AT, _AT, _AT, "succeeded", 1)
            for r, j in zip(runs, jobs, strict=True)
        ]
        job_run = [
            (r, j, "default", 7, "default", "standard", "noop", "timer", "skip", "queued", 1, _AT, _AT, _AT)
            for r, j in zip(runs, jobs, strict=True)
        ]
        attempt = [(r, 1, "default", executor, _AT, _AT, "failed", by) for r in runs]
        figures = {"finished_runs_us": _copy(connection, _FINISHED_RUNS, finished_run)}
        connection.execute("TRUNCATE finished_runs")
        connection.execute("DROP INDEX finished_runs_by_job")
        connection.commit()
        figures["finished_runs_without_second_index_us"] = _copy(connection, _FINISHED_RUNS, finished_run)
        connection.execute("TRUNCATE finished_runs")
        connection.execute("CREATE INDEX finished_runs_by_job ON finished_runs (job_id, scheduled_at)")
        connection.commit()
        figures["job_runs_us"] = _copy(connection, _JOB_RUNS, job_run)
        claim = {"by": by, "me": executor}
        figures["claim_us"] = _batches(runs, lambda part: connection.execute(_CLAIM, {"runs": part, **claim}))
        connection.commit()
        figures["end_us"] = _batches(runs, lambda part: connection.execute(_END, {"runs": part, "at": _AT}))
        connection.commit()
        figures["attempts_us"] = _copy(connection, _ATTEMPTS, attempt)
    return figures


_CLAIM = (
    "UPDATE job_runs SET state = 'running', attempt = attempt + 1, executor_id = %(me)s, claimed_from = %(by)s,"
    " started_at = tidewheel_now() WHERE run_id = ANY (%(runs)s)"
)
_END = (
    "WITH gone AS (DELETE FROM job_runs WHERE run_id = ANY (%(runs)s) RETURNING *)"
    " INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at,"
    " publish_at, created_at, started_at, finished_at, state, attempt)"
    " SELECT run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at, created_at,"
    " started_at, %(at)s, 'succeeded', attempt FROM gone"
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
    _FINISHED_RUNS: ["uuid", "uuid", "text", "int4", "int2"] + ["text"] * 3 + ["timestamptz"] * 5 + ["text", "int4"],
    _JOB_RUNS: ["uuid", "uuid", "text", "int2"] + ["text"] * 6 + ["int4"] + ["timestamptz"] * 3,
    _ATTEMPTS: ["uuid", "int4", "text", "uuid", "timestamptz", "timestamptz", "text", "text"],
}


JOBS = 50_000
_BEHIND = timedelta(hours=1)
_EVERY = timedelta(seconds=1)


def measure_ledger(environment: Environment) -> dict[str, float]:
    """Fire jobs on time, skip their runs by overlap, then pass over an hour of their occurrences."""
    session = Session(environment.url, "tidewheel-bench")
    with environment.connect() as connection:
        now = database_now(connection)
        load_jobs(connection, environment.installation, JOBS, due_at=now, prefix="time")
    look = FireBatch(
        shards=range(environment.installation.shards),
        now=now + _EVERY,
        horizon=now + _EVERY,
        misfire_after=timedelta(seconds=60),
        limit=BATCH,
    )
    figures = {"fired_us": _fire_all(session, environment, look) / JOBS * 1e6}
    with environment.connect() as connection:
        figures["overlap_skip_us"] = _skip_by_overlap(connection, environment)
        load_jobs(
            connection,
            environment.installation,
            JOBS,
            due_at=now - _BEHIND,
            every=_EVERY,
            prefix="behind",
            catch_up="skip",
        )
        connection.execute("UPDATE timers SET due_at = 'infinity' WHERE due_at > %s", [now])
        connection.commit()
    seconds = _fire_all(session, environment, replace(look, now=now + _EVERY, horizon=now - timedelta(seconds=60)))
    with environment.connect() as connection:
        spans, occurrences, size = _skipped(connection)
    assert spans == JOBS, spans
    figures["span_us"] = seconds / spans * 1e6
    figures["occurrences_a_span"] = occurrences / spans
    figures["skipped_occurrence_us"] = seconds / occurrences * 1e6
    figures["span_bytes"] = size / spans
    return figures


def _fire_all(session: Session, environment: Environment, look: FireBatch) -> float:
    started = monotonic_seconds()
    while fire(session, environment.installation, look):
        pass
    return monotonic_seconds() - started


def _skip_by_overlap(connection: Conn, environment: Environment) -> float:
    """Measure microseconds for a claim that skips its run by overlap: the run is the record."""
    found = connection.execute("SELECT run_id, job_id FROM job_runs").fetchall()
    for job in [cast("UUID", row[1]) for row in found]:
        connection.execute(
            "INSERT INTO active_runs (job_id, tenant, run_id) VALUES (%s, 'default', %s)", [job, uuid4()]
        )
    # Open holders, so that no claim takes over their turns.
    connection.execute(
        "INSERT INTO job_runs (run_id, job_id, tenant, shard, queue, lane, handler, cause, overlap, state, job_version,"
        " attempt, scheduled_at, publish_at, created_at) SELECT t.run_id, t.job_id, 'default', 0, 'held', 'batch',"
        " '-', 'trigger', 'skip', 'running', 1, 1, now(), now(), now() FROM active_runs AS t"
    )
    connection.commit()
    started = monotonic_seconds()
    for batch in range(0, len(found), 500):
        claims = [Claim(cast("UUID", row[0]), 1, 1, "bench") for row in found[batch : batch + 500]]
        claimed = claim_runs(connection, environment.installation, claims, executor_id=uuid4())
        assert len(claimed.overlaps.skipped) == len(claims)
        connection.commit()
    return (monotonic_seconds() - started) / len(found) * 1e6


def _skipped(connection: Conn) -> tuple[int, int, int]:
    row = connection.execute(
        "SELECT count(*), sum(occurrences)::bigint, pg_total_relation_size('skips') FROM skips"
    ).fetchone()
    return cast("tuple[int, int, int]", row)
