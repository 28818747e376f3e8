"""The demo's minute: services up, the file sent, an executor killed half-way, the jobs stopped, everything counted."""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.control.demo.consumer import Read, Watcher
from tidewheel.control.demo.display import Screen, Snapshot, snapshot_of
from tidewheel.control.demo.environment import DatabaseClock, Place, database_clock
from tidewheel.control.demo.expected import reckon_due
from tidewheel.control.demo.observations import Answer, History, Kill
from tidewheel.control.demo.receiver import Receiver
from tidewheel.control.demo.requests import Expected, Line, Sender, fill_in
from tidewheel.control.demo.services import EXECUTORS, HEARTBEAT_SECONDS, LEASE_SECONDS, Readiness, Services
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements

LOAD_SECONDS = 32.0  # the latest instant in the file is a second earlier
KILL_SECONDS = 14.0

_COUNT_RUNS = Statements("tidewheel.control.demo")["count_runs"]

_TICK_SECONDS = 0.2
_COUNT_EVERY_SECONDS = 1.0
_READY_SECONDS = 90.0  # five Python processes that start at once on a slow machine
_KILL_PATIENCE_SECONDS = 8.0  # two rounds of the slow webhooks
_SETTLE_SECONDS = 0.15  # what a frozen process had already sent reaches the receiver within this time
_QUIET_SECONDS = 40.0  # the lease, the retries and the slowest attempt pass well within it
_CATCH_UP_SECONDS = 10.0
_IN_HAND = 2
_DELETED_FAMILY = "cron"  # these jobs are deleted at the end, the others paused: both ways to stop are counted
_REASON = "the demo is over"

_NOTHING = threading.Event()  # never set: waiting for it is how to sleep


@dataclass(frozen=True, slots=True)
class _Counts:
    """What PostgreSQL holds."""

    runs: int
    open_runs: int
    outbox: int


