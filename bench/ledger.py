"""What the ledger costs: per occurrence that fires, per span that is passed over, per run that overlap skips."""

from dataclasses import replace
from datetime import timedelta
from typing import cast
from uuid import UUID, uuid4

from tidewheel.bench.load import database_now, load_jobs
from tidewheel.bench.stage import Stage
from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.session import Conn, Session
from tidewheel.scheduler.firing import FireBatch, fire
from tidewheel.transitions.claim import Claim, claim_runs

JOBS = 50_000
BATCH = 2000
_BEHIND = timedelta(hours=1)
_EVERY = timedelta(seconds=1)


def measure(stage: Stage) -> dict[str, float]:
    """Fire jobs on time, skip their runs by overlap, then pass over an hour of jobs that are due each second."""
    session = Session(stage.url, "tidewheel-bench")
    with stage.connect() as connection:
        now = database_now(connection)
        load_jobs(connection, stage.installation, JOBS, due_at=now, prefix="time")
    look = FireBatch(
        shards=range(stage.installation.shards),
        now=now + _EVERY,
        horizon=now + _EVERY,
        misfire_after=timedelta(seconds=60),
        limit=BATCH,
    )
    figures = {"fired_us": _fire_all(session, stage, look) / JOBS * 1e6}
    with stage.connect() as connection:
        figures["overlap_skip_us"] = _skip_by_overlap(connection, stage)
        load_jobs(
            connection, stage.installation, JOBS, due_at=now - _BEHIND, every=_EVERY, prefix="behind", catch_up="skip"
        )
        connection.execute("UPDATE timers SET due_at = 'infinity' WHERE due_at > %s", [now])
        connection.commit()
    seconds = _fire_all(session, stage, replace(look, now=now + _EVERY, horizon=now - timedelta(seconds=60)))
    with stage.connect() as connection:
        spans, occurrences, size = _skipped(connection)
    assert spans == JOBS, spans
    figures["span_us"] = seconds / spans * 1e6
    figures["occurrences_a_span"] = occurrences / spans
    figures["skipped_occurrence_us"] = seconds / occurrences * 1e6
    figures["span_bytes"] = size / spans
    return figures


def _fire_all(session: Session, stage: Stage, look: FireBatch) -> float:
    started = monotonic_seconds()
    while fire(session, stage.installation, look):
        pass
    return monotonic_seconds() - started


def _skip_by_overlap(connection: Conn, stage: Stage) -> float:
    """Microseconds for a claim that finds the turn taken and ends its run as skipped: the run is the record."""
    found = connection.execute("SELECT run_id, job_id FROM open_runs").fetchall()
    for job in [cast("UUID", row[1]) for row in found]:
        connection.execute(
            "INSERT INTO active_runs (job_id, tenant, run_id) VALUES (%s, 'default', %s)", [job, uuid4()]
        )
    # Holders that are open, so that nobody takes their turns over.
    connection.execute(
        "INSERT INTO open_runs (run_id, job_id, tenant, shard, queue, lane, cause, overlap, state, job_version,"
        " attempt, scheduled_at, publish_at, created_at) SELECT t.run_id, t.job_id, 'default', 0, 'held', 'batch',"
        " 'trigger', 'skip', 'running', 1, 1, now(), now(), now() FROM active_runs AS t"
    )
    connection.commit()
    started = monotonic_seconds()
    for batch in range(0, len(found), 500):
        claims = [Claim(cast("UUID", row[0]), 1, 1, "bench") for row in found[batch : batch + 500]]
        claimed = claim_runs(connection, stage.installation, claims, executor_id=uuid4())
        assert len(claimed.overlaps.skipped) == len(claims)
        connection.commit()
    return (monotonic_seconds() - started) / len(found) * 1e6


def _skipped(connection: Conn) -> tuple[int, int, int]:
    row = connection.execute(
        "SELECT count(*), sum(occurrences)::bigint, pg_total_relation_size('skips') FROM skips"
    ).fetchone()
    return cast("tuple[int, int, int]", row)
