"""Claims in one transaction under a valid lease; after a lost COMMIT they are read back."""

import math
from collections.abc import Sequence
from typing import LiteralString
from uuid import UUID

import pytest
from confluent_kafka import Consumer, Message

from tests.executor.handlers import handlers
from tests.executor.running import ENTER, Executing, hold_row
from tests.fixtures.acts import EXECUTOR
from tests.fixtures.database import Database
from tests.transitions.stepping import in_background
from tidewheel.errors import Unavailable
from tidewheel.executor import claim
from tidewheel.executor.claim import Claimer, LeaseLost
from tidewheel.executor.lease import Lease
from tidewheel.executor.message_check import MessageCheck
from tidewheel.executor.run_messages import BatchClaimer, ClaimedRun
from tidewheel.message_signatures import MessageKeys
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import KEPT_PLANS, UNIFORM, Session, connect
from tidewheel.postgres.statements import Statements
from tidewheel.process.service import Shutdown
from tidewheel.runs import AttemptOutcome, Overlap, RunState
from tidewheel.transitions.requeue import Requeue, requeue_runs

SQL = Statements("tidewheel.executor")

REFUSE_ACTIVE_RUNS = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '22023'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON active_runs FOR EACH ROW EXECUTE FUNCTION refuse();
"""
KILL_FIRST_COMMIT = """
CREATE SEQUENCE commits;
CREATE FUNCTION die_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('commits') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER die AFTER UPDATE ON job_runs DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION die_once();
"""


def claimer(database: Database, told: list[str] | None = None, *, silent: bool = False) -> Claimer:
    heard = [] if told is None else told
    return Claimer(
        database.session(),
        database.installation,
        EXECUTOR,
        Shutdown(),
        lease_lost=lambda: heard.append("lease lost"),
        notify=heard.append,
        lease=lambda: Lease(-math.inf if silent else math.inf),
    )


@pytest.fixture
def database(database: Database) -> Database:
    """A database that the executor of these claims has executing."""
    database.execute(ENTER, [EXECUTOR])
    return database


@pytest.fixture
def run_id(database: Database) -> UUID:
    database.submit()
    return database.trigger()


def test_silent_executor_beats_before_it_claims(database: Database, run_id: UUID) -> None:
    """Otherwise it would release its claims at once, repeatedly, until its heartbeat succeeds."""
    told: list[str] = []
    with pytest.raises(Unavailable, match="heartbeat is overdue"):
        claimer(database, told, silent=True).claim([database.requested_claim(run_id)], source="message")
    assert told == ["lease lost"]
    assert database.open_run(run_id).attempt == 0


def test_nothing_is_claimed_without_a_lease(database: Database, run_id: UUID) -> None:
    told: list[str] = []
    claiming = claimer(database, told)
    database.execute("DELETE FROM executors")
    with pytest.raises(LeaseLost):
        claiming.claim([database.requested_claim(run_id)], source="message")
    assert told == ["lease lost"]
    assert database.open_run(run_id).attempt == 0
    database.execute(ENTER, [EXECUTOR])
    assert len(claiming.claim([database.requested_claim(run_id)], source="message").started) == 1


def test_claim_that_signals_notifies_executors(database: Database) -> None:
    database.submit(overlap="skip")
    told: list[str] = []
    claiming = claimer(database, told)
    claiming.claim([database.requested_claim(database.trigger())], source="message")
    claiming.claim([database.requested_claim(database.trigger())], source="message")
    assert told == []
    claiming.claim([database.requested_claim(database.trigger(overlap="cancel_other"))], source="message")
    assert told == [Channel.SIGNALS]
    claiming.claim([database.requested_claim(database.trigger(overlap="terminate_other"))], source="message")
    assert told == [Channel.SIGNALS] * 2


@pytest.mark.parametrize("overlap", [Overlap.ALLOW_ALL, Overlap.SKIP])
def test_run_that_cannot_be_read_keeps_no_other_from_being_claimed(
    database: Database, caplog: pytest.LogCaptureFixture, overlap: Overlap
) -> None:
    for key in ("first", "damaged", "last"):
        database.submit(key, overlap=overlap)
    first, damaged, last = (database.trigger(key) for key in ("first", "damaged", "last"))
    claims = [database.requested_claim(run) for run in (first, damaged, last)]
    change = "UPDATE job_runs SET schedule_to_close_at = '294000-01-01Z' WHERE run_id = %s"
    database.execute(change, [damaged])
    claiming = claimer(database)
    assert [one.run_id for one in claiming.claim(claims, source="message").started] == [first, last]
    assert claiming.claim(claims, source="sweep").started == []
    assert list(claiming.left_out()) == [damaged]
    assert caplog.text.count("cannot claim run") == 1


def test_key_whose_limit_cannot_be_used_keeps_no_other_from_starting(database: Database) -> None:
    for key in ("damaged", "whole"):
        database.submit(key, concurrency_key={"key": key, "rate": "1/s"})
    damaged, whole = database.trigger("damaged"), database.trigger("whole")
    claims = [database.requested_claim(run)._replace(keyed=True) for run in (damaged, whole)]
    endless = "UPDATE job_versions SET every_us = 9223372036854775807 WHERE concurrency_key = 'damaged'"
    assert database.execute(endless) == 1
    assert [one.run_id for one in claimer(database).claim(claims, source="message").started] == [whole]


def test_error_of_no_run_leaves_no_run_out(database: Database, run_id: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(claim, "claim_uniform", fail)
    claiming = claimer(database)
    with pytest.raises(MemoryError):
        claiming.claim([database.requested_claim(run_id)], source="message")
    assert list(claiming.left_out()) == []


def test_runs_that_all_fail_alike_are_left_to_their_messages(
    database: Database, run_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        message = "none of a row"
        raise ValueError(message)

    claims = [database.requested_claim(run) for run in (run_id, *(database.trigger() for _ in range(4)))]
    for name in ("claim_uniform", "claim_runs"):
        monkeypatch.setattr(claim, name, fail)
    claiming = claimer(database)
    with pytest.raises(ValueError, match="none of a row"):
        claiming.claim(claims, source="message")
    assert list(claiming.left_out()) == []


def test_run_that_one_by_one_claims_have_replaced_does_not_start(database: Database) -> None:
    database.submit("damaged")
    database.submit("replaced", overlap=Overlap.TERMINATE_OTHER)
    damaged, *others = [database.trigger(key) for key in ("damaged", "replaced", "replaced")]
    claims = [database.requested_claim(run) for run in (damaged, *others)]
    database.execute("UPDATE job_runs SET schedule_to_close_at = '294000-01-01Z' WHERE run_id = %s", [damaged])
    started = [one.run_id for one in claimer(database).claim(claims, source="message").started]
    running = "SELECT run_id FROM job_runs WHERE state = 'running'"
    assert len(started) == 1
    assert [(run,) for run in started] == database.rows(running)


def test_run_without_a_key_starts_before_a_claim_waits_for_a_hot_key(database: Database) -> None:
    database.submit()
    database.submit("limited", concurrency_key={"key": "hot", "at_once": 9})
    claims = [database.requested_claim(database.trigger("limited"))._replace(keyed=True) for _ in range(2)]
    assert len(claimer(database).claim(claims[:1], source="message").started) == 1
    free = database.trigger()
    parts = claimer(database).claim_in_parts([claims[1], database.requested_claim(free)], source="message")
    with database.transaction() as other:
        other.execute("SELECT FROM run_keys FOR UPDATE")
        assert [one.run_id for one in next(parts)] == [free], "it has started while the key is held"
    assert [one.run_id for one in next(parts)] == [claims[1].run_id]
    assert next(parts, None) is None


def test_run_with_a_key_is_claimed_beside_others_and_tried_once(database: Database) -> None:
    database.submit()
    database.submit("limited", concurrency_key="acme")
    free, first, second = database.trigger(), database.trigger("limited"), database.trigger("limited")
    claims = [database.requested_claim(free)]
    claims += [database.requested_claim(run)._replace(keyed=True) for run in (first, second)]
    claimed = claimer(database).claim(claims, source="message")
    assert {one.run_id for one in claimed.started} == {free, first}
    assert claimed.waiting == {second}
    assert database.open_run(second).state == RunState.BUFFERED


def test_locked_active_run_is_tried_once_more_then_left_to_the_sweep(database: Database) -> None:
    database.submit(overlap="skip")
    claiming = claimer(database)
    [first] = claiming.claim([database.requested_claim(database.trigger())], source="message").started
    second = database.requested_claim(database.trigger(overlap="terminate_other"))
    somebody = hold_row(database, first.run_id)
    assert claiming.claim([second], source="message").started == []
    assert database.open_run(second.run_id).state == "queued"
    waiting = in_background(lambda: claiming.claim([second], source="sweep"))
    somebody.rollback()
    assert len(waiting.result(30).started) + len(claiming.claim([second], source="sweep").started) == 1


def test_runs_claimed_before_an_error_of_the_others_start(fresh_database: Database) -> None:
    """Runs that meet others are claimed after the rest, in a transaction of their own."""
    database = fresh_database
    database.execute(ENTER, [EXECUTOR])
    database.execute(REFUSE_ACTIVE_RUNS)
    database.submit(overlap="skip")
    database.submit("free", overlap="allow_all")
    meeting = [database.requested_claim(database.trigger()) for _ in range(2)]
    free = database.requested_claim(database.trigger("free"))
    claimed = claimer(database).claim([*meeting, free], source="message")
    assert [each.run_id for each in claimed.started] == [free.run_id]
    assert claimer(database).claim(meeting, source="message").started == []
    assert {database.open_run(each.run_id).state for each in meeting} == {"queued"}


# Of a cancellation of this release, and of one of 0.1.
CANCELLING: tuple[LiteralString, ...] = (
    "LOCK TABLE claims_lock IN SHARE ROW EXCLUSIVE MODE",
    "SELECT pg_advisory_xact_lock(hashtext('tidewheel.claims'))",
)


@pytest.mark.parametrize("lock", CANCELLING)
def test_no_claim_begins_while_a_cancellation_is_written(database: Database, lock: LiteralString) -> None:
    """A kept plan takes the lock too: the executor's sessions plan a claim once."""
    database.submit(overlap="allow_all")
    mine = Claimer(
        Session(database.url, "test", options=UNIFORM), database.installation, EXECUTOR, Shutdown(),
        lease_lost=lambda: None, notify=lambda _: None,
    )  # fmt: skip
    for _ in range(7):
        wanted = [database.requested_claim(database.trigger())]
        assert len(mine.claim(wanted, source="message").started) == 1
    wanted = [database.requested_claim(database.trigger())]
    with database.transaction() as cancelling:
        cancelling.execute(lock)
        with pytest.raises(Unavailable):
            mine.claim(wanted, source="message")
    assert len(mine.claim(wanted, source="message").started) == 1
    mine.close()


