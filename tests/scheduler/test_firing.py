"""Exactly one run per occurrence: ahead of time, late, after an outage, and by two schedulers."""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest

from tests.fixtures.acts import submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due, look_at
from tests.transitions.stepping import in_background
from tidewheel.errors import Unavailable
from tidewheel.jobs.values import format_timestamp
from tidewheel.process.service import Shutdown
from tidewheel.scheduler.firing import fire
from tidewheel.scheduler.loop import Scheduler
from tidewheel.settings.services import SchedulerSettings

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
EACH_SECOND = {"schedule": "@every 1s", "overlap": "allow_all"}


@contextmanager
def scheduler_of(database: Database, **settings: object) -> Generator[Scheduler]:
    """A scheduler to step: it has not joined, so it owns all shards."""
    stop = Shutdown()
    made = Scheduler(SchedulerSettings.load(**settings), database.url_of("scheduler"), database.installation, stop)
    try:
        yield made
    finally:
        stop.request()
        made.run()  # enters, sees that it is to end, and closes what it holds


def instants(database: ClockedDatabase) -> list[float]:
    [(accepted_at,)] = database.rows("SELECT min(created_at) FROM jobs")
    found = database.rows("SELECT scheduled_at FROM runs ORDER BY scheduled_at")
    return [(at - accepted_at).total_seconds() for (at,) in found]


def skips(database: ClockedDatabase) -> list[tuple[str, float, float, int, bool]]:
    [(accepted_at,)] = database.rows("SELECT min(created_at) FROM jobs")
    found = database.rows("SELECT reason, first_at, last_at, occurrences, is_exact FROM skips ORDER BY skip_id")
    return [
        (reason, (first - accepted_at).total_seconds(), (last - accepted_at).total_seconds(), count, exact)
        for reason, first, last, count, exact in found
    ]


