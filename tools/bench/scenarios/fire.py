"""`fire`: occurrences/s of the firing transaction, with two schedulers and with one."""

from functools import partial

from tidewheel.clock import monotonic_seconds
from tools.bench.complete import wait_for
from tools.bench.environment import Server
from tools.bench.load import Load, checkpoint, due_after_loading, load_jobs
from tools.bench.measurement import Figure, Options, Round

JOBS = 300_000
_WARM_SHARE = 20  # the first of so many parts is not timed
_FIRED = """
SELECT (SELECT count(*) FROM job_runs), (SELECT count(*) FROM outbox WHERE topic LIKE '%.runs.%'),
       (SELECT count(DISTINCT job_id) FROM job_runs), (SELECT count(*) FROM skips)"""


def measure(server: Server, options: Options) -> Round:
    """Fire one instant's jobs with two schedulers, then with one."""
    names = {"occurrences_per_second": 2, "one_scheduler_occurrences_per_second": 1}
    return Round({name: _measure(server, options, count) for name, count in names.items()})


def _measure(server: Server, options: Options, schedulers: int) -> Figure:
    jobs = options.jobs or JOBS
    with server.environment() as environment:
        options.report(f"loading {jobs:,} jobs")
        due_at = due_after_loading(environment, jobs)
        load_jobs(environment.connection, environment.installation, Load(jobs=jobs), due_at)
        checkpoint(environment.connection)
        options.report(f"firing, schedulers: {schedulers}")
        with (
            environment.services(*[("scheduler",)] * schedulers) as processes,
            environment.meter(processes) as meter,
        ):
            written = partial(environment.count, "SELECT last_value FROM outbox_id_seq")
            entered = partial(environment.count, "SELECT count(*) FROM members WHERE role = 'scheduler'")
            wait_for(entered, schedulers, "schedulers entered")
            wait_for(written, jobs // _WARM_SHARE, "runs written")
            # A session takes 500 ids at a time, so the sequence is ahead of the rows.
            warm = environment.count("SELECT count(*) FROM outbox")
            before, started = meter.mark(), monotonic_seconds()
            wait_for(written, jobs, "runs written")
            wait_for(partial(environment.count, "SELECT count(*) FROM job_runs"), jobs, "runs committed")
            seconds, spent = monotonic_seconds() - started, meter.since(before, jobs - warm)
        environment.expect(_FIRED, jobs, jobs, jobs, 0)
    return Figure((jobs - warm) / seconds, "occurrences/s", spent)
