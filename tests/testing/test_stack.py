"""The fixture `tidewheel`: real services that a test steps, on a clock that it moves."""

import json
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.testing import fixture_handlers
from tidewheel.errors import InvalidInput, UnknownJob
from tidewheel.testing.stack import Tidewheel

pytestmark = pytest.mark.kafka

assert fixture_handlers
NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def job(key: str = "job", **fields: object) -> dict[str, object]:
    return {"key": key, "schedule": "manual", "target": "testing.echo"} | fields


def test_services_advance_only_when_stepped(tidewheel: Tidewheel) -> None:
    tidewheel.submit(job())
    tidewheel.trigger("job", {"to": "ann"})
    assert [run.state for run in tidewheel.runs("job")] == ["queued"]
    tidewheel.drain()
    [run] = tidewheel.runs("job")
    assert (run.state, run.attempt, json.loads(run.result or b"")) == ("succeeded", 1, {"to": "ann"})
    tidewheel.trigger("job")
    assert sorted(run.state for run in tidewheel.runs("job")) == ["queued", "succeeded"]


def test_clock_stays_where_it_is_set(tidewheel: Tidewheel) -> None:
    assert tidewheel.set_time(NOON) == tidewheel.now == NOON
    assert tidewheel.set_time("2027-03-01T13:00:00+01:00") == NOON
    with pytest.raises(InvalidInput, match="has no offset"):
        tidewheel.set_time("2027-03-01T12:00:00")


@pytest.mark.landing
def test_advanced_clock_fires_each_occurrence_at_its_instant(tidewheel: Tidewheel) -> None:
    tidewheel.set_time(NOON)
    tidewheel.submit(job(schedule={"cron": "0 * * * *"}))
    assert tidewheel.advance(hours=3, minutes=30) == NOON + timedelta(hours=3.5)
    runs = tidewheel.assert_fired("job", times=3)
    assert [run.scheduled_at for run in runs] == [NOON + n * HOUR for n in (1, 2, 3)]
    assert [run.started_at for run in runs] == [run.scheduled_at for run in runs]
    tidewheel.assert_fired("job", at=NOON + HOUR, times=1)
    tidewheel.assert_no_dead_letters()


def test_set_clock_counts_as_downtime(tidewheel: Tidewheel) -> None:
    tidewheel.set_time(NOON)
    tidewheel.submit(job(schedule={"cron": "0 * * * *"}, catch_up="fire_once"))
    tidewheel.set_time(NOON + 5.5 * HOUR)
    tidewheel.drain()
    [run] = tidewheel.assert_fired("job")
    assert run.scheduled_at == NOON + 5 * HOUR
    with pytest.raises(AssertionError, match=r"(?s)fired 0 times at 2027-03-01T13:00:00\+00:00.*missed"):
        tidewheel.assert_fired("job", at=NOON + HOUR)


def test_a_retry_waits_for_its_time(tidewheel: Tidewheel) -> None:
    retry = {"max_attempts": 3, "backoff": "fixed", "initial": "10m", "jitter": "0%"}
    tidewheel.submit(job(target="testing.fail-until", payload=3, retry=retry))
    tidewheel.trigger("job")
    tidewheel.drain()
    assert [(run.state, run.attempt) for run in tidewheel.runs("job")] == [("retrying", 1)]
    tidewheel.advance(minutes=19)
    assert [(run.state, run.attempt) for run in tidewheel.runs("job")] == [("retrying", 2)]
    tidewheel.advance(minutes=1)
    assert [(run.state, run.attempt) for run in tidewheel.runs("job")] == [("succeeded", 3)]


def test_runs_of_a_chunk_handler_share_calls_and_are_retried_alone(tidewheel: Tidewheel) -> None:
    tidewheel.submit(job(target="testing.together", retry={"max_attempts": 2, "initial": "1m", "jitter": "0%"}))
    for number in range(2):
        tidewheel.trigger("job", number)
    tidewheel.drain()
    assert sorted((run.state, run.result) for run in tidewheel.runs("job")) == [("retrying", None), ("succeeded", b"2")]
    tidewheel.advance(minutes=1)
    assert sorted((run.attempt, run.result) for run in tidewheel.runs("job")) == [(1, b"2"), (2, b"1")]


def test_exhausted_run_is_reported(tidewheel: Tidewheel) -> None:
    tidewheel.submit(job(target="testing.fail-until", payload=9, retry={"max_attempts": 1}))
    tidewheel.trigger("job")
    tidewheel.drain()
    with pytest.raises(AssertionError, match=r"(?s)1 were given up.*job: .*ValueError: attempt 1 fails"):
        tidewheel.assert_no_dead_letters()


def test_non_overlapping_runs_run_one_after_another(tidewheel: Tidewheel) -> None:
    tidewheel.submit(job(overlap="buffer_all"))
    for number in range(3):
        tidewheel.trigger("job", number)
    tidewheel.drain()
    assert [run.state for run in tidewheel.runs("job")] == ["succeeded"] * 3


def test_named_queue_is_served(tidewheel: Tidewheel) -> None:
    tidewheel.submit(job("first"))
    tidewheel.trigger("first")
    tidewheel.drain()
    tidewheel.submit(job("second", queue="reports"))
    tidewheel.trigger("second")
    tidewheel.drain()
    assert [run.state for key in ("first", "second") for run in tidewheel.runs(key)] == ["succeeded"] * 2


def test_requests_arrive_by_kafka(tidewheel: Tidewheel) -> None:
    """The SQL function writes a request, the relay publishes it, intake applies it exactly once."""
    tidewheel.submit(job())
    for _ in range(2):
        with psycopg.connect(tidewheel.url) as own:
            own.execute("SELECT tidewheel_enqueue('job', '{\"to\": \"ann\"}', request_id => 'order-1')")
    tidewheel.drain()
    [run] = tidewheel.runs("job")
    assert (run.state, run.result) == ("succeeded", b'{"to":"ann"}')


def test_missing_handler_is_named(tidewheel: Tidewheel) -> None:
    tidewheel.submit(job(target="nobody's"))
    tidewheel.trigger("job")
    with pytest.raises(LookupError, match="job 'job' needs \"nobody's\"; import the module"):
        tidewheel.drain()


def test_tests_are_isolated_from_each_other(tidewheel: Tidewheel) -> None:
    with pytest.raises(UnknownJob):
        tidewheel.trigger("job")
    assert tidewheel.runs("job") == []
    tidewheel.drain()
