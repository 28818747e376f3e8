"""`retention`: start latency and rate beside the removal of an old day of runs.

The first part counts the runs of the day, and drops it whole. In the second the tenant has a shorter period, so pages
of runs are deleted. SQL makes the day. The steady load beside it passes through all services.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from typing import LiteralString

from tidewheel.bench.complete import Ends, check_runs, check_starts, until_empty, wait_for
from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import checkpoint, count_of, database_now, load_jobs, load_steady, vacuum
from tidewheel.bench.measurement import Figure, Incomplete, Options, Round, least, percentile, rate
from tidewheel.bench.scenarios.pipeline import (
    EXECUTORS,
    all_services,
    due_after_loading,
    lateness_ms,
    p99_by_second,
    warm_up,
)
from tidewheel.bench.starts import Start
from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.partitions import create_missing, day_of, start_of
from tidewheel.postgres.session import Conn
from tidewheel.process.service import Shutdown
from tidewheel.scheduler.retention import Retention
from tidewheel.scheduler.retention_rules import periods_of
from tidewheel.settings.services import SchedulerSettings

RUNS = 10_000_000
RATE = 1000.0
SECONDS = 60.0

_TENANT_RUNS = 500_000  # each is deleted by itself, with its indexes
_WARM_RUNS = 10_000
_PERIOD = timedelta(seconds=20)  # of the steady load's jobs
_RUNS_OF_A_JOB = 100
_OVER = timedelta(days=100)  # the age of the day that is dropped
_SHORTER = timedelta(days=10)  # the age of the day whose runs a shorter period deletes
_PAGE = 500_000
_PASS_SECONDS = 1.0
_LONGEST_SECONDS = 3600.0

# A run in twenty has failed once, and a run in two was triggered with a payload.
_FINISHED: LiteralString = """
INSERT INTO finished_runs (
    run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at, created_at, started_at,
    finished_at, state, attempt, executor_id, claimed_from)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text || at::text), 1, 3)
        || '8' || substr(md5(n::text || at::text), 4, 15))::uuid,
       j.job_id, 'default', 1, j.shard, CASE n %% 2 WHEN 0 THEN 'timer' ELSE 'trigger' END,
       'default', 'standard', at, at, at, at + interval '30 ms', at + interval '1 s' * (0.05 + random()),
       'succeeded', CASE n %% 20 WHEN 0 THEN 2 ELSE 1 END, '00000000-0000-4000-8000-000000000000',
       'tidewheel.runs.default.standard/7/' || n || '@1760000000000'
  FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
  JOIN (SELECT job_id, shard, row_number() OVER () - 1 AS number FROM jobs WHERE key LIKE 'old-%%') AS j
    ON j.number = n %% %(jobs)s
 CROSS JOIN LATERAL (SELECT %(day)s + interval '86000 s' * (n::float8 / %(runs)s) AS at) AS instant
"""
_INPUTS: LiteralString = """
INSERT INTO run_inputs (run_id, created_at, tenant, payload, payload_content_type)
SELECT run_id, created_at, tenant, %(payload)s, 'application/json'
  FROM finished_runs
 WHERE finished_at >= %(day)s AND finished_at < %(day)s + interval '24 hours' AND cause = 'trigger'
"""
_ATTEMPTS: LiteralString = """
INSERT INTO attempts (run_id, attempt, tenant, executor_id, started_at, finished_at, outcome, error_type)
SELECT run_id, 1, tenant, executor_id, created_at, started_at, 'failed', 'ValueError'
  FROM finished_runs
 WHERE finished_at >= %(day)s AND finished_at < %(day)s + interval '24 hours' AND attempt = 2
