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
FROZEN: LiteralString = """
SELECT s.occurrences, s.first_at, s.last_at
  FROM skips AS s JOIN jobs AS j USING (job_id)
 WHERE j.key = %s AND s.reason = 'frozen'
"""


def instants(fleet: Fleet, key: str) -> list[datetime]:
    return [at for (at,) in fleet.database.rows(FIRED, [key])]


def has_fired(fleet: Fleet, key: str, after: datetime) -> bool:
    return any(at > after for at in instants(fleet, key))


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
        fleet.until(lambda: all(has_fired(fleet, key, thawed_at) for key in KEYS), "all fire again")
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


def test_freeze_over_a_killed_scheduler_is_recorded_and_starts_nothing(fleet: Fleet) -> None:
    """Issue 39, F1 and F2: the rows decide, also over runs that the killed scheduler wrote ahead."""
    database = fleet.database
    for key in KEYS:
        job = {"schedule": "@every 1s", "target": "note", "overlap": "allow_all", "on_resume": "skip"}
        fleet.ask({"type": "job.submit", "job": {"key": key, **job, "catch_up": "fire_all", "window": "1h"}})
    fleet.flush()
    services = {name: fleet.start(name) for name in SERVICES}
    began = database.now()
    fleet.until(lambda: all(has_fired(fleet, key, began) for key in KEYS), "all fire")
    fleet.until(lambda: database.now() > max(instants(fleet, key)[0] for key in KEYS), "an instant of each has come")
    with Client(database.url) as client:
        services["scheduler"].kill()
        client.freezes.freeze(key_prefix="frozen/")
        frozen_at = database.value("SELECT created_at FROM freezes")
        fleet.until(lambda: database.now() > frozen_at + 3 * SECOND, "some instants pass")
        client.freezes.thaw(key_prefix="frozen/")
    thawed_at = database.value("SELECT thawed_at FROM freezes")
    for point in ("firing.locked", "firing.before_commit"):
        fleet.start("scheduler", failpoint=f"{point}:exit").wait_killed()
    fleet.start("scheduler")
    fleet.until(lambda: all(has_fired(fleet, key, thawed_at) for key in KEYS), "all fire again")
    fleet.until(lambda: database.count("freezes") == 0, "the thaw is complete")
    for key in KEYS:
        fired = instants(fleet, key)
        assert [at for at in fired if frozen_at < at <= thawed_at] == [], key
        skipped = database.rows(FROZEN, [key])
        assert sum(number for number, _, _ in skipped) in {3, 4}, key
        assert all(frozen_at < first <= last <= thawed_at for _, first, last in skipped), key
        assert len(fired) + sum(number for number, _, _ in skipped) == (fired[-1] - fired[0]) / SECOND + 1, key
