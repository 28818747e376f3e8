"""Errors of the installation park no job: firing backs off, reports them, and goes on afterwards."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import LiteralString
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from tests.fixtures.acts import submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.scheduler.firing import fire_due, look_at
from tests.scheduler.test_loop import running
from tidewheel.control.explain.explain import explain
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.errors import Unavailable
from tidewheel.ids import job_id
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.postgres.faults import MAX_ALIKE
from tidewheel.process.logs import faults
from tidewheel.scheduler.firing import fire
from tidewheel.scheduler.job_faults import Breaker

SECOND = timedelta(seconds=1)
EACH_SECOND = {"schedule": "@every 1s", "overlap": "allow_all"}
JOBS = 20
KEYS = [f"job-{number}" for number in range(JOBS)]
QUARANTINED: LiteralString = "SELECT count(*) FROM timers WHERE due_at = 'infinity' OR hold_reason IS NOT NULL"
OVERDUE: LiteralString = "SELECT count(*) FROM timers WHERE due_at < tidewheel_now() - interval '3 s'"
ZONE_THAT_IS_GONE = '{"kind": "cron", "expressions": ["* * * * *"], "timezone": "Mars/Olympus"}'
FUTURE_CHECK: LiteralString = "ALTER TABLE job_runs ADD CONSTRAINT of_a_newer_release CHECK (false) NOT VALID"

# What breaks, and what mends it; {} is the scheduler's role.
FAULTS: dict[str, tuple[LiteralString, LiteralString, str]] = {
    "column renamed by a newer release": (
        "ALTER TABLE job_runs RENAME COLUMN moved_ahead TO moved",
        "ALTER TABLE job_runs RENAME COLUMN moved TO moved_ahead",
        "tidewheel migrate",
    ),
    "column of the timers renamed": (
        "ALTER TABLE timers RENAME COLUMN catch_up_end TO ends",
        "ALTER TABLE timers RENAME COLUMN ends TO catch_up_end",
        "tidewheel migrate",
    ),
    "grant revoked": (
        "REVOKE INSERT ON outbox FROM tidewheel_scheduler",
        "GRANT INSERT ON outbox TO tidewheel_scheduler",
        "grant",
    ),
}  # fmt: skip


def instants_of(database: Database) -> dict[UUID, list[datetime]]:
    """Return the instants of the timers' runs, by job."""
    found: defaultdict[UUID, list[datetime]] = defaultdict(list)
    for job, at in database.rows("SELECT job_id, scheduled_at FROM runs ORDER BY job_id, scheduled_at"):
        found[job].append(at)
    return found


def assert_no_gap(fired: dict[UUID, list[datetime]]) -> None:
    for instants in fired.values():
        assert [later - earlier for earlier, later in pairwise(instants)] == [SECOND] * (len(instants) - 1)


@pytest.mark.parametrize(
    "fault", [next(iter(FAULTS)), *(pytest.param(one, marks=pytest.mark.slow) for one in [*FAULTS][1:])]
)
def test_fault_under_a_running_scheduler_loses_no_occurrence(fresh_database: Database, fault: str) -> None:
    broken, mended, remedy = FAULTS[fault]
    database = fresh_database
    database.apply_batch(*(submission(key, **EACH_SECOND) for key in KEYS))
    with running(database, lookahead=timedelta(0)):
        until(lambda: len(instants_of(database)) == JOBS, "all jobs fire")
        database.execute(broken)
        until(lambda: faults.why_not_ready(), "it is reported")
        assert remedy in str(faults.why_not_ready())
        until(lambda: database.value(OVERDUE) == JOBS, "it has lasted for three occurrences of each job")
        assert database.value(QUARANTINED) == 0
        assert database.count("quarantine") == 0
        database.execute(mended)
        until(lambda: database.value(OVERDUE) == 0, "firing goes on by itself")
        until(lambda: faults.why_not_ready() is None, "nothing is reported any more")
    fired = instants_of(database)
    assert len(fired) == JOBS
    assert_no_gap(fired)
    assert database.count("skips") == 0


@pytest.mark.landing
def test_fault_of_another_duty_delays_no_firing(fresh_database: Database) -> None:
    """Cancelling by filter lacks its column: firing needs none of it."""
    database = fresh_database
    database.apply_batch(*(submission(key, **EACH_SECOND) for key in KEYS))
    database.execute("ALTER TABLE cancellations RENAME COLUMN finished_at TO ended_at")
    with running(database, lookahead=timedelta(0)):
        until(lambda: "bulk cancel" in str(faults.why_not_ready()), "it is reported")
        before = database.count("job_runs")
        until(lambda: database.count("job_runs") >= before + 3 * JOBS, "firing goes on")
        assert "bulk cancel" in str(faults.why_not_ready())
        database.execute("ALTER TABLE cancellations RENAME COLUMN ended_at TO finished_at")
        until(lambda: faults.why_not_ready() is None, "it works again")