"""
_SIZE: LiteralString = (
    "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class AS c WHERE c.relname LIKE %s AND c.relkind = 'r'"
)
_SHORTEN: LiteralString = """
INSERT INTO tenant_periods (tenant, state, keep) VALUES ('default', 'succeeded', interval '5 days')
"""
_ANY_LEFT: LiteralString = """
SELECT count(*) FROM (SELECT FROM finished_runs WHERE finished_at >= %s AND finished_at < %s LIMIT 1) AS found
"""
_WAL: LiteralString = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"
_TABLES = ("finished_runs", "run_inputs", "attempts", "attempt_outputs")


@dataclass(frozen=True, slots=True)
class _Phase:
    """The load before, during or after the removal."""

    name: str
    starts: Sequence[Start]

    def figures(self) -> dict[str, Figure]:
        """Return its latency and its rate."""
        late = lateness_ms(self.starts)
        seconds: dict[int, int] = {}
        for start in self.starts:
            seconds[int(start.at)] = seconds.get(int(start.at), 0) + 1
        whole = sorted(seconds.values())
        return {
            f"{self.name}_start_p50_ms": least(percentile(late, 50), "ms"),
            f"{self.name}_start_p99_ms": least(percentile(late, 99), "ms"),
            f"{self.name}_start_max_ms": least(max(late), "ms"),
            f"{self.name}_runs_per_second": rate(whole[len(whole) // 2], "runs/s"),
        }


def whole_day(server: Server, options: Options) -> Round:
    """Drop a day whose runs are older than all periods."""
    return _measure(server, options, "drop", options.jobs or RUNS, _OVER)


def by_tenant(server: Server, options: Options) -> Round:
    """Delete the runs of a tenant with a shorter period."""
    return _measure(server, options, "tenant", options.jobs or _TENANT_RUNS, _SHORTER)


def _measure(server: Server, options: Options, name: str, runs: int, age: timedelta) -> Round:
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment, executors=EXECUTORS):
            warm_up(environment, connection, ends, options, _WARM_RUNS)
            day = day_of(database_now(connection) - age)
            options.report(f"making a day of {runs:,} runs")
            jobs = max(1, runs // _RUNS_OF_A_JOB)
            load_old_jobs(environment, connection, jobs)
            size = make_day(environment, connection, day, runs=runs, jobs=jobs)
            load = _Load(environment, connection, options)
            before = load.run("before")
            if name == "tenant":
                connection.execute(_SHORTEN)
                connection.commit()
            with ThreadPoolExecutor(1) as pool:
                wal, began = count_of(connection, _WAL), monotonic_seconds()
                removal = pool.submit(_remove, environment, day)
                during = load.run("during")
                while not removal.done():
                    during += load.run("during")
                took = removal.result() - began
                written = count_of(connection, _WAL) - wal
            after = load.run("after")
            until_empty(connection, "job_runs", "outbox")
        check_runs(connection, _WARM_RUNS + load.runs, environment.starts())
    phases = [_Phase("before", before), _Phase("during", during), _Phase("after", after)]
    figures = {figure: value for phase in phases for figure, value in phase.figures().items()}
    figures |= {
        "removal_seconds": least(took, "s"),
        "removed_runs_per_second": rate(runs / took, "runs/s"),
        "day_bytes_per_run": least(size / runs, "bytes"),
        "wal_mib": least(written / 2**20, "MiB"),
    }
    everything = [*before, *during, *after]
    check_starts(everything, load.runs)
    return Round(
        {f"{name}_{figure}": value for figure, value in figures.items()},
        distributions={f"{name}: {phase.name}": lateness_ms(phase.starts) for phase in phases},
        series={f"{name}: due to start, p99 of a second, ms": p99_by_second(everything)},
    )


class _Load:
    """A steady load in parts, each with jobs of its own.

    Args:
        environment: Of the round.
        connection: Writes the jobs.
        options: The rate, and the length of a part.
    """

    def __init__(self, environment: Environment, connection: Conn, options: Options) -> None:
        self._environment, self._connection, self._options = environment, connection, options
        self._jobs = int((options.rate or RATE) * _PERIOD.total_seconds())
        self._rounds = max(1, round((options.seconds or SECONDS) / _PERIOD.total_seconds()))
        self._parts = self.runs = 0

    def run(self, what: str) -> list[Start]:
        """Run a part to its end; return its starts."""
        self._parts += 1
        environment, jobs = self._environment, self._jobs
        due_at = due_after_loading(environment, self._connection, jobs)
        load_steady(
            self._connection, environment.installation, jobs, due_at=due_at, period=_PERIOD, rounds=self._rounds,
            prefix=f"part-{self._parts:03}",
        )  # fmt: skip
        self._options.report(f"{what}: {jobs / _PERIOD.total_seconds():,.0f} runs/s")
        self.runs += jobs * self._rounds
        wait_for(environment.starts().count, _WARM_RUNS + self.runs, "runs begun")
        return [start for start in environment.starts().read() if start.due >= due_at.timestamp()]


def load_old_jobs(environment: Environment, connection: Conn, jobs: int) -> None:
    """Write the jobs of past days, which fire in 300 days."""
    due_at = database_now(connection) + timedelta(days=300)
    load_jobs(connection, environment.installation, jobs, due_at=due_at, prefix="old")


def make_day(environment: Environment, connection: Conn, day: date, *, runs: int, jobs: int) -> int:
    """Fill a past day with ended runs, their inputs and attempts; return the bytes of its partitions.

    Args:
        environment: Of the round.
        connection: Writes the rows.
        day: In UTC.
        runs: The number of runs, a half of them triggered.
        jobs: The number of jobs of `load_old_jobs`.
    """
    with environment.connect(autocommit=True) as owner:
        create_missing(owner, [day])
    columns: dict[str, object] = {
        "day": start_of(day), "runs": runs, "jobs": jobs, "payload": b'"' + b"x" * 198 + b'"'
    }  # fmt: skip
    for begin in range(0, runs, _PAGE):
        connection.execute(_FINISHED, {**columns, "first": begin, "last": min(begin + _PAGE, runs) - 1})
        connection.commit()
    connection.execute(_INPUTS, columns)
    connection.execute(_ATTEMPTS, columns)
    vacuum(connection, _TABLES)
    checkpoint(connection)
    return count_of(connection, _SIZE, f"%_{day:%Y%m%d}")


def _remove(environment: Environment, day: date) -> float:
    """Let retention pass until the day has no run; return the time of the monotonic clock.

    Raises:
        Incomplete: It has not gone in an hour.
    """
    stop, first = Shutdown(), start_of(day)
    retention = Retention(environment.url, periods_of(SchedulerSettings.load()), stop)
    give_up = monotonic_seconds() + _LONGEST_SECONDS
    try:
        with environment.connect() as connection:
            while count_of(connection, _ANY_LEFT, first, first + timedelta(days=1)):
                if monotonic_seconds() > give_up:
                    message = f"the runs of {day} are still there"
                    raise Incomplete(message)
                retention.step()
                stop.wait(_PASS_SECONDS)
        return monotonic_seconds()
    finally:
        retention.close()
