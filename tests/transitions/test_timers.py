"""Retraction of runs: the row goes, the same id can be created again, and claims are lost."""

from datetime import timedelta
from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.ids import job_id
from tidewheel.runs import AttemptOutcome
from tidewheel.transitions.claim import claim_runs
from tidewheel.transitions.timers import retract_runs

JOB = job_id("default", "job")
AHEAD = timedelta(seconds=5)


@pytest.fixture
def ahead(clocked: ClockedDatabase) -> ClockedDatabase:
    """A job that fires each second, five of its runs written ahead of their time."""
    clocked.stop_clock()
    clocked.submit(schedule="@every 1s", overlap="allow_all")
    fire_due(clocked, lookahead=AHEAD)
    assert len(clocked.job_runs()) == 5
    return clocked


def taken_back(database: ClockedDatabase) -> dict[UUID, object]:
    with database.transaction() as connection:
        return dict(retract_runs(connection, [JOB], now=database.now()))


def test_retracted_runs_leave_no_row(ahead: ClockedDatabase) -> None:
    first = ahead.job_runs()[0]
    assert taken_back(ahead) == {JOB: first.scheduled_at}
    assert ahead.count("runs") == 0


def test_due_run_is_not_retracted(ahead: ClockedDatabase) -> None:
    now = ahead.advance(timedelta(seconds=2))
    assert taken_back(ahead) == {JOB: now + timedelta(seconds=1)}
    assert [run.scheduled_at for run in ahead.job_runs()] == [now - timedelta(seconds=1), now]


def test_triggered_and_started_runs_are_not_retracted(ahead: ClockedDatabase) -> None:
    """Also when the clock has gone back since they began, and one of them waits for another executor."""
    triggered = ahead.trigger(delay="1h")
    running, released = ahead.job_runs()[:2]
    ahead.advance(timedelta(seconds=2))
    ahead.begin(running.run_id)
    ahead.requeue(ahead.begin(released.run_id), AttemptOutcome.RELEASED)
    ahead.advance(timedelta(seconds=-2))
    taken_back(ahead)
    assert {run.run_id for run in ahead.job_runs()} == {triggered, running.run_id, released.run_id}


def test_message_of_a_retracted_run_claims_nothing(ahead: ClockedDatabase) -> None:
    wanted = ahead.requested_claim(ahead.job_runs()[0].run_id)
    taken_back(ahead)
    ahead.advance(AHEAD)
    with ahead.transaction() as connection:
        assert claim_runs(connection, ahead.installation, [wanted], executor_id=EXECUTOR).started == []


def test_retraction_waits_for_a_concurrent_claim_which_wins(ahead: ClockedDatabase) -> None:
    """The claim's row is locked: taking back waits for it and then finds a run that has begun."""
    first = ahead.job_runs()[0]
    wanted = ahead.requested_claim(first.run_id)
    before = ahead.now()
    ahead.advance(timedelta(seconds=1))
    claiming, taking = ahead.connection(), ahead.connection()
    assert len(claim_runs(claiming, ahead.installation, [wanted], executor_id=EXECUTOR).started) == 1
    waiting = in_background(lambda: retract_runs(taking, [JOB], now=before))
    until_blocked(ahead, taking)
    claiming.commit()
    assert first.scheduled_at not in waiting.result(30).values()
    taking.commit()
    assert [run.run_id for run in ahead.job_runs()] == [first.run_id]


def test_ended_schedule_finishes_its_job(clocked: ClockedDatabase) -> None:
    now = clocked.stop_clock()
    clocked.submit(schedule={"once": (now + timedelta(seconds=1)).isoformat()})
    clocked.advance(timedelta(seconds=2))
    fire_due(clocked)
    assert clocked.count("timers") == 0
    assert clocked.value("SELECT finished_at FROM jobs") == clocked.now()
    assert len(clocked.claim(*(run.run_id for run in clocked.job_runs())).started) == 1
    assert [event.type for event in clocked.lifecycle()] == ["io.tidewheel.job.created.v1"]
