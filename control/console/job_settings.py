"""The settings of a job: each with its meaning, defaults in grey; the job as a file."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.json_schemas import body_of
from tidewheel.control.api.queries import TenantQuery, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.job import key_of_page, moved_to, schedule_text
from tidewheel.control.console.jobs import hold_words
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, page_now
from tidewheel.control.console.words import pretty
from tidewheel.control.reads.yaml_form import as_yaml
from tidewheel.ids import job_id
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.strict_json import as_object
from tidewheel.nouns.jobs.reads import show_job

_DEFAULT = re.compile(r" ?Default: `([^`]*)`\.?")
_APART = frozenset({"key", "payload", "payload_base64"})


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting.

    Args:
        value: Its value, or its default; empty without one.
        is_default: True if the job does not have it.
    """

    path: str
    value: str
    is_default: bool
    meaning: str


@dataclass(frozen=True, slots=True)
class JobSettingsPage:
    """The page of a job's settings."""

    template: ClassVar[str] = "job-settings.html"
    place: ClassVar[str] = "jobs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the job."""
        read_query(request, TenantQuery)
        key = key_of_page(connection, caller, request)
        moved = moved_to(request, urls, key, job_id(caller.tenant, key), "job_settings")
        if moved is not None:
            return View({}, moved_to=moved)
        now = page_now(connection)
        with connection.snapshot() as reading:
            job = show_job(reading, caller.tenant, key)
        return View(
            {
                "now": now, "job": job, "held": hold_words(job.summary), "tab": "settings",
                "schedule": schedule_text(job.summary.schedule), "settings": list(settings_of(job.job)),
                "document": as_yaml(job.job),
                "payload": pretty(job.job["payload"]) if "payload" in job.job else job.job.get("payload_base64"),
            }
        )  # fmt: skip


def settings_of(job: Mapping[str, object]) -> Iterator[Setting]:
    """Yield all settings in the order of the specification, those of the job with their values.

    >>> [(each.path, each.value) for each in settings_of({"retry": {"max_attempts": 3}}) if not each.is_default]
    [('retry', 'as follows'), ('retry.max_attempts', '3')]
    """
    for name, (meaning, default) in _meanings().items():
        if name in _APART:
            continue
        if name not in job:
            yield Setting(name, default, is_default=True, meaning=meaning)
            continue
        values = list(_flattened(job[name], name))
        if values[0][0] != name:  # the meaning is that of the whole object
            yield Setting(name, "as follows", is_default=False, meaning=meaning)
        for path, value in values:
            yield Setting(path, value, is_default=False, meaning=meaning if path == name else "")


def _flattened(value: object, path: str) -> Iterator[tuple[str, str]]:
    below = as_object(value)
    if below and len(path.split(".")) < 4:
        for name, each in below.items():
            yield from _flattened(each, f"{path}.{name}")
    else:
        yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@cache
def _meanings() -> Mapping[str, tuple[str, str]]:
    """Return the meaning and the default of each setting, from the schema of REST."""
    found: dict[str, tuple[str, str]] = {}
    for name, schema in body_of(JobSpec)["properties"].items():
        described = schema if "description" in schema else schema.get("anyOf", [{}])[0]  # beside its short forms
        words = str(described.get("description", ""))
        default = _DEFAULT.search(words)
        found[name] = (_DEFAULT.sub("", words), default[1] if default else "")
    return found
