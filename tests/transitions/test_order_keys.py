"""Ordering keys: the runs of a key start in the order of their acceptance, one by one."""

import random
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import LiteralString, cast
from uuid import UUID

import psycopg
import pytest

from tests.fixtures.acts import EXECUTOR, about, cancelling, ending
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.scheduler.firing import fire_due
from tests.transitions.graphs import drain_some, never
from tests.transitions.stepping import batch_behind, behind, in_background
from tests.transitions.test_run_keys import limit_tenant
from tests.transitions.test_tenant_places import COUNTERS, Executor
from tests.transitions.test_tenant_rates import flood, limit
from tidewheel.control.client.client import Client
from tidewheel.control.reads.waits import read_waits
from tidewheel.errors import Refused, Unavailable
from tidewheel.postgres.session import UNIFORM, Conn
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.scheduler.concurrency_keys import KeyDuties
from tidewheel.scheduler.deadlines import Deadlines
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.claim import Claim, claim_uniform
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.held_back import find_woken_orders, settle_order
from tidewheel.transitions.requeue import Requeue, requeue_runs

IN_ORDER = about("job.trigger", ordering_key="acme")
KEY: LiteralString = "SELECT head, blocked_by FROM order_keys"
CLAIMABLE: LiteralString = """
SELECT run_id, attempt + 1, job_version FROM job_runs
 WHERE state IN ('queued', 'retrying') AND publish_at <= tidewheel_now() ORDER BY random() LIMIT 16
"""
WAITS_IN_ORDER: LiteralString = """
SELECT run_id, waits_for = key_id FROM job_runs WHERE order_no IS NOT NULL ORDER BY order_no
"""
WAITED: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock'
   AND clock_timestamp() - query_start > interval '150 ms'
"""
FIRST: LiteralString = """
SELECT count(*) FROM job_runs AS o
 WHERE o.run_id = ANY (%s)
   AND EXISTS (SELECT FROM job_runs AS p WHERE p.key_id = o.key_id AND p.order_no < o.order_no)
