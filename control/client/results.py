"""Results of the client's requests and reads."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tidewheel.ids import RunId
from tidewheel.intake.trigger import ACCEPTED
from tidewheel.schemas.generated.records import Reply


@dataclass(frozen=True, slots=True)
class Triggered:
    """The answer to a trigger with dedupe.

    Args:
        run_id: The run that the trigger has: its own, or that of an earlier one.
        outcome: `accepted` for a new run; `deduplicated`, `replaced` or `debounced` for an earlier one.
        runs_at: When the run is due; of a deduplicated trigger this may have passed.
    """

    run_id: RunId
    outcome: str
    runs_at: datetime


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """A backfill after its request.

    Args:
        backfill_id: Its id in `client.works`; None after a dry run, which creates none.
        occurrences: How many of its range are to be run.
        unchanged: True if an earlier delivery of the request has created it.
    """

    backfill_id: UUID | None
    occurrences: int | None
    unchanged: bool


def backfill_of(reply: Reply) -> BackfillResult:
    """Return the backfill of an accepted request."""
    backfill_id = UUID(reply.backfill_id) if reply.backfill_id else None
    return BackfillResult(backfill_id, reply.occurrences, reply.unchanged)


def triggered(reply: Reply) -> Triggered:
    """Return the answer to a trigger that may have a dedupe."""
    assert reply.next_run_at is not None  # noqa: S101 - a run has a time
    return Triggered(RunId(UUID(reply.run_id)), reply.dedupe or ACCEPTED, reply.next_run_at)
