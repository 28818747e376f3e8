"""The scheduler's loop: fire due timers, do other duties at their cadence, sleep.

A scheduler owns a share of the shards, by rendezvous hashing among the live schedulers. Any scheduler fires timers that
are overdue by more than a few seconds, so failover needs no election.

The partitions of the days ahead are created on a thread and a connection of their own: ATTACH may wait for another
transaction's lock on the parent for minutes. Firing needs today's partitions only, which have existed for three days.
"""

import logging
import math
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import InstallationFault, Unavailable
from tidewheel.membership import Membership, rendezvous
from tidewheel.postgres.low_water import LowWaterMarks
from tidewheel.postgres.notify import Channel, Listener, Notifier
from tidewheel.postgres.partitions import coming_days, create_missing, days_ahead
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import BY_KEY, RowsLocked, Session, is_time_limit, list_ids
from tidewheel.postgres.statements import Statements
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Backoff, Shutdown, run_loop
from tidewheel.scheduler.backfill_loop import BackfillLoop
from tidewheel.scheduler.backlog import BacklogMetrics, UnhandledWatch
from tidewheel.scheduler.cancels import BulkCancel, CancelResult, PendingCancels
from tidewheel.scheduler.concurrency_keys import KeyDuties, KeyRepair
from tidewheel.scheduler.deadlines import Deadlines, WorkflowDeadlines
from tidewheel.scheduler.poller import ShardRotation, TimerPoller
from tidewheel.scheduler.releases import Releases, Thaws
from tidewheel.scheduler.repair import ActiveRunRepair, mend_workflows, release_stuck_chains, repair_missing_timers
from tidewheel.scheduler.retention import Retention
from tidewheel.scheduler.retention_rules import periods_of
from tidewheel.scheduler.set_aside import SetAside
from tidewheel.scheduler.tenant_deletions import TenantDeletions
from tidewheel.scheduler.tzdata_refresh import TzdataRefresh
from tidewheel.scheduler.work_loop import WorkLoop
from tidewheel.settings.services import SchedulerSettings
from tidewheel.transitions.after_end import MAX_APPLIED, apply_deferred_effects
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_FIND_DEFERRED_EFFECTS = Statements("tidewheel.scheduler")["find_deferred_effects"]

_DAYS_SECONDS = 600.0  # between two looks for missing partitions
_DAY_SECONDS = 86_400

_EACH_STEP = 0.0  # the duty keeps its own cadence
_SOON = 0.02  # while steps follow each other faster, a look for work that is seldom there would cost more than firing
_SECOND = 1.0
_MINUTE = 60.0


