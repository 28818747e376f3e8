"""Duties of a scheduler that is killed in the middle are done once by another."""

import json
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

import pytest

from tests.control.cli.command import json_output
from tests.fixtures.acts import submission
from tests.fixtures.database import Database
from tests.fixtures.oracle import Oracle, read_effects
from tests.fixtures.services import HANDLERS, LONG_LEASE, Fleet, Role, Service
from tests.scheduler.backfills import progress
from tests.scheduler.test_tenant_deletions import rows_by_table
from tidewheel.control.client.client import Client
from tidewheel.ids import job_id, run_id
from tidewheel.postgres.faults import MAX_ALIKE
from tidewheel.runs import Cause

MINUTE = timedelta(minutes=1)
INSTANTS = 40


def succeeded(database: Database, backfill_id: UUID) -> int:
    runs: Any = progress(database, backfill_id).facts["runs"]
    return runs.get("succeeded", 0)


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.parametrize(
    "failpoint",
    [
        "backfilling.before_commit:exit:3",
        pytest.param("backfilling.after_commit:exit:3", marks=pytest.mark.slow),
        pytest.param(None, marks=pytest.mark.slow),
    ],
)
def test_killed_backfill_is_continued_by_the_next_scheduler(
    failpoint: str | None, fleet: Fleet, oracle: Oracle
) -> None:
    last = fleet.database.now().replace(second=0, microsecond=0) - MINUTE
    first = last - (INSTANTS - 1) * MINUTE
    schedule = {"interval": "60s", "anchor": first.isoformat()}
    # Paused, so that its runs are the backfill's alone.
    job = {"key": "tide", "schedule": schedule, "target": "note", "overlap": "allow_all", "paused": True}
    fleet.ask({"type": "job.submit", "job": job})
    asked = fleet.ask(
        {
            "type": "job.backfill", "key": "tide", "from": first.isoformat(), "to": last.isoformat(), "what": "all",
            "versions": "current", "max_concurrent": 8,
        }
    )  # fmt: skip
    fleet.flush()
    fleet.start_all("intake", "relay", "executor", LEASE=LONG_LEASE)
    oracle.wait_answered()
    backfill_id = UUID(oracle.replies()[asked].backfill_id)
    doomed = fleet.start("scheduler", failpoint=failpoint)
    if failpoint is None:
        fleet.until(lambda: succeeded(fleet.database, backfill_id) >= 8, "some runs have succeeded")
        doomed.kill()
    doomed.wait_killed()
    stands = progress(fleet.database, backfill_id)
    assert 0 < stands.done_count < INSTANTS
    fleet.start("scheduler")
    fleet.until(lambda: progress(fleet.database, backfill_id).state == "finished", "the backfill is finished")
    oracle.wait_settled()
    fleet.kill()
    fleet.promised = {
        str(run_id(job_id("default", "tide"), at, Cause.BACKFILL, backfill_id.bytes, at=stands.created_at))
        for at in (first + number * MINUTE for number in range(INSTANTS))
    }
    findings = oracle.check(attempts={})
    assert findings.runs == INSTANTS
    assert succeeded(fleet.database, backfill_id) == INSTANTS


LETTERS = 20
RATE = 40.0  # a second: batches of four
ONCE = {"max_attempts": 1}


def started(client: Client, kind: str) -> UUID | None:
    """The id of a new work on all that have failed."""
    if kind == "retry":
        return client.runs.retry_failed(everything=True, rate=RATE).work_id
    begin = client.dead_letters.redrive if kind == "redrive" else client.dead_letters.purge
    return begin(everything=True, rate=RATE).work_id


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("point", ["working.before_commit", "working.after_commit"])
@pytest.mark.parametrize("kind", ["redrive", "retry", "purge"])
def test_killed_work_is_continued_by_the_next_scheduler(kind: str, point: str, fleet: Fleet, oracle: Oracle) -> None:
    doomed = {"key": "doomed", "schedule": "manual", "target": "lost-cause", "retry": ONCE}
    fleet.ask({"type": "job.submit", "job": doomed})
    for _ in range(LETTERS):
        fleet.ask({"type": "job.trigger", "key": "doomed"})
    fleet.flush()
    fleet.start_all("intake", "relay", "executor")
    oracle.wait_answered()
    fleet.until(lambda: fleet.database.count("dead_letters") == LETTERS, "each run is a dead letter")
    with Client(fleet.database.url) as client:
        work_id = started(client, kind)
        assert work_id is not None
        fleet.start("scheduler", failpoint=f"{point}:exit:3").wait_killed()
        begun = client.works.get(work_id)
        assert (begun.state, 0 < begun.processed < LETTERS) == ("running", True)
        fleet.start("scheduler")
        fleet.until(lambda: client.works.get(work_id).state == "finished", "the work is finished")
        assert client.works.get(work_id).done_count == LETTERS
    oracle.wait_settled()
    oracle.reader.read_to_end()
    retried = {run: event.parent_run_id for run, event in oracle.completed().items() if event.parent_run_id}
    originals = set(oracle.completed()) - set(retried)
    assert Counter(retried.values()) == (dict.fromkeys(originals, 1) if kind != "purge" else {})
    assert fleet.database.count("dead_letters") == {"redrive": 2, "retry": 2, "purge": 0}[kind] * LETTERS
    assert len(originals) == LETTERS
    fleet.promised |= set(retried)
    fleet.stop()
    oracle.check(failures=("doomed",))


