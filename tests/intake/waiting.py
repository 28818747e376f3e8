"""Waiting runs, and requests about them by task token."""

from datetime import timedelta

from tests.fixtures.acts import EXECUTOR
from tests.fixtures.database import Database
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.claim import Started
from tidewheel.transitions.requeue import Wait, wait_runs


def token_of(database: Database, started: Started) -> str:
    return database.installation.task_tokens.sign(started.run_id, started.attempt)


def waiting(
    database: Database, key: str = "job", *, timeout: timedelta = timedelta(hours=1), heartbeat: timedelta | None = None
) -> Started:
    """A run of a job whose attempt waits for its end from outside."""
    started = database.begun(key)
    wait_for(database, started, timeout=timeout, heartbeat=heartbeat)
    return started


def wait_for(database: Database, started: Started, *, timeout: timedelta, heartbeat: timedelta | None = None) -> None:
    """Let an attempt wait, as its executor would."""
    with database.transaction() as connection:
        assert not wait_runs(connection, [Wait(started.run_id, started.attempt, EXECUTOR, timeout, heartbeat)]).busy


def completing(token: str, **fields: object) -> dict[str, object]:
    return {"type": "run.complete", "token": token} | fields


def complete(database: Database, started: Started, **fields: object) -> Reply:
    return database.apply(completing(token_of(database, started), **fields))


def beating(token: str, **fields: object) -> dict[str, object]:
    return {"type": "run.heartbeat", "token": token} | fields


def beat(database: Database, started: Started, **fields: object) -> Reply:
    return database.apply(beating(token_of(database, started), **fields))
