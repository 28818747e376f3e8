"""Concurrency keys: never more runs of a key at once than it has places, and nothing left behind."""

import random
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import LiteralString, cast
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.fixtures.database import ClockedDatabase, Database
from tests.transitions.acts import (
    EXECUTOR,
    apply_batch,
    begin,
    claim,
    final_state,
    open_run,
    requested_claim,
    requests,
    requeue,
    submit,
    succeed,
    trigger,
)
from tests.transitions.stepping import in_background
from tidewheel.errors import Unavailable
from tidewheel.ids import key_id
from tidewheel.postgres.session import UNIFORM, Conn
from tidewheel.runs import AttemptOutcome, Overlap, RunState
from tidewheel.scheduler.key_duties import KeyDuties
from tidewheel.transitions.claim import Claim, Claimed, Started, claim_keyed, claim_runs, contest_runs
from tidewheel.transitions.deferred_effects import apply_deferred_effects
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.requeue import Requeue, requeue_runs
from tidewheel.transitions.run_keys import settle_keys

KEY: LiteralString = "SELECT running, has_waiters, wake_at IS NOT NULL FROM run_keys WHERE key_id = %s"
CLAIMABLE: LiteralString = """
SELECT run_id, attempt + 1, job_version FROM job_runs
 WHERE state IN ('queued', 'retrying') AND publish_at <= tidewheel_now() ORDER BY random() LIMIT 8
"""
# The claim holds the keys of its runs, so no end of another transaction is missed for them.
CROWDED: LiteralString = """
SELECT key_id, count(*) FROM job_runs
 WHERE state IN ('running', 'waiting', 'cancelling') AND key_id = ANY (%s) GROUP BY key_id HAVING count(*) > %s
"""
PLACES = 3
RUNS = 240
THREADS = 4


def keyed(database: Database, **key: object) -> None:
    submit(database, concurrency_key={"key": "acme", **key})


def key_row(database: Database, key: str = "acme") -> tuple[object, ...]:
    [row] = database.rows(KEY, [key_id("default", key)])
    return row


def claim_fast(database: Database, *run_ids: UUID) -> Claimed:
    """Claim as an executor claims runs whose messages have a key."""
    claims = [requested_claim(database, run)._replace(keyed=True) for run in run_ids]
    with database.session(options=UNIFORM).transaction() as connection:
        return claim_keyed(connection, database.installation, claims, executor_id=EXECUTOR)


@pytest.mark.parametrize("fast", [True, False])
def test_end_passes_its_place_to_the_oldest_waiting_run(database: Database, fast: bool) -> None:  # noqa: FBT001
    keyed(database)
    first, second, third = (trigger(database) for _ in range(3))
    claimed = (claim_fast if fast else claim)(database, first, second, third)
    [started] = claimed.started
    assert (started.run_id, claimed.waiting) == (first, {second, third})
    assert key_row(database) == (1, True, False)
    succeed(database, started)
    assert open_run(database, second).state == RunState.QUEUED
    assert open_run(database, third).state == RunState.BUFFERED
    assert [request.concurrency_key for request in requests(database)] == ["acme"] * 4
    fourth = trigger(database)
    assert claim(database, fourth).waiting == {fourth}, "no newcomer overtakes a waiting run"
    for run in (second, third, fourth):
        succeed(database, begin(database, run))
    assert key_row(database) == (0, False, False)


def test_attempt_that_waits_to_be_retried_holds_no_place(database: Database) -> None:
    keyed(database)
    first, second = trigger(database), trigger(database)
    started = begin(database, first)
    assert claim(database, second).waiting == {second}
    requeue(database, started, AttemptOutcome.FAILED)
    running = begin(database, second)
    assert claim(database, first).waiting == {first}
    assert open_run(database, first).state == RunState.BUFFERED
    succeed(database, running)
    assert begin(database, first).attempt == 2


@pytest.mark.parametrize("state", ["waits", "promoted"])
def test_cancelled_run_leaves_no_place_behind(database: Database, state: str) -> None:
    keyed(database)
    first, second, third = (trigger(database) for _ in range(3))
    started, _ = begin(database, first), claim(database, second, third)
    if state == "promoted":
        succeed(database, started)
    apply_batch(database, {"type": "run.cancel", "run_id": str(second)})
    assert final_state(database, second)[0] == RunState.CANCELLED
    if state == "waits":
        succeed(database, started)
    succeed(database, begin(database, third))
    assert key_row(database) == (0, False, False)


