"""`http`: the CPU of a call beside aiohttp alone, and calls/s of the whole pipeline and of a backlog.

The receiver is a process on this machine, which counts requests and runs: each run must have been sent once.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import aiohttp
import uvloop

from tidewheel.bench.complete import Ends, check_events, check_runs, until_empty, wait_for
from tidewheel.bench.environment import EXECUTOR, Environment, Server
from tidewheel.bench.load import PAYLOAD, database_now, load_jobs
from tidewheel.bench.measurement import Figure, Incomplete, Options, Round, least, rate
from tidewheel.bench.receiver import Receiver, receiving
from tidewheel.bench.scenarios.fire import fire_all
from tidewheel.bench.scenarios.pipeline import EXECUTORS, all_services, due_after_loading, mark_before_firing
from tidewheel.bench.scenarios.relay import relay_all
from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.runners.http import HttpRunner
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.strict_json import Json
from tidewheel.postgres.session import Conn
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.codec import encode
from tidewheel.schemas.definitions import definition_record
from tidewheel.schemas.generated.records import Cause, RunRequest
from tidewheel.transitions.claim import Started

CALLS = 50_000
IN_FLIGHT = (1, 10, 100, 1000)
_CALLS_SHARE = 5  # of the jobs, as calls with so many in flight
_WARM_RUNS = 5_000
_SPREAD = timedelta(seconds=5)  # of the pipeline's due instants: far more than can be called in that time
_VARIABLES = {"TIDEWHEEL_HTTP_ALLOW_PRIVATE": "true"}
# All is to come by Kafka: what is due already would be swept while the group forms.
_NO_SWEEP = {**_VARIABLES, "TIDEWHEEL_SWEEP": "30s"}
_SECRET = b"of the bench, 24 bytes. "

Call = Callable[[], Awaitable[None]]


def measure(server: Server, options: Options) -> Round:
    """Call by the runner and by aiohttp alone, then by all services, then by executors with a backlog."""
    jobs = options.jobs or CALLS
    with receiving() as receiver:
        figures = _measure_calls(receiver, max(jobs // _CALLS_SHARE, 2 * max(IN_FLIGHT)), options)
    floor = figures["calls_100_per_second"].floor
    with receiving() as receiver:
        figures["calls_per_second"] = _measure_pipeline(server, receiver, jobs, options, floor)
    with receiving() as receiver:
        figures["backlog_calls_per_second"] = _measure_backlog(server, receiver, jobs, options, floor)
    return Round(figures)


def _measure_calls(receiver: Receiver, calls: int, options: Options) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for in_flight in IN_FLIGHT:
        options.report(f"{calls:,} calls, in flight: {in_flight:,}")
        bare_us, bare_rate = uvloop.run(_by_aiohttp(receiver.url, calls, in_flight))
        us, per_second = uvloop.run(_by_runner(receiver.url, calls, in_flight))
        figures[f"call_{in_flight}_us"] = least(us, "us", floor=bare_us)
        figures[f"calls_{in_flight}_per_second"] = rate(per_second, "calls/s", floor=bare_rate)
    return figures


async def _by_aiohttp(url: str, calls: int, in_flight: int) -> tuple[float, float]:
    connector = aiohttp.TCPConnector(limit=0)
    body, headers = f'"{PAYLOAD}"'.encode(), {"content-type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def call() -> None:
            async with session.post(url, data=body, headers=headers) as response:
                await response.read()

        return await _calling(call, calls, in_flight)


async def _by_runner(url: str, calls: int, in_flight: int) -> tuple[float, float]:
    runner = HttpRunner(allow_private=True, secrets={"127.0.0.1": (_SECRET,)})
    attempt = _attempt(url)

    async def call() -> None:
        outcome = await runner.run(attempt)
        if outcome.kind is not AttemptOutcome.SUCCEEDED:
            message = f"a call ended {outcome.kind}: {outcome.error_type} {outcome.error_message}"
            raise Incomplete(message)

    try:
        return await _calling(call, calls, in_flight)
    finally:
        await runner.close()


async def _calling(call: Call, calls: int, in_flight: int) -> tuple[float, float]:
    """Return microseconds of this thread's CPU a call, and calls a second, on open connections."""
    await _all(call, 2 * in_flight, in_flight)
    gc.collect()
    gc.freeze()  # as services do
    try:
        cpu, began = time.thread_time(), monotonic_seconds()
        await _all(call, calls, in_flight)
        return (time.thread_time() - cpu) / calls * 1e6, calls / (monotonic_seconds() - began)
    finally:
        gc.unfreeze()