"""


@pytest.fixture
def still(clocked: ClockedDatabase) -> ClockedDatabase:
    clocked.stop_clock()
    clocked.submit()
    return clocked


def ordered(database: Database, number: int = 3, **fields: object) -> list[UUID]:
    wanted = {"ordering_key": "acme"} | fields
    replies = database.apply_batch(*(about("job.trigger", "job", payload=each, **wanted) for each in range(number)))
    return [UUID(reply.run_id) for reply in replies]


def retry(database: Database, run: UUID) -> UUID:
    return UUID(database.accept({"type": "run.retry", "run_id": str(run)}).run_id)


def states(database: Database, *runs: UUID) -> list[str]:
    return [database.open_run(run).state for run in runs]


def test_runs_of_a_key_start_one_after_another(still: ClockedDatabase) -> None:
    first, second, third = ordered(still)
    assert states(still, first, second, third) == ["queued", "buffered", "buffered"]
    assert [UUID(each.run_id) for each in still.requests()] == [first]  # only the first has a message
    for run, rest in ((first, [second, third]), (second, [third]), (third, [])):
        still.succeed(still.begin(run))
        assert states(still, *rest) == ["queued", "buffered"][: len(rest)]
    assert still.count("order_keys") == 0


def test_failure_blocks_until_a_retry_succeeds(still: ClockedDatabase) -> None:
    first, second, _ = ordered(still)
    still.end(ending(still.begin(first), RunState.FAILED, error_type="ValueError"))
    assert states(still, second) == ["buffered"]
    assert still.rows(KEY) == [(None, first)]
    [event] = [each for each in still.lifecycle() if each.type == "io.tidewheel.key.blocked.v1"]
    assert (event.detail["ordering_key"], event.detail["run_id"]) == ("acme", str(first))
    wait = still.within(read_waits, [second])[second]
    assert (wait.code, wait.behind_run_id) == ("order", first)
    [later] = ordered(still, 1)
    assert states(still, later) == ["buffered"]
    with Client(still.url) as client:
        [key] = client.ordering_keys.blocked()
        assert (key.key, key.blocked_by, key.waiting) == ("acme", first, 3)
        retry = client.ordering_keys.unblock("acme").run_id
        with pytest.raises(Refused, match="retries the failed run"):
            client.ordering_keys.unblock("acme")
    assert states(still, retry, second) == ["queued", "buffered"]
    still.succeed(still.begin(retry))
    assert states(still, second) == ["queued"]
    assert still.rows(KEY) == [(second, None)]


def test_runs_that_time_out_before_their_turn_block_the_key_at_it(still: ClockedDatabase) -> None:
    still.submit("hasty", schedule_to_start="1m")
    [first] = ordered(still, 1)
    second, third, fourth = (still.trigger("hasty", ordering_key="acme") for _ in range(3))
    passing = still.trigger("hasty", ordering_key={"key": "acme", "on_failure": "skip"})
    [last] = ordered(still, 1)
    still.advance(timedelta(minutes=2))
    assert Deadlines(still.session(), still.installation).step()[0] == 4
    assert still.final_state(second) == still.final_state(passing) == ("timed_out", "schedule_to_start")
    assert still.rows(KEY) == [(first, None)]
    early = retry(still, third)  # it takes the place of that run, and waits for it
    assert states(still, first, early, last) == ["queued", "buffered", "buffered"]
    still.succeed(still.begin(first))
    assert (still.rows(KEY), states(still, early)) == ([(None, second)], ["buffered"])
    assert [each.detail["run_id"] for each in still.lifecycle() if "blocked" in each.type] == [str(second)]
    still.submit("hasty", overlap="skip")  # a retry of an ordered run keeps its order
    still.succeed(still.begin(retry(still, second)))
    assert states(still, early, last) == ["queued", "buffered"]
    still.succeed(still.begin(early))
    assert still.rows(KEY) == [(None, fourth)]
    with Client(still.url) as client:
        assert client.ordering_keys.unblock("acme", skip=True).run_id == fourth
        assert states(still, last) == ["queued"]
        with pytest.raises(Refused, match="not blocked"):
            client.ordering_keys.unblock("acme", skip=True)
    still.succeed(still.begin(last))
    assert (still.count("order_keys"), still.count("order_failures")) == (0, 0)


def test_second_retry_of_the_run_that_blocks_a_key_lines_up_behind_it(still: ClockedDatabase) -> None:
    """Issue 39, F4: it had no place, and started beside the first retry."""
    first, second, third = ordered(still)
    still.end(ending(still.begin(first), RunState.FAILED))
    once, twice = retry(still, first), retry(still, first)
    assert states(still, once, twice, second) == ["queued", "buffered", "buffered"]
    assert not still.claim(twice).started
    for run in (once, second, third):
        still.succeed(still.begin(run))
    assert states(still, twice) == ["queued"]
    still.succeed(still.begin(twice))
    assert still.count("order_keys") == 0


@pytest.mark.parametrize("moved", [False, True], ids=["the same key", "the job has another key now"])
def test_resume_of_a_batch_repeats_the_run_that_blocks_a_key_in_its_place(
    still: ClockedDatabase, *, moved: bool
) -> None:
    """Issue 39, F4: it became the last of the key, behind runs that waited for it."""
    still.submit(ordering_key="acme", retry={"max_attempts": 1})
    reply = still.accept({"type": "batch.submit", "runs": [{"ref": "a", "key": "job"}, {"ref": "b", "key": "job"}]})
    [first], [second] = still.rows("SELECT run_id FROM batch_runs ORDER BY ref")
    still.end(ending(still.begin(first), RunState.FAILED, error_type="ValueError"))
    assert still.rows(KEY) == [(None, first)]
    still.apply(cancelling(second))
    later = still.trigger()
    if moved:
        still.submit(ordering_key="other")
    KeyDuties(still.session(), still.installation).wake()
    while drain_some(still, never()):
        pass
    assert not still.accept({"type": "workflow.resume", "run_id": reply.batch_id}).unchanged
    again = still.value("SELECT run_id FROM batch_runs WHERE ref = 'a'")
    assert states(still, again, later) == ["queued", "buffered"]
    still.succeed(still.begin(again))
    assert states(still, later) == ["queued"]


def test_retry_that_fails_or_is_cancelled_leaves_the_key_blocked(still: ClockedDatabase) -> None:
    first, second, _ = ordered(still)
    still.end(ending(still.begin(first), RunState.FAILED))
    again = retry(still, first)
    still.apply(cancelling(again))
    assert still.rows(KEY) == [(None, first)]
    last = retry(still, first)
    still.end(ending(still.begin(last), RunState.FAILED))
    assert (still.rows(KEY), states(still, second)) == ([(None, last)], ["buffered"])


def test_runs_of_a_job_with_an_ordering_key_are_in_its_order(still: ClockedDatabase) -> None:
    key = {"key": "{payload.customer}", "on_failure": "skip"}
    still.submit(ordering_key=key, payload={"customer": "acme"}, retry={"max_attempts": 1})
    first, second = still.trigger(), still.trigger(payload={"customer": "acme"})
    other = still.trigger(payload={"customer": "b"})
    third = still.trigger(payload={"customer": "b"}, ordering_key="acme")
    assert states(still, first, second, other, third) == ["queued", "buffered", "queued", "buffered"]
    with Client(still.url) as client:
        assert {run.run_id for run in client.runs.list(ordering_key="acme").runs} == {first, second, third}
        with pytest.raises(Refused, match="cannot be filtered by it"):
            client.runs.list(ordering_key="acme", status="failed")
    still.end(ending(still.begin(first), RunState.FAILED))
    again = retry(still, first)
    assert states(still, second, third, again) == ["queued", "buffered", "buffered"]
    cases: list[tuple[dict[str, object], str]] = [
        ({"concurrency_key": "k"}, "concurrency_key"),
        ({"overlap": "skip"}, "overlap"),
        ({"payload": {}}, "payload.customer"),
    ]
    for fields, path in cases:
        assert still.refuse(about("job.trigger") | fields).path == path
    still.succeed(still.begin(second))
    assert states(still, third, again) == ["queued", "buffered"]


def test_occurrences_are_in_the_order_of_their_jobs_key(still: ClockedDatabase) -> None:
    still.submit("tick", schedule={"interval": "1m"}, overlap="allow_all", ordering_key="acme")
    for _ in range(2):
        still.advance(timedelta(minutes=1))
        assert fire_due(still) == 1
    first, second = (run.run_id for run in still.job_runs())
    [third] = ordered(still, 1)
    assert states(still, first, second, third) == ["queued", "buffered", "buffered"]
    with Client(still.url) as client:
        words = client.explain("tick", still.now()).words
    assert "waits for its turn in the ordering key 'acme'" in words
    assert str(first) in words
    still.succeed(still.begin(first))
    still.succeed(still.begin(second))
    assert states(still, third) == ["queued"]


def test_retracted_occurrence_gives_its_place_up(still: ClockedDatabase) -> None:
    still.submit("tick", schedule={"interval": "1m"}, overlap="allow_all", ordering_key="acme")
    assert fire_due(still, lookahead=timedelta(minutes=1)) == 1
    ahead, [behind] = still.job_runs()[0].run_id, ordered(still, 1)
    assert still.rows(KEY) == [(ahead, None)]
    still.apply_batch(about("job.pause", "tick"))
    assert (still.rows(KEY), states(still, behind)) == ([(None, None)], ["buffered"])
    with still.transaction() as connection:
        woken = find_woken_orders(connection)
        assert settle_order(connection, still.installation, woken=woken) == 1
    assert states(still, behind) == ["queued"]


def test_delayed_run_holds_its_place(still: ClockedDatabase) -> None:
    [delayed] = ordered(still, 1, delay="1h")
    [now] = ordered(still, 1)
    assert states(still, delayed, now) == ["queued", "buffered"]
    still.advance(timedelta(hours=1))
    still.succeed(still.begin(delayed))
    assert states(still, now) == ["queued"]


def test_cancelled_runs_leave_the_order(still: ClockedDatabase) -> None:
    first, second, third = ordered(still)
    still.apply_batch(cancelling(second), cancelling(first))
    assert states(still, third) == ["queued"]
    still.apply(cancelling(third))
    assert still.count("order_keys") == 0


def test_next_run_that_another_transaction_holds_is_queued_by_the_scheduler(still: ClockedDatabase) -> None:
    first, second, third = ordered(still)
    with still.transaction() as other:
        other.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [second])
        still.succeed(still.begin(first))
        assert states(still, second, third) == ["buffered", "buffered"]  # the third does not pass the second
    still.advance(timedelta(seconds=1))
    duties = KeyDuties(still.session(), still.installation)
    assert (duties.wake(), duties.wake()) == (1, 0)
    assert states(still, second, third) == ["queued", "buffered"]


@pytest.mark.parametrize(
    ("field", "lock"),
    [("ordering_key", "SELECT FROM order_keys FOR UPDATE"), ("concurrency_key", "SELECT FROM run_keys FOR UPDATE")],
)
def test_end_that_waits_briefly_for_a_run_waits_longer_for_a_key(
    with_job: Database, field: str, lock: LiteralString
) -> None:
    with_job.submit(**{field: "acme"})
    started = with_job.begun()
    end = ending(started, RunState.SUCCEEDED, request=with_job.requests()[0])
    session = with_job.session(options=UNIFORM)
    with with_job.transaction() as connection:
        connection.execute(lock)
        ended = in_background(lambda: session.within(finish_runs, with_job.installation, [end], uniform=True))
        until(lambda: ended.done() or with_job.value(WAITED), "the end waits for the key")
        connection.rollback()
        assert ended.result(30).states == {started.run_id: RunState.SUCCEEDED}


def test_run_that_is_triggered_while_the_last_one_ends_starts(with_job: Database) -> None:
    """The trigger has the key, and the end of the run that was its last one waits for it."""
    [first] = ordered(with_job, 1)
    end = [ending(with_job.begin(first), RunState.SUCCEEDED)]
    replies: list[Reply] = []
    behind(
        with_job,
        lambda triggering: replies.extend(with_job.apply_batch_within(triggering, IN_ORDER)),
        lambda ending_it: finish_runs(ending_it, with_job.installation, end),
    )
    second = UUID(replies[0].run_id)
    assert (states(with_job, second), with_job.rows(KEY)) == (["queued"], [(second, None)])
    assert [UUID(each.run_id) for each in with_job.requests()] == [first, second]


def test_run_that_is_triggered_after_the_last_one_has_ended_is_first(with_job: Database) -> None:
    """The end has deleted the key, and the trigger waits for its commit."""
    [first] = ordered(with_job, 1)
    end = [ending(with_job.begin(first), RunState.SUCCEEDED)]
    [reply] = batch_behind(with_job, lambda ending_it: finish_runs(ending_it, with_job.installation, end), IN_ORDER)
    second = UUID(reply.run_id)
    assert (states(with_job, second), with_job.rows(KEY)) == (["queued"], [(second, None)])
    assert with_job.rows("SELECT order_no FROM job_runs") == [(0,)]


def test_tenants_limit_of_runs_in_flight_counts_the_first_run_alone(still: ClockedDatabase) -> None:
    limit_tenant(still, 1)
    executor = Executor(still)
    [busy] = executor.claim(still.trigger())
    first, second, _ = ordered(still)
    assert executor.claim(first) == []
    assert states(still, first, second) == ["buffered", "buffered"]
    still.succeed(busy)
    assert states(still, first, second) == ["queued", "buffered"]
    [started] = executor.claim(first)
    still.succeed(started)
    assert states(still, second) == ["queued"]
    assert still.rows(COUNTERS) == [(0, 0, False)]


def test_tenants_rate_holds_the_first_run_alone(still: ClockedDatabase) -> None:
    limit(still, 1)
    flood(still, 20)
    first, second = ordered(still, 2)
    assert still.rows(WAITS_IN_ORDER) == [(first, False), (second, True)]
    assert states(still, first, second) == ["buffered", "buffered"]
    still.apply(cancelling(first))
    assert states(still, second) == ["queued"]


def test_repeated_request_takes_no_second_place(still: ClockedDatabase) -> None:
    twice = about("job.trigger", ordering_key="acme", request_id="r-1")
    still.apply_batch(twice, twice)
    still.apply_batch(twice)
    [run] = still.requests()
    still.succeed(still.begin(UUID(run.run_id)))
    still.apply_batch(twice)
    assert (still.count("job_runs"), still.count("order_keys")) == (0, 0)


@pytest.mark.parametrize(
    ("job", "fields", "problem"),
    [
        ({"concurrency_key": "k"}, {}, "the job has a concurrency_key"),
        ({"overlap": "skip"}, {}, "overlap is skip"),
        ({}, {"overlap": "buffer_all"}, "overlap is buffer_all"),
    ],
)
def test_what_contradicts_an_order_is_refused(
    still: ClockedDatabase, job: dict[str, object], fields: dict[str, object], problem: str
) -> None:
    still.submit("other", **job)
    error = still.refuse(about("job.trigger", "other", ordering_key="acme", **fields))
    assert error.path == "ordering_key"
    assert problem in error.problem


def test_runs_without_an_order_read_no_key(still: ClockedDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewheel.transitions.create.take_order", None)
    monkeypatch.setattr("tidewheel.transitions.run_keys.settle_order", None)
    still.succeed(still.begin(still.trigger()))


@pytest.mark.landing
def test_orders_hold_under_failures_retries_and_deaths(with_job: Database) -> None:
    """Threads claim, end and die at random; a run starts only when none before it is open."""
    keys, runs = 8, 80
    orders = ({"key": f"k-{number % keys}", "on_failure": "skip"} for number in range(runs))
    with_job.apply_batch(*(about("job.trigger", ordering_key=order) for order in orders))
    wrong: list[int] = []

    def work(seed: int) -> None:
        dice = random.Random(seed)  # noqa: S311 - a test's choices
        while with_job.count("job_runs"):
            with suppress(_Died, psycopg.errors.DeadlockDetected, Unavailable):
                with_job.within(step, dice)

    def step(connection: Conn, dice: random.Random) -> None:
        rows = cast("list[tuple[UUID, int, int]]", connection.execute(CLAIMABLE).fetchall())
        claims = [Claim(run, attempt, version, "t") for run, attempt, version in rows]
        started = claim_uniform(connection, claims, executor_id=EXECUTOR)
        found = connection.execute(FIRST, [[one.run_id for one in started]]).fetchone()
        wrong.append(cast("int", found[0]) if found else 0)
        again: list[Requeue] = []
        ends: list[RunEnd] = []
        for one in started:
            if dice.random() < 0.2:
                again.append(Requeue(one.run_id, one.attempt, EXECUTOR, AttemptOutcome.LOST))
            else:
                state = dice.choice([RunState.SUCCEEDED, RunState.FAILED])
                ends.append(RunEnd(one.run_id, one.attempt, state, EXECUTOR))
        requeue_runs(connection, with_job.installation, again)
        finish_runs(connection, with_job.installation, ends)
        if dice.random() < 0.1:
            raise _Died
        settle_order(connection, with_job.installation, woken=find_woken_orders(connection))

    for each in [in_background(partial(work, seed)) for seed in range(3)]:
        each.result(60)
    assert sum(wrong) == 0
    assert (with_job.count("job_runs"), with_job.count("order_keys")) == (0, 0)
    assert with_job.count("finished_runs") == runs


class _Died(Exception):
    """A process that dies in a transaction."""
