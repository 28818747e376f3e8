"""Pause, edit and delete exclude a firing in flight by the timer's lock."""

from datetime import timedelta

import pytest
from psycopg.rows import class_row

from tests.fixtures.acts import about, submission
from tests.fixtures.database import ClockedDatabase
from tests.intake.test_edit import made
from tests.scheduler.firing import fire_due, look_at
from tests.transitions.stepping import batch_behind, in_background, until_blocked
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.scheduler.firing import fire
from tidewheel.schedules.decide import decide
from tidewheel.schedules.timer_state import timer_state
from tidewheel.transitions.timers import LockedTimer, advance_timers

SECOND = timedelta(seconds=1)
AHEAD = 5 * SECOND
EDIT = submission(schedule="@every 2s", overlap="allow_all")


@pytest.fixture
def due(ticking: ClockedDatabase) -> ClockedDatabase:
    """A job that fires each second: one instant has come, the others lie within the lookahead."""
    ticking.advance(1.5 * SECOND)
    return ticking


def lock_due(database: ClockedDatabase, connection: Conn) -> list[LockedTimer]:
    """The first half of a firing transaction: the timers are locked, nothing is written."""
    look = look_at(database, lookahead=AHEAD)
    columns = {
        "shards": list(look.shards),
        "since": [look.since] * len(look.shards),
        "until": look.horizon,
        "now": look.now,
        "per_shard": 100,
    }
    with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
        return cursor.execute(Statements("tidewheel.scheduler")["lock_due_timers"], columns).fetchall()


def write_fired(database: ClockedDatabase, connection: Conn, locked: list[LockedTimer]) -> None:
    """The second half: runs are written and the timers moved."""
    look = look_at(database, lookahead=AHEAD)

    def decided(timer: LockedTimer) -> object:
        return decide(timer_state(timer, {}), now=look.now, horizon=look.horizon, misfire_after=look.misfire_after)

    advance_timers(connection, database.installation, locked, decided, now=look.now)  # type: ignore[arg-type]


# Fields in seconds are instants, so many after the job's creation.
CHANGES: dict[str, dict[str, object]] = {
    "pause": about("job.pause"),
    "edit": EDIT,
    "delete": about("job.delete"),
    "skip": about("job.skip", at=2.0),
    "move": about("job.move", at=2.0, to=2.5),
}


def changing(database: ClockedDatabase, name: str) -> dict[str, object]:
    start = database.value("SELECT created_at FROM jobs")
    return {
        field: (start + value * SECOND).isoformat() if isinstance(value, float) else value
        for field, value in CHANGES[name].items()
    }


@pytest.mark.parametrize("name", CHANGES)
def test_change_waits_for_a_concurrent_firing_and_retracts_its_runs(due: ClockedDatabase, name: str) -> None:
    document = changing(due, name)
    firing, waiting = due.connection(), due.connection()
    locked = lock_due(due, firing)
    assert len(locked) == 1
    replies = in_background(lambda: due.apply_batch_within(waiting, document))
    until_blocked(due, waiting)
    write_fired(due, firing, locked)
    firing.commit()
    assert [reply.status for reply in replies.result(30)] == ["accepted"]
    waiting.commit()
    # The instant that had come was fired; those ahead are gone, and with them their rows.
    assert made(due) == [(1, 1)]


@pytest.mark.parametrize("name", CHANGES)
def test_firing_skips_a_timer_locked_by_a_change(due: ClockedDatabase, name: str) -> None:
    document, locking = changing(due, name), due.connection()
    due.apply_batch_within(locking, document)
    assert fire_due(due, lookahead=AHEAD) == 0
    locking.commit()
    # The change settled what had come, by the version in force before it.
    assert made(due) == [(1, 1)]


@pytest.mark.parametrize("first", ["pause", "edit"])
def test_concurrent_changes_of_a_job_are_applied_in_turn(due: ClockedDatabase, first: str) -> None:
    changes = [about("job.pause"), EDIT] if first == "pause" else [EDIT, about("job.pause")]
    [reply] = batch_behind(due, lambda connection: due.apply_batch_within(connection, changes[0]), changes[1])
    assert reply.status == "accepted"
    assert due.rows("SELECT paused, version FROM jobs") == [(True, 2)]
    assert due.rows("SELECT version, due_at = 'infinity' FROM timers") == [(2, True)]
    assert made(due) == [(1, 1)]


def test_concurrent_creations_of_a_job_create_one(clocked: ClockedDatabase) -> None:
    first = submission(payload=1)
    [reply] = batch_behind(
        clocked, lambda connection: clocked.apply_batch_within(connection, first), submission(payload=2)
    )
    assert reply.job_version == 2
    assert clocked.rows("SELECT version FROM jobs") == [(2,)]


def test_concurrent_firings_and_edits_leave_one_run_per_instant(due: ClockedDatabase) -> None:
    """Without stepping: each instant has one run, of a version that was in force."""
    session, editing = due.session(), due.session()

    def fires() -> None:
        for _ in range(25):
            due.advance(SECOND / 2)
            fire(session, due.installation, look_at(due, lookahead=AHEAD))

    def edits() -> None:
        for number in range(25):
            with editing.transaction() as connection:
                due.apply_batch_within(
                    connection, submission(schedule="@every 1s", overlap="allow_all", payload=number)
                )

    for done in (in_background(fires), in_background(edits)):
        done.result(30)
    fire(session, due.installation, look_at(due, lookahead=AHEAD))
    instants = [at for at, _ in made(due)]
    assert instants == [float(n) for n in range(1, len(instants) + 1)]
    assert len(due.job_runs()) == len(instants)
