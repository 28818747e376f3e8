"""A job is created or edited: both ways store the same, and no instant fires twice."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, LiteralString, TypeVar
from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR, about, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.new_jobs import Loaded, load_jobs
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.spec import JobSpec
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import trusted
from tidewheel.schemas.codec import decode, encode_json
from tidewheel.schemas.generated.records import JobDefinition
from tidewheel.transitions.claim import claim_runs
from tidewheel.transitions.installation import Installation

SECOND = timedelta(seconds=1)
AHEAD = 5 * SECOND
EACH_SECOND = {"schedule": "@every 1s", "overlap": "allow_all"}


def made(database: ClockedDatabase) -> list[tuple[float, int]]:
    [(accepted_at,)] = database.rows("SELECT created_at FROM jobs")
    found = database.rows("SELECT scheduled_at, job_version FROM runs ORDER BY scheduled_at")
    return [((at - accepted_at).total_seconds(), version) for at, version in found]


def test_edit_within_the_lookahead_keeps_one_run_per_unchanged_instant(ticking: ClockedDatabase) -> None:
    fire_due(ticking, lookahead=AHEAD)
    before = {run.run_id for run in ticking.job_runs()}
    edited = ticking.submit(**EACH_SECOND, payload=1)
    assert edited.next_run_at == ticking.now() + SECOND
    fire_due(ticking, lookahead=AHEAD)
    assert made(ticking) == [(n, 2) for n in (1, 2, 3, 4, 5)]
    assert {run.run_id for run in ticking.job_runs()} == before


def test_stale_message_after_an_edit_claims_nothing(ticking: ClockedDatabase) -> None:
    """The run has its old id and a new version: the message of the old version finds nothing that fits."""
    fire_due(ticking, lookahead=AHEAD)
    stale = ticking.requested_claim(ticking.job_runs()[0].run_id)
    ticking.submit(**EACH_SECOND, payload=1)
    fire_due(ticking, lookahead=AHEAD)
    ticking.advance(SECOND)
    with ticking.transaction() as connection:
        assert claim_runs(connection, ticking.installation, [stale], executor_id=EXECUTOR).started == []
    assert len(ticking.claim(stale.run_id).started) == 1


def test_edit_within_the_lookahead_retracts_runs_of_old_instants(ticking: ClockedDatabase) -> None:
    fire_due(ticking, lookahead=AHEAD)
    ticking.advance(timedelta(seconds=1.5))
    ticking.submit(schedule="@every 3s", overlap="allow_all")
    assert made(ticking) == [(1, 1)]
    fire_due(ticking, lookahead=AHEAD)
    assert made(ticking) == [(1, 1), (4.5, 2)]


def test_edit_applies_overdue_occurrences_by_the_version_in_force(ticking: ClockedDatabase) -> None:
    ticking.advance(timedelta(seconds=3.5))
    ticking.submit(**EACH_SECOND, payload=1)
    assert made(ticking) == [(1, 1), (2, 1), (3, 1)]
    fire_due(ticking, lookahead=2 * SECOND)
    assert made(ticking) == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]


def test_edit_after_an_outage_catches_up_once_and_records_skips(ticking: ClockedDatabase) -> None:
    ticking.advance(600 * SECOND)
    ticking.submit(schedule="@every 1h", overlap="allow_all")
    assert [version for _, version in made(ticking)] == [1] * 61
    assert ticking.rows("SELECT reason, occurrences, is_exact, job_version FROM skips") == [("misfire", 539, True, 1)]
    [event] = [event for event in ticking.lifecycle() if event.type.startswith("io.tidewheel.occurrence")]
    assert event.job_version == 1


def test_identical_submit_within_the_lookahead_retracts_nothing(ticking: ClockedDatabase) -> None:
    fire_due(ticking, lookahead=AHEAD)
    before = ticking.job_runs()
    again = ticking.submit(**EACH_SECOND)
    assert (again.unchanged, again.next_run_at) == (True, ticking.now() + SECOND)
    assert ticking.job_runs() == before


def test_delete_retracts_runs_ahead_and_cancels_unstarted_ones(ticking: ClockedDatabase) -> None:
    fire_due(ticking, lookahead=AHEAD)
    ticking.advance(2 * SECOND)
    first, second = ticking.job_runs()[:2]
    ticking.begin(first.run_id)
    assert ticking.accept(about("job.delete", reason="gone")).job_version == 1
    assert [run.run_id for run in ticking.job_runs()] == [first.run_id]
    rows = ticking.rows("SELECT run_id, state, reason FROM runs ORDER BY scheduled_at")
    assert rows == [(first.run_id, "running", None), (second.run_id, "cancelled", "job_deleted")]
    assert ticking.count("timers") == 0
    assert (ticking.lifecycle()[-1].type, ticking.lifecycle()[-1].reason) == ("io.tidewheel.job.deleted.v1", "gone")


def test_job_recreated_within_the_lookahead_fires_each_instant_once(ticking: ClockedDatabase) -> None:
    """The instants are those of the new anchor; none of the old job's may be left beside them."""
    fire_due(ticking, lookahead=AHEAD)
    ticking.apply_batch(about("job.delete"))
    again = ticking.submit(**EACH_SECOND)
    assert again.job_version == 2
    fire_due(ticking, lookahead=AHEAD)
    assert made(ticking) == [(n, 2) for n in (1, 2, 3, 4, 5)]
    assert len({UUID(int=run.run_id.int) for run in ticking.job_runs()}) == 5


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
        "target": {"type": "http", "url": "https://a.example/", "async": True},
        "heartbeat": "9s",
    },
    {"schedule": "@daily", "schedule_to_start": "1m", "delivery": "at_most_once", "description": "two\nlines"},
    {"schedule": "@every 5m", "max_runs": 3, "payload": None},
    {"schedule": "@every 5m", "payload_base64": "AAEC"},
    {"schedule": "@every 5m", "target": {"type": "shell", "argv": ["/bin/true"]}, "pause_on_failure": 3},
    {"schedule": "@every 5m", "on_failure": "tell"},
]
TABLES = {
    "jobs": "job_id", "job_versions": "job_id", "job_calendars": "job_id, name", "timers": "job_id",
    "requests": "request_id", "outbox": "topic, key, value",
}  # fmt: skip


