"""Pages of a job: what comes by day, its settings, its versions compared."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Annotated, ClassVar, cast
from uuid import UUID

from pydantic import BeforeValidator, Field
from starlette.requests import Request

from tidewheel.audit import ACCEPTED, MAX_OBJECT
from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import LimitQuery, TenantQuery, read_query, whole
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.job import head_of, key_of_page, moved, seen_of
from tidewheel.control.console.payloads import pretty
from tidewheel.control.console.spec_check import changed_fields
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, in_snapshot, page_now, part, part_of, read_filters
from tidewheel.control.explain.facts import read_overrides_around
from tidewheel.control.explain.month import CalendarDay, JobCalendar, job_calendar
from tidewheel.control.explain.operations import Month, first_day
from tidewheel.control.explain.upcoming import upcoming
from tidewheel.control.reads.yaml_form import as_yaml
from tidewheel.control.words import duration
from tidewheel.errors import UnknownJob
from tidewheel.ids import job_id
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.jobs.values import parse_duration
from tidewheel.nouns.audit_log.operations import AuditEntry, list_audit_log
from tidewheel.nouns.jobs.fields import FIELDS, LABELS, SpecField, text_of
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.nouns.jobs.versions import job_at, versions
from tidewheel.postgres.session import Conn
from tidewheel.schedules.describe import to_zone

_LOOK = 100  # entries of the audit log about one job
_WEEK, _WEEKS = 7, 5
_LIMITS = (10, 50, 100)
_APART = frozenset({"key", "payload", "payload_base64"})

_Number = Annotated[int, Field(ge=1, le=2**31 - 1), BeforeValidator(whole)]


class VersionsQuery(LimitQuery):
    """The versions before one, and two versions to compare."""

    limit: Annotated[int, Field(ge=1, le=100), BeforeValidator(whole)] = 20
    before: _Number | None = None
    a: _Number | None = None
    b: _Number | None = None


class VersionsPage:
    """The page of a job's versions."""

    template: ClassVar[str] = "versions.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the versions, their authors, and the fields of two that differ."""
        query, errors = read_filters(request, VersionsQuery)
        key, tenant = key_of_page(connection, caller, request), caller.tenant
        if (away := moved(request, urls, key, job_id(tenant, key), "job_versions")) is not None:
            return away
        try:
            job = in_snapshot(connection, show_job, tenant, key)
        except UnknownJob:  # it was deleted
            job = None
        with connection.snapshot() as reading:
            found = versions(reading, tenant, key, limit=query.limit, before=query.before)
            made = {each.version_after: _who(each) for each in _changes(reading, tenant, key)}

        def compared() -> object:
            with connection.snapshot() as reading:
                before, after = (job_at(reading, tenant, key, number) for number in (query.a or 0, query.b or 0))
            return changed_fields(before, after)

        now, named = page_now(connection), job_id(tenant, key)
        newest = found[0] if found and query.before is None else None
        older = found[-1].number if len(found) == query.limit and found[-1].number > 1 else None
        return View(
            {
                **(head_of(connection, caller, job, "versions", seen_of(connection, tenant, key, now)) if job else {}),
                "job": job, "now": now, "key": key, "job_id": named, "rows": found, "made": made, "errors": errors,
                "query": query,
                "compared": part(compared) if query.a and query.b else None,
                "in_force": newest if newest is not None and newest.until is None else None,
                "older": older and urls.job(key, named, "job_versions", before=older),
            },
            422 if errors else 200,
        )  # fmt: skip


def last_author(connection: Connection, tenant: str, key: str) -> str | None:
    """Return who made the newest version of a job, or deleted it; None without an entry of the audit log."""
    found = in_snapshot(connection, _changes, tenant, key)
    return _who(found[-1]) if found else None


def _changes(reading: Conn, tenant: str, key: str) -> list[AuditEntry]:
    """Return the entries of the audit log that made a version of a job, or deleted it, the oldest first."""
    page = list_audit_log(reading, tenant, limit=_LOOK, object=f"job/{key}"[:MAX_OBJECT])
    made = [each for each in page.entries if each.result == ACCEPTED and each.version_before != each.version_after]
    return made[::-1]


def _who(entry: AuditEntry) -> str:
    """Return who made a change: the person that the sender named, and the key or the user."""
    return f"{entry.named}, {entry.actor}" if entry.named else entry.actor


class NextQuery(TenantQuery):
    """Query of the page."""

    month: Month | None = None
    limit: Annotated[int, Field(ge=1, le=100), BeforeValidator(whole)] = 10


class JobNextPage:
    """The page of what comes."""

    template: ClassVar[str] = "job-next.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the month and the list."""
        query, errors = read_filters(request, NextQuery)
        key = key_of_page(connection, caller, request)
        if (away := moved(request, urls, key, job_id(caller.tenant, key), "job_next")) is not None:
            return away
        now, tenant = page_now(connection), caller.tenant
        job = in_snapshot(connection, show_job, tenant, key)

        def read_month() -> tuple[JobCalendar, Mapping[date, Sequence[datetime]]]:
            with connection.snapshot() as reading:
                month = first_day(query.month) if query.month else None
                found = job_calendar(reading, tenant, key, month, weeks=_WEEKS)
                return found, _targets(reading, job.summary.job_id, found)

        late = connection.installation.misfire_after
        read, coming = part(read_month), part_of(connection, upcoming, tenant, key, query.limit, misfire_after=late)
        known = None if isinstance(read, Failed) else read[0]
        listed = () if isinstance(coming, Failed) else coming.occurrences
        today = (now.astimezone(listed[0].local.tzinfo) if listed else now).date()
        middle = (first_day(query.month) if query.month else today).replace(day=15)  # of the month
        shown = [] if known is None else [each for each in known.days if query.month or each.date >= today]
        span = f"{middle:%B %Y}" if query.month or not shown else f"{shown[0].date:%-d %b} to {shown[-1].date:%-d %b}"
        return View(
            {
                **head_of(connection, caller, job, "next", seen_of(connection, tenant, key, now)),
                "now": now, "month": known or read, "coming": coming, "errors": errors, "query": query,
                "limits": _LIMITS, "weeks": _weeks(known.days) if known else [],
                "earlier": f"{middle - timedelta(days=30):%Y-%m}", "usual": _usual(shown), "span": span,
                "later": f"{middle + timedelta(days=30):%Y-%m}", "today": today,
                "on_clock": None if isinstance(coming, Failed) else partial(to_zone, zone_name=coming.zone),
                "targets": {} if isinstance(read, Failed) else read[1],
            },
            422 if errors else 200,
        )  # fmt: skip


