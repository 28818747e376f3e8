"""The work that runs while something is killed: recurring jobs that may and may not overlap, tasks, retries, a failure."""

from collections.abc import Iterable
from datetime import datetime

from tests.fixtures.oracle import Oracle
from tests.fixtures.services import Fleet
from tidewheel.clock import SystemClock
from tidewheel.schemas.records import Cause

RECURRING = ("tick", "tock")
DOOMED = ("lost-cause",)

_JOBS: tuple[dict[str, object], ...] = (
    {"key": "tick", "schedule": {"interval": "1s"}, "target": "note"},
    {"key": "tock", "schedule": {"interval": "1s"}, "target": "note-sync", "overlap": "allow_all"},
    {"key": "errand", "schedule": "manual", "target": "note"},
    {
        "key": "shaky",
        "schedule": "manual",
        "target": "shaky",
        "retry": {"max_attempts": 3, "backoff": "fixed", "initial": "100ms", "jitter": "0%"},
    },
    {
        "key": "lost-cause",
        "schedule": "manual",
        "target": "lost-cause",
        "retry": {"max_attempts": 2, "backoff": "fixed", "initial": "50ms", "jitter": "0%"},
    },
)


class Workload:
    """What is asked of one fleet, and how long to wait for it."""

    def __init__(self, fleet: Fleet, oracle: Oracle) -> None:
        self._fleet, self._oracle = fleet, oracle

    def submit(self) -> None:
        """Submit the jobs and trigger some of them."""
        for job in _JOBS:
            self._fleet.ask({"type": "job.submit", "job": job})
        self.trigger("errand", 5)
        self.trigger("shaky", 3)
        self.trigger("lost-cause", 1)
        self._fleet.ask({"type": "job.trigger", "key": "errand", "delay": "700ms"})
        self._fleet.flush()

    def trigger(self, key: str, count: int) -> None:
        """Trigger a job several times."""
        for _ in range(count):
            self._fleet.ask({"type": "job.trigger", "key": key})
        self._fleet.flush()

    def wait_recovered(self, since: datetime) -> None:
        """Wait until every trigger has completed, and each recurring job has completed an occurrence after `since`."""
        self._fleet.until(lambda: self._recovered(since), "all is well again")

    def finish(self) -> None:
        """Pause what recurs and wait until nothing is left to be done."""
        for key in RECURRING:
            self._fleet.ask({"type": "job.pause", "key": key})
        self._fleet.flush()
        self._oracle.wait_answered()
        self._oracle.wait_settled()

    def _recovered(self, since: datetime) -> bool:
        if not self._oracle.answered():
            return False
        completed, replies = self._oracle.completed(), self._oracle.replies()
        triggered = {reply.run_id for reply in replies.values() if reply.run_id is not None}
        fired = {c.job_key for c in completed.values() if c.cause is Cause.TIMER and c.scheduled_at > since}
        return triggered <= set(completed) and fired >= set(RECURRING)


def now() -> datetime:
    """The oracle's clock, which on one machine is the database's."""
    return SystemClock().now()


def keys_of(effects: Iterable[str]) -> set[str]:
    """Distinct keys."""
    return set(effects)