ROOTS = 5
AFTER = {"b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["d"]}
GRAPH: dict[str, object] = {"a": "manual", **{key: {"after": parents} for key, parents in AFTER.items()}}
POINTS = ("taken", "locked", "marked", "written", "before_commit", "after_commit")


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["allow_all", "buffer_all"])
def test_killed_drain_is_continued_by_the_next_scheduler(fleet: Fleet, oracle: Oracle, overlap: str) -> None:
    """With `buffer_all` each drain that ends an occurrence starts the next one."""
    # In one transaction: requests of different keys have no order on the topic.
    given = {key: {"overlap": overlap} if key == "a" else {} for key in GRAPH}
    jobs = [submission(key, schedule=of, target="note", **given[key]) for key, of in GRAPH.items()]
    fleet.database.apply_batch(*jobs)
    for _ in range(ROOTS):
        fleet.ask({"type": "job.trigger", "key": "a"})
    fleet.flush()
    fleet.start_all("intake", "relay", "executor")
    oracle.wait_answered()
    for point in POINTS:
        fleet.start("scheduler", failpoint=f"draining.{point}:exit:1").wait_killed()
    fleet.start("scheduler")
    fleet.until(lambda: ended(fleet) == ROOTS, "the occurrences have ended")
    runs = fleet.database.rows("SELECT count(*), count(DISTINCT (workflow_run_id, job_id)) FROM finished_runs")
    assert runs == [(5 * ROOTS, 5 * ROOTS)]
    assert fleet.database.rows("SELECT DISTINCT state FROM finished_runs") == [("succeeded",)]
    for table in ("job_runs", "releases", "joins", "active_runs"):
        assert fleet.database.count(table) == 0, table


def ended(fleet: Fleet) -> int:
    return fleet.database.value("SELECT count(*) FROM workflows WHERE state = 'succeeded'")


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
def test_killed_timeout_is_continued_by_the_next_scheduler(fleet: Fleet, oracle: Oracle) -> None:
    root = submission("a", schedule="manual", target="note", workflow={"timeout": "1s"})
    child = submission("b", schedule={"after": ["a"]}, target="note", queue="without-executors")
    fleet.database.apply_batch(root, child)
    fleet.ask({"type": "job.trigger", "key": "a"})
    fleet.flush()
    fleet.start_all("intake", "relay", "executor")
    oracle.wait_answered()
    # The first scheduler creates the child before it applies the deadline.
    fleet.until(lambda: fleet.database.count("finished_runs") == 1, "the root has ended")
    for point in ("before_commit", "after_commit"):
        fleet.start("scheduler", failpoint=f"timing_out.{point}:exit:1").wait_killed()
    fleet.start("scheduler")
    ends = "SELECT count(*) FROM workflows WHERE state = 'timed_out'"
    fleet.until(lambda: fleet.database.value(ends) == 1, "the occurrence has timed out")
    assert fleet.database.rows("SELECT state FROM finished_runs ORDER BY state") == [("cancelled",), ("succeeded",)]
    for table in ("job_runs", "releases", "joins"):
        assert fleet.database.count(table) == 0, table


