"""Executors in other languages: what they claim is theirs alone, what they report is written once."""

from base64 import b64decode
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from psycopg import sql

from tests.control.api.answering import TOPIC, ApiClient, Executor, answering, enter, refusal, refused_fields
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.scheduler.firing import fire_due
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import RunRequest


@pytest.fixture
def executor(client: httpx.Client) -> Executor:
    return enter(client)


def a_run(database: Database, **job: object) -> UUID:
    database.submit("job", **job)
    return database.trigger()


def test_claim_without_the_proof_of_its_message_starts_nothing(executor: Executor, database: Database) -> None:
    """And the run stays for the sweep, which brings the database's own message."""
    run_id, other = a_run(database), database.trigger()
    good = executor.proof(run_id)
    run = {"run_id": str(run_id), "attempt": 1, "job_version": 1, "claimed_from": f"{TOPIC}/0/7@0"}
    forgeries: list[dict[str, str]] = [
        {},
        {"signature": good["signature"]},
        {"digest": good["digest"]},
        good | {"digest": executor.proof(run_id, b"another payload")["digest"]},
        good | {"signature": executor.proof(other)["signature"]},
        good | {"signature": "A" * 28},
        good | {"claimed_from": "t.runs.batch/0/7@0"},
    ]
    for number, forged in enumerate(forgeries, start=1):
        answer = executor.ask("claim", claim_id=number, runs=[run | forged])
        assert (answer.status_code, answer.json()) == (HTTPStatus.OK, {"started": []}), forged
    assert database.open_run(run_id).state == "queued"
    executor.claims = len(forgeries)
    assert {each["run_id"] for each in executor.sweep()} == {str(run_id), str(other)}


def test_forged_run_of_a_batch_does_not_keep_back_the_others(executor: Executor, database: Database) -> None:
    runs = [a_run(database), database.trigger()]
    body = [{"run_id": str(run), "attempt": 1, "job_version": 1, "claimed_from": f"{TOPIC}/0/7@0"} for run in runs]
    body[1] |= executor.proof(runs[1])
    for _ in range(2):  # a repeat gets the same answer
        answer = executor.ask("claim", claim_id=1, runs=body).json()
        assert [each["run_id"] for each in answer["started"]] == [str(runs[1])]


def test_claim_accepts_unsigned_messages_while_the_policy_is_warn(database: Database) -> None:
    run_id = a_run(database)
    run = {"run_id": str(run_id), "attempt": 1, "job_version": 1, "claimed_from": f"{TOPIC}/0/7@0"}
    with answering(database, message_signatures="warn") as warned:
        answer = enter(warned).ask("claim", claim_id=1, runs=[run])
    assert [each["run_id"] for each in answer.json()["started"]] == [str(run_id)]


@pytest.mark.parametrize(("field", "value"), [("signature", "short"), ("signature", "ä" * 28), ("digest", "A" * 64)])
def test_malformed_proof_is_refused_by_its_name(shared_client: ApiClient, field: str, value: str) -> None:
    executor = enter(shared_client)
    run = {"run_id": str(uuid4()), "attempt": 1, "job_version": 1, "claimed_from": "t/0/0@0", field: value}
    assert refused_fields(executor.ask("claim", claim_id=1, runs=[run]))[0] == f"runs.0.{field}"


def test_repeated_claim_returns_the_first_answer_and_starts_nothing(executor: Executor, database: Database) -> None:
    run_id = a_run(database)
    first = executor.claim(run_id)
    assert executor.repeat_claim(run_id) == first
    assert executor.repeat_claim(database.trigger()) == []
    assert executor.finish(run_id, "succeeded") == "recorded"
    assert executor.repeat_claim(run_id) == []


def test_claim_with_a_lower_id_is_refused_and_starts_nothing(executor: Executor, database: Database) -> None:
    """A process that kept its id over a restart would wait for ever with empty answers."""
    run_id = a_run(database)
    executor.claims = 7
    assert executor.sweep()
    database.trigger()
    told = refusal(executor.ask("claim", claim_id=3, sweep=10))
    assert [error["path"] for error in told["errors"]] == ["claim_id"]
    assert "3 is below 8" in told["errors"][0]["problem"]
    assert executor.finish(run_id, "succeeded") == "recorded"
    assert len(executor.sweep()) == 1


def test_sweep_returns_the_messages_of_due_runs(executor: Executor, database: Database) -> None:
    database.submit(payload={"n": 1})
    runs = {database.trigger(), database.trigger()}
    swept = executor.sweep()
    assert {UUID(each["run_id"]) for each in swept} == runs
    message = decode(b64decode(swept[0]["request"]), RunRequest)
    assert (message.run_id, message.attempt) == (swept[0]["run_id"], 1)
    again = executor.ask("claim", claim_id=executor.claims, sweep=10).json()["started"]
    assert sorted(again, key=str) == sorted(swept, key=str)
    assert executor.sweep() == []


