"""Requests are applied exactly once: a batch and its offsets are one transaction."""

import logging
from typing import LiteralString

import pytest

from tests.fixtures.acts import about, submission
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.intake.running import Requests
from tidewheel.intake import consume, recovery
from tidewheel.local.stack import StackInfo

pytestmark = pytest.mark.kafka


@pytest.fixture
def requests(database: Database, info: StackInfo) -> Requests:
    return Requests(database, info.kafka)


@pytest.mark.landing
def test_fenced_off_member_writes_nothing(requests: Requests) -> None:
    """Another member takes the partition during this batch, and has applied the message."""
    database = requests.database
    with requests.running():
        [first] = requests.send(submission("before"))
        requests.until_read(first)
        taking = database.connection()
        taking.execute("UPDATE intake_offsets SET epoch = epoch + 1, next_offset = next_offset + 1")
        [theirs] = requests.send(submission("theirs"))
        until(lambda: database.value(WAITING), "the zombie's batch waits for the row")
        taking.commit()
        # It joins anew and goes on where the new owner stood.
        [after] = requests.send(submission("after"))
        requests.until_read(after)
    assert after == theirs + 1
    assert {key for (key,) in database.rows("SELECT key FROM jobs")} == {"before", "after"}


STANDS: LiteralString = "SELECT epoch, next_offset FROM intake_offsets WHERE topic LIKE '%.requests'"
WAITING = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'tidewheel-intake' AND wait_event_type = 'Lock'
                  AND datname = current_database())
"""

CANCEL_WAITING = """
SELECT pg_cancel_backend(pid) FROM pg_stat_activity
 WHERE application_name = 'tidewheel-intake' AND wait_event_type = 'Lock' AND datname = current_database()
"""

SLOW_THEN_FAILING = """
CREATE SEQUENCE calls;
CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE nextval('calls')
        WHEN 1 THEN RAISE 'a batch' USING ERRCODE = 'data_exception';
        WHEN 2 THEN PERFORM pg_sleep(4);
        WHEN 3 THEN RAISE 'once' USING ERRCODE = 'serialization_failure';
        ELSE NULL;
    END CASE;
    RETURN NEW;
END $$;
CREATE TRIGGER act BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION act()
"""


@pytest.mark.landing
def test_rebalance_raises_the_epoch_and_continues_at_the_stored_offset(requests: Requests) -> None:
    offsets: list[int] = []
    for number in range(2):
        with requests.running():
            offsets += requests.send(about("job.trigger", f"nobody-{number}"))
            requests.until_read(offsets[-1])
    assert requests.database.rows(STANDS) == [(2, offsets[-1] + 1)]
    assert requests.database.count("outbox") == 2


@pytest.mark.landing
def test_failed_housekeeping_does_not_end_the_membership(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "_HOUSEKEEPING_SECONDS", 0.0)
    database = requests.database
    with requests.running():
        requests.until_read(requests.send(submission("before"))[0])
        locking = database.connection()
        locking.execute("LOCK TABLE requests IN SHARE MODE")
        until(lambda: database.value(WAITING), "the housekeeping waits for the table")
        database.execute(CANCEL_WAITING)
        locking.rollback()
        [offset] = requests.send(submission("after"))
        requests.until_read(offset)
    assert database.rows(STANDS) == [(1, offset + 1)]


@pytest.mark.landing
def test_member_gives_up_only_after_a_time_without_progress(
    fresh_database: Database, info: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch fails, its first request takes longer than the limit, and the second one fails once."""
    monkeypatch.setattr(recovery, "_GIVE_UP_SECONDS", 3.0)
    fresh_database.execute(SLOW_THEN_FAILING)
    requests = Requests(fresh_database, info.kafka)
    offsets = requests.send(submission("first"), submission("second"))
    with requests.running():
        requests.until_read(offsets[-1])
    assert fresh_database.value("SELECT last_value FROM calls") == 4
    assert fresh_database.rows(STANDS) == [(1, offsets[-1] + 1)]