def test_runs_are_created_ahead_and_published_at_their_instant(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    assert fire_due(still, lookahead=timedelta(seconds=3.5)) == 1
    assert instants(still) == [1, 2, 3]
    for run, message in zip(still.job_runs(), still.requests(), strict=True):
        assert run.publish_at == run.scheduled_at == message.publish_at == message.scheduled_at
    leaving = still.rows("SELECT publish_at FROM outbox WHERE topic LIKE '%.runs.%' ORDER BY 1")
    assert [at for (at,) in leaving] == [run.scheduled_at for run in still.job_runs()]
    assert fire_due(still, lookahead=timedelta(seconds=3.5)) == 0


def test_no_run_is_created_before_the_lookahead(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    assert fire_due(still, lookahead=SECOND - timedelta(microseconds=1)) == 0
    assert fire_due(still, lookahead=SECOND) == 1


def test_late_run_is_due_at_once_and_keeps_its_instant(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    now = still.advance(timedelta(seconds=1.5))
    fire_due(still)
    [run] = still.job_runs()
    assert (run.scheduled_at, run.publish_at) == (now - SECOND / 2, now)


def test_latest_missed_occurrence_fires_and_others_are_one_exact_span(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h")
    still.advance(5.5 * HOUR)
    fire_due(still)
    assert instants(still) == [5 * 3600]
    assert skips(still) == [("misfire", 3600, 4 * 3600, 4, True)]
    [event] = [event for event in still.lifecycle() if event.type == "io.tidewheel.occurrence.skipped.v1"]
    assert (event.reason, event.detail["occurrences"], event.job_version) == ("misfire", "4", 1)
    [(first, last)] = still.rows("SELECT first_at, last_at FROM skips")
    assert (event.detail["first_at"], event.detail["last_at"]) == (format_timestamp(first), format_timestamp(last))
    still.advance(HOUR)
    fire_due(still)
    assert instants(still) == [5 * 3600, 6 * 3600]


def test_latest_missed_and_younger_occurrences_fire(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    still.advance(600 * SECOND)
    fire_due(still)
    assert skips(still) == [("misfire", 1, 539, 539, True)]
    assert instants(still) == list(range(540, 601))


def test_occurrence_is_missed_at_exactly_misfire_after(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h")
    still.advance(2 * HOUR + timedelta(seconds=60) - timedelta(microseconds=1))
    fire_due(still)
    # The first hour was missed and is the latest that was; the second is young and fires by itself.
    assert (instants(still), skips(still)) == ([3600, 7200], [])
    still.advance(2 * HOUR + timedelta(microseconds=1))
    fire_due(still)
    assert (instants(still)[2:], skips(still)) == ([4 * 3600], [("misfire", 3 * 3600, 3 * 3600, 1, True)])


def test_uncountable_span_is_recorded_as_inexact(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    still.advance(timedelta(days=3))
    fire_due(still)
    [(reason, first, last, counted, exact)] = skips(still)
    assert (reason, first, last, counted, exact) == ("misfire", 1, 3 * 86400 - 61, 100_000, False)
    assert len(instants(still)) == 61


def test_backlog_of_one_job_does_not_delay_others(still: ClockedDatabase) -> None:
    """At most 100 occurrences of a job in one transaction; its timer stays due for the rest."""
    still.submit(**EACH_SECOND)
    still.advance(59 * SECOND)
    fire_due(still, lookahead=60 * SECOND)
    assert instants(still) == list(range(1, 101))
    fire_due(still, lookahead=60 * SECOND)
    assert instants(still) == list(range(1, 120))


def test_clock_set_back_creates_no_duplicate_run(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    still.advance(5 * SECOND)
    fire_due(still, lookahead=2 * SECOND)
    still.advance(-HOUR)
    assert fire_due(still, lookahead=2 * SECOND) == 0
    still.advance(HOUR + 2 * SECOND)
    fire_due(still, lookahead=2 * SECOND)
    assert instants(still) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert skips(still) == []


def test_backlog_of_one_shard_does_not_delay_others(still: ClockedDatabase) -> None:
    still.apply_batch(*(submission(f"job-{n}", **EACH_SECOND) for n in range(300)))
    still.advance(SECOND)
    fire_due(still, batch=128)
    fired = {shard for (shard,) in still.rows("SELECT DISTINCT shard FROM runs")}
    assert fired == {shard for (shard,) in still.rows("SELECT DISTINCT shard FROM jobs")}


def test_concurrent_schedulers_create_one_run_per_occurrence(
    still: ClockedDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    still.apply_batch(*(submission(f"job-{n}", **EACH_SECOND) for n in range(60)))
    over = threading.Event()

    def work(scheduler: Scheduler) -> None:
        while not over.is_set():
            scheduler.step()

    with (
        caplog.at_level(logging.WARNING),
        scheduler_of(still, fire_batch=100) as one,
        scheduler_of(still, fire_batch=100) as two,
    ):
        both = [in_background(lambda each=each: work(each)) for each in (one, two)]
        for _ in range(20):
            still.advance(SECOND / 2)
        deadline: datetime = still.now() + 5 * SECOND  # the lookahead
        while still.value("SELECT EXISTS (SELECT FROM timers WHERE due_at <= %s)", [deadline]):
            assert not any(done.done() for done in both)
        over.set()
        for done in both:
            done.result(30)
    made = still.rows("SELECT job_id, count(*), count(DISTINCT scheduled_at), min(shard) FROM runs GROUP BY job_id")
    assert len(made) == 60
    assert {(count, distinct) for _, count, distinct, _ in made} == {(15, 15)}  # ten seconds, and five ahead
    assert still.count("runs") == len(still.job_runs()) == len(still.requests())
    assert "firing job by job" not in caplog.text


def test_locked_timer_does_not_block_others(still: ClockedDatabase) -> None:
    still.apply_batch(submission("held", **EACH_SECOND), submission("free", **EACH_SECOND))
    still.advance(SECOND)
    holding = still.connection()
    holding.execute("SELECT FROM timers AS t JOIN jobs AS j USING (job_id) WHERE key = 'held' FOR UPDATE OF t")
    assert fire_due(still) == 1
    holding.rollback()
    assert fire_due(still) == 1
    assert instants(still) == [1, 1]


def test_lost_session_is_reported_and_next_poll_fires(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    still.advance(SECOND)
    session = still.session()
    still.execute("SELECT pg_terminate_backend(%s)", [session.connection().info.backend_pid])
    with pytest.raises(Unavailable):
        fire(session, still.installation, look_at(still))
    assert fire(session, still.installation, look_at(still)) == 1
    assert instants(still) == [1]
