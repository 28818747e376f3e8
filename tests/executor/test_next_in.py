"""`ctx.next_in` of handlers on the loop, on threads and in processes."""

from datetime import timedelta

import pytest

from tests.executor import next_handlers
from tests.executor.handlers import handlers
from tests.executor.running import Executing
from tests.scheduler.firing import fire_due
from tidewheel.executor.isolation.pool import DIED
from tidewheel.testing import run_handler
from tidewheel.transitions.after_end import apply_deferred_effects

SCHEDULE = {"fixed_delay": "1h", "min": "10s", "max": "2h"}
DELAYS = {
    "next.loop": 30.5, "next.thread": 3_600 * 3, "next.process": 45, "next.dies": 46, "next.hangs": 47,
    "next.complete": 48, "next.complete-process": 49,
}  # fmt: skip
EXPECTED = DELAYS | {"next.thread": 7_200}


@pytest.mark.landing
def test_next_interval_is_what_a_handler_has_set(executing: Executing) -> None:
    database = executing.database
    for key, seconds in DELAYS.items():
        payload = {"database": database.url, "next_in": f"{seconds}s"} if "complete" in key else seconds
        limit = {"start_to_close": "5s"} if key == "next.hangs" else {}
        database.submit(key, target=key, payload=payload, schedule=SCHEDULE, retry={"max_attempts": 1}, **limit)
    fire_due(database)
    runs = {run.run_id for run in database.job_runs()}
    with executing.running(known=handlers(next_handlers), worker_processes=1):
        ended = [executing.ended(run) for run in runs]
    assert {each.error_type for each in ended} == {None, "Permanent", DIED, "timeout_start_to_close"}
    database.within(apply_deferred_effects, database.installation)
    found = database.rows(
        "SELECT j.key, t.scheduled_at - r.finished_at FROM jobs j JOIN timers t USING (job_id)"
        " JOIN finished_runs r USING (job_id)"
    )
    assert dict(found) == {key: timedelta(seconds=seconds) for key, seconds in EXPECTED.items()}


def test_a_handlers_test_sees_it() -> None:
    assert run_handler("next.thread", 30).assert_succeeded().next_in == timedelta(seconds=30)
