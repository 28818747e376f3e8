"""A run that was cancelled ahead of its time has an id that a change makes again: it never runs."""

import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from tests.fixtures.database import ClockedDatabase
from tests.intake.minutes import override, start_minutely
from tests.scheduler.firing import fire_due
from tests.transitions.acts import (
    about,
    apply_batch,
    claim,
    completions,
    final_state,
    job_runs,
    requests,
    submit,
    succeed,
)
from tidewheel.ids import job_id

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
AHEAD = 5 * SECOND
JOB = job_id("default", "job")


def cancel(database: ClockedDatabase, run: UUID) -> None:
    [reply] = apply_batch(database, {"type": "run.cancel", "run_id": str(run)})
    assert reply.status == "accepted", reply.errors
    assert final_state(database, run)[0] == "cancelled"


def edit(database: ClockedDatabase, schedule: object) -> None:
    submit(database, schedule=schedule, overlap="allow_all", payload=1)


def resume(database: ClockedDatabase, schedule: object) -> None:
    apply_batch(database, about("job.pause"))
    apply_batch(database, about("job.resume"))


def edit_and_resume(database: ClockedDatabase, schedule: object) -> None:
    apply_batch(database, about("job.pause"))
    edit(database, schedule)
    apply_batch(database, about("job.resume"))


def edit_twice(database: ClockedDatabase, schedule: object) -> None:
    """The second sets back a timer that has fired nothing since the first."""
    edit(database, schedule)
    submit(database, schedule=schedule, overlap="allow_all", payload=2)


def recreate(database: ClockedDatabase, schedule: object) -> None:
    apply_batch(database, about("job.delete"))
    submit(database, schedule=schedule, overlap="allow_all")


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
    submit(clocked, schedule=made, overlap="allow_all")
    fire_due(clocked, lookahead=AHEAD)
    before = {run.run_id for run in job_runs(clocked)}
    cancelled = [run.run_id for run in job_runs(clocked)][:2][-1]
    cancel(clocked, cancelled)
    sent = len(requests(clocked))
    change(clocked, made)
    fire_due(clocked, lookahead=AHEAD)
    others = {run.run_id for run in job_runs(clocked)}
    assert others == before - {cancelled}
    assert len(requests(clocked)) == sent + len(others)
    # The ends of the others are not refused either.
    clocked.advance(AHEAD)
    for started in claim(clocked, *others).started:
        succeed(clocked, started)
    assert {run for (run,) in clocked.rows("SELECT run_id FROM finished_runs")} == before
    assert len(completions(clocked)) == clocked.count("finished_runs") == len(before)


@pytest.mark.parametrize("ended", ["cancelled", "succeeded"])
def test_overridden_occurrence_is_not_created_again(clocked: ClockedDatabase, ended: str) -> None:
    """Moved ahead, ended, and set back to its own instant by an edit."""
    start_minutely(clocked)
    override(clocked, "move", 2, 1.5)
    clocked.advance(MINUTE + 25 * SECOND)
    fire_due(clocked, lookahead=AHEAD)
    [run] = [run for run in job_runs(clocked) if run.scheduled_at > clocked.now() + AHEAD]
    if ended == "cancelled":
        cancel(clocked, run.run_id)
    else:
        clocked.advance(AHEAD)
        succeed(clocked, claim(clocked, run.run_id).started[0])
    submit(clocked, schedule="@every 1m", overlap="allow_all", payload=1)
    clocked.advance(MINUTE)
    fire_due(clocked, lookahead=AHEAD)
    assert run.run_id not in {each.run_id for each in job_runs(clocked)}
    assert clocked.value("SELECT count(*) FROM runs WHERE run_id = %s", [run.run_id]) == 1
