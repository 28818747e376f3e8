"""The versions of a job: who made each, what it changed, and any two of them field by field."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field
from starlette.requests import Request

from tidewheel.audit import ACCEPTED, MAX_OBJECT
from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import LimitQuery, whole
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.job import key_of_page, moved_to, schedule_text
from tidewheel.control.console.jobs import hold_words
from tidewheel.control.console.spec_check import changed_fields
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, page_now, part, read_filters
from tidewheel.errors import UnknownJob
from tidewheel.ids import job_id
from tidewheel.nouns.audit_log.model import AuditEntry
from tidewheel.nouns.audit_log.reads import list_audit_log
from tidewheel.nouns.jobs.model import JobDetail, Version
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.nouns.jobs.versions import job_at, versions
from tidewheel.postgres.session import Conn

_PATHS = 6  # changed fields that a row names
_LOOK = 100  # entries of the audit log about one job

Number = Annotated[int, Field(ge=1, le=2**31 - 1), BeforeValidator(whole)]


class VersionsQuery(LimitQuery):
    """The query of the page.

    Attributes:
        before: Only versions before this one.
        a: The first of two versions to compare.
        b: The second.
    """

    limit: Annotated[int, Field(ge=1, le=100), BeforeValidator(whole)] = 20
    before: Number | None = None
    a: Number | None = None
    b: Number | None = None


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version in the list; `by` is None if the audit log has no author."""

    version: Version
    by: str | None
    changed: str


@dataclass(frozen=True, slots=True)
class VersionsPage:
    """The page of a job's versions."""

    template: ClassVar[str] = "versions.html"
    place: ClassVar[str] = "jobs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the versions, their authors, and the fields of two that differ."""
        query, errors = read_filters(request, VersionsQuery)
        key, tenant = key_of_page(connection, caller, request), caller.tenant
        if (moved := moved_to(request, urls, key, job_id(tenant, key), "job_versions")) is not None:
            return View({}, moved_to=moved)
        job = _job(connection, tenant, key)
        with connection.snapshot() as reading:
            found = versions(reading, tenant, key, limit=query.limit, before=query.before)
            made = {each.version_after: _who(each) for each in _changes(reading, tenant, key)}
        rows = [_row(each, made.get(each.number)) for each in found]

        def compared() -> object:
            with connection.snapshot() as reading:
                before, after = (job_at(reading, tenant, key, number) for number in (query.a or 0, query.b or 0))
            return changed_fields(before, after)

        named, newest = job_id(tenant, key), found[0] if found and query.before is None else None
        older = found[-1].number if len(found) == query.limit and found[-1].number > 1 else None
        return View(
            {
                "now": page_now(connection), "job": job, "tab": "versions",
                "held": job and hold_words(job.summary), "schedule": job and schedule_text(job.summary.schedule),
                "key": key, "job_id": named, "rows": rows, "query": query,
                "errors": errors,
                "compared": part(compared) if query.a and query.b else None,
                "in_force": newest if newest is not None and newest.until is None else None,
                "older": older and urls.job(key, named, "job_versions", before=older),
            },
            422 if errors else 200,
        )  # fmt: skip


def last_author(connection: Connection, tenant: str, key: str) -> str | None:
    """Return who made the newest version of a job, or deleted it; None without an entry of the audit log."""
    with connection.snapshot() as reading:
        found = _changes(reading, tenant, key)
    return _who(found[-1]) if found else None


def _changes(reading: Conn, tenant: str, key: str) -> list[AuditEntry]:
    """Return the entries of the audit log that made a version of a job, or deleted it, the oldest first."""
    page = list_audit_log(reading, tenant, limit=_LOOK, object=f"job/{key}"[:MAX_OBJECT])
    made = [each for each in page.entries if each.result == ACCEPTED and each.version_before != each.version_after]
    return made[::-1]


def _who(entry: AuditEntry) -> str:
    """Return who made a change: the person that the sender named, and the key or the user."""
    return f"{entry.named}, {entry.actor}" if entry.named else entry.actor


def _job(connection: Connection, tenant: str, key: str) -> JobDetail | None:
    """Return the job; None if it was deleted."""
    try:
        with connection.snapshot() as reading:
            return show_job(reading, tenant, key)
    except UnknownJob:
        return None


def _row(version: Version, by: str | None) -> VersionRow:
    paths = [each.path for each in version.changes]
    more = f" and {len(paths) - _PATHS} more" if len(paths) > _PATHS else ""
    first = "first version" if version.number == 1 else ""
    return VersionRow(version, by, f"{', '.join(paths[:_PATHS])}{more}" or first)
