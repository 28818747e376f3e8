"""Only requests that need a row wait for the user's transaction that holds it."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import TupleRow

import tidewheel
from tests.executor.own_transactions import MAKE_EFFECTS, completion, work
from tests.fixtures.acts import EXECUTOR, about, cancelling, ending, submission
from tests.fixtures.database import Database
from tests.intake.running import Requests
from tests.intake.waiting import beating, completing, token_of
from tests.transitions.graphs import after, put
from tests.transitions.overlapping import signals
from tidewheel.errors import AttemptOver
from tidewheel.intake.locks import RowLocked
from tidewheel.local.stack import StackInfo
from tidewheel.postgres.session import UNIFORM, connect
from tidewheel.runs import RunState
from tidewheel.scheduler.cancels import PendingCancels
from tidewheel.transitions.claim import Started, claim_uniform
from tidewheel.transitions.finish import finish_runs

# By claims of this release, and of 0.1.
SHARED: tuple[LiteralString, ...] = (
    "LOCK TABLE claims_lock IN ROW EXCLUSIVE MODE",
    "SELECT pg_advisory_xact_lock_shared(hashtext('tidewheel.claims'))",
)
# No claim waits.
UNBLOCKED: LiteralString = """
SELECT NOT EXISTS (SELECT FROM pg_locks WHERE relation = 'claims_lock'::regclass AND mode = 'ShareRowExclusiveLock')
"""


@pytest.fixture
def shop(fresh_database: Database) -> Database:
    fresh_database.execute(MAKE_EFFECTS)
    fresh_database.submit()
    return fresh_database


@contextmanager
def completing_transaction(database: Database, started: Started) -> Generator[psycopg.Connection[TupleRow]]:
    """A user's own transaction that completes a run, and does not end before the block does."""
    with psycopg.connect(database.url) as own:
        work(own, completion(database, started))
        yield own
        own.rollback()


def cancel(run_id: UUID) -> dict[str, object]:
    return cancelling(run_id, reason="no longer wanted")


def apply_pending_cancels(database: Database) -> tuple[int, int]:
    done = PendingCancels(database.session(), database.installation).step()
    return done.ended, done.signalled


def test_cancel_of_a_locked_run_does_not_wait_and_is_applied_later(shop: Database) -> None:
    started = shop.begun()
    with completing_transaction(shop, started):
        [reply] = shop.apply_batch(cancel(started.run_id))
        assert (reply.status, reply.run_status) == ("accepted", "running")
        assert apply_pending_cancels(shop) == (0, 0)
        assert shop.count("pending_cancels") == 1
    assert apply_pending_cancels(shop) == (0, 1)
    assert shop.open_run(started.run_id).state == "cancelling"
    assert [signal[0] for signal in signals(shop)] == [started.run_id]
    assert shop.count("pending_cancels") == 0


def test_repeated_cancel_of_a_locked_run_adds_no_row_and_no_entry_of_the_audit_log(shop: Database) -> None:
    started = shop.begun()
    before = shop.count("audit_log")
    with completing_transaction(shop, started):
        replies = [reply for _ in range(3) for reply in shop.apply_batch(cancel(started.run_id))]
        assert {reply.run_status for reply in replies} == {"running"}
        assert [reply.unchanged for reply in replies] == [False, True, True]
        assert shop.count("pending_cancels") == 1
    assert shop.count("audit_log") == before + 1
    assert apply_pending_cancels(shop) == (0, 1)
    [reply] = shop.apply_batch(cancel(started.run_id))
    assert (reply.run_status, reply.unchanged) == ("cancelling", True)
    assert shop.count("audit_log") == before + 1


def test_pending_cancel_does_not_change_a_committed_completion(shop: Database) -> None:
    started = shop.begun()
    with completing_transaction(shop, started) as own:
        replies = shop.apply_batch(cancel(started.run_id), cancel(started.run_id))
        assert [reply.run_status for reply in replies] == ["running", "running"]
        own.commit()
    assert apply_pending_cancels(shop) == (0, 0)
    assert shop.final_state(started.run_id) == ("succeeded", None)
    assert shop.count("pending_cancels") == 0


def uniform(database: Database, run_id: UUID) -> list[Started]:
    with connect(database.url, "test", options=UNIFORM) as connection:
        return claim_uniform(connection, [database.requested_claim(run_id)], executor_id=EXECUTOR)