SECOND = timedelta(seconds=1)
KEYS = [f"job-{number}" for number in range(2 * MAX_ALIKE + 1)]
REFUSE: LiteralString = "ALTER TABLE job_runs ADD CONSTRAINT of_a_newer_release CHECK (false) NOT VALID"
ACCEPT: LiteralString = "ALTER TABLE job_runs DROP CONSTRAINT of_a_newer_release"
HELD: LiteralString = "SELECT count(*) FROM timers WHERE hold_reason = 'quarantine'"
PAUSED: LiteralString = "SELECT count(*) FROM timers WHERE hold_reason = 'pause'"
FIRED: LiteralString = "SELECT scheduled_at FROM runs WHERE job_id = %s ORDER BY scheduled_at"


def fired(database: Database, key: str) -> list[datetime]:
    return [at for (at,) in database.rows(FIRED, [job_id("default", key)])]


def have_all_fired(database: Database, since: datetime) -> bool:
    return all(any(at > since for at in fired(database, key)) for key in KEYS)


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize(("point", "held"), [("freeing.before_commit", MAX_ALIKE), ("freeing.after_commit", 0)])
def test_scheduler_killed_while_it_frees_loses_and_doubles_nothing(point: str, held: int, fleet: Fleet) -> None:
    database = fleet.database
    for key in KEYS:
        job = {"schedule": "@every 1s", "target": "note", "overlap": "allow_all", "catch_up": "fire_all"}
        fleet.ask({"type": "job.submit", "job": {"key": key, **job}})
    fleet.flush()
    fleet.start_all("intake", "relay", "executor", LEASE=LONG_LEASE)
    doomed = fleet.start("scheduler", failpoint=f"{point}:exit")
    fleet.until(lambda: all(fired(database, key) for key in KEYS), "all fire")

    database.execute(REFUSE)
    doomed.wait_killed()
    assert database.value(HELD) == held
    following = fleet.start("scheduler")
    fleet.until(lambda: following.has_logged("released quarantined jobs"), "the next one frees what it quarantined")
    assert database.value(HELD) == held
    database.execute(ACCEPT)
    accepted_at = database.now()
    assert json_output(database, "job", "release", "--all")["released"] == held
    fleet.until(lambda: have_all_fired(database, accepted_at + SECOND), "all fire again")

    for key in KEYS:
        fleet.ask({"type": "job.pause", "key": key})
    fleet.flush()
    fleet.until(
        lambda: database.value("SELECT count(*) FROM timers WHERE hold_reason = 'pause'") == len(KEYS), "paused"
    )
    fleet.until(fleet.settled, "every run has ended")
    assert database.count("skips") == 0
    for key in KEYS:
        runs = fired(database, key)
        assert runs == [runs[0] + number * SECOND for number in range(len(runs))], key
    effects = Counter(effect.run_id for effect in read_effects(fleet.effects))
    assert effects == Counter(str(run) for (run,) in database.rows("SELECT run_id FROM runs"))


SECONDS = float(os.environ.get("TIDEWHEEL_TEST_KEYS_SECONDS", "10"))
PLACES = 3
A_SECOND = 20  # starts of the key with a rate
HOLDS = 0.05  # seconds that a run holds its place
EXECUTORS = 3
_BUNCHED = 1.0  # seconds by which promoted runs may come late without delaying those after them, on a busy machine
LEFT: LiteralString = "SELECT count(*) FROM run_keys WHERE running <> 0 OR unclaimed <> 0 OR has_waiters"


def executor(fleet: Fleet) -> Service:
    # Long enough that no executor is taken for lost while it lives: it would run beside its successor.
    return fleet.start("executor", HANDLERS=f"{HANDLERS},tests.faults.crowd_handlers", LEASE="PT4S")


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
def test_killed_executors_leave_no_place_and_admit_no_run_too_many(fleet: Fleet, oracle: Oracle) -> None:
    database = fleet.database
    payload = {"folder": str(fleet.folder), "places": PLACES, "seconds": HOLDS}
    again = {"retry": {"max_attempts": 20, "initial": "10ms"}}
    database.submit("crowd", target="crowd", payload=payload, concurrency_key={"key": "a", "at_once": PLACES}, **again)
    database.submit("paced", target="paced", concurrency_key={"key": "b", "rate": f"{A_SECOND}/s"}, **again)
    crowded = [database.trigger("crowd") for _ in range(int(SECONDS * PLACES / HOLDS / 4))]
    paced = [database.trigger("paced") for _ in range(int(SECONDS * A_SECOND))]
    fleet.start_all("scheduler", "relay")
    executors = [executor(fleet) for _ in range(EXECUTORS)]
    fleet.wait_started()
    began = database.now()
    for kill in range(1, int(SECONDS / 3)):
        due = began.timestamp() + 3 * kill
        fleet.until(lambda due=due: database.now().timestamp() > due, "the next kill is due")
        executors.pop(0).kill()
        executors.append(executor(fleet))
    fleet.until(lambda: database.count("job_runs") == 0, "no run waits for ever", seconds=SECONDS + 90)
    assert database.value(LEFT) == 0
    fleet.kill()
    effects = [json.loads(line) for line in fleet.effects.read_text().splitlines()]
    held = [effect for effect in effects if effect["job_key"] == "crowd"]
    assert {effect["run_id"] for effect in held} == {str(run) for run in crowded}
    assert sum(effect["is_over"] for effect in held) == 0
    starts = [effect["at"] for effect in effects if effect["job_key"] == "paced"]
    assert len(starts) >= len(paced)
    most = most_in_a_window(starts, SECONDS)
    (fleet.folder / "measured.txt").write_text(
        f"{len(held)} on {PLACES} places, {most} in {SECONDS:g} s at {A_SECOND}/s"
    )
    assert most <= SECONDS * A_SECOND * 1.01 + 1 + A_SECOND * _BUNCHED


