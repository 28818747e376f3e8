"""Cancels of runs that wait, run, or are written ahead; the order of locks."""

import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from tests.fixtures.acts import EXECUTOR, about, cancelling, ending, refusal, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.intake.minutes import override
from tests.scheduler.firing import fire_due
from tests.transitions.stepping import batch_behind, behind, in_background, until_blocked
from tidewheel.intake import locks as busy
from tidewheel.intake.locks import RowLocked
from tidewheel.postgres.session import Conn
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.claim import claim_runs
from tidewheel.transitions.finish import finish_runs


def cancel(database: Database, run_id: UUID, **fields: object) -> Reply:
    return database.apply(cancelling(run_id, **fields))


def test_run_awaiting_a_retry_is_cancelled_at_once(with_job: Database) -> None:
    started = with_job.begun()
    with_job.requeue(started, AttemptOutcome.FAILED, timedelta(hours=1))
    assert cancel(with_job, started.run_id).run_status == "retrying"
    assert with_job.final_state(started.run_id) == ("cancelled", "requested")


def test_repeated_cancel_changes_nothing_and_reports_the_state(with_job: Database) -> None:
    started = with_job.begun()
    replies = with_job.apply_batch(*[cancelling(started.run_id)] * 2)
    assert [reply.run_status for reply in replies] == ["running", "cancelling"]
    assert cancel(with_job, started.run_id).run_status == "cancelling"
    assert with_job.count("signals") == 1
    with_job.succeed(started)
    assert cancel(with_job, started.run_id).run_status == "cancelled"
    assert len(with_job.completions()) == 1


