"""Jobs in REST: the queries of lists, of which pages have one too, and the derived routes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Field

from tidewheel.control.api.answers import TRACEPARENT
from tidewheel.control.api.openapi import schema_of
from tidewheel.control.api.request_input import PageQuery, whole
from tidewheel.doors.address import Q, in_address, query_with
from tidewheel.doors.rest import Route, Routes
from tidewheel.jobs.requests import JobDelete, JobPause, JobReschedule, JobResume
from tidewheel.jobs.strict_json import Json
from tidewheel.nouns.jobs.model import Begin, ChangedJob, JobFilter, Version
from tidewheel.nouns.jobs.operations import Jobs
from tidewheel.nouns.jobs.versions import MAX_VERSIONS
from tidewheel.nouns.operation import operations

SPEC: dict[str, Json] = {
    "key": "nightly", "schedule": {"cron": "0 2 * * *", "timezone": "Europe/Berlin"}, "target": "nightly-report",
    "overlap": "skip",
}  # fmt: skip
"""A job, as the document shows it."""
_STATES: Mapping[str | None, JobFilter] = {
    "active": {"paused": False, "finished": False, "quarantined": False},
    "paused": {"paused": True},
    "finished": {"finished": True},
    "quarantined": {"quarantined": True},
    "unwell": {"unwell": True},
}
_LIST = operations(Jobs)["list"]
_REPLACED = {name for state in _STATES.values() for name in state}
BY_FIELD = [each for each in _LIST.parameters if each.name not in _REPLACED]
"""The parameters of a list of jobs that no state replaces."""


class JobsQuery(PageQuery):
    """Query of a list of jobs without the filter: a state replaces some of its fields."""

    status: Annotated[
        Literal["active", "paused", "finished", "quarantined", "unwell"] | None,
        Field(
            description="Only jobs in this state; `unwell` are those in quarantine, or with a failure among their last "
            "10 runs within seven days, or within the last 5 minutes."
        ),
    ] = None

    prefix: Annotated[Begin, Field(description="Only jobs whose key begins with this text.")] = ""

    @property
    def filter(self) -> JobFilter:
        """The filter of the read."""
        fits = {each.name: getattr(self, in_address(each)[0]) for each in BY_FIELD if each.filters}
        return {**cast("JobFilter", fits), **_STATES.get(self.status, {})}


def jobs_query(base: type[Q]) -> type[Q]:
    """Return a query with the fields of the filter."""
    return query_with(base, _LIST, BY_FIELD)[0]


class VersionsQuery(PageQuery):
    """Query of a list of versions."""

    limit: Annotated[
        int, Field(ge=1, le=MAX_VERSIONS, description="The maximum number of results."), BeforeValidator(whole)
    ] = 20


@dataclass(frozen=True, slots=True)
class VersionsPage:
    """Versions of a job, newest first."""

    versions: tuple[Version, ...]
    next_cursor: str | None


_changed = partial(Route, schema=schema_of(ChangedJob), version=lambda job: job.version)
JOBS: Routes = {
    "list": Route(query=jobs_query(JobsQuery), words="List jobs by key."),
    "get": Route(
        version=lambda job: job.summary.version,
        words="Return a job with its next occurrence and its last run.",
    ),
}  # fmt: skip
ONE_JOB: Routes = {
    **dict.fromkeys(("rollback", "skip", "move", "unskip", "diff")),
    "backfill": Route(headers=TRACEPARENT),
    "pause": _changed(body=JobPause),
    "resume": _changed(body=JobResume),
    "reschedule": _changed(body=JobReschedule),
    "delete": _changed(body=JobDelete, words="Delete a job; started runs finish."),
    "versions": Route(
        query=VersionsQuery,
        schema=schema_of(VersionsPage),
        words="Return the versions of a job, each with its changes.",
    ),
}
