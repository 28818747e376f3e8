"""Tenants by client, command line and REST: limits, pauses, usage; quotas of jobs and payloads."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, LiteralString

import psycopg
import pytest

from tests.control.api.answering import answer_of, answering, refusal
from tests.fixtures.acts import submission
from tests.fixtures.database import Database
from tests.fixtures.roles import stranger
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput, Refused, UnknownTenant
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.postgres.session import connect
from tidewheel.schemas.generated.records import Reply, ReplyStatus, RequestOrigin

ACME = {"tenant": "acme"}
RATE_SESSIONS: LiteralString = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tidewheel-rates'
"""


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    with Client(database.url) as made:
        made.tenants.create("acme")
        yield made


def refusals(replies: list[Reply]) -> list[str | None]:
    return [reply.code for reply in replies if reply.status is not ReplyStatus.ACCEPTED]


def test_limits_are_created_changed_one_by_one_and_lifted(client: Client) -> None:
    assert client.tenants.create("free", jobs=7)
    assert not client.tenants.create("free")
    assert client.tenants.limit("free", payload_bytes=1024, in_flight=5)
    assert not client.tenants.limit("free", payload_bytes=1024)
    found = client.tenants.get("free")
    assert (found.jobs, found.payload_bytes, found.in_flight, found.triggers_per_second) == (7, 1024, 5, None)
    assert client.tenants.limit("free", jobs=None, weight=4)
    assert (client.tenants.get("free").jobs, client.tenants.get("free").weight) == (None, 4)
    with pytest.raises(InvalidInput, match="weight"):
        client.tenants.limit("free", weight=0)
    done = [entry.action for entry in client.audit_log.list(all_tenants=True).entries]
    assert done.count("tenant.limits") == 2  # the refused change has no entry
    assert done.count("tenant.create") == 2


def test_limit_of_zero_is_refused_with_the_pause_as_remedy(client: Client) -> None:
    wrongs: tuple[Any, ...] = (-1, 10**12, True, float("nan"))
    for name in ("triggers_per_second", "in_flight", "jobs", "payload_bytes"):
        with pytest.raises(InvalidInput) as refused:
            client.tenants.limit("acme", **{name: 0})  # type: ignore[misc]  # a name of the table
        [error] = refused.value.errors
        assert (error.path, error.remedy) == (name, "freeze the tenant instead: tidewheel admin tenant pause NAME")
        for wrong in wrongs:
            with pytest.raises(InvalidInput):
                client.tenants.limit("acme", **{name: wrong})


def test_unknown_tenants_and_names_that_are_none_are_refused(client: Client) -> None:
    with pytest.raises(UnknownTenant):
        client.tenants.limit("nobody", jobs=1)
    with pytest.raises(UnknownTenant):
        client.tenants.usage("nobody")
    for name in ("*", "Acme", "", "a" * 64):
        with pytest.raises(InvalidInput):
            client.tenants.create(name)


def test_jobs_beyond_the_quota_are_refused_and_edits_are_not(client: Client, database: Database) -> None:
    client.tenants.limit("acme", jobs=2)
    replies = database.apply_batch(*(submission(key) | ACME for key in ("a", "b", "c")))
    assert refusals(replies) == ["tenant_limit"]
    [error] = replies[2].errors
    assert (error.path, error.problem) == ("job.key", "tenant acme has reached its limit of 2 jobs")
    assert "--jobs" in error.remedy
    assert not refusals(database.apply_batch(submission("a", labels={"x": "y"}) | ACME))
    assert not refusals(database.apply_batch(submission("other")))
    database.apply_batch({"type": "job.delete", "key": "a"} | ACME)
    assert not refusals(database.apply_batch(submission("c") | ACME))
    assert refusals(database.apply_batch(submission("a") | ACME)) == ["tenant_limit"]
    client.tenants.limit("acme", jobs=None)
    assert not refusals(database.apply_batch(submission("a") | ACME))


