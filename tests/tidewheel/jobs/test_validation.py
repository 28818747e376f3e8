"""An invalid field is refused under its path, with the value read and a remedy."""

import json
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, get_args

import pytest
from fastapi import APIRouter
from pydantic import ValidationError

import tidewheel
from tests.tidewheel.jobs.submitting import refused, refused_job
from tidewheel.control.api.app import NOUNS
from tidewheel.doors.rest import add_routes
from tidewheel.jobs.validation import MAX_ERRORS, StrictModel


def http(**more: object) -> dict[str, object]:
    return {"target": {"type": "http", "url": "http://a", **more}}


def headers(**given: object) -> dict[str, object]:
    return http(headers=given)


AFTER: dict[str, object] = {"schedule": {"after": ["a"]}}
DELAY: dict[str, object] = {"schedule": {"fixed_delay": "1m"}}
DAILY: dict[str, object] = {"schedule": "@daily"}
INVISIBLE = ["zw\u200b", "\ufeffbom", "\u202eevil", "a\u00adb", "a\ue000", "a\uffff"]
YEAR = "2027-01-01T00:00:00Z"

# path: jobs whose field is refused there
REFUSED: dict[str, list[dict[str, object]]] = {
    "schedul": [{"schedul": 1}],
    "schedule": [{"schedule": given} for given in ({"cron": "@daily", "once": YEAR}, {}, 7, "10s", "every 1h30m")],
    "schedule.after": [{"schedule": {"after": []}}],
    "schedule.interval": [{"schedule": "@every 500ms"}, {"schedule": "P1M"}],
    "schedule.once": [{"schedule": {"once": "2027-01-01T00:00:00"}}],
    "schedule.cron": [{"schedule": {"cron": given}} for given in ([], ["@daily"] * 21, "x" * 257, [1])],
    "schedule.timezon": [{"schedule": {"cron": "@daily", "timezon": "UTC"}}],
    "schedule.timezone": [{"schedule": {"interval": "10s", "timezone": "UTC"}}],
    "schedule.end_at": [{"schedule": {"cron": "@daily", "end_at": YEAR}}],
    "schedule.anchor": [{"schedule": {"fixed_delay": "1m", "anchor": YEAR}}],
    "workflow": [{**AFTER, "workflow": {"timeout": "1h"}}],
    "workflow.overlap": [{"overlap": "allow_all", "workflow": {"overlap": "whole"}}, {"workflow": {"overlap": "all"}}],
    "workflow.timeout": [{"workflow": {"timeout": "0s"}}],
    "ordering_key": [{"ordering_key": "a", **given} for given in (AFTER, DAILY, {"concurrency_key": "b"})],
    "ordering_key.on_failure": [{"ordering_key": {"key": "a", "on_failure": "stop"}}],
    "dedupe": [{**DAILY, "dedupe": {"window": "1h"}}],
    "dedupe.window": [{"dedupe": {"key": "a"}}],
    "dedupe.longest": [{"dedupe": {"window": "1h", "longest": "2h"}}],
    "overlap": [{"overlap": "skipp"}],
    "timezone": [{"timezone": "UTC"}],
    "timeout": [{"timeout": "10s"}],
    "history_limit": [{"history_limit": 9}],
    "heartbeat": [{"heartbeat": "10s", **http()}],
    "start_at": [{"start_at": YEAR}],
    "end_at": [{**DAILY, "start_at": YEAR, "end_at": "2026-01-01T00:00:00Z"}],
    "exclude_calendars": [{**DELAY, "exclude_calendars": ["x"]}],
    "exclude_calendars.0": [{"exclude_calendars": ["Über"]}],
    "on_excluded": [{"on_excluded": "next_day"}],
    "max_runs": [{**DELAY, "max_runs": 2}, {**DAILY, "max_runs": 0}],
    "jitter": [{"jitter": "101%"}, {"jitter": "25h"}],
    "window": [{"window": "91d"}],
    "pause_on_failure": [{"pause_on_failure": 0}],
    "key": [{"key": given} for given in ["", "x" * 256, "a\nb", 7, *INVISIBLE]],
    "queue": [{"queue": "Big Queue"}],
    "lane": [{"lane": "fast"}],
    "target": [{"target": 7}],
    "target.type": [{"target": {}}, {"target": {"type": "ftp"}}],
    "target.name": [{"target": {"type": "handler"}}, {"target": "zw\u200b"}],
    "target.url": [{"target": {"type": "http"}}, *(http(url=url) for url in ("ftp://a", "http://u:p@a", "http://a:99999"))],
    "target.method": [http(method="BREW")],
    "target.headers": [http(headers={"a b": "1"})],
    "target.headers.X": [headers(X=given) for given in ("a\r\nb: c", "Bücher", "a\0", "\x7f", " a", 1)],
    "target.headers.x": [headers(X="1", x="2")],
    "target.headers.Host": [headers(Host="b")],
    "target.headers.Tidewheel-Run-Id": [http(headers={"Tidewheel-Run-Id": "b"})],
    "retry": [{"retry": 7}],
    "retry.max_attemps": [{"retry": {"max_attemps": 3}}],
    "retry.max_attempts": [{"retry": {"max_attempts": 0}}, {"retry": {"max_attempts": "3"}}],
    "retry.factor": [{"retry": {"factor": float("inf")}}],
    "retry.initial": [{"retry": {"initial": "2h"}}],
    "retry.intervals": [
        {"retry": {"intervals": []}}, {"retry": {"backoff": "fixed", "intervals": ["1s"]}},
        {"retry": {"backoff": "intervals"}},
    ],
    "retry.intervals.1": [{"retry": {"intervals": ["1s", "x"]}}],
    "retry.jitter": [{"retry": {"jitter": 0.1}}, {"retry": {"jitter": "101%"}}],
    "start_to_close": [{"start_to_close": given} for given in ("25h", True, float("nan"))],
    "labels": [{"labels": {str(n): "" for n in range(65)}}, {"labels": []}],
    "labels.a": [{"labels": {"a": 1}}, {"labels": {"a": "x" * 256}}],
    r"labels.zw\u200b": [{"labels": {"zw\u200b": "a"}}],
    "description": [{"description": "\0"}],
    "paused": [{"paused": "yes"}],
    "payload_base64": [{"payload": 1, "payload_base64": ""}, {"payload_base64": "%%%"}],
    "payload": [{**DAILY, "overlap": "allow_all", "ordering_key": "{payload.a}"}, *({"payload": given} for given in (
        "x" * 262_143, ["\ud800"], ["\0"], float("nan"), json.loads("[" * 33 + "]" * 33),
    ))],
}  # fmt: skip


