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
from tidewheel.db import BY_KEY, Session
from tidewheel.errors import Unavailable
from tidewheel.marks import EVER, Marks
from tidewheel.scheduler.firing import Round, fire
from tidewheel.scheduler.rush import Bite, Rush
from tidewheel.settings import SchedulerSettings
from tidewheel.sql import Statements
from tidewheel.transitions.installation import Installation
from tidewheel.wakeup import Channel, Notifier

_LOG = logging.getLogger("tidewheel.scheduler")

_PROBE_TIMERS = Statements("tidewheel.scheduler")["probe_timers"]

_MISSED_PART = 4  # of a batch may be timers that were missed: each can make a hundred runs
_RUSH_SECONDS = 0.25  # then the scheduler sees to everything else


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

    def close(self) -> None:
        """Let go of the second connection."""
        self._helper.shutdown()
        self._beside.close()

    def fire(self, shards: list[int], ahead: timedelta, marks: Marks[int], rush: Rush) -> tuple[int, float]:
        """Fire some of what is due up to `ahead` from now in these shards.

        Args:
            shards: Where to look.
            ahead: How far ahead of now; negative where only what is overdue is wanted.
            marks: From where.
            rush: Whose turn is still to come, of an earlier call.

        Returns:
            How many timers were moved, and how long nothing more is due, in seconds.

        Raises:
            Unavailable: The database does not answer.
        """
        poll = self._settings.scheduler_poll.total_seconds()
        if rush.on:
            return self._hurry(ahead, marks, rush), min(poll, 0.05)
        if not shards:
            return 0, poll
        now, found = _probe(self._session, shards, marks.begin(shards))
        marks.saw(found, now)
        earliest = {shard: at for shard, at in found.items() if at is not None}
        due = [shard for shard, at in earliest.items() if at <= now + ahead]
        if not due:
            return 0, self._pause(now, earliest, ahead)
        look = self._round(due, now, ahead, marks)
        moved = self._fire(self._session, look)
        if moved >= look.batch:
            rush.begin(sorted(due, key=earliest.__getitem__))
        elif min(earliest.values()) <= look.since:
            # What was missed comes after what is on time, and in smaller bites, so that it is in nobody's way.
            behind = replace(look, since=EVER, until=look.since, batch=-(-look.batch // _MISSED_PART))
            moved += self._fire(self._session, behind)
        # Nothing moved although something is due: its row is in somebody's hands, who will be done soon.
        return moved, min(poll, 0.05)

    def _hurry(self, ahead: timedelta, marks: Marks[int], rush: Rush) -> int:
        """Fire batch after batch on both connections, until everybody had his turn or it is time for other duties."""
        until = monotonic_seconds() + _RUSH_SECONDS
        beside = self._helper.submit(self._work_off, self._beside, ahead, marks, rush, until)
        try:
            moved = self._work_off(self._session, ahead, marks, rush, until)
        finally:
            wait([beside])
        try:
            return moved + beside.result()
        except Unavailable as error:
            # There may be room for one connection only: its timers are due still, and one alone comes to them too.
            _LOG.warning("what was fired beside is due again: %s", error)
            return moved

    def _work_off(self, session: Session, ahead: timedelta, marks: Marks[int], rush: Rush, until: float) -> int:
        moved, bite = 0, Bite()
        while monotonic_seconds() < until and (some := rush.next(bite.shards)):
            now, found = _probe(session, some, list(marks.of(some).values()))
            due = [shard for shard, at in found.items() if at is not None and at <= now + ahead]
            look = self._round(due, now, ahead, marks)
            fired = self._fire(session, look) if due else 0
            bite.took(full=fired >= look.batch)
            moved += fired
        return moved

    def _round(self, due: Sequence[int], now: datetime, ahead: timedelta, marks: Marks[int]) -> Round:
        horizon = now + ahead
        return Round(
            shards=due,
            now=now,
            horizon=horizon,
            misfire_after=self._settings.misfire_after,
            batch=self._settings.fire_batch,
            since=min(now - self._settings.misfire_after, horizon),
            marks=marks.of(due),
        )

    def _fire(self, session: Session, look: Round) -> int:
        moved = fire(session, self._installation, look)
        if moved:
            self._notifier.poke(Channel.OUTBOX)
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
