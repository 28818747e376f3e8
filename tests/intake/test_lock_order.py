"""Requests about occurrences lock as drains and claims do; the places of keys are given back last."""

from uuid import UUID

import pytest

from tests.fixtures.acts import submission
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.intake.locks import RowLocked
from tidewheel.schemas.generated.records import ReplyStatus


def occurrences(database: Database, count: int) -> list[UUID]:
    """The running roots of occurrences, in the order of their ids."""
    database.apply_batch(submission("a"), submission("b", schedule={"after": ["a"]}))
    roots = [database.trigger("a") for _ in range(count)]
    for root in roots:
        database.begin(root)
    return sorted(roots)


def about(kind: str, root: UUID) -> dict[str, object]:
    return {"type": f"workflow.{kind}", "run_id": str(root)}


def test_a_workflow_is_not_cancelled_while_a_claim_that_cannot_see_it_is_under_way(database: Database) -> None:
    [root] = occurrences(database, 1)
    claiming = database.connection()
    claiming.execute("LOCK TABLE claims_lock IN ROW EXCLUSIVE MODE")
    with pytest.raises(RowLocked, match="lock on claims"):
        database.apply_batch(about("cancel", root))
    assert (database.count("pending_cancels"), database.count("workflows")) == (0, 0)
    claiming.commit()
    assert [reply.status for reply in database.apply_batch(about("cancel", root))] == [ReplyStatus.ACCEPTED]
    assert database.count("pending_cancels") == 1


@pytest.mark.parametrize("state", ["not drained", "paused"])
def test_occurrences_of_a_batch_are_locked_in_the_order_of_their_ids(database: Database, state: str) -> None:
    first, second = occurrences(database, 2)
    holding, changing = database.connection(), database.connection()
    if state == "paused":
        database.apply_batch(about("pause", first), about("pause", second))
        holding.execute("SELECT FROM workflows WHERE root_run_id = %s FOR UPDATE", [second])
    else:
        database.apply_batch_within(holding, about("pause", second))
    changed = in_background(
        lambda: database.apply_batch_within(changing, about("pause", second), about("resume", first))
    )
    until_blocked(database, changing)
    held = {pid for (pid,) in database.rows("SELECT unnest(pg_blocking_pids(%s))", [changing.info.backend_pid])}
    assert held == {holding.info.backend_pid}
    other = in_background(lambda: database.apply_batch(about("resume", first)))
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
    changed = in_background(
        lambda: database.apply_batch_within(
            changing,
            {"type": "run.cancel", "run_id": str(second)},
            {"type": "job.pause", "key": "other"},
        )
    )
    until_blocked(database, changing)
    with database.transaction() as connection:
        assert connection.execute("SELECT FROM run_keys WHERE running = 1 FOR UPDATE SKIP LOCKED").rowcount == 1
    holding.rollback()
    assert [reply.status for reply in changed.result(30)] == [ReplyStatus.ACCEPTED] * 2
    changing.commit()
    assert database.value("SELECT running FROM run_keys") == 0
