"""Random concurrent claims, ends, releases and cancels by id and filter, some of which crash.

Every answer is held against what becomes of the run: what was not running is over when the answer comes, what was can
only become cancelled, and no claim that goes on after a filter was acknowledged has begun a run that it names.
"""

import random
import threading
from dataclasses import dataclass, field
from typing import LiteralString
from uuid import UUID, uuid4

import pytest

from tests.fixtures.database import Database
from tests.intake.test_cancel_filter import with_lease
from tests.transitions.overlapping import make
from tests.transitions.stepping import in_background
from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.ids import job_id
from tidewheel.postgres.session import Conn, Session
from tidewheel.runs import FINAL, AttemptOutcome, RunState
from tidewheel.scheduler.cancels import BulkCancel
from tidewheel.scheduler.repair import ActiveRunRepair
from tidewheel.transitions.claim import Claim, claim_runs, claim_uniform
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.requeue import Requeue, requeue_runs

JOBS = {"free": "allow_all", "turns": "buffer_all", "once": "skip"}
THREADS = 4
STEPS = 100
CLAIMABLE: LiteralString = """
SELECT run_id, attempt + 1, job_version FROM job_runs
 WHERE state IN ('queued', 'retrying') AND publish_at <= tidewheel_now()
"""
OWNED: LiteralString = "SELECT run_id, attempt FROM job_runs WHERE executor_id = %s"
OPEN: LiteralString = "SELECT run_id FROM job_runs"


@dataclass(frozen=True)
class Begun:
    """A run that a claim took, and until when the claim was still under way."""

    run_id: UUID
    at: float


@dataclass(frozen=True)
class Acknowledged:
    """A cancellation by filter: for which job, which runs there were, and when it was answered."""

    runs: frozenset[UUID]
    at: float


@dataclass
class Seen:
    """The notes of the actors, read after all have ended."""

    begun: list[Begun] = field(default_factory=list[Begun])
    acknowledged: list[Acknowledged] = field(default_factory=list[Acknowledged])
    answers: list[tuple[UUID, RunState]] = field(default_factory=list[tuple[UUID, RunState]])


@dataclass
class Actor:
    """One of those who claim, end and cancel."""

    database: Database
    session: Session
    chance: random.Random
    executor_id: UUID = field(default_factory=uuid4)
    seen: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        self.database.register(self.executor_id)

    def live(self) -> None:
        """Do something, many times over."""
        acts = [self.claim] * 6 + [self.end] * 4 + [self.go_back] * 2 + [self.cancel] * 3 + [self.cancel_all]
        for _ in range(STEPS):
            noted, dies = Seen(), self.chance.random() < 0.1
            try:
                with self.session.transaction() as connection:
                    self.chance.choice(acts)(connection, noted)
                    if dies:
                        connection.rollback()  # killed before the commit
            except Unavailable:
                continue
            if not dies:
                answered = monotonic_seconds()
                self.seen.begun += noted.begun
                self.seen.answers += noted.answers
                self.seen.acknowledged += [Acknowledged(each.runs, answered) for each in noted.acknowledged]

    def claim(self, connection: Conn, noted: Seen) -> None:
        found = connection.execute(CLAIMABLE).fetchall()
        wanted = self.chance.sample(found, min(len(found), self.chance.randint(1, 6)))
        connection.commit()  # the wishes come by messages, not in this transaction
        with_lease(connection, self.executor_id)
        claims = [Claim(run, attempt, version, "test/0/0@0") for run, attempt, version in wanted]  # type: ignore[arg-type]  # the columns' types
        started = claim_uniform(connection, claims, executor_id=self.executor_id)
        if not started:
            started = claim_runs(connection, self.database.installation, claims, executor_id=self.executor_id).started
        # Long enough for a filter to be answered meanwhile, were it not to wait for this claim.
        threading.Event().wait(self.chance.random() * 0.02)
        noted.begun += [Begun(each.run_id, monotonic_seconds()) for each in started]

    def end(self, connection: Conn, noted: Seen) -> None:
        del noted
        state = self.chance.choice([RunState.SUCCEEDED, RunState.FAILED])
        ends = [RunEnd(run, attempt, state, self.executor_id) for run, attempt in self.in_hand(connection)]
        finish_runs(connection, self.database.installation, ends)

    def go_back(self, connection: Conn, noted: Seen) -> None:
        del noted
        outcome = self.chance.choice([AttemptOutcome.FAILED, AttemptOutcome.RELEASED])
        mine = self.in_hand(connection)
        requeues = [Requeue(run, attempt, self.executor_id, outcome) for run, attempt in mine]
        requeue_runs(connection, self.database.installation, requeues)

    def cancel(self, connection: Conn, noted: Seen) -> None:
        found: list[UUID] = [run for (run,) in connection.execute(OPEN).fetchall() if isinstance(run, UUID)]
        if not found:
            return
        run = self.chance.choice(found)
        [reply] = self.database.apply_batch_within(connection, {"type": "run.cancel", "run_id": str(run)})
        noted.answers.append((run, RunState(reply.run_status or "")))

    def cancel_all(self, connection: Conn, noted: Seen) -> None:
        if self.chance.random() < 0.7:
            return
        key = self.chance.choice(list(JOBS))
        found = connection.execute("SELECT run_id FROM runs WHERE job_id = %s", [job_id("default", key)]).fetchall()
        self.database.apply_batch_within(connection, {"type": "runs.cancel", "key": key})
        noted.acknowledged.append(Acknowledged(frozenset(run for (run,) in found if isinstance(run, UUID)), 0.0))

    def in_hand(self, connection: Conn) -> list[tuple[UUID, int]]:
        found = connection.execute(OWNED, [self.executor_id]).fetchall()
        chosen = self.chance.sample(found, min(len(found), self.chance.randint(1, 3)))
        return [(run, attempt) for run, attempt in chosen if isinstance(run, UUID) and isinstance(attempt, int)]


