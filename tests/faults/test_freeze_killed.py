"""Services killed under a freeze: none of its runs starts, and the thaw loses and doubles nothing."""

from collections import Counter
from datetime import datetime, timedelta
from typing import LiteralString

import pytest

from tests.fixtures.oracle import read_effects
from tests.fixtures.services import Fleet, Role
from tidewheel.control.client.client import Client

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

SECOND = timedelta(seconds=1)
KEYS = [f"frozen/{number}" for number in range(10)]
SERVICES: tuple[Role, ...] = ("intake", "scheduler", "relay", "executor")
STARTED: LiteralString = """
SELECT count(*) FROM runs AS r JOIN jobs AS j USING (job_id) WHERE j.key LIKE 'frozen/%%' AND r.started_at > %s
"""
HELD: LiteralString = "SELECT count(*) FROM timers WHERE hold_reason = 'freeze'"
FIRED: LiteralString = """
SELECT r.scheduled_at FROM runs AS r JOIN jobs AS j USING (job_id)
 WHERE j.key = %s AND r.cause = 'timer' ORDER BY r.scheduled_at
"""
ENDED_OF_OTHER: LiteralString = """
SELECT count(*) FROM finished_runs AS r JOIN jobs AS j USING (job_id) WHERE j.key = 'other' AND r.started_at > %s
"""


def instants(fleet: Fleet, key: str) -> list[datetime]:
    return [at for (at,) in fleet.database.rows(FIRED, [key])]


def test_services_killed_under_a_freeze_start_nothing_and_the_thaw_loses_nothing(fleet: Fleet) -> None:
    database = fleet.database
    job = {"schedule": "@every 1s", "target": "note", "overlap": "allow_all", "on_resume": "fire_all"}
    for key in (*KEYS, "other"):
        fleet.ask({"type": "job.submit", "job": {"key": key, **job}})
    fleet.flush()
    services = {name: fleet.start(name) for name in SERVICES}
    fleet.until(lambda: all(instants(fleet, key) for key in KEYS), "all fire")
    with Client(database.url) as client:
        client.freezes.freeze(key_prefix="frozen/")
        frozen_at = database.now()
        for key in KEYS:
            fleet.ask({"type": "job.trigger", "key": key})
        fleet.flush()
        for name in SERVICES:
            services[name].kill()
            services[name] = fleet.start(name)
        fleet.until(lambda: database.value(HELD) == len(KEYS), "every timer of the scope is held")
        killed_at = database.now()
        fleet.until(lambda: database.value(ENDED_OF_OTHER, [killed_at]) > 0, "others go on")
        assert database.value(STARTED, [frozen_at]) == 0
        client.freezes.thaw(key_prefix="frozen/")
        for name in SERVICES:
            services[name].kill()
            services[name] = fleet.start(name)
        thawed_at = database.now()
        fleet.until(lambda: all(instants(fleet, key)[-1] > thawed_at for key in KEYS), "all fire again")
        for key in (*KEYS, "other"):
            client.pause(key)
    fleet.until(fleet.settled, "every run has ended")
    assert (database.count("skips"), database.count("freezes"), database.count("frozen_jobs")) == (0, 0, 0)
    for key in KEYS:
        fired = instants(fleet, key)
        assert fired == [fired[0] + number * SECOND for number in range(len(fired))], key
    effects = Counter(effect.run_id for effect in read_effects(fleet.effects))
    runs = {str(run) for (run,) in database.rows("SELECT run_id FROM runs")}
    assert effects.keys() == runs
