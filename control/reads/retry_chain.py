"""The retry chain of a run: the runs that it retries, and the retries of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class RelatedRun:
    """A run of the same instant of the same job.

    Args:
        run_id: Its id.
        parent_run_id: The run that it retries.
        cause: The reason for the run.
        state: Its state; `scheduled` is a queued one whose time is ahead.
        created_at: When it was written.
    """

    run_id: UUID
    parent_run_id: UUID | None
    cause: str
    state: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class RetryChain:
    """A run's position in its retry chain.

    Args:
        parent_run_id: The run that it retries.
        root_run_id: The first run of the chain.
        previous: The runs before it, the first of the chain first.
        next: Its retries, and theirs, the oldest first.
    """

    parent_run_id: UUID | None
    root_run_id: UUID | None
    previous: tuple[RelatedRun, ...]
    next: tuple[RelatedRun, ...]


def retry_chain_of(run_id: UUID, parent: UUID | None, root: UUID | None, related: Iterable[RelatedRun]) -> RetryChain:
    """Return the retry chain of a run.

    Args:
        root: The first run of the chain.
        related: The runs of the same instant, in the order of their creation.
    """
    known = {one.run_id: one for one in related}
    previous: list[RelatedRun] = []
    at = parent
    while at is not None and (one := known.get(at)) is not None:
        previous.insert(0, one)
        at = one.parent_run_id
    descendants = {run_id}
    following: list[RelatedRun] = []
    for one in known.values():
        if one.parent_run_id in descendants:
            descendants.add(one.run_id)
            following.append(one)
    return RetryChain(parent, root, tuple(previous), tuple(following))
