"""A pause fires overdue occurrences and retracts runs ahead; a resume records the skipped ones."""

from datetime import timedelta
from typing import Any

import pytest

from tests.fixtures.acts import about, refusal
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due, instants
from tests.scheduler.test_firing import spans
from tidewheel.audit import process_user
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.generated.records import Reply

SECOND = timedelta(seconds=1)
AHEAD = 5 * SECOND


def pause(database: ClockedDatabase, **fields: Any) -> Reply:  # noqa: ANN401
    return database.accept(about("job.pause", **fields))


def resume(database: ClockedDatabase) -> Reply:
    return database.accept(about("job.resume"))


def test_paused_job_fires_nothing_and_shows_author_and_reason(ticking: ClockedDatabase) -> None:
    reply = pause(ticking, reason="migration")
    assert (reply.unchanged, reply.next_run_at, reply.job_version) == (False, None, 1)
    ticking.advance(10 * SECOND)
    assert fire_due(ticking) == 0
    assert instants(ticking) == []
    assert ticking.rows("SELECT paused, paused_by, pause_reason FROM jobs") == [
        (True, f"{process_user()} (client)", "migration")
    ]
    paused = ticking.lifecycle()[-1]
    assert (paused.type, paused.reason, paused.job_version) == ("io.tidewheel.job.paused.v1", "migration", 1)
    assert ticking.begin(ticking.trigger()).attempt == 1, "a trigger works all the same"


def test_pause_retracts_runs_ahead_and_resume_creates_them_again(ticking: ClockedDatabase) -> None:
    fire_due(ticking, lookahead=AHEAD)
    before = {run.run_id for run in ticking.job_runs()}
    assert instants(ticking) == [1, 2, 3, 4, 5]
    pause(ticking)
    assert instants(ticking) == []
    reply = resume(ticking)
    assert reply.next_run_at == ticking.value("SELECT created_at FROM jobs") + SECOND
    fire_due(ticking, lookahead=AHEAD)
    # The same occurrences under the same ids: nothing was lost, and nothing can run twice.
    assert {run.run_id for run in ticking.job_runs()} == before
    assert spans(ticking) == []


def test_runs_due_before_a_pause_run_and_later_ones_do_not(ticking: ClockedDatabase) -> None:
    fire_due(ticking, lookahead=AHEAD)
    ticking.advance(2 * SECOND)
    pause(ticking)
    assert instants(ticking) == [1, 2]
    ticking.advance(10 * SECOND)
    assert len(ticking.claim(*(run.run_id for run in ticking.job_runs())).started) == 2


def test_occurrences_of_a_pause_are_skipped_as_one_recorded_span(ticking: ClockedDatabase) -> None:
    ticking.advance(2 * SECOND)
    fire_due(ticking)
    pause(ticking)
    ticking.advance(100 * SECOND)
    reply = resume(ticking)
    assert spans(ticking) == [("paused", 3, 102, 100, True)]
    assert reply.next_run_at == ticking.now() + SECOND
    ticking.advance(SECOND)
    fire_due(ticking)
    assert instants(ticking) == [1, 2, 103]
    [skipped] = [event for event in ticking.lifecycle() if event.type == "io.tidewheel.occurrence.skipped.v1"]
    assert (skipped.reason, skipped.detail["occurrences"], skipped.detail["is_exact"]) == ("paused", "100", "true")


def test_once_inside_a_pause_fires_on_resume(clocked: ClockedDatabase) -> None:
    now = clocked.stop_clock()
    clocked.submit(schedule={"once": (now + SECOND).isoformat()})
    pause(clocked)
    clocked.advance(timedelta(days=2))
    assert resume(clocked).next_run_at == now + SECOND
    fire_due(clocked)
    [run] = clocked.job_runs()
    assert (run.scheduled_at, run.publish_at) == (now + SECOND, clocked.now())


def test_once_written_ahead_is_retracted_by_a_pause_and_fires_after_it(clocked: ClockedDatabase) -> None:
    """Written ahead, its timer is gone and the job finished: the pause brings both back."""
    now = clocked.stop_clock()
    clocked.submit(schedule={"once": (now + SECOND).isoformat()})
    fire_due(clocked, lookahead=AHEAD)
    assert clocked.count("timers") == 0
    pause(clocked)
    assert clocked.job_runs() == []
    assert clocked.rows("SELECT finished_at FROM jobs") == [(None,)]
    clocked.advance(10 * SECOND)
    resume(clocked)
    fire_due(clocked)
    assert [run.scheduled_at for run in clocked.job_runs()] == [now + SECOND]


def test_a_delayed_trigger_survives_pause_edit_and_resume(ticking: ClockedDatabase) -> None:
    delayed = ticking.open_run(ticking.trigger(delay="1h", payload={"to": "ann"}))
    pause(ticking)
    ticking.submit(schedule="@every 2s", overlap="allow_all")
    resume(ticking)
    assert ticking.open_run(delayed.run_id) == delayed
    ticking.advance(timedelta(hours=1))
    assert ticking.begin(delayed.run_id).attempt == 1
    [message] = [request for request in ticking.requests() if request.run_id == str(delayed.run_id)]
    assert (message.job_version, message.payload) == (1, b'{"to":"ann"}')


def test_pending_retry_survives_pause_edit_and_resume(ticking: ClockedDatabase) -> None:
    """Also one of a timer-made run: it has begun, so its instant is no more ahead."""
    fire_due(ticking, lookahead=SECOND)
    ticking.advance(SECOND)
    [run] = ticking.job_runs()
    ticking.requeue(ticking.begin(run.run_id), AttemptOutcome.FAILED, timedelta(minutes=5))
    waiting = ticking.open_run(run.run_id)
    pause(ticking)
    ticking.submit(schedule="@every 2s", overlap="allow_all")
    resume(ticking)
    assert ticking.open_run(run.run_id) == waiting
    ticking.advance(timedelta(minutes=5))
    assert ticking.begin(run.run_id).attempt == 2


AT = "2199-01-01T00:00:00Z"
KINDS: dict[str, dict[str, object]] = {
    "trigger": {}, "pause": {}, "resume": {}, "delete": {}, "delete of a version": {"if_version": 3},
    "rollback": {"version": 1}, "skip": {"at": AT}, "move": {"at": AT, "to": AT}, "unskip": {"at": AT},
    "backfill": {"from": AT, "to": AT},
}  # fmt: skip


@pytest.mark.parametrize("gone", ["nobody", "job"])
@pytest.mark.parametrize("kind", KINDS)
def test_unknown_or_deleted_job_is_refused_by_name(with_job: Database, kind: str, gone: str) -> None:
    with_job.accept(about("job.delete"))
    reply = with_job.apply(about(f"job.{kind.split()[0]}", gone, **KINDS[kind]))
    assert (reply.code, refusal(reply).path, reply.run_id) == ("unknown_job", "key", None)
    assert refusal(reply).problem == f"tenant 'default' has no job '{gone}'"


def test_a_manual_job_can_be_paused_and_resumed(clocked: ClockedDatabase) -> None:
    clocked.submit()
    assert (pause(clocked).unchanged, resume(clocked).unchanged) == (False, False)
    assert clocked.count("timers") == 0
