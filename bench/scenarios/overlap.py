"""`overlap`: runs of a job that meet, and the cost of a policy for jobs whose runs never meet."""

from datetime import datetime, timedelta
from statistics import mean
from typing import LiteralString, cast
from uuid import UUID

from tidewheel.bench.baselines import COMMIT
from tidewheel.bench.complete import Ends, check_events, check_runs, count_skipped, until_empty
from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import database_now, load_jobs
from tidewheel.bench.measurement import Figure, Incomplete, Options, Round, least, rate
from tidewheel.bench.scenarios.handlers import WARM_RUNS, Done
from tidewheel.bench.scenarios.pipeline import EXECUTORS, all_services, due_after_loading, mark_before_firing, warm_up
from tidewheel.ids import JobId, run_id
from tidewheel.postgres.session import Conn
from tidewheel.runs import Cause, Lane
from tidewheel.transitions.create import NewRun, create_runs

JOBS = 10_000
RATE = 3000.0  # low enough that each run ends before the next one of its job is due
SECONDS = 10.0
RUNS_OF_A_JOB = 4

_SECOND = timedelta(seconds=1)
_FAR = timedelta(days=1)
_ORDER = ("allow_all", "skip", "skip", "allow_all")  # a drift of the machine is in both
_JOBS: LiteralString = """
SELECT j.job_id, j.shard, v.definition FROM jobs AS j JOIN job_versions AS v USING (job_id, version)
 WHERE v.overlap = %s AND v.handler = 'awaits'
"""


def measure_meeting(server: Server, options: Options) -> Round:
    """Trigger jobs, each several times for one instant, by policy; their handlers await 10 ms."""
    jobs = options.jobs or JOBS
    runs = jobs * RUNS_OF_A_JOB
    warm = min(WARM_RUNS, runs)
    done: dict[str, Done] = {}
    skipped: dict[str, int] = {}
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment, executors=EXECUTORS) as processes, environment.meter(processes) as meter:
            warm_up(environment, connection, ends, options, warm)
            for number, overlap in enumerate(("allow_all", "skip", "buffer_all")):
                options.report(f"{runs:,} runs that meet, {overlap}")
                due_at = due_after_loading(environment, connection, runs)
                load_jobs(
                    connection,
                    environment.installation,
                    jobs,
                    due_at=due_at + _FAR,
                    overlap=overlap,
                    handler="awaits",
                    prefix=overlap,
                )
                _trigger(connection, environment, overlap, due_at)
                before = meter.mark()
                ends.watch(warm + (number + 1) * runs)
                spent = meter.since(before, runs)
                until_empty(connection, "job_runs", "outbox")
                done[overlap] = Done(runs / (ends.last_seconds() - due_at.timestamp()), spent)
                skipped[overlap] = count_skipped(connection) - sum(skipped.values())
        if skipped["allow_all"] or skipped["buffer_all"] or not skipped["skip"]:
            message = f"runs skipped by overlap: {skipped}"
            raise Incomplete(message)
        check_runs(connection, warm + 3 * runs, environment.starts(), skipped=skipped["skip"])
        check_events(environment, warm + 3 * runs, skipped=skipped["skip"])
    floor = done["allow_all"].per_second
    figures = {
        f"meeting_{overlap}_runs_per_second": rate(
            each.per_second, "runs/s", floor=None if overlap == "allow_all" else floor, spent=each.spent
        )
        for overlap, each in done.items()
    }
    return Round({**figures, "meeting_skipped_percent": Figure(100 * skipped["skip"] / runs, "percent")})


def _trigger(connection: Conn, environment: Environment, overlap: str, due_at: datetime) -> None:
    """Write triggered runs, all due at one instant; those of a job lie side by side.

    The clock starts with their instant, so that writing them is not measured.
    """
    found = connection.execute(_JOBS, [overlap], binary=True).fetchall()
    for first in range(0, len(found), COMMIT):
        runs = [
            _triggered(cast("tuple[UUID, int, bytes]", row), overlap, due_at, number)
            for row in found[first : first + COMMIT]
            for number in range(RUNS_OF_A_JOB)
        ]
        create_runs(connection, environment.installation, runs, now=database_now(connection))
        connection.commit()


def _triggered(job: tuple[UUID, int, bytes], overlap: str, due_at: datetime, number: int) -> NewRun:
    job_id, shard, definition = job
    return NewRun(
        run_id(job_id, due_at, Cause.TRIGGER, b"%d" % number),
        JobId(job_id),
        "default",
        1,
        shard,
        Cause.TRIGGER,
        "default",
        Lane.STANDARD,
        "awaits",
        overlap,
        due_at,
        due_at,
        definition,
    )


def measure_apart(server: Server, options: Options) -> Round:
    """Do jobs of each second whose runs never meet, with `skip` and with `allow_all` in turn."""
    jobs, seconds = int(options.rate or RATE), round(options.seconds or SECONDS)
    runs = jobs * seconds
    warm = min(WARM_RUNS, runs)
    spent: dict[str, list[float]] = {overlap: [] for overlap in _ORDER}
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment, executors=EXECUTORS) as processes, environment.meter(processes) as meter:
            warm_up(environment, connection, ends, options, warm)
            for number, overlap in enumerate(_ORDER):
                options.report(f"{jobs:,} runs/s for {seconds} s, {overlap}")
                due_at = due_after_loading(environment, connection, jobs)
                load_jobs(
                    connection,
                    environment.installation,
                    jobs,
                    due_at=due_at,
                    every=_SECOND,
                    spread=_SECOND,
                    end_at=due_at + seconds * _SECOND - timedelta(microseconds=1),
                    overlap=overlap,
                    prefix=f"apart-{number}",
                )
                before = mark_before_firing(environment, connection, meter, due_at)
                ends.watch(warm + (number + 1) * runs)
                until_empty(connection, "job_runs", "outbox")
                spent[overlap].append(meter.since(before, runs).cpu_us_per_run.get("postgres", 0.0))
        check_runs(connection, warm + len(_ORDER) * runs, environment.starts())
        check_events(environment, warm + len(_ORDER) * runs)
    skip, allow_all = mean(spent["skip"]), mean(spent["allow_all"])
    return Round(
        {
            "apart_skip_postgres_us": least(skip, "us", floor=allow_all),
            "apart_skip_more_postgres_us": Figure(skip - allow_all, "us", less_is_better=True),
        }
    )