def cancel_while_locked(database: Database, run_id: UUID) -> None:
    """Cancel a run while another transaction holds it, which then rolls back."""
    with database.transaction() as holding:
        holding.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [run_id])
        database.accept(cancel(run_id))
    assert database.count("pending_cancels") == 1


@pytest.mark.parametrize("overlap", ["allow_all", "skip"])
def test_no_attempt_of_a_run_starts_after_its_pending_cancel_was_accepted(shop: Database, overlap: str) -> None:
    shop.submit(overlap=overlap)
    run_id, other = shop.trigger(), shop.trigger()
    cancel_while_locked(shop, run_id)
    assert uniform(shop, run_id) == []
    assert shop.claim(run_id).started == []
    if overlap == "allow_all":
        assert [started.run_id for started in uniform(shop, other)] == [other]  # others do not go the slow way
    assert apply_pending_cancels(shop) == (1, 0)
    assert shop.final_state(run_id) == ("cancelled", "no longer wanted")


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED])
@pytest.mark.parametrize("by", ["one statement", "decision"])
def test_attempt_records_no_other_end_after_its_pending_cancel_was_accepted(
    shop: Database, state: RunState, by: str
) -> None:
    started = shop.begun()
    other = shop.begun()
    message = shop.requests()[0]
    cancel_while_locked(shop, started.run_id)
    options = UNIFORM if by == "one statement" else ""
    with connect(shop.url, "test", options=options) as connection:
        ends = [ending(one, state, request=replace(message, run_id=str(one.run_id))) for one in (started, other)]
        finish_runs(connection, shop.installation, ends, uniform=by == "one statement")
    assert shop.final_state(started.run_id) == ("cancelled", "no longer wanted")
    assert shop.final_state(other.run_id) == (state, None)
    assert apply_pending_cancels(shop) == (0, 0)
    assert shop.count("pending_cancels") == 0
    assert {(event.run_id, event.status) for event in shop.completions()} == {
        (str(started.run_id), "cancelled"),
        (str(other.run_id), state),
    }


def test_own_transaction_cannot_complete_a_run_after_its_pending_cancel_was_accepted(shop: Database) -> None:
    started = shop.begun()
    cancel_while_locked(shop, started.run_id)
    with psycopg.connect(shop.url) as own, pytest.raises(AttemptOver):
        work(own, completion(shop, started))
    assert shop.count("effects") == 0


@pytest.mark.parametrize("lock", SHARED)
def test_cancel_is_not_accepted_while_a_claim_that_cannot_see_it_is_under_way(
    shop: Database, lock: LiteralString
) -> None:
    run_id = shop.trigger()
    with connect(shop.url, "test", options=UNIFORM) as claiming:
        claiming.execute(lock)
        [started] = claim_uniform(claiming, [shop.requested_claim(run_id)], executor_id=EXECUTOR)
        with pytest.raises(RowLocked, match="lock on claims"):
            shop.apply_batch(cancel(run_id))
        assert shop.count("pending_cancels") == 0
        claiming.commit()
    assert [reply.run_status for reply in shop.apply_batch(cancel(run_id))] == ["running"]
    assert shop.open_run(started.run_id).state == "cancelling"


def test_direct_reports_for_a_locked_run_are_retryable(shop: Database) -> None:
    started = shop.begun()
    token = token_of(shop, started)
    with completing_transaction(shop, started):
        for said in (completing(token), beating(token)):
            with pytest.raises(RowLocked, match="is locked by an open transaction"):
                shop.apply_batch(said)
    assert [reply.status for reply in shop.apply_batch(beating(token), completing(token))] == ["accepted", "accepted"]


def test_deletion_does_not_wait_for_a_triggering_transaction(shop: Database) -> None:
    shop.submit("other")
    with psycopg.connect(shop.url) as own:
        tidewheel.enqueue(own, "job")
        with pytest.raises(RowLocked, match="job 'job' is locked"):
            shop.apply_batch(about("job.delete", "other"), about("job.delete"))
        own.commit()
    shop.accept(about("job.delete"))
    assert shop.value("SELECT count(*) FROM job_runs") == 0


