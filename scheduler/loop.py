"""The scheduler: looks at the timers of its shards, fires what is due, sleeps until the next.

Its shards are its share by rendezvous among the live schedulers; timers that are overdue by more than a few seconds are
taken by any of them, so that failover needs no election.
"""

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

from tidewheel.clock import monotonic_seconds
from tidewheel.db import BY_KEY, Session
from tidewheel.errors import Unavailable
from tidewheel.marks import EVER, Marks
from tidewheel.membership import Membership, rendezvous
from tidewheel.metrics import metrics
from tidewheel.partitions import ensure_coming_days
from tidewheel.scheduler.backfilling import Backfilling
from tidewheel.scheduler.cancelling import Cancelled, Cancelling
from tidewheel.scheduler.deadlines import Deadlines
from tidewheel.scheduler.firing import Round, fire
from tidewheel.scheduler.mend import mend_shard, release_chains
from tidewheel.scheduler.rush import Rush
from tidewheel.scheduler.turns import TurnSweep
from tidewheel.scheduler.unhandled import UnhandledWatch
from tidewheel.scheduler.wanted_cancels import WantedCancels
from tidewheel.scheduler.zones_changed import ZonesChanged
from tidewheel.service import Stop, repeat
from tidewheel.settings import SchedulerSettings
from tidewheel.skew import Skew
from tidewheel.sql import Statements
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.loose_ends import MOST_SETTLED, settle_loose_ends
from tidewheel.wakeup import Channel, Listener, Notifier

_LOG = logging.getLogger("tidewheel.scheduler")

_PROBE_TIMERS = Statements("tidewheel.scheduler")["probe_timers"]

_OVERDUE_SECONDS = 1.0  # how often the other shards are looked at for what their owner has left
_MISSED_PART = 4  # of a batch may be timers that were missed: each can make a hundred runs
_MEND_SECONDS = 60.0  # one shard a minute: a whole round of 64 in about an hour
_PARTITIONS_SECONDS = 600.0


