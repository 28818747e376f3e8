"""Runs whose end comes from outside, and timeouts in every record."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer

from tests.executor.http_target import Answer, conversing, serving
from tests.fixtures.oracle import Oracle
from tests.fixtures.reader import Seen, TopicReader
from tests.fixtures.services import LONG_LEASE, Fleet
from tests.relay.topics import make_topics
from tidewheel import Client
from tidewheel.errors import StaleToken
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import RunStatus
from tidewheel.settings.connections import Connections
from tidewheel.task_tokens import TASK_TOKEN_HEADER

TOKEN = TASK_TOKEN_HEADER


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Client]:
    targets = {"TARGETS": "handler,http,kafka", "KAFKA_TOPICS": "orders-*"}
    fleet.start_all("intake", "executor", LEASE=LONG_LEASE, HTTP_ALLOW_PRIVATE="true", **targets)
    with Client(settings=Connections.load(database_url=fleet.database.url, http_allow_private=True)) as made:
        yield made


def triggered(client: Client, target: Mapping[str, object], **job: object) -> UUID:
    """A run of a job with this target."""
    key = f"job-{uuid4()}"
    client.submit({"key": key, "schedule": "manual", "target": dict(target)} | job)
    return client.trigger(key, {"n": 1})


@pytest.mark.kafka
def test_accepted_request_is_completed_by_token(fleet: Fleet, client: Client) -> None:
    with serving(Answer(202)) as target:
        run_id = triggered(client, {"type": "http", "url": target.url(), "async": True})
        fleet.until(lambda: client.runs.get(run_id).state == "waiting", "the run waits")
        token = target.received[0].headers[TOKEN]
        assert client.task_tokens.heartbeat(token, progress=50) is RunState.WAITING
        assert client.task_tokens.complete(token, {"rows": 7}) is RunState.SUCCEEDED
        run = client.runs.wait(run_id)
    assert (run.state, run.attempt, run.result) == ("succeeded", 1, b'{"rows":7}')
    assert len(target.received) == 1


@pytest.mark.kafka
def test_failed_202_is_retried_with_a_new_token(fleet: Fleet, client: Client) -> None:
    with serving(Answer(202)) as target:
        described = {"type": "http", "url": target.url(), "async": True}
        run_id = triggered(client, described, retry={"backoff": "fixed", "initial": "100ms"})
        fleet.until(lambda: target.received, "it is called")
        first = target.received[0].headers[TOKEN]
        assert client.task_tokens.fail(first, "NoPaper", "the tray is empty") is RunState.RETRYING
        fleet.until(lambda: len(target.received) == 2, "it is called again")
        with pytest.raises(StaleToken):
            client.task_tokens.complete(first)
        assert client.task_tokens.complete(target.received[1].headers[TOKEN], "done") is RunState.SUCCEEDED
        run = client.runs.wait(run_id)
    assert (run.state, run.attempt, run.result) == ("succeeded", 2, b'"done"')


@pytest.mark.landing
@pytest.mark.kafka
def test_waiting_run_is_cancelled_at_once(fleet: Fleet, client: Client) -> None:
    with serving(Answer(202)) as target:
        run_id = triggered(client, {"type": "http", "url": target.url(), "async": True})
        fleet.until(lambda: client.runs.get(run_id).state == "waiting", "the run waits")
        assert client.runs.cancel(run_id) is RunState.WAITING
        assert client.runs.get(run_id).state == "cancelled"
        with pytest.raises(StaleToken, match="cancelled"):
            client.task_tokens.complete(target.received[0].headers[TOKEN])


@pytest.mark.landing
@pytest.mark.kafka
def test_kafka_target_ends_with_its_reply(fleet: Fleet, client: Client) -> None:
    topic = f"orders-{uuid4().hex[:8]}"
    make_topics(fleet.kafka, [topic])
    reader = TopicReader(fleet.kafka, [topic])
    described = {"type": "kafka", "topic": topic, "await_reply": True}
    runs = [triggered(client, described, retry={"max_attempts": 1}) for _ in range(3)]

    def all_received() -> bool:
        reader.poll()
        return len(reader.seen) == len(runs)

    fleet.until(all_received, "each run has its message")
    replying = Producer({**fleet.kafka})
    succeeding, failing, cancelled = (next(m for m in reader.seen if run_of(m) == run) for run in runs)
    fleet.until(lambda: client.runs.get(runs[2]).state == "waiting", "no executor owns the third")
    client.runs.cancel(runs[2])
    reply(replying, succeeding, json.dumps({"rows": 7}).encode())
    reply(replying, succeeding, b"2")  # a repeat changes nothing
    reply(
        replying, failing, b"the tray is empty", ("tidewheel-status", b"failed"), ("tidewheel-error-type", b"NoPaper")
    )
    reply(replying, cancelled, b"3")
    assert replying.flush(30) == 0
    first, second, third = (client.runs.wait(run) for run in runs)
    assert (first.state, first.result) == ("succeeded", b'{"rows":7}')
    assert (second.state, second.error_type, second.error_message) == ("failed", "NoPaper", "the tray is empty")
    assert third.state == "cancelled"


@pytest.mark.landing
@pytest.mark.kafka
def test_hanging_targets_time_out_and_block_nothing(fleet: Fleet, client: Client) -> None:
    over = threading.Event()

    def hang(connection: socket.socket) -> None:
        del connection
        over.wait(60)

    def drip(connection: socket.socket) -> None:
        for _ in range(1200):
            if over.wait(0.05):
                return
            connection.sendall(b"a")

    def drip_a_head(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
        drip(connection)

    def drip_a_body(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        drip(connection)

    given = {"start_to_close": "4s", "retry": {"max_attempts": 1}}  # within which each is called
    with (
        conversing(hang) as first,
        conversing(drip_a_head) as second,
        conversing(drip_a_body) as third,
        serving() as fine,
    ):
        slow = [triggered(client, {"type": "http", "url": each.url()}, **given) for each in (first, second, third)]
        fleet.until(lambda: all(each.connections for each in (first, second, third)), "all are called")
        quick = triggered(client, {"type": "http", "url": fine.url()})
        assert client.runs.wait(quick).state == "succeeded"
        runs = [client.runs.wait(run_id) for run_id in slow]
        over.set()
    assert {(run.state, run.reason, run.error_type) for run in runs} == {
        ("timed_out", "start_to_close", "timeout_start_to_close")
    }


def run_of(message: Seen) -> UUID:
    """The run that a message on a user's topic is of."""
    return UUID(dict(message.headers)["tidewheel-run-id"].decode())