def test_submits_take_from_the_room_of_one_count(client: Client, database: Database) -> None:
    client.tenants.limit("acme", jobs=100)
    assert not refusals(database.apply_batch(*(submission(key) | ACME for key in ("a", "b"))))
    database.execute("UPDATE job_rooms SET room = 7")  # 98 by a count
    for key in ("a", "c"):
        assert not refusals(database.apply_batch(submission(key, labels={"x": "y"}) | ACME))
    assert database.rows("SELECT * FROM job_rooms") == [("acme", 100, 6)], "neither an edit nor a new job counts"
    assert not refusals(database.apply_batch(*(submission(f"more-{n}") | ACME for n in range(7))))
    assert database.rows("SELECT * FROM job_rooms") == [("acme", 100, 90)], "the room was too small"
    client.tenants.limit("acme", jobs=None)
    assert database.count("job_rooms") == 0, "jobs that come now are not counted"


def test_two_submits_at_once_do_not_both_take_the_last_place(client: Client, database: Database) -> None:
    client.tenants.limit("acme", jobs=1)
    with connect(database.url, "second") as second:

        def submit_another() -> list[Reply]:
            with second.transaction():
                return database.apply_batch_within(second, submission("b") | ACME)

        with database.transaction() as connection:
            assert not refusals(database.apply_batch_within(connection, submission("a") | ACME))
            later = in_background(submit_another)
            until_blocked(database, second)
        assert refusals(later.result()) == ["tenant_limit"]


@pytest.mark.parametrize("is_stranger", [False, True])
def test_submit_waits_for_one_of_0_1_and_for_no_stranger(
    client: Client, database: Database, *, is_stranger: bool
) -> None:
    """Else neither counts the jobs of the other (N2 of issue 39)."""
    client.tenants.limit("acme", jobs=1)
    with (
        stranger(database.url) as url,
        psycopg.connect(url if is_stranger else database.url_of("intake")) as old,
        connect(database.url, "second") as second,
    ):

        def submit_one() -> list[Reply]:
            with second.transaction():
                return database.apply_batch_within(second, submission("a") | ACME)

        old.execute("SELECT pg_advisory_xact_lock(hashtextextended('tidewheel jobs of acme', 0))")
        later = in_background(submit_one)
        if not is_stranger:
            until_blocked(database, second)
            old.rollback()
        assert not refusals(later.result())


def test_payload_beyond_the_limit_is_refused_in_jobs_and_triggers(client: Client, database: Database) -> None:
    submit_in_acme = submission("job", payload="x" * 98) | ACME
    client.tenants.limit("acme", payload_bytes=100)
    assert not refusals(database.apply_batch(submit_in_acme))
    replies = database.apply_batch(
        submission("large", payload="x" * 99) | ACME,
        {"type": "job.trigger", "key": "job", "payload": "x" * 99} | ACME,
        {"type": "job.trigger", "key": "job", "payload_base64": "eHh4"} | ACME,
    )
    assert refusals(replies) == ["tenant_limit", "tenant_limit"]
    assert [reply.errors[0].path for reply in replies[:2]] == ["job.payload", "payload"]
    with Client(database.url, tenant="acme") as acme, pytest.raises(Refused) as refused:
        acme.trigger("job", "x" * 99)
    assert refused.value.code == "tenant_limit"


def test_payloads_of_batches_and_of_their_callbacks_are_limited(client: Client, database: Database) -> None:
    client.tenants.limit("acme", payload_bytes=100)
    submit_in_acme = submission("job") | ACME
    assert not refusals(database.apply_batch(submit_in_acme))
    large = {"key": "job", "payload": {"text": "x" * 99}}
    runs = [{"ref": "one", "key": "job", "payload": "x" * 98}]
    [reply] = database.apply_batch({"type": "batch.submit", "runs": runs, "open": True} | ACME)
    assert reply.status is ReplyStatus.ACCEPTED, reply.errors
    added = {"type": "batch.add", "batch_id": reply.batch_id}
    replies = database.apply_batch(
        {"type": "batch.submit", "runs": [*runs, {"ref": "two"} | large]} | ACME,
        {"type": "batch.submit", "runs": runs, "on": {"failed": large}} | ACME,
        added | {"runs": [{"ref": "three"} | large]} | ACME,
    )
    assert refusals(replies) == ["tenant_limit"] * 3
    assert [reply.errors[0].path for reply in replies] == ["runs.1.payload", "on.failed.payload", "runs.0.payload"]