def _usual(days: Sequence[CalendarDay]) -> tuple[int, time] | None:
    """Return the number and the first time of most days' occurrences; None for a few a day."""
    found = Counter((each.fires, each.first[0].time()) for each in days if each.exact and each.first)
    usual, many = found.most_common(1)[0] if found else ((0, time()), 0)
    return usual if usual[0] > 3 and 2 * many > len(days) else None


def _targets(reading: Conn, job: UUID, shown: JobCalendar) -> Mapping[date, Sequence[datetime]]:
    """Return the new times of the occurrences moved from each day."""
    found: dict[date, list[datetime]] = {}
    if not any(day.moved for day in shown.days):
        return found
    begin = datetime.combine(shown.month, time(), UTC) - timedelta(days=2)  # a zone's day begins a day earlier at most
    for each in read_overrides_around(reading, job, begin, begin):
        if each.moved_to is not None:
            day = to_zone(each.scheduled_at, shown.zone).date()
            found.setdefault(day, []).append(to_zone(each.moved_to, shown.zone))
    return found


def _weeks(days: Sequence[CalendarDay]) -> list[list[CalendarDay | None]]:
    """Return the days of a month as weeks from Monday to Sunday; None outside of the month."""
    cells: list[CalendarDay | None] = [*[None] * days[0].date.weekday(), *days]
    cells += [None] * (-len(cells) % _WEEK)
    return [cells[at : at + _WEEK] for at in range(0, len(cells), _WEEK)]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a job, or the default of one that it lacks."""

    path: str
    value: str
    default: str
    meaning: str


class JobSettingsPage:
    """The page of a job's settings."""

    template: ClassVar[str] = "job-settings.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the job."""
        read_query(request, TenantQuery)
        key = key_of_page(connection, caller, request)
        if (away := moved(request, urls, key, job_id(caller.tenant, key), "job_settings")) is not None:
            return away
        now, job = page_now(connection), in_snapshot(connection, show_job, caller.tenant, key)
        return View(
            {
                **head_of(connection, caller, job, "settings", seen_of(connection, caller.tenant, key, now)),
                "now": now, "settings": settings_of(job.job), "defaults": defaults_of(job.job),
                "document": as_yaml(job.job), "labels": LABELS,
                "payload": pretty(job.job["payload"]) if "payload" in job.job else job.job.get("payload_base64"),
            }
        )  # fmt: skip


def settings_of(job: Mapping[str, object]) -> Sequence[Setting]:
    """Return the settings of a job that differ from their defaults, in the order of its form.

    >>> job = {"start_to_close": "90m", "retry": {"max_attempts": 3, "initial": "1s"}, "workflow": {"window": "1h"}}
    >>> [(each.path, each.value) for each in settings_of(job)]
    [('retry.max_attempts', '3'), ('retry.initial', '1 s'), ('start_to_close', '1 h 30 min'), ('workflow.window', '1h')]
    """
    values = {path: value for name in job.keys() - _APART for path, value in _leaves(job[name], name)
              if path != "target.type"}  # fmt: skip
    known = [Setting(each.path, _words(each, values.pop(each.path)), _words(each, each.default), each.help)
             for each in FIELDS if each.path in values]  # fmt: skip
    others = [Setting(path, _words(SpecField(path, path), value), "", "") for path, value in sorted(values.items())]
    return [each for each in known if each.value != each.default] + others


def defaults_of(job: Mapping[str, object]) -> Sequence[Setting]:
    """Return the defaults that hold for a job, without those of objects that it lacks."""
    own, heads = {each.path for each in settings_of(job)}, job.keys() | {"retry"}
    return [
        Setting(each.path, "", _words(each, each.default), each.help)
        for each in FIELDS
        if each.default and not each.only and each.path not in own and (len(each.names) == 1 or each.names[0] in heads)
    ]


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield the values below a path, whole those that a field of the form has."""
    below = as_object(value)
    if below and path not in LABELS and len(path.split(".")) < 4:
        for name, each in below.items():
            yield from _leaves(each, f"{path}.{name}")
    else:
        yield path, value


def _words(field: SpecField, value: object) -> str:
    """Return a value on one line, a duration as all pages show it."""
    if field.kind == "span" or field.path == "retry.intervals":
        return ", ".join(map(_span, as_list(value) or (value,)))
    return ", ".join(text_of(field, value).splitlines())


def _span(value: object) -> str:
    """Return a duration as pages show it; another value, such as a percentage, unchanged."""
    with suppress(InvalidValue):
        return duration(parse_duration(cast("str | float", value)), exact=True)
    return str(value)
