"""New jobs with and without a cached spec have the same rows, events and replies."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, LiteralString, TypeVar

import pytest

from tests.fixtures.acts import submission
from tests.fixtures.database import ClockedDatabase, Database
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.new_jobs import Loaded, load_jobs
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.spec import JobSpec
from tidewheel.postgres.session import Conn
from tidewheel.schemas.codec import decode, encode_json
from tidewheel.schemas.generated.records import JobDefinition, Reply
from tidewheel.transitions.installation import Installation

T = TypeVar("T")

JOBS: list[dict[str, Any]] = [
    {"schedule": "manual"},
    {"schedule": "@every 10s", "payload": {"to": "ann", "é": ["ü", None]}},
    {"schedule": {"interval": "1h", "anchor": "2026-01-01T00:00:00Z"}, "labels": {"team": "billing"}},
    {"schedule": {"cron": "0 8 * * MON-FRI", "timezone": "Europe/Berlin"}, "retry": {"max_attempts": 7}},
    {"schedule": {"cron": ["0 8 * * *", "0 9 * * *"], "dst_overlap": "both"}, "jitter": "10%"},
    {"schedule": {"cron": "H H * * *"}},
    {"schedule": {"fixed_delay": "1m"}, "overlap": "buffer_one"},
    {"schedule": {"once": "2099-01-01T00:00:00Z"}, "lane": "critical", "queue": "reports"},
    {"schedule": {"once": "2020-01-01T00:00:00Z"}},
    {"schedule": {"cron": "0 0 30 2 *"}},
    {"schedule": "@daily", "paused": True, "catch_up": "fire_all", "window": "1h", "on_resume": "fire_once"},
    {
        "schedule": "@daily",
        "target": {"type": "http", "url": "https://example.org/a", "async": True},
        "heartbeat": "9s",
    },
    {"schedule": "@daily", "schedule_to_start": "1m", "delivery": "at_most_once", "description": "two\nlines"},
    {"schedule": "@every 5m", "max_runs": 3, "payload": None},
    {"schedule": "@every 5m", "payload_base64": "AAEC"},
    {
        "schedule": "@every 5m",
        "target": {"type": "shell", "argv": ["/bin/true"]},
        "pause_on_failure": 3,
        "on_failure": "tell",
    },
]
TABLES: dict[str, LiteralString] = {
    "jobs": "SELECT to_jsonb(t) FROM jobs AS t ORDER BY job_id",
    "job_versions": "SELECT to_jsonb(t) FROM job_versions AS t ORDER BY job_id",
    "job_calendars": "SELECT to_jsonb(t) FROM job_calendars AS t ORDER BY job_id, name",
    "timers": "SELECT to_jsonb(t) FROM timers AS t ORDER BY job_id",
    "requests": "SELECT to_jsonb(t) FROM requests AS t ORDER BY request_id",
    "outbox": "SELECT to_jsonb(t) - 'id' FROM outbox AS t ORDER BY topic, key, value",
}


def documents() -> list[dict[str, Any]]:
    jobs = enumerate(JOBS)
    made: list[dict[str, Any]] = [submission(f"job-{n} é", **job) | {"request_id": f"r-{n}"} for n, job in jobs]
    unnamed = made[1]["job"] | {"key": None}
    del unnamed["key"]
    return [
        *made,
        made[0] | {"job": unnamed, "request_id": "its-name", "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"},
    ]


def whole(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same with its job as the model reads it, of which no pattern is known."""
    return {**document, "job": JobSpec.model_validate(document["job"])}


def outcome(
    database: Database,
    installation: Installation,
    asked: list[dict[str, Any]],
    apply: Callable[[Conn, Installation, list[ReceivedRequest]], T],
) -> tuple[T, dict[str, list[Any]]]:
    """The answers to a batch, and the rows it came to; nothing is kept."""
    with database.transaction() as connection:
        replies = apply(connection, installation, [ReceivedRequest(parse_request(each)) for each in asked])
        rows = {table: list[Any](connection.execute(statement)) for table, statement in TABLES.items()}
        connection.rollback()
    return replies, rows


