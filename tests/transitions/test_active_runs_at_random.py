"""Runs that come, are claimed and end at random, by several threads at once.

Some transactions die before they commit. The database itself watches: an index that holds one begun run a job, a
trigger that sees every release. In the end nothing is left behind. Runs that are cancelled while they wait, and rows
that are held for long, take a sweep.
"""

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import LiteralString
from uuid import UUID, uuid4

import pytest
from psycopg.rows import args_row, class_row

from tests.fixtures.database import Database
from tests.transitions.overlapping import make
from tests.transitions.stepping import in_background
from tidewheel.errors import Unavailable
from tidewheel.ids import job_id
from tidewheel.postgres.session import UNIFORM, Conn, RowsLocked, Session
from tidewheel.runs import FINAL, AttemptOutcome, Overlap, RunState
from tidewheel.scheduler.repair import ActiveRunRepair
from tidewheel.transitions.claim import Claim, Started, claim_runs, claim_uniform, contest_runs
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.messages import build_requests
from tidewheel.transitions.requeue import Requeue, requeue_runs

JOBS = tuple("abcdefgh")
THREADS = 4
STEPS = 160
RUNS = 240  # of all jobs
AT_ONCE = 2  # open runs of a job, with which no actor creates one: some runs meet none
NEEDING = sorted(set(Overlap) - {Overlap.ALLOW_ALL})
WAITING = [Overlap.BUFFER_ALL, Overlap.BUFFER_ONE]

# A run that has begun has its job's turn until it is terminal: two of them would be two under way.
ONE_UNDER_WAY: LiteralString = "CREATE UNIQUE INDEX one_under_way ON job_runs (job_id) WHERE attempt > 0"
IN_ORDER: LiteralString = """
CREATE FUNCTION in_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'buffered' AND NEW.state = 'queued' AND EXISTS (
        SELECT FROM job_runs AS o
         WHERE o.job_id = NEW.job_id AND o.state = 'buffered'
           AND (o.scheduled_at, o.run_id) < (NEW.scheduled_at, NEW.run_id)
    ) THEN RAISE EXCEPTION 'released out of order' USING ERRCODE = 'raise_exception'; END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER in_order AFTER UPDATE ON job_runs FOR EACH ROW EXECUTE FUNCTION in_order();
"""
CLAIMABLE: LiteralString = """
SELECT run_id, attempt + 1, job_version FROM job_runs
 WHERE state IN ('queued', 'retrying') AND publish_at <= tidewheel_now()
"""
BEGUN: LiteralString = "SELECT run_id, attempt, executor_id FROM job_runs WHERE state IN ('running', 'cancelling')"
ROWS: LiteralString = """
SELECT run_id, job_id, shard, queue, lane, cause, job_version, attempt, scheduled_at, publish_at, created_at,
       concurrency_key
  FROM job_runs WHERE run_id = ANY (%s)
"""
OPEN: LiteralString = "SELECT count(*) FROM job_runs WHERE job_id = %s"
NOT_STARTED: LiteralString = (
    "SELECT run_id, attempt, NULL FROM job_runs WHERE state IN ('queued', 'buffered', 'retrying')"
)
RUNNING: LiteralString = (
    "SELECT run_id, attempt FROM job_runs WHERE run_id = ANY (%s) AND state = 'running' AND executor_id = %s"
)
DEADLOCKS: LiteralString = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@dataclass(frozen=True)
class Row:
    """The columns of a run's message."""

    run_id: UUID
    job_id: UUID
    shard: int
    queue: str
    lane: str
    cause: str
    job_version: int
    attempt: int
    scheduled_at: datetime
    publish_at: datetime
    created_at: datetime
    concurrency_key: str | None


class Making:
    """Creates runs, each a millisecond after the one before it."""

    def __init__(self, database: Database, policies: Sequence[str], chance: random.Random) -> None:
        self._database, self._policies, self._chance = database, policies, chance
        self._lock, self._last = threading.Lock(), database.now()
        self.made: list[UUID] = []

    def one(self) -> None:
        """Create a run, unless its job has enough open ones, or enough were made."""
        with self._lock:
            key = self._chance.choice(JOBS)
            if len(self.made) == RUNS or self._database.value(OPEN, [job_id("default", key)]) >= AT_ONCE:
                return
            self._last = max(self._database.now(), self._last + timedelta(milliseconds=1))
            self.made.append(make(self._database, self._chance.choice(self._policies), key=key, at=self._last))