def settle(actor: Actor, actors: list[Actor]) -> None:
    """Carry out what was cancelled, and claim and end the rest, until nothing is open."""
    database = actor.database
    cancelling = BulkCancel(database.session(), database.installation)
    turns = ActiveRunRepair(database.session(), database.installation)
    for _ in range(2000):
        if not database.job_runs() and not database.rows("SELECT 1 FROM cancellations WHERE finished_at IS NULL"):
            return
        cancelling.step()
        turns.step()
        for each in actors:
            each.session.within(each.end, Seen())
        actor.session.within(actor.claim, actor.seen)
    message = f"left open: {database.job_runs()}"
    raise AssertionError(message)


def complaints(final: dict[UUID, RunState], seen: list[Seen]) -> list[str]:
    """Return the replies that differ from the outcome."""
    found: list[str] = []
    for told in seen:
        for run, answer in told.answers:
            right = answer if answer in FINAL else RunState.CANCELLED
            if final[run] is not right:
                found.append(f"{run} was answered {answer} and ended {final[run]}")
    acknowledged = [each for told in seen for each in told.acknowledged]
    found += [
        f"{one.run_id} began after it had been cancelled"
        for told in seen
        for one in told.begun
        if any(one.run_id in each.runs and one.at > each.at for each in acknowledged)
    ]
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_every_cancel_reply_is_true_and_no_matching_run_starts_after_it(fresh_database: Database, seed: int) -> None:
    database = fresh_database
    for key, overlap in JOBS.items():
        database.submit(key, overlap=overlap)
    runs = [make(database, overlap, key=key) for _ in range(40) for key, overlap in JOBS.items()]
    chances = [random.Random(seed * 100 + number) for number in range(THREADS)]  # noqa: S311 - to be repeated
    actors = [Actor(database, database.session(), each) for each in chances]
    living = [in_background(actor.live) for actor in actors]
    for each in living:
        each.result(180)
    settle(actors[0], actors)
    final = {run: RunState(state) for run, state in database.rows("SELECT run_id, state FROM runs")}
    assert set(final) == set(runs)
    assert set(final.values()) <= FINAL
    assert complaints(final, [actor.seen for actor in actors]) == []
    assert (database.count("job_runs"), database.count("active_runs"), database.count("signals")) == (0, 0, 0)
    completions = "SELECT count(*) FROM outbox WHERE topic LIKE '%%.completions'"
    assert database.value(completions) == len(runs)


def test_oracle_detects_false_replies_and_late_starts() -> None:
    """The oracle reports a false reply and a run that started too late."""
    run = uuid4()
    cancelled, succeeded = {run: RunState.CANCELLED}, {run: RunState.SUCCEEDED}
    assert complaints(cancelled, [Seen(answers=[(run, RunState.QUEUED), (run, RunState.CANCELLED)])]) == []
    assert len(complaints(succeeded, [Seen(answers=[(run, RunState.RUNNING)])])) == 1
    acknowledged = Seen(acknowledged=[Acknowledged(frozenset({run}), 5.0)])
    assert complaints(cancelled, [acknowledged, Seen(begun=[Begun(run, 4.0)])]) == []
    assert len(complaints(cancelled, [acknowledged, Seen(begun=[Begun(run, 6.0)])])) == 1