def test_a_claim_locks_its_table_and_writes_nothing_for_it(database: Database) -> None:
    with connect(database.url, "test", options=KEPT_PLANS) as claiming:
        for _ in range(7):
            claiming.execute(SQL["lock_lease_for_claim"], {"executor_id": EXECUTOR}, prepare=True)
            locks = claiming.execute(
                "SELECT mode FROM pg_locks WHERE relation = 'claims_lock'::regclass AND pid = pg_backend_pid()"
            ).fetchall()
            assert locks == [("RowExclusiveLock",)]
            claiming.commit()
    assert database.value("SELECT pg_relation_size('claims_lock')") == 0


def test_claim_protects_the_lease_and_does_not_block_the_heartbeat(database: Database) -> None:
    claiming = database.connection()
    claiming.execute(SQL["lock_lease_for_claim"], {"executor_id": EXECUTOR})
    lease = {"executor_id": EXECUTOR, "heartbeat_count": 0}
    assert database.rows(SQL["lock_missed_lease"], lease) == []
    beat: dict[str, object] = {
        "name": "mine",
        "queues": [],
        "handlers": [],
        "slots": 1,
        "group_protocol": "classic",
        "lease": None,
        "stopping": False,
    }
    assert database.execute(SQL["heartbeat_executor"], {**beat, "executor_id": EXECUTOR}) == 1
    claiming.rollback()
    assert database.rows(SQL["lock_missed_lease"], {**lease, "heartbeat_count": 1}) == [(1,)]