def most_in_a_window(times: Sequence[float], seconds: float) -> int:
    """Return the most of these instants in any window of so many seconds; 0 of none."""
    ordered = sorted(times)
    return max((bisect_left(ordered, at + seconds) - number for number, at in enumerate(ordered)), default=0)


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("visit", [2, 8])  # while it stops jobs and runs, and while it removes rows
@pytest.mark.parametrize("point", ["deleting.before_commit", "deleting.after_commit"])
def test_killed_deletion_is_continued_by_the_next_scheduler(point: str, visit: int, fleet: Fleet) -> None:
    database = fleet.database
    with Client(database.url) as client:
        client.tenants.create("acme")
        job = {"schedule": "@every 1s", "target": "note", "overlap": "allow_all"}
        for tenant in ("acme", "default"):
            for number in range(5):
                fleet.ask({"type": "job.submit", "tenant": tenant, "job": {"key": f"each/{number}", **job}})
        fleet.flush()
        fleet.start_all("intake", "relay", "executor")
        first = fleet.start("scheduler")
        fleet.until(lambda: rows_by_table(database, "acme").get("finished_runs", 0) > 10, "runs have ended")
        first.terminate()
        doomed = fleet.start("scheduler", failpoint=f"{point}:exit:{visit}")
        client.tenants.delete("acme", grace=timedelta(0))
        for _ in range(20):
            fleet.ask({"type": "job.trigger", "tenant": "acme", "key": "each/1"})
        fleet.flush()
        doomed.wait_killed()
        assert client.tenants.get("acme").state == "deleting"
        fleet.start("scheduler")
        fleet.until(lambda: client.tenants.get("acme").state == "deleted", "the tenant is deleted")
        assert rows_by_table(database, "acme") == {}
        removed = client.tenants.get("acme").deletion
        assert removed is not None
        assert removed.removed["finished_runs"] > 10
        before = rows_by_table(database, "default")["finished_runs"]
        fleet.until(lambda: rows_by_table(database, "default")["finished_runs"] > before, "the other tenant goes on")


FREEZING = [f"frozen/{number}" for number in range(10)]
SERVICES: tuple[Role, ...] = ("intake", "scheduler", "relay", "executor")
STARTED: LiteralString = """
SELECT count(*) FROM runs AS r JOIN jobs AS j USING (job_id) WHERE j.key LIKE 'frozen/%%' AND r.started_at > %s
"""
HELD_BY_FREEZE: LiteralString = "SELECT count(*) FROM timers WHERE hold_reason = 'freeze'"
FIRED_OF_ALL: LiteralString = """
SELECT r.scheduled_at FROM runs AS r JOIN jobs AS j USING (job_id)
 WHERE j.key = %s AND r.cause = 'timer' ORDER BY r.scheduled_at
"""
ENDED_OF_OTHER: LiteralString = """
SELECT count(*) FROM finished_runs AS r JOIN jobs AS j USING (job_id) WHERE j.key = 'other' AND r.started_at > %s
"""
FROZEN: LiteralString = """
SELECT s.occurrences, s.first_at, s.last_at
  FROM skips AS s JOIN jobs AS j USING (job_id)
 WHERE j.key = %s AND s.reason = 'frozen'
"""


def instants(fleet: Fleet, key: str) -> list[datetime]:
    return [at for (at,) in fleet.database.rows(FIRED_OF_ALL, [key])]


