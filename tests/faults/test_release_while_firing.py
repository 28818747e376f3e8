"""A release of quarantined jobs beside schedulers that fire loses and doubles no occurrence."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import LiteralString

import pytest

from tests.control.cli.command import json_output
from tests.fixtures.database import Database
from tests.fixtures.oracle import read_effects
from tests.fixtures.services import LONG_LEASE, Fleet
from tidewheel.control.client.client import Client
from tidewheel.ids import job_id

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

SECOND = timedelta(seconds=1)
MISFIRE_AFTER = 8 * SECOND  # no machine stalls for so long: then the sound jobs would skip occurrences too
HELD_FOR = MISFIRE_AFTER + 4 * SECOND
POLICIES = ("fire_once", "fire_all", "skip")
SOUND = [f"sound-{policy}" for policy in POLICIES]
UNFIT = [f"unfit-{policy}" for policy in POLICIES]
GARBLED = [f"garbled-{policy}" for policy in POLICIES]
ALL = [*SOUND, *UNFIT, *GARBLED]

UNFIT_ROW: LiteralString = """
UPDATE job_versions SET lane = 'nonsense'
 WHERE job_id IN (SELECT job_id FROM jobs WHERE key = ANY (%s))
"""
FIT_ROW: LiteralString = """
UPDATE job_versions SET lane = 'standard'
 WHERE job_id IN (SELECT job_id FROM jobs WHERE key = ANY (%s))
"""
GARBLED_ROW: LiteralString = """
UPDATE job_versions SET schedule_json = '{'
 WHERE job_id IN (SELECT job_id FROM jobs WHERE key = ANY (%s))
"""
SCHEDULES: LiteralString = """
SELECT schedule_json, job_id FROM job_versions JOIN jobs USING (job_id) WHERE key = ANY (%s)
"""
CLEAR_ROW: LiteralString = "UPDATE job_versions SET schedule_json = %s WHERE job_id = %s"
HELD: LiteralString = "SELECT key FROM timers JOIN jobs USING (job_id) WHERE hold_reason = 'quarantine'"
LATEST: LiteralString = "SELECT max(scheduled_at) FROM runs WHERE job_id = %s"


def fired(database: Database, key: str) -> list[datetime]:
    rows = database.rows(
        "SELECT scheduled_at FROM runs WHERE job_id = %s ORDER BY scheduled_at", [job_id("default", key)]
    )
    return [at for (at,) in rows]


def skipped(database: Database, key: str) -> list[datetime]:
    spans = database.rows("SELECT first_at, occurrences, reason FROM skips WHERE job_id = %s", [job_id("default", key)])
    assert {reason for _, _, reason in spans} <= {"misfire"}
    return [first + number * SECOND for first, occurrences, _ in spans for number in range(occurrences)]


def have_fired_after(database: Database, keys: list[str], instant: datetime) -> bool:
    latest = [database.value(LATEST, [job_id("default", key)]) for key in keys]
    return all(at is not None and at > instant for at in latest)


def quarantine(fleet: Fleet) -> None:
    """Give six jobs bad data of two kinds, wait until all are held, and correct the data."""
    database = fleet.database
    schedules = database.rows(SCHEDULES, [GARBLED])
    database.execute(UNFIT_ROW, [UNFIT])
    database.execute(GARBLED_ROW, [GARBLED])
    fleet.until(lambda: {key for (key,) in database.rows(HELD)} == {*UNFIT, *GARBLED}, "all six are quarantined")
    database.execute(FIT_ROW, [UNFIT])
    for schedule in schedules:
        database.execute(CLEAR_ROW, schedule)
    held_at = database.now()
    fleet.until(lambda: have_fired_after(database, SOUND, held_at + HELD_FOR), "the sound ones fire meanwhile")


def release(database: Database, *options: str) -> int:
    return json_output(database, "job", "release", *options)["released"]


def release_by_client(database: Database) -> int:
    with Client(database.url) as client:
        return client.release(everything=True).released


@pytest.mark.slow
def test_release_beside_firing_schedulers_loses_and_doubles_nothing(fleet: Fleet) -> None:
    database = fleet.database
    settings = {"MISFIRE_AFTER": f"PT{MISFIRE_AFTER.seconds}S", "LOOKAHEAD": "PT0S", "LEASE": LONG_LEASE}
    fleet.start("scheduler", **settings)
    fleet.start_all(**settings)
    for key in ALL:
        job = {"schedule": "@every 1s", "target": "note", "overlap": "allow_all", "catch_up": key.partition("-")[2]}
        fleet.ask({"type": "job.submit", "job": {"key": key, **job}})
    fleet.flush()
    fleet.until(lambda: all(len(fired(database, key)) > 1 for key in ALL), "all fire")

    quarantine(fleet)
    assert release(database, "--error", "CheckViolation") == len(UNFIT)
    fleet.until(lambda: have_fired_after(database, UNFIT, database.now() - SECOND), "the first kind fires again")
    assert {key for (key,) in database.rows(HELD)} == set(GARBLED)
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(release_by_client, database) for _ in range(3)]
        assert release(database, "--all") + sum(other.result() for other in others) == len(GARBLED)
    fleet.until(lambda: have_fired_after(database, ALL, database.now() - SECOND), "all fire again")

    for key in ALL:
        fleet.ask({"type": "job.pause", "key": key})
    fleet.flush()
    fleet.until(lambda: database.value("SELECT count(*) FROM timers WHERE hold_reason = 'pause'") == len(ALL), "paused")
    fleet.until(fleet.settled, "every run has ended")
    for key in ALL:
        runs, skips = fired(database, key), skipped(database, key)
        recorded = sorted([*runs, *skips])
        assert recorded == [recorded[0] + number * SECOND for number in range(len(recorded))], key
        missed = HELD_FOR // SECOND - MISFIRE_AFTER // SECOND
        if key in SOUND or key.endswith("fire_all"):
            assert not skips, key
        else:
            assert len(skips) >= missed - 1, key
    effects = Counter(effect.run_id for effect in read_effects(fleet.effects))
    assert effects == Counter(str(run) for (run,) in database.rows("SELECT run_id FROM runs"))
    assert database.value("SELECT count(*) FROM runs WHERE state <> 'succeeded'") == 0
