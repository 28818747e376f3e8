"""`freeze`: cost of a standing freeze for the claims of others, and the thaw of waiting runs.

The cost is that of one session, as in `stages`: batches of claims alternate between no freeze and one of another queue,
so that both see the same machine.

The thaw is that of a whole installation. All runs wait under the freeze, their messages are read and left. The thaw
comes when they are read: else others wait on Kafka behind frozen runs, with or without a thaw. After it the executor
sweeps the runs, while another job has a run every 0.1 s: its runs show whether the thaw is fair.
"""

import gc
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from time import thread_time
from typing import LiteralString, cast
from uuid import uuid4

from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import database_now, load_jobs, vacuum
from tidewheel.bench.measurement import Incomplete, Options, Round, least, rate
from tidewheel.bench.scenarios.stages import backend_seconds, read_messages, register_executor
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.executor.claim import Claimer
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.kafka.offsets import offsets_client, read_committed, read_end_offsets, read_partitions
from tidewheel.postgres.session import BY_KEY, KEPT_PLANS, Conn, Session
from tidewheel.process.service import Shutdown
from tidewheel.scheduler.firing import FireBatch, fire

_RUNS = 20_000
_BATCH = 500
_WAITING = 100_000
_AT_ONCE = 1000
_GIVE_UP_SECONDS = 3600.0
_LOOK_SECONDS = 0.1
_FREEZE: LiteralString = "INSERT INTO freezes (tenant, queue) VALUES ('default', 'reports')"
_PUBLISHED: LiteralString = "SELECT NOT EXISTS (SELECT FROM outbox WHERE topic LIKE '%.runs.%')"
_ENDED: LiteralString = "SELECT count(*) FROM finished_runs AS r JOIN jobs AS j USING (job_id) WHERE j.key = 'backlog'"
_LEFT: LiteralString = "SELECT count(*) FROM job_runs AS r JOIN jobs AS j USING (job_id) WHERE j.key = 'backlog'"
_DELAY: LiteralString = """
SELECT coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY took), 0)::float,
       coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY took), 0)::float
  FROM (SELECT extract(epoch FROM started_at - publish_at) * 1000 AS took
          FROM finished_runs AS r JOIN jobs AS j USING (job_id)
         WHERE j.key = 'other' AND r.publish_at BETWEEN %(first)s AND %(last)s) AS found
"""


def measure_claims(server: Server, options: Options) -> Round:
    """Measure the claims of runs that no freeze names, without a freeze and with one.

    Raises:
        Incomplete: A run was not claimed.
    """
    runs = options.jobs or _RUNS
    with server.environment() as environment, environment.connect(autocommit=True) as admin:
        options.report(f"{runs:,} runs: fire, claim")
        _fire(environment, runs)
        messages = read_messages(admin, runs)
        vacuum(admin, ["job_runs"])
        executor_id = uuid4()
        register_executor(environment, executor_id)
        session = Session(environment.url, "tidewheel-executor", options=KEPT_PLANS)
        claimer = Claimer(
            session, environment.installation, executor_id, Shutdown(), lease_lost=lambda: None, notify=lambda _: None
        )
        connection, claimed = session.connection(), 0
        postgres, python = {False: 0.0, True: 0.0}, {False: 0.0, True: 0.0}
        gc.collect()
        gc.disable()
        try:
            for number, first in enumerate(range(0, runs, _BATCH)):
                frozen = number % 2 == 1
                admin.execute("DELETE FROM freezes")
                if frozen:
                    admin.execute(_FREEZE)
                claims = [claim for claim, _, _ in messages[first : first + _BATCH]]
                before, own = backend_seconds(connection), thread_time()
                claimed += len(claimer.claim(claims, source="message").started)
                python[frozen] += thread_time() - own
                postgres[frozen] += backend_seconds(connection) - before
        finally:
            gc.enable()
        claimer.close()
    if claimed != runs:
        message = f"{claimed:,} of {runs:,} runs were claimed"
        raise Incomplete(message)
    each = {kind: seconds / (runs / 2) * 1e6 for kind, seconds in postgres.items()}
    return Round(
        {
            "claim_postgres": least(each[False], "µs a run"),
            "claim_postgres_beside_a_freeze": least(each[True], "µs a run"),
            "claim_python": least(python[False] / (runs / 2) * 1e6, "µs a run"),
            "claim_python_beside_a_freeze": least(python[True] / (runs / 2) * 1e6, "µs a run"),
        }
    )