def test_key_of_a_trigger_replaces_the_jobs(database: Database) -> None:
    keyed(database)
    one, other = trigger(database), trigger(database, concurrency_key="other")
    assert {each.run_id for each in claim(database, one, other).started} == {one, other}


def test_limit_of_the_jobs_current_version_applies(database: Database) -> None:
    keyed(database)
    first, second = trigger(database), trigger(database)
    begin(database, first)
    claim(database, second)
    keyed(database, at_once=3)
    third = trigger(database)
    assert claim(database, third).promoted == 2, "a raised limit lets the waiting runs start, the oldest first"
    assert {each.run_id for each in claim(database, second, third).started} == {second, third}
    assert database.value("SELECT at_once FROM run_keys") == 3, "an older version does not bring its limit back"


def test_faster_rate_applies_from_the_next_claim_on(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    keyed(clocked, rate="1/day")
    begin(clocked, trigger(clocked))
    keyed(clocked, rate="1/s")
    later = trigger(clocked)
    assert claim(clocked, later).waiting == {later}
    clocked.advance(timedelta(seconds=1))
    assert KeyDuties(clocked.session(), clocked.installation).promote(range(64))[0] == 1


def test_run_that_replaces_the_active_run_takes_its_place(database: Database) -> None:
    submit(database, concurrency_key="acme", overlap="terminate_other")
    first, second = trigger(database), trigger(database)
    begin(database, first)
    claimed = claim(database, second)
    assert {each.run_id for each in claimed.started} == {second}
    assert key_row(database) == (1, False, False)


def test_completion_in_a_clients_transaction_gives_the_place_back_later(database: Database) -> None:
    keyed(database)
    first, second = trigger(database), trigger(database)
    started, _ = begin(database, first), claim(database, second)
    with database.transaction() as connection:
        end = RunEnd(first, started.attempt, RunState.SUCCEEDED, EXECUTOR)
        finish_runs(connection, database.installation, [end], lasting=True)
    assert open_run(database, second).state == RunState.BUFFERED
    duties = KeyDuties(database.session(), database.installation)
    assert duties.repair() == 0, "the place is not free before the effect is applied"
    with database.transaction() as connection:
        apply_deferred_effects(connection, database.installation)
    assert open_run(database, second).state == RunState.QUEUED


def test_rate_lets_runs_start_one_after_another(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    keyed(clocked, rate="1/s", burst=2)
    runs = [trigger(clocked) for _ in range(5)]
    claimed = claim(clocked, *runs)
    assert len(claimed.started) == 2
    assert len(claimed.waiting) == 3
    duties = KeyDuties(clocked.session(), clocked.installation)
    promoted, seconds = duties.promote(range(clocked.installation.shards))
    assert (promoted, seconds) == (0, 1.0)
    for _ in range(3):
        clocked.advance(timedelta(seconds=1))
        assert duties.promote(range(clocked.installation.shards))[0] == 1
    assert {open_run(clocked, run).state for run in claimed.waiting} == {RunState.QUEUED}


def test_rate_after_an_outage_is_the_burst_and_no_more(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    keyed(clocked, rate="10/s", burst=3)
    runs = [trigger(clocked) for _ in range(30)]
    claim(clocked, *runs)
    clocked.advance(timedelta(minutes=10))
    duties = KeyDuties(clocked.session(), clocked.installation)
    assert duties.promote(range(clocked.installation.shards))[0] <= 3 + 3, (
        "the burst, and a quarter of a second's starts"
    )


def test_idle_keys_are_removed_and_wrong_counters_repaired(clocked: ClockedDatabase) -> None:
    keyed(clocked)
    succeed(clocked, begin(clocked, trigger(clocked)))
    second, third = trigger(clocked), trigger(clocked)
    claim(clocked, second, third)
    clocked.execute("UPDATE run_keys SET running = 7")
    duties = KeyDuties(clocked.session(), clocked.installation)
    duties.repair()
    assert key_row(clocked) == (1, True, False)
    apply_batch(clocked, {"type": "runs.cancel", "key": "job"})
    clocked.execute("DELETE FROM job_runs")
    clocked.execute("UPDATE run_keys SET running = 0, has_waiters = false")
    clocked.advance(timedelta(minutes=11))
    duties.repair()
    assert clocked.count("run_keys") == 0


class Fire:
    """Claimers, enders and cancels that all use the same few keys at random."""

    def __init__(self, database: Database, seed: int) -> None:
        self.database, self.seed = database, seed
        self.failures: list[str] = []
        self.limit = PLACES

    def act(self, number: int) -> None:
        rng = random.Random(self.seed * 100 + number)  # noqa: S311 - repeatable
        executor = uuid4()
        mine: list[Started] = []
        session = self.database.session(f"fire-{number}", options=UNIFORM)
        while self.database.value("SELECT count(*) FROM job_runs"):
            try:
                with session.transaction() as connection:
                    if rng.random() < 0.5:
                        started = self._claim(connection, rng, executor)
                        done: list[Started] = []
                    else:
                        done = rng.sample(mine, min(len(mine), rng.randint(1, 6)))
                        started = []
                        busy = self._end(connection, rng, executor, done)
                        done = [one for one in done if one.run_id not in busy]
                    if rng.random() < 0.05:
                        raise _Death  # noqa: TRY301 - inside the transaction, which rolls back
                mine = [*[one for one in mine if one not in done], *started]
            except _Death:
                pass
            except Unavailable as error:
                if isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
                    self.failures.append(str(error))
        session.close()

    def _claim(self, connection: Conn, rng: random.Random, executor: UUID) -> list[Started]:
        rows = cast("list[tuple[UUID, int, int]]", connection.execute(CLAIMABLE).fetchall())
        claims = [Claim(run, attempt, version, "test", keyed=True) for run, attempt, version in rows]
        if rng.random() < 0.7:
            claimed = claim_keyed(connection, self.database.installation, claims, executor_id=executor)
        else:
            contest_runs(connection, [claim.run_id for claim in claims])
            claimed = claim_runs(connection, self.database.installation, claims, executor_id=executor, contested=True)
        started = [one.run_id for one in claimed.started]
        keys = [row[0] for row in connection.execute("SELECT key_id FROM job_runs WHERE run_id = ANY (%s)", [started])]
        crowded = connection.execute(CROWDED, [keys, self.limit]).fetchall()
        if crowded:
            self.failures.append(f"more than {self.limit}: {crowded}")
        return list(claimed.started)

    def _end(self, connection: Conn, rng: random.Random, executor: UUID, done: Sequence[Started]) -> set[UUID]:
        """End attempts, some by a retry or as lost; return those that were locked."""
        freed: list[int] = []
        ends: list[RunEnd] = []
        again: list[Requeue] = []
        for one in done:
            if rng.random() < 0.7:
                ends.append(RunEnd(one.run_id, one.attempt, RunState.SUCCEEDED, executor))
            else:
                outcome = rng.choice([AttemptOutcome.FAILED, AttemptOutcome.LOST, AttemptOutcome.RELEASED])
                again.append(Requeue(one.run_id, one.attempt, executor, outcome))
        busy = finish_runs(connection, self.database.installation, ends, freed_keys=freed).busy
        busy |= requeue_runs(connection, self.database.installation, again, freed_keys=freed).busy
        settle_keys(connection, self.database.installation, freed=freed)
        return busy


class _Death(Exception):
    """The process dies before its transaction commits."""


@pytest.mark.parametrize("overlap", [Overlap.ALLOW_ALL, Overlap.BUFFER_ALL])
def test_keys_under_fire_admit_never_too_many_and_leave_nothing(database: Database, overlap: Overlap) -> None:
    for job in range(4):
        submit(database, f"job-{job}", concurrency_key={"key": "k", "at_once": PLACES}, overlap=overlap)
    rng = random.Random(7)  # noqa: S311 - repeatable
    runs = [trigger(database, f"job-{rng.randrange(4)}", concurrency_key=f"k{rng.randrange(3)}") for _ in range(RUNS)]
    fire = Fire(database, 1)
    stop = threading.Event()

    def cancel_and_edit() -> None:
        while not stop.wait(0.05):
            apply_batch(database, {"type": "run.cancel", "run_id": str(rng.choice(runs))})
            limit = {"key": "k", "at_once": rng.randint(1, PLACES)}
            submit(database, f"job-{rng.randrange(4)}", concurrency_key=limit, overlap=overlap)

    def tend() -> None:
        duties = KeyDuties(database.session("duties"), database.installation)
        while not stop.wait(0.02):
            duties.promote(range(database.installation.shards))

    helpers = [in_background(cancel_and_edit), in_background(tend)]
    actors = [in_background(lambda number=number: fire.act(number)) for number in range(THREADS)]
    try:
        for actor in actors:
            actor.result(120)
    finally:
        stop.set()
    for helper in helpers:
        helper.result(30)
    assert fire.failures == []
    assert database.rows("SELECT running FROM run_keys WHERE running <> 0 OR (has_waiters AND wake_at IS NULL)") == []
    assert database.count("active_runs") == 0
