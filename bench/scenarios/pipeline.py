"""`pipeline`: no-op runs/s from due to the completion event on Kafka, with every service running."""

import math
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import psutil

from tidewheel.bench import baselines
from tidewheel.bench.complete import Ends, check_events, check_runs, check_starts, until_empty, wait_for
from tidewheel.bench.environment import EXECUTOR, Environment, Server
from tidewheel.bench.load import count_of, database_now, load_jobs, load_steady
from tidewheel.bench.measurement import Incomplete, Options, Points, Round, least, percentile, rate
from tidewheel.bench.scenarios.fire import fire_all, settings_of
from tidewheel.bench.starts import Start
from tidewheel.bench.usage import Mark, Meter
from tidewheel.control.standby import recording
from tidewheel.kafka.topics import create_standby_topics
from tidewheel.postgres.session import Conn

SECONDS = 60.0
STEADY_SECONDS = 300.0
STEADY_RATE = 10_000.0
WARM_RUNS = 50_000
EXECUTORS = 2  # Python's lock keeps one of them from using what the others leave

_OVERLOAD = 1.5  # of what the warm-up has shown: the load must exceed the capacity
_PERIOD = timedelta(seconds=20)  # of the steady load's jobs: later than this, a run would be skipped
_FLOOR_RUNS = 50_000
_LOADING_SECONDS = 4.0
_BEFORE_FIRING = timedelta(seconds=1)
_LOADING_SECONDS_A_JOB = 100e-6  # 75 beside other load; waiting costs time alone
_FEW_JOBS = 30_000
_FEW_SECONDS = 5.0
_LOADED_SLOWER = 10  # with three records of each job for a standby site


@contextmanager
def all_services(
    environment: Environment,
    *,
    executors: int = 1,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Generator[dict[str, list[psutil.Process]]]:
    """Every service by name: one process each, of executors as many as are said.

    Args:
        environment: Of the round.
        executors: Their number.
        arguments: Further ones of the executors.
        variables: Further ones of all services.
    """
    commands = [("intake",), ("relay",), *[(*EXECUTOR, *arguments)] * executors, ("scheduler",)]
    with environment.services(*commands, variables=variables) as processes:
        found: dict[str, list[psutil.Process]] = {}
        for command, process in zip(commands, processes, strict=True):
            found.setdefault(command[0], []).append(process)
        yield found


def measure(server: Server, options: Options, *, executors: int = EXECUTORS, standby: bool = False) -> Round:
    """Load more than can be done for a while; count runs from the first due to the last event."""
    seconds = options.seconds or SECONDS
    warm = min(WARM_RUNS, options.jobs or WARM_RUNS)
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        if standby:
            record_for_standby(environment)
        with all_services(environment, executors=executors) as processes, environment.meter(processes) as meter:
            warm_rate = warm_up(environment, connection, ends, options, warm)
            runs = options.jobs or int(warm_rate * _OVERLOAD * seconds)
            options.report(f"loading {runs:,} jobs")
            due_at = due_after_loading(environment, connection, runs * (_LOADED_SLOWER if standby else 1))
            load_jobs(
                connection,
                environment.installation,
                runs,
                due_at=due_at,
                every=timedelta(hours=2),
                spread=timedelta(seconds=seconds),
                prefix="flow",
            )
            options.report(f"{runs:,} runs, due within {seconds:.0f} s")
            until_empty(connection, "standby_changes")
            before = mark_before_firing(environment, connection, meter, due_at)
            wait_for(environment.starts().count, warm + 1, "runs begun")
            seen = ends.watch(warm + runs)
            spent = meter.since(before, runs)
            until_empty(connection, "job_runs", "outbox")
        check_runs(connection, warm + runs, environment.starts())
        check_events(environment, warm + runs)
        options.report("the floor")
        floor = statements_floor(connection, environment, runs)
    done = runs / (seen[-1][0] - due_at.timestamp())
    series = {"events/s": _rates(seen)}
    return Round({"runs_per_second": rate(done, "runs/s", floor=floor, spent=spent)}, series=series)


def few(server: Server, options: Options, *, standby: bool) -> Round:
    """The same with 30,000 jobs, plain or while changed rows are recorded for a standby site."""
    few_jobs = replace(options, jobs=options.jobs or _FEW_JOBS, seconds=options.seconds or _FEW_SECONDS)
    found = measure(server, few_jobs, standby=standby)
    prefix = "recorded" if standby else "plain"
    return Round({f"{prefix}_{name}": figure for name, figure in found.figures.items()})


def steady(server: Server, options: Options) -> Round:
    """The same number of runs each second for minutes, and how late each was begun."""
    per_second, seconds = options.rate or STEADY_RATE, options.seconds or STEADY_SECONDS
    jobs = int(per_second * _PERIOD.total_seconds())
    rounds = max(1, round(seconds / _PERIOD.total_seconds()))
    runs = jobs * rounds
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment, executors=EXECUTORS) as processes, environment.meter(processes) as meter:
            warm_up(environment, connection, ends, options)
            options.report(f"loading {jobs:,} jobs")
            due_at = due_after_loading(environment, connection, jobs)
            load_steady(connection, environment.installation, jobs, due_at=due_at, period=_PERIOD, rounds=rounds)
            options.report(f"{per_second:,.0f} runs/s for {_PERIOD.total_seconds() * rounds:.0f} s")
            before = mark_before_firing(environment, connection, meter, due_at)
            wait_for(environment.starts().count, WARM_RUNS + 1, "runs begun")
            seen = ends.watch(WARM_RUNS + runs)
            spent = meter.since(before, runs)
            until_empty(connection, "job_runs", "outbox")
        check_runs(connection, WARM_RUNS + runs, environment.starts())
        starts = [start for start in environment.starts().read() if start.due]
        check_starts(starts, runs)
    late = lateness_ms(starts)
    figures = {
        "steady_start_p50_ms": least(percentile(late, 50), "ms"),
        "steady_start_p99_ms": least(percentile(late, 99), "ms", spent=spent),
        "steady_start_max_ms": least(max(late), "ms"),
        "steady_runs_per_second": rate(runs / (seen[-1][0] - due_at.timestamp()), "runs/s"),
    }
    series = {"steady: events/s": _rates(seen), "steady: due to start, p99 of a second, ms": p99_by_second(starts)}
    return Round(figures, distributions={"due to handler start, steady": late}, series=series)


