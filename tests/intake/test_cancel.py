"""`run.cancel` works in every state, is idempotent, and answers with the state it found."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from tests.fixtures.acts import EXECUTOR, ending
from tests.fixtures.database import Database
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.intake import locks as busy
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.claim import claim_runs
from tidewheel.transitions.finish import finish_runs


def asking(run_id: UUID, **fields: object) -> dict[str, object]:
    return {"type": "run.cancel", "run_id": str(run_id)} | fields


def cancel(database: Database, run_id: UUID, **fields: object) -> Reply:
    return database.apply_batch(asking(run_id, **fields))[0]


def test_unstarted_run_is_cancelled_at_once_and_its_claim_refused(with_job: Database) -> None:
    wanted = with_job.requested_claim(with_job.trigger(delay="1h"))
    reply = cancel(with_job, wanted.run_id, reason="no longer wanted")
    assert (reply.status, reply.run_status, reply.run_id) == ("accepted", "queued", str(wanted.run_id))
    assert with_job.final_state(wanted.run_id) == ("cancelled", "no longer wanted")
    [event] = with_job.completions()
    assert (event.status, event.reason, event.attempt) == ("cancelled", "no longer wanted", 0)


def test_run_awaiting_a_retry_is_cancelled_at_once(with_job: Database) -> None:
    started = with_job.begun()
    with_job.requeue(started, AttemptOutcome.FAILED, timedelta(hours=1))
    assert cancel(with_job, started.run_id).run_status == "retrying"
    assert with_job.final_state(started.run_id) == ("cancelled", "requested")


def test_running_run_is_signalled_to_its_executor(with_job: Database) -> None:
    started = with_job.begun()
    assert cancel(with_job, started.run_id).run_status == "running"
    assert with_job.open_run(started.run_id).state == "cancelling"
    [signal] = with_job.rows("SELECT run_id, attempt, kind, executor_id FROM signals")
    assert signal == (started.run_id, 1, "cancel", EXECUTOR)
    assert with_job.completions() == []


def test_repeated_cancel_changes_nothing_and_reports_the_state(with_job: Database) -> None:
    started = with_job.begun()
    assert [cancel(with_job, started.run_id).run_status for _ in range(3)] == ["running", "cancelling", "cancelling"]
    assert with_job.count("signals") == 1
    with_job.succeed(started)
    assert cancel(with_job, started.run_id).run_status == "cancelled"
    assert len(with_job.completions()) == 1


def test_cancel_does_not_change_a_terminal_run(with_job: Database) -> None:
    started = with_job.begun()
    with_job.succeed(started)
    reply = cancel(with_job, started.run_id)
    assert (reply.status, reply.run_status) == ("accepted", "succeeded")
    assert with_job.final_state(started.run_id) == ("succeeded", None)


def test_unknown_run_or_run_of_another_tenant_is_refused(with_job: Database) -> None:
    with_job.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    mine = with_job.trigger()
    for reply in with_job.apply_batch(asking(uuid4()), asking(mine, tenant="acme")):
        assert (reply.status, reply.code, [error.path for error in reply.errors]) == (
            "rejected",
            "unknown_run",
            ["run_id"],
        )
    assert with_job.open_run(mine).state == "queued"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a lock that is about to be released, on a slow machine too."""
    monkeypatch.setattr(busy, "_LOCK_TIMEOUT", "30s")


@pytest.mark.usefixtures("patient")
def test_cancel_waits_for_a_concurrent_claim_and_signals_the_attempt(with_job: Database) -> None:
    wanted = with_job.requested_claim(with_job.trigger())
    claiming, cancelling = with_job.connection(), with_job.connection()
    assert len(claim_runs(claiming, with_job.installation, [wanted], executor_id=EXECUTOR).started) == 1
    waiting = in_background(lambda: with_job.apply_batch_within(cancelling, asking(wanted.run_id)))
    until_blocked(with_job, cancelling)
    claiming.commit()
    assert [reply.run_status for reply in waiting.result(30)] == ["running"]
    assert cancelling.execute("SHOW lock_timeout").fetchone() == ("10s",)
    cancelling.commit()
    assert with_job.open_run(wanted.run_id).state == "cancelling"


def test_cancelled_run_is_not_claimed_after_the_reply(with_job: Database) -> None:
    wanted = with_job.requested_claim(with_job.trigger())
    cancelling, claiming = with_job.connection(), with_job.connection()
    with_job.apply_batch_within(cancelling, asking(wanted.run_id))
    assert claim_runs(claiming, with_job.installation, [wanted], executor_id=EXECUTOR).started == []
    cancelling.commit()
    assert claim_runs(claiming, with_job.installation, [wanted], executor_id=EXECUTOR).started == []
    assert with_job.job_runs() == []


@pytest.mark.usefixtures("patient")
def test_cancel_waits_for_a_concurrent_end_and_reports_it(with_job: Database) -> None:
    started = with_job.begun()
    closing, cancelling = with_job.connection(), with_job.connection()
    finish_runs(closing, with_job.installation, [ending(started, RunState.SUCCEEDED)])
    waiting = in_background(lambda: with_job.apply_batch_within(cancelling, asking(started.run_id)))
    until_blocked(with_job, cancelling)
    closing.commit()
    assert [reply.run_status for reply in waiting.result(30)] == ["succeeded"]
    cancelling.commit()


def test_cancelled_active_run_promotes_the_next(database: Database) -> None:
    database.submit(overlap="skip")
    first = database.begun()
    database.requeue(first, AttemptOutcome.FAILED, timedelta(hours=1))
    cancel(database, first.run_id)
    assert len(database.claim(database.trigger()).started) == 1


def test_duplicate_cancels_in_a_batch_get_replies_in_order(with_job: Database) -> None:
    run_id = with_job.trigger()
    with_job.begin(run_id)
    replies = with_job.apply_batch(asking(run_id), asking(run_id))
    assert [reply.run_status for reply in replies] == ["running", "cancelling"]
