"""`run.retry`: a new run of what is over, under the current version; a named next attempt is due now."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from tests.fixtures.acts import EXECUTOR, cancelling, ending, refusal
from tests.fixtures.database import Database
from tests.fixtures.run_ids import run_instant
from tidewheel.ids import job_id, run_bucket, run_id
from tidewheel.intake.locks import RowLocked
from tidewheel.jobs.parsing import RequestRefused
from tidewheel.runs import AttemptOutcome, Cause, RunState
from tidewheel.schemas.generated.records import RunRequest
from tidewheel.transitions.claim import Claim, Claimed, claim_runs


@pytest.fixture
def with_job(database: Database) -> Database:
    database.submit(payload={"to": "a"}, labels={"team": "billing"})
    return database


def asking(run: UUID, **fields: object) -> dict[str, object]:
    return {"type": "run.retry", "run_id": str(run)} | fields


def failed(database: Database, **fields: object) -> UUID:
    started = database.begun("job", **fields)
    database.end(ending(started, RunState.FAILED, error_type="ValueError", error_message="no"))
    return started.run_id


def retry(database: Database, run: UUID, **fields: object) -> UUID:
    return UUID(database.accept(asking(run, **fields)).run_id)


def request_of(database: Database, run: UUID) -> RunRequest:
    return next(request for request in reversed(database.requests()) if request.run_id == str(run))


@pytest.mark.parametrize("state", sorted({RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT}))
def test_retried_run_is_a_new_run_that_names_the_old_one(with_job: Database, state: RunState) -> None:
    started = with_job.begun()
    with_job.end(ending(started, state, error_type=None if state == RunState.SUCCEEDED else "ValueError"))
    [(scheduled_at,)] = with_job.rows("SELECT scheduled_at FROM runs WHERE run_id = %s", [started.run_id])
    new = retry(with_job, started.run_id, request_id="again")
    run = with_job.open_run(new)
    assert (run.state, run.cause, run.attempt, run.scheduled_at) == ("queued", "retry", 0, scheduled_at)
    assert with_job.final_state(started.run_id)[0] == state
    lineage = with_job.rows("SELECT parent_run_id, root_run_id FROM runs WHERE run_id = %s", [new])
    assert lineage == [(started.run_id, started.run_id)]
    message = request_of(with_job, new)
    assert (message.parent_run_id, message.root_run_id) == (str(started.run_id), str(started.run_id))
    assert message.payload is None


@pytest.mark.parametrize("reason", ["cancelled", "skipped"])
def test_cancelled_or_skipped_run_can_be_retried(with_job: Database, reason: str) -> None:
    if reason == "cancelled":
        run = with_job.trigger()
        with_job.apply(cancelling(run))
    else:
        with_job.begun(overlap="skip")
        run = with_job.trigger(overlap="skip")
        with_job.claim(run)
    assert with_job.final_state(run)[0] == reason
    assert with_job.open_run(retry(with_job, run)).state == "queued"


def test_retry_id_derives_from_the_old_run_and_the_request(with_job: Database) -> None:
    old = failed(with_job)
    new = retry(with_job, old, request_id="again")
    run = with_job.open_run(new)
    origin = old.bytes + b"again"
    asked_at = with_job.value("SELECT created_at FROM runs WHERE run_id = %s", [new])
    assert new == run_id(job_id("default", "job"), run.scheduled_at, Cause.RETRY, origin, at=asked_at)
    assert (run_bucket(new), run_instant(new) >= run_instant(old)) == (run_bucket(old), True)


def test_repeated_retry_request_is_the_same_run(with_job: Database) -> None:
    old = failed(with_job)
    assert retry(with_job, old, request_id="r-1") == retry(with_job, old, request_id="r-1")
    assert len({retry(with_job, old, request_id="r-1"), retry(with_job, old, request_id="r-2")}) == 2
    assert len({retry(with_job, old), retry(with_job, old)}) == 2


def test_retry_keeps_the_old_inputs_under_the_current_version(with_job: Database) -> None:
    trace = f"00-{'1' * 32}-{'2' * 16}-01"
    own = failed(with_job, payload={"to": "b"}, labels={"urgent": "yes"}, traceparent=trace)
    plain = failed(with_job)
    with_job.submit("without")
    without = with_job.begun("without")
    with_job.end(ending(without, RunState.FAILED))
    for key in ("job", "without"):
        with_job.submit(key, payload={"to": "c"}, target="other", lane="batch", retry={"max_attempts": 9})
    new = [retry(with_job, run) for run in (own, plain, without.run_id)]
    messages = {UUID(message.run_id): message for message in with_job.requests(lane="batch")}
    assert [messages[run].payload for run in new] == [b'{"to":"b"}', b'{"to":"a"}', b""]
    assert {(each.payload_content_type, each.job_version) for each in messages.values()} == {("application/json", 2)}
    assert (messages[new[0]].labels, messages[new[0]].traceparent) == ({"urgent": "yes"}, trace)
    assert with_job.rows("SELECT DISTINCT handler, lane FROM job_runs") == [("other", "batch")]


def test_retry_of_a_retry_names_the_first_run_on_every_attempt(with_job: Database) -> None:
    first = failed(with_job)
    second = retry(with_job, first)
    started = with_job.begin(second)
    with_job.requeue(started, AttemptOutcome.FAILED)
    again = with_job.begin(second)
    assert [r.parent_run_id for r in with_job.requests() if r.run_id == str(second)] == [str(first), str(first)]
    with_job.end(ending(again, RunState.FAILED, error_type="ValueError"))
    third = retry(with_job, second)
    message = request_of(with_job, third)
    assert (message.parent_run_id, message.root_run_id) == (str(second), str(first))
    event = next(event for event in with_job.completions() if event.run_id == str(second))
    letter = next(letter for letter in with_job.dead_letters() if letter.run_id == str(second))
    assert (event.parent_run_id, event.root_run_id) == (letter.parent_run_id, letter.root_run_id)
    assert (event.parent_run_id, event.root_run_id) == (str(first), str(first))


def test_retried_dead_letter_names_its_new_run(with_job: Database) -> None:
    old, other = failed(with_job), failed(with_job)
    new = retry(with_job, old)
    found = dict(with_job.rows("SELECT run_id, redriven_run_id FROM dead_letters WHERE redriven_at IS NOT NULL"))
    assert found == {old: new}
    assert other not in found
    assert retry(with_job, old) == with_job.value("SELECT redriven_run_id FROM dead_letters WHERE run_id = %s", [old])


def test_delayed_retry_waits_for_its_time(with_job: Database) -> None:
    old = failed(with_job)
    run = with_job.open_run(retry(with_job, old, delay="1h"))
    assert timedelta(minutes=59) < run.publish_at - with_job.now() <= timedelta(hours=1)
    assert with_job.claim(run.run_id).started == []


def test_retry_follows_its_jobs_overlap_policy(database: Database) -> None:
    database.submit(overlap="skip")
    old = failed(database)
    holder = database.begun()
    assert database.claim(new := retry(database, old)).started == []
    assert database.final_state(new)[0] == "skipped"
    assert database.active_run_of(job_id("default", "job")) == holder.run_id


def test_retry_of_an_open_run_is_refused(with_job: Database) -> None:
    started = with_job.begun()
    error = with_job.refuse(asking(started.run_id))
    assert error[:2] == ("run_id", f"run {started.run_id} is running and has not ended")
    assert len(with_job.job_runs()) == 1


def test_unknown_run_or_run_of_another_tenant_is_refused(with_job: Database) -> None:
    with_job.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    old = failed(with_job)
    for reply in with_job.apply_batch(asking(uuid4()), asking(old, tenant="acme")):
        assert (reply.code, refusal(reply).path) == ("unknown_run", "run_id")


def retrying(database: Database) -> UUID:
    started = database.begun()
    database.requeue(started, AttemptOutcome.FAILED, timedelta(hours=1))
    return started.run_id


def hasten(database: Database, run: UUID, attempt: int = 2, **fields: object) -> tuple[str | None, bool]:
    """Make an attempt due; return the state that was found, and if it changed nothing."""
    reply = database.accept(asking(run, attempt=attempt, **fields))
    assert reply.run_id == str(run)
    return reply.run_status, reply.unchanged


def test_next_attempt_of_a_retrying_run_is_due_now_and_a_second_press_changes_nothing(with_job: Database) -> None:
    run = retrying(with_job)
    assert with_job.claim(run).started == []
    before = with_job.open_run(run)
    assert hasten(with_job, run) == ("retrying", False)
    after = with_job.open_run(run)
    assert (after.state, after.attempt) == (before.state, before.attempt) == ("retrying", 1)
    assert after.publish_at <= with_job.now() < before.publish_at
    assert hasten(with_job, run) == ("retrying", True)
    messages = [(each.attempt, each.publish_at) for each in with_job.requests() if each.run_id == str(run)]
    assert sorted(messages)[1:] == [(2, after.publish_at), (2, before.publish_at)]
    assert with_job.claim(run).started != []


def test_press_after_the_attempt_has_started_failed_or_ended_changes_nothing(with_job: Database) -> None:
    run = retrying(with_job)
    hasten(with_job, run)
    second = with_job.begin(run)
    assert hasten(with_job, run) == ("running", True)
    with_job.requeue(second, AttemptOutcome.FAILED, timedelta(hours=1))
    assert hasten(with_job, run) == ("retrying", True), "the third attempt keeps its time"
    assert with_job.open_run(run).publish_at > with_job.now()
    hasten(with_job, run, 3)
    with_job.succeed(with_job.begin(run))
    assert hasten(with_job, run, 3) == ("succeeded", True)
    assert len(with_job.rows("SELECT FROM runs")) == 1


def test_press_while_a_claim_is_under_way_lets_the_claim_win(with_job: Database) -> None:
    run = retrying(with_job)
    hasten(with_job, run)
    with with_job.transaction() as claiming:
        claiming.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [run])
        with pytest.raises(RowLocked):
            hasten(with_job, run)
    with_job.begin(run)
    assert hasten(with_job, run) == ("running", True)


def test_repeated_request_for_an_attempt_gets_its_first_reply(with_job: Database) -> None:
    run = retrying(with_job)
    assert hasten(with_job, run, request_id="r-1") == ("retrying", False)
    with_job.succeed(with_job.begin(run))
    assert hasten(with_job, run, request_id="r-1") == ("retrying", False)
    assert with_job.job_runs() == []


@pytest.mark.parametrize("older_first", [False, True])
def test_redelivered_message_with_the_later_time_neither_repeats_nor_loses_the_attempt(
    with_job: Database, *, older_first: bool
) -> None:
    run = retrying(with_job)
    later = with_job.open_run(run).publish_at
    hasten(with_job, run)
    older, newer = sorted(
        (each for each in with_job.requests() if each.attempt == 2), key=lambda each: each.publish_at, reverse=True
    )
    assert older.publish_at == later > with_job.now() >= newer.publish_at
    first, second = (older, newer) if older_first else (newer, older)
    [started] = deliver(with_job, first).started
    assert (started.run_id, started.attempt) == (run, 2)
    assert deliver(with_job, second, first, older) == Claimed(), "attempt 2 has an owner"
    with_job.requeue(started, AttemptOutcome.FAILED, timedelta(hours=2))
    assert deliver(with_job, older, newer) == Claimed(), "the third attempt waits for its own message"
    hasten(with_job, run, 3)
    assert deliver(with_job, older, newer) == Claimed(), "and is due by its own message alone"
    third = next(each for each in with_job.requests() if each.attempt == 3 and each.publish_at <= with_job.now())
    with_job.succeed(deliver(with_job, third).started[0])
    assert deliver(with_job, older, newer, third) == Claimed(), "the run has ended"
    assert with_job.attempts(run) == [(1, "failed"), (2, "failed"), (3, "succeeded")]
    assert [each.run_id for each in with_job.completions()] == [str(run)]
    assert with_job.job_runs() == []


def deliver(database: Database, *messages: RunRequest) -> Claimed:
    """Claim as messages from Kafka request it, all in one batch."""
    claims = [
        Claim(UUID(each.run_id), each.attempt, each.job_version, f"test/0/0@{offset}", publish_at=each.publish_at)
        for offset, each in enumerate(messages)
    ]
    return database.within(claim_runs, database.installation, claims, executor_id=EXECUTOR)


def test_attempt_beyond_the_next_and_retry_without_attempt_name_the_next_one(with_job: Database) -> None:
    run = retrying(with_job)
    beyond, without = with_job.apply_batch(asking(run, attempt=3), asking(run))
    assert refusal(beyond)[:2] == ("attempt", f"the next attempt of run {run} is 2")
    assert refusal(without)[:2] == ("run_id", f"run {run} is retrying and has not ended")
    assert "`attempt: 2`" in refusal(without).remedy
    unknown, other = with_job.apply_batch(asking(uuid4(), attempt=2), asking(run, attempt=2, tenant="acme"))
    assert (unknown.code, other.code) == ("unknown_run", "unknown_tenant")
    with pytest.raises(RequestRefused, match="delay"):
        with_job.apply_batch(asking(run, attempt=2, delay="1s"))


def test_attempt_of_an_open_run_that_does_not_retry_is_refused(with_job: Database) -> None:
    started = with_job.begun()
    snoozed, queued = started.run_id, with_job.trigger()
    with_job.requeue(started, AttemptOutcome.SNOOZED, timedelta(hours=1))
    for reply in with_job.apply_batch(asking(snoozed, attempt=2), asking(queued, attempt=1)):
        assert refusal(reply).path == "run_id"
        assert refusal(reply).problem.endswith("is queued")
    assert hasten(with_job, snoozed, 1) == ("queued", True)


def test_hastened_attempt_waits_for_the_thaw(with_job: Database) -> None:
    run = retrying(with_job)
    with_job.apply_batch({"type": "freeze", "queue": "default"})
    assert hasten(with_job, run) == ("retrying", False)
    assert with_job.claim(run).started == []
    with_job.apply_batch({"type": "thaw", "queue": "default"})
    assert with_job.claim(run).started != []
