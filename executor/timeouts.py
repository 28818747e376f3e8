"""The timeouts of one attempt that its executor keeps, by its own monotonic clock; everything here is on the loop.

One that strikes cancels the attempt's task, which then says so, whatever the handler makes of being cancelled. Who does
not listen is fenced off after a grace: the attempt is over, its slot is free when its code has ended.
"""

import asyncio

from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import timed_out
from tidewheel.schemas.generated.records import TargetKind
from tidewheel.transitions.retry import Timeout


class Timeouts:
    """Lets the timeouts of an attempt strike until `end`.

    Args:
        attempt: Whose.
        loop: Where it runs.
        began: Its start, in monotonic seconds; a moment ago.
        grace_seconds: How long it may refuse to be cancelled.
    """

    __slots__ = ("_attempt", "_beats", "_closes", "_fence", "_grace_seconds", "_loop", "_takes")

    def __init__(
        self, attempt: Attempt, loop: asyncio.AbstractEventLoop, *, began: float, grace_seconds: float
    ) -> None:
        self._attempt, self._loop, self._grace_seconds = attempt, loop, grace_seconds
        self._fence: asyncio.TimerHandle | None = None
        self._takes: asyncio.TimerHandle | None = None
        self._closes: asyncio.TimerHandle | None = None
        self._beats: asyncio.TimerHandle | None = None
        begun_for = monotonic_seconds() - began
        self._start_clock(begun_for)
        attempt.stop_clock, attempt.restart_clock = self._stop_clock, self._restart_clock
        attempt.note_start(began)
        if attempt.closes_at is not None:
            whole = (attempt.definition.schedule_to_close_ms or 0) / 1000
            left = attempt.closes_at - monotonic_seconds()
            self._closes = loop.call_later(left, self._strike, Timeout.SCHEDULE_TO_CLOSE, whole)
        # Other targets beat from outside, by the attempt's token, and only while they wait: PostgreSQL keeps that.
        beats = attempt.heartbeat_seconds
        if beats is not None and attempt.definition.target.kind is TargetKind.HANDLER:
            attempt.last_beat = attempt.last_beat or began
            self._beats = loop.call_later(beats - begun_for, self._miss_beats, beats)

    def end(self) -> None:
        """The attempt has ended: nothing strikes any more."""
        self._attempt.stop_clock = self._attempt.restart_clock = None  # or the two would keep each other in memory
        self._stop_clock()
        for handle in (self._closes, self._beats, self._fence):
            if handle is not None:
                handle.cancel()

    def _start_clock(self, begun_for: float) -> None:
        seconds = self._attempt.start_to_close_seconds
        self._takes = self._loop.call_later(seconds - begun_for, self._strike, Timeout.START_TO_CLOSE, seconds)

    def _stop_clock(self) -> None:
        """Queueing for a thread or a process is not the attempt's time, nor is it silence."""
        self._attempt.last_beat = None
        if self._takes is not None:
            self._takes.cancel()
            self._takes = None

    def _restart_clock(self) -> None:
        if self._takes is None and not self._attempt.reported:
            self._attempt.last_beat = monotonic_seconds()
            self._start_clock(0.0)

    def _miss_beats(self, beats: float) -> None:
        last = self._attempt.last_beat
        left = beats if last is None else last + beats - monotonic_seconds()
        if left > 0:
            self._beats = self._loop.call_later(left, self._miss_beats, beats)
        else:
            self._strike(Timeout.HEARTBEAT, beats)

    def _strike(self, which: Timeout, seconds: float) -> None:
        attempt = self._attempt
        if attempt.struck is not None:
            return
        outcome = attempt.struck = timed_out(which, seconds)
        attempt.cancelled.set()
        if attempt.cancel_cooperatively:
            attempt.cancel_cooperatively()
        # Other runners clean up and end by themselves; only a user's coroutine can refuse to be cancelled.
        if attempt.definition.target.kind is TargetKind.HANDLER:
            self._fence = self._loop.call_later(self._grace_seconds, attempt.report, outcome)
