"""A handler that is killed between two steps: its next attempt repeats none that has finished."""

import json

import pytest

from tests.fixtures.services import Fleet
from tidewheel.runs import RunState

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.parametrize("target", ["steps", "steps-sync", "steps-process"])
def test_finished_steps_are_not_repeated_after_a_kill(fleet: Fleet, target: str) -> None:
    fleet.start_all("intake", "scheduler", "relay")
    fleet.ask({"type": "job.submit", "job": {"key": "job", "schedule": "manual", "target": target}})
    fleet.ask({"type": "job.trigger", "key": "job"})
    fleet.flush()
    doomed = fleet.start("executor")
    if target != "steps-process":  # then its worker process alone is killed
        doomed.meant_to_die = True
        doomed.wait_killed()
        fleet.start("executor")
    succeeded = "SELECT count(*) FROM runs WHERE state = %s"
    fleet.until(lambda: fleet.database.value(succeeded, [RunState.SUCCEEDED]) == 1, "the run has succeeded")
    lines = [json.loads(line) for line in fleet.effects.read_text().splitlines()]
    assert [(line["step"], line["attempt"]) for line in lines] == [(0, 1), (1, 1), (2, 2)]
    assert fleet.database.value("SELECT result FROM attempt_outputs WHERE result IS NOT NULL") == b"[1,11,22]"
    fleet.kill()