def measure_thaw(server: Server, options: Options) -> Round:
    """Measure the thaw of runs that wait, and the delay of another queue meanwhile."""
    runs = options.jobs or _WAITING
    with server.environment() as environment, Client(environment.url) as client, environment.connect() as connection:
        client.submit({"key": "backlog", "schedule": "manual", "target": "noop", "overlap": "allow_all",
                       "labels": {"team": "billing"}})  # fmt: skip
        client.submit({"key": "other", "schedule": "manual", "target": "noop", "overlap": "allow_all"})
        begun = monotonic_seconds()
        client.freezes.freeze(labels={"team": "billing"}, reason="measurement")
        frozen = monotonic_seconds() - begun
        options.report(f"{runs:,} runs wait")
        _trigger(environment, connection, runs)
        with environment.services(["relay"], ["scheduler"], ["executor", "--handlers", "tidewheel.bench.handlers"]):
            before = _others(connection, client, lambda: _waits(connection, environment, runs))
            options.report("thaw")
            begun = monotonic_seconds()
            client.freezes.thaw(labels={"team": "billing"})
            during = _others(connection, client, lambda: _one(connection, _LEFT) != 0)
            seconds = monotonic_seconds() - begun
        ended = _one(connection, _ENDED)
    if ended != runs:
        message = f"{ended} of {runs:,} runs ended"
        raise Incomplete(message)
    return Round(
        {
            "freeze": least(frozen * 1000, "ms"),
            "thawed_per_second": rate(runs / seconds, "runs/s"),
            "others_start_before_p50": least(before[0], "ms"),
            "others_start_before_p99": least(before[1], "ms"),
            "others_start_during_p50": least(during[0], "ms"),
            "others_start_during_p99": least(during[1], "ms"),
        }
    )


def _fire(environment: Environment, runs: int) -> None:
    with environment.connect() as connection:
        now = database_now(connection)
        load_jobs(connection, environment.installation, runs, due_at=now)
    session, shards = Session(environment.url, "tidewheel-scheduler", options=BY_KEY), environment.installation.shards
    batch = FireBatch(shards=range(shards), now=now, horizon=now, misfire_after=timedelta(hours=1), limit=2000)
    while fire(session, environment.installation, batch):
        pass
    session.close()


def _trigger(environment: Environment, connection: Conn, runs: int) -> None:
    trigger = ReceivedRequest(parse_request({"type": "job.trigger", "key": "backlog"}))
    for _ in range(runs // _AT_ONCE):
        apply_requests(connection, environment.installation, [trigger] * _AT_ONCE)
        connection.commit()


def _others(connection: Conn, client: Client, busy: Callable[[], bool]) -> tuple[float, float]:
    """Trigger runs of another job while it is busy; return median and p99 milliseconds of their starts."""
    first, deadline = database_now(connection), monotonic_seconds() + _GIVE_UP_SECONDS
    while True:
        client.trigger("other")
        Event().wait(_LOOK_SECONDS)
        if not busy():
            break
        if monotonic_seconds() > deadline:
            message = "the runs that waited have not ended within an hour"
            raise Incomplete(message)
    row = connection.execute(_DELAY, {"first": first, "last": database_now(connection)}).fetchone()
    connection.commit()
    return cast("tuple[float, float]", row)


def _waits(connection: Conn, environment: Environment, runs: int) -> bool:
    """Return True until the messages of all but a hundredth of the runs are read."""
    return _one(connection, _PUBLISHED) is not True or _unread(environment) > runs // 100


def _unread(environment: Environment) -> int:
    """Return the number of messages that the group of the executors has not read."""
    topic = environment.installation.topics.runs("default", "standard")
    with offsets_client(environment.kafka) as client:
        ends = read_end_offsets(client, read_partitions(client, topic)[topic])
    read = read_committed(environment.kafka, f"{topic}.executors", list(ends))
    return sum(end - max(read.get(place, 0), first) for place, (first, end) in ends.items())


def _one(connection: Conn, query: LiteralString) -> object:
    row = connection.execute(query).fetchone()
    connection.commit()
    assert row is not None
    return row[0]