def has_fired(fleet: Fleet, key: str, after: datetime) -> bool:
    return any(at > after for at in instants(fleet, key))


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
def test_services_killed_under_a_freeze_start_nothing_and_the_thaw_loses_nothing(fleet: Fleet) -> None:
    database = fleet.database
    job = {"schedule": "@every 1s", "target": "note", "overlap": "allow_all", "on_resume": "fire_all"}
    for key in (*FREEZING, "other"):
        fleet.ask({"type": "job.submit", "job": {"key": key, **job}})
    fleet.flush()
    services = {name: fleet.start(name) for name in SERVICES}
    fleet.until(lambda: all(instants(fleet, key) for key in FREEZING), "all fire")
    with Client(database.url) as client:
        client.freezes.freeze(key_prefix="frozen/")
        frozen_at = database.now()
        for key in FREEZING:
            fleet.ask({"type": "job.trigger", "key": key})
        fleet.flush()
        for name in SERVICES:
            services[name].kill()
            services[name] = fleet.start(name)
        fleet.until(lambda: database.value(HELD_BY_FREEZE) == len(FREEZING), "every timer of the scope is held")
        killed_at = database.now()
        fleet.until(lambda: database.value(ENDED_OF_OTHER, [killed_at]) > 0, "others go on")
        assert database.value(STARTED, [frozen_at]) == 0
        client.freezes.thaw(key_prefix="frozen/")
        for name in SERVICES:
            services[name].kill()
            services[name] = fleet.start(name)
        thawed_at = database.now()
        fleet.until(lambda: all(has_fired(fleet, key, thawed_at) for key in FREEZING), "all fire again")
        for key in (*FREEZING, "other"):
            client.pause(key)
    fleet.until(fleet.settled, "every run has ended")
    assert (database.count("skips"), database.count("freezes"), database.count("frozen_jobs")) == (0, 0, 0)
    for key in FREEZING:
        fired = instants(fleet, key)
        assert fired == [fired[0] + number * SECOND for number in range(len(fired))], key
    effects = Counter(effect.run_id for effect in read_effects(fleet.effects))
    runs = {str(run) for (run,) in database.rows("SELECT run_id FROM runs")}
    assert effects.keys() == runs


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
def test_freeze_over_a_killed_scheduler_is_recorded_and_starts_nothing(fleet: Fleet) -> None:
    """Issue 39, F1 and F2: the rows decide, also over runs that the killed scheduler wrote ahead."""
    database = fleet.database
    for key in FREEZING:
        job = {"schedule": "@every 1s", "target": "note", "overlap": "allow_all", "on_resume": "skip"}
        fleet.ask({"type": "job.submit", "job": {"key": key, **job, "catch_up": "fire_all", "window": "1h"}})
    fleet.flush()
    services = {name: fleet.start(name) for name in SERVICES}
    began = database.now()
    fleet.until(lambda: all(has_fired(fleet, key, began) for key in FREEZING), "all fire")
    fleet.until(
        lambda: database.now() > max(instants(fleet, key)[0] for key in FREEZING), "an instant of each has come"
    )
    with Client(database.url) as client:
        services["scheduler"].kill()
        client.freezes.freeze(key_prefix="frozen/")
        frozen_at = database.value("SELECT created_at FROM freezes")
        fleet.until(lambda: database.now() > frozen_at + 3 * SECOND, "some instants pass")
        client.freezes.thaw(key_prefix="frozen/")
    thawed_at = database.value("SELECT thawed_at FROM freezes")
    for point in ("firing.locked", "firing.before_commit"):
        fleet.start("scheduler", failpoint=f"{point}:exit").wait_killed()
    fleet.start("scheduler")
    fleet.until(lambda: all(has_fired(fleet, key, thawed_at) for key in FREEZING), "all fire again")
    fleet.until(lambda: database.count("freezes") == 0, "the thaw is complete")
    for key in FREEZING:
        fired = instants(fleet, key)
        assert [at for at in fired if frozen_at < at <= thawed_at] == [], key
        skipped = database.rows(FROZEN, [key])
        passed = (thawed_at - fired[0]) // SECOND - (frozen_at - fired[0]) // SECOND
        assert sum(number for number, _, _ in skipped) == passed >= 3, key
        assert all(frozen_at < first <= last <= thawed_at for _, first, last in skipped), key
        assert len(fired) + sum(number for number, _, _ in skipped) == (fired[-1] - fired[0]) / SECOND + 1, key