def test_unknown_run_or_run_of_another_tenant_is_refused(with_job: Database) -> None:
    with_job.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    mine = with_job.trigger()
    for reply in with_job.apply_batch(cancelling(uuid4()), cancelling(mine, tenant="acme")):
        assert (reply.code, refusal(reply).path) == ("unknown_run", "run_id")
    assert with_job.open_run(mine).state == "queued"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a lock that is about to be released, on a slow machine too."""
    monkeypatch.setattr(busy, "_LOCK_TIMEOUT", "30s")


@pytest.mark.usefixtures("patient")
def test_cancel_waits_for_a_concurrent_claim_and_signals_the_attempt(with_job: Database) -> None:
    wanted = with_job.requested_claim(with_job.trigger())
    limits: list[object] = []

    def claim(connection: Conn) -> None:
        assert len(claim_runs(connection, with_job.installation, [wanted], executor_id=EXECUTOR).started) == 1

    def ask(connection: Conn) -> str | None:
        [reply] = with_job.apply_batch_within(connection, cancelling(wanted.run_id))
        limits.extend(connection.execute("SHOW lock_timeout"))
        return reply.run_status

    assert behind(with_job, claim, ask) == "running"
    assert limits == [("10s",)]
    assert with_job.open_run(wanted.run_id).state == "cancelling"


def test_cancelled_run_is_not_claimed_after_the_reply(with_job: Database) -> None:
    wanted = with_job.requested_claim(with_job.trigger())
    cancel, claiming = with_job.connection(), with_job.connection()
    with_job.apply_batch_within(cancel, cancelling(wanted.run_id))
    assert claim_runs(claiming, with_job.installation, [wanted], executor_id=EXECUTOR).started == []
    cancel.commit()
    assert claim_runs(claiming, with_job.installation, [wanted], executor_id=EXECUTOR).started == []
    assert with_job.job_runs() == []


@pytest.mark.usefixtures("patient")
def test_cancel_waits_for_a_concurrent_end_and_reports_it(with_job: Database) -> None:
    started = with_job.begun()
    end = [ending(started, RunState.SUCCEEDED)]
    [reply] = batch_behind(
        with_job, lambda connection: finish_runs(connection, with_job.installation, end), cancelling(started.run_id)
    )
    for each in (reply, cancel(with_job, started.run_id)):
        assert (each.status, each.run_status) == ("accepted", "succeeded")
    assert with_job.final_state(started.run_id) == ("succeeded", None)


SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
AHEAD = 5 * SECOND


def cancel_ahead(database: ClockedDatabase, run: UUID) -> None:
    database.accept(cancelling(run))
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
    clocked: ClockedDatabase, schedule: Callable[[datetime], object], change: Callable[[ClockedDatabase, object], None]
) -> None:
    now = clocked.stop_clock()
    made = schedule(now)
    clocked.submit(schedule=made, overlap="allow_all")
    fire_due(clocked, lookahead=AHEAD)
    before = {run.run_id for run in clocked.job_runs()}
    cancelled = [run.run_id for run in clocked.job_runs()][:2][-1]
    cancel_ahead(clocked, cancelled)
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
def test_overridden_occurrence_is_not_created_again(minutely: ClockedDatabase, ended: str) -> None:
    """Moved ahead, ended, and set back to its own instant by an edit."""
    override(minutely, "move", 2, 1.5)
    minutely.advance(MINUTE + 25 * SECOND)
    fire_due(minutely, lookahead=AHEAD)
    [run] = [run for run in minutely.job_runs() if run.scheduled_at > minutely.now() + AHEAD]
    if ended == "cancelled":
        cancel_ahead(minutely, run.run_id)
    else:
        minutely.advance(AHEAD)
        minutely.succeed(minutely.claim(run.run_id).started[0])
    minutely.submit(schedule="@every 1m", overlap="allow_all", payload=1)
    minutely.advance(MINUTE)
    fire_due(minutely, lookahead=AHEAD)
    assert run.run_id not in {each.run_id for each in minutely.job_runs()}
    assert minutely.value("SELECT count(*) FROM runs WHERE run_id = %s", [run.run_id]) == 1


def occurrences(database: Database, count: int) -> list[UUID]:
    database.apply_batch(submission("a"), submission("b", schedule={"after": ["a"]}))
    roots = [database.trigger("a") for _ in range(count)]
    for root in roots:
        database.begin(root)
    return sorted(roots)


def about_root(kind: str, root: UUID) -> dict[str, object]:
    return {"type": f"workflow.{kind}", "run_id": str(root)}


def test_a_workflow_is_not_cancelled_while_a_claim_that_cannot_see_it_is_under_way(database: Database) -> None:
    [root] = occurrences(database, 1)
    claiming = database.connection()
    claiming.execute("LOCK TABLE claims_lock IN ROW EXCLUSIVE MODE")
    with pytest.raises(RowLocked, match="lock on claims"):
        database.apply_batch(about_root("cancel", root))
    assert (database.count("pending_cancels"), database.count("workflows")) == (0, 0)
    claiming.commit()
    database.accept(about_root("cancel", root))
    assert database.count("pending_cancels") == 1


@pytest.mark.parametrize("state", ["not drained", "paused"])
def test_occurrences_of_a_batch_are_locked_in_the_order_of_their_ids(database: Database, state: str) -> None:
    first, second = occurrences(database, 2)
    holding, changing = database.connection(), database.connection()
    if state == "paused":
        database.apply_batch(about_root("pause", first), about_root("pause", second))
        holding.execute("SELECT FROM workflows WHERE root_run_id = %s FOR UPDATE", [second])
    else:
        database.apply_batch_within(holding, about_root("pause", second))
    changed = in_background(
        lambda: database.apply_batch_within(changing, about_root("pause", second), about_root("resume", first))
    )
    until_blocked(database, changing)
    held = {pid for (pid,) in database.rows("SELECT unnest(pg_blocking_pids(%s))", [changing.info.backend_pid])}
    assert held == {holding.info.backend_pid}
    other = in_background(lambda: database.apply_batch(about_root("resume", first)))
    other_waits = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    until(lambda: database.value(other_waits, [changing.info.backend_pid]) == 1, "the first is locked already")
    holding.rollback()
    assert [reply.status for reply in changed.result(30)] == [ReplyStatus.ACCEPTED] * 2
    changing.commit()
    assert [reply.status for reply in other.result(30)] == [ReplyStatus.ACCEPTED]


def test_no_request_waits_with_a_key_locked(database: Database) -> None:
    database.submit(concurrency_key={"key": "acme"})
    database.submit("other")
    first, second = database.trigger(), database.trigger()
    started, _ = database.begin(first), database.claim(second)
    database.succeed(started)
    holding, changing = database.connection(), database.connection()
    holding.execute("SELECT FROM jobs WHERE key = 'other' FOR UPDATE")
    documents = [cancelling(second), about("job.pause", "other")]
    changed = in_background(lambda: database.apply_batch_within(changing, *documents))
    until_blocked(database, changing)
    with database.transaction() as connection:
        assert connection.execute("SELECT FROM run_keys WHERE running = 1 FOR UPDATE SKIP LOCKED").rowcount == 1
    holding.rollback()
    assert [reply.status for reply in changed.result(30)] == [ReplyStatus.ACCEPTED] * 2
    changing.commit()
    assert database.value("SELECT running FROM run_keys") == 0
