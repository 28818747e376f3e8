"""`run.complete`: the owner of an attempt's token reports its end once."""

from typing import Any

import pytest

from tests.fixtures.database import Database
from tests.intake.waiting import beat, complete, completing, token_of, wait_for, waiting
from tests.transitions.acts import (
    ask,
    ask_within,
    attempts,
    begin,
    begun,
    claim,
    completions,
    dead_letters,
    ending,
    final_state,
    open_run,
    open_runs,
    requests,
    submit,
    succeed,
    trigger,
)
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.ids import RunId
from tidewheel.intake import lock_wait as busy
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import Reply
from tidewheel.task_tokens import task_token
from tidewheel.transitions.finish import finish_runs


@pytest.fixture
def with_job(database: Database) -> Database:
    submit(database)
    return database


def is_over(reply: Reply, found: str | None) -> None:
    """The answer to what comes too late."""
    assert (reply.status, reply.code, reply.run_status) == ("rejected", "attempt_over", found)
    assert [error.path for error in reply.errors] == ["token"]


def test_a_success_ends_the_waiting_run_with_its_result(with_job: Database) -> None:
    started = waiting(with_job)
    reply = complete(with_job, started, result={"rows": 7})
    assert (reply.status, reply.run_id, reply.run_status) == ("accepted", str(started.run_id), "succeeded")
    [event] = completions(with_job)
    assert (event.status, event.result, event.attempt, event.sequence) == ("succeeded", b'{"rows":7}', 1, 2)
    assert attempts(with_job, started.run_id) == [(1, "succeeded")]


def test_a_failure_goes_back_for_another_attempt_as_the_job_says(with_job: Database) -> None:
    started = waiting(with_job)
    reply = complete(with_job, started, status="failed", error_type="NoPaper", error_message="the tray is empty")
    assert (reply.status, reply.run_status) == ("accepted", "retrying")
    row = open_run(with_job, started.run_id)
    assert (row.state, row.attempt, row.failed_attempts, row.executor_id) == ("retrying", 1, 1, None)
    assert [request.attempt for request in requests(with_job)] == [1, 2]
    stored = with_job.rows("SELECT outcome, error_type, error_message FROM attempts")
    assert stored == [("failed", "NoPaper", "the tray is empty")]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({}, {"permanent": True}),
        ({"retry": {"max_attempts": 1}}, {}),
        ({"retry": {"non_retryable": ["NoPaper"]}}, {"error_type": "NoPaper"}),
        ({"delivery": "at_most_once"}, {}),
    ],
)
def test_a_failure_that_is_the_last_one_ends_the_run(
    database: Database, job: dict[str, Any], said: dict[str, Any]
) -> None:
    submit(database, **job)
    started = waiting(database)
    reply = complete(database, started, status="failed", error_message="no", **said)
    assert (reply.status, reply.run_status) == ("accepted", "failed")
    [letter] = dead_letters(database)
    assert letter.error is not None
    assert (letter.error.type, letter.error.message) == (said.get("error_type", "ReportedFailure"), "no")
    assert open_runs(database) == []


def test_an_end_that_comes_before_the_executor_has_written_the_wait_counts(with_job: Database) -> None:
    started = begun(with_job)
    assert complete(with_job, started).run_status == "succeeded"
    wait_for(with_job, started, timeout=with_job.installation.misfire_after)  # changes nothing any more
    assert final_state(with_job, started.run_id) == ("succeeded", None)
    assert len(completions(with_job)) == 1


@pytest.mark.parametrize("said", [{}, {"status": "failed"}])
def test_a_run_that_is_being_cancelled_can_only_become_cancelled(with_job: Database, said: dict[str, Any]) -> None:
    started = begun(with_job)
    ask(with_job, {"type": "run.cancel", "run_id": str(started.run_id)})
    reply = complete(with_job, started, **said)
    assert (reply.status, reply.run_status) == ("accepted", "cancelled")
    assert final_state(with_job, started.run_id)[0] == "cancelled"
    assert with_job.count("signals") == 0