def test_sweep_claims_only_its_handlers_and_queues_up_to_the_limit(client: httpx.Client, database: Database) -> None:
    database.submit("mine", target="a", queue="reports")
    database.submit("others", target="b", queue="reports")
    database.submit("elsewhere", target="a")
    database.submit("anyones", target={"type": "http", "url": "http://127.0.0.1:1/"}, queue="reports")
    mine = {database.trigger("mine") for _ in range(3)}
    for key in ("others", "elsewhere", "anyones"):
        database.trigger(key)
    executor = enter(client, handlers=("a",), queues=("reports",))
    first, second = executor.sweep(2), executor.sweep(2)
    assert [len(first), len(second)] == [2, 1]
    assert {UUID(each["run_id"]) for each in first + second} == mine


def test_outcomes_that_end_the_run_are_recorded_with_their_fields(executor: Executor, database: Database) -> None:
    database.submit(retry={"non_retryable": ["NoSuchAccount"]})
    outcomes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("failed", {"error_type": "Broken", "permanent": True}),
        ("failed", {"error_type": "NoSuchAccount"}),
        ("cancelled", {}),
    )
    for status, fields in outcomes:
        ended = database.trigger()
        executor.claim(ended)
        assert executor.finish(ended, status, **fields) == "recorded"
        assert database.final_state(ended)[0] == status, fields
    before = len(database.completions())
    run_id = a_run(database, start_to_close="7s", retry={"max_attempts": 1})
    executor.claim(run_id, version=2)
    executor.finish(run_id, "timed_out", timeout="start_to_close")
    [completion] = database.completions()[before:]
    assert (completion.status, completion.reason) == ("timed_out", "start_to_close")
    assert completion.error is not None
    assert completion.error.message == "start_to_close of 7 s has passed"


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        ("succeeded", {}),
        ("failed", {"error_type": "E", "permanent": True}),
        ("timed_out", {"timeout": "schedule_to_close"}),
        ("cancelled", {}),
    ],
)
def test_each_end_sets_the_next_interval_and_no_other_outcome_does(
    executor: Executor, database: Database, status: str, fields: dict[str, Any]
) -> None:
    database.submit(schedule={"fixed_delay": "1h", "min": "10s", "max": "2h"})
    fire_due(database)
    [started] = executor.sweep()
    run_id = UUID(started["run_id"])
    ending = {"run_id": str(run_id), "attempt": 1, "status": "released", "next_in": "30s"}
    assert refused_fields(executor.ask("finish", outcomes=[ending])) == ["outcomes.0.next_in"]
    assert executor.finish(run_id, status, next_in="30s", **fields) == "recorded"
    waits = database.value(
        "SELECT t.scheduled_at - f.finished_at FROM timers AS t JOIN finished_runs AS f USING (job_id)"
    )
    assert waits == timedelta(seconds=30)


def test_release_and_snooze_use_up_no_attempt(executor: Executor, database: Database) -> None:
    run_id = a_run(database)
    executor.claim(run_id)
    assert executor.finish(run_id, "released") == "recorded"
    executor.claim(run_id, attempt=2)
    assert executor.finish(run_id, "snoozed", attempt=2, delay="1h") == "recorded"
    row = database.open_run(run_id)
    assert (row.state, row.attempt, row.failed_attempts) == ("queued", 2, 0)
    assert row.publish_at > database.now() + timedelta(minutes=59)


def test_at_most_once_run_is_released_only_before_it_began(executor: Executor, database: Database) -> None:
    database.submit(delivery="at_most_once")
    first, second = database.trigger(), database.trigger()
    executor.claim(first)
    executor.claim(second)
    executor.finish(first, "released", started=False)
    executor.finish(second, "released")
    assert database.open_run(first).state == "queued"
    assert database.final_state(second) == ("failed", "unknown_outcome")


def test_external_completion_ends_waiting_attempt(executor: Executor, client: httpx.Client, database: Database) -> None:
    run_id = a_run(database)
    [started] = executor.claim(run_id)
    assert executor.finish(run_id, "waiting", within="1h") == "recorded"
    assert database.open_run(run_id).state == "waiting"
    bearer = {"Authorization": f"Bearer {started['task_token']}"}
    answer = client.post(f"/api/v1/runs/{run_id}:complete", json={"result": 7}, headers=bearer)
    assert answer.json() == {"run_id": str(run_id), "run_status": "succeeded"}
    assert database.completions()[0].result == b"7"


def test_heartbeat_reports_a_cancelled_attempt_which_ends_as_cancelled(executor: Executor, database: Database) -> None:
    run_id = a_run(database)
    executor.claim(run_id)
    assert executor.heartbeat() == []
    database.apply_batch({"type": "run.cancel", "run_id": str(run_id)})
    told = {"run_id": str(run_id), "attempt": 1, "kind": "cancel"}
    assert executor.heartbeat() == [told]
    assert executor.heartbeat() == [told]
    assert executor.finish(run_id, "succeeded") == "recorded"
    assert database.final_state(run_id)[0] == "cancelled"
    assert executor.heartbeat() == []


