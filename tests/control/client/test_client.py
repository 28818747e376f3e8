"""The clients: requests, runs and waiting, from Python."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, LiteralString, TypeVar
from uuid import uuid4

import pytest

from tests.fixtures.acts import EXECUTOR, ending
from tests.fixtures.database import Database
from tests.fixtures.services import LONG_LEASE, Fleet, until
from tests.transitions.stepping import in_background
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.async_client import AsyncClient
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput, Refused, Unavailable, VersionConflict
from tidewheel.ids import RunId, job_id
from tidewheel.jobs.spec import JobSpec
from tidewheel.postgres.session import CommitUnknown
from tidewheel.runs import RunState
from tidewheel.transitions.attempts import ProgressReport, save_progress

T = TypeVar("T")

NO_DATABASE = "postgresql://127.0.0.1:1/none"
TALK: LiteralString = """
SELECT state, wait_event_type = 'Lock' FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-client'
"""
TRANSACTIONS: LiteralString = "SELECT count(DISTINCT xmin::text) FROM job_runs"
CUT: LiteralString = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-client'
"""
END_AT_FIRST_COMMIT: LiteralString = """
CREATE SEQUENCE commits;
CREATE FUNCTION end_at_first_commit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF nextval('commits') = 1 THEN
        PERFORM pg_terminate_backend(pg_backend_pid());
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER ends AFTER UPDATE ON workflows DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION end_at_first_commit()
"""


def job(key: str = "job", /, **fields: object) -> dict[str, object]:
    return {"key": key, "schedule": "manual", "target": "send-email"} | fields


