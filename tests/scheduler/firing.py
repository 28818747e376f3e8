"""Firing without a scheduler process: one look at all shards, as its loop takes it."""

from datetime import timedelta

from tests.fixtures.database import Database
from tidewheel.scheduler.firing import FireBatch, fire

MISFIRE_AFTER = timedelta(seconds=60)


def look_at(database: Database, *, lookahead: timedelta = timedelta(0), batch: int = 2000) -> FireBatch:
    """A look at everything that is due now, or within the lookahead."""
    now = database.now()
    shards = range(database.installation.shards)
    return FireBatch(shards=shards, now=now, horizon=now + lookahead, misfire_after=MISFIRE_AFTER, limit=batch)


def fire_due(database: Database, *, lookahead: timedelta = timedelta(0), batch: int = 2000) -> int:
    """Fire one batch of what is due; returns how many timers were moved."""
    session = database.session()
    try:
        return fire(session, database.installation, look_at(database, lookahead=lookahead, batch=batch))
    finally:
        session.close()
