"""Concurrency keys: never more runs of a key at once than it has places, and nothing left behind."""

import math
import random
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, LiteralString, cast
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.fixtures.acts import EXECUTOR, about, cancelling, ending
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.examples import FULL
from tests.scheduler.firing import fire_due
from tests.transitions.stepping import in_background
from tidewheel.control.client.client import Client
from tidewheel.errors import Unavailable
from tidewheel.ids import key_id
from tidewheel.postgres.session import UNIFORM, Conn
from tidewheel.runs import AttemptOutcome, Gate, Overlap, RunState
from tidewheel.scheduler.concurrency_keys import KeyDuties, KeyRepair
from tidewheel.scheduler.repair import ActiveRunRepair
from tidewheel.transitions.after_end import apply_deferred_effects
from tidewheel.transitions.claim import Claim, Claimed, Started, claim_keyed, claim_runs, contest_runs
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.places import FreedPlace
from tidewheel.transitions.requeue import Requeue, requeue_runs
from tidewheel.transitions.run_keys import LimitedTenants, settle_keys

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
ACTIVE: LiteralString = "SELECT count(*) FROM job_runs WHERE state IN ('running', 'waiting', 'cancelling')"
KEYS = {"a": 1, "b": 2, "c": 7, "d": 3, "e": 1}
PLACES = 3
RUNS = 240 if FULL else 40
THREADS = 4


def keyed(database: Database, **key: object) -> None:
    database.submit(concurrency_key={"key": "acme", **key})


def key_row(database: Database, key: str = "acme") -> tuple[object, ...]:
    [row] = database.rows(KEY, [key_id("default", key)])
    return row


def open_key(database: Database, run_id: UUID) -> object:
    return database.value("SELECT concurrency_key FROM job_runs WHERE run_id = %s", [run_id])


def trigger_keyed(database: Database) -> UUID:
    keyed(database)
    return database.trigger(concurrency_key="in-use")


def claim_fast(database: Database, *run_ids: UUID) -> Claimed:
    """Claim as an executor claims runs whose messages have a key."""
    claims = [database.requested_claim(run)._replace(keyed=True) for run in run_ids]
    return database.session(options=UNIFORM).within(claim_keyed, database.installation, claims, executor_id=EXECUTOR)


@pytest.mark.parametrize("fast", [True, False])
def test_end_passes_its_place_to_the_oldest_waiting_run(database: Database, fast: bool) -> None:  # noqa: FBT001
    keyed(database)
    first, second, third = (database.trigger() for _ in range(3))
    claimed = (claim_fast if fast else Database.claim)(database, first, second, third)
    [started] = claimed.started
    assert (started.run_id, claimed.waiting) == (first, {second, third})
    assert key_row(database) == (1, True, False)
    database.succeed(started)
    assert database.open_run(second).state == RunState.QUEUED
    assert database.open_run(third).state == RunState.BUFFERED
    assert [request.concurrency_key for request in database.requests()] == ["acme"] * 4
    fourth = database.trigger()
    assert database.claim(fourth).waiting == {fourth}, "no newcomer overtakes a waiting run"
    for run in (second, third, fourth):
        database.succeed(database.begin(run))
    assert key_row(database) == (0, False, False)


@pytest.mark.parametrize("state", ["waits", "promoted"])
def test_cancelled_run_leaves_no_place_behind(database: Database, state: str) -> None:
    keyed(database)
    first, second, third = (database.trigger() for _ in range(3))
    started, _ = database.begin(first), database.claim(second, third)
    if state == "promoted":
        database.succeed(started)
    database.apply(cancelling(second))
    assert database.final_state(second)[0] == RunState.CANCELLED
    if state == "waits":
        database.succeed(started)
    database.succeed(database.begin(third))
    assert key_row(database) == (0, False, False)


def test_runs_of_one_template_have_the_keys_of_their_payloads(database: Database) -> None:
    database.submit(concurrency_key="to/{payload.customer}", payload={"customer": "own"})
    given: list[dict[str, Any]] = [
        {},
        {"payload": {"customer": 7}},
        {"payload": {"customer": 7}, "concurrency_key": "all/{payload.customer}"},
    ]
    runs = [database.trigger(**fields) for fields in given]
    assert [open_key(database, run) for run in runs] == ["to/own", "to/7", "all/7"]
    error = database.refuse(about("job.trigger", payload={"client": 7}))
    assert (error.path, bool(error.remedy)) == ("payload.customer", True)
    database.succeed(database.begin(runs[1]))
    reply = database.accept({"type": "run.retry", "run_id": str(runs[1])})
    assert open_key(database, UUID(reply.run_id)) == "to/7", "a retry keeps the key"


