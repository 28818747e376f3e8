"""Load a long history: jobs, finished runs of several days, open runs, dead letters.

Three tenants: `default` has nearly all, `other` a twentieth, `tiny` one job with ten runs. Ten runs of `default` differ
from all others in label, queue, lane, cause and error type: those of `RARE_JOB`. A third of the open runs are those of
`BUSY_JOB`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import LiteralString

from tidewheel.control.client.client import Client
from tidewheel.postgres.partitions import day_of, ensure_days
from tidewheel.postgres.session import Conn
from tidewheel.transitions.installation import Installation
from tools.bench.load import Load, database_now, load_jobs, vacuum
from tools.bench.measurement import Progress

RARE_JOB = "job-00000000"
BUSY_JOB = "job-00000001"
RARE = 10  # runs of the rare job, and of the tenant `tiny`
BYTES_OF_A_RUN = 1500  # on disk with its indexes, WAL included

_SPAN = timedelta(days=6)
_AT_ONCE = 500_000
_TABLES = (
    "jobs", "job_versions", "timers", "job_runs", "finished_runs", "attempts", "failed_runs", "dead_letters"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class History:
    """The number of finished runs of `default` and `other`, and the instants of the first and the last."""

    runs: int
    first: datetime
    last: datetime


def load_history(
    connection: Conn, url: str, installation: Installation, *, runs: int, jobs: int, open_runs: int, report: Progress
) -> History:
    """Load the history into an empty database, with statistics of it."""
    last = database_now(connection)
    first = last - _SPAN
    ensure_days(connection, [day_of(first + timedelta(days=number)) for number in range(_SPAN.days + 2)])
    report(f"{jobs:,} jobs")
    load_jobs(connection, installation, Load(jobs=jobs, prefix="job", analyze=False), last + timedelta(days=1))
    connection.execute("INSERT INTO tenants (tenant) VALUES ('other'), ('tiny') ON CONFLICT DO NOTHING")
    connection.commit()
    for tenant in ("other", "tiny"):
        with Client(url, tenant=tenant) as client:
            client.submit({"key": f"of-{tenant}", "schedule": "manual", "target": "noop", "overlap": "allow_all"})
    for statement in _JOBS:
        connection.execute(statement)
    connection.commit()
    step = _SPAN / runs
    sizes = {"jobs": jobs, "open_runs": open_runs, "first": first, "last": last, "step": step, "rare": RARE}
    for begin in range(0, runs, _AT_ONCE):
        report(f"{begin:,} of {runs:,} runs")
        connection.execute(_FINISHED, sizes | {"begin": begin, "end": min(begin + _AT_ONCE, runs) - 1})
        connection.commit()
    report(f"{open_runs:,} open runs, dead letters, ANALYZE")
    for statement in _REST:
        connection.execute(statement, sizes)
        connection.commit()
    vacuum(connection, _TABLES)
    return History(runs, first, last)


_JOBS: tuple[LiteralString, ...] = (
    "UPDATE jobs SET labels = jsonb_build_object('team', 'team-' || bucket % 50) WHERE tenant = 'default'",
    """UPDATE jobs SET labels = '{"rare": "yes"}' WHERE tenant = 'default' AND key = 'job-00000000'""",
    """
    CREATE TEMPORARY TABLE loaded AS
    SELECT row_number() OVER (ORDER BY key) - 1 AS number, job_id, tenant, shard, bucket
      FROM jobs WHERE tenant = 'default' AND key > 'job-00000000'
    """,
    "CREATE UNIQUE INDEX ON loaded (number)",
    "ANALYZE loaded",
    # As tidewheel.ids writes it: the milliseconds, version 8, the bucket of the job, then anything.
    """
    CREATE FUNCTION pg_temp.run_id_of(at timestamptz, bucket int, origin text) RETURNS uuid LANGUAGE sql IMMUTABLE
    RETURN (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '8' || lpad(to_hex(bucket), 3, '0') || 'a'
            || substr(md5(origin), 1, 15))::uuid
    """,
)

_FINISHED: LiteralString = """
INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                           created_at, started_at, finished_at, state, attempt, error_type)
SELECT pg_temp.run_id_of(at, bucket, tenant || k), job_id, tenant, 1, shard,
       'timer', 'default', 'standard', at, at, at, at, at, state, 1,
       CASE WHEN state = 'failed' THEN 'TimeoutError' END
  FROM (SELECT k, %(first)s + k * %(step)s::interval AS at, shard, bucket,
               CASE WHEN k %% 20 = 7 THEN o.job_id ELSE l.job_id END AS job_id,
               CASE WHEN k %% 20 = 7 THEN 'other' ELSE 'default' END AS tenant,
               CASE k %% 100 WHEN 0 THEN 'failed' WHEN 1 THEN 'skipped' WHEN 2 THEN 'cancelled' ELSE 'succeeded'
               END AS state
          FROM generate_series(%(begin)s::bigint, %(end)s::bigint) AS k
          JOIN loaded AS l ON l.number = k * 7919 %% (%(jobs)s - 1)
         CROSS JOIN (SELECT job_id FROM jobs WHERE tenant = 'other') AS o) AS made
