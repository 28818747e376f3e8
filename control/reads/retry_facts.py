"""Read the facts that a retry of ended runs depends on: job, workflow, retries and dead letter."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements

_READ_RETRY_FACTS = Statements("tidewheel.control")["read_retry_facts"]


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
