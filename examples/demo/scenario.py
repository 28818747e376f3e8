"""The minute: send the file, kill an executor half-way, stop the jobs, drain, audit."""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

from examples.demo.checks import History, Kill
from examples.demo.consumer import RecordConsumer
from examples.demo.display import Screen, Snapshot, snapshot_of
from examples.demo.receiver import Receiver
from examples.demo.requests import Line, Sender, fill_in, read_expected, read_requests
from examples.demo.services import EXECUTORS, HEARTBEAT_SECONDS, LEASE_SECONDS, Counts, Rows, Services, are_assigned
from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.errors import StackError
from tidewheel.kafka.topics import Topics
from tidewheel.local.stack import StackInfo

LOAD_SECONDS = 32.0  # the latest instant in the file is a second earlier
KILL_SECONDS = 14.0

_TICK_SECONDS = 0.2
_COUNT_EVERY_SECONDS = 1.0
_READY_SECONDS = 90.0  # five Python processes that start at once on a slow machine
_KILL_GRACE_SECONDS = 8.0  # two rounds of the slow webhooks
_SETTLE_SECONDS = 0.15  # what a frozen process has sent arrives within this time
_QUIET_SECONDS = 40.0  # longer than the lease, the retries and the slowest attempt together
_CATCH_UP_SECONDS = 10.0
_LEAST_HELD = 2
_DELETED_FAMILY = "cron"  # these jobs are deleted at the end, the others paused: both ways to stop occur
_REASON = "the demo is over"

_NEVER_SET = threading.Event()  # never set: a wait on it is a sleep


def run_scenario(info: StackInfo, logs: Path, screen: Screen) -> History:
    """Run it to its end. All its processes have ended when this returns or raises.

    Raises:
        StackError: A service did not start, or ended by itself.
        Unavailable: The database or the broker does not answer.
    """
    with ExitStack() as undo:
        scenario = _Scenario(info, logs, screen, undo)
        scenario.open()
        scenario.load()
        scenario.stop_firing()
        counts = scenario.drain()
        screen.phase("auditing")
        history = scenario.history(counts)
        screen.phase("stopping the services")
    return history