"""

_REST: tuple[LiteralString, ...] = (
    """
    INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                               created_at, started_at, finished_at, state, attempt, error_type)
    SELECT pg_temp.run_id_of(at, bucket, tenant || k), job_id, tenant, 1, shard,
       'backfill', 'reports', 'batch', at, at, at, at, at, 'failed', 1,
           'RareError'
      FROM (SELECT k, %(first)s + (%(last)s::timestamptz - %(first)s) * k / 20 AS at, j.*
              FROM generate_series(1, %(rare)s::int) AS k
              JOIN jobs AS j ON j.tenant = 'tiny' OR j.labels @> '{"rare": "yes"}') AS made
    """,
    """
    INSERT INTO job_runs (run_id, job_id, tenant, shard, queue, lane, handler, cause, overlap, state, job_version,
                          attempt, scheduled_at, publish_at, created_at, started_at, executor_id)
    SELECT pg_temp.run_id_of(at, bucket, tenant || k), job_id, tenant, shard, 'default', 'standard', 'noop', 'trigger',
           'allow_all',
           CASE WHEN begun THEN 'running' ELSE 'queued' END, 1, begun::int, at, at, %(last)s,
           CASE WHEN begun THEN %(last)s::timestamptz END,
           CASE WHEN begun THEN 'e0000000-0000-4000-8000-000000000000'::uuid END
      FROM (SELECT k, %(last)s + (k - %(open_runs)s / 2) * interval '10 ms' AS at, k %% 10 = 0 AS begun, l.*
              FROM generate_series(1, %(open_runs)s::bigint) AS k
              JOIN loaded AS l
                ON l.number = CASE WHEN k %% 3 = 0 THEN 0 ELSE k * 7919 %% (%(jobs)s - 1) END) AS made
    """,
    """
    INSERT INTO attempts (run_id, attempt, tenant, started_at, finished_at, outcome, error_type, error_message)
    SELECT run_id, attempt, tenant, started_at, finished_at, 'failed', error_type, 'no answer within 30 s'
      FROM finished_runs WHERE state = 'failed'
    """,
    """
    INSERT INTO failed_runs (run_id, job_id, tenant, job_version, cause, queue, lane, scheduled_at, started_at,
                             finished_at, state, attempt, error_type, error_message)
    SELECT run_id, job_id, tenant, job_version, cause, queue, lane, scheduled_at, started_at,
           finished_at, state, attempt, error_type, 'no answer within 30 s'
      FROM finished_runs WHERE state = 'failed'
    """,
    """
    INSERT INTO dead_letters (tenant, kind, run_id, job_id, reason, created_at)
    SELECT tenant, 'run', run_id, job_id, 'no answer within 30 s', finished_at FROM failed_runs ORDER BY finished_at
    """,
)
