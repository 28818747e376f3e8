"""The Kafka message by which an attempt was claimed, from its stored text."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_MESSAGE = re.compile(r"(?P<topic>.+)/(?P<partition>\d+)/(?P<offset>\d+)@(?P<timestamp>-?\d+)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = 253_402_300_799_999  # milliseconds of the last instant that Python has


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
