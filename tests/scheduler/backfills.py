"""Backfills without a scheduler process: requested, and their runs created a batch at a time."""

from datetime import datetime
from uuid import UUID

import pytest

from tests.fixtures.acts import about
from tests.fixtures.database import Database
from tidewheel.nouns.works.operations import Work, show_work
from tidewheel.scheduler.backfill_loop import BackfillLoop, create_next_runs
from tidewheel.schemas.generated.records import Reply, ReplyStatus


def asking(first: datetime, last: datetime, key: str = "job", **fields: object) -> dict[str, object]:
    return about("job.backfill", key, **{"from": first.isoformat(), "to": last.isoformat()}, **fields)


def ask_backfill(database: Database, first: datetime, last: datetime, key: str = "job", **fields: object) -> Reply:
    return database.apply_batch(asking(first, last, key, **fields))[0]


def accept(database: Database, first: datetime, last: datetime, key: str = "job", **fields: object) -> UUID:
    reply = ask_backfill(database, first, last, key, **fields)
    assert reply.status is ReplyStatus.ACCEPTED, reply.errors
    return UUID(reply.backfill_id)


def move(database: Database, kind: str, backfill_id: UUID, **fields: object) -> Reply:
    return database.apply_batch({"type": f"backfill.{kind}", "backfill_id": str(backfill_id)} | fields)[0]


def make_batch(database: Database, backfill_id: UUID) -> int:
    """Make the next batch of a backfill's runs; returns how many."""
    with database.lent_session() as session:
        return create_next_runs(session, database.installation, backfill_id)[0]


def look(database: Database) -> int:
    """Take one step for all backfills, without a limit of time; return the number of created runs."""
    with database.lent_session() as session, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidewheel.scheduler.backfill_loop.monotonic_seconds", lambda: 1.0)
        return BackfillLoop(session, database.installation).step(range(database.installation.shards))[0]


def progress(database: Database, backfill_id: UUID) -> Work:
    return database.within(show_work, "default", backfill_id)


def created_instants(database: Database) -> list[datetime]:
    found = database.rows("SELECT scheduled_at FROM runs WHERE cause = 'backfill' ORDER BY created_at, scheduled_at")
    return [at for (at,) in found]
