"""Causes that need a person: one finding for each, with all that it hurts, the most harm first."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.control.api.answering import ApiClient, answering
from tests.control.api.test_now import HOSTILE, read
from tests.control.cli.test_status import process
from tests.control.reads.test_waits import executor
from tests.fixtures.acts import EXECUTOR, HANDLER, submission
from tests.fixtures.database import Database
from tests.transitions.figures import finish, forget_figures
from tidewheel.jobs.values import parse_timestamp
from tidewheel.runs import AttemptOutcome, RunState

SUCCEEDED, FAILED = RunState.SUCCEEDED, RunState.FAILED
ONCE = {"max_attempts": 1}


@pytest.fixture
def client(database: Database) -> Iterator[ApiClient]:
    forget_figures(database)
    with answering(database) as made:
        yield made


def needs(client: ApiClient, *kinds: str) -> list[Any]:
    return [each for each in read(client, "now")["findings"] if each["kind"] in kinds]


def run_services(database: Database, *roles: str) -> None:
    for role in roles:
        process(database, role)


def make_due(database: Database, ago: str = "10 min") -> None:
    """Let open runs be due for some time."""
    database.execute(
        "UPDATE job_runs SET scheduled_at = d.at, created_at = d.at,"
        " publish_at = CASE WHEN publish_at = 'infinity' THEN publish_at ELSE d.at END"
        " FROM (SELECT tidewheel_now() - %s::interval AS at) AS d",
        [ago],
    )


def fail_before(database: Database, key: str, times: int, ago: str) -> None:
    """End runs of a job as failed, some time ago."""
    runs = finish(database, key, *[FAILED] * times)
    database.execute(
        "UPDATE failed_runs SET finished_at = finished_at - %s::interval WHERE run_id = ANY (%s::uuid[])", [ago, runs]
    )


@pytest.mark.landing
def test_job_that_fails_in_a_row_fails_until_it_succeeds(client: ApiClient) -> None:
    database = client.database
    database.submit(HOSTILE, retry=ONCE)
    finish(database, HOSTILE, *[SUCCEEDED] * 50, *[FAILED] * 2)
    [need] = needs(client, "failing_job")
    assert (need["words"], need["severity"], need["count"]) == ("failing intermittently", "warning", 2)
    finish(database, HOSTILE, FAILED)
    [need] = needs(client, "failing_job")
    assert (need["key"], need["words"], need["severity"]) == (HOSTILE, "failing", "error")
    assert (need["count"], need["counted"], need["evidence"]) == (3, "failed", "ConnectionError")
    [(first, newest)] = database.rows("SELECT min(finished_at), max(finished_at) FROM failed_runs")
    assert (parse_timestamp(need["since"]), parse_timestamp(need["latest"])) == (first, newest)
    message = f"<b>no route\u05d0 {'x' * 300}\nsecond line"
    database.execute("UPDATE failed_runs SET error_message = %s", [message])
    [need] = needs(client, "failing_job")
    assert need["evidence"] == f"ConnectionError: <b>no route\u05d0 {'x' * 187}"
    finish(database, HOSTILE, SUCCEEDED, FAILED)
    [need] = needs(client, "failing_job")
    assert (need["words"], need["since"], need["count"]) == ("failing intermittently", None, 4)
    assert need["remedy"].startswith("tidewheel dlq redrive --job ")
    finish(database, HOSTILE, *[SUCCEEDED] * 10)
    assert needs(client, "failing_job")[0]["words"] == "failing intermittently", "the failure is younger than 5 minutes"
    database.execute("UPDATE finished_runs SET finished_at = finished_at - interval '6 min'")
    database.execute("UPDATE failed_runs SET finished_at = finished_at - interval '6 min'")
    assert needs(client, "failing_job")[0]["words"] == "recovered"


def test_each_error_of_a_job_is_a_cause_with_its_own_newest_message(client: ApiClient) -> None:
    client.database.submit("job", retry=ONCE)
    runs = finish(client.database, "job", *[FAILED] * 5)
    for nth, run in enumerate(runs):
        error = "TimeoutError" if nth in {1, 3} else "KeyError"
        client.database.execute(
            "UPDATE failed_runs SET error_type = %s, error_message = %s WHERE run_id = %s", [error, f"nth {nth}", run]
        )
    found = [(each["count"], each["evidence"]) for each in needs(client, "failing_job")]
    assert found == [(3, "KeyError: nth 4"), (2, "TimeoutError: nth 3")]


@pytest.mark.landing
def test_causes_that_fail_then_with_more_harm_then_with_newer_failures_come_first(client: ApiClient) -> None:
    database = client.database
    for key in ("old", "row", "one", "many"):
        database.submit(key, retry=ONCE)
    fail_before(database, "row", 9, "5 h")
    fail_before(database, "old", 2, "10 min")
    finish(database, "one", FAILED, FAILED)
    finish(database, "many", SUCCEEDED, *[FAILED] * 3)
    found = [(each["key"], each["count"]) for each in needs(client, "failing_job")]
    assert found == [("many", 3), ("row", 9), ("one", 2), ("old", 2)]
    assert needs(client, "failing_job")[1]["words"] == "failing", "though none of its failures is of the last hour"


def test_version_is_named_only_if_it_began_the_failures_for_certain(client: ApiClient) -> None:
    database = client.database

    def named() -> list[tuple[str, int | None]]:
        return [(each["words"], each["since_version"]) for each in needs(client, "failing_job")]

    database.submit("job", retry=ONCE)
    finish(database, "job", SUCCEEDED)
    database.submit("job", retry=ONCE, description="two")
    finish(database, "job", FAILED, FAILED, FAILED)
    assert named() == [("failing with version 2", 2)]
    assert needs(client, "failing_job")[0]["remedy"] == "tidewheel job rollback job 1 --if-version 2"
    database.submit("job", retry=ONCE, description="three")
    assert named() == [("failing", None)], "version 2 is no more in force"
    finish(database, "job", FAILED)
    assert named() == [("failing", None)], "version 2 failed as well"
    database.submit("other", retry=ONCE)
    finish(database, "other", SUCCEEDED)
    for description in ("two", "three"):
        database.submit("other", retry=ONCE, description=description)
    finish(database, "other", FAILED, FAILED, FAILED)
    assert ("failing", None) in named(), "version 2 had no run, and may be the cause"


def test_dead_letters_of_a_failing_job_are_no_cause_of_their_own(client: ApiClient) -> None:
    database = client.database
    for key in ("failing", "over"):
        database.submit(key, retry=ONCE)
    fail_before(database, "over", 2, "2 h")
    [letters] = needs(client, "dead_letters")
    assert (letters["count"], letters["counted"]) == (2, "not_redriven")
    finish(database, "failing", FAILED)
    [letters] = needs(client, "dead_letters")
    assert (letters["count"], letters["words"]) == (2, "other dead letters")
    database.execute("UPDATE dead_letters SET redriven_at = created_at")
    assert not needs(client, "dead_letters")


def test_missing_handler_is_one_cause_whatever_lanes_states_and_dead_executors(client: ApiClient) -> None:
    database = client.database
    run_services(database, "scheduler", "relay", "intake")
    executor(database, "other")
    executor(database, HANDLER, silent="1 h")
    database.submit("one", overlap="allow_all")
    database.submit("two", lane="critical")
    database.requeue(database.begin(database.trigger("one")), AttemptOutcome.FAILED)
    for key in ("one", "one", "two"):
        database.trigger(key)
    make_due(database)
    [need] = [each for each in read(client, "now")["findings"] if each["kind"] != "outbox"]
    assert need["words"] == f"no live executor of queue default has handler {HANDLER}"
    assert (need["kind"], need["count"], need["counted"]) == ("waiting_runs", 4, "waiting")
    assert need["evidence"].startswith("the last one has been silent since ")
    executor(database, "unrelated", silent="1 h")
    assert [each["kind"] for each in needs(client, "waiting_runs", "fleet")] == ["waiting_runs", "fleet"]


def test_dead_service_has_the_runs_and_timers_that_it_leaves(client: ApiClient) -> None:
    database = client.database
    database.submit("job", overlap="allow_all", schedule={"interval": "1h"})
    for _ in range(3):
        database.trigger("job")
    make_due(database)
    database.execute("UPDATE timers SET due_at = tidewheel_now() - interval '1 min'")
    found = {each["words"].partition(" is running")[0]: each for each in needs(client, "fleet")}
    assert (found["no executor"]["count"], found["no executor"]["counted"]) == (3, "waiting")
    assert (found["no scheduler"]["count"], found["no scheduler"]["counted"]) == (1, "overdue")
    assert not needs(client, "waiting_runs", "timers", "outbox")
    assert read(client, "now")["findings"][0]["words"].startswith("no executor is running"), "the most harm"


def test_each_full_limit_is_a_cause_with_its_own_number(client: ApiClient) -> None:
    database = client.database
    for key, runs in (("a", 2), ("b", 3)):
        database.submit(key, overlap="allow_all", concurrency_key={"key": f"key-{key}", "at_once": 1})
        database.claim(*(database.trigger(key) for _ in range(runs + 1)))
    make_due(database)
    found = [(each["words"], each["count"]) for each in needs(client, "held_runs")]
    assert found == [
        ("runs wait for a place of the concurrency key 'key-b': 1 of 1 are taken", 3),
        ("runs wait for a place of the concurrency key 'key-a': 1 of 1 are taken", 2),
    ]
    for number in range(7):
        database.submit(f"c{number}", overlap="allow_all", concurrency_key={"key": f"key-{number}", "at_once": 1})
        database.claim(*(database.trigger(f"c{number}") for _ in range(2)))
    make_due(database)
    found = [(each["words"], each["count"]) for each in needs(client, "held_runs")]
    assert (len(found), sum(count for _, count in found)) == (6, 12)
    assert ("other limits hold runs", 4) in found


def test_late_lane_is_one_cause_and_a_lane_without_runs_of_the_tenant_is_none(client: ApiClient) -> None:
    database = client.database
    run_services(database, "scheduler", "relay", "intake")
    executor(database, HANDLER)
    database.submit("job", overlap="allow_all")
    for _ in range(2):
        database.trigger("job")
    make_due(database, "20 s")
    assert not needs(client, "waiting_runs", "fleet")
    since = (database.now() - timedelta(minutes=1)).isoformat()
    lane = {"lane": "standard", "since": since, "runs": 900, "complete": True, "tenants": 2, "largest": {"rival": 900}}
    database.execute(
        "INSERT INTO members (member_id, role, name, last_heartbeat_at, started_at, held)"
        " VALUES (gen_random_uuid(), 'relay', 'r', tidewheel_now(), tidewheel_now(), %s)",
        [Jsonb([lane | {"queue": queue} for queue in ("default", "reports")])],
    )
    [need] = needs(client, "waiting_runs", "fleet")
    assert (need["words"], need["count"]) == ("runs are waiting in queue default, lane standard", 2)
    assert "rival" not in str(need)


def test_long_backlog_is_a_cause_before_its_lane_is_late(client: ApiClient) -> None:
    database = client.database
    run_services(database, "scheduler", "relay", "intake")
    executor(database, HANDLER)
    database.submit("job", overlap="allow_all")
    finish(database, "job", SUCCEEDED)
    database.apply_batch(*[{"type": "job.trigger", "key": "job"}] * 100)
    make_due(database, "20 s")
    assert not needs(client, "waiting_runs"), "a burst that may be over soon"
    make_due(database, "40 s")
    [need] = needs(client, "waiting_runs")
    assert (need["count"], need["severity"]) == (100, "warning")
    assert "1 h 40 min" in need["evidence"], "100 runs at one a minute"


def test_silent_executor_has_the_runs_that_it_holds(client: ApiClient) -> None:
    database = client.database
    run_services(database, "scheduler", "relay", "intake")
    executor(database, HANDLER)
    database.submit("job", overlap="allow_all")
    executor(database, HANDLER, executor_id=EXECUTOR, silent="1 h")
    database.begun()
    [need] = needs(client, "fleet")
    assert (need["count"], need["counted"]) == (1, "orphaned")
    assert database.now() - parse_timestamp(need["since"]) >= timedelta(hours=1)


def test_findings_of_another_tenant_stand_under_no_other_name(client: ApiClient) -> None:
    database = client.database
    run_services(database, "scheduler", "relay", "intake")
    database.client.tenants.create("rival")
    executor(database, "other")
    database.apply_batch(submission("theirs") | {"tenant": "rival"})
    database.apply_batch({"type": "job.trigger", "key": "theirs", "tenant": "rival"})
    database.apply_batch({"type": "freeze", "queue": "reports", "tenant": "rival"})
    make_due(database)
    assert [each["kind"] for each in read(client, "now", tenant="rival")["findings"]] == ["waiting_runs", "freeze"]
    assert [each["words"] for each in read(client, "now")["findings"] if each["kind"] != "outbox"] == []
