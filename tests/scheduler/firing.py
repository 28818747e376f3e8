"""Firing without a scheduler process: one batch of all shards, as in its loop."""

from datetime import timedelta

from tests.fixtures.database import Database
from tidewheel.scheduler.firing import FireBatch, fire

MISFIRE_AFTER = timedelta(seconds=60)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
EACH_SECOND = {"schedule": "@every 1s", "overlap": "allow_all"}


def look_at(database: Database, *, lookahead: timedelta = timedelta(0), batch: int = 2000) -> FireBatch:
    """Build a batch of everything that is due now, or within the lookahead."""
    now = database.now()
    shards = range(database.installation.shards)
    return FireBatch(shards=shards, now=now, horizon=now + lookahead, misfire_after=MISFIRE_AFTER, limit=batch)


def instants(database: Database, unit: timedelta = SECOND) -> list[float]:
    """Return the instants of all runs, in units since the first submission."""
    accepted_at = database.value("SELECT min(created_at) FROM jobs")
    return [(at - accepted_at) / unit for (at,) in database.rows("SELECT scheduled_at FROM runs ORDER BY scheduled_at")]


def skips(database: Database) -> list[tuple[str, int]]:
    """Return reason and number of each skip, in the order of the instants."""
    return database.rows("SELECT reason, occurrences FROM skips ORDER BY first_at")


def fire_all(database: Database, *, lookahead: timedelta = timedelta(0)) -> None:
    while fire_due(database, lookahead=lookahead):
        pass


def fire_due(database: Database, *, lookahead: timedelta = timedelta(0), batch: int = 2000) -> int:
    with database.lent_session() as session:
        return fire(session, database.installation, look_at(database, lookahead=lookahead, batch=batch))
