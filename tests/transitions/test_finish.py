"""`finish_runs`: an end is one transaction; a locked run is retried, a zombie changes nothing."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import sql

from tests.fixtures.acts import EXECUTOR, ending
from tests.fixtures.database import ClockedDatabase, Database
from tidewheel.ids import event_id
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import RunCompleted
from tidewheel.transitions.attempts import ProgressReport, Saved, save_progress
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd


def test_success_writes_outcome_attempt_result_and_event(database: Database) -> None:
    job = database.submit(labels={"team": "billing"})
    started = database.begun()
    done = database.end(ending(started, RunState.SUCCEEDED, result=b'{"sent":2}', output=b"hello\n"))
    assert done.states == {started.run_id: RunState.SUCCEEDED}
    assert (done.busy, done.superseded) == (set(), set())
    assert database.job_runs() == []
    [row] = database.rows("SELECT state, attempt, started_at, reason, error_type, finished_at FROM runs")
    assert row[:5] == ("succeeded", 1, started.started_at, None, None)
    assert database.attempts(started.run_id) == [(1, "succeeded")]
    found = database.rows("SELECT executor_id, started_at, claimed_from, finished_at >= started_at FROM ended_attempts")
    assert found == [(EXECUTOR, started.started_at, "test/0/0@0", True)]
    assert database.rows("SELECT result, trace, output FROM attempt_outputs") == [(b'{"sent":2}', None, b"hello\n")]
    [event] = database.completions()
    assert (event.run_id, event.job_id, event.job_key) == (str(started.run_id), job.job_id, "job")
    assert (event.status, event.result, event.attempt, event.max_attempts) == ("succeeded", b'{"sent":2}', 1, 4)
    assert (event.executor_id, event.started_at) == (str(EXECUTOR), started.started_at)
    assert (event.finished_at, event.labels) == (row[5], {"team": "billing"})
    assert database.dead_letters() == []


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.TIMED_OUT])
def test_failed_run_becomes_a_dead_letter_in_table_and_topic(database: Database, state: RunState) -> None:
    database.submit(retry={"max_attempts": 2}, payload={"to": "a@example.org"})
    started = database.begun()
    database.requeue(started, AttemptOutcome.FAILED)
    last = database.begin(started.run_id)
    told: dict[str, Any] = {"error_type": "ValueError", "error_message": "no such address", "trace": "Traceback: …"}
    database.end(ending(last, state, **told, reason="why", output=b"out"))
    assert database.rows("SELECT kind, run_id, reason FROM dead_letters") == [("run", last.run_id, "no such address")]
    [kept] = database.rows("SELECT run_id, state, attempt, error_type, error_message, trace FROM failed_runs")
    assert kept == (last.run_id, state, 2, "ValueError", "no such address", "Traceback: …")
    [letter] = database.dead_letters()
    assert (letter.run_id, letter.status, letter.attempt) == (str(last.run_id), state, 2)
    assert (letter.payload, letter.payload_content_type) == (b'{"to":"a@example.org"}', "application/json")
    assert letter.error is not None
    assert (letter.error.type, letter.error.message) == ("ValueError", "no such address")
    first, second = letter.attempts
    assert (first.attempt, first.outcome, first.error_message, first.trace) == (1, "failed", None, None)
    assert (second.attempt, second.outcome, second.trace, second.output) == (2, state, "Traceback: …", b"out")
    [event] = database.completions()
    assert event.error == letter.error
    assert database.final_state(last.run_id) == (state, "why")


def test_dead_letter_header_names_the_kind_run(with_job: Database) -> None:
    started = with_job.begun()
    with_job.end(ending(started, RunState.FAILED, error_type="ValueError"))
    topic = with_job.installation.topics.dead_letters
    [(headers, key)] = with_job.rows("SELECT headers, key FROM outbox WHERE topic = %s", [topic])
    assert headers == [b"tidewheel-dlq-kind", b"run", b"content-type", b"application/avro"]
    assert key == with_job.completions()[0].job_id.encode()


def test_attempt_outcome_may_differ_from_the_runs_state(with_job: Database) -> None:
    lost, cancelled = with_job.begun(), with_job.begun()
    with_job.apply_batch({"type": "run.cancel", "run_id": str(cancelled.run_id)})
    with_job.end(*(ending(one, RunState.FAILED, outcome=AttemptOutcome.LOST) for one in (lost, cancelled)))
    assert (with_job.final_state(lost.run_id)[0], with_job.attempts(lost.run_id)) == ("failed", [(1, "lost")])
    assert with_job.attempts(cancelled.run_id) == [(1, "cancelled")]


# fields of the job, fields of the run, payload and its type
PAYLOADS: list[tuple[dict[str, Any], dict[str, Any], tuple[bytes | None, str | None]]] = [
    ({}, {}, (None, None)),
    ({"payload": None}, {}, (b"null", "application/json")),
    ({"payload_base64": ""}, {}, (b"", "application/octet-stream")),
    ({}, {"payload": 1}, (b"1", "application/json")),
    ({"payload": 1}, {"payload_base64": "AP8="}, (b"\0\xff", "application/octet-stream")),
]


def test_dead_letter_holds_the_payload_if_there_is_one(database: Database) -> None:
    for number, (job, run, told) in enumerate(PAYLOADS):
        database.submit(f"job-{number}", **job)
        started = database.begun(f"job-{number}", **run)
        database.end(ending(started, RunState.FAILED, error_type="ValueError"))
        [letter] = [each for each in database.dead_letters() if each.run_id == str(started.run_id)]
        assert (letter.payload, letter.payload_content_type) == told, (job, run)
        [request] = [each for each in database.requests() if each.run_id == str(started.run_id)]
        assert (request.payload, request.payload_content_type) == (told if run else (None, None)), (job, run)


@pytest.mark.landing
def test_dead_letter_holds_the_newest_hundred_attempts(with_job: Database) -> None:
    run_id = with_job.trigger()
    for _ in range(101):
        with_job.requeue(with_job.begin(run_id), AttemptOutcome.LOST)
    with_job.end(ending(with_job.begin(run_id), RunState.FAILED, error_type="ValueError"))
    [letter] = with_job.dead_letters()
    assert [attempt.attempt for attempt in letter.attempts] == list(range(3, 103))


def test_zombie_report_is_superseded_and_changes_nothing(with_job: Database) -> None:
    zombie = with_job.begun()
    with_job.requeue(zombie, AttemptOutcome.LOST)
    current = with_job.begin(zombie.run_id)
    refused = with_job.end(ending(zombie, RunState.SUCCEEDED, result=b"1"))
    assert (refused.states, refused.busy, refused.superseded) == ({}, set(), {zombie.run_id})
    assert with_job.open_run(zombie.run_id).attempt == current.attempt == 2
    assert with_job.completions() == []
    assert with_job.attempts(zombie.run_id) == [(1, "lost")]


def test_requeued_run_is_not_ended_by_its_old_executor(with_job: Database) -> None:
    """The attempt number alone is no fence: the old executor reports before the next claim."""
    for outcome in (AttemptOutcome.LOST, AttemptOutcome.RELEASED, AttemptOutcome.SNOOZED):
        zombie = with_job.begun()
        with_job.requeue(zombie, outcome)
        before = with_job.open_run(zombie.run_id)
        assert with_job.end(ending(zombie, RunState.TIMED_OUT)).superseded == {zombie.run_id}, outcome
        assert with_job.requeue(zombie, AttemptOutcome.FAILED).runs == {}, outcome
        assert with_job.open_run(zombie.run_id) == before, outcome


def test_attempt_of_another_executor_is_not_ended(with_job: Database) -> None:
    started = with_job.begun()
    assert with_job.end(ending(started, RunState.SUCCEEDED, executor_id=uuid4())).superseded == {started.run_id}
    assert with_job.end(RunEnd(started.run_id, 1, RunState.SUCCEEDED)).superseded == {started.run_id}
    assert with_job.open_run(started.run_id).state == "running"


def test_batch_reports_ended_busy_and_superseded_runs(with_job: Database) -> None:
    good, locked, gone = with_job.begun(), with_job.begun(), with_job.begun()
    with_job.succeed(gone)
    holding = with_job.connection()
    holding.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [locked.run_id])
    done = with_job.end(*(ending(one, RunState.SUCCEEDED) for one in (good, locked, gone)))
    holding.rollback()
    assert done.states == {good.run_id: RunState.SUCCEEDED}
    assert (done.busy, done.superseded) == ({locked.run_id}, {gone.run_id})
    assert len(with_job.completions()) == 2
    assert with_job.succeed(locked).states == {locked.run_id: RunState.SUCCEEDED}
    assert with_job.count("attempt_outputs") == 0


def test_cancelling_run_can_only_become_cancelled(database: Database) -> None:
    database.submit(overlap="skip")
    for wanted in (RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT, RunState.CANCELLED):
        started = database.begun()
        database.apply_batch({"type": "run.cancel", "run_id": str(started.run_id)})
        assert database.open_run(started.run_id).state == "cancelling", wanted
        assert database.count("signals") == 1, wanted
        done = database.end(ending(started, wanted, result=b"1"))
        assert done.states == {started.run_id: RunState.CANCELLED}, wanted
        assert database.attempts(started.run_id) == [(1, "cancelled")], wanted
        [event] = [each for each in database.completions() if each.run_id == str(started.run_id)]
        assert (event.status, event.result, event.error) == ("cancelled", None, None), wanted
        assert (database.count("signals"), database.count("active_runs")) == (0, 0), wanted
        assert database.dead_letters() == [], wanted


def test_end_between_attempts_writes_no_attempt(with_job: Database) -> None:
    started = with_job.begun()
    with_job.requeue(started, AttemptOutcome.FAILED, timedelta(hours=1))
    with_job.end(RunEnd(started.run_id, 1, RunState.CANCELLED, reason="asked"))
    assert with_job.attempts(started.run_id) == [(1, "failed")]
    [event] = with_job.completions()
    assert (event.attempt, event.sequence, event.started_at) == (1, 3, None)


def test_sequence_and_event_id_are_derived_from_the_run(with_job: Database) -> None:
    for attempt, state, sequence in ((0, RunState.CANCELLED, 1), (1, RunState.SUCCEEDED, 2), (2, RunState.FAILED, 4)):
        run_id = with_job.trigger()
        for number in range(1, attempt + 1):
            started = with_job.begin(run_id)
            if number < attempt:
                with_job.requeue(started, AttemptOutcome.LOST)
        hands = EXECUTOR if attempt else None
        with_job.end(RunEnd(run_id, attempt, state, hands, error_type="ValueError"))
        [event] = [each for each in with_job.completions() if each.run_id == str(run_id)]
        assert event.sequence == sequence, state
        assert event.event_id == str(event_id(run_id, state, sequence)), state


def test_repeated_event_after_a_rollback_has_the_same_id(with_job: Database) -> None:
    started = with_job.begun()
    wanted = ending(started, RunState.SUCCEEDED)
    lost = with_job.connection()
    finish_runs(lost, with_job.installation, [wanted])
    ids = lost.execute("SELECT value FROM outbox WHERE topic = %s", [with_job.installation.topics.completions])
    [(first,)] = ids.fetchall()
    lost.rollback()
    with_job.end(wanted)
    [event] = with_job.completions()
    assert isinstance(first, bytes)
    assert event.event_id == decode(first, RunCompleted).event_id


def test_given_message_is_not_built_again(with_job: Database) -> None:
    """An executor still has the message it ran: what it hands over is what the event is made of."""
    run_id = with_job.trigger(labels={"from": "table"})
    started = with_job.begin(run_id)
    at_hand = replace(with_job.requests()[0], labels={"from": "hand"})
    with_job.end(ending(started, RunState.SUCCEEDED, request=at_hand))
    assert with_job.completions()[0].labels == {"from": "hand"}


def test_run_labels_override_job_labels(database: Database) -> None:
    database.submit(labels={"team": "billing", "tier": "1"})
    database.succeed(database.begun(labels={"tier": "2"}))
    assert database.completions()[0].labels == {"team": "billing", "tier": "2"}


def test_inputs_of_a_run_that_was_open_for_long_move_with_its_end(clocked: ClockedDatabase) -> None:
    """They last as long as the row of the finished run, from which a retry takes them."""
    created_at = clocked.stop_clock()
    clocked.submit()
    kept, moved = clocked.trigger(payload="kept", delay="30h"), clocked.trigger(payload="moved")
    clocked.advance(timedelta(hours=30))
    late = clocked.trigger(payload="late")
    ended_at = clocked.advance(timedelta(seconds=1))
    runs = clocked.claim(moved, late).started
    clocked.end(*(ending(started, RunState.FAILED, error_type="ValueError") for started in runs))
    placed = clocked.rows("SELECT run_id, created_at, tableoid::regclass::text FROM run_inputs")
    expected = {kept: created_at, moved: ended_at, late: ended_at - timedelta(seconds=1)}
    assert set(placed) == {(run, at, f"run_inputs_{at:%Y%m%d}") for run, at in expected.items()}
    clocked.accept({"type": "run.retry", "run_id": str(moved)})
    assert clocked.requests()[-1].payload == b'"moved"'


def test_progress_and_the_end_of_an_old_run_exclude_each_other(still: ClockedDatabase) -> None:
    """The end moves the inputs: progress that is inserted after it would be a second row of them."""
    still.submit()
    run_id = still.trigger(payload="kept")
    still.advance(timedelta(hours=30))
    started = still.begin(run_id)
    wanted, report = ending(started, RunState.SUCCEEDED), ProgressReport(run_id, 1, EXECUTOR, progress=b"1")
    closing, saving = still.connection(), still.connection()
    assert save_progress(saving, [report]) == Saved({run_id})
    assert finish_runs(closing, still.installation, [wanted]).busy == {run_id}
    saving.rollback()
    assert finish_runs(closing, still.installation, [wanted]).states == {run_id: RunState.SUCCEEDED}
    assert save_progress(saving, [report]) == Saved(busy={run_id})
    closing.commit()
    assert save_progress(saving, [report]) == Saved()
    saving.commit()
    assert still.rows("SELECT payload, progress FROM run_inputs") == [(b'"kept"', None)]


def test_report_of_an_unknown_run_creates_no_partition(with_job: Database) -> None:
    for stamp in (0, 0x7FFF_FFFF_FFFF, 0xFFFF_FFFF_FFFF):
        good, unknown = with_job.begun(), UUID(int=stamp << 80 | 1)
        before = with_job.count("pg_class")
        done = with_job.end(ending(good, RunState.SUCCEEDED), RunEnd(unknown, 1, RunState.SUCCEEDED, EXECUTOR))
        assert (set(done.states), done.superseded) == ({good.run_id}, {unknown}), stamp
        assert with_job.count("pg_class") == before, stamp


def test_run_lies_in_the_partition_of_its_end(still: ClockedDatabase) -> None:
    still.submit()
    started = still.begun()
    ended_at = still.advance(timedelta(days=40))
    still.end(ending(started, RunState.FAILED, error_type="ValueError", output=b"out"))
    began_at = started.started_at
    for table, at in (("finished_runs", ended_at), ("attempts", began_at), ("attempt_outputs", began_at)):
        query = sql.SQL("SELECT tableoid::regclass::text FROM {}").format(sql.Identifier(table))
        assert still.rows(query) == [(f"{table}_{at:%Y%m%d}",)]