def test_runs_without_a_trigger_have_the_key_of_the_jobs_payload(still: ClockedDatabase) -> None:
    template: dict[str, Any] = {
        "concurrency_key": {"key": "to/{payload.customer}", "at_once": 2},
        "payload": {"customer": "own"},
    }
    still.submit(schedule="@every 1h", **template)
    for minutes in range(3):
        template["payload"] = {"customer": minutes}
        still.submit(f"new-{minutes}", schedule="@every 1h", **template)
    still.advance(timedelta(hours=1))
    fire_due(still)
    assert {request.concurrency_key for request in still.requests()} == {"to/own", "to/0", "to/1", "to/2"}
    template["payload"] = {"customer": "new"}
    still.submit(schedule="@every 2h", **template)
    assert open_key(still, still.trigger()) == "to/new", "an edit of the payload changes the key"


def test_limit_of_the_jobs_current_version_applies(database: Database) -> None:
    keyed(database)
    first, second = database.trigger(), database.trigger()
    database.begin(first)
    database.claim(second)
    keyed(database, at_once=3)
    third = database.trigger()
    assert database.open_run(second).state == RunState.QUEUED, "a raised limit lets the waiting runs start"
    assert {each.run_id for each in database.claim(second, third).started} == {second, third}
    assert database.value("SELECT at_once FROM run_keys") == 3, "an older version does not bring its limit back"


def waiting_for(database: Database, *keys: str, each: int) -> None:
    """Let runs wait for keys with one place, which another run holds."""
    keyed(database)
    runs = [database.trigger(concurrency_key=key) for key in keys for _ in range(each + 1)]
    assert len(database.claim(*runs).waiting) == len(keys) * each


def test_transaction_promotes_so_many_runs_of_all_keys(
    clocked: ClockedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidewheel.transitions.run_keys._MAX_PROMOTED", 4)
    clocked.stop_clock()
    waiting_for(clocked, "a", "b", "c", each=3)
    clocked.execute("INSERT INTO key_limits VALUES ('default', true, '', 9, NULL, 1, 'test')")
    duties = KeyDuties(clocked.session(), clocked.installation)
    assert KeyRepair(clocked.session(), clocked.installation).repair() == 4
    assert sorted(clocked.rows("SELECT running, wake_at IS NULL FROM run_keys")) == [(2, False), (2, False), (3, False)]
    promoted: list[int] = []
    for _ in range(3):
        clocked.advance(timedelta(seconds=1))
        promoted.append(duties.promote(range(clocked.installation.shards))[0])
    assert promoted == [4, 1, 0]
    assert clocked.rows("SELECT DISTINCT running, has_waiters, wake_at IS NULL FROM run_keys") == [(4, False, True)]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE run_keys SET tat = '-infinity', wake_at = '-infinity' WHERE key = 'a'",
        "UPDATE job_runs SET scheduled_at = '294000-01-01Z' WHERE concurrency_key = 'a'",
    ],
)
def test_key_that_cannot_be_woken_stops_no_other(clocked: ClockedDatabase, damage: LiteralString) -> None:
    clocked.stop_clock()
    waiting_for(clocked, "a", "b", each=1)
    clocked.execute("INSERT INTO key_limits VALUES ('default', true, '', 9, NULL, 1, 'test')")
    clocked.execute("UPDATE run_keys SET wake_at = tidewheel_now()")
    clocked.execute(damage)
    duties = KeyDuties(clocked.session(), clocked.installation)
    duties.promote(range(clocked.installation.shards))
    assert clocked.value("SELECT count(waits_for) FROM job_runs WHERE concurrency_key = 'b'") == 0
    assert duties.promote(range(clocked.installation.shards)) == (0, math.inf), "the key that fails is left out"


