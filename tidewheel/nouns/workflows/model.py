"""Records of workflows: rows of queries, results of the client, JSON of the doors."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

Place = tuple[datetime, UUID]
State = Literal["open", "paused", "cancelling", "timing_out", "succeeded", "failed", "cancelled", "timed_out"]


@dataclass(frozen=True, slots=True)
class WorkflowSummary:
    """An occurrence of a workflow as lists show it."""

    root_run_id: Annotated[UUID, Field(description="The root's run.")]
    key: Annotated[str, Field(description="The root's key.")]
    state: Annotated[
        str,
        Field(
            description="`open`, `paused`, `cancelling`, `timing_out`, `succeeded`, `failed`, `cancelled` or "
            "`timed_out`."
        ),
    ]
    scheduled_at: Annotated[datetime, Field(description="The nominal instant of all of its runs.")]
    generation: Annotated[int, Field(description="0, and one more for each resume.")]
    pending: Annotated[
        int,
        Field(description="The number of its runs that have not ended, or whose children are not released yet."),
    ]
    failed: Annotated[int, Field(description="The number of its runs that failed or timed out, in this generation.")]
    reason: Annotated[str | None, Field(description="The reason of a pause or a cancel.")]
    created_at: Annotated[datetime, Field(description="The end of the root's run, or the first request about it.")]
    finished_at: Annotated[datetime | None, Field(description="Its end.")]


@dataclass(frozen=True, slots=True)
class Parent:
    """A parent of a job in an occurrence, with the condition on its end."""

    key: str
    when: str


@dataclass(frozen=True, slots=True)
class WorkflowNode:
    """A job in an occurrence."""

    key: Annotated[str, Field(description="Its key.")]
    state: Annotated[
        str,
        Field(
            description="The state of its latest run; `pending` if it has none yet, or waits for another one after a "
            "resume, and `not_reached` if it will have none."
        ),
    ]
    parents: Annotated[Sequence[Parent], Field(description="Its parents.")]
    run_id: Annotated[UUID | None, Field(description="Its latest run; null for a job that waits for one.")] = None
    reason: Annotated[str | None, Field(description="Why that was skipped or cancelled.")] = None
    attempt: Annotated[int, Field(description="The number of its attempts.")] = 0
    started_at: Annotated[datetime | None, Field(description="The start of its last attempt.")] = None
    finished_at: Annotated[datetime | None, Field(description="Its end.")] = None


@dataclass(frozen=True, slots=True)
class Workflow:
    """An occurrence with its graph: the root first, each job after its parents."""

    summary: Annotated[WorkflowSummary, Field(description="The occurrence as in lists.")]
    nodes: Annotated[Sequence[WorkflowNode], Field(description="Its jobs.")]
    again: Annotated[
        Sequence[str],
        Field(description="The keys of the jobs that a resume runs again, if it has ended and a part of it failed."),
    ]


@dataclass(frozen=True, slots=True)
class ChangedWorkflow:
    """Result of a change of an occurrence: `unchanged` if it was in that state already, or has ended."""

    root_run_id: UUID
    unchanged: bool


@dataclass(frozen=True, slots=True)
class ParentOfRun:
    """A parent of a run in its occurrence."""

    key: Annotated[str, Field(description="The parent's key.")]
    when: Annotated[str, Field(description="The condition on its end.")]
    status: Annotated[
        str | None,
        Field(description="The state of its run; null if it has none yet, or if that is no longer stored."),
    ]
    run_id: Annotated[UUID | None, Field(description="Its latest run; null likewise.")]
    result: Annotated[
        object, Field(description="Its result; null if it returned none, or if it is left out or expired.")
    ]
    result_bytes: Annotated[int, Field(description="The size of its result.")]
    left_out: Annotated[
        bool,
        Field(description="True if all results together have more than 64 KiB; `job` reads this one."),
    ]
    expired: Annotated[bool, Field(description="True if the run or its result is no longer stored.")]