class Scheduler:
    """One scheduler process."""

    def __init__(self, settings: SchedulerSettings, url: str, installation: Installation, stop: Stop) -> None:
        self._settings, self._installation, self._stop = settings, installation, stop
        self._session = Session(url, "tidewheel-scheduler", options=BY_KEY)
        self._beside = Session(url, "tidewheel-scheduler-beside", options=BY_KEY)
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="fire-beside")
        self._rush = Rush()
        self._wake = threading.Event()
        self._membership = Membership(
            url,
            role="scheduler",
            name=socket.gethostname(),
            timeout=settings.member_timeout,
            skew=Skew(settings.max_clock_skew),
        )
        self._listener = Listener(url, "tidewheel-scheduler-listen", (Channel.TIMERS,), self._wake)
        self._notifier = Notifier(url, "tidewheel-scheduler-notify")
        self._shards: list[int] = []
        self._marks, self._others_marks = Marks[int](), Marks[int]()
        self._members: tuple[object, ...] = ()
        self._next_overdue = self._next_mend = self._next_partitions = self._sleeps_until = 0.0
        self._mending = 0
        self._cancelling = Cancelling(self._session, installation)
        self._wanted_cancels = WantedCancels(self._session, installation)
        self._turns = TurnSweep(self._session, installation)
        self._deadlines = Deadlines(self._session, installation)
        self._backfilling = Backfilling(self._session, installation)
        self._unhandled = UnhandledWatch(self._session, installation)
        self._zones = ZonesChanged(self._session, installation)

    def run(self) -> None:
        """Fire until asked to stop."""
        self._membership.start()
        try:
            repeat(self._stop, "scheduler", self.step, wake=self._wake)
        finally:
            self._membership.leave()
            self.close()

    def step(self) -> float:
        """One round; returns how long nothing is due, in seconds.

        Raises:
            Unavailable: The database does not answer.
        """
        if monotonic_seconds() < self._sleeps_until:
            self._marks.woken()
        self._keep_house()
        retiming = self._zones.step()
        self._take_shards()
        moved, pause = self._fire(self._shards, self._settings.lookahead, self._marks, self._rush)
        if monotonic_seconds() >= self._next_overdue:
            self._next_overdue = monotonic_seconds() + _OVERDUE_SECONDS
            others = sorted(set(range(self._installation.shards)) - set(self._shards))
            rescued, _ = self._fire(others, -self._settings.overdue_after, self._others_marks, Rush())
            moved += rescued
            handed_on = self._settle() + self._turns.step()
            if self._unhandled.step() or handed_on:
                self._notifier.poke(Channel.OUTBOX)
            moved += handed_on
            if self._told(self._wanted_cancels.step()):
                self.look_everywhere()
        moved += self._told(self._cancelling.step())
        timed_out, until_deadline = self._deadlines.step()
        made, soon = self._backfilling.step(self._shards)
        if made or timed_out:
            self._notifier.poke(Channel.OUTBOX)
        left = 0.0 if moved or timed_out or retiming else min(pause, soon, until_deadline)
        self._sleeps_until = monotonic_seconds() + left
        return left

    def look_everywhere(self) -> None:
        """Let the next round do what is done once a second, whenever it was done last."""
        self._next_overdue = 0.0

    def close(self) -> None:
        """Let go of its connections; for one that does not `run`."""
        self._listener.close()
        self._notifier.close()
        self._helper.shutdown()
        self._beside.close()
        self._session.close()

    def _settle(self) -> int:
        """Do what ends in users' own transactions have left to do."""
        with self._session.transaction() as connection:
            settled = settle_loose_ends(connection, self._installation)
        if settled == MOST_SETTLED:
            self.look_everywhere()  # there may be more: not in a second, but in the next round
        return settled

    def _told(self, cancelled: Cancelled) -> int:
        """Tell others of what was cancelled; returns whether there is more to do at once."""
        if cancelled.ended:
            self._notifier.poke(Channel.OUTBOX)
        if cancelled.asked:
            self._notifier.poke(Channel.SIGNALS)
        return int(cancelled.more)

    def _fire(self, shards: list[int], ahead: timedelta, marks: Marks[int], rush: Rush) -> tuple[int, float]:
        """Fire what is due up to `ahead` from now in these shards; also tells when to look again."""
        poll = self._settings.scheduler_poll.total_seconds()
        if not shards:
            return 0, poll
        some = rush.next()
        now, earliest = self._probe_some(some, marks) if some else self._probe(shards, marks)
        horizon = now + ahead
        due = sorted((shard for shard, at in earliest.items() if at <= horizon), key=earliest.__getitem__)
        if not due:
            rush.saw(len(some), full=False)
            return len(some), self._pause(now, earliest, ahead)
        missed_until = min(now - self._settings.misfire_after, horizon)
        taken = rush.take(due)
        look = Round(
            shards=taken,
            now=now,
            horizon=horizon,
            misfire_after=self._settings.misfire_after,
            batch=self._settings.fire_batch,
            since=missed_until,
            marks=marks.of(taken),
        )
        moved = self._fire_batch(look, rush)
        full = moved >= look.batch
        rush.saw(len(taken), full=full)
        if not full and earliest[due[0]] <= missed_until:
            # What was missed comes after what is on time, and in smaller bites, so that it is in nobody's way.
            behind = replace(look, since=EVER, until=missed_until, batch=-(-look.batch // _MISSED_PART))
            moved += fire(self._session, self._installation, behind)
        if moved:
            self._notifier.poke(Channel.OUTBOX)
        # Nothing moved although something is due: its row is in somebody's hands, who will be done soon.
        return moved, min(poll, 0.05)

    def _fire_batch(self, look: Round, rush: Rush) -> int:
        """Fire one batch; in a rush two at once, each on a connection of its own and of half the shards.

        While PostgreSQL works on one, this process prepares the other: two cores fire nearly twice as much. Timers are
        locked and passed over where locked, so the two need to know nothing of each other.
        """
        if not rush.on or len(look.shards) < 2:
            return fire(self._session, self._installation, look)
        half = replace(look, shards=look.shards[1::2])
        beside = self._helper.submit(fire, self._beside, self._installation, half)
        try:
            moved = fire(self._session, self._installation, replace(look, shards=look.shards[::2]))
        finally:
            wait([beside])
        try:
            return moved + beside.result()
        except Unavailable as error:
            # There may be room for one connection only: its timers are due still, and one alone comes to them too.
            _LOG.warning("what was fired beside is due again: %s", error)
            return moved

    def _pause(self, now: datetime, earliest: dict[int, datetime], ahead: timedelta) -> float:
        poll = self._settings.scheduler_poll
        # With a lookahead longer than the poll a timer that comes into sight can wait for the next look; without, the
        # sleep ends when the timer is due.
        if not earliest or ahead > poll:
            return poll.total_seconds()
        return min(max((min(earliest.values()) - ahead - now).total_seconds(), 0.001), poll.total_seconds())

    def _probe(self, shards: list[int], marks: Marks[int]) -> tuple[datetime, dict[int, datetime]]:
        now, found = self._earliest(shards, marks.begin(shards))
        marks.saw(found, now)
        return now, {shard: at for shard, at in found.items() if at is not None}

    def _probe_some(self, shards: list[int], marks: Marks[int]) -> tuple[datetime, dict[int, datetime]]:
        """The same for those whose turn is now; marks move when all shards are looked at."""
        now, found = self._earliest(shards, list(marks.of(shards).values()))
        return now, {shard: at for shard, at in found.items() if at is not None}

    def _earliest(self, shards: list[int], marks: list[datetime]) -> tuple[datetime, dict[int, datetime | None]]:
        with self._session.transaction() as connection:
            rows = connection.execute(_PROBE_TIMERS, {"shards": shards, "marks": marks}, binary=True).fetchall()
        found = {cast("int", shard): cast("datetime | None", at) for shard, at, _ in rows}
        return cast("datetime", rows[0][2]), found

    def _take_shards(self) -> None:
        members = self._membership.live()
        if members != self._members:
            self._members = members
            self._shards = rendezvous(self._installation.shards, members, self._membership.member_id)
            self._rush = Rush()
            metrics.set("shards_owned", len(self._shards))

    def _keep_house(self) -> None:
        now = monotonic_seconds()
        if now >= self._next_partitions:
            with self._session.transaction() as connection:
                ensure_coming_days(connection)
            self._next_partitions = now + _PARTITIONS_SECONDS
        if now >= self._next_mend:
            release_chains(self._session)
            if self._shards:
                shard = self._shards[self._mending % len(self._shards)]
                mend_shard(self._session, shard, self._installation.shards)
                self._turns.mend_shard(shard)
                self._mending += 1
            self._next_mend = now + _MEND_SECONDS
