"""The minute: send the file, kill an executor half-way, stop the jobs, drain, audit."""

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

from examples.demo.checks import History, Kill
from examples.demo.consumer import Seen, consumer
from examples.demo.display import Screen
from examples.demo.handlers import RECEIVER_VARIABLE
from examples.demo.receiver import Receiver
from examples.demo.requests import DEAD_LETTERS, REJECTED, Line, read_requests, send
from examples.demo.services import EXECUTORS, Services, attempts_of, count_runs, have_entered
from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.errors import StackError
from tidewheel.kafka.topics import Topics
from tidewheel.local.stack import StackInfo
from tidewheel.postgres.session import connect

LOAD_SECONDS = 34.0  # with the lead; the latest instant in the file is a second earlier
KILL_SECONDS = 15.0

_VARIABLES = {
    "TIDEWHEEL_HTTP_ALLOW_PRIVATE": "true",
    "TIDEWHEEL_LEASE": "PT5S",
    "TIDEWHEEL_HEARTBEAT": "PT1S",
}
_WHY = "the receiver is on this machine, and the killed executor's runs shall be retried within the minute"

_LEAD = timedelta(seconds=3)  # meanwhile the executors' groups share out their partitions
_TICK_SECONDS = 0.2
_READY_SECONDS = 90.0  # five Python processes that start at once on a slow machine
_KILL_GRACE_SECONDS = 8.0  # two rounds of the slow webhooks
_SETTLE_SECONDS = 0.15  # what a frozen process has sent arrives within this time
_QUIET_SECONDS = 40.0  # longer than the lease, the retries and the slowest attempt together
_LEAST_HELD = 2
_STOPS = {"cron": "job.delete"}  # other families are paused: both ways to stop occur


def run_scenario(info: StackInfo, logs: Path, screen: Screen) -> tuple[History, str]:
    """Run it to its end; return what was seen, and the audit's text.

    All its processes have ended then.
    """
    with ExitStack() as undo:
        scenario = _Scenario(info, logs, screen, undo)
        scenario.start_services()
        scenario.load()
        scenario.stop_firing()
        scenario.until(scenario.has_drained, _QUIET_SECONDS, "draining")  # the checks name what is missing
        found = scenario.history()
        screen.note("stopping the services")
    return found


class _Scenario:
    def __init__(self, info: StackInfo, logs: Path, screen: Screen, undo: ExitStack) -> None:
        self._info, self._screen = info, screen
        self._start = SystemClock().now()
        self.sent: list[Line] = []
        self._kill: Kill | None = None
        self._connection = undo.enter_context(connect(info.database_url, "tidewheel-demo", autocommit=True))
        self._receiver = undo.enter_context(Receiver())
        self._seen, self._consumer = Seen(), consumer(info.kafka)
        undo.callback(self._consumer.close)
        own = {"TIDEWHEEL_HOME": str(info.data_dir), RECEIVER_VARIABLE: self._receiver.url}
        self._services = undo.enter_context(Services(logs, _VARIABLES | own))

    def start_services(self) -> None:
        """Start the services, and wait until each has entered."""
        for name in ("intake", "scheduler", "relay"):
            self._services.start(name, name)
        for name in EXECUTORS:
            self._services.start(name, "executor", "--handlers", "examples.demo.handlers")
        settings = " ".join(f"{name}={value}" for name, value in _VARIABLES.items())
        self._screen.note(f"for this demo alone: {settings}; {_WHY}")
        if not self.until(lambda: have_entered(self._connection), _READY_SECONDS, "starting services"):
            message = f"the services were not ready within {_READY_SECONDS:.0f} s"
            raise StackError(message)

    def load(self) -> None:
        """Send the file, then wait, and kill an executor half-way."""
        start = SystemClock().now().replace(microsecond=0) + _LEAD
        began = monotonic_seconds()
        self._send(read_requests(start, self._receiver.url))
        jobs = sum(bool(line.family) for line in self.sent)
        self._screen.note(f"{len(self.sent)} requests are on {Topics().requests}, {jobs} of them jobs")
        while (elapsed := monotonic_seconds() - began) < LOAD_SECONDS:
            self._tick("jobs are firing")
            if self._kill is None and elapsed >= KILL_SECONDS:
                self._try_kill(insist=elapsed >= KILL_SECONDS + _KILL_GRACE_SECONDS)

    def stop_firing(self) -> None:
        """Pause or delete every recurring job, by requests on the topic like any other."""
        stops = [
            Line(
                line.key, {"type": _STOPS.get(line.family, "job.pause"), "key": line.key, "reason": "the demo is over"}
            )
            for line in self.sent
            if line.recurs and line.key not in REJECTED
        ]
        self._send(stops)
        self._screen.note(f"{len(stops)} recurring jobs are paused or deleted")

    def history(self) -> tuple[History, str]:
        """Return what was seen, and what `tidewheel admin audit` prints."""
        self._screen.note("auditing")
        done = self._services.run("admin", "audit", "--from", self._start.isoformat(), "--completions")
        findings = (done.stdout + done.stderr).splitlines() if done.returncode else []
        history = History(
            sent=len(self.sent),
            seen=self._seen,
            calls=list(self._receiver.calls),
            rows=count_runs(self._connection),
            kill=self._kill,
            findings=findings,
        )
        return history, done.stdout

    def _send(self, lines: Sequence[Line]) -> None:
        send(self._info.kafka, lines)
        self.sent += lines

    def _try_kill(self, *, insist: bool) -> None:
        """Kill the busier executor if it has running attempts.

        It is frozen first, so that its attempts do not change between the count and the kill.
        """
        pids = {name: self._services.processes[name].pid for name in EXECUTORS}
        held = {name: len(attempts_of(self._connection, pid)) for name, pid in pids.items()}
        name = max(EXECUTORS, key=lambda one: held[one])
        if held[name] < _LEAST_HELD and not insist:
            return
        self._services.processes[name].send_signal(signal.SIGSTOP)
        threading.Event().wait(_SETTLE_SECONDS)
        attempts = attempts_of(self._connection, pids[name])
        self._kill = Kill(SystemClock().now(), attempts)
        self._services.kill(name)
        self._screen.note(f"killed {name} (SIGKILL, pid {pids[name]}) with {len(attempts)} running attempts")

    def has_drained(self) -> bool:
        if len(self._seen.replies) < len(self.sent) or len(self._seen.dead_letters) < len(DEAD_LETTERS):
            return False
        rows = count_runs(self._connection)
        return not rows.unfinished and not rows.outbox and len(self._seen.ends) >= rows.runs

    def until(self, is_done: Callable[[], bool], limit: float, phase: str) -> bool:
        """Show the phase until something is done; return False if it is not within the limit."""
        gives_up = monotonic_seconds() + limit
        while not is_done():
            if monotonic_seconds() > gives_up:
                return False
            self._tick(phase)
        return True

    def _tick(self, phase: str) -> None:
        self._services.check()
        self._seen.read(self._consumer, _TICK_SECONDS)
        self._screen.show(phase, self._seen)