class DaysAhead:
    """The thread of a scheduler that creates the partitions of the days ahead."""

    def __init__(self, url: str, stop: Shutdown) -> None:
        self._session = Session(url, "tidewheel-scheduler-days", autocommit=True)
        loop = (stop, "scheduler: partitions of the days ahead", self._round)
        self._thread = threading.Thread(target=run_loop, args=loop, name="days-ahead", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def step(self) -> int:
        """Create what is missing; return the number of days ahead that have all their partitions."""
        with self._session.transaction() as connection:
            try:
                create_missing(connection, coming_days(connection))
            finally:
                ahead = days_ahead(connection)
                metrics.set("partitions_ahead_seconds", ahead * _DAY_SECONDS)
        return ahead

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def _round(self) -> float:
        self.step()
        self.close()
        return _DAYS_SECONDS


class DeferredEffects:
    """Applies deferred effects, `MAX_APPLIED` at a time, or one by one if one of them fails."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._failed = SetAside[UUID]()

    def step(self) -> int:
        """Apply some effects; return the number of ends."""
        left = self._failed.current()
        try:
            return self._session.within(apply_deferred_effects, self._installation, left=left)
        except (Unavailable, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - applying one at a time finds the one that fails
            _LOG.warning("applying deferred effects failed (%s); the scheduler applies them one by one", error)
        applied, columns = 0, {"limit": MAX_APPLIED, "left": uuids(left)}
        for run_id in self._session.within(list_ids, _FIND_DEFERRED_EFFECTS, columns):
            with self._failed.alone(run_id, "apply the deferred effects of run", run_id=str(run_id)):
                applied += self._session.within(apply_deferred_effects, self._installation, only=run_id)
        return applied


@dataclass(slots=True)
class _Duty:
    """Work of the scheduler, at most once in `every` seconds.

    `run` returns the seconds until the next step should come, infinite if that does not matter. A duty with less than a
    second goes on at once while it has work. `backoff` has its pauses after errors that concern it alone.
    """

    name: str
    every: float
    run: Callable[[], float]
    backoff: Backoff
    next_at: float = 0.0

    def step(self) -> float:
        """Run the duty if its time has come; return the seconds until the next step should come.

        A duty that the installation refuses, that waits for a lock in vain, or whose code is wrong, is tried again
        later: the others go on.
        """
        now = monotonic_seconds()
        if now < self.next_at:
            return self.next_at - now if self.backoff.active or self.every < _SECOND else math.inf
        self.next_at = now + self.every
        try:
            pause = self.run()
        except Exception as error:
            if isinstance(error, Unavailable) and not _concerns_one_duty(error):
                self.next_at = now
                raise
            seconds = self.backoff.failed(error, unexpected=not isinstance(error, Unavailable))
            self.next_at = monotonic_seconds() + seconds
            return seconds
        self.backoff.reset()
        if not pause and self.every < _SECOND:
            self.next_at = now
        return pause


def _concerns_one_duty(error: Unavailable) -> bool:
    return isinstance(error, InstallationFault | RowsLocked) or is_time_limit(error)


class Scheduler:
    """One scheduler process."""

    def __init__(self, settings: SchedulerSettings, url: str, installation: Installation, stop: Shutdown) -> None:
        self._settings, self._installation, self._stop = settings, installation, stop
        self._session = Session(url, "tidewheel-scheduler", options=BY_KEY)
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
        self._poller = TimerPoller(self._session, url, installation, settings, self._notifier)
        self._rotation = ShardRotation()
        self._shards: list[int] = []
        self._members: tuple[object, ...] = ()
        self._marks, self._others_marks = LowWaterMarks[int](), LowWaterMarks[int]()
        self._next_repair = 0
        self._sleeps_until = 0.0
        self._bulk_cancel = BulkCancel(self._session, installation)
        self._deferred_effects = DeferredEffects(self._session, installation)
        self._pending_cancels = PendingCancels(self._session, installation)
        self._active_runs = ActiveRunRepair(self._session, installation)
        self._keys = KeyDuties(self._session, installation)
        self._deadlines = Deadlines(self._session, installation)
        self._thaws = Thaws(self._session, installation)
        self._workflow_deadlines = WorkflowDeadlines(self._session)
        self._releases = Releases(self._session, installation)
        self._backfills = BackfillLoop(self._session, installation)
        self._works = WorkLoop(self._session, installation)
        self._tenant_deletions = TenantDeletions(
            Session(url, "tidewheel-scheduler-tenants", options=BY_KEY), installation, settings.retention
        )
        self._unhandled = UnhandledWatch(Session(url, "tidewheel-scheduler-unhandled", options=BY_KEY), installation)
        self._key_repair = KeyRepair(Session(url, "tidewheel-scheduler-keys", options=BY_KEY), installation)
        self._metrics = BacklogMetrics(Session(url, "tidewheel-scheduler-metrics", options=BY_KEY), installation)
        self._tzdata = TzdataRefresh(self._session, installation)
        self._days_ahead = DaysAhead(url, stop)
        self._retention = Retention(url, periods_of(settings), stop)
        duties: tuple[tuple[str, float, Callable[[], float]], ...] = (  # in this order: shards before their timers
            ("repair", _MINUTE, self._repair),
            ("tzdata", _EACH_STEP, lambda: 0.0 if self._tzdata.step() else math.inf),
            ("shards", _EACH_STEP, self._assign_shards),
            ("timers", _EACH_STEP, self._poll_timers),
            ("releases", _SOON, self._drain_releases),
            ("overdue timers", _SECOND, self._poll_overdue_timers),
            ("deferred effects", _SECOND, self._apply_deferred_effects),
            ("active runs", _SECOND, lambda: self._released(self._active_runs.step())),
            ("waiting for keys", _SOON, self._promote_for_keys),
            ("keys", _SECOND, self._repair_keys),
            ("rates of tenants", _SECOND, self._pace),
            ("unhandled runs", _SECOND, lambda: self._notified((self._unhandled.step(), math.inf))),
            ("metrics", _SECOND, self._measure),
            ("workflow deadlines", _SECOND, self._time_out_workflows),
            ("pending cancels", _SECOND, self._apply_pending_cancels),
            ("bulk cancel", _EACH_STEP, lambda: 0.0 if self._notify(self._bulk_cancel.step()) else math.inf),
            ("thaws", _EACH_STEP, lambda: 0.0 if self._thaws.step() else math.inf),
            ("deadlines", _EACH_STEP, lambda: self._notified(self._deadlines.step())),
            ("backfills", _EACH_STEP, lambda: self._notified(self._backfills.step(self._shards))),
            ("works", _EACH_STEP, lambda: self._notified(self._works.step())),
            ("deletions of tenants", _EACH_STEP, self._delete_tenants),
        )
        self._duties = tuple(
            _Duty(name, every, run, Backoff(stop, f"scheduler: {name}")) for name, every, run in duties
        )

    def run(self) -> None:
        """Fire until a shutdown is requested."""
        self._membership.start()
        self._days_ahead.start()
        self._retention.start()
        try:
            run_loop(self._stop, "scheduler", self.step, wake=self._wake)
        finally:
            self._membership.leave()
            self.close()

    def step(self) -> float:
        """Do the duties whose time has come; return the seconds until the next step."""
        if monotonic_seconds() < self._sleeps_until:
            self._marks.scan_soon()
        pause = min([duty.step() for duty in self._duties])
        self._sleeps_until = monotonic_seconds() + pause
        return pause

    def expedite(self) -> None:
        """Do the once-a-second duties in the next step."""
        for duty in self._duties:
            if duty.every == _SECOND and not duty.backoff.active:
                duty.next_at = 0.0

    def close(self) -> None:
        """Close the connections of a scheduler that does not `run`."""
        self._listener.close()
        self._notifier.close()
        self._poller.close()
        self._unhandled.close()
        self._key_repair.close()
        self._tenant_deletions.close()
        self._metrics.close()
        self._session.close()

    def _repair(self) -> float:
        """Repair one shard: a pass over all 64 takes about an hour."""
        release_stuck_chains(self._session)
        if self._shards:
            shard = self._shards[self._next_repair % len(self._shards)]
            self._next_repair += 1  # first: a shard that fails delays no other
            repair_missing_timers(self._session, shard, self._installation.shards)
            self._active_runs.repair_shard(shard)
            mend_workflows(self._session, self._installation, shard)
        return math.inf

    def _assign_shards(self) -> float:
        members = self._membership.live()
        if members != self._members:
            self._members = members
            self._shards = rendezvous(self._installation.shards, members, self._membership.member_id)
            self._rotation = ShardRotation()
            metrics.set("shards_owned", len(self._shards))
        return math.inf

    def _poll_timers(self) -> float:
        return self._poller.poll(self._shards, self._settings.lookahead, self._marks, self._rotation)

    def _drain_releases(self) -> float:
        runs, more = self._releases.step(self._shards)
        return self._notified((runs, 0.0 if more else math.inf))

    def _poll_overdue_timers(self) -> float:
        others = sorted(set(range(self._installation.shards)) - set(self._shards))
        self._poller.poll(others, -self._settings.overdue_after, self._others_marks, ShardRotation())
        return math.inf

    def _apply_deferred_effects(self) -> float:
        applied = self._deferred_effects.step()
        if applied == MAX_APPLIED:
            self.expedite()  # there may be more
        return self._released(applied)

    def _promote_for_keys(self) -> float:
        promoted, until_next = self._keys.promote(self._shards)
        return min(self._released(promoted), until_next)

    def _repair_keys(self) -> float:
        repairs = 0 in self._shards
        woken = self._keys.wake() if repairs else 0
        return self._released(woken + self._key_repair.step(repairs=repairs))

    def _pace(self) -> float:
        if 0 not in self._shards:
            return math.inf
        queued, goes_on = self._keys.pace()
        if goes_on:
            self.expedite()
        pause = self._released(queued)
        return 0.0 if goes_on else pause

    def _released(self, runs: int) -> float:
        return self._notified((runs, 0.0 if runs else math.inf))

    def _notified(self, done: tuple[int, float]) -> float:
        written, pause = done
        if written:
            self._notifier.notify(Channel.OUTBOX)
        return pause

    def _measure(self) -> float:
        self._metrics.step(measures=0 in self._shards)
        return math.inf

    def _apply_pending_cancels(self) -> float:
        if self._notify(self._pending_cancels.step()):
            self.expedite()
        return math.inf

    def _notify(self, cancelled: CancelResult) -> bool:
        if cancelled.ended:
            self._notifier.notify(Channel.OUTBOX)
        if cancelled.signalled:
            self._notifier.notify(Channel.SIGNALS)
        return cancelled.more

    def _time_out_workflows(self) -> float:
        self._workflow_deadlines.step()  # the next duty of this step cancels the runs
        return math.inf

    def _delete_tenants(self) -> float:
        done, until_next = self._tenant_deletions.step(deletes=0 in self._shards)
        self._notify(done)
        return until_next
