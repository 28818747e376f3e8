"""`cancel`: time until a cancellation holds behind a backlog, and until a filter's runs end."""

from threading import Event
from typing import LiteralString, cast
from uuid import UUID

from tidewheel.bench.environment import Environment
from tidewheel.bench.load import database_now
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.ids import RunId
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.postgres.session import Conn
from tidewheel.runs import RunState

RUNS = 100_000
_AT_ONCE = 1000
_GIVE_UP_SECONDS = 600.0
_LOOK_SECONDS = 0.05
_LATE: LiteralString = """
SELECT (SELECT count(*) FROM ended_attempts WHERE started_at > %(at)s)
       + (SELECT count(*) FROM job_runs WHERE started_at > %(at)s)
"""
_LAST_ENDED: LiteralString = """
SELECT coalesce(extract(epoch FROM max(finished_at) - %(at)s), 0)::float FROM ended_attempts
 WHERE outcome = 'cancelled' AND started_at <= %(at)s
"""


def measure(environment: Environment) -> dict[str, float]:
    """Every run is published before anything is cancelled; executors are busy with the first of them."""
    with Client(environment.url) as client, environment.connect() as connection:
        client.submit({"key": "backlog", "schedule": "manual", "target": "sleep", "payload": 5.0})
        runs = _trigger(environment, connection)
        with environment.services(["relay"], ["scheduler"], ["executor", "--handlers", "tidewheel.bench.handlers"]):
            _until(connection, "SELECT NOT EXISTS (SELECT FROM outbox WHERE topic LIKE '%.runs.%')")
            _until(connection, "SELECT EXISTS (SELECT FROM job_runs WHERE attempt > 0)")
            by_id = _cancel_one(client, runs[-1])
            requested = monotonic_seconds()
            number = client.runs.cancel_all(key="backlog")
            answered = monotonic_seconds()
            at = database_now(connection)
            while (standing := client.runs.cancellation(number)).finished_at is None:
                assert monotonic_seconds() - answered < _GIVE_UP_SECONDS, standing
                Event().wait(_LOOK_SECONDS)
            ended = monotonic_seconds()
            _until(connection, "SELECT NOT EXISTS (SELECT FROM job_runs)")
            late, ended = _value(connection, _LATE, at), _value(connection, _LAST_ENDED, at)
        assert late == 0, f"{late} attempts began after the cancellation was answered"
    return {
        "by_id_seconds": by_id,
        "by_filter_answer_seconds": answered - requested,
        "begun_after_answer": late,
        "last_running_ended_seconds": ended,
        "all_ended_seconds": ended - answered,
        "runs_ended_per_second": standing.cancelled_count / (ended - answered),
    }


def _cancel_one(client: Client, run: RunId) -> float:
    """Seconds from asking for the end of the last run of the backlog to its being over."""
    requested = monotonic_seconds()
    assert client.runs.cancel(run) is RunState.QUEUED
    assert client.runs.get(run).final
    return monotonic_seconds() - requested


def _trigger(environment: Environment, connection: Conn) -> list[RunId]:
    runs: list[RunId] = []
    trigger = ReceivedRequest(parse_request({"type": "job.trigger", "key": "backlog"}))
    for _ in range(RUNS // _AT_ONCE):
        replies = apply_requests(connection, environment.installation, [trigger] * _AT_ONCE)
        connection.commit()
        runs += [RunId(UUID(reply.run_id)) for reply in replies]
    return runs


def _until(connection: Conn, condition: LiteralString) -> None:
    deadline = monotonic_seconds() + _GIVE_UP_SECONDS
    while _one(connection, condition) is not True:
        assert monotonic_seconds() < deadline, condition
        Event().wait(_LOOK_SECONDS)


def _value(connection: Conn, query: LiteralString, at: object) -> float:
    return float(cast("float", _one(connection, query, {"at": at})))


def _one(connection: Conn, query: LiteralString, values: dict[str, object] | None = None) -> object:
    row = connection.execute(query, values).fetchone()
    connection.commit()
    assert row is not None
    return row[0]