def test_lost_commit_of_a_claim_is_read_back(
    fresh_database: Database,
) -> None:
    """The server dies on the first COMMIT: that transaction starts no run; the next one wins."""
    fresh_database.execute(KILL_FIRST_COMMIT)
    fresh_database.submit()
    wanted = fresh_database.requested_claim(fresh_database.trigger())
    fresh_database.execute(ENTER, [EXECUTOR])
    claiming = claimer(fresh_database)
    [started] = claiming.claim([wanted], source="message").started
    assert started.attempt == fresh_database.open_run(wanted.run_id).attempt == 1


def test_claims_of_another_thread_are_not_read_back(fresh_database: Database) -> None:
    """The message's claim is committed; the sweep's, of that run and another, loses its COMMIT's answer."""
    fresh_database.submit()
    fresh_database.execute(ENTER, [EXECUTOR])
    first, second = (fresh_database.requested_claim(fresh_database.trigger()) for _ in range(2))
    assert len(claimer(fresh_database).claim([first], source="message").started) == 1
    fresh_database.execute(KILL_FIRST_COMMIT)
    started = claimer(fresh_database).claim([first, second], source="sweep").started
    assert [one.run_id for one in started] == [second.run_id]


def test_runs_claimed_under_a_lease_that_ended_do_not_start_with_those_read_back_under_the_next(
    fresh_database: Database,
) -> None:
    """The free run is claimed first; a reaper takes it while the claim of the others loses its COMMIT."""
    database = fresh_database
    database.execute(ENTER, [EXECUTOR])
    database.execute(KILL_FIRST_COMMIT.replace("AFTER UPDATE ON job_runs", "AFTER INSERT ON active_runs"))
    database.submit(overlap="skip")
    database.submit("free", overlap="allow_all")
    meeting = [database.requested_claim(database.trigger()) for _ in range(2)]
    free = database.requested_claim(database.trigger("free"))
    first, second, read = Lease(math.inf), Lease(math.inf), list[Lease]()

    def lease() -> Lease:
        """Return the lease, which is the second once the first claim is committed."""
        run = database.open_run(free.run_id)
        if run.state == "running":
            database.within(
                requeue_runs,
                database.installation,
                [Requeue(free.run_id, run.attempt, EXECUTOR, AttemptOutcome.LOST, error_type="Lost")],
            )
            first.end()
        read.append(second if first.is_over() else first)
        return read[-1]

    claiming = Claimer(
        database.session(), database.installation, EXECUTOR, Shutdown(),
        lease_lost=lambda: None, notify=lambda _: None, lease=lease,
    )  # fmt: skip
    started = claiming.claim([*meeting, free], source="message").started
    assert (read[0], claiming.lease) == (first, second)
    assert free.run_id not in {one.run_id for one in started}