def test_cancelling_a_waiting_run_ends_it_at_once_and_its_token_with_it(with_job: Database) -> None:
    started = waiting(with_job)
    [reply] = ask(with_job, {"type": "run.cancel", "run_id": str(started.run_id), "reason": "too slow"})
    assert (reply.status, reply.run_status) == ("accepted", "waiting")
    assert final_state(with_job, started.run_id) == ("cancelled", "too slow")
    is_over(complete(with_job, started), "cancelled")
    is_over(beat(with_job, started), "cancelled")
    assert [event.status for event in completions(with_job)] == ["cancelled"]


def test_a_second_end_changes_nothing(with_job: Database) -> None:
    started = waiting(with_job)
    complete(with_job, started, result=1)
    is_over(complete(with_job, started, status="failed"), "succeeded")
    assert [event.result for event in completions(with_job)] == [b"1"]


def test_the_token_of_an_older_attempt_says_nothing_about_the_next_one(with_job: Database) -> None:
    started = waiting(with_job)
    complete(with_job, started, status="failed")
    is_over(complete(with_job, started), "retrying")
    with_job.execute("UPDATE open_runs SET publish_at = tidewheel_now()")
    again = begin(with_job, started.run_id)
    is_over(complete(with_job, started), "running")
    assert again.attempt == 2
    assert complete(with_job, again).run_status == "succeeded"


def test_a_token_of_nothing_that_is_kept_is_over(with_job: Database) -> None:
    unknown = task_token(with_job.installation.task_token_key, RunId(begun(with_job).run_id), 7)
    is_over(ask(with_job, completing(unknown))[0], "running")
    gone = trigger(with_job)
    is_over(ask(with_job, completing(task_token(with_job.installation.task_token_key, gone, 1)))[0], "queued")


def test_a_forged_token_is_refused_and_changes_nothing(with_job: Database) -> None:
    started = waiting(with_job)
    forged = task_token(b"another installation", started.run_id, 1)
    [reply] = ask(with_job, completing(forged))
    assert (reply.status, reply.code, [error.path for error in reply.errors]) == ("rejected", "invalid", ["token"])
    assert open_run(with_job, started.run_id).state == "waiting"


def test_one_batch_ends_many_runs_and_takes_one_end_each(with_job: Database) -> None:
    runs = [waiting(with_job) for _ in range(3)]
    said = [completing(token_of(with_job, each), result=number) for number, each in enumerate(runs)]
    replies = ask(with_job, *said, *said)
    assert [reply.run_status for reply in replies] == ["succeeded"] * 6
    assert [reply.code for reply in replies] == [None] * 3 + ["attempt_over"] * 3
    assert sorted(event.result or b"" for event in completions(with_job)) == [b"0", b"1", b"2"]


def test_the_same_request_again_gets_the_first_answer(with_job: Database) -> None:
    started = waiting(with_job)
    first, again = (complete(with_job, started, request_id="r-1") for _ in range(2))
    assert first == again
    assert again.status == "accepted"


def test_an_end_from_outside_waits_for_the_executors_own_and_comes_too_late(
    with_job: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy, "_LOCK_TIMEOUT", "30s")  # however slow this machine is
    started = begun(with_job)
    closing, telling = with_job.connection(), with_job.connection()
    finish_runs(closing, with_job.installation, [ending(started, RunState.SUCCEEDED)])
    asked = in_background(lambda: ask_within(telling, with_job, completing(token_of(with_job, started))))
    until_blocked(with_job, telling)
    closing.commit()
    [reply] = asked.result(10)
    telling.commit()
    is_over(reply, "succeeded")
    assert len(completions(with_job)) == 1


def test_what_the_executor_still_says_after_an_end_from_outside_changes_nothing(with_job: Database) -> None:
    started = begun(with_job)
    complete(with_job, started, result="outside")
    assert succeed(with_job, started).superseded == {started.run_id}
    assert [event.result for event in completions(with_job)] == [b'"outside"']


def test_the_end_gives_the_jobs_turn_to_the_next(database: Database) -> None:
    submit(database, overlap="buffer_all")
    started = waiting(database)
    second = trigger(database)
    assert claim(database, second).started == []
    complete(database, started)
    assert open_run(database, second).state == "queued"
    assert begin(database, second).attempt == 1
