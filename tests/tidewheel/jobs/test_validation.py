"""An invalid field is refused under its path, with the value read and a remedy."""

import json
from typing import Any

import pytest

from tests.tidewheel.jobs.submitting import refused, refused_job
from tidewheel.jobs.validation import MAX_ERRORS


@pytest.mark.parametrize(
    ("job", "path", "words"),
    [
        ({"schedule": {"cron": "* * * * *", "timezon": "UTC"}}, "job.schedule.timezon", "did you mean 'timezone'?"),
        ({"retry": {"max_attemps": 3}}, "job.retry.max_attemps", "did you mean 'max_attempts'?"),
        ({"schedul": 1}, "job.schedul", "did you mean 'schedule'?"),
        ({"schedule": {"after": []}}, "job.schedule.after", "is empty"),
        ({"overlap": "allow_all", "workflow": {"overlap": "whole"}}, "job.workflow.overlap", "use another overlap"),
        ({"workflow": {"timeout": "0s"}}, "job.workflow.timeout", "write 100ms to 90d"),
        ({"workflow": {"overlap": "all"}}, "job.workflow.overlap", "write 'whole' or 'root'"),
        ({"schedule": {"after": ["a"]}, "workflow": {"timeout": "1h"}}, "job.workflow", "on the root"),
        ({"schedule": {"after": ["a"]}, "ordering_key": "a"}, "job.ordering_key", "buffer_all on the root"),
        ({"schedule": "@daily", "ordering_key": "a"}, "job.ordering_key", "use overlap: allow_all"),
        ({"ordering_key": "a", "concurrency_key": "b"}, "job.ordering_key", "leave one out"),
        ({"ordering_key": {"key": "a", "on_failure": "stop"}}, "job.ordering_key.on_failure", "'block' or 'skip'"),
        (
            {"schedule": "@daily", "overlap": "allow_all", "ordering_key": "{payload.a}"},
            "job.payload",
            "change the ordering_key",
        ),
        ({"schedule": "@daily", "dedupe": {"window": "1h"}}, "job.dedupe", "use overlap: skip"),
        ({"dedupe": {"key": "a"}}, "job.dedupe.window", "is missing"),
        ({"dedupe": {"window": "1h", "longest": "2h"}}, "job.dedupe.longest", "needs mode: debounce"),
        ({"overlap": "skipp"}, "job.overlap", "did you mean 'skip'?"),
        ({"timezone": "UTC"}, "job.timezone", "write it inside schedule"),
        ({"schedule": {"cron": "@daily", "end_at": "x"}}, "job.schedule.end_at", "write it beside schedule"),
        ({"schedule": {"interval": "10s", "timezone": "UTC"}}, "job.schedule.timezone", "only cron has it"),
        ({"timeout": "10s"}, "job.timeout", "write it as start_to_close"),
        ({"history_limit": 9}, "job.history_limit", "leave it out; `tidewheel admin tenant retention`"),
        (
            {"heartbeat": "10s", "target": {"type": "http", "url": "https://example.org/"}},
            "job.heartbeat",
            "leave it out and use start_to_close",
        ),
        ({"schedule": {"cron": "@daily", "once": "x"}}, "job.schedule", "has once and cron"),
        ({"schedule": {}}, "job.schedule", "has nothing"),
        ({"schedule": 7}, "job.schedule", "7 is not valid"),
        ({"schedule": "10s"}, "job.schedule", 'write "@every 10s"'),
        ({"schedule": "every 1h30m"}, "job.schedule", 'write "@every 1h30m"'),
        ({"schedule": "@every 500ms"}, "job.schedule.interval", "write 1s to 400d"),
        ({"schedule": "P1M"}, "job.schedule.interval", "months or years"),
        ({"schedule": {"once": "2027-01-01T00:00:00"}}, "job.schedule.once", "has no UTC offset"),
        ({"schedule": {"cron": []}}, "job.schedule.cron", "write a cron expression"),
        ({"schedule": {"cron": ["@daily"] * 21}}, "job.schedule.cron", "at most 20"),
        ({"schedule": {"cron": "x" * 257}}, "job.schedule.cron", "at most 256"),
        ({"schedule": {"cron": [1]}}, "job.schedule.cron", "1 is not valid"),
        ({"start_at": "2027-01-01T00:00:00Z"}, "job.start_at", "a schedule that recurs"),
        (
            {"schedule": "@daily", "start_at": "2027-01-02T00:00:00Z", "end_at": "2027-01-01T00:00:00Z"},
            "job.end_at",
            "could never fire",
        ),
        ({"schedule": {"fixed_delay": "1m", "anchor": "x"}}, "job.schedule.anchor", "only interval has it"),
        (
            {"schedule": {"fixed_delay": "1m"}, "exclude_calendars": ["x"]},
            "job.exclude_calendars",
            "not supported by fixed_delay",
        ),
        ({"schedule": {"fixed_delay": "1m"}, "max_runs": 2}, "job.max_runs", "use end_at"),
        ({"schedule": "@daily", "max_runs": 0}, "job.max_runs", "at least 1"),
        ({"jitter": "101%"}, "job.jitter", "0% to 100%"),
        ({"jitter": "25h"}, "job.jitter", "write 0s to 1d"),
        ({"window": "91d"}, "job.window", "write 1s to 90d"),
        ({"pause_on_failure": 0}, "job.pause_on_failure", "at least 1"),
        ({"exclude_calendars": ["Über"]}, "job.exclude_calendars.0", "not a calendar name"),
        ({"on_excluded": "next_day"}, "job.on_excluded", "did you mean 'next_business_day'?"),
        ({"key": ""}, "job.key", "empty"),
        ({"key": "x" * 256}, "job.key", "at most 255"),
        ({"key": "a\nb"}, "job.key", "has a line break; write one line"),
        ({"key": 7}, "job.key", "write a string"),
        ({"key": "zw\u200b"}, "job.key", r"contains '\u200b', which is not visible; remove it"),
        ({"key": "\ufeffbom"}, "job.key", r"'\ufeff', which is not visible"),
        ({"key": "\u202eevil"}, "job.key", r"'\u202e', which is not visible"),
        ({"key": "a\u00adb"}, "job.key", r"'\xad', which is not visible"),
        ({"key": "a\ue000"}, "job.key", r"'\ue000', which is not visible"),
        ({"key": "a\uffff"}, "job.key", r"'\uffff', which is not visible"),
        ({"target": "zw\u200b"}, "job.target.name", r"'\u200b', which is not visible"),
        ({"labels": {"zw\u200b": "a"}}, r"job.labels.zw\u200b", r"'\u200b', which is not visible"),
        ({"queue": "Big Queue"}, "job.queue", "not a queue name"),
        ({"lane": "fast"}, "job.lane", "write 'standard', 'critical' or 'batch'"),
        ({"target": 7}, "job.target", "write a handler's name"),
        ({"target": {}}, "job.target.type", "is missing"),
        ({"target": {"type": "ftp"}}, "job.target.type", "'ftp' is not valid"),
        ({"target": {"type": "handler"}}, "job.target.name", "is missing"),
        ({"target": {"type": "http"}}, "job.target.url", "is missing"),
        ({"target": {"type": "http", "url": "ftp://a"}}, "job.target.url", "not an absolute http or https URL"),
        ({"target": {"type": "http", "url": "http://u:p@a"}}, "job.target.url", "name a secret of the executor"),
        ({"target": {"type": "http", "url": "http://a:99999"}}, "job.target.url", "not a URL"),
        ({"target": {"type": "http", "url": "http://a", "method": "BREW"}}, "job.target.method", "'BREW' is not valid"),
        (
            {"target": {"type": "http", "url": "http://a", "headers": {"X": "a\r\nb: c"}}},
            "job.target.headers.X",
            "one line",
        ),
        (
            {"target": {"type": "http", "url": "http://a", "headers": {"Host": "b"}}},
            "job.target.headers.Host",
            "itself",
        ),
        (
            {"target": {"type": "http", "url": "http://a", "headers": {"X": "1", "x": "2"}}},
            "job.target.headers.x",
            "twice",
        ),
        (
            {"target": {"type": "http", "url": "http://a", "headers": {"a b": "1"}}},
            "job.target.headers",
            "not a header name",
        ),
        (
            {"target": {"type": "http", "url": "http://a", "headers": {"X": "Bücher"}}},
            "job.target.headers.X",
            "contains '\\xfc', which headers cannot have; write one line of ASCII",
        ),
        (
            {"target": {"type": "http", "url": "http://a", "headers": {"X": "a\0"}}},
            "job.target.headers.X",
            "contains '\\x00', which headers cannot have",
        ),
        ({"target": {"type": "http", "url": "http://a", "headers": {"X": "\x7f"}}}, "job.target.headers.X", "'\\x7f'"),
        ({"target": {"type": "http", "url": "http://a", "headers": {"X": " a"}}}, "job.target.headers.X", "a space"),
        (
            {"target": {"type": "http", "url": "http://a", "headers": {"X": 1}}},
            "job.target.headers.X",
            "1 is not valid",
        ),
        (
            {"target": {"type": "http", "url": "http://a", "headers": {"Tidewheel-Run-Id": "b"}}},
            "job.target.headers.Tidewheel-Run-Id",
            "Tidewheel sets this header itself; leave it out",
        ),
        ({"retry": {"intervals": []}}, "job.retry.intervals", "there are 0 elements; write at least 1"),
        ({"retry": {"max_attempts": 0}}, "job.retry.max_attempts", "0 is not valid; write at least 1"),
        ({"retry": {"max_attempts": "3"}}, "job.retry.max_attempts", "write a whole number"),
        ({"retry": {"factor": float("inf")}}, "job.retry.factor", "finite"),
        ({"retry": {"initial": "2h"}}, "job.retry.initial", "longer than max, 1h"),
        ({"retry": {"intervals": ["1s", "x"]}}, "job.retry.intervals.1", "not a duration"),
        ({"retry": {"backoff": "fixed", "intervals": ["1s"]}}, "job.retry.intervals", "cannot be combined"),
        ({"retry": {"backoff": "intervals"}}, "job.retry.intervals", "is missing"),
        ({"retry": {"jitter": 0.1}}, "job.retry.jitter", "percentage"),
        ({"retry": {"jitter": "101%"}}, "job.retry.jitter", "percentage"),
        ({"retry": 7}, "job.retry", "write an object"),
        ({"start_to_close": "25h"}, "job.start_to_close", "write 1ms to 1d"),
        ({"start_to_close": True}, "job.start_to_close", "true is not valid"),
        ({"start_to_close": float("nan")}, "job.start_to_close", "not a duration"),
        ({"labels": {"a": 1}}, "job.labels.a", "write a string"),
        ({"labels": {"a": "x" * 256}}, "job.labels.a", "at most 255"),
        ({"labels": {str(n): "" for n in range(65)}}, "job.labels", "at most 64"),
        ({"labels": []}, "job.labels", "write an object"),
        ({"description": "\0"}, "job.description", "which is not text"),
        ({"paused": "yes"}, "job.paused", "write true or false"),
        ({"payload": 1, "payload_base64": ""}, "job.payload_base64", "cannot be combined"),
        ({"payload_base64": "%%%"}, "job.payload_base64", "not base64"),
        ({"payload": "x" * 262_143}, "job.payload", "262145 bytes; at most 262144"),
        ({"payload": ["\ud800"]}, "job.payload", "surrogate"),
        ({"payload": ["\0"]}, "job.payload", "NUL"),
        ({"payload": float("nan")}, "job.payload", "NaN"),
        ({"payload": json.loads("[" * 33 + "]" * 33)}, "job.payload", "32 levels deep"),
    ],
)
def test_invalid_field_is_named_with_a_remedy(job: dict[str, object], path: str, words: str) -> None:
    assert words in refused_job(**job)[path]