def documents() -> list[dict[str, Any]]:
    jobs = enumerate(JOBS)
    made: list[dict[str, Any]] = [submission(f"job-{n} é", **job) | {"request_id": f"r-{n}"} for n, job in jobs]
    unnamed = made[1]["job"] | {"key": None}
    del unnamed["key"]
    return [
        *made,
        made[0] | {"job": unnamed, "request_id": "its-name", "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"},
    ]


def rows_of(table: str) -> LiteralString:
    return trusted(f"SELECT to_jsonb(t) - 'id' FROM {table} AS t ORDER BY {TABLES[table]}")  # noqa: S608


def whole(document: Mapping[str, Any]) -> dict[str, Any]:
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
        rows = {table: list[Any](connection.execute(rows_of(table))) for table in TABLES}
        connection.rollback()
    return replies, rows


@pytest.mark.parametrize("encoding", ["avro", "json"])
def test_batch_of_new_jobs_equals_single_submits(still: ClockedDatabase, encoding: str) -> None:
    installation = still.installation
    if encoding == "json":
        installation = replace(installation, content_type="application/json", encode_event=encode_json)
    known = [parse_request(document) for document in documents()]
    assert sum(isinstance(each, JobSubmit) and each.cached is not None for each in known) == len(documents()) - 2
    cached = outcome(still, installation, documents(), apply_requests)
    assert cached == outcome(still, installation, [whole(document) for document in documents()], apply_requests)


def test_loaded_jobs_have_the_same_rows_with_and_without_the_cache(still: ClockedDatabase) -> None:
    asked = [document for document in documents() if "key" in document["job"]]

    def load(connection: Conn, installation: Installation, batch: list[ReceivedRequest]) -> Loaded:
        return load_jobs(connection, installation, batch, emit_events=True)

    loaded, rows = outcome(still, still.installation, asked, load)
    other, other_rows = outcome(still, still.installation, [whole(document) for document in asked], load)
    assert (loaded.created, loaded.refused.keys(), rows) == (other.created, other.refused.keys(), other_rows)


def test_a_created_version_equals_an_edited_version(still: ClockedDatabase) -> None:
    """The columns that create and edit share have one value, whichever way a spec came into force."""
    specs = [job for job in JOBS if still.apply(submission("probe", **job)).status == "accepted"]
    for number, job in enumerate(specs):
        assert still.submit(f"created-{number}", **job).job_version == 1
        assert still.submit(f"edited-{number}", schedule="@every 7d", payload="other").job_version == 1
        assert still.submit(f"edited-{number}", **job).job_version == 2
        created, edited = version_in_force(still, f"created-{number}"), version_in_force(still, f"edited-{number}")
        assert created == edited, job


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
    assert [reply.status for reply in replies] == ["accepted"] * 2 + ["rejected"] + ["accepted"] * 3
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
