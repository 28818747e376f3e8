"""Runs that no executor can handle wait without using an attempt, and are announced."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

import pytest
from prometheus_client import REGISTRY

from tests.fixtures.acts import HANDLER
from tests.fixtures.database import ClockedDatabase
from tidewheel.scheduler.unhandled import Unhandled, UnhandledWatch
from tidewheel.schemas.generated.records import LifecycleEvent

LATER = timedelta(seconds=11)


def check(database: ClockedDatabase) -> list[tuple[str, str, int]]:
    announced: list[Unhandled] = UnhandledWatch(database.session(), database.installation).check()
    return [(each.queue, each.handler, each.runs) for each in announced]


def waiting() -> float | None:
    return REGISTRY.get_sample_value("tidewheel_runs_without_executor")


def announced(database: ClockedDatabase) -> list[LifecycleEvent]:
    """The announcements on their way."""
    return [event for event in database.lifecycle() if event.type == "io.tidewheel.job.no_executor.v1"]


def executor(
    database: ClockedDatabase, *, queues: Sequence[str] = ("default",), handlers: Sequence[str] = (), **columns: object
) -> None:
    announced = {"stopping": False} | columns
    database.execute(
        "INSERT INTO executors (executor_id, name, queues, handlers, slots, last_heartbeat_at, started_at, stopping)"
        " VALUES (%s, 'test', %s, %s, 1, tidewheel_now(), tidewheel_now(), %s)",
        [uuid4(), list(queues), list(handlers), announced["stopping"]],
    )


def test_run_without_an_executor_for_its_handler_is_announced(still: ClockedDatabase) -> None:
    still.submit("mail", queue="reports")
    run_id, *_ = [still.trigger("mail") for _ in range(3)]
    executor(still, handlers=[HANDLER])  # of another queue
    executor(still, queues=["reports"], handlers=["other"])
    assert check(still) == []  # due for a moment only
    still.advance(LATER)
    executor(still, queues=["reports"], handlers=["other"])
    assert check(still) == [("reports", HANDLER, 3)]
    assert waiting() == 3
    [event] = announced(still)
    assert (event.job_key, event.reason) == ("mail", f"no executor of queue 'reports' has the handler '{HANDLER}'")
    assert event.detail["runs"] == "3"
    assert event.detail["run_id"] == str(run_id)
    run = still.open_run(run_id)
    assert (run.state, run.attempt, run.failed_attempts) == ("queued", 0, 0)


def test_queue_without_executors_is_announced_for_every_target(still: ClockedDatabase) -> None:
    still.submit("call", queue="web", target={"type": "http", "url": "https://example.org/"})
    still.trigger("call")
    still.advance(LATER)
    assert check(still) == [("web", "tidewheel.http", 1)]
    [event] = announced(still)
    assert event.reason == "no executor of queue 'web' runs http targets (TIDEWHEEL_TARGETS)"


def test_announcement_is_repeated_after_ten_minutes(still: ClockedDatabase) -> None:
    still.submit()
    still.trigger()
    still.advance(LATER)
    assert len(check(still)) == 1
    still.advance(timedelta(minutes=9))
    assert check(still) == []
    assert waiting() == 1
    still.advance(timedelta(minutes=2))
    assert len(check(still)) == 1
    assert len(announced(still)) == 2


@pytest.mark.parametrize("gone", ["stopping", "silent"])
def test_stopping_executor_does_not_count(still: ClockedDatabase, gone: str) -> None:
    still.submit()
    still.trigger()
    if gone == "silent":
        executor(still, handlers=[HANDLER])
        still.advance(timedelta(minutes=2))
    else:
        still.advance(LATER)
        executor(still, handlers=[HANDLER], stopping=True)
    assert check(still) == [("default", HANDLER, 1)]


def test_live_executor_ends_announcements(still: ClockedDatabase) -> None:
    still.submit()
    still.trigger()
    still.advance(LATER)
    assert len(check(still)) == 1
    executor(still, handlers=[HANDLER])
    still.advance(timedelta(seconds=1))
    assert check(still) == []
    assert waiting() == 0


def test_owned_and_future_runs_are_not_announced(still: ClockedDatabase) -> None:
    still.submit(overlap="allow_all")
    still.begin(still.trigger())
    still.trigger(delay="1h")
    still.advance(LATER)
    assert check(still) == []


def test_each_queue_lane_and_handler_is_found(still: ClockedDatabase) -> None:
    wanted: set[tuple[str, str, int]] = set()
    for queue in ("a", "b", "default"):
        for lane in ("critical", "standard", "batch"):
            handler = f"{queue}-{lane}"
            still.submit(handler, queue=queue, lane=lane, target=handler)
            still.trigger(handler)
            wanted.add((queue, handler, 1))
    still.advance(LATER)
    assert set(check(still)) == wanted
