"""Instants as whole numbers: what searches and arithmetic use inside, exact where floating seconds are not."""

from datetime import UTC, datetime, timedelta

from tidewheel.errors import ScheduleRefused

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def whole_second(instant: datetime) -> int:
    """Seconds since 1970-01-01 UTC, rounded down.

    >>> whole_second(datetime(1970, 1, 1, 0, 1, 0, 5, tzinfo=UTC))
    60
    """
    since = instant - _EPOCH
    return since.days * 86_400 + since.seconds


def next_second(instant: datetime) -> int:
    """Seconds since 1970-01-01 UTC, rounded up.

    >>> next_second(datetime(1970, 1, 1, 0, 1, 0, 5, tzinfo=UTC))
    61
    """
    since = instant - _EPOCH
    return since.days * 86_400 + since.seconds + (since.microseconds > 0)


def microseconds(instant: datetime) -> int:
    """Microseconds since 1970-01-01 UTC."""
    since = instant - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def at_second(second: int) -> datetime:
    """The instant of a whole second, in UTC."""
    return _EPOCH + timedelta(seconds=second)


def at_microsecond(microsecond: int) -> datetime | None:
    """The instant in UTC; None beyond what a datetime can name."""
    try:
        return _EPOCH + timedelta(microseconds=microsecond)
    except OverflowError:
        return None


def read_instant(text: object, path: str) -> datetime:
    """The instant an RFC 3339 text names, in UTC.

    >>> read_instant("2026-03-29T03:00:00+02:00", "at").isoformat()
    '2026-03-29T01:00:00+00:00'

    Raises:
        ScheduleRefused: No such text, or one without an offset.
    """
    example = "write it as RFC 3339, such as 2026-03-29T03:00:00Z"
    if isinstance(text, datetime):
        found = text
    else:
        if not isinstance(text, str) or len(text) < len("2026-03-29T03:00Z"):
            problem = f"{str(text)[:64]!r} is no instant"
            raise ScheduleRefused(problem, example, path)
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            problem = f"{text[:64]!r} is no instant"
            raise ScheduleRefused(problem, example, path) from None
    if found.tzinfo is None:
        problem = f"{str(text)[:64]!r} has no offset, so it is many instants"
        raise ScheduleRefused(problem, example, path)
    try:
        return found.astimezone(UTC)
    except OverflowError:
        problem = f"{str(text)[:64]!r} is beyond the calendar"
        raise ScheduleRefused(problem, example, path) from None