def test_heartbeat_reports_a_terminated_attempt_until_it_is_answered(executor: Executor, database: Database) -> None:
    database.submit(overlap="terminate_other")
    first = database.trigger()
    executor.claim(first)
    executor.claim(database.trigger())
    assert executor.heartbeat() == [{"run_id": str(first), "attempt": 1, "kind": "terminate"}]
    assert executor.finish(first, "cancelled") == "superseded"
    assert executor.heartbeat() == []


def test_outcome_of_another_executors_attempt_is_refused(
    client: httpx.Client, executor: Executor, database: Database
) -> None:
    run_id, other = a_run(database), enter(client)
    executor.claim(run_id)
    assert other.finish(run_id, "succeeded") == "superseded"
    assert database.open_run(run_id).state == "running"


@pytest.mark.landing
def test_expired_executor_loses_its_attempts_and_gets_404(database: Database) -> None:
    run_id = a_run(database)
    with answering(database, lease=timedelta(seconds=3)) as client:
        silent = enter(client)
        assert silent.claim(run_id)
        until(lambda: database.open_run(run_id).state == "retrying", "the attempt is lost")
        assert silent.finish(run_id, "succeeded") == "superseded"
        until(lambda: silent.ask("heartbeat").status_code == HTTPStatus.NOT_FOUND, "its lease is ended")
        assert refusal(silent.ask("heartbeat"), HTTPStatus.NOT_FOUND)["code"] == "unknown_executor"
        assert refusal(silent.ask("claim", claim_id=9, sweep=1), HTTPStatus.NOT_FOUND)["code"] == "unknown_executor"
    assert database.open_run(run_id).lost_attempts == 1


def test_leaving_executor_stays_registered_until_its_attempts_end(executor: Executor, database: Database) -> None:
    run_id = a_run(database)
    executor.claim(run_id)
    assert executor.ask("leave").status_code == HTTPStatus.NO_CONTENT
    assert database.count("executors") == 1
    executor.finish(run_id, "released", started=False)
    assert executor.ask("leave").status_code == HTTPStatus.NO_CONTENT
    assert database.count("executors") == 0


def test_python_executor_cannot_be_used_over_http(client: httpx.Client, database: Database) -> None:
    database.execute(
        "INSERT INTO executors (executor_id, name, queues, handlers, slots, last_heartbeat_at, started_at)"
        " VALUES (%s, 'p', '{default}', '{}', 1, now(), now())",
        [known := uuid4()],
    )
    other = Executor(client, str(known))
    refusal(other.ask("heartbeat"), HTTPStatus.NOT_FOUND)
    refusal(other.ask("claim", claim_id=1, sweep=1), HTTPStatus.NOT_FOUND)


def test_outcome_that_is_refused_alone_is_busy_and_recorded_later(fresh_database: Database) -> None:
    """The others of its call are recorded once, and the call is answered."""
    with answering(fresh_database) as made:
        executor = enter(made)
        runs = [a_run(fresh_database), fresh_database.trigger(), fresh_database.trigger()]
        for run_id in runs:
            executor.claim(run_id)
        forbid = sql.SQL("ALTER TABLE finished_runs ADD CONSTRAINT poison CHECK (run_id <> {})")
        fresh_database.execute(forbid.format(sql.Literal(runs[1])))
        outcomes = [{"run_id": str(run_id), "attempt": 1, "status": "succeeded"} for run_id in runs]
        answer = executor.ask("finish", outcomes=outcomes)
        assert [each["answer"] for each in answer.json()["outcomes"]] == ["recorded", "busy", "recorded"]
        alone = executor.ask("finish", outcomes=outcomes[1:2])
        assert alone.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        fresh_database.execute("ALTER TABLE finished_runs DROP CONSTRAINT poison")
        assert executor.finish(runs[1], "succeeded") == "recorded"
    assert {fresh_database.final_state(run_id)[0] for run_id in runs} == {"succeeded"}
    assert len(fresh_database.completions()) == len(runs)


def test_large_runs_are_claimed_in_several_responses_of_some_megabytes(executor: Executor, database: Database) -> None:
    run_ids = set[str]()
    for number in range(40):
        database.submit(f"large-{number}", payload="x" * 250_000)
        run_ids.add(str(database.trigger(f"large-{number}")))
    for claim_id in range(1, 4):
        answer = executor.ask("claim", claim_id=claim_id, sweep=100)
        assert len(answer.content) < 8 << 20
        run_ids -= {each["run_id"] for each in answer.json()["started"]}
    assert not run_ids
