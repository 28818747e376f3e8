"""Log ends of attempts and handlers that block the event loop; observe the lateness of each stage.

A line follows the commit of the end. Before it, the executor does not know whether the run is retried, was ended by
`complete_in`, or belongs to another attempt.

A run's instant and its claim are times of the database's clock. From there on the executor's monotonic clock counts.

The watchdog has a thread of its own, as the heartbeat has, so the lease is kept meanwhile. While the loop is blocked,
the executor claims nothing. Claimed attempts that have not started are released at once, uncounted, to other executors.

A handler that holds the interpreter's lock, as in a slow regular expression, keeps this thread and every other one from
running. `faulthandler` then writes the stacks of all threads to the log, from a signal handler that needs no lock. Its
timer counts CPU time: after a suspension of the process threads run again, and the stack of a running thread is unsafe
to read.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from types import FrameType

from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.complete_in import NOT_COMMITTED
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.record_outcomes import Recorded, delay_of, recorded_outcome
from tidewheel.process.metrics import metrics
from tidewheel.runs import AttemptOutcome, RunState

_LOG = logging.getLogger("tidewheel.executor")

_MESSAGE_CHARACTERS = 300
_VERBS = {RunState.FAILED: "fails", RunState.TIMED_OUT: "times out"}
_SUPERSEDED = "ignored the report of a superseded attempt"

_CHECKS = 4  # within the time after which the loop counts as blocked
_AGAIN_SECONDS = 30.0  # until a blocked loop is logged again
_FRAMES = 25
_LOCKED_SECONDS = 5.0  # without a check by this thread, after which the stacks are written
_STDERR = 2


class EndLog:
    """The log of the ends of one executor's attempts.

    With `all_ends` it has a line about each end, else about failures and releases alone. Without `errors` the line of a
    failure has its type alone, without message and traceback.
    """

    def __init__(self, *, all_ends: bool = False, errors: bool = True) -> None:
        self._all_ends, self._errors = all_ends, errors

    def ends(self, items: Sequence[tuple[Attempt, Outcome]], recorded: Recorded) -> None:
        """Log the ends of a committed batch."""
        skips_successes = not (self._all_ends or recorded.superseded)
        for attempt, outcome in items:
            if (skips_successes and outcome.kind is AttemptOutcome.SUCCEEDED) or attempt.run_id in recorded.busy:
                continue
            if attempt.run_id in recorded.completed:
                self._completed(attempt, outcome)
            elif attempt.run_id in recorded.superseded:
                self._superseded(attempt, outcome)
            else:
                self._end(attempt, recorded_outcome(attempt, outcome), recorded)

    def unrecorded(self, items: Sequence[tuple[Attempt, Outcome]]) -> None:
        """Log the ends that an executor could not record before its own end."""
        for attempt, outcome in items:
            text = f"the end ({outcome.kind}) is not recorded; another executor takes the run after this lease expires"
            if outcome.error_type:
                self._failure(attempt, outcome, text)
            else:
                _LOG.warning(text, extra=attempt.about)

    def _completed(self, attempt: Attempt, outcome: Outcome) -> None:
        if outcome.error_type and outcome.error_type != NOT_COMMITTED:
            self._failure(attempt, outcome, "failed after complete_in; the run remains succeeded")
        elif self._all_ends:
            _LOG.info("succeeded in %s, by complete_in", _took(attempt), extra=attempt.about)

    def _superseded(self, attempt: Attempt, outcome: Outcome) -> None:
        if outcome.error_type:
            self._failure(attempt, outcome, _SUPERSEDED)
        else:
            _LOG.info(_SUPERSEDED, extra=attempt.about)

    def _end(self, attempt: Attempt, outcome: Outcome, recorded: Recorded) -> None:
        if outcome.error_type:
            self._failure(attempt, outcome, _effect(attempt, outcome, recorded))
        elif self._all_ends or outcome.kind is AttemptOutcome.RELEASED:
            _LOG.info("%s", _other_end(attempt, outcome, recorded), extra=attempt.about)

    def _failure(self, attempt: Attempt, outcome: Outcome, text: str) -> None:
        if not self._errors:
            _LOG.warning("%s: %s", text, outcome.error_type, extra=attempt.about)
            return
        message = outcome.error_message or ""
        if outcome.trace:  # which ends with the whole message
            message = message.partition("\n")[0][:_MESSAGE_CHARACTERS]
        about = {**attempt.about, "trace": outcome.trace}
        _LOG.warning("%s: %s: %s", text, outcome.error_type, message, extra=about)


DEFAULT_LOG = EndLog()


def _effect(attempt: Attempt, outcome: Outcome, recorded: Recorded) -> str:
    """Return the number of a failure, and what has become of the run."""
    number, allowed = attempt.started.failed_attempts + 1, attempt.definition.retry.max_attempts
    state = recorded.states.get(attempt.run_id)
    if state is None:
        return f"failure {number} of {allowed}, retrying in {_length(delay_of(attempt, outcome).total_seconds())}"
    if state is RunState.CANCELLED:
        return "attempt failed during the run's cancellation; the run is cancelled"
    last = "" if number >= allowed else " without a retry"
    return f"failure {number} of {allowed}, the run {_VERBS.get(state, state)}{last}"


def _other_end(attempt: Attempt, outcome: Outcome, recorded: Recorded) -> str:
    state = recorded.states.get(attempt.run_id)
    if state is not None:
        return f"{'succeeded in' if state is RunState.SUCCEEDED else f'{state} after'} {_took(attempt)}"
    if outcome.waits is not None:
        return f"waiting up to {_length(outcome.waits.total_seconds())} for external completion"
    if outcome.kind is AttemptOutcome.SNOOZED:
        return f"snoozed for {_length(delay_of(attempt, outcome).total_seconds())}"
    return "released before its start" if outcome.not_started else "released"


def _took(attempt: Attempt) -> str:
    return _length(attempt.ended_at - attempt.began_at if attempt.has_started else 0.0)


def _length(seconds: float) -> str:
    """Return a duration in three digits.

    >>> _length(0.0123), _length(2.0981), _length(86400)
    ('12.3 ms', '2.1 s', '86400 s')
    """
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def observe_claimed(attempts: Iterable[Attempt]) -> None:
    """Observe a batch of claims."""
    late: defaultdict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        late[attempt.definition.lane].append(_claim_lateness(attempt))
    for lane, seconds in late.items():
        metrics.observe("lateness_seconds", seconds, "claimed", lane)


def observe_ended(attempts: Iterable[Attempt]) -> None:
    """Observe a batch of recorded attempts; those that never started have no times."""
    started: defaultdict[str, list[float]] = defaultdict(list)
    ended: defaultdict[str, list[float]] = defaultdict(list)
    took: defaultdict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        if not attempt.began_at:
            continue
        lane, due = attempt.definition.lane, attempt.claimed_at - _claim_lateness(attempt)
        started[lane].append(attempt.began_at - due)
        ended[lane].append(attempt.ended_at - due)
        took[lane].append(attempt.ended_at - attempt.began_at)
    for name in took:
        metrics.observe("lateness_seconds", started[name], "started", name)
        metrics.observe("lateness_seconds", ended[name], "ended", name)
        metrics.observe("attempt_duration_seconds", took[name], name)


def _claim_lateness(attempt: Attempt) -> float:
    return (attempt.started.started_at - attempt.started.publish_at).total_seconds()


class Watchdog:
    """The thread that watches one event loop; it calls `on_blocked` at each check while it is blocked."""

    def __init__(self, after: timedelta, on_blocked: Callable[[], None]) -> None:
        self._after, self._on_blocked = after.total_seconds(), on_blocked
        self._stop = threading.Event()
        self._ticked = monotonic_seconds()
        self._blocked = False
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._watched: int

    def start(self) -> None:
        """Start the thread; called on the loop to watch."""
        self._loop, self._watched = asyncio.get_running_loop(), threading.get_ident()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stop.set()

    def blocked(self) -> bool:
        """Return True if the loop is blocked."""
        return self._blocked

    def _tick(self) -> None:
        self._ticked = monotonic_seconds()

    def _run(self) -> None:
        faulthandler.register(signal.SIGVTALRM, file=_STDERR)
        try:
            self._watch()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            self._clear()

    def _watch(self) -> None:
        every, logged = self._after / _CHECKS, 0.0
        limit = _LOCKED_SECONDS + every * (os.cpu_count() or 1)  # all cores may work in C until the next check
        checked = monotonic_seconds()
        while not self._stop.wait(every):
            now = monotonic_seconds()
            if now - checked > self._after:
                self._ticked = now  # this thread was suspended too: the whole process, or the machine
            if now - checked > every + _LOCKED_SECONDS:
                text = (
                    "no thread of this process ran for %.1f s: a handler held the interpreter's lock (the stacks above"
                    " name the handler), or the whole process was suspended"
                )
                _LOG.error(text, now - checked)
            signal.setitimer(signal.ITIMER_VIRTUAL, limit)
            checked, seconds = now, now - self._ticked
            if seconds < self._after:
                self._clear()
            elif not self._blocked or now - logged >= _AGAIN_SECONDS:
                logged = now
                self._report(seconds)
            if self._blocked:
                metrics.set("event_loop_blocked_seconds", seconds)
                self._on_blocked()
            try:
                self._loop.call_soon_threadsafe(self._tick)
            except RuntimeError:
                return  # the loop has ended

    def _clear(self) -> None:
        if self._blocked:
            self._blocked = False
            metrics.set("event_loop_blocked_seconds", 0)
            _LOG.warning("the event loop of this executor is no longer blocked")

    def _report(self, seconds: float) -> None:
        if not self._blocked:
            metrics.count("event_loop_stalls")
        self._blocked = True
        frame = sys._current_frames().get(self._watched)  # pyright: ignore[reportPrivateUsage]  # the only way to read another thread's stack
        attempt = _attempt_in(frame)
        about = {} if attempt is None else attempt.about
        stack = "".join(traceback.format_stack(frame, _FRAMES)) if frame else ""
        location = "" if attempt is None else f" in handler {attempt.definition.target.handler!r}"
        text = (
            "the event loop has been blocked for %.1f s%s: make the handler a plain function,"
            ' or give it isolation="process"'
        )
        _LOG.error(text, seconds, location, extra={**about, "stack": stack})


def _attempt_in(frame: FrameType | None) -> Attempt | None:
    """Return the attempt whose handler is in this stack; None if it runs in a task of its own."""
    while frame is not None:
        attempt = frame.f_locals.get("attempt")
        if isinstance(attempt, Attempt):
            return attempt
        frame = frame.f_back
    return None