class _Scenario:
    def __init__(self, info: StackInfo, logs: Path, screen: Screen, undo: ExitStack) -> None:
        self._info, self._screen = info, screen
        self._began = 0.0
        self._began_at = SystemClock().now()
        self._expected = read_expected()
        self._rows = undo.enter_context(Rows(info.database_url))
        self._receiver = undo.enter_context(Receiver())
        self._consumer = undo.enter_context(RecordConsumer(info.kafka))
        self._sender = Sender(info.kafka)
        self._services = undo.enter_context(Services(info, logs))
        self._kill: Kill | None = None

    def open(self) -> None:
        """Start the services, and wait until each has its rows and its partitions."""
        self._screen.note(f"receiver of effects on {self._receiver.url}")
        self._services.start(self._receiver.url)
        self._screen.note(
            "for this demo alone the executors may call private addresses (TIDEWHEEL_HTTP_ALLOW_PRIVATE=true), "
            f"and their lease is {LEASE_SECONDS} s with a heartbeat every {HEARTBEAT_SECONDS} s, not 15 s and 5 s"
        )
        self._until(
            lambda: self._rows.are_ready() and are_assigned(self._info.kafka), _READY_SECONDS, "starting the services"
        )

    def load(self) -> None:
        """Send the file, then wait, and kill an executor half-way."""
        start = SystemClock().now().replace(microsecond=0) + timedelta(seconds=1)
        lines = fill_in(read_requests(), start, self._receiver.url)
        self._began = monotonic_seconds()
        self._sender.send(lines)
        jobs = sum(line.job is not None for line in lines)
        self._screen.note(f"{len(lines)} requests are on {Topics().requests}, {jobs} of them jobs")
        while self._elapsed() < LOAD_SECONDS:
            self._tick("jobs are firing")
            if self._kill is None and self._elapsed() >= KILL_SECONDS:
                self._try_kill(insist=self._elapsed() >= KILL_SECONDS + _KILL_GRACE_SECONDS)

    def _try_kill(self, *, insist: bool) -> None:
        """Kill the busier executor if it has running attempts.

        It is frozen first, so that its attempts do not change between the count and the kill.
        """
        held = {name: self._rows.held_by(self._services.pid(name)) for name in EXECUTORS}
        name = max(held, key=lambda one: len(held[one]))
        if len(held[name]) < _LEAST_HELD and not insist:
            return
        self._services.freeze(name)
        _NEVER_SET.wait(_SETTLE_SECONDS)
        attempts = self._rows.held_by(self._services.pid(name))
        self._kill = Kill(SystemClock().now(), attempts)
        self._services.kill(name)
        self._screen.note(f"killed {name} (SIGKILL, pid {self._services.pid(name)}) with {len(attempts)} attempts")

    def stop_firing(self) -> None:
        """Pause or delete every recurring job, by requests on the topic like any other."""
        recurring = [line for line in self._sender.lines if _recurs(line) and line.key not in self._expected.rejected]
        stops = [_stop(line) for line in recurring]
        self._sender.send(stops)
        deleted = sum(line.document["type"] == "job.delete" for line in stops)
        self._screen.note(f"stop: {len(stops) - deleted} recurring jobs are paused, {deleted} deleted")

    def drain(self) -> Counts:
        """Wait until every request has its reply and every run its end and completion event."""
        sent = len(self._sender.lines)
        self._until(lambda: len(self._consumer.read().replies) >= sent, _QUIET_SECONDS, "draining")
        self._until(lambda: self._rows.count().is_quiet, _QUIET_SECONDS, "draining", every=_COUNT_EVERY_SECONDS)
        counts = self._rows.count()
        self._until(lambda: self._has_read(counts.runs), _CATCH_UP_SECONDS, "reading the events")
        return counts

    def _has_read(self, runs: int) -> bool:
        read = self._consumer.read()
        return len(read.runs) >= runs and len(read.dead_letters) >= len(self._expected.dead_letters)

    def history(self, counts: Counts) -> History:
        """Return what was seen, with the result of `tidewheel admin audit`."""
        return History(
            sent=len(self._sender.lines),
            expected=self._expected,
            read=self._consumer.read(),
            calls=self._receiver.calls(),
            rows=counts,
            kill=self._kill,
            audit=self._audit(),
        )

    def _audit(self) -> Mapping[str, object]:
        done = self._services.command(
            "admin", "audit", "--from", self._began_at.isoformat(), "--completions", "-o", "json"
        )
        try:
            return dict(json.loads(done.stdout))
        except ValueError:
            message = f"the audit failed: {done.stderr}"
            raise StackError(message) from None

    def _until(self, is_done: Callable[[], bool], limit: float, phase: str, *, every: float = 0.0) -> None:
        """Show the phase until something is done, or the limit passes. The checks then name what is missing."""
        began = looked_at = monotonic_seconds()
        while not (monotonic_seconds() - looked_at >= every and is_done()):
            if monotonic_seconds() - looked_at >= every:
                looked_at = monotonic_seconds()
            if monotonic_seconds() - began > limit:
                if not self._began:
                    message = f"{phase} took longer than {limit:.0f} s"
                    raise StackError(message)
                return
            self._tick(phase)

    def _tick(self, phase: str) -> None:
        self._services.check()
        self._screen.show(phase, self._snapshot())
        _NEVER_SET.wait(_TICK_SECONDS)

    def _snapshot(self) -> Snapshot:
        seen = self._consumer.read(), self._receiver.calls()
        return snapshot_of(self._elapsed(), self._services.states(), self._sender.lines, *seen)

    def _elapsed(self) -> float:
        return monotonic_seconds() - self._began if self._began else 0.0


def _recurs(line: Line) -> bool:
    schedule = (line.job or {}).get("schedule")
    return isinstance(schedule, dict) and ("interval" in schedule or "cron" in schedule)


def _stop(line: Line) -> Line:
    kind = "job.delete" if line.family == _DELETED_FAMILY else "job.pause"
    return Line(line.key, line.family, {"type": kind, "key": line.key, "reason": _REASON})
