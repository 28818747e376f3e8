"""Looks at timers: one batch after another on one connection, or on two at once while more is due than a batch takes.

While PostgreSQL works on one batch, this process prepares the other: two cores fire nearly twice as much. Timers are
locked and passed over where locked, so the two need to know nothing of each other.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.low_water import BEGINNING, LowWaterMarks
from tidewheel.postgres.notify import Channel, Notifier
from tidewheel.postgres.session import BY_KEY, Session
from tidewheel.postgres.statements import Statements
from tidewheel.scheduler.backlog import Bite, Rush
from tidewheel.scheduler.firing import Round, fire
from tidewheel.settings import SchedulerSettings
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_PROBE_TIMERS = Statements("tidewheel.scheduler")["probe_timers"]

_MISSED_PART = 4  # of a batch may be timers that were missed: each can make a hundred runs
_RUSH_SECONDS = 0.25  # then the scheduler sees to everything else
_ALONE_SECONDS = 5.0  # without the second connection, where it could not be had
_BUSY_SECONDS = 0.05  # nothing moved although something is due: its row is in the hands of one who will be done soon
_GATHER_PART = 16  # of the lookahead may pass while timers come into sight, so that they are fired together
_NOW = timedelta(0)
_DUE_NOW = 4  # timers of each shard, of those that have come due in a rush


class Rounds:
    """The looks of one scheduler.

    Args:
        session: The scheduler's own.
        url: Of the database, for a second connection when one is needed.
        installation: Shards and topics.
        settings: Batch, lookahead, poll.
        notifier: Tells relays what there is.
    """

    def __init__(
        self, session: Session, url: str, installation: Installation, settings: SchedulerSettings, notifier: Notifier
    ) -> None:
        self._session, self._beside = session, Session(url, "tidewheel-scheduler-beside", options=BY_KEY)
        self._installation, self._settings, self._notifier = installation, settings, notifier
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="fire-beside")
        self._alone_until = 0.0

    def close(self) -> None:
        """Let go of the second connection."""
        self._helper.shutdown()
        self._beside.close()

    def fire(self, shards: list[int], ahead: timedelta, marks: LowWaterMarks[int], rush: Rush) -> float:
        """Fire some of what is due up to `ahead` from now in these shards.

        Args:
            shards: Where to look.
            ahead: How far ahead of now; negative where only what is overdue is wanted.
            marks: From where.
            rush: Whose turn is still to come, of an earlier call.

        Returns:
            How long it may be until the next look, in seconds.

        Raises:
            Unavailable: The database does not answer.
        """
        if not shards:
            return self._settings.scheduler_poll.total_seconds()
        if rush.on:
            # First what has come due by now, wherever it is: most of a rush lies ahead, and has its turn in time.
            self._look(shards, min(ahead, _NOW), marks, Rush(), batch=_DUE_NOW * len(shards))
            self._hurry(ahead, marks, rush)
            return 0.0
        return self._look(shards, ahead, marks, rush, batch=self._settings.fire_batch)

    def _look(self, shards: list[int], ahead: timedelta, marks: LowWaterMarks[int], rush: Rush, *, batch: int) -> float:
        """One batch out of all of them; a full one is the beginning of a rush."""
        poll = self._settings.scheduler_poll.total_seconds()
        now, found = _probe(self._session, shards, marks.scan_from(shards))
        marks.record(found, now)
        earliest = {shard: at for shard, at in found.items() if at is not None}
        due = [shard for shard, at in earliest.items() if at <= now + ahead]
        if not due:
            return self._pause(now, earliest, ahead)
        look = self._round(due, now, ahead, marks, batch)
        moved = self._fire(self._session, look)
        if moved >= batch:
            rush.begin(sorted(due, key=earliest.__getitem__))
        elif min(earliest.values()) <= look.since:
            # What was missed comes after what is on time, and in smaller bites, so that it is in nobody's way.
            behind = replace(look, since=BEGINNING, until=look.since, batch=-(-batch // _MISSED_PART))
            moved += self._fire(self._session, behind)
        if not moved:
            return min(poll, _BUSY_SECONDS)
        if moved < batch and min(earliest.values()) > now + ahead / 2:
            # Nothing is due for long: a batch costs as much for a dozen as for a few hundred.
            return min(poll, (ahead / _GATHER_PART).total_seconds())
        return 0.0

    def _hurry(self, ahead: timedelta, marks: LowWaterMarks[int], rush: Rush) -> None:
        """Fire batch after batch on both connections, until everybody had his turn or it is time for other duties."""
        until = monotonic_seconds() + _RUSH_SECONDS
        if monotonic_seconds() < self._alone_until:
            self._work_off(self._session, ahead, marks, rush, until)
            return
        beside = self._helper.submit(self._work_off, self._beside, ahead, marks, rush, until)
        try:
            self._work_off(self._session, ahead, marks, rush, until)
        finally:
            wait([beside])
        try:
            beside.result()
        except Unavailable as error:
            # There may be room for one connection only: its timers are due still, and one alone comes to them too.
            _LOG.warning("firing on one connection for a while; what the other had under way is due again: %s", error)
            self._alone_until = monotonic_seconds() + _ALONE_SECONDS

    def _work_off(
        self, session: Session, ahead: timedelta, marks: LowWaterMarks[int], rush: Rush, until: float
    ) -> None:
        session.connection()  # before anybody's turn is taken: where there is none, they stay in the line
        bite, batch = Bite(), self._settings.fire_batch
        while monotonic_seconds() < until and (some := rush.next(bite.shards)):
            now, found = _probe(session, some, list(marks.of(some).values()))
            due = [shard for shard, at in found.items() if at is not None and at <= now + ahead]
            fired = self._fire(session, self._round(due, now, ahead, marks, batch)) if due else 0
            bite.took(full=fired >= batch)

    def _round(
        self, due: Sequence[int], now: datetime, ahead: timedelta, marks: LowWaterMarks[int], batch: int
    ) -> Round:
        horizon = now + ahead
        return Round(
            shards=due,
            now=now,
            horizon=horizon,
            misfire_after=self._settings.misfire_after,
            batch=batch,
            since=min(now - self._settings.misfire_after, horizon),
            marks=marks.of(due),
        )

    def _fire(self, session: Session, look: Round) -> int:
        moved = fire(session, self._installation, look)
        if moved:
            self._notifier.notify(Channel.OUTBOX)
        return moved

    def _pause(self, now: datetime, earliest: dict[int, datetime], ahead: timedelta) -> float:
        poll = self._settings.scheduler_poll
        # With a lookahead longer than the poll a timer that comes into sight can wait for the next look; without, the
        # sleep ends when the timer is due.
        if not earliest or ahead > poll:
            return poll.total_seconds()
        return min(max((min(earliest.values()) - ahead - now).total_seconds(), 0.001), poll.total_seconds())


def _probe(
    session: Session, shards: Sequence[int], marks: Sequence[datetime]
) -> tuple[datetime, dict[int, datetime | None]]:
    """The database's clock, and when each of these shards has its earliest timer."""
    with session.transaction() as connection:
        rows = connection.execute(_PROBE_TIMERS, {"shards": list(shards), "marks": list(marks)}, binary=True).fetchall()
    found = {cast("int", shard): cast("datetime | None", at) for shard, at, _ in rows}
    return cast("datetime", rows[0][2]), found