def test_pause_is_a_freeze_of_the_whole_tenant_and_resume_its_thaw(client: Client, database: Database) -> None:
    assert client.tenants.pause("acme", reason="audit")
    assert not client.tenants.pause("acme")
    assert client.tenants.get("acme").state == "paused"
    assert client.tenants.get("default").state == "active"
    with Client(database.url, tenant="acme") as acme:
        [held] = acme.freezes.list()
        assert (held.freeze.scope, held.freeze.reason) == ("tenant acme", "audit")
        assert client.tenants.resume("acme")
        assert not client.tenants.resume("acme")
        assert acme.freezes.freeze(queue="reports")
        assert client.tenants.get("acme").state == "active"
        assert not client.tenants.resume("acme")


def test_usage_counts_runs_and_jobs(client: Client, database: Database) -> None:
    database.submit()
    database.begin(database.trigger())
    database.trigger()
    database.succeed(database.begun())
    used = client.tenants.usage("default")
    assert [each.count for each in (used.open_runs, used.in_flight, used.waiting, used.finished_runs, used.jobs)] == [
        2, 1, 1, 1, 1,
    ]  # fmt: skip
    assert not used.open_runs.at_least
    assert client.tenants.usage("acme").jobs.count == 0


def test_threads_of_the_api_share_a_few_sessions_for_places(client: Client, database: Database) -> None:
    client.tenants.limit("default", triggers_per_second=1000)
    database.submit()
    with answering(database) as http, ThreadPoolExecutor(12) as callers:
        sent = [callers.submit(http.post, "/api/v1/jobs/job:trigger", json={}) for _ in range(24)]
        assert {each.result().status_code for each in sent} == {HTTPStatus.CREATED}
        assert database.count("job_runs") == 24
        assert database.value(RATE_SESSIONS) in range(1, 5)


def test_key_of_a_tenant_ends_its_own_pause_and_none_of_an_operator(client: Client, database: Database) -> None:
    with Client(database.url, tenant="acme") as acme:
        key = acme.api_keys.create("ops", ["operate"]).key
    pause, resume = "/api/v1/tenants/acme:pause", "/api/v1/tenants/acme:resume"
    with answering(database, token="token-of-this-test-only") as http:
        http.headers["Authorization"] = f"Bearer {key}"
        assert not answer_of(http.post(pause))["unchanged"]
        assert not answer_of(http.post(resume))["unchanged"]
        answer_of(http.post(pause, json={"reason": "ours"}))
        assert client.tenants.pause("acme", reason="unpaid"), "the operator takes the pause over"
        assert not client.tenants.pause("acme")
        assert answer_of(http.post(pause))["unchanged"]
        for refused in (http.post(resume), http.post("/api/v1/freezes:thaw", json={"scope": "tenant"})):
            told = refusal(refused, HTTPStatus.FORBIDDEN)
            [error] = told["errors"]
            assert (told["code"], error["path"]) == ("paused_by_operator", "scope")
            assert "tidewheel admin tenant resume acme" in error["remedy"]
        thaw = parse_request({"type": "thaw", "scope": "tenant"} | ACME)
        origin = RequestOrigin(topic=database.installation.topics.requests_of("acme"), partition=0, offset=7)
        replies = database.within(apply_requests, database.installation, [ReceivedRequest(thaw, origin)])
        assert refusals(replies) == ["paused_by_operator"], "nor does a message on the tenant's own topic"
        assert database.rows("SELECT by_operator, reason FROM freezes WHERE thawed_at IS NULL") == [(True, "unpaid")]
        assert client.tenants.resume("acme")
        answer_of(http.post(pause))
        assert client.tenants.resume("acme"), "an operator ends every pause"
