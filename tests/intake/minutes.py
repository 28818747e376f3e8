"""A job that fires each minute, with its overrides and their results in minutes."""

from datetime import datetime, timedelta
from typing import Any

from tests.fixtures.acts import about
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due
from tidewheel.schemas.generated.records import Reply

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
MINUTELY = {"schedule": "@every 1m", "overlap": "allow_all"}


def minute(database: ClockedDatabase, number: float) -> datetime:
    """So many minutes after the job's first acceptance: for whole ones, an occurrence."""
    return database.value("SELECT created_at FROM jobs ORDER BY created_at LIMIT 1") + number * MINUTE


def request_override(database: ClockedDatabase, what: str, number: float, **fields: Any) -> Reply:  # noqa: ANN401
    return database.apply(about(f"job.{what}", at=minute(database, number).isoformat(), **fields))


def override(database: ClockedDatabase, what: str, number: float, to: float | None = None) -> Reply:
    reply = request_override(database, what, number, **({} if to is None else {"to": minute(database, to).isoformat()}))
    assert reply.status == "accepted", reply.errors
    return reply


def fire_for(
    database: ClockedDatabase, minutes: float, *, step: timedelta = 10 * SECOND, ahead: timedelta = 5 * SECOND
) -> None:
    end = database.now() + minutes * MINUTE
    while database.now() < end:
        fire_due(database, lookahead=ahead)
        database.advance(step)
    fire_due(database, lookahead=ahead)


def runs(database: ClockedDatabase) -> list[tuple[float, float]]:
    """The runs there are: nominal minute and the minute in which they may leave, by the latter."""
    start = minute(database, 0)
    found = [((run.scheduled_at - start) / MINUTE, (run.publish_at - start) / MINUTE) for run in database.job_runs()]
    return sorted(found, key=lambda run: (run[1], run[0]))


def manual_skips(database: ClockedDatabase) -> list[float]:
    rows = skipped(database, "manual")
    assert all(count == 1 for _, _, count in rows)
    return [first for first, _, _ in rows]


def missed(database: ClockedDatabase) -> set[float]:
    """The minutes recorded as passed over because firing came too late for them."""
    return {at for first, last, _ in skipped(database, "misfire") for at in range(round(first), round(last) + 1)}


def skipped(database: ClockedDatabase, reason: str) -> list[tuple[float, float, int]]:
    """Each recorded span: its first minute, its last, how many."""
    asked = "SELECT first_at, last_at, occurrences FROM skips WHERE reason = %s ORDER BY first_at"
    zero = minute(database, 0)
    return [((f - zero) / MINUTE, (to - zero) / MINUTE, count) for f, to, count in database.rows(asked, [reason])]


def kinds(database: Database) -> list[str]:
    return [event.type.removeprefix("io.tidewheel.").removesuffix(".v1") for event in database.lifecycle()]
