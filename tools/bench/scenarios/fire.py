"""`fire`: occurrences/s of the firing transaction, with two schedulers and with one."""

from functools import partial

from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.session import Conn
from tidewheel.process.service import Shutdown
from tidewheel.scheduler.loop import Scheduler
from tidewheel.settings.services import SchedulerSettings
from tools.bench.complete import wait_for
from tools.bench.environment import Environment, Server
from tools.bench.load import checkpoint, count_of, due_after_loading, load_jobs
from tools.bench.measurement import Figure, Incomplete, Options, Round

JOBS = 300_000
_WARM_SHARE = 20  # the first of so many parts is not timed


def measure(server: Server, options: Options) -> Round:
    """Fire one instant's jobs with two schedulers, then with one."""
    return Round(
        {
            "occurrences_per_second": _measure(server, options, schedulers=2),
            "one_scheduler_occurrences_per_second": _measure(server, options, schedulers=1),
        }
    )


def _measure(server: Server, options: Options, *, schedulers: int) -> Figure:
    jobs = options.jobs or JOBS
    with server.environment() as environment, environment.connect() as connection:
        options.report(f"loading {jobs:,} jobs")
        due_at = due_after_loading(environment, connection, jobs)
        load_jobs(connection, environment.installation, jobs, due_at=due_at)
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
    return Figure((jobs - warm) / seconds, "occurrences/s", spent)


def fire_all(environment: Environment) -> None:
    """Fire whatever is due, in this process."""
    settings = SchedulerSettings.load(database_url=environment.url, topic_prefix=environment.prefix)
    scheduler = Scheduler(settings, environment.url, environment.installation, Shutdown())
    while scheduler.step() == 0.0:
        pass
    scheduler.close()


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
