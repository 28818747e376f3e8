"""Records of limits and of blocked keys: rows of queries, results of the client, JSON of the doors."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from tidewheel.ids import RunId
from tidewheel.jobs.concurrency import rate_words

COUNTED = 1000
"""The keys of a prefix that are looked at, and the waiting runs that are counted, for each line."""


@dataclass(frozen=True, slots=True)
class BoundedKey:
    """A key or a prefix with its limit, and what runs and waits."""

    key: Annotated[str, Field(description="The key, or the prefix with its asterisk.")]
    at_once: Annotated[int | None, Field(description="The places of each key; null for no bound.")]
    rate: Annotated[
        str | None, Field(description="The starts of each key in a time, such as `100/min`; null for no rate.")
    ]
    burst: Annotated[int, Field(description="The starts at once after a rest.")]
    running: Annotated[int, Field(description="The places that runs hold.")]
    waiting: Annotated[int, Field(description="The runs that wait, of at most 1,000.")]

    def __post_init__(self) -> None:
        """Take the rate as the database has it, in microseconds between two starts."""
        if isinstance(self.rate, int):
            object.__setattr__(self, "rate", rate_words(self.rate))


@dataclass(frozen=True, slots=True)
class LimitSummary(BoundedKey):
    """The limit of a key or a prefix that an operator has set."""

    set_by: Annotated[str, Field(description="The actor and the door.")]
    set_at: Annotated[datetime, Field(description="When it was set.")]
    keys: Annotated[int, Field(description="The number of its keys in use, of at most 1,000.")]


@dataclass(frozen=True, slots=True)
class KeyInUse(BoundedKey):
    """A key whose runs have been claimed within the last ten minutes, hold places, or wait."""

    next_at: Annotated[
        datetime | None,
        Field(description="When the scheduler looks for room again; null if an end gives the next place."),
    ]


@dataclass(frozen=True, slots=True)
class ChangedLimit:
    """The result of a change of a limit."""

    unchanged: Annotated[bool, Field(description="True if there was nothing to remove.")]
    started: Annotated[int, Field(description="The number of waiting runs that got a place.")]
    complete: Annotated[
        bool,
        Field(description="False if the scheduler applies it to more runs, within a minute or with their next claim."),
    ]


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A blocked key."""

    key: Annotated[str, Field(description="The ordering key.")]
    blocked_by: Annotated[UUID, Field(description="The run that failed.")]
    blocked_at: Annotated[datetime, Field(description="The time from which the runs behind it wait.")]
    retried_by: Annotated[UUID | None, Field(description="The open retry of that run.")]
    waiting: Annotated[int, Field(description="The number of runs that wait, up to 1,000.")]


@dataclass(frozen=True, slots=True)
class UnblockedKey:
    """The result of unblocking a key."""

    run_id: Annotated[RunId, Field(description="The retry; the run that had failed if it was skipped.")]
    skipped: Annotated[bool, Field(description="True if the next run starts without a retry.")]
