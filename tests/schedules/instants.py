"""Instants of a cron expression, for tests."""

from datetime import datetime

from tidewheel.schedules.describe import marked_occurrences


def next_occurrences(
    expression: str, timezone: str, after: datetime, n: int, *, hash_key: bytes | None = None
) -> list[datetime]:
    """Return the next `n` occurrences of an expression, strictly later than `after`."""
    return [each.at for each in marked_occurrences(expression, timezone, after, n, hash_key=hash_key)]
