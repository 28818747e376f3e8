"""Runs of a timer that a change of their job took back, and whose messages Kafka has."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tidewheel.control.restore.history import Change, History
from tidewheel.schemas.generated.records import Cause, RunRequest

DUE = datetime(2026, 11, 24, 12, tzinfo=UTC)
RUN, JOB = UUID(int=1), UUID(int=2)
BEFORE, AFTER = -1, 1


def history(*changes: tuple[str, int, int | None], cause: Cause = Cause.TIMER, attempt: int = 1) -> History:
    """Return a history with the message of one run of version 1, and changes.

    A change has its seconds from the instant of the run.
    """
    found = History()
    found.requests[RUN] = RunRequest(
        run_id=str(RUN),
        job_id=str(JOB),
        job_version=1,
        attempt=attempt,
        cause=cause,
        shard=0,
        scheduled_at=DUE,
        publish_at=DUE,
        definition=b"",
    )
    for kind, seconds, version in changes:
        found.changes[str(JOB)].append(Change(f"io.tidewheel.job.{kind}.v1", version, DUE + timedelta(seconds=seconds)))
    return found


@pytest.mark.parametrize(
    ("changes", "taken_back"),
    [
        ([], False),
        ([("created", BEFORE, 1)], False),
        ([("updated", BEFORE, 2)], True),
        ([("updated", AFTER, 2)], False),
        ([("updated", BEFORE, 1)], False),  # its own version
        ([("paused", BEFORE, 1)], True),
        ([("paused", AFTER, 1)], False),
        ([("deleted", BEFORE, None)], True),
        ([("paused", -2, 1), ("resumed", BEFORE, 1)], False),
        ([("paused", -2, 1), ("resumed", AFTER, 1)], True),
        ([("paused", -3, 1), ("rescheduled", -2, 1), ("quarantined", BEFORE, 1)], True),
        ([("deleted", -2, None), ("created", BEFORE, 2)], True),  # it fires again by version 2
    ],
)
def test_change_before_its_time_takes_a_run_back(
    *, changes: list[tuple[str, int, int | None]], taken_back: bool
) -> None:
    assert history(*changes).was_taken_back(RUN) is taken_back


@pytest.mark.parametrize("cause", [Cause.TRIGGER, Cause.BACKFILL, Cause.RETRY, Cause.WORKFLOW])
def test_runs_of_other_causes_stay(cause: Cause) -> None:
    assert not history(("paused", BEFORE, 1), cause=cause).was_taken_back(RUN)


def test_run_that_was_tried_again_stays() -> None:
    assert not history(("paused", BEFORE, 1), attempt=2).was_taken_back(RUN)


def test_run_without_a_message_stays() -> None:
    assert not History().was_taken_back(RUN)