@pytest.mark.landing
@pytest.mark.kafka
def test_cancel_of_a_locked_run_blocks_no_other_request(shop: Database, info: StackInfo) -> None:
    shop.submit("other")
    started, other = shop.begun(), shop.trigger("other")
    requests = Requests(shop, info.kafka)
    with completing_transaction(shop, started), requests.running():
        by_filter = {"type": "runs.cancel", "key": "job", "include_started": False}
        cancels = [by_filter, cancel(other), *[cancel(started.run_id)] * 2, by_filter]
        requests.send(*cancels, submission("new"), b"{")
        requests.until_read(6)
        assert [reply.status for reply in requests.replies()] == ["accepted"] * 6
        assert shop.final_state(other) == ("cancelled", "no longer wanted")
        assert shop.count("dead_letters") == 1
        assert shop.count("cancellations") == 2
        assert shop.value(UNBLOCKED) is True


@pytest.mark.landing
@pytest.mark.kafka
def test_completion_of_a_locked_run_blocks_only_its_partition(shop: Database, info: StackInfo) -> None:
    started, other = shop.begun(), shop.begun()
    requests = Requests(shop, info.kafka, partitions=2)
    with requests.running():
        with completing_transaction(shop, started):
            said = [beating(token_of(shop, started)), submission("before"), completing(token_of(shop, started))]
            requests.send(*said, submission("behind"), partition=0)
            requests.until_read(1)
            requests.send(completing(token_of(shop, other)), submission("beside"), partition=1)
            requests.until_read(1, partition=1)
            requests.send(submission("more"), partition=0)
            requests.send(submission("beside it"), partition=1)
            requests.until_read(2, partition=1)
            assert requests.next_offset(0) == 2
            assert shop.final_state(other.run_id) == ("succeeded", None)
        requests.until_read(4)
        assert shop.final_state(started.run_id) == ("succeeded", None)
        requests.send(submission("later"), partition=0)
        requests.until_read(5)
    codes = [reply.code for reply in requests.replies() if reply.origin and reply.origin.partition == 0]
    assert codes == ["busy", None, None, None, None, None]


def about_occurrence(kind: str, run_id: UUID, tenant: str = "default") -> dict[str, object]:
    name = "batch_id" if kind.startswith("batch") else "run_id"
    return {"type": kind, name: str(run_id), "tenant": tenant}


@pytest.mark.landing
def test_long_requests_behind_a_locked_run_are_read_again_in_their_order(shop: Database, info: StackInfo) -> None:
    """Intake keeps one megabyte of a partition that waits; these are three, in batches of their own."""
    started = shop.begun()
    requests = Requests(shop, info.kafka, partitions=2)
    keys = [f"behind-{number:02}" for number in range(12)]
    with requests.running():
        with completing_transaction(shop, started):
            [first] = requests.send(completing(token_of(shop, started)), partition=0)
            for key in keys:
                requests.send(submission(key, payload="x" * 250_000), partition=0)
            for number in range(3):
                [beside] = requests.send(submission(f"beside-{number}"), partition=1)
                requests.until_read(beside, partition=1)
            assert requests.next_offset() == first
        requests.until_read(len(keys))
        [last] = requests.send(submission("last"), partition=0)
        requests.until_read(last)
    replies = [reply for reply in requests.replies() if reply.origin and reply.origin.partition == 0]
    assert [reply.key for reply in replies][1:] == [*keys, "last"]
    assert [reply.code for reply in replies[1:]] == [None] * 13


def test_request_about_another_tenants_root_or_no_root_waits_for_no_transaction(shop: Database) -> None:
    put(shop, {"a": [], "b": after("a")})
    other = shop.begun()
    [started] = shop.claim(shop.trigger("a")).started
    with completing_transaction(shop, started), completing_transaction(shop, other):
        replies = shop.apply_batch(
            about_occurrence("batch.close", started.run_id),
            about_occurrence("workflow.pause", other.run_id),
            about_occurrence("workflow.pause", started.run_id, "stranger"),
        )
        assert [reply.status for reply in replies] == ["rejected"] * 3
        with pytest.raises(RowLocked, match=f"run {started.run_id} is locked"):
            shop.apply_batch(*(about_occurrence("workflow.pause", each.run_id) for each in (other, started)))


@pytest.mark.landing
@pytest.mark.kafka
def test_blocked_requests_are_redelivered_to_the_next_intake(shop: Database, info: StackInfo) -> None:
    started = shop.begun()
    requests = Requests(shop, info.kafka)
    with completing_transaction(shop, started):
        with requests.running():
            requests.send(submission("before"), completing(token_of(shop, started)), submission("behind"))
            requests.until_read(0)
        assert requests.next_offset() == 1
    with requests.running():
        requests.until_read(2)
    assert shop.final_state(started.run_id) == ("succeeded", None)
