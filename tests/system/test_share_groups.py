"""Executors in share groups: each message's run happens once, however many share a partition."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.executor.running import Executing
from tests.faults.workload import ATTEMPTS, DOOMED, Workload, now
from tests.fixtures.database import Database
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import LONG_LEASE, SHORT_LEASE, Fleet, until
from tidewheel.local.stack import StackInfo
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.codec import FORMS

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

SHARE = {"EXECUTOR_GROUP": "share", "PRODUCER_BATCH": "20"}
HEADERS = (FORMS["JobDefinition"].header, FORMS["RunRequest"].header)
LONGEST = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2^63 - 1, as a length or a count
BY_MESSAGE: dict[str, Any] = {"executor_group": "share", "sweep": timedelta(days=1)}


@pytest.fixture
def executing(fresh_database: Database, info: StackInfo) -> Executing:
    made = Executing(fresh_database, info.kafka)
    made.make_topics()
    return made


@pytest.fixture
def closed(executing: Executing, info: StackInfo) -> Iterator[threading.Event]:
    """A database that refuses and ends all connections while the event is set."""
    name = sql.Identifier(str(conninfo_to_dict(executing.database.url)["dbname"]))
    ended, wished = threading.Event(), threading.Event()

    def keep() -> None:
        with psycopg.connect(info.database_url, autocommit=True) as connection:
            while not ended.wait(0.02):
                allowed = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(
                    name, sql.SQL("false" if wished.is_set() else "true")
                )
                connection.execute(allowed)
                if wished.is_set():
                    throw = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
                    connection.execute(throw, [name.as_string().strip('"')])
            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    yield wished
    ended.set()
    thread.join()


@pytest.mark.slow
def test_share_group_serves_more_executors_than_partitions(fleet: Fleet, oracle: Oracle) -> None:
    """With two partitions, two of four executors in a consumer group would get no message."""
    work = Workload(fleet, oracle)
    work.submit(recurring=False)
    fleet.start_all("intake", "scheduler", "relay")
    for _ in range(4):
        fleet.start("executor", SWEEP="PT600S", LEASE=LONG_LEASE, **SHARE)
    fleet.wait_started()

    def all_have_worked() -> bool:
        work.trigger("errand", 1)
        work.wait_recovered(now())
        return len({effect.pid for effect in oracle.effects()}) == 4

    fleet.until(all_have_worked, "each of the four has had a run")
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED, attempts=ATTEMPTS)
    came = {str(by) for (by,) in fleet.database.rows("SELECT split_part(claimed_from, '/', 1) FROM ended_attempts")}
    assert came == {fleet.topics.runs("default", "standard")}


@pytest.mark.slow
def test_killed_member_costs_only_the_lease(fleet: Fleet, oracle: Oracle) -> None:
    work = Workload(fleet, oracle)
    work.submit()
    fleet.start_all("intake", "scheduler", "relay")
    victim = fleet.start("executor", LEASE=SHORT_LEASE, **SHARE)
    held = work.hold()
    held.wait_begun(1)
    fleet.start("executor", LEASE=SHORT_LEASE, **SHARE)
    fleet.wait_started()
    work.trigger("errand", 20)
    victim.kill()
    held.wait_begun(2)
    held.let_go()
    work.trigger("errand", 5)
    work.wait_recovered(now())
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED, stopped=[victim])
    assert held.attempts() == [(1, AttemptOutcome.LOST), (2, AttemptOutcome.SUCCEEDED)]


@pytest.mark.slow
def test_returning_member_reads_only_missed_messages(fleet: Fleet, oracle: Oracle) -> None:
    work = Workload(fleet, oracle)
    work.submit()
    fleet.start_all("intake", "scheduler", "relay")
    first = fleet.start("executor", **SHARE)
    fleet.wait_started()
    work.wait_recovered(now())
    first.terminate()
    work.trigger("errand", 10)
    oracle.wait_answered()
    fleet.start("executor", **SHARE)
    work.wait_recovered(now())
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED)


def send_packed(executing: Executing, topic: str, codec: str, *values: bytes | None) -> None:
    """Produce one batch of signed messages, as one record batch however large it is."""
    told = {"message.max.bytes": 1_000_000_000, "batch.size": 1_000_000_000, "batch.num.messages": 1_000_000}
    producer = Producer({**executing.kafka, **told, "linger.ms": 5000, "compression.type": codec})
    failures: list[object] = []
    for value in values:
        producer.produce(
            topic,
            value,
            headers=executing.database.signed(topic, None, value),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert failures == []


HOSTILE: dict[str, tuple[str, list[bytes | None]]] = {
    "undecodable": ("none", [b"garbage", b"", None, b"\x00" * 500, *(header + LONGEST * 100 for header in HEADERS)]),
    "too long, by lz4": ("lz4", [bytes(20_000_000)]),
    "too long, by gzip": ("gzip", [bytes(20_000_000)]),
    "too long, by snappy": ("snappy", [bytes(15_000_000)]),
    "one that cannot be unpacked": ("zstd", [bytes(60_000_000)]),
    "three that cannot be unpacked": ("zstd", [bytes(20_000_000)] * 3),
    "many that cannot be unpacked": ("zstd", [bytes(40_000)] * 1000),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_batch_blocks_no_share_group(executing: Executing, kind: str) -> None:
    """The run behind it is claimed by its message: the sweep is off."""
    topic = executing.topics.runs("default", "standard")
    codec, values = HOSTILE[kind]
    before = executing.trigger("acts.echo", 0)
    executing.publish(before)
    for _ in range(3):
        send_packed(executing, topic, codec, *values)
    behind = executing.trigger("acts.echo", 1)
    executing.publish(behind)
    with executing.running(**BY_MESSAGE):
        later = executing.trigger("acts.echo", 2)
        executing.publish(later)
        for run_id in (before, behind, later):
            assert (executing.ended(run_id).claimed_from or "").startswith(f"{topic}/0/")
            assert executing.database.attempts(run_id) == [(1, "succeeded")]


def test_second_message_for_a_run_is_acknowledged(executing: Executing) -> None:
    with executing.running(**BY_MESSAGE):
        run_id = executing.trigger("acts.echo", 0)
        executing.database.execute("CREATE TABLE kept AS SELECT * FROM outbox")
        executing.publish(run_id)
        executing.ended(run_id)
        executing.database.execute("INSERT INTO outbox OVERRIDING SYSTEM VALUE TABLE kept")
        executing.publish(run_id)
        last = executing.trigger("acts.echo", 1)
        executing.publish(last)
        assert executing.ended(last).state == "succeeded"
    assert executing.database.attempts(run_id) == [(1, "succeeded")]


@pytest.mark.slow
def test_messages_are_released_during_a_database_outage(executing: Executing, closed: threading.Event) -> None:
    """For longer than five deliveries take, after which the broker would drop them; the sweep is off."""
    with executing.running(**BY_MESSAGE):
        executing.publish(first := executing.trigger("acts.echo", 0))
        executing.ended(first)
        producer = Producer({**executing.kafka})
        waiting = [executing.trigger("acts.echo", number) for number in range(5)]
        rows = executing.database.rows("SELECT topic, key, value FROM outbox WHERE topic LIKE '%.runs.%'")
        headers = {key: executing.database.signed(topic, key, value) for topic, key, value in rows}
        executing.database.close()
        closed.set()
        until(lambda: refuses(executing.database), "the database refuses connections")
        for topic, key, value in rows:
            producer.produce(topic, key=key, value=value, headers=headers[key])
        assert producer.flush(30) == 0
        threading.Event().wait(4)
        closed.clear()
        until(lambda: not refuses(executing.database), "the database is back")
        for run_id in waiting:
            ended = executing.ended(run_id)
            assert (ended.state, ended.attempt) == ("succeeded", 1)
            assert ended.claimed_from != "sweep"


def refuses(database: Database) -> bool:
    """Return True if a database refuses connections."""
    try:
        psycopg.connect(database.url).close()
    except psycopg.OperationalError:
        return True
    return False
