"""Firing without a scheduler process: one batch of all shards, as in its loop."""

from datetime import timedelta

from tests.fixtures.database import Database
from tidewheel.scheduler.firing import FireBatch, fire

MISFIRE_AFTER = timedelta(seconds=60)


def look_at(database: Database, *, lookahead: timedelta = timedelta(0), batch: int = 2000) -> FireBatch:
    """Build a batch of everything that is due now, or within the lookahead."""
    now = database.now()
    shards = range(database.installation.shards)
    return FireBatch(shards=shards, now=now, horizon=now + lookahead, misfire_after=MISFIRE_AFTER, limit=batch)


def fire_all(database: Database, *, lookahead: timedelta = timedelta(0)) -> None:
    while fire_due(database, lookahead=lookahead):
        pass


def fire_due(database: Database, *, lookahead: timedelta = timedelta(0), batch: int = 2000) -> int:
    with database.lent_session() as session:
        return fire(session, database.installation, look_at(database, lookahead=lookahead, batch=batch))
