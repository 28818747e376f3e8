"""The four timeouts through all services: completion, dead letter and record name the one that struck."""

import pytest

from tests.fixtures.oracle import Oracle
from tests.fixtures.services import LONG_LEASE, Fleet
from tidewheel.schemas.generated.records import RunStatus

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

NEVER = "/nowhere/that/exists"  # no gate is ever there
LATER = {"backoff": "fixed", "initial": "1h", "jitter": "0%", "max_attempts": 3}
AT_ONCE = {"backoff": "fixed", "initial": "10ms", "jitter": "0%", "max_attempts": 2}

WHOLE = "8s"  # counts from the trigger: a busy machine starts the attempt within it

# By key: the job, which timeout strikes, at which attempt it ends.
CASES: dict[str, tuple[dict[str, object], str, int]] = {
    "too-long": ({"target": "gated", "start_to_close": "500ms", "retry": AT_ONCE}, "start_to_close", 2),
    "too-long-on-thread": ({"target": "gated-sync", "start_to_close": "500ms", "retry": AT_ONCE}, "start_to_close", 2),
    "silent": ({"target": "gated", "heartbeat": "1s", "retry": AT_ONCE}, "heartbeat", 2),
    "silent-on-thread": ({"target": "gated-sync", "heartbeat": "1s", "retry": AT_ONCE}, "heartbeat", 2),
    "nobody-has-it": ({"target": "no-such-handler", "schedule_to_start": "2s"}, "schedule_to_start", 0),
    "whole-time-running": ({"target": "gated", "schedule_to_close": WHOLE, "retry": AT_ONCE}, "schedule_to_close", 1),
    "whole-time-on-thread": (
        {"target": "gated-sync", "schedule_to_close": WHOLE, "retry": AT_ONCE},
        "schedule_to_close",
        1,
    ),
    "whole-time-between": (
        {"target": "lost-cause", "schedule_to_close": WHOLE, "retry": LATER},
        "schedule_to_close",
        1,
    ),
}


@pytest.mark.slow
def test_expired_timeout_is_named_in_every_record(fleet: Fleet, oracle: Oracle) -> None:
    fleet.start_all(LEASE=LONG_LEASE)
    fleet.wait_started()
    for key, (job, _, _) in CASES.items():
        fleet.ask({"type": "job.submit", "job": {"key": key, "schedule": "manual", "payload": NEVER} | job})
        fleet.ask({"type": "job.trigger", "key": key})
    fleet.flush()
    oracle.wait_answered()
    fleet.until(
        lambda: reported_jobs(oracle) >= set(CASES), "every end is published"
    )  # a retry that was due in an hour stays behind
    ended = {event.job_key: event for event in oracle.completed().values()}
    letters = {letter.job_key: letter for letter in oracle.letters()}
    assert set(ended) == set(letters) == set(CASES)
    for key, (_, which, attempt) in CASES.items():
        event, letter = ended[key], letters[key]
        assert (key, event.status, event.reason, event.attempt) == (key, RunStatus.TIMED_OUT, which, attempt)
        assert event.error is not None
        assert event.error.type == f"timeout_{which}"
        assert event.error.message.startswith(f"{which} of ")
        assert (letter.status, letter.error) == (event.status, event.error)
    rows = fleet.database.rows("SELECT j.key, r.state, r.reason FROM runs AS r JOIN jobs AS j USING (job_id)")
    assert sorted(rows) == sorted((key, "timed_out", which) for key, (_, which, _) in CASES.items())


def reported_jobs(oracle: Oracle) -> set[str]:
    """The jobs of which both a completion and a dead letter have come."""
    oracle.look()
    return {event.job_key for event in oracle.completed().values()} & {letter.job_key for letter in oracle.letters()}
