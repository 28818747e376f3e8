"""The stages of a run in the order of time, with their clocks, and the messages of its claims."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

from tidewheel.control.reads.json_form import one_of
from tidewheel.runs import OWNED, RunState

if TYPE_CHECKING:
    from tidewheel.control.reads.run_detail import PastAttempt
    from tidewheel.control.reads.runs import RunSummary
Clock = Literal["database", "broker", "executor"]
_NAMES = ("due", "written", "published", "claimed", "begun", "ended", "announced")
_MESSAGE = re.compile(r"(?P<topic>.+)/(?P<partition>\d+)/(?P<offset>\d+)@(?P<timestamp>-?\d+)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = 253_402_300_799_999  # milliseconds of the last instant that Python has


@dataclass(frozen=True, slots=True)
class RunStage:
    """A stage of a run.

    Two clocks are never compared without a notice: the broker's and an executor's differ from the database's.

    Args:
        name: `due`, `written`, `published` on Kafka, `claimed`, `begun` by the handler, `ended`, or `announced` by the
            completion event.
        attempt: Its attempt; None for stages of the whole run.
        at: Its instant; None if it is not recorded, or has not come.
        clock: The clock that gives the instant.
        known: False if the instant is not recorded though the stage was passed.
    """

    name: Annotated[str, one_of(_NAMES)]
    attempt: int | None
    at: datetime | None
    clock: Annotated[str, one_of(("database", "broker", "executor"))]
    known: bool


def run_stages(
    summary: "RunSummary", attempts: Sequence["PastAttempt"], claimed_from: str | None
) -> tuple[RunStage, ...]:
    """Return the stages of a run from its ended attempts, the oldest first, and its current claim."""
    return tuple(_stages(summary, attempts, claimed_from))


@dataclass(frozen=True, slots=True)
class ClaimMessage:
    """The Kafka message by which an attempt was claimed.

    Args:
        attempt: The attempt.
        topic: The message's topic; None if the sweep claimed the attempt.
        partition: Its partition.
        offset: Its offset.
        timestamp: The broker's time of it.
        claimed_from: The stored text.
    """

    attempt: int
    topic: str | None
    partition: int | None
    offset: int | None
    timestamp: datetime | None
    claimed_from: str


def claim_message(attempt: int, text: str) -> ClaimMessage:
    """Parse the stored text of `claimed_from`.

    >>> claim_message(1, "tidewheel.runs.standard/3/41@1700000000000").timestamp
    datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.timezone.utc)
    >>> claim_message(2, "sweep").topic
    """
    found = _MESSAGE.fullmatch(text)
    if found is None:
        return ClaimMessage(attempt, None, None, None, None, text)
    stamp = int(found["timestamp"])
    at = _EPOCH + timedelta(milliseconds=stamp) if 0 < stamp <= _LATEST else None
    return ClaimMessage(attempt, found["topic"], int(found["partition"]), int(found["offset"]), at, text)


def _stages(summary: "RunSummary", attempts: Sequence["PastAttempt"], claimed_from: str | None) -> Iterator[RunStage]:
    yield _stage("due", None, summary.scheduled_at)
    yield _stage("written", None, summary.created_at)
    for each in attempts:
        yield from _attempt(each.attempt, each.claimed_from, each.started_at)
        yield _stage("ended", each.attempt, each.finished_at)
    ended = {each.attempt for each in attempts}
    is_claimed = summary.status in {*OWNED, RunState.WAITING} or (
        summary.finished_at is not None and summary.started_at is not None
    )
    if is_claimed and summary.attempt not in ended:
        yield from _attempt(summary.attempt, claimed_from, summary.started_at)
    if summary.finished_at is not None:
        if summary.attempt not in ended:
            yield _stage("ended", summary.attempt or None, summary.finished_at)
        yield RunStage("announced", None, None, "broker", known=False)


def _attempt(attempt: int, claimed_from: str | None, claimed_at: datetime | None) -> Iterator[RunStage]:
    message = None if claimed_from is None else claim_message(attempt, claimed_from)
    yield _stage("published", attempt, None if message is None else message.timestamp, "broker")
    yield _stage("claimed", attempt, claimed_at)
    yield RunStage("begun", attempt, None, "executor", known=False)


def _stage(name: str, attempt: int | None, at: datetime | None, clock: Clock = "database") -> RunStage:
    return RunStage(name, attempt, at, clock, at is not None)
