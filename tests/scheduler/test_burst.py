"""A burst after idling: a statement that polled an empty table is planned anew for the load it meets.

PostgreSQL keeps the plan of a prepared statement when it looks as good as a fresh one; made for an empty table it reads
the full one whole, once for each row it looks for. Nothing here is timed: the server's own counters tell what was read.
"""

from dataclasses import replace
from datetime import date, timedelta
from typing import LiteralString
from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.scheduler.firing import look_at
from tests.scheduler.test_firing import scheduler_of
from tidewheel.postgres.partitions import ensure_days
from tidewheel.postgres.session import BY_KEY, KEPT_PLANS, UNIFORM, Session
from tidewheel.runs import RunState
from tidewheel.scheduler.firing import fire
from tidewheel.transitions.claim import Claim, claim_runs, claim_uniform
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd

BURST = 10_000
BATCH = 2_000
POLLS = 20  # psycopg prepares at the sixth execution, the server would keep a plan at the sixth of those

# Reading all 10,000 rows of a table once is what a plan may cost; once for each of 2,000 rows is what it must not.
MAX_READ = 20 * BURST


_CLOSING: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-partitions'
"""


def rows_read(database: Database, *tables: str) -> int:
    """Rows that scans of these tables have read so far, by the server's count."""
    show_counts(database)
    [(read,)] = database.rows(
        "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint FROM pg_stat_user_tables"
        " WHERE relname = ANY (%s) OR relname ~ '^(runs|attempts|run_inputs)_'",
        [list(tables)],
    )
    return int(read)


def show_counts(database: Database) -> None:
    """Make the counts of the test's own connection and of closed ones visible.

    The server publishes the counts of a connection up to a second later, or as it ends.
    """
    database.execute("SELECT pg_stat_force_next_flush()")
    database.execute("SELECT 1")
    until(lambda: database.value(_CLOSING) == 0, "the connection that creates partitions has ended")


def flush(session: Session) -> None:
    """Make the counts of this session visible; the server does so by itself once a second."""
    with session.transaction() as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
    with session.transaction() as connection:
        connection.execute("SELECT 1")


def generic_plans(session: Session) -> int:
    with session.transaction() as connection:
        row = connection.execute(
            "SELECT coalesce(sum(generic_plans), 0)::bigint FROM pg_prepared_statements"
        ).fetchone()
    assert row is not None
    return int(str(row[0]))


def prepared(session: Session) -> int:
    with session.transaction() as connection:
        row = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    assert row is not None
    return int(str(row[0]))


@pytest.fixture
def idle(fresh_database: Database) -> Database:
    """A database whose tables were analyzed while they were empty."""
    fresh_database.execute("VACUUM ANALYZE")
    return fresh_database


def load_due_jobs(database: Database, within: timedelta = timedelta(0)) -> None:
    """10,000 jobs that are due, made from one that was submitted; no statistics are gathered."""
    anchor = database.now() + within
    database.submit(schedule={"interval": "1h", "anchor": anchor.isoformat()})
    with database.transaction() as connection:
        connection.execute("DELETE FROM timers")
        connection.execute(
            "INSERT INTO jobs (job_id, tenant, key, bucket, shard, version, schedule_kind, created_at, updated_at)"
            " SELECT md5('burst' || n)::uuid, tenant, 'burst-' || n, n %% 4096, n %% 64, 1, schedule_kind, created_at,"
            " updated_at FROM jobs, generate_series(1, %s) AS n WHERE key = 'job'",
            [BURST],
        )
        connection.execute(
            "INSERT INTO job_versions (job_id, version, tenant, effective_at, spec, schedule_json, policy_json,"
            " handler, queue, lane, overlap, definition)"
            " SELECT j.job_id, v.version, v.tenant, v.effective_at, v.spec, v.schedule_json, v.policy_json,"
            " v.handler, v.queue, v.lane, v.overlap, v.definition"
            " FROM job_versions AS v JOIN jobs AS made USING (job_id), jobs AS j"
            " WHERE made.key = 'job' AND j.key LIKE 'burst-%%'",
            [],
        )
        connection.execute(
            "INSERT INTO timers (job_id, tenant, shard, due_at, scheduled_at, version)"
            " SELECT job_id, tenant, shard, %(at)s, %(at)s, 1 FROM jobs WHERE key LIKE 'burst-%%'",
            {"at": anchor},
        )


