"""A run that was cancelled ahead of its time has an id that a change makes again: it never runs."""

import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from tests.fixtures.acts import about
from tests.fixtures.database import ClockedDatabase
from tests.intake.minutes import override, start_minutely
from tests.scheduler.firing import fire_due
from tidewheel.ids import job_id

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
AHEAD = 5 * SECOND
JOB = job_id("default", "job")


def cancel(database: ClockedDatabase, run: UUID) -> None:
    [reply] = database.apply_batch({"type": "run.cancel", "run_id": str(run)})
    assert reply.status == "accepted", reply.errors
    assert database.final_state(run)[0] == "cancelled"


def edit(database: ClockedDatabase, schedule: object) -> None:
    database.submit(schedule=schedule, overlap="allow_all", payload=1)


def resume(database: ClockedDatabase, schedule: object) -> None:
    database.apply_batch(about("job.pause"))
    database.apply_batch(about("job.resume"))


def edit_and_resume(database: ClockedDatabase, schedule: object) -> None:
    database.apply_batch(about("job.pause"))
    edit(database, schedule)
    database.apply_batch(about("job.resume"))


def edit_twice(database: ClockedDatabase, schedule: object) -> None:
    """The second sets back a timer that has fired nothing since the first."""
    edit(database, schedule)
    database.submit(schedule=schedule, overlap="allow_all", payload=2)


def recreate(database: ClockedDatabase, schedule: object) -> None:
    database.apply_batch(about("job.delete"))
    database.submit(schedule=schedule, overlap="allow_all")


def each_second(now: datetime) -> object:
    return "@every 1s"


def each_second_by_cron(now: datetime) -> object:
    return {"cron": "* * * * * *"}


def once(now: datetime) -> object:
    return {"once": (now + SECOND).isoformat()}


CHANGES = [
    *itertools.product((each_second, once), (edit, resume, edit_and_resume, edit_twice)),
    *itertools.product((each_second_by_cron, once), (recreate,)),
]


@pytest.mark.parametrize(("schedule", "change"), CHANGES)
def test_cancelled_run_is_not_created_again_by_a_change(
    clocked: ClockedDatabase,
    schedule: Callable[[datetime], object],
    change: Callable[[ClockedDatabase, object], None],
) -> None:
    now = clocked.stop_clock()
    made = schedule(now)
    clocked.submit(schedule=made, overlap="allow_all")
    fire_due(clocked, lookahead=AHEAD)
    before = {run.run_id for run in clocked.job_runs()}
    cancelled = [run.run_id for run in clocked.job_runs()][:2][-1]
    cancel(clocked, cancelled)
    sent = len(clocked.requests())
    change(clocked, made)
    fire_due(clocked, lookahead=AHEAD)
    others = {run.run_id for run in clocked.job_runs()}
    assert others == before - {cancelled}
    assert len(clocked.requests()) == sent + len(others)
    # The ends of the others are not refused either.
    clocked.advance(AHEAD)
    for started in clocked.claim(*others).started:
        clocked.succeed(started)
    assert {run for (run,) in clocked.rows("SELECT run_id FROM finished_runs")} == before
    assert len(clocked.completions()) == clocked.count("finished_runs") == len(before)


@pytest.mark.parametrize("ended", ["cancelled", "succeeded"])
def test_overridden_occurrence_is_not_created_again(clocked: ClockedDatabase, ended: str) -> None:
    """Moved ahead, ended, and set back to its own instant by an edit."""
    start_minutely(clocked)
    override(clocked, "move", 2, 1.5)
    clocked.advance(MINUTE + 25 * SECOND)
    fire_due(clocked, lookahead=AHEAD)
    [run] = [run for run in clocked.job_runs() if run.scheduled_at > clocked.now() + AHEAD]
    if ended == "cancelled":
        cancel(clocked, run.run_id)
    else:
        clocked.advance(AHEAD)
        clocked.succeed(clocked.claim(run.run_id).started[0])
    clocked.submit(schedule="@every 1m", overlap="allow_all", payload=1)
    clocked.advance(MINUTE)
    fire_due(clocked, lookahead=AHEAD)
    assert run.run_id not in {each.run_id for each in clocked.job_runs()}
    assert clocked.value("SELECT count(*) FROM runs WHERE run_id = %s", [run.run_id]) == 1
