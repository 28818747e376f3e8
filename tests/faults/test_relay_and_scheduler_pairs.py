"""Pairs of services, one of them dead or suspended: slower at most, never wrong."""

import re
from datetime import timedelta
from typing import LiteralString

import pytest

from tests.faults.workload import Workload, metric, now
from tests.fixtures.services import Fleet, Service
from tidewheel.outbox import SLICES

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.landing]

# Each member that says it lives makes the others forgotten, so that each takes itself for the only one.
ALONE: LiteralString = """
CREATE FUNCTION alone() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN DELETE FROM members WHERE member_id <> NEW.member_id AND role = NEW.role; RETURN NEW; END $$;
CREATE TRIGGER alone BEFORE INSERT OR UPDATE ON members FOR EACH ROW EXECUTE FUNCTION alone();
"""
BLOCKED: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-scheduler' AND wait_event_type = 'Lock'
"""


def slices_of(relay: Service) -> set[int]:
    """Return the slices that a relay has last logged that it holds."""
    said = [line["message"] for line in relay.log_lines() if "this relay holds slices" in str(line.get("message"))]
    return {int(number) for number in re.findall(r"\d+", said[-1])} if said else set()


def submit_recurring(fleet: Fleet, work: Workload, count: int) -> None:
    """More recurring jobs, so that every shard range has some."""
    for number in range(count):
        job = {"key": f"beat-{number}", "schedule": {"interval": "1s"}, "target": "note", "overlap": "allow_all"}
        fleet.ask({"type": "job.submit", "job": job})
    work.recurring += tuple(f"beat-{number}" for number in range(count))
    fleet.flush()


def test_relay_takes_over_from_a_killed_one_in_order(fleet: Fleet, work: Workload) -> None:
    work.submit()
    submit_recurring(fleet, work, 16)
    fleet.start_all("intake", "scheduler", "executor")
    first, second = fleet.start("relay"), fleet.start("relay")
    fleet.until(lambda: slices_of(first) | slices_of(second) == set(range(SLICES)), "all slices are carried")
    fleet.until(lambda: slices_of(first) and slices_of(second), "both relays carry some")
    # A relay frees a slice before it logs what is left.
    fleet.until(lambda: not slices_of(first) & slices_of(second), "no slice is carried twice")
    work.trigger("shaky", 20)
    first.kill()
    work.trigger("shaky", 20)
    fleet.until(lambda: slices_of(second) == set(range(SLICES)), "the other carries all")
    work.wait_recovered(now())
    work.finish_and_check()


def test_two_schedulers_create_one_run_per_instant(fleet: Fleet, work: Workload) -> None:
    fleet.database.execute(ALONE)
    work.submit()
    submit_recurring(fleet, work, 24)
    fleet.start_all("intake", "relay", "executor")
    pair = [fleet.start("scheduler", METRICS_PORT="0"), fleet.start("scheduler", METRICS_PORT="0")]
    fired = 'occurrences_total{outcome="fired"}'
    fleet.wait_started()
    fleet.until(lambda: all(metric(one, fired) >= 20 for one in pair), "both have fired")
    # Both may enter in the same moment, before either is there to be forgotten: the next beat sets them apart.
    fleet.until(lambda: [metric(one, "shards_owned") for one in pair] == [64, 64], "each takes itself for the only one")
    before = [metric(one, fired) for one in pair]
    fleet.until(lambda: all(metric(one, fired) >= was + 20 for one, was in zip(pair, before, strict=True)), "both fire")
    work.wait_recovered(now())
    work.finish_and_check()


def test_suspended_scheduler_fires_once(fleet: Fleet, work: Workload) -> None:
    work.submit()
    submit_recurring(fleet, work, 8)
    fleet.start_all("intake", "relay", "executor")
    sleeper = fleet.start("scheduler")
    work.wait_recovered(now())
    # Held up in the middle of its transaction, its timers locked, then stopped: what it waits for comes, unseen.
    lock = fleet.database.connection()
    lock.execute("LOCK TABLE timers IN SHARE MODE")
    fleet.until(lambda: fleet.database.value(BLOCKED) == 1, "the scheduler is held up in its transaction")
    sleeper.pause()
    lock.rollback()
    other = fleet.start("scheduler")
    fleet.wait_started()
    since = now()
    # As many seconds as make it a member that has been silent; the other fires all that is not locked.
    fleet.until(lambda: now() - since > timedelta(seconds=3), "its membership is over")
    sleeper.resume()
    work.wait_recovered(now())
    assert other.alive
    work.finish_and_check()
