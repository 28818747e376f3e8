"""`job.rollback` makes a new version of an earlier one; `if_version` guards it."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.acts import about, refusal, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.tidewheel.jobs.submitting import submitted
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.lifecycle import stored_spec
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.spec import canonical_spec
from tidewheel.jobs.strict_json import read_object
from tidewheel.schemas.codec import decode
from tidewheel.schemas.definitions import definition_record
from tidewheel.schemas.generated.records import JobDefinition, Reply, RequestOrigin


def rollback(database: Database, version: int, **fields: Any) -> Reply:  # noqa: ANN401
    return database.apply(about("job.rollback", version=version, **fields))


def versions(database: Database) -> list[tuple[Any, ...]]:
    rows = database.rows("SELECT spec, schedule_json, policy_json, definition FROM job_versions ORDER BY version")
    return [(*row[:3], decode(row[3], JobDefinition).payload) for row in rows]


def test_rollback_creates_a_version_with_the_earlier_spec_and_payload(clocked: ClockedDatabase) -> None:
    now = clocked.stop_clock()
    spec: dict[str, Any] = {"schedule": "@every 1h", "payload": {"to": "ann"}, "retry": {"jitter": "12.5%"}}
    spec["jitter"] = "3%"
    clocked.submit(**spec)
    clocked.submit(schedule="@every 2h", payload={"to": "bob"})
    reply = rollback(clocked, 1, reason="too slow", request_id="r-1")
    assert (reply.type, reply.request_id, reply.key) == ("job_rollback", "r-1", "job")
    assert (reply.status, reply.job_version, reply.unchanged) == ("accepted", 3, False)
    first, _, third = versions(clocked)
    assert third == first
    assert reply.next_run_at == now + timedelta(hours=1)
    assert clocked.lifecycle()[-1].type == "io.tidewheel.job.updated.v1"
    assert clocked.lifecycle()[-1].reason == "rollback to version 1: too slow"
    assert clocked.submit(**spec).unchanged, "the same spec"


def test_rollback_to_the_current_version_changes_nothing(database: Database) -> None:
    database.submit(payload=1)
    database.submit(payload=2)
    database.submit(payload=1)
    for version in (3, 1):
        reply = rollback(database, version)
        assert (reply.status, reply.job_version, reply.unchanged) == ("accepted", 3, True)


def test_unknown_version_is_refused_with_the_known_ones(database: Database) -> None:
    database.submit(payload=1)
    assert refusal(rollback(database, 2))[2] == "the job has no other version"
    database.submit(payload=2)
    assert refusal(rollback(database, 7)) == ("version", "there is no version 7 of 'job'", "write 1 to 2")
    database.execute("DELETE FROM job_versions WHERE version = 1")
    database.submit(payload=3)
    assert refusal(rollback(database, 1))[2] == "write 2 to 3"


def test_rolled_back_job_stays_paused(database: Database) -> None:
    database.submit(schedule="@every 1h", payload=1)
    database.submit(schedule="@every 1h", payload=2)
    database.apply_batch(about("job.pause"))
    reply = rollback(database, 1)
    assert (reply.job_version, reply.next_run_at) == (3, None)
    assert database.value("SELECT paused FROM jobs") is True
    assert database.value("SELECT hold_reason FROM timers") == "pause"


def test_version_that_can_never_fire_again_is_refused(still: ClockedDatabase) -> None:
    end = still.now().replace(year=still.now().year + 1)
    still.submit(schedule="@every 1h", end_at=end.isoformat())
    still.submit(schedule="@every 1h")
    still.stop_clock(end.replace(year=end.year + 1))
    path, problem, remedy = refusal(rollback(still, 1))
    assert (path, remedy) == ("version", "write a later end_at, or omit it")
    assert problem.startswith("the job.end_at of version 1: end_at")
    assert still.value("SELECT version FROM jobs") == 2


def test_recreated_job_rolls_back_to_versions_before_its_deletion(database: Database) -> None:
    database.submit(payload=1)
    database.apply_batch(about("job.delete"))
    assert rollback(database, 1).code == "unknown_job"
    database.submit(payload=2)
    assert rollback(database, 1).job_version == 3
    assert versions(database)[2] == versions(database)[0]


def test_job_without_a_key_keeps_its_name(database: Database) -> None:
    origin = RequestOrigin(topic="tidewheel.requests", partition=3, offset=17)
    document = submission()
    del document["job"]["key"]  # type: ignore[attr-defined]
    name = "tidewheel.requests/3/17"
    database.within(apply_requests, database.installation, [ReceivedRequest(parse_request(document), origin)])
    database.submit(name, payload=2)
    reply = database.accept(about("job.rollback", name, version=1))
    assert (reply.key, reply.job_version) == (name, 3)
    first, _, third = versions(database)
    assert third == first
    assert database.count("jobs") == 1


@pytest.mark.parametrize("kind", ["job.rollback", "job.delete"])
def test_change_for_another_version_is_refused_with_the_current_one(database: Database, kind: str) -> None:
    database.submit(payload=1)
    database.submit(payload=2)
    wanted: dict[str, Any] = {"version": 1} if kind == "job.rollback" else {}
    reply = database.apply(about(kind, if_version=1, **wanted))
    assert reply.code == "version_conflict"
    assert refusal(reply)[:2] == ("if_version", "the current version is 2, not 1")
    assert database.rows("SELECT version, deleted_at FROM jobs") == [(2, None)]
    database.accept(about(kind, if_version=2, **wanted))


DURATIONS: st.SearchStrategy[Any] = st.sampled_from(["1s", "90s", "1h30m", "PT5M", 2.5, "250ms", "400us"])
PERCENT = st.integers(0, 100_000_000).map(lambda millionths: f"{millionths // 1_000_000}.{millionths % 1_000_000:06}%")
INSTANTS = st.sampled_from(["2030-01-01T00:00:00Z", "2031-02-03T04:05:06.789+02:00"])
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=12)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
LONG: st.SearchStrategy[Any] = st.sampled_from(["1s", "90s", "1h30m", "PT5M", 2.5])
SCHEDULES: st.SearchStrategy[Any] = st.one_of(
    st.just("manual"),
    INSTANTS.map(lambda at: {"once": at}),
    st.fixed_dictionaries({"interval": LONG}, optional={"anchor": INSTANTS}),
    LONG.map(lambda every: {"fixed_delay": every}),
    st.fixed_dictionaries(
        {"cron": st.sampled_from(["H 3 * * *", ["@daily", "*/5 * * * *"]])},
        optional={"timezone": st.just("Europe/Berlin"), "dst_overlap": st.sampled_from(["first", "both"])},
    ),
)
RETRIES: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "max_attempts": st.integers(1, 1000),
        "factor": st.integers(1, 1000) | st.floats(1, 1000),
        "jitter": PERCENT,
        "non_retryable": st.lists(WORDS, max_size=3),
    },
) | st.lists(LONG, min_size=1, max_size=3).map(lambda delays: {"intervals": delays})
TARGETS = WORDS | st.fixed_dictionaries(
    {"type": st.just("http"), "url": st.just("https://example.org/report")},
    optional={"method": st.sampled_from(["GET", "PUT"]), "headers": st.just({"X-A": "b"})},
)
JOBS: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"schedule": SCHEDULES, "target": TARGETS},
    optional={
        "key": WORDS,
        "jitter": PERCENT | DURATIONS,
        "lane": st.sampled_from(["standard", "batch"]),
        "overlap": st.sampled_from(["buffer_one", "allow_all"]),
        "catch_up": st.sampled_from(["fire_all", "fire_once"]),
        "window": LONG,
        "pause_on_failure": st.integers(1, 1000),
        "retry": RETRIES,
        "start_to_close": LONG,
        "labels": st.dictionaries(WORDS, WORDS, max_size=3),
        "description": st.just("two\nlines"),
        "exclude_calendars": st.just(["holidays"]),
        "paused": st.booleans(),
    },
)
PAYLOADS: st.SearchStrategy[Any] = (
    st.just(dict[str, Any]())
    | JSON.map(lambda value: {"payload": value})
    | st.sampled_from([{"payload_base64": ""}, {"payload_base64": "AP8="}])
)


@given(JOBS, PAYLOADS)
def test_stored_spec_is_read_back_equal(job: dict[str, Any], payload: dict[str, Any]) -> None:
    """Otherwise a submit of the same spec would change the job again."""
    if isinstance(job["schedule"], dict) and "fixed_delay" in job["schedule"]:
        job = {name: value for name, value in job.items() if name != "exclude_calendars"}
    if not isinstance(job["schedule"], dict) or not job["schedule"].keys() & {"cron", "interval"}:
        job = {name: value for name, value in job.items() if name != "max_runs"}
    spec = submitted(**{"key": "k", **job, **payload})
    shown = read_object(canonical_spec(spec.model_copy(update={"payload": None, "payload_base64": None})))
    definition = definition_record(spec, tenant="default", job_id="j", job_version=1)
    again = stored_spec(shown, definition)
    assert canonical_spec(again) == canonical_spec(spec)
    assert again.model_dump(exclude={"paused"}) == spec.model_dump(exclude={"paused"})
    assert definition_record(again, tenant="default", job_id="j", job_version=1) == definition
