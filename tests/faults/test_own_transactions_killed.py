"""Executors die or are suspended around `complete_in`: every effect occurs once."""

from typing import Any

import pytest

from tests.executor.own_transactions import MAKE_EFFECTS
from tests.fixtures.services import Fleet
from tidewheel.runs import RunState

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

OWN = {"HANDLERS": "tests.executor.own_handlers"}
RUNS = 6
POINTS = ("complete_in.held", "complete_in.written", "attempt.after_effect", "completion.before_commit")


def submit(fleet: Fleet, handler: str) -> None:
    fleet.database.execute(MAKE_EFFECTS)
    payload = {"url": fleet.database.url, "do": "nothing"}
    job: dict[str, Any] = {"key": "own", "schedule": "manual", "target": handler, "payload": payload}
    fleet.ask({"type": "job.submit", "job": job | {"overlap": "buffer_all"}})
    for _ in range(RUNS):
        fleet.ask({"type": "job.trigger", "key": "own"})
    fleet.flush()


def finish(fleet: Fleet) -> None:
    """Wait until all runs are over; each has had its effect once."""
    succeeded = "SELECT count(*) FROM runs WHERE state = %s"
    fleet.until(lambda: fleet.database.value(succeeded, [RunState.SUCCEEDED]) == RUNS, "all runs have succeeded")
    once = "SELECT count(*), count(DISTINCT run_id) FROM effects"
    assert fleet.database.rows(once) == [(RUNS, RUNS)]
    same = "SELECT count(*) FROM effects AS e JOIN runs AS r ON r.run_id = e.run_id AND r.attempt = e.attempt"
    assert fleet.database.value(same) == RUNS
    fleet.until(lambda: fleet.database.count("deferred_effects") == 0, "what they set off is done")


@pytest.mark.parametrize("point", POINTS)
def test_own_transaction_has_one_effect_when_killed(fleet: Fleet, point: str) -> None:
    """Each of the runs of one job waits until the run before it is no longer active."""
    fleet.start_all("intake", "scheduler", "relay")
    submit(fleet, "own.thread")
    doomed = fleet.start("executor", failpoint=f"{point}:exit:2", **OWN)
    doomed.wait_killed()
    fleet.start("executor", **OWN)
    finish(fleet)
    fleet.kill()
