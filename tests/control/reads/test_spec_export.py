"""The export of a stored version, submitted again, is the same version."""

from typing import Any

import pytest

from tests.fixtures.acts import about
from tests.fixtures.database import Database
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.schemas.generated.records import ReplyStatus


def test_exported_spec_submitted_again_is_the_same_version(database: Database) -> None:
    cases: list[dict[str, Any]] = [
        {"schedule": "@every 90s"},
        {"schedule": {"fixed_delay": "PT5M"}},
        {"schedule": "2099-01-01T00:00:00Z"},
        {"schedule": {"cron": ["0 8 * * *", "0 9 * * SUN"], "timezone": "Asia/Tokyo", "dst_gap": "skip"}},
        {"schedule": "0 8 * * *", "jitter": "12.5%", "window": "36h", "catch_up": "fire_all"},
        {"schedule": "0 8 * * *", "jitter": "1500ms", "end_at": "2099-01-01T00:00:00+02:00"},
        {"payload": {"to": "ann", "n": [1, 2.5, None]}},
        {"payload": None},
        {"payload": "text"},
        {"payload_base64": "AP8="},
        {"payload_base64": ""},
        {"retry": {"jitter": "7%", "initial": "250ms", "max": "2d", "backoff": "exponential"}},
        {"retry": {"jitter": "0.000001%", "intervals": ["1s", "5m"], "non_retryable": ["ValueError"]}},
        {"start_to_close": 0.25, "labels": {"span": "60000000us"}, "description": "60000000us"},
        {"target": {"type": "http", "url": "http://a.example", "headers": {"X": "1us"}, "method": "PUT"}},
        {"target": {"type": "http", "url": "http://a.example", "async": True, "async_timeout": "36h"}},
        {"target": {"type": "kafka", "topic": "orders", "await_reply": True, "reply_timeout": "90s"}},
        {"target": {"type": "shell", "argv": ["/a", "1us"], "env": {"heartbeat": "1us"}, "memory_bytes": 1 << 30}},
        {"target": {"type": "lambda", "function": "report", "qualifier": "live"}},
        {"concurrency_key": {"key": "k", "rate": "100/min", "burst": 2}, "workflow": {"timeout": "90s"}},
        {
            "ordering_key": {"key": "k", "on_failure": "skip"},
            "dedupe": {"window": "90s", "mode": "debounce", "longest": "1h"},
        },
        {"schedule": "@every 400d", "window": "90d", "schedule_to_start": "30d", "schedule_to_close": "2160h"},
        {"retry": {"initial": "29d", "max": "30d"}, "dedupe": {"window": "30d"}},
        {"concurrency_key": {"key": "k", "rate": "1/day"}, "workflow": {"timeout": "90d"}},
        {"schedule_to_start": "90s", "schedule_to_close": "1h", "heartbeat": "1.5s", "delivery": "at_most_once"},
    ]
    for number, fields in enumerate(cases):
        database.submit(key := f"job-{number}", **fields)
        shown = database.within(show_job, "default", key).job
        [again] = database.apply_batch({"type": "job.submit", "job": dict(shown)})
        assert (again.job_version, again.unchanged) == (1, True), shown


@pytest.mark.parametrize(
    "fields",
    [
        {"schedule": {"interval": "400d"}, "window": "90d", "schedule_to_close": "30d"},
        {
            "retry": {"initial": "12d", "max": "30d", "jitter": "33.333333%"},
            "concurrency_key": {"key": "k", "rate": "1/day"},
        },
    ],
)
def test_rollback_restores_a_version_with_long_durations(database: Database, fields: dict[str, Any]) -> None:
    """The stored microseconds of more than eleven days have too many digits for a request."""
    database.submit(**fields)
    database.submit()
    [reply] = database.apply_batch(about("job.rollback", version=1))
    assert (reply.status, reply.job_version) == (ReplyStatus.ACCEPTED, 3), reply.errors
    [(first, third)] = database.rows(
        "SELECT a.spec, b.spec FROM job_versions a JOIN job_versions b USING (job_id)"
        " WHERE (a.version, b.version) = (1, 3)"
    )
    assert first == third


def test_durations_are_exported_in_a_readable_form(database: Database) -> None:
    later = {"type": "http", "url": "http://a.example", "async": True, "async_timeout": 5400}
    database.submit(
        schedule="@every 5400s", start_to_close="PT0.25S", retry={"initial": 2, "jitter": "12.5%"},
        heartbeat=90, schedule_to_close=7200, schedule_to_start=60, target=later,
        concurrency_key={"key": "k", "rate": "6/min"},
    )  # fmt: skip
    shown = database.within(show_job, "default", "job").job
    assert shown["schedule"] == {"interval": "1h30m"}
    assert (shown["start_to_close"], shown["heartbeat"]) == ("250ms", "1m30s")
    assert (shown["schedule_to_close"], shown["schedule_to_start"]) == ("2h", "1m")
    assert shown["target"] == later | {"async_timeout": "1h30m"}
    assert shown["concurrency_key"] == {"key": "k", "rate": "6/min"}
    assert shown["retry"] == {"initial": "2s", "jitter": "12.5%"}