@pytest.mark.landing
def test_one_error_of_many_jobs_leaves_none_quarantined(
    fresh_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A newer release's constraint: each row is refused as if its job were poisoned."""
    database = fresh_database
    database.apply_batch(*(submission(key, **EACH_SECOND) for key in KEYS))
    until(lambda: database.value("SELECT count(*) FROM timers WHERE due_at <= tidewheel_now()") == JOBS, "all are due")
    database.execute(FUTURE_CHECK)
    breaker, session = Breaker(), database.session()
    assert fire(session, database.installation, look_at(database), breaker) == JOBS
    # The first three are quarantined; the fourth shows that the cause is common, and frees them.
    assert database.count("quarantine") == MAX_ALIKE
    assert database.value(QUARANTINED) == 0
    events = [event.type.split(".")[-2] for event in database.lifecycle() if event.type.endswith("ed.v1")]
    assert Counter(events) == {"created": JOBS, "quarantined": MAX_ALIKE, "released": MAX_ALIKE}
    assert "released quarantined jobs to try them again" in caplog.text
    assert "of_a_newer_release" in str(faults.why_not_ready())
    assert REGISTRY.get_sample_value("tidewheel_installation_faults", {"work": "jobs that fail alike"}) == 1
    # All are tried again, and still not parked.
    until(lambda: fire(session, database.installation, look_at(database), breaker) > 0, "they are tried again")
    assert database.value(QUARANTINED) == 0
    assert database.count("quarantine") == MAX_ALIKE
    database.execute("ALTER TABLE job_runs DROP CONSTRAINT of_a_newer_release")

    def all_fired() -> bool:
        fire(session, database.installation, look_at(database), breaker)
        return len(instants_of(database)) == JOBS

    until(all_fired, "they fire")
    assert_no_gap(instants_of(database))


def test_freed_jobs_keep_their_pause_and_edits(still: ClockedDatabase) -> None:
    """Before a fourth job fails, one of three is paused and one is submitted again."""
    breaker, session = Breaker(), still.session()
    still.apply_batch(*(submission(key, **EACH_SECOND) for key in KEYS[:MAX_ALIKE]))
    still.execute("UPDATE job_versions SET lane = 'nonsense'")
    still.advance(SECOND)
    fire(session, still.installation, look_at(still), breaker)
    assert still.value(QUARANTINED) == MAX_ALIKE
    paused, edited, parked = KEYS[:MAX_ALIKE]
    later = submission(KEYS[MAX_ALIKE], **EACH_SECOND)
    still.apply_batch(submission(edited, schedule="@every 1h"), later)
    still.execute("UPDATE jobs SET paused = true WHERE key = %s", [paused])  # as pause_on_failure does
    still.execute("UPDATE job_versions SET lane = 'nonsense'")
    position = still.value("SELECT scheduled_at FROM timers WHERE job_id = %s", [job_id("default", parked)])
    still.advance(SECOND)
    fire(session, still.installation, look_at(still), breaker)
    held = dict(still.rows("SELECT key, hold_reason FROM timers JOIN jobs USING (job_id)"))
    assert held == {paused: "pause", edited: None, parked: None, KEYS[MAX_ALIKE]: None}
    [(at, due)] = still.rows("SELECT scheduled_at, due_at FROM timers WHERE job_id = %s", [job_id("default", parked)])
    assert (at, due > still.now()) == (position, True)
    released = [event.job_key for event in still.lifecycle() if event.type == "io.tidewheel.job.released.v1"]
    assert sorted(released) == sorted([paused, parked])


def test_jobs_that_could_not_be_freed_are_freed_by_the_next_failure(still: ClockedDatabase) -> None:
    """An edit holds a quarantined timer for longer than lock_timeout."""
    breaker, session, edit = Breaker(), still.session(options="-c lock_timeout=100ms"), still.connection()
    still.apply_batch(*(submission(key, **EACH_SECOND) for key in KEYS[:MAX_ALIKE]))
    still.execute("UPDATE job_versions SET lane = 'nonsense'")
    still.advance(SECOND)
    fire(session, still.installation, look_at(still), breaker)
    still.apply_batch(submission(KEYS[MAX_ALIKE], **EACH_SECOND))
    still.execute("UPDATE job_versions SET lane = 'nonsense'")
    still.advance(SECOND)
    edit.execute("SELECT FROM timers WHERE job_id = %s FOR UPDATE", [job_id("default", KEYS[0])])
    with pytest.raises(Unavailable):
        fire(session, still.installation, look_at(still), breaker)
    assert still.value(QUARANTINED) == MAX_ALIKE
    edit.rollback()
    still.advance(2 * SECOND)
    fire(session, still.installation, look_at(still), breaker)
    assert still.value(QUARANTINED) == 0


@pytest.fixture
def of_a_newer_release(clocked: ClockedDatabase) -> Iterator[ClockedDatabase]:
    """A database with a newer release's constraint, which accepts no run."""
    clocked.execute(FUTURE_CHECK)
    yield clocked
    clocked.execute("ALTER TABLE job_runs DROP CONSTRAINT of_a_newer_release")


def test_postponed_job_is_explained_and_replies_with_an_occurrence(of_a_newer_release: ClockedDatabase) -> None:
    clocked = of_a_newer_release
    clocked.stop_clock()
    documents = [submission(key, **EACH_SECOND) for key in KEYS]
    clocked.apply_batch(*documents)
    [(first,)] = clocked.rows("SELECT DISTINCT scheduled_at FROM timers")
    clocked.stop_clock(first)
    fire_due(clocked)
    due = clocked.value("SELECT max(due_at) FROM timers")
    assert due > first
    for again in clocked.apply_batch(*documents):
        assert (again.unchanged, again.next_run_at) == (True, first)
    clocked.stop_clock(first + timedelta(milliseconds=500))
    explained = clocked.within(explain, "default", KEYS[-1], first)
    assert explained.outcome is OccurrenceOutcome.WAITING
    assert "postponed" in explained.words
    assert "/readyz" in explained.words
    assert "Check that a `tidewheel service scheduler` process runs" not in explained.words


@pytest.mark.parametrize("ended_by", ["firing", "edit"])
def test_ended_pauses_that_fail_alike_are_postponed_and_end_at_their_instant(
    still: ClockedDatabase, ended_by: str
) -> None:
    breaker, session = Breaker(), still.session()
    still.apply_batch(*(submission(key, **EACH_SECOND, catch_up="fire_all") for key in KEYS))
    ends_at = still.now() + 3 * SECOND
    still.apply_batch(*({"type": "job.pause", "key": key, "until": ends_at.isoformat()} for key in KEYS))
    schedules = still.rows("SELECT schedule_json, job_id FROM job_versions")
    still.execute("UPDATE job_versions SET schedule_json = %s", [ZONE_THAT_IS_GONE])
    still.advance(5 * SECOND)
    assert fire(session, still.installation, look_at(still), breaker) == JOBS
    assert still.value("SELECT count(*) FROM timers WHERE hold_reason = 'pause'") == JOBS
    assert fire(session, still.installation, look_at(still), breaker) == 0, "the next poll takes none of them"
    detail = still.within(show_job, "default", KEYS[-1])
    assert detail.summary.postponed_until is not None
    assert detail.summary.postponed_until > still.now()
    for schedule in schedules:
        still.execute("UPDATE job_versions SET schedule_json = %s WHERE job_id = %s", schedule)
    explained = still.within(explain, "default", KEYS[-1], ends_at - SECOND)
    assert (explained.outcome, "postponed" in explained.words) == (OccurrenceOutcome.PAUSED, True)
    if ended_by == "edit":
        replies = still.apply_batch(*(submission(key, **EACH_SECOND, payload=2) for key in KEYS))
        assert {reply.status for reply in replies} == {"accepted"}
        assert still.value("SELECT count(*) FROM jobs WHERE paused") == 0
    else:
        still.advance(2 * SECOND)  # the first pause between two tries takes 1 s
    while fire(session, still.installation, look_at(still), breaker):
        pass
    since = (still.now() - ends_at) // SECOND
    assert set(instants_of(still)) == {job_id("default", key) for key in KEYS}
    for instants in instants_of(still).values():
        assert instants == [ends_at + number * SECOND for number in range(since + 1)]
    assert still.rows("SELECT reason, sum(occurrences) FROM skips GROUP BY reason") == [("paused", 2 * JOBS)]


def test_some_poisoned_jobs_are_quarantined_and_others_fire(still: ClockedDatabase) -> None:
    still.apply_batch(*(submission(key, **EACH_SECOND) for key in KEYS))
    poisoned = KEYS[:MAX_ALIKE]
    still.execute(
        "UPDATE job_versions SET lane = 'nonsense' WHERE job_id IN (SELECT job_id FROM jobs WHERE key = ANY (%s))",
        [poisoned],
    )
    still.advance(SECOND)
    fire_due(still)
    held = still.rows("SELECT key FROM timers JOIN jobs USING (job_id) WHERE hold_reason = 'quarantine'")
    assert sorted(key for (key,) in held) == poisoned
    assert len(instants_of(still)) == JOBS - MAX_ALIKE
    assert faults.why_not_ready() is None
