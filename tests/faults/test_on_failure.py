"""on_failure: each failed run triggers one run of the named job, after any kill in between."""

import json

import pytest

from tests.fixtures.oracle import Oracle
from tests.fixtures.services import ROLES, Fleet, Role

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

RUNS = 5
ONCE = {"max_attempts": 1}
# Before and after the end is committed, and before and after the relay knows that the request has arrived.
POINTS: tuple[tuple[Role, str], ...] = (
    ("executor", "completion.before_commit"),
    ("executor", "completion.after_commit"),
    ("relay", "relay.produced"),
    ("relay", "relay.acknowledged"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("role", "point"), POINTS)
def test_each_failure_triggers_one_run(role: Role, point: str, fleet: Fleet, oracle: Oracle) -> None:
    fleet.ask({"type": "job.submit", "job": {"key": "alert", "schedule": "manual", "target": "note"}})
    doomed = {"key": "doomed", "schedule": "manual", "target": "lost-cause", "on_failure": "alert", "retry": ONCE}
    fleet.ask({"type": "job.submit", "job": doomed})
    for _ in range(RUNS):
        fleet.ask({"type": "job.trigger", "key": "doomed"})
    fleet.flush()
    others: list[Role] = [other for other in ROLES if other != role]
    fleet.start_all(*others)
    armed = fleet.start(role, failpoint=f"{point}:exit")
    armed.wait_killed()
    fleet.start(role)
    oracle.wait_answered()
    fleet.until(lambda: len(alerts(oracle)) >= RUNS, "each failure has its run")
    oracle.wait_settled()
    oracle.reader.read_to_end()
    fleet.promised |= set(alerts(oracle))
    fleet.stop()
    oracle.check(failures=("doomed",))
    failed = {run for run, event in oracle.completed().items() if event.job_key == "doomed"}
    assert len(failed) == RUNS
    assert sorted(alerts(oracle).values()) == sorted(failed)


def alerts(oracle: Oracle) -> dict[str, str]:
    """The runs of the job that was named, each with the run whose failure it is about."""
    oracle.look()
    found: dict[str, str] = {}
    for run_id, event in oracle.completed().items():
        if event.job_key == "alert":
            about = json.loads(event.result or b"null")
            assert event.labels == {"tidewheel.on_failure_of": about["run_id"]}
            found[run_id] = about["run_id"]
    return found
