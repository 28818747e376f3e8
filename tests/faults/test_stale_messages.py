"""Repeated, late and early messages claim nothing."""

from datetime import timedelta
from typing import LiteralString

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from tests.faults.workload import ATTEMPTS, DOOMED, Workload, now
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import LONG_LEASE, PATIENCE_SECONDS, Fleet
from tidewheel.kafka.topics import DEFAULT_QUEUE
from tidewheel.runs import Lane
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import Cause, RunRequest

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

AHEAD = timedelta(seconds=20)  # of runs that are written ahead: an edit overtakes some, also on a busy machine
WAIT = timedelta(seconds=10)  # for a second attempt, before which its message is consumed, also on a busy machine
NEXT_MESSAGE: LiteralString = """
SELECT o.topic, o.key, o.value FROM outbox AS o
  JOIN job_runs AS r ON o.key = convert_to(r.run_id::text, 'UTF8') AND r.attempt = 1 AND r.state = 'retrying'
"""
# Not those that leave at once: the relay may have read them before they are lost.
RUN_REQUESTS: LiteralString = """
SELECT id, value FROM outbox WHERE topic LIKE '%.runs.standard' AND publish_at > tidewheel_now() + interval '2 s'
"""
LOSE: LiteralString = """
DELETE FROM outbox WHERE id = ANY (%s) AND publish_at > tidewheel_now() + interval '1 s' RETURNING id
"""


def places(fleet: Fleet) -> dict[str, list[TopicPartition]]:
    """The partitions that each executors' group reads."""
    topics = [fleet.topics.runs(DEFAULT_QUEUE, lane) for lane in Lane]
    known = fleet.admin().list_topics(timeout=PATIENCE_SECONDS).topics
    return {f"{t}.executors": [TopicPartition(t, number) for number in known[t].partitions] for t in topics}


def consumed(fleet: Fleet) -> bool:
    """Return True if the executors have committed past every message."""
    admin = fleet.admin()
    for group, partitions in places(fleet).items():
        latest = admin.list_offsets({place: OffsetSpec.latest() for place in partitions})
        ends = {place.partition: future.result().offset for place, future in latest.items()}
        asked = [ConsumerGroupTopicPartitions(group, partitions)]
        [future] = admin.list_consumer_group_offsets(asked).values()
        committed = {place.partition: max(place.offset, 0) for place in future.result().topic_partitions}
        if any(committed.get(number, 0) < end for number, end in ends.items()):
            return False
    return True


@pytest.mark.landing
def test_redelivered_messages_are_dropped(fleet: Fleet, oracle: Oracle, work: Workload) -> None:
    work.submit()
    fleet.start_all(LEASE=LONG_LEASE)
    work.wait_recovered(now())
    again = 0
    for seen, request in oracle.run_requests():
        if request.run_id in oracle.completed():
            for _ in range(2):
                fleet.produce(seen.topic, seen.key, seen.value, seen.headers)
                again += 1
    assert again > 20
    fleet.flush()
    work.finish()
    fleet.until(lambda: consumed(fleet), "every message has been consumed")
    fleet.stop()
    assert oracle.check(failures=DOOMED, attempts=ATTEMPTS).repeated_messages >= again


@pytest.mark.slow
def test_lost_offsets_do_not_repeat_terminal_runs(fleet: Fleet, oracle: Oracle, work: Workload) -> None:
    work.submit()
    services = fleet.start_all(LEASE=LONG_LEASE)
    work.wait_recovered(now())
    work.finish()
    services["executor"].terminate()
    effects = oracle.effects()
    admin = fleet.admin()
    for group, partitions in places(fleet).items():
        from_the_start = [TopicPartition(place.topic, place.partition, 0) for place in partitions]
        [future] = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, from_the_start)]).values()
        future.result(PATIENCE_SECONDS)
    assert not consumed(fleet)
    fleet.start("executor", LEASE=LONG_LEASE)
    fleet.until(lambda: consumed(fleet), "every message has been consumed once more")
    fleet.stop()
    oracle.check(failures=DOOMED, attempts=ATTEMPTS)
    assert oracle.effects() == effects


