"""delivery at_most_once: after any kill no attempt follows one that may have started."""

import pytest

from tests.fixtures.oracle import Oracle
from tests.fixtures.services import Fleet
from tidewheel.schemas.generated.records import RunStatus

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

# Where the executor is killed, how the run ends then, and how often it took effect.
POINTS: dict[str, tuple[RunStatus, int]] = {
    "claim.before_commit": (RunStatus.SUCCEEDED, 1),  # nothing was claimed
    "claim.after_commit": (RunStatus.FAILED, 0),  # claimed: it is unknown whether it had started
    "attempt.before_effect": (RunStatus.FAILED, 0),
    "attempt.after_effect": (RunStatus.FAILED, 1),
    "completion.before_commit": (RunStatus.FAILED, 1),
    "completion.after_commit": (RunStatus.SUCCEEDED, 1),
}


@pytest.mark.parametrize("point", POINTS)
def test_at_most_once_run_never_starts_twice_when_killed(point: str, fleet: Fleet, oracle: Oracle) -> None:
    status, effects = POINTS[point]
    job = {"key": "once", "schedule": "manual", "target": "note", "delivery": "at_most_once"}
    fleet.ask({"type": "job.submit", "job": job})
    request_id = fleet.ask({"type": "job.trigger", "key": "once"})
    fleet.flush()
    fleet.start_all("intake", "relay")
    armed = fleet.start("executor", failpoint=f"{point}:exit")
    armed.wait_killed()
    fleet.start("executor")
    fleet.wait_started()
    oracle.wait_answered()
    run_id = oracle.replies()[request_id].run_id or ""
    oracle.wait_settled()
    oracle.reader.read_to_end()
    event = oracle.completed()[run_id]
    assert (event.status, event.attempt) == (status, 1)
    assert len(oracle.effects()) == effects
    if status is RunStatus.FAILED:
        assert event.error is not None
        assert (event.reason, event.error.type) == ("unknown_outcome", "unknown_outcome")
        assert [letter.run_id for letter in oracle.letters()] == [run_id]