@pytest.mark.parametrize("encoding", ["avro", "json"])
def test_batch_of_new_jobs_equals_single_submits(clocked: ClockedDatabase, encoding: str) -> None:
    clocked.stop_clock()
    installation = clocked.installation
    if encoding == "json":
        installation = replace(installation, content_type="application/json", encode_event=encode_json)
    known = [parse_request(document) for document in documents()]
    assert sum(isinstance(each, JobSubmit) and each.cached is not None for each in known) == len(documents()) - 2
    replies, rows = outcome(clocked, installation, documents(), apply_requests)
    others, other_rows = outcome(clocked, installation, [whole(document) for document in documents()], apply_requests)
    assert replies == others
    for table in TABLES:
        assert rows[table] == other_rows[table], table


def test_loaded_jobs_have_the_same_rows_with_and_without_the_cache(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    asked = [document for document in documents() if "key" in document["job"]]

    def load(connection: Conn, installation: Installation, batch: list[ReceivedRequest]) -> Loaded:
        return load_jobs(connection, installation, batch, emit_events=True)

    loaded, rows = outcome(clocked, clocked.installation, asked, load)
    other, other_rows = outcome(clocked, clocked.installation, [whole(document) for document in asked], load)
    assert (loaded.created, loaded.refused.keys()) == (other.created, other.refused.keys())
    for table in TABLES:
        assert rows[table] == other_rows[table], table


def test_a_created_version_equals_an_edited_version(clocked: ClockedDatabase) -> None:
    """The columns that create and edit share have one value, whichever way a spec came into force."""
    clocked.stop_clock()
    specs = [job for job in JOBS if submit_reply(clocked, "probe", job).status == "accepted"]
    for number, job in enumerate(specs):
        assert submit_reply(clocked, f"created-{number}", job).job_version == 1
        assert submit_reply(clocked, f"edited-{number}", {"schedule": "@every 7d", "payload": "other"}).job_version == 1
        assert submit_reply(clocked, f"edited-{number}", job).job_version == 2
        created, edited = version_in_force(clocked, f"created-{number}"), version_in_force(clocked, f"edited-{number}")
        assert created == edited, job


def submit_reply(database: Database, key: str, job: dict[str, Any]) -> Reply:
    [reply] = database.apply_batch(submission(key, **job))
    return reply


def version_in_force(database: Database, key: str) -> tuple[dict[str, Any], JobDefinition]:
    """A job's version and timer without what names the job and counts its versions."""
    [(row, definition)] = database.rows(
        """
        SELECT to_jsonb(v) - '{job_id,version,definition}'::text[]
               || jsonb_build_object('kind', j.schedule_kind, 'labels', j.labels, 'us', j.interval_us),
               v.definition
          FROM jobs AS j JOIN job_versions AS v USING (job_id, version) WHERE j.key = %s
        """,
        [key],
    )
    row["spec"].pop("key")
    return row, replace(decode(definition, JobDefinition), job_id="", job_key="", job_version=0)


def test_replies_of_new_and_existing_jobs_keep_the_requests_order(database: Database) -> None:
    database.submit("b", schedule="@daily")
    asked = [
        submission("a"), submission("b", schedule="@daily"), submission("c", schedule="30 2 30 2 *"), submission("d"),
        submission("b"), submission("a", schedule="@daily"),
    ]  # fmt: skip
    replies = database.apply_batch(*asked)
    assert [reply.key for reply in replies] == ["a", "b", "c", "d", "b", "a"]
    assert [reply.status for reply in replies] == [
        "accepted",
        "accepted",
        "rejected",
        "accepted",
        "accepted",
        "accepted",
    ]
    assert [(reply.job_version, reply.unchanged) for reply in replies if reply.status == "accepted"] == [
        (1, False), (1, True), (1, False), (2, False), (2, False),
    ]  # fmt: skip


@pytest.mark.parametrize(("key", "plain"), [("cafe\u0301", "caf\xe9"), ("\uff41\uff42", "ab"), ("\ufb01x", "fix")])
def test_key_that_looks_like_another_one_is_logged_at_its_creation(
    database: Database, caplog: pytest.LogCaptureFixture, key: str, plain: str
) -> None:
    database.submit(plain)
    assert caplog.text == ""
    database.submit(key)
    assert f"the key {key!a} of tenant default looks like {plain!a}" in caplog.text
    caplog.clear()
    database.submit(key, description="changed")
    assert caplog.text == ""
