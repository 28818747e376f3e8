"""Executors are replaced one by one under load: no run is lost, counted or blocked."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from tests.faults.workload import DOOMED, Held, Workload, now
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import LONG_LEASE, SHORT_LEASE, Fleet
from tidewheel.runs import AttemptOutcome

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

LEASE, SWEEP = timedelta(seconds=4), timedelta(seconds=0.5)  # SHORT_LEASE
BUSY_MACHINE = timedelta(seconds=15)  # beyond what is promised, for one that has other things to do
BETWEEN = timedelta(milliseconds=100)  # of the load: two triggers
SERVES = " serves "  # logged later than the start: the executor first queries the brokers' group protocols
NO_STALL = {"STALL_AFTER": "PT600S"}  # a blocked loop alone would release the waiting attempts


@dataclass
class Load:
    """A load of triggers that lasts while a test waits."""

    work: Workload
    last: datetime = field(default_factory=now)

    def goes_on(self) -> bool:
        """Trigger another when it is time to; always true, for use in a condition."""
        if now() - self.last > BETWEEN:
            self.last = now()
            self.work.trigger("errand", 1)
        return True


def last_end(fleet: Fleet) -> datetime:
    at: datetime = fleet.database.value("SELECT max(finished_at) FROM runs")
    return at


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_rolling_restart_loses_and_counts_nothing(fleet: Fleet, oracle: Oracle, protocol: str) -> None:
    settings = {"EXECUTOR_GROUP": protocol, "DRAIN_TIMEOUT": "PT0.5S", "LEASE": LONG_LEASE}
    work = Workload(fleet, oracle)
    work.submit()
    fleet.start_all("intake", "scheduler", "relay")
    executors = [fleet.start("executor", **settings) for _ in range(3)]
    fleet.until(lambda: all(each.has_logged(SERVES) for each in executors), "all three are members of their groups")
    held = [work.hold("gated"), work.hold("gated-sync"), work.hold("gated")]
    for each in held:
        each.wait_begun(1)
    load = Load(work)
    rolls: list[tuple[datetime, datetime]] = []
    for old in executors:
        asked_at = now()
        old.ask_to_stop()
        new = fleet.start("executor", **settings)
        fleet.until(
            lambda: load.goes_on() and not old.alive and new.has_logged(SERVES),  # noqa: B023
            "one is replaced by another",
        )
        replaced_at = now()
        fleet.until(lambda: load.goes_on() and last_end(fleet) > replaced_at, "work goes on")  # noqa: B023
        rolls.append((asked_at, now()))
    assert (
        fleet.database.rows("SELECT failed_attempts, lost_attempts FROM job_runs WHERE handler LIKE 'gated%'")
        == [(0, 0)] * 3
    )
    for each in held:
        each.let_go()
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED)
    assert_only_handed_back(fleet, held)
    assert_never_stopped(oracle, rolls)


def assert_only_handed_back(fleet: Fleet, held: list[Held]) -> None:
    """Attempts that the roll has ended were released, and were as many as the running ones."""
    outcomes = [outcome for each in held for _, outcome in each.attempts()]
    assert set(outcomes) == {AttemptOutcome.RELEASED, AttemptOutcome.SUCCEEDED}
    assert outcomes.count(AttemptOutcome.SUCCEEDED) == len(held)
    all_there_are = "SELECT DISTINCT outcome FROM ended_attempts AS a JOIN runs USING (run_id) WHERE cause = 'timer'"
    assert {row[0] for row in fleet.database.rows(all_there_are)} <= {"succeeded", "released"}


def assert_never_stopped(oracle: Oracle, rolls: list[tuple[datetime, datetime]]) -> None:
    """No pause between two completions was as long as a whole replacement."""
    ended = sorted(run.finished_at for run in oracle.completed().values())
    for begun_at, done_at in rolls:
        within = [begun_at, *(at for at in ended if begun_at < at < done_at), done_at]
        longest = max(later - earlier for earlier, later in pairwise(within))
        assert longest < done_at - begun_at, f"nothing ended between {begun_at} and {done_at}"


def test_killed_executor_costs_the_lease_and_a_sweep(fleet: Fleet, oracle: Oracle) -> None:
    settings = {"LEASE": SHORT_LEASE, "SWEEP": "PT0.5S"}
    work = Workload(fleet, oracle)
    work.submit(recurring=False)
    fleet.start_all("intake", "scheduler", "relay")
    victim = fleet.start("executor", **settings)
    held = work.hold()
    held.wait_begun(1)
    fleet.start("executor", **settings)
    fleet.wait_started()
    since = now()
    victim.kill()
    held.wait_begun(2)
    [begun_at] = [e.at for e in oracle.effects() if e.run_id == held.run_id and e.attempt == 2]
    assert begun_at - since < LEASE + SWEEP + BUSY_MACHINE
    held.let_go()
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED, stopped=[victim])
    assert held.attempts() == [(1, AttemptOutcome.LOST), (2, AttemptOutcome.SUCCEEDED)]


def test_frozen_executor_does_not_start_claimed_runs(fleet: Fleet, oracle: Oracle, work: Workload) -> None:
    """Its lease was ended meanwhile and another executor owns the run: one effect must not become two."""
    work.submit(recurring=False)
    in_the_way = work.hold("blocking")
    fleet.start_all("intake", "scheduler", "relay")
    sleeper = fleet.start("executor", LEASE=SHORT_LEASE, **NO_STALL)
    in_the_way.wait_begun(1)
    claimed = Held(fleet, oracle, "errand", fleet.ask({"type": "job.trigger", "key": "errand"}), fleet.folder / "none")
    fleet.flush()
    standing = "SELECT state FROM job_runs WHERE run_id = %s"
    fleet.until(
        lambda: claimed.run_id and fleet.database.rows(standing, [claimed.run_id]) == [("running",)], "it is claimed"
    )
    in_the_way.let_go(2)
    fleet.start("executor", LEASE=SHORT_LEASE, **NO_STALL)
    sleeper.pause()
    claimed.wait_begun(2)
    in_the_way.wait_completed()
    sleeper.resume()
    fleet.until(lambda: sleeper.has_logged("registered again"), "it has seen that its lease is gone")
    in_the_way.let_go(1)
    fleet.until(
        lambda: sleeper.has_logged("ignored the report of a superseded attempt"),
        "its late report has been looked at",
    )
    work.trigger("errand", 5)
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED, stopped=[sleeper])
    assert claimed.begun() == [2]
    assert claimed.attempts() == [(1, AttemptOutcome.LOST), (2, AttemptOutcome.SUCCEEDED)]
