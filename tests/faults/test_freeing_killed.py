"""A scheduler is killed while it frees quarantined jobs: no occurrence is lost, and none fires twice."""

from collections import Counter
from datetime import datetime, timedelta
from typing import LiteralString

import pytest

from tests.control.cli.command import json_output
from tests.fixtures.database import Database
from tests.fixtures.oracle import read_effects
from tests.fixtures.services import Fleet
from tidewheel.ids import job_id
from tidewheel.postgres.faults import MAX_ALIKE

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

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


@pytest.mark.slow
@pytest.mark.parametrize(("point", "held"), [("freeing.before_commit", MAX_ALIKE), ("freeing.after_commit", 0)])
def test_scheduler_killed_while_it_frees_loses_and_doubles_nothing(point: str, held: int, fleet: Fleet) -> None:
    database = fleet.database
    for key in KEYS:
        job = {"schedule": "@every 1s", "target": "note", "overlap": "allow_all", "catch_up": "fire_all"}
        fleet.ask({"type": "job.submit", "job": {"key": key, **job}})
    fleet.flush()
    fleet.start_all("intake", "relay", "executor")
    doomed = fleet.start("scheduler", failpoint=f"{point}:exit")
    fleet.until(lambda: all(fired(database, key) for key in KEYS), "all fire")

    database.execute(REFUSE)
    doomed.wait_killed()
    assert database.value(HELD) == held
    following = fleet.start("scheduler")
    fleet.until(lambda: following.has_logged("quarantined jobs are released"), "the next one frees what it quarantined")
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
