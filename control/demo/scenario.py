"""Run the demo's scenario: start, send, kill an executor, stop the jobs, drain, count."""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.control.demo.consumer import Read, RecordConsumer
from tidewheel.control.demo.display import Screen, Snapshot, snapshot_of
from tidewheel.control.demo.environment import DatabaseClock, Environment, database_clock
from tidewheel.control.demo.expected import compute_due
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
_KILL_GRACE_SECONDS = 8.0  # two rounds of the slow webhooks
_SETTLE_SECONDS = 0.15  # data that a frozen process has sent arrives within this time
_QUIET_SECONDS = 40.0  # longer than the lease, the retries and the slowest attempt together
_CATCH_UP_SECONDS = 10.0
_OPEN_CALLS = 2
_DELETED_FAMILY = "cron"  # these jobs are deleted at the end, the others paused: both ways to stop are checked
_REASON = "the demo is over"

_NEVER_SET = threading.Event()  # never set: a wait on it is a sleep


@dataclass(frozen=True, slots=True)
class _Counts:
    """Row counts in PostgreSQL."""

    runs: int
    job_runs: int
    outbox: int


class Scenario:
    """One run of the scenario.

    Args:
        environment: The demo's servers and names.
        screen: The output.
        requests: The file's requests with their placeholders.
        expected: The results that `expected.json` requires.
    """

    def __init__(
        self, environment: Environment, screen: Screen, requests: Sequence[dict[str, object]], expected: Expected
    ) -> None:
        self._topics, self._screen = environment.topics, screen
        self._requests, self._expected = requests, expected
        self._services = Services(environment)
        self._clock: DatabaseClock = database_clock(environment.database_url)
        self._receiver = Receiver(self._clock, self._services.executor_pids)
        self._consumer = RecordConsumer(environment.kafka, environment.topics, self._clock)
        self._sender = Sender(environment.kafka, environment.topics.requests, self._clock)
        self._session = Session(environment.database_url, "tidewheel-demo")
        self._readiness = Readiness(self._session, environment.kafka, environment.topics)
        self._kill: Kill | None = None
        self._began = 0.0

    def run(self) -> History:
        """Run it to its end. All its processes have ended when this returns or raises.

        Raises:
            StackError: A service did not start, or ended by itself.
            Unavailable: The database or the broker does not answer.
        """
        with ExitStack() as undo:
            undo.callback(self._session.close)
            undo.callback(self._receiver.close)
            undo.callback(self._consumer.close)
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
        self._consumer.start()
        self._until(self._readiness.is_complete, _READY_SECONDS, "starting the services")

    def _load(self) -> None:
        """Send the file, then wait, and kill an executor half-way."""
        start = self._clock.now().replace(microsecond=0) + timedelta(seconds=1)
        lines = fill_in(self._requests, start, self._receiver.url)
        self._began = monotonic_seconds()
        self._sender.send(lines)
        jobs = sum(line.job is not None for line in lines)
        self._screen.note(f"{len(lines)} requests are on {self._topics.requests}, {jobs} of them jobs")
        while self._elapsed() < LOAD_SECONDS:
            self._tick("jobs are firing")
            if self._kill is None and self._elapsed() >= KILL_SECONDS:
                self._try_kill(insist=self._elapsed() >= KILL_SECONDS + _KILL_GRACE_SECONDS)

    def _try_kill(self, *, insist: bool) -> None:
        """Kill the busier executor if it has open calls.

        It is frozen first, so that its open calls do not change between the count and the kill.
        """
        open_calls = {name: self._receiver.open_calls(self._services.pid(name)) for name in EXECUTORS}
        name = max(open_calls, key=lambda one: open_calls[one])
        if open_calls[name] < _OPEN_CALLS and not insist:
            return
        self._services.freeze(name)
        _NEVER_SET.wait(_SETTLE_SECONDS)
        pid = self._services.pid(name)
        left = self._receiver.open_calls(pid)
        if not left and not insist:
            self._services.thaw(name)
            return
        self._kill = Kill(pid, self._clock.now(), left)
        self._services.kill(name)
        self._screen.note(f"killed {name} (SIGKILL, pid {pid}) with {left} open calls")

    def _stop_firing(self) -> None:
        """Pause or delete every recurring job, by requests on the topic like any other."""
        recurring = [line for line in self._sender.lines if _recurs(line) and line.key not in self._expected.rejected]
        stops = [_stop(line) for line in recurring]
        self._sender.send(stops)
        deleted = sum(line.document["type"] == "job.delete" for line in stops)
        self._screen.note(f"stop: {len(stops) - deleted} recurring jobs are paused, {deleted} deleted")

    def _drain(self) -> _Counts:
        """Wait until every request has its reply and every run its end and completion event."""
        self._until(self._are_answered, _QUIET_SECONDS, "draining")
        self._until(self._is_quiet, _QUIET_SECONDS, "draining", every_seconds=_COUNT_EVERY_SECONDS)
        counts = self._counts()
        self._until(lambda: self._has_read(counts.runs), _CATCH_UP_SECONDS, "reading the events")
        return counts

    def _are_answered(self) -> bool:
        return len(self._answers(self._consumer.read())) >= len(self._sender.lines)

    def _is_quiet(self) -> bool:
        counts = self._counts()
        return not counts.job_runs and not counts.outbox

    def _has_read(self, runs: int) -> bool:
        read = self._consumer.read()
        reported = len({event.run_id for event in read.completions})
        return reported >= runs and len(read.dead_letters) >= len(self._expected.dead_letters)

    def _history(self, counts: _Counts) -> History:
        read, now = self._consumer.read(), self._clock.now()
        answers = self._answers(read)
        due = compute_due(self._sender.lines, self._sender.sent_at, answers, read.events, now)
        return History(
            sent=len(self._sender.lines),
            answers=answers,
            expected=self._expected,
            bad_instants=due.bad_instants,
            due=due.occurrences,
            rows=counts.runs,
            unfinished=counts.job_runs,
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
        """Wait for a condition. After the timeout the checks report what is missing."""
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
        _NEVER_SET.wait(_TICK_SECONDS)

    def _snapshot(self) -> Snapshot:
        return snapshot_of(
            elapsed_seconds=self._elapsed(),
            services=self._services.states(),
            lines=self._sender.lines,
            read=self._consumer.read(),
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
