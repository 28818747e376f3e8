"""Explain instants in a database whose clock the test moves."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from tests.fixtures.acts import about
from tests.fixtures.database import Database
from tests.scheduler.firing import fire_due
from tidewheel.control.explain.explain import explain
from tidewheel.control.explain.explanation import Explanation
from tidewheel.control.explain.preview import Preview, preview
from tidewheel.control.explain.upcoming import Upcoming, upcoming
from tidewheel.schemas.generated.records import ReplyStatus


def t(text: str) -> datetime:
    """An instant, as `03-29T01:00` of 2026 in UTC."""
    return datetime.fromisoformat(f"2026-{text}+00:00")


def explanation_of(database: Database, at: datetime, key: str = "job") -> Explanation:
    """Return the explanation of an instant."""
    return database.within(explain, "default", key, at)


def coming(database: Database, n: int = 10, key: str = "job") -> Upcoming:
    """Return the next occurrences of a job."""
    return database.within(upcoming, "default", key, n)


def previewed(database: Database, n: int = 10, after: datetime | None = None, /, **job: object) -> Preview:
    """Return the preview of a job."""
    document: Mapping[str, object] = {"key": "job", "schedule": "manual", "target": "send-email"} | job
    return database.within(preview, "default", document, n, after)


def done(database: Database, kind: str, key: str = "job", **fields: object) -> None:
    """Ask something about a job, which is accepted."""
    [reply] = database.apply_batch(about(kind, key, **fields))
    assert reply.status is ReplyStatus.ACCEPTED, reply.errors


def calendar(database: Database, name: str = "closed", **days: object) -> None:
    """Put a calendar."""
    [reply] = database.apply_batch({"type": "calendar.put", "name": name, **days})
    assert reply.status is ReplyStatus.ACCEPTED, reply.errors


def fire_all(database: Database, *, lookahead: timedelta = timedelta(0)) -> None:
    """Fire until nothing is due."""
    while fire_due(database, lookahead=lookahead):
        pass
