"""The scheduler: looks at the timers of its shards, fires what is due, sleeps until the next.

Its shards are its share by rendezvous among the live schedulers; timers that are overdue by more than a few seconds are
taken by any of them, so that failover needs no election.
"""

import logging
import socket
import threading

from tidewheel.clock import monotonic_seconds
from tidewheel.membership import Membership, rendezvous
from tidewheel.postgres.low_water import LowWaterMarks
from tidewheel.postgres.notify import Channel, Listener, Notifier
from tidewheel.postgres.partitions import ensure_coming_days
from tidewheel.postgres.session import BY_KEY, Session
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown, run_loop
from tidewheel.scheduler.active_run_repair import TurnSweep
from tidewheel.scheduler.backfill_loop import Backfilling
from tidewheel.scheduler.backlog import Rush
from tidewheel.scheduler.bulk_cancel import Cancelled, Cancelling
from tidewheel.scheduler.deadlines import Deadlines
from tidewheel.scheduler.pending_cancels import WantedCancels
from tidewheel.scheduler.poller import Rounds
from tidewheel.scheduler.repair import mend_shard, release_chains
from tidewheel.scheduler.tzdata_refresh import ZonesChanged
from tidewheel.scheduler.unhandled import UnhandledWatch
from tidewheel.settings import SchedulerSettings
from tidewheel.transitions.deferred_effects import MOST_APPLIED, apply_deferred_effects
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_OVERDUE_SECONDS = 1.0  # how often the other shards are looked at for what their owner has left
_MEND_SECONDS = 60.0  # one shard a minute: a whole round of 64 in about an hour
_PARTITIONS_SECONDS = 600.0


class Scheduler:
    """One scheduler process."""

    def __init__(self, settings: SchedulerSettings, url: str, installation: Installation, stop: Shutdown) -> None:
        self._settings, self._installation, self._stop = settings, installation, stop
        self._session = Session(url, "tidewheel-scheduler", options=BY_KEY)
        self._rush = Rush()
        self._wake = threading.Event()
        self._membership = Membership(
            url,
            role="scheduler",
            name=socket.gethostname(),
            timeout=settings.member_timeout,
            skew=ClockSkew(settings.max_clock_skew),
        )
        self._listener = Listener(url, "tidewheel-scheduler-listen", (Channel.TIMERS,), self._wake)
        self._notifier = Notifier(url, "tidewheel-scheduler-notify")
        self._rounds = Rounds(self._session, url, installation, settings, self._notifier)
        self._shards: list[int] = []
        self._marks, self._others_marks = LowWaterMarks[int](), LowWaterMarks[int]()
        self._members: tuple[object, ...] = ()
        self._next_overdue = self._next_mend = self._next_partitions = self._sleeps_until = 0.0
        self._mending = 0
        self._cancelling = Cancelling(self._session, installation)
        self._pending_cancels = WantedCancels(self._session, installation)
        self._turns = TurnSweep(self._session, installation)
        self._deadlines = Deadlines(self._session, installation)
        self._backfilling = Backfilling(self._session, installation)
        self._unhandled = UnhandledWatch(Session(url, "tidewheel-scheduler-unhandled", options=BY_KEY), installation)
        self._zones = ZonesChanged(self._session, installation)

    def run(self) -> None:
        """Fire until asked to stop."""
        self._membership.start()
        try:
            run_loop(self._stop, "scheduler", self.step, wake=self._wake)
        finally:
            self._membership.leave()
            self.close()

    def step(self) -> float:
        """One round; returns how long it may be until the next, in seconds.

        Raises:
            Unavailable: The database does not answer.
        """
        if monotonic_seconds() < self._sleeps_until:
            self._marks.scan_soon()
        self._keep_house()
        retiming = self._zones.step()
        self._take_shards()
        pause = self._rounds.fire(self._shards, self._settings.lookahead, self._marks, self._rush)
        more = retiming
        if monotonic_seconds() >= self._next_overdue:
            self._next_overdue = monotonic_seconds() + _OVERDUE_SECONDS
            others = sorted(set(range(self._installation.shards)) - set(self._shards))
            self._rounds.fire(others, -self._settings.overdue_after, self._others_marks, Rush())
            handed_on = self._settle() + self._turns.step()
            if self._unhandled.step() or handed_on:
                self._notifier.notify(Channel.OUTBOX)
            more = more or handed_on > 0
            if self._told(self._pending_cancels.step()):
                self.look_everywhere()
        more = bool(self._told(self._cancelling.step())) or more
        timed_out, until_deadline = self._deadlines.step()
        made, soon = self._backfilling.step(self._shards)
        if made or timed_out:
            self._notifier.notify(Channel.OUTBOX)
        left = 0.0 if more or timed_out else min(pause, soon, until_deadline)
        self._sleeps_until = monotonic_seconds() + left
        return left

    def look_everywhere(self) -> None:
        """Let the next round do what is done once a second, whenever it was done last."""
        self._next_overdue = 0.0

    def close(self) -> None:
        """Let go of its connections; for one that does not `run`."""
        self._listener.close()
        self._notifier.close()
        self._rounds.close()
        self._unhandled.close()
        self._session.close()

    def _settle(self) -> int:
        """Do what ends in users' own transactions have left to do."""
        with self._session.transaction() as connection:
            settled = apply_deferred_effects(connection, self._installation)
        if settled == MOST_APPLIED:
            self.look_everywhere()  # there may be more: not in a second, but in the next round
        return settled

    def _told(self, cancelled: Cancelled) -> int:
        """Tell others of what was cancelled; returns whether there is more to do at once."""
        if cancelled.ended:
            self._notifier.notify(Channel.OUTBOX)
        if cancelled.asked:
            self._notifier.notify(Channel.SIGNALS)
        return int(cancelled.more)

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