async def _all(call: Call, calls: int, in_flight: int) -> None:
    left = iter(range(calls))

    async def some() -> None:
        for _ in left:
            await call()

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(some())


def _attempt(url: str) -> Attempt:
    spec = JobSpec.model_validate({"key": "hook", "schedule": "manual", "target": _target(url), "payload": PAYLOAD})
    job, run, now = str(UUID(int=7)), uuid4(), datetime.fromtimestamp(0, UTC)
    definition = definition_record(spec, tenant="default", job_id=job, job_version=1)
    request = RunRequest(
        run_id=str(run), job_id=job, job_version=1, attempt=1, cause=Cause.TRIGGER, shard=0, scheduled_at=now,
        publish_at=now, definition=encode(definition),
    )  # fmt: skip
    return Attempt(Started(run, 1, 0, 0, now, now), request, definition, on_report=_unseen, on_release=_unseen)


def _unseen(*_: object) -> None:
    pass


def _measure_pipeline(server: Server, receiver: Receiver, jobs: int, options: Options, floor: float | None) -> Figure:
    """Load more than can be called; count from the first due instant to the last event."""
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment, executors=EXECUTORS, variables=_VARIABLES) as processes:
            watched = {**processes, "receiver": [receiver.process]}
            with environment.meter(watched) as meter:
                options.report("warming up")
                _load(environment, connection, receiver, _WARM_RUNS, due_at=database_now(connection), prefix="warm")
                ends.watch(_WARM_RUNS)
                due_at = due_after_loading(environment, connection, jobs)
                _load(environment, connection, receiver, jobs, due_at=due_at, spread=_SPREAD, prefix="flow")
                options.report(f"{jobs:,} calls by all services")
                before = mark_before_firing(environment, connection, meter, due_at)
                seen = ends.watch(_WARM_RUNS + jobs)
                spent = meter.since(before, jobs)
                until_empty(connection, "job_runs", "outbox")
        _check(environment, connection, receiver, _WARM_RUNS + jobs)
    return rate(jobs / (seen[-1][0] - due_at.timestamp()), "calls/s", floor=floor, spent=spent)


def _measure_backlog(server: Server, receiver: Receiver, jobs: int, options: Options, floor: float | None) -> Figure:
    """Publish all runs, then start the executors; count from the first request to the last end."""
    with server.environment() as environment, environment.connect() as connection:
        options.report(f"publishing {jobs:,} runs")
        _load(environment, connection, receiver, jobs, due_at=database_now(connection), prefix="late")
        fire_all(environment)
        relay_all(environment)
        options.report(f"working off {jobs:,} calls")
        with (
            environment.services(*[EXECUTOR] * EXECUTORS, variables=_NO_SWEEP) as executors,
            environment.meter({"executor": executors, "receiver": [receiver.process]}) as meter,
        ):
            wait_for(receiver.count, 1, "requests")
            before, first, began = meter.mark(), receiver.count(), monotonic_seconds()
            wait_for(receiver.count, jobs, "requests")
            until_empty(connection, "job_runs")
            seconds, spent = monotonic_seconds() - began, meter.since(before, jobs - first)
        check_runs(connection, jobs, receiver)
        _check_once(receiver, jobs)
    return rate((jobs - first) / seconds, "calls/s", floor=floor, spent=spent)


def _load(
    environment: Environment,
    connection: Conn,
    receiver: Receiver,
    jobs: int,
    *,
    due_at: datetime,
    prefix: str,
    spread: timedelta = timedelta(0),
) -> None:
    load_jobs(
        connection, environment.installation, jobs, due_at=due_at, every=timedelta(hours=2), spread=spread,
        target=_target(receiver.url), prefix=prefix,
    )  # fmt: skip


def _target(url: str) -> dict[str, Json]:
    return {"type": "http", "url": url}


def _check(environment: Environment, connection: Conn, receiver: Receiver, expected: int) -> None:
    check_runs(connection, expected, receiver)
    check_events(environment, expected)
    _check_once(receiver, expected)


def _check_once(receiver: Receiver, expected: int) -> None:
    """Verify that each run was sent once.

    Raises:
        Incomplete: One was not.
    """
    requests, runs = receiver.counts()
    if (requests, runs) != (expected, expected):
        message = f"{expected:,} runs were expected; {requests:,} requests, of {runs:,} runs"
        raise Incomplete(message)
