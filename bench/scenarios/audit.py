"""`audit`: occurrences/s that `tidewheel audit` recomputes and compares with a day of recorded runs.

SQL makes the day: few jobs with an occurrence at each minute, then many with one at each hour. Some records are
removed, and one is moved to another instant. The scenario fails unless the audit finds exactly these.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import date, timedelta
from typing import LiteralString, NamedTuple, cast

from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import checkpoint, database_now, load_jobs, vacuum
from tidewheel.bench.measurement import Figure, Incomplete, Options, Round, least, rate
from tidewheel.clock import monotonic_seconds
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.spec import schedule_document
from tidewheel.jobs.strict_json import canonical
from tidewheel.postgres.partitions import create_missing, day_of, start_of
from tidewheel.postgres.session import Conn

OCCURRENCES = 10_000_000

_DAY = timedelta(days=1)
_BEFORE = timedelta(days=2)  # the age of the day
_LOST = 5  # occurrences whose record is removed

_CRON: LiteralString = """
UPDATE job_versions AS v SET schedule_json = %(schedule)s
  FROM jobs AS j
 WHERE j.job_id = v.job_id AND right(j.key, 1) IN ('1', '3', '5', '7', '9')
"""
_CRON_JOBS: LiteralString = """
UPDATE jobs SET schedule_kind = 'cron', interval_anchor = NULL, interval_us = NULL
 WHERE right(key, 1) IN ('1', '3', '5', '7', '9')
"""
_FIRE_LATER: LiteralString = "UPDATE timers SET due_at = %(at)s, scheduled_at = %(at)s"
_RUNS: LiteralString = """
INSERT INTO finished_runs (
    run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at, created_at, started_at,
    finished_at, state, attempt, executor_id, claimed_from)
SELECT gen_random_uuid(), j.job_id, 'default', 1, j.shard, 'timer', 'default', 'standard', at, at, at - interval '2 s',
       at + interval '20 ms', at + interval '1 s' * (0.03 + random()), 'succeeded', 1,
       '00000000-0000-4000-8000-000000000000', 'tidewheel.runs.default.standard/7/' || 1 || '@1760000000000'
  FROM generate_series(%(first)s, %(first)s + interval '59 minutes', %(every)s::interval) AS at
 CROSS JOIN jobs AS j
"""
_LOSE: LiteralString = """
DELETE FROM finished_runs AS f
 USING (SELECT job_id, row_number() OVER (ORDER BY key) AS number FROM jobs) AS j
 WHERE j.job_id = f.job_id AND j.number <= %(lost)s AND f.scheduled_at = %(first)s + interval '1 hour' * j.number
   AND f.finished_at >= %(first)s AND f.finished_at < %(first)s + interval '24 hours'
"""
_MOVE: LiteralString = """
UPDATE finished_runs AS f SET scheduled_at = f.scheduled_at + interval '30 s'
 WHERE f.job_id = (SELECT job_id FROM jobs ORDER BY key DESC LIMIT 1)
   AND f.scheduled_at = %(first)s + interval '12 hours'
   AND f.finished_at >= %(first)s AND f.finished_at < %(first)s + interval '24 hours'
"""
_EXPECTED = {"missing": _LOST + 1, "unexpected": 1}


class _Audited(NamedTuple):
    """The document of `tidewheel audit`, its time, and the most memory that it had."""

    totals: dict[str, object]
    findings: list[dict[str, object]]
    seconds: float
    peak_bytes: int


def minutely(server: Server, options: Options) -> Round:
    """Audit a day of jobs with 1,440 occurrences each."""
    return _measure(server, options, "minutely", timedelta(minutes=1), "* * * * *")


def hourly(server: Server, options: Options) -> Round:
    """Audit a day of jobs with 24 occurrences each."""
    return _measure(server, options, "hourly", timedelta(hours=1), "0 * * * *")


def _measure(server: Server, options: Options, name: str, every: timedelta, cron: str) -> Round:
    """Audit a day of occurrences, half of them of intervals and half of a cron expression in a zone."""
    each = _DAY // every
    jobs = max(2 * _LOST, round((options.jobs or OCCURRENCES) / each))
    occurrences = jobs * each
    with server.environment() as environment, environment.connect() as connection:
        day = day_of(database_now(connection) - _BEFORE)
        options.report(f"making {occurrences:,} runs of {jobs:,} jobs")
        _make_day(environment, connection, day, jobs, every=every, cron=cron)
        options.report("auditing")
        found = _audit(environment, day)
    problems = Counter(str(cast("dict[str, object]", one["finding"])["problem"]) for one in found.findings)
    if problems != _EXPECTED or found.totals["computed"] != occurrences:
        message = f"the audit found {dict(problems)} in {found.totals}"
        raise Incomplete(message)
    return Round(
        {
            f"{name}_occurrences_per_second": rate(occurrences / found.seconds, "occurrences/s"),
            f"{name}_seconds": least(found.seconds, "s"),
            f"{name}_peak_mib": least(found.peak_bytes / 2**20, "MiB"),
            f"{name}_occurrences": Figure(occurrences, ""),
            f"{name}_findings": Figure(sum(problems.values()), ""),
        }
    )


def _make_day(environment: Environment, connection: Conn, day: date, jobs: int, *, every: timedelta, cron: str) -> None:
    first = start_of(day)
    load_jobs(connection, environment.installation, jobs, due_at=first - timedelta(hours=1), every=every)
    at = database_now(connection) + _DAY
    columns: dict[str, object] = {"schedule": _schedule(cron), "at": at, "first": first, "lost": _LOST}
    for statement in (_CRON, _CRON_JOBS, _FIRE_LATER):
        connection.execute(statement, columns)
    connection.commit()
    with environment.connect(autocommit=True) as owner:
        create_missing(owner, [day])
    for hour in range(24):
        connection.execute(_RUNS, {"first": first + timedelta(hours=hour), "every": every})
        connection.commit()
    for statement in (_LOSE, _MOVE):
        connection.execute(statement, columns)
    vacuum(connection, ("jobs", "job_versions", "timers", "finished_runs"))
    checkpoint(connection)


def _schedule(cron: str) -> str:
    job = {"key": "cron", "schedule": {"cron": cron, "timezone": "Europe/Berlin"}, "target": "noop"}
    request = parse_request({"type": "job.submit", "job": job})
    assert isinstance(request, JobSubmit)
    return canonical(schedule_document(request.job)).decode()


def _audit(environment: Environment, day: date) -> _Audited:
    """Run the command as users do; raise Incomplete if it does not report findings."""
    span = (start_of(each).isoformat() for each in (day, day + _DAY))
    program = [sys.executable, "-m", "tidewheel.control.cli", "audit", "--from", next(span), "--to", next(span)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as problems:
        began = monotonic_seconds()
        process = subprocess.Popen(
            [*program, "--output", "json"], env=environment.variables, stdout=out, stderr=problems
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = monotonic_seconds() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        problems.seek(0)
        if process.returncode != 1:
            message = f"audit ended with {process.returncode}: {problems.read()[-500:].decode()}"
            raise Incomplete(message)
        document = json.load(out)
    return _Audited(document["totals"], document["findings"], seconds, used.ru_maxrss * 1024)