@dataclass
class Actor:
    """One of those who claim and end."""

    database: Database
    session: Session
    chance: random.Random
    making: Making
    cancels: bool
    leaves: bool = True  # at times the runs that one statement cannot claim, as a claim does that fails
    executor_id: UUID = field(default_factory=uuid4)
    turned_away: list[str] = field(default_factory=list[str])
    uniform: int = 0  # runs that the uniform statement has started

    def live(self) -> None:
        """Do something, many times over."""
        acts = [self.claim, self.claim, self.end, self.end, self.go_back] + [self.cancel] * self.cancels
        for _ in range(STEPS):
            self.making.one()
            try:
                with self.session.transaction() as connection:
                    self.chance.choice(acts)(connection)
                    if self.chance.random() < 0.1:
                        connection.rollback()  # killed before the commit
            except RowsLocked:
                continue  # as executors do, which decide about the batch instead
            except Unavailable as error:
                self.turned_away.append(str(error))

    def claim(self, connection: Conn) -> None:
        with connection.cursor(row_factory=args_row(_wish)) as cursor:
            found = cursor.execute(CLAIMABLE).fetchall()
        claims = self.chance.sample(found, min(len(found), self.chance.randint(1, 6)))
        if self.chance.random() < 0.7:  # as executors do: all in one statement, and then what it leaves
            started = claim_uniform(connection, claims, executor_id=self.executor_id)
            self.check(connection, started)
            self.uniform += len(started)
            if self.leaves and self.chance.random() < 0.2:
                return
            connection.commit()
            begun = {each.run_id for each in started}
            claims = [claim for claim in claims if claim.run_id not in begun]
        claims = contest_runs(connection, claims)
        connection.commit()
        installation = self.database.installation
        claimed = claim_runs(connection, installation, claims, executor_id=self.executor_id, contested=True)
        self.check(connection, claimed.started)

    def check(self, connection: Conn, started: list[Started]) -> None:
        # Whatever is in it is begun after the commit.
        mine = connection.execute(RUNNING, [[each.run_id for each in started], self.executor_id]).fetchall()
        assert sorted(mine) == sorted((each.run_id, each.attempt) for each in started)

    def end(self, connection: Conn) -> None:
        found = self.some(connection, BEGUN)
        with connection.cursor(row_factory=class_row(Row)) as cursor:
            requests = build_requests(connection, cursor.execute(ROWS, [[run for run, _, _ in found]]).fetchall())
        known = [each for each in found if each[0] in requests]
        ends = [RunEnd(run, attempt, RunState.SUCCEEDED, hands, request=requests[run]) for run, attempt, hands in known]
        finish_runs(connection, self.database.installation, ends, uniform=self.chance.random() < 0.7)

    def go_back(self, connection: Conn) -> None:
        outcome = self.chance.choice([AttemptOutcome.FAILED, AttemptOutcome.RELEASED, AttemptOutcome.LOST])
        requeues = [Requeue(run, attempt, hands, outcome) for run, attempt, hands in self.some(connection, BEGUN)]
        requeue_runs(connection, self.database.installation, requeues)

    def cancel(self, connection: Conn) -> None:
        found = self.some(connection, NOT_STARTED)
        ends = [RunEnd(run, attempt, RunState.CANCELLED, hands) for run, attempt, hands in found]
        finish_runs(connection, self.database.installation, ends)

    def some(self, connection: Conn, query: LiteralString) -> list[tuple[UUID, int, UUID | None]]:
        with connection.cursor(row_factory=args_row(_standing)) as cursor:
            found = cursor.execute(query).fetchall()
        return self.chance.sample(found, min(len(found), self.chance.randint(1, 3)))


def _standing(run_id: UUID, attempt: int, executor_id: UUID | None) -> tuple[UUID, int, UUID | None]:
    return run_id, attempt, executor_id


def _wish(run_id: UUID, attempt: int, job_version: int) -> Claim:
    return Claim(run_id, attempt, job_version, "test/0/0@0")


def settle(actor: Actor) -> None:
    """Claim and end what there is, for as long as anything comes of it."""
    database, actor.leaves = actor.database, False
    sweeping = ActiveRunRepair(actor.session, database.installation)
    for _ in range(1000):
        sweeping.step()
        if not database.job_runs():
            return
        before = database.rows("SELECT run_id, attempt, state FROM job_runs")
        for act in (actor.claim, actor.end):
            actor.session.within(act)
        assert database.rows("SELECT run_id, attempt, state FROM job_runs") != before, f"nothing moves: {before}"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("cancels", [False, True])
def test_concurrent_claims_and_ends_never_overlap_and_finish_every_run(
    fresh_database: Database, *, seed: int, cancels: bool
) -> None:
    database, chance = fresh_database, random.Random(seed)  # noqa: S311 - the test is to be repeated
    database.execute(ONE_UNDER_WAY)
    if not cancels:
        # A cancel may hold an older run, which a promotion then skips.
        database.execute(IN_ORDER)
    for key in JOBS:
        database.submit(key)
    policies = NEEDING if cancels else [*NEEDING, *WAITING]
    making = Making(database, policies, chance)
    chances = [random.Random(seed * 100 + number) for number in range(THREADS)]  # noqa: S311
    actors = [Actor(database, database.session(options=UNIFORM), each, making, cancels) for each in chances]
    living = [in_background(actor.live) for actor in actors]
    for each in living:
        each.result(120)
    settle(actors[0])
    final = dict(database.rows("SELECT run_id, state FROM runs"))
    assert set(final) == set(making.made)
    assert sum(actor.uniform for actor in actors) > 10, "the uniform statement starts nearly nothing"
    assert {RunState(state) for state in final.values()} <= FINAL
    assert (database.count("job_runs"), database.count("active_runs")) == (0, 0)
    assert [actor.turned_away for actor in actors] == [[]] * THREADS
    assert database.value(DEADLOCKS) == 0
    completed = database.value("SELECT count(DISTINCT key) FROM outbox WHERE topic LIKE '%%.completions'")
    assert completed == len(JOBS)


def test_database_checks_of_the_random_test_detect_violations(fresh_database: Database) -> None:
    """The checks of the test above: two started runs of a job, or a promotion out of order, are errors."""
    fresh_database.execute(ONE_UNDER_WAY)
    fresh_database.execute(IN_ORDER)
    fresh_database.submit("a")
    older, newer = (make(fresh_database, "buffer_all", key="a") for _ in range(2))
    fresh_database.execute("UPDATE job_runs SET state = 'buffered'")
    with pytest.raises(Exception, match="out of order"):
        fresh_database.execute("UPDATE job_runs SET state = 'queued' WHERE run_id = %s", [newer])
    fresh_database.execute("UPDATE job_runs SET state = 'queued' WHERE run_id = %s", [older])
    with pytest.raises(Exception, match="one_under_way"):
        fresh_database.execute("UPDATE job_runs SET attempt = 1")
