"""`runs.cancel`: from its commit on no claim takes what it names, however many runs that are."""

from collections.abc import Mapping
from datetime import timedelta
from typing import LiteralString
from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR, about, refusal, submission
from tests.fixtures.acts import cancelling as cancelling_run
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.control.client.client import Client
from tidewheel.intake import runs as cancel_filter
from tidewheel.intake.locks import RowLocked
from tidewheel.postgres.session import BY_KEY, Conn, connect
from tidewheel.postgres.statements import Statements
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.claim import Claim, Claimed, claim_runs

LOCK_LEASE_FOR_CLAIM = Statements("tidewheel.executor")["lock_lease_for_claim"]

WAITING: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-client' AND wait_event = 'relation'
"""


@pytest.fixture
def with_jobs(database: Database) -> Database:
    database.submit("job", labels={"team": "billing", "tier": "1"})
    database.submit("other", labels={"team": "billing"}, target="other", queue="reports", lane="batch")
    return database


def cancelling(**fields: object) -> dict[str, object]:
    return {"type": "runs.cancel"} | fields


def cancel(database: Database, **fields: object) -> int:
    number = database.accept(cancelling(**fields)).cancellation_id
    assert number is not None
    return number


def claimable(database: Database, *runs: UUID) -> list[bool]:
    return [len(database.claim(run).started) == 1 for run in runs]


def code_and_path(reply: Reply) -> tuple[str | None, str]:
    return reply.code, refusal(reply).path


def test_label_filters_let_the_planner_choose_and_others_use_keys(
    with_jobs: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = "(current_setting('enable_seqscan')::bool AND current_setting('enable_bitmapscan')::bool)"
    monkeypatch.setattr(cancel_filter, "_FIND_LABELLED_JOBS", f"SELECT job_id FROM jobs WHERE {free}")  # noqa: S608
    with connect(with_jobs.url, "test", options=BY_KEY) as connection:
        [reply] = with_jobs.apply_batch_within(connection, cancelling(labels={"team": "billing"}))
        assert connection.execute(f"SELECT {free}").fetchone() == (False,)
    assert reply.status is ReplyStatus.ACCEPTED, reply.errors
    assert with_jobs.count("cancelled_jobs") == 2


@pytest.mark.parametrize(
    "named",
    [
        {"key": "job"},
        {"labels": {"tier": "1"}},
        {"labels": {"team": "billing", "tier": "1"}},
        {"key": "job", "labels": {"team": "billing"}},
        {"queue": "default"},
        {"lane": "standard"},
        {"handler": "send-email"},
        {"queue": "default", "lane": "standard", "handler": "send-email", "cause": "trigger", "key": "job"},
    ],
    ids=str,
)
def test_no_matching_run_is_claimed_and_others_continue(with_jobs: Database, named: Mapping[str, object]) -> None:
    runs = with_jobs.trigger("job"), with_jobs.trigger("other")
    cancel(with_jobs, **named)
    assert claimable(with_jobs, *runs) == [False, True]


@pytest.mark.parametrize("named", [{"cause": "timer"}, {"labels": {"team": "billing"}, "queue": "elsewhere"}], ids=str)
def test_all_conditions_of_a_filter_must_match(with_jobs: Database, named: Mapping[str, object]) -> None:
    cancel(with_jobs, **named)
    assert claimable(with_jobs, with_jobs.trigger("job"), with_jobs.trigger("other")) == [True, True]


def test_labels_are_matched_when_the_cancellation_is_accepted(with_jobs: Database) -> None:
    runs = with_jobs.trigger("job"), with_jobs.trigger("other")
    cancel(with_jobs, labels={"team": "billing"})
    with_jobs.submit("job")
    assert claimable(with_jobs, *runs) == [False, False]
    assert with_jobs.count("cancelled_jobs") == 2


def test_later_runs_and_those_created_after_the_given_instant_are_not_cancelled(with_jobs: Database) -> None:
    older = with_jobs.trigger()
    instant = with_jobs.now()
    newer = with_jobs.trigger("other"), with_jobs.trigger()
    cancel(with_jobs, labels={"team": "billing"}, created_before=instant.isoformat())
    assert claimable(with_jobs, older, newer[0]) == [False, True]
    cancel(with_jobs, key="job")
    assert claimable(with_jobs, newer[1], with_jobs.trigger()) == [False, True]


def test_started_runs_continue_if_requested(with_jobs: Database) -> None:
    retried, fresh = with_jobs.begun(), with_jobs.trigger()
    with_jobs.requeue(retried, AttemptOutcome.FAILED)
    cancel(with_jobs, key="job", include_started=False)
    assert claimable(with_jobs, retried.run_id, fresh) == [True, False]


def test_runs_of_another_tenant_are_not_cancelled(with_jobs: Database) -> None:
    with_jobs.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    with_jobs.accept(submission() | {"tenant": "acme"})
    theirs = with_jobs.trigger(tenant="acme")
    cancel(with_jobs, handler="send-email")
    assert claimable(with_jobs, theirs, with_jobs.trigger()) == [True, True]
    mine, another = with_jobs.trigger(), with_jobs.trigger(tenant="acme")
    cancel(with_jobs, handler="send-email", tenant="acme")
    assert claimable(with_jobs, mine, another) == [True, False]


def test_repeated_request_is_one_cancellation(with_jobs: Database) -> None:
    numbers = {cancel(with_jobs, key="job", request_id="c-1") for _ in range(2)}
    assert len(numbers) == with_jobs.count("cancellations") == 1


def test_filter_may_name_a_deleted_job(with_jobs: Database) -> None:
    retried = with_jobs.begun()
    with_jobs.apply_batch(about("job.delete"))
    with_jobs.requeue(retried, AttemptOutcome.FAILED)
    cancel(with_jobs, key="job")
    assert claimable(with_jobs, retried.run_id) == [False]


def test_filter_with_unknown_names_is_refused(with_jobs: Database) -> None:
    later = (with_jobs.now() + timedelta(hours=1)).isoformat()
    replies = with_jobs.apply_batch(
        cancelling(key="nope"), cancelling(labels={"team": "nobody"}), cancelling(key="job", created_before=later)
    )
    refused = [("unknown_job", "key"), ("invalid", "labels"), ("invalid", "created_before")]
    assert [code_and_path(reply) for reply in replies] == refused
    assert (with_jobs.count("cancellations"), with_jobs.count("cancelled_jobs")) == (0, 0)


def test_labels_that_match_too_many_jobs_are_refused(with_jobs: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancel_filter, "MAX_JOBS", 1)
    error = with_jobs.refuse(cancelling(labels={"team": "billing"}))
    assert (error.path, error.problem) == ("labels", "more than 1 jobs have these labels")
    cancel(with_jobs, labels={"tier": "1"})


def test_cancellation_is_accepted_after_the_claims_under_way_and_blocks_new_ones(with_jobs: Database) -> None:
    """Claim as executors do: share the lock in a statement before the cancellations are read."""
    with_jobs.register()
    first, second = with_jobs.trigger(), with_jobs.trigger()
    claims = {run: with_jobs.requested_claim(run) for run in (first, second)}
    claiming, cancelled, late = (with_jobs.connection() for _ in range(3))
    assert len(claim_as_executors_do(with_jobs, claiming, claims[first]).started) == 1
    with pytest.raises(RowLocked, match="lock on claims"):
        with_jobs.apply_batch_within(cancelled, cancelling(key="job"))
    cancelled.rollback()
    claiming.commit()
    [reply] = with_jobs.apply_batch_within(cancelled, cancelling(key="job"))
    assert reply.status is ReplyStatus.ACCEPTED
    start = in_background(lambda: claim_as_executors_do(with_jobs, late, claims[second]))
    until_blocked(with_jobs, late)
    cancelled.commit()
    assert start.result(30).started == []
    late.commit()
    assert with_jobs.open_run(first).state == "running"


@pytest.mark.parametrize("beside", [(), (about("job.delete", "other"),)], ids=["alone", "in-a-batch"])
def test_cancellation_behind_a_frozen_claim_holds_up_other_claims_for_a_fraction_of_a_second(
    with_jobs: Database, beside: tuple[dict[str, object], ...]
) -> None:
    """Others claim while an executor that is stopped within a claim keeps its share of the lock: 15 s.

    A waiting exclusive lock makes them queue: it once waited for 10 s, and again after each failure.
    """
    with_jobs.register()
    first, second = with_jobs.trigger(), with_jobs.trigger()
    frozen, cancelled, other = (with_jobs.connection() for _ in range(3))
    claim_as_executors_do(with_jobs, frozen, with_jobs.requested_claim(first))
    documents = [cancelling(key="job"), *beside]
    pid = cancelled.info.backend_pid
    accepting = in_background(lambda: with_jobs.apply_batch_within(cancelled, *documents))
    until(
        lambda: accepting.done() or with_jobs.value("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid]),
        "it waits for the lock, or has done so",
    )
    other.execute("SET lock_timeout = '5s'")  # half of what a claim waited
    assert len(claim_as_executors_do(with_jobs, other, with_jobs.requested_claim(second)).started) == 1
    other.commit()
    with pytest.raises(RowLocked, match="lock on claims"):
        accepting.result(30)
    cancelled.rollback()
    frozen.rollback()
    assert with_jobs.count("cancellations") == 0


def test_client_that_cancels_by_filter_waits_for_the_claims_under_way(with_jobs: Database) -> None:
    with_jobs.register()
    run_id = with_jobs.trigger()
    claiming = with_jobs.connection()
    claim_as_executors_do(with_jobs, claiming, with_jobs.requested_claim(run_id))
    with Client(with_jobs.url) as client:
        accepting = in_background(lambda: client.runs.cancel_matching(key="job"))
        until(lambda: with_jobs.value(WAITING) == 1, "it waits for the claim")
        claiming.commit()
        assert accepting.result(30)


def test_batch_locks_claims_before_any_run(with_jobs: Database) -> None:
    """The owner of an active run must not wait for a claim that waits for that run."""
    with_jobs.register()
    with_jobs.submit("turns", overlap="buffer_all")
    holder, waiter = with_jobs.begun("turns"), with_jobs.trigger("turns")
    with_jobs.requeue(holder, AttemptOutcome.FAILED, timedelta(hours=1))
    claims = with_jobs.requested_claim(waiter)
    batch, claiming = with_jobs.connection(), with_jobs.connection()
    documents = [cancelling_run(holder.run_id), cancelling(key="job")]
    assert [reply.status for reply in with_jobs.apply_batch_within(batch, *documents)] == ["accepted", "accepted"]
    start = in_background(lambda: claim_as_executors_do(with_jobs, claiming, claims))
    until_blocked(with_jobs, claiming)
    batch.commit()
    assert len(start.result(30).started) == 1
    claiming.commit()


def claim_as_executors_do(database: Database, connection: Conn, wanted: Claim) -> Claimed:
    return claim_runs(with_lease(connection), database.installation, [wanted], executor_id=EXECUTOR)


def with_lease(connection: Conn, executor_id: UUID = EXECUTOR) -> Conn:
    """Lock an executor's lease, as its claims do before they read cancellations and freezes."""
    assert connection.execute(LOCK_LEASE_FOR_CLAIM, {"executor_id": executor_id}).fetchone() is not None
    return connection
