"""Processes with wrong clocks change nothing: only the database's clock decides what is due."""

from datetime import timedelta

import pytest

from tests.faults.workload import ATTEMPTS, DOOMED, RECURRING, Workload, metric, now
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import LONG_LEASE, Fleet, Service

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

_TOLD = "this machine's clock is "
_STALL_SECONDS = 5  # of a busy machine between the two readings of a measurement; no clock is wrong by so little
_LONGEST = timedelta(seconds=10)  # far less than any of the clocks is wrong, far more than a busy machine takes


def clock_messages(service: Service) -> list[str]:
    """Return a service's log lines about its clock."""
    return [str(line["message"]) for line in service.log_lines() if str(line.get("message")).startswith(_TOLD)]


@pytest.mark.parametrize("wrong", ["ahead 120", "ahead -120", "fast 2", "back 3600 3"])
def test_wrong_clocks_change_nothing(fleet: Fleet, oracle: Oracle, work: Workload, wrong: str) -> None:
    services = fleet.start_all(LEASE=LONG_LEASE, METRICS_PORT="0", TEST_CLOCK=wrong)
    fleet.wait_started()
    began = now()
    work.submit()
    fleet.until(lambda: now() - began > timedelta(seconds=6), "the clocks have gone apart")
    work.wait_recovered(now())
    work.finish()
    for role, service in services.items():
        fleet.until(lambda service=service: clock_messages(service), f"{role} tells that its clock is wrong")
        assert len(clock_messages(service)) == 1, clock_messages(service)
        check_skew(metric(service, "clock_skew_seconds"), wrong, role)
    fleet.stop()
    findings = oracle.check(failures=DOOMED, attempts=ATTEMPTS)
    assert findings.repeated_messages == 0
    late = {effect.job_key: effect.at - effect.scheduled_at for effect in oracle.effects()}
    assert all(late[key] < _LONGEST for key in RECURRING), late


def check_skew(seconds: float, wrong: str, role: str) -> None:
    """Check that a service has measured the skew it was given."""
    match wrong.split():
        case ["ahead", given]:
            assert seconds == pytest.approx(float(given), abs=_STALL_SECONDS), role
        case ["fast", _]:
            assert 2 < seconds < 120, role
        case _:
            assert seconds == pytest.approx(-3600, abs=_STALL_SECONDS), role


def test_schedulers_with_skewed_clocks_create_one_run_per_instant(fleet: Fleet, work: Workload) -> None:
    fleet.start_all("intake", "relay", "executor", LEASE=LONG_LEASE)
    pair = [fleet.start("scheduler", METRICS_PORT="0", TEST_CLOCK=wrong) for wrong in ("ahead 120", "ahead -120")]
    fleet.wait_started()
    work.submit()
    work.wait_recovered(now())
    assert sum(metric(one, "shards_owned") for one in pair) == 64, "each counts the other as a member"
    work.finish_and_check(attempts=ATTEMPTS)
