"""Records of works: rows of queries, results of the client, JSON of the doors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Generic, TypeVar
from uuid import UUID

from pydantic import Field

from tidewheel.jobs.values import Reason

T = TypeVar("T")

WorkPlace = tuple[datetime, UUID]
"""The place of a work in a list: its creation and its id."""
INSTANTS = frozenset({"from", "to", "since", "until", "next_at"})
"""The instants of a filter and of facts, which are texts."""
COUNTED = 10_000  # matches beyond this are not counted: no client pages through more
ENDS = "ends with the job's deletion"
"""What becomes of a backfill of a deleted job, until a scheduler cancels it."""

Rate = Annotated[float, Field(ge=0.000_001, le=1_000_000)]
WorkReason = Annotated[Reason | None, Field(description="Stored with the work.")]


@dataclass(frozen=True, slots=True)
class Work:
    """Bulk work with its progress."""

    work_id: Annotated[UUID, Field(description="Its id.")]
    kind: Annotated[str, Field(description="What it does, such as `redrive`.")]
    state: Annotated[str, Field(description="`running`, `paused`, `finished` or `cancelled`.")]
    filter: Annotated[Mapping[str, object], Field(description="The filter of its request, by its fields' names.")]
    rate: Annotated[float | None, Field(description="Things a second at most; null for no bound.")]
    matched_count: Annotated[
        int,
        Field(description="How many matched at its acceptance; counted to 10,001, which means that there may be more."),
    ]
    done_count: Annotated[int, Field(description="How many are done so far.")]
    rejected_count: Annotated[int, Field(description="How many could not be done so far.")]
    rejections: Annotated[
        Sequence[Mapping[str, object]], Field(description="The first hundred of these: `id` and `errors` of each.")
    ]
    reason: Annotated[str | None, Field(description="The reason of its request, pause or cancellation.")]
    created_at: Annotated[datetime, Field(description="When it was accepted.")]
    finished_at: Annotated[datetime | None, Field(description="When it was finished or cancelled.")]
    facts: Annotated[
        Mapping[str, object],
        Field(
            description="Of a backfill: how many runs it `needed` at first and has `created`, its next instant, whether"
            " it is `ending` with its job, and, shown alone, `runs`: how many are in each state."
        ),
    ]

    @property
    def is_counted(self) -> bool:
        """True if no more than `matched_count` matched: of a backfill, each occurrence is counted."""
        return self.matched_count <= COUNTED or self.kind == "backfill"

    @property
    def processed(self) -> int:
        """Things that were done or rejected, of `matched_count`."""
        return self.done_count + self.rejected_count


@dataclass(frozen=True, slots=True)
class Survey(Generic[T]):
    """Things that match before a work starts, and the filter and the cursor that it starts with."""

    matched: int  # `COUNTED` at most
    at_least: bool
    first: tuple[T, ...]
    filter: Mapping[str, object]
    cursor: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Started:
    """A work that a call has started, or that its dry run would. Each noun adds the first things."""

    work_id: Annotated[UUID | None, Field(description="The work's id; null of a dry run, and if nothing matched.")]
    matched: Annotated[int, Field(description="How many match; counted to 10,000.")]
    at_least: Annotated[
        bool, Field(description="True if there may be more than `matched`: of many only the first are looked at.")
    ]


@dataclass(frozen=True, slots=True)
class WorkChange:
    """Result of a pause, a resume or a cancellation."""

    status: Annotated[str, Field(description="The work's state.")]
    unchanged: Annotated[
        bool, Field(description="True if its state did not allow the change, or it had been made already.")
    ]
