"""`submit`: job requests/s that intake accepts from the topic, beside a COPY of the same rows."""

import json
from collections.abc import Iterator
from typing import cast

from tidewheel.bench import baselines
from tidewheel.bench.complete import until, wait_for
from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import PAYLOAD
from tidewheel.bench.measurement import Incomplete, Options, Round, rate
from tidewheel.clock import monotonic_seconds
from tidewheel.intake.service import MEMBERS
from tidewheel.kafka.clients import producer
from tidewheel.postgres.session import Conn

REQUESTS = 100_000
_WARM_SHARE = 10  # the first of so many parts is not timed
_FLOOR_ROWS = 50_000
_STILL_SECONDS = 8.0  # that intake may stand still: its group puts out who is silent for 9 or 10
_WRITTEN = ("jobs", "job_versions", "timers", "outbox")


def measure(server: Server, options: Options) -> Round:
    """Let intake loose on requests that lie on Kafka."""
    requests = options.jobs or REQUESTS
    warm = requests // _WARM_SHARE
    with server.environment() as environment, environment.connect() as connection:
        sender = producer(environment.kafka, role="bench-requests")  # not warmed up: that would be no request
        topic = environment.installation.topics.requests
        with environment.services(("intake",)) as [intake], environment.meter({"intake": intake}) as meter:
            until(lambda: _is_shared(connection), "the partitions are shared out")
            baselines.produce(environment, topic, _requests(0, warm), client=sender)
            wait_for(lambda: _read(connection), warm, "requests read")
            options.report(f"producing {requests - warm:,} requests")
            intake.suspend()  # so that each partition lies there as a whole
            try:
                still = monotonic_seconds()
                baselines.produce(environment, topic, _requests(warm, requests), client=sender)
                _check_still(monotonic_seconds() - still)
                options.report("accepting")
                before, began = meter.mark(), monotonic_seconds()
            finally:
                intake.resume()
            wait_for(lambda: _read(connection), requests, "requests read")
            seconds = monotonic_seconds() - began
            spent = meter.since(before, requests - warm)
            wait_for(lambda: _replies(connection, environment), requests, "replies")
        check_jobs(connection, requests)
        options.report("the floor")
        floor = copy_floor(connection, requests)
    done = rate((requests - warm) / seconds, "requests/s", floor=floor, spent=spent)
    return Round({"requests_per_second": done})


def _requests(first: int, end: int) -> Iterator[baselines.Made]:
    """Distinct jobs with a payload of about 200 bytes, as users send them."""
    for number in range(first, end):
        key = f"submitted-{number:08d}"
        job = {"key": key, "schedule": {"cron": f"{number % 60} 8 * * MON-FRI", "timezone": "Europe/Berlin"}}
        text = json.dumps(
            {"type": "job.submit", "request_id": f"r-{number}", "job": {**job, "target": "noop", "payload": PAYLOAD}}
        )
        yield key.encode(), text.encode(), []


def copy_floor(connection: Conn, requests: int) -> float:
    """Rows of jobs a second that a plain COPY of what was written does; empties the tables."""
    tables = [table for table in _WRITTEN if _one(connection, "SELECT to_regclass(%s) IS NOT NULL", table) is True]
    taken = baselines.take_rows(connection, tables, min(requests, _FLOOR_ROWS))
    connection.execute("TRUNCATE jobs, job_versions, timers, outbox CASCADE")
    for each in taken:
        connection.execute(f"TRUNCATE {each.table} CASCADE".encode())
    connection.execute("SET session_replication_role = replica")  # rows of one job may lie in different parts
    connection.commit()
    return len(taken[0].rows) / baselines.copy_rows(connection, taken)


def _read(connection: Conn) -> int:
    """Return the number of requests that intake has processed, by its committed offsets.

    Jobs, counted 20 times a second, were a fifth of a core.
    """
    return int(str(_one(connection, "SELECT coalesce(sum(next_offset), 0) FROM intake_offsets")))


def _is_shared(connection: Conn) -> bool:
    """Return True if every member of the intake owns its share of the partitions."""
    owners = "SELECT count(DISTINCT owner) FROM intake_offsets WHERE topic LIKE '%.requests'"
    return _one(connection, owners) == MEMBERS


def _replies(connection: Conn, environment: Environment) -> int:
    topic = environment.installation.topics.replies
    return cast("int", _one(connection, "SELECT count(*) FROM outbox WHERE topic = %s", topic))


def _check_still(seconds: float) -> None:
    if seconds > _STILL_SECONDS:
        message = (
            f"intake stood still for {seconds:.0f} s, until the requests lay there, and its group has put it out:"
            " ask for fewer at once (--jobs)"
        )
        raise Incomplete(message)


def check_jobs(connection: Conn, requests: int) -> None:
    """See that so many jobs are there, each with its version and its timer.

    Raises:
        Incomplete: There are not.
    """
    timers = _one(connection, "SELECT count(*) FROM timers AS t JOIN job_versions AS v USING (job_id, version)")
    letters = _one(connection, "SELECT count(*) FROM dead_letters")
    if (timers, letters) != (requests, 0):
        message = f"{requests:,} jobs were submitted; {timers} have a timer and a version, {letters} dead letters"
        raise Incomplete(message)


def _one(connection: Conn, statement: str, value: object = None) -> object:
    row = connection.execute(statement.encode(), None if value is None else [value]).fetchone()
    connection.rollback()
    assert row is not None
    return row[0]