@pytest.mark.slow
def test_message_from_before_an_edit_claims_nothing(fleet: Fleet, oracle: Oracle) -> None:
    job = {"key": "edited", "schedule": {"interval": "1s"}, "target": "note", "overlap": "allow_all"}
    work = Workload(fleet, oracle)
    work.recurring = ("edited",)
    fleet.ask({"type": "job.submit", "job": job})
    fleet.flush()
    fleet.start_all(LOOKAHEAD=f"PT{AHEAD.seconds}S", LEASE=LONG_LEASE)
    work.wait_recovered(now())
    edit = fleet.ask({"type": "job.submit", "job": {**job, "payload": "of the second version"}})
    fleet.flush()
    oracle.wait_answered()
    told = now()
    # The new version's messages of what was written ahead are lost: all that comes of those runs is the old one's.
    ahead = [(row[0], decode(row[1], RunRequest)) for row in fleet.database.rows(RUN_REQUESTS)]
    first = {request.run_id for _, request in ahead if request.job_version == 1}
    lost = [(place, r.run_id) for place, r in ahead if r.job_version == 2 and r.run_id in first]
    gone = {place for (place,) in fleet.database.rows(LOSE, [[place for place, _ in lost]])}
    overtaken = {run_id for place, run_id in lost if place in gone}
    assert overtaken, "the edit overtook no message of the first version"
    work.wait_recovered(told + AHEAD)
    work.finish()
    fleet.until(lambda: consumed(fleet), "every message has been consumed")
    fleet.stop()
    oracle.check(attempts={})
    assert oracle.replies()[edit].job_version == 2
    sent = {request.job_version for _, request in oracle.run_requests() if request.run_id in overtaken}
    assert sent == {1}
    assert {oracle.completed()[run_id].job_version for run_id in overtaken} == {2}
    given = {(c.job_version, c.result) for c in oracle.completed().values()}
    assert given == {(1, None), (2, b'"of the second version"')}
    after = [c.job_version for c in oracle.completed().values() if c.cause is Cause.TIMER and c.scheduled_at > told]
    assert set(after) == {2}


@pytest.mark.slow
def test_early_message_starts_nothing(fleet: Fleet, oracle: Oracle, work: Workload) -> None:
    work.recurring = ()
    retry = {"max_attempts": 2, "backoff": "fixed", "initial": f"{WAIT.seconds}s", "jitter": "0%"}
    job = {"key": "shaky", "schedule": "manual", "target": "shaky", "retry": retry}
    fleet.ask({"type": "job.submit", "job": job})
    fleet.ask({"type": "job.submit", "job": {"key": "errand", "schedule": "manual", "target": "note"}})
    work.trigger("errand", 1)
    fleet.start_all(LEASE=LONG_LEASE)
    work.wait_recovered(now())
    # The sweep starts runs before the executor is a member of its groups, which alone consume messages.
    fleet.until(lambda: consumed(fleet), "the executor is a member of its groups")
    work.trigger("shaky", 3)
    fleet.until(lambda: len(fleet.database.rows(NEXT_MESSAGE)) == 3, "three runs wait for their second attempt")
    for topic, key, value in fleet.database.rows(NEXT_MESSAGE):
        fleet.produce(topic, key, value, fleet.database.signed(topic, key, value))
    fleet.flush()
    fleet.until(lambda: consumed(fleet), "the early messages have been consumed")
    assert [effect.attempt for effect in oracle.effects() if effect.job_key == "shaky"] == [1, 1, 1]
    work.wait_recovered(now())
    work.finish()
    fleet.stop()
    oracle.check(attempts={"shaky": 2})
    shaky = [run_id for run_id, event in oracle.completed().items() if event.job_key == "shaky"]
    assert len(shaky) == 3
    for run_id in shaky:
        first, second = [effect.at for effect in oracle.effects() if effect.run_id == run_id]
        assert second - first >= WAIT