def test_edit_settles_keys_whose_limit_it_changes_and_leaves_some_to_the_walk(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidewheel.transitions.key_limits._STEP", 2)
    waiting_for(database, "a", "b", "c", each=1)
    keyed(database, at_once=2)
    assert database.value("SELECT count(*) FROM run_keys WHERE has_waiters") == 1
    database.submit(concurrency_key={"key": "acme", "at_once": 2}, payload="another")
    assert database.value("SELECT count(*) FROM run_keys WHERE has_waiters") == 1, "the limit is the same"
    assert KeyRepair(database.session(), database.installation).repair() == 1
    assert database.value("SELECT count(*) FROM run_keys WHERE has_waiters") == 0


def test_faster_rate_applies_from_the_next_claim_on(still: ClockedDatabase) -> None:
    keyed(still, rate="1/day")
    still.begin(still.trigger())
    keyed(still, rate="1/s")
    later = still.trigger()
    assert still.claim(later).waiting == {later}
    still.advance(timedelta(seconds=1))
    assert KeyDuties(still.session(), still.installation).promote(range(64))[0] == 1


def test_run_that_replaces_the_active_run_takes_its_place(database: Database) -> None:
    database.submit(concurrency_key="acme", overlap="terminate_other")
    first, second = database.trigger(), database.trigger()
    database.begin(first)
    claimed = database.claim(second)
    assert {each.run_id for each in claimed.started} == {second}
    assert key_row(database) == (1, False, False)


@pytest.mark.parametrize("what", ["concurrency_key", "ordering_key", "tenant"])
def test_completion_in_a_clients_transaction_gives_the_place_back_later(database: Database, what: str) -> None:
    if what == "tenant":
        limit_tenant(database, 1)
        database.submit()
    else:
        database.submit(**{what: "acme"})
    limited = database.within(LimitedTenants().read)
    first, second = (database.requested_claim(database.trigger()) for _ in range(2))
    [started] = database.within(
        claim_runs, database.installation, [first, second], executor_id=EXECUTOR, limited=limited
    ).started
    database.within(finish_runs, database.installation, [ending(started, RunState.SUCCEEDED)], lasting=True)
    assert database.open_run(second.run_id).state == RunState.BUFFERED
    repair = KeyRepair(database.session(), database.installation)
    assert repair.repair() == 0, "the place is not free before the effect is applied"
    database.within(apply_deferred_effects, database.installation)
    assert database.open_run(second.run_id).state == RunState.QUEUED


LIMITING = [overlap for overlap in Overlap if overlap is not Overlap.ALLOW_ALL]


@pytest.mark.parametrize("overlap", LIMITING)
def test_key_and_an_overlap_policy_agree_about_who_is_first(database: Database, overlap: Overlap) -> None:
    keyed(database)
    other = database.begin(database.trigger())
    database.submit("limited", concurrency_key="acme", overlap=overlap)
    first, second = database.trigger("limited"), database.trigger("limited")
    for run in (first, second):
        arrive(database, run)
    database.succeed(other)
    if overlap in {Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER}:
        assert database.final_state(first)[0] == RunState.CANCELLED
        [started] = arrive(database, second)
        database.succeed(started)
    else:
        [started] = arrive(database, first)
        database.succeed(started)
        if overlap is Overlap.SKIP:
            assert database.final_state(second)[0] == RunState.SKIPPED
        else:
            [started] = arrive(database, second)
            database.succeed(started)
    assert key_row(database) == (0, False, False)
    assert (database.count("job_runs"), database.count("active_runs")) == (0, 0)


def arrive(database: Database, run: UUID) -> list[Started]:
    """Claim as an executor does: at once, and with a look at other runs of the job if it is undecided."""
    claimed = claim_fast(database, run)
    return list(claimed.started) if claimed.started or claimed.waiting else list(database.claim(run).started)


def test_buffered_run_gives_its_place_back(database: Database) -> None:
    database.submit(concurrency_key="acme", overlap="buffer_all")
    first, second = database.trigger(), database.trigger()
    arrive(database, first)
    # As a release without the rule left it: a promoted run that is not the active one.
    database.execute(
        "UPDATE job_runs SET gates = gates | %s WHERE run_id = %s", [int(Gate.HOLDS_KEY | Gate.MET), second]
    )
    database.execute("UPDATE run_keys SET running = 2, unclaimed = 1")
    arrive(database, second)
    assert database.rows("SELECT running, unclaimed FROM run_keys") == [(1, 0)]


def test_rate_lets_runs_start_one_after_another(still: ClockedDatabase) -> None:
    keyed(still, rate="1/s", burst=2)
    runs = sorted(still.trigger() for _ in range(5))  # of one instant: the smallest is first
    claimed = still.claim(*runs)
    assert len(claimed.started) == 2
    assert len(claimed.waiting) == 3
    duties = KeyDuties(still.session(), still.installation)
    promoted, seconds = duties.promote(range(still.installation.shards))
    assert (promoted, seconds) == (0, 1.0)
    for run in runs[2:]:
        still.advance(timedelta(seconds=1))
        assert duties.promote(range(still.installation.shards))[0] == 1
        still.begin(run)
    assert still.rows("SELECT running, unclaimed FROM run_keys") == [(5, 0)]


def test_rate_after_an_outage_is_the_burst_and_no_more(still: ClockedDatabase) -> None:
    keyed(still, rate="1/min", burst=3)
    runs = sorted(still.trigger() for _ in range(30))
    still.claim(*runs)
    duties = KeyDuties(still.session(), still.installation)
    for _ in range(10):
        still.advance(timedelta(minutes=1))
        duties.promote(range(still.installation.shards))
    rows = still.rows("SELECT run_id FROM job_runs WHERE state = 'queued' ORDER BY scheduled_at, run_id")
    promoted = [row[0] for row in rows]
    assert promoted == runs[3:6], "no more than the burst is promoted while no executor claims"
    assert duties.promote(range(still.installation.shards)) == (0, math.inf), "a start or an end wakes the key"
    still.apply(cancelling(promoted[0]))
    claimed = still.claim(*promoted[1:])
    assert (len(claimed.started), claimed.promoted) == (2, 0), "the executors find the burst, and then the rate"
    still.advance(timedelta(minutes=1))
    assert duties.promote(range(still.installation.shards))[0] == 1
    assert still.rows("SELECT running, unclaimed FROM run_keys") == [(7, 2)], "the cancel passed its start on"


def test_key_with_a_slow_rate_is_not_idle(still: ClockedDatabase) -> None:
    keyed(still, rate="1/day")
    still.succeed(still.begin(still.trigger()))
    still.advance(timedelta(hours=1))
    KeyRepair(still.session(), still.installation).repair()
    second = still.trigger()
    assert still.claim(second).waiting == {second}


def test_repair_reads_so_many_runs_and_goes_on(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key with more runs than one step reads must not keep the repair from the others."""
    monkeypatch.setattr("tidewheel.scheduler.concurrency_keys._MAX_RUNS", 4)
    keyed(database, at_once=100)
    runs = [database.trigger(concurrency_key=name) for name, count in KEYS.items() for _ in range(count)]
    database.claim(*runs)
    database.execute("UPDATE run_keys SET running = running + 1, unclaimed = 1")
    repair = KeyRepair(database.session(), database.installation)
    for _ in range(10):
        repair.repair()
    found = {key: counters for key, *counters in database.rows("SELECT key, running, unclaimed FROM run_keys")}
    assert found == {name: [count, 0] for name, count in KEYS.items()} | {"c": [8, 1]}


def test_idle_keys_are_removed_and_wrong_counters_repaired(clocked: ClockedDatabase) -> None:
    keyed(clocked)
    clocked.succeed(clocked.begin(clocked.trigger()))
    second, third = clocked.trigger(), clocked.trigger()
    clocked.claim(second, third)
    clocked.execute("UPDATE run_keys SET running = 7, unclaimed = 2")
    KeyRepair(clocked.session(), clocked.installation).repair()
    assert key_row(clocked) == (1, True, False)
    assert clocked.value("SELECT unclaimed FROM run_keys") == 0
    clocked.apply_batch({"type": "runs.cancel", "key": "job"})
    clocked.execute("DELETE FROM job_runs")
    clocked.execute("UPDATE run_keys SET running = 0, has_waiters = false")
    clocked.advance(timedelta(minutes=11))
    KeyRepair(clocked.session(), clocked.installation).repair()
    assert clocked.count("run_keys") == 0


def limit_tenant(database: Database, in_flight: int | None) -> None:
    with Client(database.url) as client:
        client.tenants.limit("default", in_flight=in_flight)


class Fire:
    """Claimers, enders and cancels that all use the same few keys at random."""

    def __init__(self, database: Database, seed: int) -> None:
        self.database, self.seed = database, seed
        self.failures: list[str] = []
        self.limit = PLACES
        self.in_flight = RUNS
        self.tenants = LimitedTenants()

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
        installation, limited = self.database.installation, self.tenants.read(connection)
        if rng.random() < 0.7:
            claimed = claim_keyed(connection, installation, claims, executor_id=executor, limited=limited)
        else:
            claims = contest_runs(connection, claims)
            claimed = claim_runs(
                connection, installation, claims, executor_id=executor, contested=True, limited=limited
            )
        started = [one.run_id for one in claimed.started]
        keys = [row[0] for row in connection.execute("SELECT key_id FROM job_runs WHERE run_id = ANY (%s)", [started])]
        crowded = connection.execute(CROWDED, [keys, self.limit]).fetchall()
        if crowded:
            self.failures.append(f"more than {self.limit}: {crowded}")
        [(active,)] = cast("list[tuple[int]]", connection.execute(ACTIVE).fetchall())
        if started and active > self.in_flight:
            self.failures.append(f"{active} are in flight")
        return list(claimed.started)

    def _end(self, connection: Conn, rng: random.Random, executor: UUID, done: Sequence[Started]) -> set[UUID]:
        """End attempts, some by a retry or as lost; return those that were locked."""
        freed: list[FreedPlace] = []
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


@pytest.mark.landing
@pytest.mark.property
@pytest.mark.parametrize(
    ("overlap", "in_flight"), [(Overlap.ALLOW_ALL, None), (Overlap.BUFFER_ALL, None), (Overlap.ALLOW_ALL, 5)]
)
def test_keys_under_fire_admit_never_too_many_and_leave_nothing(
    database: Database, overlap: Overlap, in_flight: int | None
) -> None:
    for job in range(4):
        database.submit(f"job-{job}", concurrency_key={"key": "k", "at_once": PLACES}, overlap=overlap)
    rng = random.Random(7)  # noqa: S311 - repeatable
    runs = [database.trigger(f"job-{rng.randrange(4)}", concurrency_key=f"k{rng.randrange(3)}") for _ in range(RUNS)]
    fire = Fire(database, 1)
    if in_flight is not None:
        fire.in_flight = in_flight
        limit_tenant(database, in_flight)
    stop = threading.Event()

    def cancel_and_edit() -> None:
        while not stop.wait(0.05):
            database.apply(cancelling(rng.choice(runs)))
            limit = {"key": "k", "at_once": rng.randint(1, PLACES)}
            database.submit(f"job-{rng.randrange(4)}", concurrency_key=limit, overlap=overlap)
            if in_flight is not None:
                limit_tenant(database, rng.randint(1, in_flight))

    repair = ActiveRunRepair(database.session("repair"), database.installation)

    def tend() -> None:
        duties = KeyDuties(database.session("duties"), database.installation)
        while not stop.wait(0.02):
            duties.promote(range(database.installation.shards))
            repair.step()

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
    assert database.rows("SELECT * FROM run_keys WHERE running <> 0 OR unclaimed <> 0 OR has_waiters") == []
    # An active run that ended while cancellations held all runs behind it stays until the repair, or the next claim.
    repair.step()
    assert database.rows("SELECT * FROM active_runs WHERE has_waiters") == []
    for job in range(4):
        database.succeed(database.begun(f"job-{job}"))
    assert database.count("active_runs") == 0


@pytest.mark.parametrize("keys", [2_500, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_keys_that_nothing_uses_leave_no_row(database: Database, keys: int) -> None:
    for first in range(0, keys, 50_000):
        database.execute(
            "INSERT INTO run_keys (key_id, tenant, key, burst, used_at)"
            " SELECT n, 'default', 'key-' || n, 1, now() - interval '11 min' FROM generate_series(%s::bigint, %s) AS n",
            [first, min(first + 50_000, keys) - 1],
        )
    database.claim(trigger_keyed(database))
    repair = KeyRepair(database.session(), database.installation)
    for _ in range(keys // 1000 + 2):
        repair.repair()
    assert database.rows("SELECT key FROM run_keys") == [("in-use",)]
