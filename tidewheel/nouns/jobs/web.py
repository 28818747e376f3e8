"""The query of a list of jobs, in REST and in pages."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from tidewheel.control.api.request_input import LabelFilter, PageQuery, Text
from tidewheel.jobs.values import Queue
from tidewheel.nouns.jobs.model import JobFilter, Kind, Lane

_STATES: Mapping[str | None, JobFilter] = {
    "active": {"paused": False, "finished": False, "quarantined": False},
    "paused": {"paused": True},
    "finished": {"finished": True},
    "quarantined": {"quarantined": True},
    "unwell": {"unwell": True},
}


class JobsQuery(PageQuery):
    """Filter of a list of jobs."""

    prefix: Annotated[Text, Field(description="Only keys with this prefix.")] = ""
    status: Annotated[
        Literal["active", "paused", "finished", "quarantined", "unwell"] | None,
        Field(
            description="Only jobs in this state; `unwell` are those in quarantine, or with a failure among their last "
            "10 runs within seven days."
        ),
    ] = None
    label: LabelFilter = Field(
        default_factory=dict[str, str], description="Only jobs with this label, as name=value; repeatable."
    )
    lane: Annotated[Lane | None, Field(description="Only jobs of this lane.")] = None
    queue: Annotated[Queue | None, Field(description="Only jobs of this queue.")] = None
    kind: Annotated[Kind | None, Field(description="Only schedules of this kind.")] = None

    @property
    def filter(self) -> JobFilter:
        """The filter of the read."""
        fits = JobFilter(prefix=self.prefix, labels=dict(self.label), lane=self.lane, queue=self.queue, kind=self.kind)
        return {**fits, **_STATES.get(self.status, {})}
