"""Executors that are suspended, past their lease too, or shut down."""

from datetime import timedelta
from typing import LiteralString

import pytest

from tests.faults.workload import Held, Workload, now
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import LONG_LEASE, SHORT_LEASE, Fleet, Service
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.generated.records import RunStatus

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

AT_ONCE = timedelta(seconds=30)  # on a machine that has other things to do; half of LONG_LEASE
STANDING: LiteralString = "SELECT state, attempt FROM job_runs WHERE run_id = %s"
UNCLAIMED: LiteralString = "SELECT EXISTS (SELECT FROM job_runs WHERE state = 'queued')"
CLAIMING: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock'
   AND application_name IN ('tidewheel-executor-standard', 'tidewheel-executor-sweep')
"""
STILL_CLAIMING: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND state = 'idle in transaction'
   AND application_name IN ('tidewheel-executor-standard', 'tidewheel-executor-sweep')
"""


def pid_of(oracle: Oracle, held: Held, attempt: int) -> int:
    """The process in which an attempt took effect."""
    [pid] = [e.pid for e in oracle.effects() if e.run_id == held.run_id and e.attempt == attempt]
    return pid


def pause_inside_a_claim(fleet: Fleet, work: Workload, executor: Service) -> None:
    """Stop it in the middle of its next claim, with locks on its own row and on a run's."""
    lock = fleet.database.connection()
    while True:
        work.trigger_later(timedelta(seconds=3))
        lock.execute("LOCK TABLE job_runs IN SHARE MODE")
        if lock.execute(UNCLAIMED).fetchone() == (True,):
            break
        lock.rollback()  # this machine was slow, and the run was claimed before
    fleet.until(lambda: fleet.database.value(CLAIMING) > 0, "a claim is held up in its transaction")
    executor.pause()
    lock.rollback()


def entered(fleet: Fleet, executor: Service) -> bool:
    """Return True if an executor is in the table."""
    rows = fleet.database.rows("SELECT name FROM executors")
    return any(str(name).endswith(f":{executor.process.pid}") for (name,) in rows)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gated", "gated-sync"])
def test_returning_executor_changes_nothing_and_continues(
    target: str, fleet: Fleet, oracle: Oracle, work: Workload
) -> None:
    work.submit()
    held = work.hold(target)
    fleet.start_all("intake", "scheduler", "relay")
    sleeper = fleet.start("executor", LEASE=SHORT_LEASE)
    held.wait_begun(1)
    other = fleet.start("executor", LEASE=SHORT_LEASE)
    fleet.wait_started()
    sleeper.pause()
    held.wait_begun(2)
    sleeper.resume()
    held.let_go(1)
    fleet.until(
        lambda: sleeper.has_logged("ignored the report of a superseded attempt"),
        "the late report has been looked at",
    )
    assert fleet.database.rows(STANDING, [held.run_id]) == [("running", 2)]
    held.let_go()
    held.wait_completed()
    fleet.until(lambda: entered(fleet, sleeper), "the executor has entered again")
    other.terminate()
    work.trigger("errand", 5)
    since = now()
    work.wait_recovered(since)
    assert {e.pid for e in oracle.effects() if e.at > since} == {sleeper.process.pid}
    work.finish_and_check(stopped=[sleeper])
    assert held.attempts() == [(1, AttemptOutcome.LOST), (2, AttemptOutcome.SUCCEEDED)]
    assert oracle.completed()[held.run_id].attempt == 2


@pytest.mark.slow
def test_suspended_claim_blocks_nothing_else(fleet: Fleet, work: Workload) -> None:
    work.submit(recurring=False)
    held = work.hold()
    fleet.start_all("intake", "relay")
    sleeper = fleet.start("executor")
    held.wait_begun(1)
    pause_inside_a_claim(fleet, work, sleeper)
    fleet.start("executor")
    fleet.wait_started()
    held.wait_begun(2)
    assert fleet.database.value(STILL_CLAIMING) > 0, "the claim was ended before"
    sleeper.resume()
    held.let_go()
    work.wait_recovered(now())
    work.finish_and_check(stopped=[sleeper])