ONCE = {"delivery": "at_most_once"}


@pytest.mark.kafka
def test_at_most_once_runs_are_never_overcommitted(executing: Executing) -> None:
    """If the process died, it would be unknown whether a queued one had started."""
    plain = {executing.trigger("acts.echo", number) for number in range(2)}
    once = {executing.trigger("acts.echo", number, **ONCE) for number in range(3)}
    for run_id in plain | once:
        executing.publish(run_id)
    messages = _read(executing, 5)
    begun: list[ClaimedRun] = []
    claiming = _batch_claimer(executing, begun)
    started, left = claiming.claim(claiming.decode(messages), real=1)
    assert (started, len(left)) == (3, 2)
    assert {one.run_id for one, _, _ in begun} > plain
    assert claiming.claim(left, real=2) == (2, [])
    assert {one.run_id for one, _, _ in begun} == plain | once
    claiming.close()


@pytest.mark.kafka
def test_message_with_an_invalid_run_id_is_skipped(executing: Executing) -> None:
    good = executing.trigger("acts.echo", 1)
    for bad in ("f" * 36, "-" * 36, "", "no run"):
        run_id = executing.trigger("acts.echo", 2)
        value = executing.database.value("SELECT value FROM outbox WHERE key = %s", [str(run_id).encode()])
        damaged = value.replace(bytes([72]) + str(run_id).encode(), bytes([2 * len(bad)]) + bad.encode(), 1)
        executing.database.execute("UPDATE outbox SET value = %s WHERE key = %s", [damaged, str(run_id).encode()])
        executing.publish(run_id)
    executing.publish(good)
    begun: list[ClaimedRun] = []
    claiming = _batch_claimer(executing, begun)
    assert claiming.claim(claiming.decode(_read(executing, 5)), real=5) == (1, [])
    assert [one.run_id for one, _, _ in begun] == [good]
    claiming.close()


def _batch_claimer(executing: Executing, begun: list[ClaimedRun]) -> BatchClaimer:
    topic = executing.topics.runs("default", "standard")
    keys = MessageKeys()
    executing.database.within(keys.refresh)
    check = MessageCheck(keys, "refuse")
    own = claimer(executing.database)
    return BatchClaimer(topic, claimer=own, check=check, handlers=frozenset(handlers()), start=begun.extend)


def _read(executing: Executing, count: int) -> Sequence[Message]:
    topic = executing.topics.runs("default", "standard")
    config = {**executing.kafka, "group.id": f"{topic}.test", "auto.offset.reset": "earliest"}
    consumer = Consumer(config)
    consumer.subscribe([topic])
    found: list[Message] = []
    while len(found) < count:
        found += consumer.consume(count - len(found), 1.0)
    consumer.close()
    return found
