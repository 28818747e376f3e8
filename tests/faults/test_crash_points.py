"""A process is killed at every failpoint, around each commit and acknowledgement; another takes over.

At every point three promises hold. The runs are those that the requests name. No attempt took effect twice. A message
that came twice on a topic has the same id and the same bytes both times.
"""

from dataclasses import dataclass

import pytest

from tests.faults.workload import Workload, now
from tests.fixtures.services import ROLES, Fleet, Role
from tidewheel.process.failpoint import POINTS
from tidewheel.runs import AttemptOutcome

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


@dataclass(frozen=True)
class Case:
    """The process to kill, its failpoint, and the visit: late enough for work to be in progress."""

    role: Role
    visit: int = 1


CASES = {
    "intake.received": Case("intake"),
    "intake.before_commit": Case("intake"),
    "intake.after_commit": Case("intake"),
    "firing.locked": Case("scheduler", 2),
    "firing.before_commit": Case("scheduler", 2),
    "firing.after_commit": Case("scheduler", 2),
    "relay.read": Case("relay", 3),
    "relay.produced": Case("relay", 3),
    "relay.acknowledged": Case("relay", 3),
    "relay.deleted": Case("relay", 3),
    "claim.received": Case("executor"),
    "claim.before_commit": Case("executor", 2),
    "claim.after_commit": Case("executor", 2),
    "claim.offsets_committed": Case("executor"),
    "attempt.before_effect": Case("executor", 3),
    "attempt.after_effect": Case("executor", 3),
    "completion.before_commit": Case("executor", 2),
    "completion.after_commit": Case("executor", 2),
    "retry.before_commit": Case("executor"),
    "retry.after_commit": Case("executor"),
}
REAPING = {"reap.before_commit", "reap.after_commit"}
OWN_TRANSACTIONS = {"complete_in.held", "complete_in.written"}  # in test_killed_executors.py
BACKFILLING = {"backfilling.before_commit", "backfilling.after_commit"}  # in test_killed_schedulers.py
WORKING = {"working.before_commit", "working.after_commit"}  # in test_killed_schedulers.py
DELETING = {"deleting.before_commit", "deleting.after_commit"}  # in test_killed_schedulers.py
REMOVING = {"counting.before_commit", "removing.page"}  # in tests/scheduler/test_job_days.py and test_retention.py
ARCHIVING = {"archiving.before_manifest", "archiving.before_record"}  # in tests/control/archive/test_archive.py
DRAINING = {f"draining.{point}" for point in ("taken", "locked", "written", "marked", "before_commit", "after_commit")}
TIMING_OUT = {"timing_out.before_commit", "timing_out.after_commit"}  # in test_killed_schedulers.py
FREEING = {"freeing.before_commit", "freeing.after_commit"}  # in test_killed_schedulers.py
# In test_restore.py.
RESTORING = {
    f"restoring.{point}" for point in ("begun", "request", "timers", "runs", "ends", "messages", "unknown", "open")
}
# One of each service goes with every test run.
EACH = {"intake.after_commit", "firing.after_commit", "relay.produced", "claim.after_commit", "completion.after_commit"}
_MARKED = [pytest.param(name, marks=[] if name in EACH else [pytest.mark.landing]) for name in CASES]


def test_every_point_has_its_case() -> None:
    elsewhere = REAPING | BACKFILLING | WORKING | FREEING | DELETING | DRAINING | TIMING_OUT | OWN_TRANSACTIONS
    assert set(CASES) | elsewhere | ARCHIVING | REMOVING | RESTORING == POINTS


@pytest.mark.landing
@pytest.mark.parametrize("point", _MARKED)
def test_kill_at_a_crash_point_loses_and_doubles_nothing(point: str, fleet: Fleet, work: Workload) -> None:
    case = CASES[point]
    work.submit()
    others: list[Role] = [role for role in ROLES if role != case.role]
    fleet.start_all(*others)
    doomed = fleet.start(case.role, failpoint=f"{point}:exit:{case.visit}")
    doomed.wait_killed()
    fleet.start(case.role)
    fleet.wait_started()
    work.wait_recovered(now())
    work.finish_and_check(kills=True)


@pytest.mark.landing
@pytest.mark.parametrize("point", sorted(REAPING))
def test_runs_continue_after_a_killed_reaper(point: str, fleet: Fleet, work: Workload) -> None:
    work.submit()
    held = work.hold()
    fleet.start_all("intake", "scheduler", "relay")
    first = fleet.start("executor")
    held.wait_begun(1)
    second = fleet.start("executor", failpoint=f"{point}:exit")
    fleet.wait_started()
    first.kill()
    second.wait_killed()
    fleet.start("executor")
    held.wait_begun(2)
    held.let_go()
    work.wait_recovered(now())
    work.finish_and_check(kills=True)
    outcomes = [outcome for _, outcome in held.attempts()]
    assert outcomes[0] == AttemptOutcome.LOST
    assert outcomes[-1] == AttemptOutcome.SUCCEEDED


@pytest.mark.landing
def test_runs_continue_after_all_services_were_killed(fleet: Fleet, work: Workload) -> None:
    work.submit()
    held = work.hold()
    services = fleet.start_all()
    held.wait_begun(1)
    work.trigger("shaky", 5)
    for service in services.values():
        service.kill()
    work.trigger("shaky", 5)
    fleet.start_all()
    fleet.wait_started()
    held.wait_begun(2)
    held.let_go()
    work.wait_recovered(now())
    work.finish_and_check(kills=True)
