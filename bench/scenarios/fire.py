"""`fire`: occurrences/s of the firing transaction, beside a binary COPY of the first of its rows."""

from datetime import datetime, timedelta
from functools import partial
from typing import cast

from tidewheel.bench.baselines import copy_rows, take_rows
from tidewheel.bench.complete import wait_for
from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import back_to, checkpoint, count_of, database_now, load_jobs
from tidewheel.bench.measurement import Figure, Incomplete, Options, Round, rate
from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.session import Conn
from tidewheel.process.service import Shutdown
from tidewheel.scheduler.loop import Scheduler
from tidewheel.settings.services import SchedulerSettings

JOBS = 1_000_000
_WARM_SHARE = 20  # the first of so many parts is not timed
_FLOOR_ROWS = 200_000
_STARTING = timedelta(seconds=8)
WRITTEN = ("job_runs", "run_inputs", "outbox")


def measure(server: Server, options: Options) -> Round:
    """Fire one instant's jobs with one scheduler and with two, then COPY the first rows into empty tables.

    The COPY moves no timers. Its tables and indexes are smaller at the end than those of the scenario.
    """
    jobs = options.jobs or JOBS
    template = f"fire-{jobs}"
    if not server.has_template(template):
        _make_template(server, template, jobs, options)
    return Round(
        {
            "occurrences_per_second": _measure(server, template, jobs, options, schedulers=2),
            "one_scheduler_occurrences_per_second": _measure(server, template, jobs, options, schedulers=1),
        }
    )


def _measure(server: Server, template: str, jobs: int, options: Options, *, schedulers: int) -> Figure:
    with server.environment(template) as environment, environment.connect() as connection:
        # They start, enter and share the shards while nothing is due yet.
        back_to(connection, _due_at(connection) - settings_of(environment).lookahead - _STARTING)
        checkpoint(connection)
        options.report(f"firing, schedulers: {schedulers}")
        with (
            environment.services(*[("scheduler",)] * schedulers) as processes,
            environment.meter({"scheduler": processes}) as meter,
        ):
            written = partial(count_of, connection, "SELECT last_value FROM outbox_id_seq")
            entered = partial(count_of, connection, "SELECT count(*) FROM members WHERE role = 'scheduler'")
            wait_for(entered, schedulers, "schedulers entered")
            wait_for(written, jobs // _WARM_SHARE, "runs written")
            # A session takes 500 ids at a time, so the sequence is ahead of the rows.
            warm = count_of(connection, "SELECT count(*) FROM outbox")
            before, started = meter.mark(), monotonic_seconds()
            wait_for(written, jobs, "runs written")
            wait_for(partial(count_of, connection, "SELECT count(*) FROM job_runs"), jobs, "runs committed")
            seconds = monotonic_seconds() - started
            spent = meter.since(before, jobs - warm)
        _check(connection, jobs)
        options.report("the floor")
        taken = take_rows(connection, WRITTEN, min(jobs, _FLOOR_ROWS))
        connection.execute("TRUNCATE finished_runs, job_runs, outbox, run_inputs")
        connection.commit()
        floor = len(taken[0].rows) / copy_rows(connection, taken, commit=settings_of(environment).fire_batch)
    return rate((jobs - warm) / seconds, "occurrences/s", floor=floor, spent=spent)


def settings_of(environment: Environment) -> SchedulerSettings:
    """Return the scheduler's settings in an environment, with the variables of the process."""
    return SchedulerSettings.load(database_url=environment.url, topic_prefix=environment.prefix)


def fire_all(environment: Environment) -> None:
    """Fire whatever is due, in this process."""
    scheduler = Scheduler(settings_of(environment), environment.url, environment.installation, Shutdown())
    while scheduler.step() == 0.0:
        pass
    scheduler.close()


def _make_template(server: Server, name: str, jobs: int, options: Options) -> None:
    with server.environment() as environment:
        options.report(f"loading {jobs:,} jobs, once")
        with environment.connect() as connection:
            load_jobs(connection, environment.installation, jobs, due_at=database_now(connection))
        server.keep_template(name, environment)


def _due_at(connection: Conn) -> datetime:
    row = connection.execute("SELECT max(due_at) FROM timers").fetchone()
    assert row is not None
    return cast("datetime", row[0])


def _check(connection: Conn, jobs: int) -> None:
    row = connection.execute(
        "SELECT (SELECT count(*) FROM job_runs),"
        " (SELECT count(*) FROM outbox WHERE topic LIKE '%.runs.%'),"
        " (SELECT count(DISTINCT job_id) FROM job_runs), (SELECT count(*) FROM skips)"
    ).fetchone()
    connection.rollback()
    if row != (jobs, jobs, jobs, 0):
        message = f"{jobs} jobs were due; runs, messages, jobs that fired, spans passed over: {row}"
        raise Incomplete(message)