def reply(producer: Producer, message: Seen, value: bytes, *headers: tuple[str, bytes]) -> None:
    """Answer a message as any Kafka client would."""
    given = dict(message.headers)
    named: list[tuple[str, str | bytes | None]] = [(TOKEN, given[TOKEN]), *headers]
    producer.produce(given["tidewheel-reply-topic"].decode(), value=value, key=message.key, headers=named)


NEVER = "/nowhere/that/exists"  # no gate is ever there
LATER = {"backoff": "fixed", "initial": "1h", "jitter": "0%", "max_attempts": 3}
AT_ONCE = {"backoff": "fixed", "initial": "10ms", "jitter": "0%", "max_attempts": 2}
WHOLE = "8s"  # counts from the trigger: a busy machine starts the attempt within it
# By key: the job, which timeout strikes, at which attempt it ends.
CASES: dict[str, tuple[dict[str, object], str, int]] = {
    "too-long": ({"target": "gated", "start_to_close": "500ms", "retry": AT_ONCE}, "start_to_close", 2),
    "too-long-on-thread": ({"target": "gated-sync", "start_to_close": "500ms", "retry": AT_ONCE}, "start_to_close", 2),
    "silent": ({"target": "gated", "heartbeat": "1s", "retry": AT_ONCE}, "heartbeat", 2),
    "silent-on-thread": ({"target": "gated-sync", "heartbeat": "1s", "retry": AT_ONCE}, "heartbeat", 2),
    "nobody-has-it": ({"target": "no-such-handler", "schedule_to_start": "2s"}, "schedule_to_start", 0),
    "whole-time-running": ({"target": "gated", "schedule_to_close": WHOLE, "retry": AT_ONCE}, "schedule_to_close", 1),
    "whole-time-on-thread": (
        {"target": "gated-sync", "schedule_to_close": WHOLE, "retry": AT_ONCE},
        "schedule_to_close",
        1,
    ),
    "whole-time-between": (
        {"target": "lost-cause", "schedule_to_close": WHOLE, "retry": LATER},
        "schedule_to_close",
        1,
    ),
}


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
def test_expired_timeout_is_named_in_every_record(fleet: Fleet, oracle: Oracle) -> None:
    fleet.start_all(LEASE=LONG_LEASE)
    fleet.wait_started()
    for key, (job, _, _) in CASES.items():
        fleet.ask({"type": "job.submit", "job": {"key": key, "schedule": "manual", "payload": NEVER} | job})
        fleet.ask({"type": "job.trigger", "key": key})
    fleet.flush()
    oracle.wait_answered()
    fleet.until(
        lambda: reported_jobs(oracle) >= set(CASES), "every end is published"
    )  # a retry that was due in an hour stays behind
    ended = {event.job_key: event for event in oracle.completed().values()}
    letters = {letter.job_key: letter for letter in oracle.letters()}
    assert set(ended) == set(letters) == set(CASES)
    for key, (_, which, attempt) in CASES.items():
        event, letter = ended[key], letters[key]
        assert (key, event.status, event.reason, event.attempt) == (key, RunStatus.TIMED_OUT, which, attempt)
        assert event.error is not None
        assert event.error.type == f"timeout_{which}"
        assert event.error.message.startswith(f"{which} of ")
        assert (letter.status, letter.error) == (event.status, event.error)
    rows = fleet.database.rows("SELECT j.key, r.state, r.reason FROM runs AS r JOIN jobs AS j USING (job_id)")
    assert sorted(rows) == sorted((key, "timed_out", which) for key, (_, which, _) in CASES.items())


def reported_jobs(oracle: Oracle) -> set[str]:
    """The jobs of which both a completion and a dead letter have come."""
    oracle.look()
    return {event.job_key for event in oracle.completed().values()} & {letter.job_key for letter in oracle.letters()}
