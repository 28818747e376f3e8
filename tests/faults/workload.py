"""Load of the fault tests: recurring jobs, overlaps, tasks, an order, retries, a failure."""

import re
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import LiteralString

from tests.fixtures.oracle import Findings, Oracle
from tests.fixtures.services import Fleet, Service
from tidewheel.clock import SystemClock
from tidewheel.schemas.generated.records import Cause

RECURRING: tuple[str, ...] = ("tick", "tock")
DOOMED = ("lost-cause",)
ATTEMPTS = {"shaky": 2, "lost-cause": 2}  # without a kill

_JOBS: tuple[dict[str, object], ...] = (
    {"key": "tick", "schedule": {"interval": "1s"}, "target": "note"},
    {"key": "tock", "schedule": {"interval": "1s"}, "target": "note-sync", "overlap": "allow_all"},
    {"key": "errand", "schedule": "manual", "target": "note"},
    {"key": "in-line", "schedule": "manual", "target": "note", "ordering_key": "line"},
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


_WAITS: LiteralString = """
SELECT EXISTS (SELECT FROM job_runs WHERE run_id = %s AND publish_at > tidewheel_now() + %s)
"""
_ATTEMPTS: LiteralString = "SELECT attempt, outcome FROM ended_attempts WHERE run_id = %s ORDER BY attempt"


class Workload:
    """The load of one fleet, and the time to wait for it."""

    def __init__(self, fleet: Fleet, oracle: Oracle) -> None:
        self._fleet, self._oracle = fleet, oracle
        self.recurring = RECURRING

    def submit(self, *, recurring: bool = True) -> None:
        """Submit the jobs, with those that recur or without, and trigger some of them."""
        self.recurring = RECURRING if recurring else ()
        for job in _JOBS:
            if recurring or job["key"] not in RECURRING:
                self._fleet.ask({"type": "job.submit", "job": job})
        self.trigger("errand", 5)
        self.trigger("in-line", 5)
        self.trigger("shaky", 3)
        self.trigger("lost-cause", 1)
        self._fleet.ask({"type": "job.trigger", "key": "errand", "delay": "700ms"})
        self._fleet.flush()

    def trigger(self, key: str, count: int) -> None:
        """Trigger a job several times, each with a payload of its own."""
        for _ in range(count):
            self._fleet.ask({"type": "job.trigger", "key": key, "payload": {"number": len(self._fleet.asked)}})
        self._fleet.flush()

    def trigger_later(self, delay: timedelta) -> None:
        """Trigger a run that leaves after the delay; another one if its acceptance took half of that."""
        waits = False
        while not waits:
            request = {"type": "job.trigger", "key": "errand", "delay": f"{delay.total_seconds():g}s"}
            request_id = self._fleet.ask(request)
            self._fleet.flush()
            self._oracle.wait_answered()
            waits = self._fleet.database.value(_WAITS, [self._oracle.replies()[request_id].run_id, delay / 2])

    def hold(self, target: str = "gated", overlap: str = "allow_all") -> "Held":
        """Trigger a run that goes on until it is let go."""
        key, gate = f"{target}-{len(self._fleet.asked)}", self._fleet.folder / f"gate-{len(self._fleet.asked)}"
        job = {"key": key, "schedule": "manual", "target": target, "payload": str(gate), "overlap": overlap}
        self._fleet.ask({"type": "job.submit", "job": job})
        request_id = self._fleet.ask({"type": "job.trigger", "key": key})
        self._fleet.flush()
        return Held(self._fleet, self._oracle, key, request_id, gate)

    def wait_recovered(self, since: datetime) -> None:
        """Wait until every trigger is complete, and each recurring job has completed a run after `since`."""
        self.wait_recovered_but([], since)

    def wait_recovered_but(self, held: Sequence["Held"], since: datetime) -> None:
        """The same, leaving out runs that are held."""
        self._fleet.until(lambda: self._recovered(held, since), "all is well again")

    def finish(self) -> None:
        """Pause what recurs and wait until nothing is left to be done."""
        for key in self.recurring:
            self._fleet.ask({"type": "job.pause", "key": key})
        self._fleet.flush()
        self._oracle.wait_answered()
        self._oracle.wait_settled()

    def finish_and_check(
        self, *, kills: bool = False, attempts: Mapping[str, int] | None = None, stopped: Iterable[Service] = ()
    ) -> Findings:
        """Finish, end the services, and let the oracle judge."""
        self.finish()
        (self._fleet.kill if kills else self._fleet.stop)()
        return self._oracle.check(failures=DOOMED, attempts=attempts, stopped=stopped)

    def _recovered(self, held: Sequence["Held"], since: datetime) -> bool:
        if not self._oracle.answered():
            return False
        completed, replies = self._oracle.completed(), self._oracle.replies()
        triggered = {reply.run_id for reply in replies.values() if reply.run_id is not None}
        fired = {c.job_key for c in completed.values() if c.cause is Cause.TIMER and c.scheduled_at > since}
        triggered -= {run.run_id for run in held}
        return triggered <= set(completed) and fired >= set(self.recurring)


class Held:
    """A run whose handler waits for a file."""

    def __init__(self, fleet: Fleet, oracle: Oracle, key: str, request_id: str, gate: Path) -> None:
        self.key = key
        self._fleet, self._oracle, self._request_id, self._gate = fleet, oracle, request_id, gate
        self._run_id = ""

    @property
    def run_id(self) -> str:
        """The run, once its trigger is answered."""
        if not self._run_id:
            self._oracle.look()
            reply = self._oracle.replies().get(self._request_id)
            self._run_id = (reply.run_id or "") if reply else ""
        return self._run_id

    def begun(self) -> list[int]:
        """The attempts that have taken effect so far."""
        return [effect.attempt for effect in self._oracle.effects() if effect.run_id == self.run_id]

    def wait_begun(self, attempt: int) -> None:
        """Wait until an attempt is under way."""
        self._fleet.until(lambda: attempt in self.begun(), f"attempt {attempt} of the held run has begun")

    def wait_completed(self) -> None:
        """Wait until its completion is on Kafka."""
        self._fleet.until(self._completed, "the held run has completed")

    def attempts(self) -> list[tuple[int, str]]:
        """Number and outcome of its attempts, as Tidewheel has kept them."""
        rows = self._fleet.database.rows(_ATTEMPTS, [self.run_id])
        return [(int(attempt), str(outcome)) for attempt, outcome in rows]

    def _completed(self) -> bool:
        self._oracle.look()
        return self.run_id in self._oracle.completed()

    def let_go(self, attempt: int | None = None) -> None:
        """Let an attempt end, or every one."""
        (self._gate if attempt is None else self._gate.with_name(f"{self._gate.name}-{attempt}")).touch()


def metric(service: Service, name: str) -> float:
    """A metric as the service serves it; it was started with METRICS_PORT=0."""
    [port] = {m[1] for line in service.log_lines() if (m := re.search(r"on port (\d+)", str(line.get("message"))))}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        found = re.search(rf"^tidewheel_{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def now() -> datetime:
    """The oracle's clock, which on one machine is the database's."""
    return SystemClock().now()