@pytest.mark.slow
def test_suspended_claim_starts_no_reassigned_run(fleet: Fleet, work: Workload) -> None:
    """Its row stays locked by the claim, and its attempts go to other executors all the same."""
    settings = {"LEASE": SHORT_LEASE, "STALL_AFTER": "PT600S"}
    work.submit(recurring=False)
    in_the_way = work.hold("blocking")
    fleet.start_all("intake", "relay")
    fleet.start("api", API_PORT="0", **settings)  # ends the lease before the server ends the claim, after 15 s
    sleeper = fleet.start("executor", **settings)
    in_the_way.wait_begun(1)
    fleet.wait_started()
    claimed = work.hold()
    fleet.until(
        lambda: claimed.run_id and fleet.database.rows(STANDING, [claimed.run_id]) == [("running", 1)], "claimed"
    )
    in_the_way.let_go(2)
    pause_inside_a_claim(fleet, work, sleeper)
    fleet.until(lambda: fleet.database.rows(STANDING, [claimed.run_id]) != [("running", 1)], "its attempts have ended")
    assert entered(fleet, sleeper)
    fleet.start("executor", **settings)
    claimed.wait_begun(2)
    in_the_way.wait_completed()
    sleeper.resume()
    fleet.until(lambda: sleeper.has_logged("was over; registered again"), "it has seen for how long it was silent")
    in_the_way.let_go(1)
    fleet.until(
        lambda: sleeper.has_logged("ignored the report of a superseded attempt"),
        "its late report has been looked at",
    )
    claimed.let_go()
    work.finish_and_check(stopped=[sleeper])
    assert claimed.begun() == [2]
    assert claimed.attempts() == [(1, AttemptOutcome.LOST), (2, AttemptOutcome.SUCCEEDED)]


@pytest.mark.slow
def test_shutdown_releases_at_once_and_uncounted(fleet: Fleet, oracle: Oracle, work: Workload) -> None:
    work.submit()
    turned = [work.hold("gated", overlap="skip"), work.hold("gated-sync", overlap="skip")]
    fleet.start_all("intake", "scheduler", "relay")
    first = fleet.start("executor", DRAIN_TIMEOUT="PT0S", LEASE=LONG_LEASE)
    for held in turned:
        held.wait_begun(1)
    fleet.start("executor", LEASE=LONG_LEASE)
    fleet.wait_started()
    asked_at = now()
    assert first.terminate() < AT_ONCE.total_seconds()
    for held in turned:
        held.wait_begun(2)
        assert pid_of(oracle, held, 2) != pid_of(oracle, held, 1)
        begun = [e.at for e in oracle.effects() if e.run_id == held.run_id and e.attempt == 2]
        assert begun[0] - asked_at < AT_ONCE
    counted = fleet.database.rows(
        "SELECT run_id, failed_attempts, lost_attempts FROM job_runs WHERE handler LIKE 'gated%'"
    )
    assert sorted(counted) == sorted((row[0], 0, 0) for row in counted)
    assert len(counted) == len(turned)
    # The run is still its job's active run: another run of the job is skipped as before.
    for held in turned:
        work.trigger(held.key, 1)
    work.wait_recovered_but(turned, now())
    for held in turned:
        held.let_go()
    work.finish_and_check()
    for held in turned:
        assert held.attempts() == [(1, AttemptOutcome.RELEASED), (2, AttemptOutcome.SUCCEEDED)]
        runs = [c for c in oracle.completed().values() if c.job_key == held.key]
        assert sorted(c.status for c in runs) == [RunStatus.SKIPPED, RunStatus.SUCCEEDED]


@pytest.mark.landing
def test_shutdown_drains_and_claims_nothing_more(fleet: Fleet, oracle: Oracle, work: Workload) -> None:
    work.submit()
    held = work.hold()
    fleet.start_all("intake", "scheduler", "relay")
    first = fleet.start("executor", DRAIN_TIMEOUT="PT30S", LEASE=LONG_LEASE)
    held.wait_begun(1)
    second = fleet.start("executor", LEASE=LONG_LEASE)
    fleet.wait_started()
    first.ask_to_stop()
    fleet.until(lambda: fleet.database.value("SELECT count(*) FROM executors WHERE stopping") == 1, "it is stopping")
    since = now()
    work.trigger("errand", 5)
    work.wait_recovered_but([held], since)
    assert {e.pid for e in oracle.effects() if e.scheduled_at > since} == {second.process.pid}
    held.let_go()
    first.wait_stopped()
    work.finish_and_check()
    assert held.attempts() == [(1, AttemptOutcome.SUCCEEDED)]