def awaited(database: Database, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Run a coroutine with an AsyncClient; return its result."""

    async def run() -> T:
        async with AsyncClient(database.url) as client:
            return await work(client)

    return asyncio.run(run())


def refusal_code(call: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        call()
    assert caught.value.errors[0].remedy
    return caught.value.code


def test_a_job_as_a_spec_and_as_a_mapping_is_one_version(client: Client) -> None:
    cases: list[dict[str, Any]] = [
        {"payload": {"to": "ann"}},
        {"payload": "text"},
        {"payload": None},
        {"payload_base64": "AP8="},
        {"retry": {"jitter": "20%", "intervals": ["1s", "5s"], "non_retryable": ["ValueError"]}},
        {"schedule": {"cron": "0 8 * * *", "timezone": "Europe/Berlin"}, "end_at": "2999-01-01T00:00:00Z"},
        {"target": {"type": "http", "url": "http://a.example", "headers": {"X": "1"}}, "jitter": "0s"},
        {"start_to_close": "250ms", "paused": True, "labels": {"a": "b"}, "description": "why"},
    ]
    for number, fields in enumerate(cases):
        given, request_id = job(f"job-{number}", **fields), f"r-{number}"
        first = client.submit(JobSpec.model_validate(given), request_id=request_id)
        assert (first.version, first.unchanged) == (1, False), fields
        again = client.submit(given)
        assert (again.version, again.unchanged) == (1, True), fields
        assert client.submit(given, request_id=request_id) == first, f"it is the same request, too: {fields}"


def test_every_error_of_a_job_names_its_path(client: Client, database: Database) -> None:
    with pytest.raises(InvalidInput) as caught:
        client.submit({"key": "", "schedule": "61 * * * *", "target": "x", "overlap": "maybe"})
    assert {error.path.split(".")[1] for error in caught.value.errors} >= {"key", "overlap"}
    assert database.count("jobs") == 0


def test_triggered_run_can_be_read(client: Client, database: Database) -> None:
    client.submit(job())
    run_id = client.trigger("job", {"to": "ann"}, labels={"a": "b"})
    queued = client.runs.get(run_id)
    assert (queued.run_id, queued.job_id) == (run_id, job_id("default", "job"))
    assert (queued.state, queued.attempt) == ("queued", 0)
    assert (queued.started_at, queued.finished_at, queued.result, queued.final) == (None, None, None, False)
    started = database.begin(run_id)
    running = client.runs.get(run_id)
    assert (running.state, running.attempt, running.started_at) == ("running", 1, started.started_at)
    database.end(ending(started, RunState.FAILED, error_type="ValueError", error_message="no stamp"))
    failed = client.runs.get(run_id)
    assert (failed.state, failed.error_type, failed.error_message) == ("failed", "ValueError", "no stamp")
    assert (failed.final, failed.finished_at is None) == (True, False)


def test_a_trigger_may_name_its_time(client: Client, database: Database) -> None:
    client.submit(job())
    at = database.now() + timedelta(hours=1)
    assert client.runs.get(client.trigger("job", run_at=at)).scheduled_at == at
    for delay in (3600, 3600.0, timedelta(hours=1)):
        later = client.runs.get(client.trigger("job", delay=delay)).scheduled_at
        assert timedelta(0) <= later - at < timedelta(minutes=1)


def test_trigger_with_dedupe_says_what_happened(client: Client, database: Database) -> None:
    client.submit(job())
    first = client.trigger_deduped("job", 1, dedupe_key="k", window="1m", mode="debounce", request_id="r-1")
    second = client.trigger_deduped(
        "job", 2, dedupe_key="k", window=timedelta(minutes=1), mode="debounce", longest="2m"
    )
    assert (first.outcome, second.outcome, second.run_id) == ("accepted", "debounced", first.run_id)
    assert client.runs.get(first.run_id).scheduled_at == second.runs_at > first.runs_at
    again = client.trigger_deduped("job", 1, dedupe_key="k", window="1m", mode="debounce", request_id="r-1")
    assert again == first
    with pytest.raises(InvalidInput) as caught:
        client.trigger_deduped("job", dedupe_key="k", window=0)
    assert [error.path for error in caught.value.errors] == ["dedupe.window"]
    told = client.trigger_deduped("job", dedupe_key="own", window="1m", concurrency_key="acme", priority=9)
    found = database.rows("SELECT concurrency_key, priority FROM job_runs WHERE run_id = %s", [told.run_id])
    assert found == [("acme", 9)]


def test_a_job_is_paused_resumed_and_deleted(client: Client, database: Database) -> None:
    client.submit(job(schedule="@every 1h"))
    paused = client.pause("job", reason="a holiday")
    assert (paused.unchanged, paused.next_run_at) == (False, None)
    assert database.rows("SELECT paused, pause_reason FROM jobs") == [(True, "a holiday")]
    assert client.pause("job").unchanged
    client.trigger("job")  # which a pause does not concern
    resumed = client.resume("job")
    assert not resumed.unchanged
    assert resumed.next_run_at is not None
    assert client.resume("job").unchanged
    client.delete("job")
    assert refusal_code(lambda: client.trigger("job")) == "unknown_job"
    assert client.submit(job()).version > resumed.version


def test_running_run_shows_progress_and_deadline(client: Client, database: Database) -> None:
    client.submit(job(schedule_to_close="1h"))
    run_id = client.trigger("job")
    assert (client.runs.get(run_id).progress, client.runs.get(run_id).progress_at) == (None, None)
    started = database.begin(run_id)
    database.within(save_progress, [ProgressReport(run_id, started.attempt, EXECUTOR, progress=b'{"pages":3}')])
    run = client.runs.get(run_id)
    assert (run.progress, run.deadline_at) == (b'{"pages":3}', started.schedule_to_close_at)
    assert run.progress_at is not None
    database.succeed(started)
    over = client.runs.get(run_id)
    assert (over.progress, over.deadline_at) == (b'{"pages":3}', None)


def test_cancel_returns_the_state_before(client: Client, database: Database) -> None:
    client.submit(job())
    queued, running = client.trigger("job"), client.trigger("job")
    database.begin(running)
    assert client.runs.cancel(queued, reason="by mistake") is RunState.QUEUED
    assert (client.runs.get(queued).state, client.runs.get(queued).reason) == ("cancelled", "by mistake")
    assert client.runs.cancel(running) is RunState.RUNNING
    assert client.runs.get(running).state == "cancelling"
    assert client.runs.cancel(queued) is RunState.CANCELLED


def test_unknown_job_or_run_is_refused(client: Client) -> None:
    for act in (client.trigger, client.pause, client.resume, client.delete):
        assert refusal_code(lambda act=act: act("nobody")) == "unknown_job", act
    for call in (client.runs.get, client.runs.cancel, client.runs.wait):
        assert refusal_code(lambda call=call: call(uuid4())) == "unknown_run", call


def test_version_conflict_has_an_error_of_its_own(client: Client) -> None:
    """A caller reads the job again and repeats the change: it needs no text for that."""
    client.submit(job())
    for expected in (0, 7):
        with pytest.raises(VersionConflict) as caught:
            client.submit(job(schedule="@every 1h"), if_version=expected)
        assert (caught.value.expected, caught.value.current) == (expected, 1)
    with pytest.raises(VersionConflict) as caught:
        client.delete("job", if_version=7)
    assert (caught.value.expected, caught.value.current) == (7, 1)
    with pytest.raises(VersionConflict) as caught:
        client.submit(job("none"), if_version=3)
    assert (caught.value.expected, caught.value.current) == (3, None)


def test_waiting_ends_when_the_run_does(client: Client, database: Database) -> None:
    client.submit(job())
    run_id = client.trigger("job")
    waiting = in_background(lambda: client.runs.wait(run_id, timedelta(seconds=30)))
    database.succeed(database.begin(run_id))
    assert waiting.result(30).state == "succeeded"
    assert client.runs.wait(run_id, 0).final


def test_wait_timeout_names_the_state(client: Client, database: Database) -> None:
    client.submit(job())
    run_id = client.trigger("job")
    began = monotonic_seconds()
    with pytest.raises(TimeoutError, match=f"^run {run_id} is queued after 0.1 s$"):
        client.runs.wait(run_id, 0.1)
    assert monotonic_seconds() - began >= 0.1
    database.begin(run_id)
    with pytest.raises(TimeoutError, match="is running after 0 s"):
        awaited(database, lambda other: other.runs.wait(run_id, timedelta(0)))


def test_client_reconnects_and_repeats_the_request(client: Client, database: Database) -> None:
    client.submit(job())
    for ask in (lambda: client.trigger("job"), lambda: client.trigger("job", request_id="r-1")):
        assert database.value(CUT) == 1
        ask()
    assert database.count("job_runs") == 2


@pytest.mark.parametrize("request_id", [None, "r-1"])
def test_resume_without_an_answer_is_repeated_by_its_id_alone(fresh_database: Database, request_id: str | None) -> None:
    with Client(fresh_database.url) as client:
        client.submit(job("a"))
        client.submit(job("b", schedule={"after": ["a"]}))
        root = client.trigger("a")
        fresh_database.begin(root)
        assert client.workflows.pause(root)
        fresh_database.execute(END_AT_FIRST_COMMIT)
        if request_id is None:
            with pytest.raises(CommitUnknown):
                client.workflows.resume(root)
        assert client.workflows.resume(root, request_id=request_id)
        assert client.workflows.resume(root, request_id=request_id) == (request_id is not None)


def test_unreachable_database_raises_unavailable() -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(Unavailable):
            kind(NO_DATABASE)


def test_a_cancelled_call_does_not_leave_half_a_transaction(database: Database) -> None:
    holding = database.connection()

    async def work(client: AsyncClient) -> RunId:
        await client.submit(job())
        holding.execute("SELECT FROM jobs FOR UPDATE")
        given_up = asyncio.create_task(client.trigger("job", request_id="given-up"))
        await asyncio.sleep(0)
        until(lambda: database.rows(TALK) == [("active", True)], "the trigger waits for the job's row")
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        following = asyncio.create_task(client.trigger("job", request_id="following"))
        await asyncio.sleep(0)
        assert database.count("job_runs") == 0
        holding.commit()
        run_id = await following
        # Both are whole, and nothing is left open.
        assert [state for state, _ in database.rows(TALK)] == ["idle"]
        assert await client.trigger("job", request_id="given-up") != run_id
        return run_id

    run_id = awaited(database, work)
    assert database.count("job_runs") == database.count("requests") == database.count("runs") == 2
    assert (run_id,) in database.rows("SELECT run_id FROM job_runs")
    assert database.value(TRANSACTIONS) == 2
    until(lambda: database.rows(TALK) == [], "the server has ended the session")


@pytest.mark.landing
@pytest.mark.kafka
def test_triggered_run_is_executed_and_awaited(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEWHEEL_TOPIC_PREFIX", fleet.topics.prefix)
    (open_gate := tmp_path / "open").touch()
    fleet.start_all("relay", "executor", LEASE=LONG_LEASE)
    with Client(fleet.database.url) as client:
        for target in ("gated", "gated-sync"):
            client.submit(job(target, target=target))
            run = client.runs.wait(client.trigger(target, str(open_gate)), 40)
            assert (run.state, run.attempt, run.result, run.error_type) == ("succeeded", 1, b"1", None)
            times = [at for at in (run.scheduled_at, run.started_at, run.finished_at) if at is not None]
            assert (len(times), times) == (3, sorted(times))
    fleet.stop()


def test_handler_runs_later_without_a_job_made_first(client: Client, database: Database) -> None:
    run = client.run_later("send-email", {"to": "a@example.org"}, delay="5m", labels={"a": "b"})
    wait = database.value("SELECT publish_at - created_at FROM job_runs WHERE run_id = %s", [run])
    assert timedelta(minutes=5) <= wait < timedelta(minutes=6)
    again = client.run_later("send-email", request_id="once")
    assert client.run_later("send-email", request_id="once") == again != run
    assert database.rows("SELECT key, version FROM jobs") == [("later/send-email", 1)]
    assert database.rows("SELECT DISTINCT handler FROM job_runs") == [("send-email",)]


def test_job_of_a_later_run_keeps_the_policies_that_were_submitted(client: Client, database: Database) -> None:
    client.submit(job("later/send-email", retry={"max_attempts": 9}))
    client.run_later("send-email")
    assert database.rows("SELECT version FROM jobs") == [(1,)]
    client.delete("later/send-email")
    client.run_later("send-email")
    assert database.count("job_runs") == 1


def test_refused_later_run_writes_nothing(client: Client, database: Database) -> None:
    for call in (
        lambda: client.run_later("send-email", delay="soon", request_id="once"),
        lambda: client.run_later("", request_id="once"),
    ):
        refusal_code(call)
    assert (database.count("jobs"), database.count("requests")) == (0, 0)
    client.run_later("send-email", request_id="once")


def test_clients_that_first_run_a_handler_at_once_create_one_job(database: Database) -> None:
    def first(number: int) -> RunId:
        with Client(database.url) as one:
            return one.run_later("send-email", number)

    runs = [in_background(lambda number=number: first(number)) for number in range(4)]
    assert len({run.result(60) for run in runs}) == 4
    assert database.rows("SELECT key, version FROM jobs") == [("later/send-email", 1)]