class Play:
    """One performance.

    Args:
        place: Where.
        screen: Who watches.
        requests: The file's requests, placeholders and all.
        expected: What the file says must be found.
    """

    def __init__(self, place: Place, screen: Screen, requests: Sequence[dict[str, object]], expected: Expected) -> None:
        self._topics, self._screen = place.topics, screen
        self._requests, self._expected = requests, expected
        self._services = Services(place)
        self._clock: DatabaseClock = database_clock(place.database_url)
        self._receiver = Receiver(self._clock, self._services.executor_pids)
        self._watcher = Watcher(place.kafka, place.topics, self._clock)
        self._sender = Sender(place.kafka, place.topics.requests, self._clock)
        self._session = Session(place.database_url, "tidewheel-demo")
        self._readiness = Readiness(self._session, place.kafka, place.topics)
        self._kill: Kill | None = None
        self._began = 0.0

    def run(self) -> History:
        """Play it to its end; every process of it has ended when this returns or raises.

        Raises:
            StackError: A service did not start, or ended by itself.
            Unavailable: The database or the broker does not answer.
        """
        with ExitStack() as undo:
            undo.callback(self._session.close)
            undo.callback(self._receiver.close)
            undo.callback(self._watcher.close)
            undo.callback(self._services.stop)
            self._open()
            self._load()
            self._stop_firing()
            counts = self._drain()
            history = self._history(counts)
            self._screen.phase("stopping the services")
        return history

    def _open(self) -> None:
        self._receiver.start()
        self._screen.note(f"receiver of effects on {self._receiver.url}")
        self._services.start(self._receiver.url)
        self._screen.note(
            "for this demo alone the executors may call private addresses (TIDEWHEEL_HTTP_ALLOW_PRIVATE=true), "
            f"and their lease is {LEASE_SECONDS} s with a heartbeat every {HEARTBEAT_SECONDS} s, not 15 s and 5 s"
        )
        self._watcher.start()
        self._until(self._readiness.is_complete, _READY_SECONDS, "starting the services")

    def _load(self) -> None:
        """Send the file, then look on; kill an executor half-way."""
        start = self._clock.now().replace(microsecond=0) + timedelta(seconds=1)
        lines = fill_in(self._requests, start, self._receiver.url)
        self._began = monotonic_seconds()
        self._sender.send(lines)
        jobs = sum(line.job is not None for line in lines)
        self._screen.note(f"{len(lines)} requests are on {self._topics.requests}, {jobs} of them jobs")
        while self._elapsed() < LOAD_SECONDS:
            self._tick("jobs are firing")
            if self._kill is None and self._elapsed() >= KILL_SECONDS:
                self._try_to_kill(insist=self._elapsed() >= KILL_SECONDS + _KILL_PATIENCE_SECONDS)

    def _try_to_kill(self, *, insist: bool) -> None:
        """Kill the busier executor if it has runs in hand just now.

        It is frozen first, so that what it has in hand is the same when it is looked at and when it dies.
        """
        in_hand = {name: self._receiver.in_hand(self._services.pid(name)) for name in EXECUTORS}
        name = max(in_hand, key=lambda one: in_hand[one])
        if in_hand[name] < _IN_HAND and not insist:
            return
        self._services.freeze(name)
        _NOTHING.wait(_SETTLE_SECONDS)
        pid = self._services.pid(name)
        left = self._receiver.in_hand(pid)
        if not left and not insist:
            self._services.thaw(name)
            return
        self._kill = Kill(pid, self._clock.now(), left)
        self._services.kill(name)
        self._screen.note(f"killed {name} (SIGKILL, pid {pid}) with {left} calls waiting for their answer")

    def _stop_firing(self) -> None:
        """Pause or delete every recurring job, by requests on the topic like any other."""
        recurring = [line for line in self._sender.lines if _recurs(line) and line.key not in self._expected.rejected]
        stops = [_stop(line) for line in recurring]
        self._sender.send(stops)
        deleted = sum(line.document["type"] == "job.delete" for line in stops)
        self._screen.note(f"stop: {len(stops) - deleted} recurring jobs are paused, {deleted} deleted")

    def _drain(self) -> _Counts:
        """Wait until every request is answered, every run has ended and all of it was told on Kafka."""
        self._until(self._are_answered, _QUIET_SECONDS, "draining")
        self._until(self._is_quiet, _QUIET_SECONDS, "draining", every_seconds=_COUNT_EVERY_SECONDS)
        counts = self._counts()
        self._until(lambda: self._has_read(counts.runs), _CATCH_UP_SECONDS, "reading what was told")
        return counts

    def _are_answered(self) -> bool:
        return len(self._answers(self._watcher.read())) >= len(self._sender.lines)

    def _is_quiet(self) -> bool:
        counts = self._counts()
        return not counts.open_runs and not counts.outbox

    def _has_read(self, runs: int) -> bool:
        read = self._watcher.read()
        told = len({event.run_id for event in read.completions})
        return told >= runs and len(read.dead_letters) >= len(self._expected.dead_letters)

    def _history(self, counts: _Counts) -> History:
        read, now = self._watcher.read(), self._clock.now()
        answers = self._answers(read)
        due = reckon_due(self._sender.lines, self._sender.sent_at, answers, read.events, now)
        return History(
            sent=len(self._sender.lines),
            answers=answers,
            expected=self._expected,
            strays=due.strays,
            due=due.occurrences,
            rows=counts.runs,
            unfinished=counts.open_runs,
            completions=read.completions,
            dead_letters=read.dead_letters,
            unreadable=read.unreadable,
            calls=self._receiver.calls(),
            kill=self._kill,
        )

    def _answers(self, read: Read) -> list[Answer]:
        numbered = ((self._sender.number_of(reply.origin), at, reply) for at, reply in read.replies)
        return [Answer(number, reply, at) for number, at, reply in numbered if number is not None]

    def _until(
        self, done: Callable[[], bool], seconds: float, phase: str, *, every_seconds: float = _TICK_SECONDS
    ) -> None:
        """Look on until something is so, or the time is up: then the reckoning says what is missing."""
        deadline = monotonic_seconds() + seconds
        following = 0.0
        while monotonic_seconds() < deadline:
            if monotonic_seconds() >= following:
                if done():
                    return
                following = monotonic_seconds() + every_seconds
            self._tick(phase)

    def _tick(self, phase: str) -> None:
        self._services.check()
        self._screen.show(phase, self._snapshot())
        _NOTHING.wait(_TICK_SECONDS)

    def _snapshot(self) -> Snapshot:
        return snapshot_of(
            elapsed_seconds=self._elapsed(),
            services=self._services.states(),
            lines=self._sender.lines,
            read=self._watcher.read(),
            calls=self._receiver.calls(),
        )

    def _elapsed(self) -> float:
        return monotonic_seconds() - self._began if self._began else 0.0

    def _counts(self) -> _Counts:
        with (
            self._session.transaction() as connection,
            connection.cursor(row_factory=class_row(_Counts), binary=True) as cursor,
        ):
            found = cursor.execute(_COUNT_RUNS).fetchone()
        assert found is not None  # noqa: S101 - a SELECT without FROM
        return found


def _recurs(line: Line) -> bool:
    schedule = (line.job or {}).get("schedule")
    return isinstance(schedule, dict) and ("interval" in schedule or "cron" in schedule)


def _stop(line: Line) -> Line:
    kind = "job.delete" if line.family == _DELETED_FAMILY else "job.pause"
    return Line(line.number, line.key, line.family, {"type": kind, "key": line.key, "reason": _REASON})
