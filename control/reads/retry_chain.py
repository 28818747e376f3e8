"""The retry chain of a run, and the facts on which a retry of ended runs depends."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements

_READ_RETRY_FACTS = Statements("tidewheel.control")["read_retry_facts"]


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
    """Return a run's retry chain from its first run, and the runs of its instant as they were created."""
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


class RetryFacts(NamedTuple):
    """The facts about a stored run.

    Args:
        is_deleted: True if its job is deleted: no new run can be made.
        is_part: True if it belongs to an occurrence of a workflow.
        dead_letter: Its dead letter, if that is not redriven.
    """

    run_id: UUID
    is_deleted: bool
    is_part: bool
    retries: int
    open_retries: Sequence[UUID] | None
    dead_letter: int | None


def count_open_retries(facts: Sequence[RetryFacts]) -> int:
    """Return how many runs that have not ended are in the retry chains of some runs."""
    return len({run_id for each in facts for run_id in each.open_retries or ()})


def read_retry_facts(connection: Conn, run_ids: Sequence[UUID]) -> Sequence[RetryFacts]:
    """Return the facts about these runs; none about one that is no longer stored."""
    with connection.cursor(row_factory=rows_of(RetryFacts._make), binary=True) as cursor:
        return cursor.execute(_READ_RETRY_FACTS, {"run_ids": list(run_ids)}).fetchall()