@pytest.mark.landing
def test_batch_with_invalid_data_is_retried_request_by_request(
    fresh_database: Database, info: StackInfo, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that only the database refuses is rejected alone; a constraint is the fault."""
    fresh_database.execute("ALTER TABLE jobs ADD CONSTRAINT poison CHECK (key <> 'poison')")
    requests = Requests(fresh_database, info.kafka)
    documents = [submission(key) | {"request_id": key} for key in ("a", "poison", "b", "c")]
    offsets = requests.send(*documents, key=b"k")
    with caplog.at_level(logging.WARNING, "tidewheel.intake"), requests.running():
        requests.until_read(offsets[-1])
    assert {key for (key,) in fresh_database.rows("SELECT key FROM jobs")} == {"a", "b", "c"}
    replies = requests.replies(b"k")
    assert [(reply.request_id, reply.status) for reply in replies] == [
        ("a", "accepted"),
        ("poison", "rejected"),
        ("b", "accepted"),
        ("c", "accepted"),
    ]
    [error] = replies[1].errors
    assert error.problem.startswith("the request could not be applied: new row for relation")
    assert "a batch of 4 requests failed" in caplog.text


@pytest.mark.landing
def test_transient_error_is_retried_and_rejects_no_request(
    fresh_database: Database, info: StackInfo, caplog: pytest.LogCaptureFixture
) -> None:
    requests = Requests(fresh_database, info.kafka)
    fresh_database.execute("ALTER TABLE jobs RENAME TO jobs_elsewhere")
    offsets = requests.send(submission("a"), submission("b"), key=b"k")
    with caplog.at_level(logging.WARNING, "tidewheel.process.service"), requests.running():
        until(lambda: "applying requests" in caplog.text, "it fails")
        assert (requests.next_offset(), requests.replies(b"k")) == (0, [])
        fresh_database.execute("ALTER TABLE jobs_elsewhere RENAME TO jobs")
        requests.until_read(offsets[-1])
    assert [reply.status for reply in requests.replies(b"k")] == ["accepted", "accepted"]


@pytest.mark.landing
def test_messages_are_applied_once_during_a_rebalance(database: Database, info: StackInfo) -> None:
    """A second member joins and takes partitions; a trigger applied twice would be two runs."""
    requests = Requests(database, info.kafka, partitions=4)
    sent: dict[int, int] = {}

    def send(count: int) -> None:
        for partition in range(requests.partitions):
            batch = [about("job.trigger") for _ in range(count)]
            sent[partition] = requests.send(*batch, partition=partition)[-1]

    with requests.running():
        [made] = requests.send(submission())
        requests.until_read(made)
        send(20)
        with requests.running():
            send(20)
            until(lambda: owners(database) == 2, "the partitions are shared")
            send(20)
            for partition, offset in sent.items():
                requests.until_read(offset, partition)
    assert len(database.job_runs()) == database.count("runs") == 240


@pytest.mark.landing
def test_partition_with_a_missing_offset_is_logged_and_others_continue(
    database: Database, info: StackInfo, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests that expired unread need an operator's decision: none is skipped in silence."""
    requests = Requests(database, info.kafka, partitions=2)
    with requests.running():
        for partition in (0, 1):
            requests.until_read(requests.send(submission(), partition=partition)[0], partition)
    database.execute("UPDATE intake_offsets SET next_offset = 1000 WHERE partition = 0 AND topic LIKE '%.requests'")
    requests.send(submission("unread"))
    with caplog.at_level(logging.ERROR, "tidewheel.intake"), requests.running():
        until(lambda: "its stored offset is not in the topic" in caplog.text, "it says so")
        requests.until_read(requests.send(submission("other"), partition=1)[0], 1)
    assert requests.next_offset() == 1000
    assert {key for (key,) in database.rows("SELECT key FROM jobs")} == {"job", "other"}


def owners(database: Database) -> int:
    return database.value("SELECT count(DISTINCT owner) FROM intake_offsets WHERE topic LIKE '%.requests'")


TOO_LONG = """
CREATE FUNCTION too_long() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT count(*) > 3 OR bool_or(key = 'endless') FROM new_rows) THEN
        PERFORM pg_cancel_backend(pg_backend_pid()), pg_sleep(10);  -- as the limit does
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER too_long AFTER INSERT ON jobs REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION too_long()
"""


@pytest.mark.landing
def test_timed_out_batch_is_retried_in_halves_down_to_one_rejection(
    fresh_database: Database, info: StackInfo, caplog: pytest.LogCaptureFixture
) -> None:
    fresh_database.execute(TOO_LONG)
    requests = Requests(fresh_database, info.kafka)
    keys = [*(f"k{number}" for number in range(10)), "endless", *(f"l{number}" for number in range(10))]
    offsets = requests.send(*(submission(key) | {"request_id": key} for key in keys), key=b"k")
    with caplog.at_level(logging.WARNING, "tidewheel.intake"), requests.running():
        requests.until_read(offsets[-1])
    replies = requests.replies(b"k")
    assert [reply.request_id for reply in replies] == keys
    assert [reply.request_id for reply in replies if reply.status == "rejected"] == ["endless"]
    [error] = replies[10].errors
    assert (error.problem, error.remedy) == (
        "the request took longer than a transaction may, and was rolled back",
        "split the request",
    )
    assert {version for (version,) in fresh_database.rows("SELECT version FROM jobs")} == {1}
    assert "21 requests took too long" in caplog.text
    assert fresh_database.count("jobs") == 20