@pytest.mark.parametrize(
    "path", ["request_id", "job.key", "job.queue", "job.description", "job.labels.a", "job.target"]
)
def test_lone_surrogate_is_refused_everywhere(path: str) -> None:
    """No database and no UTF-8 could hold it: it would fail later, and with it the batch it came in."""
    document: dict[str, Any] = {"type": "job.submit", "job": {"key": "k", "schedule": "manual", "target": "h"}}
    inner = document if path == "request_id" else document["job"]
    names = path.removeprefix("job.").split(".")
    inner[names[0]] = {"a": "\ud800"} if len(names) == 2 else "\ud800"
    (found,) = refused(document).items()
    assert found[0].startswith(path)
    assert "".join(found).encode(), "the answer can be sent"
    assert "".join(*refused(document | {"\udc00": 1}).items()).encode(), "also when it is in a name"


def test_all_problems_are_reported_together() -> None:
    found = refused(
        {"type": "job.submit", "foo": 1, "job": {"schedule": {"cron": ""}, "retry": {"factor": 0}, "lane": 1}}
    )
    assert set(found) == {"foo", "job.schedule.cron", "job.target", "job.retry.factor", "job.lane"}


def test_refusal_lists_a_bounded_number_of_problems() -> None:
    found = refused_job(**{f"f{n}": 1 for n in range(90)})
    assert len(found) == MAX_ERRORS + 1
    assert "40 more problems" in found[""]
