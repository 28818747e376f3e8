"""A message that no relay has signed changes nothing: its run runs from its row in the database."""

import json
import threading
from base64 import b64decode
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, LiteralString
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer
from prometheus_client import REGISTRY

from tests.executor.running import Executing
from tests.fixtures.reader import TopicReader
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.control.cli.admin import rotate_message_keys
from tidewheel.message_signatures import (
    SIGNATURE_HEADER,
    SIGNS_AFTER_SECONDS,
    MessageKey,
    SignatureFlaw,
    digest_of,
)
from tidewheel.process.service import Shutdown
from tidewheel.relay.loop import Relay
from tidewheel.runs import Lane, RunState
from tidewheel.schemas.codec import decode, encode
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.settings.services import RelaySettings

pytestmark = pytest.mark.kafka

Headers = list[tuple[str, str | bytes | None]]

NO_SWEEP: dict[str, Any] = {"sweep": timedelta(days=1)}
AGE_KEYS: LiteralString = "UPDATE message_keys SET created_at = created_at - %s"
REASONS = {"unsigned": "missing", "own key": "unknown_key", "malformed": "unknown_key", "too long": "unknown_key"}
FORGERIES = ["unsigned", "own key", "other value", "other topic", "other key", "malformed", "too long"]


def message_of(executing: Executing, run_id: UUID) -> tuple[str, bytes, bytes]:
    [(topic, key, value)] = executing.database.rows(
        "DELETE FROM outbox WHERE key = %s AND topic LIKE '%%.runs.%%' RETURNING topic, key, value",
        [str(run_id).encode()],
    )
    return topic, key, value


def forged(value: bytes, payload: object) -> bytes:
    """Return a message with another payload, target and time limit than a job's."""
    request = decode(value, RunRequest)
    definition = decode(request.definition, JobDefinition)
    target = replace(definition.target, handler="acts.echo")
    definition = replace(definition, target=target, start_to_close_ms=1, schedule_to_close_ms=1)
    return encode(replace(request, payload=json.dumps(payload).encode(), definition=encode(definition)))


def headers_of(kind: str, executing: Executing, message: tuple[str, bytes, bytes], bad: bytes) -> Headers:
    """Return the headers of a forged message, of a genuine one with another value."""
    (topic, key, genuine), signed = message, executing.database.signed
    malformed: Headers = [(SIGNATURE_HEADER, b"*" * 28)]
    kinds: Mapping[str, Headers] = {
        "unsigned": [],
        "own key": [(SIGNATURE_HEADER, MessageKey(2**24 - 1, bytes(32)).sign(topic, key, digest_of(bad)))],
        "other value": signed(topic, key, genuine),
        "other topic": signed(executing.topics.runs("default", Lane.BATCH), key, bad),
        "other key": signed(topic, str(uuid4()).encode(), bad),
        "malformed": malformed,
        "too long": [(SIGNATURE_HEADER, b"A" * 100_000)],
    }
    return kinds[kind]


def publish(executing: Executing, topic: str, key: bytes, value: bytes, headers: Headers) -> None:
    producer = Producer({**executing.kafka})
    producer.produce(topic, key=key, value=value, headers=headers)
    assert producer.flush(30) == 0


def unverified(reason: str) -> float:
    return REGISTRY.get_sample_value("tidewheel_messages_unverified_total", {"reason": reason}) or 0.0


def due(executing: Executing, run_ids: list[UUID]) -> list[datetime]:
    rows = executing.database.rows("SELECT run_id, publish_at FROM runs WHERE run_id = ANY (%s)", [run_ids])
    return [dict(rows)[run_id] for run_id in run_ids]


def beats(executing: Executing, seen: dict[str, int], count: int) -> bool:
    [(number,)] = executing.database.rows("SELECT heartbeat_count FROM executors")
    return number >= seen.setdefault("first", number) + count


def key_ids(executing: Executing, topic: str) -> list[int]:
    reader = TopicReader(executing.kafka, [topic])
    reader.read_to_end()
    reader.close()
    return [int.from_bytes(b64decode(dict(seen.headers)[SIGNATURE_HEADER])[:3]) for seen in reader.seen]


def test_forged_message_changes_nothing_and_its_run_runs_from_its_row(executing: Executing) -> None:
    """An executor meets a forged message of each kind, each of another run, and then sweeps."""
    runs = {kind: executing.trigger("acts.echo", "the job's") for kind in FORGERIES}
    refusals = Counter(REASONS.get(kind, "wrong") for kind in FORGERIES)
    before = {reason: unverified(reason) for reason in refusals}
    for kind, run_id in runs.items():
        topic, key, value = message_of(executing, run_id)
        bad = forged(value, "the intruder's")
        publish(executing, topic, key, bad, headers_of(kind, executing, (topic, key, value), bad))
    with executing.running(**NO_SWEEP):
        for reason, count in refusals.items():
            until(partial(is_counted, reason, before[reason] + count), f"{count} are counted as {reason}")
        for kind, run_id in runs.items():
            assert executing.state(run_id) == RunState.QUEUED, kind
    with executing.running():
        for kind, run_id in runs.items():
            ended = executing.ended(run_id)
            assert (ended.state, ended.result, ended.claimed_from) == ("succeeded", b'"the job\'s"', "sweep"), kind
            assert executing.database.attempts(run_id) == [(1, "succeeded")], kind


def is_counted(reason: str, count: float) -> bool:
    return unverified(reason) == count