def warm_up(environment: Environment, connection: Conn, ends: Ends, options: Options, runs: int = WARM_RUNS) -> float:
    """Let all services do some work; returns runs/s of it."""
    options.report("warming up")
    for process in ("scheduler", "relay"):
        wait_for(partial(_members, connection, process), 1, f"{process}s entered")
    due_at = database_now(connection)
    load_jobs(connection, environment.installation, runs, due_at=due_at, every=timedelta(hours=2), prefix="warm")
    ends.watch(runs)
    until_empty(connection, "job_runs", "outbox")
    times = environment.starts().times()
    return runs * 0.8 / (times[runs * 9 // 10] - times[runs // 10])


def record_for_standby(environment: Environment) -> None:
    """Do as `tidewheel standby enable`; the scheduler begins within seconds."""
    topics = environment.installation.topics
    create_standby_topics(environment.kafka, topics, replication=environment.server.info.replication or 1)
    with environment.connect(autocommit=True) as connection:
        recording.enable(connection, topics)


def due_after_loading(environment: Environment, connection: Conn, jobs: int) -> datetime:
    """A whole second so late that so many jobs are loaded before the scheduler may fire the first of them."""
    now = database_now(connection).replace(microsecond=0)
    connection.rollback()
    seconds = _LOADING_SECONDS + jobs * _LOADING_SECONDS_A_JOB
    return now + settings_of(environment).lookahead + timedelta(seconds=math.ceil(seconds))


def mark_before_firing(environment: Environment, connection: Conn, meter: Meter, due_at: datetime) -> Mark:
    """Mark just before the scheduler may fire the first job, which is due at this instant.

    So all of firing is in the cost, and no more than a second of idling.

    Raises:
        Incomplete: A job was fired before the mark: loading took too long.
    """
    wait = due_at - settings_of(environment).lookahead - _BEFORE_FIRING - database_now(connection)
    connection.rollback()
    threading.Event().wait(max(0.0, wait / timedelta(seconds=1)))
    mark = meter.mark()
    if count_of(connection, "SELECT count(*) FROM outbox WHERE topic LIKE %s", f"{environment.prefix}.runs.%"):
        message = "the scheduler fired before the jobs were loaded: use fewer jobs"
        raise Incomplete(message)
    return mark


def lateness_ms(starts: Sequence[Start]) -> list[float]:
    """Return the lateness of each run, in milliseconds."""
    return [(start.at - start.due) * 1000 for start in starts]


def p99_by_second(starts: Sequence[Start]) -> Points:
    """Return the p99 lateness of each second, in milliseconds."""
    first = min(start.due for start in starts)
    seconds: dict[int, list[float]] = {}
    for start in starts:
        seconds.setdefault(int(start.due - first), []).append((start.at - start.due) * 1000)
    return [(float(second), percentile(late, 99)) for second, late in sorted(seconds.items())]


def statements_floor(
    connection: Conn, environment: Environment, runs: int, *, retried: bool = False, output: bytes | None = None
) -> float:
    """Runs/s of the same way by plain statements; empties the tables."""
    connection.execute(
        "TRUNCATE finished_runs, job_runs, run_inputs, attempts, attempt_outputs, active_runs, outbox, timers"
    )
    connection.commit()
    few = min(runs, _FLOOR_RUNS)
    load_jobs(connection, environment.installation, few, due_at=database_now(connection), prefix="floor")
    fire_all(environment)
    return baselines.whole(connection, environment, few, retried=retried, output=output)


def _rates(seen: Sequence[tuple[float, int]]) -> Points:
    """Events a second, from how many there were when; by whole seconds or more."""
    points: list[tuple[float, float]] = []
    at, count = seen[0]
    for now, there in seen[1:]:
        if now - at >= 1.0:
            points.append((now - seen[0][0], (there - count) / (now - at)))
            at, count = now, there
    return points


def _members(connection: Conn, role: str) -> int:
    return count_of(connection, "SELECT count(*) FROM members WHERE role = %s", role)