@pytest.mark.landing
@pytest.mark.parametrize("options", ["", BY_KEY], ids=["", "by key"])
def test_firing_after_idling_reads_only_due_rows(idle: Database, options: str) -> None:
    session = idle.session(options=options)
    for _ in range(POLLS):
        assert fire(session, idle.installation, look_at(idle, batch=BATCH)) == 0
    assert prepared(session) > 0
    load_due_jobs(idle)
    before = rows_read(idle, "timers", "job_versions", "jobs")
    look = look_at(idle, batch=BATCH)
    while fire(session, idle.installation, look):
        look = replace(look, now=idle.now())
    flush(session)
    assert idle.count("runs") == BURST
    assert rows_read(idle, "timers", "job_versions", "jobs") - before < MAX_READ
    assert generic_plans(session) == 0


@pytest.mark.landing
def test_batch_reads_only_its_own_rows(idle: Database) -> None:
    """Not all that is due: by its costs the planner would sort it, for each batch."""
    load_due_jobs(idle)
    idle.execute("VACUUM ANALYZE")
    session = idle.session()
    before = rows_read(idle, "timers")
    with scheduler_of(idle, fire_batch=BURST // 50) as scheduler:
        while scheduler.step() == 0.0:
            pass
    flush(session)
    assert idle.count("runs") == BURST
    assert rows_read(idle, "timers") - before < 10 * BURST


@pytest.mark.landing
def test_timers_due_in_backlog_do_not_wait_for_rotation(idle: Database) -> None:
    """Timers that are due by now fire before 10,000 timers of the lookahead."""
    load_due_jobs(idle, within=timedelta(seconds=40))
    with scheduler_of(idle, fire_batch=1, lookahead=timedelta(seconds=60)) as scheduler:
        while not idle.count("runs"):
            scheduler.step()
        for number in range(8):
            key = f"now-{number}"
            idle.submit(key, schedule={"once": idle.now().isoformat()})
            for _ in range(2):  # one may begin a rotation
                scheduler.step()
            [(fired,)] = idle.rows("SELECT count(*) FROM runs JOIN jobs USING (job_id) WHERE key = %s", [key])
            assert fired == 1
        assert idle.count("runs") < BURST


@pytest.mark.landing
def test_claims_and_ends_after_idling_read_only_their_rows(idle: Database) -> None:
    """As executors do it: with sessions that look rows up by key."""
    claiming, ending = idle.session(options=KEPT_PLANS), idle.session(options=BY_KEY)
    nobody = UUID(int=0)
    for _ in range(POLLS):
        claiming.within(claim_runs, idle.installation, [Claim(nobody, 1, 1, "t")], executor_id=EXECUTOR)
        ending.within(finish_runs, idle.installation, [RunEnd(nobody, 1, RunState.SUCCEEDED)])
    assert generic_plans(claiming) > 0
    assert prepared(ending) > 0
    load_due_jobs(idle)
    firing = idle.session()
    while fire(firing, idle.installation, look_at(idle, batch=BATCH)):
        pass
    before = rows_read(idle, "job_runs", "active_runs")
    claim_and_end(idle, claiming, ending)
    flush(claiming)
    flush(ending)
    assert idle.count("job_runs") == 0
    assert rows_read(idle, "job_runs", "active_runs") - before < 2 * MAX_READ
    assert generic_plans(ending) == 0


@pytest.mark.landing
def test_uniform_claims_and_ends_after_idling_read_only_their_rows(idle: Database) -> None:
    """Both keep the plans that they made for empty tables."""
    claiming, ending = idle.session(options=KEPT_PLANS), idle.session(options=UNIFORM)
    idle.submit("early")
    idle.trigger("early")
    [message] = idle.requests()
    idle.execute("TRUNCATE job_runs, outbox")
    no_run = UUID(int=0)
    for _ in range(POLLS):
        with claiming.transaction() as connection:
            assert claim_uniform(connection, [Claim(no_run, 1, 1, "t")], executor_id=EXECUTOR) == []
        with ending.transaction() as connection:
            end = RunEnd(no_run, 1, RunState.SUCCEEDED, EXECUTOR, request=message)
            assert not finish_runs(connection, idle.installation, [end], uniform=True).states
    kept = generic_plans(claiming), generic_plans(ending)
    assert all(kept)
    load_due_jobs(idle)
    firing = idle.session()
    while fire(firing, idle.installation, look_at(idle, batch=BATCH)):
        pass
    runs = {UUID(request.run_id): request for request in idle.requests()}
    assert len(runs) == BURST
    before = rows_read(idle, "job_runs", "active_runs")
    for start in range(0, BURST, BATCH):
        chosen = list(runs)[start : start + BATCH]
        with claiming.transaction() as connection:
            claims = [Claim(run_id, 1, 1, "t") for run_id in chosen]
            assert len(claim_uniform(connection, claims, executor_id=EXECUTOR)) == len(chosen)
        with ending.transaction() as connection:
            ends = [RunEnd(each, 1, RunState.SUCCEEDED, EXECUTOR, request=runs[each]) for each in chosen]
            assert len(finish_runs(connection, idle.installation, ends, uniform=True).states) == len(chosen)
    flush(claiming)
    flush(ending)
    assert idle.count("job_runs") == 0
    assert rows_read(idle, "job_runs", "active_runs") - before < MAX_READ
    assert all(now > then for now, then in zip((generic_plans(claiming), generic_plans(ending)), kept, strict=True))


def test_conflicting_claim_reads_partitions_of_its_runs_only(idle: Database) -> None:
    """It ends what is skipped, on a session whose plans are kept, and those are of all partitions."""
    today = idle.now().date()
    idle.within(ensure_days, [today - timedelta(days=ago) for ago in range(2, 20)])
    before = scans_before(idle, today)
    idle.submit(overlap="skip")
    claiming = idle.session(options=KEPT_PLANS)
    for _ in range(POLLS):
        chosen = [idle.trigger(), idle.trigger()]
        with claiming.transaction() as connection:
            claims = [Claim(run_id, 1, 1, "t") for run_id in chosen]
            claim_runs(connection, idle.installation, claims, executor_id=EXECUTOR)
    flush(claiming)
    assert idle.count("job_runs") == 1, "all but the one with the turn were skipped"
    assert scans_before(idle, today) == before


def scans_before(database: Database, day: date) -> int:
    """Count the scans of partitions of days well before this one."""
    show_counts(database)
    [(scans,)] = database.rows(
        "SELECT sum(coalesce(idx_scan, 0) + seq_scan)::bigint FROM pg_stat_user_tables"
        " WHERE relname ~ '_[0-9]{8}$' AND right(relname, 8) < %s",
        [f"{day - timedelta(days=1):%Y%m%d}"],
    )
    return int(scans)


@pytest.mark.landing
def test_rows_since_last_analyze_are_not_scanned_per_end(idle: Database) -> None:
    """Ids grow with time: the planner expects almost none since the last ANALYZE."""
    firing, session = idle.session(), idle.session(options=BY_KEY)
    for number in range(100):
        idle.submit(f"early-{number}", schedule={"once": idle.now().isoformat()})
    fire(firing, idle.installation, look_at(idle, batch=BATCH))
    claim_and_end(idle, session, session)
    idle.execute("VACUUM ANALYZE")
    load_due_jobs(idle)
    while fire(firing, idle.installation, look_at(idle, batch=BATCH)):
        pass
    flush(session)
    before = rows_read(idle)
    claim_and_end(idle, session, session)
    flush(session)
    assert idle.count("job_runs") == 0
    assert rows_read(idle) - before < 2 * BURST  # of partitions alone: each run's row, once


def claim_and_end(database: Database, claiming: Session, ending: Session) -> None:
    """All open runs, in no order."""
    runs = [run_id for (run_id,) in database.rows("SELECT run_id FROM job_runs ORDER BY random()")]
    for start in range(0, len(runs), BATCH):
        chosen = runs[start : start + BATCH]
        with claiming.transaction() as connection:
            claims = [Claim(run_id, 1, 1, "t") for run_id in chosen]
            claimed = claim_runs(connection, database.installation, claims, executor_id=EXECUTOR)
            assert len(claimed.started) == len(chosen)
        with ending.transaction() as connection:
            ends = [RunEnd(run_id, 1, RunState.SUCCEEDED, EXECUTOR) for run_id in chosen]
            assert len(finish_runs(connection, database.installation, ends).states) == len(chosen)


def test_poll_cost_is_independent_of_future_timers(idle: Database) -> None:
    """Idle cost does not depend on the number of jobs: one descent of the index a shard."""
    load_due_jobs(idle)
    idle.execute("UPDATE timers SET due_at = now() + interval '1 day'")
    idle.execute("VACUUM ANALYZE timers")
    session = idle.session()
    flush(session)
    before = rows_read(idle, "timers")
    for _ in range(POLLS):
        assert fire(session, idle.installation, look_at(idle, lookahead=timedelta(seconds=5))) == 0
    flush(session)
    assert rows_read(idle, "timers") - before == 0
