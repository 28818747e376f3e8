"""Runs of a job that may not overlap: the second is skipped until the active run is terminal."""

from typing import Any, Self
from uuid import UUID

import psycopg
import pytest

from tests.fixtures.acts import EXECUTOR, about, cancelling, ending
from tests.fixtures.database import Database
from tests.transitions.stepping import behind
from tidewheel.ids import job_id
from tidewheel.runs import AttemptOutcome, Overlap, RunState
from tidewheel.transitions.claim import Claim, claim_runs
from tidewheel.transitions.finish import finish_runs

JOB = job_id("default", "job")


@pytest.fixture
def skipping(database: Database) -> Database:
    database.submit(overlap="skip")
    return database


def test_second_run_of_a_job_is_skipped_with_an_event(skipping: Database) -> None:
    first, second = skipping.trigger(), skipping.trigger()
    skipping.begin(first)
    refused = skipping.claim(second)
    assert (refused.started, refused.overlaps.skipped) == ([], {second})
    assert skipping.final_state(second) == ("skipped", "overlap")
    assert skipping.attempts(second) == []
    [event] = skipping.completions()
    assert (event.run_id, event.status, event.reason) == (str(second), "skipped", "overlap")
    assert (event.attempt, event.sequence, event.started_at, event.error) == (0, 1, None, None)
    assert skipping.active_run_of(JOB) == first


def test_of_two_runs_of_a_job_in_one_claim_one_starts(skipping: Database) -> None:
    runs = {skipping.trigger(), skipping.trigger()}
    done = skipping.claim(*runs)
    assert len(done.started) == len(done.overlaps.skipped) == 1
    assert {done.started[0].run_id} | done.overlaps.skipped == runs


@pytest.mark.parametrize("outcome", [AttemptOutcome.RELEASED, AttemptOutcome.SNOOZED, AttemptOutcome.FAILED])
def test_requeued_run_stays_the_active_run(skipping: Database, outcome: AttemptOutcome) -> None:
    first = skipping.begin(skipping.trigger())
    skipping.requeue(first, outcome)
    assert skipping.active_run_of(JOB) == first.run_id
    second = skipping.trigger()
    assert skipping.claim(second).overlaps.skipped == {second}
    assert skipping.begin(first.run_id).attempt == 2


def test_skipped_or_cancelled_run_does_not_release_the_active_run(skipping: Database) -> None:
    first = skipping.begin(skipping.trigger())
    skipping.claim(skipping.trigger())
    assert skipping.active_run_of(JOB) == first.run_id
    skipping.apply(cancelling(skipping.trigger()))
    assert skipping.active_run_of(JOB) == first.run_id
    skipping.succeed(first)
    assert skipping.active_run_of(JOB) is None


def test_claim_waits_for_a_concurrent_end_and_becomes_active(skipping: Database) -> None:
    """The claim waits for the row of an uncommitted release, and then acquires it."""
    end = [ending(skipping.begin(skipping.trigger()), RunState.SUCCEEDED)]
    second = skipping.requested_claim(skipping.trigger())
    claimed = behind(
        skipping,
        lambda closing: finish_runs(closing, skipping.installation, end),
        lambda claiming: claim_runs(claiming, skipping.installation, [second], executor_id=EXECUTOR),
    )
    assert len(claimed.started) == 1
    assert skipping.active_run_of(JOB) == second.run_id


def _triggered(database: Database, key: str, count: int, policy: Overlap) -> list[Claim]:
    asked = about("job.trigger", key, overlap=policy)
    replies = [reply for _ in range(10) for reply in database.apply_batch(*[asked] * (count // 10))]
    return [Claim(UUID(reply.run_id), 1, 1, "test/0/0@0") for reply in replies]


@pytest.mark.landing
@pytest.mark.parametrize("policy", [Overlap.SKIP, Overlap.BUFFER_ALL, Overlap.CANCEL_OTHER, Overlap.ALLOW_ALL])
def test_statements_and_locks_of_a_claim_do_not_grow_with_the_runs_of_its_job(
    database: Database, policy: Overlap
) -> None:
    for key in ("few", "many"):
        database.submit(key)
    few, many = (_claim_counted(database, key, count, policy) for key, count in (("few", 10), ("many", 1000)))
    assert all(more <= less for more, less in zip(many, few, strict=True))


def _claim_counted(database: Database, key: str, count: int, policy: Overlap) -> tuple[int, int]:
    """Claim due runs of one job in one transaction; return the numbers of statements and of table locks."""
    claims = _triggered(database, key, count, policy)
    connection = database.connection()
    statements = list[str]()

    class Counting(psycopg.Cursor[Any]):
        def execute(self, query: Any, *given: Any, **named: Any) -> Self:  # noqa: ANN401 - passed on
            statements.append(str(query))
            return super().execute(query, *given, **named)

    connection.cursor_factory = Counting
    claimed = claim_runs(connection, database.installation, claims, executor_id=EXECUTOR)
    number = len(statements)
    locks = connection.execute("SELECT count(*)::integer FROM pg_locks WHERE pid = pg_backend_pid()").fetchone()
    connection.commit()
    assert locks is not None
    assert len(claimed.started) == (count if policy is Overlap.ALLOW_ALL else 1)
    assert len(claimed.overlaps.not_started) == count - len(claimed.started)
    assert claimed.overlaps.undecided == set()
    return number, int(str(locks[0]))