def test_genuine_message_behind_forged_ones_is_claimed(executing: Executing) -> None:
    """Their offsets move on, and the claim is the message's, not the sweep's."""
    run_id = executing.trigger("acts.echo", "the job's")
    topic, key, value = message_of(executing, run_id)
    bad = forged(value, "the intruder's")
    for kind in FORGERIES:
        publish(executing, topic, key, bad, headers_of(kind, executing, (topic, key, value), bad))
    publish(executing, topic, key, value, executing.database.signed(topic, key, value))
    with executing.running(**NO_SWEEP):
        ended = executing.ended(run_id)
    assert (ended.state, ended.result) == ("succeeded", b'"the job\'s"')
    assert (ended.claimed_from or "").startswith(f"{topic}/0/{len(FORGERIES)}@")


def test_forged_message_for_an_unknown_or_later_run_claims_nothing(executing: Executing) -> None:
    executing.database.submit("later", target="acts.echo")
    later = executing.database.trigger("later", delay="1h")
    last = executing.trigger("acts.echo", "last")
    topic, key, value = message_of(executing, last)
    for run_id in (later, uuid4()):
        bad = forged(value, "the intruder's").replace(key, str(run_id).encode())
        publish(executing, topic, str(run_id).encode(), bad, [])
    publish(executing, topic, key, value, executing.database.signed(topic, key, value))
    with executing.running(**NO_SWEEP):
        assert (executing.ended(last).claimed_from or "").startswith(f"{topic}/0/2@")
    assert executing.database.count("ended_attempts") == 1


def test_flood_of_forged_messages_keeps_no_run_from_the_sweep(executing: Executing) -> None:
    topic, key, value = message_of(executing, executing.trigger("acts.echo", 0))
    bad, over, before = forged(value, "the intruder's"), threading.Event(), unverified("missing")

    def flood() -> None:
        producer = Producer({**executing.kafka, "queue.buffering.max.messages": 1000})
        while not over.is_set():
            with suppress(BufferError):
                producer.produce(topic, key=key, value=bad)
            producer.poll(0)
        producer.flush(30)

    flooding = in_background(flood)
    try:
        with executing.running(slots=20):
            until(lambda: unverified("missing") > before + 1000, "the flood has reached the executor")
            lost = [executing.trigger("acts.echo", number) for number in range(5)]
            ended = [executing.ended(run_id) for run_id in lost]
            reached = unverified("missing")
            until(lambda: unverified("missing") > reached, "the flood goes on")
    finally:
        over.set()
        flooding.result(60)
    assert {(one.state, one.claimed_from) for one in ended} == {("succeeded", "sweep")}
    delays = [one.started_at - due for one, due in zip(ended, due(executing, lost), strict=True) if one.started_at]
    # An overdue run would get a slot after ten sweeps all the same, and the flood leaves little of a busy machine.
    assert max(delays) < timedelta(seconds=20)


def test_warn_uses_an_unsigned_message_and_counts_it(executing: Executing) -> None:
    run_id = executing.trigger("acts.echo", 1)
    topic, key, value = message_of(executing, run_id)
    before = unverified("missing")
    publish(executing, topic, key, value, [])
    with executing.running(**NO_SWEEP, message_signatures="warn"):
        assert executing.ended(run_id).state == "succeeded"
    assert unverified("missing") == before + 1


@pytest.mark.slow
def test_rotation_under_load_refuses_no_message(executing: Executing) -> None:
    """Keys are made old by SQL, since one signs ten seconds after its creation."""
    database, stop, sent = executing.database, Shutdown(), list[UUID]()
    before = {reason: unverified(reason) for reason in SignatureFlaw}
    settings = RelaySettings.load(topic_prefix=executing.topics.prefix, member_timeout=timedelta(seconds=2))
    relay = Relay(settings, database.url, {**executing.kafka}, stop)
    relaying = in_background(relay.run)
    topic = executing.topics.runs("default", "standard")
    try:
        with executing.running(**NO_SWEEP):
            for _ in range(3):
                database.execute(AGE_KEYS, [timedelta(minutes=2)])
                newest = database.within(rotate_message_keys)
                sent += [executing.trigger("acts.echo", 0) for _ in range(50)]
                database.execute(AGE_KEYS, [timedelta(seconds=SIGNS_AFTER_SECONDS)])
                until(partial(sends_with, executing, sent, newest), "the relay signs with the new key")
            assert {executing.ended(run_id).state for run_id in sent} == {"succeeded"}
    finally:
        stop.request()
        relaying.result(60)
    used = key_ids(executing, topic)
    assert len(set(used)) >= 3
    assert used == sorted(used)
    assert {reason: unverified(reason) for reason in SignatureFlaw} == before
    assert {executing.ended(run_id).claimed_from for run_id in sent}.isdisjoint({"sweep", None})


def sends_with(executing: Executing, sent: list[UUID], key_id: int) -> bool:
    """Trigger one more run; return True if messages have that key."""
    sent.append(executing.trigger("acts.echo", 0))
    return key_id in key_ids(executing, executing.topics.runs("default", "standard"))


def test_revoked_key_verifies_nothing_after_the_next_heartbeat(executing: Executing) -> None:
    run_id = executing.trigger("acts.echo", 1)
    topic, key, value = message_of(executing, run_id)
    stolen = executing.database.signed(topic, key, value)
    first = executing.trigger("acts.echo", 0)
    executing.publish(first)
    before = unverified("unknown_key")
    with executing.running(**NO_SWEEP):
        executing.ended(first)
        executing.database.within(rotate_message_keys, revoke=True)
        seen = dict[str, int]()
        until(lambda: beats(executing, seen, 2), "two heartbeats have come after it")
        publish(executing, topic, key, value, stolen)
        until(lambda: unverified("unknown_key") == before + 1, "it is refused")
        assert executing.state(run_id) == RunState.QUEUED
        executing.database.read_keys()
        publish(executing, topic, key, value, executing.database.signed(topic, key, value))
        assert executing.ended(run_id).state == "succeeded"
