"""All services at work on one environment, with loads of jobs between two readings of what they use.

A new server is no measure, so it is warmed up first. A JVM compiles the code of its first hundred thousand messages,
on both of two cores. While PostgreSQL creates a WAL file, no transaction commits; later it reuses old files. The JVM's
last compiler goes on for some 300,000 messages, at 5 to 25 µs a run: compare rounds of the same age.
"""

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

import psutil

from tidewheel.jobs.strict_json import Json
from tools.bench.complete import check_events, check_runs, until_empty, wait_for
from tools.bench.environment import EXECUTOR, Environment, Server
from tools.bench.load import Load, due_after_loading, load_jobs, lookahead_of
from tools.bench.measurement import Incomplete, Options, Points, Progress, Spent
from tools.bench.messages import Ends
from tools.bench.starts import Starts
from tools.bench.usage import Mark, Meter

EXECUTORS = 2  # Python's lock keeps one of them from using what the others leave

_BEFORE_FIRING = timedelta(seconds=1)
_NEW_SERVER_RUNS = 100_000
_WAL_FILES = 64  # of 16 MiB

Seen = TypeVar("Seen")


@dataclass(slots=True)
class Flow:
    """The services of a round; `done` counts the runs of all loads so far."""

    environment: Environment
    meter: Meter
    ends: Ends
    starts: Starts
    report: Progress
    done: int = 0

    def warm_up(self, runs: int, target: Json = "noop") -> float:
        """Let all services do some work; return runs/s of it, 0 if its starts are not recorded."""
        self.report("warming up")
        environment, load = self.environment, Load(jobs=runs, target=target, prefix="warm")
        roles = partial(environment.count, "SELECT count(DISTINCT role) FROM members")
        wait_for(roles, 2, "of scheduler and relay have entered")
        load_jobs(environment.connection, environment.installation, load, environment.now())
        self.done += runs
        self.ends.watch(self.done)
        self.until_empty()
        times = sorted(start.at for start in self.starts.read())
        return runs * 0.8 / (times[runs * 9 // 10] - times[runs // 10]) if times else 0.0

    def load(self, load: Load) -> datetime:
        """Load jobs; return when the first is due."""
        self.report(f"loading {load.jobs:,} jobs")
        due_at = due_after_loading(self.environment, load.jobs)
        load_jobs(self.environment.connection, self.environment.installation, load, due_at)
        return due_at

    def measure(self, due_at: datetime, runs: int, wait: Callable[[int], Seen]) -> tuple[Seen, Spent]:
        """Wait for the runs that were loaded; return what was seen meanwhile, and their cost.

        `wait` gets the number of all runs that are done then.
        """
        before = mark_before_firing(self.environment, self.meter, due_at)
        self.report(f"{runs:,} runs")
        self.done += runs
        seen = wait(self.done)
        spent = self.meter.since(before, runs)
        self.until_empty()
        return seen, spent

    def wait_begun(self, runs: int) -> None:
        """Wait until so many runs have begun: no work for the broker."""
        wait_for(self.starts.count, runs, "runs begun")

    def until_empty(self) -> None:
        """Wait until no run is open and no message waits."""
        until_empty(self.environment, "job_runs", "outbox")

    def check(self, *, retried: int = 0, may_be_released: bool = False, events: bool = True) -> None:
        """Verify the runs in the database, and with `events` also those of the completion events."""
        connection = self.environment.connection
        check_runs(connection, self.done, self.starts.count(), retried=retried, may_be_released=may_be_released)
        if events:
            check_events(self.environment, self.done)


@contextmanager
def flowing(
    server: Server,
    options: Options,
    *,
    executors: int = EXECUTORS,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    beside: Mapping[str, list[psutil.Process]] | None = None,
) -> Generator[Flow]:
    """Start every service on a fresh environment.

    Executors have further arguments, all services further variables. The processes in `beside` are metered, too.
    """
    commands = [("intake",), ("relay",), *[(*EXECUTOR, *arguments)] * executors, ("scheduler",)]
    with server.environment() as environment:
        ends = Ends(environment, environment.topics.completions)
        with (
            environment.services(*commands, variables=variables) as processes,
            environment.meter({**processes, **(beside or {})}) as meter,
        ):
            yield Flow(environment, meter, ends, environment.starts(), options.report)


def mark_before_firing(environment: Environment, meter: Meter, due_at: datetime) -> Mark:
    """Mark just before the scheduler may fire the first job, which is due at this instant.

    So all of firing is in the cost, and no more than a second of idling.
    """
    wait = due_at - lookahead_of(environment) - _BEFORE_FIRING - environment.now()
    threading.Event().wait(max(0.0, wait / timedelta(seconds=1)))
    mark = meter.mark()
    if environment.count("SELECT count(*) FROM outbox WHERE topic LIKE %s", f"{environment.topics.prefix}.runs.%"):
        message = "the scheduler fired before the jobs were loaded: use fewer jobs"
        raise Incomplete(message)
    return mark


def rates(seen: Sequence[tuple[float, int]]) -> Points:
    """Return events a second, from how many there were when; by whole seconds or more."""
    points: list[tuple[float, float]] = []
    at, count = seen[0]
    for now, there in seen[1:]:
        if now - at >= 1.0:
            points.append((now - seen[0][0], (there - count) / (now - at)))
            at, count = now, there
    return points


def warm_up_server(server: Server) -> None:
    """Warm up the bench's own PostgreSQL and broker; a given server is not warmed up."""
    if server.own_database:
        with server.connect_admin() as admin:
            for _ in range(_WAL_FILES):
                admin.execute("SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()")
            admin.execute("CHECKPOINT")
    if server.info.kafka_properties is not None:  # else the brokers were given
        with flowing(server, Options()) as flow:
            flow.warm_up(_NEW_SERVER_RUNS)
