"""Cancellations by filter end each run once, a batch at a time, and finish when none is left."""

from collections.abc import Iterable
from datetime import timedelta
from types import ModuleType
from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR, about, ending
from tests.fixtures.database import Database
from tests.intake.test_cancel_filter import cancel
from tests.scheduler.firing import fire_due
from tests.scheduler.test_firing import scheduler_of
from tests.transitions.overlapping import signals
from tidewheel.ids import job_id
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.scheduler import cancels
from tidewheel.scheduler import cancels as module
from tidewheel.scheduler.cancels import BulkCancel, CancelResult, PendingCancels
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.requeue import Wait, wait_runs


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches so small that every walk is made of several."""
    monkeypatch.setattr(module, "_BATCH_ROWS", 3)
    monkeypatch.setattr(module, "_SCAN_ROWS", 5)


def step_until_idle(database: Database, *, most: int = 200) -> list[CancelResult]:
    cancelling = BulkCancel(database.session(), database.installation)
    steps: list[CancelResult] = []
    while not steps or steps[-1].more:
        assert len(steps) < most
        steps.append(cancelling.step())
    return steps


def states(database: Database, runs: Iterable[UUID]) -> list[str]:
    found = dict(database.rows("SELECT run_id, state FROM runs"))
    return [found[run] for run in runs]


def progress(database: Database, number: int) -> tuple[int, bool]:
    [(cancelled, finished)] = database.rows(
        "SELECT cancelled_count, finished_at IS NOT NULL FROM cancellations WHERE id = %s", [number]
    )
    return cancelled, finished


def refuse_end(monkeypatch: pytest.MonkeyPatch, duty: ModuleType, poison: UUID) -> list[UUID]:
    """Let a duty not end this run; return a list that grows with each try."""
    tries: list[UUID] = []

    def fails(connection: object, installation: object, ends: list[module.RunEnd]) -> object:
        if any(each.run_id == poison for each in ends):
            tries.append(poison)
            message = "a row that cannot be worked with"
            raise ValueError(message)
        return finish_runs(connection, installation, ends)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(duty, "finish_runs", fails)
    return tries


def test_unstarted_run_is_cancelled_with_event_and_reason(with_job: Database) -> None:
    runs = [with_job.trigger(), with_job.trigger(delay="1h")]
    number = cancel(with_job, key="job", reason="wrong list")
    step_until_idle(with_job)
    assert [with_job.final_state(run) for run in runs] == [("cancelled", "wrong list")] * 2
    assert sorted(event.run_id for event in with_job.completions()) == sorted(map(str, runs))
    assert progress(with_job, number) == (2, True)
    assert with_job.job_runs() == []


def test_runs_of_every_state_are_cancelled(with_job: Database) -> None:
    with_job.submit("turns", overlap="buffer_all")
    retrying, waiting, running, holder = with_job.begun(), with_job.begun(), with_job.begun(), with_job.begun("turns")
    queued, buffered = with_job.trigger(), with_job.trigger("turns")
    with_job.claim(buffered)
    with_job.requeue(retrying, AttemptOutcome.FAILED, timedelta(hours=1))
    with_job.within(wait_runs, [Wait(waiting.run_id, waiting.attempt, EXECUTOR, timedelta(hours=1))])
    number = cancel(with_job, handler="send-email")
    step_until_idle(with_job)
    assert states(with_job, [retrying.run_id, waiting.run_id, queued, buffered]) == ["cancelled"] * 4
    assert {run.run_id: run.state for run in with_job.job_runs()} == {
        running.run_id: "cancelling",
        holder.run_id: "cancelling",
    }
    assert {signal[0] for signal in signals(with_job)} == {running.run_id, holder.run_id}
    assert progress(with_job, number) == (6, True)
    with_job.succeed(running)
    with_job.succeed(holder)
    assert states(with_job, [running.run_id, holder.run_id]) == ["cancelled"] * 2
    assert with_job.active_run_of(job_id("default", "turns")) is None


def test_started_runs_continue_if_requested(with_job: Database) -> None:
    running, retrying, fresh = with_job.begun(), with_job.begun(), with_job.trigger()
    with_job.requeue(retrying, AttemptOutcome.FAILED, timedelta(hours=1))
    number = cancel(with_job, key="job", include_started=False)
    step_until_idle(with_job)
    assert {run.state for run in with_job.job_runs()} == {"running", "retrying"}
    assert (states(with_job, [fresh]), progress(with_job, number)) == (["cancelled"], (1, True))
    assert with_job.attempts(running.run_id) == []


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("named", [{"key": "a"}, {"labels": {"x": "1"}}, {"handler": "one"}], ids=str)
def test_scan_of_many_steps_cancels_all_matching_runs_only(database: Database, named: dict[str, object]) -> None:
    database.submit("a", labels={"x": "1"}, target="one")
    database.submit("b", target="other")
    database.submit("c", labels={"x": "1"}, target="one")
    runs = {key: [database.trigger(key) for _ in range(12)] for key in ("a", "b", "c")}
    number = cancel(database, **named)
    steps = step_until_idle(database)
    assert max(step.ended for step in steps) == 3
    wanted = runs["a"] if "key" in named else runs["a"] + runs["c"]
    assert progress(database, number) == (len(wanted), True)
    assert {run.run_id for run in database.job_runs()} == {run for each in runs.values() for run in each} - set(wanted)
    assert database.count("cancelled_jobs") == 0


@pytest.mark.usefixtures("few_at_once")
def test_cancellations_are_advanced_in_rotation(database: Database) -> None:
    for key in ("a", "b"):
        database.submit(key)
    for _ in range(9):
        for key in ("a", "b"):
            database.trigger(key)
    numbers = [cancel(database, key=key) for key in ("a", "b")]
    cancelling = BulkCancel(database.session(), database.installation)
    while progress(database, numbers[1])[0] < 9:
        assert cancelling.step().more
        done = [progress(database, number)[0] for number in numbers]
        assert abs(done[0] - done[1]) <= 3
    step_until_idle(database)
    assert [progress(database, number) for number in numbers] == [(9, True), (9, True)]


@pytest.mark.parametrize("damage", ["infinity", "-infinity", "294000-01-01Z"])
def test_cancellation_or_run_that_cannot_be_read_stops_no_other(with_job: Database, damage: str) -> None:
    number, others = cancel(with_job, key="job"), [with_job.trigger() for _ in range(3)]
    with_job.execute("UPDATE cancellations SET created_before = %s WHERE id = %s", [damage, number])
    runs = [with_job.trigger() for _ in range(3)]
    with_job.execute("UPDATE job_runs SET scheduled_at = %s WHERE run_id = %s", [damage, others[0]])
    cancel(with_job, key="job")
    step_until_idle(with_job)
    assert states(with_job, [*others[1:], *runs]) == ["cancelled"] * 5


@pytest.mark.usefixtures("few_at_once")
def test_running_attempts_are_stopped_before_other_runs_end(with_job: Database) -> None:
    for _ in range(9):
        with_job.trigger()
    running = with_job.begun()
    cancel(with_job, key="job")
    cancelling = BulkCancel(with_job.session(), with_job.installation)
    while not signals(with_job):
        assert cancelling.step().ended == 0
    assert with_job.open_run(running.run_id).state == "cancelling"
    assert len(with_job.job_runs()) == 10


def test_locked_runs_are_retried_before_cancellation_finishes(with_job: Database) -> None:
    run = with_job.trigger()
    number = cancel(with_job, key="job")
    holding = with_job.connection()
    holding.execute("SELECT 1 FROM job_runs WHERE run_id = %s FOR UPDATE", [run])
    steps = step_until_idle(with_job)
    assert (steps[-1].more, progress(with_job, number)) == (False, (0, False))
    holding.rollback()
    step_until_idle(with_job)
    assert (states(with_job, [run]), progress(with_job, number)) == (["cancelled"], (1, True))


def test_cancellation_locked_by_another_scheduler_is_skipped(with_job: Database) -> None:
    with_job.trigger()
    number = cancel(with_job, key="job")
    other = with_job.connection()
    other.execute("SELECT 1 FROM cancellations WHERE id = %s FOR UPDATE", [number])
    assert {step.ended for step in step_until_idle(with_job)} == {0}
    other.rollback()
    assert sum(step.ended for step in step_until_idle(with_job)) == 1


def test_run_that_ends_concurrently_is_not_counted(with_job: Database) -> None:
    started = with_job.begun()
    number = cancel(with_job, key="job")
    with_job.end(ending(started, RunState.SUCCEEDED))
    step_until_idle(with_job)
    assert (with_job.final_state(started.run_id)[0], progress(with_job, number)) == ("succeeded", (0, True))


def test_run_promoted_from_a_cancelled_active_run_does_not_start(database: Database) -> None:
    database.submit(overlap="buffer_all")
    holder = database.begun()
    waiters = [database.trigger() for _ in range(3)]
    database.claim(*waiters)
    cancel(database, key="job")
    database.within(finish_runs, database.installation, [ending(holder, RunState.SUCCEEDED)])
    [released] = [run.run_id for run in database.job_runs() if run.state == "queued"]
    assert database.claim(released).started == []
    step_until_idle(database)
    assert (states(database, waiters), database.count("active_runs")) == (["cancelled"] * 3, 0)


def test_fixed_delay_job_continues_after_cancelled_run(database: Database) -> None:
    database.submit(schedule={"fixed_delay": "1h"})
    fire_due(database)
    [run] = database.job_runs()
    cancel(database, key="job")
    step_until_idle(database)
    assert states(database, [run.run_id]) == ["cancelled"]
    [(held, ahead)] = database.rows("SELECT hold_reason, due_at - tidewheel_now() FROM timers")
    assert held is None
    assert timedelta(minutes=59) < ahead <= timedelta(hours=1)


def test_deleting_job_cancels_its_backlog(with_job: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewheel.intake.lifecycle._MAX_CANCELLED", 2)
    running, *runs = with_job.begun().run_id, *(with_job.trigger() for _ in range(5))
    with_job.apply_batch(about("job.delete"))
    left = [run.run_id for run in with_job.job_runs() if run.state == "queued"]
    assert len(left) == 3
    assert all(with_job.claim(run).started == [] for run in left)
    step_until_idle(with_job)
    assert {with_job.final_state(run) for run in runs} == {("cancelled", "job_deleted")}
    assert with_job.open_run(running).state == "running"


def test_run_that_cannot_be_ended_blocks_no_other_and_is_retried_after_a_pause(
    with_job: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, *others = [with_job.trigger() for _ in range(4)]
    number = cancel(with_job, key="job")
    tries = refuse_end(monkeypatch, module, run)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.0)
    cancelling = BulkCancel(with_job.session(), with_job.installation)
    for _ in range(20):
        cancelling.step()
    assert (states(with_job, others), progress(with_job, number)) == (["cancelled"] * 3, (3, False))
    assert with_job.claim(run).started == []
    before = len(tries)
    cancelling.step()
    assert len(tries) == before
    # A scheduler that is started anew tries once more; what was wrong has been mended.
    monkeypatch.setattr(module, "finish_runs", finish_runs)
    step_until_idle(with_job)
    assert (states(with_job, [run]), progress(with_job, number)) == (["cancelled"], (4, True))


def want(database: Database, *runs: UUID) -> None:
    for run in runs:
        database.execute(
            "INSERT INTO pending_cancels (run_id, tenant, reason) VALUES (%s, 'default', 'requested')", [run]
        )


def test_scheduler_applies_pending_cancels(with_job: Database) -> None:
    over, running, queued = with_job.begun(), with_job.begun(), with_job.trigger()
    with_job.end(ending(over, RunState.SUCCEEDED))
    want(with_job, over.run_id, running.run_id, queued, queued)
    with scheduler_of(with_job) as scheduler:
        scheduler.step()
    assert states(with_job, [over.run_id, queued]) == ["succeeded", "cancelled"]
    assert with_job.open_run(running.run_id).state == "cancelling"
    assert [signal[0] for signal in signals(with_job)] == [running.run_id]
    assert with_job.count("pending_cancels") == 0


def test_locked_runs_do_not_hide_other_pending_cancels(with_job: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancels, "_MAX_APPLIED", 2)
    runs = [with_job.trigger() for _ in range(5)]
    want(with_job, *runs)
    wanted = PendingCancels(with_job.session(), with_job.installation)
    with with_job.transaction() as holding:
        holding.execute("SELECT FROM job_runs WHERE run_id = ANY (%s) FOR UPDATE", [runs[:3]])
        assert [wanted.step().ended for _ in range(3)] == [0, 1, 1]
    assert sum(wanted.step().ended for _ in range(3)) == 3
    assert with_job.count("pending_cancels") == 0


def test_failing_pending_cancel_does_not_block_others(with_job: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    poison, *others = [with_job.trigger() for _ in range(3)]
    want(with_job, poison, *others)
    tries = refuse_end(monkeypatch, cancels, poison)
    wanted = PendingCancels(with_job.session(), with_job.installation)
    assert [wanted.step().ended for _ in range(3)] == [2, 0, 0]
    assert states(with_job, others) == ["cancelled"] * 2
    assert (len(tries), with_job.count("pending_cancels")) == (2, 1)