@pytest.mark.parametrize("path", REFUSED)
def test_invalid_field_is_refused_under_its_path(path: str) -> None:
    for job in REFUSED[path]:
        assert f"job.{path}" in refused_job(**job), job


@pytest.mark.parametrize(
    ("job", "path", "words"),
    [
        ({"schedul": 1}, "schedul", "did you mean 'schedule'?"),
        ({"overlap": "skipp"}, "overlap", "did you mean 'skip'?"),
        ({"timezone": "UTC"}, "timezone", "write it inside schedule"),
        ({"retry": {"max_attempts": 0}}, "retry.max_attempts", "0 is not valid; write at least 1"),
        ({"key": "zw\u200b"}, "key", r"contains '\u200b', which is not visible; remove it"),
    ],
)
def test_refusal_has_the_value_and_a_remedy(job: dict[str, object], path: str, words: str) -> None:
    assert words in refused_job(**job)[f"job.{path}"]


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


def models(base: type[StrictModel] = StrictModel) -> Iterator[type[StrictModel]]:
    for model in base.__subclasses__():
        yield model
        yield from models(model)


def holds_int(annotation: object) -> bool:
    return annotation is int or any(map(holds_int, get_args(annotation)))


def test_every_count_of_every_request_refuses_fractions_and_truth_values() -> None:
    """A model that a later release adds is found by itself."""
    for module in walk_packages(tidewheel.__path__, "tidewheel."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for noun, routes in NOUNS:
        add_routes(APIRouter(), noun, routes)  # their models are made with them
    tried = 0
    for model in set(models()):
        for name, field in model.model_fields.items():
            for wrong in (2.0, True) if holds_int(field.annotation) else ():
                with pytest.raises(ValidationError):
                    model.__pydantic_validator__.validate_assignment(model.model_construct(), name, wrong)
                tried += 1
    assert tried > 100
